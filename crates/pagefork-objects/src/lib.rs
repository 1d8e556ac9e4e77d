//! Images in an object store, by the same hashes and names as in a directory.
//!
//! ```text
//!   images/HASH         image files
//!   code/HASH           code images
//!   names/NAME          the hash of an image
//!   leases/HASH.ID      somebody uses this image, until some time after the object was written
//!   condemned/HASH      a collection found an image (or code) that nothing leads to
//!   clock/ID            written to learn the service's time, and removed
//! ```
//!
//! An object store has no locks, so what is in use is said by *leases*, objects that count for a
//! time, and collection goes in two steps that lie a while apart: what nothing leads to is
//! *condemned* first, and removed by a collection at least [`ObjectSettings::grace`] later, if still
//! nothing leads to it. Who begins to use an image leases it first and looks for the mark then: a
//! mark that is older than half of that time counts as removed, so the image is either
//! refused or the lease is seen in time. All times are the service's.

#![forbid(unsafe_code)]

/// Removing what nothing leads to.
mod collect;
/// Object stores by their URLs.
mod url;
/// Objects, one by one.
mod objects;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use object_store::ObjectStore;
use pagefork_image::{
    CollectReport, ContentHash, ImageChain, ImageError, ImageLimits, ImageReader, ImageRepository,
    ReadAt, check_name, read_code,
};

use crate::objects::Objects;

pub use crate::url::ObjectUrl;
pub use object_store;

/// Times that all users of an object store have to agree on.
///
/// # Examples
///
/// ```
/// use pagefork_objects::ObjectSettings;
///
/// let settings = ObjectSettings::default();
/// assert!(settings.lease > settings.grace);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectSettings {
    /// How long a lease counts. It is renewed when the image is read after half of that time; who
    /// reads nothing for longer can lose the image. A day by default.
    pub lease: Duration,
    /// How long an object stays that nothing leads to, at least, and how far apart the steps of a
    /// collection are. It has to be longer than any request to the service takes. An hour by default.
    pub grace: Duration,
    /// How long an answer of the service is waited for: 60 s by default. Parts of large objects, 8 MiB,
    /// have to be written within it. An upload that fails is taken back, which is waited for as long once
    /// more.
    pub timeout: Duration,
    /// What images may have.
    pub limits: ImageLimits,
}

impl Default for ObjectSettings {
    fn default() -> Self {
        let (lease, grace) = (Duration::from_secs(24 * 3600), Duration::from_secs(3600));
        let timeout = Duration::from_secs(60);
        Self { lease, grace, timeout, limits: ImageLimits::default() }
    }
}

/// Images in an object store. Its functions wait for the service, and may be called anywhere but in
/// code that must not wait.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use pagefork_image::*;
/// use pagefork_objects::object_store::memory::InMemory;
/// use pagefork_objects::{ObjectImages, ObjectSettings};
///
/// # let path = std::env::temp_dir().join(format!("pagefork-objects-{}", std::process::id()));
/// let local = ImageStore::open(&path)?;
/// let image = local.save(ImageDraft::new(Manifest::default(), &PageRuns::default()))?;
///
/// let remote = ObjectImages::new(Arc::new(InMemory::new()), ObjectSettings::default())?;
/// copy_image(&local, &remote, image.hash())?;
/// remote.set_name("empty", image.hash())?;
/// assert_eq!(remote.open_chain(image.hash())?.tip().hash(), image.hash());
/// # std::fs::remove_dir_all(path).unwrap();
/// # Ok::<(), ImageError>(())
/// ```
#[derive(Clone)]
pub struct ObjectImages {
    objects: Arc<Objects>,
    settings: ObjectSettings,
}

/// What an object is, and so where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ObjectKind {
    Image,
    Code,
}

impl ObjectKind {
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Image => "images",
            Self::Code => "code",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Code => "code image",
        }
    }

    pub(crate) fn key(self, hash: ContentHash) -> String {
        format!("{}/{hash}", self.folder())
    }

    /// Where it is said that nothing led to it.
    pub(crate) fn mark(self, hash: ContentHash) -> String {
        format!("condemned/{}/{hash}", self.folder())
    }
}

