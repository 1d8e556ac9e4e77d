//! Code images are read as they were written, and refused when they are damaged,
//! for something else, or wrong about themselves; never is there a panic.

use std::io::{self, Read};

use pagefork_compiler::file::{self, CodeImageError, CodeKey, Expected, FileContents};
use pagefork_compiler::{Bounds, CompileOptions, CompiledModule, CpuLevel, compile, initial_image};
use pagefork_layout::module::ValType;

const HEADER: usize = 128;

/// Something of everything that a module can declare.
const MODULE: &str = r#"(module $example
    (type $binary (func (param i32 i64) (result i64)))
    (import "a" "f" (func $f (param f64)))
    (import "a" "g" (global $g i32))
    (import "a" "h" (global $h funcref))
    (import "a" "t" (table $t 3 funcref))
    (memory 1 7000)
    (table $own 10 20 funcref)
    (table $extern 2 externref)
    (global $number (export "number") (mut i64) (i64.const 7))
    (global $function funcref (ref.func $two))
    (global $copy funcref (global.get $h))
    (global $sum i32 (i32.add (global.get $g) (i32.mul (i32.const 3) (i32.const 5))))
    (elem (table $own) (i32.const 1) func $one $two)
    (elem (table $own) (global.get $g) funcref (global.get $h) (ref.null func))
    (elem $passive funcref (ref.func $one))
    (elem declare func $start)
    (data (i32.const 3) "data")
    (data $kept "passive")
    (start $start)
    (func $start)
    (func $one (export "one") (type $binary)
        (i64.load (local.get 0))
        (call_indirect $own (type $binary) (local.get 0) (local.get 1) (local.get 0))
        i64.add)
    (func $two (type $binary) (i64.div_s (local.get 1) (i64.extend_i32_u (local.get 0)))))"#;

fn wasm() -> Vec<u8> {
    wat::parse_str(MODULE).expect("well-formed")
}

/// The module, and its code image.
fn image() -> (CompiledModule, Vec<u8>) {
    let options = CompileOptions::default();
    let module = compile(&wasm(), &options).expect("a valid module");
    let key = CodeKey::new(&wasm(), &options).expect("a machine that can run it");
    let mut image = file::head(&module, &module.code.text, &options, key);
    image.extend(&module.code.text);
    (module, image)
}

fn read(mut bytes: &[u8]) -> Result<FileContents, CodeImageError> {
    let options = CompileOptions::default();
    read_for(&mut bytes, &options, CpuLevel::V3)
}

fn read_for(
    source: &mut impl Read,
    options: &CompileOptions,
    machine: CpuLevel,
) -> Result<FileContents, CodeImageError> {
    file::read(source, &Expected { options, machine, key: None }, true)
}

fn read_known(bytes: &[u8]) -> Result<FileContents, CodeImageError> {
    read_known_up_to(bytes, &mut 0)
}

