//! `[[auth.keys]]`: who signs datagrams, and for which devices.

use serde::{Deserialize, Serialize};

use super::check::{is_name, territory};
use super::limits::MAX_RATE;
use super::{ConfigError, Expiry, KeySecret};
use crate::model::DevicePattern;

/// The longest id of a key. It stands in each datagram that is signed with it.
pub const KEY_ID_MAX_BYTES: usize = 32;

/// A key that datagrams are signed with: its id, its secret, and for which devices it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// What a datagram calls it. No two keys have the same: a key is replaced by one of another id, and both
    /// are good meanwhile.
    pub id: String,
    /// What only the sender and the server know.
    pub secret: KeySecret,
    /// The devices whose readings it signs, as the sender writes their ids. Without it: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<DevicePattern>>,
    /// What stands before each device id that is written with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_prefix: Option<String>,
    /// Until when it is good. Without it: for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Expiry>,
    /// How many readings may be signed with it per second, in place of `limits.token_readings_per_second`. 0
    /// to 10,000,000; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readings_per_second: Option<u64>,
}

/// Whether this may be the id of a key: 1 to 32 of `A-Z a-z 0-9 . _ -`.
#[must_use]
pub fn is_key_id(id: &[u8]) -> bool {
    is_name(id, KEY_ID_MAX_BYTES)
}

impl Key {
    /// Checks everything but how it fits to the other keys. `at` is which entry it is, from 1.
    pub(super) fn check(&self, at: usize) -> Result<(), ConfigError> {
        let whose = format!("key {at}, {:?}", self.id);
        if !is_key_id(self.id.as_bytes()) {
            let problem = format!("is not 1 to {KEY_ID_MAX_BYTES} of A-Z a-z 0-9 . _ - ({whose})");
            return Err(ConfigError::invalid("auth.keys.id", problem));
        }
        if let Err(error) = self.secret.check() {
            return Err(ConfigError::invalid("auth.keys.secret", format!("is {error} ({whose})")));
        }
        if self.readings_per_second.is_some_and(|rate| rate > MAX_RATE) {
            let problem = format!("is more than {MAX_RATE} ({whose})");
            return Err(ConfigError::invalid("auth.keys.readings_per_second", problem));
        }
        let keys = ["auth.keys.devices", "auth.keys.device_prefix"];
        territory(keys, self.devices.as_deref(), self.device_prefix.as_deref(), &whose)
    }
}
