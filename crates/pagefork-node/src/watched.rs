//! Images that are read from their beginning to their end, of which somebody wants to know how far that is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use pagefork_image::{
    CollectReport, ContentHash, GROUP_SIZE, ImageChain, ImageError, ImageReader, ImageRepository,
    ImageStore, ReadAt,
};

/// Is told how many groups of an image have been read.
pub(crate) type ToldGroups = Arc<dyn Fn(u64) + Send + Sync>;

/// The same images, of those that are in files with word of how far each is.
///
/// # Errors
/// If a file cannot be opened once more, or the image is damaged.
pub(crate) fn watched(
    images: &ImageStore,
    chain: &ImageChain,
    told: &ToldGroups,
) -> Result<ImageChain, ImageError> {
    let limits = images.limits();
    let readers = chain.images().iter().map(|image| {
        let Some(file) = image.file() else { return Ok(Arc::clone(image)) };
        let failed = |error| {
            let action = "open a file of an image".to_owned();
            ImageError::Io { action, error }
        };
        let file = file.try_clone().map_err(failed)?;
        let (size, data_start, told) = (image.size(), image.data_start(), Arc::clone(told));
        let bytes = WatchedBytes { file, size, data_start, told };
        ImageReader::open(Box::new(bytes), limits).map(Arc::new)
    });
    ImageChain::new(readers.collect::<Result<_, _>>()?, limits)
}

/// The bytes of an image's file.
struct WatchedBytes {
    file: File,
    size: u64,
    data_start: u64,
    told: ToldGroups,
}

impl ReadAt for WatchedBytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(into, offset)?;
        let end = offset + into.len() as u64;
        if end > self.data_start {
            (self.told)((end - self.data_start) / GROUP_SIZE);
        }
        Ok(())
    }
}

/// A store out of which images are copied.
pub(crate) struct WatchedImages<'a> {
    pub(crate) images: &'a ImageStore,
    pub(crate) told: ToldGroups,
}

impl ImageRepository for WatchedImages<'_> {
    fn images(&self) -> Result<Vec<ContentHash>, ImageError> {
        self.images.images()
    }

    fn open_chain(&self, hash: ContentHash) -> Result<ImageChain, ImageError> {
        watched(self.images, self.images.load(hash)?.chain(), &self.told)
    }

    fn put_image(&self, image: &ImageReader) -> Result<(), ImageError> {
        self.images.put_image(image)
    }

    fn open_code(&self, hash: ContentHash) -> Result<Box<dyn ReadAt>, ImageError> {
        self.images.open_code(hash)
    }

    fn put_code(&self, hash: ContentHash, bytes: &dyn ReadAt) -> Result<(), ImageError> {
        self.images.put_code(hash, bytes)
    }

    fn names(&self) -> Result<BTreeMap<String, ContentHash>, ImageError> {
        self.images.names()
    }

    fn set_name(&self, name: &str, hash: ContentHash) -> Result<(), ImageError> {
        self.images.set_name(name, hash)
    }

    fn remove_name(&self, name: &str) -> Result<bool, ImageError> {
        self.images.remove_name(name)
    }

    fn collect(&self) -> Result<CollectReport, ImageError> {
        self.images.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use pagefork_image::{ImageDraft, Manifest, PageRuns, SavedInstance, StreamWriter};

    use super::*;

    #[test]
    fn who_watches_an_image_is_told_of_each_group_as_it_is_read() {
        let name = format!("pagefork-watched-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let images = ImageStore::open(&path).unwrap();
        let extents = std::iter::once(0..1 << 20).collect();
        let instance = SavedInstance { extents, ..SavedInstance::default() };
        let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
        let pages = PageRuns::new(vec![vec![(0, vec![7; 1 << 20])]]);
        let image = images.save(ImageDraft::new(manifest, &pages)).unwrap();
        let heard = Arc::<Mutex<Vec<u64>>>::default();
        let hears = Arc::clone(&heard);
        let told: ToldGroups = Arc::new(move |groups| hears.lock().unwrap().push(groups));
        let chain = watched(&images, image.chain(), &told).unwrap();
        let mut stream = StreamWriter::new(Vec::new(), 1).unwrap();
        stream.image(chain.tip()).unwrap();
        assert_eq!(*heard.lock().unwrap(), (1..=64).collect::<Vec<_>>());
        assert_eq!(
            stream.finish().unwrap(),
            images.export(&[image.hash()], Vec::new(), 1).unwrap()
        );
        drop((chain, image));
        std::fs::remove_dir_all(path).unwrap();
    }
}
