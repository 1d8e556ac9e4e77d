//! Guests and host functions call each other in any mix of ways, to any depth, and whatever ends the
//! innermost call reaches the one that is to get it: a value, an error, a trap, a panic, an exception.

mod executor;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use pagefork::{
    AsContextMut, Caller, Engine, Error, Exception, FuncType, Instance, Linker, Module, Result,
    Store, Tag, Trap, TrapCode, Val, ValRaw, ValType,
};

use crate::executor::{block_on, poll_once, polls};

/// How a guest calls the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Down {
    /// A closure of an exact type that fits registers.
    Direct,
    /// One of a type that does not.
    Cells,
    /// Through a table.
    Reference,
    /// A function on values, of a type that fits registers.
    New,
    /// Of one that does not.
    NewCells,
    /// A function on values without types.
    Unchecked,
    /// Of a type that does not fit registers.
    UncheckedCells,
    /// An asynchronous function, which may wait if it is innermost.
    Async,
}

impl Down {
    const ALL: [Self; 8] = [
        Self::Direct,
        Self::Cells,
        Self::Reference,
        Self::New,
        Self::NewCells,
        Self::Unchecked,
        Self::UncheckedCells,
        Self::Async,
    ];
}

/// How the host calls a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Up {
    Typed,
    Slices,
    Unchecked,
    /// Only where no host function is around it.
    Async,
}

/// Where a guest catches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Catches {
    Nowhere,
    /// In the frame that calls the host.
    Here,
    /// In the one around it.
    FurtherOut,
}

/// A call of a guest by the host, and what that guest does.
#[derive(Clone, Copy, Debug)]
struct Level {
    up: Up,
    down: Down,
    catches: Catches,
    /// Whether the host function that makes the call goes on after an error.
    recovers: bool,
}

impl Level {
    fn export(&self) -> String {
        let catches = match self.catches {
            Catches::Nowhere => "",
            Catches::Here => "_here",
            Catches::FurtherOut => "_out",
        };
        format!("{:?}{catches}", self.down)
    }
}

/// How the innermost host function ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Value,
    Trap,
    Error,
    Panic,
    Exception,
}

/// What a call comes to.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Outcome {
    Value(i32),
    Trap(TrapCode),
    Error(String),
    Panic(String),
    Exception(i32),
}

/// What a host function returns that has recovered from an error.
const RECOVERED: i32 = 1000;

/// The embedder's data: which calls are made.
struct Plan {
    levels: Vec<Level>,
    /// How many of them are being made.
    depth: usize,
    end: End,
    /// How many polls asynchronous functions wait for.
    wait: u32,
    /// If there is one: as many calls of this kind as the argument says.
    endless: Option<Level>,
    found: Option<(Instance, Tag)>,
}

/// What all host functions do.
fn step(mut store: impl AsContextMut<Data = Plan> + Unpin, x: i32) -> Result<i32> {
    let mut context = store.as_context_mut();
    let plan = context.data_mut();
    let level = match plan.endless {
        Some(level) => (x > 0).then_some(level),
        None => plan.levels.get(plan.depth).copied(),
    };
    plan.depth += usize::from(level.is_some());
    let waited = plan.wait > 0 && plan.levels.iter().any(|level| level.down == Down::Async);
    let (end, (instance, tag)) = (plan.end, plan.found.expect("it is set"));
    let Some(level) = level else {
        return match end {
            End::Value => Ok(x),
            // Nothing of the store can be called while a guest is suspended.
            End::Trap if waited => Err(Trap::without_backtrace(TrapCode::Unreachable).into()),
            End::Trap => instance.get_typed_func::<(), i32>(&mut store, "trap")?.call(store, ()),
            End::Error => Err(Error::msg(format!("error {x}"))),
            End::Panic => panic!("panic {x}"),
            End::Exception => Err(Exception::new(&store, &tag, &[Val::I32(x)])?.into()),
        };
    };
    let (result, next) = (call(&mut store, level, x), x - 1);
    store.as_context_mut().data_mut().depth -= 1;
    match result {
        Err(_) if level.recovers => Ok(RECOVERED + next),
        result => result,
    }
}

/// Calls the guest of a level.
fn call(mut store: impl AsContextMut<Data = Plan> + Unpin, level: Level, x: i32) -> Result<i32> {
    let (instance, _) = store.as_context_mut().data_mut().found.expect("it is set");
    let function = instance.get_func(&mut store, &level.export()).expect("an export");
    let x = x - 1;
    match level.up {
        Up::Typed => function.typed::<i32, i32>(&store)?.call(store, x),
        Up::Slices => {
            let mut results = [Val::I64(0)];
            function.call(store, &[Val::I32(x)], &mut results)?;
            Ok(results[0].unwrap_i32())
        }
        Up::Unchecked => {
            let mut values = [ValRaw::i32(x)];
            // SAFETY: the function takes an `i32`, and returns one.
            unsafe { function.call_unchecked(store, &raw mut values[..])? };
            Ok(values[0].get_i32())
        }
        Up::Async => {
            let function = function.typed::<i32, i32>(&store)?;
            let waits = store.as_context_mut().data_mut().wait > 0;
            let mut call = function.call_async(store, x);
            match poll_once(&mut call) {
                Poll::Ready(result) => result,
                Poll::Pending if waits => block_on(call),
                Poll::Pending => panic!("nothing has waited"),
            }
        }
    }
}

