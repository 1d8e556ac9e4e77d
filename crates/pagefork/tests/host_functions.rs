//! Host functions: what they get, what they return, and how they fail.

use std::backtrace::Backtrace;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pagefork::{
    Caller, Context, Engine, Error, ErrorKind, Func, FuncType, Instance, Linker, Module, Result,
    Store, Trap, TrapCode, UsageError, Val, ValType, bail, ensure, format_err,
};

#[derive(Debug, thiserror::Error, PartialEq)]
#[error("exit with {0}")]
struct Exit(i32);

/// A module with an import `f` and an export `run` of the same type that calls it.
fn forwarding(store: &mut Store<Vec<i64>>, f: Func) -> Result<Instance> {
    let ty = f.ty(&*store);
    let list = |types: &[ValType]| types.iter().map(|ty| format!("{ty} ")).collect::<String>();
    let (params, results) = (list(&ty.params), list(&ty.results));
    let gets: String = (0..ty.params.len()).map(|i| format!("(local.get {i})")).collect();
    let wat = format!(
        r#"(module $guest
            (import "" "f" (func $f (param {params}) (result {results})))
            (memory (export "memory") 1)
            (func (export "nested") (result i32) (i32.const 5))
            (func $run (export "run") (param {params}) (result {results}) (call $f {gets})))"#
    );
    let module = Module::new(store.engine(), wat)?;
    Instance::new(store, &module, &[f.into()])
}

fn store() -> Store<Vec<i64>> {
    Store::new(&Engine::default(), Vec::new())
}

#[test]
fn sixteen_parameters_and_results_go_there_and_back() -> Result<()> {
    let mut store = store();
    #[expect(clippy::many_single_char_names, clippy::too_many_arguments, reason = "the limit")]
    fn turn(
        a: i32,
        b: i64,
        c: f32,
        d: f64,
        e: u32,
        f: u64,
        g: i32,
        h: i32,
        i: i64,
        j: i64,
        k: i64,
        l: f64,
        m: f64,
        n: f64,
        o: u128,
        p: i32,
    ) -> (i32, u128, f64, f64, f64, i64, i64, i64, i32, i32, u64, u32, f64, f32, i64, i32) {
        (p, o, n, m, l, k, j, i, h, g, f, e, d, c, b, a)
    }
    let f = Func::wrap(&mut store, turn);
    let instance = forwarding(&mut store, f)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    let ty = run.ty(&store);
    let params: Vec<Val> = (1..17)
        .zip(&ty.params)
        .map(|(i, ty)| match ty {
            ValType::I32 => Val::I32(-i),
            ValType::I64 => Val::I64(i64::from(i) << 33),
            ValType::F32 => Val::F32((i as f32).to_bits()),
            ValType::F64 => Val::F64(f64::from(i).to_bits()),
            _ => Val::V128(u128::from(i as u32) << 100),
        })
        .collect();
    let mut results = vec![Val::I32(0); 16];
    run.call(&mut store, &params, &mut results)?;
    results.reverse();
    assert_eq!(format!("{params:?}"), format!("{results:?}"));
    f.call(&mut store, &params, &mut results)?;
    results.reverse();
    assert_eq!(format!("{params:?}"), format!("{results:?}"));
    Ok(())
}

#[test]
fn callers_give_access_to_data_memory_and_exports() -> Result<()> {
    let mut store = store();
    let f = Func::wrap(&mut store, |mut caller: Caller<'_, Vec<i64>>, x: i64| -> Result<i64> {
        let memory = caller.get_export("memory").unwrap().into_memory().unwrap();
        memory.write(&mut caller, 3, b"!")?;
        let (bytes, data) = memory.data_and_store_mut(&mut caller);
        data.push(x + i64::from(bytes[3]));
        let nested = caller.get_export("nested").unwrap().into_func().unwrap();
        let nested = nested.typed::<(), i32>(&caller)?.call(&mut caller, ())?;
        memory.grow(&mut caller, 2)?;
        Ok(i64::from(nested) + memory.size(&caller) as i64)
    });
    let instance = forwarding(&mut store, f)?;
    let run = instance.get_typed_func::<i64, i64>(&mut store, "run")?;
    assert_eq!(run.call(&mut store, 100)?, 8);
    assert_eq!(store.data(), &[133]);
    // Without a calling instance there are no exports.
    let g = Func::wrap(&mut store, |mut caller: Caller<'_, Vec<i64>>| {
        i32::from(caller.get_export("memory").is_some())
    });
    assert_eq!(g.typed::<(), i32>(&store)?.call(&mut store, ())?, 0);
    Ok(())
}

