//! Repeated readings, such as dead letters, which must not replace what was accepted after them.
//!
//! A repeated value is **older** if the server has another value of the same identity (device, instant,
//! series). There is one exception: the repeated value is not older than the value that it was meant to
//! replace. The caller reads the values of the server from pending and the store, so this code does not
//! depend on the store.
//!
//! Other requests go on meanwhile. A [`Watch`] makes the comparison exact: it notes the values that other
//! requests append at the same instants. The watch begins before the caller reads. The repeated readings are
//! appended under a lock that keeps out other appends, and then the watch ends. So each other value is either
//! among the values that the caller reads, or noted, or after the repeated value in the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use super::{Accounts, Admitted, Ingest, IngestError, RefusalReason, Submission};
use crate::log::batch::{BatchView, Step};
use crate::log::{Ack, AppendError, Batch, BatchBuilder, Log, Remaining, leave_out};

#[cfg(test)]
mod tests;

/// A map of values by the stored ID of the device, instant and series.
#[derive(Debug, Default)]
pub struct KnownValues(HashMap<String, HashMap<i64, BySeries, RandomState>, RandomState>);

type BySeries = HashMap<Box<str>, f64, RandomState>;

/// The values and the metadata that the server has for the devices of repeated readings.
#[derive(Debug, Default)]
pub struct Known {
    /// The values, by stored ID.
    pub values: KnownValues,
    /// The newest metadata of the devices, by stored ID.
    pub metadata: HashMap<Box<str>, Arc<str>, RandomState>,
}

/// The watches of all repetitions in progress.
#[derive(Debug, Default)]
pub(super) struct Watches(RwLock<Vec<Arc<Watch>>>);

/// Notes the values that other requests append at some instants.
#[derive(Debug)]
struct Watch {
    /// The instants of the readings, by the stored ID of their device.
    instants: BTreeMap<Box<str>, BTreeSet<i64>>,
    newer: Mutex<Newer>,
}

/// The values that other requests have appended at the watched instants.
#[derive(Debug, Default)]
struct Newer {
    values: KnownValues,
    /// The devices that have sent metadata.
    described: HashSet<Box<str>, RandomState>,
}

/// Repeated readings whose instants are watched. [`Self::finish`] appends them.
#[derive(Debug)]
#[must_use = "nothing is appended before `finish`"]
pub struct Repetition<'a> {
    ingest: &'a Ingest,
    admitted: Admitted,
    watch: Watching<'a>,
}

/// Ends its watch when it is dropped.
#[derive(Debug)]
struct Watching<'a> {
    watches: &'a Watches,
    watch: Arc<Watch>,
}

impl KnownValues {
    /// Adds a value.
    pub fn insert(&mut self, device: &str, ts_ms: i64, series: &str, value: f64) {
        let of_device = self.0.entry_ref(device).or_default();
        of_device.entry(ts_ms).or_default().insert(series.into(), value);
    }

    fn get(&self, device: &str, ts_ms: i64, series: &str) -> Option<f64> {
        self.0.get(device)?.get(&ts_ms)?.get(series).copied()
    }
}

impl Watches {
    /// Appends readings that are not repeated.
    ///
    /// If the log takes them, each watch notes the values at its instants.
    pub(super) fn append(&self, log: &Log, batch: Batch) -> Result<Ack, AppendError> {
        let watches = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if watches.is_empty() {
            return log.append(batch);
        }
        let payload = batch.payload().to_vec();
        let ack = log.append(batch)?;
        watches.iter().for_each(|watch| watch.note(&payload));
        Ok(ack)
    }

    /// Begins a watch. Each later append is noted.
    fn watch(&self, instants: BTreeMap<Box<str>, BTreeSet<i64>>) -> Watching<'_> {
        let watch = Arc::new(Watch { instants, newer: Mutex::default() });
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&watch));
        Watching { watches: self, watch }
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let mut watches = self.watches.0.write().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| !Arc::ptr_eq(watch, &self.watch));
    }
}

impl Watch {
    fn note(&self, payload: &[u8]) {
        let Ok(BatchView { names, steps }) = BatchView::new(payload) else { return };
        let mut newer = self.newer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut watched = None;
        for step in steps.flatten() {
            match step {
                Step::Group { device, metadata } => {
                    watched = self.instants.get_key_value(device.as_str());
                    if let (Some((device, _)), Some(_)) = (watched, metadata) {
                        newer.described.insert(device.clone());
                    }
                }
                Step::Reading { ts_ms, values } => {
                    let Some((device, _)) = watched.filter(|(_, instants)| instants.contains(&ts_ms)) else { continue };
                    for (name, value) in values {
                        newer.values.insert(device, ts_ms, names[usize::from(name)].text, value);
                    }
                }
            }
        }
    }
}

