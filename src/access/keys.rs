//! The keys that sign datagrams, and the verification of datagrams.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::signature::{self, Signer};
use super::{DeviceScope, quota_of_key};
use crate::config::{Config, Expiry, Key};
use crate::limits::Quota;
use crate::model::DeviceIdCase;

/// The keys that sign datagrams, and whether unsigned datagrams are accepted.
///
/// Key IDs are not secret, so the lookup of a key need not take constant time.
#[derive(Debug)]
pub struct Keys {
    known: HashMap<Box<str>, Known, RandomState>,
    takes_unsigned: bool,
    /// The scope of unsigned datagrams: all devices.
    unsigned_scope: DeviceScope,
    /// Whether there are neither tokens nor keys, so that signatures are not verified.
    is_open: bool,
}

struct Known {
    id: Arc<str>,
    signer: Signer,
    scope: DeviceScope,
    quota: Quota,
    expires: Option<Expiry>,
}

/// An accepted datagram: its signature is valid, or it needs none.
#[derive(Debug, Clone, Copy)]
pub struct Verified<'k, 'd> {
    /// The ID of the key that signed the datagram; `None` if it is not signed.
    pub signer: Option<&'k Arc<str>>,
    /// The datagram without its signature line.
    pub content: &'d [u8],
    /// The devices that the datagram may write.
    pub scope: &'k DeviceScope,
    /// The quota of the sender.
    pub quota: &'k Quota,
}

/// The signature of a datagram is missing or invalid, so the datagram is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The datagram must be signed and is not.
    #[error("the datagram must be signed, and is not")]
    Unsigned,
    /// The signature is malformed, or does not match the content.
    #[error("the signature does not match the content")]
    BadSignature,
    /// The datagram is signed with an unknown key.
    #[error("the datagram is signed with an unknown key")]
    UnknownKey,
    /// The datagram is signed with an expired key.
    #[error("the datagram is signed with an expired key")]
    ExpiredKey,
}

impl Keys {
    /// The keys of the configuration, with unused quotas.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let (auth, limits, case) = (&config.auth, &config.limits, config.ingest.device_id_case);
        let entry = |key: &Key| (key.id.as_str().into(), Known::new(key, quota_of_key(limits, key), case));
        Self {
            known: auth.keys.iter().map(entry).collect(),
            takes_unsigned: auth.takes_unsigned(),
            unsigned_scope: DeviceScope::of(case, None, None),
            is_open: auth.tokens.is_empty() && auth.keys.is_empty(),
        }
    }

    /// Verifies the signature of a datagram at `now_ms` (Unix milliseconds).
    ///
    /// A datagram with an invalid signature is refused even if unsigned datagrams are accepted. If the
    /// configuration has neither tokens nor keys, signatures are not verified.
    ///
    /// # Errors
    /// When the datagram is refused.
    pub fn verify<'d>(&self, datagram: &'d [u8], now_ms: i64) -> Result<Verified<'_, 'd>, SignatureError> {
        let unsigned =
            |content| Verified { signer: None, content, scope: &self.unsigned_scope, quota: Quota::unlimited() };
        if !signature::is_claimed(datagram) {
            return if self.takes_unsigned { Ok(unsigned(datagram)) } else { Err(SignatureError::Unsigned) };
        }
        if self.is_open {
            return Ok(unsigned(signature::skip_line(datagram)));
        }
        let signature = signature::read(datagram).ok_or(SignatureError::BadSignature)?;
        let known = self.known.get(signature.key_id).ok_or(SignatureError::UnknownKey)?;
        if !known.signer.verifies(&signature) {
            return Err(SignatureError::BadSignature);
        }
        match known.expires {
            Some(expires) if expires.is_over(now_ms) => Err(SignatureError::ExpiredKey),
            _ => Ok(Verified {
                signer: Some(&known.id),
                content: signature.content,
                scope: &known.scope,
                quota: &known.quota,
            }),
        }
    }

    /// The number of keys.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.len()
    }
}

impl Known {
    fn new(key: &Key, quota: Quota, case: DeviceIdCase) -> Self {
        let scope = DeviceScope::of(case, key.devices.as_deref(), key.device_prefix.as_deref());
        Self { id: key.id.as_str().into(), signer: Signer::new(&key.secret), scope, quota, expires: key.expires }
    }
}

/// Leaves out the secret.
impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").field("scope", &self.scope).field("expires", &self.expires).finish_non_exhaustive()
    }
}
