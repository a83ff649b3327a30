//! The rates and concurrency limits of one token or key.

use std::sync::{Arc, LazyLock};

use tokio::sync::Semaphore;

use super::{ConcurrencyLimit, Limiter};

/// The memory of queries is counted in blocks of this size, one permit for each.
///
/// A permit for each byte would not do: one call can acquire at most 2^32 permits of a semaphore.
pub const QUERY_BLOCK_BYTES: usize = 1024;

/// The limits of one token or key, or of all anonymous clients together.
///
/// `None` in a field: only the limits of the whole server apply.
#[derive(Debug, Default)]
pub struct Quota {
    /// The limiter of readings.
    pub readings: Option<Limiter>,
    /// The limiter of requests of any kind.
    pub requests: Option<Limiter>,
    /// The limit of the bytes of request bodies and messages in memory.
    pub bytes: Option<Arc<ConcurrencyLimit>>,
    /// The permits for concurrent queries.
    pub queries: Option<Arc<Semaphore>>,
    /// The permits for files that are sent at once.
    pub files: Option<Share>,
    /// The permits for the memory of queries, each for [`QUERY_BLOCK_BYTES`].
    pub query_blocks: Option<Share>,
    /// The limiter of new devices. Senders without it share one limiter.
    pub new_devices: Option<Limiter>,
}

/// The part of a limit of the whole server that one token may use.
#[derive(Debug, Clone)]
pub struct Share {
    /// The free permits of this part.
    ///
    /// A query or file takes the same number of permits from this part as from the whole limit.
    pub places: Arc<Semaphore>,
    /// The number of all permits of this part.
    pub max: u32,
}

impl Share {
    /// A part of three quarters of `total` permits, but at least one permit.
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
