//! Programs that are captured in images: where these are kept, and who is trusted.

pub(crate) mod keys;
pub(crate) mod restore;
pub(crate) mod snapshot;

use std::env;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use pagefork::image::{ContentHash, ImageStore, StoredImage};

use crate::node;

/// The store of images: the one that was named, or the user's.
pub(crate) fn open(named: Option<&Path>) -> Result<ImageStore, String> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => {
            let path = of_user("XDG_DATA_HOME", ".local/share")
                .ok_or("no directory is known for images: name one with --store")?
                .join("images");
            std::fs::create_dir_all(&path)
                .map_err(|error| format!("cannot make {}: {error}", path.display()))?;
            path
        }
    };
    ImageStore::open(path).map_err(|error| error.to_string())
}

/// An image that was asked for.
pub(crate) struct FoundImage {
    pub(crate) hash: ContentHash,
    /// One that was fetched has no name: collection spares it as long as this is kept.
    _held: Option<StoredImage>,
}

/// What a name means: an image of the store, or `NODE/IMAGE`, which is fetched into it.
pub(crate) fn find(images: &ImageStore, name: &str) -> Result<FoundImage, String> {
    match name.split_once('/') {
        Some((node, image)) => {
            let image = node::fetch(node, image, images)?;
            Ok(FoundImage { hash: image.hash(), _held: Some(image) })
        }
        None => {
            let hash = images.find(name).map_err(|error| error.to_string())?;
            Ok(FoundImage { hash, _held: None })
        }
    }
}

/// Where the copies of a session's files lie as long as this process runs: nothing has this name.
pub(crate) fn place_of_files() -> PathBuf {
    // A process with this number may have been killed and left its own behind.
    let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    env::temp_dir().join(format!("pagefork-{}-{now}", std::process::id()))
}

/// A directory of this command's for the user: `variable` says where such are, else they are in
/// `otherwise` of the home directory.
fn of_user(variable: &str, otherwise: &str) -> Option<PathBuf> {
    // Relative paths are to be ignored, says the XDG Base Directory Specification.
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute(variable).or_else(|| Some(absolute("HOME")?.join(otherwise)));
    Some(base?.join("pagefork"))
}
