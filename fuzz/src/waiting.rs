//! Random sequences of calls that wait: polled on any thread, given up at any poll, interrupted, out of
//! time, ended by errors, traps, exceptions and panics of host functions, in stores that are spawned,
//! reset and used again; start functions that wait, and calls of host functions by the embedder. A model
//! says what each comes to, and nothing is left of any of them.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use arbitrary::Unstructured;
use pagefork::{
    Caller, Engine, Error, Exception, Extern, Func, FuncType, Instance, InstancePre,
    InterruptHandle, Linker, Module, Result, Store, Tag, Trap, TrapCode, TypedExport, Val, ValType,
};

/// Stores that are used side by side.
const ACTORS: usize = 3;

/// At most this many things are done with them.
const ACTIONS_MAX: u32 = 60;

/// At most this many host functions are called in a call.
const STEPS_MAX: usize = 12;

const PAGE_SIZE: usize = 4096;

/// Calls the host for each step, and writes down after each how far it is, and to a page of its own
/// what all have come to. Odd steps catch exceptions, a few frames further down.
const GUEST: &str = r#"(module
    (import "host" "step" (func $step (param i32) (result i32)))
    (import "host" "step_of_any_type" (func $any (param i32) (result i32)))
    (import "host" "count" (func $count (result i32)))
    (tag $tag (export "tag") (param i32))
    (memory (export "memory") 1)
    (global $done (export "done") (mut i32) (i32.const 0))
    (func $deep (param $step i32) (param $depth i32) (result i32)
        (if (local.get $depth) (then
            (return (i32.add (i32.const 1)
                (call $deep (local.get $step) (i32.sub (local.get $depth) (i32.const 1)))))))
        (if (result i32) (i32.eq (i32.rem_u (local.get $step) (i32.const 3)) (i32.const 2))
            (then (call $any (local.get $step)))
            (else (call $step (local.get $step)))))
    (func $one (param $step i32) (result i32)
        (if (i32.and (local.get $step) (i32.const 1)) (then
            (block $caught (result i32)
                (try_table (catch $tag $caught)
                    (return (call $deep (local.get $step) (i32.const 5))))
                (unreachable))
            (return (i32.add (i32.const 1000)))))
        (call $deep (local.get $step) (i32.const 0)))
    (func (export "plain") (result i32) (i32.const 5))
    (func $run (export "run") (param $count i32) (result i32) (local $step i32) (local $sum i32)
        (loop $next
            (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 31))
                (call $one (local.get $step))))
            (i32.store (i32.mul (local.get $step) (i32.const 4096)) (local.get $sum))
            (local.set $step (i32.add (local.get $step) (i32.const 1)))
            (global.set $done (local.get $step))
            (br_if $next (i32.lt_u (local.get $step) (local.get $count))))
        (local.get $sum))
    (global $sum (export "sum") (mut i32) (i32.const 0))
    (func $start (global.set $sum (call $run (call $count))))
    START)"#;

/// What a host function does.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// How often it is polled before it is ready.
    polls: u8,
    /// What it writes into the page of its step.
    byte: u8,
    ending: Ending,
}

/// How a host function ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Value(i32),
    Throw(i32),
    Fail,
    Trap,
    Panic,
}

/// What a call comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CallEnd {
    Value(i32),
    Exception(i32),
    Error,
    Trap,
    Interrupt,
    Panic,
    /// The call was dropped.
    GivenUp,
}

/// What a panic of a host function carries.
struct Planned;

/// What a store's guests and host functions know.
struct World {
    steps: Arc<[Step]>,
    /// How many futures of host functions there are.
    live: Arc<AtomicU32>,
}

