//! `[flush]`: writing pending buckets to the store.

use serde::{Deserialize, Serialize};

use super::check::{not_below, within};
use super::{Bytes, ConfigError, Period};

/// Writing pending buckets to the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Flush {
    /// The number of pending readings at which a bucket is due. 1 to 100,000.
    pub max_readings: usize,
    /// The age of the oldest pending reading at which its bucket is due. 1ms to 1d.
    pub max_age: Period,
    /// How long before `max_age` a bucket may be written. 0ms to 1m.
    ///
    /// Buckets that are due in this time share write commands. At most a tenth of `max_age` is used.
    pub gather: Period,
    /// The most concurrent write commands. 1 to 64.
    pub max_in_flight: usize,
    /// The most buckets in one write command. 1 to 100,000.
    pub max_buckets_per_write: usize,
    /// The largest size of one write command. 1KiB to 16MiB.
    pub max_write_bytes: Bytes,
    /// The wait before the first retry of a write. 1ms to 1h.
    ///
    /// The wait doubles with each retry, up to `retry_max`.
    pub retry_initial: Period,
    /// The largest size of the dead-letter file. 1KiB to 1TiB.
    pub max_dead_letter_bytes: Bytes,
    /// The longest wait between retries. At least `retry_initial`, at most 1h.
    pub retry_max: Period,
}

impl Default for Flush {
    fn default() -> Self {
        Self {
            max_readings: 1_000,
            max_age: Period::minutes(30),
            gather: Period::secs(10),
            max_in_flight: 4,
            max_buckets_per_write: 1_000,
            max_write_bytes: Bytes::mib(8),
            max_dead_letter_bytes: Bytes::gib(1),
            retry_initial: Period::millis(100),
            retry_max: Period::secs(10),
        }
    }
}

impl Flush {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let (initial, max) = (self.retry_initial, self.retry_max);
        within("flush.max_readings", self.max_readings, 1, 100_000)?;
        within("flush.max_age", self.max_age, Period::millis(1), Period::days(1))?;
        within("flush.gather", self.gather, Period::millis(0), Period::minutes(1))?;
        within("flush.max_in_flight", self.max_in_flight, 1, 64)?;
        within("flush.max_buckets_per_write", self.max_buckets_per_write, 1, 100_000)?;
        within("flush.max_write_bytes", self.max_write_bytes, Bytes::kib(1), Bytes::mib(16))?;
        within("flush.max_dead_letter_bytes", self.max_dead_letter_bytes, Bytes::kib(1), Bytes::gib(1024))?;
        within("flush.retry_initial", initial, Period::millis(1), Period::hours(1))?;
        within("flush.retry_max", max, Period::millis(1), Period::hours(1))?;
        not_below("flush.retry_max", max, "flush.retry_initial", initial)
    }
}
