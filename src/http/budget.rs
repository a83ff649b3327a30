//! The memory that request bodies may take, all together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A number of bytes that requests share.
#[derive(Debug, Clone)]
pub struct Budget {
    bytes: Arc<Semaphore>,
    total: usize,
}

/// The bytes that one request holds. Given back when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: Budget,
    held: Option<OwnedSemaphorePermit>,
    bytes: usize,
}

/// The budget is used up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exhausted;

impl Budget {
    /// A budget of so many bytes.
    pub fn new(total: usize) -> Self {
        let total = total.min(Semaphore::MAX_PERMITS);
        Self { bytes: Arc::new(Semaphore::new(total)), total }
    }

    /// How many bytes are held.
    pub(super) fn in_flight(&self) -> usize {
        self.total - self.bytes.available_permits()
    }

    /// Holds nothing yet.
    pub(super) fn reservation(&self) -> Reservation {
        Reservation { budget: self.clone(), held: None, bytes: 0 }
    }
}

impl Reservation {
    /// How many bytes are held.
    pub(super) const fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Holds at least so many bytes in all from now on.
    pub(super) fn grow_to(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let permits = u32::try_from(more).map_err(|_| Exhausted)?;
        let more = Arc::clone(&self.budget.bytes).try_acquire_many_owned(permits).map_err(|_| Exhausted)?;
        match &mut self.held {
            Some(held) => held.merge(more),
            none => *none = Some(more),
        }
        self.bytes = bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_back_and_no_more_is_held_than_there_is() {
        let budget = Budget::new(100);
        let mut one = budget.reservation();
        let mut two = budget.reservation();
        one.grow_to(60).expect("there is room");
        one.grow_to(40).expect("holds more already");
        assert!(two.grow_to(41).is_err());
        assert_eq!(budget.in_flight(), 60);
        two.grow_to(40).expect("the rest");
        drop(one);
        two.grow_to(100).expect("all of it");
        drop(two);
        assert_eq!(budget.in_flight(), 0);
    }
}
