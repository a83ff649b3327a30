//! The stores of a fault test.

use super::history::Rule;
use crate::harness::{Database, Setup};

/// The store of the readings.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Store<'a> {
    Sqlite,
    Mongodb(&'a Database),
    Packed(&'a Database),
    Timeseries(&'a Database),
}

impl<'a> Store<'a> {
    /// Buckets in one of the layouts, which the seed decides.
    pub(crate) const fn of_buckets(database: &'a Database, seed: u64) -> Self {
        if seed.is_multiple_of(2) { Self::Packed(database) } else { Self::Mongodb(database) }
    }
}

impl Store<'_> {
    /// Its name in the report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Mongodb(_) => "mongodb",
            Self::Packed(_) => "mongodb-packed",
            Self::Timeseries(_) => "mongodb-timeseries",
        }
    }

    /// Which of several values of one identity must stay.
    pub(crate) const fn rule(self) -> Rule {
        match self {
            Self::Sqlite | Self::Mongodb(_) | Self::Packed(_) => Rule::Last,
            Self::Timeseries(_) => Rule::OneOfThem,
        }
    }

    /// A configuration with small buckets, documents and log segments, so that each happens often in short
    /// time.
    pub(crate) fn setup(self) -> Setup {
        let setup = match self {
            Self::Sqlite => Setup::sqlite(),
            Self::Mongodb(database) => Setup::mongodb(database).set("mongodb.max_readings_per_document", 60),
            Self::Packed(database) => Setup::packed(database).set("mongodb.max_readings_per_document", 60),
            Self::Timeseries(database) => Setup::mongodb(database).set("store.kind", "mongodb-timeseries"),
        };
        setup.set("flush.max_readings", 50).set("log.segment_bytes", "64KiB").set("mongodb.timeout", "2s")
    }

    /// The same without flushes, so that all readings are in the log only.
    pub(crate) fn setup_all_pending(self) -> Setup {
        self.setup().all_pending().set("mongodb.max_readings_per_document", 3_600)
    }
}

/// Makes a module `$name` with one test per store, which calls `$run` with that [`Store`].
macro_rules! on_stores {
    ($name:ident, $run:path, [$($store:ident),+]) => {
        mod $name {
            $($crate::faults::store::on_stores!(@one $run, $store);)+
        }
    };
    (@one $run:path, sqlite) => {
        #[tokio::test]
        async fn with_sqlite() {
            $run($crate::faults::store::Store::Sqlite).await;
        }
    };
    (@one $run:path, mongodb) => {
        #[tokio::test]
        async fn with_mongodb() {
            $run($crate::faults::store::Store::Mongodb(&$crate::harness::Database::new())).await;
        }
    };
    (@one $run:path, packed) => {
        #[tokio::test]
        async fn with_packed_documents() {
            $run($crate::faults::store::Store::Packed(&$crate::harness::Database::new())).await;
        }
    };
    (@one $run:path, timeseries) => {
        #[tokio::test]
        async fn with_mongodb_timeseries() {
            $run($crate::faults::store::Store::Timeseries(&$crate::harness::Database::new())).await;
        }
    };
}

pub(crate) use on_stores;
