//! `pagefork fork` as a person uses it.

mod common;

use common::{assert_fails, file, pagefork, pagefork_with_input};

/// Prints that it is ready; then what it reads, or fails as it reads.
const READER: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_read"
        (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\00\01\00\00\00\04\00\00")
    (data (i32.const 16) "ready\0agot ")
    (func $print (param i32 i32)
        (i32.store (i32.const 32) (local.get 0))
        (i32.store (i32.const 36) (local.get 1))
        (drop (call $write (i32.const 1) (i32.const 32) (i32.const 1) (i32.const 40))))
    (func (export "_start") (local $n i32)
        (call $print (i32.const 16) (i32.const 6))
        (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
        ;; The earlier the line, the longer it takes.
        (local.set $n (i32.mul (i32.sub (i32.const 60) (i32.load8_u (i32.const 256)))
            (i32.const 100000)))
        (loop $l (br_if $l (i32.gt_s
            (local.tee $n (i32.sub (local.get $n) (i32.const 1))) (i32.const 0))))
        (call $print (i32.const 22) (i32.const 4))
        (call $print (i32.const 256) (i32.load (i32.const 8)))
        (if (i32.eq (i32.load8_u (i32.const 256)) (i32.const 0x78)) (then (call $exit (i32.const 5))))
        (if (i32.eq (i32.load8_u (i32.const 256)) (i32.const 0x74)) (then unreachable))
        (if (i32.eq (i32.load8_u (i32.const 256)) (i32.const 0x6c)) (then (loop (br 0))))))"#;

#[test]
fn each_line_has_a_fork_and_what_they_print_comes_in_order() {
    let reader = file("fork-reader.wat", READER);
    let lines: String = (0..300).map(|n| format!("{} {n}\n", n % 10)).collect();
    let path = file("fork-lines", &lines);
    let expected: String = "ready\n".to_owned()
        + &lines.lines().map(|line| format!("got {line}\n")).collect::<String>();
    for jobs in ["", "--jobs 1 ", "-j 7 "] {
        let ended = pagefork(&format!("fork {jobs}--inputs {path} {reader}"));
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
        assert!(ended.stdout == expected, "{jobs}: {}", ended.stdout);
    }
    let ended = pagefork_with_input(&format!("fork --inputs - {reader}"), "one\ntwo");
    assert_eq!(ended.stdout, "ready\ngot one\ngot two");
    let ended = pagefork(&format!("fork --inputs /dev/null {reader}"));
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "ready\n"));
}

#[test]
fn forks_learn_their_numbers() {
    let reader = file("fork-numbers.wat", READER);
    let ended = pagefork(&format!("fork -n 12 {reader}"));
    let expected: String = (1..=12).map(|n| format!("got {n}\n")).collect();
    assert_eq!((ended.code, ended.stdout), (0, format!("ready\n{expected}")));

    // Exits with what it is told.
    let asks = r#"(module
        (import "pagefork" "snapshot" (func $snapshot (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1)
        (func (export "_start") (call $exit (call $snapshot))))"#;
    let asks = file("fork-asks.wat", asks);
    let ended = pagefork(&format!("fork -n 3 -j 1 {asks}"));
    assert_eq!(ended.code, 1);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines, [1, 2, 3].map(|n| format!("pagefork: fork {n}: exit code {n}")));
    assert_eq!(pagefork(&format!("run {asks}")).code, 0, "it is the original");
}

