//! `[log]`: the write-ahead log.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::check::within;
use super::{Bytes, ConfigError, Period};

/// The write-ahead log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// When what was appended is synced to disk.
    pub sync: SyncPolicy,
    /// How often the log is synced with `sync = "interval"`: what a power cut may cost. 1ms to 1h.
    pub sync_interval: Period,
    /// How large a segment file grows. 64KiB to 1GiB, and at most half of `max_bytes`.
    pub segment_bytes: Bytes,
    /// How large the log may grow while the store does not keep up; then the edge refuses readings.
    pub max_bytes: Bytes,
    /// How much of its disk the log leaves free; below that the edge refuses readings.
    pub min_free_bytes: MinFree,
}

/// How much of its disk the log leaves free: `"auto"`, or a size such as `"2GiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinFree {
    /// What the store needs for its next writes, at most half of the disk.
    Auto,
    /// So much. 0 for nothing.
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

/// When what was appended to the log is synced to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncPolicy {
    /// Before the answer: what was acknowledged survives a power cut.
    Always,
    /// Every `sync_interval`, after the answer: a power cut may cost that much.
    Interval,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            sync: SyncPolicy::Always,
            sync_interval: Period::secs(1),
            segment_bytes: Bytes::mib(64),
            max_bytes: Bytes::gib(8),
            min_free_bytes: MinFree::Auto,
        }
    }
}

impl Log {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("log.sync_interval", self.sync_interval, Period::millis(1), Period::hours(1))?;
        within("log.segment_bytes", self.segment_bytes, Bytes::kib(64), Bytes::gib(1))?;
        // the segment being written cannot be cut, so with a single one the log could fill up for good
        if self.segment_bytes.0 > self.max_bytes.0 / 2 {
            let (segment, max) = (self.segment_bytes, self.max_bytes);
            let problem = format!("is {segment}, must be at most half of log.max_bytes, which is {max}");
            return Err(ConfigError::invalid("log.segment_bytes", problem));
        }
        Ok(())
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
