//! What every function of the library stands on: the border to C, and vectors that C sees.

pub(crate) mod border;
pub(crate) mod c_vec;
