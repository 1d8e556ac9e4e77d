use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pagefork_compiler::{CompiledModule, SpawnStep, initial_image};
use pagefork_layout::code::CodeImage;
use pagefork_layout::module::{ConstExpr, ExternType, Item, ModuleInfo, SegmentMode};
use pagefork_layout::page::{WASM_PAGE_SIZE, round_up};
use pagefork_layout::slot::SlotLayout;
use pagefork_pages::{Image, PagesError};

use crate::code_memory::CodeMemory;
use crate::engine::{Engine, TypeId};
use crate::error::{Result, SystemError};

/// Spawn plans are kept for at most this many combinations of imported globals.
const PLANS_MAX: usize = 64;

/// A compiled module. Cheap to clone: clones share the code.
#[derive(Clone)]
pub struct Module(Arc<Inner>);

struct Inner {
    compiled: Arc<Compiled>,
    memory: CodeMemory,
}

/// What copies of a module at different addresses share.
struct Compiled {
    engine: Engine,
    module: CompiledModule,
    /// For each canonical type, its number in the engine.
    types: Vec<TypeId>,
    exports: HashMap<String, Item>,
    /// The imported globals whose values the initial image depends on.
    image_globals: Vec<u32>,
    plans: Mutex<HashMap<Vec<Option<u128>>, Arc<SpawnPlan>>>,
}

/// How instances of a module start, given its imported globals.
pub(crate) struct SpawnPlan {
    pub(crate) image: Arc<Image>,
    pub(crate) steps: Vec<SpawnStep>,
}

/// An import of a module: its two names and what it must be.
#[derive(Clone, Debug)]
pub struct ImportType<'a> {
    module: &'a str,
    name: &'a str,
    ty: ExternType,
}

/// An export of a module: its name and what it is.
#[derive(Clone, Debug)]
pub struct ExportType<'a> {
    name: &'a str,
    ty: ExternType,
}

impl<'a> ImportType<'a> {
    /// The first name: the module imported from.
    pub fn module(&self) -> &'a str {
        self.module
    }

    /// The second name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// What it must be.
    pub fn ty(&self) -> &ExternType {
        &self.ty
    }
}

impl<'a> ExportType<'a> {
    /// The export's name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// What it is.
    pub fn ty(&self) -> &ExternType {
        &self.ty
    }
}

impl Module {
    /// Compiles a module from its binary format, or, with the feature `wat`, its
    /// text format.
    ///
    /// # Errors
    /// If it is malformed or invalid, uses a proposal that the engine has switched
    /// off or does not know, or its code cannot be mapped.
    pub fn new(engine: &Engine, bytes: impl AsRef<[u8]>) -> Result<Self> {
        Self::from_binary(engine, &to_binary(bytes.as_ref())?)
    }

    /// Compiles a module from its binary format.
    ///
    /// # Errors
    /// As [`Module::new`]; the text format is malformed here.
    pub fn from_binary(engine: &Engine, bytes: &[u8]) -> Result<Self> {
        let module = pagefork_compiler::compile(bytes, &engine.config().compile)?;
        Self::from_compiled(engine, module)
    }

