//! The stores that a siege may be about.

use super::ledger::Rule;
use crate::harness::{Database, Setup};

/// Where the readings go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Store<'a> {
    Sqlite,
    Mongodb(&'a Database),
    Timeseries(&'a Database),
}

impl Store<'_> {
    /// Its name in the report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Mongodb(_) => "mongodb",
            Self::Timeseries(_) => "mongodb-timeseries",
        }
    }

    /// Which value has to stay.
    pub(crate) const fn rule(self) -> Rule {
        match self {
            Self::Sqlite | Self::Mongodb(_) => Rule::Last,
            Self::Timeseries(_) => Rule::OneOfThem,
        }
    }

    /// Small buckets, documents and log segments, so that much of everything happens in little time.
    pub(crate) fn setup(self) -> Setup {
        let setup = match self {
            Self::Sqlite => Setup::sqlite(),
            Self::Mongodb(database) => Setup::mongodb(database).set("mongodb.max_readings_per_document", 60),
            Self::Timeseries(database) => Setup::mongodb(database).set("store.kind", "mongodb-timeseries"),
        };
        setup.set("flush.max_readings", 50).set("log.segment_bytes", "64KiB").set("mongodb.timeout", "2s")
    }
}
