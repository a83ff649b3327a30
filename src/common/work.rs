//! Counts work for tests, such as the bytes that a parser reads or copies.
//!
//! Tests compare the count with the size of the input, to find quadratic work. Outside of tests it costs
//! nothing.

/// Adds `more` to the count of this thread.
#[inline]
pub(crate) fn count(more: usize) {
    #[cfg(test)]
    counted::DONE.with(|done| done.set(done.get() + more as u64));
    #[cfg(not(test))]
    let _ = more;
}

#[cfg(test)]
pub(crate) mod counted {
    use std::cell::Cell;

    thread_local! {
        pub(super) static DONE: Cell<u64> = const { Cell::new(0) };
    }

    /// The work of this thread so far.
    pub(crate) fn so_far() -> u64 {
        DONE.with(Cell::get)
    }
}
