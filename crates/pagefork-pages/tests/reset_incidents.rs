//! What went wrong when others reset slots, under every strategy here: each test
//! names the incident. More of them are in `strategies.rs`, `strategies_fail.rs` and
//! `strategies_kept.rs`.

mod common;
#[path = "common/matrix.rs"]
mod matrix;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use common::*;
use matrix::*;
use pagefork_layout::module::MemoryType;
use pagefork_pages::{
    CodeBounds, ExternalWriter, GrowthKind, Image, MemorySize, Owner, PagesError, ResetKind, Slot,
    SlotConfig, Strategies, StrategyConfig,
};

/// A slot whose memory has no byte is guarded like any other.
#[test]
fn cve_2022_39392_zero_size_limits_under_every_strategy() {
    let image = empty_image(&layout());
    for (initial, maximum) in [(0, 0), (0, PAGE), (0, 4 * WASM_PAGE)] {
        let case = Case::new("zero", layout(), Arc::clone(&image), (initial, maximum));
        for strategies in all_strategies() {
            let mut slot = case.spawn(&strategies);
            let what = format!("{:?}, at most {maximum}", strategies.config());
            for _ in 0..3 {
                case.assert_bounded(&slot, &strategies, &what);
                assert!(accessible(&slot, case.layout.base - 1), "{what}: state lies below");
                let guard = case.layout.base + maximum..case.layout.size;
                for place in [guard.start, guard.start + (1 << 32), guard.end - 1] {
                    assert!(!accessible(&slot, place), "{what}: {place:#x}");
                }
                slot.enter();
                slot.grow_memory(0, maximum).unwrap();
                let beyond = slot.grow_memory(0, maximum + PAGE).unwrap_err();
                assert!(matches!(beyond, PagesError::MemorySize { .. }), "{what}: {beyond}");
                write(&slot, case.layout.base - 9, &[0xee; 9]);
                write(&slot, case.layout.base, &pattern(2, maximum));
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
            }
        }
    }
}

/// A slot that has grown, filled again for smaller memories: what lies beyond is
/// closed, whatever the reservation, and reads as zero when it is opened again.
#[test]
fn cve_2026_34988_grown_and_reused_smaller_for_every_growth_and_reservation() {
    let two = layout_of(&[MemoryType::new(0, None); 2]);
    let reserved = |reservation, guard| {
        let mut zones = SlotConfig::from(&layout());
        zones.memories[0].reservation = reservation;
        zones.memories[0].guard = guard;
        zones.size = zones.memories[0].start + reservation + guard;
        zones
    };
    let all_zones = [
        SlotConfig::from(&layout()),
        SlotConfig::from(&two),
        reserved(16 * WASM_PAGE, WASM_PAGE),
        reserved(16 * WASM_PAGE, 0),
    ];
    for zones in all_zones {
        let nothing = Image::new("nothing", zones.base..zones.base, []).unwrap();
        let sizes = |initial, maximum| {
            let size = MemorySize { initial: initial * WASM_PAGE, maximum: maximum * WASM_PAGE };
            vec![size; zones.memories.len()]
        };
        for strategies in all_strategies() {
            let what = format!("{:?} in {:x?}", strategies.config(), zones.memories);
            let first = sizes(1, 16);
            let spawned = Slot::with_strategies(zones.clone(), &nothing, &first, &strategies);
            let mut slot = spawned.unwrap();
            for (initial, maximum) in [(1, 16), (0, 16), (2, 2), (16, 16), (1, 1), (3, 9)] {
                for again in [false, true] {
                    slot.enter();
                    for (index, zone) in zones.memories.iter().enumerate() {
                        let most = slot.memory_max(index);
                        slot.grow_memory(index, most).unwrap();
                        write(&slot, zone.start, &pattern(index as u8, most));
                    }
                    match again {
                        true => slot.reset_for(OWNER),
                        false => slot.reset_to(&nothing, &sizes(initial, maximum), OWNER),
                    }
                    .unwrap();
                    for (index, zone) in zones.memories.iter().enumerate() {
                        let size = sizes(initial, maximum)[0];
                        let open = accessible_bytes(&slot, index, &strategies, size);
                        assert!(again || open == size.initial || is_checked(&strategies));
                        for past in [0, 1, PAGE, WASM_PAGE, 15 * WASM_PAGE] {
                            let place = zone.start + open + past;
                            let outside = place >= zone.start + zone.reservation + zone.guard;
                            let closed = outside || !accessible(&slot, place);
                            assert!(closed, "{what}: {index}: {past} past");
                        }
                        slot.grow_memory(index, maximum * WASM_PAGE).unwrap();
                        let grown = bytes(&slot, zone.start..zone.start + maximum * WASM_PAGE);
                        assert!(grown.iter().all(|&byte| byte == 0), "{what}: {index}");
                    }
                }
            }
        }
    }
}

