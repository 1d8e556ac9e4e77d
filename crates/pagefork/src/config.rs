use pagefork_compiler::{CompileOptions, Features};

/// How an [`Engine`](crate::Engine) compiles modules and lays out their
/// instances. All of WebAssembly 2.0 is on by default.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub(crate) compile: CompileOptions,
}

macro_rules! switches {
    ($($name:ident, $feature:ident, $doc:literal;)*) => {$(
        #[doc = concat!("Whether modules may use ", $doc, "; on by default.")]
        pub fn $name(&mut self, on: bool) -> &mut Self {
            self.compile.features.$feature = on;
            self
        }
    )*};
}

impl Config {
    /// The default configuration.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of stack that guests have, rounded up to pages: 1 MiB by default,
    /// 16 KiB at least, 1 GiB at most.
    pub fn stack_size(&mut self, bytes: u64) -> &mut Self {
        self.compile.limits.stack_size = bytes.min(1 << 30);
        self
    }

    /// How many elements a table whose module gives no maximum can grow to:
    /// 65,536 by default. Address space is reserved for them, memory is not.
    pub fn table_elements(&mut self, elements: u64) -> &mut Self {
        self.compile.limits.table_elements = elements;
        self
    }

    /// Whether guests can be interrupted from another thread and by timeouts; on
    /// by default. It costs guests a comparison at function entries and loops.
    pub fn interruption(&mut self, on: bool) -> &mut Self {
        self.compile.interruptible = on;
        self
    }

    /// Switches all proposals off: WebAssembly 1.0 remains.
    pub fn wasm_1_0(&mut self) -> &mut Self {
        self.compile.features = Features::NONE;
        self
    }

    switches! {
        wasm_bulk_memory, bulk_memory, "bulk memory operations";
        wasm_multi_value, multi_value, "multiple results and block parameters";
        wasm_mutable_global, mutable_global, "imports and exports of mutable globals";
        wasm_reference_types, reference_types, "reference types and table instructions";
        wasm_saturating_float_to_int, saturating_float_to_int,
            "conversions from float to integer that do not trap";
        wasm_sign_extension, sign_extension, "sign-extension operators";
        wasm_simd, simd, "128-bit vectors";
    }
}
