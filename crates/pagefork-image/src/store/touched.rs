//! What runs of an image have touched first, which may be asked for before it is touched the next
//! time. It is no part of the image: who is told wrong waits longer, and nothing else.

use std::fs;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::base::error::ImageError;
use crate::base::hash::ContentHash;

use super::ImageStore;
use super::directory::{open_own, remove_file};

/// What has the records: files by the hashes of images.
const DIRECTORY: &str = "touched";

/// Images of which that is kept. The oldest record goes for a new one.
const RECORDS_MAX: usize = 1000;

/// Ranges of a record.
const RANGES_MAX: usize = 1 << 14;

/// Groups of a record: an image of a TiB has fewer.
const GROUPS_MAX: u64 = 1 << 26;

/// Bytes of a record: two numbers, a space and a line's end for each range.
const SIZE_MAX: u64 = RANGES_MAX as u64 * 42;

impl ImageStore {
    /// The groups that runs of an image have touched, in the order in which they are needed, as
    /// [`ImageStore::set_touched`] was told; none if nothing is known. The image need not be here.
    ///
    /// # Errors
    /// [`ImageError::Io`]. A record that is damaged counts as none.
    ///
    /// # Examples
    ///
    /// See [`ImageStore::set_touched`].
    pub fn touched(&self, image: ContentHash) -> Result<Vec<Range<u64>>, ImageError> {
        let path = self.touched_path(image);
        let mut text = String::new();
        match open_own(&path) {
            Ok(file) => match file.take(SIZE_MAX).read_to_string(&mut text) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => return Ok(Vec::new()),
                Err(error) => return Err(ImageError::of_path("read", &path)(error)),
            },
            Err(ImageError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        }
        Ok(parse(&text).unwrap_or_default())
    }

    /// Keeps what runs of an image have touched, in place of what was known. Of more than 16,384
    /// ranges the first are kept, and of more than 1,000 images the last. The image need not be here.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_image::{ContentHash, ImageStore};
    ///
    /// # let path = std::env::temp_dir().join(format!("pagefork-touched-{}", std::process::id()));
    /// let store = ImageStore::open(&path)?;
    /// let image = ContentHash::of(b"a manifest");
    /// assert_eq!(store.touched(image)?, []);
    /// store.set_touched(image, &[7..9, 0..1])?;
    /// assert_eq!(store.touched(image)?, [7..9, 0..1]);
    /// # std::fs::remove_dir_all(path).unwrap();
    /// # Ok::<(), pagefork_image::ImageError>(())
    /// ```
    pub fn set_touched(&self, image: ContentHash, groups: &[Range<u64>]) -> Result<(), ImageError> {
        let kept = &groups[..groups.len().min(RANGES_MAX)];
        let lines = kept.iter().map(|range| format!("{} {}\n", range.start, range.end));
        let mut file = self.directory.begin()?;
        file.append(lines.collect::<String>().as_bytes())?;
        // It is not brought to the disk: a record that is lost is made again.
        let _held = self.directory.lock_alone()?;
        self.directory.make_part(DIRECTORY)?;
        file.rename(&self.touched_path(image))?;
        forget_oldest(&self.path().join(DIRECTORY), RECORDS_MAX)
    }

    fn touched_path(&self, image: ContentHash) -> PathBuf {
        self.path().join(DIRECTORY).join(image.to_string())
    }
}

/// `None` if that is no record.
fn parse(text: &str) -> Option<Vec<Range<u64>>> {
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?;
        let (start, end) = (start.parse().ok()?, end.parse().ok()?);
        (start < end).then_some(start..end)
    };
    let ranges: Vec<Range<u64>> = text.lines().map(range).collect::<Option<_>>()?;
    // Whoever goes through them comes to an end.
    let sizes = ranges.iter().map(|range| range.end - range.start);
    let count = sizes.fold(0_u64, u64::saturating_add);
    (count <= GROUPS_MAX).then_some(ranges)
}

/// Removes files of a directory until there are `count` at most.
fn forget_oldest(path: &Path, count: usize) -> Result<(), ImageError> {
    let failed = || ImageError::of_path("list", path);
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let written = entry.metadata().and_then(|metadata| metadata.modified());
        files.push((written.unwrap_or(SystemTime::UNIX_EPOCH), entry.path()));
    }
    files.sort_unstable();
    let surplus = files.len().saturating_sub(count);
    for (_, path) in &files[..surplus] {
        remove_file(path).map_err(ImageError::of_path("remove", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(name: &str) -> (PathBuf, ImageStore) {
        let name = format!("pagefork-touched-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        (path.clone(), ImageStore::open(path).unwrap())
    }

    #[test]
    fn records_come_back_and_damaged_ones_count_as_none() {
        let (path, store) = store("damaged");
        let image = ContentHash::of(b"image");
        store.set_touched(image, &[5..6, 0..3]).unwrap();
        assert_eq!(store.touched(image).unwrap(), [5..6, 0..3]);
        assert!(store.collect().unwrap().images.is_empty(), "collection does not mind it");
        assert_eq!(store.touched(image).unwrap(), [5..6, 0..3]);
        for damaged in [
            &b"5 6\n0"[..],
            b"7 7\n",
            b"a b\n",
            b"\xff\xfe",
            b"1 2 3\n",
            b"-1 2\n",
            b"0 18446744073709551615\n",
        ] {
            fs::write(store.touched_path(image), damaged).unwrap();
            assert_eq!(store.touched(image).unwrap(), [], "{damaged:?}");
        }
        let many: Vec<Range<u64>> =
            (0..20_000).map(|at| u64::MAX - at - 1..u64::MAX - at).collect();
        store.set_touched(image, &many).unwrap();
        assert_eq!(store.touched(image).unwrap(), many[..RANGES_MAX]);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn the_oldest_records_go() {
        let (path, store) = store("oldest");
        let images: Vec<ContentHash> = (0..6u8).map(|at| ContentHash::of(&[at])).collect();
        for (age, image) in images.iter().enumerate() {
            store.set_touched(*image, &[0..1]).unwrap();
            let file = fs::File::options().write(true).open(store.touched_path(*image)).unwrap();
            let written = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(age as u64);
            file.set_modified(written).unwrap();
        }
        forget_oldest(&path.join(DIRECTORY), 2).unwrap();
        let left = images.iter().filter(|image| !store.touched(**image).unwrap().is_empty());
        assert_eq!(left.collect::<Vec<_>>(), [&images[4], &images[5]]);
        fs::remove_dir_all(path).unwrap();
    }
}
