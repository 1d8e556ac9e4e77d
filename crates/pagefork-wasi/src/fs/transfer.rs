//! Reading and writing.
//!
//! Files are read and written at an offset that is kept in the descriptor's
//! description, so the host's own offset is no state.

use std::io::IoSlice;
use std::os::fd::AsFd;

use cap_std::fs::File;
use rustix::event::PollFlags;
use rustix::io::{Errno as Host, ReadWriteFlags, retry_on_intr};

use super::fd::is_host_offset;
use crate::abi::{Errno, FdFlags, Rights};
use crate::ctx::WasiCtx;
use crate::descriptor::Handle;
use crate::guest_memory::{Buffer, GuestMemory};
use crate::sock::{Socket, receive, send};
use crate::stdio::Output;
use crate::waiting::Watch;

impl WasiCtx {
    /// `fd_read`: reads into buffers and writes how many bytes.
    ///
    /// Streams fill one buffer a call, because a second host read could block
    /// though there is data to return.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], also for a directory and for what is not open for
    /// reading (of a write: writing), [`Errno::Notcapable`],
    /// [`Errno::Fault`], [`Errno::Again`] for streams in non-blocking mode,
    /// [`Errno::Intr`] if the guest is to be stopped or the embedder's check asks for it
    /// (see [`WasiCtx::set_interrupt_check`]), and host errors.
    pub fn fd_read(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        iovs: u32,
        iovs_count: u32,
        result: u32,
    ) -> Result<(), Errno> {
        let descriptor = self.table.get_mut(fd)?;
        if descriptor.is_directory() {
            return Err(Errno::Badf);
        }
        descriptor.require(Rights::FD_READ)?;
        let buffers = memory.transfer(iovs, iovs_count, result)?;
        let watch = Watch::new(memory.interruption(), self.interrupt.as_ref());
        let blocking = descriptor.blocking(watch);
        let description = &mut descriptor.description;
        let size = match (&descriptor.handle, buffers.first()) {
            (_, None) => 0,
            (Handle::File(file), Some(_)) => {
                let size = read_at(file, memory, &buffers, description.offset, watch)?;
                description.offset += size as u64;
                size
            }
            (Handle::Stream(file), Some(&first)) => {
                let first = Buffer { size: first.size.min(PART_SIZE), ..first };
                let host = file.as_fd();
                // A FIFO that nobody has opened for writing yet is not at its end.
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
                let (stdin, offset) = (&self.config.stdin, &mut description.offset);
                // Many programs ask for more than there is, and most for an end.
                let most = stdin.at_hand(*offset).map_or(u64::MAX, |size| size.max(1));
                let first = Buffer { size: u64::from(first.size).min(most) as u32, ..first };
                memory.fill(first, |into| stdin.read(into, offset, blocking))?
            }
            (Handle::Stdout | Handle::Stderr | Handle::Directory { .. }, Some(_)) => {
                return Err(Errno::Badf);
            }
        };
        memory.write_size(result, size)
    }

    /// `fd_pread`: reads at an offset, without using or moving the
    /// descriptor's own.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::fd_read`], and [`Errno::Spipe`] for streams.
    pub fn fd_pread(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        iovs: u32,
        iovs_count: u32,
        offset: u64,
        result: u32,
    ) -> Result<(), Errno> {
        let file = self.table.get(fd)?.file_with(Rights::FD_READ | Rights::FD_SEEK)?;
        let buffers = memory.transfer(iovs, iovs_count, result)?;
        let watch = Watch::new(memory.interruption(), self.interrupt.as_ref());
        let size = read_at(file, memory, &buffers, offset, watch)?;
        memory.write_size(result, size)
    }

    /// `fd_write`: writes from buffers and writes how many bytes were taken.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::fd_read`].
    pub fn fd_write(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        iovs: u32,
        iovs_count: u32,
        result: u32,
    ) -> Result<(), Errno> {
        let descriptor = self.table.get_mut(fd)?;
        if descriptor.is_directory() {
            return Err(Errno::Badf);
        }
        descriptor.require(Rights::FD_WRITE)?;
        let buffers = memory.transfer(iovs, iovs_count, result)?;
        let mut slices = memory.io_slices(&buffers)?;
        let watch = Watch::new(memory.interruption(), self.interrupt.as_ref());
        let blocking = descriptor.blocking(watch);
        let description = &mut descriptor.description;
        let size = match &descriptor.handle {
            _ if slices.is_empty() => 0,
            Handle::File(file) => {
                let size = if description.flags.contains(FdFlags::APPEND) {
                    let (size, end) = append(file, &mut slices, watch)?;
                    description.offset = end;
                    size
                } else {
                    let size = write_at(file, &mut slices, description.offset, watch)?;
                    description.offset += size as u64;
                    size
                };
                sync_as_flags_ask(file, description.flags)?;
                size
            }
            Handle::Stream(file) => blocking
                .write_all(file.as_fd(), &mut slices, |slices| rustix::io::writev(file, slices))?,
            Handle::Socket(Socket::Connection(socket)) => {
                send(socket.as_fd(), &mut slices, blocking)?
            }
            Handle::Socket(Socket::Listener(_)) => return Err(Errno::Notconn),
            Handle::Stdout => self.config.stdout.write(Output::Stdout, &mut slices, blocking)?,
            Handle::Stderr => self.config.stderr.write(Output::Stderr, &mut slices, blocking)?,
            Handle::Stdin | Handle::Directory { .. } => return Err(Errno::Badf),
        };
        memory.write_size(result, size)
    }

