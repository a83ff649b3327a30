//! Finds the devices that may have readings in some hours, some at a time, for the roller.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bson::{RawDocument, doc};
use mongodb::options::Hint;

use super::DeviceIndex;
use super::read::ids_after;
use crate::model::{Day, Hour};
use crate::store::StoreError;

/// The most entries that one step reads.
const ENTRIES: u32 = 10_000;

/// The most stats of hours that the devices of a step may have: tens of megabytes.
const STATS: usize = 200_000;

/// Some devices, in the order of their IDs.
#[derive(Debug, Default)]
pub(in super::super) struct Step {
    /// The devices that may have readings in the hours.
    pub(in super::super) devices: Vec<Arc<str>>,
    /// The last device that was looked at; `None`: no device is left.
    pub(in super::super) last: Option<Arc<str>>,
}

impl DeviceIndex {
    /// The next devices after `after`: so many that their rollups in these hours fit into memory, and that
    /// all of them together have at most `max_hours` hours. It returns at least one device if there is one.
    pub(in super::super) async fn step(
        &self,
        hours: &Range<Hour>,
        after: Option<&str>,
        max_hours: usize,
    ) -> Result<Step, StoreError> {
        let of_device = (hours.end.0 - hours.start.0) as usize;
        let mut step = Step::default();
        let (mut entries, mut stats) = (0, 0);
        let find = self.documents.find(doc! { "_id": ids_after("", after) }).sort(doc! { "_id": 1 });
        let find = find.hint(Hint::Keys(doc! { "_id": 1 })).limit(ENTRIES.into()).batch_size(ENTRIES);
        let find = find.projection(doc! { "firstTs": 1, "lastTs": 1, "series": 1 });
        let visit = |document: &RawDocument| {
            let device: Arc<str> = document.get_str("_id")?.into();
            entries += 1;
            if may_have_readings(document, hours) {
                let series = document.get_document("series").map_or(1, |series| series.iter().count());
                stats += series * of_device;
                step.devices.push(Arc::clone(&device));
            }
            let is_enough = (step.devices.len() + 1) * of_device > max_hours || stats >= STATS || entries >= ENTRIES;
            if !is_enough {
                return Ok(ControlFlow::Continue(()));
            }
            step.last = Some(device);
            Ok(ControlFlow::Break(()))
        };
        self.commands.each_document(find, visit).await?;
        Ok(step)
    }
}

/// Whether the entry of a device covers these hours. Its `lastTs` is exact to the day.
fn may_have_readings(entry: &RawDocument, hours: &Range<Hour>) -> bool {
    let hour_of = |field| entry.get_datetime(field).map(|ts| Hour::of(ts.timestamp_millis()));
    let is_before = hour_of("lastTs").is_ok_and(|last| Day::of(last) < Day::of(hours.start));
    let is_after = hour_of("firstTs").is_ok_and(|first| first >= hours.end);
    !is_before && !is_after
}

#[cfg(test)]
mod tests {
    use bson::{DateTime, RawDocumentBuf};

    use super::*;

    #[test]
    fn a_device_is_looked_at_on_the_days_of_its_readings() {
        let entry = |first: i32, last: i32| {
            let at = |hour| DateTime::from_millis(Hour(hour).start_ms() + 1);
            RawDocumentBuf::try_from(&doc! { "firstTs": at(first), "lastTs": at(last) }).unwrap()
        };
        let cases = [(0, 23, false), (0, 24, true), (30, 30, true), (40, 40, true), (47, 90, true), (48, 90, false)];
        for (first, last, expected) in cases {
            assert_eq!(may_have_readings(&entry(first, last), &(Hour(30)..Hour(48))), expected, "{first} to {last}");
        }
        assert!(may_have_readings(&RawDocumentBuf::new(), &(Hour(0)..Hour(1))), "not known");
    }
}
