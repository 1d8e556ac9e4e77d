//! A program whose allocator is the page manager's: vectors, maps and pages side by side.

use std::collections::BTreeMap;

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

fn main() {
    let mut numbers = Numbers(1);
    let mut vectors: BTreeMap<usize, (u8, Vec<u8>)> = BTreeMap::new();
    let mut pages: Vec<(u8, Pages)> = Vec::new();
    for step in 0..4000 {
        let (key, mark) = (numbers.below(200), 1 + numbers.below(255) as u8);
        match numbers.below(5) {
            0 => {
                let bits = 4 + numbers.below(17);
                let length = 1 + numbers.below(1 << bits);
                let zeros = vec![0u8; length];
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
        if step % 100 == 0 {
            assert_eq!(pageman::check(), None);
        }
    }
    let aligned = Pages::aligned(1 << 20, 2 << 20).expect("there is memory");
    assert_eq!(aligned.as_ptr() as usize % (2 << 20), 0);
    drop((vectors, pages, aligned));
    assert_eq!(pageman::check(), None);
    let mut buffer = [0; 1024];
    assert!(pageman::statistics(&mut buffer).starts_with("{\"page_size\":65536,"));
    println!("all is as promised");
}
