//! Programs that use the helpers for C, Rust, Go and Python are started once, and answer requests.

#[allow(dead_code, reason = "other tests use the rest")]
mod guests;

use guests::{built, fetched, host_program, repository, scratch};
use pagefork::{CallProgress, Linker, Module};
use pagefork_serve::{ForkGuest, ForkStreams, StartedProgram, add_fork_to_linker};
use pagefork_wasi::{Exit, OutputKind, Permissions, StdinKind, WasiCtxBuilder};

/// What a fork did.
#[derive(Debug)]
struct Answer {
    code: i32,
    stdout: String,
    stderr: String,
}

/// The programs that are there, each with its name. All of them answer alike.
fn programs() -> Vec<(&'static str, Module)> {
    let mut all = vec![("C", built("primes.wasm")), ("Rust", built("sieve.wasm"))];
    all.extend(fetched("primes.wasm").map(|module| ("Go", module)));
    all
}

fn started(module: &Module) -> StartedProgram {
    started_with(module, |_| ())
}

fn started_with(module: &Module, set: impl FnOnce(&mut WasiCtxBuilder)) -> StartedProgram {
    let mut linker: Linker<ForkGuest> = Linker::new(module.engine());
    pagefork_wasi::add_to_linker(&mut linker, |guest| &mut guest.ctx).expect("names are free");
    add_fork_to_linker(&mut linker).expect("the name is free");
    let mut builder = WasiCtxBuilder::new();
    builder.arg("guest").env("MODE", "warm").env("CONTENT_LENGTH", "77");
    builder.stderr(OutputKind::Inherit);
    set(&mut builder);
    StartedProgram::start(&linker, module, builder).expect("it asks to be captured")
}

/// What a fork answers; a trap is a panic.
fn answer(program: &StartedProgram, input: &[u8]) -> Answer {
    let ((output, stdout), (errors, stderr)) = (OutputKind::pipe(), OutputKind::pipe());
    let streams = ForkStreams { stdin: StdinKind::bytes(input), stdout, stderr };
    let mut fork = program.fork(7, streams).expect("it is spawned");
    let code = match fork.resume() {
        Ok(CallProgress::Finished(_)) => 0,
        Ok(CallProgress::Suspended) => panic!("nothing suspends it"),
        Err(error) => match error.downcast_ref::<Exit>() {
            Some(exit) => exit.0,
            None => panic!("{}: {error:?}", String::from_utf8_lossy(input)),
        },
    };
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Answer { code, stdout: text(output.contents()), stderr: text(errors.contents()) }
}

fn head(length: &str, path: &str, query: &str) -> String {
    let method = if length == "0" { "GET" } else { "POST" };
    format!(
        "CONTENT_LENGTH\0{length}\0SCGI\x001\0REQUEST_METHOD\0{method}\0SERVER_PROTOCOL\0HTTP/1.1\0\
         HTTP_HOST\0test\0SCRIPT_NAME\0\0PATH_INFO\0{path}\0QUERY_STRING\0{query}\0\
         REQUEST_URI\0{path}?{query}\0"
    )
}

fn netstring(head: &str) -> String {
    format!("{}:{head},", head.len())
}

#[test]
fn each_fork_answers_its_own_request_from_the_table_that_was_computed_before() {
    for (language, module) in programs() {
        let program = started(&module);
        assert_eq!(program.written(), b"", "{language}");
        // Again and again: nothing of one request is in another one's answer.
        for round in 0..3 {
            for (path, query, length, body, prime) in [
                ("/1", "a=b", "0", "", "2"),
                ("/25", "", "5", "hello and what is not of the body", "97"),
                ("/78498", "x", "", "to the end", "999983"),
                ("/78499", "", "1", "\0", "none"),
                ("/none", "", "0", "", "none"),
            ] {
                let input = netstring(&head(length, path, query)) + body;
                let Answer { code, stdout, stderr } = answer(&program, input.as_bytes());
                assert_eq!((code, &*stderr), (0, ""), "{language}: {stdout}");
                let body = match length {
                    "" => body,
                    length => &body[..length.parse().expect("a number")],
                };
                let method = if length == "0" { "GET" } else { "POST" };
                let length = if length.is_empty() { "none" } else { length };
                let sum: u32 = body.bytes().map(u32::from).sum();
                let expected = format!(
                    "method: {method}\npath: {path}\nquery: {query}\nlength: {length}\n\
                     body: {} bytes, sum {sum}\nmode: warm\nscgi: none\nanswered: 1\n\
                     prime: {prime} of 78498\n",
                    body.len()
                );
                assert!(stdout.ends_with(&expected), "{language}, round {round}: {stdout}");
            }
        }
    }
}

