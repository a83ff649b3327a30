//! `[devices]`: the metric of silent devices.

use serde::{Deserialize, Serialize};

use super::Period;

/// The settings of the metric of silent devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Devices {
    /// The time without a reading after which a device counts as silent.
    ///
    /// `tidegauge_devices_silent` counts these devices. 0s: devices are not counted.
    pub silent_after: Period,
}

impl Default for Devices {
    fn default() -> Self {
        Self { silent_after: Period::hours(1) }
    }
}
