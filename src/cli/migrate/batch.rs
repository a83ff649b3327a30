//! A batch of documents: their readings are written and compared together, then they may be removed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tidegauge::common::clock::rfc3339;
use tidegauge::model::{BucketWrite, Contents, Hour, Keep};
use tidegauge::store::mongodb::{OlderBucket, OlderCollection, OlderContent, OlderDocument, Remark};

use super::super::target::{HourCheck, OfSeries, Target, agrees, patiently, stats_of, write_of};
use super::report::Report;

/// How many documents are compared at the same time.
const COMPARED_AT_ONCE: usize = 8;

/// The range of instants that the service accepts.
pub(super) struct Window {
    /// The first hour that is kept.
    pub(super) first: Hour,
    /// The end, exclusive, in Unix milliseconds.
    pub(super) end_ms: i64,
}

impl Window {
    /// The reason if some readings of a bucket are outside of the window.
    pub(super) fn refuses(&self, bucket: &OlderBucket) -> Option<Remark> {
        let ((first, _), (hour, last)) = (bucket.hours.first()?, bucket.hours.last()?);
        let last_ms = hour.instant_ms(last.span().map_or(0, |(_, last)| last));
        let (about, ts_ms) = if *first < self.first {
            ("the readings are older than retention.readings (raise that first)", first.start_ms())
        } else if last_ms >= self.end_ms {
            ("the readings are in the future, by more than ingest.max_future", last_ms)
        } else {
            return None;
        };
        Some(Remark { about: about.to_owned(), detail: rfc3339(ts_ms) })
    }
}

/// Documents that are written together.
#[derive(Default)]
pub(super) struct Batch {
    documents: Vec<OlderDocument>,
    values: u64,
}

/// A device and an hour.
type Key = (Arc<str>, Hour);

/// The readings of all documents of a bucket.
struct Merged {
    contents: Contents,
    metadata: Option<Arc<str>>,
    documents: usize,
}

impl Batch {
    pub(super) fn push(&mut self, document: OlderDocument) {
        let hours = bucket_of(&document).map_or(&[][..], |bucket| &bucket.hours);
        self.values += hours.iter().map(|(_, contents)| contents.samples().len() as u64).sum::<u64>();
        self.documents.push(document);
    }

    /// The number of values in all documents of the batch.
    pub(super) const fn values(&self) -> u64 {
        self.values
    }

    /// The number of readings in all documents of the batch.
    pub(super) fn readings(&self) -> u64 {
        let hours = self.buckets().flat_map(|(_, bucket)| &bucket.hours);
        hours.map(|(_, contents)| contents.reading_count() as u64).sum()
    }

    fn buckets(&self) -> impl Iterator<Item = (&OlderDocument, &OlderBucket)> {
        self.documents.iter().filter_map(|document| Some((document, bucket_of(document)?)))
    }

    /// Writes the readings and compares them with those in the store.
    ///
    /// Then it removes the documents if `remove` says so. It waits for a store that is away.
    pub(super) async fn migrate(
        &self,
        older: &OlderCollection,
        target: &Target,
        remove: bool,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let merged = self.merged();
        let outcome = target.write(writes(target, &merged).await?).await?;
        report.stored += outcome.stored;
        let mut refused = RefusedKeys::default();
        for of_bucket in outcome.refused {
            report.refused += of_bucket.readings;
            refused.readings.insert((Arc::clone(&of_bucket.device), of_bucket.hour), of_bucket.to_string());
        }
        let without = outcome.without_metadata.into_iter();
        refused.metadata.extend(without.map(|(device, hour, error)| ((device, hour), error.to_string())));
        let agreeing = if remove { HashSet::new() } else { agreeing(target, &merged).await? };
        let checked: Vec<_> =
            stream::iter(self.buckets().map(|(_, bucket)| check(target, bucket, &refused, &agreeing)))
                .buffered(COMPARED_AT_ONCE)
                .try_collect()
                .await?;
        let mut removable = Vec::new();
        for ((document, bucket), remark) in self.buckets().zip(checked) {
            match remark {
                Some(Difference::Lacks(why)) => report.leave(&document.id, &why),
                Some(Difference::Others(why)) => report.find(&document.id, &why),
                None if bucket.findings.is_empty() && bucket.rejected.is_none() => removable.push(document),
                None => {}
            }
        }
        if remove {
            let left = patiently(async || older.remove(&removable).await).await?;
            report.removed += (removable.len() - left.len()) as u64;
            for id in left {
                let about = "the document stays: a program has changed it meanwhile, or it has nearly 16 MiB";
                report.find(&id, &Remark { about: about.to_owned(), detail: String::new() });
            }
        }
        Ok(())
    }

