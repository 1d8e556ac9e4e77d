//! Stores of images, in which snapshots are saved, and keys that sign them.

use std::ffi::{OsStr, c_char};
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Error as IoError, Write};
use std::mem::MaybeUninit;
use std::path::Path;

use pagefork::image::{ContentHash, ImageStore, PublicKey, SecretKey};
use pagefork::{Error, Result};

use crate::base::border::{BorderError, exported, given};
use crate::base::c_vec::put;
use crate::objects::fallible::{OutBox, fallible, make, path, text};

/// What is null, if it is.
pub(super) const IMAGES: &str = "store of images";
/// What is null, if it is.
pub(super) const IMAGE: &str = "image";
/// What is null, if it is.
const NAME: &str = "name";
/// What is null, if it is.
const PATH: &str = "path";

/// How much a file of an image is compressed: zstd's own default.
const LEVEL: i32 = 3;

/// A directory of images.
pub(super) struct pagefork_image_store_t(pub(super) ImageStore);

/// What stands for an image.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct pagefork_image_hash_t([u8; 32]);

impl From<ContentHash> for pagefork_image_hash_t {
    fn from(hash: ContentHash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl pagefork_image_hash_t {
    /// The hash.
    pub(super) fn hash(self) -> ContentHash {
        ContentHash::from_bytes(self.0)
    }
}

/// A key that signs.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct pagefork_secret_key_t([u8; 32]);

impl pagefork_secret_key_t {
    /// The key.
    pub(super) fn key(self) -> SecretKey {
        SecretKey::from_seed(self.0)
    }
}

/// A key that signatures are checked with.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct pagefork_public_key_t([u8; 32]);

impl pagefork_public_key_t {
    /// The key.
    pub(super) fn key(self) -> PublicKey {
        PublicKey::from_bytes(self.0)
    }
}

/// Where something that has no result but a number of bytes is written to.
pub(super) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

#[cold]
fn file_error(action: &str, path: &Path, error: &IoError) -> Error {
    let text = format!("could not {action} {}: {error}", path.display());
    BorderError::Unfit(text).into()
}

/// Writes an image to a file, which takes the place of the one that was there once it is whole.
///
/// # Errors
/// If there is no such image, it is damaged, or the file cannot be written.
fn export(images: &ImageStore, image: ContentHash, path: &Path) -> Result<()> {
    let failed = |error: IoError| file_error("write", path, &error);
    let name = path
        .file_name()
        .ok_or_else(|| BorderError::Unfit(format!("{} is no name of a file", path.display())))?;
    let mut unfinished = OsStr::new(".").to_owned();
    unfinished.push(name);
    unfinished.push(format!(".{}", std::process::id()));
    let unfinished = path.with_file_name(unfinished);
    let file = File::create_new(&unfinished).map_err(failed)?;
    let write = || {
        let out = images.export(&[image], BufWriter::new(file), LEVEL).map_err(Error::new)?;
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        (&file).flush().and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&unfinished, path).map_err(failed)
    };
    let written = write();
    if written.is_err() {
        // Why it could not be written is what is told.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// The last image of a file, which is in the store from then on.
///
/// # Errors
/// If the file has none, is damaged or cannot be read.
fn import(images: &ImageStore, path: &Path) -> Result<ContentHash> {
    let file = File::open(path).map_err(|error| file_error("open", path, &error))?;
    let taken = images.import(BufReader::new(file)).map_err(Error::new)?;
    let none = || BorderError::Unfit(format!("{} has no image", path.display()));
    Ok(taken.last().ok_or_else(none)?.hash())
}

fallible! {
    fn pagefork_image_store_open(
        directory: *const c_char,
        out: OutBox<'_, pagefork_image_store_t>,
    ) {
        make(out, || {
            let directory = path(directory, "directory")?;
            let images = ImageStore::open(directory).map_err(Error::new)?;
            Ok(Box::new(pagefork_image_store_t(images)))
        })
    }

    fn pagefork_image_store_find(
        images: Option<&pagefork_image_store_t>,
        image: *const c_char,
        out: Out<'_, pagefork_image_hash_t>,
    ) {
        let images = &given(images, IMAGES)?.0;
        let found = images.find(text(image, NAME)?).map_err(Error::new)?;
        put(out, "place for the image", found.into())
    }

    fn pagefork_image_store_set_name(
        images: Option<&pagefork_image_store_t>,
        name: *const c_char,
        image: Option<&pagefork_image_hash_t>,
    ) {
        let (images, name) = (&given(images, IMAGES)?.0, text(name, NAME)?);
        images.set_name(name, given(image, IMAGE)?.hash()).map_err(Error::new)
    }

    fn pagefork_image_store_remove_name(
        images: Option<&pagefork_image_store_t>,
        name: *const c_char,
    ) {
        let (images, name) = (&given(images, IMAGES)?.0, text(name, NAME)?);
        images.remove_name(name).map(drop).map_err(Error::new)
    }

    fn pagefork_image_store_collect(images: Option<&pagefork_image_store_t>) {
        given(images, IMAGES)?.0.collect().map(drop).map_err(Error::new)
    }

    fn pagefork_image_store_export(
        images: Option<&pagefork_image_store_t>,
        image: Option<&pagefork_image_hash_t>,
        to: *const c_char,
    ) {
        let images = &given(images, IMAGES)?.0;
        export(images, given(image, IMAGE)?.hash(), path(to, PATH)?)
    }

    fn pagefork_image_store_import(
        images: Option<&pagefork_image_store_t>,
        from: *const c_char,
        out: Out<'_, pagefork_image_hash_t>,
    ) {
        let (images, out) = (&given(images, IMAGES)?.0, given(out, "place for the image")?);
        put(Some(out), IMAGE, import(images, path(from, PATH)?)?.into())
    }

    fn pagefork_secret_key_public(
        key: Option<&pagefork_secret_key_t>,
        out: Out<'_, pagefork_public_key_t>,
    ) {
        let public = given(key, "key")?.key().public();
        put(out, "place for the key", pagefork_public_key_t(*public.as_bytes()))
    }
}

exported! {
    fn pagefork_image_store_delete(images: Option<Box<pagefork_image_store_t>>) {
        drop(images);
        Ok(())
    }
}
