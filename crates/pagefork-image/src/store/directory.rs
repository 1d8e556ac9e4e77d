//! The files of a store: how they are written, named, opened and locked.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::base::bytes::FileBytes;
use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::base::limits::ImageLimits;
use crate::chain::ImageChain;
use crate::file::reader::ImageReader;
use crate::file::signature;

use super::steps::{self, WriteStep};
use super::{StoredCode, StoredImage};

/// Version of the directory's form.
const STORE_VERSION: u32 = 1;

/// Of a file that has a line, no more bytes are read.
const SHORT_MAX: u64 = 256;

/// What a file is, and so where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kind {
    Image,
    Code,
}

impl Kind {
    /// The directory.
    fn directory(self) -> &'static str {
        match self {
            Self::Image => "images",
            Self::Code => "code",
        }
    }

    /// What messages call it.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Code => "code image",
        }
    }
}

/// The directory that a store is.
pub(super) struct Directory {
    path: PathBuf,
    /// When files came that were listed by that: they never change.
    came: Mutex<HashMap<(Kind, ContentHash), SystemTime>>,
}

/// The lock of the whole store, until it is dropped.
///
/// Who opens files to use them holds it shared meanwhile, so that none is removed between the moment
/// when it is found and the moment when it is locked itself. Who names or removes files holds it
/// alone.
pub(super) struct HeldLock {
    _file: File,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Self, ImageError> {
        let path = std::path::absolute(path).map_err(ImageError::of_path("find", path))?;
        let directory = Self { path, came: Mutex::default() };
        directory.make(&directory.path)?;
        for part in ["images", "code", "names", "unfinished"] {
            directory.make(&directory.path.join(part))?;
        }
        directory.check_version()?;
        Ok(directory)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory of the store where there is none.
    pub(super) fn make_part(&self, name: &str) -> Result<(), ImageError> {
        self.make(&self.path.join(name))
    }

    /// Makes a directory where there is none, and checks who may write it.
    fn make(&self, path: &Path) -> Result<(), ImageError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path).map_err(ImageError::of_path("make", path))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let metadata = fs::metadata(path).map_err(ImageError::of_path("look at", path))?;
            if metadata.mode() & 0o022 != 0 {
                let (path, why) = (path.to_owned(), "others may write it: `chmod go-w` it");
                return Err(ImageError::StoreRefused { path, why: why.to_owned() });
            }
        }
        Ok(())
    }

    /// Checks the version, or writes it into a new store, and that the store is this user's.
    fn check_version(&self) -> Result<(), ImageError> {
        let path = self.path.join("version");
        let text = match read_short(&path) {
            Ok(text) => text,
            Err(ImageError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => {
                let text = format!("{STORE_VERSION}\n");
                let mut file = self.begin()?;
                file.append(text.as_bytes())?;
                file.sync()?;
                file.rename(&path)?;
                self.sync_directory(&self.path)?;
                text
            }
            Err(error) => return Err(error),
        };
        match text.trim().parse() {
            Ok(STORE_VERSION) => {}
            Ok(found) => {
                let supported = STORE_VERSION;
                return Err(ImageError::Version { what: "store", found, supported });
            }
            Err(_) => {
                let why = "its file `version` has no number".to_owned();
                return Err(ImageError::StoreRefused { path: self.path.clone(), why });
            }
        }
        self.check_owner()
    }

    /// The store must be this user's or the administrator's.
    #[cfg(unix)]
    fn check_owner(&self) -> Result<(), ImageError> {
        use std::os::unix::fs::MetadataExt;
        let user = rustix::process::geteuid().as_raw();
        for part in ["", "images", "code", "names", "unfinished"] {
            let path = self.path.join(part);
            let metadata = fs::metadata(&path).map_err(ImageError::of_path("look at", &path))?;
            if metadata.uid() != user && metadata.uid() != 0 {
                let why = "it belongs to another user".to_owned();
                return Err(ImageError::StoreRefused { path, why });
            }
        }
        Ok(())
    }

    #[cfg(not(unix))]
    fn check_owner(&self) -> Result<(), ImageError> {
        Ok(())
    }

    pub(super) fn file(&self, kind: Kind, hash: ContentHash) -> PathBuf {
        self.path.join(kind.directory()).join(hash.to_string())
    }

    /// Takes the lock to open files.
    pub(super) fn lock_shared(&self) -> Result<HeldLock, ImageError> {
        self.lock(File::lock_shared)
    }

    /// Takes the lock to name or remove files.
    pub(super) fn lock_alone(&self) -> Result<HeldLock, ImageError> {
        self.lock(File::lock)
    }

    fn lock(&self, lock: fn(&File) -> io::Result<()>) -> Result<HeldLock, ImageError> {
        let path = self.path.join("lock");
        let mut options = OpenOptions::new();
        let file = match options.read(true).append(true).create(true).open(&path) {
            // Where nothing can be written, what is there can be used all the same.
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => open_own(&path)?,
            file => file.map_err(ImageError::of_path("open", &path))?,
        };
        loop {
            match lock(&file) {
                Ok(()) => return Ok(HeldLock { _file: file }),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Without locks nothing is removed either: see `collect`.
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    return Ok(HeldLock { _file: file });
                }
                Err(error) => return Err(ImageError::of_path("lock", &path)(error)),
            }
        }
    }

    /// Opens a file and marks it as in use as long as it is open. The caller holds the store's lock.
    fn open_file(&self, kind: Kind, hash: ContentHash) -> Result<File, ImageError> {
        let path = self.file(kind, hash);
        let file = open_own(&path).map_err(|error| match error {
            ImageError::Io { error, .. } if error.kind() == ErrorKind::NotFound => {
                ImageError::NotFound { what: kind.what(), hash }
            }
            error => error,
        })?;
        mark_used(&file).map_err(ImageError::of_path("lock", &path))?;
        Ok(file)
    }

    /// Opens one image. The caller holds the store's lock.
    pub(super) fn open_image(
        &self,
        hash: ContentHash,
        limits: &ImageLimits,
    ) -> Result<ImageReader, ImageError> {
        let bytes = FileBytes::new(self.open_file(Kind::Image, hash)?);
        let image = ImageReader::open(Box::new(bytes), limits)?;
        match image.hash() == hash {
            true => Ok(image),
            false => Err(ImageError::damaged(format!("the file of image {hash} is another one"))),
        }
    }

    /// Opens an image and its ancestors. The caller holds the store's lock.
    pub(super) fn open_chain(
        &self,
        hash: ContentHash,
        limits: &ImageLimits,
    ) -> Result<StoredImage, ImageError> {
        let (mut images, mut next) = (Vec::new(), Some(hash));
        while let Some(hash) = next {
            let image = self.open_image(hash, limits)?;
            next = image.manifest().parent;
            images.push(Arc::new(image));
            // Longer ones are refused below.
            if images.len() > limits.chain_length {
                break;
            }
        }
        Ok(StoredImage { chain: ImageChain::new(images, limits)? })
    }

    /// Opens a code image. The caller holds the store's lock.
    pub(super) fn open_code(&self, hash: ContentHash) -> Result<StoredCode, ImageError> {
        let file = self.open_file(Kind::Code, hash)?;
        let metadata = file.metadata().map_err(ImageError::io("look at a code image"))?;
        Ok(StoredCode { hash, size: metadata.len(), file: FileBytes::new(file) })
    }

    /// The hashes that are names of files.
    pub(super) fn list(&self, kind: Kind) -> Result<Vec<ContentHash>, ImageError> {
        let path = self.path.join(kind.directory());
        let failed = || ImageError::of_path("list", &path);
        let mut hashes = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            hashes.extend(name.to_str().and_then(|name| name.parse::<ContentHash>().ok()));
        }
        hashes.sort_unstable();
        Ok(hashes)
    }

    /// The hashes that are names of files, those first that came last, `count` at most.
    pub(super) fn list_newest(
        &self,
        kind: Kind,
        count: usize,
    ) -> Result<Vec<ContentHash>, ImageError> {
        let mut hashes = self.list(kind)?;
        let mut known = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(of, hash), _| *of != kind || hashes.binary_search(hash).is_ok());
        hashes.sort_by_cached_key(|hash| {
            let came = known.get(&(kind, *hash)).copied().or_else(|| {
                let metadata = fs::metadata(self.file(kind, *hash)).ok()?;
                let came = metadata.modified().ok()?;
                known.insert((kind, *hash), came);
                Some(came)
            });
            // One that is gone meanwhile comes last.
            Reverse(came)
        });
        hashes.truncate(count);
        Ok(hashes)
    }

    /// Files that are being written, or that a process left behind.
    pub(super) fn list_unfinished(&self) -> Result<Vec<PathBuf>, ImageError> {
        let path = self.path.join("unfinished");
        let failed = || ImageError::of_path("list", &path);
        let entries = fs::read_dir(&path).map_err(failed())?;
        entries.map(|entry| Ok(entry.map_err(failed())?.path())).collect()
    }

    /// Makes an empty file without a name that anybody looks for.
    pub(super) fn begin(&self) -> Result<TempFile, ImageError> {
        // Until the new file is locked, a collection would take it for one left behind.
        let _held = self.lock_shared()?;
        self.begin_held()
    }

    /// The same. The caller holds the store's lock.
    fn begin_held(&self) -> Result<TempFile, ImageError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        loop {
            let name = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
            let path = self.path.join("unfinished").join(name);
            match options.open(&path) {
                Ok(file) => {
                    let file = TempFile { file, path, is_named: false };
                    match file.file.try_lock() {
                        Ok(()) => {}
                        Err(TryLockError::Error(error))
                            if error.kind() == ErrorKind::Unsupported => {}
                        Err(error) => {
                            return Err(ImageError::of_path("lock", &file.path)(error.into()));
                        }
                    }
                    steps::done(WriteStep::Begun).map_err(ImageError::io("begin a file"))?;
                    return Ok(file);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(ImageError::of_path("make", &path)(error)),
            }
        }
    }

    /// Gives an image its name, and opens it.
    pub(super) fn commit_image(
        &self,
        file: TempFile,
        hash: ContentHash,
        parent: Option<ContentHash>,
        limits: &ImageLimits,
    ) -> Result<StoredImage, ImageError> {
        file.seal()?;
        let held = self.lock_alone()?;
        if let Some(parent) = parent.filter(|parent| !self.has(Kind::Image, *parent)) {
            return Err(ImageError::NotFound { what: "parent image", hash: parent });
        }
        self.name(file, Kind::Image, hash, limits)?;
        let image = self.open_chain(hash, limits);
        drop(held);
        self.record(Kind::Image)?;
        image
    }

    /// Gives a code image its name, and opens it.
    pub(super) fn commit_code(
        &self,
        file: TempFile,
        hash: ContentHash,
        limits: &ImageLimits,
    ) -> Result<StoredCode, ImageError> {
        file.seal()?;
        let held = self.lock_alone()?;
        self.name(file, Kind::Code, hash, limits)?;
        let code = self.open_code(hash);
        drop(held);
        self.record(Kind::Code)?;
        code
    }

    /// Whether there is a file for a hash.
    pub(super) fn has(&self, kind: Kind, hash: ContentHash) -> bool {
        fs::symlink_metadata(self.file(kind, hash)).is_ok_and(|metadata| metadata.is_file())
    }

    /// Gives a file that is on the disk its name, unless there is one. The caller holds the
    /// store's lock alone.
    ///
    /// # Errors
    /// [`ImageError::InUse`] if the image is there without one of its signatures, and somebody
    /// uses it.
    pub(super) fn name(
        &self,
        file: TempFile,
        kind: Kind,
        hash: ContentHash,
        limits: &ImageLimits,
    ) -> Result<(), ImageError> {
        let path = self.file(kind, hash);
        let file = match self.has(kind, hash) {
            false => Some(file),
            true if kind == Kind::Image => self.with_more_signatures(file, hash, limits)?,
            true => None,
        };
        let Some(file) = file else { return Ok(()) };
        if self.has(kind, hash) && is_locked(&path)? {
            let why = "a process has it open, so it cannot get the new signatures yet".to_owned();
            return Err(ImageError::InUse { what: kind.what(), hash, why });
        }
        file.rename(&path)?;
        steps::done(WriteStep::Named).map_err(ImageError::io("name a file"))
    }

    /// What is to take the place of an image that is there; `None` if it has all signatures that
    /// the new file of it has.
    fn with_more_signatures(
        &self,
        file: TempFile,
        hash: ContentHash,
        limits: &ImageLimits,
    ) -> Result<Option<TempFile>, ImageError> {
        let open =
            |path: &Path| ImageReader::open(Box::new(FileBytes::new(open_own(path)?)), limits);
        let there = match open(&self.file(Kind::Image, hash)) {
            Ok(there) => there,
            // What cannot be read is mended.
            Err(ImageError::Damaged(_) | ImageError::NotAnImage) => return Ok(Some(file)),
            Err(error) => return Err(error),
        };
        let new = open(&file.path)?;
        if new.signers().iter().all(|key| there.signers().contains(key)) {
            return Ok(None);
        }
        let signatures = signature::union(&there.head()?.1, &new.head()?.1);
        let mut merged = self.begin_held()?;
        new.write_signed(&signatures, &mut merged)?;
        merged.seal()?;
        Ok(Some(merged))
    }

    /// Sees to it that names stay if the machine stops.
    pub(super) fn record(&self, kind: Kind) -> Result<(), ImageError> {
        self.sync_directory(&self.path.join(kind.directory()))?;
        steps::done(WriteStep::Recorded).map_err(ImageError::io("record a name"))
    }

    /// Where directories can be opened, their contents are brought to the disk.
    pub(super) fn sync_directory(&self, path: &Path) -> Result<(), ImageError> {
        #[cfg(unix)]
        File::open(path)
            .and_then(|directory| directory.sync_all())
            .map_err(ImageError::of_path("write the names in", path))?;
        #[cfg(not(unix))]
        let _ = path;
        Ok(())
    }
}

