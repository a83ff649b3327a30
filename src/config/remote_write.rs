//! `[ingest.remote_write]`: the labels of Prometheus remote write.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::check::names;

/// The choices that remote write leaves to the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RemoteWrite {
    /// The labels that may name the device of a series, in order of preference. 1 to 16 names.
    pub device_labels: Vec<String>,
    /// The labels that describe the device of a series. Up to 16 names.
    pub metadata_labels: Vec<String>,
}

impl Default for RemoteWrite {
    fn default() -> Self {
        // In series of exporters, device and host are often disks and peers of their instance.
        let device_labels = ["deviceId", "device_id", "sensor_id", "sensorId", "instance", "host", "device"];
        Self { device_labels: device_labels.map(str::to_owned).to_vec(), metadata_labels: Vec::new() }
    }
}

impl RemoteWrite {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        names("ingest.remote_write.device_labels", &self.device_labels, 1..=16)?;
        names("ingest.remote_write.metadata_labels", &self.metadata_labels, 0..=16)
    }
}
