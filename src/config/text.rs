//! `Serialize` and `Deserialize` for values that the configuration writes as text.

use std::fmt;

use serde::Deserializer;
use serde::de::{self, Visitor};

use super::{
    BrokerUrl, Bytes, Expiry, HookPath, JsonPath, Keep, Listen, LogFilter, MongodbUri, Period, TokenHash, TopicTemplate,
};

/// Reads a text.
///
/// `expected` names its forms in the error about a value of another type.
pub(super) fn read_text<'de, D: Deserializer<'de>>(
    deserializer: D,
    expected: &'static str,
) -> Result<String, D::Error> {
    struct Text(&'static str);

    impl Visitor<'_> for Text {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
    }

    deserializer.deserialize_str(Text(expected))
}

/// Implements `Serialize` by `Display`.
macro_rules! serialize_as_text {
    ($($type:ty),+) => { $(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+ };
}

/// Implements `Deserialize` by `FromStr`.
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

deserialize_from_text!(BrokerUrl, HookPath, JsonPath, MongodbUri, TopicTemplate);
serialize_as_text!(BrokerUrl, HookPath, JsonPath, MongodbUri, TopicTemplate);

// These types have a `Deserialize` of their own, because they also accept other values than text, or describe
// the valid forms in errors.
serialize_as_text!(Bytes, Expiry, Keep, Listen, LogFilter, Period, TokenHash);
