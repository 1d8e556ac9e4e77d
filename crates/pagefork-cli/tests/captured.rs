//! Images, as a person makes and uses them: each command is a process of its own.

mod common;

use std::path::Path;

use common::{Ended, assert_fails, file, pagefork, pagefork_with_input};

/// Prints that it is ready, reads a line, prints it, and exits with the number of its first letter.
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
    (func (export "_start")
        (call $print (i32.const 16) (i32.const 6))
        (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
        (call $print (i32.const 22) (i32.const 4))
        (call $print (i32.const 256) (i32.load (i32.const 8)))
        (call $exit (i32.load8_u (i32.const 256)))))"#;

/// Counts, and writes a letter now and then.
const COUNTER: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 300)
    (global $sum (mut i32) (i32.const 0))
    (data (i32.const 0) "\08\00\00\00\01\00\00\00a")
    (func $letter (param $n i32)
        (i32.store8 (i32.const 8) (i32.add (i32.const 97) (local.get $n)))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16))))
    (func (export "_start") (local $n i32)
        (loop $l
            (call $letter (local.get $n))
            (i32.store8 offset=100 (i32.mul (i32.const 70000) (local.get $n)) (i32.const 1))
            (br_if $l (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1)))
                (i32.const 6)))))
    (func (export "add") (global.set $sum (i32.add (global.get $sum) (i32.const 5))))
    (func (export "sum") (result i32) (global.get $sum)))"#;

/// Loops for ever.
const LOOPER: &str =
    r#"(module (memory (export "memory") 1) (func (export "_start") (loop (br 0))))"#;

/// Appends a letter to `notes` in its directory before each line that it prints, and prints the file.
const WRITER: &str = r#"(module
    (import "wasi_snapshot_preview1" "path_open" (func $open
        (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_pread"
        (func $pread (param i32 i32 i32 i64 i32) (result i32)))
    (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "notes")
    (data (i32.const 64) "a")
    (func $at (param i32 i32)
        (i32.store (i32.const 32) (local.get 0))
        (i32.store (i32.const 36) (local.get 1)))
    (func (export "_start") (local $n i32) (local $failed i32)
        ;; Made, if it is not there; 0x66 is to read, write, seek and tell.
        (if (call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 5) (i32.const 1)
                (i64.const 0x66) (i64.const 0) (i32.const 0) (i32.const 40))
            (then (unreachable)))
        (loop $l
            (i32.store8 (i32.const 64) (i32.add (i32.const 97) (local.get $n)))
            (call $at (i32.const 64) (i32.const 1))
            (if (call $write (i32.load (i32.const 40)) (i32.const 32) (i32.const 1) (i32.const 44))
                (then (unreachable)))
            (drop (call $yield))
            (call $at (i32.const 128) (i32.const 64))
            (if (call $pread (i32.load (i32.const 40)) (i32.const 32) (i32.const 1) (i64.const 0)
                    (i32.const 44))
                (then (unreachable)))
            (i32.store8 (i32.add (i32.const 128) (i32.load (i32.const 44))) (i32.const 10))
            (call $at (i32.const 128) (i32.add (i32.const 1) (i32.load (i32.const 44))))
            (drop (call $write (i32.const 1) (i32.const 32) (i32.const 1) (i32.const 44)))
            (br_if $l (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1)))
                (i32.const 4))))))"#;

/// An empty directory for a test's images.
fn store(name: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    path.display().to_string()
}

