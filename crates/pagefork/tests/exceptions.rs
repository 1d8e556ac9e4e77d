//! Exceptions: thrown and caught in one function, across functions, instances and
//! the host, with everything that they can carry.

use pagefork::{
    AsContextMut, Caller, Engine, Error, ErrorKind, Exception, ExnRef, Extern, ExternRef, Func,
    FuncType, Global, GlobalType, HeapType, Instance, Linker, Module, RefType, Result, Store,
    Table, TableType, Tag, Trap, TrapCode, Val, ValType,
};

fn instantiate(text: &str) -> Result<(Store<()>, Instance)> {
    let engine = Engine::default();
    let module = Module::new(&engine, text)?;
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[])?;
    Ok((store, instance))
}

/// Calls an export of type `i32 -> i32`.
fn run(mut store: impl AsContextMut, instance: Instance, name: &str, value: i32) -> Result<i32> {
    instance.get_typed_func::<i32, i32>(&mut store, name)?.call(&mut store, value)
}

fn trap_code(error: &Error) -> Option<TrapCode> {
    error.downcast_ref::<Trap>().map(Trap::code)
}

fn tag(store: &mut Store<()>, params: &[ValType]) -> Result<Tag> {
    Tag::new(store, FuncType { params: params.into(), results: [].into() })
}

#[test]
fn a_function_catches_what_it_throws() -> Result<()> {
    let (mut store, instance) = instantiate(
        r#"(module (tag $t (param i32))
            (func (export "run") (param i32) (result i32)
                (block $h (result i32)
                    (try_table (result i32) (catch $t $h)
                        (throw $t (i32.add (local.get 0) (i32.const 1)))))))"#,
    )?;
    for value in [0, 41, -1] {
        assert_eq!(run(&mut store, instance, "run", value)?, value.wrapping_add(1));
    }
    Ok(())
}

#[test]
fn clauses_are_asked_in_order_and_outward() -> Result<()> {
    let (mut store, instance) = instantiate(
        r#"(module (tag $a) (tag $b) (tag $c) (tag $d)
            (func $throw (param i32)
                (block $3 (block $2 (block $1 (block $0
                    (br_table $0 $1 $2 $3 (local.get 0)))
                    (throw $a)) (throw $b)) (throw $c)) (throw $d))
            (func (export "run") (param i32) (result i32)
                (local $before i32)
                (local.set $before (i32.const 100))
                (block $outer_all (block $outer_b (block $second_a (block $a (block $c
                    (try_table (catch $b $outer_b) (catch_all $outer_all)
                        (try_table (catch $a $a) (catch $a $second_a) (catch $c $c)
                            (local.set $before (i32.const 200))
                            (call $throw (local.get 0))
                            (local.set $before (i32.const 300)))))
                    (return (i32.add (local.get $before) (i32.const 3))))
                    (return (i32.add (local.get $before) (i32.const 1))))
                    (return (i32.const -1)))
                    (return (i32.add (local.get $before) (i32.const 2))))
                (i32.add (local.get $before) (i32.const 4))))"#,
    )?;
    for (thrown, expected) in [(0, 201), (1, 202), (2, 203), (3, 204)] {
        assert_eq!(run(&mut store, instance, "run", thrown)?, expected);
    }
    Ok(())
}
