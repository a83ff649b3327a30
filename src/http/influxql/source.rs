//! The data of InfluxQL statements: the device index and the queries of a token's devices.
//!
//! Statements are evaluated on a blocking thread, which waits here for each answer of a query. Every wait
//! ends at the deadline of the statement, and when the client is gone. An answer without the stored part is
//! an error, so that no statement has a wrong result.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::catalogue::{Catalogue, Found, Place};
use super::index::{has_all, too_many_series};
use super::reading::{OfDevice, ceiling, floor, stats_of};
use crate::access::DeviceScope;
use crate::common::clock::rfc3339;
use crate::influxql::{HourReader, Memory, Request, RowReader, Series, Source, StatementError, Wanted};
use crate::query::{Answer, Column, Columns, MAX_METRICS, Queries, QueryError};

/// The data of one statement.
pub(super) struct Stored<'s> {
    pub(super) queries: &'s Queries,
    pub(super) scope: &'s DeviceScope,
    pub(super) runtime: &'s Handle,
    pub(super) deadline: Instant,
    /// Whether the statement is answered in parts: then each device of a part has the time of a statement.
    pub(super) is_in_parts: bool,
    pub(super) cancelled: &'s CancellationToken,
    pub(super) catalogue: &'s Catalogue,
    pub(super) memory: &'s dyn Memory,
    pub(super) now_ms: i64,
    /// The most series of a statement.
    pub(super) max_series: usize,
    /// All series by measurement, if the statement has asked for the measurements and they are few enough.
    pub(super) all: Option<BTreeMap<Arc<str>, Vec<Found>>>,
    /// Where the values of each series are, by its key.
    pub(super) places: Vec<Place>,
    /// Readings acknowledged within this time may be missing.
    pub(super) lagging: Option<Duration>,
    /// Whether the answer is about the device index itself, so that it may lack what the index lacks.
    pub(super) is_of_index: bool,
    /// A device of which the index lacks series, so that the answer may.
    pub(super) incomplete: Option<Arc<str>>,
}

impl Stored<'_> {
    /// Waits for an answer of a query.
    pub(super) fn wait<T>(&self, answer: impl Future<Output = Result<T, QueryError>>) -> Result<T, StatementError> {
        let timeout = || QueryError::Timeout(self.queries.limits().timeout);
        let answer = async { tokio::time::timeout_at(self.deadline, answer).await.map_err(|_| timeout())? };
        match self.runtime.block_on(self.cancelled.run_until_cancelled(answer)) {
            Some(answer) => answer.map_err(|error| StatementError::new(error.to_string())),
            None => Err(gone()),
        }
    }

    /// Waits for an answer that must be whole.
    pub(super) fn wait_for_all<T>(
        &mut self,
        answer: impl Future<Output = Result<Answer<T>, QueryError>>,
    ) -> Result<T, StatementError> {
        let Answer { body, lagging, partial } = self.wait(answer)?;
        self.lagging = self.lagging.max(lagging);
        if partial { Err(QueryError::incomplete().to_string().into()) } else { Ok(body) }
    }

    /// Notes on what may be missing in the answer.
    pub(super) fn warnings(&self) -> Vec<String> {
        let lagging = |lagging: Duration| format!("readings of the last {:.1} s may be missing", lagging.as_secs_f64());
        let of_index = |device: &Arc<str>| {
            format!(
                "device {device} has more than {MAX_METRICS} series; those that are silent for longest may be missing"
            )
        };
        self.lagging.map(lagging).into_iter().chain(self.incomplete.as_ref().map(of_index)).collect()
    }
}

