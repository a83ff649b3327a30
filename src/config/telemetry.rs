//! `[telemetry]`: the format and the filter of log lines.

use serde::{Deserialize, Serialize};

use super::LogFilter;

/// The format and the filter of log lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// The format of log lines.
    pub log_format: LogFormat,
    /// The filter of log lines.
    pub log_level: LogFilter,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { log_format: LogFormat::Text, log_level: LogFilter::default() }
    }
}
