//! Operators by their types.

use wasm_encoder::Instruction;

/// A type that operations take and leave: its number among the locals of probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scalar {
    I32,
    I64,
    F32,
    F64,
    V128,
}

/// What must be there for operations of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needs {
    /// Nothing.
    Nothing,
    /// Another divisor than 0 and -1.
    Divisor,
    /// Sign-extension operators.
    SignExtension,
    /// Conversions that do not trap.
    Saturating,
    /// NaNs with equal bits.
    Deterministic,
    /// Vectors.
    Simd,
    /// Vectors, and NaNs with equal bits.
    SimdDeterministic,
    /// Relaxed vector operators, and one result of each.
    Relaxed,
    /// The same, and 7 bits in each byte of the second operand.
    SevenBits,
}

/// A mask for the bytes of a vector that are to have 7 bits. Of larger ones the sum
/// of two products need not fit, and saturates, but in wasmtime it wraps around.
pub(super) const SEVEN_BITS: Instruction<'static> =
    Instruction::V128Const(0x7f7f_7f7f_7f7f_7f7f_7f7f_7f7f_7f7f_7f7f);

/// Operations of one type.
pub(super) struct Group {
    pub(super) needs: Needs,
    pub(super) params: &'static [Scalar],
    pub(super) result: Scalar,
    pub(super) instructions: &'static [Instruction<'static>],
}

macro_rules! groups {
    ($($needs:ident ($($param:ident)*) $result:ident: $($name:ident)*;)*) => {
        &[$(Group {
            needs: Needs::$needs,
            params: &[$(Scalar::$param),*],
            result: Scalar::$result,
            instructions: &[$(Instruction::$name),*],
        },)*]
    };
}

