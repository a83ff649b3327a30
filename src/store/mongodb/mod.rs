//! Readings in MongoDB: as documents of a device and an hour (`bucket`), or as measurements of a native
//! time-series collection (`timeseries`).
//!
//! These are two layouts (`layout`) of one store (`store`), which share
//! - the connection: `connect`, `uri`, and the state of the servers (`servers`);
//! - the schema: collections and their indexes (`collection`, `plain_schema`), and whether they are still the
//!   same (`schema_state`);
//! - the findings of `tidegauge check --full` (`check`);
//! - commands: queries (`command`), many statements in few commands (`statements`), sessions whose inserts
//!   can be fenced (`insert_sessions`), the causes of errors (`errors`);
//! - the collection of the rollups (`rollups`), stats (`stats`, `by_device`);
//! - the collection of the device index (`devices`);
//! - the notes of the instances that share a database (`instances`);
//! - documents of other programs, which `tidegauge migrate` reads (`older`);
//! - BSON: `encode`, `decode`, the names of fields (`names`), metadata (`metadata`).
//!
//! Only this room knows the driver and BSON.

#[cfg(any(test, feature = "bench"))]
#[doc(hidden)]
pub mod bench;
mod bucket;
mod by_device;
mod check;
mod collection;
mod command;
mod connect;
mod decode;
mod deletion;
mod devices;
mod encode;
mod errors;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod insert_sessions;
mod instances;
mod layout;
mod metadata;
mod names;
mod older;
mod operator_metadata;
mod plain_schema;
mod rollups;
mod schema_state;
mod servers;
mod statements;
mod stats;
mod store;
#[cfg(test)]
mod tests;
mod timeseries;
mod uri;

pub use self::bucket::BucketStore;
pub use self::connect::MongodbOptions;
pub use self::older::{
    DocumentId, OlderBucket, OlderCollection, OlderContent, OlderDocument, Remark, Shape, ShapeRules,
};
pub use self::store::MongoStore;
pub use self::timeseries::TimeseriesStore;
pub use self::uri::{UriError, check_uri};
