//! The imports by which guests give memory back.

use pagefork_pages::Discarded;

use crate::api::func::Caller;
use crate::api::linker::Linker;
use crate::base::error::{Result, UsageError};

/// What a guest is told that asked for memory to be given back.
const RELEASED: i32 = 0;
const ZEROED: i32 = 1;
const DECLINED: i32 = -1;

impl<T: 'static> Linker<T> {
    /// Defines two functions by which guests say that pages of their exported memory `memory`,
    /// of 32 bits, hold nothing that they need any more:
    ///
    /// - `pagefork` `memory_discard` (address, length) returns 0 if pages were given back and all
    ///   of the range reads zero, 1 if it was only written with zeros, and -1 if nothing was done,
    ///   because it would cost more than it gains: [`Memory::discard`](crate::Memory::discard).
    /// - `env` `__wbindgen_memory_discard` (address, length) has no result, so the range reads
    ///   zero in any case.
    ///
    /// # Errors
    /// If one of the names is defined already, and shadowing not allowed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(
    ///     &engine,
    ///     r#"(module
    ///         (import "pagefork" "memory_discard"
    ///             (func $discard (param i32 i32) (result i32)))
    ///         (memory (export "memory") 256)
    ///         (func (export "give back") (param i32 i32) (result i32)
    ///             (i32.store8 (local.get 0) (i32.const 7))
    ///             (call $discard (local.get 0) (local.get 1))))"#,
    /// )?;
    /// let mut linker = Linker::<()>::new(&engine);
    /// linker.define_memory_discard()?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// let give_back = instance.get_typed_func::<(u32, u32), i32>(&mut store, "give back")?;
    /// assert_eq!(give_back.call(&mut store, (0, 16 << 20))?, 0);
    /// assert_eq!(give_back.call(&mut store, (0, 100))?, -1);
    /// assert!(give_back.call(&mut store, (1 << 20, 16 << 20)).is_err(), "it ends behind the memory");
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn define_memory_discard(&mut self) -> Result<&mut Self> {
        let with_status = |mut caller: Caller<'_, T>, start: u32, length: u32| -> Result<i32> {
            Ok(match discard(&mut caller, start, length)? {
                Some(Discarded::Released) => RELEASED,
                Some(Discarded::Zeroed) => ZEROED,
                None => DECLINED,
            })
        };
        let without = |mut caller: Caller<'_, T>, start: u32, length: u32| -> Result<()> {
            if discard(&mut caller, start, length)?.is_none() {
                clear(&mut caller, start, length)?;
            }
            Ok(())
        };
        self.func_wrap("pagefork", "memory_discard", with_status)?;
        self.func_wrap("env", "__wbindgen_memory_discard", without)
    }
}

fn discard<T>(caller: &mut Caller<'_, T>, start: u32, length: u32) -> Result<Option<Discarded>> {
    memory(caller)?.discard(caller, start.into(), length.into())
}

fn clear<T>(caller: &mut Caller<'_, T>, start: u32, length: u32) -> Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let memory = memory(caller)?;
    let (mut at, end) = (start as usize, start as usize + length as usize);
    while at < end {
        let part = ZEROS.len().min(end - at);
        memory.write(&mut *caller, at, &ZEROS[..part])?;
        at += part;
    }
    Ok(())
}

fn memory<T>(caller: &mut Caller<'_, T>) -> Result<crate::api::memory::Memory> {
    let memory = caller.get_export("memory").and_then(|export| export.into_memory());
    memory.ok_or_else(|| {
        let what = "a guest gives memory back, but exports none as `memory`";
        UsageError::InvalidType(what.to_owned()).into()
    })
}
