//! Limiters in the embedder's data rule what is made and what grows, and their errors end guests.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pagefork::{
    Engine, Error, Instance, LimitError, LimitSource, Linker, Memory, MemoryType, Module, RefType,
    ResourceLimiter, Result, Store, StoreLimits, StoreLimitsBuilder, Table, TableType, TypedFunc,
    Val, bail,
};

const PAGE: usize = 65536;

/// What a limiter was asked, and what it answers.
#[derive(Default)]
struct Recorder {
    calls: Vec<String>,
    refuse: bool,
    fail: bool,
    panic: bool,
    fail_after: bool,
    counts: Option<usize>,
}

impl Recorder {
    fn asked(
        &mut self,
        what: &str,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        let maximum = maximum.map_or("none".to_owned(), |maximum| maximum.to_string());
        self.calls.push(format!("{what} {current} {desired} {maximum}"));
        assert!(!self.panic, "the limiter panics");
        if self.fail {
            bail!("the limiter fails");
        }
        Ok(!self.refuse)
    }

    fn told(&mut self, what: &str, error: &Error) -> Result<()> {
        let limit = error.downcast_ref::<LimitError>().map(|limit| limit.source_of_limit);
        self.calls.push(format!("{what} failed {limit:?}"));
        if self.fail_after {
            bail!("the limiter fails afterwards");
        }
        Ok(())
    }
}

impl ResourceLimiter for Recorder {
    fn memory_growing(&mut self, from: usize, to: usize, maximum: Option<usize>) -> Result<bool> {
        self.asked("memory", from, to, maximum)
    }

    fn memory_grow_failed(&mut self, error: Error) -> Result<()> {
        self.told("memory", &error)
    }

    fn table_growing(&mut self, from: usize, to: usize, maximum: Option<usize>) -> Result<bool> {
        self.asked("table", from, to, maximum)
    }

    fn table_grow_failed(&mut self, error: Error) -> Result<()> {
        self.told("table", &error)
    }

    fn instances(&self) -> usize {
        self.counts.unwrap_or(10)
    }
}

const GUEST: &str = r#"(module
    (memory (export "memory") 1 3)
    (table (export "table") 2 5 funcref)
    (func (export "memory_grow") (param i32) (result i32) (memory.grow (local.get 0)))
    (func (export "table_grow") (param i32) (result i32)
        (table.grow (ref.null func) (local.get 0))))"#;

fn recorded() -> (Store<Recorder>, Module) {
    let engine = Engine::default();
    let mut store = Store::new(&engine, Recorder::default());
    store.limiter(|recorder| recorder);
    (store, Module::new(&engine, GUEST).unwrap())
}

fn functions<T: 'static>(store: &mut Store<T>, instance: Instance) -> [TypedFunc<i32, i32>; 2] {
    ["memory_grow", "table_grow"].map(|name| instance.get_typed_func(&mut *store, name).unwrap())
}

fn calls(store: &mut Store<Recorder>) -> Vec<String> {
    std::mem::take(&mut store.data_mut().calls)
}

#[test]
fn the_limiter_is_asked_for_all_that_is_made_and_grows() -> Result<()> {
    let (mut store, module) = recorded();
    let instance = Instance::new(&mut store, &module, &[])?;
    assert_eq!(calls(&mut store), ["memory 0 65536 196608", "table 0 2 5"]);
    let [memory_grow, table_grow] = functions(&mut store, instance);
    assert_eq!(memory_grow.call(&mut store, 1)?, 1);
    assert_eq!(table_grow.call(&mut store, 2)?, 2);
    assert_eq!(calls(&mut store), ["memory 65536 131072 196608", "table 2 4 5"]);
    // What stays as it is is always allowed.
    store.data_mut().refuse = true;
    assert_eq!((memory_grow.call(&mut store, 0)?, table_grow.call(&mut store, 0)?), (2, 4));
    assert!(calls(&mut store).is_empty());
    store.data_mut().refuse = false;
    // What the host makes.
    let memory = Memory::new(&mut store, MemoryType::new(0, None))?;
    memory.grow(&mut store, 2)?;
    let ty = TableType::new(RefType::EXTERNREF, 1, None);
    let table = Table::new(&mut store, ty, Val::null_extern_ref())?;
    table.grow(&mut store, 1, Val::null_extern_ref())?;
    let numbered = u32::MAX;
    assert_eq!(
        calls(&mut store),
        [
            "memory 0 0 none".to_owned(),
            "memory 0 131072 none".to_owned(),
            format!("table 0 1 {numbered}"),
            format!("table 1 2 {numbered}"),
        ]
    );
    Ok(())
}

