//! Real programs as guests of the oracle: all that they ask the host for is the
//! same in every run.

use pagefork::suspend::{self, CallProgress};
use pagefork::{Caller, Linker, Module, Result, Store};
use pagefork_wasi::{OutputKind, StdinKind, WasiCtx, WasiCtxBuilder};

use super::Guest;

/// A command for WASI and its arguments.
pub struct Program {
    modules: [Module; 2],
    linker: Linker<Host>,
    args: Vec<&'static str>,
    stdin: &'static str,
}

/// The embedder's data of a run.
#[derive(Default)]
pub struct Host {
    /// `None` only after the run has moved on to another store.
    wasi: Option<WasiCtx>,
    output: Option<pagefork_wasi::OutputPipe>,
    /// How often time or random numbers were asked for.
    asked: u64,
}

impl Host {
    fn wasi(&mut self) -> &mut WasiCtx {
        self.wasi.as_mut().expect("a guest runs where its data is")
    }
}

impl Program {
    pub fn new(module: Module, args: &[&'static str], stdin: &'static str) -> Self {
        let mut linker: Linker<Host> = Linker::new(module.engine());
        pagefork_wasi::add_to_linker(&mut linker, Host::wasi).expect("every name is free");
        define_deterministic(&mut linker).expect("names may be defined again");
        let other = module.clone_code().expect("there is room for its code");
        Self { modules: [module, other], linker, args: args.into(), stdin }
    }
}

impl Guest for Program {
    type Data = Host;

    fn start(&self, which: usize) -> Store<Host> {
        let mut builder = WasiCtxBuilder::new();
        let (output, stdout) = OutputKind::pipe();
        builder.arg("guest").args(self.args.iter().copied()).env("PYTHONHASHSEED", "0");
        builder.stdin(StdinKind::bytes(self.stdin)).stdout(stdout).stderr(OutputKind::Inherit);
        let wasi = Some(builder.build().expect("a context"));
        let host = Host { wasi, output: Some(output), asked: 0 };
        let mut store = Store::new(self.modules[which].engine(), host);
        self.linker.instantiate(&mut store, &self.modules[which]).expect("an instance");
        store
    }

    fn call(&self, store: &mut Store<Host>, stop_at: Option<u64>) -> Result<CallProgress> {
        let instance = suspend::instance(&*store, 1);
        let start = instance.get_func(&mut *store, "_start").expect("a command");
        suspend::call(store, &start, &[], stop_at)
    }

    fn seen(&self, store: &Store<Host>) -> String {
        let output = store.data().output.as_ref().expect("a guest ends where its data is");
        String::from_utf8(output.contents()).expect("text")
    }
}

/// Clocks that advance a little at each reading, and random numbers that
/// are as good as the last ones.
fn define_deterministic(linker: &mut Linker<Host>) -> Result<()> {
    const MODULE: &str = "wasi_snapshot_preview1";
    const NEW_YEAR_NS: u64 = 1_700_000_000_000_000_000;
    linker.allow_shadowing(true);
    linker.func_wrap(
        MODULE,
        "clock_time_get",
        |mut caller: Caller<'_, Host>, _clock: i32, _precision: i64, result: i32| {
            let time = NEW_YEAR_NS + 1_000 * ask(&mut caller);
            put(&mut caller, result, &time.to_le_bytes())
        },
    )?;
    linker.func_wrap(
        MODULE,
        "random_get",
        |mut caller: Caller<'_, Host>, buffer: i32, size: i32| {
            let seed = ask(&mut caller);
            let bytes: Vec<u8> =
                (0..size as u32).map(|i| (u64::from(i) * 167 + seed * 13) as u8).collect();
            put(&mut caller, buffer, &bytes)
        },
    )?;
    Ok(())
}

fn ask(caller: &mut Caller<'_, Host>) -> u64 {
    caller.data_mut().asked += 1;
    caller.data().asked
}

/// Writes to the guest's memory; returns WASI's error number.
fn put(caller: &mut Caller<'_, Host>, address: i32, bytes: &[u8]) -> Result<i32> {
    let memory = caller.get_export("memory").and_then(|export| export.into_memory());
    memory.expect("a command has a memory").write(caller, address as u32 as usize, bytes)?;
    Ok(0)
}
