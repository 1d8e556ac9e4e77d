//! Function references and host references, as 64-bit words.

/// A function reference as it lies in tables, globals and registers:
/// `ordinal << 32 | (index + 1)`; zero is null.
///
/// Ordinal 0 means "the owner of what contains this word": the instance
/// whose table, global or frame it is. So an image made at compile time is valid
/// in any slot. Any other ordinal names an instance of the same store, or
/// [`HOST_ORDINAL`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct FuncRef(pub u64);

/// The ordinal under which a store's host functions are referenced; the index is
/// then the place in the store's list of host functions.
pub const HOST_ORDINAL: u32 = u32::MAX;

impl FuncRef {
    /// The null reference.
    pub const NULL: Self = Self(0);

    /// A reference to function `index` of the instance `ordinal`.
    pub const fn new(ordinal: u32, index: u32) -> Self {
        Self((ordinal as u64) << 32 | (index as u64 + 1))
    }

    /// Whether this is the null reference.
    pub const fn is_null(self) -> bool {
        self.0 as u32 == 0
    }

    /// The instance, or 0 for the owner of the place the word was found in.
    pub const fn ordinal(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The function's index in its instance; `None` for null.
    pub const fn index(self) -> Option<u32> {
        (self.0 as u32).checked_sub(1)
    }

    /// The same reference with its owner written out: what leaves a place that
    /// belongs to `owner`.
    pub const fn absolute(self, owner: u32) -> Self {
        if !self.is_null() && self.ordinal() == 0 {
            Self((owner as u64) << 32 | self.0)
        } else {
            self
        }
    }

    /// The same reference as it is stored in a place that belongs to `owner`.
    /// The word must be absolute.
    pub const fn relative(self, owner: u32) -> Self {
        if self.ordinal() == owner { Self(self.0 as u32 as u64) } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_survives_moving_between_owners() {
        let own = FuncRef::new(0, 7);
        assert_eq!(own.absolute(3), FuncRef::new(3, 7));
        assert_eq!(own.absolute(3).relative(3), own);
        assert_eq!(own.absolute(3).relative(4), FuncRef::new(3, 7));
        assert_eq!(FuncRef::NULL.absolute(3), FuncRef::NULL);
        assert_eq!(FuncRef::NULL.relative(3), FuncRef::NULL);
        assert_eq!(FuncRef::new(HOST_ORDINAL, 0).absolute(3).index(), Some(0));
    }
}