/// What the calls of a plan come to.
fn expected(plan: &Plan, x: i32) -> Outcome {
    let innermost = x - plan.levels.len() as i32;
    let end = match plan.end {
        End::Value => Outcome::Value(innermost),
        End::Trap => Outcome::Trap(TrapCode::Unreachable),
        End::Error => Outcome::Error(format!("error {innermost}")),
        End::Panic => Outcome::Panic(format!("panic {innermost}")),
        End::Exception => Outcome::Exception(innermost),
    };
    plan.levels.iter().enumerate().rev().fold(end, |outcome, (depth, level)| {
        let outcome = match (outcome, level.catches) {
            (Outcome::Value(value), _) => Outcome::Value(value + 1),
            (Outcome::Exception(value), Catches::Here | Catches::FurtherOut) => {
                Outcome::Value(value + 100)
            }
            (outcome, _) => outcome,
        };
        match outcome {
            Outcome::Trap(_) | Outcome::Error(_) | Outcome::Exception(_) if level.recovers => {
                Outcome::Value(RECOVERED + x - depth as i32 - 1)
            }
            outcome => outcome,
        }
    })
}

/// The guest: for each way down a function that catches nothing, one that does, and one around the first
/// that does.
fn text() -> String {
    let (mut imports, mut functions) = (String::new(), String::new());
    for down in Down::ALL {
        let many = matches!(down, Down::Cells | Down::NewCells | Down::UncheckedCells);
        let (params, more) = match many {
            true => ("i32 i32 i32 i32 i32 i32", "(i32.const 0)".repeat(5)),
            false => ("i32", String::new()),
        };
        imports += &format!(
            r#"(import "host" "{down:?}" (func ${down:?} (param {params}) (result i32)))"#
        );
        let call = match down {
            Down::Reference => "(call_indirect (type $t) (local.get 0) (i32.const 0))".to_owned(),
            _ => format!("(call ${down:?} (local.get 0) {more})"),
        };
        let catching = |call: &str, added: u32| {
            format!(
                "(block $caught (result i32)
                    (try_table (result i32) (catch $tag $caught) {call})
                    (return (i32.add (i32.const {added}))))
                (i32.add (i32.const 100))"
            )
        };
        // What is live across the calls of all levels is seen behind them.
        functions += &format!(
            r#"(func $plain{down:?} (export "{down:?}") (type $t) (local i64 f64)
                (local.set 1 (i64.extend_i32_s (local.get 0)))
                (local.set 2 (f64.convert_i32_s (local.get 0)))
                (i32.add (i32.const 1) {call})
                (if (i64.ne (local.get 1) (i64.trunc_f64_s (local.get 2))) (then unreachable)))
            (func (export "{down:?}_here") (type $t) {})
            (func (export "{down:?}_out") (type $t) {})"#,
            catching(&call, 1),
            catching(&format!("(call $plain{down:?} (local.get 0))"), 0),
        );
    }
    format!(
        r#"(module
            (type $t (func (param i32) (result i32)))
            {imports}
            (import "host" "tag" (tag $tag (param i32)))
            (table 1 funcref)
            (elem (i32.const 0) $Reference)
            {functions}
            (func (export "trap") (result i32) unreachable))"#
    )
}

/// A store with the guest and all host functions.
fn start() -> Result<Store<Plan>> {
    let engine = Engine::default();
    let module = Module::new(&engine, text())?;
    let plan =
        Plan { levels: vec![], depth: 0, end: End::Value, wait: 0, endless: None, found: None };
    let mut store = Store::new(&engine, plan);
    let mut linker = Linker::new(&engine);
    let direct = |caller: Caller<'_, Plan>, x: i32| step(caller, x);
    linker.func_wrap("host", "Direct", direct)?;
    linker.func_wrap("host", "Reference", direct)?;
    type Six = (i32, i32, i32, i32, i32);
    linker.func_wrap(
        "host",
        "Cells",
        |caller: Caller<'_, Plan>, x: i32, a: i32, b: i32, c: i32, d: i32, e: i32| {
            let others: Six = (a, b, c, d, e);
            assert_eq!(others, (0, 0, 0, 0, 0));
            step(caller, x)
        },
    )?;
    for (suffix, count) in [("", 1), ("Cells", 6)] {
        let ty = FuncType::new(vec![ValType::I32; count], [ValType::I32]);
        let on_values = |caller: Caller<'_, Plan>, params: &[Val], results: &mut [Val]| {
            results[0] = Val::I32(step(caller, params[0].unwrap_i32())?);
            Ok(())
        };
        linker.func_new("host", &format!("New{suffix}"), ty.clone(), on_values)?;
        let unchecked = |caller: Caller<'_, Plan>, values: &mut [ValRaw]| {
            values[0] = ValRaw::i32(step(caller, values[0].get_i32())?);
            Ok(())
        };
        // SAFETY: the closure leaves an `i32`, as the type says.
        unsafe { linker.func_new_unchecked("host", &format!("Unchecked{suffix}"), ty, unchecked)? };
    }
    linker.func_wrap_async("host", "Async", |caller: Caller<'_, Plan>, (x,): (i32,)| {
        Box::new(async move {
            polls(caller.data().wait).await;
            step(caller, x)
        })
    })?;
    let tag = Tag::new(&mut store, FuncType::new([ValType::I32], []))?;
    linker.define(&store, "host", "tag", tag)?;
    let instance = linker.instantiate(&mut store, &module)?;
    store.data_mut().found = Some((instance, tag));
    Ok(store)
}

