//! Limits over time: rates, and shares of what there is one of.
//!
//! A [`Rate`] says how much may come how fast; a [`Limiter`] is a rate and how much of it is used; a [`Share`] is a part
//! of something that is given back. An [`Allowance`] is all that one token has of these.
//!
//! Promises:
//! - Whoever is refused learns how long to wait, and is not refused after that if nobody else used the time.
//! - What is taken may be more than there is room for, as long as there is room at all: how much a request holds is known
//!   only when it is read. The rest is owed, and nothing more is taken until it is paid off. So nothing is too large to
//!   ever pass, over time the rate holds, and somebody in debt is refused before anything of a request is read.
//! - Taking never waits and takes no lock.
//!
//! Pure; instants are arguments. Knows nothing of what is counted.

mod allowance;
mod limiter;
mod rate;
mod share;

pub use allowance::Allowance;
pub use limiter::Limiter;
pub use rate::Rate;
pub use share::{Held, Share};
