//! A program that was built with an earlier library of the same interface runs with this one.

use std::path::Path;

use crate::Result;
use crate::capi::{CRATE, INTERFACE, interface};
use crate::host::{self, Host};

/// Builds a program by the headers that are kept of the interface, links it with a library that has but their
/// names, as there is no earlier one, and runs it with the library that is installed in `prefix`.
pub(crate) fn check(host: &Host, prefix: &Path, work: &Path) -> Result {
    host::create_directory(work)?;
    let names = interface(host)?;
    let all = |line: fn(&str) -> String| names.iter().map(|name| line(name)).collect::<String>();
    let (stub, script) = (work.join("stub.c"), work.join("stub.map"));
    host::write(&stub, all(|name| format!("void {name}(void) {{}}\n")).as_bytes())?;
    host::write(&script, version_script(&names).as_bytes())?;
    host::write(
        &work.join("functions.h"),
        all(|name| format!("(void (*)(void)){name},\n")).as_bytes(),
    )?;
    let library = work.join("libpagefork.so");
    let mut cc = host.command("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&stub);
    cc.arg(format!("-Wl,-soname,libpagefork.so.{INTERFACE}"));
    cc.arg(format!("-Wl,--version-script={}", script.display()));
    // Names of the C library would be taken for functions of the compiler's own.
    host::check(cc.arg("-fno-builtin"))?;

    let (kept, program) = (host.root.join(CRATE), work.join("program"));
    let mut cc = host.command("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(kept.join("abi").join(INTERFACE));
    cc.arg("-I").arg(work).arg(kept.join("tests/abi/program.c")).arg("-o").arg(&program);
    // Each name is looked up when the program starts.
    host::check(cc.arg("-L").arg(work).args(["-lpagefork", "-Wl,-z,now"]))?;
    let mut command = host.command(&program.to_string_lossy());
    let printed = host::output(command.env("LD_LIBRARY_PATH", prefix.join("lib")))?;
    match printed.as_str() {
        "ok\n" => Ok(()),
        _ => Err(format!("a program of interface {INTERFACE} printed:\n{printed}")),
    }
}

/// What has the linker export these names alone, each with the version of the interface.
pub(crate) fn version_script(names: &[String]) -> String {
    let names = names.iter().map(|name| format!("    {name};\n")).collect::<String>();
    format!("PAGEFORK_{INTERFACE} {{\n  global:\n{names}  local: *;\n}};\n")
}
