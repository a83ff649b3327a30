//! `[log]`: the write-ahead log.

use serde::{Deserialize, Serialize};

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
