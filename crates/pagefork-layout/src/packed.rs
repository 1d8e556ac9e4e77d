//! Lists of things of a fixed size, as bytes: written once, and read where they lie.

use std::marker::PhantomData;

use crate::code::{CodeKind, CodeRange};
use crate::trap::TrapCode;

/// Something of a fixed size, little-endian.
pub trait Packed: Sized {
    /// Its bytes.
    type Bytes: AsRef<[u8]> + for<'a> TryFrom<&'a [u8]>;
    /// How many they are.
    const SIZE: usize;

    /// Its bytes.
    fn pack(&self) -> Self::Bytes;
    /// What has these bytes, if anything does.
    fn unpack(bytes: Self::Bytes) -> Option<Self>;
}

impl Packed for u32 {
    type Bytes = [u8; 4];
    const SIZE: usize = 4;

    fn pack(&self) -> [u8; 4] {
        self.to_le_bytes()
    }

    fn unpack(bytes: [u8; 4]) -> Option<Self> {
        Some(Self::from_le_bytes(bytes))
    }
}

impl Packed for (u32, u32) {
    type Bytes = [u8; 8];
    const SIZE: usize = 8;

    fn pack(&self) -> [u8; 8] {
        (u64::from(self.1) << 32 | u64::from(self.0)).to_le_bytes()
    }

    fn unpack(bytes: [u8; 8]) -> Option<Self> {
        let both = u64::from_le_bytes(bytes);
        Some((both as u32, (both >> 32) as u32))
    }
}

impl Packed for (u32, TrapCode) {
    type Bytes = [u8; 5];
    const SIZE: usize = 5;

    fn pack(&self) -> [u8; 5] {
        let [a, b, c, d] = self.0.to_le_bytes();
        [a, b, c, d, self.1 as u8]
    }

    fn unpack([a, b, c, d, code]: [u8; 5]) -> Option<Self> {
        Some((u32::from_le_bytes([a, b, c, d]), TrapCode::from_number(code)?))
    }
}

/// Start and size, a number of the kind, and what the kind is of.
impl Packed for CodeRange {
    type Bytes = [u8; 13];
    const SIZE: usize = 13;

    fn pack(&self) -> [u8; 13] {
        let (kind, of) = match self.kind {
            CodeKind::Function(function) => (0, function),
            CodeKind::Checked(function) => (1, function),
            CodeKind::Entry(ty) => (2, ty),
            CodeKind::DirectEntry(ty) => (3, ty),
            CodeKind::Foreign(ty) => (4, ty),
            CodeKind::Cross(ty) => (5, ty),
            CodeKind::Throw => (6, 0),
            CodeKind::Trap(code) => (7, code as u32),
            CodeKind::Copy(memory) => (8, memory),
            CodeKind::Fill(memory) => (9, memory),
        };
        let mut bytes = [0; 13];
        bytes[..4].copy_from_slice(&self.start.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8] = kind;
        bytes[9..].copy_from_slice(&of.to_le_bytes());
        bytes
    }

    fn unpack(bytes: [u8; 13]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let of = word(9);
        let kind = match bytes[8] {
            0 => CodeKind::Function(of),
            1 => CodeKind::Checked(of),
            2 => CodeKind::Entry(of),
            3 => CodeKind::DirectEntry(of),
            4 => CodeKind::Foreign(of),
            5 => CodeKind::Cross(of),
            6 if of == 0 => CodeKind::Throw,
            7 => CodeKind::Trap(TrapCode::from_number(u8::try_from(of).ok()?)?),
            8 => CodeKind::Copy(of),
            9 => CodeKind::Fill(of),
            _ => return None,
        };
        Some(Self { start: word(0), size: word(4), kind })
    }
}

/// The bytes of a list.
pub fn pack<T: Packed>(list: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(list.len() * T::SIZE);
    for element in list {
        bytes.extend_from_slice(element.pack().as_ref());
    }
    bytes
}

/// A list in bytes that lie elsewhere. Looking something up reads what lies on the way to it,
/// allocates nothing, and so can be done in a signal handler.
#[derive(Clone, Copy, Debug)]
pub struct PackedList<'a, T> {
    bytes: &'a [u8],
    element: PhantomData<T>,
}

impl<'a, T: Packed> PackedList<'a, T> {
    /// The list that [`pack`] has made these bytes of. What they have beyond whole elements is no
    /// part of it.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, element: PhantomData }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / T::SIZE
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at an index, if there is one and its bytes mean something.
    pub fn get(&self, index: usize) -> Option<T> {
        let start = index.checked_mul(T::SIZE)?;
        let bytes = self.bytes.get(start..start.checked_add(T::SIZE)?)?;
        T::unpack(bytes.try_into().ok()?)
    }

    /// All elements in order; `None` for one whose bytes mean nothing.
    pub fn iter(&self) -> impl Iterator<Item = Option<T>> + use<'a, T> {
        let list = Self { bytes: self.bytes, element: PhantomData };
        (0..list.len()).map(move |index| list.get(index))
    }

    /// Number of elements, the first ones, of which `comes_before` holds: of a list in which these
    /// stand together. What means nothing comes before nothing.
    pub fn partition_point(&self, comes_before: impl Fn(&T) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.get(middle).is_some_and(|element| comes_before(&element)) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_code_are_told_apart() {
        let of = [0, 7, u32::MAX];
        let kinds = of.into_iter().flat_map(|of| {
            let traps = TrapCode::ALL.map(CodeKind::Trap);
            let others = [
                CodeKind::Function(of),
                CodeKind::Checked(of),
                CodeKind::Entry(of),
                CodeKind::DirectEntry(of),
                CodeKind::Foreign(of),
                CodeKind::Cross(of),
                CodeKind::Throw,
                CodeKind::Copy(of),
                CodeKind::Fill(of),
            ];
            others.into_iter().chain(traps)
        });
        for kind in kinds {
            let range = CodeRange { start: 0x0102_0304, size: 0xff00_0001, kind };
            assert_eq!(CodeRange::unpack(range.pack()), Some(range));
        }
        for (kind, of) in [(10, 0), (6, 1), (7, 0), (7, 256)] {
            let mut bytes = CodeRange { start: 0, size: 1, kind: CodeKind::Throw }.pack();
            bytes[8] = kind;
            bytes[9..].copy_from_slice(&u32::to_le_bytes(of));
            assert_eq!(CodeRange::unpack(bytes), None);
        }
    }

    #[test]
    fn lists_are_searched_where_they_lie() {
        let list: Vec<u32> = (0..100).map(|i| 3 * i).collect();
        let bytes = pack(&list);
        let packed = PackedList::<u32>::new(&bytes);
        assert_eq!((packed.len(), packed.get(7), packed.get(100)), (100, Some(21), None));
        assert!(packed.iter().eq(list.iter().copied().map(Some)));
        for wanted in 0..310 {
            let found = packed.partition_point(|element| *element < wanted);
            assert_eq!(found, list.partition_point(|element| *element < wanted));
        }
        assert_eq!(PackedList::<u32>::new(&bytes[..7]).len(), 1);
        assert!(PackedList::<u32>::new(&[]).is_empty());
        let nothing = PackedList::<(u32, TrapCode)>::new(&[1, 0, 0, 0, 0xff]);
        assert_eq!((nothing.get(0), nothing.partition_point(|_| true)), (None, 0));
    }
}
