//! A module that gives memory back, by the import that the feature `discard` brings: it has no other.

use pageman::Pages;

#[global_allocator]
static ALLOCATOR: pageman::PageAllocator = pageman::PageAllocator;

/// Writes so many MiB of pages, and as many of a vector, and frees them. Returns how many pages the host has taken.
#[unsafe(no_mangle)]
pub extern "C" fn give_back(mib: usize) -> usize {
    let Some(mut pages) = Pages::zeroed(mib << 20) else { return 0 };
    pages.fill(0xaa);
    let block = vec![0x55_u8; mib << 20];
    let is_held = block.iter().chain(pages.iter()).all(|byte| matches!(byte, 0xaa | 0x55));
    drop((pages, block));
    if is_held { pageman::trim() } else { 0 }
}

/// Whether so many MiB read zero, and the manager's tables are right.
#[unsafe(no_mangle)]
pub extern "C" fn zeros(mib: usize) -> u32 {
    let Some(pages) = Pages::zeroed(mib << 20) else { return 0 };
    u32::from(pages.iter().all(|byte| *byte == 0) && pageman::check().is_none())
}
