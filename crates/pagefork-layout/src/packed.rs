//! Lists of things of a fixed size, as bytes: written once, and read where they lie.

use std::marker::PhantomData;

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