fn is_checked(strategies: &Strategies) -> bool {
    matches!(strategies.config().growth, GrowthKind::Checked { .. })
}

/// Whatever a reset did, and also after one that failed: access, advice and files of
/// every map are those of a slot that was never used.
#[test]
fn wasmtime_14076_and_12910_every_attribute_is_that_of_a_fresh_slot() {
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.name != "large").collect();
    let other = &cases[0];
    for case in cases.iter().filter(|case| case.name != "none") {
        for strategies in all_strategies() {
            let strategies = StrategyConfig { resident_max: 4 * PAGE, ..strategies.config() };
            let strategies = strategies.check().unwrap();
            let what = format!("{}: {:?}", case.name, strategies.config());
            let same_as_fresh = |slot: &Slot, when: &str| {
                let (found, fresh) =
                    (lasting_attributes(slot), fresh_attributes(case, &strategies, slot));
                assert!(found == fresh, "{what}, {when}: {found:#?}, not {fresh:#?}");
            };
            let mut slot = case.spawn(&strategies);
            let mut random = Random(11);
            for round in 0..6 {
                use_all(case, &mut slot, &mut random);
                #[cfg(debug_assertions)]
                {
                    use pagefork_pages::inject::{fail_from, fail_nth};
                    // Either may succeed, if what fails is not needed.
                    let _ = fail_nth(round, libc::ENOMEM, || slot.reset_for(OWNER)).value;
                    let _ = fail_from(round, libc::ENOMEM, || slot.reset_for(OWNER)).value;
                }
                slot.reset_for(OWNER).unwrap();
                same_as_fresh(&slot, "after a reset");
                slot.reset_for(OWNER).unwrap();
                same_as_fresh(&slot, "after another");
                if round % 3 == 1 && case.layout == other.layout {
                    slot.reset_to(&other.image, &other.sizes, OWNER).unwrap();
                    use_all(other, &mut slot, &mut random);
                }
                if round % 3 > 0 {
                    slot.reset_to(&case.image, &case.sizes, OWNER).unwrap();
                    same_as_fresh(&slot, "filled again");
                }
            }
        }
    }
}

/// Growth, and stores over everything or here and there.
fn use_all(case: &Case, slot: &mut Slot, random: &mut Random) {
    slot.enter();
    for index in 0..slot.memory_count() {
        let (now, most) = (slot.memory_size(index), slot.memory_max(index));
        let size = now + random.below((most - now) / PAGE + 1) * PAGE;
        slot.grow_memory(index, size).unwrap();
    }
    let step = *random.of(&[1, 7, 100]);
    for part in case.parts(slot) {
        for page in (part.start..part.end).step_by((step * PAGE) as usize) {
            write(slot, page + 77, &[0xbb; 9]);
        }
    }
}

