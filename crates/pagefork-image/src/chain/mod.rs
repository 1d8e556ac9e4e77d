//! A delta with its ancestors: what it means, what it says of each page, and how two differ.

/// Which pages of a chain are not as in its root.
pub(crate) mod overlay;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use pagefork_layout::page::PAGE_SIZE;

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;
use crate::base::limits::{self, ImageLimits};
use crate::chain::overlay::{Overlay, OverlayContents, OverlayRun};
use crate::file::draft::{ImageDraft, PageSource};
use crate::file::manifest::{Manifest, SavedInstance};
use crate::file::plan::{self, RangeList};
use crate::file::reader::{ImageReader, common};
use crate::file::shape;

/// An image with all its ancestors, so that all contents are known: itself, its parent, and so on
/// to a full one.
///
/// # Examples
///
/// ```
/// use std::io::Cursor;
/// use std::sync::Arc;
/// use pagefork_image::*;
///
/// let limits = ImageLimits::default();
/// let open = |file: Cursor<Vec<u8>>| {
///     ImageReader::open(Box::new(file.into_inner()), &limits).map(Arc::new)
/// };
/// let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
/// let mut manifest = Manifest { instances: vec![instance], ..Manifest::default() };
/// let mut file = Cursor::new(Vec::new());
/// let pages = PageRuns::new(vec![vec![(0, vec![7; 8192])]]);
/// ImageDraft::new(manifest.clone(), &pages).write(&mut file)?;
/// let full = ImageChain::new(vec![open(file)?], &limits)?;
///
/// // The second page became zero, and the fourth one is new.
/// manifest.instances[0].parent_instance = Some(0);
/// let mut file = Cursor::new(Vec::new());
/// let pages = PageRuns::new(vec![vec![(4096, vec![0; 4096]), (12288, vec![9; 4096])]]);
/// full.delta(manifest, &pages)?.write(&mut file)?;
/// let delta = ImageChain::new(vec![open(file)?, full.tip().clone()], &limits)?;
///
/// let mut bytes = vec![0; 16384];
/// delta.read(0, 0, &mut bytes)?;
/// assert_eq!([0, 4096, 12288].map(|at| bytes[at]), [7, 0, 9]);
/// assert_eq!(delta.differing(0, &full, 0)?, [4096..8192, 12288..16384]);
/// # Ok::<(), ImageError>(())
/// ```
#[derive(Clone)]
pub struct ImageChain {
    /// The image itself first, a full one last.
    images: Arc<[Arc<ImageReader>]>,
    limits: ImageLimits,
}

impl ImageChain {
    /// The chain of `images`: the image itself first, then its parent, the full one last.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] if one is not the parent that the one before it names, or the last
    /// has a parent; [`ImageError::TooLarge`] if there are too many; [`ImageError::Damaged`] if
    /// an instance is not one that could come from that of the parent.
    pub fn new(images: Vec<Arc<ImageReader>>, limits: &ImageLimits) -> Result<Self, ImageError> {
        limits::check("a chain", images.len() as u64, limits.chain_length as u64)?;
        let parents = images.iter().skip(1).map(|image| Some(image.hash())).chain([None]);
        if images.is_empty() || !images.iter().map(|image| image.manifest().parent).eq(parents) {
            return Err(ImageError::Invalid(
                "these images are not one, its parent, and so on to a full one".to_owned(),
            ));
        }
        for two in images.windows(2) {
            check_parent(two[0].manifest(), two[1].manifest())?;
        }
        Ok(Self { images: images.into(), limits: limits.clone() })
    }

    /// The image itself.
    pub fn tip(&self) -> &Arc<ImageReader> {
        &self.images[0]
    }

    /// The full image at the end.
    pub fn root(&self) -> &Arc<ImageReader> {
        &self.images[self.images.len() - 1]
    }

    /// All images, the tip first.
    pub fn images(&self) -> &[Arc<ImageReader>] {
        &self.images
    }

    /// The numbers of the instance in each image, from the tip on as far as it goes back.
    fn lineage(&self, instance: usize) -> impl Iterator<Item = (&Arc<ImageReader>, usize)> {
        let mut number = Some(instance);
        self.images.iter().map_while(move |image| {
            let own = number?;
            let saved = image.manifest().instances.get(own)?;
            number = saved.parent_instance.map(|parent| parent as usize);
            Some((image, own))
        })
    }

