//! `[auth]`: who may use the API.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{ConfigError, Token};
use crate::model::DeviceIdCase;

/// Who may use the API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// Whether somebody without a token may do everything, even where other machines reach the server.
    pub allow_anonymous: bool,
    /// What a client certificate says of who shows it.
    pub client_certificate: CertificateUse,
    /// Who may see `/metrics`, once there are tokens. The numbers are those of all tenants together.
    pub metrics: Audience,
    /// Who may ask for the health of the service, once there are tokens. Reasons are for `admin` in any case.
    pub health: Audience,
    /// The tokens. Without any, whoever can connect may do everything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<Token>,
}

/// What a client certificate says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CertificateUse {
    /// Nothing: it is good for the connection.
    Off,
    /// That its owner is the devices that it names, and may write their readings.
    Device,
}

/// Who may see something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Audience {
    /// Whoever has a token with the scope `admin`.
    Admin,
    /// Everybody.
    Open,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            allow_anonymous: false,
            client_certificate: CertificateUse::Off,
            metrics: Audience::Admin,
            health: Audience::Open,
            tokens: Vec::new(),
        }
    }
}

impl Auth {
    /// Whether somebody who shows nothing is let in.
    #[must_use]
    pub fn lets_anybody_in(&self) -> bool {
        self.allow_anonymous || !self.asks_who_comes()
    }

    /// Whether there is anything by which somebody can be known.
    #[must_use]
    pub fn asks_who_comes(&self) -> bool {
        !self.tokens.is_empty() || self.client_certificate == CertificateUse::Device
    }

    pub(super) fn check(&self, case: DeviceIdCase) -> Result<(), ConfigError> {
        let mut known = HashSet::new();
        for (at, token) in (1..).zip(&self.tokens) {
            token.check(at)?;
            if !known.insert(token.hash) {
                let problem = format!("is that of an earlier token (token {at}, {:?})", token.name);
                return Err(ConfigError::invalid("auth.tokens.hash", problem));
            }
        }
        self.check_prefixes(case)
    }

    /// No tenant's devices may look like those of another: of two prefixes, neither starts with the other.
    fn check_prefixes(&self, case: DeviceIdCase) -> Result<(), ConfigError> {
        let mut prefixes: Vec<_> = self.tokens.iter().filter_map(|token| token.device_prefix.as_deref()).collect();
        prefixes.sort_unstable_by_key(|prefix| case.apply(prefix));
        for pair in prefixes.windows(2) {
            let (outer, inner) = (case.apply(pair[0]), case.apply(pair[1]));
            if inner != outer && inner.starts_with(&*outer) {
                let problem = format!(
                    "is {:?}, which starts with {:?} of another token: one tenant would reach into the other",
                    pair[1], pair[0]
                );
                return Err(ConfigError::invalid("auth.tokens.device_prefix", problem));
            }
        }
        Ok(())
    }
}
