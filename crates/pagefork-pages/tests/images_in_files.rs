//! Images that lie in files which others made: in several places, read as little as possible, and
//! cut short under maps.

mod common;
#[path = "common/matrix.rs"]
mod matrix;

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use common::*;
use matrix::*;
#[cfg(debug_assertions)]
use pagefork_pages::Call;
#[cfg(debug_assertions)]
use pagefork_pages::inject::record;
use pagefork_pages::{
    FileProblem, FileSpan, Image, ImageForm, MemorySize, PagesError, ResetKind, SPAN_COUNT_MAX,
    Slot,
};

/// Whether resets by this strategy read the image themselves.
fn reads(kind: ResetKind) -> bool {
    !matches!(kind, ResetKind::Remap | ResetKind::Discard)
}

#[test]
#[cfg(debug_assertions)]
fn a_spawn_reads_nothing_and_a_reset_each_page_once_for_all_slots() {
    in_own_process("a_spawn_reads_nothing_and_a_reset_each_page_once_for_all_slots", || {
        for kind in ResetKind::ALL {
            let case = parts_case();
            let strategies = strategies(kind);
            case.spawn(&strategies);
            let (mut slots, calls) = record(|| [case.spawn(&strategies), case.spawn(&strategies)]);
            let read = calls.iter().filter(|call| **call == Call::ReadImage).count();
            assert_eq!(read, 0, "{kind}");
            if matches!(kind, ResetKind::Copy | ResetKind::Fault) {
                continue;
            }
            let mut count = 0;
            for slot in &mut slots {
                slot.enter();
                for page in [0, 1, 4, 12] {
                    write(slot, case.memory(0) + page * PAGE, &[0xee; 9]);
                }
                // Of what no file has nothing is read.
                write(slot, case.memory(0) + 9 * PAGE, &[0xee]);
                write(slot, case.memory(0) - 8, &[0xee]);
                let calls = record(|| slot.reset_for(OWNER).unwrap()).1;
                count += calls.iter().filter(|call| **call == Call::ReadImage).count();
                case.assert_fresh(slot, &strategies, &kind.to_string());
            }
            assert_eq!(count, if reads(kind) { 4 } else { 0 }, "{kind}");
        }
    });
}

#[test]
fn pages_of_a_file_are_kept_as_those_of_memory_are() {
    for case in [parts_case(), cases().swap_remove(1)] {
        let strategies = strategies(ResetKind::Scan);
        let mut slot = case.spawn(&strategies);
        let mut report = None;
        for _ in 0..8 {
            slot.enter();
            for page in 0..3 {
                write(&slot, case.memory(0) + page * PAGE, &[0xee; 9]);
            }
            report = Some(slot.reset_for(OWNER).unwrap());
        }
        let report = report.unwrap();
        assert_eq!((report.restored, report.discarded), (3, 0), "{}: {report:?}", case.name);
    }
}

/// What is held lies in a map of its own.
#[test]
#[cfg(not(feature = "no-cow"))]
fn a_slot_of_a_file_takes_one_map_more() {
    let maps = |slot: &Slot| {
        let start = slot.start().addr() as u64;
        let slot = start..start + layout().size;
        let maps = pagefork_pages::procmaps::read().unwrap();
        maps.iter().filter(|map| map.range.start < slot.end && slot.start < map.range.end).count()
    };
    let cut = CutFile::new("maps");
    let of_file = cut.case().spawn(&strategies(ResetKind::Discard));
    let (image, _) = dense_image(&layout(), 3, 8 * PAGE);
    let of_memory = Case::new("memory", layout(), image, (WASM_PAGE, WASM_PAGE));
    let of_memory = of_memory.spawn(&strategies(ResetKind::Discard));
    assert_eq!(maps(&of_file), maps(&of_memory) + 1);
}

