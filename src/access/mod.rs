//! Authentication and authorization: tokens, certificates, keys and their rights.
//!
//! A request has a token, a client certificate, both or neither ([`Credentials`]). [`Tokens::grant`] returns
//! the [`Grant`] of these credentials: the name of the owner, the allowed scopes, the [`DeviceScope`] (which
//! devices, and how their IDs are mapped) and the [`Quota`]. `ingest` and `query` obey the grant; no room
//! below them sees a token. A datagram is signed with a key. [`Keys::verify`] checks the signature, and
//! returns the [`DeviceScope`] and the [`Quota`] of the key.
//!
//! Promises:
//! - The server keeps the hash of a token, not the token. It must keep the secret of a key. It shows neither.
//! - A request with an invalid token or signature is refused, even if requests without one are allowed.
//!   Otherwise a client with a mistyped token would write outside its tenant.
//! - A request with only a certificate may write the devices that the certificate names. A request with a
//!   token and a certificate may write those devices of the token that the certificate names.
//! - [`Gate`] replaces all tokens and keys at once. Requests that are already authorized run to their end.
//!
//! Pure, except for the lock in [`Gate`]. This room knows neither HTTP nor what the scopes protect.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::config::{Audience, CertificateUse, Config, Expiry, Key, Limits, Scope, Token, TokenHash};
use crate::limits::{ConcurrencyLimit, Limiter, QUERY_BLOCK_BYTES, Quota, Rate, Share};
use crate::model::{DeviceIdCase, DevicePattern};

mod certificate;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod keys;
mod scope;
mod signature;
#[cfg(test)]
mod tests;

pub use certificate::Certificate;
pub use keys::{Keys, SignatureError, Verified};
pub use scope::{DeviceScope, DeviceScopeError, IdRange};
pub use signature::sign;

/// The longest token, in bytes.
///
/// The server refuses a longer token as unknown, without hashing it.
pub const TOKEN_MAX_BYTES: usize = 256;

/// The credentials of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// The token in plain text.
    pub token: Option<&'a str>,
    /// The client certificate of the connection, which TLS has verified.
    pub certificate: Option<&'a Certificate>,
}

/// The rights of a token, a certificate or an anonymous client.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The name of the client: `gateway-1` for a token, else `certificate of DEVICE`.
    ///
    /// Several tokens may share a name. `None`: the client is anonymous.
    pub name: Option<Arc<str>>,
    /// The scopes that the client may use.
    pub scopes: Vec<Scope>,
    /// The devices that the client may write and read, and the mapping of their IDs.
    pub device_scope: DeviceScope,
    /// The quota. Tokens with the same name share it.
    pub quota: Arc<Quota>,
}

impl Grant {
    /// Whether the grant has this scope.
    #[must_use]
    pub fn allows(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    /// The author of a change: the name of the client, or `anonymous`.
    #[must_use]
    pub fn author(&self) -> &str {
        self.name.as_deref().unwrap_or("anonymous")
    }

    fn nothing() -> Self {
        Self { name: None, scopes: Vec::new(), device_scope: DeviceScope::default(), quota: Arc::default() }
    }

    fn everything(case: DeviceIdCase, quota: Quota) -> Self {
        let scopes = vec![Scope::Ingest, Scope::Query, Scope::Metadata, Scope::Admin];
        let device_scope = DeviceScope::of(case, None, None);
        Self { scopes, device_scope, quota: Arc::new(quota), ..Self::nothing() }
    }

    /// The grant of a request with only a certificate, which may write `devices`.
    ///
    /// The grant has no quota, but the limits per device apply.
    fn to_write(case: DeviceIdCase, devices: Vec<DevicePattern>) -> Self {
        let name = devices.first().map(|device| format!("certificate of {device}").into());
        let device_scope = DeviceScope::new(case, String::new(), Some(devices));
        Self { name, scopes: vec![Scope::Ingest], device_scope, quota: Arc::default() }
    }

    /// This grant, but only for those of its devices that are among `devices`.
    fn narrowed_to(&self, devices: &[DevicePattern]) -> Self {
        Self { device_scope: self.device_scope.narrowed_to(devices), ..self.clone() }
    }

    fn of(token: &Token, case: DeviceIdCase, quota: Arc<Quota>) -> Self {
        Self {
            name: Some(token.name.as_str().into()),
            scopes: token.scopes.clone(),
            device_scope: DeviceScope::of(case, token.devices.as_deref(), token.device_prefix.as_deref()),
            quota,
        }
    }
}

/// The credentials of a request are missing or invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The request has no token.
    #[error("this request needs a token: Authorization: Bearer TOKEN")]
    NoToken,
    /// The token is unknown.
    #[error("the token is not known")]
    UnknownToken,
    /// The token has expired.
    #[error("the token has expired")]
    ExpiredToken,
    /// The request has neither a token nor a client certificate.
    #[error("this request needs a token (Authorization: Bearer TOKEN) or a client certificate")]
    NoTokenNorCertificate,
    /// No name in the certificate is a device ID.
    #[error(
        "none of the names in the client certificate (its common name, DNS and URI alternative names) is a device id"
    )]
    NamelessCertificate,
    /// The certificate expired while its connection was open.
    #[error("the client certificate has expired")]
    ExpiredCertificate,
}

