//! Pages, and a global allocator on them, for Rust programs in WebAssembly.
//!
//! [`PageAllocator`] takes the place of the standard allocator: blocks of [`LARGE`] bytes or more
//! have pages of their own, which go back when they are freed, and smaller ones share some.
//! [`Pages`] are pages without an allocator.
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: pageman::PageAllocator = pageman::PageAllocator;
//!
//! let table = pageman::Pages::zeroed(1 << 20).expect("there is memory");
//! ```
//!
//! The C library that does the work is compiled along: `PAGEMAN_CC` is the command of a C compiler
//! for WebAssembly, such as `zig cc`. For threads it is not made.

#![no_std]

#[cfg(target_feature = "atomics")]
compile_error!("this allocator has no lock, so it is not for programs with threads");

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use core::slice;

use dlmalloc::Dlmalloc;

/// Blocks of at least so many bytes have pages of their own.
pub const LARGE: usize = 256 << 10;

/// Bytes of a page.
pub const PAGE_SIZE: usize = 64 << 10;

const ANY: u32 = 0;
const ZERO: u32 = 1;
const MAY_MOVE: i32 = 1;

unsafe extern "C" {
    fn pageman_map(length: usize, alignment: usize, wish: u32) -> *mut c_void;
    fn pageman_unmap(address: *mut c_void, length: usize) -> i32;
    fn pageman_mremap(
        address: *mut *mut c_void,
        old_length: usize,
        new_length: usize,
        flags: i32,
        target: *mut c_void,
    ) -> i32;
    fn pageman_check() -> *const u8;
    fn pageman_trim() -> usize;
    fn pageman_print(buffer: *mut u8, size: usize, json: bool) -> usize;
}

/// Whole pages of memory, readable and writable, which go back when this is dropped.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the pages belong to this value alone, as a box's memory does to it.
unsafe impl Send for Pages {}
// SAFETY: a shared reference to the value only reads the pages.
unsafe impl Sync for Pages {}

impl Pages {
    /// At least `length` bytes that are zero. Nothing is cleared that is zero already. `None` if
    /// there is no memory, or no byte is wanted.
    pub fn zeroed(length: usize) -> Option<Self> {
        Self::aligned(length, PAGE_SIZE)
    }

    /// As [`Pages::zeroed`], at a multiple of `alignment`, a power of two.
    pub fn aligned(length: usize, alignment: usize) -> Option<Self> {
        let length = length.checked_next_multiple_of(PAGE_SIZE)?;
        // SAFETY: the function takes any arguments, and returns pages of nobody or null.
        let start = NonNull::new(unsafe { pageman_map(length, alignment, ZERO) })?;
        Some(Self { start: start.cast(), length })
    }

