//! Modules that are spawned.

use std::fmt::Write;

/// What a request does in its instance: it reads eight bytes of each of some host
/// pages and writes them. It returns the sum of what it read, so that a page that
/// an earlier request wrote does not go unnoticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pages {
    /// The first page.
    pub(crate) first: u32,
    /// How many pages.
    pub(crate) count: u32,
    /// From one page to the next.
    pub(crate) step: u32,
}

impl Pages {
    /// The request calls a function that does nothing.
    pub(crate) const NONE: Self = Self::row(0);

    /// This many pages, one after the other.
    pub(crate) const fn row(count: u32) -> Self {
        Self { first: 0, count, step: 1 }
    }
}

/// The function that all modules export as `run`.
const RUN: &str = r#"(func $run (export "run")
    (param $page i32) (param $count i32) (param $step i32) (result i64) (local $sum i64)
    (if (local.get $count) (then
        (loop $next
            (local.set $sum (i64.add (local.get $sum)
                (i64.load offset=8 (i32.shl (local.get $page) (i32.const 12)))))
            (i64.store offset=8 (i32.shl (local.get $page) (i32.const 12)) (i64.const -1))
            (local.set $page (i32.add (local.get $page) (local.get $step)))
            (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 1)))))))
    (local.get $sum))"#;

/// What it writes to a page, and how it writes all of it.
const STORED: &str =
    "(i64.store offset=8 (i32.shl (local.get $page) (i32.const 12)) (i64.const -1))";
const FILLED: &str =
    "(memory.fill (i32.shl (local.get $page) (i32.const 12)) (i32.const 0xff) (i32.const 4096))";

/// As `run`, without a memory.
const NOTHING: &str =
    r#"(func $run (export "run") (param i32 i32 i32) (result i64) (i64.const 0))"#;

/// What each page of an image contains, eight bytes of it.
pub(crate) const IMAGE_WORD: u64 = u64::from_le_bytes(*b"pagefork");

/// A module to be spawned. The default is empty but for `run`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape {
    /// Wasm pages of memory; without one if there are none.
    pub(crate) memory: u32,
    /// Wasm pages at its start that the image fills.
    pub(crate) image: u32,
    /// Elements of a table, all of them functions.
    pub(crate) table: u32,
    /// Mutable globals.
    pub(crate) globals: u32,
    /// Whether these are exported, as embedders need it who write them by hand.
    pub(crate) exports_globals: bool,
    /// Functions beside `run`.
    pub(crate) functions: u32,
    /// Host functions that are imported.
    pub(crate) imports: u32,
    /// What makes the module another than the next.
    pub(crate) number: u32,
    /// What `run` does.
    pub(crate) run: Action,
}

/// What `run` does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Action {
    /// What [`Pages`] says.
    #[default]
    Pages,
    /// Writes all globals, and returns the sum of what was in them.
    Globals,
    /// Writes an element of the table, and returns 1 if it was a function before.
    Table,
    /// Reads and writes as [`Pages`] says, but `count` pages that a generator chooses of the
    /// first `step`, a power of two; `first` is its seed. Returns how many of them were as the
    /// image.
    Chosen,
    /// As `Pages`, but all bytes of each page are written.
    Fill,
    /// Grows the memory by `step` pages, `count` times, and writes a word to each of the first
    /// `first` pages of 4 KiB of what came, one at least; returns the sum of what was there.
    Grow,
}

impl Shape {
    /// 16 MiB of memory, 1 MiB of image, a table, 20 globals.
    pub(crate) fn usual() -> Self {
        Self { memory: 256, image: 16, table: 100, globals: 20, ..Self::default() }
    }

    /// As large as a blockchain's runtime or an interpreter: thousands of
    /// functions, a hundred imports, 4 MiB of memory with 1 MiB of image.
    pub(crate) fn interpreter(functions: u32) -> Self {
        let table = functions.min(2000);
        Self {
            memory: 64,
            image: 16,
            table,
            globals: 20,
            exports_globals: true,
            functions,
            imports: 100,
            ..Self::default()
        }
    }

