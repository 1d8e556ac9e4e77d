//! Every strategy, every kind of image and every kind of growth, and what a slot
//! must be after a reset: for the tests of strategies.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use pagefork_layout::module::MemoryType;
use pagefork_layout::slot::SlotLayout;
use pagefork_pages::{
    CodeBounds, FileSpan, GrowthKind, Image, MemorySize, Owner, ResetKind, Slot, Strategies,
    StrategyConfig,
};

use super::common::*;

/// A kind of image, and the slots that go with it.
pub struct Case {
    pub name: &'static str,
    pub layout: SlotLayout,
    pub image: Arc<Image>,
    pub sizes: Vec<MemorySize>,
    /// The accessible bytes of a fresh slot, part by part.
    pub fresh: Vec<Vec<u8>>,
}

impl Case {
    pub fn new(
        name: &'static str,
        layout: SlotLayout,
        image: Arc<Image>,
        size: (u64, u64),
    ) -> Self {
        let (initial, maximum) = size;
        let sizes = vec![MemorySize { initial, maximum }; layout.memories.len()];
        let slot = Slot::new(&layout, &image, &sizes).unwrap();
        let fresh = parts(&layout, &memory_sizes(&slot));
        let fresh = fresh.into_iter().map(|part| read(&slot, part)).collect();
        Self { name, layout, image, sizes, fresh }
    }

    /// The same slots with a branch of the image: pages have a pattern, or are zero.
    pub fn branch(&self, name: &'static str, pages: &[(u64, u8)]) -> Self {
        let patterns: Vec<(u64, Vec<u8>)> = pages
            .iter()
            .map(|&(page, seed)| match seed {
                0 => (page, vec![0; PAGE as usize]),
                seed => (page, pattern(seed, PAGE)),
            })
            .collect();
        let runs: Vec<_> = patterns.iter().map(|(page, bytes)| (*page, &bytes[..])).collect();
        self.branch_of(name, &runs)
    }

    /// The same slots with a branch of the image.
    pub fn branch_of(&self, name: &'static str, pages: &[(u64, &[u8])]) -> Self {
        let mut fresh = self.fresh.clone();
        let initial: Vec<u64> = self.sizes.iter().map(|size| size.initial).collect();
        let all = parts(&self.layout, &initial);
        // Each reaches as far as its part.
        let from = |part: &Range<u64>| part.start.max(self.layout.image_start);
        let extents = all.iter().map(|part| from(part)..part.end).collect();
        for &(page, bytes) in pages {
            let index = all.iter().position(|part| part.contains(&page)).unwrap();
            let at = (page - all[index].start) as usize;
            fresh[index][at..at + bytes.len()].copy_from_slice(bytes);
        }
        let image = Image::branch(&self.image, name, extents, pages.iter().copied()).unwrap();
        assert_eq!(image.depth(), self.image.depth() + 1, "{name}");
        let (layout, sizes) = (self.layout.clone(), self.sizes.clone());
        Self { name, layout, image, sizes, fresh }
    }

    pub fn spawn(&self, strategies: &Strategies) -> Slot {
        handle_refused_writes();
        Slot::with_strategies(&self.layout, &self.image, &self.sizes, strategies).unwrap()
    }

    /// Slot offset where a memory starts.
    pub fn memory(&self, index: usize) -> u64 {
        self.layout.base + self.layout.memories[index].offset
    }

    /// Accessible parts of a slot as it is now.
    pub fn parts(&self, slot: &Slot) -> Vec<Range<u64>> {
        parts(&self.layout, &memory_sizes(slot))
    }

    /// Asserts that everything but kept pages of the stack is as in a fresh slot.
    #[track_caller]
    pub fn assert_fresh(&self, slot: &Slot, strategies: &Strategies, what: &str) {
        assert!(slot.is_whole(), "{what}");
        let initial: Vec<u64> = self.sizes.iter().map(|size| size.initial).collect();
        assert_eq!(memory_sizes(slot), initial, "{what}");
        let stack = self.layout.stack.clone();
        let kept = stack.end - strategies.config().stack_kept;
        let parts = parts(&self.layout, &initial);
        for (part, fresh) in parts.into_iter().zip(&self.fresh) {
            for range in [part.start..part.end.min(kept), self.layout.link.end..part.end] {
                // Of the first part, all but the end of the stack and link; of others, all.
                let range = if part.contains(&stack.start) { range } else { part.clone() };
                let found = bytes(slot, range.clone());
                let at = (range.start - part.start) as usize;
                let wanted = &fresh[at..at + found.len()];
                if found != wanted {
                    let at = (0..found.len()).find(|&at| found[at] != wanted[at]).unwrap();
                    panic!(
                        "{what}: slot offset {:#x} is {:#x}, not {:#x}",
                        range.start + at as u64,
                        found[at],
                        wanted[at]
                    );
                }
            }
        }
    }

