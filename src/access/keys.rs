//! Who sent a datagram.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::signature::{self, Signer};
use super::{DeviceScope, quota_of_key};
use crate::config::{Config, Expiry, Key};
use crate::limits::Quota;
use crate::model::DeviceIdCase;

/// The keys that datagrams are signed with, and what becomes of a datagram that nobody signed.
///
/// The hash of a key id is no secret, so a plain lookup will do.
#[derive(Debug)]
pub struct Keys {
    known: HashMap<Box<str>, Known, RandomState>,
    takes_unsigned: bool,
    /// Neither tokens nor keys: what is shown does not matter.
    is_open: bool,
}

struct Known {
    id: Arc<str>,
    signer: Signer,
    scope: DeviceScope,
    quota: Quota,
    expires: Option<Expiry>,
}

/// A datagram that may be read.
#[derive(Debug, Clone, Copy)]
pub struct Verified<'k, 'd> {
    /// The id of the key that it is signed with.
    pub signer: Option<&'k Arc<str>>,
    /// What is to be read: all of it, or what stands behind the line that signs it.
    pub content: &'d [u8],
    /// Which devices it may write.
    pub scope: &'k DeviceScope,
    /// How much.
    pub quota: &'k Quota,
}

/// Why a datagram is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// It has to be signed and is not.
    #[error("datagrams have to be signed here")]
    Unsigned,
    /// Its first line looks like a signature and is none, or is not that of what stands behind it.
    #[error("the signature is not that of the content")]
    BadSignature,
    /// It is signed with a key that is not known.
    #[error("the key is not known")]
    UnknownKey,
    /// It is signed with a key that was good once.
    #[error("the key has expired")]
    ExpiredKey,
}

impl Keys {
    /// The keys of the configuration, of which nobody has used anything yet.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let (auth, limits, case) = (&config.auth, &config.limits, config.ingest.device_id_case);
        let entry = |key: &Key| (key.id.as_str().into(), Known::new(key, quota_of_key(limits, key), case));
        Self {
            known: auth.keys.iter().map(entry).collect(),
            takes_unsigned: auth.takes_unsigned(),
            is_open: auth.tokens.is_empty() && auth.keys.is_empty(),
        }
    }

    /// What may be read of a datagram at `now_ms` (Unix milliseconds). A signature that is not good is
    /// refused, even where the datagram would be taken without.
    ///
    /// # Errors
    /// When nothing of it may be read.
    pub fn verify<'d>(&self, datagram: &'d [u8], now_ms: i64) -> Result<Verified<'_, 'd>, SignatureError> {
        let from_anybody =
            |content| Verified { signer: None, content, scope: DeviceScope::all(), quota: Quota::unlimited() };
        if !signature::is_claimed(datagram) {
            return if self.takes_unsigned { Ok(from_anybody(datagram)) } else { Err(SignatureError::Unsigned) };
        }
        if self.is_open {
            return Ok(from_anybody(signature::skip_line(datagram)));
        }
        let signature = signature::read(datagram).ok_or(SignatureError::BadSignature)?;
        let known = self.known.get(signature.key_id).ok_or(SignatureError::UnknownKey)?;
        if !known.signer.has_made(&signature) {
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

    /// How many keys there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.len()
    }
}

impl Known {
    fn new(key: &Key, quota: Quota, case: DeviceIdCase) -> Self {
        let scope = DeviceScope::of(key.devices.as_deref(), key.device_prefix.as_deref(), case);
        Self { id: key.id.as_str().into(), signer: Signer::new(&key.secret), scope, quota, expires: key.expires }
    }
}

/// Without the secret.
impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").field("scope", &self.scope).field("expires", &self.expires).finish_non_exhaustive()
    }
}
