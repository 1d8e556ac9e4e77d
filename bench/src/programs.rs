use std::path::PathBuf;

use crate::measure::{Effort, Row, Size, Work, compare};
use crate::process::{Answer, Process};

/// A program that others wrote, and what it is given to do.
struct Program {
    name: &'static str,
    /// A file that `cargo xtask guests` provides.
    file: &'static str,
    /// Its arguments and standard input for work of this scale.
    invocation: fn(u32) -> (Vec<String>, &'static [u8]),
    /// Scale and output of the small size; `None` if compiling it takes longer
    /// than a test should.
    small: Option<(u32, &'static str)>,
    large: (u32, &'static str),
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "CPython",
        file: "python.wasm",
        invocation: |scale| {
            let script = include_str!("programs/work.py");
            (["python", "-c", script, &scale.to_string()].map(str::to_owned).to_vec(), b"")
        },
        small: None,
        large: (10, "8f2ab2b7bc1008745007ec9e2e17a0ad\n"),
    },
    Program {
        name: "CPython, start and end",
        file: "python.wasm",
        invocation: |_| (["python", "-c", "print(1)"].map(str::to_owned).to_vec(), b""),
        small: None,
        large: (1, "1\n"),
    },
    Program {
        name: "QuickJS",
        file: "quickjs.wasm",
        invocation: |scale| {
            let script =
                format!("globalThis.scale = {scale};\n{}", include_str!("programs/work.js"));
            (vec!["qjs".to_owned(), "-e".to_owned(), script], b"")
        },
        small: Some((1, "2571510402\n")),
        large: (10, "2277952259\n"),
    },
];

/// Runs every program that is there on both sides; those that are not are named
/// on standard error.
pub(crate) fn run(size: Size, interruptible: bool) -> Vec<Row> {
    PROGRAMS.iter().filter_map(|program| measure(program, size, interruptible)).collect()
}

/// The bytes of a guest that `cargo xtask guests` provides; `None`, with a word
/// on standard error, if it is not there.
pub(crate) fn fetched(file: &str) -> Option<Vec<u8>> {
    let directory = std::env::var_os("PAGEFORK_GUESTS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/guests")),
        PathBuf::from,
    );
    let path = directory.join(file);
    match std::fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            eprintln!("skipped: {}: {error}; run `cargo xtask guests`", path.display());
            None
        }
    }
}

fn measure(program: &Program, size: Size, interruptible: bool) -> Option<Row> {
    let (scale, expected) = match size {
        Size::Small => program.small?,
        Size::Large => program.large,
    };
    let wasm = fetched(program.file)?;
    let (args, input) = (program.invocation)(scale);
    let check = |process: Process| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (output, errors) = (text(&process.output), text(&process.errors));
        assert_eq!(output, expected, "{} wrote errors: {errors}", program.name);
        1
    };
    let ours = pagefork_side::Runner::new(&wasm, interruptible);
    let mut ours = || check(ours.run(Process::new(args.clone(), input)));
    #[cfg(feature = "peer")]
    let theirs = wasmtime_side::Runner::new(&wasm, interruptible);
    #[cfg(feature = "peer")]
    let mut peer = || check(theirs.run(Process::new(args.clone(), input)));
    #[cfg(feature = "peer")]
    let peer: Option<Work<'_>> = Some(&mut peer);
    #[cfg(not(feature = "peer"))]
    let peer: Option<Work<'_>> = None;
    Some(compare(program.name, Effort::long(size), 1, &mut ours, peer))
}

macro_rules! side {
    ($module:ident, $engine:ident) => {
        mod $module {
            use $engine::{Caller, Error, ExternType, InstancePre, Linker, Module, Val};

            use super::{Answer, Process};
            use crate::engines::$engine as engines;

            /// A linked program, to be run many times.
            pub(super) struct Runner {
                engine: $engine::Engine,
                pre: InstancePre<Process>,
                interruptible: bool,
            }

            impl Runner {
                pub(super) fn new(wasm: &[u8], interruptible: bool) -> Self {
                    let engine = engines::engine(interruptible);
                    let module = Module::new(&engine, wasm).expect("a valid module");
                    let mut linker = Linker::new(&engine);
                    for import in module.imports() {
                        let name = import.name().to_owned();
                        let ExternType::Func(ty) = import.ty().clone() else {
                            panic!("{name} is no function")
                        };
                        let function = move |caller: Caller<'_, Process>, args: &[Val], results: &mut [Val]| {
                            host_call(&name, caller, args, results)
                        };
                        linker
                            .func_new(import.module(), import.name(), ty, function)
                            .expect("a new name");
                    }
                    let pre = linker.instantiate_pre(&module).expect("all is linked");
                    Self { engine, pre, interruptible }
                }

                /// Runs the program from its start to its end.
                pub(super) fn run(&self, process: Process) -> Process {
                    let mut store = engines::store(&self.engine, process, self.interruptible);
                    let instance = self.pre.instantiate(&mut store).expect("a slot");
                    let start =
                        instance.get_typed_func::<(), ()>(&mut store, "_start").expect("a command");
                    // Leaving by `proc_exit` is an error to the engine; what
                    // matters is what has been written.
                    drop(start.call(&mut store, ()));
                    let data = store.data_mut();
                    std::mem::replace(data, Process::new(Vec::new(), b""))
                }
            }

            fn host_call(
                name: &str,
                mut caller: Caller<'_, Process>,
                args: &[Val],
                results: &mut [Val],
            ) -> Result<(), Error> {
                let memory = caller.get_export("memory").and_then(|export| export.into_memory());
                let memory = memory.expect("programs export their memory");
                let args: Vec<u64> = args
                    .iter()
                    .map(|arg| match arg {
                        Val::I32(value) => u64::from(*value as u32),
                        Val::I64(value) => *value as u64,
                        _ => 0,
                    })
                    .collect();
                let (bytes, process) = memory.data_and_store_mut(&mut caller);
                match process.call(name, &args, bytes) {
                    Answer::Errno(number) => results[0] = Val::I32(i32::from(number)),
                    Answer::Exit => return Err(Error::msg("the program ended")),
                }
                Ok(())
            }
        }
    };
}

side!(pagefork_side, pagefork);
#[cfg(feature = "peer")]
side!(wasmtime_side, wasmtime);
