//! `[mongodb.timeseries]`: the native time-series collection.

use serde::{Deserialize, Serialize};

use super::check::within;
use super::mongodb::check_collection;
use super::{ConfigError, Period};

/// The native time-series collection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeseries {
    /// The collection of the measurements: 1 to 128 bytes, without `$`, not starting with `system.`.
    pub collection: String,
    /// How far apart the readings of a device mostly are.
    pub granularity: Granularity,
    /// How much time the server puts into one of its buckets, in place of `granularity`: 1s to 365d. Servers
    /// from 6.3 on.
    pub bucket_max_span: Option<Period>,
    /// Of how many devices it is remembered up to where readings are stored. 1 to 100,000,000.
    pub max_known_devices: usize,
}

/// How far apart the readings of a device mostly are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Granularity {
    /// Seconds: an hour to a bucket of the server.
    Seconds,
    /// Minutes: a day to a bucket.
    Minutes,
    /// Hours: 30 days to a bucket.
    Hours,
}

impl Default for Timeseries {
    fn default() -> Self {
        Self {
            collection: "readings".to_owned(),
            granularity: Granularity::Seconds,
            bucket_max_span: None,
            max_known_devices: 1_000_000,
        }
    }
}

impl Timeseries {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check_collection("mongodb.timeseries.collection", &self.collection)?;
        if let Some(span) = self.bucket_max_span {
            within("mongodb.timeseries.bucket_max_span", span, Period::secs(1), Period::days(365))?;
        }
        within("mongodb.timeseries.max_known_devices", self.max_known_devices, 1, 100_000_000)
    }
}
