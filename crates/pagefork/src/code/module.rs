//! Compiled modules, and how their instances start.

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use pagefork_compiler::file::CodeKey;
use pagefork_compiler::{CompiledModule, SpawnStep, debug_info, initial_image};
use pagefork_image::ContentHash;
use pagefork_layout::code::{CodeImage, DebugInfo};
use pagefork_layout::module::{
    ConstExpr, ExternType, FuncType, GlobalType, Item, ModuleInfo, RefType, SegmentMode, TableType,
    ValType,
};
use pagefork_layout::packed::PackedList;
use pagefork_layout::page::{WASM_PAGE_SIZE, round_up};
use pagefork_layout::slot::SlotLayout;
use pagefork_layout::trap::TrapCode;
use pagefork_pages::{Image, MemorySize, Owner, PagesError};

use crate::base::error::Result;
use crate::base::frames::{Frame, FrameSource};
use crate::code::code_memory::CodeMemory;
use crate::code::engine::Engine;
use crate::code::memory_image::PlacedImage;
use crate::code::pool::Home;
use crate::code::types::{TypeId, TypeUses};
use pagefork_debuginfo::{SourceLocation, Sources};

/// Spawn plans are kept for at most this many combinations of imported globals.
pub(super) const PLANS_MAX: usize = 64;

/// A compiled module. Cheap to clone: clones share the code.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, ExternType, Module};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module $greeter
///     (import "host" "log" (func $log (param i32)))
///     (func (export "greet") (call $log (i32.const 1))))"#)?;
/// let import = module.imports().next().expect("there is one");
/// assert_eq!((import.module(), import.name()), ("host", "log"));
/// assert_eq!(module.exports().next().map(|export| export.name()), Some("greet"));
/// assert!(matches!(module.get_export("greet"), Some(ExternType::Func(_))));
/// assert_eq!(module.name(), Some("greeter"));
/// assert!(Module::same(&module, &module.clone()));
/// assert!(Engine::same(module.engine(), &engine));
///
/// let error = Module::new(&engine, "(module (func (result i32)))").unwrap_err();
/// assert!(error.to_string().contains("type mismatch"));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone)]
pub struct Module(Arc<ModuleInner>);

struct ModuleInner {
    compiled: Arc<Compiled>,
    memory: Arc<CodeMemory>,
    memory_image: Option<PlacedImage>,
    debug: OnceLock<Option<DebugInfo>>,
    sources: OnceLock<Option<Sources>>,
}

/// What copies of a module at different addresses share.
struct Compiled {
    /// Tells it from all other modules of the process, also from those that are gone.
    number: u64,
    engine: Engine,
    module: CompiledModule,
    /// For each canonical type, its number in the engine, and the type with the
    /// engine's numbers.
    types: Vec<(TypeId, FuncType)>,
    _type_uses: TypeUses,
    /// Sorted by name: most modules have few, and no hash is as quick then.
    exports: Box<[(Box<str>, Item)]>,
    /// The imported globals whose values the initial image depends on.
    image_globals: Vec<u32>,
    /// What the code was compiled from; `None` for what the host creates, where
    /// concrete types in the description are the engine's numbers.
    key: Option<CodeKey>,
    /// What tells the code image from others, once that is known.
    code_hash: OnceLock<ContentHash>,
    plans: Mutex<HashMap<Vec<Option<u128>>, Arc<SpawnPlan>>>,
}

/// How instances of a module start, given its imported globals.
pub(crate) struct SpawnPlan {
    pub(crate) image: Arc<Image>,
    pub(crate) steps: Vec<SpawnStep>,
    /// What the memories that the module defines have at first, and can become.
    pub(crate) memory_sizes: Vec<MemorySize>,
    /// Where slots are kept; `None` for what the host creates.
    pub(crate) home: Option<Home>,
}

impl SpawnPlan {
    /// Whose bytes may be on the stacks of slots with this plan.
    pub(crate) fn owner(&self) -> Owner {
        self.home.as_ref().map_or(Owner(0), |home| home.owner(0))
    }
}

impl Drop for SpawnPlan {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.close();
        }
    }
}

/// An import of a module: its two names and what it must be.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, ExternType, Module};
///
/// let text = r#"(module (import "host" "memory" (memory 1)))"#;
/// let module = Module::new(&Engine::default(), text)?;
/// let import = module.imports().next().expect("there is one");
/// assert_eq!((import.module(), import.name()), ("host", "memory"));
/// assert!(matches!(import.ty(), ExternType::Memory(memory) if memory.minimum == 1));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImportType<'a> {
    module: &'a str,
    name: &'a str,
    ty: ExternType,
}

