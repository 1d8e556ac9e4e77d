//! The proposals that generated modules use.

use std::collections::BTreeSet;
use std::fmt;

use wasm_smith::Config;
use wasmparser::{Operator, Parser, Payload, ValType};

use crate::random::Random;

/// A proposal, and how modules that use it are made.
pub struct Feature {
    /// The proposal's name.
    pub name: &'static str,
    /// The version of WebAssembly that took it in.
    pub version: u32,
    /// How many of 8 cases may use it.
    share: u64,
    allow: fn(&mut Config, &mut Random),
}

/// Every proposal that is compared. A line here is all that switches one on.
pub const FEATURES: &[Feature] = &[
    feature("bulk-memory", 2, 7, |config, _| config.bulk_memory_enabled = true),
    feature("multi-value", 2, 7, |config, _| config.multi_value_enabled = true),
    feature("reference-types", 2, 7, |config, random| {
        config.reference_types_enabled = true;
        config.max_tables = random.between(1, 4) as usize;
    }),
    feature("saturating-float-to-int", 2, 7, |config, _| {
        config.saturating_float_to_int_enabled = true;
    }),
    feature("sign-extension", 2, 7, |config, _| config.sign_extension_ops_enabled = true),
    feature("simd", 2, 5, |config, _| config.simd_enabled = true),
    feature("exceptions", 3, 4, |config, _| config.exceptions_enabled = true),
    feature("extended-const", 3, 6, |config, _| config.extended_const_enabled = true),
    // No line of the generator's own: see `rewrite`.
    feature("function-references", 3, 4, |_, _| {}),
    feature("memory64", 3, 4, |config, _| config.memory64_enabled = true),
    feature("multi-memory", 3, 4, |config, random| {
        config.max_memories = random.between(2, 4) as usize;
    }),
    feature("relaxed-simd", 3, 7, |config, _| config.relaxed_simd_enabled = true),
    feature("tail-call", 3, 5, |config, _| config.tail_call_enabled = true),
];

const fn feature(
    name: &'static str,
    version: u32,
    share: u64,
    allow: fn(&mut Config, &mut Random),
) -> Feature {
    Feature { name, version, share, allow }
}

/// What cannot be without something else.
const NEEDS: &[(&str, &str)] = &[
    ("exceptions", "reference-types"),
    ("function-references", "reference-types"),
    ("relaxed-simd", "simd"),
];

/// A set of the proposals in [`FEATURES`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FeatureSet(u32);

impl FeatureSet {
    /// None of them: WebAssembly 1.0.
    pub const NONE: Self = Self(0);

    /// All that a version of WebAssembly has.
    pub fn version(version: u32) -> Self {
        let mut set = 0;
        for (i, feature) in FEATURES.iter().enumerate() {
            set |= u32::from(feature.version <= version) << i;
        }
        Self(set)
    }

    /// Reads what [`FeatureSet`] displays as: names with commas between, where
    /// `wasm1`, `wasm2` and `wasm3` stand for all of a version, and a name with a
    /// minus before it takes something away.
    ///
    /// # Errors
    /// If a name is unknown.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut set = 0;
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (minus, name) = match word.strip_prefix('-') {
                Some(name) => (true, name),
                None => (false, word),
            };
            let named = match name.strip_prefix("wasm").and_then(|digit| digit.parse().ok()) {
                Some(version) => Self::version(version).0,
                None if Self::named(name) == Self::NONE => {
                    let known: Vec<_> = FEATURES.iter().map(|feature| feature.name).collect();
                    return Err(format!(
                        "unknown feature {name:?}: wasm1, wasm2, wasm3 or one of {}",
                        known.join(", ")
                    ));
                }
                None => Self::named(name).0,
            };
            set = if minus { set & !named } else { set | named };
        }
        Ok(Self(set))
    }

    /// Whether it contains the proposal of this name.
    pub fn has(self, name: &str) -> bool {
        self.0 & Self::named(name).0 != 0
    }

    /// Some of them, each as often as its share says: a module in which everything
    /// is possible has little of anything.
    pub fn some(self, random: &mut Random) -> Self {
        let mut set = 0;
        for (i, feature) in FEATURES.iter().enumerate() {
            let chosen = random.chance(feature.share, 8);
            set |= u32::from(chosen && self.0 >> i & 1 == 1) << i;
        }
        for (name, needed) in NEEDS {
            if !Self(set).has(needed) {
                set &= !Self::named(name).0;
            }
        }
        Self(set)
    }

    fn named(name: &str) -> Self {
        Self(FEATURES.iter().position(|feature| feature.name == name).map_or(0, |i| 1 << i))
    }

    /// Allows the generator these proposals and no other.
    pub fn apply(self, config: &mut Config, random: &mut Random) {
        config.bulk_memory_enabled = false;
        config.compact_imports_enabled = false;
        config.custom_page_sizes_enabled = false;
        config.exceptions_enabled = false;
        config.extended_const_enabled = false;
        config.gc_enabled = false;
        config.max_memories = 1;
        config.max_tables = 1;
        config.memory64_enabled = false;
        config.multi_value_enabled = false;
        config.reference_types_enabled = false;
        config.relaxed_simd_enabled = false;
        config.saturating_float_to_int_enabled = false;
        config.shared_everything_threads_enabled = false;
        config.sign_extension_ops_enabled = false;
        config.simd_enabled = false;
        config.tail_call_enabled = false;
        config.threads_enabled = false;
        config.wide_arithmetic_enabled = false;
        for (i, feature) in FEATURES.iter().enumerate() {
            if self.0 >> i & 1 == 1 {
                (feature.allow)(config, random);
            }
        }
    }
}