    /// Parts of a slot as it is now that are in images.
    pub fn image_parts(&self, slot: &Slot) -> Vec<Range<u64>> {
        let from = self.layout.tables.start;
        self.parts(slot).into_iter().map(|part| part.start.max(from)..part.end).collect()
    }

    /// The pages in which a slot differs from a fresh one, found by looking at all.
    pub fn changed_pages(&self, slot: &Slot) -> Vec<u64> {
        let initial: Vec<u64> = self.sizes.iter().map(|size| size.initial).collect();
        let fresh = parts(&self.layout, &initial);
        let mut changed = Vec::new();
        for (index, part) in self.image_parts(slot).into_iter().enumerate() {
            for page in part.step_by(PAGE as usize) {
                let at = (page - fresh[index].start) as usize;
                let wanted = self.fresh[index].get(at..at + PAGE as usize);
                let found = bytes(slot, page..page + PAGE);
                if wanted.map_or(found.iter().any(|&byte| byte != 0), |wanted| found != wanted) {
                    changed.push(page);
                }
            }
        }
        changed
    }

    /// Asserts that an image is as a slot, and of few pages holds no more than those.
    #[track_caller]
    pub fn assert_snapshot(&self, slot: &Slot, snapshot: &Arc<Image>, what: &str) {
        for part in self.image_parts(slot) {
            let mut found = vec![0; (part.end - part.start) as usize];
            for extent in snapshot.extents().iter().filter(|extent| part.contains(&extent.start)) {
                let at = (extent.start - part.start) as usize;
                let length = (extent.end - extent.start) as usize;
                snapshot.read(extent.start, &mut found[at..at + length]).unwrap();
            }
            let present = bytes(slot, part.clone());
            if let Some(at) = (0..found.len()).find(|&at| found[at] != present[at]) {
                panic!("{what}: a snapshot differs at slot offset {:#x}", part.start + at as u64);
            }
        }
        let own = snapshot.own_pages();
        if Arc::ptr_eq(snapshot, slot.image()) {
            assert!(self.changed_pages(slot).is_empty(), "{what}");
        } else if let Some(parent) = snapshot.parent() {
            assert!(Arc::ptr_eq(parent, slot.image()), "{what}");
            assert_eq!(own, self.changed_pages(slot), "{what}");
            assert!(snapshot.size() <= own.len() as u64 * PAGE, "{what}");
        } else {
            assert!(own.is_empty() && snapshot.copied_pages() == 0, "{what}");
        }
    }

    /// Asserts that nothing is accessible beyond what each memory's size and kind of
    /// growth allow.
    #[track_caller]
    pub fn assert_bounded(&self, slot: &Slot, strategies: &Strategies, what: &str) {
        for (index, size) in self.sizes.iter().enumerate() {
            let accessible_bytes = accessible_bytes(slot, index, strategies, *size);
            let end = self.memory(index) + accessible_bytes;
            for past in [0, 1, PAGE, WASM_PAGE, size.maximum - accessible_bytes] {
                assert!(!accessible(slot, end + past), "{what}: memory {index}, {past} past");
            }
        }
    }

    /// Asserts that growth uncovers nothing but zeros; the slot is as it was after
    /// the next reset.
    #[track_caller]
    pub fn assert_growth_is_zero(&self, slot: &mut Slot, what: &str) {
        for (index, size) in self.sizes.iter().enumerate() {
            slot.grow_memory(index, size.maximum).unwrap();
            let start = self.memory(index);
            let grown = bytes(slot, start + size.initial..start + size.maximum);
            assert!(grown.iter().all(|&byte| byte == 0), "{what}: memory {index}");
        }
    }
}

/// Bytes of a memory of these sizes that are accessible in a slot that is as its image.
#[track_caller]
pub fn accessible_bytes(
    slot: &Slot,
    index: usize,
    strategies: &Strategies,
    MemorySize { initial, maximum }: MemorySize,
) -> u64 {
    let found = slot.memory_accessible(index);
    let expected = match strategies.config().growth {
        GrowthKind::Checked { accessible } => {
            let whole_pages = accessible.unwrap_or(u64::MAX) / PAGE * PAGE;
            whole_pages.min(maximum).max(initial)
        }
        // As far as it had grown, perhaps.
        GrowthKind::Kept | GrowthKind::Auto => found.clamp(initial, maximum),
        _ => initial,
    };
    assert_eq!(found, expected, "memory {index}");
    found
}

