//! Writes buckets as measurements: new readings at once, other readings after a read of what is stored.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bson::doc;
use bson::oid::ObjectId;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde_json::Map;

use super::Timeseries;
use super::document::{Measurement, Measurements};
use super::known::WriteGuard;
use super::times::during;
use crate::model::{BucketWrite, Contents, Hour};
use crate::store::mongodb::by_device::of_devices;
use crate::store::mongodb::collection::Deployment;
use crate::store::mongodb::encode::Encoder;
use crate::store::mongodb::metadata;
use crate::store::mongodb::statements::{self, Verb};
use crate::store::{StoreError, Written};

/// How many reads of what is stored run at the same time.
const MAX_CONCURRENT_READS: usize = 16;

/// How many unknown devices one query looks for.
const DEVICES_PER_READ: usize = 1_000;

/// The most writes whose stored readings one query reads.
const WRITES_PER_READ: usize = 64;

/// How much longer one read may be than twice its shortest write, in milliseconds.
///
/// One read then serves several writes with readings of nearby times.
const READ_MORE_MS: i64 = 60_000;

type Outcome = Result<Written, StoreError>;

/// The measurements of one write that are to be inserted.
struct Insert<'w> {
    /// The index of the write among the writes of its call.
    at: usize,
    measurements: Measurements<'w>,
}

impl Timeseries {
    /// Writes buckets; see [`crate::store::Store::write`].
    ///
    /// If the server does not take one measurement, it refuses the whole command, after it may have executed
    /// a part of it. So buckets that were refused for good are written again in halves, until the bucket to
    /// blame is alone. As before any repetition, the store first reads what is stored.
    pub(super) async fn write_buckets(&self, writes: &[Arc<BucketWrite>], deployment: Deployment) -> Vec<Outcome> {
        let mut outcomes = self.write_together(writes, deployment).await;
        if writes.len() > 1 {
            let is_refused = |at: &usize| outcomes[*at].as_ref().is_err_and(StoreError::is_permanent);
            let refused: Vec<usize> = (0..writes.len()).filter(is_refused).collect();
            for half in refused.chunks(refused.len().div_ceil(2).max(1)) {
                let again: Vec<_> = half.iter().map(|&at| Arc::clone(&writes[at])).collect();
                for (&at, outcome) in half.iter().zip(Box::pin(self.write_buckets(&again, deployment)).await) {
                    outcomes[at] = outcome;
                }
            }
        }
        outcomes
    }

    async fn write_together(&self, writes: &[Arc<BucketWrite>], deployment: Deployment) -> Vec<Outcome> {
        let guards: Vec<WriteGuard<'_>> = writes.iter().map(|write| self.known.begin_write(&write.device)).collect();
        let (new, election) = match self.find_new(writes, &guards).await {
            Ok(found) => found,
            Err(error) => return vec![Err(error); writes.len()],
        };
        let (mut outcomes, mut inserts) = (Vec::with_capacity(writes.len()), Vec::new());
        let mut found_stored = false;
        for (at, ((write, device), new)) in writes.iter().zip(&guards).zip(new).enumerate() {
            let stored = match &new {
                Cow::Borrowed(_) => write.count_stored(|_| true),
                Cow::Owned(new) => {
                    let values = new.values_for(write.contents.metrics());
                    write.count_stored(|sample| values.of(sample).is_some())
                }
            };
            outcomes.push(Ok(Written { stored, duplicate: write.accepted - stored }));
            found_stored |= new.samples().len() < write.contents.samples().len();
            if !new.is_empty() {
                match measurements(write, device, new) {
                    Ok(measurements) => inserts.push(Insert { at, measurements }),
                    Err(error) => outcomes[at] = Err(error),
                }
            }
        }
        self.insert(&inserts, deployment, &mut outcomes).await;
        if found_stored {
            self.make_durable(election, &mut outcomes).await;
        }
        outcomes
    }

