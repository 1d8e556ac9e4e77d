//! Pagefork as such an engine.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use pagefork::{
    AsContext, AsContextMut, CodeBounds, Config, Error, ErrorKind, Exception, Extern, ExternRef,
    ExternType, Func, Global, GrowthKind, Instance, Memory, Module, Store, StoreContextMut,
    StoreLimits, StrategyConfig, Table, Tag, Trap, TrapCode, Val, ValRaw,
};
use wasmparser::{FuncType, ValType};

use crate::generate::{Case, MEMORY_SIZE_MAX, TABLE_LENGTH_MAX};
use crate::interface::Kind;
use crate::subject::{Ending, Engine, Failure, Outcome, State, Subject, host_call};
use crate::value::{Target, Value, target};

/// Bytes of stack that guests have in either engine.
pub const STACK_SIZE: u64 = 1 << 20;

/// Bytes of each memory that are accessible where code compares at first.
const ACCESSIBLE: u64 = 4 << 16;

/// Pagefork, with the store of one case.
pub struct Ours {
    store: Store<Data>,
    module: Option<Module>,
    kept: Option<Kept>,
    imports_made: usize,
}

/// Compiled modules by their bytes.
type Kept = Rc<RefCell<HashMap<Vec<u8>, Module>>>;

/// The data of such a store.
pub struct Data {
    state: State<Extern>,
    /// Numbers of functions, by what tells functions apart.
    functions: HashMap<String, usize>,
    by_number: Vec<Func>,
    /// How many calls there were.
    calls: u64,
}

/// What cases run in.
pub struct Engines {
    plain: pagefork::Engine,
    deterministic: pagefork::Engine,
    kept: Option<Kept>,
}

impl Engines {
    /// The engines, for as many cases as there are.
    ///
    /// # Panics
    /// If the machine cannot run guests.
    #[expect(clippy::new_without_default, reason = "it can panic")]
    pub fn new() -> Self {
        Self::of(&Config::new(), None)
    }

    /// Engines whose memories stay accessible beyond their size, and whose code compares
    /// accesses with it.
    ///
    /// # Panics
    /// If the machine cannot run guests.
    pub fn that_compare_bounds() -> Self {
        Self::that_keep_accessible(None, CodeBounds::Checked)
    }

    /// Engines whose code compares accesses until memories have grown as far as they are
    /// accessible, which random programs do.
    ///
    /// # Panics
    /// If the machine cannot run guests.
    pub fn that_compare_at_first() -> Self {
        Self::that_keep_accessible(Some(ACCESSIBLE), CodeBounds::Dual)
    }

    fn that_keep_accessible(accessible: Option<u64>, code: CodeBounds) -> Self {
        let growth = GrowthKind::Checked { accessible };
        let mut config = Config::new();
        config.strategies(StrategyConfig { growth, code, ..StrategyConfig::default() });
        Self::of(&config, None)
    }

    /// Those for the case with this seed: one of four compares accesses, one of four does
    /// at first.
    ///
    /// # Panics
    /// If the machine cannot run guests.
    pub fn for_seed(seed: u64) -> Self {
        match seed % 4 {
            1 => Self::that_compare_bounds(),
            3 => Self::that_compare_at_first(),
            _ => Self::new(),
        }
    }

    /// Engines that keep what they compile, so that stores of the same case have their
    /// instances in the same slots, one after the other, and that overwrite each slot,
    /// reset it and compare it with its image before it is used.
    ///
    /// # Panics
    /// If the machine cannot run guests.
    pub fn that_reset(strategies: StrategyConfig) -> Self {
        let mut config = Config::new();
        config.strategies(strategies).poison(true);
        Self::of(&config, Some(Kept::default()))
    }

    fn of(config: &Config, kept: Option<Kept>) -> Self {
        let engine = |deterministic| {
            let mut config = config.clone();
            config.stack_size(STACK_SIZE).deterministic(deterministic);
            pagefork::Engine::new(&config).expect("this machine can run guests")
        };
        Self { plain: engine(false), deterministic: engine(true), kept }
    }
}

