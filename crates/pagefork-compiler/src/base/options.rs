//! Which proposals are accepted, and how code is made.

use std::time::Duration;

use pagefork_layout::slot::SlotLimits;
use serde::{Deserialize, Serialize};
#[cfg(feature = "cranelift")]
use wasmparser::WasmFeatures;

/// How modules are compiled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CompileOptions {
    /// Which proposals are accepted.
    pub features: Features,
    /// Whether code can be interrupted at function entries and loop headers.
    pub interruptible: bool,
    /// Whether code pays for what it does and stops when its fuel is used up.
    pub fuel: bool,
    /// Whether results are the same on every machine: all NaNs that arithmetic
    /// makes are the canonical one, and relaxed vector operators are fixed.
    pub deterministic: bool,
    /// What stops accesses of 32-bit memories beyond their size. Those of 64-bit
    /// memories are always compared.
    pub bounds: Bounds,
    /// Whether it is noted where in the module code comes from. It always is for
    /// modules with debug information.
    pub sources: bool,
    /// Whether Cranelift's own checks of its IR run. The code does not depend on
    /// it, so it is no part of what files and cache entries are told apart by.
    #[serde(skip)]
    pub verify_ir: bool,
    /// Sizes of the zones of a slot.
    pub limits: SlotLimits,
    /// What compiling may cost; the code does not depend on it either.
    #[serde(skip)]
    pub cost: CompileLimits,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            features: Features::default(),
            interruptible: true,
            fuel: false,
            deterministic: false,
            bounds: Bounds::default(),
            sources: false,
            verify_ir: cfg!(debug_assertions),
            limits: SlotLimits::default(),
            cost: CompileLimits::default(),
        }
    }
}

/// What compiling one module may cost. The code does not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompileLimits {
    /// Time from start to end; `None` for no limit. It is looked at between operators,
    /// functions and phases of a function, so the end can be late by the time that one phase takes,
    /// which [`Self::work`] limits.
    pub time: Option<Duration>,
    /// Estimated bytes in use at once by the functions that are being compiled: one that needs
    /// more is refused, and those that fit only one after the other wait for each other. Code
    /// that is finished may use as much again; the module itself is not counted.
    pub memory: u64,
    /// Estimated steps of what grows faster than the module, for all its functions together; one
    /// function may need a quarter of them. A million takes 20 ms.
    pub work: u64,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self { time: None, memory: 2 << 30, work: 1 << 30 }
    }
}

/// What stops accesses of 32-bit memories beyond their size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Bounds {
    /// Guard pages: an access beyond the size faults.
    #[default]
    Guarded,
    /// Code compares every access with the size, so memories may be accessible beyond it.
    Checked,
    /// Each function has a guarded and a checked body. Which one runs is decided when it is
    /// called: the checked one while
    /// [more is accessible](pagefork_layout::link::ACCESSIBLE_PAST_SIZE) than the instance's
    /// memories have. Accesses of imported memories are checked in both.
    Dual,
}

/// A switch for each proposal that WebAssembly 2.0 and 3.0 took in, but for
/// garbage collection, all on by default; and one for `memory.discard` of the proposal "memory
/// control", off by default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the proposals' own")]
pub struct Features {
    pub bulk_memory: bool,
    pub exceptions: bool,
    pub extended_const: bool,
    pub function_references: bool,
    pub memory_control: bool,
    pub memory64: bool,
    pub multi_memory: bool,
    pub multi_value: bool,
    pub mutable_global: bool,
    pub reference_types: bool,
    pub relaxed_simd: bool,
    pub saturating_float_to_int: bool,
    pub sign_extension: bool,
    pub simd: bool,
    pub tail_call: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            bulk_memory: true,
            exceptions: true,
            extended_const: true,
            function_references: true,
            // Its instructions may still change.
            memory_control: false,
            memory64: true,
            multi_memory: true,
            multi_value: true,
            mutable_global: true,
            reference_types: true,
            relaxed_simd: true,
            saturating_float_to_int: true,
            sign_extension: true,
            simd: true,
            tail_call: true,
        }
    }
}

impl Features {
    /// WebAssembly 1.0, without any of the proposals.
    pub const NONE: Self = Self {
        bulk_memory: false,
        exceptions: false,
        extended_const: false,
        function_references: false,
        memory_control: false,
        memory64: false,
        multi_memory: false,
        multi_value: false,
        mutable_global: false,
        reference_types: false,
        relaxed_simd: false,
        saturating_float_to_int: false,
        sign_extension: false,
        simd: false,
        tail_call: false,
    };

    /// WebAssembly 2.0.
    pub const WASM_2: Self = Self {
        bulk_memory: true,
        multi_value: true,
        mutable_global: true,
        reference_types: true,
        saturating_float_to_int: true,
        sign_extension: true,
        simd: true,
        ..Self::NONE
    };

    #[cfg(feature = "cranelift")]
    pub(crate) fn for_validation(self) -> WasmFeatures {
        let mut features = WasmFeatures::FLOATS;
        // The validator's word for "types beyond numbers": without it, even the
        // reference types of 2.0 are refused.
        features.set(WasmFeatures::GC_TYPES, true);
        features.set(WasmFeatures::BULK_MEMORY, self.bulk_memory);
        features.set(WasmFeatures::MULTI_VALUE, self.multi_value);
        features.set(WasmFeatures::MUTABLE_GLOBAL, self.mutable_global);
        features.set(WasmFeatures::REFERENCE_TYPES, self.reference_types);
        features.set(WasmFeatures::SATURATING_FLOAT_TO_INT, self.saturating_float_to_int);
        features.set(WasmFeatures::SIGN_EXTENSION, self.sign_extension);
        features.set(WasmFeatures::SIMD, self.simd);
        features.set(WasmFeatures::EXCEPTIONS, self.exceptions);
        features.set(WasmFeatures::EXTENDED_CONST, self.extended_const);
        features.set(WasmFeatures::FUNCTION_REFERENCES, self.function_references);
        // With typed references, constant expressions may name any earlier
        // global, which the validator knows as a part of this proposal. What else
        // belongs to it is refused by name as the module is read.
        features.set(WasmFeatures::GC, self.function_references);
        features.set(WasmFeatures::MEMORY_CONTROL, self.memory_control);
        features.set(WasmFeatures::MEMORY64, self.memory64);
        features.set(WasmFeatures::MULTI_MEMORY, self.multi_memory);
        features.set(WasmFeatures::RELAXED_SIMD, self.relaxed_simd);
        features.set(WasmFeatures::TAIL_CALL, self.tail_call);
        features
    }
}
