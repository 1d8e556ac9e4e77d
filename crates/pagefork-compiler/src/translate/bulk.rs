//! Copies and fills within a memory. Most that programs make are of a few bytes,
//! so these are done by guest code: of constant length in place, of others in a
//! function that each module has for each memory. Long ones are compared with the size
//! and left to the C library; what is outside, or costs fuel, goes to the runtime.
//!
//! Short ones need no check, unless all accesses are compared with the size. All is
//! read before anything is written, and the last bytes are written first: what lies
//! outside the memory raises a signal then, before any byte has changed.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I8X16, I16, I32, I64};
use cranelift_codegen::ir::{AbiParam, InstBuilder, Signature, Type, Value};
use cranelift_codegen::isa::CallConv;
use pagefork_layout::link::{Service, activation};

use super::numeric::known_constant;
use super::{Symbol, Translator};

/// Constant lengths up to this many bytes are copied and filled in place.
const INLINE_MAX: u64 = 64;

/// Sixteen-byte pieces at either end with which the functions reach up to 32, 64
/// and 128 bytes.
const WIDE_STEPS: [i32; 3] = [1, 2, 4];

impl Translator<'_> {
    /// `memory.copy`; the operands are on the stack.
    pub(super) fn memory_copy(&mut self, to: u32, from: u32) {
        let (destination, source, length) = self.pop3();
        if to != from || self.module.info.memories[to as usize].memory64 {
            let (to, from) = (self.index(to), self.index(from));
            self.service(Service::MemoryCopy, &[to, from, destination, source, length]);
        } else if let Some(length) = self.short_constant(length) {
            let pieces = pieces(length);
            let (flags, start) = self.range_place(from, source, length);
            let load = |t: &mut Self, (at, ty)| t.b.ins().load(ty, flags, start, at);
            let values: Vec<Value> = pieces.iter().map(|piece| load(self, *piece)).collect();
            let (flags, start) = self.range_place(to, destination, length);
            for ((at, _), value) in pieces.iter().zip(values).rev() {
                self.b.ins().store(flags, value, start, *at);
            }
        } else {
            self.call_helper(Symbol::Copy(to), &[destination, source, length]);
        }
    }

    /// `memory.fill`; the operands are on the stack.
    pub(super) fn memory_fill(&mut self, memory: u32) {
        let (destination, byte, length) = self.pop3();
        if self.module.info.memories[memory as usize].memory64 {
            let memory = self.index(memory);
            self.service(Service::MemoryFill, &[memory, destination, byte, length]);
        } else if let Some(length) = self.short_constant(length) {
            let (flags, start) = self.range_place(memory, destination, length);
            for (at, ty) in pieces(length).into_iter().rev() {
                let value = self.repeated(byte, ty);
                self.b.ins().store(flags, value, start, at);
            }
        } else {
            self.call_helper(Symbol::Fill(memory), &[destination, byte, length]);
        }
    }

    fn short_constant(&self, length: Value) -> Option<i32> {
        let length = known_constant(self, length)?;
        // A length of zero still needs its check.
        (1..=INLINE_MAX as i64).contains(&length).then_some(length as i32)
    }

    fn call_helper(&mut self, symbol: Symbol, args: &[Value]) {
        let callee = self.symbol(symbol);
        self.b.ins().call(callee, args);
        self.forget_addresses();
    }

    /// The function that copies within `memory`.
    pub(crate) fn copy_function(&mut self, memory: u32, args: &[Value]) {
        let &[destination, source, length] = args else { unreachable!("its signature") };
        self.by_length(
            (memory, &[source, destination]),
            length,
            |t, ty, count| {
                let size = ty.bytes() as i32;
                let (flags, start) = t.memory_place(memory, source);
                let end = t.after(start, length);
                let mut values = Vec::new();
                for i in 0..count {
                    values.push(t.b.ins().load(ty, flags, start, i * size));
                    values.push(t.b.ins().load(ty, flags, end, -(i + 1) * size));
                }
                let (flags, start) = t.memory_place(memory, destination);
                let end = t.after(start, length);
                for (i, pair) in (0..count).zip(values.chunks_exact(2)) {
                    t.b.ins().store(flags, pair[1], end, -(i + 1) * size);
                    t.b.ins().store(flags, pair[0], start, i * size);
                }
            },
            |t| {
                t.by_the_library(memory, &[source, destination], length, |t| {
                    let (_, from) = t.memory_place(memory, source);
                    let (_, to) = t.memory_place(memory, destination);
                    (activation::MEMORY_MOVE, to, from)
                });
                let memory = t.index(memory);
                let args = [memory, memory, destination, source, length];
                t.service(Service::MemoryCopy, &args);
            },
        );
    }

    /// The function that fills bytes of `memory`.
    pub(crate) fn fill_function(&mut self, memory: u32, args: &[Value]) {
        let &[destination, byte, length] = args else { unreachable!("its signature") };
        self.by_length(
            (memory, &[destination]),
            length,
            |t, ty, count| {
                let size = ty.bytes() as i32;
                let value = t.repeated(byte, ty);
                let (flags, start) = t.memory_place(memory, destination);
                let end = t.after(start, length);
                for i in 0..count {
                    t.b.ins().store(flags, value, end, -(i + 1) * size);
                    t.b.ins().store(flags, value, start, i * size);
                }
            },
            |t| {
                t.by_the_library(memory, &[destination], length, |t| {
                    let (_, to) = t.memory_place(memory, destination);
                    (activation::MEMORY_SET, to, t.b.ins().uextend(I64, byte))
                });
                let memory = t.index(memory);
                t.service(Service::MemoryFill, &[memory, destination, byte, length]);
            },
        );
    }

    /// Does what the length asks for from each of the starts on: `near` handles twice `count` pieces of a
    /// type, half of them from the start and half of them from the end, which may
    /// overlap; `far` handles the rest, and what is found outside the memory. Returns
    /// after either.
    fn by_length(
        &mut self,
        (memory, starts): (u32, &[Value]),
        length: Value,
        mut near: impl FnMut(&mut Self, Type, i32),
        far: impl FnOnce(&mut Self),
    ) {
        let mut near_if = |t: &mut Self, condition: IntCC, bound: i32, ty, count| {
            let (near_block, next) = (t.b.create_block(), t.b.create_block());
            let short = t.b.ins().icmp_imm_u(condition, length, i64::from(bound));
            t.b.ins().brif(short, near_block, &[], next, &[]);
            t.open_block(near_block);
            near(t, ty, count);
            t.b.ins().return_(&[]);
            t.open_block(next);
        };
        let (wide, narrow, far_block) =
            (self.b.create_block(), self.b.create_block(), self.b.create_block());
        if self.is_checked(memory) {
            for &start in starts {
                let inside = self.b.create_block();
                let outside = self.range_is_outside(memory, start, length);
                self.b.ins().brif(outside, far_block, &[], inside, &[]);
                self.open_block(inside);
            }
        }
        let long = self.b.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, length, 16);
        self.b.ins().brif(long, wide, &[], narrow, &[]);

        self.open_block(narrow);
        for ty in [I64, I32, I16, I8] {
            let size = ty.bytes() as i32;
            near_if(self, IntCC::UnsignedGreaterThanOrEqual, size, ty, 1);
        }
        // Nothing to copy, but its place has to be checked.
        self.b.ins().jump(far_block, &[]);

        self.open_block(wide);
        for count in WIDE_STEPS {
            let reach = 2 * count * I8X16.bytes() as i32;
            near_if(self, IntCC::UnsignedLessThanOrEqual, reach, I8X16, count);
        }
        self.b.ins().jump(far_block, &[]);

        self.open_block(far_block);
        far(self);
        self.b.ins().return_(&[]);
    }

    /// Has the C library do what `call` says, a thunk and its first two arguments, and
    /// returns, if the ranges from `starts` on are inside the memory; else, and where
    /// fuel must be paid for the length, goes on.
    fn by_the_library(
        &mut self,
        memory: u32,
        starts: &[Value],
        length: Value,
        call: impl FnOnce(&mut Self) -> (u32, Value, Value),
    ) {
        if self.module.options.fuel {
            return;
        }
        let otherwise = self.b.create_block();
        for &start in starts {
            let inside = self.b.create_block();
            let outside = self.range_is_outside(memory, start, length);
            self.b.ins().brif(outside, otherwise, &[], inside, &[]);
            self.open_block(inside);
        }
        let (thunk, first, second) = call(self);
        let length = self.b.ins().uextend(I64, length);
        let thunk = self.activation_word(thunk);
        let mut signature = Signature::new(CallConv::SystemV);
        signature.params.extend([AbiParam::new(I64); 3]);
        let signature = self.b.import_signature(signature);
        self.b.ins().call_indirect(signature, thunk, &[first, second, length]);
        self.b.ins().return_(&[]);
        self.open_block(otherwise);
    }

    fn after(&mut self, start: Value, length: Value) -> Value {
        let length = self.b.ins().uextend(I64, length);
        self.b.ins().iadd(start, length)
    }

    /// The low byte of an `i32`, as often as it fits into `ty`.
    fn repeated(&mut self, byte: Value, ty: Type) -> Value {
        let byte = self.b.ins().ireduce(I8, byte);
        match ty {
            I8 => byte,
            I8X16 => self.b.ins().splat(I8X16, byte),
            _ => {
                let wide = self.b.ins().uextend(ty, byte);
                self.b
                    .ins()
                    .imul_imm_u(wide, 0x0101_0101_0101_0101 & (i64::MAX >> (64 - ty.bits())))
            }
        }
    }
}

/// Pieces that cover `length` bytes, the last of which reaches to the end: offset
/// and type of each. They may overlap.
fn pieces(length: i32) -> Vec<(i32, Type)> {
    let ty = [I8X16, I64, I32, I16, I8]
        .into_iter()
        .find(|ty| ty.bytes() as i32 <= length)
        .expect("lengths of zero are not for here");
    let size = ty.bytes() as i32;
    let mut pieces: Vec<_> = (0..length / size).map(|i| (i * size, ty)).collect();
    if length % size != 0 {
        pieces.push((length - size, ty));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_byte_and_no_other() {
        for length in 1..=INLINE_MAX as i32 {
            let mut covered = vec![false; length as usize];
            for (at, ty) in pieces(length) {
                covered[at as usize..][..ty.bytes() as usize].fill(true);
            }
            assert!(covered.iter().all(|byte| *byte), "{length}");
            let (at, ty) = pieces(length).pop().unwrap();
            assert_eq!(at + ty.bytes() as i32, length);
        }
    }
}
