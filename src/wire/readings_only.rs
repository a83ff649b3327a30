//! A sink for tests of bodies in which nothing is rejected or ignored.

use super::{Ignored, Incoming, Rejection, Sink};

/// Calls a function with each reading.
///
/// Panics at a rejection or an ignored part.
pub(crate) struct ReadingsOnly<F>(pub(crate) F);

impl<F: FnMut(Incoming<'_>)> Sink for ReadingsOnly<F> {
    fn reading(&mut self, incoming: Incoming<'_>) {
        (self.0)(incoming);
    }

    fn reject(&mut self, rejection: Rejection) {
        panic!("{rejection:?}");
    }

    fn reject_value(&mut self, rejection: Rejection) {
        panic!("{rejection:?}");
    }

    fn ignore(&mut self, what: Ignored, name: &str) {
        panic!("{what:?} {name}");
    }
}
