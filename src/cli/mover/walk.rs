//! Reads a store from end to end: its devices page by page, the readings of each slice by slice.

use std::ops::Range;

use anyhow::ensure;
use tidegauge::model::{Contents, Hour, SeriesFilter};
use tidegauge::store::device_index::REBUILD;
use tidegauge::store::{DeviceSummary, ReadingsQuery, Store};

use super::super::target::patiently;

/// The devices that are fetched at once.
const DEVICES_PER_PAGE: usize = 500;

/// The values that are read at once.
const VALUES_PER_SLICE: usize = 1 << 16;

/// The end of the year 9999, after the last instant that a reading may have.
pub(super) const END_MS: i64 = 253_402_300_800_000;

/// The devices of a store in the order of their IDs.
pub(super) struct Devices<'a> {
    store: &'a dyn Store,
    after: Option<String>,
    is_done: bool,
}

impl<'a> Devices<'a> {
    /// The devices after the ID `after`; without it, all devices.
    pub(super) fn after(store: &'a dyn Store, after: Option<String>) -> Self {
        Self { store, after, is_done: false }
    }

    /// The next page of at least one device; `None` after the last device.
    pub(super) async fn next_page(&mut self) -> anyhow::Result<Option<Vec<DeviceSummary>>> {
        if self.is_done {
            return Ok(None);
        }
        let Self { store, after, .. } = self;
        let list = patiently(async || store.entries("", after.as_deref(), DEVICES_PER_PAGE).await).await?;
        ensure!(!list.is_incomplete, "the device index of the old store lacks devices; first run: {REBUILD}");
        self.is_done = list.devices.len() < DEVICES_PER_PAGE && !list.is_cut;
        self.after = list.devices.last().map(|last| last.device.to_string());
        Ok(if list.devices.is_empty() { None } else { Some(list.devices) })
    }
}

/// The readings of a device in the order of time.
pub(super) struct Slices<'a> {
    store: &'a dyn Store,
    query: ReadingsQuery,
}

impl<'a> Slices<'a> {
    /// The readings of a range, in Unix milliseconds.
    pub(super) fn of(store: &'a dyn Store, device: &str, range_ms: Range<i64>) -> Self {
        let query = ReadingsQuery {
            device: device.into(),
            range_ms,
            series: SeriesFilter::ALL,
            max_instants: usize::MAX,
            max_values: VALUES_PER_SLICE,
        };
        Self { store, query }
    }

    /// The next readings by hour, in ascending order; `None` after the last.
    ///
    /// No hour is empty, and an hour may be in two slices.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Vec<(Hour, Contents)>>> {
        let Self { store, query } = self;
        while query.range_ms.start < query.range_ms.end {
            let found = patiently(async || store.readings(query).await).await?;
            query.range_ms.start = found.complete_until_ms;
            if !found.hours.is_empty() {
                return Ok(Some(found.hours));
            }
        }
        Ok(None)
    }
}
