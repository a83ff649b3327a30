//! The memory limit for the bodies of all requests together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{ConcurrencyGuard, ConcurrencyLimit, Quota};

/// The bytes that the bodies of all requests may use at once.
#[derive(Debug, Clone)]
pub struct BodyMemory {
    bytes: Arc<Semaphore>,
    total: usize,
}

/// The bytes that one request holds. Dropping it returns them.
#[derive(Debug)]
pub(super) struct Reservation {
    of_all: BodyMemory,
    held: Option<OwnedSemaphorePermit>,
    /// The part of the token's share.
    of_token: Option<ConcurrencyGuard>,
    bytes: usize,
}

/// The limit that has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Exhausted {
    /// The limit of all requests.
    All,
    /// The limit of the token.
    Token,
}

impl BodyMemory {
    /// A limit of `total` bytes.
    pub fn new(total: usize) -> Self {
        let total = total.min(Semaphore::MAX_PERMITS);
        Self { bytes: Arc::new(Semaphore::new(total)), total }
    }

    /// The number of bytes that are held.
    pub(in crate::http) fn in_flight(&self) -> usize {
        self.total - self.bytes.available_permits()
    }

    /// A reservation that holds nothing yet.
    pub(super) fn reservation(&self, quota: &Quota) -> Reservation {
        let of_token = quota.bytes.clone().map(ConcurrencyLimit::hold);
        Reservation { of_all: self.clone(), held: None, of_token, bytes: 0 }
    }
}

impl Reservation {
    /// The number of bytes that are held.
    pub(super) const fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Grows the reservation to at least this many bytes. After an error it holds as much as before.
    pub(super) fn grow_to(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let permits = u32::try_from(more).map_err(|_| Exhausted::All)?;
        if self.of_token.as_mut().is_some_and(|guard| !guard.grow(more)) {
            return Err(Exhausted::Token);
        }
        let Ok(more_held) = Arc::clone(&self.of_all.bytes).try_acquire_many_owned(permits) else {
            if let Some(guard) = &mut self.of_token {
                guard.shrink(more);
            }
            return Err(Exhausted::All);
        };
        match &mut self.held {
            Some(held) => held.merge(more_held),
            none => *none = Some(more_held),
        }
        self.bytes = bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_stay_within_the_memory_and_return_their_bytes() {
        let memory = BodyMemory::new(100);
        let mut one = memory.reservation(Quota::unlimited());
        let mut two = memory.reservation(Quota::unlimited());
        one.grow_to(60).expect("below the limit");
        one.grow_to(40).expect("holds more already");
        assert_eq!(two.grow_to(41), Err(Exhausted::All));
        assert_eq!(memory.in_flight(), 60);
        two.grow_to(40).expect("the rest");
        drop(one);
        two.grow_to(100).expect("all of it");
        drop(two);
        assert_eq!(memory.in_flight(), 0);
    }

    #[test]
    fn a_token_holds_no_more_than_its_limit() {
        let (memory, bytes) = (BodyMemory::new(100), Some(Arc::new(ConcurrencyLimit::new(50))));
        let quota = Quota { bytes, ..Quota::default() };
        let (mut one, mut two) = (memory.reservation(&quota), memory.reservation(&quota));
        one.grow_to(30).expect("below the limit");
        assert_eq!(two.grow_to(21), Err(Exhausted::Token));
        let mut other = memory.reservation(Quota::unlimited());
        other.grow_to(70).expect("the rest is for others");
        assert_eq!(two.grow_to(20), Err(Exhausted::All), "and returns what it took of the share");
        drop((other, one));
        two.grow_to(50).expect("the bytes were returned");
    }
}
