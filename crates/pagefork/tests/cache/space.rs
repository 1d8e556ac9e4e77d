//! Full disks, read-only directories, and the limit of its size.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use pagefork::{Cache, CacheStep, Module, on_cache_step};

use crate::support::{
    MODULE, cached, child, counts, engine, entries, files, make_read_only, mount_tmpfs, numbered,
    private_directory, run,
};

/// Each step of writing fails in each way; the module is compiled, and nothing
/// is left behind.
#[test]
fn whatever_fails_while_an_entry_is_written_is_no_error() {
    for (failing, nameless) in
        CacheStep::ALL.into_iter().flat_map(|step| [(step, true), (step, false)])
    {
        for code in [libc::ENOSPC, libc::EIO, libc::EDQUOT, libc::EROFS] {
            let directory = private_directory("failing");
            on_cache_step(move |step| match step {
                CacheStep::Begun if !nameless => {
                    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
                }
                _ if step == failing => Err(io::Error::from_raw_os_error(code)),
                _ => Ok(()),
            });
            let (module, stats) = cached(&directory, MODULE);
            assert_eq!((run(&module), stats.errors), (42, 1), "{failing:?} {code}: {stats:?}");
            // What has its name is complete.
            let count = usize::from(failing == CacheStep::Named);
            assert_eq!(entries(&directory).len(), count, "{failing:?}");
            on_cache_step(|_| Ok(()));
            let (module, stats) = cached(&directory, MODULE);
            assert_eq!((run(&module), stats.hits as usize, stats.damaged), (42, count, 0));
        }
    }
}

#[test]
fn a_file_system_without_nameless_files_is_as_good() {
    let directory = private_directory("named");
    on_cache_step(|step| match step {
        CacheStep::Begun => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        _ => Ok(()),
    });
    for expected in [[0, 1, 1, 0, 0], [1, 0, 0, 0, 0]] {
        let (module, stats) = cached(&directory, MODULE);
        assert_eq!((run(&module), counts(&stats)), (42, expected));
        assert_eq!(entries(&directory).len(), 1);
    }
    on_cache_step(|_| Ok(()));
}

#[test]
fn a_full_disk_is_no_error() {
    std::thread::spawn(|| {
        let directory = private_directory("full");
        if !mount_tmpfs(&directory, 0, "size=64k,mode=700") {
            eprintln!("not permitted to mount: not tried");
            return;
        }
        let (mut errors, mut written) = (0, 0);
        for number in 0..30 {
            let (module, stats) = cached(&directory, &numbered(number));
            assert_eq!(run(&module), number);
            errors += stats.errors;
            written += stats.written;
            assert_eq!((stats.misses, stats.damaged), (1, 0));
        }
        assert!(errors > 10 && written > 2, "{errors} errors, {written} written");
        assert_eq!(entries(&directory).len() as u64, written, "nothing half-made");
        for number in 0..written as i32 {
            assert_eq!(cached(&directory, &numbered(number)).1.hits, 1);
        }
    })
    .join()
    .unwrap();
}

#[test]
fn a_limit_of_file_sizes_is_no_error() {
    // A process of its own, because the limit is one of the process.
    let directory = private_directory("limit");
    assert!(child("limit", &directory).wait().unwrap().success());
    assert!(files(&directory).is_empty());
}

#[test]
fn a_read_only_home_is_no_error() {
    std::thread::spawn(|| {
        let home = private_directory("home");
        if !mount_tmpfs(&home, 0, "size=1m,mode=700") {
            eprintln!("not permitted to mount: not tried");
            return;
        }
        let directory = home.join("cache");
        cached(&directory, MODULE);
        make_read_only(&home);
        // What is there is used.
        let (module, stats) = cached(&directory, MODULE);
        assert_eq!((run(&module), stats.hits, stats.errors), (42, 1, 0), "{stats:?}");
        let (module, stats) = cached(&directory, &numbered(5));
        assert_eq!((run(&module), stats.misses, stats.written, stats.errors), (5, 1, 0, 1));
        let (module, stats) = cached(&home.join("new"), &numbered(5));
        assert_eq!((run(&module), stats.misses), (5, 1));
        assert!(stats.refused.unwrap().to_string().contains("Read-only"));
    })
    .join()
    .unwrap();
}

