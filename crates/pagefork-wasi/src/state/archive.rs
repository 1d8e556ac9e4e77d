//! Files of a session in an image: a list of what lies in its directories, and the contents.
//!
//! ```text
//!  attachment  kind  contents
//!  session     1     the list: names, links, times, permissions (postcard, after its version)
//!  /own/a      2     a file, in the order of the list
//!  /own/b/c    2
//! ```
//!
//! Who makes an image chooses the list. So each name in it is one component of a path, and what is
//! made of it is made as [`crate::state::tree`] makes copies: no link is followed.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pagefork::image::ReadAt;
use pagefork::{Result, SaveOptions, Snapshot};
use rustix::fs::{AtFlags, Dir, FileType as HostType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};

use crate::state::builder::WasiCtxBuilder;
use crate::state::saved::WasiState;
use crate::state::session::{OwnDir, copy_path, make_directory};
use crate::state::tree::{
    BUFFER_SIZE, CopyBudget, DEPTH_MAX, SessionError, SessionLimits, host, link_to, open_below,
    open_root, permissions, write_all,
};

/// The form of the list.
const VERSION: u8 = 1;

/// What the attachments are, among those of an image.
const LIST: u32 = 1;
const FILE: u32 = 2;

/// Bytes that a list may have. Read, it takes some sixteen times as much.
const LIST_SIZE_MAX: u64 = 16 << 20;

/// Bytes of all paths in a directory, which are kept until all is packed.
const PATHS_SIZE_MAX: u64 = 48 << 20;

/// The files of a session on their way into an image: what
/// [`WasiCtx::save_with_files`](crate::WasiCtx::save_with_files) has copied.
///
/// # Examples
///
/// ```
/// use pagefork::image::ImageStore;
/// use pagefork::{Engine, Instance, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store};
/// use pagefork_wasi::{ProgramState, SessionArchive, WasiCtx};
///
/// # let host = std::env::temp_dir().join(format!("pagefork-archive-{}", std::process::id()));
/// # std::fs::create_dir_all(host.join("work"))?;
/// std::fs::write(host.join("work/notes"), "before")?;
/// let mut builder = WasiCtx::builder();
/// let ctx = builder.session_dir(host.join("work"), "/work")?.build()?;
/// let engine = Engine::default();
/// let mut store = Store::new(&engine, ());
/// Instance::new(&mut store, &Module::new(&engine, "(module)")?, &[])?;
///
/// let wasi = ctx.save_with_files(host.join("copies"))?;
/// let archive = SessionArchive::pack(&wasi, host.join("copies"))?;
/// let state = ProgramState { wasi, written: Vec::new() };
/// let options = archive.attach(SaveOptions::new().state(state.to_bytes()?));
/// let images = ImageStore::open(host.join("images"))?;
/// let image = store.snapshot()?.save(&images, options)?;
///
/// // Another process has the files copied out before it restores the state.
/// let linker: Linker<()> = Linker::new(&engine);
/// let snapshot = Snapshot::load(&linker, &images, image, LoadOptions::new())?;
/// let state = ProgramState::from_bytes(snapshot.state())?;
/// let mut builder = WasiCtx::builder();
/// builder.session_files_from(&snapshot, &state.wasi, host.join("other copies"), &host)?;
/// let ctx = builder.restore(&state.wasi)?.ctx;
/// let (work, _, _) = ctx.preopens().next().unwrap();
/// assert_eq!(std::fs::read(work.join("notes"))?, b"before");
/// # drop(ctx);
/// # std::fs::remove_dir_all(&host)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SessionArchive {
    list: Vec<u8>,
    /// What the guest calls each, and what it has.
    files: Vec<(String, PackedFile)>,
}

/// What lies in a directory of the session.
#[derive(Debug, Serialize, Deserialize)]
struct SavedTree {
    /// Its place among all directories that the guest was given.
    directory: u32,
    attributes: Attributes,
    /// A directory comes before what lies in it.
    entries: Vec<SavedEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedEntry {
    /// The entry of the directory that it lies in; `None` for the uppermost one.
    parent: Option<u32>,
    name: Vec<u8>,
    contents: EntryContents,
}

#[derive(Debug, Serialize, Deserialize)]
enum EntryContents {
    Directory(Attributes),
    /// The next attachment.
    File(Attributes),
    /// Another name of the file of an entry before.
    SameFile(u32),
    Link(Vec<u8>),
}

/// Permissions and times.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Attributes {
    mode: u32,
    accessed: (i64, u32),
    modified: (i64, u32),
}

impl From<&Stat> for Attributes {
    fn from(stat: &Stat) -> Self {
        Self {
            mode: stat.st_mode & permissions().as_raw_mode(),
            accessed: (stat.st_atime, stat.st_atime_nsec as u32),
            modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
        }
    }
}

