//! Compiles the C library for WebAssembly, by the command in `PAGEMAN_CC`, else by `clang`.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// What is needed without a C library.
const SOURCES: [&str; 5] = ["tables.c", "manager.c", "calls.c", "statistics.c", "port_wasm.c"];

fn main() {
    println!("cargo::rerun-if-env-changed=PAGEMAN_CC");
    if env::var("CARGO_CFG_TARGET_FAMILY").as_deref() != Ok("wasm") {
        return;
    }
    let folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo says it")).join("..");
    let output = PathBuf::from(env::var("OUT_DIR").expect("cargo says it"));
    let given = env::var("PAGEMAN_CC");
    let words: Vec<&str> = given.as_deref().unwrap_or("clang").split_whitespace().collect();
    let (program, arguments) = words.split_first().expect("PAGEMAN_CC is a command");
    let mut archive = b"!<arch>\n".to_vec();
    for source in SOURCES {
        let path = folder.join("src").join(source);
        println!("cargo::rerun-if-changed={}", path.display());
        let object = output.join(source).with_extension("o");
        let mut command = Command::new(program);
        command.args(arguments).args(["-target", "wasm32-freestanding", "-std=gnu17", "-O2"]);
        command.args(["-mbulk-memory", "-ffreestanding", "-Wall", "-Wextra", "-Werror"]);
        // Where std stands on a C library, that one's malloc has what the linker left free at first.
        if matches!(env::var("CARGO_CFG_TARGET_OS").as_deref(), Ok("unknown" | "none")) {
            command.arg("-DPAGEMAN_OWNS_HEAP");
        }
        if env::var_os("CARGO_FEATURE_DISCARD").is_some() {
            command.arg("-DPAGEMAN_DISCARD_IMPORT");
        }
        command.arg("-I").arg(folder.join("include")).arg("-c").arg(&path).arg("-o").arg(&object);
        let status = command.status().unwrap_or_else(|error| {
            panic!("{program}: {error}; PAGEMAN_CC names the compiler, such as clang-19")
        });
        assert!(status.success(), "{program} could not compile {}", path.display());
        add(&mut archive, source, &fs::read(&object).expect("it was just written"));
    }
    fs::write(output.join("libpageman.a"), archive).expect("cargo's directory can be written");
    println!("cargo::rustc-link-search=native={}", output.display());
    println!("cargo::rustc-link-lib=static=pageman");
}

/// Adds a file to an archive, which rustc takes apart again: it needs no index.
fn add(archive: &mut Vec<u8>, source: &str, object: &[u8]) {
    let name = source.replace(".c", ".o/");
    let header = format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 644, object.len());
    archive.extend(header.bytes());
    archive.extend(object);
    if object.len() % 2 == 1 {
        archive.push(b'\n');
    }
}
