//! The open descriptors by number, and the limits on them.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::base::abi::{FdFlags, FileType, Rights};
use crate::base::errno::{Errno, Result};
use crate::state::descriptor::{Description, Descriptor, DescriptorOrigin, Handle};
use crate::state::grants::Grants;
use crate::state::socket::Socket;
use crate::state::stdio::OutputStream;

/// Count of numbers that belong to the standard streams.
pub(crate) const STREAMS: usize = 3;

/// Memory that the listings of all directories of one guest may take, bytes.
const LISTINGS_SIZE_MAX: usize = 64 << 20;

/// Descriptors by number.
#[derive(Debug)]
pub(crate) struct DescriptorTable {
    entries: Vec<Option<Descriptor>>,
    /// Numbers that the guest can open are below this.
    count_max: u32,
}

impl DescriptorTable {
    /// The table that a guest finds at its start: standard streams, sockets, directories.
    pub(crate) fn new(grants: &Grants) -> Self {
        let mut entries = Vec::new();
        let mut push = |handle, origin, filetype, base, inheriting| {
            let description =
                Description::new(origin, filetype, FdFlags::empty(), base, inheriting);
            entries.push(Some(Descriptor { description, handle }));
        };
        let none = Rights::empty();
        let rights = Rights::STREAM.difference(Rights::FD_WRITE);
        push(Handle::Stdin, DescriptorOrigin::Stdin, grants.stdin.filetype(), rights, none);
        for (stream, origin) in [
            (OutputStream::Stdout, DescriptorOrigin::Stdout),
            (OutputStream::Stderr, DescriptorOrigin::Stderr),
        ] {
            let filetype = grants.output(stream).filetype(stream);
            let rights = Rights::STREAM.difference(Rights::FD_READ);
            push(Handle::Output(stream), origin, filetype, rights, none);
        }
        for (index, socket) in (0..).zip(&grants.shared.sockets) {
            let (origin, base, inheriting) = match socket {
                Socket::Listener(_) => {
                    (DescriptorOrigin::Listener { index }, Rights::LISTENER, Rights::CONNECTION)
                }
                Socket::Connection(_) => {
                    (DescriptorOrigin::Connection { index }, Rights::CONNECTION, none)
                }
            };
            let handle = Handle::Socket(socket.clone());
            push(handle, origin, FileType::SocketStream, base, inheriting);
        }
        for (index, preopen) in (0..).zip(&grants.shared.preopens) {
            let handle = Handle::directory(Arc::clone(&preopen.dir));
            let origin = DescriptorOrigin::Preopen { index };
            let (base, inheriting) = (Rights::DIRECTORY, Rights::DIRECTORY | Rights::FILE);
            push(handle, origin, FileType::Directory, base, inheriting);
        }
        DescriptorTable { entries, count_max: grants.shared.descriptors_max }
    }

    /// The table of a guest that is restored: its descriptors by number, the numbers of the
    /// standard streams at least.
    pub(crate) fn from_entries(entries: Vec<Option<Descriptor>>, grants: &Grants) -> Self {
        DescriptorTable { entries, count_max: grants.shared.descriptors_max }
    }

    pub(crate) fn get(&self, fd: u32) -> Result<&Descriptor> {
        self.entries.get(fd as usize).and_then(Option::as_ref).ok_or(Errno::Badf)
    }

    pub(crate) fn get_mut(&mut self, fd: u32) -> Result<&mut Descriptor> {
        self.entries.get_mut(fd as usize).and_then(Option::as_mut).ok_or(Errno::Badf)
    }

    /// The lowest free number. Those of the standard streams are never free: a program that
    /// still writes to a stream it has closed would write into another file.
    ///
    /// # Errors
    ///
    /// [`Errno::Mfile`] if the guest has as many descriptors as it may have.
    pub(crate) fn lowest_free(&self) -> Result<u32> {
        let mut others = self.entries.iter().skip(STREAMS);
        let free = others.position(Option::is_none).map(|free| free + STREAMS);
        let free = u32::try_from(free.unwrap_or(self.entries.len())).map_err(|_| Errno::Mfile)?;
        if free < self.count_max { Ok(free) } else { Err(Errno::Mfile) }
    }

