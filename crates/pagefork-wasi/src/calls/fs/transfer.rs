//! Reading and writing.
//!
//! Files are read and written at the offset that stands in the descriptor's description, so
//! that the host's own offset is not part of the state.

use std::io::IoSlice;
use std::os::fd::AsFd;

use cap_std::fs::File;
use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno as Host, ReadWriteFlags, retry_on_intr};

use super::check_offset;
use crate::base::abi::{FdFlags, Rights};
use crate::base::errno::{Errno, Result};
use crate::base::guest_memory::{Buffer, GuestMemory};
use crate::base::waiting::{PART_SIZE, StopCheck, write_parts};
use crate::state::ctx::WasiCtx;
use crate::state::descriptor::{Description, Handle};
use crate::state::inherited::HOST_OFFSET;
use crate::state::socket::{Socket, receive, send};

impl WasiCtx {
    /// `fd_read`: reads into buffers and writes the number of bytes read.
    ///
    /// A call on a stream fills one buffer, because a second host read could block although
    /// there is data to return.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], also for a directory and for a file that is not open for reading (for
    /// a write: writing), [`Errno::Notcapable`], [`Errno::Fault`], [`Errno::Again`] for streams
    /// in non-blocking mode, [`Errno::Intr`] if the guest must stop or the embedder's check
    /// asks for it (see [`WasiCtx::set_interrupt_check`]), and host errors.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_seek`].
    pub fn fd_read(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        iovs: u32,
        iovs_count: u32,
        result: u32,
    ) -> Result {
        let descriptor = self.table.get_mut(fd)?;
        if descriptor.is_directory() {
            return Err(Errno::Badf);
        }
        descriptor.require(Rights::FD_READ)?;
        let buffers = memory.transfer(iovs, iovs_count, result)?;
        let stop = self.interrupt.and(memory.stops());
        let blocking = descriptor.blocking(stop);
        let description = &mut descriptor.description;
        let size = match (&descriptor.handle, buffers.first()) {
            (_, None) => 0,
            (Handle::File(file), Some(_)) => {
                let size = read_at(file, memory, &buffers, description.offset, stop)?;
                description.offset += size as u64;
                size
            }
            (Handle::Stream(file), Some(&first)) => {
                let first = Buffer { size: first.size.min(PART_SIZE as u32), ..first };
                let host = file.as_fd();
                // A FIFO is not at its end before a writer has opened it.
                blocking.wait_for(host, PollFlags::IN)?;
                memory.fill(first, |into| {
                    blocking.until_ready(host, PollFlags::IN, || rustix::io::read(host, &mut *into))
                })?
            }
            (Handle::Socket(Socket::Connection(socket)), Some(_)) => {
                receive(socket.as_fd(), memory, &buffers, false, blocking)?
            }
            (Handle::Socket(Socket::Listener(_)), Some(_)) => return Err(Errno::Notconn),
            (Handle::Stdin, Some(&first)) => {
                let (stdin, offset) = (&self.grants.stdin, &mut description.offset);
                // Many programs ask for more than there is, and a small buffer is cheaper.
                let most = stdin.available(*offset).map_or(PART_SIZE as u64, |size| size.max(1));
                let first = Buffer { size: u64::from(first.size).min(most) as u32, ..first };
                memory.fill(first, |into| stdin.read(into, offset, blocking))?
            }
            (Handle::Output(_) | Handle::Directory { .. }, Some(_)) => {
                return Err(Errno::Badf);
            }
        };
        memory.write_size(result, size)
    }

    /// `fd_pread`: reads at an offset, and does not use or move that of the descriptor.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::fd_read`], and [`Errno::Spipe`] for streams.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_seek`].
    pub fn fd_pread(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        iovs: u32,
        iovs_count: u32,
        offset: u64,
        result: u32,
    ) -> Result {
        let file = self.table.get(fd)?.file_with(Rights::FD_READ | Rights::FD_SEEK)?;
        let buffers = memory.transfer(iovs, iovs_count, result)?;
        let stop = self.interrupt.and(memory.stops());
        let size = read_at(file, memory, &buffers, offset, stop)?;
        memory.write_size(result, size)
    }

