//! Every example runs and says what it is there to show.

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
