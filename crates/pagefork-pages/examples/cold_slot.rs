//! What a slot costs for which nothing was kept, call by call: `cargo run --release -p pagefork-pages --example cold_slot`.
//!
//! A slot is made, used and given back, which is timed as a whole; then its system calls and page faults
//! are made one by one, as it makes them, and timed each. Medians, in nanoseconds.

use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use pagefork_layout::module::{MemoryType, ModuleInfo};
use pagefork_layout::slot::{PRE_GUARD, SlotLayout, SlotLimits};
use pagefork_pages::{Image, MemorySize, PagesError, ResetKind, Slot, SlotConfig, StrategyConfig};

const ROUNDS: usize = 2000;
const MEMORY: u64 = 16 << 20;

fn main() -> Result<(), PagesError> {
    let module = ModuleInfo { memories: vec![MemoryType::new(0, None)], ..Default::default() };
    let layout = SlotLayout::new(&module, &SlotLimits::default()).expect("a small module");
    let extent = layout.image_start..layout.base + MEMORY;
    let bytes = vec![0x5a; (extent.end - extent.start) as usize];
    let image = Image::new("cold", extent.clone(), [(extent.start, &bytes[..])])?;
    for written in [0, 1] {
        println!(
            "made, {written} pages of memory written, given back: {} ns",
            whole(&layout, &image, written)?
        );
    }
    let zones = SlotConfig::from(&layout);
    let contents = extent.end - extent.start;
    // SAFETY: the file is this function's.
    let file = unsafe {
        let file = libc::memfd_create(c"cold".as_ptr(), libc::MFD_CLOEXEC);
        assert_eq!(libc::ftruncate(file, contents as i64), 0);
        // In memory, as an image is.
        assert_eq!(libc::fallocate(file, 0, 0, contents as i64), 0);
        file
    };
    for is_used in [true, false] {
        println!(
            "\n{}, of {} MiB of addresses:",
            if is_used { "its calls" } else { "unused" },
            (PRE_GUARD + zones.size) >> 20
        );
        let mut parts: Vec<(&str, Vec<u64>)> = Vec::new();
        for _ in 0..ROUNDS {
            for (index, (name, time)) in
                one_by_one(&zones, file, contents, is_used).into_iter().enumerate()
            {
                match parts.get_mut(index) {
                    Some((_, times)) => times.push(time),
                    None => parts.push((name, vec![time])),
                }
            }
        }
        let mut sum = 0;
        for (name, times) in parts {
            let median = median(times);
            sum += median;
            println!("{name:<62}{median:>8}");
        }
        println!("{:<62}{sum:>8}", "all");
    }
    Ok(())
}

/// A slot that is made, used as a run uses it, and given back.
fn whole(layout: &SlotLayout, image: &Arc<Image>, written: u64) -> Result<u64, PagesError> {
    let reset = ResetKind::Auto;
    let strategies = StrategyConfig { reset, ..Default::default() }.check()?;
    let sizes = [MemorySize { initial: MEMORY, maximum: MEMORY }];
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let slot = Slot::with_strategies(layout, image, &sizes, &strategies)?;
        // SAFETY: the link zone and the memory are accessible, and no other code uses them.
        unsafe {
            slot.link().write_volatile(1);
            for page in 0..written {
                slot.memory(0).add((page << 12) as usize).write_volatile(1);
            }
        }
        drop(slot);
        times.push(begun.elapsed().as_nanos() as u64);
    }
    Ok(median(times))
}

/// What [`whole`] asks of the kernel, with the time that each took.
fn one_by_one(
    zones: &SlotConfig,
    file: i32,
    contents: u64,
    is_used: bool,
) -> Vec<(&'static str, u64)> {
    let (size, accessible) =
        ((PRE_GUARD + zones.size) as usize, zones.base + MEMORY - zones.stack.start);
    let (private, none) =
        (libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_STACK, libc::PROT_NONE);
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the file is the caller's, and the maps are this function's, made, used and unmapped here.
    unsafe {
        let mut found = Vec::new();
        let mut begun = Instant::now();
        let mut time = |name| {
            found.push((name, begun.elapsed().as_nanos() as u64));
            begun = Instant::now();
        };
        let start = libc::mmap(ptr::null_mut(), size, none, private | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        let (all, start) = (start, start.add(PRE_GUARD as usize));
        time("reserve addresses (mmap)");
        let stack = start.add(zones.stack.start as usize);
        assert_eq!(libc::mprotect(stack, accessible as usize, both), 0);
        time("make stack, link zone, tables and memory accessible (mprotect)");
        let image = start.add((zones.base + MEMORY - contents) as usize);
        let mapped = libc::mmap(image, contents as usize, both, private | libc::MAP_FIXED, file, 0);
        assert_eq!(mapped, image);
        time("map the image in their place (mmap)");
        if is_used {
            start.add(zones.link.start as usize).cast::<u8>().write_volatile(1);
            time("first write to the link zone (fault, and page tables)");
            stack
                .add((zones.stack.end - zones.stack.start) as usize - 8)
                .cast::<u8>()
                .write_volatile(1);
            time("first write to the stack (fault)");
            start.add(zones.base as usize).cast::<u8>().write_volatile(1);
            time("first write to memory (fault, copy, and page tables)");
        }
        assert_eq!(libc::munmap(all, size), 0);
        time("give all back (munmap)");
        found
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
