//! Entering functions, and calling the host from them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::grid::Grid;
use crate::measure::{Effort, Options, Row, Size, Unit, Work, compare};
use crate::report::Report;
use crate::{crowd, signatures, waiting};

/// The three calls of wasmtime PR 3319, and loops of calls of the host. Each loop adds up what it
/// calls returns; one calls nothing, so that its turns can be taken off.
const WAT: &str = r#"(module
    (import "host" "i64" (func $i64 (result i64)))
    (import "host" "many" (func $many (param i32 i32 i32 i32 i32) (result i32)))
    (import "host" "f64" (func $f64 (param f64) (result f64)))
    (import "host" "caller" (func $caller (param i32) (result i32)))
    (import "new" "i64" (func $new_i64 (result i64)))
    (import "new" "many" (func $new_many (param i32 i32 i32 i32 i32) (result i32)))
    (func (export "nop"))
    (func (export "i64") (result i64) (call $i64))
    (func (export "many")
        (drop (call $many
            (i32.const 1) (i32.const 2) (i32.const 3) (i32.const 4) (i32.const 5))))
    (func (export "new_i64") (result i64) (call $new_i64))
    (func (export "new_many")
        (drop (call $new_many
            (i32.const 1) (i32.const 2) (i32.const 3) (i32.const 4) (i32.const 5))))
    (func (export "loop_nothing") (param $count i32) (result i64) (local $sum i64)
        (loop $next
            (local.set $sum (i64.add (local.get $sum) (i64.const 7)))
            (local.set $count (i32.sub (local.get $count) (i32.const 1)))
            (br_if $next (local.get $count)))
        (local.get $sum))
    (func (export "loop_i64") (param $count i32) (result i64) (local $sum i64)
        (loop $next
            (local.set $sum (i64.add (local.get $sum) (call $i64)))
            (local.set $count (i32.sub (local.get $count) (i32.const 1)))
            (br_if $next (local.get $count)))
        (local.get $sum))
    (func (export "loop_many") (param $count i32) (result i64) (local $sum i32)
        (loop $next
            (local.set $sum (i32.add (local.get $sum) (call $many (i32.const 1) (i32.const 0)
                (i32.const 2) (i32.const 4) (i32.const 0))))
            (local.set $count (i32.sub (local.get $count) (i32.const 1)))
            (br_if $next (local.get $count)))
        (i64.extend_i32_u (local.get $sum)))
    (func (export "loop_f64") (param $count i32) (result i64) (local $sum f64)
        (loop $next
            (local.set $sum (f64.add (local.get $sum) (call $f64 (f64.const 3.5))))
            (local.set $count (i32.sub (local.get $count) (i32.const 1)))
            (br_if $next (local.get $count)))
        (i64.trunc_f64_u (local.get $sum)))
    (func (export "loop_caller") (param $count i32) (result i64) (local $sum i32)
        (loop $next
            (local.set $sum (i32.add (local.get $sum) (call $caller (i32.const 7))))
            (local.set $count (i32.sub (local.get $count) (i32.const 1)))
            (br_if $next (local.get $count)))
        (i64.extend_i32_u (local.get $sum)))
    (func (export "loop_new") (param $count i32) (result i64) (local $sum i64)
        (loop $next
            (local.set $sum (i64.add (local.get $sum) (call $new_i64)))
            (local.set $count (i32.sub (local.get $count) (i32.const 1)))
            (br_if $next (local.get $count)))
        (local.get $sum))
    (func (export "trap") unreachable)
    (memory 1)
    (global $far (mut i32) (i32.const 0x7fff_0000))
    (func (export "fault") (drop (i32.load (global.get $far)))))"#;

/// The module, with functions that call the host as often as the loops, one call after the other: so
/// there are no turns to be taken off.
fn module_text() -> String {
    let mut text = WAT.strip_suffix(')').expect("it ends").to_owned();
    for (name, ty, call, to_i64) in [
        ("i64", "i64", "(call $i64)", ""),
        ("many", "i32", MANY, "i64.extend_i32_u"),
        ("f64", "f64", "(call $f64 (f64.const 3.5))", "i64.trunc_f64_u"),
        ("caller", "i32", "(call $caller (i32.const 7))", "i64.extend_i32_u"),
    ] {
        let calls = format!("{call} {ty}.add ").repeat(LOOP_COUNT as usize);
        text += &format!(
            "(func (export \"row_{name}\") (param i32) (result i64) {ty}.const 0 {calls} {to_i64})"
        );
    }
    text + ")"
}

