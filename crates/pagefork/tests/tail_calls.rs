//! Tail calls take no stack, and typed references are called without a look at
//! their type.

use pagefork::{Engine, Instance, Linker, Module, Result, Store, Trap, TrapCode};

fn run(text: &str, argument: i32) -> Result<i32> {
    let engine = Engine::default();
    let module = Module::new(&engine, text)?;
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[])?;
    instance.get_typed_func::<i32, i32>(&mut store, "f")?.call(&mut store, argument)
}

/// More turns than a stack of any size has frames.
const MANY: i32 = 10_000_000;

#[test]
fn each_kind_of_tail_call_takes_no_stack() -> Result<()> {
    for call in ["(return_call $even", "(return_call_indirect (type $t)", "(return_call_ref $t"] {
        let callee = match call {
            "(return_call $even" => "",
            "(return_call_indirect (type $t)" => "(i32.const 0)",
            _ => "(ref.func $even)",
        };
        let text = format!(
            r#"(module
                (type $t (func (param i32) (result i32)))
                (table funcref (elem $even))
                (func $odd (type $t)
                    (if (i32.eqz (local.get 0)) (then (return (i32.const 0))))
                    {call} (i32.sub (local.get 0) (i32.const 1)) {callee}))
                (func $even (export "f") (type $t)
                    (if (i32.eqz (local.get 0)) (then (return (i32.const 1))))
                    (return_call $odd (i32.sub (local.get 0) (i32.const 1)))))"#
        );
        assert_eq!(run(&text, MANY)?, 1, "{call}");
        assert_eq!(run(&text, MANY + 1)?, 0, "{call}");
    }
    Ok(())
}

#[test]
fn tail_calls_between_functions_with_arguments_on_the_stack() -> Result<()> {
    // More parameters than registers, in different numbers and orders.
    let params = |count: usize| (0..count).map(|_| " i64").collect::<String>();
    let gets =
        |order: &[usize]| order.iter().map(|i| format!(" (local.get {i})")).collect::<String>();
    let many: Vec<usize> = (1..=20).rev().collect();
    let text = format!(
        r#"(module
            (func $few (param i32{few}) (result i32)
                (if (i32.eqz (local.get 0)) (then (return (i32.wrap_i64 (local.get 2)))))
                (return_call $many (i32.sub (local.get 0) (i32.const 1)) {few_gets}{zeros}))
            (func $many (param i32{many_params}) (result i32)
                (if (i32.eqz (local.get 0)) (then (return (i32.wrap_i64 (local.get 3)))))
                (drop{all})
                (return_call $few (i32.sub (local.get 0) (i32.const 1)) {swapped}))
            (func (export "f") (param i32) (result i32)
                (call $few (local.get 0) (i64.const 1) (i64.const 2) (i64.const 3))))"#,
        few = params(3),
        few_gets = gets(&[3, 1, 2]),
        zeros = " (i64.const 9)".repeat(17),
        many_params = params(20),
        all = gets(&many[..1]),
        swapped = gets(&[1, 2, 3]),
    );
    // Each turn through `many` rotates the three numbers.
    assert_eq!(run(&text, 0)?, 2);
    assert_eq!(run(&text, 2)?, 1);
    assert_eq!(run(&text, 4)?, 3);
    assert_eq!(run(&text, 6_000_000)?, 2);
    Ok(())
}

#[test]
fn null_references_trap_and_say_which_kind() {
    let text = |body: &str| {
        format!(
            r#"(module (type $t (func (param i32) (result i32)))
                (func (export "f") (type $t) {body}))"#
        )
    };
    for (body, expected) in [
        ("(call_ref $t (local.get 0) (ref.null $t))", TrapCode::NullFunctionReference),
        ("(return_call_ref $t (local.get 0) (ref.null $t))", TrapCode::NullFunctionReference),
        ("(drop (ref.as_non_null (ref.null $t))) (i32.const 0)", TrapCode::NullReference),
    ] {
        let error = run(&text(body), 1).unwrap_err();
        assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), expected, "{body}");
    }
}

#[test]
fn typed_references_reach_functions_of_other_instances_and_of_the_host() -> Result<()> {
    let engine = Engine::default();
    let library = Module::new(
        &engine,
        r#"(module
            (type $t (func (param i32) (result i32)))
            (global $own (mut i32) (i32.const 100))
            (func $add (type $t) (i32.add (local.get 0) (global.get $own)))
            (elem declare func $add)
            (func (export "get") (result (ref $t)) (ref.func $add)))"#,
    )?;
    let user = Module::new(
        &engine,
        r#"(module
            (type $t (func (param i32) (result i32)))
            (import "library" "get" (func $get (result (ref $t))))
            (import "host" "double" (func $double (type $t)))
            (global $own (mut i32) (i32.const 7))
            (elem declare func $double)
            (func (export "f") (type $t)
                (i32.add
                    (global.get $own)
                    (i32.add
                        (call_ref $t (local.get 0) (call $get))
                        (call_ref $t (local.get 0) (ref.func $double)))))
            (func (export "tail") (type $t)
                (return_call_ref $t (local.get 0) (call $get))))"#,
    )?;
    let mut linker = Linker::new(&engine);
    let mut store = Store::new(&engine, ());
    linker.func_wrap("host", "double", |x: i32| x * 2)?;
    let library = linker.instantiate(&mut store, &library)?;
    linker.instance(&mut store, "library", library)?;
    let user = linker.instantiate(&mut store, &user)?;
    let call = |store: &mut Store<()>, name| {
        user.get_typed_func::<i32, i32>(&mut *store, name)?.call(store, 5)
    };
    assert_eq!(call(&mut store, "f")?, 7 + 105 + 10);
    assert_eq!(call(&mut store, "tail")?, 105);
    Ok(())
}