/// What the calls of a store's plan come to.
fn run(store: &mut Store<Plan>, x: i32) -> Outcome {
    store.data_mut().depth = 0;
    match catch_unwind(AssertUnwindSafe(|| step(&mut *store, x))) {
        Ok(Ok(value)) => Outcome::Value(value),
        Ok(Err(error)) => match (error.downcast_ref::<Trap>(), error.downcast_ref::<Exception>()) {
            (Some(trap), _) => Outcome::Trap(trap.code()),
            (_, Some(exception)) => Outcome::Exception(exception.payload()[0].unwrap_i32()),
            _ => Outcome::Error(error.to_string()),
        },
        Err(payload) => {
            Outcome::Panic(payload.downcast_ref::<String>().expect("a text").to_owned())
        }
    }
}

/// Numbers that look like no other.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % count
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn plan(&mut self, store: &mut Store<Plan>) {
        let ends = [End::Value, End::Trap, End::Error, End::Panic, End::Exception];
        let plan = store.data_mut();
        plan.end = self.of(&ends);
        plan.levels.clear();
        for depth in 0..=self.below(6) {
            let up = match depth {
                0 => self.of(&[Up::Typed, Up::Slices, Up::Unchecked, Up::Async]),
                _ => self.of(&[Up::Typed, Up::Slices, Up::Unchecked]),
            };
            let down = match up {
                Up::Async if self.below(2) == 0 => Down::Async,
                _ => self.of(&Down::ALL[..Down::ALL.len() - 1]),
            };
            let catches = self.of(&[Catches::Nowhere, Catches::Here, Catches::FurtherOut]);
            plan.levels.push(Level { up, down, catches, recovers: self.below(8) == 0 });
        }
        // Who waits has the guest suspended, which other guests do not run around.
        plan.wait = match plan.levels.len() {
            1 => self.below(3) as u32,
            _ => 0,
        };
    }
}

#[test]
fn any_mix_of_frames_ends_as_it_should() -> Result<()> {
    // Panics of host functions are part of the test, and say nothing.
    std::panic::set_hook(Box::new(|_| ()));
    let (mut store, mut random) = (start()?, Random(18));
    for case in 0..4000 {
        random.plan(&mut store);
        let outcome = run(&mut store, case);
        let plan = store.data();
        if outcome != expected(plan, case) {
            let _ = std::panic::take_hook();
            panic!("case {case}: {:?} of {:?}: {outcome:?}", plan.end, plan.levels);
        }
    }
    let _ = std::panic::take_hook();
    Ok(())
}

/// Guest and host call each other in each way until a stack is full, which is a trap, and then again.
#[test]
fn calls_of_each_kind_nest_to_the_depth_of_the_stacks() -> Result<()> {
    let mut store = start()?;
    for up in [Up::Typed, Up::Slices, Up::Unchecked] {
        for down in &Down::ALL[..Down::ALL.len() - 1] {
            for catches in [Catches::Nowhere, Catches::Here, Catches::FurtherOut] {
                let level = Level { up, down: *down, catches, recovers: false };
                store.data_mut().endless = Some(level);
                for _ in 0..2 {
                    assert_eq!(run(&mut store, 200), Outcome::Value(200), "{level:?}");
                    let outcome = run(&mut store, i32::MAX);
                    assert_eq!(outcome, Outcome::Trap(TrapCode::StackOverflow), "{level:?}");
                }
            }
        }
    }
    Ok(())
}

/// The same below an asynchronous call, and an asynchronous function that does not wait.
#[test]
fn calls_below_asynchronous_ones_nest_to_the_depth_of_the_stacks() -> Result<()> {
    let mut store = start()?;
    let first =
        Level { up: Up::Async, down: Down::Async, catches: Catches::Nowhere, recovers: false };
    let below = Level { up: Up::Slices, down: Down::New, ..first };
    store.data_mut().endless = Some(below);
    for _ in 0..3 {
        store.data_mut().depth = 0;
        assert_eq!(call(&mut store, first, 200)?, 200);
        let error = call(&mut store, first, i32::MAX).unwrap_err();
        let trap = error.downcast_ref::<Trap>().expect("a trap");
        assert_eq!(trap.code(), TrapCode::StackOverflow);
    }
    Ok(())
}
