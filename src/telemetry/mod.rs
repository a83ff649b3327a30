//! What operators see: metrics and log lines.
//!
//! [`Metrics`] is the table of all metrics: name, kind, unit, labels and help stand together, and every
//! metric that can be known beforehand is exported from the start, at zero. Recording takes no lookup by
//! name; whoever records holds the handle. What senders cause is logged once a minute at most
//! ([`RefusalLog`]). Nothing here is global, except that [`logs::init`] sets where the log lines of the
//! process go.
//!
//! This room knows the words of the system and the codes of refused readings. It must not know who records
//! what, and it never takes a device id as a label.

mod exposition;
mod instrument;
mod limit;
pub mod logs;
mod metrics;
mod process;
mod refusals;
mod request_seconds;

pub use exposition::Exposition;
pub use instrument::{BuildInfo, Labelled, PerVariant};
pub use limit::Limit;
pub use metrics::Metrics;
pub use refusals::{RefusalEntry, RefusalLog, Sender, What};
pub use request_seconds::RequestSeconds;

/// The version of the program and the commit that it was built from, such as `0.1.0 (1a2b3c4d5e6f)`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_REVISION"), ")");

/// The commit that the program was built from, `unknown` where the build knew none.
pub const REVISION: &str = env!("BUILD_REVISION");

/// The handles that metrics are made of.
pub use ::metrics::{Counter, Gauge, Histogram};
