//! Names of images, which people use and which keep images from being collected.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;

use super::directory::{Kind, read_short};
use super::{ImageStore, repository};

/// What to do about a name that leads nowhere.
pub(super) const REMOVE_NAME: &str = "give the name to an image, or remove it";

/// Digits from which on the beginning of a hash is looked for.
const PREFIX_MIN: usize = 4;

impl ImageStore {
    /// Gives an image a name, which may lead elsewhere so far. A name has letters, digits and
    /// `.`, `_`, `-`, up to 128, and begins with none of these three.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] if it can be no name; [`ImageError::NotFound`]; [`ImageError::Io`].
    pub fn set_name(&self, name: &str, hash: ContentHash) -> Result<(), ImageError> {
        self.name_if(name, hash, || Ok(()))
    }

    /// As [`ImageStore::set_name`], unless another image has the name.
    ///
    /// # Errors
    /// As of [`ImageStore::set_name`]; [`ImageError::NameTaken`]: of several that want the name at once, one
    /// gets it.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::{ImageDraft, ImageError, ImageStore, Manifest, PageRuns};
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-names-{}", std::process::id()));
    /// let images = ImageStore::open(&path)?;
    /// let pages = PageRuns::default();
    /// let save = |wasi: &[u8]| {
    ///     images.save(ImageDraft::new(Manifest { wasi: wasi.to_vec(), ..Manifest::default() }, &pages))
    /// };
    /// let (first, second) = (save(b"first")?.hash(), save(b"second")?.hash());
    /// images.set_new_name("ready", first)?;
    /// images.set_new_name("ready", first)?;
    /// let taken = images.set_new_name("ready", second).unwrap_err();
    /// assert!(matches!(taken, ImageError::NameTaken { image, .. } if image == first));
    /// assert_eq!(images.find("ready")?, first);
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_new_name(&self, name: &str, hash: ContentHash) -> Result<(), ImageError> {
        self.name_if(name, hash, || match self.names()?.get(name) {
            Some(image) if *image != hash => {
                Err(ImageError::NameTaken { name: name.to_owned(), image: *image })
            }
            _ => Ok(()),
        })
    }

    /// Gives an image a name, if `check` allows it: nobody changes names meanwhile.
    fn name_if(
        &self,
        name: &str,
        hash: ContentHash,
        check: impl FnOnce() -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let path = self.name_path(name)?;
        let mut file = self.directory.begin()?;
        file.append(format!("{hash}\n").as_bytes())?;
        file.sync()?;
        let held = self.directory.lock_alone()?;
        if !self.directory.has(Kind::Image, hash) {
            return Err(ImageError::NotFound { what: "image", hash });
        }
        check()?;
        file.rename(&path)?;
        drop(held);
        self.directory.sync_directory(&self.names_path())
    }

    /// Takes a name away. Returns whether there was one. The image stays until it is collected.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] if it can be no name; [`ImageError::Io`].
    pub fn remove_name(&self, name: &str) -> Result<bool, ImageError> {
        let path = self.name_path(name)?;
        let _held = self.directory.lock_alone()?;
        match fs::remove_file(&path) {
            Ok(()) => self.directory.sync_directory(&self.names_path()).map(|()| true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(ImageError::of_path("remove", &path)(error)),
        }
    }

    /// All names.
    ///
    /// # Errors
    /// [`ImageError::StoreRefused`] if a file among the names is none; [`ImageError::Io`].
    pub fn names(&self) -> Result<BTreeMap<String, ContentHash>, ImageError> {
        let directory = self.names_path();
        let failed = || ImageError::of_path("list", &directory);
        let mut names = BTreeMap::new();
        for entry in fs::read_dir(&directory).map_err(failed())? {
            let path = entry.map_err(failed())?.path();
            let text = match read_short(&path) {
                Ok(text) => text,
                // It was removed meanwhile.
                Err(ImageError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
            let hash = text.strip_suffix('\n').and_then(|text| text.parse().ok());
            let (Some(name), Some(hash)) = (name, hash) else {
                let why = format!("a file among its names has no hash: {REMOVE_NAME}");
                return Err(ImageError::StoreRefused { path, why });
            };
            names.insert(name, hash);
        }
        Ok(names)
    }

    /// The image that is meant by a name, by a hash, or by four or more of its first digits.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] if none is meant, or several are; [`ImageError::NotFound`];
    /// [`ImageError::Io`].
    pub fn find(&self, text: &str) -> Result<ContentHash, ImageError> {
        if let Some(hash) = self.names()?.get(text) {
            return Ok(*hash);
        }
        let images = self.images()?;
        if let Ok(hash) = text.parse() {
            return match images.contains(&hash) {
                true => Ok(hash),
                false => Err(ImageError::NotFound { what: "image", hash }),
            };
        }
        let mut found = images.iter().filter(|hash| hash.to_string().starts_with(text));
        match (found.next(), found.next()) {
            (Some(hash), None) if text.len() >= PREFIX_MIN => Ok(*hash),
            (Some(_), Some(_)) if text.len() >= PREFIX_MIN => {
                Err(ImageError::Invalid(format!("several images begin with {text}: give more")))
            }
            _ => Err(ImageError::Invalid(format!("the store has no image {text:?}"))),
        }
    }

    pub(super) fn names_path(&self) -> PathBuf {
        self.path().join("names")
    }

    fn name_path(&self, name: &str) -> Result<PathBuf, ImageError> {
        repository::check_name(name)?;
        Ok(self.names_path().join(name))
    }
}
