//! Readings in MongoDB: as documents of a device and an hour (`bucket`).
//!
//! What the modes share is here: how the database is reached (`connect`), collections and their indexes (`collection`),
//! commands and their replies (`command`), many statements in few commands (`updates`), the sorting of errors (`errors`),
//! BSON written and read (`encode`, `decode`), names and metadata as field names.
//!
//! Only this room knows the driver and BSON.

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
mod metadata;
mod names;
mod rollups;
mod stats;
mod updates;

pub use self::bucket::BucketStore;
pub use self::connect::MongodbOptions;
