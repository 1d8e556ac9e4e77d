//! Every example runs and says what it is there to show.

use std::path::Path;
use std::process::Command;

fn output_of(program: &str) -> String {
    let output = Command::new(program).output().expect("the example starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("examples print text")
}

#[test]
fn add() {
    assert_eq!(output_of(env!("CARGO_BIN_EXE_add")), "3 + 4 = 7\n");
}

#[test]
fn host_function() {
    let output = output_of(env!("CARGO_BIN_EXE_host_function"));
    assert!(output.contains(r#"printed: ["Hello from the guest"]"#), "{output}");
    assert!(output.contains("then: the text is not within the memory"), "{output}");
}

#[test]
fn wasi() {
    let output = output_of(env!("CARGO_BIN_EXE_wasi"));
    assert!(output.starts_with("status 0, "), "{output}");
    assert!(output.lines().count() > 1, "{output}");
}

#[test]
fn timeout() {
    let output = output_of(env!("CARGO_BIN_EXE_timeout"));
    let expected = "after the timeout: interrupted\nafter the interrupt: interrupted\n\
                    without fuel: all fuel consumed\n";
    assert_eq!(output, expected);
}

#[test]
fn linking() {
    assert_eq!(output_of(env!("CARGO_BIN_EXE_linking")), "20 + 22 = 42\n");
}

#[test]
fn spawn() {
    let output = output_of(env!("CARGO_BIN_EXE_spawn"));
    let expected = "3 doubled is 6; the guest counted 1 and 1\n\
                    20 doubled is 40; the guest counted 1 and 1\n\
                    21 doubled is 42; the guest counted 1 and 1\n";
    let rate = output.strip_prefix(expected).unwrap_or_else(|| panic!("{output}"));
    assert!(rate.ends_with(" requests a second\n"), "{output}");
}

#[test]
fn waiting() {
    let output = output_of(env!("CARGO_BIN_EXE_waiting"));
    let expected =
        "10000 guests waited for a second each; their answers add up to 100010000\ntogether ";
    assert!(output.starts_with(expected), "{output}");
}

#[test]
fn plugins() {
    let expected = "honest(21): 42\n\
                    loops(21): stopped: all fuel consumed\n\
                    waits(21): stopped: interrupted\n\
                    grows(21): 16\n\
                    traps(21): stopped: integer divide by zero\n\
                    keeps(21): 0\n\
                    honest(4): 8\n\
                    loops(4): stopped: all fuel consumed\n\
                    waits(4): stopped: interrupted\n\
                    grows(4): 16\n\
                    traps(4): stopped: integer divide by zero\n\
                    keeps(4): 0\n";
    assert_eq!(output_of(env!("CARGO_BIN_EXE_plugins")), expected);
}

#[test]
fn snapshot() {
    let expected = "v = 9, booted 1 time\n\
                    34+2*=v = 14, booted 1 time\n\
                    v = 9, booted 1 time\n\
                    7=v = 7, booted 1 time\n\
                    v = 9, booted 1 time\n\
                    in another store: v = 9\n";
    assert_eq!(output_of(env!("CARGO_BIN_EXE_snapshot")), expected);
}

#[test]
fn serve() {
    let expected = "/stressed: desserts/\n\
                    /!: 500 Internal Server Error\n\
                    /*: 504 Gateway Timeout\n\
                    /desserts: stressed/\n\
                    4 requests\n";
    assert_eq!(output_of(env!("CARGO_BIN_EXE_serve")), expected);
}

#[test]
fn ported() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |name| std::fs::read_to_string(directory.join(name)).expect("it is there");
    let output = Command::new("sed")
        .args(["-f", "../docs/from_wasmtime.sed", "ported/wasmtime.rs"])
        .current_dir(directory)
        .output()
        .expect("sed starts");
    let ported = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(ported, text("ported/pagefork.rs"), "the script, its input or its output changed");
    let expected = "guest: hello\ntyped: 111\nguest: hello\nuntyped: 101, calls: 2\n\
                    crash: 1 frame\nspin: 0 fuel\nexit: Some(3)\n";
    assert_eq!(output_of(env!("CARGO_BIN_EXE_ported")), expected);
}