#[test]
fn what_the_limiter_refuses_answers_minus_one_to_guests_and_an_error_to_the_host() -> Result<()> {
    let (mut store, module) = recorded();
    let instance = Instance::new(&mut store, &module, &[])?;
    let [memory_grow, table_grow] = functions(&mut store, instance);
    store.data_mut().refuse = true;
    assert_eq!((memory_grow.call(&mut store, 1)?, table_grow.call(&mut store, 1)?), (-1, -1));
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    let table = instance.get_table(&mut store, "table").unwrap();
    let source = |error: Error| error.downcast_ref::<LimitError>().unwrap().source_of_limit;
    let errors = [
        memory.grow(&mut store, 1).map(drop).unwrap_err(),
        table.grow(&mut store, 1, Val::null_func_ref()).map(drop).unwrap_err(),
        Memory::new(&mut store, MemoryType::new(1, None)).map(drop).unwrap_err(),
        Instance::new(&mut store, &module, &[]).map(drop).unwrap_err(),
    ];
    let text = errors[0].to_string();
    assert!(text.contains("131072 would exceed what the store's limiter allows"), "{text}");
    assert!(errors.into_iter().all(|error| source(error) == LimitSource::Limiter));
    assert_eq!((memory.size(&store), table.size(&store)), (1, 2));
    // Nothing of what was refused is there.
    store.data_mut().refuse = false;
    Instance::new(&mut store, &module, &[])?;
    Ok(())
}

#[test]
fn the_limiter_is_told_of_growth_that_fails_although_it_was_allowed() -> Result<()> {
    let (mut store, module) = recorded();
    let instance = Instance::new(&mut store, &module, &[])?;
    let [memory_grow, table_grow] = functions(&mut store, instance);
    calls(&mut store);
    assert_eq!((memory_grow.call(&mut store, 3)?, table_grow.call(&mut store, 4)?), (-1, -1));
    let told = [
        "memory 65536 262144 196608",
        "memory failed Some(Declared)",
        "table 2 6 5",
        "table failed Some(Declared)",
    ];
    assert_eq!(calls(&mut store), told);
    // The store's own limits are others'.
    store.set_limits(StoreLimits::new().memory_size(PAGE));
    assert_eq!(memory_grow.call(&mut store, 1)?, -1);
    assert_eq!(calls(&mut store)[1], "memory failed Some(Store)");
    store.data_mut().fail_after = true;
    for error in
        [memory_grow.call(&mut store, 3).unwrap_err(), table_grow.call(&mut store, 4).unwrap_err()]
    {
        assert_eq!(error.to_string(), "the limiter fails afterwards");
        assert_eq!(error.backtrace().unwrap().frames().len(), 1);
    }
    Ok(())
}

#[test]
fn an_error_of_the_limiter_ends_the_guest_and_what_the_host_does() -> Result<()> {
    let (mut store, module) = recorded();
    let instance = Instance::new(&mut store, &module, &[])?;
    let [memory_grow, table_grow] = functions(&mut store, instance);
    store.data_mut().fail = true;
    for function in [&memory_grow, &table_grow] {
        let error = function.call(&mut store, 1).unwrap_err();
        assert_eq!(error.to_string(), "the limiter fails");
        let frames = error.backtrace().expect("a guest ran").frames();
        assert!(frames[0].function_index() < 2);
    }
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    assert_eq!(memory.grow(&mut store, 1).unwrap_err().to_string(), "the limiter fails");
    let error = Instance::new(&mut store, &module, &[]).unwrap_err();
    assert_eq!(error.to_string(), "the limiter fails");
    store.data_mut().fail = false;
    assert_eq!((memory_grow.call(&mut store, 1)?, table_grow.call(&mut store, 1)?), (1, 2));
    Ok(())
}

#[test]
fn a_panic_of_the_limiter_is_carried_across_the_guest() -> Result<()> {
    let (mut store, module) = recorded();
    let instance = Instance::new(&mut store, &module, &[])?;
    let [memory_grow, table_grow] = functions(&mut store, instance);
    store.data_mut().panic = true;
    for function in [&memory_grow, &table_grow] {
        let call = AssertUnwindSafe(|| function.call(&mut store, 1));
        let payload = catch_unwind(call).unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"the limiter panics"));
    }
    store.data_mut().panic = false;
    assert_eq!(memory_grow.call(&mut store, 1)?, 1);
    Ok(())
}

#[test]
fn the_limiter_rules_how_many_instances_there_are() -> Result<()> {
    let (mut store, module) = recorded();
    store.data_mut().counts = Some(1);
    Instance::new(&mut store, &module, &[])?;
    let error = Instance::new(&mut store, &module, &[]).unwrap_err();
    let limit = error.downcast_ref::<LimitError>().unwrap();
    assert_eq!((limit.what, limit.requested, limit.limit), ("instances", 2, 1));
    store.data_mut().counts = Some(2);
    Instance::new(&mut store, &module, &[])?;
    Ok(())
}

#[test]
fn a_reset_asks_for_all_that_is_made_again() -> Result<()> {
    let (mut store, module) = recorded();
    let instance = Instance::new(&mut store, &module, &[])?;
    let [memory_grow, table_grow] = functions(&mut store, instance);
    memory_grow.call(&mut store, 2)?;
    table_grow.call(&mut store, 1)?;
    let grown = store.snapshot()?;
    store.reset(Recorder::default())?;
    assert_eq!(calls(&mut store), ["memory 0 65536 196608", "table 0 2 5"]);
    store.reset_to(&grown, Recorder::default())?;
    assert_eq!(calls(&mut store), ["memory 0 196608 196608", "table 0 3 5"]);
    // After an error the old data is there.
    let refusing = || Recorder { refuse: true, ..Recorder::default() };
    store.reset(refusing()).map(drop).unwrap_err();
    store.reset_to(&grown, refusing()).map(drop).unwrap_err();
    assert!(!store.data().refuse);
    store.reset(Recorder::default())?;
    assert_eq!(memory_grow.call(&mut store, 1)?, 1);
    Ok(())
}

