//! `[server]`: the data folder and the shutdown.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::check::within;
use super::{ConfigError, Period};

/// The data folder and the shutdown of the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// The folder of the log and of the embedded store.
    pub data_dir: PathBuf,
    /// The time for a shutdown. 0s to 1h.
    ///
    /// In this time, requests finish and pending readings are stored. The log keeps the remaining readings.
    pub shutdown_grace: Period,
}

impl Default for Server {
    fn default() -> Self {
        Self { data_dir: PathBuf::from("./data"), shutdown_grace: Period::secs(30) }
    }
}

impl Server {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.data_dir.as_os_str().is_empty() {
            return Err(ConfigError::invalid("server.data_dir", "is empty, must name a folder"));
        }
        within("server.shutdown_grace", self.shutdown_grace, Period::secs(0), Period::hours(1))
    }
}