/// An export of a module: its name and what it is.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, ExternType, Module};
///
/// let text = r#"(module (func (export "run") (result i32) (i32.const 1)))"#;
/// let module = Module::new(&Engine::default(), text)?;
/// let export = module.exports().next().expect("there is one");
/// assert_eq!(export.name(), "run");
/// assert!(matches!(export.ty(), ExternType::Func(_)));
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ExportType<'a> {
    name: &'a str,
    ty: ExternType,
}

impl<'a> ImportType<'a> {
    /// The first name: the module imported from.
    ///
    /// # Examples
    ///
    /// See [`ImportType`].
    pub fn module(&self) -> &'a str {
        self.module
    }

    /// The second name.
    ///
    /// # Examples
    ///
    /// See [`ImportType`].
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// What it must be.
    ///
    /// # Examples
    ///
    /// See [`ImportType`].
    pub fn ty(&self) -> ExternType {
        self.ty.clone()
    }
}

impl<'a> ExportType<'a> {
    /// The export's name.
    ///
    /// # Examples
    ///
    /// See [`ExportType`].
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// What it is.
    ///
    /// # Examples
    ///
    /// See [`ExportType`].
    pub fn ty(&self) -> ExternType {
        self.ty.clone()
    }
}

impl FrameSource for Module {
    fn module_name(&self) -> Option<&str> {
        self.name()
    }

    fn function_name(&self, function: u32) -> Option<&str> {
        self.info().function_name(function)
    }

    fn wasm_offset(&self, text_offset: u32) -> Option<u32> {
        self.debug()?.source_at(text_offset)
    }

    fn locate(&self, text_offset: u32) -> Vec<SourceLocation> {
        let sources = self.sources();
        sources.map_or_else(Vec::new, |(debug, sources)| sources.locate(debug, text_offset))
    }

    fn is_cut_short(&self) -> bool {
        self.sources().is_some_and(|(_, sources)| sources.is_exhausted())
    }
}

impl Frame {
    /// The function's module.
    ///
    /// # Examples
    ///
    /// See [`Frame`].
    pub fn module(&self) -> &Module {
        let source: &dyn Any = &*self.source;
        source.downcast_ref().expect("what frames show is of modules")
    }
}

impl Module {
    /// A module whose code is in `module`, to be copied.
    pub(crate) fn from_compiled(
        engine: &Engine,
        mut module: CompiledModule,
        key: CodeKey,
    ) -> Result<Self> {
        let memory = CodeMemory::new(&module.code.text, module.code.code_end as usize)?;
        module.code.text = Vec::new();
        Ok(Self::from_parts(engine, module, memory, key))
    }

    /// A module whose code lies in `memory`.
    pub(crate) fn from_parts(
        engine: &Engine,
        module: CompiledModule,
        memory: CodeMemory,
        key: CodeKey,
    ) -> Self {
        let types = engine_types(engine, &module.info);
        Self::with_types(engine, module, types, memory, Some(key))
    }

    /// `key` is `None` for what the host creates.
    fn with_types(
        engine: &Engine,
        module: CompiledModule,
        (types, type_uses): (Vec<(TypeId, FuncType)>, TypeUses),
        memory: CodeMemory,
        key: Option<CodeKey>,
    ) -> Self {
        let info = &module.info;
        engine.config().profile.register(&memory, &module.code, info);
        let exports = info.exports.iter().map(|export| (export.name.as_str().into(), export.item));
        let mut exports: Box<[(Box<str>, Item)]> = exports.collect();
        exports.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let compiled = Compiled {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            engine: engine.clone(),
            types,
            _type_uses: type_uses,
            exports,
            image_globals: image_globals(info),
            key,
            code_hash: OnceLock::new(),
            plans: Mutex::default(),
            module,
        };
        Self(Arc::new(ModuleInner {
            compiled: Arc::new(compiled),
            memory: Arc::new(memory),
            memory_image: None,
            debug: OnceLock::new(),
            sources: OnceLock::new(),
        }))
    }

