//! `[ingest]`: the rules for accepting readings.

use serde::{Deserialize, Serialize};

use super::check::{names, within};
use super::{Bytes, ConfigError, Otlp, Period, RemoteWrite};
use crate::model::{DeviceIdCase, METRICS_PER_READING};

/// The rules for accepting readings: limits, and options of each format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ingest {
    /// How far the time of a reading may be ahead of the server's clock. 0s to 365d.
    pub max_future: Period,
    /// The most readings in one request. 1 to 10,000,000.
    pub max_readings_per_request: usize,
    /// The most metrics in one reading. 1 to 4,096.
    pub max_metrics_per_reading: usize,
    /// The largest size of a device's metadata, as JSON text. 0B to 64KiB.
    pub max_metadata_bytes: Bytes,
    /// Whether device IDs keep their capital letters, in readings and in queries.
    pub device_id_case: DeviceIdCase,
    /// How JSON is read.
    pub json: Json,
    /// How line protocol is read.
    pub line_protocol: LineProtocol,
    /// How `SenML` is read.
    pub senml: Senml,
    /// How Prometheus remote write is read.
    pub remote_write: RemoteWrite,
    /// How OTLP metrics are read.
    pub otlp: Otlp,
}

/// How JSON is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Json {
    /// How the server treats a reading with a key that has no meaning.
    pub unknown_keys: UnknownKeys,
    /// Whether each other key with a number or boolean is a metric.
    ///
    /// Keys of nested objects are joined with dots: `"wifi": {"rssi": -61}` is the metric `wifi.rssi`.
    pub flat: bool,
}

/// How the server treats a reading with a key that has no meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownKeys {
    /// The server rejects the reading.
    #[default]
    Reject,
    /// The server skips the key and counts it.
    Ignore,
}

/// How line protocol is read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LineProtocol {
    /// The tags that may hold the device ID, in order of preference. 1 to 16 names.
    pub device_tags: Vec<String>,
    /// The tags that become metadata of the device. 0 to 16 names.
    ///
    /// All other tags are labels.
    pub metadata_tags: Vec<String>,
    /// How the server treats fields whose value is a string.
    pub strings: Strings,
}

/// How the server treats fields whose value is a string. Metrics are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strings {
    /// The server drops these fields and counts them.
    Ignore,
    /// The server rejects these fields, and accepts the other fields of the line.
    Reject,
    /// The server stores these fields as metadata of the device.
    Metadata,
}

/// How `SenML` is read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Senml {
    /// The characters that separate device and metric: some of `- : . / _`, or none.
    ///
    /// A name is split at the last of these characters: `2001:db8::2/temp` is the metric `temp` of the device
    /// `2001:db8::2`. Without characters, each name is a device ID.
    pub separators: String,
}

impl Default for Ingest {
    fn default() -> Self {
        Self {
            max_future: Period::minutes(10),
            max_readings_per_request: 100_000,
            max_metrics_per_reading: METRICS_PER_READING,
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