/// Also says where the last byte ends that was read.
fn read_known_up_to(bytes: &[u8], end: &mut u64) -> Result<FileContents, CodeImageError> {
    let options = CompileOptions::default();
    let expected = Expected { options: &options, machine: CpuLevel::V3, key: None };
    let read_at = |into: &mut [u8], offset: u64| {
        *end = (*end).max(offset + into.len() as u64);
        let from = bytes.get(offset as usize..).and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(from.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    file::read_known(read_at, bytes.len() as u64, &expected)
}

#[test]
fn a_file_whose_hash_is_known_is_read_without_its_text() {
    let (_, image) = image();
    let mut end = 0;
    let known = read_known_up_to(&image, &mut end).unwrap();
    let read = read(&image).unwrap();
    let code = &known.module.code;
    let lists = [&code.traps, &code.call_sites, &code.data];
    assert!(
        lists.iter().all(|list| list.start < list.end),
        "there is something of each: {lists:?}"
    );
    assert!(end <= known.text.start + u64::from(code.code_end), "nothing behind the code is read");
    assert_eq!((known.text.clone(), known.key), (read.text.clone(), read.key));
    assert!(known.module.code.text.is_empty());
    assert!(known.module.info == read.module.info && known.module.layout == read.module.layout);
    for length in 0..image.len() {
        assert!(read_known(&image[..length]).is_err(), "{length}");
    }
    assert!(read_known(&[&image[..], &[0]].concat()).is_err());
    // What is no hash is judged all the same.
    let mut other = image.clone();
    other[HEADER] ^= 1;
    assert!(matches!(read_known(&other), Err(CodeImageError::OtherCompiler(_))));
}

/// Makes the hashes right again.
fn rehash(image: &mut [u8]) {
    let text = u64::from_le_bytes(image[32..40].try_into().unwrap()) as usize;
    let hash = blake3::hash(&image[text..]);
    image[64..96].copy_from_slice(hash.as_bytes());
    let hash = blake3::Hasher::new().update(&image[..96]).update(&image[HEADER..text]).finalize();
    image[96..128].copy_from_slice(hash.as_bytes());
}

fn text_start(image: &[u8]) -> usize {
    u64::from_le_bytes(image[32..40].try_into().unwrap()) as usize
}

/// A linear congruential generator: the mutations are the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn a_module_is_read_as_it_was_written() {
    let (module, image) = image();
    let contents = read(&image).unwrap();
    assert_eq!(contents.module, module);
    assert_eq!(contents.text, text_start(&image) as u64..image.len() as u64);
    assert_eq!(contents.text.start % 4096, 0);
    let key = CodeKey::new(&wasm(), &CompileOptions::default()).unwrap();
    assert_eq!(contents.key, key);
    assert!(file::is_code_image(&image[..8]) && !file::is_code_image(&wasm()));

    let options = CompileOptions::default();
    let expected = Expected { options: &options, machine: CpuLevel::V3, key: Some(key) };
    let without = file::read(&mut &image[..], &expected, false).unwrap();
    assert!(without.module.code.text.is_empty());
    assert_eq!(without.module.info, module.info);
}

/// Hands out a byte at a time, and now and then nothing because of a signal.
struct Slowly<'a>(&'a [u8], bool);

impl Read for Slowly<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let size = into.len().min(1);
        self.0.read(&mut into[..size])
    }
}

#[test]
fn however_slowly_it_arrives() {
    let (module, image) = image();
    let options = CompileOptions::default();
    let contents = read_for(&mut Slowly(&image, true), &options, CpuLevel::V3).unwrap();
    assert_eq!(contents.module, module);
}

#[test]
fn a_truncated_image_is_refused_at_any_length() {
    let (_, image) = image();
    for length in 0..image.len() {
        let error = read(&image[..length]).unwrap_err();
        assert!(matches!(error, CodeImageError::Damaged(_)), "{length}: {error}");
    }
    let error = read(&[&image[..], b"x"].concat()).unwrap_err();
    assert!(error.to_string().contains("something follows"), "{error}");
}

#[test]
fn any_altered_bit_is_noticed() {
    let (_, image) = image();
    let mut random = Random(1);
    let text = text_start(&image);
    let all = (0..HEADER * 8).chain((0..4000).map(|_| random.below(image.len() * 8)));
    // The last bytes of each part, and the zeros before the text.
    for bit in all.chain([text * 8 - 1, text * 8, image.len() * 8 - 1]).collect::<Vec<_>>() {
        let mut altered = image.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&altered).is_err(), "bit {bit}");
    }
}

#[test]
fn what_is_no_code_image_is_refused() {
    for bytes in [&b"\0asm\x01\0\0\0"[..], b"(module)", &[0; 4096]] {
        assert!(matches!(read(bytes), Err(CodeImageError::NotACodeImage)));
    }
    assert!(matches!(read(&file::MAGIC), Err(CodeImageError::Damaged(_))));
    assert!(matches!(read(&file::MAGIC[..3]), Err(CodeImageError::Damaged(_))));
    // Promised gigabytes are not made room for.
    let (_, mut image) = image();
    image.truncate(HEADER);
    image[24..32].copy_from_slice(&(1u64 << 30).to_le_bytes());
    image[32..40].copy_from_slice(&((1u64 << 30) + 4096).to_le_bytes());
    assert!(matches!(read(&image), Err(CodeImageError::Damaged(_))));
}

