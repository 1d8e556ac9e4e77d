//! Successive snapshots of one run: each has what was written since the last one, by every tracker,
//! in slots of every kind of image; and trackers and resets do not mislead each other.

use std::fs;
use std::ops::Range;
use std::os::fd::AsRawFd;

use pagefork_pages::{DeltaTracker, Discarded, notes_writes};

use super::*;

pub(super) const TRACKERS: [DeltaTracker; 4] =
    [DeltaTracker::Compare, DeltaTracker::Writes, DeltaTracker::Protect, DeltaTracker::Fault];

pub(super) fn tracked(deltas: DeltaTracker, reset: ResetKind) -> pagefork_pages::Strategies {
    StrategyConfig { deltas, reset, ..Default::default() }.check().unwrap()
}

/// Private maps of anonymous memory, of files in memory that are one image's own or shared by many,
/// and of files; of images and of branches.
fn kinds() -> Vec<Case> {
    // Of the large ones that with holes is enough.
    let small = |case: &Case| case.sizes[0].initial <= MIB || case.name == "sparse";
    let mut kinds: Vec<Case> = cases().into_iter().chain(branch_cases()).filter(small).collect();
    // As many images have files of their own as may; further ones share.
    let small = layout();
    let others: Vec<_> =
        (0..pagefork_pages::OWN_FILES_MAX).map(|at| dense_image(&small, at as u8, PAGE)).collect();
    let (image, _) = dense_image(&small, 0x61, 30 * PAGE);
    kinds.push(Case::new("shared by images", small, image, (WASM_PAGE * 3, WASM_PAGE * 16)));
    drop(others);
    for size in kinds.iter_mut().flat_map(|case| &mut case.sizes) {
        size.maximum += 8 * WASM_PAGE;
    }
    kinds
}

/// A slot of which snapshots are taken one after the other.
pub(super) struct Run<'a> {
    case: &'a Case,
    pub(super) slot: Slot,
    pub(super) what: String,
    pub(super) tracker: DeltaTracker,
    last: Option<Arc<Image>>,
    /// What the slot was then, page by page: slot offsets and bytes.
    then: Vec<(u64, Vec<u8>)>,
    /// What was not as it was read: bytes in place of the slot's.
    patches: Vec<(u64, Vec<u8>)>,
    /// Where whole pages were left out.
    left_out: Vec<Range<u64>>,
    form: ImageForm,
}

impl<'a> Run<'a> {
    pub(super) fn new(case: &'a Case, deltas: DeltaTracker, reset: ResetKind) -> Self {
        Self::by(case, &tracked(deltas, reset), format!("{}, {deltas}, {reset}", case.name))
    }

    pub(super) fn by(
        case: &'a Case,
        strategies: &pagefork_pages::Strategies,
        what: String,
    ) -> Self {
        handle_refused_writes();
        let slot = case.spawn(strategies);
        let tracker = slot.delta_tracker().unwrap();
        let (last, then, patches, left_out) = (None, Vec::new(), Vec::new(), Vec::new());
        let form = ImageForm::Whole;
        Self { case, slot, what, tracker, last, then, patches, left_out, form }
    }

    /// After a reset: the next snapshot is a delta of none that was taken.
    pub(super) fn begin_anew(&mut self) {
        (self.last, self.then) = (None, Vec::new());
    }

    pub(super) fn place(&self, page: u64) -> u64 {
        self.case.memory(0) + page * PAGE
    }

    pub(super) fn write(&mut self, page: u64, bytes: &[u8]) {
        self.slot.enter();
        write(&self.slot, self.place(page), bytes);
    }

    /// As many zeros as [`Self::pages`] has bytes.
    fn zeros(&self) -> Vec<(u64, Vec<u8>)> {
        let parts = self.case.image_parts(&self.slot).into_iter();
        let pages = parts.flat_map(|part| part.step_by(PAGE as usize));
        pages.map(|page| (page, vec![0; PAGE as usize])).collect()
    }

    /// The pages of the slot as images have them.
    fn pages(&self) -> Vec<(u64, Vec<u8>)> {
        let mut pages = Vec::new();
        for part in self.case.image_parts(&self.slot) {
            for page in part.step_by(PAGE as usize) {
                let mut bytes = read(&self.slot, page..page + PAGE);
                if self.left_out.iter().any(|left| left.start <= page && page + PAGE <= left.end) {
                    bytes.fill(0);
                }
                for (at, patch) in &self.patches {
                    if (page..page + PAGE).contains(at) {
                        bytes[(at - page) as usize..][..patch.len()].copy_from_slice(patch);
                    }
                }
                pages.push((page, bytes));
            }
        }
        pages
    }

