//! The data of InfluxQL statements: the device index and the queries of a token's devices.
//!
//! Statements are evaluated on a blocking thread, which waits here for each answer of a query. Every wait
//! ends at the deadline of the statement, and when the client is gone. An answer without the stored part is
//! an error, so that no statement has a wrong result.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::catalogue::{Catalogue, Found, Place};
use crate::access::DeviceScope;
use crate::common::clock::rfc3339;
use crate::influxql::{
    HourReader, HourStats, Memory, Next, Request, Row, RowReader, Series, Source, StatementError, WantedTag,
};
use crate::model::{MS_PER_HOUR, Metric, SeriesFilter};
use crate::query::{
    Answer, Column, Columns, Device, DeviceSelection, DevicesRequest, HoursRequest, Listed, Point, Queries, QueryError,
    ReadingsRequest, Rollups,
};

/// The devices of one page of the device index.
const DEVICES_PER_PAGE: usize = 1_000;

/// The hours that are counted first for the newest rows of a series. Each further look counts eight times as
/// many.
const FIRST_HOURS: i64 = 24;

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
}

/// The series of one device in a request.
struct OfDevice {
    device: Arc<str>,
    /// The places of its series in the request.
    series: Vec<usize>,
    /// The index in `series` and the place of the field of each metric.
    columns: HashMap<Metric, (usize, usize)>,
    /// The instants of the request that the device may have, in Unix milliseconds.
    range_ms: Range<i64>,
}

