//! The maps of incomplete images: every one is registered, forked processes have none, and a whole
//! image is as any other.

use super::*;

/// The flags of the map at an address, as `/proc/self/smaps` has them.
fn flags(address: usize) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_in = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let parse = |number: &str| usize::from_str_radix(number, 16).ok();
        if let Some((start, end)) =
            range.and_then(|(start, end)| Some((parse(start)?, parse(end)?)))
        {
            is_in = (start..end).contains(&address);
        } else if is_in && let Some(flags) = line.strip_prefix("VmFlags: ") {
            return flags.split_whitespace().map(str::to_owned).collect();
        }
    }
    panic!("nothing is mapped at {address:#x}");
}

/// Whether the map at an address is told of absent pages, and whether forked processes lack it.
fn is_registered(address: usize) -> [bool; 2] {
    let flags = flags(address);
    ["um", "dc"].map(|flag| flags.iter().any(|have| have == flag))
}

#[test]
fn every_map_is_registered_until_the_image_is_whole() {
    in_own_process("maps::every_map_is_registered_until_the_image_is_whole", || {
        for kind in mapping() {
            let arriving = Arriving::new();
            let mut slots = [arriving.spawn(&by(kind)), arriving.spawn(&by(kind))];
            slots[0].reset_to(&arriving.image, &[arriving.size()], Owner(1)).unwrap();
            slots[1].reset_for(Owner(1)).unwrap();
            let own = |map: &&procmaps::Map| map.name.contains("pagefork:arriving");
            let maps = || procmaps::read().unwrap();
            let all = maps();
            // The alias, what the host has of it, and the slots'.
            let absent: Vec<_> = all.iter().filter(own).filter(|map| map.write).collect();
            assert!(absent.len() >= 3, "{kind}: {absent:?}");
            for slot in &slots {
                assert_eq!(is_registered(slot.memory(0).addr()), [true, true], "{kind}");
            }
            for group in 0..GROUPS {
                arriving.install(group);
            }
            assert!(arriving.pages.is_whole());
            for map in maps().iter().filter(own) {
                assert_eq!(
                    is_registered(map.range.start as usize),
                    [false, false],
                    "{kind}: {map:?}"
                );
            }
            let late = arriving.spawn(&by(kind));
            assert_eq!(is_registered(late.memory(0).addr()), [false, false]);
            arriving.assert_memory(&late, &arriving.memory);
        }
    });
}

#[test]
fn a_whole_image_cannot_be_written_by_anybody() {
    use std::os::fd::AsFd;
    let arriving = Arriving::new();
    let write = || rustix::io::pwrite(arriving.pages.as_fd(), &[0], 0);
    let seals = || rustix::fs::fcntl_get_seals(arriving.pages.as_fd()).unwrap();
    // Before that, nobody but through the alias.
    write().unwrap_err();
    assert!(seals().contains(rustix::fs::SealFlags::FUTURE_WRITE));
    (0..GROUPS).for_each(|group| arriving.install(group));
    write().unwrap_err();
    assert!(seals().contains(rustix::fs::SealFlags::WRITE | rustix::fs::SealFlags::SHRINK));
    assert!(!arriving.pages.install(3, arriving.bytes(3)).unwrap());
}

#[test]
fn a_forked_process_cannot_make_zeros_of_what_is_absent() {
    in_own_process("maps::a_forked_process_cannot_make_zeros_of_what_is_absent", || {
        let arriving = Arriving::new();
        let slot = arriving.spawn(&StrategyConfig::default());
        let address = slot.memory(0).addr();
        // SAFETY: the child makes system calls, and looks at what is its own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let why = arriving.pages.wait(0..1).unwrap_err();
            let is_absent = why.why == Absence::Forked;
            let installs = arriving.pages.install(0, arriving.bytes(0)).is_ok();
            let code = i32::from(readable(address) || !is_absent || installs);
            // SAFETY: nothing of the parent's is torn down.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: the place is ours.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
        assert!(!readable(address), "it is absent as before");
        arriving.serving(|| arriving.assert_memory(&slot, &arriving.memory));
        // What is whole goes to forked processes as ever.
        // SAFETY: the child makes system calls, and looks at what is its own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let reads = readable(address) && arriving.pages.wait(0..1).is_ok();
            // SAFETY: nothing of the parent's is torn down.
            unsafe { libc::_exit(i32::from(!reads)) };
        }
        // SAFETY: the place is ours.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
    });
}

