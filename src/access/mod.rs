//! Access: who may do what.
//!
//! A request shows a token, a client certificate, both or nothing. [`Tokens`] make of it a [`Grant`]: the
//! name under which its owner is known, what is allowed, the [`DeviceScope`], which devices are seen and how
//! their ids look from there, and the [`Quota`], how much may be used. Whatever takes readings in or gives
//! them out asks the grant; nobody below asks for tokens. A datagram shows no token: it is signed with a key,
//! and [`Keys`] make of it the [`DeviceScope`] of that key.
//!
//! Promises:
//! - A token is never kept, only its hash, and never shown. The secret of a key has to be kept, and is never
//!   shown.
//! - A token or signature that is shown and not good is refused, even where somebody without one would be let
//!   in: a mistyped token must not write outside its tenant.
//! - A certificate lets its owner write the devices that it names. Beside a token it takes away and adds
//!   nothing.
//! - [`Gate`] changes all tokens and keys at once. Who was let in before finishes the request.
//!
//! Pure, but for the lock of the gate. Knows neither HTTP nor what is behind the scopes.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::config::{Audience, CertificateUse, Config, Expiry, Key, Limits, Scope, Token, TokenHash};
use crate::limits::{ConcurrencyLimit, Limiter, Quota, Rate};
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

/// The longest token that is looked at, in bytes.
pub const TOKEN_MAX_BYTES: usize = 256;

/// What a request shows of who sends it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown<'a> {
    /// A token.
    pub token: Option<&'a str>,
    /// The certificate of its connection, which is good.
    pub certificate: Option<&'a Certificate>,
}

/// What somebody may do.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The name of the token, or without one, of the client certificate; `None` without either. Several
    /// tokens may have the same.
    pub name: Option<Arc<str>>,
    /// What is allowed.
    pub scopes: Vec<Scope>,
    /// With which devices.
    pub device_scope: DeviceScope,
    /// How much. Tokens of one name share it.
    pub quota: Arc<Quota>,
}

impl Grant {
    /// Whether this is allowed.
    #[must_use]
    pub fn allows(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    fn nothing() -> Self {
        Self { name: None, scopes: Vec::new(), device_scope: DeviceScope::default(), quota: Arc::default() }
    }

    fn everything(quota: Quota) -> Self {
        let scopes = vec![Scope::Ingest, Scope::Query, Scope::Admin];
        Self { scopes, quota: Arc::new(quota), ..Self::nothing() }
    }

    /// What a certificate of these devices allows: to write them. How much is for the limits of devices to
    /// say.
    fn to_write(devices: Vec<DevicePattern>) -> Self {
        let name = devices.first().map(|device| format!("certificate of {device}").into());
        let device_scope = DeviceScope::new(String::new(), Some(devices));
        Self { name, scopes: vec![Scope::Ingest], device_scope, quota: Arc::default() }
    }

    /// The same with those of its devices that are among these.
    fn narrowed_to(&self, devices: &[DevicePattern]) -> Self {
        Self { device_scope: self.device_scope.narrowed_to(devices), ..self.clone() }
    }

    fn of(token: &Token, case: DeviceIdCase, quota: Arc<Quota>) -> Self {
        Self {
            name: Some(token.name.as_str().into()),
            scopes: token.scopes.clone(),
            device_scope: DeviceScope::of(token.devices.as_deref(), token.device_prefix.as_deref(), case),
            quota,
        }
    }
}

/// Why somebody is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No token was shown.
    #[error("this takes a token: Authorization: Bearer TOKEN")]
    NoToken,
    /// The token is not one of those that are known.
    #[error("the token is not known")]
    UnknownToken,
    /// It was good once.
    #[error("the token has expired")]
    ExpiredToken,
    /// Neither a token nor a certificate that names devices was shown, and one of them would have done.
    #[error("this takes a token (Authorization: Bearer TOKEN), or a client certificate")]
    NoTokenNorCertificate,
    /// The certificate names no device.
    #[error(
        "none of the names in the client certificate (its common name, DNS and URI alternative names) is a device id"
    )]
    NamelessCertificate,
    /// The certificate has expired while its connection was open.
    #[error("the client certificate has expired")]
    ExpiredCertificate,
}

