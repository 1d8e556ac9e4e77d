//! What may move between threads and what they may share: every public type.

use std::cell::Cell;
use std::rc::Rc;

use pagefork::{
    AsContext, Caller, Engine, Instance, LocalMemory, Module, Result, Store, StoreContext,
    StoreContextMut,
};

macro_rules! assert_send_and_sync {
    ($($ty:ty),* $(,)?) => {
        const _: () = {
            const fn check<T: Send + Sync>() {}
            $(check::<$ty>();)*
        };
    };
}

assert_send_and_sync! {
    pagefork::Engine, pagefork::Config, pagefork::Module, pagefork::Cache, pagefork::CacheStats,
    pagefork::CacheRefusal, pagefork::Profile, pagefork::Progress,
    Store<()>, StoreContext<'static, ()>, StoreContextMut<'static, ()>, Caller<'static, ()>,
    pagefork::Linker<()>, pagefork::InstancePre<()>, pagefork::Snapshot<()>, pagefork::StoreLimits,
    // They hold no `T`.
    pagefork::Linker<Rc<Cell<()>>>, pagefork::InstancePre<Rc<Cell<()>>>,
    pagefork::Instance, pagefork::Export, pagefork::Extern, pagefork::Func,
    pagefork::TypedFunc<(i32, u128), ()>, pagefork::TypedFunc<Option<pagefork::Func>, ()>,
    pagefork::Memory, pagefork::Table, pagefork::Global, pagefork::Tag,
    pagefork::Val, pagefork::ExternRef, pagefork::ExnRef, pagefork::Exception,
    pagefork::InterruptHandle, pagefork::PoolConfig, pagefork::PoolCounters,
    pagefork::Error, pagefork::ErrorKind, pagefork::LimitError, pagefork::LinkError,
    pagefork::SystemError, pagefork::UsageError, pagefork::MemoryAccessError,
    pagefork::CompileError, pagefork::CodeImageError, pagefork::PagesError,
    pagefork::Trap, pagefork::TrapCode, pagefork::WasmBacktrace, pagefork::Frame,
    pagefork::SourceLocation, pagefork::ExportType<'static>, pagefork::ImportType<'static>,
    pagefork::FuncType, pagefork::MemoryType, pagefork::TableType, pagefork::GlobalType,
}

/// Whether a type is `Send` and `Sync`: constants of types that are come before the trait's.
macro_rules! is_send_and_sync {
    ($ty:ty) => {{
        struct Probe<T>(std::marker::PhantomData<T>);
        trait Not {
            const SEND: bool = false;
            const SYNC: bool = false;
        }
        impl<T> Not for Probe<T> {}
        impl<T: Send> Probe<T> {
            const SEND: bool = true;
        }
        impl<T: Sync> Probe<T> {
            const SYNC: bool = true;
        }
        (<Probe<$ty>>::SEND, <Probe<$ty>>::SYNC)
    }};
}

#[test]
#[expect(dead_code, reason = "constants of the trait that are not the ones taken")]
fn stores_are_what_their_data_are() {
    assert_eq!(is_send_and_sync!(Store<Cell<i32>>), (true, false));
    assert_eq!(is_send_and_sync!(Store<std::sync::MutexGuard<'static, i32>>), (false, true));
    assert_eq!(is_send_and_sync!(Store<Rc<i32>>), (false, false));
    assert_eq!(is_send_and_sync!(StoreContext<'static, Cell<i32>>), (false, false));
    assert_eq!(is_send_and_sync!(Caller<'static, Rc<i32>>), (false, false));
    // It says which thread writes.
    assert_eq!(is_send_and_sync!(LocalMemory<'static>), (false, false));
}

#[test]
fn threads_read_one_store_at_once() -> Result<()> {
    let engine = Engine::default();
    let text = r#"(module (memory (export "memory") 1) (data (i32.const 8) "shared")
        (global (export "global") i32 (i32.const 7)))"#;
    let mut store: Store<u32> = Store::new(&engine, 5);
    let instance = Instance::new(&mut store, &Module::new(&engine, text)?, &[])?;
    let memory = instance.get_memory(&mut store, "memory").expect("an export");
    let global = instance.get_global(&mut store, "global").expect("an export");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let context = store.as_context();
                    assert_eq!(
                        (&memory.data(context)[8..14], *context.data()),
                        (&b"shared"[..], 5)
                    );
                    assert_eq!(memory.size(&store), 1);
                    assert!(!global.ty(&store).mutable);
                    assert_eq!(instance.module(&store).exports().count(), 2);
                    store.interrupt_handle().expect("interruption is on").interrupt();
                }
            });
        }
    });
    Ok(())
}

#[test]
fn a_default_store_has_default_data() {
    let store: Store<Vec<u8>> = Store::default();
    assert!(store.data().is_empty() && Engine::same(store.engine(), store.engine()));
}
