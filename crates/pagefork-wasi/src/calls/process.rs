//! Arguments, environment, and the end of a guest.

use crate::base::errno::{Errno, Result};
use crate::base::guest_memory::GuestMemory;
use crate::state::ctx::WasiCtx;
use crate::state::strings::Strings;

/// The error that ends a guest which called `proc_exit`, with its exit code.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Linker, Module, Store};
/// use pagefork_wasi::{Exit, WasiCtx, add_to_linker};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
///     (func (export "_start") (call $exit (i32.const 3))))"#)?;
/// let mut linker = Linker::new(&engine);
/// add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx)?;
/// let mut store = Store::new(&engine, WasiCtx::builder().build()?);
/// let instance = linker.instantiate(&mut store, &module)?;
///
/// let start = instance.get_typed_func::<(), ()>(&mut store, "_start")?;
/// let error = start.call(&mut store, ()).unwrap_err();
/// assert_eq!(error.downcast_ref::<Exit>(), Some(&Exit(3)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the program exited with code {0}")]
pub struct Exit(pub i32);

impl WasiCtx {
    /// `args_sizes_get`: writes the count of arguments, and the size of all of them, each with
    /// a NUL.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`], and [`Errno::Overflow`] if a number exceeds 32 bits.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{GuestMemory, WasiCtx};
    ///
    /// let mut ctx = WasiCtx::builder().arg("greet").arg("Ada").env("LANG", "C").build()?;
    /// let mut bytes = [0; 32];
    /// let memory = &mut GuestMemory::new(&mut bytes[..]);
    /// ctx.args_sizes_get(memory, 0, 4)?;
    /// assert_eq!((memory.read_u32(0)?, memory.read_u32(4)?), (2, 10));
    /// ctx.args_get(memory, 0, 8)?;
    /// assert_eq!((memory.bytes(8, 10)?, memory.read_u32(4)?), (&b"greet\0Ada\0"[..], 14));
    /// ctx.environ_sizes_get(memory, 0, 4)?;
    /// assert_eq!((memory.read_u32(0)?, memory.read_u32(4)?), (1, 7));
    /// ctx.environ_get(memory, 0, 8)?;
    /// assert_eq!(memory.bytes(8, 7)?, b"LANG=C\0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn args_sizes_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        count: u32,
        size: u32,
    ) -> Result {
        write_sizes(memory, &self.grants.shared.args, count, size)
    }

    /// `args_get`: writes the arguments, NUL-terminated, and an array of their
    /// addresses.
    ///
    /// # Errors
    ///
    /// [`Errno::Fault`]; then nothing was written.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::args_sizes_get`].
    pub fn args_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        addresses: u32,
        buffer: u32,
    ) -> Result {
        write_strings(memory, &self.grants.shared.args, addresses, buffer)
    }

    /// `environ_sizes_get`: as [`WasiCtx::args_sizes_get`], for variables as
    /// `name=value`.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::args_sizes_get`].
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::args_sizes_get`].
    pub fn environ_sizes_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        count: u32,
        size: u32,
    ) -> Result {
        write_sizes(memory, &self.grants.variables.0, count, size)
    }

    /// `environ_get`: as [`WasiCtx::args_get`], for variables as `name=value`.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::args_get`].
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::args_sizes_get`].
    pub fn environ_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        addresses: u32,
        buffer: u32,
    ) -> Result {
        write_strings(memory, &self.grants.variables.0, addresses, buffer)
    }

    /// `proc_exit`: returns the error that ends the guest.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::exit_code`].
    pub fn proc_exit(&mut self, code: u32) -> Exit {
        let code = code.cast_signed();
        self.exit_code = Some(code);
        Exit(code)
    }

    /// `proc_raise`: would send a signal to the guest, but no guest can handle signals.
    ///
    /// # Errors
    ///
    /// Always [`Errno::Nosys`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{Errno, GuestMemory, WasiCtx};
    ///
    /// let mut ctx = WasiCtx::builder().build()?;
    /// let memory = &mut GuestMemory::new(&mut [][..]);
    /// assert_eq!(ctx.proc_raise(memory, 9), Err(Errno::Nosys));
    /// // The guest is still there.
    /// assert_eq!((ctx.sched_yield(memory), ctx.exit_code()), (Ok(()), None));
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn proc_raise(&mut self, _memory: &mut GuestMemory<'_>, _signal: u32) -> Result {
        Err(Errno::Nosys)
    }

    /// `sched_yield`: lets other threads run.
    ///
    /// # Errors
    ///
    /// None.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::proc_raise`].
    pub fn sched_yield(&mut self, _memory: &mut GuestMemory<'_>) -> Result {
        std::thread::yield_now();
        Ok(())
    }
}

fn write_sizes(
    memory: &mut GuestMemory<'_>,
    strings: &Strings,
    count_result: u32,
    size_result: u32,
) -> Result {
    memory.check(size_result, 4)?;
    memory.write_size(count_result, strings.len())?;
    memory.write_size(size_result, strings.bytes().len())
}

fn write_strings(
    memory: &mut GuestMemory<'_>,
    strings: &Strings,
    addresses: u32,
    buffer: u32,
) -> Result {
    memory.check(buffer, strings.bytes().len())?;
    memory.check(addresses, strings.len().saturating_mul(4))?;
    memory.write_bytes(buffer, strings.bytes())?;
    for (index, start) in (0..).zip(strings.starts()) {
        // Both were checked to lie within memory.
        memory.write_u32(addresses + 4 * index, buffer + *start as u32)?;
    }
    Ok(())
}
