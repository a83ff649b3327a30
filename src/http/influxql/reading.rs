//! Values for InfluxQL statements: readings and the stats of hours, device by device.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use tokio::time::Instant;

use super::source::Stored;
use crate::common::clock::rfc3339;
use crate::influxql::{HourStats, Next, Request, Row, RowReader, StatementError};
use crate::model::{MS_PER_HOUR, Metric, SeriesFilter};
use crate::query::{Column, Columns, HoursRequest, Point, QueryError, ReadingsRequest, Rollups};

/// The hours that are counted first for the newest rows of a series. Each further look counts eight times as
/// many.
const FIRST_HOURS: i64 = 24;

/// The series of one device in a request.
pub(super) struct OfDevice {
    pub(super) device: Arc<str>,
    /// The places of its series in the request.
    pub(super) series: Vec<usize>,
    /// The index in `series` and the place of the field of each metric.
    pub(super) columns: HashMap<Metric, (usize, usize)>,
    /// The instants of the request that the device may have, in Unix milliseconds.
    pub(super) range_ms: Range<i64>,
}

impl Stored<'_> {
    /// The devices of a request, with the series of each.
    pub(super) fn devices(&self, request: &Request<'_>) -> Result<Vec<OfDevice>, StatementError> {
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
    pub(super) fn each_hour(
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
    pub(super) fn starts_of_newest(&mut self, devices: &[OfDevice], newest: usize) -> Result<Vec<i64>, StatementError> {
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
    pub(super) fn read_device(
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
    pub(super) fn count(&mut self, devices: &[OfDevice], range_ms: Range<i64>) -> Result<Vec<u64>, StatementError> {
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

/// The stats of an hour. The ends are those of the hour if they are not needed.
pub(super) fn stats_of(
    point: &Point,
    series: usize,
    field: usize,
    needs_ends: bool,
) -> Result<HourStats, StatementError> {
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

fn filter<'m>(metrics: impl Iterator<Item = &'m Metric>) -> Result<SeriesFilter, StatementError> {
    SeriesFilter::new(metrics.map(|metric| &**metric), []).map_err(|error| StatementError::new(error.to_string()))
}

/// The start of the hour of an instant.
pub(super) const fn floor(ms: i64) -> i64 {
    ms - ms.rem_euclid(MS_PER_HOUR)
}

/// The start of the hour at an instant, or else of the next hour.
pub(super) const fn ceiling(ms: i64) -> i64 {
    floor(ms.saturating_add(MS_PER_HOUR - 1))
}