    /// The module's bytes.
    pub(crate) fn wasm(&self) -> Vec<u8> {
        wat::parse_str(self.wat()).expect("a module")
    }

    fn wat(&self) -> String {
        let mut text = String::from("(module (type $plain (func (param i32 i64) (result i64)))");
        for i in 0..self.imports {
            put(
                &mut text,
                format_args!(r#"(import "host" "f{i}" (func (param i32) (result i32)))"#),
            );
        }
        if self.memory > 0 {
            put(&mut text, format_args!("(memory (export \"memory\") {})", self.memory));
        }
        for page in 0..self.image {
            let bytes = "pagefork".repeat((64 << 10) / 8);
            put(&mut text, format_args!("(data (i32.const {}) \"{bytes}\")", page << 16));
        }
        for i in 0..self.globals {
            let export =
                if self.exports_globals { format!("(export \"g{i}\")") } else { String::new() };
            put(
                &mut text,
                format_args!("(global $g{i} {export} (mut i64) (i64.const {}))", i + self.number),
            );
        }
        for i in 0..self.functions {
            put(
                &mut text,
                format_args!(
                    "(func $f{i} (type $plain)
                    (if (i32.eqz (local.get 0)) (then (return (i64.const {}))))
                    (i64.mul (local.get 1) (i64.extend_i32_u (local.get 0))))",
                    i + self.number
                ),
            );
        }
        if self.table > 0 {
            put(&mut text, format_args!("(table $t {} funcref) (elem (i32.const 0)", self.table));
            for i in 0..self.table {
                match self.functions {
                    0 => text.push_str(" $run"),
                    functions => put(&mut text, format_args!(" $f{}", i % functions)),
                }
            }
            text.push(')');
        }
        put(&mut text, format_args!("(@custom \"number\" \"{}\")", self.number));
        text += &self.run_function();
        text + ")"
    }

    fn run_function(&self) -> String {
        let signature = "(func $run (export \"run\")
            (param $page i32) (param $count i32) (param $step i32) (result i64) (local $sum i64)";
        match self.run {
            Action::Pages if self.memory == 0 => NOTHING.to_owned(),
            Action::Pages => RUN.to_owned(),
            Action::Fill => RUN.replace(STORED, FILLED),
            Action::Globals => {
                let mut text = signature.to_owned();
                for i in 0..self.globals {
                    put(
                        &mut text,
                        format_args!(
                            "(local.set $sum (i64.add (local.get $sum) (global.get $g{i})))
                         (global.set $g{i} (i64.const 77))"
                        ),
                    );
                }
                text + "(local.get $sum))"
            }
            Action::Table => format!(
                "{signature} (local.set $sum (i64.extend_i32_u
                    (i32.eqz (ref.is_null (table.get $t (i32.const 7))))))
                 (table.set $t (i32.const 7) (ref.null func)) (local.get $sum))"
            ),
            // Each page comes once in the generator's period.
            Action::Chosen => format!(
                "{signature} (local $factor i32) (local $addend i32)
                (local.set $factor (i32.or (i32.const 1)
                    (i32.and (i32.shr_u (local.get $page) (i32.const 3)) (i32.const -4))))
                (local.set $addend
                    (i32.or (i32.const 1) (i32.shr_u (local.get $page) (i32.const 13))))
                (local.set $step (i32.sub (local.get $step) (i32.const 1)))
                (loop $next
                    (local.set $page (i32.and (local.get $page) (local.get $step)))
                    (local.set $sum (i64.add (local.get $sum) (i64.extend_i32_u (i64.eq
                        (i64.load offset=8 (i32.shl (local.get $page) (i32.const 12)))
                        (select (i64.const {IMAGE_WORD}) (i64.const 0)
                            (i32.lt_u (local.get $page) (i32.const {})))))))
                    (i64.store offset=8 (i32.shl (local.get $page) (i32.const 12)) (i64.const -1))
                    (local.set $page (i32.add (local.get $addend)
                        (i32.mul (local.get $page) (local.get $factor))))
                    (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 1)))))
                (local.get $sum))",
                self.image * 16
            ),
            Action::Grow => format!(
                "{signature} (local $address i32) (local $left i32)
                (loop $next
                    (local.set $address (memory.grow (local.get $step)))
                    (if (i32.eq (local.get $address) (i32.const -1)) (then unreachable))
                    (local.set $address (i32.shl (local.get $address) (i32.const 16)))
                    (local.set $left (local.get $page))
                    (loop $write
                        (local.set $sum
                            (i64.add (local.get $sum) (i64.load (local.get $address))))
                        (i64.store (local.get $address) (i64.const -1))
                        (local.set $address (i32.add (local.get $address) (i32.const 4096)))
                        (br_if $write (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
                    (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 1)))))
                 (local.get $sum))"
            ),
        }
    }
}

