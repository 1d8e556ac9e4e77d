//! Handlers of exceptions, and what throws them.

use wasm_encoder::reencode::{Reencode, RoundtripReencoder};
use wasm_encoder::{BlockType, Catch, Function, Instruction, RefType, ValType};
use wasmparser::FuncType;

use crate::random::Random;

/// Types that blocks of handlers need, and that the module gets.
#[derive(Default)]
pub(super) struct BlockTypes {
    /// Type index of the first.
    pub(super) first: u32,
    /// Parameters and results of each.
    pub(super) types: Vec<(Vec<ValType>, Vec<ValType>)>,
}

impl BlockTypes {
    fn add(&mut self, params: Vec<ValType>, results: Vec<ValType>) -> BlockType {
        let ty = (params, results);
        let at = self.types.iter().position(|known| *known == ty).unwrap_or_else(|| {
            self.types.push(ty);
            self.types.len() - 1
        });
        BlockType::FunctionType(self.first + at as u32)
    }
}

/// What a handler catches, and does then.
#[derive(Clone, Copy)]
enum Handler {
    /// All exceptions.
    All,
    /// Those with the tag.
    Tag,
    /// Those with the tag, by reference.
    TagReference,
    /// All, by reference, and throws them again.
    Rethrow,
}

/// A call in a block that catches exceptions: `call` takes what a function of the
/// type `ty`, with index `index`, takes, and leaves what it leaves. Without a
/// handler if there is nothing that it could leave instead.
pub(super) fn guard(
    to: &mut Function,
    blocks: &mut BlockTypes,
    random: &mut Random,
    (index, ty): (u32, &FuncType),
    (tag, payload): (u32, &[wasmparser::ValType]),
    call: impl FnOnce(&mut Function),
) {
    let handlers = [Handler::All, Handler::Tag, Handler::TagReference, Handler::Rethrow];
    let handler = *random.pick(&handlers).expect("there are some");
    let instead: Option<Vec<_>> = ty.results().iter().map(|ty| constant(random, *ty)).collect();
    let caught = match handler {
        Handler::All | Handler::Rethrow => 0,
        Handler::Tag => payload.len(),
        Handler::TagReference => payload.len() + 1,
    };
    let mut after = vec![Instruction::Drop; caught];
    match (handler, instead) {
        (Handler::Rethrow, _) => after.push(Instruction::ThrowRef),
        (_, Some(instead)) => after.extend(instead),
        (_, None) => return call(to),
    }
    open(to, blocks, index, ty, handler, tag, payload);
    call(to);
    close(to);
    for instruction in &after {
        to.instruction(instruction);
    }
    to.instruction(&Instruction::End);
}

/// The blocks around the call: one that is left with its results, one that is left
/// with what is caught, and the one that catches.
fn open(
    to: &mut Function,
    blocks: &mut BlockTypes,
    index: u32,
    ty: &FuncType,
    handler: Handler,
    tag: u32,
    payload: &[wasmparser::ValType],
) {
    let mut caught = match handler {
        Handler::All | Handler::Rethrow => Vec::new(),
        Handler::Tag | Handler::TagReference => encoded(payload),
    };
    if let Handler::TagReference | Handler::Rethrow = handler {
        caught.push(ValType::Ref(RefType::EXNREF));
    }
    let whole = BlockType::FunctionType(index);
    let inner = blocks.add(encoded(ty.params()), caught);
    let catch = match handler {
        Handler::All => Catch::All { label: 0 },
        Handler::Tag => Catch::One { tag, label: 0 },
        Handler::TagReference => Catch::OneRef { tag, label: 0 },
        Handler::Rethrow => Catch::AllRef { label: 0 },
    };
    to.instruction(&Instruction::Block(whole));
    to.instruction(&Instruction::Block(inner));
    to.instruction(&Instruction::TryTable(whole, vec![catch].into()));
}

/// The ends of the inner two, and the way out past the handler.
fn close(to: &mut Function) {
    to.instruction(&Instruction::End);
    to.instruction(&Instruction::Br(1));
    to.instruction(&Instruction::End);
}

/// Throws an exception with this tag whenever a few bits of the fuel are zero.
pub(super) fn throw_at_times(
    to: &mut Function,
    random: &mut Random,
    fuel: u32,
    (tag, payload): (u32, &[wasmparser::ValType]),
) {
    let values: Option<Vec<_>> = payload.iter().map(|ty| constant(random, *ty)).collect();
    let Some(values) = values else { return };
    to.instruction(&Instruction::GlobalGet(fuel));
    to.instruction(&Instruction::I32Const((1 << random.between(1, 5)) - 1));
    to.instruction(&Instruction::I32And);
    to.instruction(&Instruction::I32Eqz);
    to.instruction(&Instruction::If(BlockType::Empty));
    for value in &values {
        to.instruction(value);
    }
    to.instruction(&Instruction::Throw(tag));
    to.instruction(&Instruction::End);
}

fn encoded(types: &[wasmparser::ValType]) -> Vec<ValType> {
    types.iter().map(|ty| RoundtripReencoder.val_type(*ty).expect("a type")).collect()
}

/// Some value of a type; `None` for references that cannot be null.
fn constant(random: &mut Random, ty: wasmparser::ValType) -> Option<Instruction<'static>> {
    Some(match encoded(&[ty])[0] {
        ValType::I32 => Instruction::I32Const(random.next() as i32),
        ValType::I64 => Instruction::I64Const(random.next() as i64),
        ValType::F32 => Instruction::F32Const((random.below(100) as f32).into()),
        ValType::F64 => Instruction::F64Const((random.below(100) as f64).into()),
        ValType::V128 => Instruction::V128Const(random.next().into()),
        ValType::Ref(RefType { nullable: false, .. }) => return None,
        ValType::Ref(ty) => Instruction::RefNull(ty.heap_type),
    })
}
