//! Exceptions lie in the *exceptions zone* of the instance that threw them: a
//! header, then blocks without a gap, counted in units of `UNIT` bytes.
//!
//! ```text
//!  zone                                                        end            zone's end
//!  | header | exception: head, payload cells | free | exception | never used ... |
//! ```
//!
//! A zone of zeros is an empty one, so images hold nothing of it.

/// Bytes of a unit: a cell's.
pub const UNIT: u64 = 16;

/// Largest zone in bytes: a reference has 16 bits for the unit.
pub const ZONE_SIZE_MAX: u64 = UNIT << 16;

/// The header of a zone: `u32`s at these offsets.
pub mod zone {
    /// The unit behind the last block; 0 in a zone that was never used.
    pub const END: u32 = 0;
    /// The block from which on room is looked for, once the zone is full.
    pub const CURSOR: u32 = 4;
    /// The latest stamp.
    pub const STAMP: u32 = 8;
    /// Units of the header.
    pub const UNITS: u32 = 1;
}

/// The head of a block, an exception's or free, at these offsets; the payload of
/// the exception follows, a cell a value. References in it are relative to the
/// zone's instance.
pub mod block {
    /// How many units it takes, the head included: a `u16`.
    pub const UNITS: u32 = 0;
    /// What tells it from exceptions that lay here before: a `u16`; 0 if it is
    /// free.
    pub const STAMP: u32 = 2;
    /// Bits of a `u32`: [`REFERENCED`] and [`HELD`].
    pub const FLAGS: u32 = 4;
    /// Ordinal of the instance that defines its tag: a `u32`, 0 for the zone's.
    pub const TAG_ORDINAL: u32 = 8;
    /// The tag's number among those that this instance defines: a `u32`.
    pub const TAG_INDEX: u32 = 12;
    /// Units of the head.
    pub const HEAD_UNITS: u32 = 1;

    /// Flag: a guest got a reference to it, so that it must be searched for
    /// before it can be freed.
    pub const REFERENCED: u32 = 1;
    /// Flag: the host got a reference to it; it stays.
    pub const HELD: u32 = 2;
}

/// A reference to an exception as it lies in tables, globals and registers:
/// `ordinal << 32 | stamp << 16 | unit`; zero is null. The ordinal means what it
/// means in a [`FuncRef`](crate::reference::FuncRef).
///
/// The stamp is never zero, so that small numbers look like no reference.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct ExceptionRef(pub u64);

impl ExceptionRef {
    /// The null reference.
    pub const NULL: Self = Self(0);

    /// The exception at `unit` of the zone of the instance `ordinal`.
    pub const fn new(ordinal: u32, stamp: u16, unit: u16) -> Self {
        Self((ordinal as u64) << 32 | (stamp as u64) << 16 | unit as u64)
    }

    /// The instance, or 0 for the owner of the place the word was found in.
    pub const fn ordinal(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The stamp of the exception.
    pub const fn stamp(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The unit at which the exception lies.
    pub const fn unit(self) -> u16 {
        self.0 as u16
    }

    /// The same reference with its owner written out: what leaves a place that
    /// belongs to `owner`.
    pub const fn absolute(self, owner: u32) -> Self {
        Self(crate::reference::FuncRef(self.0).absolute(owner).0)
    }

    /// The same reference as it is stored in a place that belongs to `owner`.
    /// The word must be absolute.
    pub const fn relative(self, owner: u32) -> Self {
        Self(crate::reference::FuncRef(self.0).relative(owner).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_has_all_its_parts_and_an_owner() {
        let own = ExceptionRef::new(0, 0xffff, 0x1234);
        let of_three = ExceptionRef::new(3, 0xffff, 0x1234);
        assert_eq!(own.absolute(3), of_three);
        assert_eq!(of_three.relative(3), own);
        assert_eq!((of_three.ordinal(), of_three.stamp(), of_three.unit()), (3, 0xffff, 0x1234));
        assert_eq!(ExceptionRef::NULL.absolute(3), ExceptionRef::NULL);
    }
}
