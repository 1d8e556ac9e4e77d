//! C programs that use every function of the headers, as they are and with sanitizers.

use crate::common::{folder, run_program, write_guests};

/// The programs.
const PROGRAMS: &[&str] = &[
    "types.c",
    "calls.c",
    "objects.c",
    "modules.c",
    "errors.c",
    "hostile.c",
    "embed.c",
    "requests.c",
    "wrapping.c",
    "waiting.c",
    "snapshots.c",
    "images.c",
    "wasi.c",
    "wrapper.cc",
];

#[test]
fn programs_run() {
    let folder = folder("c_programs");
    write_guests(&folder);
    for program in PROGRAMS {
        run_program(program, &[], &folder);
    }
}

#[test]
fn programs_run_with_sanitizers() {
    let folder = folder("c_programs_sanitized");
    write_guests(&folder);
    for program in PROGRAMS {
        run_program(program, &["-fsanitize=address,undefined", "-fno-sanitize-recover"], &folder);
    }
}
