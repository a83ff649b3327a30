//! A GCRA rate limiter that many threads share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Rate;
use super::rate::nanos;

/// A [`Rate`] with its state `used_ns`, which [`Rate`] explains.
#[derive(Debug)]
pub struct Limiter {
    rate: Rate,
    start: Instant,
    used_ns: AtomicU64,
}

impl Limiter {
    /// A limiter whose rate is unused. Its instants count from `start`.
    #[must_use]
    pub fn new(rate: Rate, start: Instant) -> Self {
        Self { rate, start, used_ns: AtomicU64::new(0) }
    }

    /// The time until the rate admits `count` units. `None`: it admits them now.
    #[must_use]
    pub fn wait(&self, count: u64, now: Instant) -> Option<Duration> {
        self.rate.wait(count, self.used_ns.load(Ordering::Relaxed), self.at(now))
    }

    /// Charges one unit if the rate admits it now.
    ///
    /// # Errors
    /// The time until the rate admits a unit.
    pub fn take(&self, now: Instant) -> Result<(), Duration> {
        self.take_with_room_for(1, 1, now)
    }

    /// Charges `count` more units after [`Self::take`], unless the limiter is in debt.
    ///
    /// `count` has no limit, so the charge may put the limiter into debt. If another request has put the
    /// limiter into debt since [`Self::take`], this call charges nothing and fails.
    ///
    /// # Errors
    /// The time until the rate admits a unit.
    pub fn take_more(&self, count: u64, now: Instant) -> Result<(), Duration> {
        self.take_with_room_for(0, count, now)
    }

    /// Charges `count` more units after [`Self::take`], also to a limiter in debt.
    pub fn owe(&self, count: u64, now: Instant) {
        let now_ns = self.at(now);
        let take = |used_ns| Some(self.rate.taken(count, used_ns, now_ns));
        self.used_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).expect("the update is unconditional");
    }

    fn take_with_room_for(&self, room: u64, count: u64, now: Instant) -> Result<(), Duration> {
        let now_ns = self.at(now);
        let mut used_ns = self.used_ns.load(Ordering::Relaxed);
        loop {
            if self.rate.wait(room, used_ns, now_ns).is_some() {
                return Err(self.rate.wait(1, used_ns, now_ns).unwrap_or_default());
            }
            let taken_ns = self.rate.taken(count, used_ns, now_ns);
            match self.used_ns.compare_exchange_weak(used_ns, taken_ns, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(newer_ns) => used_ns = newer_ns,
            }
        }
    }

    fn at(&self, now: Instant) -> u64 {
        nanos(now.saturating_duration_since(self.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_waits_as_advised_is_admitted() {
        let start = Instant::now();
        let limiter = Limiter::new(Rate::new(100, Duration::from_secs(1), Duration::from_secs(1)).unwrap(), start);
        assert_eq!(limiter.take(start), Ok(()));
        assert_eq!(limiter.take_more(1_000, start), Ok(()), "the rate had room for one, so all are charged");
        let wait = limiter.take(start).unwrap_err();
        assert_eq!((limiter.wait(1, start), limiter.take_more(1, start)), (Some(wait), Err(wait)));
        assert!(limiter.take(start + wait.saturating_sub(Duration::from_nanos(1))).is_err());
        assert_eq!(limiter.take(start + wait), Ok(()));
        assert!(limiter.take(start + wait).is_err());
        assert_eq!(
            limiter.take_more(5, start + wait),
            Ok(()),
            "a request that began with the last unit is not in debt"
        );
        assert!(limiter.take_more(5, start + wait).is_err());
        let due = limiter.take(start + wait).unwrap_err();
        limiter.owe(100, start + wait);
        assert_eq!(limiter.take(start + wait), Err(due + Duration::from_secs(1)), "debt on top of debt");
    }

    #[test]
    fn threads_that_take_at_once_stay_within_the_rate() {
        let start = Instant::now();
        let limiter = Limiter::new(Rate::new(1, Duration::from_secs(1), Duration::from_secs(500)).unwrap(), start);
        let take = || (0..1_000).filter(|_| limiter.take(start).is_ok()).count();
        let taken: usize = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            takers.into_iter().map(|taker| taker.join().unwrap()).sum()
        });
        assert_eq!(taken, 500);
    }
}
