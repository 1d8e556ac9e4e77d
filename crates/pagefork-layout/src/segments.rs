//! The data segments of a module, in few bytes each: linkers make tens of thousands of them, and what a captured
//! program goes on from needs none.

use crate::module::{ConstExpr, DataSegment, SegmentMode};
use crate::packed::Packed;

/// The data segments of a module, in their order.
///
/// # Examples
///
/// ```
/// use pagefork_layout::module::{ConstExpr, DataSegment, SegmentMode};
/// use pagefork_layout::segments::DataSegments;
///
/// let mode = SegmentMode::Active { target: 0, offset: ConstExpr::Bits(4096) };
/// let at_global = SegmentMode::Active { target: 0, offset: ConstExpr::Global(1) };
/// let segments = [mode, SegmentMode::Passive, at_global];
/// let segments = segments.map(|mode| DataSegment { mode, bytes: 0..7 });
/// let list: DataSegments = segments.iter().cloned().collect();
/// assert!(list.iter().eq(segments));
/// assert!(list.computed_offsets().eq([&ConstExpr::Global(1)]));
/// assert_eq!((list.len(), list.get(3)), (3, None));
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "SegmentParts", into = "SegmentParts"))]
pub struct DataSegments {
    /// A [`Record`] of each. Invariant: each means something, with its offset below if that is computed.
    records: Vec<u8>,
    /// Offsets that are no numbers, by the index of their segment, ascending.
    computed: Vec<(u32, ConstExpr)>,
}

/// What is written of it.
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
struct SegmentParts {
    #[serde(with = "crate::bytes")]
    records: Box<[u8]>,
    computed: Vec<(u32, ConstExpr)>,
}

#[cfg(feature = "serde")]
impl From<DataSegments> for SegmentParts {
    fn from(segments: DataSegments) -> Self {
        Self { records: segments.records.into(), computed: segments.computed }
    }
}

#[cfg(feature = "serde")]
impl TryFrom<SegmentParts> for DataSegments {
    type Error = &'static str;

    fn try_from(parts: SegmentParts) -> Result<Self, Self::Error> {
        let segments = Self { records: parts.records.into(), computed: parts.computed };
        let is_whole = segments.records.len().is_multiple_of(Record::SIZE)
            && (0..segments.len()).all(|index| segments.get(index).is_some());
        let is_computed = |index: &u32| {
            let record = segments.record(*index as usize);
            record.is_some_and(|record| matches!(record.place, SegmentPlace::Computed))
        };
        // No segment has the others, which nobody would look at.
        let indices = segments.computed.iter().map(|(index, _)| index);
        match is_whole && indices.clone().all(is_computed) && indices.is_sorted_by(|a, b| a < b) {
            true => Ok(segments),
            false => Err("data segments that mean nothing"),
        }
    }
}

/// What is said of a segment in bytes of a fixed number.
struct Record {
    place: SegmentPlace,
    /// Index of the memory; 0 where there is none.
    target: u32,
    /// Where it lies there, if that is a number.
    offset: u64,
    start: u32,
    end: u32,
}

#[derive(Clone, Copy)]
enum SegmentPlace {
    Passive,
    Declared,
    At,
    Computed,
}

impl Packed for Record {
    type Bytes = [u8; 21];
    const SIZE: usize = 21;

    fn pack(&self) -> [u8; 21] {
        let mut bytes = [0; 21];
        bytes[0] = self.place as u8;
        bytes[1..5].copy_from_slice(&self.target.to_le_bytes());
        bytes[5..13].copy_from_slice(&self.offset.to_le_bytes());
        bytes[13..17].copy_from_slice(&self.start.to_le_bytes());
        bytes[17..].copy_from_slice(&self.end.to_le_bytes());
        bytes
    }

    fn unpack(bytes: [u8; 21]) -> Option<Self> {
        const PLACES: [SegmentPlace; 4] = [
            SegmentPlace::Passive,
            SegmentPlace::Declared,
            SegmentPlace::At,
            SegmentPlace::Computed,
        ];
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        Some(Self {
            place: *PLACES.get(usize::from(bytes[0]))?,
            target: word(1),
            offset: u64::from(word(9)) << 32 | u64::from(word(5)),
            start: word(13),
            end: word(17),
        })
    }
}

