//! Values for InfluxQL statements: readings, and the stats of hours.
//!
//! Several requests of a statement may want data of one device. A [`Part`] is the data that one request wants
//! of one device. The hours of a device are divided into runs, so that no hour is read twice: in all hours of
//! a run, the same parts want data. If one part wants 10:00 to 14:00, and another one 12:00 to 16:00, the
//! runs are 10:00 to 12:00 for the first part, 12:00 to 14:00 for both, and 14:00 to 16:00 for the second
//! part.
//!
//! A [`Target`] says to which field of a request the values of a metric belong. Values are passed to the
//! reader of the statement, or to a closure `take`.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use tokio::time::Instant;

use super::source::Stored;
use crate::common::clock::rfc3339;
use crate::common::work;
use crate::influxql::{HourStats, Next, Read, Reader, Request, Row, StatementError};
use crate::model::{MS_PER_HOUR, Metric, SeriesFilter};
use crate::query::{
    Column, Columns, HoursRequest, Point, ReadingSlices, ReadingsRequest, Rollups, STATS_AT_ONCE, SliceHour,
};

/// The number of hours in which the newest rows of a series are searched first.
///
/// Each further search begins eight times as many hours before the end.
const FIRST_HOURS: i64 = 24;

/// The most metrics that a query for the stats of several devices names.
///
/// A query holds the names of its metrics in memory.
const METRICS_AT_ONCE: usize = 10_000;

const MS_PER_DAY: i64 = 24 * MS_PER_HOUR;

/// A device, and its series that the requests want.
pub(super) struct OfDevice {
    device: Arc<str>,
    /// The number of all metrics of the device; `usize::MAX` if the index lacks some.
    metric_count: usize,
    parts: Vec<Part>,
    series: Vec<OneSeries>,
    targets: Vec<Target>,
}

/// The data that one request wants of one device.
struct Part {
    request: usize,
    /// The series of the part, as indices among the `series` of the device.
    series: Range<usize>,
    /// The request's range, cut to the span of the device, in Unix milliseconds.
    shown_ms: Range<i64>,
    /// The range that is read, in Unix milliseconds.
    ///
    /// It is shorter than `shown_ms` if only the newest rows matter, and longer if whole hours are read.
    read_ms: Range<i64>,
    /// The number of values that were read so far.
    read: u64,
}

/// A series of a device that a request wants.
struct OneSeries {
    part: usize,
    /// The index of the series in the request.
    place: usize,
    /// The targets of the series, as indices among the `targets` of the device.
    targets: Range<usize>,
}

/// A metric, and the field of a request to which its values belong.
struct Target {
    metric: Metric,
    /// The index of the series among the `series` of the device.
    series: usize,
    /// The index of the field in the request.
    field: usize,
}

/// A run of hours of a device, and the parts that want them.
struct Run {
    device: usize,
    range_ms: Range<i64>,
    parts: Vec<usize>,
}

/// The readings of a run, and the targets whose values they are.
struct Begun {
    slices: ReadingSlices,
    targets: Vec<usize>,
}

/// The reads of all runs of some devices, in order. While one is used, the next ones may be read ahead.
pub(super) struct Reads {
    left: Box<dyn Iterator<Item = Run>>,
    /// The next runs. `None`: no series of the run has a target.
    begun: VecDeque<(Run, Option<Begun>)>,
    /// Whether the last run had few values. False before the first one: all may have many.
    was_short: bool,
}

impl Reads {
    pub(super) fn of(devices: &[OfDevice]) -> Self {
        let of_parts = |of: &OfDevice| of.parts.iter().map(|part| part.read_ms.clone()).collect::<Vec<_>>();
        let ranges_ms: Vec<Vec<Range<i64>>> = devices.iter().map(of_parts).collect();
        let left = ranges_ms.into_iter().enumerate().flat_map(|(device, ranges_ms)| {
            let runs = runs(&ranges_ms, Order::Ascending);
            runs.map(move |(range_ms, parts)| Run { device, range_ms, parts })
        });
        Self { left: Box::new(left), begun: VecDeque::new(), was_short: false }
    }
}

/// The order in which runs and pages of hours are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Ascending,
    /// Later runs and pages first. The hours that one query returns are ascending.
    NewestFirst,
}

