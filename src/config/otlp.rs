//! `[ingest.otlp]`: the attributes of OTLP metrics.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::check::names;

/// The choices that OTLP leaves to the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Otlp {
    /// The attributes of a resource that may name the device, in order of preference. 1 to 16 names.
    ///
    /// An attribute of the list that does not name the device is a label.
    pub device_attributes: Vec<String>,
}

impl Default for Otlp {
    fn default() -> Self {
        let device_attributes = ["device.id", "host.name", "service.instance.id", "service.name"];
        Self { device_attributes: device_attributes.map(str::to_owned).to_vec() }
    }
}

impl Otlp {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        names("ingest.otlp.device_attributes", &self.device_attributes, 1..=16)
    }
}