    /// Takes a snapshot, which is as the slot, and differs from the last one in the pages that are
    /// otherwise, of which at least one was if not `is_same`; of [`ImageForm::Changes`] perhaps also in
    /// others that were written. Returns how many pages were read.
    #[track_caller]
    pub(super) fn snapshot(&mut self, is_same: bool) -> u64 {
        let patches: Vec<_> = self.patches.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
        let form = self.form;
        let image = self.slot.snapshot_without("snapshot", &patches, &self.left_out, form).unwrap();
        let now = self.pages();
        let mut found = self.zeros();
        for extent in image.extents() {
            let mut bytes = vec![0; (extent.end - extent.start) as usize];
            image.read(extent.start, &mut bytes).unwrap();
            let first = found.binary_search_by_key(&extent.start, |(page, _)| *page).unwrap();
            for ((_, page), bytes) in found[first..].iter_mut().zip(bytes.chunks(PAGE as usize)) {
                page.copy_from_slice(bytes);
            }
        }
        for ((page, found), (_, wanted)) in found.iter().zip(&now) {
            assert!(found == wanted, "{}: page {page:#x}", self.what);
        }
        if let Some(last) = &self.last {
            let was = |page: u64| {
                let at = self.then.binary_search_by_key(&page, |(page, _)| *page);
                at.map_or(&[0; PAGE as usize][..], |at| &self.then[at].1)
            };
            let changed: Vec<u64> =
                now.iter().filter(|(page, now)| was(*page) != now).map(|(page, _)| *page).collect();
            assert_eq!(changed.is_empty(), is_same, "{}: {changed:x?}", self.what);
            let found = image.changed_since(last).expect("it descends from that one");
            if form == ImageForm::Changes {
                assert!(changed.iter().all(|page| found.contains(page)), "{}", self.what);
            } else {
                assert_eq!(found, changed, "{}", self.what);
                assert_eq!(Arc::ptr_eq(&image, last), is_same, "{}", self.what);
            }
            if let Some(parent) = image.parent().filter(|_| !Arc::ptr_eq(&image, last)) {
                assert_eq!(image.own_pages(), found, "{}", self.what);
                assert!(Arc::ptr_eq(parent, last), "{}", self.what);
            }
        }
        (self.last, self.then) = (Some(image), now);
        self.slot.compared()
    }

    /// As [`Self::snapshot`], after `written` pages of the slot were written: no others are read,
    /// where the kernel has noted that.
    #[track_caller]
    pub(super) fn snapshot_after(&mut self, written: u64, is_same: bool) {
        let read = self.snapshot(is_same);
        if self.tracker != DeltaTracker::Compare {
            assert_eq!(read, written, "{}", self.what);
        }
    }
}

/// What is left out of a snapshot is zero in it, whether the image or a run has made it otherwise,
/// and is there in the next that does not leave it out, though nothing was written.
#[test]
fn what_was_left_out_comes_back() {
    let kinds = kinds();
    for (tracker, case) in
        TRACKERS.iter().flat_map(|tracker| kinds.iter().map(|case| (*tracker, case)))
    {
        let mut run = Run::new(case, tracker, ResetKind::Auto);
        for page in 1..4 {
            run.write(page, &pattern(page as u8, PAGE));
        }
        let (first, last) = (run.place(0), run.place(run.slot.memory_size(0) / PAGE));
        run.snapshot(false);
        run.left_out.push(first + 1..first + 3 * PAGE);
        run.patches = vec![(first + 2 * PAGE, vec![7])];
        run.snapshot(false);
        run.patches.clear();
        run.left_out = vec![first..first + 2 * PAGE, first + 2 * PAGE..last];
        run.snapshot(false);
        run.left_out.clear();
        run.snapshot(false);
        run.snapshot(true);
    }
}

