//! A part of something that is given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much of something one may hold at a time.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    held: AtomicUsize,
    max: usize,
}

/// What is held of a share. Given back when dropped.
#[derive(Debug)]
pub struct ConcurrencyGuard {
    limit: Arc<ConcurrencyLimit>,
    count: usize,
}

impl ConcurrencyLimit {
    /// Nothing is held, and `max` may be.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { held: AtomicUsize::new(0), max }
    }

    /// Holds nothing yet.
    #[must_use]
    pub const fn hold(self: Arc<Self>) -> ConcurrencyGuard {
        ConcurrencyGuard { limit: self, count: 0 }
    }
}

impl ConcurrencyGuard {
    /// Holds `more` in addition, and returns whether there was room. Without room nothing changes.
    pub fn grow(&mut self, more: usize) -> bool {
        let room = |held: usize| held.checked_add(more).filter(|&sum| sum <= self.limit.max);
        let has_grown = self.limit.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        if has_grown {
            self.count += more;
        }
        has_grown
    }
}

impl Drop for ConcurrencyGuard {
    fn drop(&mut self) {
        self.limit.held.fetch_sub(self.count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_held_by_several_and_given_back() {
        let limit = Arc::new(ConcurrencyLimit::new(10));
        let (mut one, mut two) = (Arc::clone(&limit).hold(), Arc::clone(&limit).hold());
        assert!(one.grow(6) && !two.grow(5) && two.grow(4) && !one.grow(1) && one.grow(0));
        drop(one);
        assert!(two.grow(6) && !two.grow(usize::MAX));
        drop(two);
        assert_eq!(limit.held.load(Ordering::Relaxed), 0);
    }
}
