//! The deletions that the feeder knows before it reaches them: those that the log had when it was opened, and
//! those that this instance has missed.
//!
//! Readings before such a deletion are left out: those that were stored before a crash are not stored again,
//! and those that others have deleted meanwhile are not stored at all. A record with such readings is encoded
//! again without them, before pending gets it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::log::batch::{BadPayload, BatchView, Step};
use crate::log::{BegunDeletion, Remaining, leave_out};
use crate::model::{Deletion, Hour};

/// Deletions with their numbers, by the stored ID of their device.
type Ahead = HashMap<Arc<str>, Vec<(u64, Arc<Deletion>)>>;

/// The state of a replay.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// The deletions that the feeder has not reached yet, and whether each is executed, or has begun.
    known: HashMap<u64, bool>,
    /// The same deletions by device.
    ahead: Ahead,
    /// The hours of the readings that were left out, by device.
    ///
    /// An earlier process may have sent these readings to the store.
    left_out: HashMap<Arc<str>, BTreeSet<Hour>>,
}

impl Replay {
    /// Adds a deletion that the feeder will reach. `has_begun`: there is nothing to do then.
    pub(super) fn add(&mut self, begun: &BegunDeletion, has_begun: bool) {
        let deletion = &begun.deletion;
        self.ahead.entry(Arc::clone(&deletion.device)).or_default().push((begun.id, Arc::clone(deletion)));
        self.known.insert(begun.id, has_begun);
    }

    /// Notes that the feeder has reached a deletion. Returns whether it is executed, or has begun.
    pub(super) fn reach(&mut self, begun: &BegunDeletion) -> bool {
        let Some(has_begun) = self.known.remove(&begun.id) else { return false };
        let device = &begun.deletion.device;
        if let Some(ahead) = self.ahead.get_mut(device) {
            ahead.retain(|(id, _)| *id != begun.id);
            if ahead.is_empty() {
                self.ahead.remove(device);
            }
        }
        has_begun
    }

    /// The hours of a deletion in which the replay has left out readings.
    pub(super) fn left_out_of(&self, deletion: &Deletion) -> BTreeSet<Hour> {
        let of_device = self.left_out.get(&deletion.device);
        of_device.map_or_else(BTreeSet::new, |of| of.range(deletion.hours()).copied().collect())
    }

    /// Returns a record without its first `inserted` readings, and without those that the deletions ahead
    /// remove; `None` if all stay. The work is in proportion to the payload.
    pub(super) fn filter(&mut self, payload: &[u8], inserted: u64) -> Result<Option<Remaining>, BadPayload> {
        if inserted == 0 && (self.ahead.is_empty() || !self.has_device(payload)?) {
            return Ok(None);
        }
        let mut inserted_values = values_of(payload, inserted)?;
        let Self { ahead, left_out, .. } = self;
        leave_out(
            payload,
            |device, metadata| (metadata, (device, ahead.get(device).map_or(&[][..], Vec::as_slice))),
            |(device, deletions), ts_ms, series, _| {
                if inserted_values > 0 {
                    inserted_values -= 1;
                    return true;
                }
                let is_deleted = deletions.iter().any(|(_, of)| of.has_instant(ts_ms) && of.series.matches(series));
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

/// The number of values in the first readings of a record.
fn values_of(payload: &[u8], mut readings: u64) -> Result<usize, BadPayload> {
    let mut count = 0;
    for step in BatchView::new(payload)?.steps {
        if readings == 0 {
            break;
        }
        if let Step::Reading { values, .. } = step? {
            (readings, count) = (readings - 1, count + values.len());
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::batch::Name;
    use crate::log::{Batch, BatchBuilder};
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
        let begun = |at: usize| {
            let deletion = Arc::new(deletions[at].clone());
            BegunDeletion { id: at as u64, by: "me".into(), deletion, from: None }
        };
        let begun = [begun(0), begun(1)];
        let mut replay = Replay::default();
        for (at, has_begun) in [(1, true), (0, false)] {
            replay.add(&begun[at], has_begun); // not in the order of the log
        }
        let mut builder = BatchBuilder::default();
        let all = [("m_a", 1.0), ("m_b", 2.0)];
        for (owner, device, ts_ms, values) in
            [(0, "d", 4, &all[..]), (1, "e", 5, &all), (0, "d", 5, &all), (0, "d", 6, &all[..1]), (0, "d", 8, &all)]
        {
            let metadata = (device == "d").then_some(r#"{"x":1}"#);
            builder.push_of(Some(owner), device, metadata, ts_ms, 1, values.iter().copied()).unwrap();
        }
        let batch = builder.finish();
        let Remaining { batch: left, left_out, .. } = replay.filter(batch.payload(), 0).unwrap().unwrap();
        let of_d = r#"d Some("{\"x\":1}")"#;
        let expected =
            [format!("{of_d} 4 m_a/1=1 m_b/1=2"), "e None 5 m_a/1=1 m_b/1=2".to_owned(), format!("{of_d} 5 m_b/1=2")];
        assert_eq!((readings_of(&left), left_out), (expected.to_vec(), 2));
        assert_eq!(replay.left_out_of(&deletions[0]), BTreeSet::from([Hour(0)]));
        let Remaining { batch: rest, left_out, .. } = replay.filter(batch.payload(), 2).unwrap().unwrap();
        assert_eq!((readings_of(&rest), left_out), (expected[2..].to_vec(), 4), "two are inserted");
        assert!(!replay.reach(&begun[0]));
        let Remaining { left_out, values_left_out, .. } = replay.filter(batch.payload(), 0).unwrap().unwrap();
        assert_eq!((left_out, values_left_out), (1, 0), "the other deletion is still ahead");
        assert!(replay.reach(&begun[1]));
        assert!(replay.filter(batch.payload(), 0).unwrap().is_none());
    }
}
