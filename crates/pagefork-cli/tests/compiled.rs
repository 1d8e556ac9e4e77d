//! Programs that were compiled before: by `pagefork compile`, or by an earlier run.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::{assert_fails, file, pagefork};

const ADD: &str = r#"(module (func (export "add") (param i32 i32) (result i32)
    (i32.add (local.get 0) (local.get 1))))"#;

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    path
}

#[test]
fn a_module_is_compiled_to_a_file_that_runs() {
    let module = file("compiled.wat", ADD);
    let output = file("compiled.pfc", "what was there before");
    let ended = pagefork(&format!("compile {module}"));
    assert_eq!((ended.code, &*ended.stdout, &*ended.stderr), (0, "", ""));
    let ended = pagefork(&format!("run --no-cache --invoke add {output} 20 22"));
    assert_eq!((ended.code, &*ended.stdout), (0, "42\n"), "{}", ended.stderr);

    let other = file("elsewhere", "");
    assert_eq!(pagefork(&format!("compile -o {other} {module}")).code, 0);
    assert_eq!(pagefork(&format!("--invoke add {other} 1 2")).stdout, "3\n");
}

#[test]
fn it_runs_with_the_options_that_it_was_compiled_for() {
    let module = file("options.wat", ADD);
    let output = module.replace(".wat", ".pfc");
    for (compiled, run) in [
        ("--fuel", "--fuel 100"),
        ("--deterministic", "--deterministic"),
        ("--core-dump", "--core-dump /dev/null"),
        ("--fuel --deterministic", "--deterministic --fuel 5"),
    ] {
        assert_eq!(pagefork(&format!("compile {compiled} {module}")).code, 0);
        let ended = pagefork(&format!("run {run} --invoke add {output} 20 22"));
        assert_eq!((ended.code, &*ended.stdout), (0, "42\n"), "{run}: {}", ended.stderr);
        let messages = ["other settings", "true instead of", "false"];
        assert_fails(&format!("run --invoke add {output} 20 22"), 1, &messages);
    }
}

#[test]
fn machine_code_runs_only_if_it_is_marked_as_executable() {
    let module = file("marked.wat", ADD);
    let output = module.replace(".wat", ".pfc");
    assert_eq!(pagefork(&format!("compile {module}")).code, 0);
    // As a file that was downloaded.
    fs::set_permissions(&output, fs::Permissions::from_mode(0o644)).expect("our own file");
    assert_fails(&format!("run {output}"), 1, &["chmod +x", "marked.pfc", "machine code"]);
}

#[test]
fn what_cannot_be_compiled_or_run_is_explained() {
    let module = file("explained.wat", ADD);
    let output = module.replace(".wat", ".pfc");
    assert_eq!(pagefork(&format!("compile {module}")).code, 0);
    assert_fails(&format!("compile {output} -o x"), 1, &["compiled already", "pagefork run"]);
    assert_fails(&format!("compile -o {module} {module}"), 1, &["replaced", "-o"]);
    assert_fails(&format!("compile -o /nowhere/x {module}"), 1, &["cannot write", "/nowhere/x"]);
    let mut bytes = fs::read(&output).expect("written just now");
    bytes[500] ^= 1;
    fs::write(&output, bytes).expect("our own file");
    assert_fails(&format!("run {output}"), 1, &["damaged", "compile the module again"]);
}

#[test]
fn a_second_run_finds_what_the_first_one_compiled() {
    let directory = directory("own-cache");
    let module = file("cached.wat", ADD);
    let run = |options: &str| {
        let ended = pagefork(&format!("run {options} --invoke add {module} 20 22"));
        assert_eq!((ended.code, &*ended.stdout), (0, "42\n"), "{}", ended.stderr);
        ended.stderr
    };
    run("--no-cache");
    assert!(!directory.exists());
    let options = format!("--cache {}", directory.display());
    let entries = || -> Vec<_> {
        let entries = fs::read_dir(&directory).expect("it was made");
        entries.map(|entry| entry.expect("an entry").metadata().expect("a file")).collect()
    };
    run(&options);
    let first = entries();
    assert_eq!(run(&options), "");
    let second = entries();
    assert_eq!((first.len(), second.len()), (1, 1));
    let made = |entries: &[fs::Metadata]| entries[0].created().ok();
    assert_eq!(made(&first), made(&second), "the same entry");

    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("our own");
    assert!(run(&options).contains("chmod go-w"));
    assert_fails(&format!("run --no-cache {options} {module}"), 2, &["--no-cache"]);
}
