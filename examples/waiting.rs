//! Guests that wait: ten thousand of them wait a second each for their host, on two threads, and
//! that takes a little more than a second. A guest that waits is nothing but its pages.

use std::time::{Duration, Instant};

use pagefork::{Caller, Engine, Error, Linker, Module, Result};

const GUESTS: u32 = 10_000;

/// Asks the host twice, and adds up what it says.
const GUEST: &str = r#"(module
    (import "host" "ask" (func $ask (param i32) (result i32)))
    (func (export "handle") (param $number i32) (result i32)
        (i32.add (call $ask (local.get $number)) (call $ask (i32.const 1)))))"#;

fn main() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, GUEST)?;
    let mut linker = Linker::new(&engine);
    // The guest that calls this is suspended until the future is ready; the thread does something
    // else meanwhile.
    linker.func_wrap_async("host", "ask", |mut caller: Caller<'_, u32>, (number,): (u32,)| {
        Box::new(async move {
            tokio::time::sleep(Duration::from_millis(500)).await;
            *caller.data_mut() += 1;
            number * 2
        })
    })?;
    let handle = module.get_typed_export::<u32, u32>("handle")?;
    let pre = linker.instantiate_pre(&module)?;

    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let threads = threads.worker_threads(2).enable_time().build()?;
    let begun = Instant::now();
    let sum = threads.block_on(async {
        let guest = |number| {
            let pre = pre.clone();
            async move {
                let (mut store, instance) = pre.spawn(0)?;
                let handle = instance.get_typed_export(&store, &handle)?;
                let answer = handle.call_async(&mut store, number).await?;
                assert_eq!(*store.data(), 2);
                Ok::<u32, Error>(answer)
            }
        };
        let guests: Vec<_> = (0..GUESTS).map(|number| tokio::spawn(guest(number))).collect();
        let mut sum = 0;
        for guest in guests {
            sum += guest.await??;
        }
        Ok::<u32, Error>(sum)
    })?;
    println!("{GUESTS} guests waited for a second each; their answers add up to {sum}");
    println!("together they took {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}
