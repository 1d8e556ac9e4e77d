//! The command as a person uses it: output, exit codes, and messages that say
//! what to do.

mod common;

use std::time::{Duration, Instant};

use common::{assert_fails, file, pagefork, pagefork_with_input};

#[test]
fn programs_run_on_a_directory_and_on_input() {
    for run in ["run ", ""] {
        let ended = pagefork(&format!("{run}--dir guest::/src guest/built/survey.wasm /src"));
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
        assert!(
            ended.stdout.contains("WebAssembly text") && ended.stdout.contains("total"),
            "{}",
            ended.stdout
        );
    }
    let ended = pagefork_with_input("guest/built/words.wasm 2", "to be or not to be, or\n");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "       2  be\n       2  or\n"));
    let ended = pagefork("guest/wat/hello.wat");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "hello\n"));
}

#[test]
fn the_programs_exit_code_is_the_commands() {
    assert_fails("guest/built/words.wasm x", 2, &["words: x is no number of words"]);
    assert_fails("--dir guest guest/built/survey.wasm guest none", 1, &["survey: none"]);
    assert_fails("guest/built/survey.wasm /", 1, &["survey: /"]);
}

#[test]
fn a_trap_ends_with_134_and_a_backtrace() {
    let ended = pagefork("guest/wat/crash.wat");
    assert_eq!((ended.code, ended.stdout.as_str()), (134, ""));
    assert!(ended.stderr.contains("out of bounds memory access"), "{}", ended.stderr);
    let at = |name| ended.stderr.find(name).unwrap_or_else(|| panic!("{name}: {}", ended.stderr));
    assert!(at("read_far") < at("work") && at("work") < at("main"), "{}", ended.stderr);
}

#[test]
fn a_timeout_ends_an_endless_loop() {
    let start = Instant::now();
    assert_fails("--timeout 300ms guest/wat/spin.wat", 134, &["interrupted", "--timeout", "300ms"]);
    let ran = start.elapsed();
    assert!(ran >= Duration::from_millis(300) && ran < Duration::from_secs(20), "{ran:?}");
}

#[test]
fn a_timeout_ends_a_program_that_sleeps() {
    assert_fails("--timeout 300ms guest/wat/sleep.wat", 134, &["interrupted", "--timeout"]);
}

#[test]
fn invoke_calls_one_function_and_prints_its_results() {
    let ended = pagefork("--invoke fib guest/wat/fib.wat 20");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "6765\n"));
    assert_fails("--invoke fib guest/wat/fib.wat", 1, &["takes 1 arguments, 0 are given"]);
    assert_fails("--invoke fib guest/wat/fib.wat x", 1, &["\"x\" is no value of type i32"]);
    assert_fails("--invoke fob guest/wat/fib.wat 1", 1, &["fob", "only: fib"]);
    assert_fails("guest/wat/fib.wat", 1, &["_start", "--invoke", "fib"]);
}

#[test]
fn mistakes_are_explained() {
    assert_fails("none.wasm", 1, &["none.wasm", "no command of that name", "--help"]);
    assert_fails("guest/none.wasm", 1, &["there is no file guest/none.wasm"]);
    assert_fails("guest", 1, &["guest is a directory", "name the module in it"]);
    assert_fails("README.md", 1, &["README.md is no WebAssembly module", "`\\0asm`"]);
    assert_fails("--dir none guest/wat/hello.wat", 1, &["none", "must exist"]);
    assert_fails("--frob guest/wat/hello.wat", 2, &["--frob", "--help"]);
    assert_fails("--timeout 5 guest/wat/hello.wat", 2, &["500ms, 10s, 2m"]);
    assert_fails("--env PAGEFORK_NO_SUCH guest/wat/hello.wat", 2, &["PAGEFORK_NO_SUCH=VALUE"]);
    assert_eq!(pagefork("--env PAGEFORK_TEST_VARIABLE guest/wat/hello.wat").code, 0);
    let help = pagefork("--help");
    for command in ["run", "inspect", "doctor", "wast", "completions"] {
        assert!(help.code == 0 && help.stdout.contains(command), "{}", help.stdout);
    }
}

