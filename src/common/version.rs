//! The version of a JSON file that the program writes for itself.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The field `version` with the number 1. Another number is an error that names both.
///
/// It is the first field of its struct, so that a file of another version is refused by its version, and not
/// by a field that the version lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Version1;

impl Serialize for Version1 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(1)
    }
}

impl<'de> Deserialize<'de> for Version1 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            1 => Ok(Self),
            found => Err(D::Error::custom(format!("its version is {found}, and this program knows version 1 only"))),
        }
    }
}
