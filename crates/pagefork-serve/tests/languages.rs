//! CGI programs as others write them, unchanged: in Rust, C, Go and Python.

mod common;

use std::path::{Path, PathBuf};

use common::{program, serve};
use pagefork_serve::ProgramOptions;
use pagefork_wasi::{Permissions, WasiCtxBuilder};

fn built(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest/built");
    std::fs::read(root.join(name)).unwrap()
}

/// A guest that `cargo xtask guests` fetches or builds. `None` is a printed skip;
/// where CI runs the tests, every guest must be there.
fn fetched(name: &str) -> Option<Vec<u8>> {
    let directory = match std::env::var_os("PAGEFORK_GUESTS") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guests"),
    };
    let path = directory.join(name);
    if let Ok(bytes) = std::fs::read(&path) {
        return Some(bytes);
    }
    assert!(std::env::var_os("CI").is_none(), "there is no {}", path.display());
    println!("skipped: there is no {}: run `cargo xtask guests`", path.display());
    None
}

#[test]
fn rust() {
    let world = WasiCtxBuilder::new();
    let server = serve(program(built("hello_cgi.wasm"), &world, ProgramOptions::default()), |_| {});
    let mut client = server.connect();
    for _ in 0..3 {
        let answer = client.get("/%3Cb%3E?a&b");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.field("content-type"), Some("text/html; charset=utf-8"));
        let text = answer.text();
        for part in
            ["<dd>GET</dd>", "<dd>/&lt;b&gt;</dd>", "<dd>a&amp;b</dd>", "<dd id=\"count\">1</dd>"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn rust_with_much_memory() {
    let world = WasiCtxBuilder::new();
    let server = serve(program(built("dirty_cgi.wasm"), &world, ProgramOptions::default()), |_| {});
    let mut client = server.connect();
    for _ in 0..20 {
        assert_eq!(client.get("/").text(), "0 of 256 were dirty\n");
    }
}

#[test]
fn c() {
    let world = WasiCtxBuilder::new();
    let server = serve(program(built("form_cgi.wasm"), &world, ProgramOptions::default()), |_| {});
    let mut client = server.connect();
    assert_eq!(client.get("/?name=J%C3%B6rg+B&x").text(), "name: Jörg B\nx: \n");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\na=1&b=2");
    assert_eq!(client.answer().text(), "a: 1\nb: 2\n");
    // A small body in chunks has a size, too.
    client.send(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nc=3\r\n0\r\n\r\n",
    );
    assert_eq!(client.answer().text(), "c: 3\n");
}

#[test]
fn go() {
    let Some(guest) = fetched("greet.wasm") else { return };
    let world = WasiCtxBuilder::new();
    let server = serve(program(guest, &world, ProgramOptions::default()), |_| {});
    let mut client = server.connect();
    let answer = client.get("/x?name=Ada");
    assert_eq!(answer.text(), "hello Ada, 0 bytes from test\n", "{}", server.log.text());
    assert_eq!(answer.field("x-method"), Some("GET"));
    client.send("POST /missing HTTP/1.1\r\nHost: go.test\r\nContent-Length: 5\r\n\r\n12345");
    let answer = client.answer();
    assert_eq!((answer.status, answer.text().as_str()), (404, "hello , 5 bytes from go.test\n"));
}

#[test]
fn python() {
    let Some(guest) = fetched("python.wasm") else { return };
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-cgi");
    std::fs::create_dir_all(&directory).unwrap();
    let script = "import os, sys, json\n\
        body = sys.stdin.read(int(os.environ.get('CONTENT_LENGTH') or 0))\n\
        print('Content-Type: application/json\\n')\n\
        print(json.dumps({'path': os.environ['PATH_INFO'], 'sum': sum(json.loads(body))}))\n";
    std::fs::write(directory.join("app.py"), script).unwrap();
    let mut world = WasiCtxBuilder::new();
    world.args(["python", "/app/app.py"]);
    world.preopened_dir(&directory, "/app", Permissions::ReadOnly).unwrap();
    let server = serve(program(guest, &world, ProgramOptions::default()), |_| {});
    let mut client = server.connect();
    for _ in 0..2 {
        client.send("POST /add HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n[1, 2, 3]");
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{}", server.log.text());
        assert_eq!(answer.text(), "{\"path\": \"/add\", \"sum\": 6}\n");
    }
}
