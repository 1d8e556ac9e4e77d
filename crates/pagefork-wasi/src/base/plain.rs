//! How flags and paths are serialized: as numbers and bytes, and only known flags are taken.

use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::base::abi::{FdFlags, Rights};

impl Serialize for Rights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bits().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Rights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = u64::deserialize(deserializer)?;
        Rights::from_bits(bits).ok_or_else(|| unknown("rights", bits))
    }
}

impl Serialize for FdFlags {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bits().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for FdFlags {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = u16::deserialize(deserializer)?;
        FdFlags::from_bits(bits).ok_or_else(|| unknown("flags of a descriptor", bits))
    }
}

fn unknown<E: Error>(what: &str, bits: impl Display) -> E {
    E::custom(format_args!("{bits} has bits that are no {what}"))
}

/// For `#[serde(with = "path_bytes")]`: a path as bytes, since it need not be UTF-8.
pub(crate) mod path_bytes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        path: &std::path::Path,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PathBuf, D::Error> {
        Ok(OsString::from_vec(Vec::deserialize(deserializer)?).into())
    }
}
