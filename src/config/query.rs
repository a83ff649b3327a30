//! `[query]`: the limits of queries.

use serde::{Deserialize, Serialize};

use super::check::{not_below, within};
use super::{Bytes, ConfigError, Period};

/// The largest limit of concurrent queries. Each may use two of the 512 threads that block, and storing
/// readings needs such threads too.
const MAX_CONCURRENT: usize = 200;

/// The limits of queries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Query {
    /// The longest time range of one query, in hours. 1 to 876,600 (a hundred years).
    pub max_hours: u32,
    /// The most values in one answer: hours times metrics. 1 to 10,000,000.
    pub max_points: usize,
    /// The most values that a query for rollups may read. 1 to 1,000,000,000.
    ///
    /// Such a query reads readings where their rollups are not written yet.
    pub max_values_read: u64,
    /// The most readings in one page. 1 to 1,000,000.
    pub max_readings: usize,
    /// The readings in one page if the query sets no limit. 1 to `max_readings`.
    pub default_readings: usize,
    /// How long a query waits for readings that were just accepted. 0s to 1m.
    ///
    /// They are visible to queries once they are in memory.
    pub catch_up_timeout: Period,
    /// The time limit of a query. 1ms to 1h.
    pub timeout: Period,
    /// The most devices in one page. 1 to 100,000.
    pub max_devices: usize,
    /// The most concurrent queries. 1 to 200.
    pub max_concurrent: usize,
    /// The most concurrent queries with one token. 1 to 10,000.
    pub max_concurrent_per_token: usize,
    /// The most concurrent queries whose answer is a file, such as CSV. 1 to 200.
    pub max_files: usize,
    /// The memory for all concurrent queries together, as estimated. 1MiB to 1024GiB.
    pub max_bytes_in_flight: Bytes,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            max_hours: 87_840,
            max_points: 100_000,
            max_values_read: 5_000_000,
            max_readings: 10_000,
            default_readings: 1_000,
            catch_up_timeout: Period::secs(2),
            timeout: Period::secs(10),
            max_devices: 1_000,
            max_concurrent: 32,
            max_concurrent_per_token: 16,
            max_files: 8,
            max_bytes_in_flight: Bytes::mib(256),
        }
    }
}

impl Query {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("query.max_hours", self.max_hours, 1, 876_600)?;
        within("query.max_points", self.max_points, 1, 10_000_000)?;
        within("query.max_values_read", self.max_values_read, 1, 1_000_000_000)?;
        within("query.max_readings", self.max_readings, 1, 1_000_000)?;
        within("query.default_readings", self.default_readings, 1, 1_000_000)?;
        not_below("query.max_readings", self.max_readings, "query.default_readings", self.default_readings)?;
        within("query.catch_up_timeout", self.catch_up_timeout, Period::secs(0), Period::minutes(1))?;
        within("query.timeout", self.timeout, Period::millis(1), Period::hours(1))?;
        within("query.max_devices", self.max_devices, 1, 100_000)?;
        within("query.max_concurrent", self.max_concurrent, 1, MAX_CONCURRENT)?;
        within("query.max_concurrent_per_token", self.max_concurrent_per_token, 1, 10_000)?;
        within("query.max_files", self.max_files, 1, MAX_CONCURRENT)?;
        within("query.max_bytes_in_flight", self.max_bytes_in_flight, Bytes::mib(1), Bytes::gib(1024))
    }
}
