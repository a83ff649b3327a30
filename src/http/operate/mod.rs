//! Paths for operators and for checks of the service: health, metrics, version, clock, deletions.

pub(super) mod deletion;
pub(super) mod health;
pub(super) mod time;
