//! Concurrency limits: how much of a resource may be in use at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much of a resource may be in use at once.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    held: AtomicUsize,
    max: usize,
}

/// The units of a [`ConcurrencyLimit`] that one user of it has taken.
///
/// A user is a request, for example. Dropping the guard returns the units to the limit.
#[derive(Debug)]
pub struct ConcurrencyGuard {
    limit: Arc<ConcurrencyLimit>,
    count: usize,
}

impl ConcurrencyLimit {
    /// A limit of `max` units, of which none is in use.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { held: AtomicUsize::new(0), max }
    }

    /// The number of units in use.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// A guard that holds no units yet.
    #[must_use]
    pub const fn hold(self: Arc<Self>) -> ConcurrencyGuard {
        ConcurrencyGuard { limit: self, count: 0 }
    }
}

impl ConcurrencyGuard {
    /// The number of units that this guard holds.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.count
    }

    /// Takes `more` units if they are free. Returns whether it has taken them.
    pub fn grow(&mut self, more: usize) -> bool {
        let room = |held: usize| held.checked_add(more).filter(|&sum| sum <= self.limit.max);
        let has_grown = self.limit.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        if has_grown {
            self.count += more;
        }
        has_grown
    }

    /// Returns `less` units to the limit, at most those that this guard holds.
    pub fn shrink(&mut self, less: usize) {
        let less = less.min(self.count);
        self.count -= less;
        self.limit.held.fetch_sub(less, Ordering::Relaxed);
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
    fn guards_share_a_limit_and_return_their_parts() {
        let limit = Arc::new(ConcurrencyLimit::new(10));
        let (mut one, mut two) = (Arc::clone(&limit).hold(), Arc::clone(&limit).hold());
        assert!(one.grow(6) && !two.grow(5) && two.grow(4) && !one.grow(1) && one.grow(0));
        drop(one);
        assert!(two.grow(6) && !two.grow(usize::MAX));
        two.shrink(3);
        assert_eq!(limit.held(), 7);
        drop(two);
        assert_eq!(limit.held(), 0);
    }
}