impl Ours {
    /// An empty store for this case.
    pub fn new(engines: &Engines, case: &Case) -> Self {
        let engine = if case.deterministic { &engines.deterministic } else { &engines.plain };
        let data = Data {
            state: State::new(case.seed),
            functions: HashMap::new(),
            by_number: Vec::new(),
            calls: 0,
        };
        let mut store = Store::new(engine, data);
        let limits = StoreLimits::new()
            .memory_size(MEMORY_SIZE_MAX as usize)
            .table_elements(TABLE_LENGTH_MAX as usize);
        store.set_limits(limits);
        Self { store, module: None, kept: engines.kept.clone(), imports_made: 0 }
    }
}

impl Engine for Ours {
    type Item = Extern;
    type Subject<'a> = Access<'a>;

    fn subject(&mut self) -> Access<'_> {
        Access(self.store.as_context_mut())
    }

    fn compile(&mut self, wasm: &[u8]) -> Result<(), String> {
        let kept = self.kept.as_ref().and_then(|kept| kept.borrow().get(wasm).cloned());
        let module = match kept {
            Some(module) => module,
            None => Module::from_binary(self.store.engine(), wasm)
                .map_err(|error| format!("{error:#}"))?,
        };
        if let Some(kept) = &self.kept {
            kept.borrow_mut().insert(wasm.to_vec(), module.clone());
        }
        self.module = Some(module);
        Ok(())
    }

    fn provide(
        &mut self,
        number: usize,
        index: usize,
        kind: &Kind,
        value: Option<Value>,
    ) -> Option<Extern> {
        let import = self.imports_made;
        self.imports_made += 1;
        let module = self.module.as_ref().expect("a module was compiled");
        let ty = module.imports().nth(index).expect("the module has this import").ty();
        let store = &mut self.store;
        Some(match (ty, kind) {
            (ExternType::Func(ty), Kind::Func(shape)) => {
                let (shape, types) = (shape.clone(), ty.clone());
                let call = move |access: &mut Access<'_>, arguments: &[Val]| {
                    let arguments = access.decode_all(arguments);
                    match host_call(access, number, import, &shape, arguments) {
                        Ending::Return(values) => Ok(access.encode_all(&values, shape.results())),
                        Ending::Throw(tag, ty, values) => {
                            let Extern::Tag(tag) = tag else { panic!("not a tag") };
                            let payload = access.encode_all(&values, ty.params());
                            Err(Error::from(Exception::new(&access.0, &tag, &payload)?))
                        }
                        Ending::Fail => Err(Error::msg("the host function fails")),
                    }
                };
                // Of two, one is on values without types.
                Extern::Func(match import % 2 {
                    0 => Func::new(store, ty, move |mut caller, arguments, results| {
                        let values = call(&mut Access(caller.as_context_mut()), arguments)?;
                        results.copy_from_slice(&values);
                        Ok(())
                    }),
                    // SAFETY: what it leaves are the values that the other has as results.
                    _ => unsafe {
                        Func::new_unchecked(store, ty, move |mut caller, values| {
                            let given = from_raw(&caller, values, &types.params);
                            let results = call(&mut Access(caller.as_context_mut()), &given)?;
                            for (raw, value) in values.iter_mut().zip(results) {
                                *raw = value.to_raw(&caller)?;
                            }
                            Ok(())
                        })
                    },
                })
            }
            (ExternType::Global(ty), Kind::Global(shape)) => {
                let value = Access(store.as_context_mut()).encode(value?, shape.content_type);
                Extern::Global(Global::new(store, ty, value).expect("the value is of the type"))
            }
            (ExternType::Table(ty), Kind::Table(shape)) => {
                let element = ValType::Ref(shape.element_type);
                let value = Access(store.as_context_mut()).encode(value?, element);
                Extern::Table(Table::new(store, ty, value).expect("the table is small"))
            }
            (ExternType::Memory(ty), Kind::Memory(_)) => {
                Extern::Memory(Memory::new(store, ty).expect("the memory is small"))
            }
            (ExternType::Tag(ty), Kind::Tag(_)) => {
                Extern::Tag(Tag::new(store, ty).expect("the tag is valid"))
            }
            (ty, kind) => panic!("{kind:?} is {ty:?} for pagefork"),
        })
    }

    fn instantiate(&mut self, imports: &[Extern]) -> Result<Vec<Extern>, Failure> {
        let module = self.module.as_ref().expect("a module was compiled");
        let instance = Instance::new(&mut self.store, module, imports)
            .map_err(|error| self.subject().failure(&error))?;
        Ok(instance.exports(&mut self.store).map(|export| export.into_extern()).collect())
    }

    fn name_function(&mut self, function: &Extern) {
        let Extern::Func(function) = function else { panic!("only functions get numbers") };
        let data = self.store.data_mut();
        let number = data.by_number.len();
        data.by_number.push(*function);
        data.functions.entry(format!("{function:?}")).or_insert(number);
    }
}

