//! A program whose allocator is the page manager's: vectors, maps and pages side by side, blocks of the C library's
//! own malloc, and calls of the standard library for which that allocates.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::{env, fs, slice};

use pageman::Pages;

#[global_allocator]
static ALLOCATOR: pageman::PageAllocator = pageman::PageAllocator;

/// The same numbers each time, by a multiplication and an addition.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

unsafe extern "C" {
    fn malloc(size: usize) -> *mut u8;
    fn realloc(block: *mut u8, size: usize) -> *mut u8;
    fn free(block: *mut u8);
}

/// A block of the C library's.
struct Block {
    start: *mut u8,
    size: usize,
    mark: u8,
}

impl Block {
    fn new(size: usize, mark: u8) -> Self {
        // SAFETY: the function takes any size.
        let mut block = Self { start: unsafe { malloc(size) }, size, mark };
        block.bytes().fill(mark);
        block
    }

    fn bytes(&mut self) -> &mut [u8] {
        assert!(!self.start.is_null(), "there is memory");
        // SAFETY: the block has as many bytes, which belong to this value.
        unsafe { slice::from_raw_parts_mut(self.start, self.size) }
    }

    fn resize(&mut self, size: usize) {
        let kept = size.min(self.size);
        // SAFETY: the block is the C library's.
        (self.start, self.size) = (unsafe { realloc(self.start, size) }, size);
        let mark = self.mark;
        assert!(self.bytes()[..kept].iter().all(|byte| *byte == mark), "another was here");
        self.bytes().fill(mark);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mark = self.mark;
        assert!(self.bytes().iter().all(|byte| *byte == mark), "another was here");
        // SAFETY: the block is the C library's, and nobody has it after this.
        unsafe { free(self.start) };
    }
}

/// Variables and files are what they are, wherever the C library keeps its records of them.
fn ask_the_c_library(step: usize) {
    let name = format!("/notes-{}", step % 3);
    let text = format!("step {step}");
    fs::write(&name, &text).expect("a file can be written");
    assert_eq!(env::var("MARK").as_deref(), Ok("as it was given"), "step {step}");
    let files = fs::read_dir("/").expect("it can be listed");
    let files = files.map(|file| file.expect("it is there").file_name());
    assert!(files.into_iter().any(|file| *file == name[1..]), "step {step}: {name} is listed");
    assert_eq!(fs::read_to_string(&name).ok(), Some(text));
    // More than lies before the first whole page behind the program's data.
    let long = |variable: usize| format!("{variable} of step {step}, ").repeat(200);
    for variable in 0..60 {
        // SAFETY: there is one thread.
        unsafe { env::set_var(format!("LONG_{variable}"), long(variable)) };
    }
    let kept = |variable: &usize| env::var(format!("LONG_{variable}")) == Ok(long(*variable));
    assert!((0..60).all(|variable| kept(&variable)), "step {step}: variables are kept");
}

/// Zeros at every size around the one from which on blocks have pages of their own, and dirty pages for the next.
fn zeros_around_the_limit() {
    for length in pageman::LARGE - 100..pageman::LARGE + 100 {
        // The compiler believes that it knows the bytes of such a vector.
        let mut zeros = black_box(vec![0u8; length]);
        assert!(zeros.iter().all(|byte| *byte == 0), "zeros are promised: {length} bytes");
        zeros.fill(0xee);
        drop(black_box(zeros));
    }
}

fn main() {
    ask_the_c_library(0);
    let before = env::var("LONG_59").ok();
    zeros_around_the_limit();
    assert_eq!(env::var("LONG_59").ok(), before, "what the C library has is not the manager's");
    let mut numbers = Numbers(1);
    let mut vectors: BTreeMap<usize, (u8, Vec<u8>)> = BTreeMap::new();
    let mut pages: Vec<(u8, Pages)> = Vec::new();
    let mut blocks: BTreeMap<usize, Block> = BTreeMap::new();
    for step in 0..4000 {
        let (key, mark) = (numbers.below(200), 1 + numbers.below(255) as u8);
        match numbers.below(8) {
            0 => {
                let bits = 4 + numbers.below(17);
                let length = 1 + numbers.below(1 << bits);
                let zeros = black_box(vec![0u8; length]);
                assert!(zeros.iter().all(|byte| *byte == 0), "zeros are promised");
                drop(zeros);
                vectors.insert(key, (mark, vec![mark; length]));
            }
            1 => {
                if let Some((mark, vector)) = vectors.get_mut(&key) {
                    assert!(vector.iter().all(|byte| byte == mark), "another was here");
                    let longer = vector.len() + numbers.below(1 << 19);
                    vector.resize(longer, *mark);
                }
            }
            2 => drop(vectors.remove(&key)),
            5 | 6 => {
                let bits = 4 + numbers.below(17);
                let size = 1 + numbers.below(1 << bits);
                match blocks.get_mut(&key) {
                    Some(block) => block.resize(size),
                    None => drop(blocks.insert(key, Block::new(size, mark))),
                }
            }
            7 => drop(blocks.remove(&key)),
            3 if pages.len() < 20 => {
                let mut taken = Pages::zeroed(1 + numbers.below(1 << 20)).expect("there is memory");
                assert!(taken.iter().all(|byte| *byte == 0), "zeros are promised");
                taken.fill(mark);
                let kept = 1 + numbers.below(taken.len());
                taken.truncate(kept);
                pages.push((mark, taken));
            }
            _ => {
                if !pages.is_empty() {
                    let (mark, taken) = pages.swap_remove(key % pages.len());
                    assert!(taken.iter().all(|byte| *byte == mark), "another was here");
                }
            }
        }
        if step % 20 == 0 {
            ask_the_c_library(step);
        }
        if step % 100 == 0 {
            assert_eq!(pageman::check(), None);
        }
    }
    let aligned = Pages::aligned(1 << 20, 2 << 20).expect("there is memory");
    assert_eq!(aligned.as_ptr() as usize % (2 << 20), 0);
    drop((vectors, pages, blocks, aligned));
    assert_eq!(pageman::check(), None);
    let mut buffer = [0; 1024];
    assert!(pageman::statistics(&mut buffer).starts_with("{\"page_size\":65536,"));
    println!("all is as promised");
}