/// By every tracker with each growth and reset: what is given back is zero in the next snapshot, what is written
/// there again is in the one after it, and a reset returns the image.
#[test]
fn what_is_given_back_is_told_and_restored_by_every_tracker_growth_and_reset() {
    let kinds = kinds();
    let kinds: Vec<_> = kinds.iter().filter(|case| case.sizes[0].initial <= MIB).collect();
    for (at, strategies) in all_strategies().into_iter().enumerate() {
        for (by, deltas) in TRACKERS.into_iter().enumerate() {
            let config = StrategyConfig { deltas, ..strategies.config() };
            // Each of them in turn; all with some tracker, growth and reset.
            let case = kinds[(at * TRACKERS.len() + by + at / kinds.len()) % kinds.len()];
            let what = format!("{} by {config:?}", case.name);
            let strategies = config.check().unwrap();
            let mut run = Run::by(case, &strategies, what);
            let pages = run.slot.memory_size(0) / PAGE;
            for _ in 0..2 {
                run.slot.grow_memory(0, (pages + 8 * 16) * PAGE).unwrap();
                for page in (0..pages + 30).step_by(3) {
                    run.write(page, &pattern(page as u8, PAGE));
                }
                run.snapshot(false);
                run.slot.discard_memory(0, 2 * PAGE..(pages + 20) * PAGE).unwrap();
                run.snapshot(false);
                run.write(pages + 10, &[1]);
                run.write(3, &[2]);
                run.snapshot(false);
                run.slot.discard_memory(0, 0..(pages + 8 * 16) * PAGE).unwrap();
                run.write(4, &[3]);
                run.slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&run.slot, &strategies, &run.what);
                (run.last, run.then) = (None, Vec::new());
            }
        }
    }
}

/// What the host has the kernel write counts like what the guest writes.
pub(super) fn write_by_kernel(slot: &Slot, offset: u64, bytes: &[u8]) {
    let file: fs::File = temporary_file(bytes).into();
    let to = slot.start().wrapping_add(offset as usize).cast();
    // SAFETY: the pages are accessible, and no other code uses them.
    let count = unsafe { libc::pread(file.as_raw_fd(), to, bytes.len(), 0) };
    assert_eq!(count, bytes.len() as isize);
}

#[test]
fn each_snapshot_has_what_was_written_since_the_last_by_each_tracker() {
    let kinds = kinds();
    for tracker in TRACKERS {
        for case in &kinds {
            let resets = match (case.sizes[0].initial > MIB, tracker) {
                (false, _) => &[ResetKind::Auto, ResetKind::Discard, ResetKind::Copy][..],
                (true, DeltaTracker::Writes) => &[ResetKind::Discard],
                (true, _) => &[],
            };
            for &reset in resets {
                for form in [ImageForm::Whole, ImageForm::Changes] {
                    successive(&mut Run { form, ..Run::new(case, tracker, reset) });
                }
            }
        }
    }
}

fn successive(run: &mut Run<'_>) {
    let pages = run.slot.memory_size(0) / PAGE;
    for page in [0, 1, 2, 5, 7, pages - 1] {
        run.write(page, &pattern((page + 100) as u8, PAGE));
    }
    run.snapshot(false);
    // Nothing changed, nor does reading change anything.
    run.snapshot_after(0, true);
    run.pages();
    run.snapshot_after(0, true);
    // Of pages that were private and that were not.
    run.write(1, &[1, 2, 3]);
    run.write(9, &[0x99; 80]);
    run.snapshot_after(2, false);
    // Equal ones are left out: written as they were; and there and back.
    run.write(2, &pattern(102, PAGE));
    run.write(7, &[1]);
    let before = pattern(107, 1);
    run.write(7, &before);
    run.snapshot_after(2, true);
    // A page becomes equal to the first page, one becomes zero, and one as in the slot's image.
    let first = read(&run.slot, run.place(0)..run.place(1));
    run.write(5, &first);
    run.write(7, &[0; PAGE as usize]);
    let mut again = vec![0; PAGE as usize];
    let place = run.place(2);
    if run.case.image.extents().iter().any(|extent| extent.contains(&place)) {
        run.case.image.read(place, &mut again).unwrap();
    }
    run.write(2, &again);
    run.snapshot_after(3, false);
    // By another thread, and by the kernel.
    let place = run.place(11);
    std::thread::scope(|scope| scope.spawn(|| write(&run.slot, place, &[8])).join().unwrap());
    let place = run.slot.start().addr() + run.place(13) as usize - 7;
    run.slot.note_external_write(place..place + 20);
    write_by_kernel(&run.slot, run.place(13) - 7, &[3; 20]);
    run.snapshot_after(3, false);
    // Growth, of which only a part is written; then again, where growth was before.
    run.slot.grow_memory(0, (pages + 40) * PAGE).unwrap();
    run.snapshot_after(0, true);
    run.write(pages + 3, &[4; 9]);
    run.slot.grow_memory(0, (pages + 48) * PAGE).unwrap();
    run.write(pages + 45, &[5; 9]);
    run.snapshot_after(2, false);
    run.write(pages + 3, &[6; 9]);
    run.snapshot_after(1, false);
    // What is discarded is zero: looked at if it was private. Where it is zeroed instead, each page
    // is written.
    for page in pages + 8..pages + 30 {
        run.write(page, &[page as u8; 5]);
    }
    run.snapshot_after(22, false);
    let [from, to] = [8, 30].map(|page| (pages + page) * PAGE);
    let discarded = run.slot.discard_memory(0, from..to).unwrap();
    let keeps = run.slot.strategy().used != ResetKind::Discard;
    assert_eq!(discarded == Discarded::Zeroed, keeps, "{}", run.what);
    run.snapshot_after(22, false);
    run.write(pages + 9, &[1]);
    run.snapshot_after(1, false);
    // Bytes that only the image has, and that it has no more.
    run.patches.push((run.place(3) + 5, vec![0xcc; 50]));
    run.snapshot(false);
    run.patches.clear();
    run.snapshot_after(1, false);
    run.snapshot_after(0, true);
    // A chain of ten.
    let mut random = Random(run.case.name.len() as u64);
    for round in 0..10 {
        for _ in 0..5 {
            let page = random.below(pages);
            run.write(page, &[round as u8 ^ 0xa5; 33]);
        }
        run.snapshot(false);
    }
    is_as_before_after_a_reset(run);
}

