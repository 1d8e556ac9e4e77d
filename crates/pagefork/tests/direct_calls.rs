//! Calls in both directions carry values of every type as they are, however they are made: with
//! values in registers, in cells, on slices, through references, from a frame that catches.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use pagefork::{
    Caller, Engine, Error, Exception, Func, FuncType, Instance, InterruptHandle, Linker, Module,
    Result, Store, Tag, Trap, TrapCode, TypedFunc, Val, ValType, WasmTy,
};

/// A module that imports `host.f` of this type, and exports functions that call it with their own
/// arguments and return what it returns.
fn forwarding(params: &[ValType], results: &[ValType]) -> String {
    let list = |kind: &str, types: &[ValType]| match types {
        [] => String::new(),
        types => {
            let types: Vec<String> = types.iter().map(ToString::to_string).collect();
            format!("({kind} {})", types.join(" "))
        }
    };
    let ty = format!("{} {}", list("param", params), list("result", results));
    let args: String = (0..params.len()).map(|i| format!("(local.get {i})")).collect();
    let block = list("result", results);
    format!(
        r#"(module
            (type $t (func {ty}))
            (import "host" "f" (func $f (type $t)))
            (table 1 funcref)
            (elem (i32.const 0) $f)
            (tag $unused)
            (func (export "plain") (type $t) (call $f {args}))
            (func (export "inner") (type $t) (call $own {args}))
            (func $own (type $t) (call $f {args}))
            (func (export "tail") (type $t) (return_call $f {args}))
            (func (export "reference") (type $t)
                (call_indirect (type $t) {args} (i32.const 0)))
            (func (export "catching") (type $t)
                (block $caught
                    (try_table {block} (catch $unused $caught) (call $f {args}))
                    (return))
                (unreachable))
            (export "import" (func $f)))"#
    )
}

const EXPORTS: [&str; 6] = ["plain", "inner", "tail", "reference", "catching", "import"];

/// Numbers that look like no other.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        self.0 ^ self.0 >> 29
    }

    fn value(&mut self, ty: ValType) -> Val {
        match ty {
            ValType::I32 => Val::I32(self.next() as i32),
            ValType::I64 => Val::I64(self.next() as i64),
            // Of eight one is not a number: its bits stay.
            ValType::F32 => {
                Val::F32(self.next() as u32 | [0, 0x7f80_0000][(self.0 % 8 / 7) as usize])
            }
            ValType::F64 => Val::F64(self.next() | [0, 0x7ff0 << 48][(self.0 % 8 / 7) as usize]),
            ValType::V128 => Val::V128(u128::from(self.next()) << 64 | u128::from(self.next())),
            ValType::Ref(_) => Val::ExternRef(None),
        }
    }

    fn types(&mut self, max: u64) -> Vec<ValType> {
        const TYPES: [ValType; 6] = [
            ValType::I32,
            ValType::I64,
            ValType::F32,
            ValType::F64,
            ValType::V128,
            ValType::EXTERNREF,
        ];
        (0..self.next() % (max + 1)).map(|_| TYPES[self.next() as usize % 6]).collect()
    }
}

fn shown(values: &[Val]) -> String {
    format!("{values:?}")
}

#[test]
fn values_of_any_signature_pass_at_each_level() -> Result<()> {
    let engine = Engine::default();
    let mut random = Random(1);
    for round in 0..150 {
        let (params, results) = (random.types(round / 7), random.types(round / 7));
        let module = Module::new(&engine, forwarding(&params, &results))?;
        let given: Vec<Val> = params.iter().map(|ty| random.value(*ty)).collect();
        let returned: Vec<Val> = results.iter().map(|ty| random.value(*ty)).collect();
        let mut store = Store::new(&engine, ());
        let ty = FuncType { params: params.clone().into(), results: results.clone().into() };
        let (expected, answer) = (shown(&given), returned.clone());
        let f = Func::new(&mut store, ty, move |_: Caller<'_, ()>, params, results| {
            assert_eq!(shown(params), expected);
            results.clone_from_slice(&answer);
            Ok(())
        });
        let instance = Instance::new(&mut store, &module, &[f.into()])?;
        for export in EXPORTS {
            let function = instance.get_func(&mut store, export).expect("an export");
            for _ in 0..3 {
                let mut found = vec![Val::I32(0); results.len()];
                function.call(&mut store, &given, &mut found)?;
                assert_eq!(shown(&found), shown(&returned), "{export} of {params:?} {results:?}");
            }
        }
    }
    Ok(())
}