impl DataSegments {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.records.len() / Record::SIZE
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Adds one.
    pub fn push(&mut self, segment: DataSegment) {
        let index = self.len() as u32;
        let (place, target, offset) = match segment.mode {
            SegmentMode::Passive => (SegmentPlace::Passive, 0, 0),
            SegmentMode::Declared => (SegmentPlace::Declared, 0, 0),
            SegmentMode::Active { target, offset } => match offset {
                ConstExpr::Bits(bits) if u64::try_from(bits).is_ok() => {
                    (SegmentPlace::At, target, bits as u64)
                }
                offset => {
                    self.computed.push((index, offset));
                    (SegmentPlace::Computed, target, 0)
                }
            },
        };
        let (start, end) = (segment.bytes.start, segment.bytes.end);
        let record = Record { place, target, offset, start, end };
        self.records.extend_from_slice(&record.pack());
    }

    /// The segment of that index, if there is one.
    pub fn get(&self, index: usize) -> Option<DataSegment> {
        let Record { place, target, offset, start, end } = self.record(index)?;
        let mode = match place {
            SegmentPlace::Passive => SegmentMode::Passive,
            SegmentPlace::Declared => SegmentMode::Declared,
            SegmentPlace::At => {
                SegmentMode::Active { target, offset: ConstExpr::Bits(offset.into()) }
            }
            SegmentPlace::Computed => {
                let of = |(segment, _): &(u32, ConstExpr)| *segment as usize;
                let at = self.computed.binary_search_by_key(&index, of).ok()?;
                SegmentMode::Active { target, offset: self.computed[at].1.clone() }
            }
        };
        Some(DataSegment { mode, bytes: start..end })
    }

    fn record(&self, index: usize) -> Option<Record> {
        let at = index.checked_mul(Record::SIZE)?;
        Record::unpack(*self.records.get(at..)?.first_chunk()?)
    }

    /// The last one.
    pub fn last(&self) -> Option<DataSegment> {
        self.get(self.len().checked_sub(1)?)
    }

    /// All of them, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = DataSegment> {
        (0..self.len()).map(|index| self.get(index).expect("each record means something"))
    }

    /// The offsets that are no numbers.
    pub fn computed_offsets(&self) -> impl Iterator<Item = &ConstExpr> {
        self.computed.iter().map(|(_, offset)| offset)
    }
}

impl FromIterator<DataSegment> for DataSegments {
    fn from_iter<I: IntoIterator<Item = DataSegment>>(segments: I) -> Self {
        let mut list = Self::default();
        segments.into_iter().for_each(|segment| list.push(segment));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "serde")]
    fn what_means_nothing_is_no_list() {
        let offset = ConstExpr::Global(3);
        let mode = SegmentMode::Active { target: 1, offset };
        let list: DataSegments = [DataSegment { mode, bytes: 1..2 }].into_iter().collect();
        let parts = || SegmentParts::from(list.clone());
        assert!(DataSegments::try_from(parts()).is_ok_and(|read| read == list));
        let changed = |change: &dyn Fn(&mut SegmentParts)| {
            let mut parts = parts();
            change(&mut parts);
            DataSegments::try_from(parts)
        };
        assert!(changed(&|parts| parts.computed.clear()).is_err());
        for more in [0, 1, 2] {
            assert!(changed(&|parts| parts.computed.push((more, ConstExpr::Global(9)))).is_err());
        }
        assert!(changed(&|parts| parts.computed.insert(0, (0, ConstExpr::Global(9)))).is_err());
        assert!(changed(&|parts| parts.records[0] = 4).is_err());
        assert!(changed(&|parts| parts.records = parts.records[..20].into()).is_err());
    }

    #[test]
    fn offsets_of_more_than_64_bits_are_kept() {
        let mode = SegmentMode::Active { target: 0, offset: ConstExpr::Bits(1 << 64) };
        let segment = DataSegment { mode, bytes: 0..0 };
        let list: DataSegments = [segment.clone()].into_iter().collect();
        assert_eq!(list.last(), Some(segment));
    }
}