#[test]
fn slots_that_are_gone_are_forgotten() {
    in_own_process("maps::slots_that_are_gone_are_forgotten", || {
        // Whatever is made once a process.
        drop(Arriving::new().spawn(&StrategyConfig::default()));
        let before = held();
        let arriving = Arriving::new();
        let mut slots: Vec<_> =
            (0..10).map(|_| arriving.spawn(&StrategyConfig::default())).collect();
        slots.truncate(3);
        slots[0].reset_to(&arriving.image, &[arriving.size()], Owner(1)).unwrap();
        (0..GROUPS).for_each(|group| arriving.install(group));
        slots.iter().for_each(|slot| arriving.assert_memory(slot, &arriving.memory));
        drop((slots, arriving));
        assert_eq!(held(), before);
    });
}

#[test]
#[cfg(debug_assertions)]
fn whatever_fails_nothing_is_left_that_reads_zeros() {
    in_own_process("maps::whatever_fails_nothing_is_left_that_reads_zeros", || {
        drop(Arriving::new().spawn(&StrategyConfig::default()));
        let before = held();
        for nth in 0.. {
            let made = inject::fail_nth(nth, libc::ENOMEM, || {
                IncompletePages::new("failing", SIZE, PATIENCE)
            });
            assert_eq!(made.value.is_err(), made.failed.is_some(), "{nth}: {:?}", made.failed);
            drop(made.value);
            assert_eq!(held(), before, "{nth}: {:?}", made.failed);
            if made.failed.is_none() {
                break;
            }
        }
        let arriving = Arriving::new();
        for nth in 0.. {
            let size = arriving.size();
            let make = || Slot::new(&arriving.layout, &arriving.image, &[size]);
            let made = inject::fail_nth(nth, libc::ENOMEM, make);
            let Some(failed) = made.failed else { break };
            assert!(made.value.is_err(), "{nth}: {failed:?}");
        }
        // A refill that fails leaves a slot that is not used before another has succeeded.
        let other = arriving.spawn(&StrategyConfig::default());
        for nth in 0.. {
            let mut slot = arriving.spawn(&StrategyConfig::default());
            let filled = inject::fail_nth(nth, libc::ENOMEM, || {
                slot.reset_to(&arriving.image, &[arriving.size()], Owner(1)).map(drop)
            });
            let Some(failed) = filled.failed else { break };
            let is_read = readable(slot.memory(0).addr());
            assert!(!slot.is_whole() || !is_read, "{nth}: {failed:?}");
            assert!(!readable(other.memory(0).addr()), "{nth}: {failed:?}");
            slot.reset_to(&arriving.image, &[arriving.size()], Owner(1)).unwrap();
            assert!(!readable(slot.memory(0).addr()), "{nth}: {failed:?}");
        }
        // A group whose copying failed is absent, and comes later.
        let slot = arriving.spawn(&StrategyConfig::default());
        let failed = inject::fail_all(Call::ServeFaults, libc::ENOMEM, || {
            arriving.pages.install(1, arriving.bytes(1))
        });
        failed.unwrap_err();
        assert!(!arriving.pages.is_present(1) && !readable(slot.memory(0).addr() + 17_000));
        (0..GROUPS - 1).for_each(|group| arriving.install(group));
        // The last group is here even if the image could not be made final, and that is tried again.
        let last = GROUPS - 1;
        let failed = inject::fail_all(Call::UnserveFaults, libc::ENOMEM, || {
            arriving.pages.install(last, arriving.bytes(last))
        });
        failed.unwrap_err();
        assert!(arriving.pages.is_present(last) && !arriving.pages.is_whole());
        arriving.pages.wait_whole().unwrap();
        assert!(arriving.pages.is_whole());
        arriving.assert_memory(&slot, &arriving.memory);
    });
}

