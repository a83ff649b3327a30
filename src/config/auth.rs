//! `[auth]`: authentication of clients and datagrams, and what they may do.

use std::collections::HashSet;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::{ConfigError, Key, Mqtt, Token};
use crate::model::DeviceIdCase;

/// Authentication, and what clients may do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// Whether clients without credentials may do everything.
    ///
    /// These are requests without a token and datagrams without a signature. If this is `false`, a server
    /// without tokens listens only where no other machine can reach it.
    pub allow_anonymous: bool,
    /// The rights that a client certificate gives.
    pub client_certificate: CertificateUse,
    /// The clients that may read `/metrics` if there are tokens.
    ///
    /// The metrics cover all tenants together.
    pub metrics: Audience,
    /// The clients that may read routes such as `/readyz` if there are tokens.
    ///
    /// Only a token with the scope `admin` sees why the server is not healthy.
    pub health: Audience,
    /// The tokens. Without any, every client that can connect may do everything.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "without_repeating")]
    pub tokens: Vec<Token>,
    /// The keys that sign datagrams. Without any, datagrams need no signature.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "without_repeating")]
    pub keys: Vec<Key>,
}

/// The rights that a client certificate gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CertificateUse {
    /// None: the certificate only lets the client connect.
    Off,
    /// The client may write readings of the devices that its certificate names.
    Device,
}

/// The clients that may read the metrics or the health.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Audience {
    /// Clients with a token of the scope `admin`.
    Admin,
    /// All clients.
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
    /// Whether clients without a token or certificate may do everything.
    #[must_use]
    pub fn lets_anybody_in(&self) -> bool {
        self.allow_anonymous || !self.asks_who_comes()
    }

    /// Whether tokens or certificates can authenticate a client.
    #[must_use]
    pub fn asks_who_comes(&self) -> bool {
        !self.tokens.is_empty() || self.client_certificate == CertificateUse::Device
    }

    /// Whether datagrams need no signature.
    #[must_use]
    pub fn takes_unsigned(&self) -> bool {
        self.allow_anonymous || self.keys.is_empty()
    }

    /// Reads the secrets of keys from their files.
    pub(super) fn read_secrets(&mut self) -> Result<(), ConfigError> {
        self.keys.iter_mut().try_for_each(|key| key.secret.read())
    }

    pub(super) fn check(&self, case: DeviceIdCase, brokers: &[Mqtt]) -> Result<(), ConfigError> {
        let mut known = HashSet::new();
        for (at, token) in (1..).zip(&self.tokens) {
            token.check(at)?;
            if !known.insert(token.hash) {
                let problem = format!("is used by an earlier token (token {at}, {:?})", token.name);
                return Err(ConfigError::invalid("auth.tokens.hash", problem));
            }
        }
        self.check_keys()?;
        self.check_prefixes(case, brokers)
    }

    /// Checks each key, and that no two keys share an ID or a secret.
    ///
    /// A signature does not cover the key's ID. If two keys had the same secret, a datagram signed with one
    /// would also be valid with the ID of the other.
    fn check_keys(&self) -> Result<(), ConfigError> {
        let (mut ids, mut secrets) = (HashSet::new(), HashSet::new());
        for (at, key) in (1..).zip(&self.keys) {
            key.check(at)?;
            let is_new =
                [("auth.keys.id", ids.insert(&key.id)), ("auth.keys.secret", secrets.insert(key.secret.expose()))];
            if let Some((name, _)) = is_new.into_iter().find(|(_, is_new)| !is_new) {
                let problem = format!("is used by an earlier key (key {at}, {:?})", key.id);
                return Err(ConfigError::invalid(name, problem));
            }
        }
        Ok(())
    }

    /// Checks that no tenant prefix begins with another one.
    ///
    /// Otherwise the tenant `a/` could use the devices of the tenant `a/b/`. Equal prefixes are one tenant.
    fn check_prefixes(&self, case: DeviceIdCase, brokers: &[Mqtt]) -> Result<(), ConfigError> {
        let of_tokens = self.tokens.iter().map(|token| ("auth.tokens.device_prefix", &token.device_prefix));
        let of_keys = self.keys.iter().map(|key| ("auth.keys.device_prefix", &key.device_prefix));
        let of_brokers = brokers.iter().map(|broker| ("mqtt.device_prefix", &broker.device_prefix));
        let all = of_tokens.chain(of_keys).chain(of_brokers);
        let mut prefixes: Vec<_> = all.filter_map(|(key, prefix)| Some((key, prefix.as_deref()?))).collect();
        prefixes.sort_unstable_by_key(|(_, prefix)| case.apply(prefix));
        for pair in prefixes.windows(2) {
            let [(_, outer), (key, inner)] = [pair[0], pair[1]];
            let (outer_kept, inner_kept) = (case.apply(outer), case.apply(inner));
            if inner_kept != outer_kept && inner_kept.starts_with(&*outer_kept) {
                let problem = format!(
                    "is {inner:?}, which begins with {outer:?} of another token, key or broker: one tenant could use \
                     the devices of the other"
                );
                return Err(ConfigError::invalid(key, problem));
            }
        }
        Ok(())
    }
}

/// Deserializes tokens or keys, and keeps secrets out of errors.
///
/// If the value of the whole list or of a whole table has the wrong type, the error does not quote the value,
/// which may be a secret. Errors about a key in a table stay as they are, because the types of secrets do not
/// quote values.
fn without_repeating<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Vec::deserialize(deserializer).map_err(|error: D::Error| {
        let text = error.to_string();
        if text.contains("\nin `") || text.starts_with("invalid type: map,") {
            return error; // about a key in a table, or about one table
        }
        let expected =
            text.trim_end().split_once("invalid type: ").and_then(|(_, rest)| rest.rsplit_once(", expected "));
        expected.map_or(error, |(_, expected)| de::Error::custom(format!("expected {expected}")))
    })
}
