//! The same program in wasmtime.

use std::time::Duration;

use pagefork_serve::cgi::{self, CgiOutput, VariableOptions};
use pagefork_serve::{Failure, FailureKind, Handler, Request, ResponseWriter};
use wasmtime::{Engine, InstancePre, Linker, Module, Store};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::p2::pipe::{MemoryInputPipe, MemoryOutputPipe};

use crate::sides::wasmtime::Setting;

/// Bytes that a response may have.
const OUTPUT_MAX: usize = 16 << 20;

/// Between two epochs, and how many a request may take.
const EPOCH: Duration = Duration::from_millis(10);
const EPOCHS_MAX: u64 = 3000;

/// A CGI program of which each request gets a fresh instance, from wasmtime's tuned
/// pool. As with Pagefork, a request that takes too long is ended: by epochs. Its
/// output is collected in memory, which is the quickest that its WASI has, and then
/// goes where Pagefork's goes piece by piece.
pub(super) struct Program {
    pre: InstancePre<WasiP1Ctx>,
    arguments: Vec<String>,
    /// Entered by each request: its WASI waits quicker so than without one.
    runtime: tokio::runtime::Runtime,
}

impl Program {
    pub(super) fn new(wasm: &[u8], arguments: &[&str]) -> Self {
        let mut config = Setting::Tuned.config(1000);
        config.epoch_interruption(true);
        let engine = Engine::new(&config).expect("this machine runs guests");
        let ticking = engine.weak();
        std::thread::spawn(move || {
            while let Some(engine) = ticking.upgrade() {
                engine.increment_epoch();
                drop(engine);
                std::thread::sleep(EPOCH);
            }
        });
        let module = Module::new(&engine, wasm).expect("a valid module");
        let mut linker = Linker::new(&engine);
        p1::add_to_linker_sync(&mut linker, |context| context).expect("new names");
        let pre = linker.instantiate_pre(&module).expect("all is linked");
        let arguments =
            std::iter::once("program").chain(arguments.iter().copied()).map(str::to_owned);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        Self { pre, arguments: arguments.collect(), runtime: runtime.expect("it can be made") }
    }
}

impl Handler for Program {
    fn handle(&self, mut request: Request, response: &ResponseWriter) -> Result<(), Failure> {
        let failed = |error: wasmtime::Error| Failure::new(FailureKind::Trap, format!("{error:?}"));
        let _entered = self.runtime.enter();
        let mut body = Vec::new();
        if request.body_size != Some(0) {
            std::io::Read::read_to_end(&mut request.body, &mut body)
                .map_err(|error| Failure::new(FailureKind::BadRequest, error.to_string()))?;
        }
        let output = MemoryOutputPipe::new(OUTPUT_MAX);
        let mut context = WasiCtxBuilder::new();
        context.args(&self.arguments).stdin(MemoryInputPipe::new(body)).stdout(output.clone());
        cgi::variables(&request, VariableOptions::default(), |name, value| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            context.env(text(name), text(&value.concat()));
            Ok(())
        })?;
        let mut store = Store::new(self.pre.module().engine(), context.build_p1());
        store.set_epoch_deadline(EPOCHS_MAX);
        let instance = self.pre.instantiate(&mut store).map_err(failed)?;
        let start = instance.get_typed_func::<(), ()>(&mut store, "_start").map_err(failed)?;
        if let Err(error) = start.call(&mut store, ())
            && error.downcast_ref::<I32Exit>().is_none_or(|exit| exit.0 != 0)
        {
            return Err(failed(error));
        }
        drop(store);
        let mut answer = CgiOutput::new(response.clone());
        // The other side may be gone, which is no failure.
        let _ = answer.write(&output.contents());
        answer.end().map(|_| ())
    }
}
