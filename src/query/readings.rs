//! Readings, a page at a time.

use super::{Answer, Queries, QueryError};
use crate::access::Reach;
use crate::model::{Contents, Hour, Metric};

/// A question for readings.
#[derive(Debug, Clone)]
pub struct ReadingsRequest {
    /// The device id.
    pub device: String,
    /// The first instant, in Unix milliseconds.
    pub from_ms: i64,
    /// The instant behind the last, in Unix milliseconds.
    pub to_ms: i64,
    /// The metrics; empty: all.
    pub metrics: Vec<Metric>,
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
    /// From where to ask for the next page, in Unix milliseconds, if there is one.
    pub next_ms: Option<i64>,
}

impl Queries {
    /// The first readings of a range.
    ///
    /// # Errors
    /// When the device is out of reach, the range is too long, or the store does not answer.
    pub async fn readings(&self, reach: &Reach, request: &ReadingsRequest) -> Result<Answer<Page>, QueryError> {
        let device = &*reach.kept(&request.device)?;
        let hours = self.hours(request.from_ms, request.to_ms)?;
        let lagging = self.catch_up().await;
        let pending = self.pending(device, hours.clone());
        let wanted = request.limit + 1; // one more tells whether there is a next page
        let (mut readings, mut partial) = (Vec::new(), false);
        let mut next = hours.start;
        while next < hours.end && readings.len() < wanted {
            let room = wanted - readings.len();
            let stored = match self.ask(self.store.contents(device, next..hours.end, room)).await {
                Ok(stored) => stored,
                Err(_) if !pending.is_empty() => {
                    partial = true;
                    Vec::new()
                }
                Err(error) => return Err(error.into()),
            };
            let count: usize = stored.iter().map(|(_, contents)| contents.reading_count()).sum();
            let reached = match stored.last() {
                Some((last, _)) if count >= room => Hour(last.0 + 1),
                _ => hours.end,
            };
            let pending = pending.iter().filter(|(hour, _)| (next..reached).contains(hour));
            for (hour, contents) in merge(stored, pending) {
                extend(&mut readings, hour, &contents, request);
            }
            next = reached;
        }
        let next_ms = readings.get(request.limit).map(|reading| reading.ts_ms);
        readings.truncate(request.limit);
        Ok(Answer { body: Page { readings, next_ms }, lagging, partial })
    }
}

/// Stored hours with the pending ones laid over them, ascending.
pub(super) fn merge<'a>(
    stored: Vec<(Hour, Contents)>,
    pending: impl Iterator<Item = &'a (Hour, Contents)>,
) -> Vec<(Hour, Contents)> {
    let mut merged = stored;
    for (hour, contents) in pending {
        match merged.binary_search_by_key(hour, |(hour, _)| *hour) {
            Ok(at) => merged[at].1 = merged[at].1.merge(contents),
            Err(at) => merged.insert(at, (*hour, contents.clone())),
        }
    }
    merged
}

fn extend(readings: &mut Vec<ReadingAt>, hour: Hour, contents: &Contents, request: &ReadingsRequest) {
    for reading in contents.readings() {
        let ts_ms = hour.instant_ms(reading.offset);
        if ts_ms < request.from_ms || ts_ms >= request.to_ms {
            continue;
        }
        let values = reading.samples.iter().map(|sample| (contents.metric_of(sample).clone(), sample.value));
        let wanted = |metric: &Metric| request.metrics.is_empty() || request.metrics.contains(metric);
        let values: Vec<_> = values.filter(|(metric, _)| wanted(metric)).collect();
        if !values.is_empty() {
            readings.push(ReadingAt { ts_ms, values });
        }
    }
}