/// The known tokens and keys, and the rights of clients without credentials.
#[derive(Debug)]
pub struct Tokens {
    known: HashMap<TokenHash, (Arc<Grant>, Option<Expiry>)>,
    anonymous: Option<Arc<Grant>>,
    /// The grant of a request without valid credentials, on a route that needs none.
    ///
    /// This grant has no scope, so it allows nothing else.
    pub unauthenticated: Arc<Grant>,
    certificate_use: CertificateUse,
    case: DeviceIdCase,
    /// The clients that may read `/metrics`.
    pub metrics: Audience,
    /// The clients that may read the health routes.
    pub health: Audience,
    /// The keys that sign datagrams.
    pub keys: Keys,
}

impl Tokens {
    /// The tokens and keys of the configuration, with unused quotas.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let (auth, case) = (&config.auth, config.ingest.device_id_case);
        let mut quotas: HashMap<&str, Arc<Quota>> = HashMap::new();
        let mut known = HashMap::new();
        for token in &auth.tokens {
            let quota = quotas.entry(&token.name).or_insert_with(|| Arc::new(quota_of(config, Some(token))));
            let grant = Grant::of(token, case, Arc::clone(quota));
            known.insert(token.hash, (Arc::new(grant), token.expires));
        }
        Self {
            known,
            anonymous: auth.lets_anybody_in().then(|| Arc::new(Grant::everything(case, quota_of(config, None)))),
            unauthenticated: Arc::new(Grant::nothing()),
            certificate_use: auth.client_certificate,
            case,
            metrics: auth.metrics,
            health: auth.health,
            keys: Keys::new(config),
        }
    }

    /// The grant of a request with these credentials at `now_ms` (Unix milliseconds).
    ///
    /// `to` is the scope that the request needs, if it needs one. A certificate is used only if `to` is
    /// [`Scope::Ingest`] and `auth.client_certificate` is `device`. If neither tokens nor certificates are
    /// configured, credentials are ignored. An expired certificate is refused in any case.
    ///
    /// # Errors
    /// When the credentials are invalid or missing.
    pub fn grant(&self, shown: Credentials<'_>, to: Option<Scope>, now_ms: i64) -> Result<Arc<Grant>, AuthError> {
        if shown.certificate.is_some_and(|certificate| certificate.is_over(now_ms)) {
            return Err(AuthError::ExpiredCertificate);
        }
        let takes_certificate = self.certificate_use == CertificateUse::Device && to == Some(Scope::Ingest);
        let certificate = shown.certificate.filter(|_| takes_certificate);
        let devices = certificate.map(|certificate| self.devices(certificate)).transpose()?;
        match (shown.token.filter(|_| self.authenticates()), devices) {
            (Some(token), None) => self.of_token(token, now_ms),
            (Some(token), Some(devices)) => Ok(Arc::new(self.of_token(token, now_ms)?.narrowed_to(&devices))),
            (None, Some(devices)) => Ok(Arc::new(Grant::to_write(self.case, devices))),
            (None, None) if takes_certificate => self.anonymous.clone().ok_or(AuthError::NoTokenNorCertificate),
            (None, None) => self.anonymous.clone().ok_or(AuthError::NoToken),
        }
    }

    /// Whether tokens or client certificates are configured.
    #[must_use]
    pub fn authenticates(&self) -> bool {
        !self.known.is_empty() || self.certificate_use == CertificateUse::Device
    }

    /// Whether clients without credentials may do everything.
    #[must_use]
    pub const fn allows_anonymous(&self) -> bool {
        self.anonymous.is_some()
    }

    fn of_token(&self, token: &str, now_ms: i64) -> Result<Arc<Grant>, AuthError> {
        if token.len() > TOKEN_MAX_BYTES {
            return Err(AuthError::UnknownToken);
        }
        let (grant, expires) = self.known.get(&TokenHash::of(token)).ok_or(AuthError::UnknownToken)?;
        match expires {
            Some(expires) if expires.is_over(now_ms) => Err(AuthError::ExpiredToken),
            _ => Ok(Arc::clone(grant)),
        }
    }

    fn devices(&self, certificate: &Certificate) -> Result<Vec<DevicePattern>, AuthError> {
        let devices = certificate.devices(self.case);
        if devices.is_empty() { Err(AuthError::NamelessCertificate) } else { Ok(devices) }
    }

    /// The number of tokens.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.len()
    }
}

