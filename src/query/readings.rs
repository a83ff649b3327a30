//! Readings, a page at a time.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::{Answer, Queries, QueryError, blocking};
use crate::access::DeviceScope;
use crate::model::{Contents, Hour, Metric, SeriesFilter};
use crate::store::{FirstReadings, FirstReadingsBuilder, ReadingsQuery};

/// A request for readings.
#[derive(Debug, Clone)]
pub struct ReadingsRequest {
    /// The device id.
    pub device: String,
    /// The first instant, in Unix milliseconds.
    pub from_ms: i64,
    /// The end of the range, exclusive, in Unix milliseconds.
    pub to_ms: i64,
    /// The series.
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
        self.hours(request.from_ms, request.to_ms)?;
        let lagging = self.catch_up().await;
        let mut page = Page { readings: Vec::new(), next_ms: None };
        let (mut values, mut partial) = (0, false);
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
            // Pending first: a reading that is stored in between is then in both, not in neither.
            let pending = self.first_pending(&query).await?;
            let stored = match self.ask(deadline, self.store.readings(&query)).await {
                Ok(stored) => stored,
                Err(_) if !pending.hours.is_empty() => {
                    partial = true;
                    FirstReadings { hours: Vec::new(), complete_until_ms: request.to_ms }
                }
                Err(error) => return Err(error),
            };
            let until_ms = stored.complete_until_ms.min(pending.complete_until_ms);
            query.range_ms.start = until_ms;
            for reading in blocking(move || merged(stored.hours, pending.hours, until_ms)).await? {
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

    /// Returns the answer of [`crate::store::Store::readings`] as if the pending readings were a store.
    async fn first_pending(&self, query: &ReadingsQuery) -> Result<FirstReadings, QueryError> {
        let (pipeline, query) = (Arc::clone(&self.pipeline), query.clone());
        blocking(move || {
            let hours = pipeline.pending_hours(&query.device, query.hours());
            let mut gathered = FirstReadingsBuilder::new(&query);
            for hour in hours {
                let Some(samples) = gathered.hour(hour.hour) else { break };
                samples.extend(&hour.contents());
            }
            gathered.finish()
        })
        .await
    }
}

/// Merges the pending hours over the stored ones, and returns the readings before an instant.
fn merged(stored: Vec<(Hour, Contents)>, pending: Vec<(Hour, Contents)>, until_ms: i64) -> Vec<ReadingAt> {
    let mut hours: BTreeMap<Hour, Contents> = stored.into_iter().collect();
    for (hour, contents) in pending {
        match hours.entry(hour) {
            Entry::Occupied(mut stored) => *stored.get_mut() = stored.get().merge(&contents),
            Entry::Vacant(place) => _ = place.insert(contents),
        }
    }
    let mut readings = Vec::new();
    for (hour, contents) in hours {
        let before = contents.readings().take_while(|reading| hour.instant_ms(reading.offset) < until_ms);
        readings.extend(before.map(|reading| {
            let values = reading.samples.iter().map(|sample| (contents.metric_of(sample).clone(), sample.value));
            ReadingAt { ts_ms: hour.instant_ms(reading.offset), values: values.collect() }
        }));
    }
    readings
}
