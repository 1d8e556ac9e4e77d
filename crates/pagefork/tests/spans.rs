//! With the feature `tracing`, what takes time is in spans, and what lies within is within.

mod executor;

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use pagefork::{CallProgress, Caller, Engine, Linker, Module, Result, Store};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::executor::{block_on, polls};

/// Writes down spans as they are entered, with their fields, each within those around it.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    names: Vec<String>,
    depth: usize,
    text: String,
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "pagefork"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut written = self.0.lock().unwrap();
        let mut name = attributes.metadata().name().to_owned();
        attributes.record(&mut Fields(&mut name));
        written.names.push(name);
        Id::from_u64(written.names.len() as u64)
    }

    fn enter(&self, span: &Id) {
        let Written { names, depth, text } = &mut *self.0.lock().unwrap();
        let name = &names[span.into_u64() as usize - 1];
        writeln!(text, "{:1$}{name}", "", 2 * *depth).unwrap();
        *depth += 1;
    }

    fn exit(&self, _: &Id) {
        self.0.lock().unwrap().depth -= 1;
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
}

/// One test at a time: whether anybody listens to a span is kept for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

const GUEST: &str = r#"(module $guest
    (import "host" "again" (func $again))
    (func $start (nop))
    (start $start)
    (func (export "inner"))
    (func (export "trap") (unreachable))
    (func (export "run") (call $again)))"#;

#[test]
fn what_takes_time_is_in_spans() -> Result<()> {
    let _alone = ALONE.lock().unwrap();
    let notes = Notes::default();
    tracing::subscriber::with_default(notes.clone(), || -> Result<()> {
        let engine = Engine::default();
        let binary = wat::parse_str(GUEST).unwrap();
        let size = binary.len();
        let module = Module::new(&engine, binary)?;
        let mut linker = Linker::new(&engine);
        linker.func_wrap("host", "again", |mut caller: Caller<'_, ()>| -> Result<()> {
            let inner = caller.get_export("inner").unwrap().into_func().unwrap();
            inner.typed::<(), ()>(&caller)?.call(&mut caller, ())
        })?;
        let pre = linker.instantiate_pre(&module)?;
        let (mut store, instance) = pre.spawn(())?;
        let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
        run.call(&mut store, ())?;
        // By the slower way, and by its end.
        store.set_timeout(Some(std::time::Duration::from_secs(1000)))?;
        run.func().call(&mut store, &[], &mut [])?;
        let trap = instance.get_typed_func::<(), ()>(&mut store, "trap")?;
        trap.call(&mut store, ()).unwrap_err();
        store.reset(())?;
        drop(store);
        drop(pre.spawn(())?);
        let text = notes.0.lock().unwrap().text.replace(&size.to_string(), "SIZE");
        assert_eq!(
            text,
            r#"compile bytes=SIZE
spawn module="guest"
  instantiate module="guest"
call
call
call
reset
park
spawn module="guest"
park
"#
        );
        Ok(())
    })
}

#[test]
fn each_turn_of_a_guest_that_waits_is_in_a_span() -> Result<()> {
    let _alone = ALONE.lock().unwrap();
    let notes = Notes::default();
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (import "host" "wait" (func $wait)) (import "host" "pause" (func $pause))
            (func (export "waits") (call $wait) (call $wait))
            (func (export "pauses") (call $pause)))"#,
    )?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap_async("host", "wait", |_: Caller<'_, ()>, (): ()| Box::new(polls(1)))?;
    linker.func_wrap("host", "pause", |mut caller: Caller<'_, ()>| caller.suspend_after())?;
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module)?;
    let waits = instance.get_typed_func::<(), ()>(&mut store, "waits")?;
    let pauses = instance.get_func(&mut store, "pauses").expect("it is exported");
    let calls = || std::mem::take(&mut notes.0.lock().unwrap().text);
    tracing::subscriber::with_default(notes.clone(), || -> Result<()> {
        block_on(waits.call_async(&mut store, ()))?;
        assert_eq!(calls(), "call\n".repeat(3));
        store.set_timeout(Some(std::time::Duration::from_secs(1000)))?;
        block_on(waits.call_async(&mut store, ()))?;
        assert_eq!(calls(), "call\n".repeat(3));
        pauses.call_suspendable(&mut store, &[])?;
        assert!(matches!(store.resume()?, CallProgress::Finished(_)));
        assert_eq!(calls(), "call\n".repeat(2));
        Ok(())
    })
}