/// Nothing of tracking is left after a reset, which finds all that was written.
fn is_as_before_after_a_reset(run: &mut Run<'_>) {
    let case = run.case;
    let last = run.last.take().unwrap();
    run.write(4, &[1]);
    let strategies = tracked(DeltaTracker::Off, run.slot.strategy().asked);
    run.slot.reset_for(OWNER).unwrap();
    case.assert_fresh(&run.slot, &strategies, &run.what);
    let fresh = fresh_attributes(case, &strategies, &run.slot);
    assert_eq!(lasting_attributes(&run.slot), fresh, "{}", run.what);
    // It begins anew: with the slot's image.
    run.write(6, &[0xd1]);
    run.snapshot(false);
    run.write(6, &[0xd2]);
    run.snapshot_after(1, false);
    // A slot of the last snapshot goes on by itself, and one that is filled from another forgets.
    let sizes: Vec<_> = (0..run.slot.memory_count())
        .map(|index| {
            let maximum = run.slot.memory_max(index);
            let start = case.memory(index);
            let end = last.extents().iter().map(|extent| extent.end);
            let end = end.filter(|end| (start..=start + maximum).contains(end)).max();
            let initial = end.map_or(0, |end| end - start).max(run.slot.memory_size(index));
            MemorySize { initial, maximum }
        })
        .collect();
    run.slot.reset_to(&last, &sizes, OWNER).unwrap();
    (run.last, run.then) = (None, Vec::new());
    run.write(0, &[9]);
    run.snapshot(false);
    run.write(0, &[8]);
    run.snapshot_after(1, false);
}

/// By the kernel's own account: which pages were touched since their marks were cleared.
#[test]
fn unchanged_pages_are_not_read_where_the_kernel_notes_writes() {
    const NAME: &str = "successive::unchanged_pages_are_not_read_where_the_kernel_notes_writes";
    in_own_process(NAME, || {
        if !notes_writes() {
            eprintln!("NOT TESTED: this kernel does not note writes");
            return;
        }
        let (image, _) = dense_image(&layout(), 0x42, PAGE);
        let case = Case::new("wide", layout(), image, (8 * MIB, 8 * MIB));
        let mut touched = Vec::new();
        for tracker in TRACKERS {
            let mut run = Run::new(&case, tracker, ResetKind::Discard);
            for page in 0..1500 {
                run.write(page, &[1; 9]);
            }
            run.snapshot(false);
            run.write(700, &[2]);
            fs::write("/proc/self/clear_refs", "1").unwrap();
            let image = run.slot.snapshot("second", &[], ImageForm::Branch).unwrap();
            let referenced = referenced(&run.slot);
            assert_eq!(image.own_pages(), [run.place(700)]);
            touched.push(referenced / PAGE);
        }
        // The kernel clears such marks by itself, too, where it looks for pages to reclaim.
        assert!(touched[0] > 1000, "{touched:?}: the account does not tell");
        assert!(touched[1..].iter().all(|pages| *pages <= 4), "{touched:?}");
    });
}

