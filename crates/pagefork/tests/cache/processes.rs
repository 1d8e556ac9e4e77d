//! Several processes, and processes that die.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use pagefork::{CacheStep, on_cache_step};

use crate::support::{
    DIRECTORY, MODULE, ROLE, cached, child as start, counts, entries, files, numbered,
    private_directory, run,
};

/// How many modules the children of a race make.
const RACED: i32 = 20;

/// What the children of these tests do; nothing when run as a test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("set with the role"));
    match role.as_str() {
        "race" => {
            let go = directory.with_extension("go");
            while !go.exists() {
                std::thread::yield_now();
            }
            for number in 0..RACED {
                let (module, stats) = cached(&directory, &numbered(number));
                assert_eq!(run(&module), number);
                assert_eq!((stats.damaged, stats.errors), (0, 0), "{stats:?}");
            }
        }
        "limit" => {
            let limit = libc::rlimit { rlim_cur: 20_000, rlim_max: 20_000 };
            // SAFETY: sets a limit of this process from a live structure.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
            // Too large for a file, though not the pages of its instances.
            let data = "x".repeat(20_000);
            let text = MODULE.replace("(func", &format!("(data \"{data}\") (func"));
            let (module, stats) = cached(&directory, &text);
            assert_eq!((run(&module), counts(&stats)), (42, [0, 1, 0, 0, 1]), "{stats:?}");
        }
        "write" => {
            for number in entries(&directory).len() as i32.. {
                let (module, _) = cached(&directory, &numbered(number));
                assert_eq!(run(&module), number);
            }
        }
        step => {
            let (nameless, step) = step.split_at(1);
            let (nameless, step) = (nameless == "-", step.parse::<usize>());
            let step = step.expect("the number of a step");
            on_cache_step(move |done| {
                if done == CacheStep::Begun && !nameless {
                    return Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
                }
                if done == CacheStep::ALL[step] {
                    // SAFETY: ends this process.
                    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                }
                Ok(())
            });
            cached(&directory, MODULE);
        }
    }
}

#[test]
fn two_processes_that_compile_the_same_modules_both_succeed() {
    let directory = private_directory("race");
    let mut children = [(); 3].map(|()| start("race", &directory));
    let go = directory.with_extension("go");
    std::fs::write(&go, "").unwrap();
    let ended = children.each_mut().map(|child| child.wait().unwrap());
    std::fs::remove_file(go).unwrap();
    assert!(ended.iter().all(|status| status.success()), "{ended:?}");
    assert_eq!(entries(&directory).len(), RACED as usize);
    for number in 0..RACED {
        assert_eq!(cached(&directory, &numbered(number)).1.hits, 1);
    }
}

#[test]
fn a_process_killed_after_any_step_leaves_nothing_half_made() {
    for step in 0..CacheStep::ALL.len() {
        let directory = private_directory("killed");
        let status = start(&format!("-{step}"), &directory).wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "at {:?}", CacheStep::ALL[step]);
        let named = CacheStep::ALL[step] == CacheStep::Named;
        assert_eq!(entries(&directory).len(), usize::from(named));
        let (module, stats) = cached(&directory, MODULE);
        assert_eq!((run(&module), stats.hits, stats.damaged), (42, u64::from(named), 0));
        assert_eq!(cached(&directory, MODULE).1.hits, 1);
    }
}

/// On a file system that knows no files without names.
#[test]
fn what_a_killed_process_leaves_is_nobodys_entry_and_goes_later() {
    for step in 0..CacheStep::ALL.len() {
        let directory = private_directory("killed_named");
        let status = start(&format!("+{step}"), &directory).wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "at {:?}", CacheStep::ALL[step]);
        let named = CacheStep::ALL[step] == CacheStep::Named;
        for file in files(&directory) {
            let unfinished = file.file_name().unwrap().to_str().unwrap().starts_with('.');
            assert_eq!(unfinished, !named, "{file:?}");
            let hour_ago = SystemTime::now() - Duration::from_secs(3600);
            File::open(file).unwrap().set_modified(hour_ago).unwrap();
        }
        let (module, stats) = cached(&directory, MODULE);
        assert_eq!((run(&module), stats.hits, stats.damaged), (42, u64::from(named), 0));
        assert_eq!(entries(&directory).len(), 1, "the leftover is gone");
    }
}

#[test]
fn processes_killed_at_any_time_leave_nothing_half_made() {
    let directory = private_directory("killed_at_random");
    // A linear congruential generator: the times are spread the same every time.
    let mut random = 1u64;
    let mut known = 0;
    for round in 0..100 {
        let mut child = start("write", &directory);
        // It writes without end; how far it is then is left to chance.
        while entries(&directory).len() <= known {
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        }
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        std::thread::sleep(Duration::from_micros((random >> 40) % 5000));
        child.kill().unwrap();
        child.wait().unwrap();
        let found = entries(&directory).len();
        // They were written in order of their numbers.
        for number in [known as i32, found as i32 - 1] {
            let (module, stats) = cached(&directory, &numbered(number));
            assert_eq!(run(&module), number);
            assert_eq!(counts(&stats), [1, 0, 0, 0, 0], "round {round}, module {number}");
        }
        known = found;
    }
}
