//! `SELECT` in parts: the rows of a measurement, group after group.
//!
//! A part is either several groups with few rows, or a stretch of time of one group with many rows. The
//! reason is that several groups may have series of the same device: read together, each hour of the device
//! is read once.

use std::ops::Range;
use std::sync::Arc;

use super::super::ast::{Limit, Select};
use super::super::error::StatementError;
use super::super::source::{Next, Read, Request, Row, Series};
use super::super::value::Value;
use super::feed::Feed;
use super::members::{Known, Members};
use super::select::{Input, Prepared};
use super::{Evaluator, OutRow, OutSeries, Sink};

/// The first stretch of time of a group, in milliseconds: an hour.
const FIRST_MS: i64 = 3_600_000;

/// The number of groups in the first part.
const FIRST_GROUPS: usize = 64;

/// The factor by which the number of groups in a part grows or shrinks.
const TIMES: usize = 8;

/// A part with more rows makes the next part smaller.
///
/// A part with fewer rows than [`FEW_ROWS`] makes the next part larger.
const MANY_ROWS: usize = 20_000;
const FEW_ROWS: usize = 5_000;

/// The rows of a measurement, which are sent in parts.
struct Parts<'p> {
    select: &'p Select,
    name: &'p Arc<str>,
    columns: Arc<[String]>,
    limit: Limit,
    feed: Feed<'p>,
    fields: Vec<&'p str>,
    series: Vec<&'p Series>,
    members: Members,
    /// The groups in the order of the answer, each with its range in `series`.
    groups: Vec<(usize, Range<usize>)>,
}

/// How many rows of a group `OFFSET` still skips, and `LIMIT` still allows.
struct Left {
    skip: usize,
    take: usize,
}

impl Evaluator<'_> {
    /// Answers a `SELECT` part by part.
    pub(super) fn stream(&mut self, select: &Select, sink: &mut Sink<'_>) -> Result<(), StatementError> {
        let prepared = self.prepare(select)?;
        if let [Input::Measurement(name, series)] = &*prepared.inputs
            && prepared.plan.calls.is_empty()
            && !prepared.settings.is_descending
            && !prepared.is_empty()
        {
            self.usage.lift_point_limit();
            return self.parts(select, &prepared, name, series)?.send(self, sink);
        }
        let series = self.series_of(&prepared)?;
        self.out(prepared.table, series, select)?.into_iter().try_for_each(sink)
    }

    fn parts<'p>(
        &mut self,
        select: &'p Select,
        prepared: &'p Prepared,
        name: &'p Arc<str>,
        series: &'p [Series],
    ) -> Result<Parts<'p>, StatementError> {
        let mut feed = Feed::new(prepared);
        let Known { fields, series, mut members } = feed.known(self, name, series)?;
        let mut order: Vec<_> = series.into_iter().zip(members.series).collect();
        order.sort_by(|(_, a), (_, b)| feed.groups[a.group].tags.cmp(&feed.groups[b.group].tags));
        let series;
        (series, members.series) = order.into_iter().unzip();
        let mut groups: Vec<(usize, Range<usize>)> = Vec::new();
        for (at, one) in members.series.iter().enumerate() {
            match groups.last_mut() {
                Some((group, places)) if *group == one.group => places.end += 1,
                _ => groups.push((one.group, at..at + 1)),
            }
        }
        let names = std::iter::once("time".to_owned()).chain(prepared.table.columns.iter().cloned());
        let (columns, limit) = (names.collect(), prepared.settings.limit);
        Ok(Parts { select, name, columns, limit, feed, fields, series, members, groups })
    }
}

