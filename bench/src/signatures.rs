//! Calls of functions of random types, in both directions, beside the peer: not timed, but each bit
//! is compared before calls are.

use std::fmt::Write as _;

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

    /// A module whose function calls the host with what it is called with.
    fn module(&self) -> Vec<u8> {
        let types =
            |types: &[usize]| types.iter().fold(String::new(), |text, ty| text + " " + TYPES[*ty]);
        let ty = format!("(param{}) (result{})", types(&self.params), types(&self.results));
        let mut text = format!("(module (import \"host\" \"f\" (func $f {ty}))\n");
        write!(text, "(func (export \"run\") {ty}").expect("a string");
        for index in 0..self.params.len() {
            write!(text, " (local.get {index})").expect("a string");
        }
        text += " (call $f)))";
        wat::parse_str(text).expect("a module")
    }
}

/// What the host was called with, and what the guest has returned.
type Seen = (Vec<u128>, Vec<u128>);

/// Calls functions of this many types.
///
/// # Panics
/// If a bit differs between what goes in and what comes out, or between the engines.
pub(crate) fn check(count: usize) {
    let mut random = Random(1);
    for _ in 0..count {
        let signature = Signature::new(&mut random);
        let expected = (signature.arguments.clone(), signature.answers.clone());
        let wasm = signature.module();
        for (way, seen) in pagefork_side::seen(&signature, &wasm) {
            assert_eq!(seen, expected, "{way}: {:?} -> {:?}", signature.params, signature.results);
        }
        #[cfg(feature = "peer")]
        for (way, seen) in wasmtime_side::seen(&signature, &wasm) {
            assert_eq!(seen, expected, "peer, {way}");
        }
    }
}

macro_rules! side {
    ($module:ident, $engine:ident, $func_type:expr, $v128:expr, $v128_bits:expr) => {
        mod $module {
            use std::sync::{Arc, Mutex};

            use $engine::{Engine, Func, FuncType, Instance, Module, Store, Val, ValRaw, ValType};

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
            pub(super) fn seen(
                signature: &super::Signature,
                wasm: &[u8],
            ) -> Vec<(&'static str, super::Seen)> {
                let super::Signature { params, results, arguments, answers } = signature;
                let engine = Engine::default();
                let module = Module::new(&engine, wasm).expect("a valid module");
                let host_type: fn(&Engine, Vec<ValType>, Vec<ValType>) -> FuncType = $func_type;
                let types = |types: &[usize]| types.iter().map(ty).collect::<Vec<_>>();
                let host_type = host_type(&engine, types(params), types(results));
                let called = Arc::new(Mutex::new(Vec::new()));

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
                let mut seen = Vec::new();
                for (way, unchecked_way, host) in [
                    ("slices to slices", "cells to slices", host),
                    ("slices to cells", "cells to cells", unchecked),
                ] {
                    let instance = Instance::new(&mut store, &module, &[host.into()]);
                    let run = instance.and_then(|instance| {
                        Ok(instance.get_func(&mut store, "run").expect("it is exported"))
                    });
                    let run = run.expect("all is linked");
                    let values: Vec<_> =
                        params.iter().zip(arguments).map(|(ty, bits)| value(ty, *bits)).collect();
                    let mut answer = vec![Val::I32(0); results.len()];
                    run.call(&mut store, &values, &mut answer).expect("it returns");
                    let answer = answer.iter().map(bits).collect();
                    seen.push((way, (called.lock().expect("one thread").split_off(0), answer)));

                    let count = params.len().max(results.len());
                    let mut cells = vec![ValRaw::i32(0); count];
                    for (cell, (ty, bits)) in cells.iter_mut().zip(params.iter().zip(arguments)) {
                        *cell = raw(ty, *bits);
                    }
                    // SAFETY: there is a cell for each value, with one of its type.
                    unsafe { run.call_unchecked(&mut store, &raw mut cells[..]) }
                        .expect("it returns");
                    let answer =
                        results.iter().zip(&cells).map(|(ty, cell)| raw_bits(ty, cell)).collect();
                    let called = called.lock().expect("one thread").split_off(0);
                    seen.push((unchecked_way, (called, answer)));
                }
                seen
            }
        }
    };
}

side!(
    pagefork_side,
    pagefork,
    |_, params, results| FuncType { params: params.into(), results: results.into() },
    std::convert::identity,
    std::convert::identity::<u128>
);
#[cfg(feature = "peer")]
side!(
    wasmtime_side,
    wasmtime,
    |engine, params, results| FuncType::new(engine, params, results),
    wasmtime::V128::from,
    |bits: wasmtime::V128| bits.as_u128()
);