/// Nothing is touched then, not even what the slot had changed: it is gone too.
#[test]
fn a_file_that_was_cut_short_is_an_error_of_what_would_touch_it() {
    for kind in ResetKind::ALL {
        for is_branch in [false, true] {
            let cut = CutFile::new("cut");
            let strategies = strategies(kind);
            let mut case = cut.case();
            if is_branch {
                case = case.branch("branch of what is cut", &[(case.memory(0) + 3 * PAGE, 9)]);
            }
            let [mut slot, mut other] = [case.spawn(&strategies), case.spawn(&strategies)];
            for _ in 0..3 {
                for slot in [&mut slot, &mut other] {
                    slot.reset_for(OWNER).unwrap();
                    slot.enter();
                    // Some that every run writes are kept.
                    write(slot, case.memory(0) + 2 * PAGE, &[0xee; 9]);
                    write(slot, case.memory(0) + 9, &[0xee; 9]);
                }
            }
            cut.cut(PAGE);
            let what = format!("{kind} {is_branch}");
            let too_short = |error: &PagesError| {
                matches!(error, PagesError::FileRefused(FileProblem::TooShort { .. }))
            };
            if matches!(kind, ResetKind::Copy | ResetKind::Fault) {
                // The whole image was copied when the first slot was made.
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
                continue;
            }
            for _ in 0..2 {
                assert!(too_short(&slot.reset_for(OWNER).unwrap_err()), "{what}");
                assert!(slot.is_whole(), "{what}: it is as before");
            }
            assert!(too_short(&slot.discard().unwrap_err()), "{what}");
            assert!(too_short(&other.changed_pages().unwrap_err()), "{what}");
            for form in [ImageForm::Whole, ImageForm::Branch] {
                assert!(too_short(&other.snapshot("of it", &[], form).unwrap_err()), "{what}");
            }
            let again = Slot::with_strategies(&case.layout, &case.image, &case.sizes, &strategies);
            assert!(too_short(&again.unwrap_err()), "{what}");
            let nothing = Image::new("other", case.memory(0)..case.memory(0), []).unwrap();
            slot.reset_to(&nothing, &case.sizes, OWNER).unwrap();
            assert!(slot.is_whole());

            let mut bytes = vec![0; 2 * PAGE as usize];
            assert!(too_short(&case.image.read(case.memory(0), &mut bytes).unwrap_err()));
            case.image.read(case.memory(0), &mut bytes[..PAGE as usize]).unwrap();
            let state = case.memory(0) - PAGE;
            case.image.read(state, &mut bytes[..PAGE as usize]).unwrap();
        }
    }
}

#[test]
fn a_slot_is_not_made_of_a_file_that_cannot_be_copied() {
    let cut = CutFile::new("not-copied");
    let case = cut.case();
    cut.cut(PAGE);
    let strategies = strategies(ResetKind::Copy);
    let made = Slot::with_strategies(&case.layout, &case.image, &case.sizes, &strategies);
    let error = made.unwrap_err();
    assert!(matches!(error, PagesError::FileRefused(FileProblem::TooShort { .. })), "{error}");
}

#[test]
fn places_that_are_impossible_are_refused() {
    let bytes = pattern(3, 40 * PAGE);
    let file = || temporary_file(&bytes);
    let extents = || vec![0..32 * PAGE, 64 * PAGE..96 * PAGE];
    let span = |slot: std::ops::Range<u64>, file_offset| FileSpan { slot, file_offset };
    let make = |spans: &[FileSpan], held: &[(u64, &[u8])]| {
        Image::from_file_spans(file(), "refused", extents(), spans, held.iter().copied())
    };
    let refused = |spans: &[FileSpan], held: &[(u64, &[u8])]| match make(spans, held) {
        Err(PagesError::FileRefused(problem)) => problem,
        other => panic!("{other:?}"),
    };
    let page = PAGE;
    for slot in [1..page, 0..page + 1, page..page, 2 * page..page] {
        assert!(matches!(refused(&[span(slot, 0)], &[]), FileProblem::Spans(_)));
    }
    let twice = [span(0..2 * page, 0), span(page..3 * page, 8 * page)];
    assert!(matches!(refused(&twice, &[]), FileProblem::Spans(_)));
    let descending = [span(4 * page..5 * page, 0), span(0..page, page)];
    assert!(matches!(refused(&descending, &[]), FileProblem::Spans(_)));
    let held = [(2 * page + 7, &b"held"[..])];
    assert!(matches!(refused(&[span(0..3 * page, 0)], &held), FileProblem::Spans(_)));
    make(&[span(0..2 * page, 0)], &held).unwrap();
    let many = |count: u64| -> Vec<_> {
        (0..count).map(|at| span(2 * at * page..(2 * at + 1) * page, at * page)).collect()
    };
    make(&many(SPAN_COUNT_MAX as u64), &[]).unwrap();
    assert!(matches!(refused(&many(SPAN_COUNT_MAX as u64 + 1), &[]), FileProblem::Spans(_)));
    assert_eq!(refused(&[span(0..page, 7)], &[]), FileProblem::Unaligned { offset: 7 });
    assert_eq!(
        refused(&[span(0..2 * page, 39 * page)], &[]),
        FileProblem::TooShort { size: 40 * page, needed: 41 * page }
    );
    let far = span(0..2 * page, u64::MAX - page + 1);
    assert!(matches!(refused(&[far], &[]), FileProblem::TooShort { .. }));
    for slot in [31 * page..33 * page, 40 * page..41 * page, 31 * page..65 * page] {
        let error = make(&[span(slot, 0)], &[]).unwrap_err();
        assert!(matches!(error, PagesError::OutsideImage { .. }), "{error}");
    }
    let error = make(&[], &[(32 * page - 1, &b"ab"[..])]).unwrap_err();
    assert!(matches!(error, PagesError::OutsideImage { .. }), "{error}");
}