/// Calls a host function with these arguments in every way; each call must return `expected`.
fn check<R>(
    store: &mut Store<u32>,
    f: Func,
    given: &[Val],
    call: impl Fn(&mut Store<u32>, &Func) -> R,
    expected: R,
) where
    R: Debug + PartialEq,
{
    let ty = f.ty(&*store);
    let module = Module::new(store.engine(), forwarding(&ty.params, &ty.results)).unwrap();
    let instance = Instance::new(&mut *store, &module, &[f.into()]).unwrap();
    for export in EXPORTS {
        let function = instance.get_func(&mut *store, export).expect("an export");
        assert_eq!(call(store, &function), expected, "{export} of {ty}, typed");
        let mut results = vec![Val::I32(0); ty.results.len()];
        function.call(&mut *store, given, &mut results).unwrap();
        let mut again = vec![Val::I32(0); ty.results.len()];
        f.call(&mut *store, given, &mut again).unwrap();
        assert_eq!(shown(&results), shown(&again), "{export} of {ty}, on slices");
    }
}

macro_rules! signatures {
    ($store:ident; $(($($name:ident: $ty:ty = $value:expr),*) -> $result:ty { $body:expr })*) => {$({
        type Params = ($($ty,)*);
        let expected = |$($name: $ty),*| -> $result { $body };
        let expected = expected($($value),*);
        let given: Vec<Val> = vec![$(Val::from({ let $name: $ty = $value; $name })),*];
        let call = |store: &mut Store<u32>, function: &Func| {
            let typed: TypedFunc<Params, $result> = function.typed(&*store).unwrap();
            typed.call(store, ($($value,)*)).unwrap()
        };
        let f = Func::wrap(&mut $store, |$($name: $ty),*| -> $result { $body });
        check::<$result>(&mut $store, f, &given, call, expected);
        let before = *$store.data();
        let f = Func::wrap(&mut $store, |mut caller: Caller<'_, u32>, $($name: $ty),*| -> $result {
            *caller.data_mut() += 1;
            $body
        });
        check::<$result>(&mut $store, f, &given, call, expected);
        assert_eq!(*$store.data() - before, 18);
    })*};
}

#[test]
fn closures_of_exact_types_get_and_give_what_they_should() {
    let mut store = Store::new(&Engine::default(), 0u32);
    signatures! { store;
        () -> () { () }
        () -> i32 { -5 }
        () -> i64 { i64::MIN }
        () -> f32 { 1.5 }
        () -> f64 { -0.25 }
        (a: i32 = -1) -> i32 { a - 1 }
        (a: i64 = i64::MAX) -> () { assert_eq!(a, i64::MAX) }
        (a: f32 = 3.5) -> f64 { f64::from(a) + 0.125 }
        (a: f64 = 1e300) -> i64 { (a / 1e290) as i64 }
        (a: i32 = 1, b: i64 = 2, c: i32 = 3, d: i64 = -4, e: i32 = i32::MIN) -> i64 {
            i64::from(a) + 10 * b + 100 * i64::from(c) + 1000 * d + i64::from(e)
        }
        // One integer too many for registers.
        (a: i32 = 1, b: i64 = 2, c: i32 = 3, d: i64 = -4, e: i32 = 5, f: i32 = 6) -> i64 {
            i64::from(a) + 10 * b + 100 * i64::from(c) + 1000 * d + i64::from(e * 7 + f)
        }
        (a: f64 = 1.0, b: f32 = 2.0, c: f64 = 4.0, d: f64 = 8.0, e: f32 = 16.0, f: f64 = 32.0,
            g: f64 = 64.0, h: f32 = 128.0) -> f64 {
            a + 3.0 * f64::from(b) - c * d + f64::from(e) / f - g * f64::from(h)
        }
        // One float too many.
        (a: f64 = 1.0, b: f32 = 2.0, c: f64 = 4.0, d: f64 = 8.0, e: f32 = 16.0, f: f64 = 32.0,
            g: f64 = 64.0, h: f32 = 128.0, i: f32 = 0.5) -> f32 {
            (a + 3.0 * f64::from(b) - c * d + f64::from(e) / f - g * f64::from(h * i)) as f32
        }
        (a: f64 = 0.5, b: i32 = 9, c: f32 = 0.25, d: i64 = 1i64 << 40, e: f64 = -1.0, f: i32 = 3) -> f32 {
            (a + f64::from(b) + d as f64 * e + f64::from(f)) as f32 + c
        }
        (a: i32 = 7, b: f64 = 2.5) -> (i32, f64) { (a * 2, b * 2.0) }
        (a: u128 = (1u128 << 100) + 5, b: i32 = 1) -> u128 { a << b }
        (a: i32 = 1, b: i32 = 2, c: i32 = 3, d: i32 = 4, e: i32 = 5, f: i32 = 6, g: i32 = 7,
            h: i32 = 8, i: i32 = 9, j: i32 = 10, k: i32 = 11, l: i32 = 12, m: i32 = 13, n: i32 = 14,
            o: i32 = 15, p: i32 = 16) -> (i32, i64, i32) {
            (a + b * c - d * e + f * g - h * i, i64::from(j * k - l * m), n + o * p)
        }
    }
}

