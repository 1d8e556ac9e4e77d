//! Full images that share blocks of the disk with the image that they come from, where the file
//! system can: what they have as that one is not written, but put there by the system.

use std::fs::File;
use std::io;
use std::ops::Range;

use pagefork_layout::page::without;

use crate::chain::ImageChain;
use crate::file::manifest::Manifest;

/// Shorter runs are not worth a system call and an extent of their own.
const RUN_MIN: u64 = 64 << 10;

/// Bytes of one file that are those of another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SharedRun {
    from: u64,
    to: u64,
    size: u64,
}

impl SharedRun {
    /// Where it goes.
    pub(super) fn place(&self) -> Range<u64> {
        self.to..self.to + self.size
    }
}

/// Whether a file that is empty can share blocks with the root of a chain. It is empty afterwards.
///
/// # Errors
/// If it is not.
pub(super) fn can_share(file: &File, chain: &ImageChain) -> io::Result<bool> {
    chain.root().file().map_or(Ok(false), |root| os::can_share(file, root))
}

/// Puts what a full image has as the root of its chain into its file.
///
/// # Errors
/// If the file system cannot.
pub(super) fn share(file: &File, chain: &ImageChain, runs: &[SharedRun]) -> io::Result<()> {
    let root = chain.root().file().ok_or(io::ErrorKind::Unsupported)?;
    runs.iter().try_for_each(|run| os::share(root, file, run))
}

/// What a full image with the contents of a chain has as the root of that, with its data from
/// `data_start` on: ascending.
pub(super) fn runs(chain: &ImageChain, manifest: &Manifest, data_start: u64) -> Vec<SharedRun> {
    let root = chain.root();
    let mut runs = Vec::new();
    for (number, instance) in manifest.instances.iter().enumerate() {
        let Some(in_root) = chain.root_instance(number) else { continue };
        let changed: Vec<Range<u64>> =
            chain.overlay(number).into_iter().map(|run| run.slot).collect();
        for span in &instance.spans {
            for old in &root.manifest().instances[in_root].spans {
                let common =
                    span.slot().start.max(old.slot().start)..span.slot().end.min(old.slot().end);
                let same = without(&[common], &changed).into_iter();
                runs.extend(same.filter(|same| same.end - same.start >= RUN_MIN).map(|same| {
                    SharedRun {
                        from: root.data_start() + old.data_offset + (same.start - old.start),
                        to: data_start + span.data_offset + (same.start - span.start),
                        size: same.end - same.start,
                    }
                }));
            }
        }
    }
    runs
}

#[cfg(target_os = "linux")]
mod os {
    use std::fs::File;
    use std::io;

    use rustix::fs::{copy_file_range, ioctl_ficlone};

    use super::SharedRun;

    pub(super) fn can_share(file: &File, root: &File) -> io::Result<bool> {
        match ioctl_ficlone(file, root) {
            Ok(()) => file.set_len(0).map(|()| true),
            Err(_) => Ok(false),
        }
    }

    pub(super) fn share(root: &File, file: &File, run: &SharedRun) -> io::Result<()> {
        let (mut from, mut to) = (run.from, run.to);
        let end = to + run.size;
        while to < end {
            let left = usize::try_from(end - to).unwrap_or(usize::MAX);
            if copy_file_range(root, Some(&mut from), file, Some(&mut to), left)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
mod os {
    use std::fs::File;
    use std::io;

    use super::SharedRun;

    pub(super) fn can_share(_: &File, _: &File) -> io::Result<bool> {
        Ok(false)
    }

    pub(super) fn share(_: &File, _: &File, _: &SharedRun) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::sync::Arc;

    use super::*;
    use crate::base::limits::ImageLimits;
    use crate::file::draft::{ImageDraft, PageRuns};
    use crate::file::manifest::SavedInstance;
    use crate::file::reader::ImageReader;

    const PAGE: usize = 4096;

    /// In the file of a delta made whole, and in that of its root.
    #[test]
    fn shared_runs_have_equal_bytes_and_all_that_did_not_change() {
        let limits = ImageLimits::default();
        let instance = |end| SavedInstance { extents: vec![0..end], ..SavedInstance::default() };
        let manifest = |end| Manifest { instances: vec![instance(end)], ..Manifest::default() };
        let bytes = |pages: usize, seed: usize| -> Vec<u8> {
            (0..pages * PAGE).map(|at| (at / PAGE * 7 + at % 251 + seed) as u8).collect()
        };
        let files = std::cell::RefCell::new(Vec::new());
        let open = |draft: ImageDraft<'_>| {
            let mut file = Cursor::new(Vec::new());
            let written = draft.write(&mut file).unwrap();
            files.borrow_mut().push(file.get_ref().clone());
            let image = ImageReader::open(Box::new(file.into_inner()), &limits).unwrap();
            (Arc::new(image), written)
        };
        let source = PageRuns::new(vec![vec![(0, bytes(200, 1)), (2 << 20, bytes(300, 2))]]);
        let (root, _) = open(ImageDraft::new(manifest(8 << 20), &source));
        let root = ImageChain::new(vec![root], &limits).unwrap();
        // A page amid, one at an end, and so much more that the data begin elsewhere.
        let changed = PageRuns::new(vec![vec![
            (100 * PAGE as u64, bytes(1, 9)),
            (2 << 20, bytes(1, 9)),
            (6 << 20, bytes(400, 3)),
        ]]);
        let mut next = manifest(8 << 20);
        next.instances[0].parent_instance = Some(0);
        let (delta, _) = open(root.delta(next, &changed).unwrap());
        let chain = ImageChain::new(vec![delta, root.tip().clone()], &limits).unwrap();
        let (_, written) = open(chain.squash());

        let data_start = written.size - written.manifest.data_size;
        let runs = runs(&chain, &written.manifest, data_start);
        assert!(runs.is_sorted_by(|one, next| one.place().end <= next.to));
        let files = files.borrow();
        let part = |file: usize, at: u64, run: &SharedRun| {
            files[file][at as usize..][..run.size as usize].to_vec()
        };
        for run in &runs {
            assert_eq!(part(0, run.from, run), part(2, run.to, run), "{run:?}");
            assert!([run.from, run.to, run.size].iter().all(|at| at % PAGE as u64 == 0));
        }
        let shared: u64 = runs.iter().map(|run| run.size / PAGE as u64).sum();
        assert_eq!(shared, 200 + 300 - 2);
    }
}
