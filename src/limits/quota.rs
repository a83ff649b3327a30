//! The rates and concurrency limits of one token or key.

use std::sync::{Arc, LazyLock};

use tokio::sync::Semaphore;

use super::{ConcurrencyLimit, Limiter};

/// The unit of the memory of queries: one call acquires at most 2^32 permits of a semaphore.
pub const QUERY_BLOCK_BYTES: usize = 1024;

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
    /// The files that are sent at once.
    pub files: Option<Share>,
    /// The memory of queries, in blocks of [`QUERY_BLOCK_BYTES`].
    pub query_blocks: Option<Share>,
    /// The rate of new devices. Senders without this rate share one.
    pub new_devices: Option<Limiter>,
}

/// The part of a limit of all tokens that one token may use.
#[derive(Debug, Clone)]
pub struct Share {
    /// The places that the token may still take.
    pub places: Arc<Semaphore>,
    /// The number of all its places.
    pub max: u32,
}

impl Share {
    /// Three quarters of `total`, and at least one place.
    #[must_use]
    pub fn of(total: usize) -> Self {
        let max = u32::try_from(total / 4 * 3 + total % 4 * 3 / 4).unwrap_or(u32::MAX).max(1);
        Self { places: Arc::new(Semaphore::new(max as usize)), max }
    }
}

impl Quota {
    /// A quota without limits.
    #[must_use]
    pub fn unlimited() -> &'static Self {
        static UNLIMITED: LazyLock<Quota> = LazyLock::new(Quota::default);
        &UNLIMITED
    }
}