/// Bytes of a slot in pages that were touched.
fn referenced(slot: &Slot) -> u64 {
    let whole = slot.bounds().slot();
    let mut inside = false;
    let mut sum = 0;
    for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some((start, _)) = words[0].split_once('-') {
            inside = whole.contains(&usize::from_str_radix(start, 16).unwrap());
        } else if inside && words[0] == "Referenced:" {
            sum += words[1].parse::<u64>().unwrap() * 1024;
        }
    }
    sum
}

#[test]
fn more_runs_of_pages_than_the_kernel_tells_at_once_are_found() {
    let (image, _) = dense_image(&layout(), 0x42, PAGE);
    let case = Case::new("wide", layout(), image, (16 * MIB, 16 * MIB));
    for tracker in TRACKERS {
        let mut run = Run::new(&case, tracker, ResetKind::Auto);
        let all = || (0..1300).map(|at| at * 3 + 1);
        all().for_each(|page| run.write(page, &[1]));
        run.snapshot(false);
        run.snapshot_after(0, true);
        let some = || all().step_by(2);
        some().for_each(|page| run.write(page, &[2]));
        match tracker {
            // So many pages become writable together with others.
            DeltaTracker::Protect => {
                let read = run.snapshot(false);
                assert!((some().count() as u64..1300).contains(&read), "{read}");
            }
            _ => run.snapshot_after(some().count() as u64, false),
        }
    }
}

#[test]
fn huge_pages_are_compared_where_they_were_written() {
    let base = layout().base;
    let nothing = Image::new("nothing", base..base, []).unwrap();
    let case = Case::new("large", layout(), nothing, (24 * MIB, 32 * MIB));
    let at = 8 * MIB + (base.next_multiple_of(2 * MIB) - base);
    for tracker in TRACKERS {
        let mut run = Run::new(&case, tracker, ResetKind::Discard);
        let place = run.slot.memory(0).addr() as u64 + at;
        let at = (at + (place.next_multiple_of(2 * MIB) - place)) / PAGE;
        run.write(at + 5, &[1]);
        let collapsed = collapse(&run.slot, at * PAGE, 2 * MIB);
        run.snapshot(false);
        run.snapshot_after(0, true);
        run.write(at + 5, &[2]);
        run.write(at + 400, &[3]);
        run.snapshot_after(2, false);
        // The kernel may make one again at any time.
        let again = collapse(&run.slot, at * PAGE, 2 * MIB);
        run.write(at + 6, &[4]);
        run.snapshot(false);
        run.slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&run.slot, &tracked(tracker, ResetKind::Discard), &run.what);
        eprintln!("{}: collapsed {collapsed}, again {again}", run.what);
    }
}

/// A snapshot that nobody holds any more is nothing to be a delta of.
#[test]
fn a_snapshot_that_was_given_up_is_no_parent() {
    let (image, _) = dense_image(&layout(), 0x42, 20 * PAGE);
    let case = Case::new("given up", layout(), image, (2 * WASM_PAGE, 2 * WASM_PAGE));
    for tracker in TRACKERS {
        let mut run = Run::new(&case, tracker, ResetKind::Auto);
        run.write(1, &[1]);
        run.snapshot(false);
        run.last = None;
        run.write(2, &[2]);
        run.snapshot(false);
        assert_eq!(run.slot.compared(), 2, "{}", run.what);
        assert!(run.last.as_ref().unwrap().parent().is_none(), "{}", run.what);
    }
}

/// Deeper than branches may be, and of more pages: what becomes whole in between is still known by
/// what it differs in.
#[test]
fn however_long_a_run_is_snapshots_are_known_by_what_they_differ_in() {
    let (image, _) = dense_image(&layout(), 0x42, 160 * PAGE);
    let case = Case::new("long", layout(), image, (10 * WASM_PAGE, 10 * WASM_PAGE));
    let mut run = Run::new(&case, DeltaTracker::Writes, ResetKind::Auto);
    let mut wholes = 0;
    for round in 0..BRANCH_DEPTH_MAX as u64 + 10 {
        for page in 0..12 {
            run.write((round * 7 + page) % 160, &[round as u8 | 1, page as u8]);
        }
        if round == 0 {
            run.snapshot(false)
        } else {
            run.snapshot_after(12, false);
            0
        };
        wholes += u32::from(run.last.as_ref().unwrap().parent().is_none());
    }
    assert!((2..6).contains(&wholes), "{wholes}");
}