/// Whatever fails when the last group comes, who brings any group again makes the image final, however
/// many do so at once.
#[test]
#[cfg(debug_assertions)]
fn what_could_not_be_made_final_is_so_when_a_group_comes_again() {
    in_own_process("maps::what_could_not_be_made_final_is_so_when_a_group_comes_again", || {
        let last = GROUPS - 1;
        let mut tried = Vec::new();
        for nth in 0.. {
            let arriving = Arriving::new();
            let slots = [(); 2].map(|()| arriving.spawn(&StrategyConfig::default()));
            (0..last).for_each(|group| arriving.install(group));
            let again = |group| arriving.pages.install(group, arriving.bytes(group));
            let outcome = inject::fail_nth(nth, libc::ENOMEM, || again(last));
            let Some(failed) = outcome.failed else { break };
            outcome.value.unwrap_err();
            assert!(!arriving.pages.is_whole(), "{failed:?}");
            let is_here = arriving.pages.is_present(last);
            assert_eq!(is_here, failed != Call::ServeFaults, "{failed:?}");
            if is_here {
                let repeated = inject::fail_nth(0, libc::ENOMEM, || again(0));
                assert_eq!(repeated.failed, Some(Call::MapView), "it is tried again");
                repeated.value.unwrap_err();
                tried.push(failed);
            }
            // All at once: of any group if the last one is here.
            let brought: Vec<_> = thread::scope(|scope| {
                let bring = |group| scope.spawn(move || again(group).unwrap());
                let threads: Vec<_> = (last - 3..=last).map(bring).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(brought, [false, false, false, !is_here], "{failed:?}");
            assert!(arriving.pages.is_whole(), "{failed:?}");
            let (repeated, calls) = inject::record(|| again(last));
            assert_eq!((repeated, calls), (Ok(false), Vec::new()), "nothing is left to do");
            for slot in &slots {
                assert_eq!(is_registered(slot.memory(0).addr()), [false, false], "{failed:?}");
                arriving.assert_memory(slot, &arriving.memory);
            }
        }
        for call in [Call::MapView, Call::SealImage, Call::UnserveFaults] {
            assert!(tried.contains(&call), "{call:?} is not among {tried:?}");
        }
    });
}

/// Gives holes contents, as another thread of a forked process may.
fn fill(holes: &[std::ops::Range<u64>]) {
    for hole in holes {
        let length = (hole.end - hole.start) as usize;
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let place = ptr::with_exposed_provenance_mut::<u8>(hole.start as usize);
        // SAFETY: what is mapped there is not replaced, but is an error.
        unsafe {
            let fixed = flags | libc::MAP_FIXED_NOREPLACE;
            let made = libc::mmap(place.cast(), length, access, fixed, -1, 0);
            assert_eq!(made, place.cast(), "it is a hole");
            place.write_bytes(0x5a, length);
        }
    }
}

/// A forked process has no maps of what is absent. What it maps in their place is nobody else's.
#[test]
fn what_a_forked_process_maps_where_absent_pages_were_stays() {
    let name = "maps::what_a_forked_process_maps_where_absent_pages_were_stays";
    in_own_process(name, || {
        for kind in ResetKind::ALL {
            let arriving = Arriving::new();
            let deltas = StrategyConfig { deltas: DeltaTracker::Writes, ..by(kind) };
            let (mut slots, _) = arriving.serving(|| match kind {
                // Who copies images has all come first: then nothing is absent.
                ResetKind::Copy | ResetKind::Fault => Vec::new(),
                _ => vec![arriving.spawn(&by(kind)), arriving.spawn(&deltas)],
            });
            // That a group is here is no help to forked processes.
            arriving.install(0);
            for slot in &mut slots {
                slot.enter();
                arriving.serving(|| Running::new(slot).write(5, 0xee));
                slot.snapshot("before", &[], ImageForm::Branch).unwrap();
            }
            let own = |map: &procmaps::Map| map.name.contains("pagefork:arriving");
            let before: Vec<_> = procmaps::read().unwrap().into_iter().filter(own).collect();
            assert!(before.len() > slots.len(), "the slots' and the alias");
            // SAFETY: the child has one thread, and ends without ending what is the parent's.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let body = move || in_forked_process(arriving, slots, before);
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
                // SAFETY: it ends the process.
                unsafe { libc::_exit(i32::from(outcome.is_err())) };
            }
            let mut status = 0;
            // SAFETY: the place is ours.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(status, 0, "{kind}");
            arriving.serving(|| {
                slots.iter_mut().for_each(|slot| _ = slot.reset_for(Owner(1)).unwrap());
                slots.iter().for_each(|slot| arriving.assert_memory(slot, &arriving.memory));
            });
        }
    });
}

fn in_forked_process(arriving: Arriving, slots: Vec<Slot>, before: Vec<procmaps::Map>) {
    let is_mapped =
        |maps: &[procmaps::Map], at: u64| maps.iter().any(|map| map.range.contains(&at));
    let now = procmaps::read().unwrap();
    let all = before.into_iter().map(|map| map.range);
    let holes: Vec<_> = all.filter(|range| !is_mapped(&now, range.start)).collect();
    assert_eq!(holes.len(), 1 + slots.len(), "the alias and a map of each slot: {holes:x?}");
    fill(&holes);
    let forked = |error: PagesError| {
        assert_eq!(error, AbsentPage { group: 0, why: Absence::Forked }.into());
    };
    for mut slot in slots {
        forked(slot.reset().unwrap_err());
        forked(slot.reset_to(&arriving.image, &[arriving.size()], Owner(1)).unwrap_err());
        let (other, _) = dense_image(&arriving.layout, 1, SIZE);
        forked(slot.reset_to(&other, &[arriving.size()], Owner(1)).unwrap_err());
        forked(slot.grow_memory(0, 3 * MIB).unwrap_err());
        forked(slot.discard().unwrap_err());
        forked(slot.discard_memory(0, SIZE..SIZE + PAGE).unwrap_err());
        forked(slot.changed_pages().unwrap_err());
        forked(slot.snapshot("forked", &[], ImageForm::Whole).unwrap_err());
        forked(slot.wait(0, 0..1).unwrap_err().into());
        assert!(slot.wait_for_fault(slot.memory(0).addr()).unwrap().is_err());
        // What is not of this image can be used.
        let mut fresh = Slot::new(&arriving.layout, &other, &[arriving.size()]).unwrap();
        forked(fresh.reset_to(&arriving.image, &[arriving.size()], Owner(1)).unwrap_err());
        fresh.reset().unwrap();
        drop(slot);
    }
    let spawn = || Slot::new(&arriving.layout, &arriving.image, &[arriving.size()]);
    forked(spawn().unwrap_err());
    forked(arriving.image.read(arriving.layout.base, &mut [0]).unwrap_err());
    forked(arriving.pages.read(0, &mut [0]).unwrap_err());
    forked(arriving.pages.install(1, arriving.bytes(1)).unwrap_err());
    forked(arriving.pages.wait_whole().unwrap_err());
    drop(arriving);
    // New ones are as in any process.
    let arriving = Arriving::new();
    let slot = arriving.spawn(&StrategyConfig::default());
    arriving.serving(|| arriving.assert_memory(&slot, &arriving.memory));
    drop((slot, arriving));
    for hole in &holes {
        for page in hole.clone().step_by(PAGE as usize) {
            assert!(readable(page as usize), "{page:#x} is gone");
            // SAFETY: the page can be read, and is this thread's.
            let byte = unsafe { ptr::with_exposed_provenance::<u8>(page as usize).read_volatile() };
            assert_eq!(byte, 0x5a, "{page:#x} was written");
        }
    }
}

/// A part of the address space of a slot that goes guards the one above, in forked processes too.
#[test]
fn what_guards_the_next_slot_is_no_map_of_what_is_absent() {
    in_own_process("maps::what_guards_the_next_slot_is_no_map_of_what_is_absent", || {
        // Slots that are so small that all of one becomes the guard.
        let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
        let memories = vec![MemoryZone { start: base, reservation: MIB, guard: MIB }];
        let config =
            SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 * MIB };
        let pages = IncompletePages::new("guards", MIB, PATIENCE).unwrap();
        let span = FileSpan { slot: base..base + MIB, file_offset: 0 };
        let extents = vec![span.slot.clone()];
        let image = Image::from_incomplete(&pages, "guards", extents, &[span], []).unwrap();
        let size = MemorySize { initial: MIB, maximum: MIB };
        let spawn = || Slot::new(config.clone(), &image, &[size]).unwrap();
        let mut slots: Vec<_> = (0..6).map(|_| spawn()).collect();
        slots.sort_by_key(Slot::start);
        let own = |map: &procmaps::Map| map.name.contains("pagefork:guards");
        while !slots.is_empty() {
            drop(slots.remove(0));
            let count = procmaps::read().unwrap().iter().filter(|map| own(map)).count();
            assert_eq!(count, 1 + slots.len(), "the alias and those of slots that are there");
        }
    });
}
