//! The rates and concurrency limits of one token or key.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{ConcurrencyLimit, Limiter};

/// The rates and concurrency limits of one token, key or anonymous client. `None` is no limit of its own.
#[derive(Debug, Default)]
pub struct Quota {
    /// The rate of readings.
    pub readings: Option<Limiter>,
    /// The rate of requests of any kind.
    pub requests: Option<Limiter>,
    /// The bytes of bodies in memory.
    pub bytes: Option<Arc<ConcurrencyLimit>>,
    /// The queries that run at once.
    pub queries: Option<Arc<Semaphore>>,
    /// The rate of new devices. Senders without this rate share one.
    pub new_devices: Option<Limiter>,
}

impl Quota {
    /// No limits.
    #[must_use]
    pub fn unlimited() -> &'static Self {
        static UNLIMITED: Quota =
            Quota { readings: None, requests: None, bytes: None, queries: None, new_devices: None };
        &UNLIMITED
    }
}