impl Ingest {
    /// Begins to repeat readings, which may be older than accepted readings.
    ///
    /// When this returns, all readings that were appended before are durable, so that a query finds them.
    ///
    /// # Errors
    /// When the log takes no records. The readings are counted as refused.
    pub async fn repeat(&self, admitted: Admitted) -> Result<Repetition<'_>, IngestError> {
        let mut instants: BTreeMap<Box<str>, BTreeSet<i64>> = BTreeMap::new();
        let mut device = "";
        for step in BatchView::new(admitted.batch.payload()).into_iter().flat_map(|view| view.steps).flatten() {
            match step {
                Step::Group { device: of_group, .. } => device = of_group.as_str(),
                Step::Reading { ts_ms, .. } => match instants.get_mut(device) {
                    Some(of_device) => _ = of_device.insert(ts_ms),
                    None => _ = instants.insert(device.into(), BTreeSet::from([ts_ms])),
                },
            }
        }
        let watch = self.watches.watch(instants);
        let barrier = async { self.log.append(BatchBuilder::default().finish())?.durable().await };
        let repetition = Repetition { ingest: self, admitted, watch };
        match barrier.await {
            Ok(()) => Ok(repetition),
            Err(error) => {
                repetition.refuse();
                Err(error.into())
            }
        }
    }
}

impl Repetition<'_> {
    /// The instants of the readings, by the stored ID of their device.
    #[must_use]
    pub fn instants(&self) -> &BTreeMap<Box<str>, BTreeSet<i64>> {
        &self.watch.watch.instants
    }

    /// Whether at least one reading has metadata.
    #[must_use]
    pub fn has_metadata(&self) -> bool {
        let mut steps = BatchView::new(self.admitted.batch.payload()).into_iter().flat_map(|view| view.steps).flatten();
        steps.any(|step| matches!(step, Step::Group { metadata: Some(_), .. }))
    }

    /// Counts the readings as refused, because it is not known which of them are older.
    pub fn refuse(self) {
        let Admitted { protocol, receipt, .. } = &self.admitted;
        Accounts::new(Arc::clone(&self.ingest.metrics), *protocol, receipt).refuse(RefusalReason::Overloaded);
    }

    /// Appends the readings, without older values and outdated metadata.
    ///
    /// The caller has read `known` after [`Ingest::repeat`] returned. `replaced` has the values that the
    /// readings were meant to replace.
    ///
    /// Appends of other requests wait while the readings are encoded anew.
    pub fn finish(self, known: &Known, replaced: &KnownValues) -> Submission {
        let Self { ingest, mut admitted, watch } = self;
        let others = ingest.watches.0.write().unwrap_or_else(PoisonError::into_inner);
        let newer = watch.watch.newer.lock().unwrap_or_else(PoisonError::into_inner);
        let is_newest = |device: &str, text: &str| {
            !newer.described.contains(device)
                && known.metadata.get(device).is_none_or(|known| is_same_json(known, text))
        };
        let is_older = |device: &&str, ts_ms, series: &str, value: f64| {
            let is_other = |found: f64| {
                let was_replaced = replaced.get(device, ts_ms, series).is_some_and(|old| is_same(old, found));
                !is_same(found, value) && !was_replaced
            };
            newer.values.get(device, ts_ms, series).is_some()
                || known.values.get(device, ts_ms, series).is_some_and(is_other)
        };
        let is_complete = admitted.receipt.received as usize <= admitted.kind.max_readings(&ingest.rules);
        let remaining = leave_out(
            admitted.batch.payload(),
            |device, metadata| (metadata.filter(|text| is_newest(device, text)), device),
            is_older,
        );
        if is_complete && let Ok(Some(Remaining { batch, left_out, values_left_out })) = remaining {
            admitted.batch = batch;
            admitted.receipt.leave_out(left_out, values_left_out);
        }
        let submission = Submission(ingest.append(admitted, true, |batch| ingest.log.append(batch)));
        drop((newer, others));
        submission
    }
}

/// Whether two values are the same to the bit.
const fn is_same(one: f64, other: f64) -> bool {
    one.to_bits() == other.to_bits()
}

/// Whether two texts are the same JSON.
///
/// A store may have changed white space and the order of keys.
fn is_same_json(one: &str, other: &str) -> bool {
    let parsed = |text| serde_json::from_str::<serde_json::Value>(text).ok();
    one == other || parsed(one).is_some_and(|one| Some(one) == parsed(other))
}
