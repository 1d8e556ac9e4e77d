//! Sockets. None can be passed to a guest yet, so no descriptor is one.

use crate::abi::Errno;
use crate::ctx::WasiCtx;
use crate::guest_memory::GuestMemory;

impl WasiCtx {
    /// `sock_accept`: accepts a connection.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`] if the descriptor is not open, else [`Errno::Notsock`].
    pub fn sock_accept(
        &mut self,
        _memory: &mut GuestMemory<'_>,
        fd: u32,
        _flags: u32,
        _result: u32,
    ) -> Result<(), Errno> {
        self.not_a_socket(fd)
    }

    /// `sock_recv`: receives a message.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::sock_accept`].
    #[allow(clippy::too_many_arguments)]
    pub fn sock_recv(
        &mut self,
        _memory: &mut GuestMemory<'_>,
        fd: u32,
        _iovs: u32,
        _iovs_count: u32,
        _flags: u32,
        _size_result: u32,
        _flags_result: u32,
    ) -> Result<(), Errno> {
        self.not_a_socket(fd)
    }

    /// `sock_send`: sends a message.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::sock_accept`].
    pub fn sock_send(
        &mut self,
        _memory: &mut GuestMemory<'_>,
        fd: u32,
        _iovs: u32,
        _iovs_count: u32,
        _flags: u32,
        _result: u32,
    ) -> Result<(), Errno> {
        self.not_a_socket(fd)
    }

    /// `sock_shutdown`: closes one or both directions.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::sock_accept`].
    pub fn sock_shutdown(
        &mut self,
        _memory: &mut GuestMemory<'_>,
        fd: u32,
        _how: u32,
    ) -> Result<(), Errno> {
        self.not_a_socket(fd)
    }

    fn not_a_socket(&self, fd: u32) -> Result<(), Errno> {
        self.table.get(fd)?;
        Err(Errno::Notsock)
    }
}