#[test]
fn untyped_host_functions_are_checked() -> Result<()> {
    let mut store = store();
    let ty = FuncType { params: [ValType::I32].into(), results: [ValType::I64].into() };
    let f = Func::new(&mut store, ty.clone(), |_, params, results| {
        assert_eq!(results.len(), 1);
        let x = params[0].i32().unwrap();
        results[0] = if x < 0 { Val::F32(0) } else { Val::I64(i64::from(x) * 3) };
        Ok(())
    });
    let instance = forwarding(&mut store, f)?;
    let run = instance.get_typed_func::<i32, i64>(&mut store, "run")?;
    assert_eq!(run.call(&mut store, 14)?, 42);
    let error = run.call(&mut store, -1).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::HostResult { .. })), "{error}");
    assert_eq!(run.call(&mut store, 14)?, 42);
    Ok(())
}

#[test]
fn a_host_function_that_forgets_a_result_is_an_error() -> Result<()> {
    let mut store = store();
    let results = [ValType::I32, ValType::F64, ValType::V128, ValType::FUNCREF, ValType::EXTERNREF];
    let ty = FuncType { params: [ValType::I32].into(), results: results.into() };
    let own = Func::wrap(&mut store, || ());
    let f = Func::new(&mut store, ty, move |_, params, results| {
        let values =
            [Val::I32(0), Val::F64(0), Val::V128(0), Val::FuncRef(Some(own)), Val::ExternRef(None)];
        let forgotten = params[0].i32().unwrap();
        for (i, value) in values.into_iter().enumerate().filter(|(i, _)| *i as i32 != forgotten) {
            results[i] = value;
        }
        Ok(())
    });
    let instance = forwarding(&mut store, f)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    let mut found = vec![Val::I32(7); 5];
    // By a guest, and by the host itself.
    for function in [run, f] {
        function.call(&mut store, &[Val::I32(-1)], &mut found)?;
        for (index, ty) in results.iter().enumerate() {
            let params = [Val::I32(index as i32)];
            let error = function.call(&mut store, &params, &mut found).unwrap_err();
            let Some(UsageError::HostResult { index: at, expected, found, .. }) =
                error.downcast_ref()
            else {
                panic!("{error:?}");
            };
            assert_eq!((*at, &**expected, &**found), (index, &*ty.to_string(), "unset"));
            assert_eq!(error.kind(), ErrorKind::Usage);
        }
        function.call(&mut store, &[Val::I32(-1)], &mut found)?;
    }
    Ok(())
}