impl Attributes {
    fn set(self, of: impl AsFd, all: Mode) -> rustix::io::Result<()> {
        let time = |(tv_sec, nanoseconds)| Timespec { tv_sec, tv_nsec: i64::from(nanoseconds) };
        let (last_access, last_modification) = (time(self.accessed), time(self.modified));
        rustix::fs::futimens(&of, &Timestamps { last_access, last_modification })?;
        rustix::fs::fchmod(&of, Mode::from_raw_mode(self.mode) & all)
    }
}

fn damaged(reason: &'static str) -> SessionError {
    SessionError::Damaged { reason }
}

impl SessionArchive {
    /// Lists what [`WasiCtx::save_with_files`](crate::WasiCtx::save_with_files) has put into
    /// `copies`, of which it returned `state`. The copies have to stay as they are until they are
    /// saved.
    ///
    /// # Errors
    /// [`SessionError`] if the host refuses, or the copies have something that a session has not.
    ///
    /// # Examples
    ///
    /// See [`SessionArchive`].
    pub fn pack(state: &WasiState, copies: impl AsRef<Path>) -> Result<Self, SessionError> {
        let mut files = Vec::new();
        let mut trees = Vec::new();
        for (number, preopen) in state.preopens.iter().enumerate() {
            if preopen.is_session {
                let root = copy_path(copies.as_ref(), number);
                let fd = open_root(&root)?;
                let attributes = rustix::fs::fstat(&fd).map_err(host(&root))?;
                let entries = list_tree(&root, &fd, &preopen.guest_path, &mut files)?;
                let attributes = Attributes::from(&attributes);
                trees.push(SavedTree { directory: number as u32, attributes, entries });
            }
        }
        let list = postcard::to_extend(&trees, vec![VERSION]);
        let list = list.map_err(|_| damaged("it cannot be written"))?;
        if list.len() as u64 > LIST_SIZE_MAX {
            return Err(damaged("it is too long: the session has too many files"));
        }
        Ok(Self { list, files })
    }

    /// Has the files saved with a snapshot.
    ///
    /// # Examples
    ///
    /// See [`SessionArchive`].
    #[must_use]
    pub fn attach<'a>(&'a self, options: SaveOptions<'a>) -> SaveOptions<'a> {
        let options = options.attach("session", LIST, &self.list);
        self.files.iter().fold(options, |options, (name, file)| options.attach(name, FILE, file))
    }
}

impl WasiCtxBuilder {
    /// Takes the directories of a session from an image: copies are made of what the snapshot has
    /// of them, in the new directory `copies`, and they are [`session_files`](Self::session_files)
    /// then. `state` is the snapshot's. If that fails, nothing stays of `copies`, and this builder
    /// is as before.
    ///
    /// # Errors
    /// [`SessionError`] if there are more files than [`session_limits`](Self::session_limits)
    /// allows, if the list of them was altered, or the host refuses;
    /// [`ImageError`](pagefork::image::ImageError) if the image cannot be read.
    ///
    /// # Examples
    ///
    /// See [`SessionArchive`].
    pub fn session_files_from<T: 'static>(
        &mut self,
        snapshot: &Snapshot<T>,
        state: &WasiState,
        copies: impl AsRef<Path>,
        place: impl Into<PathBuf>,
    ) -> Result<&mut Self> {
        unpack(snapshot, state, self.session_limits, copies.as_ref())?;
        Ok(self.session_files(copies.as_ref(), place))
    }
}

/// Makes the new directory `copies` of what a snapshot has of a session's files. Nothing stays of it
/// if that fails.
fn unpack<T: 'static>(
    snapshot: &Snapshot<T>,
    state: &WasiState,
    limits: SessionLimits,
    copies: &Path,
) -> Result<()> {
    let of_kind = |kind| {
        let attachments = snapshot.attachments().iter().enumerate();
        attachments.filter(move |(_, attachment)| attachment.kind == kind)
    };
    let (index, list) = of_kind(LIST).next().ok_or(SessionError::NotInImage)?;
    if list.size > LIST_SIZE_MAX {
        return Err(damaged("it is too long").into());
    }
    let mut bytes = vec![0; list.size as usize];
    snapshot.read_attachment(index, 0, &mut bytes)?;
    let trees = read_list(&bytes)?;
    let own = state.preopens.iter().enumerate().filter(|(_, preopen)| preopen.is_session);
    if !own.map(|(number, _)| number as u32).eq(trees.iter().map(|tree| tree.directory)) {
        return Err(damaged("it is of other directories than the state").into());
    }
    let mut files = of_kind(FILE).map(|(index, file)| (index, file.size));

    make_directory(copies)?;
    let unfinished = OwnDir::made(copies);
    let mut budget = CopyBudget::new(limits);
    for tree in &trees {
        let path = copy_path(copies, tree.directory as usize);
        make_directory(&path)?;
        let root = open_root(&path)?;
        let mut unpacking = Unpacking { root: &root, tree, depths: Vec::new() };
        for index in 0..tree.entries.len() {
            unpacking.make(index, &mut budget, &mut |to, path, budget: &mut CopyBudget| {
                let (index, size) = files.next().ok_or(damaged("files are missing"))?;
                budget.take_bytes(size, path)?;
                copy_out(snapshot, index, size, to, path)
            })?;
        }
        unpacking.finish()?;
    }
    if files.next().is_some() {
        return Err(damaged("it has too few files").into());
    }
    unfinished.keep();
    Ok(())
}

