//! Readings: a page at a time, or slice by slice to the end of a range.
//!
//! A slice is a few ten thousand values, merged from the store and from pending. Each slice is a query of its
//! own, with its own deadline. So a reader that pauses holds one slice and the short ones that are read
//! ahead, and nothing in the store.
//!
//! A reader of many devices with few values mostly waits for the store. So it reads the first slices of the
//! next devices ahead. Such slices are short, and few of all readers are read at one time.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Answer, Missing, Queries, QueryError, blocking, joined};
use crate::access::DeviceScope;
use crate::model::{Contents, Hour, Metric, Sample, SeriesFilter};
use crate::pending::PendingHour;
use crate::store::{FirstReadings, FirstReadingsBuilder, ReadingsQuery};

/// The most values of a slice. It may exceed them by the readings of one instant.
const VALUES_PER_SLICE: usize = 1 << 16;

/// The most values of a slice that is read ahead.
const VALUES_AHEAD: usize = 1 << 11;

/// The memory of a value while its slice is read, in bytes.
const BYTES_PER_VALUE: usize = 100;

/// A request for readings.
#[derive(Debug, Clone)]
pub struct ReadingsRequest {
    /// The client ID of the device.
    pub device: String,
    /// The first instant, in Unix milliseconds.
    pub from_ms: i64,
    /// The end of the range, exclusive, in Unix milliseconds.
    pub to_ms: i64,
    /// Selects the series.
    pub series: SeriesFilter,
    /// The most readings in the page, at least 1.
    pub limit: usize,
}

/// All values of a device at one instant.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadingAt {
    /// The instant, in Unix milliseconds.
    pub ts_ms: i64,
    /// The values by metric.
    pub values: Vec<(Metric, f64)>,
}

/// Readings in time order.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The readings.
    pub readings: Vec<ReadingAt>,
    /// The first instant of the next page, in Unix milliseconds, if there is one.
    pub next_ms: Option<i64>,
}

/// The readings of a range, slice by slice, in time order.
pub struct ReadingSlices {
    queries: Queries,
    /// The query for the rest of the range, which begins where the last slice ended.
    query: ReadingsQuery,
    /// The number of readings that the limit of the request still allows.
    left: usize,
    /// The number of values that were read so far.
    read: usize,
    /// The read of the next slice, if it has begun.
    ahead: Option<AbortOnDropHandle<ReadAhead>>,
}

/// A slice that was read ahead, and the slices after it.
type ReadAhead = (ReadingSlices, Result<Option<Slice>, QueryError>);

/// Some readings of a device in time order.
#[derive(Debug)]
pub struct Slice {
    hours: BTreeMap<Hour, Contents>,
    /// The end of the slice, exclusive. Later readings in `hours` belong to the next slice.
    until_ms: i64,
}

/// The readings of a slice in one hour.
#[derive(Debug, Clone, Copy)]
pub struct SliceHour<'b> {
    /// The hour.
    pub hour: Hour,
    /// The metrics. A sample has the index of its metric.
    pub metrics: &'b [Metric],
    /// The values, ascending by instant.
    pub samples: &'b [Sample],
}

impl Queries {
    /// Returns the first readings of a range.
    ///
    /// The page ends at its limit, or earlier once it has [`super::Limits::max_points`] values.
    ///
    /// # Errors
    /// If the device is outside of the scope, the range is too long, the store does not answer, or the query
    /// takes too long.
    pub async fn readings(&self, scope: &DeviceScope, request: &ReadingsRequest) -> Result<Answer<Page>, QueryError> {
        let deadline = self.deadline();
        let device = scope.to_stored_id(&request.device)?;
        self.limits.check_range(request.from_ms, request.to_ms)?;
        let lagging = self.catch_up().await;
        let mut page = Page { readings: Vec::new(), next_ms: None };
        let (mut values, mut partial) = (0, None);
        let mut query = ReadingsQuery {
            device: device.as_ref().into(),
            range_ms: request.from_ms..request.to_ms,
            series: request.series.clone(),
            max_instants: 0,
            max_values: 0,
        };
        while query.range_ms.start < request.to_ms && page.readings.len() <= request.limit && page.next_ms.is_none() {
            query.max_instants = request.limit + 1 - page.readings.len(); // one more tells whether there is a next page
            query.max_values = (self.limits.max_points - values).max(1);
            // Pending is read first. A reading that is stored in between is then in both, not in neither.
            let pending = self.first_pending(deadline, &query).await?;
            let stored = match self.ask(deadline, self.store.readings(&query)).await {
                Ok(stored) => stored,
                Err(_) if !pending.hours.is_empty() => {
                    partial = Some(Missing::Stored);
                    FirstReadings { hours: Vec::new(), complete_until_ms: request.to_ms }
                }
                Err(error) => return Err(error),
            };
            let until_ms = stored.complete_until_ms.min(pending.complete_until_ms);
            query.range_ms.start = until_ms;
            let merge = move || Slice::merged(stored.hours, pending.hours, until_ms).into_readings();
            for reading in blocking(merge).await? {
                if values > 0 && values + reading.values.len() > self.limits.max_points {
                    page.next_ms = Some(reading.ts_ms);
                    break;
                }
                values += reading.values.len();
                page.readings.push(reading);
            }
        }
        if let Some(next) = page.readings.get(request.limit) {
            page.next_ms = Some(next.ts_ms);
            page.readings.truncate(request.limit);
        }
        Ok(Answer { body: page, lagging, partial })
    }