/// Discarding a written page of a copy-on-write map brings the image's bytes back,
/// but zeros where the image was copied or has a hole. With nothing kept, every page
/// goes this way.
#[test]
fn copy_on_write_memfd_a_discarded_page_is_the_images_and_zero_elsewhere() {
    for case in cases().into_iter().filter(|case| case.name != "large") {
        for strategies in all_strategies() {
            let config = StrategyConfig { resident_max: 0, stack_kept: 0, ..strategies.config() };
            let strategies = config.check().unwrap();
            let what = format!("{}: {config:?}", case.name);
            let mut slot = case.spawn(&strategies);
            for step in [1, 2, 3, 1] {
                slot.enter();
                for part in case.parts(&slot) {
                    for page in (part.start..part.end).step_by((step * PAGE) as usize) {
                        write(&slot, page, &pattern(0x2b, PAGE));
                    }
                }
                slot.reset_for(OWNER).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
                assert_eq!(slot.differs_from_image(), Ok(None), "{what}");
            }
        }
    }
}

/// What the kernel writes is announced, be it for the thread that runs the code.
#[test]
fn host_system_calls_into_guest_pages_are_undone() {
    let (image, _) = dense_image(&layout(), 0x42, 4 * MIB);
    let case = Case::new("dense", layout(), image, (4 * MIB, 8 * MIB));
    for kind in ResetKind::ALL {
        let strategies = strategies(kind);
        let mut slot = case.spawn(&strategies);
        let calm = |slot: &mut Slot| {
            // Until nothing is new any more, and then once more.
            for _ in 0..20 {
                slot.enter();
                write(slot, case.memory(0), &[1]);
                slot.reset_for(OWNER).unwrap();
            }
            slot.enter();
        };
        for (number, how) in (0..).zip([read_into, copy_into, populate]) {
            calm(&mut slot);
            slot.note_external_writer(ExternalWriter::UntilReset);
            how(&slot, case.memory(0) + MIB + number * 9 * PAGE);
            slot.reset_for(OWNER).unwrap();
            case.assert_fresh(&slot, &strategies, &format!("{kind}, way {number}"));
        }
        calm(&mut slot);
        slot.note_external_writer(ExternalWriter::UntilReset);
        let place = case.memory(0) + 3 * MIB;
        let writes = || copy_into(&slot, place);
        std::thread::scope(|scope| scope.spawn(writes).join().unwrap());
        slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&slot, &strategies, &format!("{kind}, another thread"));
    }
}

/// The frame of a signal handler without a stack of its own is written by the kernel onto the
/// stack that is in use: no page fault of the thread's own code shows it, and nobody says so.
#[test]
fn what_the_kernel_writes_to_the_stack_is_gone_for_another_owner() {
    let case = Case::new("none", layout(), empty_image(&layout()), (WASM_PAGE, WASM_PAGE));
    let stack = case.layout.stack.clone();
    let top = stack.end / PAGE * PAGE;
    for (kind, clear_stack) in
        ResetKind::ALL.into_iter().flat_map(|kind| [(kind, false), (kind, true)])
    {
        let config = StrategyConfig { clear_stack, ..strategies(kind).config() };
        let what = format!("{config:?}");
        let mut slot = case.spawn(&config.check().unwrap());
        let shows = |slot: &Slot| bytes(slot, stack.clone()).iter().any(|&byte| byte != 0);
        let mut unseen = 0;
        for owner in 1..40 {
            for _ in 0..2 {
                slot.enter();
                write(&slot, case.layout.link.start, &[1]);
                // Next to what is in use, elsewhere in what may be kept, and below that.
                let place = [top - PAGE, top - 5 * PAGE, stack.start + 7 * PAGE][owner % 3];
                match owner % 2 {
                    0 => read_into(&slot, place - 2 * PAGE),
                    _ => copy_into(&slot, place - 2 * PAGE),
                }
                unseen += u32::from(!slot.reset_for(Owner(owner as u128)).unwrap().scanned);
                assert!(!(clear_stack && shows(&slot)), "{what}: cleared at each reset");
            }
            slot.hand_to(Owner(owner as u128 + 1));
            assert!(!shows(&slot), "{what}: another owner sees them");
        }
        let counts = slot.strategy().used == ResetKind::Resident;
        assert!(!counts || unseen > 40, "{what}: nothing went unnoticed: {unseen}");
    }
}