/// One of the futures.
struct Live(Arc<AtomicU32>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Guest {
    engine: Engine,
    pre: InstancePre<World>,
    /// The same guest, whose start function does all steps.
    starting: InstancePre<World>,
    run: TypedExport<u32, i32>,
}

static GUEST_MODULE: LazyLock<Guest> = LazyLock::new(|| {
    let engine = Engine::default();
    let mut linker = Linker::new(&engine);
    linker.func_wrap_async("host", "step", step).expect("a new name");
    let ty = FuncType::new([ValType::I32], [ValType::I32]);
    linker.func_new_async("host", "step_of_any_type", ty, step_of_any_type).expect("a new name");
    let count = |caller: Caller<'_, World>| caller.data().steps.len() as u32;
    linker.func_wrap("host", "count", count).expect("a new name");
    let module = |start| Module::new(&engine, GUEST.replace("START", start)).expect("it is valid");
    let (module, starting) = (module(""), module("(start $start)"));
    let run = module.get_typed_export("run").expect("an export of this type");
    let pre = linker.instantiate_pre(&module).expect("all is linked");
    let starting = linker.instantiate_pre(&starting).expect("all is linked");
    Guest { engine, pre, starting, run }
});

/// The host function.
fn step(
    mut caller: Caller<'_, World>,
    (number,): (u32,),
) -> Box<dyn Future<Output = Result<i32>> + Send + '_> {
    let World { steps, live } = caller.data();
    let step = steps[number as usize];
    live.fetch_add(1, Ordering::Relaxed);
    let live = Live(Arc::clone(live));
    Box::new(async move {
        let _live = live;
        let mut left = step.polls;
        poll_fn(|_| match left {
            0 => Poll::Ready(()),
            _ => {
                left -= 1;
                Poll::Pending
            }
        })
        .await;
        // The embedder's own call has no guest around it.
        if let Some(Extern::Memory(memory)) = caller.get_export("memory") {
            memory.write(&mut caller, number as usize * PAGE_SIZE + 100, &[step.byte])?;
        }
        match step.ending {
            Ending::Value(value) => Ok(value),
            Ending::Throw(value) => {
                let tag = match caller.get_export("tag") {
                    Some(Extern::Tag(tag)) => tag,
                    _ => Tag::new(&mut caller, FuncType::new([ValType::I32], []))?,
                };
                Err(Exception::new(&mut caller, &tag, &[Val::I32(value)])?.into())
            }
            Ending::Fail => Err(Error::msg("planned")),
            Ending::Trap => Err(Trap::without_backtrace(TrapCode::IntegerOverflow).into()),
            Ending::Panic => resume_unwind(Box::new(Planned)),
        }
    })
}

/// The host function, as one of a type that Rust does not know.
fn step_of_any_type<'a>(
    caller: Caller<'a, World>,
    params: &'a [Val],
    results: &'a mut [Val],
) -> Box<dyn Future<Output = Result<()>> + Send + 'a> {
    let future = Pin::from(step(caller, (params[0].unwrap_i32() as u32,)));
    Box::new(async move {
        results[0] = Val::I32(future.await?);
        Ok(())
    })
}

/// What a call of these steps comes to, and the sums that it writes down on the way.
fn model(steps: &[Step]) -> (CallEnd, Vec<i32>) {
    let mut sums = Vec::new();
    let mut sum = 0i32;
    for (number, step) in steps.iter().enumerate() {
        let catches = number % 2 == 1;
        let value = match step.ending {
            Ending::Value(value) => value.wrapping_add(if catches { 5 } else { 0 }),
            Ending::Throw(value) if catches => value.wrapping_add(1000),
            Ending::Throw(value) => return (CallEnd::Exception(value), sums),
            Ending::Fail => return (CallEnd::Error, sums),
            Ending::Trap => return (CallEnd::Trap, sums),
            Ending::Panic => return (CallEnd::Panic, sums),
        };
        sum = sum.wrapping_mul(31).wrapping_add(value);
        sums.push(sum);
    }
    (CallEnd::Value(sum), sums)
}

/// What a call of the host function by the embedder comes to.
fn alone(step: Step) -> CallEnd {
    match step.ending {
        Ending::Value(value) => CallEnd::Value(value),
        Ending::Throw(value) => CallEnd::Exception(value),
        Ending::Fail => CallEnd::Error,
        Ending::Trap => CallEnd::Trap,
        Ending::Panic => CallEnd::Panic,
    }
}