/// Few runs of written pages are looked at one by one, those that are near together, and many all at once; pages that were
/// only read count as written in none.
#[test]
fn what_was_written_is_found_in_few_runs_and_in_many_near_and_far_apart() {
    let (image, _) = dense_image(&layout(), 0x51, 2000 * PAGE);
    let case = Case::new("runs", layout(), image, (128 * WASM_PAGE, 128 * WASM_PAGE));
    let resets = [ResetKind::Auto, ResetKind::Discard, ResetKind::Copy];
    let trackers = [DeltaTracker::Writes, DeltaTracker::Fault];
    for (tracker, reset) in trackers.into_iter().flat_map(|one| resets.map(|reset| (one, reset))) {
        let mut run = Run::new(&case, tracker, reset);
        run.write(2000, &[1]);
        run.snapshot(false);
        for (round, (count, apart)) in
            [(3, 16), (3, 17), (3, 18), (64, 20), (65, 20), (100, 20), (400, 5), (2, 900)]
                .into_iter()
                .enumerate()
        {
            for at in 0..count {
                run.write(at * apart, &[round as u8 + 1; 80]);
            }
            run.snapshot_after(count, false);
            run.snapshot_after(0, true);
        }
    }
}

/// Nothing that lies between memories is watched.
#[test]
fn what_was_written_at_the_end_of_a_memory_and_the_start_of_a_near_one_is_found() {
    let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    let zone = |start| MemoryZone { start, reservation: 8 * PAGE, guard: PAGE };
    let memories = vec![zone(base), zone(base + 12 * PAGE)];
    let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    let image = Image::new("near", base..base, []).unwrap();
    let sizes = [MemorySize { initial: 8 * PAGE, maximum: 8 * PAGE }; 2];
    let strategies = tracked(DeltaTracker::Writes, ResetKind::Auto);
    let mut slot = Slot::with_strategies(config, &image, &sizes, &strategies).unwrap();
    slot.enter();
    let mut taken = Vec::new();
    for round in 1..5 {
        let pages = [base + 7 * PAGE, base + 12 * PAGE];
        pages.iter().for_each(|page| write(&slot, *page, &[round]));
        let image = slot.snapshot("near", &[], ImageForm::Branch).unwrap();
        for page in pages {
            let mut byte = [0];
            image.read(page, &mut byte).unwrap();
            assert_eq!(byte, [round]);
        }
        taken.push(image);
    }
}

#[test]
fn a_forked_process_finds_what_it_wrote_itself() {
    let (image, _) = dense_image(&layout(), 0x42, 20 * PAGE);
    let case = Case::new("forked", layout(), image, (2 * WASM_PAGE, 2 * WASM_PAGE));
    for tracker in TRACKERS {
        let mut run = Run::new(&case, tracker, ResetKind::Auto);
        run.write(1, &[1]);
        run.snapshot(false);
        run.write(2, &[2]);
        // SAFETY: the child works on its own copy and exits; other threads of this process do not
        // hold the heap for long, and an alarm ends the child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: concerns this child alone.
            unsafe { libc::alarm(20) };
            run.write(3, &[3]);
            let works = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run.snapshot(false);
                run.write(1, &[4]);
                run.snapshot_after(1, false);
                run.slot.reset_for(OWNER).unwrap();
            }));
            // SAFETY: ends this child.
            unsafe { libc::_exit(i32::from(works.is_err())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "{}", run.what);
        run.snapshot_after(1, false);
    }
}

#[cfg(debug_assertions)]
mod failures {
    use pagefork_layout::module::MemoryType;
    use pagefork_pages::Call;
    use pagefork_pages::inject::{fail_all, fail_nth};

    use super::*;

    fn case() -> Case {
        let (image, _) = dense_image(&layout(), 0x42, 20 * PAGE);
        Case::new("failures", layout(), image, (2 * WASM_PAGE, 16 * WASM_PAGE))
    }

