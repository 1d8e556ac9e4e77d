//! `pagefork doctor` where a filter of system calls refuses what strategies need, as containers have
//! them: it says what is done instead.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;

/// A system call that is refused, where an argument has a value.
#[derive(Clone, Copy)]
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

#[test]
fn what_a_filter_refuses_is_limited_and_the_rest_works_as_before() {
    let usual = with(None, "doctor").0;
    let userfaultfd = Refusal { call: libc::SYS_userfaultfd, argument: None };
    let removal = libc::MADV_REMOVE as u32;
    let ftruncate = Refusal { call: libc::SYS_madvise, argument: Some((2, removal)) };
    let all = [
        ("userfaultfd touches", "discarded where --reset fault is asked for", userfaultfd),
        ("userfaultfd write faults", "compared where --deltas fault is asked for", userfaultfd),
        ("growth by fault", "Memories grow by mprotect", userfaultfd),
        ("growth by ftruncate", "Memories grow by mprotect", ftruncate),
    ];
    for (name, said, refusal) in all {
        let report = with(Some(refusal), "doctor").0;
        let found = line(&report, name);
        assert!(found.starts_with("limited ") && found.contains(said), "{found}");
        assert!(report.ends_with("Pagefork can run here.\n"), "{report}");
        // Of the others that are tried here, those that need nothing of it are as they were.
        for (other, _, of_other) in all.into_iter().filter(|one| one.2.call != refusal.call) {
            assert_eq!(line(&report, other), line(&usual, other), "{:?}", of_other.call);
        }
    }
}

/// What cannot be had is said, and what is nearest does the same.
#[test]
fn programs_run_by_what_is_nearest_where_a_filter_refuses_their_strategy() {
    let module = std::env::temp_dir().join(format!("pagefork-filtered-{}.wat", std::process::id()));
    let text = r#"(module (memory 1) (data (i32.const 5) "\07") (func (export "f") (result i32)
        (drop (memory.grow (i32.const 1)))
        (i32.add (i32.load8_u (i32.const 5)) (i32.load8_u (i32.const 65536)))))"#;
    std::fs::write(&module, text).expect("the folder can be written");
    let place = module.to_str().expect("text");
    let userfaultfd = Some(Refusal { call: libc::SYS_userfaultfd, argument: None });
    for (options, said) in [
        ("--reset fault", "reset by discard (asked for: fault)"),
        ("--reset fault=2", "reset by discard (asked for: fault)"),
        ("--reset fault=1,eager", "reset by discard (asked for: fault)"),
        ("--growth fault", "grow by mprotect (asked for: fault)"),
    ] {
        let run = format!("run --no-cache {options} --invoke f {place}");
        let (printed, errors) = with(userfaultfd, &run);
        assert_eq!(printed, "7\n", "{options}");
        assert!(errors.contains(said), "{options}: {errors}");
    }
    std::fs::remove_file(module).expect("it is there");
}
