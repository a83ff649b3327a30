//! Prefetching: a value in main memory comes into the caches of the processor while other work goes on.

/// Asks the processor to bring the beginning of a value, its first 64 bytes, into its caches. Nothing waits
/// for it. Processors other than x86-64 are not asked.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[expect(unsafe_code, reason = "a prefetch is a hint: it has no effect on the program, whatever the address")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
