//! Backtraces name lines of source code where a module has debug information,
//! and core dumps hold what the guest was.

use std::os::unix::fs::DirBuilderExt;

use pagefork::{Cache, Config, Engine, Error, Instance, Module, Result, Store, WasmCoreDump};

const CRASH: &[u8] = include_bytes!("../../../guest/built/crash.wasm");
const SOURCE: &str = include_str!("../../../guest/c/crash.c");

/// The line of the C source that contains `text`.
fn line_of(text: &str) -> u32 {
    let line = SOURCE.lines().position(|line| line.contains(text)).expect("the text is there");
    line as u32 + 1
}

fn crash() -> Result<(Store<()>, Error)> {
    let engine = Engine::default();
    let module = Module::new(&engine, CRASH)?;
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[])?;
    let crash = instance.get_typed_func::<i32, i32>(&mut store, "crash")?;
    let error = crash.call(&mut store, 64).expect_err("it reads outside of its memory");
    Ok((store, error))
}

#[test]
fn each_frame_has_its_line_and_inlined_functions_are_named() -> Result<()> {
    let (_, error) = crash()?;
    let backtrace = error.backtrace().expect("a trap has one");
    let frames: Vec<Vec<(String, u32)>> = backtrace
        .frames()
        .iter()
        .map(|frame| {
            let locations = frame.source_locations();
            assert!(locations.iter().all(|location| {
                location.file.as_ref().is_some_and(|file| file.ends_with("guest/c/crash.c"))
            }));
            let name = |function: Option<String>| function.expect("debug information names it");
            locations
                .into_iter()
                .map(|location| (name(location.function), location.line.expect("a line")))
                .collect()
        })
        .collect();
    let expected = vec![
        vec![
            ("read_at".to_owned(), line_of("return *place")),
            ("look".to_owned(), line_of("return read_at")),
        ],
        vec![("crash".to_owned(), line_of("= look(distance)"))],
    ];
    assert_eq!(frames, expected);

    let text = backtrace.to_string();
    let line = format!("read_at at ./guest/c/crash.c:{}", line_of("return *place"));
    assert!(text.contains(&line) || text.contains(&line.replace("./", "")), "{text}");
    Ok(())
}

#[test]
fn from_a_file_too_lines_are_named_and_debug_information_is_never_executable() -> Result<()> {
    let engine = Engine::default();
    let compiled = Module::new(&engine, CRASH)?;
    let path = std::env::temp_dir().join(format!("pagefork-lines-{}", std::process::id()));
    compiled.write_code_image_file(&path)?;
    let copied = Module::from_code_image_file(&engine, &path)?;
    std::fs::remove_file(&path).expect("the file was written");
    std::fs::DirBuilder::new().mode(0o700).create(&path).expect("nothing else is there");
    let mapped = Module::new(&Engine::new(Config::new().cache(Cache::new(&path)))?, CRASH)?;
    std::fs::remove_dir_all(&path).expect("the cache is there");
    for module in [&compiled, &copied, &mapped] {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, module, &[])?;
        let crash = instance.get_typed_func::<i32, i32>(&mut store, "crash")?;
        let text = crash.call(&mut store, 0).unwrap_err().backtrace().unwrap().to_string();
        assert!(text.contains(&format!("crash.c:{}", line_of("return *place"))), "{text}");

        let code = module.text();
        let behind = code.as_ptr_range().end.addr().next_multiple_of(4096);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
        let access_at = |address: usize| {
            let line = maps.lines().find(|line| {
                let (start, rest) = line.split_once('-').expect("a range");
                let end = rest.split(' ').next().expect("its end");
                let number = |text| usize::from_str_radix(text, 16).expect("hexadecimal");
                (number(start)..number(end)).contains(&address)
            });
            line.and_then(|line| line.split(' ').nth(1)).expect("it is mapped").to_owned()
        };
        assert_eq!(access_at(code.as_ptr().addr()), "r-xp");
        // Of a copy, what lies behind the code is elsewhere.
        if std::ptr::eq(module, &raw const mapped) {
            assert_eq!(access_at(behind), "r--p");
        }
    }
    Ok(())
}

#[test]
fn without_debug_information_offsets_are_noted_on_request_only() -> Result<()> {
    let text = r#"(module (func (export "f") nop nop unreachable))"#;
    for on in [false, true] {
        let engine = Engine::new(Config::new().sources(on))?;
        let module = Module::new(&engine, text)?;
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[])?;
        let function = instance.get_typed_func::<(), ()>(&mut store, "f")?;
        let error = function.call(&mut store, ()).unwrap_err();
        let frame = &error.backtrace().unwrap().frames()[0];
        // The body begins with the number of its locals; two operators follow.
        assert_eq!(frame.wasm_offset(), on.then_some(3));
        assert!(frame.source_locations().is_empty());
    }
    Ok(())
}