impl ObjectImages {
    /// The images in `store`, which has nothing else; to share one, put a
    /// [`PrefixStore`](object_store::prefix::PrefixStore) around it.
    ///
    /// # Errors
    /// [`ImageError::Io`] if the system refuses threads.
    pub fn new(store: Arc<dyn ObjectStore>, settings: ObjectSettings) -> Result<Self, ImageError> {
        Ok(Self { objects: Arc::new(Objects::new(store, settings.timeout)?), settings })
    }

    /// Says that an image or code image is used, and sees to it that no collection has it removed.
    ///
    /// # Errors
    /// [`ImageError::NotFound`] if it is not there; [`ImageError::InUse`] if it is being collected.
    fn claim(&self, kind: ObjectKind, hash: ContentHash) -> Result<Arc<Lease>, ImageError> {
        let lease = Arc::new(Lease {
            objects: Arc::clone(&self.objects),
            key: format!("leases/{}/{hash}.{}", kind.folder(), self.objects.new_id()),
            renew_after: self.settings.lease / 2,
            written: Mutex::new(Instant::now()),
        });
        self.objects.put(&lease.key, Vec::new())?;
        let now = self.objects.head(&lease.key)?.map_or(i64::MAX, |object| object.written);
        self.check_mark(kind, hash, now)?;
        match self.objects.head(&kind.key(hash))? {
            Some(_) => Ok(lease),
            None => Err(ImageError::NotFound { what: kind.what(), hash }),
        }
    }

    /// # Errors
    /// [`ImageError::InUse`] if the mark of a collection is so old that the object may be removed at
    /// any moment.
    fn check_mark(&self, kind: ObjectKind, hash: ContentHash, now: i64) -> Result<(), ImageError> {
        let Some(mark) = self.objects.head(&kind.mark(hash))? else { return Ok(()) };
        if now - mark.written < (self.settings.grace / 2).as_millis() as i64 {
            return Ok(());
        }
        let why = "a collection is about to remove it; put it in again later".to_owned();
        Err(ImageError::InUse { what: kind.what(), hash, why })
    }

    /// Opens one image with a lease.
    fn open(&self, hash: ContentHash) -> Result<ImageReader, ImageError> {
        let bytes = self.open_bytes(ObjectKind::Image, hash)?;
        let image = ImageReader::open(Box::new(bytes), &self.settings.limits)?;
        match image.hash() == hash {
            true => Ok(image),
            false => Err(ImageError::Damaged(format!("the object of image {hash} is another one"))),
        }
    }

    fn open_bytes(&self, kind: ObjectKind, hash: ContentHash) -> Result<ObjectBytes, ImageError> {
        let lease = self.claim(kind, hash)?;
        let missing = ImageError::NotFound { what: kind.what(), hash };
        let size = self.objects.head(&kind.key(hash))?.ok_or(missing)?.size;
        Ok(ObjectBytes { lease: Some(lease), ..ObjectBytes::unleased(self, kind, hash, size) })
    }