/// Access to a store.
pub struct Access<'a>(StoreContextMut<'a, Data>);

impl Access<'_> {
    fn encode(&mut self, value: Value, ty: ValType) -> Val {
        match value {
            Value::I32(bits) => Val::I32(bits as i32),
            Value::I64(bits) => Val::I64(bits as i64),
            Value::F32(bits) => Val::F32(bits),
            Value::F64(bits) => Val::F64(bits),
            Value::V128(bits) => Val::V128(bits),
            Value::Func(number) => {
                let number = number.expect("only known functions are passed");
                Val::FuncRef(Some(self.0.data().by_number[number]))
            }
            Value::Extern(number) => {
                let reference = ExternRef::new(&mut self.0, number).expect("there are few values");
                Val::ExternRef(Some(reference))
            }
            Value::Null => match ty {
                ValType::Ref(ty) => match target(ty) {
                    Target::Func => Val::FuncRef(None),
                    Target::Extern => Val::ExternRef(None),
                    Target::Exception => Val::ExnRef(None),
                },
                _ => panic!("{ty} has no null"),
            },
            Value::Exception(_) => panic!("exceptions are not passed"),
        }
    }

    fn encode_all(&mut self, values: &[Value], types: &[ValType]) -> Vec<Val> {
        values.iter().zip(types).map(|(value, ty)| self.encode(*value, *ty)).collect()
    }

    fn call_unchecked(
        &mut self,
        function: &Func,
        arguments: &[Val],
        results: &mut [Val],
    ) -> pagefork::Result<()> {
        let raw = arguments.iter().map(|value| value.to_raw(&self.0));
        let mut raw = raw.collect::<pagefork::Result<Vec<ValRaw>>>()?;
        raw.resize(arguments.len().max(results.len()), ValRaw::default());
        // SAFETY: the arguments are of the function's type, and so are then its results.
        unsafe { function.call_unchecked(&mut self.0, &raw mut raw[..])? };
        let types = function.ty(&self.0).results;
        results.copy_from_slice(&from_raw(&self.0, &raw, &types));
        Ok(())
    }

    fn decode(&mut self, value: &Val) -> Value {
        match value {
            Val::I32(value) => Value::I32(*value as u32),
            Val::I64(value) => Value::I64(*value as u64),
            Val::F32(bits) => Value::F32(*bits),
            Val::F64(bits) => Value::F64(*bits),
            Val::V128(bits) => Value::V128(*bits),
            Val::FuncRef(Some(function)) => {
                let data = self.0.data();
                data.state.function(data.functions.get(&format!("{function:?}")))
            }
            Val::ExternRef(Some(reference)) => {
                let value = reference.data(self.0.as_context()).expect("it is of this store");
                Value::Extern(*value.downcast_ref().expect("all host values are numbers"))
            }
            Val::ExnRef(Some(reference)) => {
                let exception = reference.exception(&mut self.0).expect("it is of this store");
                Value::exception(&self.decode_all(exception.payload()))
            }
            Val::FuncRef(None) | Val::ExternRef(None) | Val::ExnRef(None) => Value::Null,
            other => panic!("unknown value {other:?}"),
        }
    }

    fn decode_all(&mut self, values: &[Val]) -> Vec<Value> {
        values.iter().map(|value| self.decode(value)).collect()
    }

    fn failure(&mut self, error: &Error) -> Failure {
        match error.kind() {
            ErrorKind::Link => return Failure::Link,
            ErrorKind::Host => return Failure::Host,
            _ => {}
        }
        if let Some(trap) = error.downcast_ref::<Trap>() {
            trap_failure(trap.code())
        } else if let Some(exception) = error.downcast_ref::<Exception>() {
            Failure::Exception(self.decode_all(exception.payload()))
        } else {
            Failure::Other(format!("{error:#}"))
        }
    }
}

