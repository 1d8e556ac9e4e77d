//! The WASI state of one guest.

use std::path::Path;

use crate::base::errno::Result;
use crate::base::waiting::InterruptCheck;
use crate::state::descriptor::Description;
use crate::state::grants::{Grants, Permissions};
use crate::state::saved::PutOffPoll;
use crate::state::stdio::StdinKind;
use crate::state::table::DescriptorTable;

/// The WASI state of one guest.
///
/// It consists of what the embedder granted, which never changes, and of the open
/// descriptors. A descriptor is plain data and a handle that can be opened from it again.
/// Random numbers have no state, and clocks no more than how far the monotonic one is.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Linker, Module, Store};
/// use pagefork_wasi::{OutputKind, WasiCtx};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (import "wasi_snapshot_preview1" "fd_write"
///         (func $write (param i32 i32 i32 i32) (result i32)))
///     (memory (export "memory") 1)
///     (data (i32.const 8) "\10\00\00\00\02\00\00\00hi")
///     (func (export "_start")
///         (drop (call $write (i32.const 1) (i32.const 8) (i32.const 1) (i32.const 0)))))"#)?;
/// let (output, stdout) = OutputKind::pipe();
///
/// let mut linker = Linker::new(&engine);
/// pagefork_wasi::add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx)?;
/// let mut store = Store::new(&engine, WasiCtx::builder().stdout(stdout).build()?);
/// let instance = linker.instantiate(&mut store, &module)?;
/// instance.get_typed_func::<(), ()>(&mut store, "_start")?.call(&mut store, ())?;
///
/// assert_eq!(output.take(), b"hi");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct WasiCtx {
    pub(crate) grants: Grants,
    pub(crate) table: DescriptorTable,
    /// Belongs to the embedder, so it stays at a reset.
    pub(crate) interrupt: InterruptCheck,
    /// By how much the guest's monotonic clock is ahead of the one that it is made of,
    /// nanoseconds. It may be behind, so this wraps around.
    monotonic_offset_ns: u64,
    pub(crate) exit_code: Option<i32>,
    /// Set while the guest is suspended before a `poll_oneoff`.
    pub(crate) put_off_poll: Option<PutOffPoll>,
    /// Before which call the guest is to be suspended: the function, and how many calls of it come
    /// first.
    suspend_before: Option<(String, u64)>,
}

impl WasiCtx {
    pub(crate) fn new(grants: Grants) -> Self {
        let table = DescriptorTable::new(&grants);
        WasiCtx::with_table(grants, table)
    }

    pub(crate) fn with_table(grants: Grants, table: DescriptorTable) -> Self {
        let interrupt = InterruptCheck::default();
        WasiCtx {
            grants,
            table,
            interrupt,
            monotonic_offset_ns: 0,
            exit_code: None,
            put_off_poll: None,
            suspend_before: None,
        }
    }

    /// A module calls this function, and its guest can be suspended or cannot. Returns whether it is
    /// to be, before the call. Of what a call left that was put off, only the same call is to know.
    pub(crate) fn begin_call(&mut self, function: &str, can_suspend: bool) -> bool {
        self.interrupt.take_put_off();
        if function != "poll_oneoff" {
            self.put_off_poll = None;
        }
        match &mut self.suspend_before {
            Some((awaited, calls)) if can_suspend && awaited == function => match calls {
                0 => {
                    self.suspend_before = None;
                    true
                }
                _ => {
                    *calls -= 1;
                    false
                }
            },
            _ => false,
        }
    }

