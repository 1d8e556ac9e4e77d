//! Calls of functions of random types, in both directions, beside the peer: not timed, but each bit
//! is compared before calls are.
//!
//! A guest calls the host at a call site, by a tail call, through a table, and, in Pagefork alone, from a
//! frame that catches: the peer is built without exceptions. Host functions are closures on slices and on
//! cells, asynchronous ones that wait, and closures of exact types with 0 to 16 parameters.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// What values of the types are called in WebAssembly's text.
const TYPES: [&str; 5] = ["i32", "i64", "f32", "f64", "v128"];

/// The most parameters, and the most results.
const VALUES_MAX: u64 = 20;

/// Numbers that look like no other.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        self.0 ^ self.0 >> 29
    }

    /// Bits of a value of a type; of four floats one is no number, quiet or signalling.
    fn bits(&mut self, ty: usize) -> u128 {
        let (word, odd) = (self.next(), self.next().is_multiple_of(4));
        match ty {
            0 => (word as u32).into(),
            2 => (word as u32 | if odd { 0x7f80_0001 } else { 0 }).into(),
            1 => word.into(),
            3 => (word | if odd { 0x7ff0_0000_0000_0001 } else { 0 }).into(),
            _ => u128::from(word) << 64 | u128::from(self.next()),
        }
    }
}

/// A function's type, with what it is called with and what the host returns.
struct Signature {
    params: Vec<usize>,
    results: Vec<usize>,
    arguments: Vec<u128>,
    answers: Vec<u128>,
}

impl Signature {
    fn new(random: &mut Random) -> Self {
        let mut types = || {
            let count = random.next() % (VALUES_MAX + 1);
            // Half of them have no vectors, and many fit registers then.
            let kinds = if random.next().is_multiple_of(2) { 4 } else { 5 };
            (0..count).map(|_| (random.next() % kinds) as usize).collect::<Vec<_>>()
        };
        let (params, results) = (types(), types());
        let arguments = params.iter().map(|ty| random.bits(*ty)).collect();
        let answers = results.iter().map(|ty| random.bits(*ty)).collect();
        Self { params, results, arguments, answers }
    }
}

/// The exports of [`module`], of which the last one catches.
const EXPORTS: [&str; 4] = ["plain", "tail", "reference", "catching"];

/// A module whose functions call the host with what they are called with.
fn module(params: &[usize], results: &[usize], catches: bool) -> Vec<u8> {
    let types =
        |types: &[usize]| types.iter().fold(String::new(), |text, ty| text + " " + TYPES[*ty]);
    let result = format!("(result{})", types(results));
    let ty = format!("(param{}) {result}", types(params));
    let args: String = (0..params.len()).map(|index| format!(" (local.get {index})")).collect();
    let catching = match catches {
        true => format!(
            r#"(tag $unused)
            (func (export "catching") (type $t)
                (block $caught
                    (try_table {result} (catch $unused $caught) (call $f {args}))
                    (return))
                (unreachable))"#
        ),
        false => String::new(),
    };
    let text = format!(
        r#"(module
            (type $t (func {ty}))
            (import "host" "f" (func $f (type $t)))
            (table 1 funcref)
            (elem (i32.const 0) $f)
            (func (export "plain") (type $t) (call $f {args}))
            (func (export "tail") (type $t) (return_call $f {args}))
            (func (export "reference") (type $t) (call_indirect (type $t) {args} (i32.const 0)))
            {catching})"#
    );
    wat::parse_str(text).expect("a module")
}

/// Polls until it is ready.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

