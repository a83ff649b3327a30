//! `[pending]`: readings in memory that wait for the store.

use serde::{Deserialize, Serialize};

use super::check::within;
use super::{Bytes, ConfigError};

/// Readings in memory that wait for the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pending {
    /// The memory for pending readings. 1KiB to 1024GiB.
    ///
    /// When it is used up, further readings stay only in the log for now.
    pub max_bytes: Bytes,
}

impl Default for Pending {
    fn default() -> Self {
        Self { max_bytes: Bytes::mib(256) }
    }
}

impl Pending {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("pending.max_bytes", self.max_bytes, Bytes::kib(1), Bytes::gib(1024))
    }
}
