//! C programs that use every function of the headers, as they are and with sanitizers.

use crate::common::{folder, run_program, write_guests};

/// Builds and runs a program of `tests/c`, in a folder of its own.
fn run(program: &str, name: &str, options: &[&str]) {
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
                super::run($program, concat!("c_", stringify!($name)), &[]);
            }

            #[test]
            fn runs_with_sanitizers() {
                let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover"];
                super::run($program, concat!("c_", stringify!($name), "_sanitized"), &options);
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
    things "things.c";
    engines "engines.c";
    settings "settings.c";
    waiting "waiting.c";
    snapshots "snapshots.c";
    images "images.c";
    wasi "wasi.c";
    wrapper "wrapper.cc";
}
