//! The version number in JSON files that only this program reads.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The value of a field `version`, which is always 1. Another number is an error.
///
/// A struct with this field has it first. So the error about a file of another version names the version, and
/// not some other field that is missing or unknown.
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