/// Opens a file of a store to read it. What is no file there is refused: pipes would wait for a
/// writer, and links lead to what others may write.
pub(super) fn open_own(path: &Path) -> Result<File, ImageError> {
    let failed = || ImageError::of_path("open", path);
    if !fs::symlink_metadata(path).map_err(failed())?.is_file() {
        let (path, why) = (path.to_owned(), "it is a link, directory, pipe or device: remove it");
        return Err(ImageError::StoreRefused { path, why: why.to_owned() });
    }
    File::open(path).map_err(failed())
}

/// Reads a file of a store that has a line.
pub(super) fn read_short(path: &Path) -> Result<String, ImageError> {
    let mut bytes = Vec::new();
    let read = open_own(path)?.take(SHORT_MAX).read_to_end(&mut bytes);
    read.map_err(ImageError::of_path("read", path))?;
    // What is no text has neither number nor hash.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Locks a file that is used, until it is closed.
fn mark_used(file: &File) -> io::Result<()> {
    loop {
        match file.lock_shared() {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Removes a file, also one that nobody may write.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    allow_removal(path)?;
    fs::remove_file(path)
}

/// Windows keeps files that nobody may write from being removed and replaced.
fn allow_removal(path: &Path) -> io::Result<()> {
    #[cfg(windows)]
    match fs::metadata(path) {
        Ok(metadata) => {
            let mut permissions = metadata.permissions();
            permissions.set_readonly(false);
            fs::set_permissions(path, permissions)?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    #[cfg(not(windows))]
    let _ = path;
    Ok(())
}

/// Whether a process has a file locked. The caller holds the store's lock alone, so that none locks
/// it after that.
pub(super) fn is_locked(path: &Path) -> Result<bool, ImageError> {
    let file = match open_own(path) {
        Ok(file) => file,
        // Who was writing it has removed it.
        Err(ImageError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => {
            return Ok(true);
        }
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(ImageError::of_path("lock", path)(error)),
    }
}

/// A file that is being written. It is removed unless it gets a name.
pub(crate) struct TempFile {
    /// Locked, so that no collection takes it for one that was left behind.
    file: File,
    path: PathBuf,
    is_named: bool,
}

impl TempFile {
    /// Looks whether the process may have a file with so many more bytes: beyond its limit the kernel
    /// would end it by a signal.
    #[cfg(unix)]
    fn check_limit(&mut self, bytes: usize) -> io::Result<()> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        let Some(limit) = limit else { return Ok(()) };
        match self.file.stream_position()?.saturating_add(bytes as u64) <= limit {
            true => Ok(()),
            false => Err(io::Error::new(
                ErrorKind::FileTooLarge,
                format!("a file may have {limit} bytes: raise RLIMIT_FSIZE (`ulimit -f`)"),
            )),
        }
    }

    #[cfg(not(unix))]
    fn check_limit(&mut self, _: usize) -> io::Result<()> {
        Ok(())
    }

    /// The file itself.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Writes where the last bytes ended.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.write_all(bytes).map_err(ImageError::of_path("write", &self.path))
    }

    /// Leaves a hole.
    pub(super) fn skip(&mut self, bytes: u64) -> Result<(), ImageError> {
        let skipped = self.file.seek_relative(bytes as i64);
        skipped.map_err(ImageError::of_path("write", &self.path))
    }

    /// Brings all bytes to the disk.
    pub(super) fn sync(&self) -> Result<(), ImageError> {
        let sync = || {
            self.file.sync_all()?;
            steps::done(WriteStep::Synced)
        };
        sync().map_err(ImageError::of_path("write", &self.path))
    }

    /// The same for what never changes again: nobody may write it any more.
    pub(super) fn seal(&self) -> Result<(), ImageError> {
        let seal = || {
            let mut permissions = self.file.metadata()?.permissions();
            permissions.set_readonly(true);
            self.file.set_permissions(permissions)
        };
        seal().map_err(ImageError::of_path("write", &self.path))?;
        self.sync()
    }

    /// Gives the file, which is on the disk, a name, in place of any that has it.
    pub(super) fn rename(mut self, to: &Path) -> Result<(), ImageError> {
        allow_removal(to).map_err(ImageError::of_path("name", to))?;
        fs::rename(&self.path, to).map_err(ImageError::of_path("name", to))?;
        self.is_named = true;
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.is_named {
            // A collection removes what cannot be removed now.
            let _ = remove_file(&self.path);
        }
    }
}

impl Write for TempFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check_limit(bytes.len())?;
        let count = self.file.write(bytes)?;
        steps::done(WriteStep::Writing)?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Read for TempFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.file.read(into)
    }
}

impl Seek for TempFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