/// Is ready when it is polled again.
async fn wait() {
    let mut is_polled = false;
    poll_fn(|_| match std::mem::replace(&mut is_polled, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// What the host was called with, and what the guest has returned.
type Seen = (Vec<u128>, Vec<u128>);

/// Calls functions of this many types, which this seed makes.
///
/// # Panics
/// If a bit differs between what goes in and what comes out, or between the engines.
pub fn check(count: usize, seed: u64) {
    let mut random = Random(seed);
    for case in 0..count {
        let signature = Signature::new(&mut random);
        let expected = (signature.arguments.clone(), signature.answers.clone());
        let types = || format!("case {case}: {:?} -> {:?}", signature.params, signature.results);
        for (way, seen) in pagefork_side::seen(&signature) {
            assert_eq!(seen, expected, "{way}: {}", types());
        }
        #[cfg(feature = "peer")]
        for (way, seen) in wasmtime_side::seen(&signature) {
            assert_eq!(seen, expected, "peer, {way}: {}", types());
        }
        // Closures of exact types are the same each time, with other values: some turns are enough.
        if case.is_multiple_of(20) {
            let seed = random.next();
            pagefork_side::check_typed(&mut Random(seed));
            #[cfg(feature = "peer")]
            wasmtime_side::check_typed(&mut Random(seed));
        }
    }
}

/// Calls closures of one exact type, which return at once or wait.
macro_rules! typed_case {
    ($engine:ident, $random:ident, $catches:expr; $($name:ident: $ty:ident),* => $result:ident) => {{
        $(let $name = <$ty as Bits>::of($random.bits(<$ty as Bits>::TYPE));)*
        let answer = <$result as Bits>::of($random.bits(<$result as Bits>::TYPE));
        let expected: (Vec<u128>, u128) = (vec![$($name.bits()),*], answer.bits());
        let noted = Arc::new(Mutex::new(Vec::<u128>::new()));
        let wasm = super::module(&[$(<$ty as Bits>::TYPE),*], &[<$result as Bits>::TYPE], $catches);
        let module = Module::new(&$engine, wasm).expect("a valid module");
        let exports = &super::EXPORTS[..if $catches { 4 } else { 3 }];

        let mut store = Store::new(&$engine, ());
        let note = Arc::clone(&noted);
        let host = Func::wrap(&mut store, move |$($name: $ty),*| -> $result {
            *note.lock().expect("one thread") = vec![$($name.bits()),*];
            answer
        });
        let instance = Instance::new(&mut store, &module, &[host.into()]).expect("all is linked");
        for export in exports {
            let run = instance.get_typed_func::<($($ty,)*), $result>(&mut store, export);
            let run = run.expect("it is exported");
            let answer = run.call(&mut store, ($($name,)*)).expect("it returns").bits();
            let called = noted.lock().expect("one thread").split_off(0);
            assert_eq!((called, answer), expected, "{export}, {}", stringify!($($ty)*));
        }

        let mut store = Store::new(&$engine, ());
        let note = Arc::clone(&noted);
        let host = Func::wrap_async(
            &mut store,
            move |_: Caller<'_, ()>, ($($name,)*): ($($ty,)*)| {
                let note = Arc::clone(&note);
                Box::new(async move {
                    super::wait().await;
                    *note.lock().expect("one thread") = vec![$($name.bits()),*];
                    answer
                })
            },
        );
        let instance = start(&mut store, &module, host.into());
        for export in exports {
            let run = instance.get_typed_func::<($($ty,)*), $result>(&mut store, export);
            let run = run.expect("it is exported");
            let answer = super::block_on(run.call_async(&mut store, ($($name,)*)));
            let answer = answer.expect("it returns").bits();
            let called = noted.lock().expect("one thread").split_off(0);
            assert_eq!((called, answer), expected, "{export}, {}, waits", stringify!($($ty)*));
        }
    }};
}

/// Closures of each number of parameters; some fit registers to the last, some have one too many.
macro_rules! typed_cases {
    ($engine:ident, $random:ident, $catches:expr) => {
        typed_case!($engine, $random, $catches; => i32);
        typed_case!($engine, $random, $catches; a: i64 => f32);
        typed_case!($engine, $random, $catches; a: f64, b: i32 => i64);
        typed_case!($engine, $random, $catches; a: V, b: f32, c: i64 => f64);
        typed_case!($engine, $random, $catches; a: i32, b: i64, c: f32, d: f64 => V);
        typed_case!($engine, $random, $catches; a: i32, b: i64, c: i32, d: i64, e: i64 => i64);
        typed_case!($engine, $random, $catches;
            a: i64, b: i32, c: i64, d: i32, e: i64, f: i32 => i32);
        typed_case!($engine, $random, $catches;
            a: i64, b: f64, c: i32, d: f32, e: V, f: i64, g: f64 => i32);
        typed_case!($engine, $random, $catches;
            a: f64, b: f32, c: f64, d: f32, e: f64, f: f32, g: f64, h: f32 => f64);
        typed_case!($engine, $random, $catches;
            a: f32, b: f64, c: f32, d: f64, e: f32, f: f64, g: f32, h: f64, i: f32 => f32);
        typed_case!($engine, $random, $catches;
            a: i32, b: f32, c: i64, d: f64, e: i32, f: f32, g: i64, h: f64, i: i32, j: f32 => f64);
        typed_case!($engine, $random, $catches;
            a: f64, b: i32, c: f32, d: i64, e: f64, f: i32, g: f32, h: i64, i: f64, j: i32,
            k: f32 => i64);
        typed_case!($engine, $random, $catches;
            a: i64, b: i64, c: f64, d: f64, e: i32, f: f32, g: f32, h: f32, i: f64, j: i32,
            k: f32, l: i64 => i32);
        typed_case!($engine, $random, $catches;
            a: i64, b: f64, c: f64, d: i32, e: f32, f: f32, g: i64, h: f32, i: f64, j: i32,
            k: f32, l: i64, m: f64 => f32);
        typed_case!($engine, $random, $catches;
            a: i64, b: f64, c: f64, d: i32, e: f32, f: f32, g: i64, h: f32, i: f64, j: i32,
            k: f32, l: i64, m: f64, n: i32 => f64);
        typed_case!($engine, $random, $catches;
            a: V, b: f64, c: V, d: i32, e: f32, f: f32, g: i64, h: V, i: f64, j: i32,
            k: f32, l: i64, m: f64, n: i32, o: V => V);
        typed_case!($engine, $random, $catches;
            a: i32, b: f64, c: i64, d: i32, e: f32, f: V, g: i64, h: i32, i: f64, j: i32,
            k: f32, l: i64, m: f64, n: i32, o: i64, p: f32 => i64);
    };
}

macro_rules! side {
    ($module:ident, $engine:ident, $catches:expr, $func_type:expr, $v:ty, $v128:expr, $v128_bits:expr, $waits:expr) => {
        mod $module {
            use std::sync::{Arc, Mutex};

            use $engine::{
                Caller, Engine, Extern, Func, FuncType, Instance, Module, Store, Val, ValRaw,
                ValType,
            };

            type V = $v;

            /// An instance with an import that waits.
            fn start(store: &mut Store<()>, module: &Module, import: Extern) -> Instance {
                let start: fn(&mut Store<()>, &Module, Extern) -> Instance = $waits;
                start(store, module, import)
            }

            /// Types of values, with their bits.
            trait Bits: Copy {
                const TYPE: usize;

                fn of(bits: u128) -> Self;

                fn bits(self) -> u128;
            }

            impl Bits for i32 {
                const TYPE: usize = 0;

                fn of(bits: u128) -> Self {
                    bits as u32 as i32
                }

                fn bits(self) -> u128 {
                    (self as u32).into()
                }
            }

            impl Bits for i64 {
                const TYPE: usize = 1;

                fn of(bits: u128) -> Self {
                    bits as u64 as i64
                }

                fn bits(self) -> u128 {
                    (self as u64).into()
                }
            }

            impl Bits for f32 {
                const TYPE: usize = 2;

                fn of(bits: u128) -> Self {
                    f32::from_bits(bits as u32)
                }

                fn bits(self) -> u128 {
                    self.to_bits().into()
                }
            }

            impl Bits for f64 {
                const TYPE: usize = 3;

                fn of(bits: u128) -> Self {
                    f64::from_bits(bits as u64)
                }

                fn bits(self) -> u128 {
                    self.to_bits().into()
                }
            }

            impl Bits for V {
                const TYPE: usize = 4;

                fn of(bits: u128) -> Self {
                    $v128(bits)
                }

                fn bits(self) -> u128 {
                    $v128_bits(self)
                }
            }

            /// Calls closures of exact types.
            ///
            /// # Panics
            /// If a bit differs between what goes in and what comes out.
            pub(super) fn check_typed(random: &mut super::Random) {
                let engine = Engine::default();
                typed_cases!(engine, random, $catches);
            }

            fn ty(ty: &usize) -> ValType {
                [ValType::I32, ValType::I64, ValType::F32, ValType::F64, ValType::V128][*ty].clone()
            }

            fn value(ty: &usize, bits: u128) -> Val {
                match ty {
                    0 => Val::I32(bits as u32 as i32),
                    1 => Val::I64(bits as u64 as i64),
                    2 => Val::F32(bits as u32),
                    3 => Val::F64(bits as u64),
                    _ => Val::V128($v128(bits)),
                }
            }

            fn bits(value: &Val) -> u128 {
                match value {
                    Val::I32(value) => (*value as u32).into(),
                    Val::I64(value) => (*value as u64).into(),
                    Val::F32(bits) => (*bits).into(),
                    Val::F64(bits) => (*bits).into(),
                    Val::V128(bits) => $v128_bits(*bits),
                    _ => panic!("there are no references"),
                }
            }

            fn raw(ty: &usize, bits: u128) -> ValRaw {
                match ty {
                    0 => ValRaw::i32(bits as u32 as i32),
                    1 => ValRaw::i64(bits as u64 as i64),
                    2 => ValRaw::f32(bits as u32),
                    3 => ValRaw::f64(bits as u64),
                    _ => ValRaw::v128(bits),
                }
            }

            fn raw_bits(ty: &usize, value: &ValRaw) -> u128 {
                match ty {
                    0 => (value.get_i32() as u32).into(),
                    1 => (value.get_i64() as u64).into(),
                    2 => value.get_f32().into(),
                    3 => value.get_f64().into(),
                    _ => value.get_v128(),
                }
            }

            #[allow(unsafe_code)]
            pub(super) fn seen(signature: &super::Signature) -> Vec<(String, super::Seen)> {
                let super::Signature { params, results, arguments, answers } = signature;
                let engine = Engine::default();
                let wasm = super::module(params, results, $catches);
                let module = Module::new(&engine, wasm).expect("a valid module");
                let exports = &super::EXPORTS[..if $catches { 4 } else { 3 }];
                let host_type: fn(&Engine, Vec<ValType>, Vec<ValType>) -> FuncType = $func_type;
                let types = |types: &[usize]| types.iter().map(ty).collect::<Vec<_>>();
                let host_type = host_type(&engine, types(params), types(results));
                let (called, async_type) = (Arc::new(Mutex::new(Vec::new())), host_type.clone());

                let mut store = Store::new(&engine, ());
                let (noted, returned) = (Arc::clone(&called), answers.clone());
                let result_types = results.clone();
                let host = Func::new(&mut store, host_type.clone(), move |_, params, results| {
                    *noted.lock().expect("one thread") = params.iter().map(bits).collect();
                    for (place, (ty, bits)) in
                        results.iter_mut().zip(result_types.iter().zip(&returned))
                    {
                        *place = value(ty, *bits);
                    }
                    Ok(())
                });
                let (noted, returned) = (Arc::clone(&called), answers.clone());
                let (param_types, result_types) = (params.clone(), results.clone());
                // SAFETY: the closure reads the values of that type, and writes its results.
                let unchecked = unsafe {
                    Func::new_unchecked(&mut store, host_type, move |_, cells| {
                        // Wasmtime calls its cells uninitialised.
                        let cells = (&raw mut *cells).cast::<ValRaw>();
                        let read = |(at, ty)| raw_bits(ty, &*cells.add(at));
                        *noted.lock().expect("one thread") =
                            param_types.iter().enumerate().map(read).collect();
                        for (at, (ty, bits)) in result_types.iter().zip(&returned).enumerate() {
                            cells.add(at).write(raw(ty, *bits));
                        }
                        Ok(())
                    })
                };
                let values: Vec<_> =
                    params.iter().zip(arguments).map(|(ty, bits)| value(ty, *bits)).collect();
                let mut seen = Vec::new();
                for (made_of, host) in [("slices", host), ("cells", unchecked)] {
                    let instance = Instance::new(&mut store, &module, &[host.into()]);
                    let instance = instance.expect("all is linked");
                    for export in exports {
                        let run = instance.get_func(&mut store, export).expect("it is exported");
                        let mut answer = vec![Val::I32(0); results.len()];
                        run.call(&mut store, &values, &mut answer).expect("it returns");
                        let answer = answer.iter().map(bits).collect();
                        let got = called.lock().expect("one thread").split_off(0);
                        seen.push((format!("{export}, slices to {made_of}"), (got, answer)));

                        let count = params.len().max(results.len());
                        let mut cells = vec![ValRaw::i32(0); count];
                        for (cell, (ty, bits)) in cells.iter_mut().zip(params.iter().zip(arguments))
                        {
                            *cell = raw(ty, *bits);
                        }
                        // SAFETY: there is a cell for each value, with one of its type.
                        unsafe { run.call_unchecked(&mut store, &raw mut cells[..]) }
                            .expect("it returns");
                        let read = |(ty, cell): (&usize, &ValRaw)| raw_bits(ty, cell);
                        let answer = results.iter().zip(&cells).map(read).collect();
                        let got = called.lock().expect("one thread").split_off(0);
                        seen.push((format!("{export}, cells to {made_of}"), (got, answer)));
                    }
                }

                let mut store = Store::new(&engine, ());
                let (noted, returned) = (Arc::clone(&called), answers.clone());
                let result_types = results.clone();
                let waits = Func::new_async(&mut store, async_type, move |_, params, results| {
                    *noted.lock().expect("one thread") = params.iter().map(bits).collect();
                    let returned = result_types.iter().zip(&returned);
                    let returned: Vec<_> = returned.map(|(ty, bits)| value(ty, *bits)).collect();
                    Box::new(async move {
                        super::wait().await;
                        results.clone_from_slice(&returned);
                        Ok(())
                    })
                });
                let instance = start(&mut store, &module, waits.into());
                for export in exports {
                    let run = instance.get_func(&mut store, export).expect("it is exported");
                    let mut answer = vec![Val::I32(0); results.len()];
                    super::block_on(run.call_async(&mut store, &values, &mut answer))
                        .expect("it returns");
                    let answer = answer.iter().map(bits).collect();
                    let got = called.lock().expect("one thread").split_off(0);
                    seen.push((format!("{export}, slices to slices that wait"), (got, answer)));
                }
                seen
            }
        }
    };
}

side!(
    pagefork_side,
    pagefork,
    true,
    |_, params, results| FuncType { params: params.into(), results: results.into() },
    u128,
    std::convert::identity,
    std::convert::identity::<u128>,
    |store, module, import| Instance::new(store, module, &[import]).expect("all is linked")
);
#[cfg(feature = "peer")]
side!(
    wasmtime_side,
    wasmtime,
    false,
    |engine, params, results| FuncType::new(engine, params, results),
    wasmtime::V128,
    wasmtime::V128::from,
    |bits: wasmtime::V128| bits.as_u128(),
    |store, module, import| {
        super::block_on(Instance::new_async(store, module, &[import])).expect("all is linked")
    }
);