/// The response is complete when the program says so: nothing of it runs afterwards.
#[test]
fn what_is_torn_down_at_exit_is_not_when_the_response_is_complete() {
    for (language, module) in programs() {
        let program = started(&module);
        let good = answer(&program, netstring(&head("0", "/1", "")).as_bytes());
        assert_eq!((good.code, &*good.stderr), (0, ""), "{language}");
        // What the program in C has registered runs where it returns from `main`.
        if language == "C" {
            assert!(answer(&program, b"").stderr.ends_with("torn down\n"));
        }
    }
}

/// The helper for Python around a script that prints nothing.
fn started_python() -> Option<StartedProgram> {
    let module = fetched("python.wasm")?;
    let app = scratch("helper-python");
    std::fs::write(app.join("script.py"), "").expect("a new file");
    let helpers = repository().join("guest/python");
    Some(started_with(&module, |builder| {
        builder.args(["/lib/pagefork_cgi.py", "/app/script.py"]);
        builder.preopened_dir(&helpers, "/lib", Permissions::ReadOnly).expect("a directory");
        builder.preopened_dir(&app, "/app", Permissions::ReadOnly).expect("a directory");
    }))
}

#[test]
fn hostile_heads_are_errors() {
    let mut programs: Vec<_> =
        programs().iter().map(|(language, module)| (*language, started(module))).collect();
    programs.extend(started_python().map(|program| ("Python", program)));
    let good = head("3", "/1", "");
    let many = format!("{good}{}", "A\0B\0".repeat(1 << 18));
    let cases: &[(&str, String, &str)] = &[
        ("nothing", String::new(), "ends within"),
        ("no digit", ":".to_owned() + &good, "does not begin with the size"),
        ("letters", "abc".to_owned(), "does not begin with the size"),
        ("a sign", format!("-{}", netstring(&good)), "does not begin with the size"),
        ("a space", format!(" {}", netstring(&good)), "does not begin with the size"),
        ("zeros first", format!("0{}", netstring(&good)), "does not begin with the size"),
        ("no colon", format!("{};{good},", good.len()), "does not begin with the size"),
        ("only a size", "12".to_owned(), "ends within"),
        ("only a size and a colon", "12:".to_owned(), "ends within"),
        ("too long", netstring(&many), "too long"),
        ("as long as 32 bits have", "4294967295:".to_owned() + &good, "too long"),
        ("longer than 64 bits have", "9".repeat(100_000), "too long"),
        ("no comma", format!("{}:{good};", good.len()), "comma"),
        ("shorter than it says", format!("{}:{good},", good.len() + 1), "ends within"),
        ("longer than it says", format!("{}:{good},", good.len() - 1), "comma"),
        ("empty", "0:,".to_owned(), "variables"),
        ("one NUL", netstring("\0"), "variables"),
        ("no NUL at the end", netstring(&good[..good.len() - 1]), "variables"),
        ("no NUL at all", netstring("CONTENT_LENGTH"), "variables"),
        ("a name without a value", netstring(&format!("{good}NAME\0")), "variables"),
        ("an empty name", netstring(&format!("{good}\0value\0")), "variables"),
        ("a name with an equals sign", netstring(&format!("{good}A=B\0value\0")), "variables"),
        ("no version", netstring("CONTENT_LENGTH\x003\0PATH_INFO\0/\0"), "variables"),
        ("another version", netstring("CONTENT_LENGTH\x003\0SCGI\x002\0"), "variables"),
        ("no size of the body", netstring("SCGI\x001\0PATH_INFO\0/\0"), "variables"),
        ("two sizes", netstring(&format!("{good}CONTENT_LENGTH\x004\0")), "variables"),
        ("a body of negative size", netstring(&head("-3", "/1", "")), "variables"),
        ("a body of huge size", netstring(&head(&"9".repeat(20), "/1", "")), "variables"),
    ];
    for (language, program) in programs {
        for (name, input, reason) in cases {
            let answer = answer(&program, (input.clone() + "abc").as_bytes());
            assert_eq!(answer.code, 1, "{language}, {name}: {answer:?}");
            assert_eq!(answer.stdout, "", "{language}, {name}");
            // Where the input is to end, "abc" is more of it.
            let reasons: &[&str] = match *name {
                "nothing" | "only a size" => &["does not begin with the size"],
                "shorter than it says" => &["comma"],
                _ => &[reason],
            };
            assert!(
                reasons.iter().any(|reason| answer.stderr.contains(reason)),
                "{language}, {name}: {answer:?}"
            );
            let answer = self::answer(&program, input.as_bytes());
            assert_eq!((answer.code, &*answer.stdout), (1, ""), "{language}, {name}");
            assert!(answer.stderr.contains(reason), "{language}, {name}: {answer:?}");
        }
        // The longest that may be.
        let filler = (1 << 20) - good.len() - "FILLER\0\0".len();
        let longest = format!("{good}FILLER\0{}\0", "x".repeat(filler));
        assert_eq!(longest.len(), 1 << 20);
        let answer = answer(&program, (netstring(&longest) + "abc").as_bytes());
        assert_eq!((answer.code, &*answer.stderr), (0, ""), "{language}");
    }
}

