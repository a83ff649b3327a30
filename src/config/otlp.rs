//! `[ingest.otlp]`: how OTLP metrics are read.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::check::names;

/// How OTLP metrics are read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Otlp {
    /// The resource attributes that may hold the device ID, in order of preference.
    ///
    /// 1 to 16 names. The first one that a resource has is the device ID; the others are labels.
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
