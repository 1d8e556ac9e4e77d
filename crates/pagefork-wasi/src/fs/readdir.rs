//! Listing directories.

use cap_std::fs::Dir;
use rustix::fs::{AtFlags, Mode, OFlags as HostFlags};

use crate::abi::{Dirent, Errno, FileType, Rights};
use crate::ctx::WasiCtx;
use crate::descriptor::Handle;
use crate::guest_memory::GuestMemory;
use crate::waiting::Watch;

/// How many names are read between two looks whether the guest is to be stopped.
const ENTRIES_BETWEEN_LOOKS: usize = 1024;

/// The names in a directory at one moment. A cookie is an index into it.
///
/// The host's own cookies will not do: on some file systems they shift when
/// names are removed between two reads, and a guest that removes what it lists
/// would miss some. Here names stay in place until the guest begins anew, and
/// their order is the same on every host.
#[derive(Debug)]
pub(crate) struct Listing {
    /// `.` and `..`, then the rest by name.
    names: Vec<Name>,
}

#[derive(Debug)]
struct Name {
    bytes: Vec<u8>,
    inode: u64,
    filetype: FileType,
}

impl WasiCtx {
    /// `fd_readdir`: writes as many directory entries as fit, from the one
    /// that `cookie` names (0 is the first), and how many bytes that are. The
    /// last may be cut off; only at the end are fewer than `buffer_size` bytes
    /// written.
    ///
    /// # Errors
    ///
    /// [`Errno::Badf`], [`Errno::Notdir`], [`Errno::Notcapable`],
    /// [`Errno::Fault`], [`Errno::Intr`] if the guest is to be stopped, and host
    /// errors.
    pub fn fd_readdir(
        &mut self,
        memory: &mut GuestMemory<'_>,
        fd: u32,
        buffer: u32,
        buffer_size: u32,
        cookie: u64,
        result: u32,
    ) -> Result<(), Errno> {
        let watch = Watch::new(memory.interruption(), self.interrupt.as_ref());
        self.directory(fd, Rights::FD_READDIR)?;
        memory.check(result, 4)?;
        memory.check(buffer, buffer_size as usize)?;
        let Handle::Directory { dir, listing } = &mut self.table.get_mut(fd)?.handle else {
            return Err(Errno::Notdir);
        };
        if cookie == 0 {
            *listing = None;
        }
        let listing = match listing {
            Some(listing) => listing,
            None => listing.insert(Listing::read(dir, watch)?),
        };
        let size = listing.write(cookie, memory.bytes_mut(buffer, buffer_size)?);
        memory.write_size(result, size)
    }
}

impl Listing {
    fn read(dir: &Dir, watch: Watch<'_>) -> Result<Listing, Errno> {
        let own = rustix::fs::fstat(dir)?.st_ino;
        // The parent's number is not the guest's to know: it may be outside.
        let dot =
            |name: &[u8]| Name { bytes: name.to_vec(), inode: own, filetype: FileType::Directory };
        let mut names = vec![dot(b"."), dot(b"..")];
        // A handle of its own: the one there may be for lookup alone (O_PATH),
        // and its position is shared.
        let flags = HostFlags::RDONLY | HostFlags::DIRECTORY | HostFlags::CLOEXEC;
        let readable = rustix::fs::openat(dir, c".", flags, Mode::empty())?;
        for entry in rustix::fs::Dir::new(readable)? {
            if names.len() % ENTRIES_BETWEEN_LOOKS == 0 {
                watch.check()?;
            }
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let filetype = match entry.file_type() {
                rustix::fs::FileType::Unknown => {
                    // Some file systems do not say. A name just removed is
                    // listed all the same, as its removal may come later.
                    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
                    let mode = |stat: rustix::fs::Stat| stat.st_mode;
                    stat.map(mode).map_or(FileType::Unknown, |mode| {
                        rustix::fs::FileType::from_raw_mode(mode).into()
                    })
                }
                known => known.into(),
            };
            names.push(Name { bytes: name.to_bytes().to_vec(), inode: entry.ino(), filetype });
        }
        names[2..].sort_unstable_by(|a, b| a.bytes.cmp(&b.bytes));
        Ok(Listing { names })
    }

    /// Fills a buffer from the name at `cookie`, and returns the size filled.
    fn write(&self, cookie: u64, buffer: &mut [u8]) -> usize {
        let first = usize::try_from(cookie).unwrap_or(usize::MAX);
        let mut filled = 0;
        for (index, name) in self.names.iter().enumerate().skip(first) {
            let head = Dirent {
                next: index as u64 + 1,
                inode: name.inode,
                // A host name has at most 255 bytes.
                name_size: name.bytes.len() as u32,
                filetype: name.filetype,
            };
            for part in [&head.to_bytes()[..], &name.bytes] {
                let size = part.len().min(buffer.len() - filled);
                buffer[filled..filled + size].copy_from_slice(&part[..size]);
                filled += size;
            }
            if filled == buffer.len() {
                break;
            }
        }
        filled
    }
}