fn end(result: Result<i32>) -> CallEnd {
    let error = match result {
        Ok(value) => return CallEnd::Value(value),
        Err(error) => error,
    };
    if let Some(exception) = error.downcast_ref::<Exception>() {
        return CallEnd::Exception(exception.payload()[0].unwrap_i32());
    }
    match error.downcast_ref::<Trap>().map(Trap::code) {
        Some(TrapCode::Interrupt) => CallEnd::Interrupt,
        Some(TrapCode::IntegerOverflow) => CallEnd::Trap,
        Some(code) => panic!("the guest has trapped: {code}"),
        None => {
            assert_eq!(error.to_string(), "planned");
            CallEnd::Error
        }
    }
}

/// A store, and the call that is under way in it.
type Call = Pin<Box<dyn Future<Output = (Store<World>, CallEnd)> + Send>>;

enum Actor {
    Idle,
    /// A store that no call uses.
    Resting(Store<World>, Instance),
    Calling(Calling),
}

/// What is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Callee {
    /// The guest of this instance.
    Guest(Instance),
    /// The start function of an instance that is being made.
    Start,
    /// The host function, with the first step, in a store with this instance.
    Host(Instance),
}

struct Calling {
    call: Call,
    callee: Callee,
    steps: Arc<[Step]>,
    handle: InterruptHandle,
    was_polled: bool,
    /// Whether it may end because it was interrupted, or had no time left.
    was_interrupted: bool,
    /// Whether it is given up after some polls.
    is_given_up: bool,
}

/// Counts how often it is woken; that matters to nobody, but that nothing keeps it does.
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Waits<'a, 'b> {
    input: &'a mut Unstructured<'b>,
    actors: [Actor; ACTORS],
    live: Arc<AtomicU32>,
    woken: Arc<Woken>,
}

/// Stores whose guests wait go through what the input chooses.
///
/// # Panics
/// If something is not what it must be.
pub fn waiting(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let (live, woken) = (Arc::new(AtomicU32::new(0)), Arc::new(Woken(AtomicU32::new(0))));
    let mut waits = Waits {
        input: &mut input,
        actors: [const { Actor::Idle }; ACTORS],
        live: Arc::clone(&live),
        woken: Arc::clone(&woken),
    };
    let before = GUEST_MODULE.engine.pool_counters();
    // What an input lacks is made up; nothing else ends it early.
    let _ = waits.go();
    drop(waits);
    let after = GUEST_MODULE.engine.pool_counters();
    // Slots that were parked before are parked again; who finds none asks more than once.
    let (taken, missed) = (after.taken - before.taken, after.missed - before.missed);
    let put = after.put - before.put;
    let all = if missed == 0 { put == taken } else { put >= taken };
    assert!(all, "slots are left: {before:?}, {after:?}");
    assert_eq!(Arc::strong_count(&live), 1, "a store's data are left");
    assert_eq!(live.load(Ordering::Relaxed), 0, "futures of host functions are left");
    assert_eq!(Arc::strong_count(&woken), 1, "a waker is left");
}

impl Waits<'_, '_> {
    fn go(&mut self) -> arbitrary::Result<()> {
        for _ in 0..self.input.int_in_range(1..=ACTIONS_MAX)? {
            let index = self.input.choose_index(ACTORS)?;
            let actor = std::mem::replace(&mut self.actors[index], Actor::Idle);
            self.actors[index] = self.act(actor)?;
        }
        Ok(())
    }