/// The tokens and keys that are good, and what is open without one.
#[derive(Debug)]
pub struct Tokens {
    known: HashMap<TokenHash, (Arc<Grant>, Option<Expiry>)>,
    anonymous: Option<Arc<Grant>>,
    nobody: Arc<Grant>,
    certificate_use: CertificateUse,
    case: DeviceIdCase,
    metrics: Audience,
    health: Audience,
    keys: Keys,
}

impl Tokens {
    /// The tokens and keys of the configuration, of which nobody has used anything yet.
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
            anonymous: auth.lets_anybody_in().then(|| Arc::new(Grant::everything(quota_of(config, None)))),
            nobody: Arc::new(Grant::nothing()),
            certificate_use: auth.client_certificate,
            case,
            metrics: auth.metrics,
            health: auth.health,
            keys: Keys::new(config),
        }
    }

    /// What somebody may do who shows this at `now_ms` (Unix milliseconds) and wants to use the scope `to`,
    /// if it is one. A certificate is looked at only where it could help: for [`Scope::Ingest`]. Where there
    /// is nothing by which anybody can be known, what is shown does not matter.
    ///
    /// # Errors
    /// When nobody is let in with that.
    pub fn grant(&self, shown: Shown<'_>, to: Option<Scope>, now_ms: i64) -> Result<Arc<Grant>, AuthError> {
        let takes_certificate = self.certificate_use == CertificateUse::Device && to == Some(Scope::Ingest);
        let certificate = shown.certificate.filter(|_| takes_certificate);
        let devices = certificate.map(|certificate| self.devices(certificate, now_ms)).transpose()?;
        match (shown.token.filter(|_| self.asks_who_comes()), devices) {
            (Some(token), None) => self.of_token(token, now_ms),
            (Some(token), Some(devices)) => Ok(Arc::new(self.of_token(token, now_ms)?.narrowed_to(&devices))),
            (None, Some(devices)) => Ok(Arc::new(Grant::to_write(devices))),
            (None, None) if takes_certificate => self.anonymous.clone().ok_or(AuthError::NoTokenNorCertificate),
            (None, None) => self.anonymous.clone().ok_or(AuthError::NoToken),
        }
    }

    /// Whether there is anything by which somebody can be known.
    #[must_use]
    pub fn asks_who_comes(&self) -> bool {
        !self.known.is_empty() || self.certificate_use == CertificateUse::Device
    }

    /// Whether somebody who shows nothing may do everything.
    #[must_use]
    pub const fn lets_anybody_in(&self) -> bool {
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

    fn devices(&self, certificate: &Certificate, now_ms: i64) -> Result<Vec<DevicePattern>, AuthError> {
        if certificate.is_over(now_ms) {
            return Err(AuthError::ExpiredCertificate);
        }
        let devices = certificate.devices(self.case);
        if devices.is_empty() { Err(AuthError::NamelessCertificate) } else { Ok(devices) }
    }

    /// The grant of somebody who was not let in, for what is open to everybody.
    #[must_use]
    pub fn nobody(&self) -> Arc<Grant> {
        Arc::clone(&self.nobody)
    }

    /// Who may see metrics.
    #[must_use]
    pub const fn metrics(&self) -> Audience {
        self.metrics
    }

    /// Who may see health.
    #[must_use]
    pub const fn health(&self) -> Audience {
        self.health
    }

    /// The keys that datagrams are signed with.
    #[must_use]
    pub const fn keys(&self) -> &Keys {
        &self.keys
    }

    /// How many tokens there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.len()
    }
}

/// What may be used with a token, or without one. Who shows none counts as one together, and where there are
/// no tokens at all there is nobody to share memory with.
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
    }
}

/// What may be sent with a key.
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

/// How many new devices may come with one token, with one key, or from whoever has neither. `None`: any
/// number.
#[must_use]
pub fn new_devices(limits: &Limits) -> Option<Rate> {
    const MINUTE: Duration = Duration::from_secs(60);
    Rate::new(limits.new_devices_per_minute, MINUTE, Limits::NEW_DEVICES_BURST)
}

/// The tokens and keys of now.
#[derive(Debug)]
pub struct Gate(RwLock<Arc<Tokens>>);

impl Gate {
    /// Begins with these.
    #[must_use]
    pub fn new(tokens: Tokens) -> Self {
        Self(RwLock::new(Arc::new(tokens)))
    }

    /// The tokens and keys that hold for a request that begins now.
    #[must_use]
    pub fn tokens(&self) -> Arc<Tokens> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Others from now on.
    pub fn replace(&self, tokens: Tokens) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
    }
}
