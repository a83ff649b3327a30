//! `[mongodb]`: the MongoDB store.

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::check::within;
use super::mongodb_uri::SYSTEM_DATABASES;
use super::{Bytes, ConfigError, MongodbUri, Period, Timeseries};

/// The MongoDB store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mongodb {
    /// The connection string.
    ///
    /// If it is set, MongoDB is the store, unless `store.kind` selects another one.
    pub uri: Option<MongodbUri>,
    /// The database. `None`: see [`Self::database`].
    ///
    /// 1 to 63 bytes without `/\. "$*<>:|?`, and not `admin`, `config` or `local`.
    pub database: Option<String>,
    /// The collection of the buckets.
    ///
    /// 1 to 128 bytes, without `$`, not starting with `system.` or a dot.
    pub collection: String,
    /// The collection of the rollups.
    ///
    /// The rules of its name are those of `collection`, from which it must differ.
    pub rollups_collection: String,
    /// The collection of the device index.
    ///
    /// The rules of its name are those of `collection`. It must differ from the others.
    pub devices_collection: String,
    /// The time limit of one command. 1ms to 1h.
    pub timeout: Period,
    /// The layout of new documents, if `store.kind` is `mongodb`.
    pub layout: BucketLayout,
    /// The most readings in one document. 1 to 100,000.
    ///
    /// A bucket with more readings continues in another document, which is another part.
    pub max_readings_per_document: usize,
    /// The largest size of one document, in BSON. 128KiB to 15MiB.
    ///
    /// A larger bucket continues in another document, which is another part.
    pub max_document_bytes: Bytes,
    /// How MongoDB compresses the collections that tidegauge creates.
    pub block_compressor: BlockCompressor,
    /// Whether `collection` gets a `$jsonSchema` validator.
    ///
    /// The validator does not check the single readings in a document.
    pub validate: bool,
    /// The native time-series collection, if `store.kind` is `mongodb-timeseries`.
    pub timeseries: Timeseries,
}

/// The layout of bucket documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BucketLayout {
    /// The readings are an array, which people can read.
    #[default]
    Readable,
    /// The readings are compressed columns.
    Packed,
}

/// A block compressor of `WiredTiger`, the storage engine of MongoDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum BlockCompressor {
    /// Makes the smallest files.
    #[default]
    Zstd,
    /// The default of MongoDB: larger files than zstd, and less CPU time.
    Snappy,
    /// Slower than zstd, without smaller files.
    Zlib,
    /// No compression.
    None,
}

impl BlockCompressor {
    /// The name of the compressor in MongoDB's options.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Default for Mongodb {
    fn default() -> Self {
        Self {
            uri: None,
            database: None,
            collection: "buckets".to_owned(),
            rollups_collection: "rollups".to_owned(),
            devices_collection: "devices".to_owned(),
            timeout: Period::secs(30),
            layout: BucketLayout::Readable,
            max_readings_per_document: 3_600,
            max_document_bytes: Bytes::mib(1),
            block_compressor: BlockCompressor::Zstd,
            validate: false,
            timeseries: Timeseries::default(),
        }
    }
}

impl Mongodb {
    /// The database in use: `database`, else the one in `uri`, else `tidegauge`.
    #[must_use]
    pub fn database(&self) -> String {
        let in_uri = || self.uri.as_ref().and_then(MongodbUri::database);
        self.database.clone().or_else(in_uri).unwrap_or_else(|| "tidegauge".to_owned())
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let database = self.database();
        if !(1..=63).contains(&database.len()) || database.contains(|c| "/\\. \"$*<>:|?\0".contains(c)) {
            let rule = "must have 1 to 63 bytes and none of /\\. \"$*<>:|?";
            return Err(match self.database {
                Some(_) => ConfigError::invalid("mongodb.database", format!("is \"{database}\", {rule}")),
                None => ConfigError::invalid("mongodb.uri", format!("names the database \"{database}\", which {rule}")),
            });
        }
        if SYSTEM_DATABASES.contains(&&*database) {
            let problem =
                format!("is \"{database}\", which MongoDB uses itself and does not replicate or shard as data");
            return Err(ConfigError::invalid("mongodb.database", problem));
        }
        check_collection("mongodb.collection", &self.collection)?;
        check_collection("mongodb.rollups_collection", &self.rollups_collection)?;
        check_collection("mongodb.devices_collection", &self.devices_collection)?;
        let of_readings =
            [("mongodb.collection", &self.collection), ("mongodb.timeseries.collection", &self.timeseries.collection)];
        let beside_readings =
            [("_instances", "the notes of the instances"), ("_metadata", "the metadata that operators have set")];
        let rollups = ("mongodb.rollups_collection", &self.rollups_collection);
        let devices = ("mongodb.devices_collection", &self.devices_collection);
        for (key, name) in of_readings {
            for (own_key, own) in [rollups, devices] {
                differ(own_key, own, key, name)?;
                for (suffix, contents) in beside_readings {
                    if *own == format!("{name}{suffix}") {
                        let problem = format!("is \"{own}\", which holds {contents} with {key} = \"{name}\"");
                        return Err(ConfigError::invalid(own_key, problem));
                    }
                }
            }
        }
        differ(devices.0, devices.1, rollups.0, rollups.1)?;
        self.timeseries.check()?;
        within("mongodb.timeout", self.timeout, Period::millis(1), Period::hours(1))?;
        within("mongodb.max_document_bytes", self.max_document_bytes, Bytes::kib(128), Bytes::mib(15))?;
        within("mongodb.max_readings_per_document", self.max_readings_per_document, 1, 100_000)
    }
}

/// Checks that the collection of `own_key` has another name than that of `key`.
fn differ(own_key: &'static str, own: &str, key: &str, name: &str) -> Result<(), ConfigError> {
    if own == name {
        return Err(ConfigError::invalid(own_key, format!("is \"{own}\", must differ from {key}")));
    }
    Ok(())
}

pub(super) fn check_collection(key: &'static str, name: &str) -> Result<(), ConfigError> {
    if !(1..=128).contains(&name.len())
        || name.contains(['$', '\0'])
        || name.starts_with("system.")
        || name.starts_with('.')
    {
        let problem = format!("is \"{name}\", must have 1 to 128 bytes, no $, and not start with system. or a dot");
        return Err(ConfigError::invalid(key, problem));
    }
    Ok(())
}