#[track_caller]
fn succeeds(ended: &Ended) {
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

#[test]
fn a_program_goes_on_in_other_processes_from_its_first_read() {
    let (reader, store) = (file("image-reader.wat", READER), store("images-read"));
    let made = pagefork(&format!("snapshot --store {store} -o reader {reader}"));
    succeeds(&made);
    assert_eq!(made.stdout, "ready\n");
    let hash = made.stderr.trim_end().strip_prefix("pagefork: image ").expect("a hash");
    assert_eq!(hash.len(), 64);

    for image in ["reader", hash, &hash[..8]] {
        let restored = pagefork_with_input(&format!("restore --store {store} {image}"), "3 times");
        assert_eq!((restored.code, restored.stdout.as_str()), (0x33, "got 3 times"));
    }
    let run = pagefork_with_input(&format!("run --store {store} --from reader"), "4");
    assert_eq!((run.code, run.stdout.as_str()), (0x34, "got 4"));
    // Each fork begins with what the program had written.
    let forked = pagefork(&format!("fork -n 2 --store {store} --from reader"));
    assert_eq!(forked.stdout, "ready\ngot 1\ngot 2\n");
    assert!(forked.stderr.contains("fork 1: exit code 49"), "{}", forked.stderr);

    assert_fails(&format!("restore --store {store} none"), 1, &["no image \"none\""]);
    assert_fails(&format!("restore --store {store} --invoke x reader"), 1, &["is running"]);
    assert_fails(&format!("restore --store {store} --env A=b reader"), 1, &["--env"]);
    assert_fails(&format!("run --store {store} --from reader --fuel 5"), 1, &["--fuel"]);
    assert_fails("run", 2, &["FILE"]);
}

#[test]
fn images_of_running_programs_are_deltas_of_each_other() {
    let (counter, store) = (file("image-counter.wat", COUNTER), store("images-call"));
    let first = format!("snapshot --store {store} -o one --at call:fd_write:3 {counter}");
    let first = pagefork(&first);
    succeeds(&first);
    assert_eq!(first.stdout, "ab");
    let second = format!("snapshot --store {store} -o two --at call:fd_write:3 --from one");
    let second = pagefork(&second);
    succeeds(&second);
    assert_eq!(second.stdout, "cd");
    for (image, rest) in [("one", "cdef"), ("two", "ef"), ("one", "cdef")] {
        let restored = pagefork(&format!("restore --store {store} {image}"));
        assert_eq!((restored.code, restored.stdout.as_str()), (0, rest), "{}", restored.stderr);
    }
    let ends = format!("snapshot --store {store} --at call:fd_write:9 --from one");
    assert_fails(&ends, 1, &["exit code 0 before it came"]);
    let unknown = format!("snapshot --store {store} --at call:fd_right {counter}");
    assert_fails(&unknown, 1, &["no function \"fd_right\""]);
}

#[test]
fn a_program_is_captured_several_times_by_each_tracker() {
    let (counter, store) = (file("image-several.wat", COUNTER), store("images-several"));
    for deltas in ["off", "compare", "writes", "protect", "fault"] {
        let made = pagefork(&format!(
            "snapshot --store {store} -o {deltas} -n 3 --deltas {deltas} --at call:fd_write:2 {counter}"
        ));
        succeeds(&made);
        assert_eq!(made.stdout, "abc", "{deltas}");
        let images: Vec<&str> = made
            .stderr
            .lines()
            .map(|line| line.strip_prefix("pagefork: image ").expect("a hash"))
            .collect();
        for (image, rest) in images.iter().zip(["bcdef", "cdef", "def"]) {
            let restored = pagefork(&format!("restore --store {store} {image}"));
            assert_eq!((restored.code, restored.stdout.as_str()), (0, rest), "{}", restored.stderr);
        }
        // The name leads to the last one, which is a delta of the others.
        let named = pagefork(&format!("image inspect --store {store} {deltas}"));
        assert_eq!(named.stdout.matches("delta of").count(), 2, "{}", named.stdout);
        assert!(named.stdout.contains(images[2]), "{}", named.stdout);
    }
    let ends = format!("snapshot --store {store} -n 9 --at call:fd_write:3 {counter}");
    let ends = pagefork(&ends);
    succeeds(&ends);
    assert!(ends.stderr.contains("ended with exit code 0 after image 2 of 9"), "{}", ends.stderr);
    assert_fails("snapshot --deltas x --at time:1s x.wasm", 2, &["off, compare, writes, protect"]);
    assert_fails(&format!("snapshot --store {store} -n 2 {counter}"), 1, &["--count"]);
    assert_fails("snapshot -n 51 --at time:1s x.wasm", 2, &["50"]);
    // Before anything has run.
    let looper = file("image-named.wat", LOOPER);
    assert_fails(&format!("snapshot --store {store} -o ../x {looper}"), 1, &["../x"]);
}

#[test]
fn images_have_the_files_of_a_session() {
    let (writer, store) = (file("image-writer.wat", WRITER), store("images-files"));
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images-work");
    let _ = std::fs::remove_dir_all(&work);
    std::fs::create_dir(&work).expect("it can be made");
    let work = work.display();
    let copies = || {
        let place = std::fs::read_dir(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let names = place.map(|entry| entry.expect("an entry").file_name());
        let names = names.filter(|name| name.to_string_lossy().starts_with("pagefork-"));
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let before = copies();
    let at = "--at call:sched_yield:2";
    let first = format!("snapshot --store {store} -o one {at} --session-dir {work}::/own {writer}");
    let first = pagefork(&first);
    succeeds(&first);
    assert_eq!(first.stdout, "a\n");
    // What becomes of the original is nothing to the image.
    let notes = format!("{work}/notes");
    assert_eq!(std::fs::read_to_string(&notes).expect("it was written"), "ab");
    std::fs::remove_dir_all(work.to_string()).expect("it can be removed");

    let second = pagefork(&format!("snapshot --store {store} -o two {at} --from one"));
    succeeds(&second);
    assert_eq!(second.stdout, "ab\n");
    for (image, lines) in
        [("one", "ab\nabc\nabcd\n"), ("two", "abc\nabcd\n"), ("one", "ab\nabc\nabcd\n")]
    {
        for command in ["restore", "run --from"] {
            let restored = pagefork(&format!("{command} {image} --store {store}"));
            assert_eq!(
                (restored.code, restored.stdout.as_str()),
                (0, lines),
                "{}",
                restored.stderr
            );
        }
    }
    let forked = pagefork(&format!("fork -n 2 --store {store} --from two"));
    assert_eq!(forked.stdout, "abc\nabcd\n".repeat(2), "{}", forked.stderr);
    let squashed = pagefork(&format!("image squash --store {store} two"));
    succeeds(&squashed);
    let inspected = pagefork(&format!("image inspect --store {store} two"));
    assert!(inspected.stdout.contains("/own/notes, 3"), "{}", inspected.stdout);

    let twice = format!("fork -n 1 --store {store} --session-dir /tmp::/own --from two");
    assert_fails(&twice, 1, &["--session-dir", "in the image already"]);
    let twice = format!("snapshot --store {store} {at} --session-dir /tmp::/own --from two");
    assert_fails(&twice, 1, &["--session-dir", "in the image already"]);
    assert_eq!(copies(), before, "copies stay behind");
}

#[test]
fn a_library_is_captured_after_an_export_and_a_loop_after_a_time() {
    let (counter, store) = (file("image-library.wat", COUNTER), store("images-export"));
    succeeds(&pagefork(&format!("snapshot --store {store} -o one --at export:add {counter}")));
    succeeds(&pagefork(&format!("snapshot --store {store} -o two --at export:add --from one")));
    for (image, sum) in [("one", "5\n"), ("two", "10\n")] {
        let called = pagefork(&format!("restore --store {store} --invoke sum {image}"));
        assert_eq!((called.code, called.stdout.as_str()), (0, sum), "{}", called.stderr);
    }
    assert_fails(&format!("restore --store {store} one"), 1, &["--invoke"]);

    let looper = file("image-looper.wat", LOOPER);
    succeeds(&pagefork(&format!("snapshot --store {store} -o loop --at time:20ms {looper}")));
    let restored = pagefork(&format!("restore --store {store} --timeout 50ms loop"));
    assert_eq!(restored.code, 134, "{}", restored.stderr);
}

#[test]
fn code_that_is_gone_is_made_of_the_module_where_nothing_runs() {
    let (counter, store) = (file("image-module.wat", COUNTER), store("images-module"));
    succeeds(&pagefork(&format!("snapshot --store {store} -o idle --at export:add {counter}")));
    let codes = || std::fs::read_dir(Path::new(&store).join("code")).unwrap();
    let is_module = |path: &Path| std::fs::read(path).unwrap().starts_with(b"\0asm");
    assert_eq!(codes().count(), 2, "the code and its module");
    for code in codes().map(|entry| entry.unwrap().path()).filter(|path| !is_module(path)) {
        std::fs::remove_file(code).unwrap();
    }
    let called = pagefork(&format!("restore --store {store} --invoke sum idle"));
    assert_eq!((called.code, called.stdout.as_str()), (0, "5\n"), "{}", called.stderr);
    // One that runs has nothing but its code.
    let at = "--at call:fd_write:3";
    succeeds(&pagefork(&format!("snapshot --store {store} -o runs {at} {counter}")));
    for code in codes().map(|entry| entry.unwrap().path()).filter(|path| !is_module(path)) {
        std::fs::remove_file(code).unwrap();
    }
    for module in codes().map(|entry| entry.unwrap().path()) {
        // The same module made the same code, which is known by its hash.
        let restored = pagefork(&format!("restore --store {store} runs"));
        assert_eq!(restored.code, 0, "{}", restored.stderr);
        std::fs::remove_file(module).unwrap();
    }
    let restore = format!("restore --store {store} runs");
    assert_fails(&restore, 1, &["needs code image", "its module was not kept"]);
}

#[test]
fn images_of_running_programs_are_taken_from_who_is_trusted_alone() {
    let (reader, store) = (file("image-trust.wat", READER), store("images-trust"));
    let made = pagefork(&format!("snapshot --store {store} -o reader {reader}"));
    succeeds(&made);
    let other = Path::new(env!("CARGO_TARGET_TMPDIR")).join("config-of-another");
    let _ = std::fs::remove_dir_all(&other);
    let restore = || {
        let command = format!("restore --store {store} reader");
        common::pagefork_as(&command, "1", &other)
    };
    let refused = restore();
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("trust"), "{}", refused.stderr);
    assert!(!other.exists(), "nothing was written");
    // The other user has a key, which is not this one's.
    succeeds(&common::pagefork_as("image key", "", &other));
    assert!(restore().stderr.contains("trust"));
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join("config/pagefork/image-key");
    let secret = std::fs::read(other.join("pagefork/image-key")).expect("it was made");
    assert_ne!(secret, std::fs::read(own).expect("it was made"));
    std::fs::write(other.join("pagefork/trusted-keys"), "0123\n").expect("it can be written");
    assert!(restore().stderr.contains("trusted-keys, line 1"));
}

#[test]
fn images_are_restored_where_no_key_can_be_made() {
    let (counter, store) = (file("image-no-key.wat", COUNTER), store("images-no-key"));
    succeeds(&pagefork(&format!("snapshot --store {store} -o idle --at export:add {counter}")));
    succeeds(&pagefork(&format!(
        "snapshot --store {store} -o runs --at call:fd_write:3 {counter}"
    )));
    // The kernel makes no directory here, whoever asks.
    let nowhere = Path::new("/proc/no home");
    let run = |words: &str| common::pagefork_as(words, "", nowhere);
    let called = run(&format!("restore --store {store} --invoke sum idle"));
    assert_eq!((called.code, called.stdout.as_str()), (0, "5\n"), "{}", called.stderr);
    let refused = run(&format!("restore --store {store} runs"));
    assert!(refused.code == 1 && refused.stderr.contains("trust"), "{}", refused.stderr);
    for words in ["image key", &format!("image key --trust {}", "07".repeat(32))] {
        let refused = run(words);
        let said = refused.stderr.contains("cannot make /proc/no home/pagefork");
        assert!(refused.code == 1 && said, "{words}: {}", refused.stderr);
    }

    // Who has the public key needs no key of their own.
    let reads = Path::new(env!("CARGO_TARGET_TMPDIR")).join("config-that-trusts/pagefork");
    let _ = std::fs::remove_dir_all(&reads);
    std::fs::create_dir_all(&reads).expect("it can be made");
    let key = pagefork("image key").stdout;
    std::fs::write(reads.join("trusted-keys"), key).expect("it can be written");
    let config = reads.parent().expect("it has one");
    let restored = common::pagefork_as(&format!("restore --store {store} runs"), "", config);
    assert_eq!((restored.code, restored.stdout.as_str()), (0, "cdef"), "{}", restored.stderr);
    assert!(!reads.join("image-key").exists());
}
