//! Arguments of calls whose values are in registers.

use pagefork_layout::link::function_import;

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
}
