//! `[auth]`: who may use the API, and who may send datagrams.

use std::collections::HashSet;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::{ConfigError, Key, Token};
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
    /// The keys that datagrams are signed with. Without any, datagrams are taken unsigned.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "keys_without_repeating")]
    pub keys: Vec<Key>,
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
            keys: Vec::new(),
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

    /// Whether datagrams are taken that nobody signed.
    #[must_use]
    pub fn takes_unsigned(&self) -> bool {
        self.allow_anonymous || self.keys.is_empty()
    }

    /// Reads the secrets of keys that stand in files of their own.
    pub(super) fn read_secrets(&mut self) -> Result<(), ConfigError> {
        self.keys.iter_mut().try_for_each(|key| key.secret.read())
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
        self.check_keys()?;
        self.check_prefixes(case)
    }

    /// What is signed with a key must say so by its id, and by nothing else: a signature does not cover the
    /// id.
    fn check_keys(&self) -> Result<(), ConfigError> {
        let (mut ids, mut secrets) = (HashSet::new(), HashSet::new());
        for (at, key) in (1..).zip(&self.keys) {
            key.check(at)?;
            let is_new =
                [("auth.keys.id", ids.insert(&key.id)), ("auth.keys.secret", secrets.insert(key.secret.expose()))];
            if let Some((name, _)) = is_new.into_iter().find(|(_, is_new)| !is_new) {
                let problem = format!("is that of an earlier key (key {at}, {:?})", key.id);
                return Err(ConfigError::invalid(name, problem));
            }
        }
        Ok(())
    }

    /// No tenant's devices may look like those of another: of two prefixes, neither starts with the other.
    fn check_prefixes(&self, case: DeviceIdCase) -> Result<(), ConfigError> {
        let of_tokens = self.tokens.iter().map(|token| ("auth.tokens.device_prefix", &token.device_prefix));
        let of_keys = self.keys.iter().map(|key| ("auth.keys.device_prefix", &key.device_prefix));
        let mut prefixes: Vec<_> =
            of_tokens.chain(of_keys).filter_map(|(key, prefix)| Some((key, prefix.as_deref()?))).collect();
        prefixes.sort_unstable_by_key(|(_, prefix)| case.apply(prefix));
        for pair in prefixes.windows(2) {
            let [(_, outer), (key, inner)] = [pair[0], pair[1]];
            let (outer_kept, inner_kept) = (case.apply(outer), case.apply(inner));
            if inner_kept != outer_kept && inner_kept.starts_with(&*outer_kept) {
                let problem = format!(
                    "is {inner:?}, which starts with {outer:?} of another token or key: one tenant would reach into \
                     the other"
                );
                return Err(ConfigError::invalid(key, problem));
            }
        }
        Ok(())
    }
}

/// A value of the wrong type may hold a secret, so it is not repeated.
fn keys_without_repeating<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Key>, D::Error> {
    Vec::deserialize(deserializer).map_err(|error: D::Error| {
        let text = error.to_string();
        let expected = text.split_once("invalid type: ").and_then(|(_, rest)| rest.rsplit_once(", expected "));
        expected.map_or(error, |(_, expected)| de::Error::custom(format!("expected {expected}")))
    })
}