/// What [`lasting_attributes`] are of a slot that has never been reset, in which as much
/// is accessible.
pub fn fresh_attributes(case: &Case, strategies: &Strategies, like: &Slot) -> Vec<Attributes> {
    let mut fresh = case.spawn(strategies);
    if matches!(strategies.config().growth, GrowthKind::Kept | GrowthKind::Auto) {
        for index in 0..like.memory_count() {
            fresh.grow_memory(index, like.memory_accessible(index)).unwrap();
        }
    }
    lasting_attributes(&fresh)
}

/// Bytes of a slot, in place.
pub fn bytes(slot: &Slot, range: Range<u64>) -> &[u8] {
    let from = slot.start().wrapping_add(range.start as usize);
    let length = range.end.saturating_sub(range.start) as usize;
    // SAFETY: callers ask for accessible ranges of slots that only they use, and
    // write nothing as long as they look at them.
    unsafe { std::slice::from_raw_parts(from, length) }
}

/// Bytes of a slot.
pub fn read(slot: &Slot, range: Range<u64>) -> Vec<u8> {
    bytes(slot, range).to_vec()
}

/// Writes bytes into a slot.
pub fn write(slot: &Slot, offset: u64, bytes: &[u8]) {
    let to = slot.start().wrapping_add(offset as usize);
    // SAFETY: as in `bytes`.
    unsafe { to.copy_from(bytes.as_ptr(), bytes.len()) };
}

/// Every kind of image.
pub fn cases() -> Vec<Case> {
    let one = layout();
    let base = one.base;
    let (dense, _) = dense_image(&one, 0x42, 3 * PAGE);
    let (large, _) = dense_image(&one, 0x17, 12 * MIB);
    let bytes = pattern(9, 5000);
    let runs = [0, 3 * MIB + 5, 9 * MIB].map(|at| (base + at, &bytes[..]));
    let sparse = Image::new("sparse", one.image_start..base + 10 * MIB, runs).unwrap();
    let nothing = vec![0; 16 * PAGE as usize];
    let zeros = Image::new("zeros", base..base + 16 * PAGE, [(base, &nothing[..])]).unwrap();

    let three = layout_of(&[MemoryType::new(0, None); 3]);
    let starts: Vec<u64> = three.memories.iter().map(|place| three.base + place.offset).collect();
    let extents = starts.iter().map(|start| *start..start + 2 * PAGE).collect();
    let runs = starts.iter().map(|start| (*start, &bytes[..]));
    let several = Image::with_extents("several", extents, runs).unwrap();

    let wasm_pages = |initial, maximum| (initial * WASM_PAGE, maximum * WASM_PAGE);
    vec![
        Case::new("none", layout(), empty_image(&one), wasm_pages(2, 16)),
        Case::new("dense", layout(), dense, wasm_pages(1, 16)),
        Case::new("sparse", layout(), sparse, wasm_pages(160, 170)),
        Case::new("zeros", layout(), zeros, wasm_pages(2, 8)),
        Case::new("large", layout(), large, wasm_pages(200, 210)),
        Case::new("several", three, several, wasm_pages(1, 4)),
        Case::new("file", layout(), file_image(&one), wasm_pages(2, 4)),
        parts_case(),
    ]
}

/// An image of two memories in several parts of a file, with what is held beside it.
pub fn parts_case() -> Case {
    let layout = layout_of(&[MemoryType::new(0, None); 2]);
    let [first, second] = [0, 1].map(|index| layout.base + layout.memories[index].offset);
    let state = pattern(0x51, layout.base - layout.image_start);
    let span = |start: u64, pages: u64, file_page: u64| FileSpan {
        slot: start..start + pages * PAGE,
        file_offset: file_page * PAGE,
    };
    // In another order than in the slot, with pages between that belong to nothing.
    let spans = [span(first, 5, 20), span(first + 12 * PAGE, 3, 1), span(second + PAGE, 6, 8)];
    let file = temporary_file(&pattern(0x66, 26 * PAGE));
    let held = [(layout.image_start, &state[..]), (second + 9 * PAGE + 5, &state[..77])];
    let extents = vec![layout.image_start..first + 15 * PAGE, second..second + 10 * PAGE];
    let image = Image::from_file_spans(file, "parts", extents, &spans, held).unwrap();
    Case::new("parts of a file", layout, image, (64 * PAGE, 256 * PAGE))
}

