//! A module without any import: its functions allocate on the page manager's pages.

use pageman::Pages;

#[global_allocator]
static ALLOCATOR: pageman::PageAllocator = pageman::PageAllocator;

/// Sorts so many numbers, with some pages beside them; returns 1 if all is right.
#[unsafe(no_mangle)]
pub extern "C" fn work(count: u32) -> u32 {
    let Some(mut pages) = Pages::zeroed(1 << 20) else { return 0 };
    if pages.iter().any(|byte| *byte != 0) {
        return 0;
    }
    pages.fill(0xaa);
    let mut numbers: Vec<u32> =
        (0..count).map(|number| number.wrapping_mul(2_654_435_761)).collect();
    numbers.sort_unstable();
    let texts: Vec<String> = numbers.iter().step_by(100).map(u32::to_string).collect();
    let sorted = numbers.windows(2).all(|pair| pair[0] <= pair[1]);
    let parsed = texts.iter().all(|text| text.parse::<u32>().is_ok());
    let untouched = pages.iter().all(|byte| *byte == 0xaa);
    u32::from(sorted && parsed && untouched && pageman::check().is_none())
}
