//! Programs that others wrote.

use std::path::PathBuf;

use crate::measure::{Effort, Row, Size, Work, compare};
use crate::process::{Answer, Process};

/// A program that others wrote, and what it is given to do.
struct Program {
    name: &'static str,
    /// A file that `cargo xtask guests` provides.
    file: &'static str,
    /// Its arguments and standard input for work of this scale.
    invocation: fn(u32) -> (Vec<String>, Vec<u8>),
    /// Scale and hash of the output of the small size; `None` if compiling it
    /// takes longer than a test should. The outputs are those of the host's own
    /// Python, Node.js and SQLite.
    small: Option<(u32, u64)>,
    large: (u32, u64),
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "CPython",
        file: "python.wasm",
        invocation: |scale| {
            let script = include_str!("programs/work.py");
            (["python", "-c", script, &scale.to_string()].map(str::to_owned).to_vec(), Vec::new())
        },
        small: None,
        large: (10, 0xc085_8651_2e48_0647),
    },
    Program {
        name: "CPython, start and end",
        file: "python.wasm",
        invocation: |_| (["python", "-c", "print(1)"].map(str::to_owned).to_vec(), Vec::new()),
        small: None,
        large: (1, 0x07f8_bc07_b4ba_5002),
    },
    Program {
        name: "QuickJS",
        file: "quickjs.wasm",
        invocation: |scale| {
            let script =
                format!("globalThis.scale = {scale};\n{}", include_str!("programs/work.js"));
            (vec!["qjs".to_owned(), "-e".to_owned(), script], Vec::new())
        },
        small: Some((1, 0x9a6e_d464_f6fc_c60a)),
        large: (10, 0x6a12_04c4_b0ff_109f),
    },
    Program {
        name: "SQLite",
        file: "sqlite.wasm",
        invocation: |scale| {
            let script = include_str!("programs/work.sql").replace("SCALE", &scale.to_string());
            (vec!["sql".to_owned()], script.into_bytes())
        },
        small: Some((1, 0xc66f_671b_ff4c_5228)),
        large: (20, 0x1888_ec59_57e2_daa1),
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
    let path = place(file);
    match std::fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            eprintln!("skipped: {}: {error}; run `cargo xtask guests`", path.display());
            None
        }
    }
}

/// Whether such a guest is there.
pub(crate) fn is_there(file: &str) -> bool {
    place(file).exists()
}

fn place(file: &str) -> PathBuf {
    let directory = std::env::var_os("PAGEFORK_GUESTS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/guests")),
        PathBuf::from,
    );
    directory.join(file)
}

fn measure(program: &Program, size: Size, interruptible: bool) -> Option<Row> {
    let (scale, expected) = match size {
        Size::Small => program.small?,
        Size::Large => program.large,
    };
    let wasm = fetched(program.file)?;
    let (args, input) = (program.invocation)(scale);
    let check = |process: Process| {
        let text = |bytes| String::from_utf8_lossy(bytes);
        let hash = hash(&process.output);
        if hash != expected {
            eprintln!("{}: {}{}", program.name, text(&process.output), text(&process.errors));
        }
        hash
    };
    let ours = pagefork_side::Runner::new(&wasm, interruptible);
    let mut ours = || check(ours.run(Process::new(args.clone(), input.clone())));
    #[cfg(feature = "peer")]
    let theirs = wasmtime_side::Runner::new(&wasm, interruptible);
    #[cfg(feature = "peer")]
    let mut peer = || check(theirs.run(Process::new(args.clone(), input.clone())));
    #[cfg(feature = "peer")]
    let peer: Option<Work<'_>> = Some(&mut peer);
    #[cfg(not(feature = "peer"))]
    let peer: Option<Work<'_>> = None;
    Some(compare(program.name, Effort::long(size), expected, &mut ours, peer))
}

/// FNV-1a.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

macro_rules! side {
    ($module:ident, $engine:ident) => {
        pub(crate) mod $module {
            use $engine::{Caller, Error, ExternType, InstancePre, Linker, Module, Val};

            use super::{Answer, Process};
            use crate::engines::$engine as engines;

            /// A linked program, to be run many times.
            pub(crate) struct Runner {
                engine: $engine::Engine,
                pre: InstancePre<Process>,
                interruptible: bool,
            }

            impl Runner {
                pub(crate) fn new(wasm: &[u8], interruptible: bool) -> Self {
                    let engine = engines::engine(interruptible);
                    let module = Module::new(&engine, wasm).expect("a valid module");
                    Self::of(module, interruptible)
                }

                /// Of a module that an engine like the others' has compiled.
                pub(crate) fn of(module: Module, interruptible: bool) -> Self {
                    Self::defining(module, interruptible, |_| ())
                }

                /// The same, with further definitions, which take the place of those that are there.
                pub(crate) fn defining(
                    module: Module,
                    interruptible: bool,
                    define: impl FnOnce(&mut Linker<Process>),
                ) -> Self {
                    let engine = module.engine().clone();
                    let mut linker = Linker::new(&engine);
                    for import in module.imports() {
                        let name = import.name().to_owned();
                        let ExternType::Func(ty) = import.ty() else {
                            panic!("{name} is no function")
                        };
                        let function = move |caller: Caller<'_, Process>,
                                             args: &[Val],
                                             results: &mut [Val]| {
                            host_call(&name, caller, args, results)
                        };
                        linker
                            .func_new(import.module(), import.name(), ty, function)
                            .expect("a new name");
                    }
                    linker.allow_shadowing(true);
                    define(&mut linker);
                    let pre = linker.instantiate_pre(&module).expect("all is linked");
                    Self { engine, pre, interruptible }
                }

                /// Runs the program, and looks at the memory that it leaves.
                #[allow(dead_code, reason = "it is asked of one side only without the other")]
                pub(crate) fn look_after<Seen>(
                    &self,
                    process: Process,
                    look: impl FnOnce(&[u8]) -> Seen,
                ) -> Seen {
                    let mut store = engines::store(&self.engine, process, self.interruptible);
                    let instance = self.pre.instantiate(&mut store).expect("a slot");
                    let start = instance.get_typed_func::<(), ()>(&mut store, "_start");
                    // It may leave by `proc_exit`, which is an error to the engine.
                    let _ = start.expect("a command").call(&mut store, ());
                    let memory = instance.get_memory(&mut store, "memory");
                    look(memory.expect("programs export their memory").data(&store))
                }

                /// Runs the program from its start to its end.
                pub(crate) fn run(&self, process: Process) -> Process {
                    // What matters is what has been written.
                    let (mut store, _) = self.run_to_its_error(process);
                    let data = store.data_mut();
                    std::mem::replace(data, Process::new(Vec::new(), Vec::new()))
                }

                /// The same, with what it leaves: leaving by `proc_exit` is an error to the engine.
                pub(crate) fn run_to_its_error(
                    &self,
                    process: Process,
                ) -> ($engine::Store<Process>, Option<Error>) {
                    let mut store = engines::store(&self.engine, process, self.interruptible);
                    let instance = self.pre.instantiate(&mut store).expect("a slot");
                    let start =
                        instance.get_typed_func::<(), ()>(&mut store, "_start").expect("a command");
                    let error = start.call(&mut store, ()).err();
                    (store, error)
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
                if name == "memory_discard" {
                    // Declined: what programs do is measured, not what a host makes of it.
                    results[0] = Val::I32(-1);
                    return Ok(());
                }
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