    /// The part of each write that is not stored yet, and the election of the server that has the other part.
    async fn find_new<'w>(
        &self,
        writes: &'w [Arc<BucketWrite>],
        guards: &[WriteGuard<'_>],
    ) -> Result<(Vec<Cow<'w, Contents>>, Option<ObjectId>), StoreError> {
        let unknown = guards.iter().zip(writes).filter(|(device, _)| device.is_unknown());
        let unknown: Vec<(&WriteGuard<'_>, &str)> = unknown.map(|(device, write)| (device, &*write.device)).collect();
        if !unknown.is_empty() {
            self.sessions.fence().await?;
            for unknown in unknown.chunks(DEVICES_PER_READ) {
                self.learn(unknown).await?;
            }
        }
        let is_new: Vec<bool> = writes.iter().zip(guards).map(|(write, device)| is_surely_new(write, device)).collect();
        if !is_new.contains(&false) {
            return Ok((writes.iter().map(|write| Cow::Borrowed(&write.contents)).collect(), None));
        }
        self.sessions.fence().await?;
        let election = self.sessions.election().await?; // before the read
        let others: Vec<&BucketWrite> =
            writes.iter().zip(&is_new).filter(|(_, is_new)| !**is_new).map(|(write, _)| &**write).collect();
        let stored = self.read_stored(&others).await?;
        let new = writes.iter().zip(is_new).map(|(write, is_new)| match stored.get(&(&*write.device, write.hour)) {
            Some(stored) if !is_new => Cow::Owned(write.contents.without(stored)),
            _ => Cow::Borrowed(&write.contents),
        });
        Ok((new.collect(), election))
    }

    /// Reads the newest measurement of each of these devices. Most unknown devices are new to the database:
    /// then one query is enough.
    async fn learn(&self, unknown: &[(&WriteGuard<'_>, &str)]) -> Result<(), StoreError> {
        let devices: Vec<&str> = unknown.iter().map(|(_, device)| *device).collect();
        if !self.has_any(&devices).await? {
            for (guard, _) in unknown {
                guard.learn(None);
            }
            return Ok(());
        }
        let reads = unknown.iter().map(|(guard, device)| async move {
            guard.learn(self.read_newest(device).await?);
            Ok::<(), StoreError>(())
        });
        stream::iter(reads.collect::<Vec<_>>()).buffer_unordered(MAX_CONCURRENT_READS).try_collect().await
    }

    /// The stored readings at the times of these writes, and perhaps others of their hours. They include
    /// measurements that a majority does not have yet: an insert may be on its way there.
    async fn read_stored<'w>(
        &self,
        writes: &[&'w BucketWrite],
    ) -> Result<HashMap<(&'w str, Hour), Contents>, StoreError> {
        let of_group = |group: Vec<Spanned<'w>>| async move {
            let first_ms = group.iter().map(|of| of.first_ms).min().unwrap_or_default();
            let last_ms = group.iter().map(|of| of.last_ms).max().unwrap_or_default();
            let devices: Vec<&str> = group.iter().map(|of| &*of.write.device).collect();
            let mut filter = doc! { "meta.deviceId": of_devices(&devices) };
            filter.extend(during(&(first_ms..last_ms + 1)));
            let gathered = self.gather(filter).await?;
            let mut found: HashMap<_, _> = gathered.finish().map(|(device, hour, of)| ((device, hour), of)).collect();
            let stored = group.iter().filter_map(|Spanned { write, .. }| {
                let contents = found.remove(&(Arc::clone(&write.device), write.hour))?;
                Some(((&*write.device, write.hour), contents))
            });
            Ok::<Vec<_>, StoreError>(stored.collect())
        };
        let reads: Vec<_> = groups(writes).into_iter().map(of_group).collect();
        let found: Vec<Vec<_>> = stream::iter(reads).buffer_unordered(MAX_CONCURRENT_READS).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Inserts measurements. A write of which a measurement failed gets this error as its outcome.
    async fn insert(&self, inserts: &[Insert<'_>], deployment: Deployment, outcomes: &mut [Outcome]) {
        let sessions = (deployment != Deployment::Standalone).then_some(&self.sessions);
        let measurements: Vec<(usize, Measurement<'_>)> = inserts
            .iter()
            .flat_map(|insert| insert.measurements.iter().map(|measurement| (insert.at, measurement)))
            .collect();
        let encode = |fields: &mut Encoder, (_, measurement): &(usize, Measurement<'_>)| measurement.encode(fields);
        let mut settled = 0;
        let settle = |&(at, _): &(usize, _), outcome| {
            settled += 1; // in their order: no command is repeated in parts
            if let statements::Outcome::Failed(error) = outcome {
                outcomes[at] = Err(error);
            }
        };
        let verb = Verb::InsertMeasurements(sessions);
        let sent = self.commands.write_all(verb, &self.collection, &measurements, encode, settle).await;
        if let Err(error) = sent {
            measurements[settled..].iter().for_each(|(at, _)| outcomes[*at] = Err(error.clone()));
        }
    }

    /// Waits until a majority has the stored values that the write has found at the primary of `election`.
    ///
    /// If the wait fails, the writes fail.
    async fn make_durable(&self, election: Option<ObjectId>, outcomes: &mut [Outcome]) {
        if let Err(error) = self.sessions.wait_for_majority(election).await {
            for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_ok()) {
                *outcome = Err(error.clone());
            }
        }
    }
}

/// A write with its first and last instant.
#[derive(Debug, Clone, Copy)]
struct Spanned<'w> {
    write: &'w BucketWrite,
    first_ms: i64,
    last_ms: i64,
}

/// Groups writes whose stored readings are read together: of one hour, and of about the same span, so that
/// not much more is read of a device than its own span.
fn groups<'w>(writes: &[&'w BucketWrite]) -> Vec<Vec<Spanned<'w>>> {
    let spanned = |write: &&'w BucketWrite| {
        let (first, last) = write.contents.span()?;
        Some(Spanned { write, first_ms: write.hour.instant_ms(first), last_ms: write.hour.instant_ms(last) })
    };
    let mut spanned: Vec<Spanned<'w>> = writes.iter().filter_map(spanned).collect();
    spanned.sort_by_key(|of| (of.write.hour, (of.last_ms - of.first_ms + READ_MORE_MS).ilog2(), of.first_ms));
    let mut groups: Vec<Vec<Spanned<'w>>> = Vec::new();
    let (mut last_ms, mut shortest_ms) = (0, 0);
    for of in spanned {
        let own_ms = of.last_ms - of.first_ms;
        if let Some(group) = groups.last_mut() {
            let all_ms = of.last_ms.max(last_ms) - group[0].first_ms;
            let is_near = all_ms <= 2 * own_ms.min(shortest_ms) + READ_MORE_MS;
            if is_near && group[0].write.hour == of.write.hour && group.len() < WRITES_PER_READ {
                (last_ms, shortest_ms) = (of.last_ms.max(last_ms), own_ms.min(shortest_ms));
                group.push(of);
                continue;
            }
        }
        (last_ms, shortest_ms) = (of.last_ms, own_ms);
        groups.push(vec![of]);
    }
    groups
}

