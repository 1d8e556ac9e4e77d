use crate::measure::{Effort, Row, Size, Work, compare};

/// The modules that are spawned, a nop call each: name and text.
fn modules() -> Vec<(&'static str, String)> {
    let mut globals = String::new();
    for i in 0..20 {
        globals += &format!("(global (mut i32) (i32.const {i}))");
    }
    let data = "x".repeat(1 << 20);
    vec![
        ("empty module", r#"(module (func (export "run")))"#.to_owned()),
        ("one memory", r#"(module (memory 1) (func (export "run")))"#.to_owned()),
        (
            "16 MiB memory, 1 MiB image, table, 20 globals",
            format!(
                r#"(module (memory 256) (data (i32.const 0) "{data}") (table 100 funcref)
                (elem (i32.const 0) $run) {globals} (func $run (export "run")))"#
            ),
        ),
        (
            "the same, one page dirtied",
            format!(
                r#"(module (memory 256) (data (i32.const 0) "{data}") (table 100 funcref)
                (elem (i32.const 0) $run) {globals}
                (func $run (export "run") (i32.store (i32.const 4096) (i32.const 1))))"#
            ),
        ),
    ]
}

/// Times a new store, an instance, a call and dropping all.
pub fn run(size: Size) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, text) in modules() {
        let wasm = wat::parse_str(&text).expect("a module");
        let mut ours = pagefork_side::spawner(&wasm);
        #[cfg(feature = "peer")]
        let mut theirs = wasmtime_side::spawner(&wasm);
        #[cfg(feature = "peer")]
        let peer: Option<Work<'_>> = Some(&mut theirs);
        #[cfg(not(feature = "peer"))]
        let peer: Option<Work<'_>> = None;
        rows.push(compare(name, Effort::short(size), 1, &mut ours, peer));
    }
    rows
}

macro_rules! side {
    ($module:ident, $engine:ident) => {
        mod $module {
            use $engine::{Engine, Linker, Module, Store};

            /// Spawns on demand, without pools.
            pub(super) fn spawner(wasm: &[u8]) -> impl FnMut() -> u64 + use<> {
                let engine = Engine::default();
                let module = Module::new(&engine, wasm).expect("a valid module");
                let linker = Linker::<()>::new(&engine);
                let pre = linker.instantiate_pre(&module).expect("nothing to link");
                move || {
                    let mut store = Store::new(&engine, ());
                    let instance = pre.instantiate(&mut store).expect("a slot");
                    let run = instance.get_typed_func::<(), ()>(&mut store, "run").expect("run");
                    u64::from(run.call(&mut store, ()).is_ok())
                }
            }
        }
    };
}

side!(pagefork_side, pagefork);
#[cfg(feature = "peer")]
side!(wasmtime_side, wasmtime);
