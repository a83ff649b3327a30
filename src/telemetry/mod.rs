//! Metrics and log lines for operators.
//!
//! [`Metrics`] is the table of all metrics, with name, kind, unit, labels and help of each. Metrics whose
//! labels are known beforehand are exported from the start, at zero. Code that records often keeps the handle
//! of the metric, so that recording needs no lookup by name. Refusals that senders cause are logged at most
//! once a minute ([`RefusalLog`]). Nothing here is global, except the output of log lines that [`logs::init`]
//! sets.
//!
//! This room knows the names of metrics, limits and codes. It must not know which room records what, and it
//! never uses a device ID as a label.

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

/// The version of the program and the commit that it was built from, such as `0.1.0 (1a2b3c4d5e6f)`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_REVISION"), ")");

/// The commit that the program was built from; `unknown` if the build did not know it.
pub const REVISION: &str = env!("BUILD_REVISION");

/// The handles of metrics.
pub use ::metrics::{Counter, Gauge, Histogram};