#[test]
fn spawned_instances_have_the_limiter_from_the_start_warm_or_cold() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, GUEST)?;
    let pre = Linker::new(&engine).instantiate_pre(&module)?;
    let limited = pre.with_limiter(|recorder: &mut Recorder| recorder);
    for turn in 0..3 {
        let (mut store, instance) = limited.spawn(Recorder::default())?;
        let asked = calls(&mut store);
        assert_eq!(asked, ["memory 0 65536 196608", "table 0 2 5"], "turn {turn}");
        let [memory_grow, _] = functions(&mut store, instance);
        store.data_mut().refuse = true;
        assert_eq!(memory_grow.call(&mut store, 1)?, -1);
        drop(store);
        let refusing = Recorder { refuse: true, ..Recorder::default() };
        let error = limited.spawn(refusing).map(drop).unwrap_err();
        assert!(error.is::<LimitError>(), "turn {turn}: {error:?}");
        // Those without a limiter have none, wherever their slots were before.
        let (mut store, instance) = pre.spawn(Recorder { refuse: true, ..Recorder::default() })?;
        let [memory_grow, _] = functions(&mut store, instance);
        assert_eq!(memory_grow.call(&mut store, 1)?, 1);
        assert!(store.data().calls.is_empty());
    }
    Ok(())
}

#[test]
fn a_limiter_that_was_set_later_is_gone_with_its_store() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, GUEST)?;
    let pre = Linker::new(&engine).instantiate_pre(&module)?;
    for _ in 0..3 {
        let (mut store, instance) = pre.spawn(Recorder { refuse: true, ..Recorder::default() })?;
        let [memory_grow, _] = functions(&mut store, instance);
        assert_eq!(memory_grow.call(&mut store, 1)?, 1);
        store.limiter(|recorder| recorder);
        assert_eq!(memory_grow.call(&mut store, 1)?, -1);
    }
    Ok(())
}

#[test]
fn limits_as_a_limiter_hold_what_limits_of_the_store_hold() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, GUEST)?;
    let limits = StoreLimitsBuilder::new()
        .memory_size(2 * PAGE)
        .memory_total(3 * PAGE)
        .table_elements(3)
        .instances(3)
        .build();
    let mut store = Store::new(&engine, limits);
    store.limiter(|limits| limits);
    let instance = Instance::new(&mut store, &module, &[])?;
    let [memory_grow, table_grow] = functions(&mut store, instance);
    assert_eq!((memory_grow.call(&mut store, 2)?, table_grow.call(&mut store, 2)?), (-1, -1));
    assert_eq!((memory_grow.call(&mut store, 1)?, table_grow.call(&mut store, 1)?), (1, 2));
    let memory = Memory::new(&mut store, MemoryType::new(0, Some(0)))?;
    // Growth that fails counts for nothing.
    for _ in 0..3 {
        memory.grow(&mut store, 1).unwrap_err();
    }
    let other = Memory::new(&mut store, MemoryType::new(1, None))?;
    assert!(other.grow(&mut store, 1).is_err(), "there are three pages in all");
    let error = Memory::new(&mut store, MemoryType::new(0, None)).unwrap_err();
    assert_eq!(error.downcast_ref::<LimitError>().unwrap().what, "instances");
    // From a reset on all is counted again.
    store.reset(limits)?;
    assert_eq!(memory_grow.call(&mut store, 1)?, 1);
    Ok(())
}

#[test]
fn growth_that_fails_ends_the_guest_if_limits_say_so() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, GUEST)?;
    let limits = StoreLimits::new().memory_size(2 * PAGE).table_elements(3);
    let limits = limits.trap_on_grow_failure(true);
    for as_limiter in [true, false] {
        let mut store = Store::new(&engine, limits);
        match as_limiter {
            true => store.limiter(|limits| limits),
            false => store.set_limits(limits),
        }
        let instance = Instance::new(&mut store, &module, &[])?;
        let [memory_grow, table_grow] = functions(&mut store, instance);
        assert_eq!((memory_grow.call(&mut store, 1)?, table_grow.call(&mut store, 1)?), (1, 2));
        // By the limits, and by what is declared.
        for (function, delta) in
            [(&memory_grow, 1), (&table_grow, 1), (&memory_grow, 9), (&table_grow, 9)]
        {
            let error = function.call(&mut store, delta).unwrap_err();
            assert!(error.is::<LimitError>(), "{error:?}");
            assert_eq!(error.to_string(), "growth that fails is to end the guest");
            assert_eq!(error.backtrace().unwrap().frames().len(), 1);
        }
        assert_eq!((memory_grow.call(&mut store, 0)?, table_grow.call(&mut store, 0)?), (2, 3));
    }
    Ok(())
}
