//! What a store was told rules calls that wait as it rules others, before a wait and after it: epochs
//! with a callback, fuel, limiters. And host functions that wait are told who called them.

mod executor;

use std::future::Future;
use std::pin::Pin;

use pagefork::{
    Caller, Config, Engine, Func, Instance, Linker, Module, ResourceLimiter, Result, Store, Trap,
    TrapCode, UpdateDeadline, Val, WasmBacktrace, bail,
};

use crate::executor::{block_on, poll_once, polls};

type Later<'a, R> = Box<dyn Future<Output = R> + Send + 'a>;

fn code_of<T>(result: Result<T>) -> TrapCode {
    let error = result.err().expect("it fails");
    error.downcast_ref::<Trap>().unwrap_or_else(|| panic!("no trap: {error}")).code()
}

/// Computes before the host call and after it, as many turns as the arguments say.
const COMPUTES: &str = r#"(module
    (import "host" "f" (func $f (param i32) (result i32)))
    (memory (export "memory") 1 100)
    (table $table (export "table") 1 100 funcref)
    (func $spin (param i32)
        (loop $next
            (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
            (br_if $next (i32.gt_s (local.get 0) (i32.const 0)))))
    (func (export "run") (param $before i32) (param $after i32) (result i32) (local $got i32)
        (call $spin (local.get $before))
        (local.set $got (call $f (i32.const 5)))
        (call $spin (local.get $after))
        (local.get $got))
    (func (export "grow") (param i32) (result i32)
        (drop (memory.grow (local.get 0)))
        (drop (call $f (i32.const 0)))
        (memory.grow (local.get 0)))
    (func (export "grow_table") (param i32) (result i32)
        (drop (call $f (i32.const 0)))
        (table.grow $table (ref.null func) (local.get 0))))"#;

fn start<T: Send + 'static>(
    engine: &Engine,
    data: T,
    define: impl FnOnce(&mut Linker<T>) -> Result<()>,
) -> Result<(Store<T>, Instance)> {
    let module = Module::new(engine, COMPUTES)?;
    let mut linker = Linker::new(engine);
    define(&mut linker)?;
    let mut store = Store::new(engine, data);
    let instance = linker.instantiate(&mut store, &module)?;
    Ok((store, instance))
}

/// `host.f` waits for so many polls, and returns its argument.
fn echo<T: Send + 'static>(wait: u32) -> impl FnOnce(&mut Linker<T>) -> Result<()> {
    move |linker| {
        linker.func_wrap_async("host", "f", move |_: Caller<'_, T>, (x,): (i32,)| {
            Box::new(async move {
                polls(wait).await;
                x
            })
        })?;
        Ok(())
    }
}

#[test]
fn the_callback_at_a_deadline_rules_what_computes_before_and_after_a_wait() -> Result<()> {
    for wait in [0, 1, 2] {
        let (mut store, instance) = start(&Engine::default(), (0, u32::MAX), echo(wait))?;
        // How often it was asked, and when it says that it is enough.
        store.epoch_deadline_callback(|mut store| {
            let (asked, limit) = store.data_mut();
            *asked += 1;
            match (*asked).cmp(limit) {
                std::cmp::Ordering::Less => Ok(UpdateDeadline::Continue(0)),
                std::cmp::Ordering::Equal => Ok(UpdateDeadline::Interrupt),
                std::cmp::Ordering::Greater => bail!("asked once too often"),
            }
        });
        let run = instance.get_typed_func::<(i32, i32), i32>(&mut store, "run")?;
        // A deadline that has come each time that the guest is looked at: it is asked until it does
        // something else.
        for (turns, before_the_wait) in [((100_000, 0), true), ((0, 100_000), false)] {
            store.data_mut().0 = 0;
            store.set_epoch_deadline(0);
            assert_eq!(block_on(run.call_async(&mut store, turns))?, 5);
            let asked = store.data().0;
            assert!(asked > 0, "{wait}: {before_the_wait}");
            for limit in [1, asked / 2 + 1] {
                *store.data_mut() = (0, limit);
                store.set_epoch_deadline(0);
                let result = block_on(run.call_async(&mut store, turns));
                assert_eq!(code_of(result), TrapCode::Interrupt, "{wait}, {limit}");
                assert_eq!(store.data().0, limit);
            }
            // An error ends the guest, and the store goes on.
            *store.data_mut() = (0, 0);
            store.set_epoch_deadline(0);
            let error = block_on(run.call_async(&mut store, turns)).unwrap_err();
            assert!(error.to_string().contains("once too often"), "{error}");
            *store.data_mut() = (0, u32::MAX);
            assert_eq!(block_on(run.call_async(&mut store, (1, 1)))?, 5);
        }
    }
    Ok(())
}

