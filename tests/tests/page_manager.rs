//! The guest page manager, `guest/pageman`: its calls do what the host kernel's do, and programs
//! with it get what it promises.

#[allow(dead_code, reason = "other tests use the rest")]
mod guests;

use std::path::PathBuf;
use std::process::Command;

use guests::{Invocation, fetched, host_program, repository, scratch};

/// Sizes of pages as powers of two: the smallest and the largest.
const PAGE_SHIFTS: [u32; 2] = [12, 16];

/// Compiles a test of `guest/pageman/test` for the host. `None` is a printed skip.
fn native(test: &str, page_shift: u32, flags: &[&str]) -> Option<PathBuf> {
    let compiler = host_program("cc")?;
    let root = repository().join("guest/pageman");
    let program = scratch(&format!("pageman-{test}-{page_shift}-{}", flags.len())).join(test);
    let library = ["tables.c", "manager.c", "calls.c", "statistics.c", "posix.c", "port_native.c"];
    let mut command = Command::new(compiler);
    command.args(["-std=gnu17", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]).args(flags);
    command.arg(format!("-DPAGEMAN_PAGE_SHIFT={page_shift}"));
    command.arg("-I").arg(root.join("include")).arg("-I").arg(root.join("src"));
    command.arg(root.join("test").join(test).with_extension("c"));
    command.args(library.map(|file| root.join("src").join(file))).arg("-o").arg(&program);
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// Runs it with these arguments; it must succeed.
fn run(program: PathBuf, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("the test starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

fn like_the_kernel(operations: &str, seed: &str) {
    for shift in PAGE_SHIFTS {
        let Some(program) = native("kernel", shift, &[]) else { return };
        run(program, &[operations, seed]);
    }
}

/// Random sequences of mmap, munmap, mprotect, mremap, madvise, msync, mincore and sbrk have the
/// errors and contents that they have in Linux, and all that is derived from the tables of pages
/// is right after each.
#[test]
fn random_calls_do_what_the_kernels_do() {
    like_the_kernel("50000", "1");
}

#[test]
#[ignore = "takes minutes"]
fn a_million_random_calls_do_what_the_kernels_do() {
    like_the_kernel("1000000", "2");
}

#[test]
fn random_calls_have_no_undefined_behaviour() {
    const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover"];
    let Some(program) = native("kernel", 12, &SANITIZERS) else { return };
    run(program, &["3000", "3"]);
}

/// What the summaries find is what a look at every page finds, in tables of several levels.
#[test]
fn runs_of_pages_are_found() {
    for shift in PAGE_SHIFTS {
        let Some(program) = native("runs", shift, &[]) else { return };
        run(program, &["3000"]);
    }
}

/// A long run like a collector's leaves no less of memory in use, and no shorter free run, than
/// is published of a like manager.
#[test]
fn memory_is_not_fragmented() {
    let Some(program) = native("fragmentation", 16, &[]) else { return };
    run(program, &["100000"]);
}

/// A program whose malloc stands on the manager: what `munmap` freed malloc can have and back,
/// zeros where they are promised, files, `sbrk`, foreign memory, and all of 4 GiB.
fn program(name: &str) {
    let Some(guest) = fetched(&format!("{name}.wasm")) else { return };
    let directory = scratch(name);
    let args = vec!["5000", "/", "all"];
    let outcome = Invocation { args, stdin: "", directory: Some(&directory) }.guest(&guest);
    assert_eq!(outcome.code, 0);
    assert!(outcome.stdout.ends_with("all is as promised\n"), "{}", outcome.stdout);
}

#[test]
fn a_program_with_malloc_on_the_manager() {
    program("pageman");
}

#[test]
fn a_program_with_small_pages() {
    program("pageman_4k");
}
