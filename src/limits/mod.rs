//! Limits over time: rates, and shares of what there is one of.
//!
//! A [`Rate`] says how much may come how fast; a [`Limiter`] is a rate and how much of it is used; a
//! [`ConcurrencyLimit`] is a part of something that is given back. An [`Quota`] is all that one token has of
//! these.
//!
//! Promises:
//! - Whoever is refused learns how long to wait, and is not refused after that if nobody else used the time.
//! - How much a request holds is known only when it is read. So it is let in if there is room for one, and
//!   what it has more is owed: nothing else is let in until that is paid off. Nothing is too large to ever
//!   pass, over time the rate holds, and somebody in debt is refused before anything of a request is read.
//! - Taking never waits and takes no lock.
//!
//! Pure; instants are arguments. Knows nothing of what is counted.

mod concurrency;
mod limiter;
mod quota;
mod rate;

pub use concurrency::{ConcurrencyGuard, ConcurrencyLimit};
pub use limiter::Limiter;
pub use quota::Quota;
pub use rate::Rate;
