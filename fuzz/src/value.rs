//! Values in the words of neither engine.

use std::hash::{DefaultHasher, Hash, Hasher};

use wasmparser::{AbstractHeapType, HeapType, RefType, ValType};

use crate::random::Random;

/// A value in the words of neither engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Value {
    /// 32-bit integer.
    I32(u32),
    /// 64-bit integer.
    I64(u64),
    /// 32-bit float: its bits.
    F32(u32),
    /// 64-bit float: its bits.
    F64(u64),
    /// 128-bit vector, little endian.
    V128(u128),
    /// Any null.
    Null,
    /// A function, by its number among those that either engine made known;
    /// `None` if it is none of them.
    Func(Option<usize>),
    /// A host value: its number.
    Extern(u32),
    /// An exception: a digest of what it carries.
    Exception(u64),
}

impl Value {
    /// An exception that carries these values.
    pub fn exception(payload: &[Self]) -> Self {
        let mut hasher = DefaultHasher::new();
        payload.hash(&mut hasher);
        Self::Exception(hasher.finish())
    }
}

/// What a reference type refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Functions.
    Func,
    /// Values of the host.
    Extern,
    /// Exceptions.
    Exception,
}

/// What a reference of this type refers to.
///
/// # Panics
/// If the type belongs to garbage collection.
pub fn target(ty: RefType) -> Target {
    use AbstractHeapType as A;
    match ty.heap_type() {
        HeapType::Concrete(_) | HeapType::Exact(_) => Target::Func,
        HeapType::Abstract { ty: A::Func | A::NoFunc, .. } => Target::Func,
        HeapType::Abstract { ty: A::Extern | A::NoExtern, .. } => Target::Extern,
        HeapType::Abstract { ty: A::Exn | A::NoExn, .. } => Target::Exception,
        other => panic!("generated modules have no type {other:?}"),
    }
}

/// A value of this type that programs are likely to trip over. `functions` gives
/// the numbers of those that are known: of this type index, or all. `None` if the
/// type has no value that can be made up.
pub fn interesting(
    random: &mut Random,
    ty: ValType,
    functions: impl FnOnce(Option<u32>) -> Vec<usize>,
) -> Option<Value> {
    Some(match ty {
        ValType::I32 => Value::I32(integer(random, 32) as u32),
        ValType::I64 => Value::I64(integer(random, 64)),
        ValType::F32 => Value::F32(float32(random)),
        ValType::F64 => Value::F64(float64(random)),
        ValType::V128 => Value::V128(match random.below(4) {
            0 => u128::from(integer(random, 64)) << 64 | u128::from(integer(random, 64)),
            1 => lanes(random, 4, |random| float32(random).into()),
            2 => lanes(random, 2, float64),
            _ => lanes(random, 16, |random| integer(random, 8)),
        }),
        ValType::Ref(ty) => match target(ty) {
            Target::Func if !ty.is_nullable() || random.chance(1, 2) => {
                let index = match ty.heap_type() {
                    HeapType::Concrete(index) => index.as_module_index(),
                    _ => None,
                };
                match random.pick(&functions(index)) {
                    Some(function) => Value::Func(Some(*function)),
                    None if ty.is_nullable() => Value::Null,
                    None => return None,
                }
            }
            Target::Extern if !ty.is_nullable() || random.chance(1, 2) => {
                Value::Extern(random.below(100) as u32)
            }
            _ if ty.is_nullable() => Value::Null,
            _ => return None,
        },
    })
}

fn lanes(random: &mut Random, count: u32, mut lane: impl FnMut(&mut Random) -> u64) -> u128 {
    let width = 128 / count;
    (0..count)
        .fold(0, |bits, i| bits | (u128::from(lane(random)) & ((1 << width) - 1)) << (i * width))
}

/// An integer of this many bits, zero-extended.
fn integer(random: &mut Random, bits: u32) -> u64 {
    let mask = u64::MAX >> (64 - bits);
    let value = match random.below(8) {
        0 => 0,
        1 => random.below(16),
        2 => u64::MAX,
        3 => 1 << (bits - 1),
        4 => (1 << (bits - 1)) - 1,
        // A power of two, and what is beside it, of either sign.
        5 | 6 => {
            let beside = (1u64 << random.below(bits.into())).wrapping_add(random.below(3));
            let power = beside.wrapping_sub(1);
            if random.chance(1, 2) { power.wrapping_neg() } else { power }
        }
        _ => random.next(),
    };
    value & mask
}

fn float32(random: &mut Random) -> u32 {
    let value = match random.below(12) {
        0 => 0.0f32,
        1 => 1.0,
        2 => f32::INFINITY,
        3 => f32::NAN,
        4 => f32::MIN_POSITIVE,
        5 => f32::from_bits(1 + random.below(3) as u32),
        6 => f32::MAX,
        7 => f32::from_bits(0x7f80_0001 + random.below(0x7f_fffe) as u32),
        // Where integers end.
        8 => (1u64 << random.between(7, 63)) as f32 - random.below(3) as f32,
        9 => random.below(1000) as f32 + 0.5,
        10 => integer(random, 32) as i32 as f32,
        _ => f32::from_bits(random.next() as u32),
    };
    value.to_bits() ^ (random.below(2) as u32) << 31
}

fn float64(random: &mut Random) -> u64 {
    let value = match random.below(12) {
        0 => 0.0f64,
        1 => 1.0,
        2 => f64::INFINITY,
        3 => f64::NAN,
        4 => f64::MIN_POSITIVE,
        5 => f64::from_bits(1 + random.below(3)),
        6 => f64::MAX,
        7 => f64::from_bits(0x7ff0_0000_0000_0001 + random.below(0xf_ffff_ffff_fffe)),
        8 => (1u64 << random.between(7, 63)) as f64 - random.below(3) as f64,
        9 => random.below(1000) as f64 + 0.5,
        10 => f64::from(f32::from_bits(float32(random))),
        _ => f64::from_bits(random.next()),
    };
    value.to_bits() ^ random.below(2) << 63
}
