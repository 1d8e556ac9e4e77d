//! Programs that others wrote, and programs of `guest/`, do in Pagefork what they
//! do natively. The expected results come from the host's own interpreters and
//! compilers, run here on the same input.

mod guests;

use std::fs;
use std::path::PathBuf;

use guests::{Invocation, built, fetched, host_program, repository, scratch};

const SCRIPTS: [(&str, &str); 2] = [
    ("everyday.py", include_str!("guests/everyday.py")),
    ("everyday.js", include_str!("guests/everyday.js")),
];

#[test]
fn cpython() {
    let (Some(guest), Some(python)) = (fetched("python.wasm"), host_program("python3")) else {
        return;
    };
    let run = |place: &str| {
        let directory = script_directory(&format!("cpython-{place}"), "everyday.py");
        let invocation = Invocation {
            args: vec!["everyday.py", "work"],
            stdin: "from standard input\n",
            directory: Some(&directory),
        };
        match place {
            "guest" => invocation.guest(&guest),
            _ => invocation.native(python, &[]),
        }
    };
    let (guest, host) = (run("guest"), run("host"));
    assert_eq!(guest.stdout, host.stdout);
    assert_eq!((guest.code, host.code), (5, 5));
}

#[test]
fn quickjs() {
    let (Some(guest), Some(node)) = (fetched("quickjs.wasm"), host_program("node")) else { return };
    let directory = script_directory("quickjs", "everyday.js");
    let invocation = |args| Invocation { args, stdin: "", directory: Some(&directory) };
    let guest = invocation(vec!["--std", "everyday.js", "work"]).guest(&guest);
    let host = invocation(vec!["everyday.js", "work"]).native(node, &[]);
    assert_eq!(guest, host);
}

#[test]
fn go() {
    let (Some(guest), Some(sha256sum)) = (fetched("digest.wasm"), host_program("sha256sum")) else {
        return;
    };
    let directory = repository().join("guest");
    let mut files =
        vec!["c/survey.c", "built/survey.wasm", "built/words.wasm", "go/digest/main.go"];
    files.sort_unstable();
    let invocation = Invocation { args: files, stdin: "", directory: Some(&directory) };
    assert_eq!(invocation.guest(&guest), invocation.native(sha256sum, &[]));

    // A tree, and a name that is not there.
    let whole =
        Invocation { args: vec!["."], stdin: "", directory: Some(&directory) }.guest(&guest);
    assert!(whole.code == 0 && whole.stdout.lines().count() > 8, "{whole:?}");
    let missing =
        Invocation { args: vec!["none"], stdin: "", directory: Some(&directory) }.guest(&guest);
    assert_eq!((missing.code, missing.stdout.as_str()), (1, ""));
}

#[test]
fn c() {
    let Some(native) = native_build("cc", "guest/c/survey.c", &["-std=gnu17"]) else { return };
    let invocation = Invocation {
        args: vec!["crates", "guest", "tests/src", "README.md", "none"],
        stdin: "",
        directory: Some(repository()),
    };
    let guest = invocation.guest(&built("survey.wasm"));
    assert_eq!(guest, invocation.native(native, &[]));
    assert!(guest.stdout.contains("Rust"), "{}", guest.stdout);
}

#[test]
fn cpp() {
    let Some(native) = native_build("c++", "guest/cpp/words.cpp", &["-std=c++20"]) else { return };
    let text =
        fs::read_to_string(repository().join("guest/c/survey.c")).expect("the file is there");
    for args in [vec![], vec!["3"], vec!["100000"], vec!["x"]] {
        let invocation = Invocation { args, stdin: &text, directory: None };
        assert_eq!(invocation.guest(&built("words.wasm")), invocation.native(&native, &[]));
    }
}

#[test]
fn rust() {
    let Some(python) = host_program("python3") else { return };
    let rows: Vec<String> = (0..2000)
        .map(|n| {
            format!(r#"{{"id":{n},"name":"n\"{n}","list":[],"deep":[[[{{"x":null}}]],true,-1.5]}}"#)
        })
        .collect();
    let json = format!("[{}]", rows.join(" ,\n"));
    let pretty =
        |args| Invocation { args, stdin: &json, directory: None }.guest(&built("pretty.wasm"));
    let native = |options: &[&str]| {
        Invocation { args: vec![], stdin: &json, directory: None }
            .native(python, &[&["-m", "json.tool"], options].concat())
    };
    assert_eq!(pretty(vec![]), native(&[]));
    assert_eq!(pretty(vec!["--compact"]).stdout.len(), native(&["--compact"]).stdout.len());

    let wrong = Invocation { args: vec![], stdin: "[1,", directory: None };
    assert_eq!(wrong.guest(&built("pretty.wasm")).code, 1);
}

/// A directory with one of the scripts and an empty directory `work`.
fn script_directory(test: &str, script: &str) -> PathBuf {
    let directory = scratch(test);
    fs::create_dir(directory.join("work")).expect("the directory is new");
    let (_, text) = SCRIPTS.iter().find(|(name, _)| *name == script).expect("a script of the list");
    fs::write(directory.join(script), text).expect("the directory can be written");
    directory
}

/// The same source, compiled by the host's own compiler.
fn native_build(compiler: &'static str, source: &str, options: &[&str]) -> Option<PathBuf> {
    let compiler = host_program(compiler)?;
    let program = scratch(compiler).join("native");
    let source = repository().join(source);
    let words = [source.to_str().expect("UTF-8"), "-o", program.to_str().expect("UTF-8")];
    let args = [options, &words].concat();
    let built = Invocation { args, stdin: "", directory: None }.native(compiler, &[]);
    assert_eq!(built.code, 0, "{compiler} compiles {source:?}");
    Some(program)
}
