//! `pagefork doctor` where a filter of system calls refuses what strategies need, as containers have
//! them: it says what is done instead.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use nix::libc;

/// A system call that is refused, where an argument has a value.
#[derive(Clone, Copy, PartialEq)]
struct Refusal {
    call: libc::c_long,
    /// Which argument, from 0, and the lower half of its value.
    argument: Option<(u32, u32)>,
}

impl Refusal {
    /// Has the kernel refuse it to this process from now on.
    fn install(self) -> io::Result<()> {
        let step = |code: u32, otherwise: u8, k: u32| libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: otherwise,
            k,
        };
        let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let answer = libc::BPF_RET | libc::BPF_K;
        // Where it does not matter, the number of the call is compared once more.
        let (place, value) = match self.argument {
            Some((argument, value)) => (16 + 8 * argument, value),
            None => (0, self.call as u32),
        };
        let mut program = [
            step(load, 0, 0),
            step(equal, 3, self.call as u32),
            step(load, 0, place),
            step(equal, 1, value),
            step(answer, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            step(answer, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: the filter is valid and only copied.
        let refused = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
                    != 0
        };
        if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// What a command prints, and then its errors, where something is refused.
fn with(refusal: Option<Refusal>, line: &str) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagefork"));
    command.args(line.split(' '));
    if let Some(refusal) = refusal {
        // SAFETY: the closure makes system calls alone.
        unsafe { command.pre_exec(move || refusal.install()) };
    }
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(output.stdout), text(output.stderr))
}

/// The line of a feature, with single spaces.
fn line(report: &str, name: &str) -> String {
    let lines = report.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let found = lines
        .into_iter()
        .find(|line| line.split_once(' ').is_some_and(|(_, rest)| rest.starts_with(name)));
    found.unwrap_or_else(|| panic!("no {name} in:\n{report}"))
}

const USERFAULTFD: Refusal = Refusal { call: libc::SYS_userfaultfd, argument: None };
/// Those that are opened so that nobody waits who reads them: by which threads are told of touches, and by which
/// writes are noted.
const MESSAGES: Refusal = Refusal {
    call: libc::SYS_userfaultfd,
    // UFFD_USER_MODE_ONLY is 1.
    argument: Some((0, (libc::O_CLOEXEC | libc::O_NONBLOCK | 1) as u32)),
};
const PERF: Refusal = Refusal { call: libc::SYS_perf_event_open, argument: None };
/// PAGEMAP_SCAN, by the number of the request.
const SCAN: Refusal = Refusal { call: libc::SYS_ioctl, argument: Some((1, 0xc060_6610)) };
const REMOVAL: Refusal =
    Refusal { call: libc::SYS_madvise, argument: Some((2, libc::MADV_REMOVE as u32)) };

#[test]
fn what_a_filter_refuses_is_limited_and_the_rest_works_as_before() {
    let usual = with(None, "doctor").0;
    // What each feature needs of that.
    let all: [(&str, &str, &[Refusal]); 7] = [
        ("userfaultfd touches", "discarded where --reset fault is asked for", &[USERFAULTFD]),
        ("userfaultfd write faults", "compared where --deltas fault is asked for", &[USERFAULTFD]),
        ("growth by fault", "Memories grow by mprotect", &[USERFAULTFD]),
        ("growth by ftruncate", "Memories grow by mprotect", &[REMOVAL]),
        ("page faults", "each reset asks the kernel (getrusage)", &[PERF]),
        ("PAGEMAP_SCAN", "Private pages are read from /proc/self/pagemap", &[SCAN]),
        ("userfaultfd WP_ASYNC", "All private pages are compared", &[USERFAULTFD, SCAN]),
    ];
    for refusal in [USERFAULTFD, REMOVAL, PERF, SCAN] {
        let report = with(Some(refusal), "doctor").0;
        for (name, said, needs) in all {
            let found = line(&report, name);
            match needs.contains(&refusal) {
                true => assert!(found.starts_with("limited ") && found.contains(said), "{found}"),
                false => assert_eq!(found, line(&usual, name), "{:?}", refusal.call),
            }
        }
        assert!(report.ends_with("Pagefork can run here.\n"), "{report}");
    }
}

/// As kernels before 6.6 are, which refuse no page for good: signals are raised there.
#[test]
fn where_threads_can_be_told_of_no_touches_who_touches_a_page_copies_it() {
    let usual = with(None, "doctor").0;
    let report = with(Some(MESSAGES), "doctor").0;
    let touches = line(&report, "userfaultfd touches");
    assert!(touches.starts_with("limited ") && touches.contains("Who touches"), "{touches}");
    for name in ["userfaultfd write faults", "growth by fault"] {
        assert_eq!(line(&report, name), line(&usual, name));
    }
    let module = program("messages");
    let place = module.to_str().expect("text");
    let run =
        |options| with(Some(MESSAGES), &format!("run --no-cache {options} --invoke f {place}"));
    for options in ["--reset fault=2", "--reset fault=1,eager"] {
        let (printed, errors) = run(options);
        assert_eq!(printed, "7\n", "{options}");
        assert!(errors.contains("reset by fault: threads cannot be told"), "{options}: {errors}");
    }
    assert_eq!(run("--reset fault --growth fault"), ("7\n".to_owned(), String::new()));
    std::fs::remove_file(module).expect("it is there");
}

/// A module whose function `f` gives 7, by a byte of its image and one that has grown.
fn program(name: &str) -> PathBuf {
    let name = format!("pagefork-filtered-{name}-{}.wat", std::process::id());
    let module = std::env::temp_dir().join(name);
    let text = r#"(module (memory 1) (data (i32.const 5) "\07") (func (export "f") (result i32)
        (drop (memory.grow (i32.const 1)))
        (i32.add (i32.load8_u (i32.const 5)) (i32.load8_u (i32.const 65536)))))"#;
    std::fs::write(&module, text).expect("the folder can be written");
    module
}

/// What cannot be had is said, and what is nearest does the same.
#[test]
fn programs_run_by_what_is_nearest_where_a_filter_refuses_their_strategy() {
    let module = program("strategies");
    let place = module.to_str().expect("text");
    for (options, said) in [
        ("--reset fault", "reset by discard (asked for: fault)"),
        ("--reset fault=2", "reset by discard (asked for: fault)"),
        ("--reset fault=1,eager", "reset by discard (asked for: fault)"),
        ("--growth fault", "grow by mprotect (asked for: fault)"),
    ] {
        let run = format!("run --no-cache {options} --invoke f {place}");
        let (printed, errors) = with(Some(USERFAULTFD), &run);
        assert_eq!(printed, "7\n", "{options}");
        assert!(errors.contains(said), "{options}: {errors}");
    }
    // What these replace is done by the same name.
    for refusal in [PERF, SCAN] {
        for options in ["--reset auto", "--reset resident", "--reset protect", "--reset scan"] {
            let run = format!("run --no-cache {options} --invoke f {place}");
            assert_eq!(with(Some(refusal), &run).0, "7\n", "{options} without {}", refusal.call);
        }
    }
    std::fs::remove_file(module).expect("it is there");
}
