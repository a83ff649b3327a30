//! `[ingest]`: what makes a reading acceptable.

use serde::{Deserialize, Serialize};

use super::check::within;
use super::{Bytes, ConfigError, Period};
use crate::model::DeviceIdCase;

/// What makes a reading acceptable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ingest {
    /// How far a reading's time may lie ahead of the server's clock. 0s to 365d.
    pub max_future: Period,
    /// How many readings one request may carry. 1 to 10,000,000.
    pub max_readings_per_request: usize,
    /// How many metrics one reading may have. 1 to 4,096.
    pub max_metrics_per_reading: usize,
    /// The longest metadata of a device, as JSON text. 0B to 64KiB.
    pub max_metadata_bytes: Bytes,
    /// What becomes of capitals in device ids, of readings and of queries.
    pub device_id_case: DeviceIdCase,
    /// What line protocol leaves open.
    pub line_protocol: LineProtocol,
    /// What `SenML` leaves open.
    pub senml: Senml,
}

/// What line protocol leaves open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LineProtocol {
    /// The tags that may name the device; of those that a line has, the first of this list does. 1 to 16
    /// names.
    pub device_tags: Vec<String>,
}

/// What `SenML` leaves open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Senml {
    /// A name is cut at the last of these characters, into device and metric. Some of `-`, `:`, `.`, `/` and
    /// `_`, or none.
    pub separators: String,
}

impl Default for Ingest {
    fn default() -> Self {
        Self {
            max_future: Period::minutes(10),
            max_readings_per_request: 100_000,
            max_metrics_per_reading: 256,
            max_metadata_bytes: Bytes::kib(4),
            device_id_case: DeviceIdCase::Preserve,
            line_protocol: LineProtocol::default(),
            senml: Senml::default(),
        }
    }
}

impl Default for LineProtocol {
    fn default() -> Self {
        Self { device_tags: ["deviceId", "device_id", "device", "sensor_id", "host"].map(str::to_owned).to_vec() }
    }
}

impl Default for Senml {
    fn default() -> Self {
        Self { separators: "/:".to_owned() }
    }
}

impl Ingest {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("ingest.max_future", self.max_future, Period::secs(0), Period::days(365))?;
        within("ingest.max_readings_per_request", self.max_readings_per_request, 1, 10_000_000)?;
        within("ingest.max_metrics_per_reading", self.max_metrics_per_reading, 1, 4_096)?;
        within("ingest.max_metadata_bytes", self.max_metadata_bytes, Bytes(0), Bytes::kib(64))?;
        self.line_protocol.check()?;
        self.senml.check()
    }
}

impl LineProtocol {
    fn check(&self) -> Result<(), ConfigError> {
        const KEY: &str = "ingest.line_protocol.device_tags";
        if !(1..=16).contains(&self.device_tags.len()) {
            let count = self.device_tags.len();
            return Err(ConfigError::invalid(KEY, format!("is a list of {count}, must be one of 1 to 16 names")));
        }
        if self.device_tags.iter().any(String::is_empty) {
            return Err(ConfigError::invalid(KEY, "is a list with an empty name"));
        }
        Ok(())
    }
}

impl Senml {
    fn check(&self) -> Result<(), ConfigError> {
        if self.separators.chars().all(|separator| "-:./_".contains(separator)) {
            return Ok(());
        }
        let problem = format!("is {:?}, must be made of '-', ':', '.', '/' and '_'", self.separators);
        Err(ConfigError::invalid("ingest.senml.separators", problem))
    }
}
