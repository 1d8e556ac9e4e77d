//! How long lists are serialised, for `#[serde(with = "...")]`: as bytes, which
//! are copied, and not as sequences, whose elements are visited one by one.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes bytes.
///
/// # Errors
/// Those of the serialiser.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// Reads what [`serialize`] wrote.
///
/// # Errors
/// Those of the deserialiser.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<[u8]>, D::Error> {
    deserializer.deserialize_byte_buf(Bytes(|bytes: &[u8]| Some(bytes.into())))
}

/// Reads bytes as what a function makes of them, if it can.
struct Bytes<F>(F);

impl<T, F: Fn(&[u8]) -> Option<T>> Visitor<'_> for Bytes<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<T, E> {
        self.0(bytes).ok_or_else(|| E::custom("a list whose bytes mean nothing"))
    }
}

/// Lists of bytes with names.
pub mod named {
    use super::*;

    #[derive(Serialize)]
    struct Written<'a>(&'a str, #[serde(with = "super")] &'a [u8]);

    #[derive(Deserialize)]
    struct Read(String, #[serde(with = "super")] Box<[u8]>);

    /// Writes a list.
    ///
    /// # Errors
    /// Those of the serialiser.
    pub fn serialize<S: Serializer>(
        list: &[(String, Box<[u8]>)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut sequence = serializer.serialize_seq(Some(list.len()))?;
        for (name, bytes) in list {
            sequence.serialize_element(&Written(name, bytes))?;
        }
        sequence.end()
    }

    /// Reads what [`serialize`] wrote.
    ///
    /// # Errors
    /// Those of the deserialiser.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(String, Box<[u8]>)>, D::Error> {
        let list = Vec::<Read>::deserialize(deserializer)?;
        Ok(list.into_iter().map(|Read(name, bytes)| (name, bytes)).collect())
    }
}

/// Lists of things of a fixed size, little-endian.
pub mod packed {
    use super::*;
    use crate::packed::{Packed, pack};

    /// Writes a list.
    ///
    /// # Errors
    /// Those of the serialiser.
    pub fn serialize<T: Packed, S: Serializer>(
        list: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&pack(list))
    }

    /// Reads what [`serialize`] wrote.
    ///
    /// # Errors
    /// Those of the deserialiser; if the bytes are no such list.
    pub fn deserialize<'de, T: Packed, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let unpack = |bytes: &[u8]| {
            let elements = bytes.chunks_exact(T::SIZE);
            if !elements.remainder().is_empty() {
                return None;
            }
            elements.map(|bytes| T::unpack(bytes.try_into().ok()?)).collect()
        };
        deserializer.deserialize_bytes(Bytes(unpack))
    }
}