/// A call of a function with five parameters.
const MANY: &str =
    "(call $many (i32.const 1) (i32.const 0) (i32.const 2) (i32.const 4) (i32.const 0))";

/// Turns of each loop.
const LOOP_COUNT: u32 = 100;

/// Calls of one iteration, in a loop of the embedder's: what is measured around it costs nothing beside them.
const CALLS: u32 = 100;

/// Times each kind of call.
pub fn run(size: Size) -> Vec<Row> {
    signatures::check(if size == Size::Small { 3 } else { 100 }, 1);
    let text = module_text();
    let mut ours = pagefork_side::Calls::new(&pagefork_side::Compiled::new(&text));
    #[cfg(feature = "peer")]
    let mut theirs = wasmtime_side::Calls::new(&wasmtime_side::Compiled::new(&text));
    let mut rows = Vec::new();
    macro_rules! row {
        ($name:literal, $expected:expr, $method:ident $($function:ident)?) => {{
            let mut work = || many_times(|| ours.$method($(|calls| &calls.$function)?));
            #[cfg(feature = "peer")]
            let mut peer = || many_times(|| theirs.$method($(|calls| &calls.$function)?));
            #[cfg(feature = "peer")]
            let peer: Option<Work<'_>> = Some(&mut peer);
            #[cfg(not(feature = "peer"))]
            let peer: Option<Work<'_>> = None;
            let expected = $expected * u64::from(CALLS);
            let row = compare($name, Effort::short(size), expected, &mut work, peer);
            rows.push(row.of_each(CALLS));
        }};
    }
    row!("typed nop", 0, nop);
    row!("typed i64 through the host", 7, i64);
    row!("typed many through the host", 0, many);
    row!("untyped nop", 0, untyped nop_func);
    row!("untyped i64 through the host", 7, untyped_i64);
    row!("untyped many through the host", 0, untyped many_func);
    row!("unchecked nop", 0, unchecked_nop);
    row!("unchecked i64 through the host", 7, unchecked_i64);
    row!("typed i64 through a host function on slices", 7, new_i64);
    row!("typed many through a host function on slices", 0, untyped new_many_func);
    row!("100 turns of a loop that calls nothing", 700, looped loop_nothing);
    row!("100 host calls in a loop: i64", 700, looped loop_i64);
    row!("100 host calls in a loop: five i32", 700, looped loop_many);
    row!("100 host calls in a loop: f64", 700, looped loop_f64);
    row!("100 host calls in a loop: i32 with Caller", 700, looped loop_caller);
    row!("100 host calls in a loop: on slices", 700, looped loop_new);
    row!("100 host calls without a loop: i64", 700, looped row_i64);
    row!("100 host calls without a loop: five i32", 700, looped row_many);
    row!("100 host calls without a loop: f64", 700, looped row_f64);
    row!("100 host calls without a loop: i32 with Caller", 700, looped row_caller);
    row!("trap", 1, trapped trap);
    row!("trap at an access far out of bounds", 1, trapped fault);
    row!("asynchronous nop", 0, async_nop);
    row!("asynchronous i64 through the host, ready at once", 7, async_ready);
    row!("asynchronous i64 through the host, after a wait", 7, async_waiting);
    rows.push(waiting::run(size));
    rows
}

