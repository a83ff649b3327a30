//! The series of statements: those of the device index.
//!
//! The index keeps some thousand series of a device. Of a device with more, statements that name their fields
//! also get the series of these fields that have stats in their range. The index alone knows which part of a
//! metric is the measurement. A metric that it lacks belongs to the measurement of the same metric with other
//! labels, or else to the longest measurement of the device with which its name begins, or else to the one
//! that the statement names.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::catalogue::{self, Found};
use super::reading::{ceiling, floor};
use super::source::{Stored, grow};
use crate::influxql::mapping::VALUE;
use crate::influxql::{Series, StatementError, Wanted, WantedTag};
use crate::model::{MS_PER_HOUR, Metric, SeriesFilter};
use crate::query::{
    Column, Columns, Device, DeviceSelection, DevicesRequest, HoursRequest, Listed, MAX_METRICS, Rollups,
};

/// The devices of one page of the device index.
const DEVICES_PER_PAGE: usize = 1_000;

/// The stats that are looked through at once for series that the index lacks, in milliseconds: a day.
const LOOK_MS: i64 = 24 * MS_PER_HOUR;

/// The memory of a metric beside its text: its places in sets and lists.
const BYTES_PER_METRIC: usize = 128;

impl Stored<'_> {
    /// Visits the devices of the scope: those with these client IDs, or all.
    pub(super) fn each_device(
        &mut self,
        ids: Option<Vec<Arc<str>>>,
        mut visit: impl FnMut(&mut Self, Device) -> Result<(), StatementError>,
    ) -> Result<(), StatementError> {
        let selection = DeviceSelection { ids, ..DeviceSelection::default() };
        let (limit, now_ms) = (DEVICES_PER_PAGE, self.now_ms);
        let mut request = DevicesRequest { selection, after: None, limit, now_ms, skips_any: true };
        loop {
            let (queries, scope) = (self.queries, self.scope);
            let Listed { devices, next } = self.wait_for_all(queries.device_entries(scope, &request))?;
            for device in devices {
                visit(self, device)?;
            }
            let Some(next) = next else { return Ok(()) };
            request.after = Some(next.to_string());
        }
    }

    /// The series of a measurement that are wanted.
    pub(super) fn find(&mut self, measurement: &str, wanted: &Wanted<'_>) -> Result<Vec<Found>, StatementError> {
        let (mut found, mut bytes, max) = (Vec::new(), 0, self.max_series);
        self.each_device(self.ids(&wanted.tags), |source, mut device| {
            source.complete(&mut device, measurement, wanted)?;
            for (_, one) in source.catalogue.series_of(&device, Some(measurement)) {
                if !has_all(&one.series, &wanted.tags) {
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

    /// Refuses a device of which the index lacks series. An answer about the index itself notes it.
    pub(super) fn check_complete(&mut self, device: &Device) -> Result<(), StatementError> {
        if device.has_more_metrics && !self.is_of_index {
            let id = &device.id;
            return Err(format!(
                "device {id} has more than {MAX_METRICS} series, and the device index keeps no more; name the \
                 measurements and fields in place of wildcards"
            )
            .into());
        }
        if device.has_more_metrics {
            self.incomplete.get_or_insert_with(|| Arc::clone(&device.id));
        }
        Ok(())
    }

    /// Adds the wanted series of a measurement that the index of the device lacks.
    pub(super) fn complete(
        &mut self,
        device: &mut Device,
        measurement: &str,
        wanted: &Wanted<'_>,
    ) -> Result<(), StatementError> {
        let Some(fields) = wanted.fields.as_ref().filter(|_| device.has_more_metrics) else {
            return self.check_complete(device);
        };
        let name =
            |field: &&str| if *field == VALUE { measurement.to_owned() } else { format!("{measurement}_{field}") };
        let is_metric = |name: &String| !name.contains('{') && SeriesFilter::new([&**name], []).is_ok();
        let names: Vec<String> = fields.iter().map(name).filter(is_metric).collect();
        let found = if names.is_empty() { HashSet::new() } else { self.metrics_in_stats(device, &names, wanted)? };
        let known = Measurements::of(&device.metrics);
        let of_index: HashSet<&Metric> = device.metrics.iter().collect();
        let lacking = found.iter().filter(|metric| !of_index.contains(metric));
        let lacking: Vec<Metric> = lacking.map(|metric| known.assign(metric, measurement)).collect();
        device.metrics.extend(lacking);
        Ok(())
    }

    /// The metrics with these names that a device has in the wanted range.
    fn metrics_in_stats(
        &mut self,
        device: &Device,
        names: &[String],
        wanted: &Wanted<'_>,
    ) -> Result<HashSet<Metric>, StatementError> {
        let error = |error: &dyn std::fmt::Display| StatementError::new(error.to_string());
        let series = SeriesFilter::new(names.iter().map(|name| &**name), []).map_err(|why| error(&why))?;
        let span_ms = catalogue::span_ms(device);
        let range_ms = span_ms.start.max(wanted.range_ms.start)..span_ms.end.min(wanted.range_ms.end);
        let (mut found, mut bytes) = (HashSet::new(), 0);
        if range_ms.is_empty() {
            return Ok(found);
        }
        self.queries.limits().check_range(range_ms.start, range_ms.end).map_err(|why| error(&why))?;
        let mut start = floor(range_ms.start);
        while start < range_ms.end {
            let end = (start + LOOK_MS).min(ceiling(range_ms.end));
            let columns = Columns::NONE.with(Column::Count);
            let request = HoursRequest { range_ms: start..end, series: series.clone(), columns };
            let mut names: Vec<Metric> = Vec::new();
            let take = |_, rollups: Rollups| {
                names.extend(rollups.into_keys());
                ControlFlow::Continue(())
            };
            let (queries, scope) = (self.queries, self.scope);
            self.wait_for_all(queries.each_hour(scope, &[Arc::clone(&device.id)], request, take))?;
            for metric in names {
                let len = metric.len();
                if found.insert(metric) {
                    grow(self.memory, &mut bytes, len + BYTES_PER_METRIC)?;
                }
            }
            if found.len() > self.max_series {
                return Err(too_many_series(self.max_series));
            }
            start = end;
        }
        Ok(found)
    }
}

/// The measurements of the metrics that the index has of a device.
struct Measurements<'m> {
    /// By the name of the metric without labels.
    by_name: HashMap<&'m str, Option<&'m str>>,
    all: HashSet<&'m str>,
}

impl<'m> Measurements<'m> {
    fn of(metrics: &'m [Metric]) -> Self {
        let by_name = metrics.iter().map(|metric| (name_of(metric), metric.measurement())).collect();
        Self { by_name, all: metrics.iter().filter_map(Metric::measurement).collect() }
    }

    /// A metric that the index lacks, with its measurement. `named`: the one that the statement names.
    fn assign(&self, metric: &Metric, named: &str) -> Metric {
        let name = name_of(metric);
        let begins = |at: usize| Some(&name[..at]).filter(|start| self.all.contains(*start));
        let measurement = match self.by_name.get(name) {
            Some(known) => *known,
            None => name.rmatch_indices('_').find_map(|(at, _)| begins(at)).or((name != named).then_some(named)),
        };
        let bytes = measurement.map_or(0, str::len);
        Metric::of_measurement(metric, u8::try_from(bytes).unwrap_or(0))
    }
}

/// The name of a metric without its labels.
fn name_of(metric: &Metric) -> &str {
    metric.split('{').next().unwrap_or_default()
}

/// Whether a series has all wanted tags.
pub(super) fn has_all(series: &Series, wanted: &[WantedTag]) -> bool {
    wanted.iter().all(|wanted| wanted.values.contains(series.tag(&wanted.key)))
}

pub(super) fn too_many_series(max: usize) -> StatementError {
    format!("max-select-series limit exceeded: ({}/{max}); query.max_points is the limit", max + 1).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_that_the_index_lacks_belongs_to_a_measurement_that_it_has() {
        let of = Metric::of_measurement;
        let metrics = [of("cpu_idle{cpu=cpu0}", 3), of("a_b_c", 3), of("a_d", 1), of("a_e{k=v}", 0)];
        let known = Measurements::of(&metrics);
        for (metric, named, expected) in [
            ("cpu_idle{cpu=cpu1}", "cpu_idle", Some("cpu")),
            ("cpu_user", "cpu_user", Some("cpu")),
            ("a_b_x{k=v}", "a", Some("a_b")),
            ("a_x", "a", Some("a")),
            ("a_e{k=w}", "a", None),
            ("old_f", "old", Some("old")),
            ("old_f", "old_f", None),
            ("plain", "plain", None),
        ] {
            assert_eq!(known.assign(&metric.into(), named).measurement(), expected, "{metric} {named}");
        }
    }
}