/// By read(2).
fn read_into(slot: &Slot, at: u64) {
    let to = slot.start().wrapping_add(at as usize);
    slot.wait_at(to.addr()..to.addr() + 3 * PAGE as usize).unwrap();
    // SAFETY: callers name accessible pages of a slot that only they use.
    let to = unsafe { std::slice::from_raw_parts_mut(to, 3 * PAGE as usize) };
    std::fs::File::open("/proc/self/exe").unwrap().read_exact(to).unwrap();
}

/// By process_vm_writev(2), as another process would.
fn copy_into(slot: &Slot, at: u64) {
    let bytes = [0xd0u8; 5000];
    let to = slot.start().wrapping_add(at as usize);
    slot.wait_at(to.addr()..to.addr() + bytes.len()).unwrap();
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: to.cast(), iov_len: bytes.len() };
    // SAFETY: as in `read_into`.
    let count = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    assert_eq!(count, bytes.len() as isize);
}

/// Makes pages private ahead of stores, which then take no fault.
fn populate(slot: &Slot, at: u64) {
    let to = slot.start().wrapping_add(at as usize);
    // SAFETY: as in `read_into`.
    unsafe { libc::madvise(to.cast(), 4 * PAGE as usize, libc::MADV_POPULATE_WRITE) };
    write(slot, at, &[0xd1; 9000]);
}

/// A huge page takes writes to all of its pages after one fault, or none. It is
/// refused by those who count faults, and noticed by all others.
#[test]
fn huge_pages_made_between_resets_are_refused_or_noticed() {
    let layout = layout();
    // All of the memory is anonymous: huge pages of private file maps do not exist.
    let case = Case::new("none", layout.clone(), empty_image(&layout), (8 * MIB, 8 * MIB));
    let mut made = 0;
    for strategies in all_strategies() {
        let what = format!("{:?}", strategies.config());
        let mut slot = case.spawn(&strategies);
        let used = slot.strategy().used;
        // Enough for `Auto` to begin to count, with the huge pages that there are.
        for round in 0..12 {
            slot.enter();
            write(&slot, case.memory(0) + 3 * MIB, &[1]);
            slot.reset_for(OWNER).unwrap();
            let start = slot.memory(0);
            // SAFETY: this keeps the contents of pages.
            let collapsed =
                unsafe { libc::madvise(start.cast(), 8 << 20, libc::MADV_COLLAPSE) } == 0;
            assert!(!(collapsed && used == ResetKind::Resident), "{what}");
            made += u32::from(collapsed);
            slot.enter();
            // Pages that were never written, in each huge page.
            for at in (MIB / 2..8 * MIB).step_by(MIB as usize) {
                write(&slot, case.memory(0) + at + round * PAGE, &[0xaa; 3]);
            }
            slot.reset_for(OWNER).unwrap();
            case.assert_fresh(&slot, &strategies, &what);
        }
    }
    if made == 0 {
        eprintln!("NOT TESTED: this machine makes no huge pages");
    }
}