/// Wherever a head ends, and whatever one of its bytes is, the program exits by itself.
#[test]
fn damaged_heads_crash_nothing() {
    let good = netstring(&head("3", "/1", ""));
    let size = good.len();
    for (language, module) in programs() {
        let program = started(&module);
        for end in 0..size {
            let answer = answer(&program, &good.as_bytes()[..end]);
            assert_eq!(answer.code, 1, "{language}: {answer:?}");
            assert!(answer.stderr.contains("ends within the head"), "{language}: {answer:?}");
        }
        for at in 0..size {
            for byte in [0, b',', b':', b'=', b'9', 0xff] {
                let mut damaged = good.clone().into_bytes();
                damaged[at] = byte;
                damaged.extend_from_slice(b"abc");
                let answer = answer_lossy(&program, &damaged);
                assert!((0..=1).contains(&answer), "{language}: {answer}");
            }
        }
    }
}

/// The exit code alone: what a damaged value makes the program print need not be text.
fn answer_lossy(program: &StartedProgram, input: &[u8]) -> i32 {
    let streams = ForkStreams {
        stdin: StdinKind::bytes(input),
        stdout: OutputKind::Null,
        stderr: OutputKind::Null,
    };
    let mut fork = program.fork(1, streams).expect("it is spawned");
    match fork.resume() {
        Ok(CallProgress::Finished(_)) => 0,
        Ok(CallProgress::Suspended) => panic!("nothing suspends it"),
        Err(error) => match error.downcast_ref::<Exit>() {
            Some(exit) => exit.0,
            None => panic!("{input:?}: {error:?}"),
        },
    }
}

/// A program whose head of C is included by C++ of several standards.
#[test]
fn the_header_is_fit_for_c_and_cpp() {
    let source = "#include \"pagefork.h\"\n\
                  int main() {\n\
                  \u{20}   if (pagefork_snapshot() != 0) return 1;\n\
                  \u{20}   pagefork_end(pagefork_read_request() == PAGEFORK_HEAD_CUT_SHORT ? 0 : 2);\n\
                  }\n";
    let directory = scratch("helper-header");
    for (compiler, file, standard) in [
        ("cc", "main.c", "-std=gnu99"),
        ("cc", "main.c", "-std=gnu17"),
        ("c++", "main.cpp", "-std=c++11"),
        ("c++", "main.cpp", "-std=c++20"),
    ] {
        let Some(compiler) = host_program(compiler) else { return };
        std::fs::write(directory.join(file), source).expect("a new file");
        let built = directory.join("main");
        let compiled = std::process::Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
            .arg(repository().join("guest/c"))
            .arg(directory.join(file))
            .arg("-o")
            .arg(&built)
            .status()
            .expect("it starts");
        assert!(compiled.success(), "{compiler} {standard}");
        let run = std::process::Command::new(&built).stdin(std::process::Stdio::null()).status();
        assert!(run.expect("it starts").success(), "{compiler} {standard}");
    }
}