    /// Compiles a module from a file, in the binary or, with the feature `wat`,
    /// the text format.
    ///
    /// # Errors
    /// If the file cannot be read; else as [`Module::new`].
    pub fn from_file(engine: &Engine, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path)
            .map_err(|source| SystemError::File { path: path.to_owned(), source })?;
        Self::new(engine, bytes).map_err(|error| error.context(path.display()))
    }

    pub(crate) fn from_compiled(engine: &Engine, module: CompiledModule) -> Result<Self> {
        let memory = CodeMemory::new(&module.code.text)?;
        let info = &module.info;
        let exports = info.exports.iter().map(|export| (export.name.clone(), export.item));
        let compiled = Compiled {
            engine: engine.clone(),
            types: info.types.iter().map(|ty| engine.type_id(ty)).collect(),
            exports: exports.collect(),
            image_globals: image_globals(info),
            plans: Mutex::default(),
            module,
        };
        Ok(Self(Arc::new(Inner { compiled: Arc::new(compiled), memory })))
    }

    /// A module without code, for what the host creates.
    pub(crate) fn without_code(engine: &Engine, info: ModuleInfo) -> Result<Self> {
        let mut limits = engine.config().compile.limits;
        // Nothing ever runs in it; the layout keeps the smallest stack it allows.
        limits.stack_size = 0;
        let layout = SlotLayout::new(&info, &limits)?;
        let code = CodeImage { entries: vec![None; info.types.len()], ..CodeImage::default() };
        Self::from_compiled(engine, CompiledModule { info, layout, code })
    }

    /// The same module with its code mapped at another address: for showing that
    /// the address of code does not matter.
    ///
    /// # Errors
    /// If the system has no memory for it.
    #[doc(hidden)]
    pub fn clone_code(&self) -> Result<Self> {
        let compiled = Arc::clone(&self.0.compiled);
        let memory = CodeMemory::new(&compiled.module.code.text)?;
        Ok(Self(Arc::new(Inner { compiled, memory })))
    }

    /// Whether both are the same module, wherever their code is mapped.
    pub fn same(a: &Self, b: &Self) -> bool {
        Arc::ptr_eq(&a.0.compiled, &b.0.compiled)
    }

    /// The module's name, from its name section.
    pub fn name(&self) -> Option<&str> {
        self.info().name.as_deref()
    }

    /// The engine that compiled it.
    pub fn engine(&self) -> &Engine {
        &self.0.compiled.engine
    }

    /// What must be given to instantiate the module, in order.
    pub fn imports(&self) -> impl ExactSizeIterator<Item = ImportType<'_>> {
        let info = self.info();
        info.imports.iter().map(|import| ImportType {
            module: &import.module,
            name: &import.name,
            ty: info.item_type(import.item),
        })
    }

    /// What its instances offer, in order.
    pub fn exports(&self) -> impl ExactSizeIterator<Item = ExportType<'_>> {
        let info = self.info();
        info.exports
            .iter()
            .map(|export| ExportType { name: &export.name, ty: info.item_type(export.item) })
    }

    /// The type of the export `name`.
    pub fn get_export(&self, name: &str) -> Option<ExternType> {
        self.export(name).map(|item| self.info().item_type(item))
    }

    /// What the compiler made of it: for tests and inspection.
    #[doc(hidden)]
    pub fn compiled(&self) -> &CompiledModule {
        &self.0.compiled.module
    }

    pub(crate) fn export(&self, name: &str) -> Option<Item> {
        self.0.compiled.exports.get(name).copied()
    }

    pub(crate) fn info(&self) -> &ModuleInfo {
        &self.0.compiled.module.info
    }

    pub(crate) fn layout(&self) -> &SlotLayout {
        &self.0.compiled.module.layout
    }

    pub(crate) fn code(&self) -> &CodeImage {
        &self.0.compiled.module.code
    }

    pub(crate) fn code_memory(&self) -> &CodeMemory {
        &self.0.memory
    }

    /// The engine's number of the type of function `index`.
    pub(crate) fn function_type_id(&self, index: u32) -> TypeId {
        self.type_id(self.info().functions[index as usize])
    }

    /// The engine's number of a canonical type.
    pub(crate) fn type_id(&self, canonical_type: u32) -> TypeId {
        self.0.compiled.types[canonical_type as usize]
    }

    /// How instances start. `imported_global` gives the bits of an imported
    /// global, `None` for references.
    pub(crate) fn spawn_plan(
        &self,
        imported_global: impl Fn(u32) -> Option<u128>,
    ) -> Result<Arc<SpawnPlan>> {
        let compiled = &self.0.compiled;
        let (info, layout) = (self.info(), self.layout());
        let key: Vec<_> =
            compiled.image_globals.iter().map(|global| imported_global(*global)).collect();
        let plans = || compiled.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans().get(&key) {
            return Ok(Arc::clone(plan));
        }
        // Globals that the image does not depend on are not asked for.
        let mut globals = vec![None; info.imported_globals as usize];
        for (global, bits) in compiled.image_globals.iter().zip(&key) {
            globals[*global as usize] = *bits;
        }
        let start = initial_image(info, layout, &globals);
        let image = make_image(info, layout, &start.image)?;
        let plan = Arc::new(SpawnPlan { image, steps: start.steps });
        let mut plans = plans();
        if plans.len() >= PLANS_MAX {
            plans.clear();
        }
        plans.insert(key, Arc::clone(&plan));
        Ok(plan)
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// The binary format of what may be text.
fn to_binary(bytes: &[u8]) -> Result<Cow<'_, [u8]>> {
    #[cfg(feature = "wat")]
    if !bytes.starts_with(b"\0asm") {
        use crate::error::TextError;
        if std::str::from_utf8(bytes).is_err() {
            let what = "neither binary, which begins with `\\0asm`, nor text";
            return Err(pagefork_compiler::CompileError::NotAModule { what }.into());
        }
        return wat::parse_bytes(bytes).map_err(|error| TextError::new(error).into());
    }
    Ok(Cow::Borrowed(bytes))
}

/// The imported globals that initialisers use.
fn image_globals(info: &ModuleInfo) -> Vec<u32> {
    let offset = |mode: &SegmentMode| match mode {
        SegmentMode::Active { offset, .. } => Some(*offset),
        _ => None,
    };
    let elements = info.elements.iter();
    let items = elements.clone().flat_map(|segment| segment.items.iter().copied());
    let offsets = elements.filter_map(|segment| offset(&segment.mode));
    let data = info.data.iter().filter_map(|segment| offset(&segment.mode));
    let all = info.global_inits.iter().copied().chain(items).chain(offsets).chain(data);
    let mut globals: Vec<u32> = all
        .filter_map(|expr| match expr {
            ConstExpr::Global(index) if index < info.imported_globals => Some(index),
            _ => None,
        })
        .collect();
    globals.sort_unstable();
    globals.dedup();
    globals
}

fn make_image(
    info: &ModuleInfo,
    layout: &SlotLayout,
    image: &pagefork_layout::image::InitialImage,
) -> Result<Arc<Image>, PagesError> {
    let place = |offset: i64| layout.base.checked_add_signed(offset).expect("within the slot");
    let last = image.runs.iter().map(|(at, bytes)| place(*at) + bytes.len() as u64).max();
    let memory = info.memories.get(info.imported_memories as usize);
    let memory_end = layout.base + memory.map_or(0, |memory| memory.minimum * WASM_PAGE_SIZE);
    // Data lies within the memory; a run may be rounded up to pages.
    let end = round_up(last.unwrap_or(layout.base).max(layout.base)).min(memory_end);
    let name = info.name.as_deref().unwrap_or("module");
    let runs = image.runs.iter().map(|(at, bytes)| (place(*at), bytes.as_slice()));
    Image::new(name, layout.image_start..end, runs)
}
