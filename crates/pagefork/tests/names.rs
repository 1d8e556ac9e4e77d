//! What a module names is shown in one line of bounded length, without anything that a
//! terminal or a reader of logs would obey, wherever it is shown.

use pagefork::{Engine, Error, Instance, Linker, Module, OneLine, Result, Store, TypedFunc};

/// Text that begins a line of its own, clears the screen, and goes on from right to left.
const FORGED: &str = "x\\nERROR: forged\\1b[2J\\e2\\80\\ae";

fn instantiate(text: &str) -> Result<(Store<()>, Instance)> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &Module::new(&engine, text)?, &[])?;
    Ok((store, instance))
}

/// Checks an error's text in each of its forms, which begin with as many lines.
fn check(error: &Error, lines: usize) {
    for text in [format!("{error}"), format!("{error:#}"), format!("{error:?}")] {
        assert!(text.lines().count() <= lines, "{text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("ERROR")), "{text}");
        assert!(text.len() < lines * (2 * OneLine::SIZE_MAX + 200), "{} bytes", text.len());
    }
}

#[test]
fn in_backtraces() -> Result<()> {
    let long = "y".repeat(100_000);
    for name in [FORGED, &long] {
        let text = format!(
            r#"(module (@name "{name}")
                (func $f (@name "{name}") (export "f") unreachable))"#
        );
        let (mut store, instance) = instantiate(&text)?;
        let function: TypedFunc<(), ()> = instance.get_typed_func(&mut store, "f")?;
        let error = function.call(&mut store, ()).unwrap_err();
        // The error, a heading, a frame.
        check(&error, 3);
        let frame = &error.backtrace().unwrap().frames()[0];
        assert_eq!(frame.to_string().lines().count(), 1);
        // As it is for whoever asks.
        assert!(frame.function_name().unwrap().contains(['\u{202e}', 'y']));
    }
    Ok(())
}

#[test]
fn names_of_frames_are_those_of_the_source() -> Result<()> {
    let text = r#"(module $m
        (func (@name "_ZN3foo3barEi") (export "f") unreachable))"#;
    let (mut store, instance) = instantiate(text)?;
    let function: TypedFunc<(), ()> = instance.get_typed_func(&mut store, "f")?;
    let error = function.call(&mut store, ()).unwrap_err();
    let frame = &error.backtrace().unwrap().frames()[0];
    assert!(frame.to_string().starts_with("m!foo::bar(int) (function 0"), "{frame}");
    assert_eq!(frame.function_name(), Some("_ZN3foo3barEi"));
    Ok(())
}

#[test]
fn in_errors() -> Result<()> {
    let engine = Engine::default();
    let long = "y".repeat(100_000);
    for name in [FORGED, &long] {
        let import = |what: &str| format!(r#"(module (import "{name}" "{name}" ({what})))"#);
        let mut linker = Linker::<()>::new(&engine);
        let module = Module::new(&engine, import("func"))?;
        check(&linker.instantiate_pre(&module).err().unwrap(), 1);

        linker.define_unknown_imports_as_traps(&module)?;
        let error = linker.define_unknown_imports_as_traps(&module);
        assert!(error.is_ok());
        let other = Module::new(&engine, import("func (param i32)"))?;
        check(&linker.instantiate_pre(&other).err().unwrap(), 1);
        let text = format!(
            r#"(module (import "{name}" "{name}" (func $f)) (func (export "g") (call $f)))"#
        );
        let mut store = Store::new(&engine, ());
        let instance = linker.instantiate(&mut store, &Module::new(&engine, text)?)?;
        let g: TypedFunc<(), ()> = instance.get_typed_func(&mut store, "g")?;
        check(&g.call(&mut store, ()).unwrap_err(), 3);

        let import = module.imports().next().unwrap();
        let error = instance.get_typed_func::<(), ()>(&mut store, import.name()).err().unwrap();
        check(&error, 1);
        let ty = |linker: &mut Linker<()>| {
            linker.func_wrap(import.module(), import.name(), || ()).err().unwrap()
        };
        check(&ty(&mut linker), 1);

        // What the parser has to say names what is there twice.
        let twice =
            format!(r#"(module (func) (export "{name}" (func 0)) (export "{name}" (func 0)))"#);
        check(&Module::new(&engine, twice).err().unwrap(), 1);
        // Text is quoted, and the place in it shown.
        check(
            &Module::new(&engine, format!("(module \u{1b}[2J \u{202e} \"{long}\")")).err().unwrap(),
            8,
        );
        let typed = format!(r#"(module (func (export "{name}") (param i32)))"#);
        let (mut store, instance) = instantiate(&typed)?;
        let error = instance.get_typed_func::<(), ()>(&mut store, import.name()).err().unwrap();
        check(&error, 1);
    }
    Ok(())
}
