//! Host functions see the frames of the guests that called them, across entries, and no others.

use pagefork::{
    Caller, Engine, Func, Instance, Linker, Module, Result, Store, TypedFunc, WasmBacktrace,
};

fn names(trace: &WasmBacktrace) -> Vec<String> {
    let name = |frame: &pagefork::Frame| frame.function_name().unwrap_or("?").to_owned();
    trace.frames().iter().map(name).collect()
}

/// Calls of the host that guests make: through a stub, with arguments in registers, and within
/// another entry.
const GUEST: &str = r#"(module
    (import "host" "direct" (func $direct (param i32) (result i32)))
    (import "host" "many" (func $many (result i32 i64 f64)))
    (import "host" "again" (func $again))
    (func $direct_caller (drop (call $direct (i32.const 1))))
    (func $many_caller (call $many) (drop) (drop) (drop))
    (func $outer (call $again))
    (func (export "inner") (call $direct_caller) (call $many_caller))
    (func (export "run") (call $outer) (call $direct_caller)))"#;

#[test]
fn frames_are_those_that_an_error_would_have() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, GUEST)?;
    let mut linker: Linker<Vec<Vec<String>>> = Linker::new(&engine);
    linker.func_wrap("host", "direct", |mut caller: Caller<'_, Vec<Vec<String>>>, x: i32| {
        let trace = names(&WasmBacktrace::capture(&caller));
        assert_eq!(names(&WasmBacktrace::force_capture(&mut caller)), trace);
        caller.data_mut().push(trace);
        x
    })?;
    linker.func_wrap("host", "many", |mut caller: Caller<'_, Vec<Vec<String>>>| {
        let trace = names(&WasmBacktrace::capture(&caller));
        caller.data_mut().push(trace);
        (1i32, 2i64, 3f64)
    })?;
    linker.func_wrap(
        "host",
        "again",
        |mut caller: Caller<'_, Vec<Vec<String>>>| -> Result<()> {
            let inner = caller.get_export("inner").unwrap().into_func().unwrap();
            inner.typed::<(), ()>(&caller)?.call(&mut caller, ())?;
            // After the inner entry the outer frames are there as before.
            let trace = names(&WasmBacktrace::capture(&caller));
            caller.data_mut().push(trace);
            Ok(())
        },
    )?;
    let mut store = Store::new(&engine, Vec::new());
    let instance = linker.instantiate(&mut store, &module)?;
    let run: TypedFunc<(), ()> = instance.get_typed_func(&mut store, "run")?;
    run.call(&mut store, ())?;
    let outer = ["outer", "?"];
    let expected = [
        [&["direct_caller", "?"], &outer[..]].concat(),
        [&["many_caller", "?"], &outer[..]].concat(),
        outer.to_vec(),
        vec!["direct_caller", "?"],
    ];
    assert_eq!(*store.data(), expected);
    Ok(())
}

#[test]
fn where_no_guest_waits_there_are_no_frames() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, 0);
    assert!(WasmBacktrace::capture(&store).frames().is_empty());
    let count = Func::wrap(&mut store, |mut caller: Caller<'_, usize>| {
        *caller.data_mut() = 1 + WasmBacktrace::capture(&caller).frames().len();
    });
    count.call(&mut store, &[], &mut [])?;
    assert_eq!(*store.data(), 1);
    // Nor those of another store's guests, nor after a trap.
    let text = r#"(module (import "" "f" (func)) (func (export "run") (call 0) (unreachable)))"#;
    let module = Module::new(&engine, text)?;
    let other = std::sync::Mutex::new(Store::new(&engine, ()));
    let look = Func::wrap(&mut store, move |caller: Caller<'_, usize>| {
        assert!(WasmBacktrace::capture(&*other.lock().unwrap()).frames().is_empty());
        assert_eq!(WasmBacktrace::capture(&caller).frames().len(), 1);
    });
    let instance = Instance::new(&mut store, &module, &[look.into()])?;
    instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ()).unwrap_err();
    assert!(WasmBacktrace::capture(&store).frames().is_empty());
    Ok(())
}