/// Forks give memory back that they have written, as any program can.
#[test]
fn forks_give_memory_back() {
    let gives = r#"(module
        (import "pagefork" "snapshot" (func $snapshot (result i32)))
        (import "pagefork" "memory_discard" (func $discard (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 256)
        (func $fill (param i32) (memory.fill (i32.const 65536) (local.get 0) (i32.const 0x800000)))
        (func (export "_start")
            (call $fill (i32.const 1))
            (drop (call $snapshot))
            (call $fill (i32.const 2))
            (call $exit (i32.or
                (i32.lt_s (call $discard (i32.const 65536) (i32.const 0x800000)) (i32.const 0))
                (i32.load (i32.const 0x7ffffc))))))"#;
    let gives = file("fork-gives.wat", gives);
    let ended = pagefork(&format!("fork -n 3 {gives}"));
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
}

#[test]
fn a_fork_that_fails_is_named_and_the_others_go_on() {
    let reader = file("fork-fails.wat", READER);
    let path = file("fork-fails-lines", "a\nx\nb\nt\nc\nl\n");
    let ended = pagefork(&format!("fork --timeout 3s --inputs {path} {reader}"));
    assert_eq!(ended.code, 1);
    assert_eq!(ended.stdout, "ready\ngot a\ngot x\ngot b\ngot t\ngot c\ngot l\n");
    for expected in ["fork 2: exit code 5", "fork 4: ", "unreachable", "fork 6: ", "interrupt"] {
        assert!(ended.stderr.contains(expected), "{expected}: {}", ended.stderr);
    }
}

#[test]
fn what_cannot_be_forked_is_refused_before_anything_runs_twice() {
    let ends =
        file("fork-ends.wat", r#"(module (memory (export "memory") 1) (func (export "_start")))"#);
    assert_fails(
        &format!("fork -n 3 {ends}"),
        1,
        &["exit code 0 before it read its standard input", "pagefork.snapshot"],
    );
    let traps = file("fork-traps.wat", r#"(module (func (export "_start") unreachable))"#);
    assert_fails(&format!("fork -n 3 {traps}"), 1, &["cannot be started", "unreachable"]);
    let library = file("fork-library.wat", "(module (func (export \"f\")))");
    assert_fails(&format!("fork -n 3 {library}"), 1, &["`_start`", "wasm32-wasip1"]);
    let reader = file("fork-refused.wat", READER);
    assert_fails(&format!("fork --inputs /no/such/file {reader}"), 1, &["/no/such/file"]);
    assert_fails(&format!("fork --inputs / {reader}"), 1, &["is a directory"]);
    assert_fails(&format!("fork {reader}"), 2, &["--inputs"]);
    assert_fails(&format!("fork -n 2 --inputs x {reader}"), 2, &["--inputs"]);
    assert_fails("fork --inputs - -", 1, &["give the lines as a file"]);
    assert_fails(&format!("fork -j 0 -n 1 {reader}"), 2, &["--jobs"]);
}

/// Writes `a` into a file before it reads, `b` after it, and prints all that is in the file then.
const WRITER: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_read"
        (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_pread"
        (func $pread (param i32 i32 i32 i64 i32) (result i32)))
    (import "wasi_snapshot_preview1" "path_open"
        (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\40\00\00\00\01\00\00\00")
    (data (i32.const 8) "\41\00\00\00\01\00\00\00")
    (data (i32.const 16) "\00\01\00\00\40\00\00\00")
    (data (i32.const 64) "ab/notes")
    (func $check (param i32) (if (local.get 0) (then unreachable)))
    (func (export "_start")
        (call $check (call $open (i32.const 3) (i32.const 0) (i32.const 67) (i32.const 5)
            (i32.const 1) (i64.const 0x1fffffff) (i64.const 0) (i32.const 0) (i32.const 32)))
        (call $check (call $write (i32.load (i32.const 32)) (i32.const 0) (i32.const 1)
            (i32.const 36)))
        (call $check (call $read (i32.const 0) (i32.const 16) (i32.const 1) (i32.const 36)))
        (call $check (call $write (i32.load (i32.const 32)) (i32.const 8) (i32.const 1)
            (i32.const 36)))
        (call $check (call $pread (i32.load (i32.const 32)) (i32.const 16) (i32.const 1)
            (i64.const 0) (i32.const 20)))
        (call $check (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 36)))))"#;

#[test]
fn each_fork_has_a_directory_of_its_session() {
    let writer = file("fork-writer.wat", WRITER);
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let work = directory.join("fork-session");
    let _ = std::fs::remove_dir_all(&work);
    std::fs::create_dir(&work).expect("a directory");
    let shown = work.display();
    let ended = pagefork(&format!("fork -n 5 --session-dir {shown}::/work {writer}"));
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    assert_eq!(ended.stdout, "ab".repeat(5));
    assert_eq!(std::fs::read(work.join("notes")).expect("it was made"), b"a");
    // Nothing of the copies stays.
    let left = std::fs::read_dir(directory).expect("it is there").filter(|entry| {
        let name = entry.as_ref().expect("it can be read").file_name();
        name.to_string_lossy().starts_with("pagefork-")
    });
    assert_eq!(left.count(), 0);

    let missing = format!("fork -n 1 --session-dir {shown}/none::/work {writer}");
    assert_fails(&missing, 1, &["fork-session/none"]);
    let cold = format!("serve --session-dir {shown}::/work {writer}");
    assert_fails(&cold, 1, &["--session-dir", "--warm"]);
}
