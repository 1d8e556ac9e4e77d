//! Compiled modules as bytes: what is not ours, or not whole, is refused by name.

use pagefork::{
    CodeImageError, CompileError, Config, Engine, ErrorKind, Instance, Module, Precompiled, Result,
    Store,
};

const TEXT: &str = r#"(module $answer
    (memory 1) (data (i32.const 8) "\2a")
    (func (export "run") (result i32) (i32.load8_u (i32.const 8))))"#;

fn run(module: &Module) -> Result<i32> {
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, module, &[])?;
    instance.get_typed_func::<(), i32>(&mut store, "run")?.call(&mut store, ())
}

/// The module of bytes that this test has made, or has changed: their hashes find that.
fn deserialize(engine: &Engine, bytes: &[u8]) -> Result<Module> {
    // SAFETY: the bytes are `serialize`'s, or are refused before any of them is run.
    unsafe { Module::deserialize(engine, bytes) }
}

fn refusal(engine: &Engine, bytes: &[u8]) -> CodeImageError {
    let error = deserialize(engine, bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Compile);
    error.downcast().unwrap()
}

#[test]
fn bytes_of_a_module_are_the_module_again_in_other_engines() -> Result<()> {
    let engine = Engine::default();
    let bytes = Module::new(&engine, TEXT)?.serialize()?;
    drop(engine);
    let engine = Engine::default();
    let module = deserialize(&engine, &bytes)?;
    assert_eq!((run(&module)?, module.name()), (42, Some("answer")));
    assert_eq!(module.serialize()?, bytes);
    Ok(())
}

#[test]
fn an_engine_precompiles_what_its_modules_serialize_to() -> Result<()> {
    let engine = Engine::new(Config::new().sources(true))?;
    let bytes = engine.precompile_module(TEXT.as_bytes())?;
    assert_eq!(run(&deserialize(&engine, &bytes)?)?, 42);
    assert_eq!(Module::new(&engine, TEXT)?.serialize()?, bytes);
    let error = engine.precompile_module(b"(module (func (result i32)))").unwrap_err();
    assert!(error.is::<CompileError>(), "{error:?}");
    Ok(())
}

#[test]
fn what_is_precompiled_is_detected_by_its_start() -> Result<()> {
    let bytes = Engine::default().precompile_module(b"(module)")?;
    assert_eq!(Engine::detect_precompiled(&bytes), Some(Precompiled::Module));
    assert_eq!(Engine::detect_precompiled(&bytes[..8]), Some(Precompiled::Module));
    for other in [&bytes[..7], &bytes[1..], b"", b"\0asm\x01\0\0\0", b"(module)"] {
        assert_eq!(Engine::detect_precompiled(other), None);
    }
    assert_eq!(Engine::detect_precompiled_file("/dev/null")?, None);
    let error = Engine::detect_precompiled_file("/no/such/file").unwrap_err();
    assert!(error.to_string().contains("/no/such/file"), "{error}");
    Ok(())
}

#[test]
fn a_file_is_deserialized_whoever_may_write_to_it() -> Result<()> {
    let engine = Engine::default();
    let path = std::env::temp_dir().join(format!("pagefork-serialized-{}", std::process::id()));
    std::fs::write(&path, Module::new(&engine, TEXT)?.serialize()?)?;
    assert!(Module::from_code_image_file(&engine, &path).is_err(), "it is no executable");
    // SAFETY: the file was just written.
    let module = unsafe { Module::deserialize_file(&engine, &path) };
    let removed = std::fs::remove_file(&path);
    assert_eq!(run(&module?)?, 42);
    removed?;
    // SAFETY: there is nothing to run.
    let error = unsafe { Module::deserialize_file(&engine, &path) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    Ok(())
}

#[test]
fn bytes_that_are_cut_short_or_altered_are_refused() -> Result<()> {
    let engine = Engine::default();
    let good = engine.precompile_module(TEXT.as_bytes())?;
    for end in (0..good.len()).step_by(97).chain([good.len() - 1]) {
        let error = refusal(&engine, &good[..end]);
        assert!(matches!(error, CodeImageError::Damaged(_)), "{end} bytes: {error}");
    }
    for at in (128..good.len()).step_by(101) {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        assert!(matches!(refusal(&engine, &bytes), CodeImageError::Damaged(_)), "byte {at}");
    }
    let longer = [&*good, b"x"].concat();
    assert!(matches!(refusal(&engine, &longer), CodeImageError::Damaged(_)));
    Ok(())
}

#[test]
fn bytes_of_others_are_refused_by_what_they_are() -> Result<()> {
    let engine = Engine::default();
    for other in [&b"\0asm\x01\0\0\0"[..], b"\x7fELF\x02\x01\x01\0", b"(module)"] {
        assert!(matches!(refusal(&engine, other), CodeImageError::NotACodeImage));
    }
    let mut bytes = engine.precompile_module(TEXT.as_bytes())?;
    bytes[8] += 1;
    let error = refusal(&engine, &bytes);
    assert!(matches!(error, CodeImageError::OtherFormat { .. }), "{error}");
    assert!(error.to_string().contains("compile the module again"), "{error}");
    let metered = Engine::new(Config::new().fuel(true))?;
    let bytes = metered.precompile_module(TEXT.as_bytes())?;
    let error = refusal(&engine, &bytes);
    assert!(matches!(error, CodeImageError::OtherSettings(_)), "{error}");
    Ok(())
}

#[test]
fn validation_says_what_compiling_would_and_compiles_nothing() -> Result<()> {
    let engine = Engine::new(Config::new().wasm_simd(false))?;
    let binary = |text| wat::parse_str(text).unwrap();
    Module::validate(&engine, &binary(TEXT))?;
    for text in [
        "(module (func (result i32) nop))",
        "(module (func (param v128)))",
        "(module (memory 65537))",
    ] {
        let wasm = binary(text);
        let error = Module::validate(&engine, &wasm).unwrap_err();
        let compiled = Module::from_binary(&engine, &wasm).unwrap_err();
        assert_eq!(error.to_string(), compiled.to_string());
    }
    Module::validate(&engine, TEXT.as_bytes()).unwrap_err();
    Ok(())
}
