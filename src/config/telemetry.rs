//! `[telemetry]`: log lines of the process.

use serde::{Deserialize, Serialize};

use super::LogFilter;

/// Log lines of the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// What a log line looks like.
    pub log_format: LogFormat,
    /// Which log lines are written.
    pub log_level: LogFilter,
}

/// What a log line looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { log_format: LogFormat::Text, log_level: LogFilter::default() }
    }
}
