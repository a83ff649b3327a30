//! Access: who may do what.
//!
//! A request shows a token or none. [`Tokens`] make of it a [`Grant`]: the name under which it is known, what it allows,
//! and its [`Reach`], which devices it sees and how their ids look from there. Whatever takes readings in or gives them
//! out asks the grant; nobody below asks for tokens. A datagram shows no token: it is signed with a key, and [`Keys`] make of
//! it the [`Reach`] of that key.
//!
//! Promises:
//! - A token is never kept, only its hash, and never shown. The secret of a key has to be kept, and is never shown.
//! - A token or signature that is shown and not good is refused, even where somebody without one would be let in: a
//!   mistyped token must not write outside its tenant.
//! - [`Gate`] changes all tokens and keys at once. Who was let in before finishes the request.
//!
//! Pure, but for the lock of the gate. Knows neither HTTP nor what is behind the scopes.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::config::{Audience, Auth, Expiry, Scope, Token, TokenHash};
use crate::model::DeviceIdCase;

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod keys;
mod reach;
mod signature;
#[cfg(test)]
mod tests;

pub use keys::{Keys, Unverified, Verified};
pub use reach::{Reach, ReachError, Span};
pub use signature::sign;

/// The longest token that is looked at, in bytes.
pub const TOKEN_MAX_BYTES: usize = 256;

/// What somebody may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The name of the token; `None` without one. Several tokens may have the same.
    pub name: Option<Arc<str>>,
    /// What is allowed.
    pub scopes: Vec<Scope>,
    /// With which devices.
    pub reach: Reach,
}

impl Grant {
    /// Whether this is allowed.
    #[must_use]
    pub fn allows(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    fn nothing() -> Self {
        Self { name: None, scopes: Vec::new(), reach: Reach::default() }
    }

    fn everything() -> Self {
        Self { scopes: vec![Scope::Ingest, Scope::Query, Scope::Admin], ..Self::nothing() }
    }

    fn of(token: &Token, case: DeviceIdCase) -> Self {
        Self {
            name: Some(token.name.as_str().into()),
            scopes: token.scopes.clone(),
            reach: Reach::of(token.devices.as_deref(), token.device_prefix.as_deref(), case),
        }
    }
}

/// Why somebody is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stranger {
    /// No token was shown.
    #[error("this takes a token: Authorization: Bearer TOKEN")]
    NoToken,
    /// The token is not one of those that are known.
    #[error("the token is not known")]
    UnknownToken,
    /// It was good once.
    #[error("the token has expired")]
    ExpiredToken,
}

/// The tokens and keys that are good, and what is open without one.
#[derive(Debug)]
pub struct Tokens {
    known: HashMap<TokenHash, (Arc<Grant>, Option<Expiry>)>,
    anonymous: Option<Arc<Grant>>,
    nobody: Arc<Grant>,
    metrics: Audience,
    health: Audience,
    keys: Keys,
}

impl Tokens {
    /// The tokens and keys of the configuration. `case` is what becomes of the device ids that they are held against.
    #[must_use]
    pub fn new(auth: &Auth, case: DeviceIdCase) -> Self {
        let entry = |token: &Token| (token.hash, (Arc::new(Grant::of(token, case)), token.expires));
        Self {
            known: auth.tokens.iter().map(entry).collect(),
            anonymous: auth.lets_anybody_in().then(|| Arc::new(Grant::everything())),
            nobody: Arc::new(Grant::nothing()),
            metrics: auth.metrics,
            health: auth.health,
            keys: Keys::new(auth, case),
        }
    }

    /// What the owner of a token may do at `now_ms` (Unix milliseconds), or somebody who shows none. Without any tokens,
    /// what is shown does not matter.
    ///
    /// # Errors
    /// When nobody is let in with that.
    pub fn grant(&self, token: Option<&str>, now_ms: i64) -> Result<Arc<Grant>, Stranger> {
        let Some(token) = token.filter(|_| !self.known.is_empty()) else {
            return self.anonymous.clone().ok_or(Stranger::NoToken);
        };
        if token.len() > TOKEN_MAX_BYTES {
            return Err(Stranger::UnknownToken);
        }
        let (grant, expires) = self.known.get(&TokenHash::of(token)).ok_or(Stranger::UnknownToken)?;
        match expires {
            Some(expires) if expires.is_over(now_ms) => Err(Stranger::ExpiredToken),
            _ => Ok(Arc::clone(grant)),
        }
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
