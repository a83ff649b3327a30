//! `[auth]`: who may use the API.

use serde::{Deserialize, Serialize};

/// Who may use the API.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// Whether the server may listen where other machines reach it although nobody has to authenticate.
    pub allow_anonymous: bool,
}
