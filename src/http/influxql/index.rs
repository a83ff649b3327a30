//! Finds, in the device index, the series that statements want.
//!
//! The index keeps some thousand series of a device. If a device has more, a statement that names its fields
//! also gets the series of these fields that have stats in its range.
//!
//! Only the index knows which part of a metric is the measurement. The measurement of a metric that the index
//! lacks, such as `cpu_load_avg{core=1}`, is the first of these that exists:
//! - the measurement of the same metric with other labels, such as `cpu_load_avg{core=0}`;
//! - the longest measurement of the device with which the metric begins, such as `cpu_load` or `cpu`;
//! - the measurement that the statement names.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::catalogue::{Catalogue, Indexed};
use super::reading::{Order, pages, runs};
use super::source::{Stored, grow};
use crate::common::work;
use crate::influxql::mapping::VALUE;
use crate::influxql::{Found, Series, Source, StatementError, Wanted};
use crate::model::{Metric, SeriesFilter};
use crate::query::{Column, Columns, Device, DevicesRequest, HoursRequest, Listed, MAX_METRICS, Rollups};

/// The memory of a metric or a measurement in sets and lists, without its text, in bytes.
const BYTES_PER_METRIC: usize = 128;

/// The most names of measurements to keep that no part of a statement wants.
const MAX_UNWANTED: usize = 1_000;

impl Stored<'_> {
    /// Visits devices in the scope of the token: those with these IDs, or all.
    ///
    /// `ids` are client IDs, and `prefix` is the start of all that are visited.
    pub(super) fn each_device(
        &mut self,
        ids: Option<Vec<Arc<str>>>,
        prefix: String,
        mut visit: impl FnMut(&mut Self, Device) -> Result<(), StatementError>,
    ) -> Result<(), StatementError> {
        let mut request = DevicesRequest::of_each(ids, self.now_ms);
        request.selection.prefix = prefix;
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

    /// Refuses a device with more series than the index keeps.
    ///
    /// A `SHOW` statement lists the index. It does not refuse such a device, and its answer has a note.
    fn check_complete(&mut self, device: &Device) -> Result<(), StatementError> {
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

    /// Returns the series of metrics with these names that have stats in `wanted_ms`.
    fn metrics_in_stats<'n>(
        &mut self,
        device: &Device,
        names: impl Iterator<Item = &'n str>,
        wanted_ms: &[&Range<i64>],
    ) -> Result<HashSet<Metric>, StatementError> {
        let error = |error: &dyn std::fmt::Display| StatementError::new(error.to_string());
        let series = SeriesFilter::new(names, []).map_err(|why| error(&why))?;
        let span_ms = device.span_ms();
        let of_device = wanted_ms.iter().map(|wanted| span_ms.start.max(wanted.start)..span_ms.end.min(wanted.end));
        let ranges_ms: Vec<Range<i64>> = of_device.filter(|range| !range.is_empty()).collect();
        for range in &ranges_ms {
            self.queries.limits().check_range(range.start, range.end).map_err(|why| error(&why))?;
        }
        let (mut found, mut bytes) = (HashSet::new(), 0);
        let runs = runs(&ranges_ms, Order::Ascending).map(|(run, _)| run);
        // A metric may have any number of series, so each page covers only one day.
        for range_ms in runs.flat_map(|run| pages(&run, usize::MAX)) {
            let columns = Columns::NONE.with(Column::Count);
            let request = HoursRequest { range_ms, series: series.clone(), columns };
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
        }
        Ok(found)
    }
}

/// The series that were found for the parts of a statement.
///
/// A series that no part needs is not kept, and does not count against the limit: its tags do not match, or
/// its device has no readings in the range.
///
/// A statement with subqueries has several parts. Each part is a [`Wanted`], and its index in `wanted` stands
/// for it.
pub(super) struct Gathered<'w> {
    wanted: &'w [Wanted],
    /// For each part, the only client IDs that it wants; `None`: any device.
    ids: Vec<Option<HashSet<&'w str>>>,
    /// By client ID, the parts whose `ids` include it.
    of_device: HashMap<&'w str, Vec<usize>>,
    /// By name of a measurement, the parts that name it.
    named: HashMap<&'w str, Vec<usize>>,
    /// The parts that want all measurements, or those that match a pattern.
    with_unknown: Vec<usize>,
    /// A range that has all rows of the devices that the parts want, in Unix milliseconds.
    within_ms: Range<i64>,
    /// By name of a measurement, the parts that want it. Filled as devices are added.
    meant: HashMap<Arc<str>, Meant>,
    /// Names of measurements that no part wants. They are kept so that like devices match each name once.
    ///
    /// There are at most [`MAX_UNWANTED`], because the index may have any number of such names.
    unwanted: HashSet<Box<str>>,
    /// The bytes of new names in `meant` and `unwanted` for which no memory was taken yet.
    uncharged: usize,
    found: Vec<BTreeMap<Arc<str>, Found>>,
    /// How much was found: series, names of fields and tags, and bytes of memory.
    series: usize,
    names: usize,
    bytes: usize,
}