    /// Returns the readings of a range slice by slice, up to the limit. The range may have any length.
    ///
    /// # Errors
    /// If the device is outside of the scope.
    pub fn reading_slices(&self, scope: &DeviceScope, request: &ReadingsRequest) -> Result<ReadingSlices, QueryError> {
        let query = ReadingsQuery {
            device: scope.to_stored_id(&request.device)?.as_ref().into(),
            range_ms: request.from_ms..request.to_ms,
            series: request.series.clone(),
            max_instants: 0,
            max_values: VALUES_PER_SLICE,
        };
        Ok(ReadingSlices { queries: self.clone(), query, left: request.limit, read: 0, ahead: None })
    }

    /// Calls `found` with each stored or pending value of a device at `instants`. `device` is a stored ID.
    ///
    /// # Errors
    /// If the store does not answer, or a slice takes too long.
    pub async fn values_at(
        &self,
        device: &str,
        instants: &BTreeSet<i64>,
        mut found: impl FnMut(i64, &str, f64),
    ) -> Result<(), QueryError> {
        let mut left = instants.iter().copied().peekable();
        while let Some(from_ms) = left.next() {
            // Instants share a range if their hours are the same or adjacent. So no hour without an instant
            // is read.
            let mut last_ms = from_ms;
            while let Some(next_ms) = left.next_if(|&next_ms| Hour::of(next_ms).0 <= Hour::of(last_ms).0 + 1) {
                last_ms = next_ms;
            }
            let (device, to_ms) = (device.to_owned(), last_ms.saturating_add(1));
            let request = ReadingsRequest { device, from_ms, to_ms, series: SeriesFilter::ALL, limit: usize::MAX };
            let mut slices = self.reading_slices(DeviceScope::all(), &request)?;
            while let Some(slice) = slices.next().await? {
                for SliceHour { hour, metrics, samples } in slice.hours() {
                    for sample in samples {
                        let ts_ms = hour.instant_ms(sample.offset);
                        if instants.contains(&ts_ms) {
                            found(ts_ms, &metrics[sample.metric as usize], sample.value);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Answers [`crate::store::Store::readings`] from the pending readings.
    async fn first_pending(&self, deadline: Instant, query: &ReadingsQuery) -> Result<FirstReadings, QueryError> {
        if self.pipeline.try_is_pending(std::slice::from_ref(&query.device), &query.hours()) == Some(false) {
            return Ok(FirstReadings { hours: Vec::new(), complete_until_ms: query.range_ms.end });
        }
        let (devices, hours, query) = (vec![Arc::clone(&query.device)], query.hours(), query.clone());
        let first = move |hours: &[PendingHour]| {
            let mut gathered = FirstReadingsBuilder::new(&query);
            for hour in hours {
                let Some(samples) = gathered.hour(hour.hour) else { break };
                samples.extend(&hour.contents());
            }
            gathered.finish()
        };
        Ok(self.of_pending(deadline, devices, hours, false, first).await?.0.remove(0))
    }
}

impl ReadingSlices {
    /// The most memory that the query for one slice takes, in bytes.
    pub const MAX_BYTES: usize = BYTES_PER_VALUE * VALUES_PER_SLICE;

    /// The most ranges whose next slices are read at once, or wait for their reader.
    pub const AT_ONCE: usize = 8;

    /// The most memory of the slices that are read ahead, in bytes.
    pub const MAX_BYTES_AHEAD: usize = Self::AT_ONCE * BYTES_PER_VALUE * VALUES_AHEAD;

    /// The number of readings that the limit of the request still allows.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }

    /// Whether a slice that is read ahead can have all values that were read so far.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        self.read <= VALUES_AHEAD
    }

    /// Selects the series of the next slices.
    pub fn select(&mut self, series: SeriesFilter) {
        self.query.series = series;
    }

    /// Begins to read the next slice, in a task of `runtime`.
    ///
    /// Does nothing if all queries together read too many slices ahead.
    pub fn read_ahead(&mut self, runtime: &Handle) {
        let Ok(turn) = Arc::clone(&self.queries.reads_ahead).try_acquire_owned() else { return };
        let (queries, query) = (self.queries.clone(), ReadingsQuery { max_values: VALUES_AHEAD, ..self.query.clone() });
        let mut slices = Self { queries, query, left: self.left, read: self.read, ahead: None };
        let read = async move {
            let slice = slices.next().await;
            drop(turn); // what waits for its reader is short, and holds nothing in the store
            slices.query.max_values = VALUES_PER_SLICE;
            (slices, slice)
        };
        self.ahead = Some(AbortOnDropHandle::new(runtime.spawn(read)));
    }

    /// Returns the next readings, at least one. `None`: the end or the limit is reached.
    ///
    /// # Errors
    /// If the store does not answer, or the slice takes too long. Stored readings are never left out.
    pub async fn next(&mut self) -> Result<Option<Slice>, QueryError> {
        if let Some(ahead) = self.ahead.take() {
            let (slices, slice) = joined(ahead).await?;
            // Beside other reads, it may have taken longer than alone.
            if !matches!(slice, Err(QueryError::Timeout(_))) {
                *self = slices;
                return slice;
            }
        }
        let Self { queries, query, left, read, .. } = self;
        while query.range_ms.start < query.range_ms.end && *left > 0 {
            query.max_instants = (*left).min(VALUES_PER_SLICE);
            let deadline = queries.deadline();
            // Pending is read first. A reading that is stored in between is then in both, not in neither.
            let pending = queries.first_pending(deadline, query).await?;
            let stored = queries.ask(deadline, queries.store.readings(query)).await?;
            let until_ms = stored.complete_until_ms.min(pending.complete_until_ms);
            query.range_ms.start = until_ms;
            let mut slice = if pending.hours.is_empty() {
                Slice::merged(stored.hours, Vec::new(), until_ms)
            } else {
                blocking(move || Slice::merged(stored.hours, pending.hours, until_ms)).await?
            };
            if *left < usize::MAX {
                *left -= slice.limit(*left);
            }
            *read += slice.hours().map(|hour| hour.samples.len()).sum::<usize>();
            if !slice.is_empty() {
                return Ok(Some(slice));
            }
        }
        Ok(None)
    }
}

impl Slice {
    /// The most memory of a slice, in bytes.
    pub const MAX_BYTES: usize = 2 * size_of::<Sample>() * VALUES_PER_SLICE;

    /// Merges the pending hours over the stored ones. The slice ends before `until_ms`.
    fn merged(stored: Vec<(Hour, Contents)>, pending: Vec<(Hour, Contents)>, until_ms: i64) -> Self {
        let mut hours: BTreeMap<Hour, Contents> = stored.into_iter().collect();
        for (hour, contents) in pending {
            match hours.entry(hour) {
                Entry::Occupied(mut stored) => *stored.get_mut() = stored.get().merge(&contents),
                Entry::Vacant(place) => _ = place.insert(contents),
            }
        }
        Self { hours, until_ms }
    }

    /// The readings by hour, ascending. None of the hours is empty.
    pub fn hours(&self) -> impl Iterator<Item = SliceHour<'_>> {
        let hours = self.hours.iter().map(|(&hour, contents)| {
            let end = contents.samples().partition_point(|sample| hour.instant_ms(sample.offset) < self.until_ms);
            SliceHour { hour, metrics: contents.metrics(), samples: &contents.samples()[..end] }
        });
        hours.filter(|hour| !hour.samples.is_empty())
    }

    /// Whether there is no reading.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hours().next().is_none()
    }

    /// Keeps at most the first `max` readings, and returns how many are kept.
    fn limit(&mut self, max: usize) -> usize {
        let ts_of = |hour: SliceHour<'_>, samples: &[Sample]| hour.hour.instant_ms(samples[0].offset);
        let instants = self.hours().flat_map(|hour| hour.instants().map(move |samples| ts_of(hour, samples)));
        let (mut readings, mut until_ms) = (0, self.until_ms);
        for ts_ms in instants {
            if readings == max {
                until_ms = ts_ms;
                break;
            }
            readings += 1;
        }
        self.until_ms = until_ms;
        readings
    }

    fn into_readings(self) -> Vec<ReadingAt> {
        let of_hour = |hour: SliceHour<'_>| -> Vec<ReadingAt> {
            let value = |sample: &Sample| (hour.metrics[sample.metric as usize].clone(), sample.value);
            let reading = |samples: &[Sample]| {
                let ts_ms = hour.hour.instant_ms(samples[0].offset);
                ReadingAt { ts_ms, values: samples.iter().map(value).collect() }
            };
            hour.instants().map(reading).collect()
        };
        self.hours().flat_map(of_hour).collect()
    }
}

impl<'b> SliceHour<'b> {
    /// The values of each instant.
    pub fn instants(self) -> impl Iterator<Item = &'b [Sample]> {
        self.samples.chunk_by(|a, b| a.offset == b.offset)
    }
}