#[test]
fn where_nothing_may_be_executed_code_is_copied() {
    std::thread::spawn(|| {
        let directory = private_directory("noexec");
        if !mount_tmpfs(&directory, libc::MS_NOEXEC, "size=1m,mode=700") {
            eprintln!("not permitted to mount: not tried");
            return;
        }
        for hits in [0, 1] {
            let (module, stats) = cached(&directory, MODULE);
            assert_eq!((run(&module), stats.hits, stats.errors), (42, hits, 0), "{stats:?}");
        }
    })
    .join()
    .unwrap();
}

/// Sets when an entry was last used.
fn set_age(entry: &Path, age: Duration) {
    File::open(entry).unwrap().set_modified(SystemTime::now() - age).unwrap();
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn entries_that_were_not_used_for_longest_make_room_for_new_ones() {
    let directory = private_directory("eviction");
    let mut by_number = Vec::new();
    for number in 0..6 {
        cached(&directory, &numbered(number));
        let entry = entries(&directory).into_iter().find(|path| !by_number.contains(path));
        by_number.push(entry.unwrap());
    }
    // 0 is the oldest, but used now; 1 is in use; 2 is the oldest that is neither.
    for (number, entry) in (0..).zip(&by_number) {
        set_age(entry, HOUR * (100 - number));
    }
    let size = fs::metadata(&by_number[0]).unwrap().len();
    assert_eq!(cached(&directory, &numbered(0)).1.hits, 1);
    let (in_use, stats) = cached(&directory, &numbered(1));
    assert_eq!(stats.hits, 1);
    set_age(&by_number[1], HOUR * 200);

    let cache = Cache::new(&directory);
    cache.set_size_limit(5 * size);
    let module = Module::new(&engine(&cache), numbered(6)).unwrap();
    assert_eq!((run(&module), cache.stats().errors), (6, 0), "{:?}", cache.stats());
    let there: Vec<bool> = by_number.iter().map(|path| path.exists()).collect();
    assert_eq!(there, [true, true, false, false, true, true]);
    assert_eq!(run(&in_use), 1);
    drop(in_use);
    let (module, engine) = (module, engine(&cache));
    Module::new(&engine, numbered(7)).unwrap();
    assert!(!by_number[1].exists(), "nobody uses it any more");
    assert_eq!(run(&module), 6);

    // What can never fit is not written at all.
    cache.set_size_limit(10);
    let written = cache.stats().written;
    assert_eq!(run(&Module::new(&engine, numbered(8)).unwrap()), 8);
    assert_eq!((cache.stats().written, cache.stats().errors), (written, 0));
}

#[test]
fn what_dead_writers_have_left_is_removed() {
    let directory = private_directory("leftovers");
    let leftover = |name: &str, age| {
        let path = directory.join(format!(".unfinished-{name}"));
        fs::write(&path, "half").unwrap();
        set_age(&path, age);
        path
    };
    let (old, young) = (leftover("1-0-a", HOUR), leftover("2-0-b", Duration::ZERO));
    let held = leftover("3-0-c", HOUR);
    let holder = File::open(&held).unwrap();
    // SAFETY: a descriptor of our own.
    assert_eq!(unsafe { libc::flock(holder.as_raw_fd(), libc::LOCK_EX) }, 0);
    let others = directory.join("somebody's notes");
    fs::write(&others, "kept").unwrap();
    cached(&directory, MODULE);
    let there = [&old, &young, &held, &others].map(|path| path.exists());
    assert_eq!(there, [false, true, true, true]);
}