#[test]
fn bits_of_what_is_not_a_number_stay() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let module = Module::new(store.engine(), forwarding(&[ValType::F32], &[ValType::F64]))?;
    let f = Func::wrap(&mut store, |value: f32| {
        assert_eq!(value.to_bits(), 0xffa5_a5a5);
        f64::from_bits(0x7ff4_dead_beef_5a5a)
    });
    let instance = Instance::new(&mut store, &module, &[f.into()])?;
    for export in EXPORTS {
        let typed = instance.get_typed_func::<f32, f64>(&mut store, export)?;
        let result = typed.call(&mut store, f32::from_bits(0xffa5_a5a5))?;
        assert_eq!(result.to_bits(), 0x7ff4_dead_beef_5a5a, "{export}");
    }
    Ok(())
}

/// Numbers of 32 bits leave nothing in the upper half of a register.
#[test]
fn narrow_results_are_narrow() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let module = r#"(module (import "" "f" (func $f (param i64) (result i32)))
        (func (export "run") (param i64) (result i64)
            (i64.extend_i32_u (call $f (local.get 0)))))"#;
    let module = Module::new(store.engine(), module)?;
    let f = Func::wrap(&mut store, |value: i64| value as i32);
    let instance = Instance::new(&mut store, &module, &[f.into()])?;
    let run = instance.get_typed_func::<i64, i64>(&mut store, "run")?;
    assert_eq!(run.call(&mut store, -1)?, 0xffff_ffff);
    assert_eq!(run.call(&mut store, 0x1234_5678_9abc_def0)?, 0x9abc_def0);
    Ok(())
}

/// What a direct call does that does not return: the guest is left, and can be entered again.
#[test]
fn errors_and_panics_leave_the_guest_whole() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let module = Module::new(store.engine(), forwarding(&[ValType::I32], &[ValType::F64]))?;
    let f = Func::wrap(&mut store, |what: i32| match what {
        0 => Err("this is the error"),
        1 => panic!("this is the panic"),
        what => Ok(f64::from(what)),
    });
    let instance = Instance::new(&mut store, &module, &[f.into()])?;
    for export in EXPORTS {
        let run = instance.get_typed_func::<i32, f64>(&mut store, export)?;
        for _ in 0..3 {
            let error = run.call(&mut store, 0).unwrap_err();
            assert!(error.to_string().contains("this is the error"), "{export}: {error}");
            let panic = catch_unwind(AssertUnwindSafe(|| run.call(&mut store, 1))).unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"this is the panic"), "{export}");
            assert_eq!(run.call(&mut store, 2)?, 2.0, "{export}");
        }
    }
    Ok(())
}

/// Guest and host call each other until one of the stacks is full.
#[test]
fn calls_nest_to_the_depth_of_the_stacks() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (import "" "down" (func $down (param i64) (result i64)))
            (func (export "run") (param i64) (result i64)
                (if (result i64) (i64.eqz (local.get 0))
                    (then (i64.const 1000))
                    (else (i64.add (i64.const 1) (call $down (local.get 0)))))))"#,
    )?;
    let mut store = Store::new(&engine, None::<TypedFunc<i64, i64>>);
    let mut linker = Linker::new(&engine);
    type Data = Option<TypedFunc<i64, i64>>;
    linker.func_wrap("", "down", |mut caller: Caller<'_, Data>, depth: i64| {
        let run = caller.data().expect("it is set");
        run.call(&mut caller, depth - 1)
    })?;
    let instance = linker.instantiate(&mut store, &module)?;
    let run = instance.get_typed_func::<i64, i64>(&mut store, "run")?;
    *store.data_mut() = Some(run);
    assert_eq!(run.call(&mut store, 300)?, 1300);
    let error = run.call(&mut store, 1 << 40).unwrap_err();
    let trap = error.downcast_ref::<Trap>().expect("a trap");
    assert_eq!(trap.code(), TrapCode::StackOverflow);
    assert_eq!(run.call(&mut store, 300)?, 1300);
    Ok(())
}

