//! C programs that use every function of the headers, as they are and with sanitizers.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::common::{compiler, crate_root, folder, link, run, run_program, write_guests};

/// Builds and runs a program of `tests/c`, in a folder of its own.
fn build_and_run(program: &str, name: &str, options: &[&str]) {
    let folder = folder(name);
    write_guests(&folder);
    run_program(program, options, &folder);
    // Each has all of the library in it.
    std::fs::remove_dir_all(folder).expect("the folder is the test's own");
}

macro_rules! programs {
    ($($name:ident $program:literal;)*) => {$(
        mod $name {
            #[test]
            fn runs() {
                super::build_and_run($program, concat!("c_", stringify!($name)), &[]);
            }

            #[test]
            fn runs_with_sanitizers() {
                let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover"];
                super::build_and_run($program, concat!("c_", stringify!($name), "_sanitized"), &options);
            }
        }
    )*};
}

programs! {
    types "types.c";
    calls "calls.c";
    objects "objects.c";
    modules "modules.c";
    errors "errors.c";
    hostile "hostile.c";
    embed "embed.c";
    requests "requests.c";
    wrapping "wrapping.c";
    straight "straight.c";
    cells "cells.c";
    things "things.c";
    engines "engines.c";
    settings "settings.c";
    waiting "waiting.c";
    snapshots "snapshots.c";
    images "images.c";
    wasi "wasi.c";
    wrapper "wrapper.cc";
}

/// Nothing unwinds a guest's frames, or those of who has called it; where there are no values, nothing at all.
#[test]
fn what_a_host_function_throws_ends_the_process_and_unwinds_no_frame_but_its_own() {
    let folder = folder("c_throws");
    write_guests(&folder);
    let program = folder.join("throws");
    let mut compiler = compiler("c++", &folder);
    compiler.arg("-std=c++17").arg(crate_root().join("tests/c/throws.cc"));
    link(&mut compiler, &program);
    run(&mut compiler);
    let hows = ["wrapped", "floats", "cells", "values", "standard", "env"];
    let cases =
        hows.iter().flat_map(|how| ["directly", "suspendable", "alone"].map(|to| (*how, to)));
    for case @ (how, reached) in cases.chain([("begun", "polled")]) {
        let output =
            Command::new(&program).args([how, reached]).output().expect("the program starts");
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{case:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        if ["wrapped", "floats", "cells", "begun"].contains(&how) {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(errors.contains("it must return"), "{case:?}: {errors}");
            assert_eq!(said, "", "{case:?}");
        } else {
            // Its own frames may be unwound, and none of who has called it.
            assert!(["", "unwound\n"].contains(&&*said), "{case:?}: {said}");
        }
    }
    std::fs::remove_dir_all(folder).expect("the folder is the test's own");
}
