//! Rate limits (GCRA, the generic cell rate algorithm) and concurrency limits.
//!
//! A [`Rate`] is a count per period with a burst. A [`Limiter`] is a rate and its use. A [`ConcurrencyLimit`]
//! bounds how much of a resource is in use at once; a [`BodyMemory`] bounds the bytes of bodies and messages.
//! A [`Quota`] has all of these that apply to one token.
//!
//! Promises:
//! - A refusal names the time to wait. After it the sender is admitted, if no other request used that time.
//! - The size of a request is known only when it is read. So a request is admitted if the rate has room for
//!   one unit, and the rest is charged as debt: the limiter admits nothing until the debt is paid off. A
//!   request of any size can pass, the average rate holds, and a sender in debt is refused before its request
//!   is read.
//! - The limiters never wait and take no lock.
//!
//! Pure; instants are arguments. This room does not know what is counted.

mod body_memory;
mod concurrency;
mod limiter;
mod quota;
mod rate;

pub use body_memory::{BodyMemory, Exhausted, Reservation};
pub use concurrency::{ConcurrencyGuard, ConcurrencyLimit};
pub use limiter::Limiter;
pub use quota::{QUERY_BLOCK_BYTES, Quota, Share};
pub use rate::Rate;