impl Subject for Access<'_> {
    type Item = Extern;

    fn state(&mut self) -> &mut State<Extern> {
        &mut self.0.data_mut().state
    }

    fn call(&mut self, function: &Extern, ty: &FuncType, arguments: &[Value]) -> Outcome {
        let Extern::Func(function) = function else { panic!("only functions are called") };
        let arguments = self.encode_all(arguments, ty.params());
        let mut results = vec![Val::I32(0); ty.results().len()];
        let data = self.0.data_mut();
        data.calls += 1;
        // Of two, one is on values without types.
        let called = match data.calls % 2 {
            0 => function.call(&mut self.0, &arguments, &mut results),
            _ => self.call_unchecked(function, &arguments, &mut results),
        };
        called.map_err(|error| self.failure(&error))?;
        Ok(self.decode_all(&results))
    }

    fn global(&mut self, global: &Extern) -> Value {
        let Extern::Global(global) = global else { panic!("not a global") };
        let value = global.get(&mut self.0);
        self.decode(&value)
    }

    fn set_global(&mut self, global: &Extern, ty: ValType, value: Value) -> bool {
        let Extern::Global(global) = global else { panic!("not a global") };
        let value = self.encode(value, ty);
        global.set(&mut self.0, value).is_ok()
    }

    fn table_length(&mut self, table: &Extern) -> u64 {
        let Extern::Table(table) = table else { panic!("not a table") };
        table.size(&self.0)
    }

    fn element(&mut self, table: &Extern, index: u64) -> (Value, Option<Extern>) {
        let Extern::Table(table) = table else { panic!("not a table") };
        let value = table.get(&mut self.0, index).expect("the element is within the table");
        let item = match value {
            Val::FuncRef(Some(function)) => Some(Extern::Func(function)),
            _ => None,
        };
        (self.decode(&value), item)
    }

    fn set_element(&mut self, table: &Extern, ty: ValType, index: u64, value: Value) -> bool {
        let Extern::Table(table) = table else { panic!("not a table") };
        let value = self.encode(value, ty);
        table.set(&mut self.0, index, value).is_ok()
    }

    fn grow_table(&mut self, table: &Extern, ty: ValType, delta: u64, value: Value) -> bool {
        let Extern::Table(table) = table else { panic!("not a table") };
        let value = self.encode(value, ty);
        table.grow(&mut self.0, delta, value).is_ok()
    }

    fn memory(&mut self, memory: &Extern) -> &mut [u8] {
        let Extern::Memory(memory) = memory else { panic!("not a memory") };
        memory.data_mut(&mut self.0)
    }

    fn grow_memory(&mut self, memory: &Extern, delta: u64) -> bool {
        let Extern::Memory(memory) = memory else { panic!("not a memory") };
        memory.grow(&mut self.0, delta).is_ok()
    }
}

/// The first values, which are of these types and of this store.
fn from_raw(
    store: impl AsContext + Copy,
    values: &[ValRaw],
    types: &[pagefork::ValType],
) -> Vec<Val> {
    // SAFETY: by what this function is for.
    let value =
        |(raw, ty): (&ValRaw, &pagefork::ValType)| unsafe { Val::from_raw(store, *raw, *ty) };
    values.iter().zip(types).map(value).collect()
}

fn trap_failure(code: TrapCode) -> Failure {
    Failure::Trap(match code {
        TrapCode::StackOverflow => return Failure::Exhausted("stack"),
        TrapCode::MemoryOutOfBounds => "memory out of bounds",
        TrapCode::TableOutOfBounds => "table out of bounds",
        TrapCode::IndirectCallToNull => "indirect call to null",
        TrapCode::BadSignature => "indirect call type mismatch",
        TrapCode::IntegerOverflow => "integer overflow",
        TrapCode::IntegerDivisionByZero => "integer division by zero",
        TrapCode::BadConversionToInteger => "bad conversion to integer",
        TrapCode::Unreachable => "unreachable",
        TrapCode::NullReference
        | TrapCode::NullFunctionReference
        | TrapCode::NullExceptionReference => "null reference",
        TrapCode::TooManyExceptions => return Failure::Exhausted("room for exceptions"),
        other => return Failure::Other(other.to_string()),
    })
}