impl Source for Stored<'_> {
    fn measurements(&mut self) -> Result<Vec<String>, StatementError> {
        let (mut names, mut all) = (BTreeSet::new(), BTreeMap::<Arc<str>, Vec<Found>>::new());
        let (mut count, mut bytes, max) = (0, 0, self.max_series);
        self.each_device(None, |source, device| {
            source.check_complete(&device)?;
            for (measurement, found) in source.catalogue.series_of(&device, None) {
                if names.len() == max {
                    return Err(too_many_series(max));
                }
                names.insert(Arc::clone(&measurement));
                count += 1;
                if count > max {
                    all.clear();
                    continue;
                }
                grow(source.memory, &mut bytes, found.bytes())?;
                all.entry(measurement).or_default().push(found);
            }
            Ok(())
        })?;
        self.all = (count <= max).then_some(all);
        Ok(names.into_iter().map(|name| name.to_string()).collect())
    }

    fn schema(&mut self, measurement: &str, wanted: &Wanted<'_>) -> Result<(Vec<String>, Vec<String>), StatementError> {
        let (mut fields, mut tags) = (BTreeSet::new(), BTreeSet::new());
        let mut add = |found: &Found| {
            fields.extend(found.series.fields.iter().cloned());
            tags.extend(found.series.tags.iter().map(|(key, _)| Arc::clone(key)));
            fields.len() + tags.len()
        };
        if let Some(all) = &self.all {
            for found in all.get(measurement).into_iter().flatten() {
                add(found);
            }
        } else {
            let max = self.max_series;
            self.each_device(None, |source, mut device| {
                source.complete(&mut device, measurement, wanted)?;
                for (_, found) in source.catalogue.series_of(&device, Some(measurement)) {
                    if add(&found) > max {
                        return Err(too_many_series(max));
                    }
                }
                Ok(())
            })?;
        }
        let texts = |names: BTreeSet<Arc<str>>| names.into_iter().map(|name| name.to_string()).collect();
        Ok((texts(fields), texts(tags)))
    }

    fn series(&mut self, measurement: &str, wanted: &Wanted<'_>) -> Result<Vec<Series>, StatementError> {
        let mut found: Vec<Found> = match &self.all {
            Some(all) => {
                let of_measurement = all.get(measurement).into_iter().flatten();
                of_measurement.filter(|found| has_all(&found.series, &wanted.tags)).cloned().collect()
            }
            None => self.find(measurement, wanted)?,
        };
        found.sort_by(|a, b| a.series.tags.cmp(&b.series.tags));
        let first = self.places.len();
        let with_key = |(at, found): (usize, Found)| {
            self.places.push(found.place);
            Series { key: first + at, ..found.series }
        };
        Ok(found.into_iter().enumerate().map(with_key).collect())
    }

    fn check(&self) -> Result<(), StatementError> {
        check(self.cancelled, self.deadline, self.queries.limits().timeout)
    }

    fn span_ms(&self, request: &Request<'_>) -> Range<i64> {
        let places = request.series.iter().filter_map(|series| self.places.get(series.key));
        let spans = places.map(|place| place.span_ms.clone());
        let span = spans.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        span.start.max(request.range_ms.start)..span.end.min(request.range_ms.end)
    }

    fn readings(&mut self, request: &Request<'_>, reader: &mut RowReader<'_>) -> Result<(), StatementError> {
        let mut devices = self.devices(request)?;
        if let Some(newest) = request.newest {
            let starts = self.starts_of_newest(&devices, newest)?;
            devices.iter_mut().zip(starts).for_each(|(of_device, start)| of_device.range_ms.start = start);
        }
        let fields = request.fields.len();
        if !request.is_beside_stats {
            for of_device in &devices {
                let range_ms = of_device.range_ms.clone();
                self.read_device(of_device, fields, &range_ms, &range_ms, reader)?;
            }
            return Ok(());
        }
        // Only whole hours can be compared with their stats. The stats are first: readings may follow.
        let Range { start, end } = &request.range_ms;
        let hours_ms = floor(*start)..ceiling(*end);
        let counts = self.count(&devices, hours_ms.clone())?;
        for (of_device, count) in devices.iter().zip(counts) {
            if self.read_device(of_device, fields, &hours_ms, &request.range_ms, reader)? < count {
                return Err(format!(
                    "the readings of device {} from {} on have expired (retention.readings), and the range begins or \
                     ends inside of this hour; ask for a range of whole hours",
                    of_device.device,
                    rfc3339(hours_ms.start)
                )
                .into());
            }
        }
        Ok(())
    }

    fn hours(&mut self, request: &Request<'_>, reader: &mut HourReader<'_>) -> Result<(), StatementError> {
        let devices = self.devices(request)?;
        let start = devices.iter().map(|of_device| floor(of_device.range_ms.start)).min().unwrap_or_default();
        let end = devices.iter().map(|of_device| ceiling(of_device.range_ms.end)).max().unwrap_or_default();
        let mut columns = Columns::NONE.with(Column::Count).with(Column::Min).with(Column::Max).with(Column::Sum);
        if request.needs_ends {
            columns = columns.with(Column::First).with(Column::Last);
        }
        let all: Vec<&OfDevice> = devices.iter().collect();
        self.each_hour(&all, start..end, columns, |at, rollups| {
            for (metric, points) in rollups {
                let Some((nth, field)) = devices[at].columns.get(&metric).copied() else { continue };
                let series = devices[at].series[nth];
                for point in points {
                    reader(stats_of(&point, series, field, request.needs_ends)?)?;
                }
            }
            Ok(())
        })
    }
}

fn gone() -> StatementError {
    "the client is gone".into()
}

/// Fails when the client is gone, and at the deadline.
pub(super) fn check(cancelled: &CancellationToken, deadline: Instant, timeout: Duration) -> Result<(), StatementError> {
    if cancelled.is_cancelled() {
        return Err(gone());
    }
    if Instant::now() >= deadline {
        return Err(QueryError::Timeout(timeout).to_string().into());
    }
    Ok(())
}

/// Takes memory for what is found, some of it in advance.
pub(super) fn grow(memory: &dyn Memory, bytes: &mut usize, more: usize) -> Result<(), StatementError> {
    const STEP: usize = 1 << 20;
    let before = bytes.div_ceil(STEP);
    *bytes += more;
    match bytes.div_ceil(STEP) - before {
        0 => Ok(()),
        steps => memory.grow(steps * STEP),
    }
}