    /// Whether an object has to be written.
    fn is_missing(&self, kind: ObjectKind, hash: ContentHash) -> Result<bool, ImageError> {
        match self.claim(kind, hash) {
            Ok(_) => Ok(false),
            Err(ImageError::NotFound { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl ImageRepository for ObjectImages {
    fn images(&self) -> Result<Vec<ContentHash>, ImageError> {
        let found = self.objects.list("images")?;
        let mut hashes: Vec<_> =
            found.iter().filter_map(|object| object.name.parse().ok()).collect();
        hashes.sort_unstable();
        Ok(hashes)
    }

    fn open_chain(&self, hash: ContentHash) -> Result<ImageChain, ImageError> {
        let (mut images, mut next) = (Vec::new(), Some(hash));
        while let Some(hash) = next {
            let image = self.open(hash)?;
            next = image.manifest().parent;
            images.push(Arc::new(image));
            // Longer ones are refused below.
            if images.len() > self.settings.limits.chain_length {
                break;
            }
        }
        ImageChain::new(images, &self.settings.limits)
    }

    fn put_image(&self, image: &ImageReader) -> Result<(), ImageError> {
        let hash = image.hash();
        // The parent is leased until its child is there.
        let _parent = match image.manifest().parent {
            Some(parent) => Some(self.claim(ObjectKind::Image, parent)?),
            None => None,
        };
        if !self.is_missing(ObjectKind::Image, hash)? {
            return Ok(());
        }
        self.objects.put_parts(&ObjectKind::Image.key(hash), &mut image.parts())
    }

    fn open_code(&self, hash: ContentHash) -> Result<Box<dyn ReadAt>, ImageError> {
        Ok(Box::new(self.open_bytes(ObjectKind::Code, hash)?))
    }

    fn put_code(&self, hash: ContentHash, bytes: &dyn ReadAt) -> Result<(), ImageError> {
        if !self.is_missing(ObjectKind::Code, hash)? {
            return Ok(());
        }
        let mut code = Vec::new();
        read_code(hash, bytes, |part| {
            code.extend_from_slice(part);
            Ok(())
        })?;
        self.objects.put(&ObjectKind::Code.key(hash), code)
    }

    fn names(&self) -> Result<BTreeMap<String, ContentHash>, ImageError> {
        let mut names = BTreeMap::new();
        for object in self.objects.list("names")? {
            // It may have been removed meanwhile.
            let Some(text) = self.objects.get(&format!("names/{}", object.name))? else { continue };
            let hash =
                std::str::from_utf8(&text).ok().and_then(|text| text.trim_end().parse().ok());
            let wrong = || ImageError::Damaged(format!("the name {:?} has no hash", object.name));
            names.insert(object.name.clone(), hash.ok_or_else(wrong)?);
        }
        Ok(names)
    }

    fn set_name(&self, name: &str, hash: ContentHash) -> Result<(), ImageError> {
        check_name(name)?;
        let _lease = self.claim(ObjectKind::Image, hash)?;
        self.objects.put(&format!("names/{name}"), format!("{hash}\n").into_bytes())
    }

    fn remove_name(&self, name: &str) -> Result<bool, ImageError> {
        check_name(name)?;
        let key = format!("names/{name}");
        let was_there = self.objects.head(&key)?.is_some();
        self.objects.delete(&key)?;
        Ok(was_there)
    }

    fn collect(&self) -> Result<CollectReport, ImageError> {
        self.collect_unused()
    }
}

/// That somebody uses an object, said to all others for a time. It ends when this is dropped.
struct Lease {
    objects: Arc<Objects>,
    key: String,
    /// Time after which it is to be written again.
    renew_after: Duration,
    /// When it was begun to be written last.
    written: Mutex<Instant>,
}

impl Lease {
    /// Writes it again if it has not got long.
    fn renew(&self) -> Result<(), ImageError> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now - *written >= self.renew_after {
            self.objects.put(&self.key, Vec::new())?;
            *written = now;
        }
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // One that stays ends with its time.
        let _ = self.objects.delete(&self.key);
    }
}

/// An object as bytes, leased.
struct ObjectBytes {
    objects: Arc<Objects>,
    key: String,
    size: u64,
    /// `None` for a collection, which uses nothing.
    lease: Option<Arc<Lease>>,
}

impl ObjectBytes {
    fn unleased(images: &ObjectImages, kind: ObjectKind, hash: ContentHash, size: u64) -> Self {
        let (objects, key) = (Arc::clone(&images.objects), kind.key(hash));
        Self { objects, key, size, lease: None }
    }
}

impl ReadAt for ObjectBytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(into.len() as u64).filter(|end| *end <= self.size);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        if into.is_empty() {
            return Ok(());
        }
        if let Some(lease) = &self.lease {
            lease.renew().map_err(io::Error::other)?;
        }
        let bytes = self.objects.get_range(&self.key, offset..end).map_err(io::Error::other)?;
        match bytes.len() == into.len() {
            true => into.copy_from_slice(&bytes),
            false => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }
}

impl fmt::Debug for ObjectImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectImages").field("settings", &self.settings).finish_non_exhaustive()
    }
}
