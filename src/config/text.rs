//! The types of values that a configuration writes as text.

use super::{HookPath, JsonPath, MongodbUri, TokenHash, TopicTemplate};

/// Serializes types with their `Display`, and deserializes them with their `FromStr`.
macro_rules! serde_as_text {
    ($($type:ty),+) => { $(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+ };
}

serde_as_text!(HookPath, JsonPath, MongodbUri, TokenHash, TopicTemplate);