impl Parts<'_> {
    fn send(mut self, evaluator: &mut Evaluator<'_>, sink: &mut Sink<'_>) -> Result<(), StatementError> {
        let (mut at, mut count) = (0, FIRST_GROUPS);
        while at < self.groups.len() {
            let groups = at..(at + count).min(self.groups.len());
            let mark = evaluator.usage.mark();
            if groups.len() == 1 {
                let rows = self.send_group(at, evaluator, sink)?;
                at += 1;
                count = if rows < FEW_ROWS { FIRST_GROUPS } else { 1 };
            } else if self.read_groups(groups.clone(), evaluator)? {
                // While the sink waits for the client, the deadline may pass. So all rows are computed first.
                let (mut rows, mut shown) = (0, Vec::with_capacity(groups.len()));
                for group in groups.clone() {
                    let (count, of_group) = self.shown_rows(group, &mut self.left(), evaluator)?;
                    rows += count;
                    shown.push((group, of_group));
                }
                for (group, of_group) in shown {
                    self.send_rows(group, of_group, sink)?;
                }
                at = groups.end;
                count = if rows < FEW_ROWS { count.saturating_mul(TIMES) } else { groups.len() };
            } else {
                count = (groups.len() / TIMES).max(1);
            }
            evaluator.usage.release(mark);
        }
        Ok(())
    }

    const fn left(&self) -> Left {
        let Limit { rows, skip_rows, .. } = self.limit;
        Left { skip: skip_rows, take: if rows == 0 { usize::MAX } else { rows } }
    }

    /// Reads the rows of some groups.
    ///
    /// Returns false if they are more than [`MANY_ROWS`]. Then it keeps none of them.
    fn read_groups(&mut self, groups: Range<usize>, evaluator: &mut Evaluator<'_>) -> Result<bool, StatementError> {
        let series = self.groups[groups.start].1.start..self.groups[groups.end - 1].1.end;
        self.feed.settings.limit = self.limit;
        let rows = self.read(series.clone(), self.feed.range_ms(), MANY_ROWS, evaluator)?;
        if rows <= MANY_ROWS {
            return Ok(true);
        }
        for (group, _) in &self.groups[groups] {
            let group = &mut self.feed.groups[*group];
            group.rows.clear();
            group.most_rows = 0;
        }
        for one in &mut self.members.series[series] {
            one.rows = 0;
        }
        Ok(false)
    }

    /// Reads and sends the rows of a group, one stretch of time after the other.
    ///
    /// Returns the number of rows.
    fn send_group(
        &mut self,
        at: usize,
        evaluator: &mut Evaluator<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<usize, StatementError> {
        let series = self.groups[at].1.clone();
        let request = request(&self.series[series.clone()], &self.fields, self.feed.range_ms());
        let span_ms = evaluator.source.span_ms(&request);
        self.feed.settings.limit = Limit { rows: 0, skip_rows: 0, ..self.limit };
        let (mut left, mut from, mut stretch, mut rows) = (self.left(), span_ms.start, FIRST_MS, 0);
        while from < span_ms.end && left.take > 0 {
            let to = from.saturating_add(stretch).min(span_ms.end);
            let mark = evaluator.usage.mark();
            self.read(series.clone(), from..to, usize::MAX, evaluator)?;
            let (count, of_stretch) = self.shown_rows(at, &mut left, evaluator)?;
            self.send_rows(at, of_stretch, sink)?;
            evaluator.usage.release(mark);
            rows += count;
            from = to;
            stretch = match count {
                0..FEW_ROWS => stretch.saturating_mul(2),
                FEW_ROWS..=MANY_ROWS => stretch,
                _ => (stretch / 2).max(1),
            };
        }
        Ok(rows)
    }

    /// Reads rows of series, and ends after more than `max` of them are kept.
    ///
    /// Returns how many are kept.
    fn read(
        &mut self,
        series: Range<usize>,
        range_ms: Range<i64>,
        max: usize,
        evaluator: &mut Evaluator<'_>,
    ) -> Result<usize, StatementError> {
        let Evaluator { source, usage, .. } = evaluator;
        let first = series.start;
        let request = request(&self.series[series], &self.fields, range_ms);
        let (feed, members) = (&mut self.feed, &mut self.members);
        let mut kept = 0;
        if request.range_ms.is_empty() {
            return Ok(kept);
        }
        source.readings(&[request], &mut |read| {
            let Read::Row(row) = read else { return Ok(Next::Row) };
            let series = first + row.series;
            let group = members.series[series].group;
            let before = feed.groups[group].rows.len();
            let next = feed.read_row(members, &Row { series, ..row }, usage)?;
            kept += feed.groups[group].rows.len().saturating_sub(before);
            Ok(if kept > max { Next::End } else { next })
        })?;
        Ok(kept)
    }

    /// Computes the rows of a group that `OFFSET` and `LIMIT` leave.
    ///
    /// Also returns how many rows were read.
    fn shown_rows(
        &mut self,
        at: usize,
        left: &mut Left,
        evaluator: &mut Evaluator<'_>,
    ) -> Result<(usize, Vec<OutRow>), StatementError> {
        let plan = self.feed.plan;
        let group = &mut self.feed.groups[self.groups[at].0];
        group.sort(false);
        let count = group.rows.len();
        let skipped = left.skip.min(count);
        let kept = left.take.min(count - skipped);
        // A computed row takes the memory of the row that was read, and more if it has more values.
        let more = plan.columns.len().saturating_sub(plan.shown) * size_of::<Value>();
        evaluator.usage.memory(kept.saturating_mul(more))?;
        let rows = evaluator.shown(plan, group.rows.drain(..).skip(skipped).take(kept))?;
        left.skip -= skipped;
        left.take -= kept;
        Ok((count, rows))
    }

    /// Sends rows of a group.
    fn send_rows(&self, at: usize, rows: Vec<OutRow>, sink: &mut Sink<'_>) -> Result<(), StatementError> {
        if rows.is_empty() {
            return Ok(());
        }
        sink(OutSeries {
            name: Arc::clone(self.name),
            tags: self.feed.groups[self.groups[at].0].tags.clone(),
            columns: Arc::clone(&self.columns),
            has_time: true,
            zone: self.select.zone.clone(),
            rows,
            is_partial: false,
        })
    }
}

const fn request<'r>(series: &'r [&'r Series], fields: &'r [&'r str], range_ms: Range<i64>) -> Request<'r> {
    Request { series, fields, range_ms, newest: None, is_beside_stats: false, needs_ends: false }
}
