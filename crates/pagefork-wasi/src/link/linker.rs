//! The functions as imports of a module.

use pagefork::{Caller, Error, Extern, Linker, Trap};

use crate::base::errno::Errno;
use crate::base::guest_memory::GuestMemory;
use crate::state::ctx::WasiCtx;

/// Name of the module that the functions are imported from.
const MODULE: &str = "wasi_snapshot_preview1";

/// A guest exports no memory of the name by which WASI finds it.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Linker, Module, Store};
/// use pagefork_wasi::{NoMemory, WasiCtx};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
///     (func (export "run") (drop (call $yield))))"#)?;
/// let mut linker = Linker::new(&engine);
/// pagefork_wasi::add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx)?;
/// let mut store = Store::new(&engine, WasiCtx::builder().build()?);
/// let instance = linker.instantiate(&mut store, &module)?;
/// let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
/// let error = run.call(&mut store, ()).unwrap_err();
/// assert_eq!(error.downcast_ref(), Some(&NoMemory { function: "sched_yield" }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{function}` of `wasi_snapshot_preview1` needs the memory of its caller, \
     but the module exports none named `memory`; add such an export"
)]
pub struct NoMemory {
    /// Function that was called.
    pub function: &'static str,
}

/// Defines functions that return an error code.
macro_rules! define {
    ($linker:ident, $get:ident; $($name:ident($($param:ident: $ty:ty),*);)*) => {
        $(
            $linker.func_wrap(
                MODULE,
                stringify!($name),
                move |mut caller: Caller<'_, T>, $($param: $ty),*|
                    -> Result<i32, Error>
                {
                    call(&mut caller, $get, stringify!($name), |ctx, memory| {
                        ctx.$name(memory, $($param),*)
                    })
                },
            )?;
        )*
    };
}

