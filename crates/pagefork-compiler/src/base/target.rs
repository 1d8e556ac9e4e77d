//! What machine code needs of a processor.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::error::CompileError;

/// What machine code needs of a processor: a level of x86-64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum CpuLevel {
    /// x86-64-v2: SSE4.2 and POPCNT.
    V2,
    /// x86-64-v3: AVX2, BMI, FMA, LZCNT and MOVBE besides.
    V3,
}

impl CpuLevel {
    /// The highest level that this machine has.
    ///
    /// # Errors
    /// [`CompileError::Target`] if it has none of them.
    #[cfg(target_arch = "x86_64")]
    pub fn of_this_machine() -> Result<Self, CompileError> {
        use std::is_x86_feature_detected as has;
        if !(has!("sse3") && has!("ssse3") && has!("sse4.1") && has!("sse4.2") && has!("popcnt")) {
            let lacks = "it lacks SSE4.2 or POPCNT (x86-64-v2 is needed)";
            return Err(CompileError::Target(lacks.to_owned()));
        }
        let vectors = has!("avx") && has!("avx2") && has!("fma");
        let bits = has!("bmi1") && has!("bmi2") && has!("lzcnt") && has!("movbe");
        Ok(if vectors && bits { Self::V3 } else { Self::V2 })
    }

    /// Elsewhere code can be made, though not run: for the common level.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn of_this_machine() -> Result<Self, CompileError> {
        Ok(Self::V3)
    }

    /// The level with this name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        [Self::V2, Self::V3].into_iter().find(|level| level.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V2 => "x86-64-v2",
            Self::V3 => "x86-64-v3",
        }
    }
}

impl fmt::Display for CpuLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