    /// `fd_write`: writes from buffers, and writes the number of bytes taken.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::fd_read`].
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_seek`].
    pub fn fd_write(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        iovs: u32,
        iovs_count: u32,
        result: u32,
    ) -> Result {
        let descriptor = self.table.get_mut(fd)?;
        if descriptor.is_directory() {
            return Err(Errno::Badf);
        }
        descriptor.require(Rights::FD_WRITE)?;
        let buffers = memory.transfer(iovs, iovs_count, result)?;
        let mut slices = memory.io_slices(&buffers)?;
        let stop = self.interrupt.and(memory.stops());
        let blocking = descriptor.blocking(stop);
        let description = &mut descriptor.description;
        let size = match &descriptor.handle {
            _ if slices.is_empty() => 0,
            Handle::File(file) => {
                let Description { flags, offset, .. } = description;
                write_file(file, *flags, &mut slices, offset, stop)?
            }
            Handle::Stream(file) => blocking
                .write_all(file.as_fd(), &mut slices, |slices| rustix::io::writev(file, slices))?,
            Handle::Socket(Socket::Connection(socket)) => {
                send(socket.as_fd(), &mut slices, blocking)?
            }
            Handle::Socket(Socket::Listener(_)) => return Err(Errno::Notconn),
            Handle::Output(stream) => {
                self.grants.output(*stream).write(*stream, &mut slices, blocking)?
            }
            Handle::Stdin | Handle::Directory { .. } => return Err(Errno::Badf),
        };
        memory.write_size(result, size)
    }

    /// `fd_pwrite`: writes at an offset, and does not use or move that of the descriptor. A
    /// descriptor that appends writes at the end, as on Linux, though not in POSIX.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::fd_write`], and [`Errno::Spipe`] for streams.
    ///
    /// # Examples
    ///
    /// See [`WasiCtx::fd_seek`].
    pub fn fd_pwrite(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        iovs: u32,
        iovs_count: u32,
        offset: u64,
        result: u32,
    ) -> Result {
        let descriptor = self.table.get(fd)?;
        let file = descriptor.file_with(Rights::FD_WRITE | Rights::FD_SEEK)?;
        let buffers = memory.transfer(iovs, iovs_count, result)?;
        let stop = self.interrupt.and(memory.stops());
        let (flags, mut slices) = (descriptor.description.flags, memory.io_slices(&buffers)?);
        let size = write_file(file, flags, &mut slices, &mut { offset }, stop)?;
        memory.write_size(result, size)
    }
}

/// Reads into the buffers, one after the other, up to the end of the file. An error after the
/// first bytes is not reported: the next call finds it again.
fn read_at(
    file: &File,
    memory: &mut GuestMemory<'_>,
    buffers: &[Buffer],
    offset: u64,
    stop: StopCheck<'_>,
) -> Result<usize> {
    check_offset(offset)?;
    let mut total = 0;
    for buffer in buffers.iter().flat_map(parts) {
        let at = offset.saturating_add(total as u64);
        let read = |into: &mut [u8]| {
            stop.check()?;
            Ok(retry_on_intr(|| rustix::io::pread(file, &mut *into, at))?)
        };
        match memory.fill(buffer, read) {
            Ok(size) => {
                total += size;
                if size < buffer.size as usize {
                    break;
                }
            }
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

/// A buffer in parts of at most [`PART_SIZE`].
fn parts(buffer: &Buffer) -> impl Iterator<Item = Buffer> {
    const SIZE: u32 = PART_SIZE as u32;
    let Buffer { address, size } = *buffer;
    (0..size)
        .step_by(PART_SIZE)
        .map(move |start| Buffer { address: address + start, size: (size - start).min(SIZE) })
}

/// Writes at `offset`, or at the end with [`FdFlags::APPEND`], and moves `offset` behind it.
fn write_file(
    file: &File,
    flags: FdFlags,
    slices: &mut [IoSlice<'_>],
    offset: &mut u64,
    stop: StopCheck<'_>,
) -> Result<usize> {
    let size;
    if flags.contains(FdFlags::APPEND) {
        (size, *offset) = append(file, slices, stop)?;
    } else {
        check_offset(*offset)?;
        size = write_parts(slices, |part, total| {
            stop.check()?;
            let at = offset.saturating_add(total as u64);
            Ok(retry_on_intr(|| rustix::io::pwritev(file, part, at))?)
        })?;
        *offset += size as u64;
    }
    if flags.contains(FdFlags::SYNC) {
        file.sync_all()?;
    } else if flags.contains(FdFlags::DSYNC) {
        file.sync_data()?;
    }
    Ok(size)
}

/// Writes at the end of the file, and returns the size written and the offset after it. Each
/// part is appended in one step, even if other processes append to the file.
///
/// The host's file is not in append mode, because the guest can change the mode of its own.
fn append(file: &File, slices: &mut [IoSlice<'_>], stop: StopCheck<'_>) -> Result<(usize, u64)> {
    let append_part = |part: &[IoSlice<'_>]| {
        // The host's own offset then tells where the end was.
        match rustix::io::pwritev2(file, part, HOST_OFFSET, ReadWriteFlags::APPEND) {
            Err(Host::OPNOTSUPP | Host::NOSYS) => {
                let mode = fcntl_getfl(file)?;
                fcntl_setfl(file, mode | OFlags::APPEND)?;
                let size = rustix::io::writev(file, part);
                fcntl_setfl(file, mode)?;
                size
            }
            size => size,
        }
    };
    let size = write_parts(slices, |part, _| {
        stop.check()?;
        Ok(retry_on_intr(|| append_part(part))?)
    })?;
    Ok((size, rustix::fs::tell(file)?))
}
