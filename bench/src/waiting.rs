//! Many guests that wait at the same time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::measure::{Effort, Row, Size, Work, compare};

/// A guest that waits for the host once.
const WAT: &str = r#"(module
    (import "host" "wait" (func $wait (result i64)))
    (func (export "run") (result i64) (call $wait)))"#;

const THREADS: u64 = 2;

/// Each guest, until it has answered.
type Guest = Pin<Box<dyn Future<Output = i64>>>;

/// Times guests that all wait for a second, from before the first is made until the last is gone.
/// Slots are kept from one time to the next.
pub(crate) fn run(size: Size) -> Row {
    let (guests, wait) = match size {
        Size::Small => (10, Duration::from_millis(1)),
        Size::Large => (10_000, Duration::from_secs(1)),
    };
    let all = pagefork_side::Guests::new(wait);
    let mut ours = || on_threads(guests, || all.begin(guests / THREADS));
    #[cfg(feature = "peer")]
    let all = wasmtime_side::Guests::new(wait);
    #[cfg(feature = "peer")]
    let mut theirs = || on_threads(guests, || all.begin(guests / THREADS));
    #[cfg(feature = "peer")]
    let peer: Option<Work<'_>> = Some(&mut theirs);
    #[cfg(not(feature = "peer"))]
    let peer: Option<Work<'_>> = None;
    let name = format!("{guests} guests wait for {wait:?} each, on {THREADS} threads: all of it");
    compare(&name, Effort::long(size).on_the_wall(), guests, &mut ours, peer)
}

/// How many guests have answered.
fn on_threads(guests: u64, make: impl Fn() -> Vec<Guest> + Sync) -> u64 {
    let answered = thread::scope(|scope| {
        let threads = (0..THREADS).map(|_| scope.spawn(|| answers(make())));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert_eq!(answered, guests);
    answered
}

/// Polls all until all have answered, and sleeps where none has.
fn answers(mut guests: Vec<Guest>) -> u64 {
    let mut answered = 0;
    while !guests.is_empty() {
        let before = guests.len();
        guests.retain_mut(|guest| {
            let polled = guest.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            answered += u64::from(polled == Poll::Ready(7));
            polled.is_pending()
        });
        if guests.len() == before {
            thread::sleep(Duration::from_millis(1));
        }
    }
    answered
}

/// Is ready when it is polled at that time or later.
async fn until(time: Instant) {
    std::future::poll_fn(|_| match Instant::now() < time {
        true => Poll::Pending,
        false => Poll::Ready(()),
    })
    .await;
}

macro_rules! side {
    ($module:ident, $engine:ident) => {
        mod $module {
            use std::time::{Duration, Instant};

            use $engine::{Caller, Engine, InstancePre, Linker, Module, Store};

            pub(super) struct Guests(InstancePre<()>);

            impl Guests {
                pub(super) fn new(wait: Duration) -> Self {
                    let engine = Engine::default();
                    let wasm = wat::parse_str(super::WAT).expect("a module");
                    let module = Module::new(&engine, wasm).expect("a valid module");
                    let mut linker = Linker::new(&engine);
                    linker
                        .func_wrap_async("host", "wait", move |_: Caller<'_, ()>, (): ()| {
                            Box::new(async move {
                                super::until(Instant::now() + wait).await;
                                7i64
                            })
                        })
                        .expect("a new name");
                    Self(linker.instantiate_pre(&module).expect("all is linked"))
                }

                pub(super) fn begin(&self, count: u64) -> Vec<super::Guest> {
                    let guest = |_| -> super::Guest {
                        let pre = self.0.clone();
                        Box::pin(async move {
                            let mut store = Store::new(pre.module().engine(), ());
                            let instance = pre.instantiate_async(&mut store).await;
                            let run = instance
                                .and_then(|it| it.get_typed_func::<(), i64>(&mut store, "run"));
                            let run = run.expect("a slot");
                            run.call_async(&mut store, ()).await.expect("it returns")
                        })
                    };
                    (0..count).map(guest).collect()
                }
            }
        }
    };
}

side!(pagefork_side, pagefork);
#[cfg(feature = "peer")]
side!(wasmtime_side, wasmtime);