/// What its host function did is there when the guest goes on.
#[test]
fn fuel_is_read_charged_and_set_after_a_wait() -> Result<()> {
    let engine = Engine::new(Config::new().fuel(true))?;
    for wait in [0, 1, 3] {
        let (mut store, instance) = start(&engine, Vec::<u64>::new(), |linker| {
            linker.func_wrap_async(
                "host",
                "f",
                move |mut caller: Caller<'_, Vec<u64>>, (x,): (i32,)| {
                    Box::new(async move {
                        let before = caller.fuel()?;
                        polls(wait).await;
                        assert_eq!(caller.fuel()?, before, "a wait costs nothing");
                        match caller.data().first() {
                            None => caller.charge_fuel(100)?,
                            Some(fuel) => {
                                let fuel = *fuel;
                                caller.set_fuel(fuel)?;
                            }
                        }
                        let after = caller.fuel()?;
                        caller.data_mut().extend([before, after]);
                        Ok(x)
                    }) as Later<'_, Result<i32>>
                },
            )?;
            Ok(())
        })?;
        let run = instance.get_typed_func::<(i32, i32), i32>(&mut store, "run")?;
        store.set_fuel(10_000)?;
        assert_eq!(block_on(run.call_async(&mut store, (100, 100)))?, 5);
        let [before, after] = store.data()[..] else { panic!("{:?}", store.data()) };
        assert_eq!(before - after, 100);
        let left = store.fuel()?;
        assert!(before < 10_000 && left < after, "{before}, {after}, {left}");
        // What the guest pays for the same turns after the wait it paid before it.
        let (first, second) = (10_000 - before, after - left);
        assert!(first.abs_diff(second) < 10, "{first}, {second}");
        // Set to less than what comes needs: it is out of fuel when it goes on, and not before.
        *store.data_mut() = vec![second / 2];
        store.set_fuel(10_000)?;
        let result = block_on(run.call_async(&mut store, (100, 100)));
        assert_eq!(code_of(result), TrapCode::OutOfFuel);
        assert_eq!(store.data().len(), 3, "the host function has ended");
        assert_eq!(store.fuel()?, 0);
        // Set to enough in the last moment.
        *store.data_mut() = vec![10_000];
        store.set_fuel(before)?;
        assert_eq!(block_on(run.call_async(&mut store, (1, 1000)))?, 5);
        // More than there is.
        store.data_mut().clear();
        store.set_fuel(first + 50)?;
        let result = block_on(run.call_async(&mut store, (100, 100)));
        assert_eq!(code_of(result), TrapCode::OutOfFuel);
    }
    Ok(())
}

#[derive(Default)]
struct Limiter {
    asked: u32,
    fails_at: Option<u32>,
    refuses_at: Option<u32>,
}

impl Limiter {
    fn asked(&mut self) -> Result<bool> {
        self.asked += 1;
        if self.fails_at == Some(self.asked) {
            bail!("the limiter fails");
        }
        Ok(self.refuses_at != Some(self.asked))
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, _: usize, _: usize, _: Option<usize>) -> Result<bool> {
        self.asked()
    }

    fn table_growing(&mut self, _: usize, _: usize, _: Option<usize>) -> Result<bool> {
        self.asked()
    }
}

