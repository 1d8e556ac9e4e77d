//! What every function of the library stands on: the border to C, what C owns, and vectors that C
//! sees.

pub(crate) mod border;
pub(crate) mod guard;
pub(crate) mod c_box;
pub(crate) mod c_vec;
pub(crate) mod places;