/// A slot that was written all over by [`Slot::poison`] and reset is as its image,
/// as [`Slot::differs_from_image`] sees it, which also sees single bytes.
#[test]
fn wasmtime_1874_no_zone_is_forgotten() {
    for case in cases() {
        for strategies in all_strategies() {
            let what = format!("{}: {:?}", case.name, strategies.config());
            let mut slot = case.spawn(&strategies);
            for seed in 0..3 {
                slot.poison(seed).unwrap();
                slot.reset_for(OWNER).unwrap();
                assert_eq!(slot.differs_from_image(), Ok(None), "{what}");
                case.assert_fresh(&slot, &strategies, &what);
            }
            let zones = &case.layout;
            let mut places = vec![zones.stack.start, zones.tables.start, zones.base - 1];
            places.extend(case.parts(&slot).iter().map(|part| part.end - 1));
            for place in places {
                let byte = bytes(&slot, place..place + 1)[0];
                write(&slot, place, &[!byte]);
                assert_eq!(slot.differs_from_image(), Ok(Some(place)), "{what}");
                write(&slot, place, &[byte]);
            }
        }
    }
}

#[test]
fn the_rules_of_growth_are_part_of_what_is_compared() {
    let (image, _) = dense_image(&layout(), 1, PAGE);
    let case = Case::new("dense", layout(), image, (2 * PAGE, 9 * PAGE));
    let growth = GrowthKind::Checked { accessible: None };
    let config = StrategyConfig { growth, code: CodeBounds::Checked, ..Default::default() };
    let mut slot = case.spawn(&config.check().unwrap());
    // Accessible beyond the size, and not zero.
    write(&slot, case.memory(0) + 5 * PAGE, &[1]);
    assert_eq!(slot.differs_from_image(), Ok(Some(case.memory(0) + 5 * PAGE)));
    write(&slot, case.memory(0) + 5 * PAGE, &[0]);
    slot.grow_memory(0, 3 * PAGE).unwrap();
    assert_eq!(slot.differs_from_image(), Ok(Some(case.memory(0))), "a memory that has grown");
}

/// Pages that are kept stay private, so a run writes them without a page fault: they
/// are cleared for another owner also when no reset looked at them since they were
/// cleared for the last one.
#[test]
#[cfg(not(feature = "no-cow"))]
fn what_is_kept_is_cleared_for_every_further_owner() {
    let case = Case::new("none", layout(), empty_image(&layout()), (PAGE, PAGE));
    let kept = [case.layout.stack.end - PAGE, case.layout.link.start];
    let strategies = strategies(ResetKind::Resident);
    let mut slot = case.spawn(&strategies);
    let mut unseen = 0;
    for owner in 0..60 {
        slot.enter();
        for page in kept {
            write(&slot, page, &[0xfe; 40]);
        }
        let report = slot.reset_for(Owner(owner / 2)).unwrap();
        unseen += u32::from(!report.scanned);
        if owner % 2 == 0 {
            for page in kept {
                assert!(bytes(&slot, page..page + PAGE).iter().all(|&byte| byte == 0), "{owner}");
            }
        }
    }
    assert!(unseen > 10, "{unseen} of 60");
}

/// Page faults are counted by thread: those of another thread that runs code in a slot
/// are not seen, so its runs are not taken for calm ones, nor is what it gives back.
#[test]
fn another_thread_that_entered_is_noticed_although_nothing_happens_here() {
    let (image, _) = dense_image(&layout(), 0x42, 4 * MIB);
    let case = Case::new("dense", layout(), image, (4 * MIB, 4 * MIB));
    for kind in [ResetKind::Resident, ResetKind::Auto] {
        let strategies = strategies(kind);
        let slot = std::sync::Mutex::new(case.spawn(&strategies));
        // Not passed through a channel, and nothing is started: that faults here.
        let (there, here) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut right = true;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=60 {
                    wait_for(&there, round);
                    if round % 4 == 0 {
                        let mut slot = slot.lock().unwrap();
                        slot.enter();
                        write(&slot, case.memory(0) + (100 + round) * PAGE, &[0x99]);
                    } else if round % 4 == 2 {
                        let page = (100 + round) * PAGE..(101 + round) * PAGE;
                        slot.lock().unwrap().discard_memory(0, page).unwrap();
                    }
                    here.store(round, Release);
                }
            });
            for round in 1..=60 {
                let mut held = slot.lock().unwrap();
                held.enter();
                write(&held, case.memory(0), &[1]);
                drop(held);
                there.store(round, Release);
                wait_for(&here, round);
                let mut held = slot.lock().unwrap();
                let scanned = held.reset_for(OWNER).is_ok_and(|report| report.scanned);
                let place = case.memory(0) + (100 + round) * PAGE;
                let fresh = bytes(&held, place..place + 1) == [fresh_byte(&case, place)];
                // Said below: the other thread waits for the next round.
                right &= fresh && (scanned || round % 2 > 0);
            }
        });
        assert!(right, "{kind}");
        case.assert_fresh(&slot.lock().unwrap(), &strategies, "at the end");
    }
}

