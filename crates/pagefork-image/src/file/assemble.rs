//! Writing a file: data first, group by group, then what was learned from them.

use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;

use crate::base::error::ImageError;
use crate::file::header::ImageHeader;
use crate::file::plan;
use crate::tree::{self, ChainingValue, GroupTree};

/// Writes the data of an image, and hashes them on the way. Groups of zeros become holes.
pub(crate) struct DataWriter<W> {
    out: W,
    /// Where the next byte of `out` goes.
    position: u64,
    data_start: u64,
    data_size: u64,
    leaves: Vec<ChainingValue>,
    /// Ranges of `out` that somebody else fills: ascending, apart.
    left_out: Vec<Range<u64>>,
}

impl<W: Write + Seek> DataWriter<W> {
    /// Writes into `out`, which is empty.
    pub(crate) fn new(out: W, data_start: u64, data_size: u64) -> Self {
        let (leaves, left_out) = (Vec::new(), Vec::new());
        Self { out, position: 0, data_start, data_size, leaves, left_out }
    }

    /// Leaves these ranges of `out` to somebody else, but for parts of groups and the last group:
    /// ascending, apart.
    pub(crate) fn leave_out(&mut self, ranges: Vec<Range<u64>>) {
        self.left_out = ranges;
    }

    /// The number of the group that is next.
    pub(crate) fn next(&self) -> u64 {
        self.leaves.len() as u64
    }

    /// Bytes of the group that is next; 0 behind the last one.
    pub(crate) fn next_size(&self) -> u64 {
        match self.next() < tree::group_count(self.data_size) {
            true => tree::group_size(self.data_size, self.next()),
            false => 0,
        }
    }

    /// Writes the next group.
    ///
    /// # Errors
    /// If `out` refuses it.
    ///
    /// # Panics
    /// If the group has another size than is next.
    pub(crate) fn push(&mut self, group: &[u8]) -> Result<(), ImageError> {
        assert_eq!(group.len() as u64, self.next_size(), "groups come whole and in order");
        let leaf = self.put(self.next(), group)?;
        self.leaves.push(leaf);
        Ok(())
    }

    /// Writes any group, and returns what stands for it.
    ///
    /// # Errors
    /// If `out` refuses it.
    pub(crate) fn put(&mut self, index: u64, group: &[u8]) -> Result<ChainingValue, ImageError> {
        // The last byte gives the file its length.
        let is_last = index + 1 == tree::group_count(self.data_size);
        let place = self.data_start + index * tree::GROUP_SIZE;
        let end = place + group.len() as u64;
        let behind = self.left_out.partition_point(|range| range.start <= place);
        let is_left_out = behind > 0 && end <= self.left_out[behind - 1].end;
        if is_last || !is_left_out && !plan::is_zero(group) {
            self.write(place, group, "write the pages of")?;
        }
        Ok(tree::hash_group(self.data_size, index, group))
    }

    /// The tree over all groups.
    ///
    /// # Panics
    /// If there are groups left to write.
    pub(crate) fn tree(&mut self) -> GroupTree {
        GroupTree::new(self.data_size, std::mem::take(&mut self.leaves))
    }

    /// Writes all that stands before the data, the header last.
    ///
    /// # Errors
    /// If `out` refuses it.
    pub(crate) fn finish(
        mut self,
        header: &ImageHeader,
        manifest: &[u8],
        signatures: &[u8],
        tree: &GroupTree,
    ) -> Result<W, ImageError> {
        debug_assert_eq!(
            (header.data_start(), header.data_size),
            (self.data_start, self.data_size)
        );
        let mut head = manifest.to_vec();
        head.extend_from_slice(signatures);
        head.extend_from_slice(&tree.index());
        head.resize((self.data_start - ImageHeader::SIZE) as usize, 0);
        self.write(ImageHeader::SIZE, &head, "write the manifest of")?;
        self.write(0, &header.encode(signatures), "write the header of")?;
        self.out.flush().map_err(ImageError::io("write an image"))?;
        Ok(self.out)
    }

    /// Reads a group that was written before.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if there is none with as many bytes; [`ImageError::Io`].
    #[cfg(feature = "transport")]
    pub(crate) fn read_back(&mut self, index: u64, group: &mut [u8]) -> Result<(), ImageError>
    where
        W: std::io::Read,
    {
        if index >= self.next() || tree::group_size(self.data_size, index) != group.len() as u64 {
            return Err(ImageError::damaged("the stream names pages that it has not had"));
        }
        let place = self.data_start + index * tree::GROUP_SIZE;
        // Where no byte was written so far, there is a hole; it has no end yet.
        group.fill(0);
        let read = || {
            let mut rest = group;
            self.out.seek(SeekFrom::Start(place))?;
            while !rest.is_empty() {
                match self.out.read(rest) {
                    Ok(0) => break,
                    Ok(count) => rest = &mut rest[count..],
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            self.out.stream_position()
        };
        self.position = read().map_err(ImageError::io("read pages that were received"))?;
        Ok(())
    }

    fn write(&mut self, place: u64, bytes: &[u8], action: &str) -> Result<(), ImageError> {
        let failed = || ImageError::io(format!("{action} an image"));
        if place != self.position {
            self.out.seek(SeekFrom::Start(place)).map_err(failed())?;
        }
        self.out.write_all(bytes).map_err(failed())?;
        self.position = place + bytes.len() as u64;
        Ok(())
    }
}