/// Times calls of threads that have a store each, of one engine.
pub fn on_threads(options: &Options) -> Report {
    let text = module_text();
    let ours = pagefork_side::Compiled::new(&text);
    #[cfg(feature = "peer")]
    let theirs = wasmtime_side::Compiled::new(&text);
    let columns = ["pagefork", "wasmtime"];
    let mut grid = Grid::new(
        "100 calls",
        1,
        columns.into_iter().take(1 + usize::from(cfg!(feature = "peer"))),
    );
    macro_rules! lines {
        ($name:literal, $expected:expr, $method:ident $($function:ident)?) => {
            macro_rules! job {
                ($side:ident, $compiled:expr) => {
                    Box::new(|| {
                        let mut calls = $side::Calls::new($compiled);
                        Box::new(move || {
                            let sum = many_times(|| calls.$method($(|calls| &calls.$function)?));
                            assert_eq!(sum, $expected * u64::from(CALLS), $name);
                            []
                        })
                    })
                };
            }
            let mut makers: Vec<crowd::Maker<'_>> = vec![(columns[0], job!(pagefork_side, &ours))];
            #[cfg(feature = "peer")]
            makers.push((columns[1], job!(wasmtime_side, &theirs)));
            #[cfg(not(feature = "peer"))]
            makers.truncate(1);
            for threads in options.threads(&crowd::THREADS) {
                let name = format!("{}, {}", $name, crowd::on_threads(threads));
                crowd::contest(&mut grid, &name, options.size, threads, &makers);
                let misses = makers.iter().map(|(column, make)| {
                    Ok((*column, vec![crowd::cache_misses(options.size, threads, &**make)?]))
                });
                match misses.collect::<std::io::Result<Vec<_>>>() {
                    Ok(cells) => {
                        grid.add(&format!("{name}: cache misses"), Unit::Count, cells).alone = true;
                    }
                    Err(why) => grid.note_once(&format!("Cache misses are not counted here: {why}.")),
                }
            }
        };
    }
    lines!("typed nop", 0, nop);
    lines!("typed i64 through the host", 7, i64);
    lines!("untyped nop", 0, untyped nop_func);
    lines!("asynchronous nop", 0, async_nop);
    Report::of_grid("call_on_threads", &grid)
}

/// Calls as often as an iteration does.
#[inline(always)]
fn many_times(mut call: impl FnMut() -> u64) -> u64 {
    (0..CALLS).map(|_| call()).sum()
}

/// What guests call that may wait: at once and after a poll.
const ASYNC_WAT: &str = r#"(module
    (import "host" "ready" (func $ready (result i64)))
    (import "host" "waits" (func $waits (result i64)))
    (func (export "nop"))
    (func (export "ready") (result i64) (call $ready))
    (func (export "waits") (result i64) (call $waits)))"#;

/// Polls until it is ready.
fn polled<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(output) = polled {
            return output;
        }
    }
}

/// Is ready when it is polled the second time.
async fn second_poll() {
    let mut waits = true;
    poll_fn(|_| match std::mem::take(&mut waits) {
        true => Poll::Pending,
        false => Poll::Ready(()),
    })
    .await;
}

