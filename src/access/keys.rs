//! The keys of signed datagrams.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::signature::{self, Signer};
use super::{DeviceScope, quota_of_key};
use crate::config::{Config, Expiry, Key};
use crate::limits::Quota;
use crate::model::DeviceIdCase;

/// The keys that datagrams are signed with, and whether unsigned datagrams are accepted.
///
/// Key IDs are not secret, so the lookup need not take constant time.
#[derive(Debug)]
pub struct Keys {
    known: HashMap<Box<str>, Known, RandomState>,
    takes_unsigned: bool,
    /// The devices that unsigned datagrams may write: all.
    unsigned_scope: DeviceScope,
    /// There are neither tokens nor keys: signatures are not verified.
    is_open: bool,
}

struct Known {
    id: Arc<str>,
    signer: Signer,
    scope: DeviceScope,
    quota: Quota,
    expires: Option<Expiry>,
}

/// A datagram that may be parsed.
#[derive(Debug, Clone, Copy)]
pub struct Verified<'k, 'd> {
    /// The ID of the key that the datagram is signed with; `None` if it is not signed.
    pub signer: Option<&'k Arc<str>>,
    /// The content: the datagram without the line of its signature.
    pub content: &'d [u8],
    /// The devices that the datagram may write.
    pub scope: &'k DeviceScope,
    /// The quota of the sender.
    pub quota: &'k Quota,
}

/// Why a datagram is refused before it is parsed.
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

    /// Verifies a datagram at `now_ms` (Unix milliseconds). An invalid signature is refused even if unsigned
    /// datagrams are accepted. Without any token or key, signatures are not verified.
    ///
    /// # Errors
    /// When the datagram must not be parsed.
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
