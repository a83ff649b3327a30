//! All that one token or key may use.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{ConcurrencyLimit, Limiter};

/// All that one token, or one key of datagrams, may use. What is `None` has no limit of its own.
#[derive(Debug, Default)]
pub struct Quota {
    /// Readings that are sent.
    pub readings: Option<Limiter>,
    /// Requests of any kind.
    pub requests: Option<Limiter>,
    /// Bytes of bodies that are in memory.
    pub bytes: Option<Arc<ConcurrencyLimit>>,
    /// Queries that run at once.
    pub queries: Option<Arc<Semaphore>>,
    /// Devices that are not known. Who has no such limit shares one with all the others who have none.
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