/// Every operator on numbers and vectors that has no immediates and traps only if
/// it divides.
pub(super) const GROUPS: &[Group] = groups! {
    Nothing (I32 I32) I32:
        I32Add I32Sub I32Mul I32And I32Or I32Xor I32Shl I32ShrS I32ShrU I32Rotl I32Rotr
        I32Eq I32Ne I32LtS I32LtU I32GtS I32GtU I32LeS I32LeU I32GeS I32GeU;
    Divisor (I32 I32) I32: I32DivS I32DivU I32RemS I32RemU;
    Nothing (I32) I32: I32Clz I32Ctz I32Popcnt I32Eqz;
    SignExtension (I32) I32: I32Extend8S I32Extend16S;
    Nothing (I64 I64) I64:
        I64Add I64Sub I64Mul I64And I64Or I64Xor I64Shl I64ShrS I64ShrU I64Rotl I64Rotr;
    Divisor (I64 I64) I64: I64DivS I64DivU I64RemS I64RemU;
    Nothing (I64 I64) I32:
        I64Eq I64Ne I64LtS I64LtU I64GtS I64GtU I64LeS I64LeU I64GeS I64GeU;
    Nothing (I64) I64: I64Clz I64Ctz I64Popcnt;
    SignExtension (I64) I64: I64Extend8S I64Extend16S I64Extend32S;
    Nothing (I64) I32: I64Eqz I32WrapI64;
    Nothing (I32) I64: I64ExtendI32S I64ExtendI32U;
    Nothing (F32 F32) I32: F32Eq F32Ne F32Lt F32Gt F32Le F32Ge;
    Nothing (F64 F64) I32: F64Eq F64Ne F64Lt F64Gt F64Le F64Ge;
    Saturating (F32) I32: I32TruncSatF32S I32TruncSatF32U;
    Saturating (F64) I32: I32TruncSatF64S I32TruncSatF64U;
    Saturating (F32) I64: I64TruncSatF32S I64TruncSatF32U;
    Saturating (F64) I64: I64TruncSatF64S I64TruncSatF64U;
    Nothing (I32) F32: F32ConvertI32S F32ConvertI32U F32ReinterpretI32;
    Nothing (I64) F32: F32ConvertI64S F32ConvertI64U;
    Nothing (I32) F64: F64ConvertI32S F64ConvertI32U;
    Nothing (I64) F64: F64ConvertI64S F64ConvertI64U F64ReinterpretI64;
    Deterministic (F32) F32:
        F32Abs F32Neg F32Ceil F32Floor F32Trunc F32Nearest F32Sqrt;
    Deterministic (F64) F64:
        F64Abs F64Neg F64Ceil F64Floor F64Trunc F64Nearest F64Sqrt;
    Deterministic (F32 F32) F32:
        F32Add F32Sub F32Mul F32Div F32Min F32Max F32Copysign;
    Deterministic (F64 F64) F64:
        F64Add F64Sub F64Mul F64Div F64Min F64Max F64Copysign;
    Deterministic (F64) F32: F32DemoteF64;
    Deterministic (F32) F64: F64PromoteF32;
    Deterministic (F32) I32: I32ReinterpretF32;
    Deterministic (F64) I64: I64ReinterpretF64;
    Simd (I32) V128: I8x16Splat I16x8Splat I32x4Splat;
    Simd (I64) V128: I64x2Splat;
    SimdDeterministic (F32) V128: F32x4Splat;
    SimdDeterministic (F64) V128: F64x2Splat;
    Simd (V128) I32:
        V128AnyTrue I8x16AllTrue I8x16Bitmask I16x8AllTrue I16x8Bitmask I32x4AllTrue
        I32x4Bitmask I64x2AllTrue I64x2Bitmask;
    Simd (V128 I32) V128:
        I8x16Shl I8x16ShrS I8x16ShrU I16x8Shl I16x8ShrS I16x8ShrU I32x4Shl I32x4ShrS I32x4ShrU
        I64x2Shl I64x2ShrS I64x2ShrU;
    Simd (V128) V128:
        V128Not I8x16Abs I8x16Neg I8x16Popcnt I16x8ExtAddPairwiseI8x16S
        I16x8ExtAddPairwiseI8x16U I16x8Abs I16x8Neg I16x8ExtendLowI8x16S I16x8ExtendHighI8x16S
        I16x8ExtendLowI8x16U I16x8ExtendHighI8x16U I32x4ExtAddPairwiseI16x8S
        I32x4ExtAddPairwiseI16x8U I32x4Abs I32x4Neg I32x4ExtendLowI16x8S I32x4ExtendHighI16x8S
        I32x4ExtendLowI16x8U I32x4ExtendHighI16x8U I64x2Abs I64x2Neg I64x2ExtendLowI32x4S
        I64x2ExtendHighI32x4S I64x2ExtendLowI32x4U I64x2ExtendHighI32x4U I32x4TruncSatF32x4S
        I32x4TruncSatF32x4U I32x4TruncSatF64x2SZero I32x4TruncSatF64x2UZero F32x4ConvertI32x4S
        F32x4ConvertI32x4U F64x2ConvertLowI32x4S F64x2ConvertLowI32x4U;
    Simd (V128 V128) V128:
        I8x16Swizzle I8x16Eq I8x16Ne I8x16LtS I8x16LtU I8x16GtS I8x16GtU I8x16LeS I8x16LeU
        I8x16GeS I8x16GeU I16x8Eq I16x8Ne I16x8LtS I16x8LtU I16x8GtS I16x8GtU I16x8LeS I16x8LeU
        I16x8GeS I16x8GeU I32x4Eq I32x4Ne I32x4LtS I32x4LtU I32x4GtS I32x4GtU I32x4LeS I32x4LeU
        I32x4GeS I32x4GeU I64x2Eq I64x2Ne I64x2LtS I64x2GtS I64x2LeS I64x2GeS
        F32x4Eq F32x4Ne F32x4Lt F32x4Gt F32x4Le F32x4Ge F64x2Eq F64x2Ne F64x2Lt F64x2Gt F64x2Le
        F64x2Ge F32x4PMin F32x4PMax F64x2PMin F64x2PMax
        V128And V128AndNot V128Or V128Xor I8x16NarrowI16x8S I8x16NarrowI16x8U
        I8x16Add I8x16AddSatS I8x16AddSatU I8x16Sub I8x16SubSatS I8x16SubSatU I8x16MinS I8x16MinU
        I8x16MaxS I8x16MaxU I8x16AvgrU I16x8Q15MulrSatS I16x8NarrowI32x4S I16x8NarrowI32x4U
        I16x8Add I16x8AddSatS I16x8AddSatU I16x8Sub I16x8SubSatS I16x8SubSatU I16x8Mul I16x8MinS
        I16x8MinU I16x8MaxS I16x8MaxU I16x8AvgrU I16x8ExtMulLowI8x16S I16x8ExtMulHighI8x16S
        I16x8ExtMulLowI8x16U I16x8ExtMulHighI8x16U I32x4Add I32x4Sub I32x4Mul I32x4MinS I32x4MinU
        I32x4MaxS I32x4MaxU I32x4DotI16x8S I32x4ExtMulLowI16x8S I32x4ExtMulHighI16x8S
        I32x4ExtMulLowI16x8U I32x4ExtMulHighI16x8U I64x2Add I64x2Sub I64x2Mul
        I64x2ExtMulLowI32x4S I64x2ExtMulHighI32x4S I64x2ExtMulLowI32x4U I64x2ExtMulHighI32x4U;
    Simd (V128 V128 V128) V128: V128Bitselect;
    SimdDeterministic (V128) V128:
        F32x4Ceil F32x4Floor F32x4Trunc F32x4Nearest F32x4Abs F32x4Neg F32x4Sqrt F64x2Ceil
        F64x2Floor F64x2Trunc F64x2Nearest F64x2Abs F64x2Neg F64x2Sqrt F32x4DemoteF64x2Zero
        F64x2PromoteLowF32x4;
    SimdDeterministic (V128 V128) V128:
        F32x4Add F32x4Sub F32x4Mul F32x4Div F32x4Min F32x4Max F64x2Add F64x2Sub F64x2Mul F64x2Div
        F64x2Min F64x2Max;
    Relaxed (V128) V128:
        I32x4RelaxedTruncF32x4S I32x4RelaxedTruncF32x4U I32x4RelaxedTruncF64x2SZero
        I32x4RelaxedTruncF64x2UZero;
    Relaxed (V128 V128) V128:
        I8x16RelaxedSwizzle F32x4RelaxedMin F32x4RelaxedMax F64x2RelaxedMin F64x2RelaxedMax
        I16x8RelaxedQ15mulrS;
    SevenBits (V128 V128) V128: I16x8RelaxedDotI8x16I7x16S;
    SevenBits (V128 V128 V128) V128: I32x4RelaxedDotI8x16I7x16AddS;
    // Not the relaxed multiplications with addition: see `rewrite`.
    Relaxed (V128 V128 V128) V128:
        I8x16RelaxedLaneselect I16x8RelaxedLaneselect I32x4RelaxedLaneselect
        I64x2RelaxedLaneselect;
};