/// The parts that want a measurement: of any device, or only of some devices.
struct Meant {
    of_any_device: Vec<usize>,
    of_some_devices: Vec<usize>,
}

impl<'w> Gathered<'w> {
    pub(super) fn new(wanted: &'w [Wanted], catalogue: &Catalogue) -> Self {
        let ids = |wanted: &'w Wanted| {
            let of_device = wanted.tags.iter().find(|tag| !wanted.needs_schema && catalogue.is_of_device(&tag.key))?;
            Some(of_device.values.iter().map(|id| &**id).collect())
        };
        let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, wanted) in wanted.iter().enumerate() {
            wanted.measurements.names.iter().for_each(|name| named.entry(name).or_default().push(at));
        }
        let ids: Vec<Option<HashSet<&str>>> = wanted.iter().map(ids).collect();
        let mut of_device: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, ids) in ids.iter().enumerate() {
            ids.iter().flatten().for_each(|id| of_device.entry(id).or_default().push(at));
        }
        let with_unknown = (0..wanted.len()).filter(|at| wanted[*at].measurements.has_unknown()).collect();
        // A part that needs the schema wants devices of any time.
        let ranges_ms = wanted.iter().map(|wanted| wanted.within_ms.as_ref().filter(|_| !wanted.needs_schema));
        let ranges_ms = ranges_ms.map(|range| range.map_or((i64::MIN, i64::MAX), |range| (range.start, range.end)));
        let (start, end) = ranges_ms.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or_default();
        Self {
            wanted,
            ids,
            of_device,
            named,
            with_unknown,
            within_ms: start..end,
            meant: HashMap::new(),
            unwanted: HashSet::new(),
            uncharged: 0,
            found: wanted.iter().map(|_| BTreeMap::new()).collect(),
            series: 0,
            names: 0,
            bytes: 0,
        }
    }

    /// Returns the client IDs that the parts want; `None`: a part wants any device.
    pub(super) fn ids(&self) -> Option<Vec<Arc<str>>> {
        let of_parts: Option<Vec<&HashSet<&str>>> = self.ids.iter().map(Option::as_ref).collect();
        let all: BTreeSet<&str> = of_parts?.into_iter().flatten().copied().collect();
        Some(all.into_iter().map(Arc::from).collect())
    }

    /// Returns the text with which the client IDs that the parts want begin; may be empty.
    pub(super) fn prefix(&self, catalogue: &Catalogue) -> String {
        let of_part = |wanted: &'w Wanted| {
            let filter = wanted.filter.as_ref().filter(|_| !wanted.needs_schema);
            filter.map_or("", |filter| filter.start_of(|tag| catalogue.is_of_device(tag)))
        };
        self.wanted.iter().map(of_part).reduce(common_start).unwrap_or_default().to_owned()
    }

    pub(super) fn finish(mut self) -> Vec<BTreeMap<Arc<str>, Found>> {
        for found in self.found.iter_mut().flat_map(BTreeMap::values_mut) {
            found.series.sort_by(|a, b| a.tags.cmp(&b.tags));
        }
        self.found
    }

    /// Adds the series of a device that parts of the statement want.
    pub(super) fn add(&mut self, source: &mut Stored<'_>, mut device: Device) -> Result<(), StatementError> {
        source.check()?;
        let span_ms = device.span_ms();
        if self.within_ms.start >= span_ms.end || span_ms.start >= self.within_ms.end {
            return Ok(());
        }
        if device.has_more_metrics {
            self.complete(source, &mut device)?;
        }
        let max = source.max_series;
        let is_meant = |name: &str| source.check().map(|()| self.is_meant(name));
        let series = source.catalogue.series_of(&device, is_meant)?;
        grow(source.memory, &mut self.bytes, std::mem::take(&mut self.uncharged))?;
        for (measurement, Indexed { series, place }) in series {
            source.check()?;
            let mut takers = Vec::new();
            for at in self.parts_of(&measurement, &device.id) {
                let wanted = &self.wanted[at];
                if wanted.needs_schema {
                    let found = self.found[at].entry(Arc::clone(&measurement)).or_default();
                    let before = found.fields.len() + found.tags.len();
                    found.fields.extend(series.fields.iter().cloned());
                    found.tags.extend(series.tags.iter().map(|(key, _)| Arc::clone(key)));
                    self.names += found.fields.len() + found.tags.len() - before;
                }
                if wanted.needs(&series, &span_ms) {
                    takers.push(at);
                }
            }
            self.series += takers.len();
            if self.series > max || self.names > max {
                return Err(too_many_series(max));
            }
            grow(source.memory, &mut self.bytes, takers.len() * place.bytes(&series))?;
            let Some(last) = takers.pop() else { continue };
            let series = Series { key: source.places.len(), ..series };
            source.places.push(place);
            for at in takers {
                self.found[at].entry(Arc::clone(&measurement)).or_default().series.push(series.clone());
            }
            self.found[last].entry(measurement).or_default().series.push(series);
        }
        Ok(())
    }

    /// Whether any part of the statement wants the measurement `name`.
    fn is_meant(&mut self, name: &str) -> bool {
        if self.meant.contains_key(name) {
            return true;
        }
        if self.unwanted.contains(name) {
            return false;
        }
        let others = self.with_unknown.iter().filter(|at| self.wanted[**at].measurements.contain(name));
        let parts: BTreeSet<usize> = self.named.get(name).into_iter().flatten().chain(others).copied().collect();
        work::count(self.with_unknown.len() + parts.len());
        if parts.is_empty() {
            if !self.with_unknown.is_empty() && self.unwanted.len() < MAX_UNWANTED {
                self.uncharged += name.len() + BYTES_PER_METRIC;
                self.unwanted.insert(name.into());
            }
            return false;
        }
        self.uncharged += name.len() + BYTES_PER_METRIC + parts.len() * size_of::<usize>();
        let (of_any_device, of_some_devices) = parts.into_iter().partition(|at| self.ids[*at].is_none());
        self.meant.insert(name.into(), Meant { of_any_device, of_some_devices });
        true
    }

    /// Returns the parts that want this measurement of this device.
    fn parts_of(&self, measurement: &str, device: &str) -> Vec<usize> {
        let Some(Meant { of_any_device, of_some_devices }) = self.meant.get(measurement) else { return Vec::new() };
        let of_device = self.of_device.get(device).map_or(&[][..], Vec::as_slice);
        let mut parts = of_any_device.clone();
        if of_device.len() < of_some_devices.len() {
            parts.extend(of_device.iter().filter(|at| self.wanted[**at].measurements.contain(measurement)));
        } else {
            let wants = |at: &usize| self.ids[*at].as_ref().is_some_and(|ids| ids.contains(device));
            parts.extend(of_some_devices.iter().copied().filter(wants));
        }
        work::count(parts.len() + of_device.len().min(of_some_devices.len()));
        parts
    }

    /// Adds to `device` the wanted series that the index lacks.
    fn complete(&mut self, source: &mut Stored<'_>, device: &mut Device) -> Result<(), StatementError> {
        // By name of a metric, the measurements of which it may be a field.
        let mut names: HashMap<String, BTreeSet<&str>> = HashMap::new();
        let (mut ranges_ms, mut bytes) = (Vec::new(), 0);
        for (wanted, ids) in self.wanted.iter().zip(&self.ids) {
            if ids.as_ref().is_some_and(|ids| !ids.contains(&*device.id)) {
                continue;
            }
            let fields = wanted.fields.as_ref().filter(|_| !wanted.measurements.has_unknown());
            let Some(fields) = fields else {
                source.check_complete(device)?;
                continue;
            };
            for measurement in &wanted.measurements.names {
                for field in fields {
                    let name = if field == VALUE { measurement.clone() } else { format!("{measurement}_{field}") };
                    if name.contains('{') || SeriesFilter::new([&*name], []).is_err() {
                        continue;
                    }
                    grow(source.memory, &mut bytes, name.len() + BYTES_PER_METRIC)?;
                    names.entry(name).or_default().insert(measurement);
                }
            }
            ranges_ms.push(&wanted.range_ms);
        }
        if names.is_empty() {
            return Ok(());
        }
        let found = source.metrics_in_stats(device, names.keys().map(|name| &**name), &ranges_ms)?;
        let known = Known::of(&device.metrics);
        let of_index: HashSet<&Metric> = device.metrics.iter().collect();
        let lacking = found.iter().filter(|metric| !of_index.contains(metric));
        let assigned = lacking.flat_map(|metric| {
            let measurements = names.get(name_of(metric)).into_iter().flatten();
            measurements.map(|measurement| known.assign(metric, measurement)).collect::<Vec<_>>()
        });
        let assigned: Vec<Metric> = assigned.collect();
        device.metrics.extend(assigned);
        Ok(())
    }
}

