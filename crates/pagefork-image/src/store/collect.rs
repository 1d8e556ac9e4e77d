//! Removing what nothing leads to, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::base::bytes::FileBytes;
use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::file::reader::ImageReader;

use super::ImageStore;
use super::directory::{Kind, is_locked, open_own, remove_file};
use super::names::REMOVE_NAME;
use super::steps::{self, WriteStep};

/// What a collection did. [`ImageStore::collect`] has an example.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CollectReport {
    /// Images that were removed.
    pub images: Vec<ContentHash>,
    /// Code images that were removed.
    pub code: Vec<ContentHash>,
    /// Files that processes had left behind unfinished.
    pub unfinished: u64,
    /// Bytes of these files. Holes are counted.
    pub bytes: u64,
    /// Images that no name leads to, and that stay because a process uses them or what comes
    /// of them.
    pub in_use: Vec<ContentHash>,
    /// Images that cannot be read any more, and why. They stay.
    pub damaged: Vec<(ContentHash, String)>,
}

/// What an image needs.
struct Needs {
    parent: Option<ContentHash>,
    code: Vec<ContentHash>,
}

impl ImageStore {
    /// Removes the images that no name leads to and that no process uses, but for ancestors of those
    /// that stay; the code images that no image needs and no process uses; and what processes
    /// that were stopped have left behind. While it runs, nobody opens or adds anything.
    ///
    /// # Errors
    /// [`ImageError::Version`] if there is an image of another version, whose needs are not known;
    /// [`ImageError::StoreRefused`] if a name leads to no image; [`ImageError::Io`], also where the system cannot lock files. What was removed until then is
    /// gone, and the store is whole.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::{ImageDraft, ImageStore, Manifest, PageRuns};
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-gc-{}", std::process::id()));
    /// let store = ImageStore::open(&path)?;
    /// let image = store.save(ImageDraft::new(Manifest::default(), &PageRuns::default()))?;
    /// assert_eq!(store.collect()?.in_use, [image.hash()]);
    /// let hash = image.hash();
    /// drop(image);
    /// assert_eq!(store.collect()?.images, [hash]);
    /// # std::fs::remove_dir_all(path).unwrap();
    /// # Ok::<(), pagefork_image::ImageError>(())
    /// ```
    pub fn collect(&self) -> Result<CollectReport, ImageError> {
        // What an image needs never changes, so most of it is read before others have to wait.
        let mut report = CollectReport::default();
        let mut needs = BTreeMap::new();
        self.read_needs(&mut needs, &mut report)?;
        let _held = self.directory.lock_alone()?;
        report.damaged.clear();
        self.read_needs(&mut needs, &mut report)?;

        let mut kept = BTreeSet::new();
        for (name, hash) in self.names()? {
            if let Some(unknown) = keep(&mut kept, hash, &needs) {
                // What it was to keep must not go for that.
                let what = match self.directory.has(Kind::Image, unknown) {
                    true => "damaged",
                    false => "not there",
                };
                let why = format!("it leads to image {unknown}, which is {what}: {REMOVE_NAME}");
                return Err(ImageError::StoreRefused { path: self.names_path().join(name), why });
            }
        }
        let named = kept.clone();
        for hash in needs.keys() {
            if !kept.contains(hash) && self.is_used(Kind::Image, *hash)? {
                keep(&mut kept, *hash, &needs);
            }
        }
        report.in_use = kept.difference(&named).copied().collect();
        let wholes = self.wholes()?;
        for (delta, full) in &wholes {
            if kept.contains(delta) && needs.contains_key(full) {
                keep(&mut kept, *full, &needs);
            }
        }
        let code: BTreeSet<ContentHash> = needs
            .iter()
            .filter(|(hash, _)| kept.contains(hash))
            .flat_map(|(_, needs)| needs.code.iter().copied())
            .collect();

        for (delta, full) in wholes {
            if !kept.contains(&delta) || !kept.contains(&full) {
                let path = self.whole_path(delta);
                remove_file(&path).map_err(ImageError::of_path("remove", &path))?;
            }
        }
        needs.retain(|hash, _| !kept.contains(hash));
        self.remove_images(needs, &mut report)?;
        for hash in self.directory.list(Kind::Code)? {
            if !code.contains(&hash) && !self.is_used(Kind::Code, hash)? {
                report.bytes += remove(&self.directory.file(Kind::Code, hash))?;
                report.code.push(hash);
            }
        }
        for path in self.directory.list_unfinished()? {
            if !is_locked(&path)? {
                report.bytes += remove(&path)?;
                report.unfinished += 1;
            }
        }
        Ok(report)
    }

