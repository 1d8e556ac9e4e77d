//! Building and running C programs with the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the crate.
pub(crate) fn crate_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The static library that was built with these tests: the newest one beside them.
pub(crate) fn static_library() -> PathBuf {
    let executable = std::env::current_exe().expect("the test has a path");
    let folder = executable.parent().expect("it lies in a folder");
    let files = fs::read_dir(folder).expect("the folder can be read").flatten();
    let libraries = files.map(|file| file.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libpagefork_capi") && name.ends_with(".a")
    });
    let modified = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    libraries.max_by_key(modified).expect("the library is built with its tests")
}

/// A folder of a test's own, empty.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder for the test can be made");
    folder
}

/// Writes the guests of the C programs as arrays of bytes: `guests.h`.
pub(crate) fn write_guests(folder: &Path) {
    let mut text = String::from("/* Made of the guests of the tests. */\n");
    let guests = fs::read_dir(crate_root().join("tests/c/guests")).expect("there are guests");
    for path in guests.flatten().map(|file| file.path()) {
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
        let bytes = wat::parse_file(&path).expect("the guest's text is right");
        let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
        let numbers = numbers.join(",");
        // Not each program uses each guest.
        let unused = "__attribute__((unused))";
        text += &format!("{unused} static const unsigned char guest_{name}[] = {{{numbers}}};\n");
    }
    fs::write(folder.join("guests.h"), text).expect("the folder can be written");
}

/// Runs a command, and returns what it printed.
///
/// # Panics
/// If it fails, with what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}\n{errors}", output.status);
    text
}

/// A C or C++ compiler that finds the headers.
pub(crate) fn compiler(name: &str, folder: &Path) -> Command {
    let mut compiler = Command::new(name);
    let include = crate_root().join("include");
    compiler.arg("-I").arg(include).arg("-I").arg(folder);
    compiler.args(["-g", "-Wall", "-Wextra", "-Werror"]);
    compiler
}

/// What follows the sources: the library, and what it needs of the system.
pub(crate) fn link(compiler: &mut Command, program: &Path) {
    compiler.arg(static_library()).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(program);
}

/// Builds a program of `tests/c`, with further options, and runs it.
pub(crate) fn run_program(name: &str, options: &[&str], folder: &Path) {
    let source = crate_root().join("tests/c").join(name);
    let program = folder.join(Path::new(name).file_stem().expect("a name"));
    let (name_of_compiler, standard) = match name.ends_with(".cc") {
        true => ("c++", "-std=c++17"),
        false => ("cc", "-std=c11"),
    };
    let mut compiler = compiler(name_of_compiler, folder);
    compiler.arg(standard).args(options).arg(source);
    link(&mut compiler, &program);
    run(&mut compiler);
    let mut program = Command::new(program);
    program.current_dir(folder);
    // Guests' faults are the engine's, and its handlers run on stacks of its own.
    const ASAN: &[&str] = &[
        "handle_segv=0",
        "handle_sigbus=0",
        "handle_sigill=0",
        "handle_sigfpe=0",
        "use_sigaltstack=0",
        "detect_stack_use_after_return=0",
        "allocator_may_return_null=1",
        // What the library uses after it was freed is not what it was: only C's own code is watched.
        "max_free_fill_size=4096",
        "free_fill_byte=221",
    ];
    program.env("ASAN_OPTIONS", ASAN.join(":"));
    program.env("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1");
    let text = run(&mut program);
    assert!(text.ends_with("ok\n"), "{name}: {text}");
}