/// Adds `run` to a third-party program, as its last function and its
/// last export; it uses the program's memory.
///
/// # Panics
/// If the program is not a module with a memory whose imports are functions.
pub(crate) fn with_run(program: &[u8]) -> Vec<u8> {
    let donor = wat::parse_str(format!("(module (memory 1) {RUN})")).expect("a module");
    let mut ours = Sections(&donor[8..]);
    let mut entry = |id| {
        let (_, body) = ours.by_ref().find(|(found, _)| *found == id).expect("it has one");
        // Behind the number of entries, of which there is one.
        body[1..].to_vec()
    };
    let (ty, code) = (entry(1), entry(10));
    let (mut imports, mut types, mut functions) = (0, 0, 0);
    let mut wasm = program[..8].to_vec();
    for (id, body) in Sections(&program[8..]) {
        let (count, rest) = number(body);
        let added = match id {
            1 => {
                types = count;
                ty.clone()
            }
            2 => {
                imports = count;
                Vec::new()
            }
            3 => {
                functions = count;
                encode(types)
            }
            7 => {
                let mut export = b"\x03run\x00".to_vec();
                export.extend(encode(imports + functions));
                export
            }
            10 => code.clone(),
            _ => Vec::new(),
        };
        wasm.push(id);
        if added.is_empty() {
            wasm.extend(encode(body.len() as u32));
            wasm.extend(body);
        } else {
            let body = [&encode(count + 1), rest, &added].concat();
            wasm.extend(encode(body.len() as u32));
            wasm.extend(body);
        }
    }
    wasm
}

/// Sections of a module: number and contents.
struct Sections<'a>(&'a [u8]);

impl<'a> Iterator for Sections<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (id, rest) = self.0.split_first()?;
        let (size, rest) = number(rest);
        let (body, rest) = rest.split_at(size as usize);
        self.0 = rest;
        Some((*id, body))
    }
}

/// Reads a number of the binary format (LEB128).
fn number(bytes: &[u8]) -> (u32, &[u8]) {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0).expect("a number ends") + 1;
    let (number, rest) = bytes.split_at(length);
    (number.iter().rev().fold(0, |value, byte| value << 7 | u32::from(byte & 0x7f)), rest)
}

/// Writes one.
fn encode(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn put(text: &mut String, part: std::fmt::Arguments<'_>) {
    text.write_fmt(part).expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sides::Side;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for value in [0, 1, 127, 128, 300, 16_384, u32::MAX] {
            assert_eq!(number(&encode(value)), (value, &[][..]));
        }
    }

    #[test]
    fn a_program_gets_a_function_more() {
        let program = wat::parse_str(
            r#"(module (import "a" "b" (func)) (memory 1) (global (mut i32) (i32.const 1))
                (func (export "f") (result i32) (i32.const 7)) (data (i32.const 8) "pagefork"))"#,
        );
        let side = crate::sides::pagefork(&with_run(&program.unwrap()));
        assert_eq!(side.request(Pages::row(2)), IMAGE_WORD);
    }
}
