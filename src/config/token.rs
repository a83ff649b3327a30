//! `[[auth.tokens]]`: the tokens and what they allow.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, de};
use strum::{EnumIter, IntoStaticStr};

use super::check::{check_device_scope, is_name};
use super::limits::MAX_RATE;
use super::{ConfigError, TokenHash};
use crate::model::DevicePattern;

const NAME_MAX_BYTES: usize = 64;

/// A token: its owner, its hash, and what it allows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// The name of the owner.
    ///
    /// To replace a token, add a new one with the same name. Both are valid until the old token is removed.
    pub name: String,
    /// The hash of the token.
    pub hash: TokenHash,
    /// The scopes of the token, at least one.
    pub scopes: Vec<Scope>,
    /// The client IDs of the devices that the token may write and read. `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<DevicePattern>>,
    /// The tenant prefix of device IDs.
    ///
    /// The server adds it to the device IDs in requests, and removes it from those in answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_prefix: Option<String>,
    /// The instant at which the token expires. `None`: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expiry>,
    /// The most readings per second. 0 to 10,000,000; 0: no limit.
    ///
    /// `None`: `limits.token_readings_per_second`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readings_per_second: Option<u64>,
}

/// A kind of action that a token allows. No scope includes another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, EnumIter, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Scope {
    /// The client may write readings.
    Ingest,
    /// The client may read readings, rollups and devices.
    Query,
    /// The client may set the metadata of devices.
    Metadata,
    /// The client may operate the server.
    ///
    /// It may read metrics, read why the server is not healthy, send dead letters again, and delete readings.
    Admin,
}

/// The instant at which a token or a key expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry(Timestamp);

impl Token {
    /// Checks this token alone. `at` is its number in the list, from 1.
    pub(super) fn check(&self, at: usize) -> Result<(), ConfigError> {
        let wrong = |key, problem: String| {
            Err(ConfigError::invalid(key, format!("is {problem} (token {at}, {:?})", self.name)))
        };
        if !is_name(self.name.as_bytes(), NAME_MAX_BYTES) {
            return wrong("auth.tokens.name", format!("not 1 to {NAME_MAX_BYTES} of A-Z a-z 0-9 . _ -"));
        }
        if self.scopes.is_empty() {
            return wrong(
                "auth.tokens.scopes",
                "an empty list, must contain \"ingest\", \"query\", \"metadata\" or \"admin\"".to_owned(),
            );
        }
        if self.readings_per_second.is_some_and(|rate| rate > MAX_RATE) {
            return wrong("auth.tokens.readings_per_second", format!("more than {MAX_RATE}"));
        }
        let keys = ["auth.tokens.devices", "auth.tokens.device_prefix"];
        check_device_scope(
            keys,
            self.devices.as_deref(),
            self.device_prefix.as_deref(),
            &format!("token {at}, {:?}", self.name),
        )
    }
}

impl Scope {
    /// The name of the scope in the configuration, such as `ingest`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl Expiry {
    /// An expiry at `instant`.
    #[must_use]
    pub const fn at(instant: Timestamp) -> Self {
        Self(instant)
    }

    /// Whether the token or key has expired at `now_ms` (Unix milliseconds).
    #[must_use]
    pub fn is_over(self, now_ms: i64) -> bool {
        self.0.as_millisecond() <= now_ms
    }
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Expiry {
    /// Reads an instant in RFC 3339, as a string or as a TOML date.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => text,
            toml::Value::Datetime(instant) => instant.to_string(),
            _ => String::new(),
        };
        let expected = "expected an instant with its offset, such as \"2027-01-31T00:00:00Z\"";
        text.parse().map(Self).map_err(|_| de::Error::custom(expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_an_instant_with_or_without_quotes() {
        #[derive(Deserialize)]
        struct Until {
            expires: Expiry,
        }
        for text in ["\"2027-01-31T00:00:00Z\"", "2027-01-31T00:00:00Z", "\"2027-01-31T01:00:00+01:00\""] {
            let until: Until = toml::from_str(&format!("expires = {text}")).expect(text);
            assert_eq!(until.expires.to_string(), "2027-01-31T00:00:00Z");
            let ms = 1_801_353_600_000;
            assert!(until.expires.is_over(ms) && !until.expires.is_over(ms - 1), "{text}");
        }
        for text in ["\"2027-01-31\"", "2027-01-31", "\"soon\"", "1", "2027-01-31T00:00:00"] {
            assert!(toml::from_str::<Until>(&format!("expires = {text}")).is_err(), "{text}");
        }
    }
}