/// The quota of a token, or of all requests without a token together.
///
/// If no tokens are configured, all requests are one client, which may use all memory and all queries.
fn quota_of(config: &Config, token: Option<&Token>) -> Quota {
    let limits = &config.limits;
    let readings = token.and_then(|token| token.readings_per_second).unwrap_or(limits.token_readings_per_second);
    let is_alone = config.auth.tokens.is_empty();
    Quota {
        new_devices: token.and_then(|_| new_devices(limits)).map(unused),
        readings: per_second(readings, limits).map(unused),
        requests: per_second(limits.token_requests_per_second, limits).map(unused),
        bytes: (!is_alone).then(|| Arc::new(ConcurrencyLimit::new(config.token_bytes_in_flight().as_usize()))),
        queries: (!is_alone).then(|| Arc::new(Semaphore::new(config.query.max_concurrent_per_token))),
        files: (!is_alone).then(|| Share::of(config.query.max_files)),
        query_blocks: (!is_alone).then(|| Share::of(config.query.max_bytes_in_flight.as_usize() / QUERY_BLOCK_BYTES)),
    }
}

/// The quota of a key: rates of readings and of new devices.
fn quota_of_key(limits: &Limits, key: &Key) -> Quota {
    let readings = key.readings_per_second.unwrap_or(limits.token_readings_per_second);
    Quota {
        new_devices: new_devices(limits).map(unused),
        readings: per_second(readings, limits).map(unused),
        ..Quota::default()
    }
}

fn per_second(count: u64, limits: &Limits) -> Option<Rate> {
    Rate::new(count, Duration::from_secs(1), limits.burst.as_duration())
}

fn unused(rate: Rate) -> Limiter {
    Limiter::new(rate, Instant::now())
}

/// The rate of new devices: `limits.new_devices_per_minute`. `None` is no limit.
///
/// Each token and each key has this rate, and all senders without either share one.
#[must_use]
pub fn new_devices(limits: &Limits) -> Option<Rate> {
    const MINUTE: Duration = Duration::from_secs(60);
    Rate::new(limits.new_devices_per_minute, MINUTE, Limits::NEW_DEVICES_BURST)
}

/// The current tokens and keys. A reload of the configuration replaces them.
#[derive(Debug)]
pub struct Gate(RwLock<Arc<Tokens>>);

impl Gate {
    /// Starts with these tokens and keys.
    #[must_use]
    pub fn new(tokens: Tokens) -> Self {
        Self(RwLock::new(Arc::new(tokens)))
    }

    /// The tokens and keys for a request that begins now.
    #[must_use]
    pub fn tokens(&self) -> Arc<Tokens> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the tokens and keys.
    pub fn replace(&self, tokens: Tokens) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
    }
}