/// Stats of hours, as a [`StatsReader`] gets them.
pub(super) enum Stats<'p> {
    /// The index of a device, the index of its target, and the stats of the target.
    Of(usize, usize, &'p [Point]),
    /// How many further values count against the limit of points.
    ///
    /// These are the stats that belong to no target. A further query also counts one value for each of its
    /// series.
    Others(usize),
}

type StatsReader<'r> = dyn FnMut(Stats<'_>) -> Result<(), StatementError> + 'r;

/// The hours for which one part of a device wants stats.
pub(super) struct Asked {
    device: usize,
    part: usize,
    hours_ms: Range<i64>,
}

/// The most stats of an hour that a query for some devices may return.
///
/// The query returns, for each of its devices, all metrics that the parts of any of them want, if the device
/// has them.
#[derive(Default)]
struct MostStats<'d> {
    wanted: HashSet<&'d Metric>,
    /// The number of metrics of each device that has more than are wanted.
    larger: BinaryHeap<Reverse<usize>>,
    /// The number of metrics of all other devices together.
    of_others: usize,
}

impl<'d> MostStats<'d> {
    /// Adds a device with so many metrics, of which its parts want `wanted`.
    fn add(&mut self, metric_count: usize, wanted: impl Iterator<Item = &'d Metric>) {
        self.wanted.extend(wanted);
        self.larger.push(Reverse(metric_count));
        while let Some(Reverse(least)) = self.larger.peek()
            && *least <= self.wanted.len()
        {
            self.of_others += least;
            self.larger.pop();
        }
    }

    fn in_an_hour(&self) -> usize {
        self.of_others.saturating_add(self.larger.len().saturating_mul(self.wanted.len()))
    }

    /// Whether a query for so many hours names too many metrics, or may return too many stats.
    fn is_too_much(&self, hours: usize) -> bool {
        self.wanted.len() > METRICS_AT_ONCE || self.in_an_hour().saturating_mul(hours) > STATS_AT_ONCE
    }
}

impl Part {
    /// Returns the whole hours that cover the instants of the part.
    fn hours_ms(&self) -> Range<i64> {
        floor(self.shown_ms.start)..ceiling(self.shown_ms.end)
    }
}

impl OfDevice {
    /// Returns the targets of some parts, ascending by metric.
    ///
    /// `is_wanted` chooses the series, by their indices in the device.
    fn targets(&self, parts: &[usize], is_wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        let series = parts.iter().flat_map(|part| self.parts[*part].series.clone());
        let mut targets: Vec<_> =
            series.filter(|series| is_wanted(*series)).flat_map(|series| self.series[series].targets.clone()).collect();
        targets.sort_unstable_by(|a, b| self.targets[*a].metric.cmp(&self.targets[*b].metric));
        work::count(targets.len());
        targets
    }

    fn metrics(&self, targets: &[usize]) -> impl Iterator<Item = &Metric> {
        targets.iter().map(|target| &self.targets[*target].metric)
    }

    /// Returns where `targets`, which ascend by metric, have this metric.
    fn places(&self, targets: &[usize], metric: &Metric) -> Range<usize> {
        let start = targets.partition_point(|target| self.targets[*target].metric < *metric);
        let same = targets[start..].iter().take_while(|target| self.targets[**target].metric == *metric).count();
        start..start + same
    }
}

