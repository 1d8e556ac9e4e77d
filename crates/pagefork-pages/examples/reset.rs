//! What a reset costs, by strategy, size of the memory and pages written:
//! `cargo run --release -p pagefork-pages --example reset`.
//!
//! A run writes to every eighth page, one byte, then the slot is reset; the numbers
//! are medians, in nanoseconds, of both together and of the reset alone. Contents
//! are checked after each measurement.

use std::sync::Arc;
use std::time::Instant;

use pagefork_layout::module::{MemoryType, ModuleInfo};
use pagefork_layout::page::PAGE_SIZE;
use pagefork_layout::slot::{SlotLayout, SlotLimits};
use pagefork_pages::{Image, MemorySize, Owner, PagesError, ResetKind, Slot, StrategyConfig};

const ROUNDS: usize = 2000;

fn main() -> Result<(), PagesError> {
    let module = ModuleInfo { memories: vec![MemoryType::new(0, None)], ..Default::default() };
    let layout = SlotLayout::new(&module, &SlotLimits::default()).expect("a small module");
    for (name, size) in [("64 KiB", 64 << 10), ("4 MiB", 4 << 20)] {
        for (contents, filled) in [("image", size), ("zeros", 0)] {
            let extent = layout.image_start..layout.base + filled;
            let bytes = vec![0x5a; (extent.end - extent.start) as usize];
            let image = Image::new("reset", extent.clone(), [(extent.start, &bytes[..])])?;
            println!("\nmemory of {name}, {contents}: run and reset (reset alone), ns");
            print!("{:>8} pages", "");
            ResetKind::ALL.iter().for_each(|kind| print!("{:>18}", kind.to_string()));
            println!();
            for pages in [0, 1, 16, 64, 256u64] {
                if pages * PAGE_SIZE > size {
                    continue;
                }
                print!("{pages:>14}");
                for kind in ResetKind::ALL {
                    let (both, reset) = measure(&layout, &image, size, pages, kind)?;
                    print!("{:>18}", format!("{both} ({reset})"));
                }
                println!();
            }
        }
    }
    Ok(())
}

/// Medians of run and reset, and of the reset, in nanoseconds.
fn measure(
    layout: &SlotLayout,
    image: &Arc<Image>,
    size: u64,
    pages: u64,
    kind: ResetKind,
) -> Result<(u64, u64), PagesError> {
    let strategies = StrategyConfig { reset: kind, ..Default::default() }.check()?;
    let sizes = [MemorySize { initial: size, maximum: size }];
    let mut slot = Slot::with_strategies(layout, image, &sizes, &strategies)?;
    let step = (size / PAGE_SIZE / pages.max(1)).min(8);
    let places: Vec<*mut u8> = (0..pages)
        .map(|page| slot.base().wrapping_add((page * step * PAGE_SIZE) as usize))
        .collect();
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        slot.enter();
        // What every run writes: a word of the link zone and one of the stack.
        // SAFETY: all these places are accessible, and only this thread uses them.
        unsafe {
            slot.link().write_volatile(1);
            slot.stack_top().wrapping_sub(8).write_volatile(1);
            places.iter().for_each(|place| place.write_volatile(1));
        }
        let written = Instant::now();
        slot.reset_for(Owner(1))?;
        times.push((start.elapsed(), written.elapsed()));
    }
    for &place in &places {
        let mut wanted = [0];
        let offset = (place.addr() - slot.start().addr()) as u64;
        if image.extents().iter().any(|extent| extent.contains(&offset)) {
            image.read(offset, &mut wanted)?;
        }
        // SAFETY: the place is accessible in the slot, and only this thread uses it.
        assert_eq!(unsafe { place.read_volatile() }, wanted[0], "{kind}");
    }
    let median = |mut all: Vec<u128>| {
        all.sort_unstable();
        all[all.len() / 2] as u64
    };
    let both = times.iter().map(|(both, _)| both.as_nanos()).collect();
    let reset = times.iter().map(|(_, reset)| reset.as_nanos()).collect();
    Ok((median(both), median(reset)))
}