    /// Removes one image now.
    ///
    /// # Errors
    /// [`ImageError::InUse`] if a name leads to it, another image needs it or a process uses it;
    /// [`ImageError::NotFound`]; as [`ImageStore::collect`].
    pub fn remove(&self, hash: ContentHash) -> Result<(), ImageError> {
        let mut needs = BTreeMap::new();
        self.read_needs(&mut needs, &mut CollectReport::default())?;
        let _held = self.directory.lock_alone()?;
        self.read_needs(&mut needs, &mut CollectReport::default())?;
        if !self.directory.has(Kind::Image, hash) {
            return Err(ImageError::NotFound { what: "image", hash });
        }
        let in_use = |why: String| Err(ImageError::InUse { what: "image", hash, why });
        if let Some((name, _)) = self.names()?.into_iter().find(|(_, named)| *named == hash) {
            return in_use(format!("its name is {name}"));
        }
        if let Some((child, _)) = needs.iter().find(|(_, needs)| needs.parent == Some(hash)) {
            return in_use(format!("image {child} is a delta of it"));
        }
        if self.is_used(Kind::Image, hash)? {
            return in_use("a process has it open".to_owned());
        }
        remove(&self.directory.file(Kind::Image, hash)).map(drop)
    }

    /// Reads what images need that are not in `needs` yet, and forgets those that are gone.
    fn read_needs(
        &self,
        needs: &mut BTreeMap<ContentHash, Needs>,
        report: &mut CollectReport,
    ) -> Result<(), ImageError> {
        let hashes = self.images()?;
        needs.retain(|hash, _| hashes.binary_search(hash).is_ok());
        for hash in hashes {
            if needs.contains_key(&hash) {
                continue;
            }
            // Not by the way of users: what is looked at is not in use for that.
            let path = self.directory.file(Kind::Image, hash);
            let file = match open_own(&path) {
                Ok(file) => file,
                Err(ImageError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            match ImageReader::open(Box::new(FileBytes::new(file)), &self.limits) {
                Ok(image) => {
                    let manifest = image.manifest();
                    let code = manifest.kept_beside();
                    needs.insert(hash, Needs { parent: manifest.parent, code });
                }
                Err(error @ (ImageError::Damaged(_) | ImageError::NotAnImage)) => {
                    report.damaged.push((hash, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes images, each before its parent, so that at no moment one lacks what it needs.
    fn remove_images(
        &self,
        mut rest: BTreeMap<ContentHash, Needs>,
        report: &mut CollectReport,
    ) -> Result<(), ImageError> {
        while !rest.is_empty() {
            let parents: BTreeSet<_> = rest.values().filter_map(|needs| needs.parent).collect();
            let leaves: Vec<_> =
                rest.keys().filter(|hash| !parents.contains(hash)).copied().collect();
            if leaves.is_empty() {
                return Err(ImageError::damaged("images of the store are each other's parents"));
            }
            for hash in leaves {
                rest.remove(&hash);
                report.bytes += remove(&self.directory.file(Kind::Image, hash))?;
                report.images.push(hash);
            }
        }
        Ok(())
    }

    fn is_used(&self, kind: Kind, hash: ContentHash) -> Result<bool, ImageError> {
        is_locked(&self.directory.file(kind, hash))
    }
}

/// Notes that an image and its ancestors stay; the one of which it is not known what it needs.
fn keep(
    kept: &mut BTreeSet<ContentHash>,
    hash: ContentHash,
    needs: &BTreeMap<ContentHash, Needs>,
) -> Option<ContentHash> {
    let mut next = Some(hash);
    while let Some(hash) = next.filter(|hash| kept.insert(*hash)) {
        let Some(needs) = needs.get(&hash) else { return Some(hash) };
        next = needs.parent;
    }
    None
}

/// Removes a file, and returns its bytes.
fn remove(path: &Path) -> Result<u64, ImageError> {
    let failed = || ImageError::of_path("remove", path);
    let size = fs::metadata(path).map_err(failed())?.len();
    remove_file(path).map_err(failed())?;
    steps::done(WriteStep::Removed).map_err(failed())?;
    Ok(size)
}