/// Branches of every kind of image, at most of the second generation; each as a model says that
/// knows no branches.
pub fn branch_cases() -> Vec<Case> {
    let pages = |count: u64| count * PAGE;
    let mut roots = cases();
    let mut take = |name| {
        let at = roots.iter().position(|case| case.name == name).unwrap();
        roots.swap_remove(at)
    };
    let [none, dense, sparse] = ["none", "dense", "sparse"].map(&mut take);
    let [large, several, file, parts] =
        ["large", "several", "file", "parts of a file"].map(&mut take);
    let base = sparse.memory(0);

    let none = none.branch("branch of nothing", &[(base, 1), (base + pages(20), 2)]);
    let dense = dense.branch(
        "branch of dense",
        &[(base, 0), (base + pages(2), 3), (base + pages(5), 4), (base - PAGE, 5)],
    );
    // As the root again where it has bytes and where it has none, zero again, another one, one
    // that stays, and a new one.
    let mut again = vec![0; PAGE as usize];
    dense.image.root().read(base, &mut again).unwrap();
    let zero = vec![0; PAGE as usize];
    let other = pattern(9, PAGE);
    let changed =
        [(base, &again), (base + pages(5), &zero), (base + pages(2), &zero), (base - PAGE, &other)]
            .map(|(page, bytes)| (page, &bytes[..]));
    let second = dense.branch_of("branch of a branch", &changed);
    assert_eq!((second.image.depth(), second.image.copied_pages()), (2, 2));
    let sparse = sparse.branch(
        "branch of sparse",
        &[
            (base, 6),
            (base + PAGE, 0),
            (base + pages(100), 7),
            (base + 3 * MIB, 0),
            (base + 3 * MIB + PAGE, 8),
            (base + 10 * MIB - PAGE, 9),
        ],
    );
    let changed: Vec<(u64, u8)> = (0..300).map(|at| (base + pages(at * 9), at as u8)).collect();
    let large = large.branch("branch of large", &changed);
    let [first, middle, last] = [0, 1, 2].map(|index| several.memory(index));
    let several = several.branch(
        "branch of several",
        &[(first + PAGE, 1), (middle + pages(5), 2), (last, 0), (last + pages(15), 3)],
    );
    let file = file.branch(
        "branch of a file",
        &[(base - PAGE, 1), (base + PAGE, 2), (base + pages(2), 0), (base + pages(9), 3)],
    );
    let [low, high] = [0, 1].map(|index| parts.memory(index));
    let parts = parts.branch(
        "branch of parts of a file",
        &[
            (low - PAGE, 1),
            (low + PAGE, 2),
            (low + pages(6), 3),
            (low + pages(13), 0),
            (high + pages(9), 0),
            (high + pages(12), 4),
        ],
    );
    vec![none, dense, second, sparse, large, several, file, parts]
}

/// An image in a file that could still be cut short.
fn file_image(layout: &SlotLayout) -> Arc<Image> {
    let extent = layout.image_start..layout.base + 4 * PAGE;
    let bytes = pattern(0x33, extent.end - extent.start);
    Image::from_file(temporary_file(&bytes), 0, extent).unwrap()
}

