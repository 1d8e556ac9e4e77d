//! The names in a directory, as `fd_readdir` gives them to a guest.

use std::time::Instant;

use cap_std::fs::Dir;
use rustix::fs::{AtFlags, Mode, OFlags as HostFlags};

use crate::base::abi::{FileType, dirent};
use crate::base::errno::{Errno, Result};
use crate::base::waiting::StopCheck;
use crate::state::saved::SavedListing;

/// Count of names that are read between two checks of limits.
const NAMES_BETWEEN_CHECKS: usize = 1024;

/// A listing of a directory that a guest has begun to read. A cookie is the index of a name,
/// counted from `first_cookie`.
///
/// The host's own cookies do not serve: on some file systems they shift when names are removed
/// between two reads, so that a guest that removes what it lists would miss some. Here names
/// stay in place until the guest begins anew, and their order is the same on every host.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Empty until they are read, and after they were dropped to save memory.
    names: NameList,
    /// 0, unless names that were read again shifted.
    first_cookie: u64,
    /// The last whole entry that the guest got: its name, and the cookie after it. From there
    /// the guest goes on, also if the names had to be read again.
    resume: Option<(Vec<u8>, u64)>,
    /// When the guest last read from it.
    pub(crate) used: Option<Instant>,
}

impl Listing {
    /// Memory that the names take, bytes.
    pub(crate) fn size(&self) -> usize {
        self.names.size()
    }

    pub(crate) fn is_read(&self) -> bool {
        !self.names.entries.is_empty()
    }

    /// How far the guest has read, unless it is at the start.
    pub(crate) fn save(&self) -> Option<SavedListing> {
        let Listing { first_cookie, resume, .. } = self;
        let is_begun = *first_cookie != 0 || resume.is_some();
        is_begun.then(|| SavedListing { first_cookie: *first_cookie, resume: resume.clone() })
    }

    /// A listing that goes on from there. Its names are read when the guest does.
    pub(crate) fn restore(saved: &SavedListing) -> Listing {
        let SavedListing { first_cookie, resume } = saved.clone();
        Listing { first_cookie, resume, ..Listing::default() }
    }

    /// Forgets the names, but not how far the guest has read.
    pub(crate) fn drop_names(&mut self) {
        self.names = NameList::default();
    }

    /// Takes names that were just read. A name that was there before keeps its cookie if the
    /// guest has not read it yet and no name was added or removed before it.
    pub(crate) fn set_names(&mut self, names: NameList) {
        if let Some((name, cookie)) = &self.resume {
            self.first_cookie = cookie.wrapping_sub(names.count_up_to(name) as u64);
        }
        self.names = names;
    }

    /// Fills a buffer from the name at `cookie`, and returns the size filled.
    pub(crate) fn write(&mut self, cookie: u64, buffer: &mut [u8]) -> usize {
        self.used = Some(Instant::now());
        let first = usize::try_from(cookie.wrapping_sub(self.first_cookie)).unwrap_or(usize::MAX);
        let (mut filled, mut last) = (0, None);
        for (index, entry) in self.names.entries.iter().enumerate().skip(first) {
            let name = self.names.name(entry);
            let next = self.first_cookie.wrapping_add(index as u64 + 1);
            let head = dirent(next, entry.inode, entry.size, entry.filetype).map(u64::to_le_bytes);
            let room = buffer.len() - filled;
            for part in [head.as_flattened(), name] {
                let size = part.len().min(buffer.len() - filled);
                buffer[filled..filled + size].copy_from_slice(&part[..size]);
                filled += size;
            }
            if room < head.as_flattened().len() + name.len() {
                break;
            }
            last = Some((name, next));
        }
        if let Some((name, next)) = last {
            self.resume = Some((name.to_vec(), next));
        }
        filled
    }
}

/// Names of a directory at one moment: `.` and `..`, then the rest in order.
#[derive(Debug, Default)]
pub(crate) struct NameList {
    /// One after the other.
    bytes: Vec<u8>,
    entries: Vec<NameEntry>,
}

#[derive(Debug)]
struct NameEntry {
    start: u32,
    size: u16,
    filetype: FileType,
    inode: u64,
}

impl NameList {
    /// Reads the names. Asks `make_room` from time to time whether they may take a number of
    /// bytes of memory.
    pub(crate) fn read(
        dir: &Dir,
        stop: StopCheck<'_>,
        mut make_room: impl FnMut(usize) -> Result,
    ) -> Result<NameList> {
        let mut names = NameList::default();
        // The parent may lie outside, so the guest does not get its number.
        let own = rustix::fs::fstat(dir)?.st_ino;
        names.push(b".", own, FileType::Directory)?;
        names.push(b"..", own, FileType::Directory)?;
        // `dir` may be a handle for lookup alone (O_PATH), and its position is shared.
        let flags = HostFlags::RDONLY | HostFlags::DIRECTORY | HostFlags::CLOEXEC;
        let readable = rustix::fs::openat(dir, c".", flags, Mode::empty())?;
        for entry in rustix::fs::Dir::new(readable)? {
            if names.entries.len() % NAMES_BETWEEN_CHECKS == 0 {
                stop.check()?;
                make_room(names.size())?;
            }
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let filetype = match entry.file_type() {
                // Some file systems do not tell. A name that was just removed stays in the
                // list, as its removal could have come later.
                rustix::fs::FileType::Unknown => {
                    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
                        .map_or(FileType::Unknown, |stat| FileType::from(&stat))
                }
                known => known.into(),
            };
            names.push(name.to_bytes(), entry.ino(), filetype)?;
        }
        make_room(names.size())?;
        let NameList { bytes, entries } = &mut names;
        let name = |entry: &NameEntry| name_in(bytes, entry);
        entries[2..].sort_unstable_by(|a, b| name(a).cmp(name(b)));
        bytes.shrink_to_fit();
        entries.shrink_to_fit();
        Ok(names)
    }

    fn push(&mut self, name: &[u8], inode: u64, filetype: FileType) -> Result {
        let start = u32::try_from(self.bytes.len()).map_err(|_| Errno::Nomem)?;
        let size = u16::try_from(name.len()).map_err(|_| Errno::Nametoolong)?;
        self.bytes.extend_from_slice(name);
        self.entries.push(NameEntry { start, size, filetype, inode });
        Ok(())
    }

    fn name(&self, entry: &NameEntry) -> &[u8] {
        name_in(&self.bytes, entry)
    }

    /// Count of names up to and with this one, whether it is among them or not.
    fn count_up_to(&self, name: &[u8]) -> usize {
        match name {
            b"." => 1,
            b".." => 2,
            _ => 2 + self.entries[2..].partition_point(|entry| self.name(entry) <= name),
        }
    }

    fn size(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<NameEntry>()
    }
}

fn name_in<'a>(bytes: &'a [u8], entry: &NameEntry) -> &'a [u8] {
    &bytes[entry.start as usize..][..usize::from(entry.size)]
}
