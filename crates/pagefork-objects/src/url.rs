//! Object stores by their URLs.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;

use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, parse_url_opts};
use pagefork_image::ImageError;
use url::Url;

use crate::{ObjectImages, ObjectSettings};

/// Where an object store is: `file:///DIRECTORY`, or `s3://BUCKET/FOLDER`, in which keys begin with the
/// folder. It has no secrets, and is the same for all who mean the same: a slash at the end is left out.
///
/// # Examples
///
/// ```
/// use pagefork_objects::ObjectUrl;
///
/// let url: ObjectUrl = "file:///srv/pages/".parse()?;
/// assert_eq!(url.to_string(), "file:///srv/pages");
/// assert!("memory:///".parse::<ObjectUrl>().is_err(), "no other process has that");
/// # Ok::<(), pagefork_image::ImageError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectUrl(Url);

impl FromStr for ObjectUrl {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let wrong = |why: &str| {
            ImageError::Invalid(format!(
                "{text:?} cannot be an object store: {why}; use file:///DIRECTORY or s3://BUCKET/FOLDER"
            ))
        };
        let mut url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
        if !url.username().is_empty() || url.password().is_some() {
            // It goes to other nodes, and into what they say.
            let why =
                "a URL with a user or password cannot be an object store: others get to see it";
            return Err(ImageError::Invalid(why.to_owned()));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("it goes on after `?` or `#`"));
        }
        match (url.scheme(), url.host_str()) {
            ("file", None) if url.path().trim_matches('/').is_empty() => {
                return Err(wrong("it names no directory"));
            }
            ("file", Some(_)) => return Err(wrong("it is a file of another machine")),
            ("s3", None | Some("")) => return Err(wrong("it names no bucket")),
            ("file" | "s3", _) => {}
            ("memory", _) => {
                return Err(wrong("no other process has what is in the memory of one"));
            }
            _ => return Err(wrong("nothing that is known is reached like that")),
        }
        let path = url.path().trim_end_matches('/').to_owned();
        url.set_path(&path);
        Ok(Self(url))
    }
}

impl fmt::Display for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ObjectImages {
    /// The images in the object store at `url`, which has nothing else. A directory has to be there, and
    /// what is written to it is on the disk then. Where and as whom services are reached is said by
    /// environment variables (`AWS_…`). Nothing is asked yet: see [`ObjectImages::check`].
    ///
    /// # Errors
    /// [`ImageError::Io`] if there is no such directory, or what the environment says is not enough;
    /// [`ImageError::Invalid`] if this build does not know such services.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_objects::{ObjectImages, ObjectSettings};
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-url-{}", std::process::id()));
    /// # std::fs::create_dir(&path)?;
    /// let url = format!("file://{}", path.display()).parse()?;
    /// ObjectImages::at(&url, ObjectSettings::default())?.check()?;
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at(url: &ObjectUrl, settings: ObjectSettings) -> Result<Self, ImageError> {
        let failed =
            |error| ImageError::Io { action: format!("open the object store {url}"), error };
        let store: Arc<dyn ObjectStore> = match url.0.to_file_path() {
            Ok(directory) if url.0.scheme() == "file" => {
                if !std::fs::metadata(&directory).map_err(failed)?.is_dir() {
                    return Err(failed(io::ErrorKind::NotADirectory.into()));
                }
                let store = LocalFileSystem::new_with_prefix(directory);
                Arc::new(store.map_err(|error| failed(error.into()))?.with_fsync(true))
            }
            _ if cfg!(not(feature = "s3")) => {
                return Err(ImageError::Invalid(format!(
                    "this build cannot reach the object store {url}: build it with the feature `s3`"
                )));
            }
            _ => {
                let variables = std::env::vars_os().filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                });
                let variables = variables.filter(|(name, _)| name.starts_with("AWS_"));
                let opened = parse_url_opts(&url.0, variables);
                let (store, folder) = opened.map_err(|error| failed(error.into()))?;
                Arc::new(PrefixStore::new(store, folder))
            }
        };
        Self::new(store, settings)
    }

    /// Whether the service answers, and lets objects be written, looked at and removed: a small one is,
    /// `clock/ID`.
    ///
    /// # Errors
    /// [`ImageError::Io`]: what it does not let be done, or that it has not answered in time.
    ///
    /// # Examples
    ///
    /// See [`ObjectImages::at`].
    pub fn check(&self) -> Result<(), ImageError> {
        self.objects.now().map(drop)
    }
}