/// Defines all 46 functions in a linker. `get` finds the state in the data of the store.
///
/// A call by a module that exports no memory named `memory` fails with [`NoMemory`]. A guest
/// that calls `proc_exit` ends with the error [`Exit`](crate::Exit).
///
/// A guest that waits in one of them when it is to be [suspended](pagefork::InterruptHandle::suspend)
/// is suspended before that call, which has had no effect, and is made again when the guest is
/// [resumed](pagefork::Store::resume). So is one that waits for standard input of
/// [`StdinKind::Awaited`](crate::StdinKind::Awaited).
///
/// # Errors
///
/// Those of [`Linker::func_wrap`], if one of the names is taken.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Linker};
/// use pagefork_wasi::WasiCtx;
///
/// struct Host {
///     wasi: WasiCtx,
///     requests: u64,
/// }
///
/// let mut linker = Linker::new(&Engine::default());
/// pagefork_wasi::add_to_linker(&mut linker, |host: &mut Host| &mut host.wasi)?;
/// # Ok::<(), pagefork::Error>(())
/// ```
pub fn add_to_linker<T: 'static>(
    linker: &mut Linker<T>,
    get: impl Fn(&mut T) -> &mut WasiCtx + Copy + Send + Sync + 'static,
) -> Result<(), Error> {
    define! { linker, get;
        args_get(addresses: u32, buffer: u32);
        args_sizes_get(count: u32, size: u32);
        environ_get(addresses: u32, buffer: u32);
        environ_sizes_get(count: u32, size: u32);
        clock_res_get(clock: u32, result: u32);
        clock_time_get(clock: u32, precision: u64, result: u32);
        fd_advise(fd: u32, offset: u64, size: u64, advice: u32);
        fd_allocate(fd: u32, offset: u64, size: u64);
        fd_close(fd: u32);
        fd_datasync(fd: u32);
        fd_fdstat_get(fd: u32, result: u32);
        fd_fdstat_set_flags(fd: u32, flags: u32);
        fd_fdstat_set_rights(fd: u32, base: u64, inheriting: u64);
        fd_filestat_get(fd: u32, result: u32);
        fd_filestat_set_size(fd: u32, size: u64);
        fd_filestat_set_times(fd: u32, accessed: u64, modified: u64, flags: u32);
        fd_pread(fd: u32, iovs: u32, count: u32, offset: u64, result: u32);
        fd_prestat_get(fd: u32, result: u32);
        fd_prestat_dir_name(fd: u32, address: u32, size: u32);
        fd_pwrite(fd: u32, iovs: u32, count: u32, offset: u64, result: u32);
        fd_read(fd: u32, iovs: u32, count: u32, result: u32);
        fd_readdir(fd: u32, buffer: u32, size: u32, cookie: u64, result: u32);
        fd_renumber(from: u32, to: u32);
        fd_seek(fd: u32, delta: i64, whence: u32, result: u32);
        fd_sync(fd: u32);
        fd_tell(fd: u32, result: u32);
        fd_write(fd: u32, iovs: u32, count: u32, result: u32);
        path_create_directory(fd: u32, path: u32, size: u32);
        path_filestat_get(fd: u32, flags: u32, path: u32, size: u32, result: u32);
        path_filestat_set_times(
            fd: u32, lookup: u32, path: u32, size: u32, accessed: u64, modified: u64, flags: u32
        );
        path_link(
            old_fd: u32, flags: u32, old: u32, old_size: u32, new_fd: u32, new: u32, new_size: u32
        );
        path_open(
            fd: u32, lookup: u32, path: u32, size: u32, flags: u32, base: u64, inheriting: u64,
            fd_flags: u32, result: u32
        );
        path_readlink(
            fd: u32, path: u32, size: u32, buffer: u32, buffer_size: u32, result: u32
        );
        path_remove_directory(fd: u32, path: u32, size: u32);
        path_rename(
            old_fd: u32, old: u32, old_size: u32, new_fd: u32, new: u32, new_size: u32
        );
        path_symlink(target: u32, target_size: u32, fd: u32, path: u32, size: u32);
        path_unlink_file(fd: u32, path: u32, size: u32);
        poll_oneoff(subscriptions: u32, events: u32, count: u32, result: u32);
        proc_raise(signal: u32);
        random_get(buffer: u32, size: u32);
        sched_yield();
        sock_accept(fd: u32, flags: u32, result: u32);
        sock_recv(fd: u32, iovs: u32, count: u32, flags: u32, size: u32, out_flags: u32);
        sock_send(fd: u32, iovs: u32, count: u32, flags: u32, result: u32);
        sock_shutdown(fd: u32, how: u32);
    }
    linker.func_wrap(
        MODULE,
        "proc_exit",
        move |mut caller: Caller<'_, T>, code: u32| -> Result<(), Error> {
            // A guest that must stop traps at the end of this call. It cannot exit instead.
            if caller.interruption().is_requested() {
                return Ok(());
            }
            Err(Error::new(get(caller.data_mut()).proc_exit(code)))
        },
    )?;
    Ok(())
}

/// Calls a method of the state with the caller's memory, and returns its error code.
fn call<T: 'static>(
    caller: &mut Caller<'_, T>,
    get: impl Fn(&mut T) -> &mut WasiCtx,
    function: &'static str,
    f: impl FnOnce(&mut WasiCtx, &mut GuestMemory<'_>) -> Result<(), Errno>,
) -> Result<i32, Error> {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        return Err(Error::new(NoMemory { function }));
    };
    let can_suspend = caller.can_suspend();
    let (memory, data) = memory.local_and_store_mut(&mut *caller);
    let ctx = get(data);
    if ctx.begin_call(function, can_suspend) {
        return Err(caller.suspend_before());
    }
    let mut memory = GuestMemory::of_caller(memory, can_suspend);
    let outcome = f(ctx, &mut memory);
    if let Some(absent) = memory.absent() {
        return Err(Trap::of_absent(absent).into());
    }
    match outcome {
        Ok(()) => Ok(0),
        Err(_) if ctx.interrupt.take_put_off() => Err(caller.suspend_before()),
        Err(errno) => Ok(i32::from(errno.code())),
    }
}
