//! Running guests as a shell would, and what to do when one is not there.

pub(crate) mod graphviz;
pub(crate) mod ruby;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagefork::{Engine, Linker, Module, Store};
use pagefork_wasi::{Exit, OutputKind, Permissions, StdinKind, WasiCtx, WasiCtxBuilder};

/// What a program did, natively or as a guest.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    /// Its exit code.
    pub(crate) code: i32,
    /// What it wrote to standard output.
    pub(crate) stdout: String,
}

/// How to run a program.
#[derive(Default)]
pub(crate) struct Invocation<'a> {
    /// Its arguments, without its own name.
    pub(crate) args: Vec<&'a str>,
    /// What it reads from standard input.
    pub(crate) stdin: &'a str,
    /// A directory of the host that a guest sees as `/`, and in which a native
    /// program runs.
    pub(crate) directory: Option<&'a Path>,
}

impl Invocation<'_> {
    /// Runs a module; a trap is a panic.
    pub(crate) fn guest(&self, module: &Module) -> Outcome {
        self.guest_with(module, |_| ())
    }

    /// Runs a module that imports more than WASI.
    pub(crate) fn guest_with(
        &self,
        module: &Module,
        define: impl FnOnce(&mut Linker<WasiCtx>),
    ) -> Outcome {
        self.guest_in(module, &[], define)
    }

    /// The same, with these environment variables.
    pub(crate) fn guest_in(
        &self,
        module: &Module,
        variables: &[(&str, &str)],
        define: impl FnOnce(&mut Linker<WasiCtx>),
    ) -> Outcome {
        let (stdout, output) = OutputKind::pipe();
        let mut builder = WasiCtxBuilder::new();
        builder.arg("guest").args(self.args.iter().copied());
        for &(name, value) in variables {
            builder.env(name, value);
        }
        builder.stdin(StdinKind::bytes(self.stdin)).stdout(output).stderr(OutputKind::Inherit);
        if let Some(directory) = self.directory {
            builder.preopened_dir(directory, "/", Permissions::ReadWrite).expect("a directory");
        }
        let engine = module.engine();
        let mut store = Store::new(engine, builder.build().expect("a context"));
        let mut linker: Linker<WasiCtx> = Linker::new(engine);
        pagefork_wasi::add_to_linker(&mut linker, |ctx| ctx).expect("every name is free");
        define(&mut linker);
        let called = linker.instantiate(&mut store, module).and_then(|instance| {
            let start = instance.get_typed_func::<(), ()>(&mut store, "_start")?;
            start.call(&mut store, ())
        });
        let code = match called {
            Ok(()) => 0,
            Err(error) => match error.downcast_ref::<Exit>() {
                Some(exit) => exit.0,
                None => panic!("the guest failed: {error:?}"),
            },
        };
        Outcome { code, stdout: String::from_utf8(stdout.contents()).expect("text") }
    }

    /// Runs a program of the host.
    pub(crate) fn native(&self, program: impl AsRef<Path>, first: &[&str]) -> Outcome {
        use std::io::{ErrorKind, Write};
        let mut command = Command::new(program.as_ref());
        command.args(first).args(&self.args).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(directory) = self.directory {
            command.current_dir(directory);
        }
        let mut child = command.spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        match stdin.write_all(self.stdin.as_bytes()) {
            // It need not read all of its input.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written.expect("the program reads its input"),
        }
        drop(stdin);
        let output = child.wait_with_output().expect("the program ends");
        Outcome {
            code: output.status.code().expect("an exit code"),
            stdout: String::from_utf8(output.stdout).expect("text"),
        }
    }
}

/// A guest that `cargo xtask guests` fetches or builds. `None` is a printed
/// skip; where CI runs the tests, every guest must be there.
pub(crate) fn fetched(name: &str) -> Option<Module> {
    let directory = match std::env::var_os("PAGEFORK_GUESTS") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guests"),
    };
    let path = directory.join(name);
    if path.exists() {
        return Some(module(&path));
    }
    skip(&format!("there is no {}: run `cargo xtask guests`", path.display()))
}

/// A guest of this repository, from `guest/built`.
pub(crate) fn built(name: &str) -> Module {
    module(&repository().join("guest/built").join(name))
}

/// The repository's root.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lie in the repository")
}

/// A program of the host, as an independent source of results.
pub(crate) fn host_program(name: &'static str) -> Option<&'static str> {
    let starts =
        Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if starts.is_ok_and(|status| status.success()) {
        return Some(name);
    }
    skip(&format!("{name} is not installed"))
}

/// A fresh directory of this test.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::remove_dir_all(&path).ok();
    std::fs::create_dir_all(&path).expect("a directory for the test");
    path
}

fn module(path: &Path) -> Module {
    let engine = Engine::default();
    Module::from_file(&engine, path).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()))
}

pub(crate) fn skip<T>(reason: &str) -> Option<T> {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{reason}");
    println!("skipped: {reason}");
    None
}
