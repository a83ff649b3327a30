//! Readings in MongoDB: as documents of a device and an hour (`bucket`), or as measurements of a native
//! time-series collection (`timeseries`).
//!
//! What the modes share is here: how the database is reached (`connect`, `uri`) and what is known of its
//! servers (`servers`), collections and their indexes (`collection`), whether they are still the same
//! (`schema_state`), commands and their replies (`command`), many statements in few commands (`statements`),
//! the sorting of errors (`errors`), the collection of the rollups (`rollups`), the search for devices
//! (`seek`), BSON written and read (`encode`, `decode`), names and metadata as field names.
//!
//! Only this room knows the driver and BSON.

#[cfg(any(test, feature = "bench"))]
#[doc(hidden)]
pub mod bench;
mod bucket;
mod by_device;
mod collection;
mod command;
mod connect;
mod decode;
mod encode;
mod errors;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod insert_sessions;
mod layout;
mod metadata;
mod names;
mod rollups;
mod schema_state;
mod seek;
mod servers;
mod statements;
mod stats;
mod store;
#[cfg(test)]
mod tests;
mod timeseries;
mod uri;

pub use self::bucket::BucketStore;
pub use self::connect::{Granularity, MongodbOptions, TimeseriesOptions, TimeseriesSpan};
pub use self::timeseries::TimeseriesStore;
pub use self::uri::{UriError, check_uri};
