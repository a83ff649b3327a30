//! The deletions that the log had when it was opened.
//!
//! Readings before a deletion are left out while the log is replayed: those that were stored before a crash
//! are not stored again. A record with such readings is encoded again without them, before pending gets it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::log::batch::{BadPayload, BatchView, Step};
use crate::log::{BegunDeletion, RecoveredDeletion, Remaining, leave_out};
use crate::model::{Deletion, Hour};

/// Deletions by the stored ID of their device.
type Ahead = HashMap<Arc<str>, Vec<Arc<Deletion>>>;

/// The state of a replay.
#[derive(Debug)]
pub(super) struct Replay {
    /// The deletions that the log had, and whether the store has executed each.
    recovered: HashMap<u64, bool>,
    /// The deletions that the feeder has not reached yet, by device, in the order of the log.
    ahead: Ahead,
    /// The hours of the readings that were left out, by device.
    ///
    /// An earlier process may have sent these readings to the store.
    left_out: HashMap<Arc<str>, BTreeSet<Hour>>,
}

impl Replay {
    pub(super) fn new(deletions: &[RecoveredDeletion]) -> Self {
        let mut ahead = Ahead::new();
        for deletion in deletions.iter().map(|found| &found.begun.deletion) {
            ahead.entry(Arc::clone(&deletion.device)).or_default().push(Arc::clone(deletion));
        }
        let recovered = deletions.iter().map(|found| (found.begun.id, found.is_executed)).collect();
        Self { recovered, ahead, left_out: HashMap::new() }
    }

    /// Notes that the feeder has reached a deletion: the next one of its device, if the log had it. Returns
    /// whether the store has executed it.
    pub(super) fn reach(&mut self, begun: &BegunDeletion) -> bool {
        let Some(is_executed) = self.recovered.remove(&begun.id) else { return false };
        let device = &begun.deletion.device;
        if let Some(ahead) = self.ahead.get_mut(device) {
            ahead.remove(0);
            if ahead.is_empty() {
                self.ahead.remove(device);
            }
        }
        is_executed
    }

    /// The hours of a deletion in which the replay has left out readings.
    pub(super) fn left_out_of(&self, deletion: &Deletion) -> BTreeSet<Hour> {
        let of_device = self.left_out.get(&deletion.device);
        of_device.map_or_else(BTreeSet::new, |of| of.range(deletion.hours()).copied().collect())
    }

    /// Returns a record without the readings that the deletions ahead remove; `None` if they remove nothing.
    /// The work is in proportion to the payload.
    pub(super) fn filter(&mut self, payload: &[u8]) -> Result<Option<Remaining>, BadPayload> {
        if self.ahead.is_empty() || !self.has_device(payload)? {
            return Ok(None);
        }
        let Self { ahead, left_out, .. } = self;
        leave_out(
            payload,
            |device, metadata| (metadata, (device, ahead.get(device).map_or(&[][..], Vec::as_slice))),
            |(device, deletions), ts_ms, series, _| {
                let is_deleted = deletions.iter().any(|of| of.has_instant(ts_ms) && of.series.matches(series));
                if is_deleted {
                    match left_out.get_mut(*device) {
                        Some(hours) => hours.insert(Hour::of(ts_ms)),
                        None => left_out.insert((*device).into(), BTreeSet::from([Hour::of(ts_ms)])).is_none(),
                    };
                }
                is_deleted
            },
        )
    }

    /// Whether a record has readings of a device with a deletion ahead.
    fn has_device(&self, payload: &[u8]) -> Result<bool, BadPayload> {
        for step in BatchView::new(payload)?.steps {
            if let Step::Group { device, .. } = step?
                && self.ahead.contains_key(device.as_str())
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::batch::Name;
    use crate::log::{Batch, BatchBuilder, Position};
    use crate::model::SeriesFilter;

    fn readings_of(batch: &Batch) -> Vec<String> {
        let BatchView { names, steps } = BatchView::new(batch.payload()).unwrap();
        let (mut found, mut group) = (Vec::new(), String::new());
        for step in steps {
            match step.unwrap() {
                Step::Group { device, metadata } => group = format!("{} {metadata:?}", device.as_str()),
                Step::Reading { ts_ms, values } => {
                    let values: Vec<_> = values
                        .map(|(name, value)| {
                            let Name { text, measurement_bytes } = names[usize::from(name)];
                            format!("{text}/{measurement_bytes}={value}")
                        })
                        .collect();
                    found.push(format!("{group} {ts_ms} {}", values.join(" ")));
                }
            }
        }
        found
    }

    #[test]
    fn a_record_loses_what_is_deleted_later_and_nothing_else() {
        let series = SeriesFilter::new(["m_a"], []).unwrap();
        let deletions = [
            Deletion { device: "d".into(), range_ms: Some(5..7), series },
            Deletion { device: "d".into(), range_ms: Some(8..9), series: SeriesFilter::ALL },
        ];
        let recovered = |at: usize| RecoveredDeletion {
            position: Position(99),
            begun: BegunDeletion {
                id: at as u64,
                by: "me".into(),
                deletion: Arc::new(deletions[at].clone()),
                from: None,
            },
            is_executed: at == 1,
        };
        let recovered = [recovered(0), recovered(1)];
        let mut replay = Replay::new(&recovered);
        let mut builder = BatchBuilder::default();
        let all = [("m_a", 1.0), ("m_b", 2.0)];
        for (owner, device, ts_ms, values) in
            [(0, "d", 4, &all[..]), (1, "e", 5, &all), (0, "d", 5, &all), (0, "d", 6, &all[..1]), (0, "d", 8, &all)]
        {
            let metadata = (device == "d").then_some(r#"{"x":1}"#);
            builder.push_of(Some(owner), device, metadata, ts_ms, 1, values.iter().copied()).unwrap();
        }
        let batch = builder.finish();
        let Remaining { batch: left, left_out, .. } = replay.filter(batch.payload()).unwrap().unwrap();
        let of_d = r#"d Some("{\"x\":1}")"#;
        let expected =
            [format!("{of_d} 4 m_a/1=1 m_b/1=2"), "e None 5 m_a/1=1 m_b/1=2".to_owned(), format!("{of_d} 5 m_b/1=2")];
        assert_eq!((readings_of(&left), left_out), (expected.to_vec(), 2));
        assert_eq!(replay.left_out_of(&deletions[0]), BTreeSet::from([Hour(0)]));
        assert_eq!(recovered.each_ref().map(|of| replay.reach(&of.begun)), [false, true]);
        assert!(replay.filter(batch.payload()).unwrap().is_none());
    }
}