fn fresh_byte(case: &Case, place: u64) -> u8 {
    case.fresh[0][(place - case.layout.stack.start) as usize]
}

fn wait_for(round: &AtomicU64, wanted: u64) {
    while round.load(Acquire) != wanted {
        std::hint::spin_loop();
        std::thread::yield_now();
    }
}

/// Where Linux splits a huge page (since 6.12) it maps the shared page of zeros for those of
/// its pages that are all zeros. Of a copied image such a page is restored all the same.
#[test]
fn a_cleared_page_of_a_copied_image_is_restored_after_its_huge_page_was_split() {
    let (image, _) = dense_image(&layout(), 0x42, 4 * MIB);
    let case = Case::new("dense", layout(), image, (8 * MIB, 8 * MIB));
    let strategies = strategies(ResetKind::Copy);
    let mut slot = case.spawn(&strategies);
    let start = slot.start().addr() as u64;
    let huge = (start + case.memory(0)).next_multiple_of(2 * MIB) - start;
    // As the kernel does by itself after a while.
    if !advise(&slot, huge, 2 * MIB, libc::MADV_COLLAPSE) {
        // Nothing can be split then.
        eprintln!("NOT TESTED: this machine makes no huge pages");
        return;
    }
    slot.enter();
    write(&slot, huge + 3 * PAGE, &[0; PAGE as usize]);
    // As the kernel does when memory is short.
    assert!(advise(&slot, huge + 9 * PAGE, PAGE, libc::MADV_COLD));
    assert_eq!(slot.changed_pages().unwrap(), [huge + 3 * PAGE]);
    slot.reset_for(OWNER).unwrap();
    case.assert_fresh(&slot, &strategies, "a page was cleared");
}

/// The same of pages in which a branch differs, where its root has none.
#[test]
fn a_cleared_page_of_a_branch_is_restored_after_its_huge_page_was_split() {
    let case = Case::new("none", layout(), empty_image(&layout()), (8 * MIB, 8 * MIB));
    // Slots lie at multiples of this, and more.
    let huge = case.memory(0).next_multiple_of(2 * MIB);
    let case = case.branch("branch", &[3, 5, 200].map(|page| (huge + page * PAGE, 0x42)));
    let strategies = strategies(ResetKind::Scan);
    let ways: [fn(&mut Slot); 4] = [
        |_| (),
        |slot| assert!(slot.reset_for(OWNER).is_ok()),
        |slot| slot.discard().unwrap(),
        |slot| {
            let (image, size) = (Arc::clone(slot.image()), slot.memory_size(0));
            let sizes = [MemorySize { initial: size, maximum: size }];
            slot.reset_to(&image, &sizes, OWNER).unwrap();
        },
    ];
    for before in ways {
        let mut slot = case.spawn(&strategies);
        before(&mut slot);
        if !advise(&slot, huge, 2 * MIB, libc::MADV_COLLAPSE) {
            eprintln!("NOT TESTED: this machine makes no huge pages");
            return;
        }
        slot.enter();
        let cleared = [3, 200].map(|page| huge + page * PAGE);
        cleared.iter().for_each(|&page| write(&slot, page, &[0; PAGE as usize]));
        assert!(advise(&slot, huge + 9 * PAGE, PAGE, libc::MADV_COLD));
        assert_eq!(slot.changed_pages().unwrap(), cleared);
        slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&slot, &strategies, "a page was cleared");
        assert_eq!(slot.changed_pages().unwrap(), []);
    }
}

