use crate::measure::{Row, Size, Work, compare};

/// Times compilation of a module with many small functions.
pub fn run(size: Size) -> Vec<Row> {
    let count = if size == Size::Small { 10 } else { 2000 };
    let mut text = String::from("(module (memory 1)");
    for i in 0..count {
        text += &format!(
            "(func (param i32 i64) (result i64)
                (if (i32.gt_s (local.get 0) (i32.const {i}))
                    (then (i64.store (local.get 0) (local.get 1))))
                (loop $next
                    (local.set 1 (i64.add (local.get 1) (i64.load (local.get 0))))
                    (br_if $next (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
                (i64.mul (local.get 1) (i64.const {i})))"
        );
    }
    text += ")";
    let wasm = wat::parse_str(&text).expect("a module");
    let engine = pagefork::Engine::default();
    let mut ours = || u64::from(pagefork::Module::new(&engine, &wasm).is_ok());
    #[cfg(feature = "peer")]
    let engine = wasmtime::Engine::default();
    #[cfg(feature = "peer")]
    let mut theirs = || u64::from(wasmtime::Module::new(&engine, &wasm).is_ok());
    #[cfg(feature = "peer")]
    let peer: Option<Work<'_>> = Some(&mut theirs);
    #[cfg(not(feature = "peer"))]
    let peer: Option<Work<'_>> = None;
    vec![compare(&format!("{count} functions"), size, 1, &mut ours, peer)]
}
