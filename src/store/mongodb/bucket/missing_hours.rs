//! How the documents of hours that have no rollup are found.
//!
//! A range of `_id`s for each device costs the server some 15 µs, a single `_id` less than a twentieth of
//! that. So few hours of a device are named by their `_id`s, and many are read as ranges.

use std::ops::Range;

use bson::{Document, RawDocumentBuf, doc};
use mongodb::action::Find;

use super::super::by_device::of_devices;
use super::super::rollups::Missing;
use super::Buckets;
use super::read::of_device;
use crate::model::Hour;

/// The most runs of hours of a device that are read one by one, whatever is between them.
const RUNS_MAX: usize = 8;

/// The most ranges of `_id`s in one query.
pub(super) const RANGES_MAX: usize = 250;

/// The most hours of a device that are named: in one run, and in several.
const NAMED_MAX: usize = 12;
const NAMED_IN_RUNS_MAX: usize = 24;

/// The `_id`s in one batch.
pub(super) const IDS_BATCH: u32 = 10_000;

impl Buckets {
    /// A query for those of the `_id`s, of these devices, that have a document.
    pub(super) fn find_ids(&self, ids: Vec<String>, devices: &[&str]) -> Find<'_, RawDocumentBuf> {
        let find = self.find(doc! { "_id": { "$in": ids }, "deviceId": of_devices(devices) });
        find.projection(doc! { "_id": 1 }).batch_size(IDS_BATCH)
    }
}

/// The hours of these runs, if they are few enough to be named.
pub(super) fn hours_to_name(runs: &[Range<Hour>]) -> Option<Vec<Hour>> {
    let max = if runs.len() > 1 { NAMED_IN_RUNS_MAX } else { NAMED_MAX };
    let hours = runs.iter().flat_map(|run| run.start.0..run.end.0).map(Hour);
    let hours: Vec<Hour> = hours.take(max + 1).collect();
    (hours.len() <= max).then_some(hours)
}

/// Matches the documents of the missing hours, for each device by itself.
pub(super) fn ranges_of(Missing { devices, runs }: &Missing) -> Vec<Document> {
    let runs = joined(runs);
    devices.iter().flat_map(|device| runs.iter().map(move |run| of_device(device, run))).collect()
}

/// The runs themselves, or one range from the first to the last if there are many runs, and few hours between
/// them: to read an hour that is known costs less than another range.
fn joined(runs: &[Range<Hour>]) -> Vec<Range<Hour>> {
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Vec::new() };
    let missing: i64 = runs.iter().map(|run| i64::from(run.end.0) - i64::from(run.start.0)).sum();
    let all = i64::from(last.end.0) - i64::from(first.start.0);
    if runs.len() > RUNS_MAX && 2 * missing > all { vec![first.start..last.end] } else { runs.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_runs_with_short_gaps_become_one_range() {
        let runs =
            |count: i32, length: i32| (0..count).map(|nth| Hour(nth * 10)..Hour(nth * 10 + length)).collect::<Vec<_>>();
        assert_eq!(joined(&runs(20, 9)), [Hour(0)..Hour(199)]);
        assert_eq!(joined(&runs(8, 9)), runs(8, 9), "few");
        assert_eq!(joined(&runs(20, 2)), runs(20, 2), "long gaps");
        assert_eq!(joined(&[]), []);
    }

    #[test]
    fn few_hours_are_named() {
        let named = |runs: &[(i32, i32)]| {
            let runs: Vec<_> = runs.iter().map(|(from, to)| Hour(*from)..Hour(*to)).collect();
            hours_to_name(&runs).map(|hours| hours.into_iter().map(|hour| hour.0).collect::<Vec<_>>())
        };
        assert_eq!(named(&[(5, 7), (9, 10)]), Some(vec![5, 6, 9]));
        assert_eq!(named(&[(0, 12)]), Some((0..12).collect()));
        assert_eq!(named(&[(0, 12), (13, 25)]), Some((0..12).chain(13..25).collect()));
        for many in [&[(0, 13)][..], &[(0, 12), (13, 26)], &[(5, i32::MAX)]] {
            assert_eq!(named(many), None, "{many:?}");
        }
    }
}