    /// A module without code, for what the host creates.
    pub(crate) fn without_code(engine: &Engine, info: ModuleInfo) -> Result<Self> {
        let mut limits = engine.config().compile.limits;
        // Nothing ever runs in it; the layout keeps the smallest stack it allows.
        limits.stack_size = 0;
        let layout =
            SlotLayout::new(&info, &limits).map_err(pagefork_compiler::CompileError::from)?;
        let none = vec![None; info.types.len()];
        let code =
            CodeImage { entries: none.clone(), direct_entries: none, ..CodeImage::default() };
        let module = CompiledModule { info, layout, code };
        let (info, mut uses) = (&module.info, engine.type_uses());
        let types = info.types.iter().map(|ty| (uses.add(ty), ty.clone())).collect();
        info.tables.iter().for_each(|table| uses.hold(ValType::Ref(table.element)));
        info.globals.iter().for_each(|global| uses.hold(global.content));
        Ok(Self::with_types(engine, module, (types, uses), CodeMemory::new(&[], 0)?, None))
    }

    /// The same module with its code mapped at another address: for showing that
    /// the address of code does not matter.
    ///
    /// # Errors
    /// If the system has no memory for it.
    #[doc(hidden)]
    pub fn clone_code(&self) -> Result<Self> {
        let compiled = Arc::clone(&self.0.compiled);
        let memory = CodeMemory::new(&self.whole_text(), self.code().code_end as usize)?;
        self.engine().config().profile.register(&memory, self.code(), self.info());
        Ok(Self(Arc::new(ModuleInner {
            compiled,
            memory: Arc::new(memory),
            memory_image: None,
            debug: OnceLock::new(),
            sources: OnceLock::new(),
        })))
    }

    /// The same module, whose instances start with an image in a memory.
    pub(super) fn with_placed_image(&self, image: PlacedImage) -> Self {
        Self(Arc::new(ModuleInner {
            compiled: Arc::clone(&self.0.compiled),
            memory: Arc::clone(&self.0.memory),
            memory_image: Some(image),
            debug: OnceLock::new(),
            sources: OnceLock::new(),
        }))
    }

    /// What one of its memories starts with, if the embedder says that.
    pub(super) fn placed_image(&self) -> Option<&PlacedImage> {
        self.0.memory_image.as_ref()
    }

    /// Whether both are the same module, wherever their code is mapped.
    ///
    /// # Examples
    ///
    /// See [`Module`].
    pub fn same(a: &Self, b: &Self) -> bool {
        Arc::ptr_eq(&a.0.compiled, &b.0.compiled)
    }

    /// The module's name, from its name section.
    ///
    /// # Examples
    ///
    /// See [`Module`].
    pub fn name(&self) -> Option<&str> {
        self.info().name.as_deref()
    }

    /// The engine that compiled it.
    ///
    /// # Examples
    ///
    /// See [`Module`].
    pub fn engine(&self) -> &Engine {
        &self.0.compiled.engine
    }