/// The measurements of the metrics of a device that the index has.
struct Known<'m> {
    /// By name of a metric without labels, its measurement; `None`: it has none.
    by_name: HashMap<&'m str, Option<&'m str>>,
    all: HashSet<&'m str>,
}

impl<'m> Known<'m> {
    fn of(metrics: &'m [Metric]) -> Self {
        let by_name = metrics.iter().map(|metric| (name_of(metric), metric.measurement())).collect();
        Self { by_name, all: metrics.iter().filter_map(Metric::measurement).collect() }
    }

    /// Finds the measurement of a metric that the index lacks.
    ///
    /// `named` is the measurement that the statement names. The returned metric is the same one with its
    /// measurement.
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

/// Returns the name of a metric without its labels.
pub(super) fn name_of(metric: &Metric) -> &str {
    metric.split('{').next().unwrap_or_default()
}

/// Returns the text with which both texts begin.
fn common_start<'t>(one: &'t str, other: &str) -> &'t str {
    let same = one.chars().zip(other.chars()).take_while(|(a, b)| a == b);
    &one[..same.map(|(char, _)| char.len_utf8()).sum::<usize>()]
}

fn too_many_series(max: usize) -> StatementError {
    format!("max-select-series limit exceeded: ({}/{max}); query.max_points is the limit", max + 1).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LineProtocol;
    use crate::influxql::{Measurements, Pattern};

    #[test]
    fn names_are_matched_once_and_few_are_kept_that_no_part_wants() {
        let patterns = vec![Pattern::new("^n").unwrap()];
        let measurements = Measurements { names: ["m".to_owned()].into(), patterns, all: false };
        let (tags, filter, fields, range_ms, within_ms) = (Vec::new(), None, None, 0..1, None);
        let wanted = [Wanted { measurements, tags, filter, fields, range_ms, within_ms, needs_schema: false }];
        let mut gathered = Gathered::new(&wanted, &Catalogue::new(&LineProtocol::default()));
        let before = work::counted::so_far();
        for _ in 0..3 {
            assert!((0..MAX_UNWANTED).all(|at| !gathered.is_meant(&format!("o{at}"))));
        }
        assert_eq!(work::counted::so_far() - before, MAX_UNWANTED as u64);
        assert!((0..1_000).all(|at| !gathered.is_meant(&format!("p{at}"))));
        assert_eq!((gathered.meant.len(), gathered.unwanted.len()), (0, MAX_UNWANTED));
        let of_unwanted = std::mem::take(&mut gathered.uncharged);
        assert!((129 * MAX_UNWANTED..140 * MAX_UNWANTED).contains(&of_unwanted), "{of_unwanted}");
        assert!(["m", "n1", "n1", "m"].iter().all(|name| gathered.is_meant(name)));
        assert_eq!(gathered.meant.len(), 2);
        assert!(gathered.uncharged > 2 * BYTES_PER_METRIC);
    }

    #[test]
    fn a_metric_that_the_index_lacks_belongs_to_a_measurement_that_it_has() {
        let of = Metric::of_measurement;
        let metrics = [of("cpu_idle{cpu=cpu0}", 3), of("a_b_c", 3), of("a_d", 1), of("a_e{k=v}", 0)];
        let known = Known::of(&metrics);
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