    /// Has the guest suspended before it calls a function of WASI, once `calls` calls of it have
    /// been made. That is done once; `proc_exit` does not count, nor do calls of guests that were not
    /// called to be [suspended](pagefork::Func::call_suspendable).
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{CallProgress, Engine, Linker, Module, Store};
    /// use pagefork_wasi::WasiCtx;
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
    ///     (memory (export "memory") 1)
    ///     (func (export "_start")
    ///         (drop (call $yield)) (i32.store (i32.const 0) (i32.const 1))
    ///         (drop (call $yield)) (i32.store (i32.const 0) (i32.const 2))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// pagefork_wasi::add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx)?;
    /// let mut ctx = WasiCtx::builder().build()?;
    /// ctx.suspend_before("sched_yield", 1);
    /// let mut store = Store::new(&engine, ctx);
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// let start = instance.get_func(&mut store, "_start").expect("it is exported");
    /// let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    /// assert!(matches!(start.call_suspendable(&mut store, &[])?, CallProgress::Suspended));
    /// assert_eq!(memory.data(&store)[0], 1);
    /// assert!(matches!(store.resume()?, CallProgress::Finished(_)));
    /// assert_eq!(memory.data(&store)[0], 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn suspend_before(&mut self, function: &str, calls: u64) {
        self.suspend_before = Some((function.to_owned(), calls));
    }

    /// What the guest's monotonic clock reads, nanoseconds.
    pub(crate) fn monotonic_ns(&self) -> u64 {
        self.grants.shared.sources.monotonic_ns().wrapping_add(self.monotonic_offset_ns)
    }

    /// Lets the monotonic clock go on from `now_ns`, which is below 2^63.
    pub(crate) fn continue_clock(&mut self, now_ns: u64) {
        self.monotonic_offset_ns = now_ns.wrapping_sub(self.grants.shared.sources.monotonic_ns());
    }

    /// The code with which the guest exited, if it called `proc_exit`. A [`WasiCtx::reset`]
    /// forgets it.
    ///
    /// # Examples
    ///
    /// ```
    /// let mut ctx = pagefork_wasi::WasiCtx::builder().build()?;
    /// assert_eq!(ctx.exit_code(), None);
    /// ctx.proc_exit(3);
    /// assert_eq!(ctx.exit_code(), Some(3));
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn exit_code(&self) -> Option<i32> {
        self.exit_code
    }

    /// Returns to the state at the start: descriptors that the guest opened are closed, and
    /// those that it closed are open again.
    ///
    /// Effects outside the guest stay: changes of files, output, and input already taken from
    /// the process or from an [`InputPipe`](crate::InputPipe). Input from bytes in memory
    /// begins anew.
    ///
    /// # Examples
    ///
    /// ```
    /// let mut ctx = pagefork_wasi::WasiCtx::builder().build()?;
    /// ctx.fd_close(&mut pagefork_wasi::GuestMemory::new(&mut [][..]), 1)?;
    /// assert_eq!(ctx.descriptors().count(), 2);
    /// ctx.reset();
    /// assert_eq!(ctx.descriptors().count(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset(&mut self) {
        self.table = DescriptorTable::new(&self.grants);
        self.exit_code = None;
        self.put_off_poll = None;
        self.suspend_before = None;
    }

    /// Sets a function that is called every 20 milliseconds while the guest waits. Once it
    /// returns `true`, the guest's call fails with [`Errno::Intr`](crate::Errno::Intr). It stays
    /// set over [`WasiCtx::reset`].
    ///
    /// Interrupts and timeouts of the guest's store need no such function: they end its waits
    /// and make it trap. This function is for other reasons of the embedder to end a wait,
    /// after which the guest goes on.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{Errno, GuestMemory, StdinKind, WasiCtx};
    ///
    /// let (_input, stdin) = StdinKind::pipe();
    /// let mut ctx = WasiCtx::builder().stdin(stdin).build()?;
    /// ctx.set_interrupt_check(|| true);
    ///
    /// // An iovec at 0: one byte at 16. Nothing was written into the input.
    /// let mut bytes = [0; 24];
    /// (bytes[0], bytes[4]) = (16, 1);
    /// let read = ctx.fd_read(&mut GuestMemory::new(&mut bytes[..]), 0, 0, 1, 8);
    /// assert_eq!(read, Err(Errno::Intr));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_interrupt_check(&mut self, interrupted: impl Fn() -> bool + Send + Sync + 'static) {
        self.interrupt = InterruptCheck::new(interrupted);
    }

    /// Sets where standard input comes from, from its start, in place of what it was: for a guest
    /// that was suspended because its input was [awaited](StdinKind::Awaited). A stream that the
    /// guest has closed stays closed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{CallProgress, Engine, Linker, Module, Store};
    /// use pagefork_wasi::{StdinKind, WasiCtx};
    ///
    /// let engine = Engine::default();
    /// // Reads one byte to 16, by an iovec at 0, and returns it.
    /// let module = Module::new(&engine, r#"(module
    ///     (import "wasi_snapshot_preview1" "fd_read"
    ///         (func $read (param i32 i32 i32 i32) (result i32)))
    ///     (memory (export "memory") 1)
    ///     (data (i32.const 0) "\10\00\00\00\01")
    ///     (func (export "next") (result i32)
    ///         (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    ///         (i32.load8_u (i32.const 16))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// pagefork_wasi::add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx)?;
    /// let ctx = WasiCtx::builder().stdin(StdinKind::Awaited).build()?;
    /// let mut store = Store::new(&engine, ctx);
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// let next = instance.get_func(&mut store, "next").expect("it is exported");
    /// assert!(matches!(next.call_suspendable(&mut store, &[])?, CallProgress::Suspended));
    ///
    /// store.data_mut().set_stdin(StdinKind::bytes("x"));
    /// let CallProgress::Finished(results) = store.resume()? else { panic!("it has input") };
    /// assert_eq!(results[0].i32(), Some(i32::from(b'x')));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_stdin(&mut self, kind: StdinKind) {
        let filetype = kind.filetype();
        self.grants.stdin = kind;
        self.table.restart_stdin(filetype);
    }

    /// Forgets how long the guest has waited in a `poll_oneoff` before which it is suspended: for
    /// an embedder that does not have the call made again, but
    /// [gives its results](pagefork::Store::resume_with), or
    /// [gives the guest up](pagefork::Store::abandon). Else the next such call with the same
    /// arguments would be taken for this one, and would wait for the rest of its timeouts alone.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use pagefork::{CallProgress, Engine, Linker, Module, Store};
    /// use pagefork_wasi::WasiCtx;
    ///
    /// let engine = Engine::default();
    /// // Waits for 2^40 ns by the clock 1.
    /// let module = Module::new(&engine, r#"(module
    ///     (import "wasi_snapshot_preview1" "poll_oneoff"
    ///         (func $poll (param i32 i32 i32 i32) (result i32)))
    ///     (memory (export "memory") 1)
    ///     (data (i32.const 16) "\01") (data (i32.const 29) "\01")
    ///     (func (export "_start")
    ///         (drop (call $poll (i32.const 0) (i32.const 48) (i32.const 1) (i32.const 80)))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// pagefork_wasi::add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx)?;
    /// let mut store = Store::new(&engine, WasiCtx::builder().build()?);
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// let start = instance.get_func(&mut store, "_start").expect("it is exported");
    ///
    /// let handle = store.interrupt_handle()?;
    /// let (done, stop) = std::sync::mpsc::channel::<()>();
    /// let other_thread = std::thread::spawn(move || {
    ///     while stop.recv_timeout(Duration::from_millis(1)).is_err() {
    ///         handle.suspend();
    ///     }
    /// });
    /// assert!(matches!(start.call_suspendable(&mut store, &[])?, CallProgress::Suspended));
    /// done.send(()).expect("the thread listens");
    /// other_thread.join().expect("it ends");
    ///
    /// assert!(store.data().save()?.waited().is_some());
    /// store.abandon();
    /// store.data_mut().forget_wait();
    /// assert_eq!(store.data().save()?.waited(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forget_wait(&mut self) {
        self.put_off_poll = None;
    }

    /// Every open descriptor, by number, as plain data.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{DescriptorOrigin, WasiCtx};
    ///
    /// let ctx = WasiCtx::builder().build()?;
    /// let (fd, stdin) = ctx.descriptors().next().unwrap();
    /// assert_eq!((fd, &stdin.origin), (0, &DescriptorOrigin::Stdin));
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn descriptors(&self) -> impl Iterator<Item = (u32, &Description)> {
        self.table.iter().map(|(fd, descriptor)| (fd, &descriptor.description))
    }

    /// Opens a descriptor's handle again from its description, in place of the old one.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`](crate::Errno::Badf) if `fd` is not open,
    /// [`Errno::Stale`](crate::Errno::Stale) if the path now leads to a file of another type,
    /// [`Errno::Notrecoverable`](crate::Errno::Notrecoverable) for a connection that the guest
    /// accepted, and the errors of opening the path. Then the old handle stays.
    ///
    /// # Examples
    ///
    /// ```
    /// let mut ctx = pagefork_wasi::WasiCtx::builder().build()?;
    /// ctx.reopen(1)?;
    /// assert_eq!(ctx.reopen(3), Err(pagefork_wasi::Errno::Badf));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reopen(&mut self, fd: u32) -> Result {
        let descriptor = self.table.get_mut(fd)?;
        descriptor.handle = descriptor.description.reopen(&self.grants)?;
        Ok(())
    }

    /// The directories that the guest was given: host path, guest path, permissions. Their
    /// order is that of the index in [`DescriptorOrigin::Preopen`](crate::DescriptorOrigin::Preopen).
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{Permissions, WasiCtx};
    ///
    /// let mut builder = WasiCtx::builder();
    /// let ctx = builder.preopened_dir("/usr", "/data", Permissions::ReadOnly)?.build()?;
    /// let (host_path, guest_path, _) = ctx.preopens().next().unwrap();
    /// assert_eq!((host_path.to_str(), guest_path), (Some("/usr"), "/data"));
    /// # Ok::<(), pagefork_wasi::BuildError>(())
    /// ```
    pub fn preopens(&self) -> impl Iterator<Item = (&Path, &str, Permissions)> {
        self.grants.shared.preopens.iter().map(|preopen| {
            (preopen.host_path.as_path(), preopen.guest_path.as_str(), preopen.permissions)
        })
    }
}
