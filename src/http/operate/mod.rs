//! Paths for operators: metrics, health, version, clock, deletions, metadata.

pub(super) mod deletion;
pub(super) mod health;
pub(super) mod metadata;
pub(super) mod metrics;
pub(super) mod time;
pub(super) mod version;