macro_rules! side {
    ($module:ident, $engine:ident, $func_type:expr, $pool:expr, $instantiate:expr) => {
        mod $module {
            use $engine::{
                Caller, Engine, Func, FuncType, Instance, Linker, Module, Store, TypedFunc, Val,
                ValRaw, ValType,
            };

            type Loop = TypedFunc<u32, i64>;
            type Nothing = TypedFunc<(), ()>;

            /// What the stores of all threads have in common: an engine that just calls, and one whose guests
            /// may wait.
            pub(super) struct Compiled {
                plain: (Linker<u32>, Module),
                waiting: (Linker<u32>, Module),
            }

            impl Compiled {
                pub(super) fn new(wat: &str) -> Self {
                    let engine = Engine::default();
                    let wasm = wat::parse_str(wat).expect("a module");
                    let module = Module::new(&engine, wasm).expect("a valid module");
                    Self { plain: (linker(&engine), module), waiting: asynchronous() }
                }
            }

            pub(super) struct Calls {
                store: Store<u32>,
                nop: TypedFunc<(), ()>,
                i64: TypedFunc<(), i64>,
                many: TypedFunc<(), ()>,
                new_i64: TypedFunc<(), i64>,
                pub(super) trap: Nothing,
                pub(super) fault: Nothing,
                pub(super) loop_nothing: Loop,
                pub(super) loop_i64: Loop,
                pub(super) loop_many: Loop,
                pub(super) loop_f64: Loop,
                pub(super) loop_caller: Loop,
                pub(super) loop_new: Loop,
                pub(super) row_i64: Loop,
                pub(super) row_many: Loop,
                pub(super) row_f64: Loop,
                pub(super) row_caller: Loop,
                pub(super) nop_func: Func,
                i64_func: Func,
                pub(super) many_func: Func,
                pub(super) new_many_func: Func,
                async_store: Store<u32>,
                async_nop: TypedFunc<(), ()>,
                async_ready: TypedFunc<(), i64>,
                async_waiting: TypedFunc<(), i64>,
            }

            impl Calls {
                pub(super) fn new(compiled: &Compiled) -> Self {
                    let (linker, module) = &compiled.plain;
                    let mut store = Store::new(module.engine(), 0);
                    let instance = linker.instantiate(&mut store, module).expect("all is linked");
                    macro_rules! func {
                        ($name:literal) => {
                            instance.get_typed_func(&mut store, $name).expect("an export")
                        };
                        (@untyped $name:literal) => {
                            instance.get_func(&mut store, $name).expect("an export")
                        };
                    }
                    let (linker, module) = &compiled.waiting;
                    let mut async_store = Store::new(module.engine(), 0);
                    let instantiate: fn(&Linker<u32>, &mut Store<u32>, &Module) -> Instance =
                        $instantiate;
                    let instance_async = instantiate(linker, &mut async_store, module);
                    macro_rules! async_func {
                        ($name:literal) => {
                            instance_async
                                .get_typed_func(&mut async_store, $name)
                                .expect("an export")
                        };
                    }
                    Self {
                        async_nop: async_func!("nop"),
                        async_ready: async_func!("ready"),
                        async_waiting: async_func!("waits"),
                        async_store,
                        nop: func!("nop"),
                        i64: func!("i64"),
                        many: func!("many"),
                        new_i64: func!("new_i64"),
                        trap: func!("trap"),
                        fault: func!("fault"),
                        loop_nothing: func!("loop_nothing"),
                        loop_i64: func!("loop_i64"),
                        loop_many: func!("loop_many"),
                        loop_f64: func!("loop_f64"),
                        loop_caller: func!("loop_caller"),
                        loop_new: func!("loop_new"),
                        row_i64: func!("row_i64"),
                        row_many: func!("row_many"),
                        row_f64: func!("row_f64"),
                        row_caller: func!("row_caller"),
                        nop_func: func!(@untyped "nop"),
                        i64_func: func!(@untyped "i64"),
                        many_func: func!(@untyped "many"),
                        new_many_func: func!(@untyped "new_many"),
                        store,
                    }
                }

                #[inline(always)]
                pub(super) fn nop(&mut self) -> u64 {
                    self.nop.call(&mut self.store, ()).map_or(1, |()| 0)
                }

                #[inline(always)]
                pub(super) fn i64(&mut self) -> u64 {
                    self.i64.call(&mut self.store, ()).map_or(0, |value| value as u64)
                }

                #[inline(always)]
                pub(super) fn many(&mut self) -> u64 {
                    self.many.call(&mut self.store, ()).map_or(1, |()| 0)
                }

                #[inline(always)]
                pub(super) fn new_i64(&mut self) -> u64 {
                    self.new_i64.call(&mut self.store, ()).map_or(0, |value| value as u64)
                }

                #[inline(always)]
                pub(super) fn untyped(&mut self, function: fn(&Self) -> &Func) -> u64 {
                    let function = *function(self);
                    function.call(&mut self.store, &[], &mut []).map_or(1, |()| 0)
                }

                #[inline(always)]
                pub(super) fn untyped_i64(&mut self) -> u64 {
                    let mut results = [Val::I64(0)];
                    let done = self.i64_func.call(&mut self.store, &[], &mut results);
                    done.map_or(0, |()| results[0].i64().map_or(0, |value| value as u64))
                }

                #[allow(unsafe_code)]
                #[inline(always)]
                pub(super) fn unchecked_nop(&mut self) -> u64 {
                    let mut values: [ValRaw; 0] = [];
                    // SAFETY: the function takes and returns nothing.
                    let done = unsafe {
                        self.nop_func.call_unchecked(&mut self.store, &raw mut values[..])
                    };
                    done.map_or(1, |()| 0)
                }

                #[allow(unsafe_code)]
                #[inline(always)]
                pub(super) fn unchecked_i64(&mut self) -> u64 {
                    let mut values = [ValRaw::i64(0)];
                    // SAFETY: the function takes nothing and returns an `i64`.
                    let done = unsafe {
                        self.i64_func.call_unchecked(&mut self.store, &raw mut values[..])
                    };
                    done.map_or(0, |()| values[0].get_i64() as u64)
                }

                pub(super) fn looped(&mut self, function: fn(&Self) -> &Loop) -> u64 {
                    let function = function(self).clone();
                    function.call(&mut self.store, super::LOOP_COUNT).map_or(0, |sum| sum as u64)
                }

                pub(super) fn trapped(&mut self, function: fn(&Self) -> &Nothing) -> u64 {
                    let function = function(self).clone();
                    u64::from(function.call(&mut self.store, ()).is_err())
                }

                pub(super) fn async_nop(&mut self) -> u64 {
                    let called = self.async_nop.call_async(&mut self.async_store, ());
                    super::polled(called).map_or(1, |()| 0)
                }

                pub(super) fn async_ready(&mut self) -> u64 {
                    let called = self.async_ready.call_async(&mut self.async_store, ());
                    super::polled(called).map_or(0, |value| value as u64)
                }

                pub(super) fn async_waiting(&mut self) -> u64 {
                    let called = self.async_waiting.call_async(&mut self.async_store, ());
                    super::polled(called).map_or(0, |value| value as u64)
                }
            }

            fn asynchronous() -> (Linker<u32>, Module) {
                let pool: fn() -> Engine = $pool;
                let engine = pool();
                let mut linker = Linker::new(&engine);
                linker
                    .func_wrap_async("host", "ready", |_: Caller<'_, u32>, (): ()| {
                        Box::new(async { 7i64 })
                    })
                    .expect("a new name");
                linker
                    .func_wrap_async("host", "waits", |_: Caller<'_, u32>, (): ()| {
                        Box::new(async {
                            super::second_poll().await;
                            7i64
                        })
                    })
                    .expect("a new name");
                let wasm = wat::parse_str(super::ASYNC_WAT).expect("a module");
                let module = Module::new(&engine, wasm).expect("a valid module");
                (linker, module)
            }

            fn linker(engine: &Engine) -> Linker<u32> {
                let mut linker = Linker::new(engine);
                let sum = |a: i32, b: i32, c: i32, d: i32, e: i32| a + b + c + d + e;
                let caller = |mut caller: Caller<'_, u32>, value: i32| {
                    *caller.data_mut() += 1;
                    value
                };
                linker.func_wrap("host", "i64", || 7i64).expect("a new name");
                linker.func_wrap("host", "many", sum).expect("a new name");
                linker.func_wrap("host", "f64", |value: f64| value * 2.0).expect("a new name");
                linker.func_wrap("host", "caller", caller).expect("a new name");
                let ty: fn(&Engine, Vec<ValType>, Vec<ValType>) -> FuncType = $func_type;
                let i64_type = ty(engine, vec![], vec![ValType::I64]);
                let i64 = |_: Caller<'_, u32>, _: &[Val], results: &mut [Val]| {
                    results[0] = Val::I64(7);
                    Ok(())
                };
                linker.func_new("new", "i64", i64_type, i64).expect("a new name");
                let many_type = ty(engine, vec![ValType::I32; 5], vec![ValType::I32]);
                let many = |_: Caller<'_, u32>, params: &[Val], results: &mut [Val]| {
                    let sum = params.iter().map(|value| value.i32().unwrap_or(0)).sum();
                    results[0] = Val::I32(sum);
                    Ok(())
                };
                linker.func_new("new", "many", many_type, many).expect("a new name");
                linker
            }
        }
    };
}

side!(
    pagefork_side,
    pagefork,
    |_, params, results| FuncType { params: params.into(), results: results.into() },
    Engine::default,
    |linker, store, module| linker.instantiate(store, module).expect("all is linked")
);
#[cfg(feature = "peer")]
side!(
    wasmtime_side,
    wasmtime,
    FuncType::new,
    || {
        let mut config = wasmtime::Config::new();
        config.allocation_strategy(wasmtime::InstanceAllocationStrategy::pooling());
        Engine::new(&config).expect("a pool")
    },
    |linker, store, module| {
        super::polled(linker.instantiate_async(store, module)).expect("all is linked")
    }
);