    /// `fd_pwrite`: writes at an offset, without using or moving the
    /// descriptor's own; at the end if it appends, as on Linux and other
    /// hosts, though not in POSIX.
    ///
    /// # Errors
    ///
    /// As [`WasiCtx::fd_write`], and [`Errno::Spipe`] for streams.
    pub fn fd_pwrite(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        iovs: u32,
        iovs_count: u32,
        offset: u64,
        result: u32,
    ) -> Result<(), Errno> {
        let descriptor = self.table.get(fd)?;
        let file = descriptor.file_with(Rights::FD_WRITE | Rights::FD_SEEK)?;
        let buffers = memory.transfer(iovs, iovs_count, result)?;
        let watch = Watch::new(memory.interruption(), self.interrupt.as_ref());
        let (flags, mut slices) = (descriptor.description.flags, memory.io_slices(&buffers)?);
        let size = if flags.contains(FdFlags::APPEND) {
            append(file, &mut slices, watch)?.0
        } else {
            write_at(file, &mut slices, offset, watch)?
        };
        sync_as_flags_ask(file, flags)?;
        memory.write_size(result, size)
    }
}

/// Size of what is read or written between two looks whether the guest is to be stopped,
/// bytes.
const PART_SIZE: u32 = 16 << 20;

/// Reads into the buffers, one after the other, up to the end of the file. An
/// error after the first bytes is left for the next call to meet again.
fn read_at(
    file: &File,
    memory: &mut GuestMemory<'_>,
    buffers: &[Buffer],
    offset: u64,
    watch: Watch<'_>,
) -> Result<usize, Errno> {
    if !is_host_offset(offset) {
        return Err(Errno::Inval);
    }
    let mut total = 0;
    for buffer in buffers.iter().flat_map(parts) {
        let at = offset.saturating_add(total as u64);
        let read = |into: &mut [u8]| {
            watch.check()?;
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

/// A buffer in parts that are not too large.
fn parts(buffer: &Buffer) -> impl Iterator<Item = Buffer> {
    let Buffer { address, size } = *buffer;
    (0..size)
        .step_by(PART_SIZE as usize)
        .map(move |start| Buffer { address: address + start, size: (size - start).min(PART_SIZE) })
}

fn write_at(
    file: &File,
    slices: &mut [IoSlice<'_>],
    offset: u64,
    watch: Watch<'_>,
) -> Result<usize, Errno> {
    if !is_host_offset(offset) {
        return Err(Errno::Inval);
    }
    write_parts(slices, watch, |slices, total| {
        rustix::io::pwritev(file, slices, offset.saturating_add(total as u64))
    })
}

/// Writes the slices in parts that are not too large, by a call that also gets how much was
/// written before. An error after the first bytes is left for the next call to meet again.
fn write_parts(
    mut slices: &mut [IoSlice<'_>],
    watch: Watch<'_>,
    mut write: impl FnMut(&[IoSlice<'_>], usize) -> rustix::io::Result<usize>,
) -> Result<usize, Errno> {
    let part_size = PART_SIZE as usize;
    let mut total = 0;
    while let Some(first) = slices.first() {
        let mut room = part_size;
        let fits = |slice: &&IoSlice<'_>| {
            let fits = slice.len() <= room;
            room = room.saturating_sub(slice.len());
            fits
        };
        let written = watch.check().and_then(|()| {
            Ok(match slices.iter().take_while(fits).count() {
                0 => retry_on_intr(|| write(&[IoSlice::new(&first[..part_size])], total))?,
                count => retry_on_intr(|| write(&slices[..count], total))?,
            })
        });
        match written {
            Ok(0) => break,
            Ok(size) => {
                total += size;
                IoSlice::advance_slices(&mut slices, size);
            }
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

/// Writes at the end of the file, in one step even if others append to it unless it is more
/// than [`PART_SIZE`], and returns the size written and the offset after it.
///
/// The host's file is not in append mode: whether the guest's is can change.
fn append(
    file: &File,
    slices: &mut [IoSlice<'_>],
    watch: Watch<'_>,
) -> Result<(usize, u64), Errno> {
    // -1: use, and move, the host's own offset. That tells where the end was.
    const HOST_OFFSET: u64 = u64::MAX;
    let flags = ReadWriteFlags::APPEND;
    let size = write_parts(slices, watch, |slices, _| {
        match rustix::io::pwritev2(file, slices, HOST_OFFSET, flags) {
            Err(Host::OPNOTSUPP | Host::NOSYS) => {
                use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
                let mode = fcntl_getfl(file)?;
                fcntl_setfl(file, mode | OFlags::APPEND)?;
                let size = rustix::io::writev(file, slices);
                fcntl_setfl(file, mode)?;
                size
            }
            size => size,
        }
    })?;
    Ok((size, rustix::fs::tell(file)?))
}

fn sync_as_flags_ask(file: &File, flags: FdFlags) -> Result<(), Errno> {
    if flags.contains(FdFlags::SYNC) {
        file.sync_all()?;
    } else if flags.contains(FdFlags::DSYNC) {
        file.sync_data()?;
    }
    Ok(())
}