    /// What must be given to instantiate the module, in order.
    ///
    /// # Examples
    ///
    /// See [`Module`].
    pub fn imports(&self) -> impl ExactSizeIterator<Item = ImportType<'_>> {
        let info = self.info();
        info.imports.iter().map(|import| ImportType {
            module: &import.module,
            name: &import.name,
            ty: self.item_type(import.item),
        })
    }

    /// What its instances offer, in order.
    ///
    /// # Examples
    ///
    /// See [`Module`].
    pub fn exports(&self) -> impl ExactSizeIterator<Item = ExportType<'_>> {
        let info = self.info();
        info.exports
            .iter()
            .map(|export| ExportType { name: &export.name, ty: self.item_type(export.item) })
    }

    /// The type of the export `name`.
    ///
    /// # Examples
    ///
    /// See [`Module`].
    pub fn get_export(&self, name: &str) -> Option<ExternType> {
        self.export(name).map(|item| self.item_type(item))
    }

    /// What the compiler made of it: for tests and inspection.
    #[doc(hidden)]
    pub fn compiled(&self) -> &CompiledModule {
        &self.0.compiled.module
    }

    /// Its machine code: for tests and inspection.
    #[doc(hidden)]
    pub fn text(&self) -> &[u8] {
        self.0.memory.text()
    }

    /// What lies behind its machine code: for tests and inspection.
    #[doc(hidden)]
    pub fn behind_code(&self) -> &[u8] {
        self.0.memory.behind()
    }

    /// Its machine code, and what lies behind it.
    pub(crate) fn whole_text(&self) -> Cow<'_, [u8]> {
        self.0.memory.whole()
    }

    /// The module's debug information, decoded when it is first asked for.
    pub(crate) fn debug(&self) -> Option<&DebugInfo> {
        self.0.debug.get_or_init(|| debug_info(self.code().debug(self.behind_code()))).as_ref()
    }

    /// The bytes of a data segment.
    pub(crate) fn data_segment(&self, index: u32) -> &[u8] {
        let segment = self.info().data.get(index as usize);
        self.code().segment(self.behind_code(), &segment.expect("validated: there is one"))
    }

    /// Why the instruction at this offset in the code traps when it raises a signal.
    pub(crate) fn trap_at(&self, offset: u32) -> Option<TrapCode> {
        self.code().trap_at(self.behind_code(), offset)
    }

    /// Return addresses of all calls, as offsets in the code, ascending.
    pub(crate) fn call_sites(&self) -> PackedList<'_, u32> {
        self.code().call_sites(self.behind_code())
    }

    /// What the debug information says, read as far as it was asked for.
    pub(crate) fn sources(&self) -> Option<(&DebugInfo, &Sources)> {
        let debug = self.debug()?;
        Some((debug, self.0.sources.get_or_init(|| Sources::new(debug)).as_ref()?))
    }

    /// What tells the module from others: clones have the same.
    pub(crate) fn number(&self) -> u64 {
        self.0.compiled.number
    }

    pub(crate) fn export(&self, name: &str) -> Option<Item> {
        let exports = &self.0.compiled.exports;
        let index = exports.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(exports[index].1)
    }

    /// Notes the hash of the code image that the module was loaded from.
    pub(crate) fn with_code_hash(self, hash: ContentHash) -> Self {
        let known = self.0.compiled.code_hash.get_or_init(|| hash);
        debug_assert_eq!(*known, hash, "a module has one code image");
        self
    }

    /// The hash of the module's code image. The first call for a module makes the code image, unless
    /// it was loaded from a store.
    ///
    /// # Panics
    /// If it is one of the host's own.
    pub(crate) fn code_hash(&self) -> ContentHash {
        *self.0.compiled.code_hash.get_or_init(|| ContentHash::of(&self.code_image()))
    }

    /// The hash of the module's bytes.
    ///
    /// # Panics
    /// If it is one of the host's own.
    pub(crate) fn module_hash(&self) -> ContentHash {
        ContentHash::from_bytes(self.code_key().module_hash())
    }

    /// Whether the host created it: a memory, table, global or tag alone.
    pub(crate) fn is_of_host(&self) -> bool {
        self.0.compiled.key.is_none()
    }

    /// What its code was compiled from.
    ///
    /// # Panics
    /// If it is one of the host's own.
    pub(crate) fn code_key(&self) -> CodeKey {
        self.0.compiled.key.expect("what the host creates is never handed out as a module")
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

    /// Address of the code of function `index`.
    pub(crate) fn function_code(&self, index: u32) -> usize {
        let memory = self.code_memory();
        memory.start() + self.code().function_code(memory.text(), index) as usize
    }

    /// The engine's number of the type of function `index`.
    pub(crate) fn function_type_id(&self, index: u32) -> TypeId {
        self.type_id(self.info().functions[index as usize])
    }

    /// The engine's number of a canonical type.
    pub(crate) fn type_id(&self, canonical_type: u32) -> TypeId {
        self.engine_type(canonical_type).0
    }

    fn engine_type(&self, canonical_type: u32) -> &(TypeId, FuncType) {
        &self.0.compiled.types[canonical_type as usize]
    }

    /// The type of function `index`, with the engine's numbers.
    pub(crate) fn function_type(&self, index: u32) -> &FuncType {
        &self.engine_type(self.info().functions[index as usize]).1
    }

    /// The type of tag `index`, with the engine's numbers.
    pub(crate) fn tag_type(&self, index: u32) -> &FuncType {
        &self.engine_type(self.info().tags[index as usize]).1
    }

    /// A type that the module declares, with the engine's numbers.
    pub(crate) fn engine_val_type(&self, ty: ValType) -> ValType {
        match self.0.compiled.key {
            None => ty,
            Some(_) => ty.map_concrete(|index| self.type_id(index).0),
        }
    }

    /// A type that the module declares, with the engine's numbers.
    pub(crate) fn engine_ref_type(&self, ty: RefType) -> RefType {
        match self.engine_val_type(ValType::Ref(ty)) {
            ValType::Ref(ty) => ty,
            _ => unreachable!("references stay references"),
        }
    }

    /// The type of an item, with the engine's numbers.
    pub(crate) fn item_type(&self, item: Item) -> ExternType {
        match self.info().item_type(item) {
            ExternType::Func(_) => {
                let Item::Func(index) = item else { unreachable!("its type is a function's") };
                ExternType::Func(self.function_type(index).clone())
            }
            ExternType::Tag(_) => {
                let Item::Tag(index) = item else { unreachable!("its type is a tag's") };
                ExternType::Tag(self.tag_type(index).clone())
            }
            ExternType::Global(ty) => {
                ExternType::Global(GlobalType { content: self.engine_val_type(ty.content), ..ty })
            }
            ExternType::Table(ty) => {
                ExternType::Table(TableType { element: self.engine_ref_type(ty.element), ..ty })
            }
            ExternType::Memory(ty) => ExternType::Memory(ty),
        }
    }

    /// How instances start. `imported_global` gives the bits of an imported
    /// global, `None` for references.
    pub(crate) fn spawn_plan(
        &self,
        imported_global: impl Fn(u32) -> Option<u128>,
    ) -> Result<Arc<SpawnPlan>> {
        let plan = self.plan_of_module(imported_global)?;
        match &self.0.memory_image {
            Some(image) => image.place(self.engine(), plan),
            None => Ok(plan),
        }
    }

    /// As [`Self::spawn_plan`], by the module alone.
    fn plan_of_module(
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
        let start = initial_image(self.compiled(), self.behind_code(), &globals);
        let image = make_image(info, layout, &start.image)?;
        let home = compiled.key.is_some().then(|| Home::new(&compiled.engine));
        let memory_sizes = memory_sizes(info, layout);
        let plan = Arc::new(SpawnPlan { image, steps: start.steps, memory_sizes, home });
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

/// What the memories that a module defines have at first, and can become.
pub(crate) fn memory_sizes(info: &ModuleInfo, layout: &SlotLayout) -> Vec<MemorySize> {
    let own = info.memories[info.imported_memories as usize..].iter();
    own.zip(&layout.memories)
        .map(|(memory, place)| {
            let initial = memory.minimum.saturating_mul(WASM_PAGE_SIZE);
            let pages = memory.maximum.unwrap_or(u64::MAX).min(place.pages_max());
            MemorySize { initial, maximum: pages * WASM_PAGE_SIZE }
        })
        .collect()
}

/// Each canonical type of a module as the engine knows it, and what holds them.
fn engine_types(engine: &Engine, info: &ModuleInfo) -> (Vec<(TypeId, FuncType)>, TypeUses) {
    let mut uses = engine.type_uses();
    let mut types: Vec<(TypeId, FuncType)> = Vec::with_capacity(info.types.len());
    for (index, ty) in (0..).zip(&info.types) {
        // A type names itself or earlier ones.
        let number = |other: u32, own| if other == index { own } else { types[other as usize].0.0 };
        let id = uses.add(&ty.map_concrete(|other| number(other, TypeId::ITSELF.0)));
        let ty = ty.map_concrete(|other| number(other, id.0));
        types.push((id, ty));
    }
    (types, uses)
}

/// The imported globals that initialisers use.
fn image_globals(info: &ModuleInfo) -> Vec<u32> {
    fn offset(mode: &SegmentMode) -> Option<&ConstExpr> {
        match mode {
            SegmentMode::Active { offset, .. } => Some(offset),
            _ => None,
        }
    }
    let items = info.elements.iter().flat_map(|segment| &segment.items);
    let offsets = info.elements.iter().filter_map(|segment| offset(&segment.mode));
    let inits = info.global_inits.iter().chain(info.table_inits.iter().flatten());
    let all = inits.chain(items).chain(offsets).chain(info.data.computed_offsets());
    let mut globals: Vec<u32> =
        all.flat_map(ConstExpr::globals).filter(|index| *index < info.imported_globals).collect();
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
    // Tables, state and the first memory, then each further memory, as far as
    // there are contents.
    let further = layout.memories.iter().skip(1).map(|memory| layout.base + memory.offset);
    let mut extents: Vec<Range<u64>> = std::iter::once(layout.image_start..layout.base)
        .chain(further.map(|start| start..start))
        .collect();
    for (at, bytes) in &image.runs {
        let start = place(*at);
        let extent = extents.iter_mut().rev().find(|extent| extent.start <= start);
        let extent = extent.expect("nothing lies below tables and state");
        extent.end = extent.end.max(round_up(start + bytes.len() as u64));
    }
    let name = info.name.as_deref().unwrap_or("module");
    let runs = image.runs.iter().map(|(at, bytes)| (place(*at), bytes.as_slice()));
    Image::with_extents(name, extents, runs)
}