#[test]
fn limiters_are_asked_before_and_after_a_wait_and_their_errors_end_the_guest() -> Result<()> {
    for wait in [0, 1, 2] {
        let (mut store, instance) = start(&Engine::default(), Limiter::default(), echo(wait))?;
        store.limiter(|data| data);
        let grow = instance.get_typed_func::<i32, i32>(&mut store, "grow")?;
        let grow_table = instance.get_typed_func::<i32, i32>(&mut store, "grow_table")?;
        assert_eq!(block_on(grow.call_async(&mut store, 1))?, 2);
        assert_eq!(block_on(grow_table.call_async(&mut store, 1))?, 1);
        // The first growth is before the wait, the second after it.
        let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
        for at in [1, 2] {
            let pages = memory.size(&store);
            *store.data_mut() = Limiter { refuses_at: Some(at), ..Limiter::default() };
            let expected = if at == 1 { pages as i32 } else { -1 };
            assert_eq!(block_on(grow.call_async(&mut store, 1))?, expected, "{wait}, {at}");
            assert_eq!((memory.size(&store), store.data().asked), (pages + 1, 2));
            // What has grown before the error stays, and the store goes on.
            *store.data_mut() = Limiter { fails_at: Some(at), ..Limiter::default() };
            let error = block_on(grow.call_async(&mut store, 1)).unwrap_err();
            assert!(error.to_string().contains("the limiter fails"), "{error}");
            let grown = u64::from(at - 1);
            assert_eq!((memory.size(&store), store.data().asked), (pages + 1 + grown, at));
            *store.data_mut() = Limiter::default();
            let pages = memory.size(&store) as i32;
            assert_eq!(block_on(grow.call_async(&mut store, 1))?, pages + 1);
        }
        *store.data_mut() = Limiter { fails_at: Some(1), ..Limiter::default() };
        assert!(block_on(grow_table.call_async(&mut store, 1)).is_err());
    }
    Ok(())
}

fn names(trace: &WasmBacktrace) -> Vec<String> {
    let name = |frame: &pagefork::Frame| frame.function_name().unwrap_or("?").to_owned();
    trace.frames().iter().map(name).collect()
}

#[test]
fn a_host_function_sees_who_called_it_before_a_wait_and_after() -> Result<()> {
    let engine = Engine::default();
    let library = Module::new(
        &engine,
        r#"(module $library
            (import "host" "f" (func $f (param i32) (result i32)))
            (import "host" "many" (func $many (result i32 i64)))
            (func $inner (export "inner") (param i32) (result i32)
                (call $many) (drop) (drop) (call $f (local.get 0))))"#,
    )?;
    let main = Module::new(
        &engine,
        r#"(module $main
            (import "library" "inner" (func $inner (param i32) (result i32)))
            (tag $tag)
            (func $caught (param i32) (result i32)
                (block $no
                    (try_table (result i32) (catch $tag $no) (call $inner (local.get 0)))
                    (return))
                (i32.const -1))
            (func $outer (export "run") (param i32) (result i32) (call $caught (local.get 0))))"#,
    )?;
    type Data = Vec<Vec<String>>;
    let mut linker: Linker<Data> = Linker::new(&engine);
    linker.func_wrap_async("host", "f", |mut caller: Caller<'_, Data>, (wait,): (i32,)| {
        Box::new(async move {
            let first = names(&WasmBacktrace::capture(&caller));
            caller.data_mut().push(first);
            for _ in 0..wait {
                polls(1).await;
                let next = names(&WasmBacktrace::capture(&caller));
                assert_eq!(names(&WasmBacktrace::force_capture(&caller)), next);
                caller.data_mut().push(next);
            }
            wait
        })
    })?;
    linker.func_wrap_async("host", "many", |caller: Caller<'_, Data>, (): ()| {
        Box::new(async move {
            let before = names(&WasmBacktrace::capture(&caller));
            polls(1).await;
            assert_eq!(names(&WasmBacktrace::capture(&caller)), before);
            assert_eq!(before, ["inner", "caught", "outer"]);
            (1, 2i64)
        })
    })?;
    let mut store = Store::new(&engine, Data::new());
    linker.module(&mut store, "library", &library)?;
    let instance = linker.instantiate(&mut store, &main)?;
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
    for wait in 0..4 {
        store.data_mut().clear();
        assert_eq!(block_on(run.call_async(&mut store, wait))?, wait);
        let expected = vec![vec!["inner", "caught", "outer"]; 1 + wait as usize];
        assert_eq!(*store.data(), expected);
        assert!(WasmBacktrace::capture(&store).frames().is_empty());
    }
    // Nor are there any once the call was given up.
    let mut call = run.call_async(&mut store, 3);
    assert!(poll_once(&mut call).is_pending());
    drop(call);
    assert!(WasmBacktrace::capture(&store).frames().is_empty());
    // The embedder's own call has no guest around it.
    let f = Func::wrap_async(&mut store, |caller: Caller<'_, Data>, (): ()| {
        Box::new(async move {
            polls(1).await;
            WasmBacktrace::capture(&caller).frames().len() as i32
        })
    });
    let mut results = [Val::I32(-1)];
    let mut call = Box::pin(f.call_async(&mut store, &[], &mut results));
    while poll_once::<Pin<Box<_>>>(&mut call).is_pending() {}
    drop(call);
    assert_eq!(results[0].i32(), Some(0));
    Ok(())
}