fn read_list(bytes: &[u8]) -> Result<Vec<SavedTree>, SessionError> {
    match bytes {
        [VERSION, list @ ..] => match postcard::take_from_bytes(list) {
            Ok((trees, [])) => Ok(trees),
            _ => Err(damaged("it cannot be read")),
        },
        _ => Err(damaged("it is of another version")),
    }
}

/// Lists what lies below a directory, each directory's in the order of names.
fn list_tree(
    path: &Path,
    root: &OwnedFd,
    guest_path: &str,
    files: &mut Vec<(String, PackedFile)>,
) -> Result<Vec<SavedEntry>, SessionError> {
    let mut entries: Vec<SavedEntry> = Vec::new();
    let mut links: HashMap<(u64, u64), u32> = HashMap::new();
    let mut paths_left = PATHS_SIZE_MAX;
    // Directories whose entries are to be listed: `None` is the root.
    let mut waiting = vec![None];
    while let Some(parent) = waiting.pop() {
        let inner = path_of(&entries, parent);
        let directory = open_below(root.as_fd(), &inner).map_err(host(&inner))?;
        for name in sorted_names(&directory, &inner)? {
            let inner = inner.join(OsStr::from_bytes(name.to_bytes()));
            let stat = rustix::fs::statat(&directory, &*name, AtFlags::SYMLINK_NOFOLLOW);
            let stat = stat.map_err(host(&inner))?;
            let size = inner.as_os_str().len() as u64;
            paths_left = paths_left.checked_sub(size).ok_or(SessionError::Paths)?;
            let index = entries.len() as u32;
            let contents = match HostType::from_raw_mode(stat.st_mode) {
                HostType::Directory => {
                    waiting.push(Some(index));
                    EntryContents::Directory(Attributes::from(&stat))
                }
                HostType::Symlink => {
                    let link = rustix::fs::readlinkat(&directory, &*name, Vec::new());
                    EntryContents::Link(link.map_err(host(&inner))?.into_bytes())
                }
                HostType::RegularFile => {
                    let id = (stat.st_dev, stat.st_ino);
                    match links.get(&id).filter(|_| stat.st_nlink > 1) {
                        Some(first) => EntryContents::SameFile(*first),
                        None => {
                            links.insert(id, index);
                            let size = stat.st_size.cast_unsigned();
                            let name = format!("{guest_path}/{}", inner.display());
                            let root = path.to_owned();
                            let open = Mutex::new(None);
                            files.push((name, PackedFile { root, path: inner, size, open }));
                            EntryContents::File(Attributes::from(&stat))
                        }
                    }
                }
                _ => return Err(SessionError::Special { path: inner }),
            };
            entries.push(SavedEntry { parent, name: name.into_bytes(), contents });
        }
    }
    Ok(entries)
}

fn sorted_names(directory: &OwnedFd, path: &Path) -> Result<Vec<CString>, SessionError> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(host(path))? {
        let entry = entry.map_err(host(path))?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The path of an entry below the uppermost directory. Entries before it were checked.
fn path_of(entries: &[SavedEntry], mut entry: Option<u32>) -> PathBuf {
    let mut names = Vec::new();
    while let Some(index) = entry {
        let SavedEntry { parent, name, .. } = &entries[index as usize];
        names.push(OsStr::from_bytes(name));
        entry = *parent;
    }
    names.iter().rev().collect()
}

/// A file of a copy. It is open from when its first byte is read until its last one is, since there
/// may be more of them than a process can have open.
#[derive(Debug)]
struct PackedFile {
    root: PathBuf,
    path: PathBuf,
    size: u64,
    open: Mutex<Option<OwnedFd>>,
}

impl PackedFile {
    fn open(&self) -> Result<OwnedFd, SessionError> {
        let root = open_root(&self.root)?;
        let parent = open_below(root.as_fd(), self.path.parent().unwrap_or(Path::new("")));
        let open = parent.and_then(|parent| {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let name = self.path.file_name().unwrap_or_default();
            retry_on_intr(|| rustix::fs::openat(&parent, name, flags, Mode::empty()))
        });
        open.map_err(host(&self.path))
    }
}

impl ReadAt for PackedFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match open.take() {
            Some(file) => file,
            None => self.open().map_err(io::Error::other)?,
        };
        let mut filled = 0;
        while filled < into.len() {
            let rest = &mut into[filled..];
            match retry_on_intr(|| rustix::io::pread(&file, &mut *rest, offset + filled as u64))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        if offset + (filled as u64) < self.size {
            *open = Some(file);
        }
        Ok(())
    }
}