/// Whether all readings of the write are later than everything that may be stored of the device. A write
/// without readings counts as new.
fn is_surely_new(write: &BucketWrite, device: &WriteGuard<'_>) -> bool {
    let span = write.contents.span();
    span.is_none_or(|(first, last)| device.advance(write.hour.instant_ms(first), write.hour.instant_ms(last)))
}

fn measurements<'w>(
    write: &BucketWrite,
    device: &WriteGuard<'_>,
    new: Cow<'w, Contents>,
) -> Result<Measurements<'w>, StoreError> {
    let metadata = match device.metadata(write.metadata.as_ref()) {
        Some(text) => metadata::parse(&text)?,
        None => Map::new(),
    };
    Ok(Measurements::new(&write.device, write.hour, &metadata, new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Sample;

    #[test]
    fn writes_of_about_the_same_span_are_read_together() {
        let write = |device: &str, hour, first, last| {
            let samples = [first, last].map(|offset| (Sample { value: 1.0, offset, metric: 0 }, true));
            BucketWrite::new(device.into(), Hour(hour), None, vec!["a".into()], samples)
        };
        let minute = 60_000;
        let writes = [
            write("other hour", 2, 0, 3_000_000),
            write("short and late", 1, 50 * minute, 50 * minute + 5),
            write("long", 1, 0, 59 * minute),
            write("as long", 1, minute, 58 * minute),
            write("short", 1, 0, 5),
            write("as short", 1, 2_000, 2_500),
        ];
        let grouped = groups(&writes.iter().collect::<Vec<_>>());
        let named: Vec<Vec<&str>> =
            grouped.iter().map(|group| group.iter().map(|of| &*of.write.device).collect()).collect();
        let expected: [&[&str]; 4] =
            [&["short", "as short"], &["short and late"], &["long", "as long"], &["other hour"]];
        assert_eq!(named, expected);
        let many: Vec<_> = (0..130).map(|nth| write(&nth.to_string(), 1, 0, 59 * minute)).collect();
        let sizes: Vec<usize> = groups(&many.iter().collect::<Vec<_>>()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [64, 64, 2]);
    }
}
