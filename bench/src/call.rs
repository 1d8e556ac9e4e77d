//! Entering functions, and calling the host from them.

use crate::measure::{Effort, Row, Size, Work, compare};

/// The three calls of wasmtime PR 3319, and Wasm calling the host in a loop.
const WAT: &str = r#"(module
    (import "host" "i64" (func $i64 (result i64)))
    (import "host" "many" (func $many (param i32 i32 i32 i32 i32) (result i32)))
    (func (export "nop"))
    (func (export "i64") (result i64) (call $i64))
    (func (export "many")
        (drop (call $many
            (i32.const 1) (i32.const 2) (i32.const 3) (i32.const 4) (i32.const 5))))
    (func (export "loop") (param $count i32) (result i64) (local $sum i64)
        (loop $next
            (local.set $sum (i64.add (local.get $sum) (call $i64)))
            (local.set $count (i32.sub (local.get $count) (i32.const 1)))
            (br_if $next (local.get $count)))
        (local.get $sum))
    (func (export "trap") unreachable))"#;

/// Host calls an iteration of `loop`.
const LOOP_COUNT: u32 = 100;

/// Times each kind of call.
pub fn run(size: Size) -> Vec<Row> {
    let mut ours = pagefork_side::Calls::new(WAT);
    #[cfg(feature = "peer")]
    let mut theirs = wasmtime_side::Calls::new(WAT);
    let mut rows = Vec::new();
    macro_rules! row {
        ($name:literal, $expected:expr, $method:ident) => {{
            let mut work = || ours.$method();
            #[cfg(feature = "peer")]
            let mut peer = || theirs.$method();
            #[cfg(feature = "peer")]
            let peer: Option<Work<'_>> = Some(&mut peer);
            #[cfg(not(feature = "peer"))]
            let peer: Option<Work<'_>> = None;
            rows.push(compare($name, Effort::short(size), $expected, &mut work, peer));
        }};
    }
    row!("typed nop", 0, nop);
    row!("typed i64 through the host", 7, i64);
    row!("typed many through the host", 0, many);
    row!("untyped nop", 0, untyped);
    row!("100 host calls in a loop", 700, looped);
    row!("trap", 1, trap);
    rows
}

macro_rules! side {
    ($module:ident, $engine:ident) => {
        mod $module {
            use $engine::{Engine, Func, Linker, Module, Store, TypedFunc};

            pub(super) struct Calls {
                store: Store<()>,
                nop: TypedFunc<(), ()>,
                i64: TypedFunc<(), i64>,
                many: TypedFunc<(), ()>,
                looped: TypedFunc<u32, i64>,
                trap: TypedFunc<(), ()>,
                untyped: Func,
            }

            impl Calls {
                pub(super) fn new(wat: &str) -> Self {
                    let engine = Engine::default();
                    let wasm = wat::parse_str(wat).expect("a module");
                    let module = Module::new(&engine, wasm).expect("a valid module");
                    let mut linker = Linker::new(&engine);
                    linker.func_wrap("host", "i64", || 7i64).expect("a new name");
                    linker
                        .func_wrap("host", "many", |a: i32, b: i32, c: i32, d: i32, e: i32| {
                            a + b + c + d + e
                        })
                        .expect("a new name");
                    let mut store = Store::new(&engine, ());
                    let instance = linker.instantiate(&mut store, &module).expect("all is linked");
                    macro_rules! func {
                        ($name:literal) => {
                            instance.get_typed_func(&mut store, $name).expect("an export")
                        };
                    }
                    Self {
                        nop: func!("nop"),
                        i64: func!("i64"),
                        many: func!("many"),
                        looped: func!("loop"),
                        trap: func!("trap"),
                        untyped: instance.get_func(&mut store, "nop").expect("an export"),
                        store,
                    }
                }

                pub(super) fn nop(&mut self) -> u64 {
                    self.nop.call(&mut self.store, ()).map_or(1, |()| 0)
                }

                pub(super) fn i64(&mut self) -> u64 {
                    self.i64.call(&mut self.store, ()).map_or(0, |value| value as u64)
                }

                pub(super) fn many(&mut self) -> u64 {
                    self.many.call(&mut self.store, ()).map_or(1, |()| 0)
                }

                pub(super) fn untyped(&mut self) -> u64 {
                    self.untyped.call(&mut self.store, &[], &mut []).map_or(1, |()| 0)
                }

                pub(super) fn looped(&mut self) -> u64 {
                    self.looped.call(&mut self.store, super::LOOP_COUNT).map_or(0, |sum| sum as u64)
                }

                pub(super) fn trap(&mut self) -> u64 {
                    u64::from(self.trap.call(&mut self.store, ()).is_err())
                }
            }
        }
    };
}

side!(pagefork_side, pagefork);
#[cfg(feature = "peer")]
side!(wasmtime_side, wasmtime);
