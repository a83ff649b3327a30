//! Reads and writes values of the configuration as text.

use super::{Bytes, Expiry, HookPath, JsonPath, Keep, Listen, LogFilter, MongodbUri, Period, TokenHash, TopicTemplate};

/// Serializes types with their `Display`.
macro_rules! serialize_as_text {
    ($($type:ty),+) => { $(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+ };
}

/// Deserializes types with their `FromStr`.
macro_rules! deserialize_from_text {
    ($($type:ty),+) => { $(
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+ };
}

deserialize_from_text!(HookPath, JsonPath, MongodbUri, TokenHash, TopicTemplate);
serialize_as_text!(HookPath, JsonPath, MongodbUri, TokenHash, TopicTemplate);

// These types also take other values than text, or describe their form in errors. So each has a `Deserialize`
// of its own.
serialize_as_text!(Bytes, Expiry, Keep, Listen, LogFilter, Period);
