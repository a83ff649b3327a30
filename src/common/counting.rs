//! An allocator for tests that counts the allocations of each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The memory that a piece of work allocated, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allocated {
    /// The sum of all allocations, freed or not.
    pub(crate) total: usize,
    /// The most allocated bytes in use at once.
    pub(crate) peak: usize,
    /// The allocated bytes that are still in use after the work.
    pub(crate) kept: usize,
}

thread_local! {
    static TOTAL: Cell<usize> = const { Cell::new(0) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Runs work on this thread and counts its allocations.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> (T, Allocated) {
    let (total, live) = (TOTAL.get(), LIVE.get());
    PEAK.set(live);
    let done = work();
    let [peak, kept] = [PEAK.get(), LIVE.get()].map(|bytes| usize::try_from(bytes - live).unwrap_or_default());
    (done, Allocated { total: TOTAL.get() - total, peak, kept })
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

impl Counting {
    fn took(bytes: usize) {
        let live = LIVE.get() + bytes.cast_signed();
        LIVE.set(live);
        TOTAL.set(TOTAL.get() + bytes);
        PEAK.set(PEAK.get().max(live));
    }

    fn gave_back(bytes: usize) {
        LIVE.set(LIVE.get() - bytes.cast_signed());
    }
}

#[expect(unsafe_code, reason = "an allocator is unsafe; this one hands every call on as it is")]
// SAFETY: all memory is that of the system's allocator, whose contract is that of this trait.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::took(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        Self::gave_back(layout.size());
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        Self::took(bytes);
        Self::gave_back(layout.size());
        unsafe { System.realloc(memory, layout, bytes) }
    }
}
