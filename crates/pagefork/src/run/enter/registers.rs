//! Arguments of calls whose values are in registers.

use pagefork_layout::link::function_import;
use pagefork_layout::module::ValType;

use crate::store::value::Val;

/// Arguments in registers: the others are 0.
#[doc(hidden)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Registers {
    pub(super) ints: [u64; function_import::INTS_MAX],
    pub(super) floats: [f64; function_import::FLOATS_MAX],
    int_count: usize,
    float_count: usize,
}

impl Registers {
    /// Adds an integer, if there is a register left.
    #[inline(always)]
    pub fn put_int(&mut self, value: u64) {
        if let Some(register) = self.ints.get_mut(self.int_count) {
            *register = value;
        }
        self.int_count += 1;
    }

    /// Adds a float, if there is a register left.
    #[inline(always)]
    pub fn put_float(&mut self, value: f64) {
        if let Some(register) = self.floats.get_mut(self.float_count) {
            *register = value;
        }
        self.float_count += 1;
    }

    /// These integers, and no floats.
    #[inline(always)]
    pub(crate) fn of_ints(ints: [u64; function_import::INTS_MAX]) -> Self {
        Self { ints, int_count: ints.len(), ..Self::default() }
    }

    /// The arguments of a function with parameters of these types; `None` if there are more or
    /// fewer of them, or one is of another type or no number.
    #[inline(always)]
    pub(crate) fn of_values(values: &[Val], types: &[ValType]) -> Option<Self> {
        if values.len() != types.len() {
            return None;
        }
        let mut registers = Self::default();
        for (value, ty) in values.iter().zip(types) {
            match (value, ty) {
                (Val::I32(value), ValType::I32) => registers.put_int(u64::from(*value as u32)),
                (Val::I64(value), ValType::I64) => registers.put_int(*value as u64),
                (Val::F32(bits), ValType::F32) => registers.put_float_bits(u64::from(*bits)),
                (Val::F64(bits), ValType::F64) => registers.put_float_bits(*bits),
                _ => return None,
            }
        }
        Some(registers)
    }

    /// Adds a float with these bits, if there is a register left.
    #[inline(always)]
    pub(crate) fn put_float_bits(&mut self, bits: u64) {
        self.put_float(f64::from_bits(bits));
    }

    /// Whether there are floats among them.
    #[inline(always)]
    pub(super) fn has_floats(&self) -> bool {
        self.float_count != 0
    }
}

/// Integers of `count` arguments, of which `int` gives each if it is one; `None` if one is none, or there
/// are too many. What is left is zero. All of them stay in registers: none is written to a place that is
/// found out as the program runs.
#[inline(always)]
pub(crate) fn ints_of(
    count: usize,
    mut int: impl FnMut(usize) -> Option<u64>,
) -> Option<[u64; function_import::INTS_MAX]> {
    let mut ints = [0; function_import::INTS_MAX];
    if count > ints.len() {
        return None;
    }
    for (index, place) in ints.iter_mut().enumerate() {
        if index >= count {
            break;
        }
        *place = int(index)?;
    }
    Some(ints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_given_in_order_and_zeros_behind() {
        let numbers = [7, u64::MAX, 3, 4, 5, 6];
        let given = |count| ints_of(count, |index| Some(numbers[index]));
        assert_eq!(given(0), Some([0; 5]));
        assert_eq!(given(2), Some([7, u64::MAX, 0, 0, 0]));
        assert_eq!(given(5), Some([7, u64::MAX, 3, 4, 5]));
        assert_eq!(given(6), None);
        assert_eq!(ints_of(2, |index| (index == 0).then_some(1)), None);
    }
}
