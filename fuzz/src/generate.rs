//! Modules from seeds.

use std::panic::catch_unwind;

use arbitrary::Unstructured;
use wasm_encoder::reencode::{Reencode, RoundtripReencoder};
use wasm_encoder::{ImportSection, TypeSection};
use wasm_smith::{Config, InstructionKind, InstructionKinds, MemoryOffsetChoices};
use wasmparser::ValType;

use crate::features::FeatureSet;
use crate::interface::{Interface, Kind};
use crate::random::Random;
use crate::rewrite::{self, Additions};

/// By this name each module exports the global that ends its loops: every
/// function and every iteration takes one off it, bulk operations their size,
/// and nothing is left means a trap.
pub const FUEL: &str = "fuel of the module";

/// By this name each module exports the global into which it mixes values that it
/// computed on the way.
pub const PROBES: &str = "probes of the module";

/// The first name of the imports that the module before provides.
pub const PREVIOUS: &str = "previous";

/// Largest size of a memory, in bytes.
pub const MEMORY_SIZE_MAX: u64 = 1 << 21;
/// Largest length of a table.
pub const TABLE_LENGTH_MAX: u64 = 5_000;

/// What one seed makes: modules that are instantiated in this order, each of which
/// may import what the one before exports.
pub struct Case {
    /// Where it all comes from.
    pub seed: u64,
    /// What the modules may use.
    pub features: FeatureSet,
    /// Whether engines are to make every NaN the canonical one, and to have one
    /// result for relaxed operators. If not, modules do that themselves and have no
    /// such operators.
    pub deterministic: bool,
    /// What each module has in its fuel before each call.
    pub fuel: u32,
    /// The modules.
    pub modules: Vec<Source>,
}

/// A module of a case.
pub struct Source {
    /// Its bytes.
    pub wasm: Vec<u8>,
    /// What they say.
    pub interface: Interface,
}

impl Source {
    /// A valid module.
    ///
    /// # Errors
    /// If it is malformed, or has types that are no function types.
    pub fn new(wasm: Vec<u8>) -> wasmparser::Result<Self> {
        Ok(Self { interface: Interface::read(&wasm)?, wasm })
    }
}

impl Case {
    /// The case of a seed: the same, whenever and wherever. Always one module, and
    /// sometimes more.
    pub fn new(seed: u64, features: FeatureSet) -> Self {
        let mut random = Random::new(seed, 1);
        let features = features.some(&mut random);
        let deterministic = random.chance(1, 2);
        let fuel = if random.chance(1, 16) { 50_000 } else { 1_000 };
        let count = if random.chance(3, 8) { random.between(2, 3) } else { 1 };
        let mut modules: Vec<Source> = Vec::new();
        for _ in 0..count {
            let module = loop {
                let size = 256 << random.between(0, 6);
                let bytes = random.bytes(size);
                let config = config(features, deterministic, modules.last(), &mut random);
                match generate(config, &bytes, fuel, features, deterministic, &mut random) {
                    Some(module) => break module,
                    None => continue,
                }
            };
            modules.push(module);
        }
        Self { seed, features, deterministic, fuel, modules }
    }

    /// One module made of these bytes, which a coverage-guided fuzzer chose.
    pub fn from_bytes(data: &[u8], features: FeatureSet) -> Option<Self> {
        let (seed, data) = data.split_first_chunk::<8>()?;
        let seed = u64::from_le_bytes(*seed);
        let mut random = Random::new(seed, 1);
        let features = features.some(&mut random);
        let deterministic = random.chance(1, 2);
        let fuel = 1_000;
        let config = config(features, deterministic, None, &mut random);
        let module = generate(config, data, fuel, features, deterministic, &mut random)?;
        Some(Self { seed, features, deterministic, fuel, modules: vec![module] })
    }
}