    #[test]
    fn pages_are_compared_where_the_kernel_refuses_to_note_writes() {
        let case = case();
        let mut run = Run::new(&case, DeltaTracker::Writes, ResetKind::Auto);
        run.write(1, &[1]);
        // As behind a filter of system calls.
        assert_eq!(run.slot.delta_tracker(), Ok(run.tracker), "it is tried");
        fail_all(Call::WatchWrites, libc::EPERM, || run.snapshot(false));
        assert_eq!(run.slot.delta_tracker(), Ok(DeltaTracker::Compare));
        run.write(2, &[2]);
        fail_all(Call::WatchWrites, libc::EPERM, || run.snapshot(false));
        assert_eq!(run.slot.compared(), 2);
        // From now on it notes them; and not what the memory grew by later.
        run.snapshot(true);
        run.write(1, &[3]);
        run.snapshot_after(1, false);
        run.slot.grow_memory(0, 8 * WASM_PAGE).unwrap();
        run.write(100, &[4]);
        fail_all(Call::WatchWrites, libc::ENOMEM, || run.snapshot(false));
        run.write(100, &[5]);
        run.snapshot(false);
        run.write(100, &[6]);
        run.snapshot_after(1, false);
        run.slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&run.slot, &tracked(run.tracker, ResetKind::Auto), &run.what);
    }

    /// The kernel may end it for one memory, and not for the next one.
    #[test]
    fn writes_are_noted_again_after_the_kernel_has_ended_that_in_part() {
        let two = layout_of(&[MemoryType::new(0, None); 2]);
        let (image, _) = dense_image(&two, 0x42, 20 * PAGE);
        let case = Case::new("in part", two, image, (2 * WASM_PAGE, 16 * WASM_PAGE));
        for reset in [ResetKind::Auto, ResetKind::Discard, ResetKind::Copy] {
            let mut kept = 0;
            for nth in 0.. {
                let mut run = Run::new(&case, DeltaTracker::Writes, reset);
                run.write(1, &[1]);
                run.snapshot(false);
                run.write(2, &[2]);
                let outcome = fail_nth(nth, libc::ENOMEM, || run.slot.reset());
                let Some(failed) = outcome.failed else { break };
                if failed != Call::UnwatchWrites {
                    continue;
                }
                assert!(outcome.value.is_err() && run.slot.is_whole(), "{}", run.what);
                kept += 1;
                // Until they are noted again pages count as compared, and are where that has ended.
                assert_eq!(run.slot.delta_tracker(), Ok(DeltaTracker::Compare), "{}", run.what);
                run.write(3, &[3]);
                assert!(run.snapshot(false) > kept, "{}", run.what);
                assert_eq!(run.slot.delta_tracker(), Ok(run.tracker), "{}", run.what);
                run.write(4, &[4]);
                run.snapshot_after(1, false);
                run.slot.reset_for(OWNER).unwrap();
                let strategies = tracked(DeltaTracker::Writes, reset);
                case.assert_fresh(&run.slot, &strategies, &run.what);
            }
            assert!(kept == 2 || !notes_writes(), "{kept} of two memories, {reset}");
        }
    }

    #[test]
    fn no_page_is_missed_after_any_failure_of_a_snapshot_or_a_reset() {
        let case = case();
        for tracker in TRACKERS {
            for nth in 0.. {
                let mut run = Run::new(&case, tracker, ResetKind::Discard);
                run.write(1, &[1]);
                run.snapshot(false);
                run.write(2, &[2]);
                run.slot.grow_memory(0, 4 * WASM_PAGE).unwrap();
                run.write(40, &[4]);
                let outcome = fail_nth(nth, libc::ENOMEM, || {
                    run.slot.snapshot("fails", &[], ImageForm::Whole)
                });
                let failed = outcome.failed.is_some();
                // Which is another one than `run` knows of.
                (run.last, run.then) = (outcome.value.ok(), Vec::new());
                if run.last.is_some() {
                    run.then = run.pages();
                }
                run.write(3, &[3]);
                run.snapshot(false);
                let reset = fail_nth(nth, libc::ENOMEM, || run.slot.reset());
                if reset.value.is_err() && run.slot.is_whole() {
                    // It may know the last one, or not any more.
                    (run.last, run.then) = (None, Vec::new());
                    run.write(5, &[5]);
                    run.snapshot(false);
                }
                run.slot.reset_for(OWNER).unwrap();
                let strategies = tracked(tracker, ResetKind::Discard);
                case.assert_fresh(&run.slot, &strategies, &run.what);
                if !failed && reset.failed.is_none() {
                    break;
                }
            }
        }
    }
}