/// A file without a name, of this user alone.
pub fn temporary_file(bytes: &[u8]) -> OwnedFd {
    let name =
        format!("pagefork-strategies-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(name);
    let mut file = File::create(&path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    file.write_all(bytes).unwrap();
    let file = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    file.into()
}

pub fn strategies(reset: ResetKind) -> Strategies {
    StrategyConfig { reset, ..Default::default() }.check().unwrap()
}

/// Strategies that differ in who copies pages of images when.
pub fn fault_strategies(growth: GrowthKind) -> Vec<Strategies> {
    let of = |(fault_threads, fault_eager)| {
        let (reset, code) = (ResetKind::Fault, CodeBounds::Checked);
        let config = StrategyConfig { reset, growth, code, ..Default::default() };
        StrategyConfig { fault_threads, fault_eager, ..config }.check().unwrap()
    };
    [(0, false), (1, false), (2, false), (0, true), (2, true)].into_iter().map(of).collect()
}

/// Every strategy with every growth.
pub fn all_strategies() -> Vec<Strategies> {
    let growths = [
        GrowthKind::Mprotect,
        GrowthKind::Checked { accessible: None },
        GrowthKind::Checked { accessible: Some(3 * WASM_PAGE) },
        GrowthKind::Kept,
        GrowthKind::Auto,
        GrowthKind::Ftruncate,
        GrowthKind::Fault,
    ];
    let with = |reset| {
        growths.map(|growth| {
            let code = CodeBounds::Checked;
            StrategyConfig { reset, growth, code, ..Default::default() }.check().unwrap()
        })
    };
    let all = ResetKind::ALL.into_iter().flat_map(with);
    // The first of them is among the others.
    let served = [GrowthKind::Mprotect, GrowthKind::Fault]
        .into_iter()
        .flat_map(|growth| fault_strategies(growth).split_off(1));
    all.chain(served).collect()
}

/// What a map of a slot is: offsets in the slot, access, file offset and inode, and
/// the kernel's flags.
#[derive(PartialEq, Eq, Debug, Clone)]
pub struct Attributes {
    pub range: Range<u64>,
    pub access: String,
    pub file: String,
    pub flags: String,
}

/// The maps of a slot, cut at its ends, as `/proc/self/smaps` has them.
pub fn attributes(slot: &Slot) -> Vec<Attributes> {
    let whole = slot.bounds().slot();
    let whole = whole.start as u64..whole.end as u64;
    let text = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found: Vec<Attributes> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some((start, end)) = words[0].split_once('-') {
            let hex = |digits| u64::from_str_radix(digits, 16).unwrap();
            let range = hex(start).max(whole.start)..hex(end).min(whole.end);
            inside = !range.is_empty();
            if inside {
                let range = range.start - whole.start..range.end - whole.start;
                // A guard is shown twice if the slot behind it changes meanwhile.
                found.pop_if(|last| last.range.end > range.start);
                found.push(Attributes {
                    range,
                    access: words[1].to_owned(),
                    // Where a map starts elsewhere, its offset says nothing; each slot grows in files
                    // of its own.
                    file: match words.contains(&"/memfd:pagefork:growth") {
                        true => "growth".to_owned(),
                        false => words[2..].join(" "),
                    },
                    flags: String::new(),
                });
            }
        } else if inside && words[0] == "VmFlags:" {
            found.last_mut().unwrap().flags = words[1..].join(" ");
        }
    }
    join_alike(&mut found);
    found
}

/// Joins alike neighbours: whether the kernel does depends on what the slots around were.
fn join_alike(found: &mut Vec<Attributes>) {
    found.dedup_by(|next, last| {
        let alike = (&next.access, &next.file, &next.flags)
            == (&last.access, &last.file, &last.flags)
            && next.range.start == last.range.end;
        if alike {
            last.range.end = next.range.end;
        }
        alike
    });
}

/// The same, but for what strategies that count page faults do to a slot when they begin
/// to: they refuse huge pages, and have the kernel watch the pages that they protect.
pub fn lasting_attributes(slot: &Slot) -> Vec<Attributes> {
    let mut found = attributes(slot);
    let asked = slot.strategy().asked;
    if matches!(asked, ResetKind::Resident | ResetKind::Protect | ResetKind::Auto) {
        found.iter_mut().for_each(|map| map.flags = map.flags.replace(" nh", ""));
    }
    if matches!(asked, ResetKind::Protect | ResetKind::Auto) {
        found.iter_mut().for_each(|map| map.flags = map.flags.replace(" uw", ""));
    }
    join_alike(&mut found);
    found
}

/// A random number generator with a seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

pub const OWNER: Owner = Owner(1);

/// One byte in each of the first pages of the memory.
pub fn dirty(case: &Case, slot: &mut Slot, pages: u64) {
    slot.enter();
    for page in 0..pages {
        write(slot, case.memory(0) + page * PAGE + 1, &[!page as u8]);
    }
}

/// Resets until page faults are counted.
pub fn until_resident(case: &Case, slot: &mut Slot) {
    for _ in 0..100 {
        dirty(case, slot, 1);
        slot.reset_for(OWNER).unwrap();
        if slot.strategy().used == ResetKind::Resident {
            dirty(case, slot, 1);
            slot.reset_for(OWNER).unwrap();
            return;
        }
    }
    panic!("{}", slot.strategy());
}

/// Has the kernel put huge pages in the place of a part of the memory. Whether it did.
pub fn collapse(slot: &Slot, offset: u64, length: u64) -> bool {
    let place = slot.memory(0).wrapping_add(offset as usize);
    // SAFETY: this keeps the contents of pages.
    unsafe { libc::madvise(place.cast(), length as usize, libc::MADV_COLLAPSE) == 0 }
}