#[test]
fn what_is_no_core_module_is_named() {
    let component = file("component.wasm", b"\0asm\x0d\0\x01\0");
    let program = std::env::current_exe().expect("a path").display().to_string();
    for (path, messages) in [
        (&component, &["is a component", "wasm32-wasip1", "wasm-tools component unbundle"][..]),
        (&file("component.wat", "(component)"), &["is a component", "wasm32-wasip1"]),
        (&file("empty.wasm", ""), &["is empty"]),
        (&file("cut.wasm", b"\0asm"), &["first 8 bytes"]),
        (&program, &["a program for Linux", "wasm32-wasip1"]),
        (&file("wrong.wat", "(module\n(func $f (frob)))"), &["wrong.wat:2", "frob"]),
        (&file("invalid.wat", "(func (result i32))"), &["type mismatch", "Make it again"]),
        (&file("shared.wat", "(memory 1 1 shared)"), &["threads", "build the module without"]),
        (&file("script.wat", "(module) (assert_return (invoke \"f\"))"), &["pagefork wast"]),
    ] {
        for command in ["", "run ", "inspect "] {
            assert_fails(&format!("{command}{path}"), 1, messages);
        }
    }
}

#[test]
fn missing_imports_are_all_named_and_can_be_made_to_trap() {
    let text = r#"(module (import "env" "one" (func $one (param i32))) (import "env" "two" (func))
        (func (export "call") (call $one (i32.const 1))) (func (export "nothing")))"#;
    let path = file("missing.wat", text);
    let messages = ["function   env   one   (i32) -> ()", "env   two", "--unknown-imports trap"];
    assert_fails(&format!("--invoke nothing {path}"), 1, &messages);
    let trapping = "--unknown-imports trap --invoke";
    assert_eq!(pagefork(&format!("{trapping} nothing {path}")).code, 0);
    let messages = [r#""env" "one" was called, but nothing defines it"#, "function 2"];
    assert_fails(&format!("{trapping} call {path}"), 134, &messages);

    let path = file(
        "memory.wat",
        r#"(module (import "env" "memory" (memory 1)) (import "e" "f" (func)))"#,
    );
    for options in ["", "--unknown-imports trap "] {
        assert_fails(&format!("{options}{path}"), 1, &["env   memory   1 page", "host"]);
    }
}

#[test]
fn messages_are_short_however_much_is_missing() {
    let ty = format!("(type $t (func (param {})))", "i64 ".repeat(150));
    let imports: String =
        (0..300).map(|i| format!(r#"(import "env" "f{i}" (func (type $t)))"#)).collect();
    let exports: String = (0..300).map(|i| format!(r#"(export "g{i}" (func 0))"#)).collect();
    let path = file("all-missing.wat", format!("(module {ty} {imports} {exports})"));
    let long = "x".repeat(90_000);
    let one = file("long.wat", format!(r#"(module (import "env" "{long}" (func)))"#));
    for (command, messages) in [
        (path.clone(), &["env   f0    (i64, i64", "... and 250 more", "--unknown-imports"][..]),
        (format!("--unknown-imports trap {path}"), &["g49", "... and 250 more"]),
        (one, &["(90000 bytes)"]),
    ] {
        let output = pagefork(&command);
        assert!(output.stderr.len() < 60_000, "{} bytes", output.stderr.len());
        assert_fails(&command, 1, messages);
    }
}

#[test]
fn each_shell_gets_its_completions() {
    for (shell, sign) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef pagefork"),
        ("fish", "complete -c pagefork"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let ended = pagefork(&format!("completions {shell}"));
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
        for word in [sign, "inspect", "unknown-imports"] {
            assert!(ended.stdout.contains(word), "no {word} for {shell}");
        }
    }
    assert_fails("completions sh", 2, &["bash", "elvish", "powershell"]);
}

#[test]
fn scripts_are_counted_and_failures_have_lines() {
    let module = "(module (func (export \"one\") (result i32) (i32.const 1)))\n";
    let right =
        file("right.wast", format!("{module}(assert_return (invoke \"one\") (i32.const 1))\n"));
    let wrong =
        file("wrong.wast", format!("{module}(assert_return (invoke \"one\") (i32.const 2))\n"));
    let ended = pagefork(&format!("wast {right}"));
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "2 directives passed, 0 failed\n"));
    let ended = pagefork(&format!("wast {right} {wrong}"));
    assert_eq!((ended.code, ended.stdout.as_str()), (1, "3 directives passed, 1 failed\n"));
    assert!(ended.stderr.contains("wrong.wast:2: result 0"), "{}", ended.stderr);
    assert_fails("wast none.wast", 1, &["none.wast"]);
}

#[test]
fn each_command_has_a_manual_page() {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("man");
    std::fs::create_dir_all(&directory).unwrap();
    clap_mangen::generate_to(pagefork_cli::grammar(), &directory).unwrap();
    for command in pagefork_cli::grammar().get_subcommands() {
        let name = format!("pagefork-{}", command.get_name());
        let page = std::fs::read_to_string(directory.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(&format!(".TH {name} 1")) && page.contains(".SH OPTIONS"), "{page}");
    }
}
