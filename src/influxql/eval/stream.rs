//! `SELECT` in parts: the rows of a measurement, one stretch of time after the other.

use std::sync::Arc;

use super::super::ast::{Limit, Select};
use super::super::error::StatementError;
use super::super::source::Request;
use super::members::{Known, OneSeries};
use super::select::{Input, Outer, Prepared};
use super::{Evaluator, OutSeries, Sink};

/// The first stretch of time, in milliseconds: an hour.
const FIRST_MS: i64 = 3_600_000;

/// A stretch with more rows is followed by a shorter one, one with fewer by a longer one.
const MANY_ROWS: usize = 20_000;
const FEW_ROWS: usize = 5_000;

impl Evaluator<'_> {
    /// Answers a `SELECT` part by part.
    pub(super) fn stream(&mut self, select: &Select, sink: &mut Sink<'_>) -> Result<(), StatementError> {
        let mut prepared = self.prepare(select, &Outer::of(select))?;
        if let [Input::Measurement(..)] = &*prepared.inputs
            && prepared.plan.calls.is_empty()
            && !prepared.settings.is_descending
            && !prepared.is_empty()
        {
            let limit = prepared.settings.limit;
            prepared.settings.limit = Limit { rows: 0, skip_rows: 0, ..limit };
            return self.stream_rows(select, &prepared, limit, sink);
        }
        let series = self.series_of(&prepared)?;
        let table = super::select::Table { series, ..prepared.table };
        self.out(table, select)?.into_iter().try_for_each(sink)
    }

    /// Answers a `SELECT` without functions of one measurement, in the order of time.
    fn stream_rows(
        &mut self,
        select: &Select,
        ready: &Prepared,
        limit: Limit,
        sink: &mut Sink<'_>,
    ) -> Result<(), StatementError> {
        let [Input::Measurement(name, series)] = &*ready.inputs else { return Ok(()) };
        let mut feed = ready.feed();
        let Known { fields, series, members: mut of_group } = feed.known(self, name, series)?;
        let mut members: Vec<Vec<(&super::super::source::Series, OneSeries)>> = Vec::new();
        members.resize_with(feed.groups.len(), Vec::new);
        for (series, one) in series.into_iter().zip(std::mem::take(&mut of_group.series)) {
            members[one.group].push((series, one));
        }
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by(|a, b| feed.groups[*a].tags.cmp(&feed.groups[*b].tags));
        let names = std::iter::once("time".to_owned()).chain(ready.table.columns.iter().cloned());
        let columns: Arc<[String]> = names.collect();
        let range_ms = feed.range_ms();
        for group in order {
            let series: Vec<_>;
            (series, of_group.series) = std::mem::take(&mut members[group]).into_iter().unzip();
            let request = Request {
                measurement: name,
                series: &series,
                fields: &fields,
                range_ms: range_ms.clone(),
                newest: None,
                is_beside_stats: false,
                needs_ends: false,
            };
            let span_ms = self.source.span_ms(&request);
            let mut left = if limit.rows == 0 { u64::MAX } else { limit.rows };
            let (mut skip, mut from, mut stretch) = (limit.skip_rows, span_ms.start, FIRST_MS);
            while from < span_ms.end && left > 0 {
                let to = from.saturating_add(stretch).min(span_ms.end);
                let mark = self.usage.mark();
                feed.readings(self, &Request { range_ms: from..to, ..request.clone() }, &mut of_group)?;
                let found = &mut feed.groups[group];
                found.sort(false);
                let count = found.rows.len();
                let skipped = skip.min(count as u64);
                let taken = usize::try_from(left).unwrap_or(usize::MAX);
                let rows = found.rows.drain(..).skip(usize::try_from(skipped).unwrap_or(usize::MAX)).take(taken);
                let rows = rows.map(|row| {
                    let values = ready.plan.columns.iter().map(|(_, node)| node.value(&row.values, &[]));
                    (row.time, values.collect())
                });
                let rows: Vec<_> = rows.collect();
                skip -= skipped;
                left -= rows.len() as u64;
                if !rows.is_empty() {
                    sink(OutSeries {
                        name: Arc::clone(name),
                        tags: feed.groups[group].tags.clone(),
                        columns: Arc::clone(&columns),
                        has_time: true,
                        zone: select.zone.clone(),
                        rows,
                        is_partial: false,
                    })?;
                }
                self.usage.release(mark);
                from = to;
                stretch = match count {
                    0..FEW_ROWS => stretch.saturating_mul(2),
                    FEW_ROWS..=MANY_ROWS => stretch,
                    _ => (stretch / 2).max(1),
                };
            }
        }
        Ok(())
    }
}
