//! Finds the documents of hours that have no rollup.
//!
//! A range of `_id`s for each device costs the server some 15 µs, a single `_id` less than half of one. On a
//! day that has rollups, the other hours seldom have documents. So the `_id`s of their first parts are looked
//! up in the index first, and only the hours that have one are read.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bson::{Document, RawDocument, RawDocumentBuf, doc};
use mongodb::action::Find;

use super::super::by_device::of_devices;
use super::super::names;
use super::super::rollups::{Missing, grouped};
use super::Buckets;
use super::read::of_device;
use crate::model::{Day, Hour};
use crate::store::StoreError;

/// The most runs of hours of a device that are read one by one, whatever is between them.
const RUNS_MAX: usize = 8;

/// The most ranges of `_id`s in one query.
pub(super) const RANGES_MAX: usize = 250;

/// The `_id`s in one batch.
pub(super) const IDS_BATCH: u32 = 10_000;

impl Buckets {
    /// Filters of which each document of the missing hours matches one. They may match documents of other
    /// hours of these devices, too.
    pub(super) async fn filters_of(&self, missing: &[Missing]) -> Result<Vec<Document>, StoreError> {
        let mut gaps: HashMap<&str, (Hour, &[Range<Hour>])> = HashMap::new();
        let mut ranges = Vec::new();
        for of in missing {
            match day_of_gaps(&of.runs) {
                Some(day) => gaps.extend(of.devices.iter().map(|device| (&**device, (day, &of.runs[..])))),
                None => ranges.extend(ranges_of(of)),
            }
        }
        if !gaps.is_empty() {
            ranges.extend(grouped(&self.stored_buckets(&gaps).await?).iter().flat_map(ranges_of));
        }
        Ok(ranges.chunks(RANGES_MAX).map(|some| doc! { "$or": some.to_vec() }).collect())
    }

    /// The hours among the gaps of devices that have documents. Beside the gaps is the start of their day.
    async fn stored_buckets(
        &self,
        gaps: &HashMap<&str, (Hour, &[Range<Hour>])>,
    ) -> Result<Vec<(Arc<str>, Hour)>, StoreError> {
        let hours = |runs: &[Range<Hour>]| runs.iter().flat_map(|run| run.start.0..run.end.0).collect::<Vec<_>>();
        let ids_of = |(device, (_, runs)): (&&str, &(Hour, &[Range<Hour>]))| {
            hours(runs).into_iter().map(|hour| names::document_id(device, Hour(hour), 0)).collect::<Vec<_>>()
        };
        let ids: Vec<String> = gaps.iter().flat_map(ids_of).collect();
        let devices: Vec<&str> = gaps.keys().copied().collect();
        let mut stored = Vec::new();
        let visit = |document: &RawDocument| {
            let id = document.get_str("_id")?;
            let bucket = names::device_of(id).and_then(|device| {
                let (day, _) = gaps.get(device)?;
                Some((Arc::from(device), Hour(day.0 + names::hour_in_id(id, device)?)))
            });
            stored.extend(bucket);
            Ok(ControlFlow::Continue(()))
        };
        self.commands.each_document(self.commands.limited(self.find_ids(ids, &devices)), visit).await?;
        Ok(stored)
    }

    /// A query for those of the `_id`s, of these devices, that have a document.
    pub(super) fn find_ids(&self, ids: Vec<String>, devices: &[&str]) -> Find<'_, RawDocumentBuf> {
        let find = self.find(doc! { "_id": { "$in": ids }, "deviceId": of_devices(devices) });
        find.projection(doc! { "_id": 1 }).batch_size(IDS_BATCH)
    }
}

/// The start of the day of these runs, if they are what is left of a day with rollups: of one day, not its
/// first hours alone, and not some in its middle.
fn day_of_gaps(runs: &[Range<Hour>]) -> Option<Hour> {
    let (first, last) = (runs.first()?.start, runs.last()?.end);
    let day = Day::of(first).hours();
    let is_left = runs.len() > 1 || (first > day.start && last == day.end);
    (is_left && last <= day.end && !names::days_of(&day).is_empty()).then_some(day.start)
}

/// Matches the documents of the missing hours, for each device by itself.
fn ranges_of(Missing { devices, runs }: &Missing) -> Vec<Document> {
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
    fn what_is_left_of_a_day_with_rollups_is_known_by_its_runs() {
        let day_of = |runs: &[(i32, i32)]| {
            let runs: Vec<_> = runs.iter().map(|(from, to)| Hour(24 + from)..Hour(24 + to)).collect();
            day_of_gaps(&runs)
        };
        for left in [&[(0, 3), (4, 24)][..], &[(6, 24)], &[(1, 2), (5, 9)]] {
            assert_eq!(day_of(left), Some(Hour(24)), "{left:?}");
        }
        for other in [&[][..], &[(0, 24)], &[(0, 9)], &[(3, 9)], &[(3, 25)], &[(0, 3), (20, 30)], &[(-3, 24)]] {
            assert_eq!(day_of(other), None, "{other:?}");
        }
    }
}
