//! `[ingest]`: the rules of admission.

use serde::{Deserialize, Serialize};

use super::check::{names, within};
use super::{Bytes, ConfigError, Otlp, Period, RemoteWrite};
use crate::model::DeviceIdCase;

/// The rules of admission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ingest {
    /// The time that a reading may be ahead of the server's clock. 0s to 365d.
    pub max_future: Period,
    /// The number of readings in one request. 1 to 10,000,000.
    pub max_readings_per_request: usize,
    /// The number of metrics in one reading. 1 to 4,096.
    pub max_metrics_per_reading: usize,
    /// The size of the metadata of a device, as JSON text. 0B to 64KiB.
    pub max_metadata_bytes: Bytes,
    /// Case handling of device IDs, in readings and in queries.
    pub device_id_case: DeviceIdCase,
    /// The choices that JSON leaves to the configuration.
    pub json: Json,
    /// The choices that line protocol leaves to the configuration.
    pub line_protocol: LineProtocol,
    /// The choices that `SenML` leaves to the configuration.
    pub senml: Senml,
    /// The choices that Prometheus remote write leaves to the configuration.
    pub remote_write: RemoteWrite,
    /// The choices that OTLP leaves to the configuration.
    pub otlp: Otlp,
}

/// The choices that JSON leaves to the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Json {
    /// The effect of a key without a meaning on its reading.
    pub unknown_keys: UnknownKeys,
    /// Whether each other key of a reading is a metric, with dots between the keys of nested objects.
    pub flat: bool,
}

/// The effect of a key without a meaning on its reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownKeys {
    /// The reading is rejected.
    #[default]
    Reject,
    /// The key is skipped and counted.
    Ignore,
}

/// The choices that line protocol leaves to the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LineProtocol {
    /// The tags that may name the device of a line, in order of preference. 1 to 16 names.
    pub device_tags: Vec<String>,
    /// The tags that describe the device, as its metadata. 0 to 16 names. The other tags are labels.
    pub metadata_tags: Vec<String>,
    /// The handling of fields whose value is a string.
    pub strings: Strings,
}

/// The handling of fields whose value is a string. Only numbers can be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strings {
    /// Drops and counts these fields.
    Ignore,
    /// Rejects these fields, and keeps the other fields of the line.
    Reject,
    /// Stores these fields as metadata of the device.
    Metadata,
}

/// The choices that `SenML` leaves to the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Senml {
    /// The characters that separate device and metric: some of `-`, `:`, `.`, `/` and `_`, or none.
    ///
    /// A name is split at the last of them.
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
            json: Json::default(),
            line_protocol: LineProtocol::default(),
            senml: Senml::default(),
            remote_write: RemoteWrite::default(),
            otlp: Otlp::default(),
        }
    }
}

impl Default for LineProtocol {
    fn default() -> Self {
        let device_tags = ["deviceId", "device_id", "sensor_id", "sensorId", "host", "device"];
        Self {
            device_tags: device_tags.map(str::to_owned).to_vec(),
            metadata_tags: Vec::new(),
            strings: Strings::Ignore,
        }
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
        self.senml.check()?;
        self.remote_write.check()?;
        self.otlp.check()
    }
}

impl LineProtocol {
    fn check(&self) -> Result<(), ConfigError> {
        names("ingest.line_protocol.device_tags", &self.device_tags, 1..=16)?;
        names("ingest.line_protocol.metadata_tags", &self.metadata_tags, 0..=16)
    }
}

impl Senml {
    fn check(&self) -> Result<(), ConfigError> {
        let times = |separator| self.separators.chars().filter(|&other| other == separator).count();
        if self.separators.chars().all(|separator| "-:./_".contains(separator) && times(separator) == 1) {
            return Ok(());
        }
        let problem = format!("is {:?}, must be made of '-', ':', '.', '/' and '_', each once", self.separators);
        Err(ConfigError::invalid("ingest.senml.separators", problem))
    }
}
