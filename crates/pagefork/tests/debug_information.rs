//! Whatever the debug information of a module says: a backtrace takes little stack,
//! time and memory, and is text of bounded size.

use std::time::{Duration, Instant};

use pagefork::{Engine, Error, Instance, Module, Result, Store};

/// Attributes, forms and tags, by the numbers that DWARF gives them.
const NAME: (u8, u8) = (0x03, 0x08);
const NAME_ELSEWHERE: (u8, u8) = (0x03, 0x0e);
const LINES: (u8, u8) = (0x10, 0x17);
const LOW: (u8, u8) = (0x11, 0x01);
const SIZE: (u8, u8) = (0x12, 0x06);
const RANGES: (u8, u8) = (0x55, 0x17);
const ORIGIN: (u8, u8) = (0x31, 0x13);
const ORIGIN_ANYWHERE: (u8, u8) = (0x31, 0x10);
const CALL_FILE: (u8, u8) = (0x58, 0x0b);
const CALL_LINE: (u8, u8) = (0x59, 0x0b);
const EXTERNAL: (u8, u8) = (0x3f, 0x19);
const UNIT: u8 = 0x11;
const INLINED: u8 = 0x1d;
const FUNCTION: u8 = 0x2e;

/// All code of a small module.
const CODE: [u8; 8] = [1, 0, 0, 0, 0, 1, 0, 0];

/// Debug sections of a module, made by hand.
#[derive(Clone, Default)]
struct Debug {
    abbreviations: Vec<u8>,
    info: Vec<u8>,
    lines: Vec<u8>,
    strings: Vec<u8>,
    ranges: Vec<u8>,
}

impl Debug {
    /// Abbreviation `code`, with children.
    fn abbreviation(&mut self, code: u8, tag: u8, attributes: &[(u8, u8)]) {
        self.abbreviations.extend([code, tag, 1]);
        self.abbreviations.extend(attributes.iter().flat_map(|(name, form)| [*name, *form]));
        self.abbreviations.extend([0, 0]);
    }

    /// A unit with these entries.
    fn unit(&mut self, abbreviations: u32, entries: &[u8]) {
        self.info.extend((entries.len() as u32 + 7).to_le_bytes());
        self.info.extend(4u16.to_le_bytes());
        self.info.extend(abbreviations.to_le_bytes());
        self.info.push(4);
        self.info.extend(entries);
    }

    /// The usual abbreviations: 1 a unit, 2 a function, 3 what is inlined.
    fn usual() -> Self {
        let mut debug = Self::default();
        debug.abbreviation(1, UNIT, &[LOW, SIZE, LINES]);
        debug.abbreviation(2, FUNCTION, &[LOW, SIZE, NAME]);
        debug.abbreviation(3, INLINED, &[LOW, SIZE, ORIGIN, CALL_FILE, CALL_LINE]);
        debug
    }

    /// A line program, after a header that names one file.
    fn line_program(&mut self, program: &[u8]) {
        let tables = b"\x01\x01\x01\xfb\x0e\x0d\0\x01\x01\x01\x01\0\0\0\x01\0\0\x01\0a.c\0\0\0\0\0";
        self.lines.extend((tables.len() as u32 + program.len() as u32 + 6).to_le_bytes());
        self.lines.extend(4u16.to_le_bytes());
        self.lines.extend((tables.len() as u32).to_le_bytes());
        self.lines.extend(tables);
        self.lines.extend(program);
    }

    /// A module whose export `f` traps, with these sections.
    fn module(&self) -> Vec<u8> {
        let text = r#"(module (func $trap (export "f") nop nop nop unreachable))"#;
        let mut bytes = wat::parse_str(text).expect("it is well-formed");
        for (name, contents) in [
            (".debug_abbrev", [&*self.abbreviations, &[0]].concat()),
            (".debug_info", self.info.clone()),
            (".debug_line", self.lines.clone()),
            (".debug_str", self.strings.clone()),
            (".debug_ranges", self.ranges.clone()),
        ] {
            let custom = [&[name.len() as u8], name.as_bytes(), &contents].concat();
            bytes.push(0);
            bytes.extend(leb(custom.len() as u64));
            bytes.extend(custom);
        }
        bytes
    }

    fn trap(&self) -> Result<Error> {
        let engine = Engine::default();
        let mut store = Store::new(&engine, ());
        let module = Module::new(&engine, self.module())?;
        let instance = Instance::new(&mut store, &module, &[])?;
        let function = instance.get_typed_func::<(), ()>(&mut store, "f")?;
        Ok(function.call(&mut store, ()).expect_err("it traps"))
    }

