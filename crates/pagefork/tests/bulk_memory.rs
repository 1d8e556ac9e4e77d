//! `memory.copy` and `memory.fill` of every length that compiled code handles by
//! itself, of constant length and of others, and of some that it leaves to the C library,
//! within a memory and across its end.

use pagefork::{Engine, Instance, Memory, Module, Store, Trap, TrapCode, TypedFunc};

const SIZE: usize = 1 << 16;

/// Longer than what is done without the runtime.
const LENGTH_MAX: usize = 140;

struct Guest {
    store: Store<()>,
    memory: Memory,
    copies: Vec<TypedFunc<(u32, u32), ()>>,
    fills: Vec<TypedFunc<(u32, u32), ()>>,
    copy: TypedFunc<(u32, u32, u32), ()>,
    fill: TypedFunc<(u32, u32, u32), ()>,
}

impl Guest {
    fn new() -> Self {
        let mut text = String::from(
            r#"(module (memory (export "memory") 1)
            (func (export "copy") (param i32 i32 i32)
                (memory.copy (local.get 0) (local.get 1) (local.get 2)))
            (func (export "fill") (param i32 i32 i32)
                (memory.fill (local.get 0) (local.get 1) (local.get 2)))"#,
        );
        for length in 0..=LENGTH_MAX {
            text += &format!(
                r#"(func (export "copy{length}") (param i32 i32)
                    (memory.copy (local.get 0) (local.get 1) (i32.const {length})))
                (func (export "fill{length}") (param i32 i32)
                    (memory.fill (local.get 0) (local.get 1) (i32.const {length})))"#
            );
        }
        let engine = Engine::default();
        let module = Module::new(&engine, text + ")").unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let mut constant = |what: &str| {
            (0..=LENGTH_MAX)
                .map(|length| {
                    instance.get_typed_func(&mut store, &format!("{what}{length}")).unwrap()
                })
                .collect()
        };
        let (copies, fills) = (constant("copy"), constant("fill"));
        Self {
            memory: instance.get_memory(&mut store, "memory").unwrap(),
            copies,
            fills,
            copy: instance.get_typed_func(&mut store, "copy").unwrap(),
            fill: instance.get_typed_func(&mut store, "fill").unwrap(),
            store,
        }
    }

    /// Does the same in the guest, with the length constant and not, and in
    /// `expected`, which is the memory before.
    fn check(&mut self, copies: bool, to: usize, second: usize, length: usize) {
        let before = pattern();
        let mut expected = before.clone();
        let fits = to + length <= SIZE && (!copies || second + length <= SIZE);
        if fits && copies {
            expected.copy_within(second..second + length, to);
        } else if fits {
            expected[to..to + length].fill(second as u8);
        }
        for constant in [true, false] {
            if constant && length > LENGTH_MAX {
                continue;
            }
            self.memory.write(&mut self.store, 0, &before).unwrap();
            let (a, b, store) = (to as u32, second as u32, &mut self.store);
            let result = match (copies, constant) {
                (true, true) => self.copies[length].call(store, (a, b)),
                (true, false) => self.copy.call(store, (a, b, length as u32)),
                (false, true) => self.fills[length].call(store, (a, b)),
                (false, false) => self.fill.call(store, (a, b, length as u32)),
            };
            let what = format!("{to} {second} {length}, constant: {constant}");
            match result {
                Ok(()) => assert!(fits, "{what}"),
                Err(error) => {
                    let trap = error.downcast_ref::<Trap>().expect("a trap");
                    assert!(!fits && trap.code() == TrapCode::MemoryOutOfBounds, "{what}: {error}");
                    let backtrace = error.backtrace().expect("a trap has one");
                    assert_eq!(backtrace.frames().len(), 1, "{what}: {error:?}");
                }
            }
            assert!(self.memory.data(&self.store) == expected, "{what}");
        }
    }
}

fn pattern() -> Vec<u8> {
    (0..SIZE).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn copies_of_every_short_length_and_overlap() {
    let mut guest = Guest::new();
    for length in 0..=LENGTH_MAX {
        for distance in [0, 1, 7, 8, 15, 16, 17, 33, 64, 127, 200] {
            guest.check(true, 1000, 1000 + distance, length);
            guest.check(true, 1000 + distance, 1000, length);
        }
    }
}

#[test]
fn fills_of_every_short_length() {
    let mut guest = Guest::new();
    for length in 0..=LENGTH_MAX {
        guest.check(false, 4090, 0x1fe, length);
    }
}

#[test]
fn nothing_is_written_across_the_end() {
    let mut guest = Guest::new();
    for length in [0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 63, 64, 65, 128, 129] {
        for beyond in [0, 1, 2, 8, 15, 16, 17, 40] {
            let end = SIZE + beyond;
            if end >= length {
                guest.check(true, end - length, 100, length);
                guest.check(true, 100, end - length, length);
                guest.check(false, end - length, 0xff, length);
            }
            guest.check(true, u32::MAX as usize - beyond, 100, length);
            guest.check(true, 100, u32::MAX as usize - beyond, length);
            guest.check(false, u32::MAX as usize - beyond, 0xff, length);
        }
    }
}

#[test]
fn long_ranges_are_copied_and_filled_however_they_overlap() {
    let mut guest = Guest::new();
    for length in [141, 255, 256, 257, 1000, 4096, 5000, 20_000] {
        for distance in [0, 1, 16, 100, 4095, 4096, 4097, 30_000] {
            guest.check(true, 1000, 1000 + distance, length);
            guest.check(true, 1000 + distance, 1000, length);
        }
        guest.check(false, 4090, 0x1fe, length);
    }
    guest.check(true, 0, 0, SIZE);
    guest.check(false, 0, 0x55, SIZE);
}

#[test]
fn nothing_of_a_long_range_is_written_across_the_end() {
    let mut guest = Guest::new();
    for length in [141, 4096, 5000, SIZE, SIZE + 1, 1 << 31, u32::MAX as usize] {
        for start in [0, 1, 100, SIZE - 5000, SIZE - 141, SIZE - 1, SIZE, u32::MAX as usize] {
            guest.check(true, start, 100, length);
            guest.check(true, 100, start, length);
            guest.check(false, start, 0xff, length);
        }
    }
}
