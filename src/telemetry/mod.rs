//! Metrics and log lines for operators.
//!
//! [`Metrics`] has a field for each metric. The table that defines them has the name, kind, unit, labels and
//! help of each metric. [`Exposition`] renders them for `/metrics`. If all values of a label are known
//! beforehand, `/metrics` shows them from the start, as 0. Code that records often keeps the instrument of
//! its labels, so that it needs no lookup.
//!
//! [`RefusalLog`] logs refusals, at most once a minute for each sender, kind and code. Only the output of log
//! lines is global to the process ([`logs::init`]).
//!
//! This room knows the names of metrics, limits and codes. It must not know which room records what. No
//! metric has a device ID as a label, because there may be millions of devices.

mod exposition;
mod instrument;
mod limit;
pub mod logs;
mod metrics;
mod process;
mod refusals;
mod request_id;
mod request_seconds;

pub use exposition::Exposition;
pub use instrument::{BuildInfo, GaugeGuard, Labelled, LateGauge, PerVariant};
pub use limit::Limit;
pub use metrics::Metrics;
pub use refusals::{RefusalEntry, RefusalLog, Sender, What};
pub use request_id::RequestId;
pub use request_seconds::RequestSeconds;

/// The version and the commit of the program, such as `0.1.0 (1a2b3c4d5e6f)`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_REVISION"), ")");

/// The commit from which the program was built, or `unknown`.
pub const REVISION: &str = env!("BUILD_REVISION");

/// The instruments of metrics without labels.
pub use ::metrics::{Counter, Gauge, Histogram};
