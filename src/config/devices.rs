//! `[devices]`: settings about all devices together.

use serde::{Deserialize, Serialize};

use super::Period;

/// Settings about all devices together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Devices {
    /// The time without a reading after which `tidegauge_devices_silent` counts a device. 0s: it counts none.
    pub silent_after: Period,
}

impl Default for Devices {
    fn default() -> Self {
        Self { silent_after: Period::hours(1) }
    }
}
