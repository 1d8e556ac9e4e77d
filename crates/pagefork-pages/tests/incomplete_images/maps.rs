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