/// A directory that is made again from a list.
struct Unpacking<'a> {
    root: &'a OwnedFd,
    tree: &'a SavedTree,
    /// Of each entry so far that is a directory, how deep it lies.
    depths: Vec<Option<usize>>,
}

/// Fills an empty file with what the image has for it.
type FillFile<'a> = dyn FnMut(&OwnedFd, &Path, &mut CopyBudget) -> Result<()> + 'a;

impl Unpacking<'_> {
    /// Makes an entry. All before it were made.
    fn make(
        &mut self,
        index: usize,
        budget: &mut CopyBudget,
        fill: &mut FillFile<'_>,
    ) -> Result<()> {
        let entries = &self.tree.entries;
        let SavedEntry { parent, name, contents } = &entries[index];
        let is_name = !matches!(&name[..], b"" | b"." | b"..")
            && !name.iter().any(|byte| matches!(byte, b'/' | 0));
        if !is_name {
            return Err(damaged("a name is none that a file can have").into());
        }
        let depth = match parent {
            None => Some(0),
            Some(parent) => self.depths.get(*parent as usize).copied().flatten(),
        };
        let depth = depth.ok_or(damaged("a file lies in no directory"))? + 1;
        if depth > DEPTH_MAX {
            return Err(SessionError::TooDeep.into());
        }
        let path = path_of(entries, Some(index as u32));
        let failed = host(&path);
        budget.take_file(&path)?;
        let above = path.parent().unwrap_or(Path::new(""));
        let above = open_below(self.root.as_fd(), above).map_err(&failed)?;
        let name = OsStr::from_bytes(name);
        let mut own_depth = None;
        match contents {
            EntryContents::Directory(_) => {
                rustix::fs::mkdirat(&above, name, Mode::RWXU).map_err(&failed)?;
                own_depth = Some(depth);
            }
            EntryContents::Link(target) => {
                let made = rustix::fs::symlinkat(OsStr::from_bytes(target), &above, name);
                made.map_err(&failed)?;
            }
            EntryContents::SameFile(first) => {
                let is_file = entries[..index]
                    .get(*first as usize)
                    .is_some_and(|first| matches!(first.contents, EntryContents::File(_)));
                if !is_file {
                    return Err(damaged("a name is of no file").into());
                }
                let first = path_of(entries, Some(*first));
                link_to(self.root.as_fd(), &first, above.as_fd(), name).map_err(&failed)?;
            }
            EntryContents::File(attributes) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let mode = Mode::RUSR | Mode::WUSR;
                let file = retry_on_intr(|| rustix::fs::openat(&above, name, flags, mode));
                let file = file.map_err(&failed)?;
                fill(&file, &path, budget)?;
                attributes.set(&file, permissions()).map_err(&failed)?;
            }
        }
        self.depths.push(own_depth);
        Ok(())
    }

    /// Sets what belongs to directories: writing into one changes its time, and may need a
    /// permission that it lacks.
    fn finish(self) -> Result<(), SessionError> {
        let entries = &self.tree.entries;
        for (index, entry) in entries.iter().enumerate().rev() {
            if let EntryContents::Directory(attributes) = entry.contents {
                let path = path_of(entries, Some(index as u32));
                let directory = open_below(self.root.as_fd(), &path);
                let set = directory.and_then(|directory| attributes.set(directory, permissions()));
                set.map_err(host(&path))?;
            }
        }
        // Only this user's processes reach the copy.
        self.tree.attributes.set(self.root, Mode::RWXU).map_err(host(Path::new(".")))
    }
}

/// Writes an attachment into an empty file. Zeros become holes.
fn copy_out<T: 'static>(
    snapshot: &Snapshot<T>,
    index: usize,
    size: u64,
    to: &OwnedFd,
    path: &Path,
) -> Result<()> {
    rustix::fs::ftruncate(to, size).map_err(host(path))?;
    let mut buffer = vec![0; (BUFFER_SIZE as u64).min(size) as usize];
    let mut at = 0;
    while at < size {
        let part = (buffer.len() as u64).min(size - at) as usize;
        let part = &mut buffer[..part];
        snapshot.read_attachment(index, at, part)?;
        if part.iter().any(|byte| *byte != 0) {
            write_all(to.as_fd(), part, at).map_err(host(path))?;
        }
        at += part.len() as u64;
    }
    Ok(())
}