    /// The backtrace as text: shown again and again, on a small stack, by two threads at
    /// once, which takes little time.
    fn shown(&self) -> String {
        let error = self.trap().expect("it runs up to its trap");
        let started = Instant::now();
        let show = || {
            let mut text = String::new();
            for _ in 0..20 {
                text = error.backtrace().expect("a trap has one").to_string();
            }
            text
        };
        let text = std::thread::scope(|scope| {
            let small = || std::thread::Builder::new().stack_size(96 << 10);
            let threads = [(); 2].map(|()| small().spawn_scoped(scope, show).expect("a thread"));
            threads.map(|thread| thread.join().expect("no panic")).concat()
        });
        let took = started.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
        let (text, again) = text.split_at(text.len() / 2);
        assert_eq!(text, again, "both are told the same");
        assert!(text.starts_with("wasm backtrace, innermost first:\n    0: "), "{text}");
        assert!(text.contains("trap (function 0"), "{text}");
        assert!(text.len() < 400_000, "{} bytes", text.len());
        assert!(!text.contains(['\u{1b}', '\r']), "{text:?}");
        text.to_owned()
    }
}

fn leb(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

const LEFT_OUT: &str = "debug information beyond what is read is left out";

/// The entry of a unit with line program 0.
fn root() -> Vec<u8> {
    [&[1], &CODE[..], &[0; 4]].concat()
}

fn function(name: &str) -> Vec<u8> {
    [&[2], &CODE[..], name.as_bytes(), &[0]].concat()
}

/// Something inlined everywhere, whose origin is at `origin`, called from a line.
fn inlined(origin: u32, line: u8) -> Vec<u8> {
    [&[3], &CODE[..], &origin.to_le_bytes(), &[1, line]].concat()
}

/// One line for all code, up to its end: sets the address, copies, ends.
const ONE_LINE: &[u8] = b"\0\x05\x02\x01\0\0\0\x03\x06\x01\0\x05\x02\0\x01\0\0\0\x01\x01";

#[test]
fn what_is_inlined_is_named_from_the_inside_out() {
    let mut debug = Debug::usual();
    let root = root();
    let first = 11 + root.len() as u32;
    let name = function("outer");
    let origin = first + name.len() as u32;
    debug.abbreviation(4, FUNCTION, &[NAME]);
    let entries = [
        &root[..],
        &name,
        b"\x04inner\0\0",
        &inlined(origin, 11),
        &inlined(origin, 12),
        &inlined(origin, 13),
        &[0; 5],
    ];
    debug.unit(0, &entries.concat());
    debug.line_program(ONE_LINE);
    let text = debug.shown();
    let places: Vec<&str> = text.lines().skip(2).map(str::trim).collect();
    let expected = ["inner at a.c:7", "inner at a.c:13", "inner at a.c:12", "outer at a.c:11"];
    assert_eq!(places, expected);
}

#[test]
fn entries_nested_however_deep() {
    // With ranges: as many as are told apart are shown. Without: a byte for each.
    for (depth, full) in [(100, true), (200_000, true), (100, false), (3_000_000, false)] {
        let mut debug = Debug::usual();
        debug.abbreviation(5, INLINED, &[]);
        let (root, function) = (root(), function("outer"));
        let origin = 11 + root.len() as u32;
        let entry = if full { inlined(origin, 9) } else { vec![5] };
        debug.unit(0, &[&root, &function, &entry.repeat(depth)[..]].concat());
        debug.line_program(ONE_LINE);
        let text = debug.shown();
        let places = text.lines().filter(|line| line.contains(" at ")).count();
        assert_eq!(places, if full { 33 } else { 1 }, "{text}");
        assert!(text.contains("outer at a.c:"), "{text}");
    }
    // Functions within functions.
    let mut debug = Debug::usual();
    debug.unit(0, &[root(), function("f").repeat(100_000)].concat());
    debug.shown();
}

#[test]
fn line_programs_however_long() {
    // Each byte makes a row, at the next address or at the same.
    for opcode in [0x21, 0x12, 0x13, 0x01] {
        let mut debug = Debug::usual();
        debug.unit(0, &[root(), function("outer"), vec![0; 2]].concat());
        let program = [b"\0\x05\x02\x01\0\0\0", &vec![opcode; 8 << 20][..], b"\0\x01\x01"].concat();
        debug.line_program(&program);
        debug.shown();
    }
    // Sequences as many as fit.
    let mut debug = Debug::usual();
    debug.unit(0, &[root(), function("outer"), vec![0; 2]].concat());
    debug.line_program(&ONE_LINE.repeat(200_000));
    debug.shown();
}

#[test]
fn references_that_go_in_circles_or_nowhere() {
    let (root, name) = (root(), function("outer"));
    let first = 11 + (root.len() + name.len()) as u32;
    let size = inlined(0, 0).len() as u32;
    for origin in [first, first + size, 0, 1, u32::MAX, first + 3] {
        let mut debug = Debug::usual();
        let entries = [&root[..], &name, &inlined(origin, 9), &inlined(first, 9)];
        debug.unit(0, &entries.concat());
        debug.line_program(ONE_LINE);
        let text = debug.shown();
        assert!(text.contains("outer at a.c:9"), "{text}");
    }
    // Between units, and out of all of them.
    for origin in [0, 11, 12, 60, 1 << 20, u32::MAX] {
        let mut debug = Debug::usual();
        debug.abbreviation(6, FUNCTION, &[LOW, SIZE, ORIGIN_ANYWHERE]);
        let entry = [&[6], &CODE[..], &u32::to_le_bytes(origin)].concat();
        for _ in 0..3 {
            debug.unit(0, &[&root[..], &entry].concat());
        }
        debug.line_program(ONE_LINE);
        debug.shown();
    }
}

#[test]
fn units_however_many() {
    let mut debug = Debug::usual();
    debug.line_program(ONE_LINE);
    let entries = [root(), function("outer")].concat();
    for _ in 0..50_000 {
        debug.unit(0, &entries);
    }
    debug.shown();

    // Each with abbreviations that begin somewhere else in the same long list.
    let mut debug = Debug::usual();
    for _ in 0..50_000 {
        debug.abbreviation(1, UNIT, &[LOW, SIZE, LINES]);
    }
    let size = Debug::usual().abbreviations.len() as u32;
    for i in 0..50_000 {
        debug.unit(size + i * 11, &entries);
    }
    debug.shown();
    // And in turn one of two long lists.
    let lists = debug.abbreviations.len() as u32;
    debug.abbreviations = debug.abbreviations.repeat(2);
    for i in 0..50_000 {
        debug.unit(i % 2 * lists, &entries);
    }
    debug.shown();
}

#[test]
fn abbreviations_that_stand_for_far_more_than_their_bytes() {
    let mut debug = Debug::usual();
    debug.abbreviation(7, INLINED, &[EXTERNAL; 30_000]);
    debug.unit(0, &[root(), function("outer"), vec![7; 200_000]].concat());
    debug.line_program(ONE_LINE);
    let text = debug.shown();
    assert!(text.contains(LEFT_OUT), "{text}");
    assert!(text.contains("at a.c:"), "lines are known nevertheless: {text}");

    // A list of ranges to which everything refers, of which some are empty.
    for range in [CODE, [1; 8], [9, 0, 0, 0, 1, 0, 0, 0]] {
        let mut debug = Debug::usual();
        debug.abbreviation(8, FUNCTION, &[RANGES]);
        debug.ranges = range.repeat(100_000);
        debug.unit(0, &[root(), [8, 0, 0, 0, 0, 0].repeat(100_000)].concat());
        debug.line_program(ONE_LINE);
        assert!(debug.shown().contains(LEFT_OUT));
    }
}

#[test]
fn names_however_long_and_of_whatever_characters() {
    let long = "y".repeat(4 << 20);
    let lines = "x\nERROR: forged\u{1b}[2J\r";
    let bomb = format!("_Z1f4pairIiiE{}", "4pairIS0_S0_E".repeat(300));
    for name in [lines, &bomb, &long] {
        let mut debug = Debug::usual();
        let (root, name) = (root(), function(name));
        let origin = 11 + root.len() as u32;
        let deep = inlined(origin, 9).repeat(40);
        debug.unit(0, &[&root[..], &name, &deep].concat());
        debug.line_program(ONE_LINE);
        let text = debug.shown();
        assert!(!text.lines().any(|line| line.starts_with("ERROR")), "{text}");

        // In another section, where nothing limits it.
        let mut debug = Debug { strings: name, ..Debug::usual() };
        debug.abbreviation(9, FUNCTION, &[LOW, SIZE, NAME_ELSEWHERE]);
        let function = [&[9], &CODE[..], &9u32.to_le_bytes()].concat();
        debug.unit(0, &[&root[..], &function, &deep].concat());
        debug.line_program(ONE_LINE);
        debug.shown();
    }
}

#[test]
fn any_byte_may_be_any_other() {
    let mut debug = Debug::usual();
    let (root, name) = (root(), function("outer"));
    let origin = 11 + root.len() as u32;
    debug.unit(0, &[&root[..], &name, &inlined(origin, 9).repeat(3)].concat());
    debug.line_program(ONE_LINE);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |end: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % end as u64) as usize
    };
    for _ in 0..400 {
        let mut other = debug.clone();
        for _ in 0..=below(3) {
            let section = match below(3) {
                0 => &mut other.abbreviations,
                1 => &mut other.info,
                _ => &mut other.lines,
            };
            let at = below(section.len());
            section[at] = [0, 1, 0x7f, 0x80, 0xff, below(256) as u8][below(6)];
        }
        let error = other.trap().expect("it runs up to its trap");
        assert!(error.backtrace().expect("a trap has one").to_string().contains("trap (function"));
    }
}
