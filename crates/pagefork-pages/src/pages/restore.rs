//! Making bytes equal to others where they differ.
//!
//! Most programs write to a few lines of a page. To read a page is cheaper than to write
//! it, so what is equal is left alone.

use std::ptr;

use pagefork_layout::page::PAGE_SIZE;

/// What is compared, and written if it differs: some lines of the processor's cache.
type Block = [u64; 32];

/// Blocks of a page.
pub(crate) const BLOCKS: u32 = PAGE_SIZE as u32 / size_of::<Block>() as u32;

/// Makes a page equal to `wanted`, or zero; writes only blocks that differ. Returns how
/// many those were.
///
/// # Safety
/// `page` is an accessible page that no other code uses; `wanted` is another page that can be
/// read and is not written.
#[inline]
pub(crate) unsafe fn restore_if_changed(page: *mut u8, wanted: Option<*const u8>) -> u32 {
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2; the rest is this function's contract, too.
        return unsafe { restore_wide(page, wanted) };
    }
    // SAFETY: by this function's contract, which is the same.
    unsafe { restore_blocks(page, wanted) }
}

/// # Safety
/// As of [`restore_if_changed`].
#[target_feature(enable = "avx2")]
unsafe fn restore_wide(page: *mut u8, wanted: Option<*const u8>) -> u32 {
    // SAFETY: by the contract of `restore_if_changed`, which is the same.
    unsafe { restore_blocks(page, wanted) }
}

/// # Safety
/// As of [`restore_if_changed`].
#[inline(always)]
unsafe fn restore_blocks(page: *mut u8, wanted: Option<*const u8>) -> u32 {
    let mut differing = 0;
    for index in 0..BLOCKS as usize {
        let block = page.cast::<Block>().wrapping_add(index);
        let wanted = wanted.map(|wanted| wanted.cast::<Block>().wrapping_add(index));
        // SAFETY: the block is a part of the page, and so is the other.
        unsafe {
            let differs = match wanted {
                Some(wanted) => (*block).iter().zip(&*wanted).fold(0, |bits, (a, b)| bits | a ^ b),
                None => (*block).iter().fold(0, |bits, a| bits | a),
            };
            if differs != 0 {
                match wanted {
                    Some(wanted) => ptr::copy_nonoverlapping(wanted, block, 1),
                    None => block.write_bytes(0, 1),
                }
                differing += 1;
            }
        }
    }
    differing
}

/// Whether a page is not equal to `wanted`, or not zero.
///
/// # Safety
/// As of [`restore_if_changed`].
pub(crate) unsafe fn differs(page: *const u8, wanted: Option<*const u8>) -> bool {
    const ZEROS: &[u8; PAGE_SIZE as usize] = &[0; _];
    let wanted = wanted.map_or(ZEROS, |wanted| {
        // SAFETY: by this function's contract it is a page that can be read and is not written.
        unsafe { &*wanted.cast() }
    });
    // SAFETY: by this function's contract the page is accessible, and no other code uses it.
    let page: &[u8; PAGE_SIZE as usize] = unsafe { &*page.cast() };
    page != wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = PAGE_SIZE as usize;

    #[repr(align(4096))]
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Page([u8; SIZE]);

    const ZEROS: Page = Page([0; SIZE]);

    /// The page after it was restored, and the answer; by either way the same.
    fn restored(page: Page, wanted: Option<&Page>) -> (Page, u32) {
        let wanted = wanted.map(|wanted| wanted.0.as_ptr());
        let [mut one, mut other] = [page; 2];
        // SAFETY: they are pages that no other code uses.
        let answers = unsafe {
            [
                restore_if_changed(one.0.as_mut_ptr(), wanted),
                restore_blocks(other.0.as_mut_ptr(), wanted),
            ]
        };
        assert_eq!((answers[0], one), (answers[1], other));
        (one, answers[0])
    }

    #[test]
    fn every_byte_is_looked_at() {
        let image = Page(std::array::from_fn(|i| i as u8 ^ (i >> 8) as u8));
        for wanted in [None, Some(&image)] {
            let image = *wanted.unwrap_or(&ZEROS);
            assert_eq!(restored(image, wanted), (image, 0));
            for at in 0..SIZE {
                let mut page = image;
                page.0[at] ^= 1 << (at % 8);
                assert_eq!(restored(page, wanted), (image, 1), "{at}");
            }
        }
    }

    #[test]
    fn blocks_that_differ_are_counted() {
        let mut page = ZEROS;
        for block in 0..BLOCKS as usize {
            page.0[block * size_of::<Block>() + block] = 1;
            assert_eq!(restored(page, None), (ZEROS, block as u32 + 1));
        }
    }
}
