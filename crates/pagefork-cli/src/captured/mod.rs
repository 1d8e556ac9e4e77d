//! Programs that are captured in images: where these are kept, and who is trusted.

pub(crate) mod keys;
mod named;
pub(crate) mod restore;
pub(crate) mod snapshot;

use std::env;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use pagefork::image::ImageStore;

use crate::arguments::ComingArguments;
use crate::node;

pub(crate) use named::NamedImage;

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

/// What a name means: an image of the store, or `NODE/IMAGE`, which is put there if it is not.
pub(crate) fn find(images: &ImageStore, name: &str) -> Result<NamedImage, String> {
    find_as(images, name, |node, image| node::fetch(node, image, images))
}

/// The same, but of `NODE/IMAGE` the pages come while programs run.
pub(crate) fn find_coming(
    images: &ImageStore,
    name: &str,
    arguments: &ComingArguments,
) -> Result<NamedImage, String> {
    find_as(images, name, |node, image| node::start(node, image, images, arguments))
}

fn find_as(
    images: &ImageStore,
    name: &str,
    find_there: impl FnOnce(&str, &str) -> Result<NamedImage, String>,
) -> Result<NamedImage, String> {
    match name.split_once('/') {
        Some((node, image)) => find_there(node, image),
        None => {
            let hash = images.find(name).map_err(|error| error.to_string())?;
            Ok(NamedImage::Here { hash, held: None })
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
