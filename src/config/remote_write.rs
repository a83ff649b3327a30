//! `[ingest.remote_write]`: how Prometheus remote write is read.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::check::names;

/// How Prometheus remote write is read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RemoteWrite {
    /// The labels that may hold the device ID, in order of preference. 1 to 16 names.
    pub device_labels: Vec<String>,
    /// The labels that become metadata of the device. Up to 16 names.
    pub metadata_labels: Vec<String>,
}

impl Default for RemoteWrite {
    fn default() -> Self {
        // `instance` is before `device` and `host`: in series of exporters, these are often a disk or a peer
        // of the instance.
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