    /// Puts a descriptor at the lowest free number, and returns that.
    pub(crate) fn insert(&mut self, descriptor: Descriptor) -> Result<u32> {
        let free = self.lowest_free()?;
        if free as usize == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[free as usize] = Some(descriptor);
        Ok(free)
    }

    pub(crate) fn remove(&mut self, fd: u32) -> Result<Descriptor> {
        self.entries.get_mut(fd as usize).and_then(Option::take).ok_or(Errno::Badf)
    }

    /// Moves `from` to `to`, which must be open too and is closed.
    pub(crate) fn renumber(&mut self, from: u32, to: u32) -> Result {
        self.get(from)?;
        self.get(to)?;
        if from != to {
            self.entries[to as usize] = self.entries[from as usize].take();
        }
        Ok(())
    }

    /// Standard input begins anew, with a stream of this type.
    pub(crate) fn restart_stdin(&mut self, filetype: FileType) {
        let descriptions = self.entries.iter_mut().flatten().map(|entry| &mut entry.description);
        for description in descriptions.filter(|one| one.origin == DescriptorOrigin::Stdin) {
            (description.filetype, description.offset) = (filetype, 0);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Descriptor)> {
        (0..).zip(&self.entries).filter_map(|(fd, entry)| Some((fd, entry.as_ref()?)))
    }

    /// Makes room for a listing of `size` bytes: drops the names of those that were used
    /// longest ago. They are read again when the guest goes on with them.
    ///
    /// # Errors
    ///
    /// [`Errno::Nomem`] if a listing of this size is too large by itself.
    pub(crate) fn make_room(&mut self, size: usize) -> Result {
        let mut room = LISTINGS_SIZE_MAX.checked_sub(size).ok_or(Errno::Nomem)?;
        let handles = self.entries.iter_mut().flatten().map(|descriptor| &mut descriptor.handle);
        let mut listings: Vec<_> = handles
            .filter_map(|handle| match handle {
                Handle::Directory { listing, .. } => Some(listing),
                _ => None,
            })
            .collect();
        listings.sort_unstable_by_key(|listing| Reverse(listing.used));
        for listing in listings {
            match room.checked_sub(listing.size()) {
                Some(rest) => room = rest,
                None => listing.drop_names(),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::ctx::WasiCtx;

    fn table() -> DescriptorTable {
        WasiCtx::builder().descriptors_max(8).build().unwrap().table
    }

    fn descriptor(origin: DescriptorOrigin) -> Descriptor {
        let (filetype, rights) = (FileType::Unknown, Rights::STREAM);
        let flags = FdFlags::empty();
        let description = Description::new(origin, filetype, flags, rights, Rights::empty());
        Descriptor { description, handle: Handle::Stdin }
    }

    #[test]
    fn the_lowest_free_number_is_taken_that_is_no_streams() {
        let mut table = table();
        let insert =
            |table: &mut DescriptorTable| table.insert(descriptor(DescriptorOrigin::Stdin));
        for fd in 3..7 {
            assert_eq!(insert(&mut table), Ok(fd));
        }
        for fd in [1, 4] {
            table.remove(fd).unwrap();
            assert_eq!(table.remove(fd).unwrap_err(), Errno::Badf);
        }
        assert_eq!(insert(&mut table), Ok(4));
        assert_eq!(insert(&mut table), Ok(7));
        assert_eq!(insert(&mut table), Err(Errno::Mfile));
        for fd in [1, 8, u32::MAX] {
            assert_eq!(table.get(fd).unwrap_err(), Errno::Badf);
        }
    }

    #[test]
    fn renumbering_needs_both_and_moves() {
        let mut table = table();
        assert_eq!(table.renumber(0, 3), Err(Errno::Badf));
        assert_eq!(table.renumber(3, 0), Err(Errno::Badf));
        assert_eq!(table.renumber(1, 1), Ok(()));
        assert_eq!(table.renumber(1, 0), Ok(()));
        assert_eq!(table.get(0).unwrap().description.origin, DescriptorOrigin::Stdout);
        assert_eq!(table.get(1).unwrap_err(), Errno::Badf);
    }

    #[test]
    fn a_listing_that_is_too_large_by_itself_gets_no_room() {
        assert_eq!(table().make_room(LISTINGS_SIZE_MAX), Ok(()));
        assert_eq!(table().make_room(LISTINGS_SIZE_MAX + 1), Err(Errno::Nomem));
    }
}
