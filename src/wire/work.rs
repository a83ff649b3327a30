//! A count of work for tests: the bytes that are read or copied. Tests compare it with the size of the body;
//! outside of tests it costs nothing.

/// Counts this many bytes of work.
#[inline]
pub(crate) fn count(bytes: usize) {
    #[cfg(test)]
    counted::DONE.with(|done| done.set(done.get() + bytes as u64));
    #[cfg(not(test))]
    let _ = bytes;
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