/// Asks the kernel for something that keeps the contents of pages.
fn advise(slot: &Slot, offset: u64, length: u64, advice: i32) -> bool {
    let at = slot.start().wrapping_add(offset as usize);
    // SAFETY: callers name pages of a slot, and advice that changes no byte.
    unsafe { libc::madvise(at.cast(), length as usize, advice) == 0 }
}

/// Pages that somebody locked are not discarded, and the call that fails there has
/// discarded those before.
#[test]
fn a_discard_that_fails_at_locked_pages_leaves_a_slot_as_before_or_not_whole() {
    let (image, _) = dense_image(&layout(), 0x42, 3 * PAGE);
    let case = Case::new("dense", layout(), image, (WASM_PAGE, 16 * WASM_PAGE));
    let strategies = strategies(ResetKind::Discard);
    for unlocked_later in [false, true] {
        let mut slot = case.spawn(&strategies);
        slot.enter();
        write(&slot, case.memory(0) + PAGE, &[0xaa; 3]);
        slot.note_external_writer(ExternalWriter::UntilReset);
        let locked = slot.memory(0).wrapping_add(8 * PAGE as usize).cast();
        // SAFETY: this keeps the contents of pages.
        assert_eq!(unsafe { libc::mlock(locked, PAGE as usize) }, 0);
        let contents = |slot: &Slot| -> Vec<_> {
            case.parts(slot).into_iter().map(|part| read(slot, part)).collect()
        };
        let before = contents(&slot);
        // Where images are copied, nothing is discarded.
        let refused = slot.reset().is_err();
        assert!(refused || slot.strategy().used != ResetKind::Discard);
        let half_gone = refused && slot.is_whole() && contents(&slot) != before;
        assert!(!half_gone, "half of it is gone");
        if unlocked_later {
            // SAFETY: this keeps the contents of pages.
            assert_eq!(unsafe { libc::munlock(locked, PAGE as usize) }, 0);
        }
        slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&slot, &strategies, &format!("unlocked: {unlocked_later}"));
    }
}

/// What a discard of a parked slot takes of a branch comes back also if the discard fails
/// half-way.
#[test]
fn a_parked_slot_of_a_branch_with_locked_pages_stays_as_its_image() {
    let (image, _) = dense_image(&layout(), 0x42, 3 * PAGE);
    let case = Case::new("dense", layout(), image, (WASM_PAGE, 16 * WASM_PAGE));
    let base = case.memory(0);
    let case = case.branch("branch", &[(base - PAGE, 1), (base + PAGE, 2), (base + 9 * PAGE, 3)]);
    for strategies in all_strategies() {
        let mut slot = case.spawn(&strategies);
        slot.enter();
        slot.reset_for(OWNER).unwrap();
        slot.note_external_writer(ExternalWriter::UntilReset);
        let locked = slot.memory(0).wrapping_add(8 * PAGE as usize).cast();
        // SAFETY: this keeps the contents of pages.
        assert_eq!(unsafe { libc::mlock(locked, PAGE as usize) }, 0);
        // By a copied image nothing is discarded.
        let refused = slot.discard().is_err();
        assert!(refused || slot.strategy().used == ResetKind::Copy);
        case.assert_fresh(&slot, &strategies, "after a discard that failed");
        assert_eq!(slot.changed_pages().unwrap(), []);
        // SAFETY: this keeps the contents of pages.
        assert_eq!(unsafe { libc::munlock(locked, PAGE as usize) }, 0);
        slot.enter();
        overwrite(&case.layout, &slot, 7);
        slot.reset_for(OWNER).unwrap();
        case.assert_fresh(&slot, &strategies, "after another run");
    }
}
