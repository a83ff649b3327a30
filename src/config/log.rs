//! `[log]`: the write-ahead log.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::check::within;
use super::{Bytes, ConfigError, Period};

/// The write-ahead log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// When the log syncs appended records to disk.
    pub sync: SyncPolicy,
    /// The time between syncs with `sync = "interval"`. 1ms to 1h.
    pub sync_interval: Period,
    /// How long a record waits for other records to share its sync. 0 to 1s.
    ///
    /// A large group of records does not wait.
    pub group_window: Period,
    /// The size of a segment. 64KiB to 1GiB, and at most half of `max_bytes`.
    pub segment_bytes: Bytes,
    /// The size at which the log is full, so that it refuses readings.
    ///
    /// The log grows while the store does not keep up.
    pub max_bytes: Bytes,
    /// The space on its disk that the log leaves free.
    ///
    /// If less is free, the log refuses readings.
    pub min_free_bytes: MinFree,
}

/// The space that the log leaves free on its disk: `"auto"`, or a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinFree {
    /// The space that SQLite on this disk needs for its next writes, else 16 MiB.
    ///
    /// It is at most half of the disk.
    Auto,
    /// This size. 0: the log leaves nothing free.
    Bytes(Bytes),
}

impl Serialize for MinFree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Bytes(bytes) => bytes.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for MinFree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = MinFree;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\", or a size such as \"2GiB\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<MinFree, E> {
                if text == "auto" {
                    return Ok(MinFree::Auto);
                }
                let bytes = text.parse().map(MinFree::Bytes);
                bytes.map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<MinFree, E> {
                let unsigned = u64::try_from(bytes).map(|bytes| MinFree::Bytes(Bytes(bytes)));
                unsigned.map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// When the log syncs appended records to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncPolicy {
    /// Before the answer: acknowledged readings survive a power cut.
    Always,
    /// Every `sync_interval`: a power cut may lose acknowledged readings.
    Interval,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            sync: SyncPolicy::Always,
            sync_interval: Period::secs(1),
            group_window: Period::secs(0),
            segment_bytes: Bytes::mib(64),
            max_bytes: Bytes::gib(8),
            min_free_bytes: MinFree::Auto,
        }
    }
}

impl Log {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("log.sync_interval", self.sync_interval, Period::millis(1), Period::hours(1))?;
        within("log.group_window", self.group_window, Period::secs(0), Period::secs(1))?;
        within("log.segment_bytes", self.segment_bytes, Bytes::kib(64), Bytes::gib(1))?;
        // The current segment cannot be removed. If one segment filled the log, the log would stay full
        // forever.
        if self.segment_bytes.0 > self.max_bytes.0 / 2 {
            let (segment, max) = (self.segment_bytes, self.max_bytes);
            let problem = format!("is {segment}, must be at most half of log.max_bytes, which is {max}");
            return Err(ConfigError::invalid("log.segment_bytes", problem));
        }
        match self.min_free_bytes {
            MinFree::Bytes(bytes) => within("log.min_free_bytes", bytes, Bytes(0), Bytes::gib(16 << 10)),
            MinFree::Auto => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_to_leave_free_is_auto_or_a_size() {
        let log = |value: &str| toml::from_str::<Log>(&format!("min_free_bytes = {value}"));
        let min_free = |value: &str| log(value).expect("valid").min_free_bytes;
        assert_eq!(min_free("\"auto\""), MinFree::Auto);
        assert_eq!(min_free("\"2GiB\""), MinFree::Bytes(Bytes::gib(2)));
        assert_eq!((min_free("0"), min_free("\"0\"")), (MinFree::Bytes(Bytes(0)), MinFree::Bytes(Bytes(0))));
        for value in ["-1", "\"off\"", "\"5%\"", "true"] {
            let error = log(value).expect_err(value).to_string();
            assert!(error.contains("expected \"auto\", or a size"), "{error}");
        }
        for value in [MinFree::Auto, MinFree::Bytes(Bytes::mib(3))] {
            let text = toml::to_string(&Log { min_free_bytes: value, ..Log::default() }).expect("TOML");
            assert_eq!(toml::from_str::<Log>(&text).expect("valid").min_free_bytes, value);
        }
    }
}