    /// Gives back all but the first `length` bytes, rounded up to a page.
    ///
    /// # Panics
    /// If there are not as many, or none are to stay.
    pub fn truncate(&mut self, length: usize) {
        assert!(0 < length && length <= self.length, "{length} of {} bytes", self.length);
        let kept = length.next_multiple_of(PAGE_SIZE);
        if kept < self.length {
            // SAFETY: the pages belong to this value, which forgets them now.
            unsafe { pageman_unmap(self.start.as_ptr().add(kept).cast(), self.length - kept) };
            self.length = kept;
        }
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is the first of `length` initialised bytes that belong to this value.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `start` is the first of `length` initialised bytes that belong to this value.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages belong to this value, which is gone then.
        unsafe { pageman_unmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// What is wrong with the manager's tables, if anything: for tests.
pub fn check() -> Option<&'static str> {
    // SAFETY: the function returns null or a text with a final zero that is there for good.
    unsafe {
        let text = pageman_check();
        if text.is_null() {
            return None;
        }
        core::ffi::CStr::from_ptr(text.cast()).to_str().ok()
    }
}

/// Offers all free pages to the host; returns how many it took.
pub fn trim() -> usize {
    // SAFETY: the function touches free pages only.
    unsafe { pageman_trim() }
}

/// Numbers of the manager as JSON. What does not fit is cut off.
pub fn statistics(buffer: &mut [u8]) -> &str {
    // SAFETY: the function writes at most as many bytes.
    let length = unsafe { pageman_print(buffer.as_mut_ptr(), buffer.len(), true) };
    let written = length.min(buffer.len().saturating_sub(1));
    str::from_utf8(&buffer[..written]).unwrap_or_default()
}

/// Where small blocks get their memory from.
struct Source;

// SAFETY: what is handed out are pages that belong to nobody else, until they are given back.
unsafe impl dlmalloc::Allocator for Source {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let size = size.next_multiple_of(PAGE_SIZE);
        // SAFETY: the function takes any arguments.
        let start: *mut u8 = unsafe { pageman_map(size, PAGE_SIZE, ANY) }.cast();
        (start, if start.is_null() { 0 } else { size }, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, start: *mut u8, old: usize, new: usize) -> bool {
        let kept = new.next_multiple_of(PAGE_SIZE);
        // SAFETY: dlmalloc has no more use for what lies behind.
        kept < old
            && unsafe { pageman_unmap(start.add(kept).cast(), old - kept) } == 0
            && kept == new
    }

    fn free(&self, start: *mut u8, size: usize) -> bool {
        // SAFETY: dlmalloc has no more use for it.
        unsafe { pageman_unmap(start.cast(), size) == 0 }
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        false
    }

    fn page_size(&self) -> usize {
        PAGE_SIZE
    }
}

/// The global allocator of a program, by `#[global_allocator]`.
#[derive(Debug, Default)]
pub struct PageAllocator;

struct Small(UnsafeCell<Dlmalloc<Source>>);

// SAFETY: there is one thread.
unsafe impl Sync for Small {}

static SMALL: Small = Small(UnsafeCell::new(Dlmalloc::new_with_allocator(Source)));

/// # Safety
/// No other reference to it is in use: no function here calls another that takes one.
unsafe fn small() -> &'static mut Dlmalloc<Source> {
    // SAFETY: by this function's contract there is no other reference, and there is one thread.
    unsafe { &mut *SMALL.0.get() }
}

/// Whether a block has pages of its own: a question that has the same answer when it is freed.
fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE || layout.align() >= PAGE_SIZE
}

fn large(layout: Layout, wish: u32) -> *mut u8 {
    // SAFETY: the function takes any arguments; a layout's alignment is a power of two.
    unsafe { pageman_map(layout.size(), layout.align(), wish).cast() }
}

// SAFETY: blocks are pages that belong to nobody else, or dlmalloc's.
unsafe impl GlobalAlloc for PageAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return large(layout, ANY);
        }
        // SAFETY: the reference is used for this call only.
        unsafe { small().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return large(layout, ZERO);
        }
        // SAFETY: the reference is used for this call only.
        unsafe { small().calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: `alloc` has taken these pages for a block of the same layout.
            unsafe { pageman_unmap(block.cast(), layout.size()) };
        } else {
            // SAFETY: the block is dlmalloc's; the reference is used for this call only.
            unsafe { small().free(block, layout.size(), layout.align()) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `GlobalAlloc` promises that the size, rounded up, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(layout), is_large(wanted)) {
            (true, true) if layout.align() <= PAGE_SIZE => {
                let mut moved = block.cast();
                let none = ptr::null_mut();
                // SAFETY: the block has these pages, and goes with them where they are moved.
                let error =
                    unsafe { pageman_mremap(&mut moved, layout.size(), size, MAY_MOVE, none) };
                if error == 0 { moved.cast() } else { ptr::null_mut() }
            }
            (false, false) => {
                // SAFETY: the block is dlmalloc's; the reference is used for this call only.
                unsafe { small().realloc(block, layout.size(), layout.align(), size) }
            }
            _ => {
                // SAFETY: the block has the old layout, and the new one is as long as is copied.
                unsafe {
                    let fresh = self.alloc(wanted);
                    if !fresh.is_null() {
                        ptr::copy_nonoverlapping(block, fresh, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                    fresh
                }
            }
        }
    }
}
