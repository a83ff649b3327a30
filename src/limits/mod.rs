//! Rate limits (GCRA, the generic cell rate algorithm) and concurrency limits.
//!
//! - A [`Rate`] is a number of units per period, with a burst. A [`Limiter`] has a rate and its state.
//! - A [`ConcurrencyLimit`] bounds how much of a resource is in use at once. [`BodyMemory`] bounds the memory
//!   of request bodies and MQTT messages.
//! - A [`Quota`] has the limits of one token.
//!
//! The number of readings in a request is known only when the request is read. So a limiter admits a request
//! if the rate admits one reading, and charges the others afterwards, as debt. While it is in debt, it admits
//! nothing. With 100 readings a second and a burst of one second, a request of 1,000 readings passes, and the
//! next one is refused for nine seconds.
//!
//! Promises:
//! - A refusal names the time to wait. After this time the sender is admitted, unless other requests of the
//!   same sender came first.
//! - A request of any size can pass, and the average rate holds. A sender in debt is refused before its
//!   request is read.
//! - A limiter neither waits nor takes a lock.
//!
//! Pure; instants are arguments. This room does not know what the units are.

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