impl Stored<'_> {
    /// Returns the devices whose readings may be in the ranges of the requests.
    pub(super) fn devices(&self, requests: &[Request<'_>]) -> Result<Vec<OfDevice>, StatementError> {
        let mut devices: Vec<OfDevice> = Vec::new();
        let mut known: HashMap<&str, usize> = HashMap::new();
        let limits = self.queries.limits();
        for (at, request) in requests.iter().enumerate() {
            let fields: HashMap<&str, usize> =
                request.fields.iter().enumerate().map(|(at, name)| (*name, at)).collect();
            for (place, series) in request.series.iter().enumerate() {
                let Some(of_series) = self.places.get(series.key) else { continue };
                let (asked, span) = (&request.range_ms, &of_series.span_ms);
                let shown_ms = asked.start.max(span.start)..asked.end.min(span.end);
                if shown_ms.is_empty() {
                    continue;
                }
                let nth = *known.entry(&of_series.device).or_insert(devices.len());
                if nth == devices.len() {
                    let (device, metric_count) = (Arc::clone(&of_series.device), of_series.metric_count);
                    let (parts, series, targets) = (Vec::new(), Vec::new(), Vec::new());
                    devices.push(OfDevice { device, metric_count, parts, series, targets });
                }
                let OfDevice { parts, series: all, targets, .. } = &mut devices[nth];
                if parts.last().is_none_or(|part| part.request != at) {
                    let checked = limits.check_range(shown_ms.start, shown_ms.end);
                    checked.map_err(|error| StatementError::new(error.to_string()))?;
                    let (series, read_ms) = (all.len()..all.len(), shown_ms.clone());
                    parts.push(Part { request: at, series, shown_ms, read_ms, read: 0 });
                }
                let first = targets.len();
                let mut add = |nth: usize, field: usize| {
                    targets.push(Target { metric: of_series.metrics[nth].clone(), series: all.len(), field });
                };
                work::count(fields.len().min(series.fields.len()));
                if fields.len() < series.fields.len() {
                    for (name, field) in &fields {
                        _ = series.field(name).map(|nth| add(nth, *field));
                    }
                } else {
                    for (nth, name) in series.fields.iter().enumerate() {
                        _ = fields.get(&**name).map(|field| add(nth, *field));
                    }
                }
                all.push(OneSeries { part: parts.len() - 1, place, targets: first..targets.len() });
                if let Some(part) = parts.last_mut() {
                    part.series.end = all.len();
                }
            }
        }
        Ok(devices)
    }

    /// Passes the stats of all hours in `asked` to `take`.
    pub(super) fn each_hour(
        &mut self,
        devices: &[OfDevice],
        asked: &[Asked],
        columns: Columns,
        order: Order,
        take: &mut StatsReader<'_>,
    ) -> Result<(), StatementError> {
        let hours_ms: Vec<Range<i64>> = asked.iter().map(|asked| asked.hours_ms.clone()).collect();
        for (nth, (run_ms, active)) in runs(&hours_ms, order).enumerate() {
            if nth > 0 {
                let series = |at: &usize| devices[asked[*at].device].parts[asked[*at].part].series.len();
                take(Stats::Others(active.iter().map(series).sum()))?;
            }
            let hours = usize::try_from((run_ms.end - run_ms.start) / MS_PER_HOUR).unwrap_or(usize::MAX);
            let mut some: Vec<(usize, Vec<usize>)> = Vec::new();
            let mut most = MostStats::default();
            for of_device in active.chunk_by(|a, b| asked[*a].device == asked[*b].device) {
                let at = asked[of_device[0]].device;
                let parts: Vec<usize> = of_device.iter().map(|at| asked[*at].part).collect();
                let targets = devices[at].targets(&parts, |_| true);
                if targets.is_empty() {
                    continue;
                }
                most.add(devices[at].metric_count, devices[at].metrics(&targets));
                if !some.is_empty() && most.is_too_much(hours) {
                    self.hours_of_some(devices, &some, &run_ms, columns, order, take)?;
                    some.clear();
                    most = MostStats::default();
                    most.add(devices[at].metric_count, devices[at].metrics(&targets));
                }
                some.push((at, targets));
            }
            self.hours_of_some(devices, &some, &run_ms, columns, order, take)?;
        }
        Ok(())
    }

    /// Passes the stats of the hours of some devices to `take`.
    ///
    /// `some` has the index of each device, and its targets.
    fn hours_of_some(
        &mut self,
        devices: &[OfDevice],
        some: &[(usize, Vec<usize>)],
        range_ms: &Range<i64>,
        columns: Columns,
        order: Order,
        take: &mut StatsReader<'_>,
    ) -> Result<(), StatementError> {
        if some.is_empty() {
            return Ok(());
        }
        let ids: Vec<Arc<str>> = some.iter().map(|(at, _)| Arc::clone(&devices[*at].device)).collect();
        let series = filter(some.iter().flat_map(|(at, targets)| devices[*at].metrics(targets)))?;
        let per_hour: usize = some.iter().map(|(_, targets)| targets.len()).sum();
        let mut pages = pages(range_ms, per_hour);
        if order == Order::NewestFirst {
            pages.reverse();
        }
        for range_ms in pages {
            let mut failed: Option<StatementError> = None;
            let take = |nth: usize, rollups: Rollups| {
                let (at, targets) = &some[nth];
                let mut take = || {
                    for (metric, points) in &rollups {
                        let places = devices[*at].places(targets, metric);
                        if places.is_empty() {
                            take(Stats::Others(points.len()))?;
                        }
                        for target in &targets[places] {
                            take(Stats::Of(*at, *target, points))?;
                        }
                    }
                    Ok(())
                };
                match take() {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        failed = Some(error);
                        ControlFlow::Break(())
                    }
                }
            };
            let (queries, scope) = (self.queries, self.scope);
            let request = HoursRequest { range_ms, series: series.clone(), columns };
            self.wait_for_all(queries.each_hour(scope, &ids, request, take))?;
            failed.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Shortens the range of each part of which only the newest rows matter.
    ///
    /// From the new start on, each series of the part has enough rows. The range of a part with fewer rows
    /// stays as it is.
    pub(super) fn find_newest(
        &mut self,
        requests: &[Request<'_>],
        devices: &mut [OfDevice],
        reader: &mut Reader<'_>,
    ) -> Result<(), StatementError> {
        let newest = |part: &Part| requests[part.request].newest;
        let of_device = |(at, of_device): (usize, &OfDevice)| {
            let parts = (0..of_device.parts.len()).filter(|part| newest(&of_device.parts[*part]).is_some());
            parts.map(|part| (at, part)).collect::<Vec<_>>()
        };
        let mut left: Vec<(usize, usize)> = devices.iter().enumerate().flat_map(of_device).collect();
        let Some(end) = left.iter().map(|(at, part)| floor(devices[*at].parts[*part].shown_ms.end)).max() else {
            return Ok(());
        };
        // `counts` has the number of values of each target so far. `starts` has the hour from which on a
        // series has enough rows.
        let mut counts: Vec<Vec<u64>> = devices.iter().map(|of_device| vec![0; of_device.targets.len()]).collect();
        let mut starts: Vec<Vec<Option<i64>>> = devices.iter().map(|of| vec![None; of.series.len()]).collect();
        let (mut to, mut hours) = (end, FIRST_HOURS);
        while !left.is_empty() {
            let from = end.saturating_sub(hours.saturating_mul(MS_PER_HOUR));
            left.retain(|(at, part)| devices[*at].parts[*part].shown_ms.start < from);
            let asked = left.iter().map(|&(device, part)| {
                let last = requests[devices[device].parts[part].request].range_ms.end;
                Asked { device, part, hours_ms: from..to.min(floor(last)).max(from) }
            });
            let asked: Vec<Asked> = asked.filter(|asked| !asked.hours_ms.is_empty()).collect();
            let columns = Columns::NONE.with(Column::Count);
            self.each_hour(devices, &asked, columns, Order::NewestFirst, &mut |stats| {
                let (at, target, points) = match stats {
                    Stats::Of(at, target, points) => (at, target, points),
                    Stats::Others(count) => return reader(Read::Others(count)).map(|_| ()),
                };
                let Target { series, .. } = devices[at].targets[target];
                let newest = newest(&devices[at].parts[devices[at].series[series].part]).unwrap_or_default() as u64;
                let count = &mut counts[at][target];
                let enough = points.iter().rev().find(|point| {
                    *count = count.saturating_add(point.count());
                    *count >= newest
                });
                starts[at][series] = starts[at][series].max(enough.map(|point| point.start_ms));
                reader(Read::Others(points.len())).map(|_| ())
            })?;
            left.retain(|(at, part)| {
                let part = &mut devices[*at].parts[*part];
                let Some(start) = starts[*at][part.series.clone()].iter().min().copied().flatten() else { return true };
                // Rounding up to powers of two gives many parts the same start. So the device has few runs.
                let hours = ((end - start) / MS_PER_HOUR).unsigned_abs().next_power_of_two().cast_signed();
                part.read_ms.start = part.shown_ms.start.max(end - hours * MS_PER_HOUR);
                false
            });
            to = from;
            hours = hours.saturating_mul(8);
        }
        Ok(())
    }

    /// Counts the values in the hours at the ends of ranges, by device and part.
    ///
    /// A request with `is_beside_stats` wants only a piece of such an hour. But stats exist only for whole
    /// hours. So the readings of the whole hours are read, and [`OfDevice::check_read`] compares their number
    /// with this count. Hours without values are not read.
    pub(super) fn count_beside_stats(
        &mut self,
        requests: &[Request<'_>],
        devices: &mut [OfDevice],
        reader: &mut Reader<'_>,
    ) -> Result<HashMap<(usize, usize), u64>, StatementError> {
        let (mut asked, mut counts) = (Vec::new(), HashMap::new());
        for (device, of_device) in devices.iter_mut().enumerate() {
            for (part, of_part) in of_device.parts.iter_mut().enumerate() {
                let Request { range_ms, is_beside_stats, .. } = &requests[of_part.request];
                if *is_beside_stats {
                    of_part.read_ms = of_part.hours_ms();
                    asked.push(Asked { device, part, hours_ms: floor(range_ms.start)..ceiling(range_ms.end) });
                    counts.insert((device, part), 0);
                }
            }
        }
        let columns = Columns::NONE.with(Column::Count);
        self.each_hour(devices, &asked, columns, Order::Ascending, &mut |stats| {
            let others = match stats {
                Stats::Of(at, target, points) => {
                    let part = devices[at].series[devices[at].targets[target].series].part;
                    let count: u64 = points.iter().map(Point::count).sum();
                    counts.entry((at, part)).and_modify(|known| *known += count);
                    points.len()
                }
                Stats::Others(count) => count,
            };
            reader(Read::Others(others)).map(|_| ())
        })?;
        for ((device, part), _) in counts.iter().filter(|(_, count)| **count == 0) {
            let read_ms = &mut devices[*device].parts[*part].read_ms;
            read_ms.end = read_ms.start;
        }
        Ok(counts)
    }

    /// Passes the rows of the device at the index `nth` to the reader, run by run.
    ///
    /// A series is done if the reader wants no more of its rows. Rows of such series are skipped.
    pub(super) fn read_device(
        &mut self,
        devices: &mut [OfDevice],
        nth: usize,
        reads: &mut Reads,
        reader: &mut Reader<'_>,
    ) -> Result<Next, StatementError> {
        if self.is_in_parts {
            self.deadline = Instant::now() + self.queries.limits().timeout;
        }
        let mut rows: Vec<Vec<(usize, f64)>> = vec![Vec::new(); devices[nth].series.len()];
        let mut done = vec![false; devices[nth].series.len()];
        let mut is_first = true;
        while let Some((run, begun)) = self.next_run(devices, nth, reads)? {
            let of_device = &mut devices[nth];
            let mut series = run.parts.iter().flat_map(|part| of_device.parts[*part].series.clone());
            if !std::mem::take(&mut is_first) {
                // A further query counts one value for each of its series.
                reader(Read::Others(series.clone().count()))?;
            }
            // The read has begun for all series of the run. If some are done, another read is smaller.
            let begun = if series.any(|series| done[series]) {
                self.begin(of_device, &run, |series| !done[series])?
            } else {
                begun
            };
            let Some(mut begun) = begun else { continue };
            let next = self.read_run(of_device, &run, &mut begun, &mut rows, &mut done, reader)?;
            reads.was_short = begun.slices.is_short();
            if next == Next::End {
                return Ok(Next::End);
            }
        }
        Ok(Next::Row)
    }

    /// Returns the next run, if it is one of the device at the index `nth`.
    ///
    /// Before that, it begins to read further runs, also of the next devices.
    fn next_run(
        &mut self,
        devices: &[OfDevice],
        nth: usize,
        reads: &mut Reads,
    ) -> Result<Option<(Run, Option<Begun>)>, StatementError> {
        let at_once = if reads.was_short { ReadingSlices::AT_ONCE } else { 1 };
        while reads.begun.len() < at_once
            && let Some(run) = reads.left.next()
        {
            let mut begun = self.begin(&devices[run.device], &run, |_| true)?;
            if let Some(Begun { slices, .. }) = &mut begun
                && !reads.begun.is_empty()
            {
                self.has_memory_ahead = self.has_memory_ahead || self.memory.try_grow(ReadingSlices::MAX_BYTES_AHEAD);
                if self.has_memory_ahead {
                    slices.read_ahead(self.runtime);
                }
            }
            reads.begun.push_back((run, begun));
        }
        let is_of_device = reads.begun.front().is_some_and(|(run, _)| run.device == nth);
        Ok(if is_of_device { reads.begun.pop_front() } else { None })
    }

    /// Begins to read a run. `None`: none of the series has a target.
    ///
    /// `is_wanted` chooses the series, by their indices in the device.
    fn begin(
        &self,
        of_device: &OfDevice,
        Run { range_ms, parts, .. }: &Run,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Result<Option<Begun>, StatementError> {
        let targets = of_device.targets(parts, is_wanted);
        if targets.is_empty() {
            return Ok(None);
        }
        let read_ms = || parts.iter().map(|part| &of_device.parts[*part].read_ms);
        let request = ReadingsRequest {
            device: of_device.device.to_string(),
            from_ms: read_ms().map(|range| range.start).min().unwrap_or(range_ms.start).max(range_ms.start),
            to_ms: read_ms().map(|range| range.end).max().unwrap_or(range_ms.end).min(range_ms.end),
            series: filter(of_device.metrics(&targets))?,
            limit: usize::MAX,
        };
        let slices = self.queries.reading_slices(self.scope, &request);
        let slices = slices.map_err(|error| StatementError::new(error.to_string()))?;
        Ok(Some(Begun { slices, targets }))
    }

    /// Passes the rows of a device in a run.
    fn read_run(
        &mut self,
        of_device: &mut OfDevice,
        Run { parts, .. }: &Run,
        Begun { slices, targets }: &mut Begun,
        rows: &mut [Vec<(usize, f64)>],
        done: &mut [bool],
        reader: &mut Reader<'_>,
    ) -> Result<Next, StatementError> {
        let series = parts.iter().flat_map(|part| of_device.parts[*part].series.clone());
        let is_left = |series: &usize| !done[*series] && !of_device.series[*series].targets.is_empty();
        let mut left = series.filter(is_left).count();
        let mut asked = left;
        while let Some(slice) = self.wait(slices.next())? {
            for hour in slice.hours() {
                let next = of_device.read_hour(hour, targets, rows, done, &mut left, reader)?;
                if left == 0 || next == Next::End {
                    return Ok(next);
                }
            }
            if left * 2 <= asked {
                *targets = of_device.targets(parts, |series| !done[series]);
                slices.select(filter(of_device.metrics(targets))?);
                asked = left;
            }
        }
        Ok(Next::Row)
    }
}

impl OfDevice {
    /// Passes the rows of an hour that have values of `targets` to the reader.
    ///
    /// `left` is the number of series that are not done.
    fn read_hour(
        &mut self,
        hour: SliceHour<'_>,
        targets: &[usize],
        rows: &mut [Vec<(usize, f64)>],
        done: &mut [bool],
        left: &mut usize,
        reader: &mut Reader<'_>,
    ) -> Result<Next, StatementError> {
        let places: Vec<_> = hour.metrics.iter().map(|metric| self.places(targets, metric)).collect();
        let (mut touched, mut others) = (Vec::new(), 0);
        for samples in hour.instants() {
            let ts_ms = hour.hour.instant_ms(samples[0].offset);
            for sample in samples {
                let mut is_shown = false;
                for target in &targets[places[sample.metric as usize].clone()] {
                    let Target { series, field, .. } = self.targets[*target];
                    let part = &mut self.parts[self.series[series].part];
                    work::count(1);
                    if done[series] || !part.read_ms.contains(&ts_ms) {
                        continue;
                    }
                    part.read += 1;
                    if part.shown_ms.contains(&ts_ms) {
                        if rows[series].is_empty() {
                            touched.push(series);
                        }
                        rows[series].push((field, sample.value));
                        is_shown = true;
                    }
                }
                others += usize::from(!is_shown);
            }
            for series in touched.drain(..) {
                let OneSeries { part, place, .. } = self.series[series];
                let request = self.parts[part].request;
                let next = reader(Read::Row(Row { request, series: place, ts_ms, values: &rows[series] }))?;
                rows[series].clear();
                match next {
                    Next::Row => {}
                    Next::Series => {
                        done[series] = true;
                        *left -= 1;
                    }
                    Next::End => return Ok(Next::End),
                }
            }
            if *left == 0 {
                break;
            }
        }
        if others > 0 { reader(Read::Others(others)) } else { Ok(Next::Row) }
    }

    /// Fails if fewer values were read than the stats of the hours count.
    pub(super) fn check_read(&self, nth: usize, counts: &HashMap<(usize, usize), u64>) -> Result<(), StatementError> {
        for (at, part) in self.parts.iter().enumerate() {
            if counts.get(&(nth, at)).is_some_and(|count| part.read < *count) {
                return Err(format!(
                    "the readings of device {} from {} on have expired (retention.readings), and the range begins or \
                     ends inside of this hour; ask for a range of whole hours",
                    self.device,
                    rfc3339(part.read_ms.start)
                )
                .into());
            }
        }
        Ok(())
    }
}

/// Lists the hours that all parts want.
///
/// The hours of a part are the hours of its request between the first and the last hour of all devices.
pub(super) fn all_hours(requests: &[Request<'_>], devices: &[OfDevice]) -> Vec<Asked> {
    let hours = || devices.iter().flat_map(|of_device| &of_device.parts).map(Part::hours_ms);
    let start = hours().map(|hours| hours.start).min().unwrap_or_default();
    let end = hours().map(|hours| hours.end).max().unwrap_or_default();
    let mut asked = Vec::new();
    for (device, of_device) in devices.iter().enumerate() {
        for (part, of_part) in of_device.parts.iter().enumerate() {
            let Request { range_ms, .. } = &requests[of_part.request];
            asked.push(Asked {
                device,
                part,
                hours_ms: floor(range_ms.start.max(start))..ceiling(range_ms.end.min(end)),
            });
        }
    }
    asked
}

/// Returns the stats of a target in one hour.
///
/// The first and the last value are arbitrary if no request needs them.
pub(super) fn stats_of(of_device: &OfDevice, target: usize, point: &Point) -> HourStats {
    let Target { series, field, .. } = of_device.targets[target];
    let OneSeries { part, place, .. } = of_device.series[series];
    let request = of_device.parts[part].request;
    let Point { start_ms, stats, .. } = *point;
    HourStats {
        request,
        series: place,
        field,
        start_ms,
        count: stats.count,
        min: stats.min,
        max: stats.max,
        sum: stats.sum,
        first: (stats.first.ts_ms, stats.first.value),
        last: (stats.last.ts_ms, stats.last.value),
    }
}

/// Divides the hours of ranges into runs, each with the ranges that include it.
///
/// A run names its ranges by their indices. In hours, the ranges `10..14` and `12..16` become the runs
/// `10..12` with range 0, `12..14` with ranges 0 and 1, and `14..16` with range 1.
pub(super) fn runs(ranges: &[Range<i64>], order: Order) -> impl Iterator<Item = (Range<i64>, Vec<usize>)> + use<> {
    let hours = ranges.iter().enumerate().filter(|(_, range)| !range.is_empty());
    let mut edges: Vec<(i64, usize)> =
        hours.flat_map(|(at, range)| [(floor(range.start), at), (ceiling(range.end), at)]).collect();
    edges.sort_unstable();
    if order == Order::NewestFirst {
        edges.reverse();
    }
    let (mut edges, mut active) = (edges.into_iter().peekable(), BTreeSet::new());
    std::iter::from_fn(move || {
        loop {
            let (edge, _) = *edges.peek()?;
            while let Some((_, at)) = edges.next_if(|(next, _)| *next == edge) {
                if !active.remove(&at) {
                    active.insert(at); // the first of the two edges of a range
                }
            }
            let (next, _) = *edges.peek()?;
            if !active.is_empty() {
                return Some((edge.min(next)..edge.max(next), active.iter().copied().collect()));
            }
        }
    })
}

/// Divides whole hours into pages of at most [`STATS_AT_ONCE`] stats, ascending.
///
/// Each hour has `per_hour` stats. A page consists of whole days, except at the ends of the range. A single
/// day with more stats is one page.
pub(super) fn pages(range_ms: &Range<i64>, per_hour: usize) -> Vec<Range<i64>> {
    let most_hours = i64::try_from(STATS_AT_ONCE / per_hour.max(1)).unwrap_or(i64::MAX);
    if (range_ms.end - range_ms.start) / MS_PER_HOUR <= most_hours {
        return vec![range_ms.clone()];
    }
    let page_ms = (most_hours / 24).max(1) * MS_PER_DAY;
    let (mut pages, mut start) = (Vec::new(), range_ms.start);
    while start < range_ms.end {
        let end = (start - start.rem_euclid(MS_PER_DAY) + page_ms).min(range_ms.end);
        pages.push(start..end);
        start = end;
    }
    pages
}

fn filter<'m>(metrics: impl Iterator<Item = &'m Metric>) -> Result<SeriesFilter, StatementError> {
    let metrics: HashSet<&str> = metrics.map(|metric| &**metric).collect();
    work::count(metrics.len());
    SeriesFilter::new(metrics, []).map_err(|error| StatementError::new(error.to_string()))
}

/// Returns the start of the hour of an instant.
const fn floor(ms: i64) -> i64 {
    ms - ms.rem_euclid(MS_PER_HOUR)
}

/// Returns the instant itself if an hour starts at it, else the next hour's start.
const fn ceiling(ms: i64) -> i64 {
    floor(ms.saturating_add(MS_PER_HOUR - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_returns_no_more_stats_than_it_has_metrics() {
        let metrics: Vec<Metric> = (0..10).map(|at| format!("m{at}").into()).collect();
        let mut most = MostStats::default();
        let mut with = |metric_count: usize, wanted: Range<usize>| {
            most.add(metric_count, metrics[wanted].iter());
            most.in_an_hour()
        };
        assert_eq!(with(5, 0..1), 1);
        assert_eq!(with(1, 0..1), 2);
        assert_eq!(with(usize::MAX, 1..3), 3 + 1 + 3);
        assert_eq!(with(4, 2..6), 5 + 1 + 6 + 4);
        assert_eq!(with(4, 0..10), 5 + 1 + 10 + 4 + 4);
    }

    #[test]
    fn runs_divide_the_hours_of_ranges() {
        let hour = |hours: i64| hours * MS_PER_HOUR;
        let found = |ranges: &[Range<i64>]| {
            let [ascending, mut descending] = [Order::Ascending, Order::NewestFirst].map(|order| {
                let runs = runs(ranges, order);
                runs.map(|(run, at)| (run.start / MS_PER_HOUR..run.end / MS_PER_HOUR, at)).collect::<Vec<_>>()
            });
            descending.reverse();
            assert_eq!(ascending, descending);
            ascending
        };
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[5..5, hour(1)..hour(3), hour(1) + 1..hour(3) - 1]), [(1..3, vec![1, 2])]);
        assert_eq!(
            found(&[hour(1)..hour(4), hour(2) + 1..hour(2) + 2, hour(6)..hour(7)]),
            [(1..2, vec![0]), (2..3, vec![0, 1]), (3..4, vec![0]), (6..7, vec![2])]
        );
        assert_eq!(found(&[hour(-2)..1, hour(-1)..hour(1)]), [(-2..-1, vec![0]), (-1..1, vec![0, 1])]);
    }

    #[test]
    fn pages_have_a_bounded_number_of_stats() {
        let found = |hours: Range<i64>, per_hour: usize| {
            let pages = pages(&(hours.start * MS_PER_HOUR..hours.end * MS_PER_HOUR), per_hour).into_iter();
            pages.map(|page| page.start / MS_PER_HOUR..page.end / MS_PER_HOUR).collect::<Vec<_>>()
        };
        assert_eq!(found(5..200_005, 1), vec![5..200_005; 1]);
        assert_eq!(found(-30..70, 4_000), [-30..0, 0..48, 48..70]);
        assert_eq!(found(30..70, 1_000_000), [30..48, 48..70]);
    }
}