/// The standard library's errors, an embedder's own, and errors with contexts.
#[test]
fn every_error_converts_by_the_question_mark() -> Result<()> {
    let mut store = store();
    let f = Func::wrap(&mut store, |kind: i32| -> Result<i32> {
        match kind {
            0 => Ok("12x".parse::<i32>()?),
            1 => Ok(std::fs::read("/nowhere/at/all").context("reading the settings")?.len() as i32),
            2 => Err(Exit(4))?,
            3 => bail!("kind {kind} is wrong"),
            4 => bail!(Exit(5)),
            5 => Ok(None.with_context(|| format!("nothing for {kind}"))?),
            6 => Err(format_err!("inner").context(Exit(6)))?,
            _ => {
                ensure!(kind < 8, "{kind} is too large");
                ensure!(kind > 8);
                Ok(0)
            }
        }
    });
    let instance = forwarding(&mut store, f)?;
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
    let mut error = |kind| run.call(&mut store, kind).unwrap_err();
    assert!(error(0).is::<std::num::ParseIntError>());
    let (plain, whole) = (error(1).to_string(), format!("{:#}", error(1)));
    assert_eq!(plain, "reading the settings");
    assert!(whole.starts_with("reading the settings: ") && whole.contains("os error 2"), "{whole}");
    let not_found = std::io::ErrorKind::NotFound;
    assert_eq!(error(1).downcast_ref::<std::io::Error>().unwrap().kind(), not_found);
    assert_eq!(error(2).downcast_ref(), Some(&Exit(4)));
    assert_eq!(error(3).to_string(), "kind 3 is wrong");
    assert_eq!(error(4).downcast::<Exit>().unwrap(), Exit(5));
    assert_eq!(error(5).to_string(), "nothing for 5");
    assert_eq!(error(6).downcast_ref(), Some(&Exit(6)));
    assert_eq!(error(7).to_string(), "condition failed: `kind > 8`");
    assert_eq!(error(8).to_string(), "8 is too large");
    for kind in 0..9 {
        assert_eq!(error(kind).kind(), ErrorKind::Host);
        assert_eq!(error(kind).backtrace().unwrap().frames().len(), 1);
        // For those who take any error, and back.
        let boxed: Box<dyn std::error::Error + Send + Sync> = error(kind).into();
        assert_eq!(Error::from_boxed(boxed).backtrace().unwrap().frames().len(), 1);
    }
    Ok(())
}

#[test]
fn a_host_functions_error_arrives_as_it_was() -> Result<()> {
    let mut store = store();
    let f = Func::wrap(&mut store, |code: i32| Err::<(), _>(Exit(code)));
    let instance = forwarding(&mut store, f)?;
    let run = instance.get_typed_func::<i32, ()>(&mut store, "run")?;
    let error = run.call(&mut store, 3).unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&Exit(3)));
    assert_eq!(error.kind(), ErrorKind::Host);
    let frames = error.backtrace().unwrap().frames();
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0].function_name(), Some("run"));
    assert_eq!((frames[0].module().name(), frames[0].function_index()), (Some("guest"), 2));
    assert_eq!(f.call(&mut store, &[4.into()], &mut []).unwrap_err().downcast::<Exit>()?, Exit(4));

    // Through the guest again, and wrapped on the way.
    let g = Func::wrap(&mut store, move |mut caller: Caller<'_, Vec<i64>>| -> Result<()> {
        run.call(&mut caller, 5).map_err(|error| error.context("in g"))
    });
    let outer = forwarding(&mut store, g)?.get_typed_func::<(), ()>(&mut store, "run")?;
    let error = outer.call(&mut store, ()).unwrap_err();
    assert_eq!(
        (error.to_string(), format!("{error:#}")),
        ("in g".into(), "in g: exit with 5".into())
    );
    assert_eq!(error.backtrace().unwrap().frames().len(), 2);
    assert_eq!(error.downcast::<Exit>()?, Exit(5));

    let h = Func::wrap(&mut store, || -> Result<(), String> { Err("a message".to_owned()) });
    let run = forwarding(&mut store, h)?.get_typed_func::<(), ()>(&mut store, "run")?;
    assert_eq!(run.call(&mut store, ()).unwrap_err().to_string(), "a message");
    let trap = Func::wrap(&mut store, || -> Result<()> {
        Err(Trap::without_backtrace(TrapCode::Unreachable).into())
    });
    let run = forwarding(&mut store, trap)?.get_typed_func::<(), ()>(&mut store, "run")?;
    let error = run.call(&mut store, ()).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::Unreachable);
    Ok(())
}