/// The guest's stack ends at any place of a direct call.
#[test]
fn a_full_stack_at_a_direct_call_is_a_trap() -> Result<()> {
    let mut store = Store::new(&Engine::default(), 0);
    let text = |locals: usize| {
        format!(
            r#"(module (import "" "f" (func $f (param i32) (result i32)))
            (func $run (export "run") (param i32) (result i32) {}
                (call $f (i32.add (local.get 0) (call $run (call $f (local.get 0)))))))"#,
            "(local i64)".repeat(locals)
        )
    };
    let f = Func::wrap(&mut store, |mut caller: Caller<'_, i32>, value: i32| {
        *caller.data_mut() += 1;
        value
    });
    for locals in 0..8 {
        let module = Module::new(store.engine(), text(locals))?;
        let instance = Instance::new(&mut store, &module, &[f.into()])?;
        let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
        for _ in 0..2 {
            let error = run.call(&mut store, 1).unwrap_err();
            let trap = error.downcast_ref::<Trap>().expect("a trap");
            assert_eq!(trap.code(), TrapCode::StackOverflow);
        }
    }
    assert!(*store.data() > 1000);
    Ok(())
}

/// A trap below a direct call names the frames on both sides of it.
#[test]
fn backtraces_go_through_direct_calls() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let module = Module::new(
        store.engine(),
        r#"(module (import "" "fail" (func $fail (param i32)))
            (func $inner (call $fail (i32.const 1)))
            (func $outer (export "run") (call $inner)))"#,
    )?;
    let fail = Func::wrap(&mut store, |_: i32| Err::<(), _>("no"));
    let instance = Instance::new(&mut store, &module, &[fail.into()])?;
    let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
    let error = run.call(&mut store, ()).unwrap_err();
    let shown = format!("{error:?}");
    let (inner, outer) = (shown.find("inner"), shown.find("outer"));
    assert!(inner.is_some() && inner < outer, "{shown}");
    Ok(())
}

/// A store that goes while somebody holds a handle is spawned again with other handles: what these say
/// is looked at where direct calls return, though what calls go by was written before.
#[test]
fn interrupts_of_a_store_that_is_spawned_again_end_direct_calls() -> Result<()> {
    let engine = Engine::default();
    let module = r#"(module (import "host" "f" (func $f (result i64)))
        (func (export "run") (result i64) (call $f)))"#;
    let module = Module::new(&engine, module)?;
    let handle = Arc::new(Mutex::new(None::<InterruptHandle>));
    let interrupts = Arc::clone(&handle);
    let mut linker = Linker::<()>::new(&engine);
    linker.func_wrap("host", "f", move || {
        if let Some(handle) = &*interrupts.lock().unwrap() {
            handle.interrupt();
        }
        7i64
    })?;
    let pre = linker.instantiate_pre(&module)?;
    let mut held = Vec::new();
    for spawned_again in [false, true] {
        let (mut store, instance) = pre.spawn(())?;
        let run = instance.get_typed_func::<(), i64>(&mut store, "run")?;
        assert_eq!(run.call(&mut store, ())?, 7);
        held.push(store.interrupt_handle()?);
        if spawned_again {
            *handle.lock().unwrap() = held.pop();
            let error = run.call(&mut store, ()).unwrap_err();
            let trap = error.downcast_ref::<Trap>().map(Trap::code);
            assert_eq!(trap, Some(TrapCode::Interrupt), "{error}");
        }
    }
    Ok(())
}

