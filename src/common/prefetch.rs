//! Prefetching: the processor loads a value into its caches beside other work.

/// Asks the processor to load the first 64 bytes of a value into its caches.
///
/// The call does not wait. On processors other than x86-64 it does nothing.
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