#[test]
fn a_panic_crosses_guests_and_leaves_the_store_usable() -> Result<()> {
    struct Dropped<'a>(&'a mut bool);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            *self.0 = true;
        }
    }
    let mut store = store();
    let f = Func::wrap(&mut store, |x: i32| {
        assert!(x != 13, "thirteen");
        x
    });
    let inner = forwarding(&mut store, f)?.get_typed_func::<i32, i32>(&mut store, "run")?;
    let g = Func::wrap(&mut store, move |mut caller: Caller<'_, Vec<i64>>, x: i32| {
        let mut dropped = false;
        let result = catch_unwind(AssertUnwindSafe(|| {
            let _guard = Dropped(&mut dropped);
            inner.call(&mut caller, x)
        }));
        caller.data_mut().push(i64::from(dropped));
        match result {
            Ok(result) => result,
            Err(payload) => std::panic::resume_unwind(payload),
        }
    });
    let outer = forwarding(&mut store, g)?.get_typed_func::<i32, i32>(&mut store, "run")?;
    for _ in 0..3 {
        assert_eq!(outer.call(&mut store, 12)?, 12);
        let panic = catch_unwind(AssertUnwindSafe(|| outer.call(&mut store, 13))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"thirteen"));
    }
    assert_eq!(store.data(), &[1; 6]);
    Ok(())
}

#[test]
fn unwinders_cross_from_a_host_function_to_the_embedder() -> Result<()> {
    #[inline(never)]
    fn a_host_function_with_a_name() -> Result<(), Error> {
        Err(Error::msg(Backtrace::force_capture()))
    }
    #[inline(never)]
    fn an_embedder_with_a_name(
        store: &mut Store<Vec<i64>>,
        f: pagefork::TypedFunc<(), ()>,
    ) -> String {
        std::hint::black_box(f.call(store, ()).unwrap_err().to_string())
    }
    let mut store = store();
    let f = Func::wrap(&mut store, a_host_function_with_a_name);
    let run = forwarding(&mut store, f)?.get_typed_func::<(), ()>(&mut store, "run")?;
    let trace = an_embedder_with_a_name(&mut store, run);
    let host = trace.find("a_host_function_with_a_name").expect(&trace);
    let embedder = trace.find("an_embedder_with_a_name").expect(&trace);
    // And on, to where the thread began.
    assert!(host < embedder && trace.contains("thread"), "{trace}");
    Ok(())
}

#[test]
fn references_pass_through_host_functions() -> Result<()> {
    let mut store = store();
    let f = Func::wrap(&mut store, |f: Option<Func>| f);
    let wat = r#"(module
        (import "" "f" (func $f (param funcref) (result funcref)))
        (table 1 funcref)
        (func $seven (export "seven") (result i32) (i32.const 7))
        (func (export "run") (result i32)
            (table.set (i32.const 0) (call $f (ref.func $seven)))
            (call_indirect (result i32) (i32.const 0)))
        (func (export "null") (result i32) (ref.is_null (call $f (ref.null func)))))"#;
    let module = Module::new(store.engine(), wat)?;
    let instance = Instance::new(&mut store, &module, &[f.into()])?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    assert_eq!(run.call(&mut store, ())?, 7);
    let null = instance.get_typed_func::<(), i32>(&mut store, "null")?;
    assert_eq!(null.call(&mut store, ())?, 1);
    let seven = instance.get_func(&mut store, "seven").unwrap();
    let same = f.typed::<Option<Func>, Option<Func>>(&store)?.call(&mut store, Some(seven))?;
    assert_eq!(same.unwrap().typed::<(), i32>(&store)?.call(&mut store, ())?, 7);
    Ok(())
}

#[test]
fn linkers_share_host_functions_among_stores() -> Result<()> {
    let engine = Engine::default();
    let mut linker = Linker::<Vec<i64>>::new(&engine);
    linker.func_wrap("h", "push", |mut caller: Caller<'_, Vec<i64>>, x: i64| {
        caller.data_mut().push(x);
    })?;
    let module = Module::new(
        &engine,
        r#"(module (import "h" "push" (func $push (param i64)))
            (func (export "run") (param i64) (call $push (local.get 0))))"#,
    )?;
    let pre = linker.instantiate_pre(&module)?;
    for i in 0..3 {
        let mut store = Store::new(&engine, Vec::new());
        for j in 0..3 {
            let instance = pre.instantiate(&mut store)?;
            instance.get_typed_func::<i64, ()>(&mut store, "run")?.call(&mut store, i + j)?;
        }
        assert_eq!(store.into_data(), [i, i + 1, i + 2]);
    }
    Ok(())
}