#[test]
fn images_of_other_versions_settings_and_processors_are_refused_by_name() {
    let (_, image) = image();
    for at in [8, 12] {
        let mut other = image.clone();
        other[at] += 1;
        rehash(&mut other);
        assert!(matches!(read(&other), Err(CodeImageError::OtherFormat { .. })));
    }
    let mut other = image.clone();
    other[HEADER] = b'9';
    rehash(&mut other);
    let error = read(&other).unwrap_err();
    assert!(matches!(&error, CodeImageError::OtherCompiler(_)), "{error}");
    assert!(error.to_string().contains("compile the module again"), "{error}");

    let mut options = CompileOptions::default();
    options.interruptible = !options.interruptible;
    options.limits.stack_size = 123;
    let error = read_for(&mut &image[..], &options, CpuLevel::V3).unwrap_err().to_string();
    assert!(error.contains("interruptible: true instead of interruptible: false"), "{error}");
    assert!(error.contains("instead of stack_size: 123") && !error.contains("simd"), "{error}");
    let options = CompileOptions { verify_ir: false, ..CompileOptions::default() };
    read_for(&mut &image[..], &options, CpuLevel::V3).expect("code does not depend on it");

    let options = CompileOptions::default();
    let made_for = CpuLevel::of_this_machine().unwrap();
    let read = read_for(&mut &image[..], &options, CpuLevel::V2);
    match made_for {
        CpuLevel::V2 => drop(read.unwrap()),
        CpuLevel::V3 => {
            let error = read.unwrap_err();
            assert!(matches!(error, CodeImageError::OtherMachine { .. }));
            assert!(error.to_string().contains("x86-64-v3"), "{error}");
        }
    }

    let key = Some(CodeKey::new(b"another", &options).unwrap());
    let expected = Expected { options: &options, machine: CpuLevel::V3, key };
    let error = file::read(&mut &image[..], &expected, false).unwrap_err();
    assert!(matches!(error, CodeImageError::OtherModule));
}

/// Code that was made on another machine, and is saved again on this one, needs what it did.
#[test]
fn code_that_is_saved_again_needs_the_processor_that_it_was_made_for() {
    let options = CompileOptions::default();
    let made_here = CodeKey::new(&wasm(), &options).unwrap();
    assert_eq!(made_here.level(), CpuLevel::of_this_machine().unwrap());
    let (module, _) = image();
    for level in [CpuLevel::V2, CpuLevel::V3] {
        // As a machine of this level makes one: the level is the last of its fields.
        let mut bytes = postcard::to_allocvec(&made_here).unwrap();
        let end = bytes.len() - 1;
        bytes[end] = level as u8;
        let key: CodeKey = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(key.level(), level);
        let mut image = file::head(&module, &module.code.text, &options, key);
        image.extend(&module.code.text);
        let found = read_for(&mut &image[..], &options, CpuLevel::V3).unwrap();
        assert_eq!(found.key.level(), level);
        let older = read_for(&mut &image[..], &options, CpuLevel::V2);
        assert_eq!(older.is_ok(), level == CpuLevel::V2, "{level}");
    }
}

#[test]
fn a_key_depends_on_the_module_and_on_every_setting_that_code_depends_on() {
    let options = CompileOptions::default();
    let key = |wasm: &[u8], options| CodeKey::new(wasm, options).unwrap().to_string();
    let base = key(&wasm(), &options);
    assert!(base.len() == 64 && base.bytes().all(|c| c.is_ascii_hexdigit()));
    assert_ne!(base, key(&wasm()[1..], &options));
    let mut others = vec![options.clone(); 6];
    others[0].interruptible ^= true;
    others[1].features.simd ^= true;
    others[2].limits.table_elements += 1;
    others[3].fuel ^= true;
    others[4].deterministic ^= true;
    others[5].bounds = Bounds::Dual;
    for other in &others {
        assert_ne!(base, key(&wasm(), other), "{other:?}");
    }
    let unverified = CompileOptions { verify_ir: !options.verify_ir, ..options };
    assert_eq!(base, key(&wasm(), &unverified));
}