    fn act(&mut self, actor: Actor) -> arbitrary::Result<Actor> {
        match actor {
            Actor::Idle => {
                let world = World { steps: Arc::new([]), live: Arc::clone(&self.live) };
                if self.input.ratio(1, 6)? {
                    let store = Store::new(&GUEST_MODULE.engine, world);
                    return self.begin(store, Callee::Start);
                }
                let tenant = self.input.int_in_range(0..=1)?;
                let (mut store, instance) =
                    GUEST_MODULE.pre.spawn_for(tenant, world).expect("there is a slot");
                check_memory(&mut store, instance, &[], &[]);
                self.begin(store, Callee::Guest(instance))
            }
            Actor::Resting(store, instance) => match self.input.int_in_range(0..=7)? {
                0 | 1 => Ok(Actor::Idle),
                2 => self.begin(store, Callee::Host(instance)),
                _ => self.begin(store, Callee::Guest(instance)),
            },
            Actor::Calling(mut calling) => match self.input.int_in_range(0..=15)? {
                // With the call goes its store.
                0 => Ok(Actor::Idle),
                1 => {
                    calling.handle.interrupt();
                    // One that comes before the first poll is forgotten.
                    calling.was_interrupted |= calling.was_polled;
                    Ok(Actor::Calling(calling))
                }
                choice => Ok(self.poll(calling, choice % 3 == 0)),
            },
        }
    }

    /// Begins a call, in a store that is made as at first.
    fn begin(&mut self, mut store: Store<World>, callee: Callee) -> arbitrary::Result<Actor> {
        let mut steps = Vec::new();
        let steps_max = if let Callee::Host(_) = callee { 1 } else { STEPS_MAX };
        for _ in 0..self.input.int_in_range(1..=steps_max)? {
            let value = self.input.arbitrary()?;
            let ending = match self.input.int_in_range(0..=31)? {
                0 => Ending::Fail,
                1 => Ending::Trap,
                2 => Ending::Panic,
                3..=8 => Ending::Throw(value),
                _ => Ending::Value(value),
            };
            let polls = self.input.int_in_range(0..=3)?;
            steps.push(Step { polls, byte: self.input.arbitrary()?, ending });
        }
        let steps: Arc<[Step]> = steps.into();
        let world = World { steps: Arc::clone(&steps), live: Arc::clone(&self.live) };
        store.reset(world).expect("the kernel gives pages back");
        if let Callee::Guest(instance) | Callee::Host(instance) = callee {
            check_memory(&mut store, instance, &[], &[]);
        }
        let interval = self.input.ratio(1, 8)?.then_some(Duration::ZERO);
        store.set_yield_interval(interval).expect("the engine's code can be interrupted");
        if self.input.ratio(1, 8)? {
            store.run_turns_with(|turn| {
                thread::scope(|scope| scope.spawn(turn).join().expect("panics are the poll's"));
            });
        }
        let handle = store.interrupt_handle().expect("the engine's code can be interrupted");
        let timeout = match self.input.int_in_range(0..=15)? {
            0 => Some(Duration::from_micros(self.input.int_in_range(0..=200)?)),
            1 => Some(Duration::from_secs(3600)),
            _ => None,
        };
        store.set_timeout(timeout).expect("the engine's code can be interrupted");
        let polls_max = match self.input.ratio(1, 3)? {
            true => self.input.int_in_range(0..=20)?,
            false => u32::MAX,
        };
        let (run, count) = (GUEST_MODULE.run, steps.len() as u32);
        let call: Call = Box::pin(async move {
            let end = match callee {
                Callee::Guest(instance) => {
                    let run = instance.get_typed_export(&store, &run).expect("its module's");
                    polled(run.call_async(&mut store, count), polls_max)
                        .await
                        .map_or(CallEnd::GivenUp, end)
                }
                Callee::Start => {
                    let made = GUEST_MODULE.starting.instantiate_async(&mut store);
                    match polled(made, polls_max).await {
                        None => CallEnd::GivenUp,
                        Some(Err(error)) => end(Err(error)),
                        Some(Ok(instance)) => {
                            let sum = instance.get_global(&mut store, "sum").expect("an export");
                            CallEnd::Value(sum.get(&mut store).unwrap_i32())
                        }
                    }
                }
                Callee::Host(_) => {
                    let host = Func::wrap_async(&mut store, step);
                    let host = host.typed::<u32, i32>(&store).expect("of this type");
                    polled(host.call_async(&mut store, 0), polls_max)
                        .await
                        .map_or(CallEnd::GivenUp, end)
                }
            };
            (store, end)
        });
        let (was_polled, was_interrupted) = (false, timeout.is_some());
        let is_given_up = polls_max != u32::MAX;
        Ok(Actor::Calling(Calling {
            call,
            callee,
            steps,
            handle,
            was_polled,
            was_interrupted,
            is_given_up,
        }))
    }