impl fmt::Display for FeatureSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for version in [3, 2] {
            if *self == Self::version(version) {
                return write!(f, "wasm{version}");
            }
        }
        let chosen = FEATURES.iter().filter(|feature| self.has(feature.name));
        let names: Vec<_> = chosen.map(|feature| feature.name).collect();
        f.write_str(if names.is_empty() { "wasm1" } else { "" })?;
        f.write_str(&names.join(","))
    }
}

impl fmt::Debug for FeatureSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The proposals that a valid module makes use of, by what stands in it, and how
/// many operators its functions have.
///
/// # Errors
/// If the module is malformed.
pub fn used(wasm: &[u8]) -> wasmparser::Result<(BTreeSet<&'static str>, u64)> {
    let mut used = BTreeSet::new();
    let mut operators = 0;
    let (mut memories, mut tables) = (0, 0);
    for payload in Parser::new(0).parse_all(wasm) {
        match payload? {
            Payload::TypeSection(types) => {
                for ty in types.into_iter_err_on_gc_types() {
                    let ty = ty?;
                    if ty.results().len() > 1 {
                        used.insert("multi-value");
                    }
                    for ty in ty.params().iter().chain(ty.results()) {
                        if matches!(ty, ValType::Ref(ty) if ty.type_index().is_some() || !ty.is_nullable())
                        {
                            used.insert("function-references");
                        }
                    }
                }
            }
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    match import?.ty {
                        wasmparser::TypeRef::Memory(ty) => memory(&mut used, &mut memories, ty),
                        wasmparser::TypeRef::Table(ty) => table(&mut used, &mut tables, ty),
                        wasmparser::TypeRef::Tag(_) => drop(used.insert("exceptions")),
                        _ => {}
                    }
                }
            }
            Payload::MemorySection(section) => {
                for ty in section {
                    memory(&mut used, &mut memories, ty?);
                }
            }
            Payload::TableSection(section) => {
                for ty in section {
                    table(&mut used, &mut tables, ty?.ty);
                }
            }
            Payload::TagSection(_) => drop(used.insert("exceptions")),
            Payload::GlobalSection(section) => {
                for global in section {
                    constant(&mut used, &global?.init_expr)?;
                }
            }
            Payload::DataSection(section) => {
                for segment in section {
                    if let wasmparser::DataKind::Active { offset_expr, .. } = segment?.kind {
                        constant(&mut used, &offset_expr)?;
                    }
                }
            }
            Payload::ElementSection(section) => {
                for segment in section {
                    if let wasmparser::ElementKind::Active { offset_expr, .. } = segment?.kind {
                        constant(&mut used, &offset_expr)?;
                    }
                }
            }
            Payload::CodeSectionEntry(body) => {
                for operator in body.get_operators_reader()? {
                    operators += 1;
                    if let Some(name) = proposal(&operator?) {
                        used.insert(name);
                    }
                }
            }
            _ => {}
        }
    }
    Ok((used, operators))
}

fn memory(used: &mut BTreeSet<&str>, count: &mut u32, ty: wasmparser::MemoryType) {
    *count += 1;
    if *count > 1 {
        used.insert("multi-memory");
    }
    if ty.memory64 {
        used.insert("memory64");
    }
}

fn table(used: &mut BTreeSet<&str>, count: &mut u32, ty: wasmparser::TableType) {
    *count += 1;
    if *count > 1 || ty.element_type != wasmparser::RefType::FUNCREF {
        used.insert("reference-types");
    }
    if ty.table64 {
        used.insert("table64");
    }
}

fn constant(
    used: &mut BTreeSet<&str>,
    expression: &wasmparser::ConstExpr<'_>,
) -> wasmparser::Result<()> {
    for operator in expression.get_operators_reader() {
        use Operator as O;
        if let O::I32Add | O::I32Sub | O::I32Mul | O::I64Add | O::I64Sub | O::I64Mul = operator? {
            used.insert("extended-const");
        }
    }
    Ok(())
}

macro_rules! proposal_of {
    ($(@$proposal:ident $op:ident $({ $($arg:ident: $ty:ty),* })? => $visit:ident ($($ann:tt)*))*) => {
        /// The proposal that an operator is from; `None` if from 1.0.
        fn proposal(operator: &Operator<'_>) -> Option<&'static str> {
            let name = match operator {
                $(Operator::$op { .. } => stringify!($proposal),)*
                _ => return Some("unknown"),
            };
            Some(match name {
                "mvp" => return None,
                "bulk_memory" => "bulk-memory",
                "function_references" => "function-references",
                "reference_types" => "reference-types",
                "relaxed_simd" => "relaxed-simd",
                "saturating_float_to_int" => "saturating-float-to-int",
                "sign_extension" => "sign-extension",
                "tail_call" => "tail-call",
                other => other,
            })
        }
    };
}

wasmparser::for_each_operator!(proposal_of);