/// Does with a module what spawning does before any code runs.
fn use_up(module: &CompiledModule) {
    let info = &module.info;
    let globals: Vec<Option<u128>> = info.globals[..info.imported_globals as usize]
        .iter()
        .map(|global| (!matches!(global.content, ValType::Ref(_))).then_some(1))
        .collect();
    initial_image(module, module.code.behind(), &globals);
    for export in &info.exports {
        info.item_type(export.item);
    }
    for index in 0..info.functions.len() as u32 {
        let code = module.code.function_code(&module.code.text, index);
        assert!(module.code.range_at(code).is_some());
    }
}

#[test]
fn lists_of_traps_and_calls_that_mean_nothing_are_refused() {
    let (module, image) = image();
    let (traps, calls) = (module.code.traps, module.code.call_sites);
    let refused = |place: u32, byte: u8| {
        let mut altered = image.clone();
        altered[text_start(&image) + place as usize] = byte;
        rehash(&mut altered);
        matches!(read(&altered), Err(CodeImageError::Inconsistent(_)))
    };
    assert!(!refused(traps.start, image[text_start(&image) + traps.start as usize]));
    assert!(refused(traps.start + 4, 0xff), "no reason has that number");
    assert!(refused(traps.start + 3, 0xff) && refused(traps.end - 2, 0xff), "out of the code");
    assert!(refused(calls.start + 3, 1) && refused(calls.end - 1, 1), "out of the code");
}

#[test]
fn nonsense_with_right_hashes_is_refused_or_harmless() {
    let (_, image) = image();
    let version = u32::from_le_bytes(image[16..20].try_into().unwrap()) as usize;
    let manifest = u64::from_le_bytes(image[24..32].try_into().unwrap()) as usize;
    let manifest = HEADER + version..HEADER + version + manifest;
    let (mut accepted, mut random) = (0, Random(2));
    for round in 0..20_000 {
        let mut altered = image.clone();
        for _ in 0..1 + round % 3 {
            let at = manifest.start + random.below(manifest.len());
            altered[at] = match round % 4 {
                0 => altered[at] ^ (1 << random.below(8)),
                1 => altered[at].wrapping_add(1),
                2 => 0xff,
                _ => random.below(256) as u8,
            };
        }
        rehash(&mut altered);
        if let Ok(contents) = read(&altered) {
            accepted += 1;
            use_up(&contents.module);
        }
    }
    // Names, numbers and data are whatever they are.
    assert!(accepted > 1000, "{accepted}");
    for _ in 0..2000 {
        let mut altered = image.clone();
        let at = text_start(&image) + random.below(altered.len() - text_start(&image));
        altered[at] = random.below(256) as u8;
        rehash(&mut altered);
        if let Ok(contents) = read(&altered) {
            use_up(&contents.module);
        }
    }
}

#[test]
fn the_same_module_becomes_the_same_code_on_any_number_of_threads() {
    let function = |i: u32| {
        format!(
            "(func (param i32) (result i32)
                {}
                (loop $outer (loop $inner
                    (i32.store (local.get 0) (i32.const {i}))
                    (br_if $inner (local.tee 0 (i32.sub (local.get 0) (i32.const 4)))))
                    (br_if $outer (i32.load (local.get 0))))
                (local.get 0))",
            "(local.set 0 (i32.mul (local.get 0) (local.get 0)))".repeat(i as usize % 20)
        )
    };
    let functions: String = (0..100).map(function).collect();
    let wasm = wat::parse_str(format!("(module (memory 1) {functions})")).unwrap();
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| compile(&wasm, &CompileOptions::default()).unwrap())
    };
    let module = on(1);
    assert_eq!(module, on(2));
    assert_eq!(module, on(5));
    let starts = module.code.functions.iter().map(|range| range.start);
    assert!(starts.clone().all(|start| start % 16 == 0));
    assert!(starts.clone().any(|start| start % 32 != 0), "loops choose where functions start");
}