    /// The number in the root's manifest of an instance of the tip; `None` if it came later.
    pub fn root_instance(&self, instance: usize) -> Option<usize> {
        self.lineage(instance).nth(self.images.len() - 1).map(|(_, number)| number)
    }

    /// Where an instance of the tip has other contents than in the root, or than zeros if it
    /// came later: slot offsets, ascending, apart. Whoever maps the root's spans and lays
    /// these over has the tip's contents.
    pub fn overlay(&self, instance: usize) -> Vec<OverlayRun> {
        let mut overlay = Overlay::default();
        let in_root = self.images.len() - 1;
        let layers: Vec<_> = self.lineage(instance).enumerate().collect();
        for (depth, (image, number)) in layers.into_iter().rev() {
            if depth == in_root {
                continue;
            }
            let saved = &image.manifest().instances[number];
            for span in &saved.spans {
                let data = OverlayContents::Data { image: depth, data_offset: span.data_offset };
                overlay.put(span.slot(), data);
            }
            for range in &saved.zeroed {
                overlay.put(range.clone(), OverlayContents::Zero);
            }
        }
        overlay.into_runs()
    }

    /// Fills `into`, as long as a run of the [overlay](ImageChain::overlay), with its contents. No other
    /// image of the chain is read than the one that has them.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] if there is no such image; [`ImageError::Io`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::*;
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-runs-{}", std::process::id()));
    /// let store = ImageStore::open(&path)?;
    /// let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
    /// let mut manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    /// let pages = PageRuns::new(vec![vec![(0, vec![7; 8192])]]);
    /// let full = store.save(ImageDraft::new(manifest.clone(), &pages))?;
    /// manifest.instances[0].parent_instance = Some(0);
    /// let pages = PageRuns::new(vec![vec![(4096, vec![9; 4096])]]);
    /// let delta = store.save(full.chain().delta(manifest, &pages)?)?;
    ///
    /// let runs = delta.chain().overlay(0);
    /// let mut bytes = [0; 4096];
    /// delta.chain().read_run(&runs[0], &mut bytes)?;
    /// assert_eq!((runs.len(), bytes), (1, [9; 4096]));
    /// # std::fs::remove_dir_all(path).unwrap();
    /// # Ok::<(), ImageError>(())
    /// ```
    pub fn read_run(&self, run: &OverlayRun, into: &mut [u8]) -> Result<(), ImageError> {
        match run.contents {
            OverlayContents::Zero => into.fill(0),
            OverlayContents::Data { image, data_offset } => {
                let strange = || ImageError::Invalid(format!("the chain has no image {image}"));
                self.images.get(image).ok_or_else(strange)?.read_data(data_offset, into)?;
            }
        }
        Ok(())
    }

    /// Fills `into` with the contents of an instance of the tip from slot offset `offset` on: zeros
    /// where the image has nothing.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] if there is no such instance, or the offsets exceed 64 bits;
    /// [`ImageError::Io`].
    pub fn read(&self, instance: usize, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        self.instance(instance)?;
        if offset.checked_add(into.len() as u64).is_none() {
            return Err(ImageError::Invalid(format!("no slot reaches behind {offset:#x} so far")));
        }
        into.fill(0);
        let layers: Vec<_> = self.lineage(instance).collect();
        layers.into_iter().rev().try_for_each(|(image, own)| image.lay_over(own, offset, into))
    }

    /// Checks all pages of all images.
    ///
    /// # Errors
    /// As [`ImageReader::verify`].
    pub fn verify(&self) -> Result<(), ImageError> {
        self.images.iter().try_for_each(|image| image.verify())
    }

    /// The pages in which an instance of this image and one of another differ: slot offsets,
    /// ascending, apart. If both have a common ancestor, pages that neither has changed since are
    /// not read.
    ///
    /// # Errors
    /// As [`ImageChain::read`].
    pub fn differing(
        &self,
        instance: usize,
        other: &Self,
        other_instance: usize,
    ) -> Result<Vec<Range<u64>>, ImageError> {
        self.instance(instance)?;
        other.instance(other_instance)?;
        let is_common = |(image, own): &(&Arc<ImageReader>, usize)| {
            let mut theirs = other.lineage(other_instance);
            theirs.any(|(their, number)| (their.hash(), number) == (image.hash(), *own))
        };
        let ancestor = self.lineage(instance).find(is_common);
        let ancestor = ancestor.map(|(image, own)| (image.hash(), own));
        let candidates = Overlay::union([
            self.named_pages(instance, ancestor),
            other.named_pages(other_instance, ancestor),
        ]);
        let mut differing = RangeList::default();
        let mut theirs = vec![0; PAGE_SIZE as usize];
        let read = |offset, into: &mut [u8]| self.read(instance, offset, into);
        let held = |_| None;
        plan::each_page(&candidates, held, read, |offset, page| {
            other.read(other_instance, offset, &mut theirs)?;
            if page != theirs {
                differing.push(offset..offset + PAGE_SIZE);
            }
            Ok(())
        })?;
        Ok(differing.0)
    }