#[test]
fn nonsense_debug_information_does_no_harm() -> Result<()> {
    // Each debug section in turn is filled with bytes that mean nothing.
    let sections = custom_sections(CRASH);
    assert!(sections.len() > 4);
    for (start, end) in sections {
        for filler in [0x00, 0xff, 0x81] {
            let mut bytes = CRASH.to_vec();
            bytes[start..end].fill(filler);
            let engine = Engine::default();
            let module = Module::new(&engine, bytes)?;
            let mut store = Store::new(&engine, ());
            let instance = Instance::new(&mut store, &module, &[])?;
            let crash = instance.get_typed_func::<i32, i32>(&mut store, "crash")?;
            let error = crash.call(&mut store, 0).unwrap_err();
            assert!(error.backtrace().unwrap().to_string().contains("crash"));
        }
    }
    Ok(())
}

/// Where the contents of the custom sections named `.debug_...` are.
fn custom_sections(module: &[u8]) -> Vec<(usize, usize)> {
    let number = |mut at: usize| {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = module[at];
            value |= usize::from(byte & 0x7f) << shift;
            (at, shift) = (at + 1, shift + 7);
            if byte < 0x80 {
                return (value, at);
            }
        }
    };
    let (mut at, mut found) = (8, Vec::new());
    while at < module.len() {
        let id = module[at];
        let (size, contents) = number(at + 1);
        at = contents + size;
        let (length, name) = number(contents);
        if id == 0 && module[name..name + length].starts_with(b".debug_") {
            found.push((name + length, at));
        }
    }
    found
}

#[test]
fn a_core_dump_is_a_module_that_holds_memories_globals_and_frames() -> Result<()> {
    let text = r#"(module $dumped
        (memory 3) (memory 1)
        (global (mut i64) (i64.const 7))
        (func (export "f")
            (i32.store (i32.const 131080) (i32.const 0x11223344))
            (i32.store 1 (i32.const 0) (i32.const 5))
            (global.set 0 (i64.const -2))
            unreachable))"#;
    let engine = Engine::new(Config::new().sources(true))?;
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &Module::new(&engine, text)?, &[])?;
    let error =
        instance.get_typed_func::<(), ()>(&mut store, "f")?.call(&mut store, ()).unwrap_err();
    let dump = store.core_dump("a test", error.backtrace().unwrap());

    // It is a module itself: an instance of it has what the guest's had.
    let engine = Engine::default();
    let module = Module::new(&engine, &dump)?;
    let compiled = module.compiled();
    let sizes: Vec<u64> = compiled.info.memories.iter().map(|memory| memory.minimum).collect();
    assert_eq!(sizes, [3, 1]);
    assert_eq!(compiled.info.global_inits.len(), 1);
    assert_eq!(
        compiled.info.global_inits[0],
        pagefork_layout::module::ConstExpr::Bits(u128::from(-2i64 as u64))
    );
    let data = |target: u32| {
        let mut segments = compiled.info.data.iter();
        let segment = segments.find(|segment| match &segment.mode {
            pagefork_layout::module::SegmentMode::Active { target: to, .. } => *to == target,
            _ => false,
        });
        compiled.code.segment(module.behind_code(), &segment.unwrap())
    };
    assert_eq!(data(0)[8..12], 0x1122_3344u32.to_le_bytes());
    assert_eq!(data(1)[..4], 5u32.to_le_bytes());
    for section in ["core", "coremodules", "coreinstances", "corestack", "dumped", "a test"] {
        let found = dump.windows(section.len()).any(|bytes| bytes == section.as_bytes());
        assert!(found, "no {section}");
    }
    Ok(())
}

#[test]
fn a_core_dump_has_what_instances_share_once() -> Result<()> {
    let engine = Engine::default();
    let owner = Module::new(
        &engine,
        r#"(module (memory (export "m") 2) (global (export "g") i32 (i32.const 4)))"#,
    )?;
    let user = Module::new(
        &engine,
        r#"(module (import "o" "m" (memory 1)) (import "o" "g" (global i32))
        (global (mut i64) (i64.const 7)) (func (export "f") unreachable))"#,
    )?;
    let mut store = Store::new(&engine, ());
    let mut linker = pagefork::Linker::new(&engine);
    let first = linker.instantiate(&mut store, &owner)?;
    linker.instance(&mut store, "o", first)?;
    let users = [linker.instantiate(&mut store, &user)?, linker.instantiate(&mut store, &user)?];
    let error =
        users[1].get_typed_func::<(), ()>(&mut store, "f")?.call(&mut store, ()).unwrap_err();

    let dump = WasmCoreDump::capture(&store, &error).unwrap();
    assert_eq!(dump.instances(), [first, users[0], users[1]]);
    assert_eq!(dump.modules().len(), 2);
    assert_eq!(dump.memories(), [first.get_memory(&mut store, "m").unwrap()]);
    let globals: Vec<_> = dump.globals().iter().map(|global| global.get(&mut store)).collect();
    assert_eq!(globals.iter().map(|value| value.i32()).collect::<Vec<_>>(), [Some(4), None, None]);
    assert_eq!(
        dump.serialize(&mut store, "a test"),
        store.core_dump("a test", error.backtrace().unwrap())
    );
    // Nothing ran: there is no place in a guest to tell of.
    assert!(WasmCoreDump::capture(&store, &pagefork::Error::msg("no trap")).is_none());
    Ok(())
}
