//! Reasons for which a guest traps.

use std::fmt;

/// Why a guest trapped. The numbers are part of the code-image ABI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[repr(u8)]
pub enum TrapCode {
    /// The guest's stack zone is used up.
    StackOverflow = 1,
    /// A memory access at or beyond the memory's size.
    MemoryOutOfBounds = 2,
    /// A table access at or beyond the table's length.
    TableOutOfBounds = 3,
    /// `call_indirect` of a null element.
    IndirectCallToNull = 4,
    /// `call_indirect` of a function of another type.
    BadSignature = 5,
    /// An integer overflow: `INT_MIN / -1`, or a float out of an integer's range.
    IntegerOverflow = 6,
    /// An integer division or remainder by zero.
    IntegerDivisionByZero = 7,
    /// A NaN converted to an integer.
    BadConversionToInteger = 8,
    /// `unreachable` was executed.
    Unreachable = 9,
    /// Another thread interrupted the guest, or its deadline passed.
    Interrupt = 10,
    /// The guest used up its fuel.
    OutOfFuel = 11,
    /// A null reference where one was needed.
    NullReference = 12,
    /// The pages of the instance's image could not be read.
    ImageUnreadable = 13,
    /// `call_ref` of null.
    NullFunctionReference = 14,
    /// `throw_ref` of null.
    NullExceptionReference = 15,
    /// The instance's zone for exceptions is full of exceptions in use.
    TooManyExceptions = 16,
    /// A page of the instance's image is absent, and did not come.
    PageAbsent = 17,
}

impl TrapCode {
    /// All codes, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::StackOverflow,
        Self::MemoryOutOfBounds,
        Self::TableOutOfBounds,
        Self::IndirectCallToNull,
        Self::BadSignature,
        Self::IntegerOverflow,
        Self::IntegerDivisionByZero,
        Self::BadConversionToInteger,
        Self::Unreachable,
        Self::Interrupt,
        Self::OutOfFuel,
        Self::NullReference,
        Self::ImageUnreadable,
        Self::NullFunctionReference,
        Self::NullExceptionReference,
        Self::TooManyExceptions,
        Self::PageAbsent,
    ];

    /// The code with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

impl fmt::Display for TrapCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StackOverflow => "call stack exhausted",
            Self::MemoryOutOfBounds => "out of bounds memory access",
            Self::TableOutOfBounds => "undefined element: out of bounds table access",
            Self::IndirectCallToNull => "uninitialized element",
            Self::BadSignature => "indirect call type mismatch",
            Self::IntegerOverflow => "integer overflow",
            Self::IntegerDivisionByZero => "integer divide by zero",
            Self::BadConversionToInteger => "invalid conversion to integer",
            Self::Unreachable => "wasm `unreachable` instruction executed",
            Self::Interrupt => "interrupted",
            Self::OutOfFuel => "all fuel consumed",
            Self::NullReference => "null reference",
            Self::ImageUnreadable => "a page of the instance's image could not be read",
            Self::NullFunctionReference => "null function reference",
            Self::NullExceptionReference => "null exception reference",
            Self::TooManyExceptions => "no room for another exception",
            Self::PageAbsent => "a page of the instance's image did not come",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for code in TrapCode::ALL {
            assert_eq!(TrapCode::from_number(code as u8), Some(code));
        }
        assert_eq!(TrapCode::from_number(0), None);
        assert_eq!(TrapCode::from_number(200), None);
    }
}