    /// The pages of an instance that the images before `ancestor` name, in no order.
    fn named_pages(
        &self,
        instance: usize,
        ancestor: Option<(ContentHash, usize)>,
    ) -> Vec<Range<u64>> {
        let is_own =
            |(image, own): &(&Arc<ImageReader>, usize)| ancestor != Some((image.hash(), *own));
        let layers = self.lineage(instance).take_while(is_own);
        let of_layer = |(image, own): (&Arc<ImageReader>, usize)| {
            let saved = &image.manifest().instances[own];
            let spans = saved.spans.iter().map(|span| span.slot());
            spans.chain(saved.zeroed.iter().cloned()).collect::<Vec<_>>()
        };
        layers.flat_map(of_layer).collect()
    }

    /// A full image with the same contents. Images with the same manifest and contents are the
    /// same, whatever chains they come from. If this one is a delta, it names no holders: those of the delta have not got it.
    pub fn squash(&self) -> ImageDraft<'_> {
        let mut manifest = self.tip().manifest().clone();
        if manifest.parent.take().is_some() {
            manifest.holders.clear();
        }
        for instance in &mut manifest.instances {
            instance.parent_instance = None;
        }
        ImageDraft::new(manifest, self).with_limits(&self.limits)
    }

    /// An image that has only what differs from this one. `source` says which pages may; those
    /// that are equal are left out. Instances say by `parent_instance` what they are to be compared
    /// with.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] if an instance could not come from that of this image;
    /// [`ImageError::TooLarge`] if the chain is as long as it may be.
    pub fn delta<'a>(
        &'a self,
        manifest: Manifest,
        source: &'a dyn PageSource,
    ) -> Result<ImageDraft<'a>, ImageError> {
        let length = self.images.len() as u64 + 1;
        limits::check("a chain", length, self.limits.chain_length as u64)?;
        let manifest = Manifest { parent: Some(self.tip().hash()), ..manifest };
        check_parent(&manifest, self.tip().manifest()).map_err(|error| match error {
            ImageError::Damaged(what) => ImageError::Invalid(what),
            other => other,
        })?;
        Ok(ImageDraft::with_parent(manifest, source, self).with_limits(&self.limits))
    }

    fn instance(&self, instance: usize) -> Result<&SavedInstance, ImageError> {
        let instances = &self.tip().manifest().instances;
        let missing = || {
            let count = instances.len();
            ImageError::Invalid(format!("the image has {count} instances, and no {instance}"))
        };
        instances.get(instance).ok_or_else(missing)
    }
}

/// Contents of the tip. They are believed: see [`ImageReader`].
impl PageSource for ImageChain {
    fn ranges(&self, instance: usize) -> Result<Vec<Range<u64>>, ImageError> {
        self.instance(instance)?;
        Ok(Overlay::union([self.named_pages(instance, None)]))
    }

    fn read(&self, instance: usize, offset: u64, into: &mut [u8]) -> Result<(), ImageError> {
        Self::read(self, instance, offset, into)
    }

    fn read_attachment(
        &self,
        index: usize,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), ImageError> {
        self.tip().read_attachment(index, offset, into)
    }
}

impl fmt::Debug for ImageChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hashes = self.images.iter().map(|image| image.hash());
        f.debug_list().entries(hashes).finish()
    }
}

/// # Errors
/// [`ImageError::Damaged`] if an instance names none of the parent's, or has less room than it.
fn check_parent(manifest: &Manifest, parent: &Manifest) -> Result<(), ImageError> {
    for instance in &manifest.instances {
        let Some(number) = instance.parent_instance else { continue };
        let fits = parent.instances.get(number as usize).is_some_and(|parent| {
            shape::are_pages(&instance.extents)
                && parent.extents.iter().all(|inner| {
                    let mut outer = instance.extents.iter();
                    outer.any(|outer| common(inner, outer) == *inner)
                })
        });
        if !fits {
            return Err(ImageError::damaged("an instance does not fit that of the parent"));
        }
    }
    Ok(())
}
