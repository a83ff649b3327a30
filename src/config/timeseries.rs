//! `[mongodb.timeseries]`: the native time-series collection.

use serde::{Deserialize, Serialize};

use super::check::within;
use super::mongodb::check_collection;
use super::{ConfigError, Period};

/// The native time-series collection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeseries {
    /// The collection of the readings.
    ///
    /// 1 to 128 bytes, without `$`, not starting with `system.` or a dot.
    pub collection: String,
    /// The typical time between two readings of a device.
    pub granularity: Granularity,
    /// The time span of one internal bucket of MongoDB, instead of `granularity`.
    ///
    /// 1s to 365d, in whole seconds. Needs MongoDB 6.3.
    pub bucket_max_span: Option<Period>,
    /// The most devices whose last stored time is kept in memory. 1 to 100,000,000.
    pub max_known_devices: usize,
}

/// The typical time between two readings of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Granularity {
    /// Seconds: an internal bucket of MongoDB spans an hour.
    Seconds,
    /// Minutes: an internal bucket spans a day.
    Minutes,
    /// Hours: an internal bucket spans 30 days.
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
            if span.as_duration().subsec_nanos() > 0 {
                let problem = format!("is {span}, must be whole seconds");
                return Err(ConfigError::invalid("mongodb.timeseries.bucket_max_span", problem));
            }
        }
        within("mongodb.timeseries.max_known_devices", self.max_known_devices, 1, 100_000_000)
    }
}