    /// The readings of all documents by bucket.
    ///
    /// If two documents have values of one reading, the value of the earlier document in the batch stays.
    fn merged(&self) -> BTreeMap<Key, Merged> {
        let mut merged: BTreeMap<Key, Merged> = BTreeMap::new();
        for (_, bucket) in self.buckets() {
            for (hour, contents) in &bucket.hours {
                let of_hour = merged.entry((Arc::clone(&bucket.device), *hour)).or_insert_with(|| Merged {
                    contents: Contents::default(),
                    metadata: None,
                    documents: 0,
                });
                of_hour.contents = of_hour.contents.merge(&contents.clone().with_keep(Keep::First));
                of_hour.metadata = of_hour.metadata.take().or_else(|| bucket.metadata.clone());
                of_hour.documents += 1;
            }
        }
        merged
    }
}

/// The bucket of a document that was understood.
fn bucket_of(document: &OlderDocument) -> Option<&OlderBucket> {
    match &document.content {
        OlderContent::Bucket(bucket) => Some(bucket),
        OlderContent::Own | OlderContent::Other(_) => None,
    }
}

/// Makes a write of each bucket.
///
/// It has the metadata of its documents, unless the store has metadata of the same hour or a later one.
async fn writes(target: &Target, merged: &BTreeMap<Key, Merged>) -> anyhow::Result<Vec<Arc<BucketWrite>>> {
    let of_metadata = merged.iter().filter(|(_, of)| of.metadata.is_some());
    let mut devices: Vec<Arc<str>> = of_metadata.map(|((device, _), _)| Arc::clone(device)).collect();
    devices.dedup();
    let known = match &devices[..] {
        [] => Vec::new(),
        devices => patiently(async || target.store.entries_of(devices).await).await?.devices,
    };
    let known: HashMap<Arc<str>, Hour> =
        known.into_iter().filter_map(|entry| Some((entry.device, entry.metadata?.hour))).collect();
    let write = |((device, hour), of): (&Key, &Merged)| {
        let metadata = of.metadata.clone().filter(|_| known.get(device).is_none_or(|is| is < hour));
        let metrics = of.contents.metrics().to_vec();
        Arc::new(write_of(Arc::clone(device), *hour, metadata, metrics, &of.contents))
    };
    Ok(merged.iter().map(write).collect())
}

/// The buckets that need no comparison of single readings.
///
/// Each is made of a single document, and its stats in the store equal those of the document.
async fn agreeing(target: &Target, merged: &BTreeMap<Key, Merged>) -> anyhow::Result<HashSet<Key>> {
    let mut by_hour: BTreeMap<Hour, Vec<Arc<str>>> = BTreeMap::new();
    for ((device, hour), _) in merged.iter().filter(|(_, of)| of.documents == 1) {
        by_hour.entry(*hour).or_default().push(Arc::clone(device));
    }
    let mut agreeing = HashSet::new();
    for (hour, devices) in by_hour {
        let found = stats_of(&*target.store, &devices, hour..Hour(hour.0 + 1)).await?;
        for (device, mut stats) in devices.into_iter().zip(found) {
            let key = (device, hour);
            let expected: OfSeries = merged[&key].contents.stats(hour).into_iter().collect();
            if stats.remove(&hour).is_some_and(|found| agrees(&expected, &found)) {
                agreeing.insert(key);
            }
        }
    }
    Ok(agreeing)
}

/// Why the store refuses readings or metadata of buckets.
#[derive(Default)]
struct RefusedKeys {
    readings: HashMap<Key, String>,
    metadata: HashMap<Key, String>,
}

/// How the store differs from a document.
enum Difference {
    /// The store lacks readings of the document, or their stats.
    Lacks(Remark),
    /// The store has all readings, but with other values or without the metadata.
    Others(Remark),
}

/// Compares the readings of a document with those in the store.
async fn check(
    target: &Target,
    bucket: &OlderBucket,
    refused: &RefusedKeys,
    agreeing: &HashSet<Key>,
) -> anyhow::Result<Option<Difference>> {
    let lacks = |about: &str, detail| Ok(Some(Difference::Lacks(Remark { about: about.to_owned(), detail })));
    let (mut others, mut without_metadata) = (0, None);
    for (hour, contents) in &bucket.hours {
        let key = (Arc::clone(&bucket.device), *hour);
        if let Some(why) = refused.readings.get(&key) {
            return lacks("the store refuses readings", why.clone());
        }
        without_metadata = without_metadata.or(refused.metadata.get(&key));
        if agreeing.contains(&key) {
            continue;
        }
        let HourCheck { missing, differing, has_stats } = target.check_hour(&bucket.device, *hour, contents).await?;
        if missing > 0 {
            return lacks("the store lacks values after the write (repeat the command)", format!("{missing} of them"));
        }
        if !has_stats {
            return lacks("the stats of the hour lack readings (repeat the command)", String::new());
        }
        others += differing;
    }
    let differs = |about: &str, detail| Some(Difference::Others(Remark { about: about.to_owned(), detail }));
    Ok(match without_metadata.filter(|_| bucket.metadata.is_some()) {
        Some(why) => differs("the store refuses the metadata: the readings are stored without it", why.clone()),
        None if others > 0 => {
            differs("the store has other values at the same instants, which stay", format!("{others} of them"))
        }
        None => None,
    })
}
