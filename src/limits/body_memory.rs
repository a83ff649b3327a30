//! The memory limit of request bodies and MQTT messages, in all and per token.

use std::sync::Arc;

use super::{ConcurrencyGuard, ConcurrencyLimit, Quota};

/// The limit of the memory of all request bodies and MQTT messages together.
#[derive(Debug, Clone)]
pub struct BodyMemory(Arc<ConcurrencyLimit>);

/// The bytes that one request has reserved.
///
/// They count for the limit of all requests and for that of the request's token. Dropping the reservation
/// returns them.
#[derive(Debug)]
pub struct Reservation {
    of_all: ConcurrencyGuard,
    of_token: Option<ConcurrencyGuard>,
}

/// The limit that has too few free bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exhausted {
    /// The limit of all requests together.
    All,
    /// The limit of the request's token.
    Token,
}

impl BodyMemory {
    /// A limit of `total` bytes.
    #[must_use]
    pub fn new(total: usize) -> Self {
        Self(Arc::new(ConcurrencyLimit::new(total)))
    }

    /// The number of reserved bytes.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.held()
    }

    /// An empty reservation. `quota` has the limit of the token.
    #[must_use]
    pub fn reservation(&self, quota: &Quota) -> Reservation {
        let of_token = quota.bytes.clone().map(ConcurrencyLimit::hold);
        Reservation { of_all: Arc::clone(&self.0).hold(), of_token }
    }
}

impl Reservation {
    /// The number of bytes in this reservation.
    #[must_use]
    pub const fn held_bytes(&self) -> usize {
        self.of_all.held()
    }

    /// Grows the reservation to at least this many bytes.
    ///
    /// # Errors
    /// The limit that has too few free bytes. The reservation keeps its size.
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let more = bytes.saturating_sub(self.held_bytes());
        if more == 0 {
            return Ok(());
        }
        if self.of_token.as_mut().is_some_and(|of_token| !of_token.grow(more)) {
            return Err(Exhausted::Token);
        }
        if !self.of_all.grow(more) {
            if let Some(of_token) = &mut self.of_token {
                of_token.shrink(more);
            }
            return Err(Exhausted::All);
        }
        Ok(())
    }

    /// Shrinks the reservation to at most this many bytes.
    pub fn shrink_to(&mut self, bytes: usize) {
        let less = self.held_bytes().saturating_sub(bytes);
        self.of_all.shrink(less);
        if let Some(of_token) = &mut self.of_token {
            of_token.shrink(less);
        }
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
        two.shrink_to(10);
        two.shrink_to(20);
        assert_eq!((memory.in_flight(), two.grow_to(51)), (10, Err(Exhausted::Token)));
    }
}
