//! Checks the shards of each collection through a mongos.
//!
//! It was never run against a real mongos: no package registry has one.

use bson::{Bson, Document, doc};

use super::expected::Expected;
use super::{ADMIN, Inspector, first_batch};
use crate::common::finding::{Finding, Part, count};

const SHARDING: Part = Part::CollectionSharding;
const SHARDS: Part = Part::CollectionShards;

/// A shard with more than this many times the mean of the documents is a warning, if the collection has at
/// least this many documents.
const UNEVEN_FACTOR: f64 = 2.0;
const UNEVEN_MIN: i64 = 10_000;

impl Inspector<'_> {
    pub(super) async fn check_shards(&mut self, present: &[&Expected]) {
        let database = self.commands.database.name().to_owned();
        let of_database = doc! { "$regex": format!("^{}\\.", database.replace('.', "\\.")) };
        let find = doc! { "find": "collections", "filter": { "_id": of_database }, "singleBatch": true };
        let Some(listed) = self.list(SHARDING, Some("config"), find).await else { return };
        for expected in present.iter().filter(|expected| expected.is_of_devices) {
            let namespace = format!("{database}.{}", expected.name());
            let entry = listed.iter().find(|entry| entry.get_str("_id").is_ok_and(|id| is_of(id, &namespace)));
            self.findings.push(shard_key(&namespace, expected.device_field, entry));
        }
        let pipeline = [doc! { "$shardedDataDistribution": {} }];
        let aggregate = doc! { "aggregate": 1, "pipeline": pipeline.to_vec(), "cursor": {} };
        let Some(reply) = self.ask(SHARDS, Some(ADMIN), aggregate).await else { return };
        for entry in first_batch(&reply) {
            let namespace = entry.get_str("ns").unwrap_or_default().to_owned();
            if present.iter().any(|expected| is_of(&namespace, &format!("{database}.{}", expected.name()))) {
                self.findings.push(distribution(&namespace, &entry));
            }
        }
    }
}

/// Servers up to 8 list a time series under the name of the collection of its buckets.
fn is_of(listed: &str, namespace: &str) -> bool {
    let (database, name) = namespace.split_once('.').unwrap_or_default();
    listed == namespace || listed == format!("{database}.system.buckets.{name}")
}

fn shard_key(namespace: &str, device_field: &str, entry: Option<&Document>) -> Finding {
    let key = entry.filter(|entry| !entry.get_bool("unsplittable").unwrap_or(false));
    let key = key.and_then(|entry| entry.get_document("key").ok());
    let is_right = |key: &Document| key.len() == 1 && key.get_str(device_field).is_ok_and(|how| how == "hashed");
    match key {
        Some(key) if is_right(key) => Finding::ok(SHARDING, format!("{namespace} is sharded by {key}")),
        Some(key) => Finding::warning(
            SHARDING,
            format!("{namespace} is sharded by {key}: queries of a device may ask all shards"),
            format!("reshard it: sh.reshardCollection({namespace:?}, {{ {device_field:?}: \"hashed\" }})"),
        ),
        None => Finding::warning(
            SHARDING,
            format!("{namespace} is not sharded: one shard has all of it"),
            format!(
                "grant the user enableSharding on it and restart tidegauge, or run in mongosh: \
                 sh.shardCollection({namespace:?}, {{ {device_field:?}: \"hashed\" }})"
            ),
        ),
    }
}

/// Judges an entry of `$shardedDataDistribution`.
fn distribution(namespace: &str, entry: &Document) -> Finding {
    let shards: Vec<(&str, i64)> = entry
        .get_array("shards")
        .into_iter()
        .flatten()
        .filter_map(Bson::as_document)
        .map(|shard| {
            let documents = shard.get("numOwnedDocuments").and_then(super::server_integer).unwrap_or(0);
            (shard.get_str("shardName").unwrap_or("?"), documents.max(0))
        })
        .collect();
    let all: i64 = shards.iter().map(|(_, documents)| documents).sum();
    let mean = all as f64 / shards.len().max(1) as f64;
    let text: Vec<String> =
        shards.iter().map(|(name, documents)| format!("{name} {}", count(documents.cast_unsigned()))).collect();
    let message = format!("documents of {namespace} by shard: {}", text.join(", "));
    let is_uneven = shards.iter().any(|(_, documents)| *documents as f64 > UNEVEN_FACTOR * mean);
    if is_uneven && all >= UNEVEN_MIN {
        return Finding::warning(
            SHARDS,
            format!("{message}: one has more than twice the mean"),
            "see whether the balancer runs: sh.status() and sh.startBalancer() in mongosh",
        );
    }
    Finding::ok(SHARDS, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::finding::Severity;

    #[test]
    fn a_collection_is_sharded_by_its_hashed_device() {
        let entry = |key: Document| doc! { "_id": "t.buckets", "key": key };
        let severity = |entry: Option<&Document>| shard_key("t.buckets", "deviceId", entry).severity;
        assert_eq!(severity(Some(&entry(doc! { "deviceId": "hashed" }))), Severity::Ok);
        assert_eq!(severity(Some(&entry(doc! { "bucket": 1 }))), Severity::Warning);
        assert_eq!(severity(None), Severity::Warning);
        assert!(is_of("t.system.buckets.readings", "t.readings") && !is_of("t.other", "t.readings"));
    }

    #[test]
    fn uneven_shards_are_a_warning() {
        let entry = |documents: [i64; 3]| {
            let shards: Vec<Document> =
                documents.iter().map(|n| doc! { "shardName": "s", "numOwnedDocuments": *n }).collect();
            distribution("t.buckets", &doc! { "shards": shards }).severity
        };
        assert_eq!(entry([9_000, 10_000, 11_000]), Severity::Ok);
        assert_eq!(entry([0, 2_000, 28_000]), Severity::Warning);
        assert_eq!(entry([0, 0, 30]), Severity::Ok, "too few to tell");
    }
}
