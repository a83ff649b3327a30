//! `[store]`: the choice of the store.

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// The choice of the store.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    /// The store. `None`: see [`super::Config::store_kind`].
    pub kind: Option<StoreKind>,
}

/// A store that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum StoreKind {
    /// SQLite, the embedded store.
    Sqlite,
    /// MongoDB, with one document per bucket.
    Mongodb,
    /// MongoDB, with a native time-series collection.
    MongodbTimeseries,
}

impl StoreKind {
    /// The name of the store, as in `store.kind`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether the store needs `mongodb.uri`.
    #[must_use]
    pub const fn is_mongodb(self) -> bool {
        matches!(self, Self::Mongodb | Self::MongodbTimeseries)
    }
}