/// A direct call at a plain call site throws; frames further out catch, with all that they keep in
/// registers across the calls.
#[test]
fn exceptions_of_direct_calls_are_caught_further_out() -> Result<()> {
    fn check<R: WasmTy + Send + Sync>(value: R) -> Result<()> {
        let results = match R::TYPE {
            ValType::I32 => ("i32", "(drop)"),
            ValType::I64 => ("i64", "(drop)"),
            ValType::F32 => ("f32", "(drop)"),
            _ => ("f64", "(drop)"),
        };
        let throws = move |mut caller: Caller<'_, Option<Tag>>, throws: i32, _: f64, n: i64| {
            let tag = caller.data_mut().expect("it is set");
            match throws {
                0 => Ok(value),
                _ => Err(Error::from(Exception::new(&caller, &tag, &[Val::I64(n)])?)),
            }
        };
        check_thrown(results, |store| Func::wrap(store, throws))
    }
    check(7i32)?;
    check(7i64)?;
    check(7f32)?;
    check(7f64)?;
    let throws = |mut caller: Caller<'_, Option<Tag>>, throws: i32, _: f64, n: i64| {
        let tag = caller.data_mut().expect("it is set");
        match throws {
            0 => Ok(()),
            _ => Err(Error::from(Exception::new(&caller, &tag, &[Val::I64(n)])?)),
        }
    };
    check_thrown(("", ""), |store| Func::wrap(store, throws))
}

/// Calls a function that throws if its first argument is not 0 from frames that keep much.
fn check_thrown(
    (result, drop): (&str, &str),
    make: impl FnOnce(&mut Store<Option<Tag>>) -> Func,
) -> Result<()> {
    let ty = match result {
        "" => "(param i32 f64 i64)".to_owned(),
        result => format!("(param i32 f64 i64) (result {result})"),
    };
    let keep = "
        (local.set $a (i64.mul (local.get 2) (i64.const 3)))
        (local.set $b (i64.xor (local.get 2) (i64.const 5)))
        (local.set $c (i64.add (local.get 2) (i64.const 7)))
        (local.set $d (i64.sub (local.get 2) (i64.const 11)))
        (local.set $e (i64.mul (local.get 2) (local.get 2)))
        (local.set $x (f64.mul (local.get 1) (f64.const 2)))";
    let sum = "(i64.add (i64.add (i64.add (local.get $a) (local.get $b))
            (i64.add (local.get $c) (local.get $d)))
        (i64.add (local.get $e) (i64.trunc_f64_s (local.get $x))))";
    let locals = "(local $a i64) (local $b i64) (local $c i64) (local $d i64) (local $e i64)
        (local $x f64)";
    let pass = |callee: &str| {
        format!(
            "(call {callee} (local.get 0) (f64.add (local.get 1) (f64.const 1))
                (i64.add (local.get 2) (i64.const 1)))"
        )
    };
    // A frame between, which keeps other values in the same registers, and does not catch.
    let between = |name: &str, callee: &str| {
        format!(
            "(func {name} (type $t) {locals} {keep} {}
                (if (i64.eq (i64.const 1) {sum}) (then unreachable)))",
            pass(callee)
        )
    };
    let text = format!(
        r#"(module
            (type $t (func {ty}))
            (import "" "f" (func $f (type $t)))
            (import "" "t" (tag $t (param i64)))
            {} {}
            (export "middle" (func $middle))
            (func (export "run") (param i32 f64 i64) (result i64) (local $got i64) {locals} {keep}
                (block $caught (result i64)
                    (try_table (catch $t $caught) {} {drop})
                    (return {sum}))
                (local.set $got)
                (i64.add (i64.mul (local.get $got) (i64.const 1000000)) {sum})))"#,
        between("$inner", "$f"),
        between("$middle", "$inner"),
        pass("$middle"),
    );
    let engine = Engine::default();
    let mut store = Store::new(&engine, None);
    let tag = Tag::new(&mut store, FuncType::new([ValType::I64], []))?;
    *store.data_mut() = Some(tag);
    let f = make(&mut store);
    let instance =
        Instance::new(&mut store, &Module::new(&engine, text)?, &[f.into(), tag.into()])?;
    let run = instance.get_typed_func::<(i32, f64, i64), i64>(&mut store, "run")?;
    let middle = instance.get_func(&mut store, "middle").expect("an export");
    for n in 1..20 {
        let x = n as f64 * 0.5;
        let kept = n * 3 + (n ^ 5) + (n + 7) + (n - 11) + n * n + n;
        assert_eq!(run.call(&mut store, (0, x, n))?, kept, "{result}");
        assert_eq!(run.call(&mut store, (1, x, n))?, (n + 3) * 1_000_000 + kept, "{result}");
        // Nobody catches it.
        let mut results = vec![Val::I32(0); usize::from(!result.is_empty())];
        let given = [Val::I32(1), Val::from(x), Val::I64(n)];
        let error = middle.call(&mut store, &given, &mut results).unwrap_err();
        let exception = error.downcast_ref::<Exception>().expect("an exception");
        assert_eq!(exception.payload()[0].i64(), Some(n + 2));
    }
    Ok(())
}