impl Stored<'_> {
    /// Waits for an answer of a query.
    fn wait<T>(&self, answer: impl Future<Output = Result<T, QueryError>>) -> Result<T, StatementError> {
        let timeout = || QueryError::Timeout(self.queries.limits().timeout);
        let answer = async { tokio::time::timeout_at(self.deadline, answer).await.map_err(|_| timeout())? };
        match self.runtime.block_on(self.cancelled.run_until_cancelled(answer)) {
            Some(answer) => answer.map_err(|error| StatementError::new(error.to_string())),
            None => Err(gone()),
        }
    }

    /// Waits for an answer that must be whole.
    fn wait_for_all<T>(
        &mut self,
        answer: impl Future<Output = Result<Answer<T>, QueryError>>,
    ) -> Result<T, StatementError> {
        let Answer { body, lagging, partial } = self.wait(answer)?;
        self.lagging = self.lagging.max(lagging);
        if partial { Err(QueryError::incomplete().to_string().into()) } else { Ok(body) }
    }

    /// Visits the devices of the scope: those with these client IDs, or all.
    fn each_device(
        &mut self,
        ids: Option<Vec<Arc<str>>>,
        mut visit: impl FnMut(&Self, Device) -> Result<(), StatementError>,
    ) -> Result<(), StatementError> {
        let selection = DeviceSelection { ids, ..DeviceSelection::default() };
        let mut request = DevicesRequest { selection, after: None, limit: DEVICES_PER_PAGE, now_ms: self.now_ms };
        loop {
            let (queries, scope) = (self.queries, self.scope);
            let Listed { devices, next } = self.wait_for_all(queries.device_entries(scope, &request))?;
            for device in devices {
                if device.has_more_metrics {
                    let id = &device.id;
                    return Err(format!("device {id} has more series than the device index keeps (4096)").into());
                }
                visit(self, device)?;
            }
            let Some(next) = next else { return Ok(()) };
            request.after = Some(next.to_string());
        }
    }

    /// The series of a measurement that have all wanted tags.
    fn find(&mut self, measurement: &str, wanted: &[WantedTag]) -> Result<Vec<Found>, StatementError> {
        let (mut found, mut bytes, max) = (Vec::new(), 0, self.max_series);
        self.each_device(self.ids(wanted), |source, device| {
            for (_, one) in source.catalogue.series_of(&device, Some(measurement)) {
                if !has_all(&one.series, wanted) {
                    continue;
                }
                if found.len() == max {
                    return Err(too_many_series(max));
                }
                grow(source.memory, &mut bytes, one.bytes())?;
                found.push(one);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The client IDs of the only devices that can have the wanted tags; `None` if any may have them.
    fn ids(&self, wanted: &[WantedTag]) -> Option<Vec<Arc<str>>> {
        let of_device = wanted.iter().find(|wanted| self.catalogue.is_of_device(&wanted.key))?;
        Some(of_device.values.iter().map(|id| Arc::from(&**id)).collect())
    }

    /// The devices of a request, with the series of each.
    fn devices(&self, request: &Request<'_>) -> Result<Vec<OfDevice>, StatementError> {
        let mut devices: Vec<OfDevice> = Vec::new();
        let mut known: HashMap<&str, usize> = HashMap::new();
        for (at, series) in request.series.iter().enumerate() {
            let Some(place) = self.places.get(series.key) else { continue };
            let nth = *known.entry(&place.device).or_insert(devices.len());
            if nth == devices.len() {
                let Range { start, end } = request.range_ms;
                let range_ms = start.max(place.span_ms.start)..end.min(place.span_ms.end);
                let device = Arc::clone(&place.device);
                devices.push(OfDevice { device, series: Vec::new(), columns: HashMap::new(), range_ms });
            }
            let of_device = &mut devices[nth];
            for (field, name) in request.fields.iter().enumerate() {
                if let Some(known) = series.field(name) {
                    of_device.columns.insert(place.metrics[known].clone(), (of_device.series.len(), field));
                }
            }
            of_device.series.push(at);
        }
        devices.retain(|of_device| !of_device.range_ms.is_empty() && !of_device.columns.is_empty());
        let limits = self.queries.limits();
        for of_device in &devices {
            let Range { start, end } = of_device.range_ms;
            limits.check_range(start, end).map_err(|error| StatementError::new(error.to_string()))?;
        }
        Ok(devices)
    }

    /// Passes the stats of hours to `take`, with the index of the device in `devices`.
    fn each_hour(
        &mut self,
        devices: &[&OfDevice],
        range_ms: Range<i64>,
        columns: Columns,
        mut take: impl FnMut(usize, Rollups) -> Result<(), StatementError>,
    ) -> Result<(), StatementError> {
        if devices.is_empty() || range_ms.is_empty() {
            return Ok(());
        }
        let ids: Vec<Arc<str>> = devices.iter().map(|of_device| Arc::clone(&of_device.device)).collect();
        let series = filter(devices.iter().flat_map(|of_device| of_device.columns.keys()))?;
        let mut failed = None;
        let take = |at: usize, rollups: Rollups| match take(at, rollups) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        };
        let (queries, scope) = (self.queries, self.scope);
        self.wait_for_all(queries.each_hour(scope, &ids, HoursRequest { range_ms, series, columns }, take))?;
        failed.map_or(Ok(()), Err)
    }

    /// The instant of each device from which on each series has at least `newest` rows, or all.
    fn starts_of_newest(&mut self, devices: &[OfDevice], newest: usize) -> Result<Vec<i64>, StatementError> {
        let mut starts: Vec<i64> = devices.iter().map(|of_device| of_device.range_ms.start).collect();
        let mut left: Vec<usize> = (0..devices.len()).collect();
        let mut hours = FIRST_HOURS;
        while let Some(end) = left.iter().map(|at| floor(devices[*at].range_ms.end)).max() {
            let from = end.saturating_sub(hours.saturating_mul(MS_PER_HOUR));
            left.retain(|at| devices[*at].range_ms.start < from);
            let looked_at: Vec<&OfDevice> = left.iter().map(|at| &devices[*at]).collect();
            let mut is_found = vec![false; looked_at.len()];
            self.each_hour(&looked_at, from..end, Columns::NONE.with(Column::Count), |nth, rollups| {
                if let Some(start) = start_of_newest(looked_at[nth], &rollups, newest) {
                    starts[left[nth]] = start;
                    is_found[nth] = true;
                }
                Ok(())
            })?;
            let mut is_found = is_found.into_iter();
            left.retain(|_| !is_found.next().unwrap_or(true));
            hours = hours.saturating_mul(8);
        }
        Ok(starts)
    }

    /// Passes the rows of a device in `range_ms` whose instants are in `shown_ms`. Returns the number of all
    /// values.
    fn read_device(
        &mut self,
        of_device: &OfDevice,
        fields: usize,
        range_ms: &Range<i64>,
        shown_ms: &Range<i64>,
        reader: &mut RowReader<'_>,
    ) -> Result<u64, StatementError> {
        if self.is_in_parts {
            self.deadline = Instant::now() + self.queries.limits().timeout;
        }
        let OfDevice { device, series, columns, .. } = of_device;
        let request = ReadingsRequest {
            device: device.to_string(),
            from_ms: range_ms.start,
            to_ms: range_ms.end,
            series: filter(columns.keys())?,
            limit: usize::MAX,
        };
        let error = |error: QueryError| StatementError::new(error.to_string());
        let mut slices = self.queries.reading_slices(self.scope, &request).map_err(error)?;
        let mut values: Vec<Option<f64>> = vec![None; series.len() * fields];
        let mut is_done = vec![false; series.len()];
        let mut is_touched = vec![false; series.len()];
        let (mut touched, mut done, mut read) = (Vec::new(), 0, 0);
        while let Some(slice) = self.wait(slices.next())? {
            for hour in slice.hours() {
                let places: Vec<_> = hour.metrics.iter().map(|metric| columns.get(metric).copied()).collect();
                for samples in hour.instants() {
                    for sample in samples {
                        let Some((nth, field)) = places[sample.metric as usize] else { continue };
                        if !std::mem::replace(&mut is_touched[nth], true) {
                            touched.push(nth);
                        }
                        values[nth * fields + field] = Some(sample.value);
                        read += 1;
                    }
                    let ts_ms = hour.hour.instant_ms(samples[0].offset);
                    for nth in touched.drain(..) {
                        let row = &mut values[nth * fields..(nth + 1) * fields];
                        if shown_ms.contains(&ts_ms) && !is_done[nth] {
                            let next = reader(Row { series: series[nth], ts_ms, values: row })?;
                            is_done[nth] = next == Next::Series;
                            done += usize::from(is_done[nth]);
                        }
                        row.fill(None);
                        is_touched[nth] = false;
                    }
                    if done == series.len() {
                        return Ok(read);
                    }
                }
            }
        }
        Ok(read)
    }

    /// The number of values that the hours of a range have, by device.
    fn count(&mut self, devices: &[OfDevice], range_ms: Range<i64>) -> Result<Vec<u64>, StatementError> {
        let mut counts = vec![0; devices.len()];
        let all: Vec<&OfDevice> = devices.iter().collect();
        self.each_hour(&all, range_ms, Columns::NONE.with(Column::Count), |at, rollups| {
            let of_device = rollups.iter().filter(|(metric, _)| devices[at].columns.contains_key(*metric));
            counts[at] = of_device.flat_map(|(_, points)| points).map(Point::count).sum();
            Ok(())
        })?;
        Ok(counts)
    }
}

impl Source for Stored<'_> {
    fn measurements(&mut self) -> Result<Vec<String>, StatementError> {
        let (mut names, mut all) = (BTreeSet::new(), BTreeMap::<Arc<str>, Vec<Found>>::new());
        let (mut count, mut bytes, max) = (0, 0, self.max_series);
        self.each_device(None, |source, device| {
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

    fn schema(&mut self, measurement: &str) -> Result<(Vec<String>, Vec<String>), StatementError> {
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
            self.each_device(None, |source, device| {
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

    fn series(&mut self, measurement: &str, wanted: &[WantedTag]) -> Result<Vec<Series>, StatementError> {
        let mut found: Vec<Found> = match &self.all {
            Some(all) => {
                let of_measurement = all.get(measurement).into_iter().flatten();
                of_measurement.filter(|found| has_all(&found.series, wanted)).cloned().collect()
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

/// The stats of an hour. The ends are those of the hour if they are not needed.
fn stats_of(point: &Point, series: usize, field: usize, needs_ends: bool) -> Result<HourStats, StatementError> {
    let Point { start_ms, stats, .. } = *point;
    let end = |value: Option<crate::model::ValueAt>| match value {
        Some(value) => Ok((value.ts_ms, value.value)),
        None if needs_ends => Err(StatementError::new(format!(
            "the first and the last value of the hour from {} are not known: an older version has stored it; ask for \
             windows of less than an hour",
            rfc3339(start_ms)
        ))),
        None => Ok((start_ms, f64::NAN)),
    };
    Ok(HourStats {
        series,
        field,
        start_ms,
        count: stats.count,
        min: stats.min,
        max: stats.max,
        sum: stats.sum,
        first: end(stats.first)?,
        last: end(stats.last)?,
    })
}

/// The start of the hour from which on each series of a device has at least `newest` values of one field.
fn start_of_newest(of_device: &OfDevice, rollups: &Rollups, newest: usize) -> Option<i64> {
    let mut starts: Vec<Option<i64>> = vec![None; of_device.series.len()];
    for (metric, points) in rollups {
        let Some((nth, _)) = of_device.columns.get(metric) else { continue };
        let mut count = 0_u64;
        let enough = points.iter().rev().find(|point| {
            count = count.saturating_add(point.count());
            count >= newest as u64
        });
        starts[*nth] = starts[*nth].max(enough.map(|point| point.start_ms));
    }
    starts.into_iter().min().flatten()
}

fn has_all(series: &Series, wanted: &[WantedTag]) -> bool {
    wanted.iter().all(|wanted| wanted.values.contains(series.tag(&wanted.key)))
}

fn filter<'m>(metrics: impl Iterator<Item = &'m Metric>) -> Result<SeriesFilter, StatementError> {
    SeriesFilter::new(metrics.map(|metric| &**metric), []).map_err(|error| StatementError::new(error.to_string()))
}

fn too_many_series(max: usize) -> StatementError {
    format!("max-select-series limit exceeded: ({}/{max}); query.max_points is the limit", max + 1).into()
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

const fn floor(ms: i64) -> i64 {
    ms - ms.rem_euclid(MS_PER_HOUR)
}

const fn ceiling(ms: i64) -> i64 {
    floor(ms.saturating_add(MS_PER_HOUR - 1))
}
