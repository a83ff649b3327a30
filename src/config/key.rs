//! `[[auth.keys]]`: the keys that sign datagrams.

use serde::{Deserialize, Serialize};

use super::check::{check_device_scope, is_name};
use super::limits::MAX_RATE;
use super::{ConfigError, Expiry, KeySecret};
use crate::model::DevicePattern;

/// The longest ID of a key, in bytes. Each signed datagram contains the ID.
pub const KEY_ID_MAX_BYTES: usize = 32;

/// A key that signs datagrams: its ID, its secret and its device scope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The ID of the key, which each signed datagram contains.
    ///
    /// To replace a key, add a key with another ID. Both are valid until the old key is removed.
    pub id: String,
    /// The secret that only the sender and the server know.
    pub secret: KeySecret,
    /// The client IDs whose readings the key may sign. `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<DevicePattern>>,
    /// The tenant prefix, added to the device IDs in datagrams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_prefix: Option<String>,
    /// The instant at which the key expires. `None`: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expiry>,
    /// The most readings per second. 0 to 10,000,000; 0: no limit.
    ///
    /// `None`: `limits.token_readings_per_second`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readings_per_second: Option<u64>,
}

/// Whether `id` can be the ID of a key: 1 to 32 of `A-Z a-z 0-9 . _ -`.
#[must_use]
pub fn is_key_id(id: &[u8]) -> bool {
    is_name(id, KEY_ID_MAX_BYTES)
}

impl Key {
    /// Checks this key alone. `at` is its number in the list, from 1.
    pub(super) fn check(&self, at: usize) -> Result<(), ConfigError> {
        if !is_key_id(self.id.as_bytes()) {
            // It may be the secret.
            let problem = format!("is not 1 to {KEY_ID_MAX_BYTES} of A-Z a-z 0-9 . _ - (key {at})");
            return Err(ConfigError::invalid("auth.keys.id", problem));
        }
        let whose = format!("key {at}, {:?}", self.id);
        if let Err(error) = self.secret.check() {
            return Err(ConfigError::invalid("auth.keys.secret", format!("is {error} ({whose})")));
        }
        if self.readings_per_second.is_some_and(|rate| rate > MAX_RATE) {
            let problem = format!("is more than {MAX_RATE} ({whose})");
            return Err(ConfigError::invalid("auth.keys.readings_per_second", problem));
        }
        let keys = ["auth.keys.devices", "auth.keys.device_prefix"];
        check_device_scope(keys, self.devices.as_deref(), self.device_prefix.as_deref(), &whose)
    }
}