    fn poll(&mut self, mut calling: Calling, elsewhere: bool) -> Actor {
        let waker = Waker::from(Arc::clone(&self.woken));
        let call = &mut calling.call;
        let mut poll = || call.as_mut().poll(&mut Context::from_waker(&waker));
        let mut caught = || catch_unwind(AssertUnwindSafe(&mut poll));
        let polled = match elsewhere {
            true => {
                let caught = AssertSend(&mut caught);
                thread::scope(|scope| scope.spawn(|| caught.run()).join()).expect("it is caught")
            }
            false => caught(),
        };
        let (expected, sums) = match calling.callee {
            Callee::Host(_) => (alone(calling.steps[0]), Vec::new()),
            _ => model(&calling.steps),
        };
        match polled {
            Ok(Poll::Pending) => {
                calling.was_polled = true;
                Actor::Calling(calling)
            }
            Ok(Poll::Ready((mut store, end))) => {
                let Calling { callee, steps, was_interrupted, is_given_up, .. } = calling;
                match end {
                    CallEnd::GivenUp => assert!(is_given_up),
                    CallEnd::Interrupt => assert!(was_interrupted),
                    // An interrupt may come too late, or with an error.
                    end => assert_eq!(end, expected),
                }
                let instance = match callee {
                    Callee::Guest(instance) | Callee::Host(instance) => instance,
                    // What was made goes with its store.
                    Callee::Start => return Actor::Idle,
                };
                store.set_timeout(None).expect("the engine's code can be interrupted");
                let done = instance.get_global(&mut store, "done").expect("an export");
                let done = done.get(&mut store).unwrap_i32() as usize;
                if end == expected {
                    assert_eq!(done, sums.len());
                }
                let written = if let Callee::Host(_) = callee { &[] } else { &steps[..] };
                check_memory(&mut store, instance, &sums[..done], written);
                // However the call has ended, its store can be used.
                let plain = instance.get_typed_func::<(), i32>(&mut store, "plain");
                let plain = plain.expect("an export of this type").call(&mut store, ());
                assert_eq!(plain.expect("nothing is in its way"), 5);
                Actor::Resting(store, instance)
            }
            // With the future goes its store.
            Err(payload) => {
                assert!(payload.is::<Planned>(), "a panic that was not planned");
                assert_eq!(expected, CallEnd::Panic);
                Actor::Idle
            }
        }
    }
}

/// What a future comes to; `None` if it is given up after so many polls.
async fn polled<F: Future>(future: F, polls_max: u32) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls_max;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// What polls a call on another thread.
struct AssertSend<F>(F);

// SAFETY: calls can be sent, and a waker can; a context is made where it is used.
unsafe impl<F> Send for AssertSend<F> {}

impl<F: FnMut() -> R, R> AssertSend<F> {
    fn run(mut self) -> R {
        (self.0)()
    }
}

/// Memory is as the steps that are done have left it, and zero elsewhere.
fn check_memory(store: &mut Store<World>, instance: Instance, sums: &[i32], steps: &[Step]) {
    let memory = instance.get_memory(&mut *store, "memory").expect("an export");
    let bytes = memory.data(&*store);
    for (number, page) in bytes.chunks(PAGE_SIZE).enumerate() {
        let mut expected = [0; PAGE_SIZE];
        if let Some(sum) = sums.get(number) {
            expected[..4].copy_from_slice(&sum.to_le_bytes());
        }
        if let Some(step) = steps.get(number) {
            // The last one has written, or not.
            expected[100] = match number.cmp(&sums.len()) {
                std::cmp::Ordering::Less => step.byte,
                std::cmp::Ordering::Equal => {
                    assert!([0, step.byte].contains(&page[100]), "page {number}");
                    page[100]
                }
                std::cmp::Ordering::Greater => 0,
            };
        }
        assert!(page == expected, "page {number} is not what it must be");
    }
}