/// By the kernel's account: which pages of a slot are mapped that nothing has touched.
#[test]
#[cfg(not(feature = "no-cow"))]
fn what_is_prefetched_is_mapped_before_it_is_touched() {
    use std::os::unix::fs::FileExt;
    let layout = layout();
    let base = layout.base;
    let of = Image::new("of", layout.image_start..base, [(base - PAGE, &[5; 9][..])]).unwrap();
    let mapped = |prefetch: &[std::ops::Range<u64>]| -> Vec<u64> {
        let file = temporary_file(&pattern(0x29, 128 * PAGE));
        let span = FileSpan { slot: base..base + 128 * PAGE, file_offset: 0 };
        let whole = base..base + 160 * PAGE;
        let image = Image::over_file(&of, whole, file, span, prefetch.iter().cloned()).unwrap();
        let size = MemorySize { initial: 160 * PAGE, maximum: 160 * PAGE };
        let slot = Slot::new(&layout, &image, &[size]).unwrap();
        let first = (slot.start() as u64 + base) / PAGE;
        let mut entries = [0; 160 * 8];
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut entries, first * 8).unwrap();
        let present = |page: &u64| entries[*page as usize * 8 + 7] & 0x80 != 0;
        (0..160).filter(present).collect()
    };
    assert_eq!(mapped(&[]), [0; 0]);
    // A byte is a page. The kernel may map others around it that it has in memory.
    let ranges = [base..base + 3 * PAGE, base + 100 * PAGE + 5..base + 100 * PAGE + 6];
    let found = mapped(&ranges);
    assert!([0, 1, 2, 100].iter().all(|page| found.contains(page)), "{found:?}");
}

/// A file of eight pages that can be cut, and an image of it.
struct CutFile {
    path: PathBuf,
}

impl CutFile {
    fn new(name: &str) -> Self {
        let name = format!(
            "pagefork-pages-{name}-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
        let path = std::env::temp_dir().join(name);
        fs::write(&path, pattern(0x29, 8 * PAGE)).unwrap();
        Self { path }
    }

    fn case(&self) -> Case {
        let layout = layout();
        let base = layout.base;
        let file = OwnedFd::from(File::open(&self.path).unwrap());
        let state = pattern(5, PAGE);
        let span = FileSpan { slot: base..base + 8 * PAGE, file_offset: 0 };
        let extent = base - PAGE..base + 8 * PAGE;
        let held = [(base - PAGE, &state[..])];
        let image = Image::from_file_spans(file, "cut", vec![extent], &[span], held).unwrap();
        Case::new("cut", layout, Arc::clone(&image), (WASM_PAGE, WASM_PAGE))
    }

    fn cut(&self, size: u64) {
        OpenOptions::new().write(true).open(&self.path).unwrap().set_len(size).unwrap();
    }
}

impl Drop for CutFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