/// The shape of a module. A module in which everything is likely is alike to the
/// next one: each has its own bounds and its own kinds of instructions.
fn config(
    features: FeatureSet,
    deterministic: bool,
    previous: Option<&Source>,
    random: &mut Random,
) -> Config {
    let mut kinds = vec![InstructionKind::Variable, InstructionKind::Parametric];
    let mut floats = false;
    for (kind, kind_of_ints, share) in [
        (InstructionKind::Numeric, Some(InstructionKind::NumericInt), 7),
        (InstructionKind::Vector, Some(InstructionKind::VectorInt), 6),
        (InstructionKind::Memory, Some(InstructionKind::MemoryInt), 6),
        (InstructionKind::Reference, None, 5),
        (InstructionKind::Table, None, 5),
        (InstructionKind::Control, None, 7),
    ] {
        if random.chance(share, 8) {
            match kind_of_ints {
                Some(ints) if random.chance(1, 4) => kinds.push(ints),
                _ => {
                    floats = true;
                    kinds.push(kind);
                }
            }
        }
    }
    let mut config = Config {
        allow_start_export: random.chance(1, 8),
        allowed_instructions: InstructionKinds::new(&kinds),
        allow_floats: floats || random.chance(1, 2),
        available_imports: previous.and_then(|previous| offered(&previous.wasm)),
        // The bits of a NaN that an operation makes are not specified.
        canonicalize_nans: !deterministic,
        // Random code traps soon: half of the modules only do what cannot.
        disallow_traps: random.chance(1, 2),
        export_everything: true,
        max_data_segments: random.between(0, 8) as usize,
        max_element_segments: random.between(0, 8) as usize,
        max_elements: 20,
        max_funcs: random.between(3, 12) as usize,
        max_globals: random.between(0, 12) as usize,
        max_imports: if random.chance(1, 2) { random.between(1, 10) as usize } else { 0 },
        max_instructions: 20 << random.between(0, 4),
        max_memory32_bytes: MEMORY_SIZE_MAX / 2,
        max_memory64_bytes: u128::from(MEMORY_SIZE_MAX / 2),
        max_table_elements: TABLE_LENGTH_MAX / 2,
        max_tags: random.between(1, 5) as usize,
        max_types: random.between(1, 10) as usize,
        memory_max_size_required: random.chance(1, 2),
        memory_offset_choices: match random.below(4) {
            0 => MemoryOffsetChoices(40, 40, 20),
            1 => MemoryOffsetChoices(98, 1, 1),
            _ => MemoryOffsetChoices::default(),
        },
        min_exports: 1,
        min_funcs: random.between(1, 3) as usize,
        min_memories: random.chance(3, 4).into(),
        min_tables: random.chance(1, 2).into(),
        min_types: 1,
        table_max_size_required: random.chance(1, 2),
        ..Config::default()
    };
    features.apply(&mut config, random);
    config.relaxed_simd_enabled &= deterministic;
    config.min_tags = (config.exceptions_enabled && random.chance(3, 4)).into();
    if config.available_imports.is_some() {
        config.max_imports = random.between(2, 12) as usize;
    }
    // What is imported counts, too.
    if previous.is_some() {
        config.max_funcs += config.max_imports;
    }
    config
}

fn generate(
    config: Config,
    bytes: &[u8],
    fuel: u32,
    features: FeatureSet,
    deterministic: bool,
    random: &mut Random,
) -> Option<Source> {
    // Some combinations of proposals and imports fail assertions of the generator's
    // own, which is no fault here.
    let module = catch_unwind(|| wasm_smith::Module::new(config, &mut Unstructured::new(bytes)));
    let mut module = module.ok()?.ok()?;
    let fuel = module.ensure_termination(fuel).ok()?;
    let additions = Additions { fuel, features, deterministic };
    let wasm = rewrite::add(&module.to_bytes(), &additions, random).ok()?;
    Source::new(wasm).ok()
}

/// A module that imports what `wasm` exports, which is how the generator is told
/// what the next module may import.
fn offered(wasm: &[u8]) -> Option<Vec<u8>> {
    let interface = Interface::read(wasm).ok()?;
    let mut reencoder = RoundtripReencoder;
    let (mut types, mut imports) = (TypeSection::new(), ImportSection::new());
    // The generator does not know values of types without null. Such types come
    // after its own, which keep their indices.
    let defaultable = |types: &[ValType]| types.iter().all(|ty| ty.is_defaultable());
    let known = interface.types.iter();
    let known: Vec<_> =
        known.take_while(|ty| defaultable(ty.params()) && defaultable(ty.results())).collect();
    for ty in &known {
        types.ty().func_type(&reencoder.func_type((*ty).clone()).ok()?);
    }
    let type_index = |ty| known.iter().position(|known| *known == ty).map(|i| i as u32);
    for export in &interface.exports {
        if export.name == FUEL || !defaultable(&export.kind.types()) {
            continue;
        }
        let entity = match &export.kind {
            Kind::Func(ty) => wasm_encoder::EntityType::Function(type_index(ty)?),
            Kind::Table(ty) => reencoder.table_type(*ty).ok()?.into(),
            Kind::Memory(ty) => reencoder.memory_type(*ty).ok()?.into(),
            Kind::Global(ty) => reencoder.global_type(*ty).ok()?.into(),
            Kind::Tag(ty) => wasm_encoder::TagType {
                kind: wasm_encoder::TagKind::Exception,
                func_type_idx: type_index(ty)?,
            }
            .into(),
        };
        imports.import(PREVIOUS, &export.name, entity);
    }
    let mut module = wasm_encoder::Module::new();
    if !types.is_empty() {
        module.section(&types);
    }
    module.section(&imports);
    Some(module.finish())
}
