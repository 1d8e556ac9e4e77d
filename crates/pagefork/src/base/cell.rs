//! The unit in which host and guest pass values.

/// The unit in which host and guest pass values: 16 bytes, of which narrower
/// values take the first, zero-extended to 8.
///
/// Aligned to 8, not 16: cells may lie wherever words may.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct Cell {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

const _: () = assert!(size_of::<Cell>() == pagefork_layout::CELL_SIZE as usize);

impl Cell {
    pub(crate) const fn from_u64(low: u64) -> Self {
        Self { low, high: 0 }
    }

    pub(crate) const fn from_u128(bits: u128) -> Self {
        Self { low: bits as u64, high: (bits >> 64) as u64 }
    }

    pub(crate) const fn u128(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }
}
