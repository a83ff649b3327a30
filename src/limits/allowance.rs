//! All that one token may use.

use std::sync::Arc;

use super::{Limiter, Share};

/// All that one token may use. What is `None` has no limit.
#[derive(Debug, Default)]
pub struct Allowance {
    /// Readings that are sent.
    pub readings: Option<Limiter>,
    /// Requests of any kind.
    pub requests: Option<Limiter>,
    /// Bytes of bodies that are in memory.
    pub bytes: Option<Arc<Share>>,
}

impl Allowance {
    /// No limits.
    #[must_use]
    pub fn unlimited() -> &'static Self {
        static UNLIMITED: Allowance = Allowance { readings: None, requests: None, bytes: None };
        &UNLIMITED
    }
}
