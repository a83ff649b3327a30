//! Turns groups into the rows of the answer.

use super::super::ast::Fill;
use super::super::error::StatementError;
use super::super::plan::{Aggregate, Call, Transform, Type};
use super::super::value::Value;
use super::feed::{Feed, work_of};
use super::group::{Collected, Group};
use super::reduce::Point;
use super::select::TableSeries;
use super::sequence::{fill, fill_linear, fill_previous, transform};
use super::{Evaluator, OutRow};

impl Feed<'_> {
    /// Turns the groups into series of rows, in the order of the answer.
    pub(super) fn finish(mut self, evaluator: &mut Evaluator<'_>) -> Result<Vec<TableSeries>, StatementError> {
        let mut groups = std::mem::take(&mut self.groups);
        groups.sort_by(|a, b| (&a.name, &a.tags).cmp(&(&b.name, &b.tags)));
        if self.settings.is_descending {
            groups.reverse();
        }
        let mut series = Vec::new();
        for mut group in groups {
            let (name, tags) = (group.name.clone(), std::mem::take(&mut group.tags));
            let rows = if self.plan.calls.is_empty() {
                self.raw_rows(group, evaluator)?
            } else {
                self.called_rows(group, evaluator)?
            };
            if !rows.is_empty() {
                series.push(TableSeries { name, tags, rows });
            }
        }
        Ok(series)
    }

    fn raw_rows(&self, mut group: Group, evaluator: &mut Evaluator<'_>) -> Result<Vec<OutRow>, StatementError> {
        group.sort(self.settings.is_descending);
        self.charge_rows(group.rows.len(), evaluator)?;
        evaluator.shown(self.plan, self.settings.limit.of_rows(group.rows))
    }

    /// Counts the values of rows against the limit of points, and takes their memory.
    ///
    /// A row counts as more values than it has columns if its expressions are long.
    fn charge_rows(&self, rows: usize, evaluator: &mut Evaluator<'_>) -> Result<(), StatementError> {
        let columns = self.plan.columns.len();
        evaluator.usage.points(rows.saturating_mul(columns.max(work_of(self.plan.work))))?;
        evaluator.usage.rows(rows, columns)
    }

    fn called_rows(&self, group: Group, evaluator: &mut Evaluator<'_>) -> Result<Vec<OutRow>, StatementError> {
        let mut sequences = Vec::new();
        for (at, collected) in group.calls.into_iter().enumerate() {
            let points = self.sequence(at, collected, evaluator)?;
            sequences.push(self.settings.limit.of_rows(points).collect::<Vec<_>>());
        }
        self.joined(sequences, evaluator)
    }

    /// Returns the value of a call in a row for which the call has no point.
    ///
    /// With `fill(previous)`, this value is used only until the call has its first point.
    fn absent(&self, call: &Call) -> Value {
        match self.settings.fill {
            Fill::Number(number) => match self.type_of(call) {
                Some(Type::Integer) => Value::Integer(number as i64),
                Some(_) => Value::Float(number),
                None => Value::Null,
            },
            _ => Value::Null,
        }
    }

    /// The type of a call; `None` if its field is unknown.
    fn type_of(&self, call: &Call) -> Option<Type> {
        use Aggregate::{Count, CountDistinct, Mean, Median, Stddev};
        match call.transform {
            Some(Transform::Elapsed { .. }) => return Some(Type::Integer),
            Some(Transform::Derivative { .. } | Transform::MovingAverage(_)) => return Some(Type::Float),
            _ => {}
        }
        match &call.aggregate {
            Some(Count | CountDistinct) => Some(Type::Integer),
            Some(Mean | Median | Stddev) => Some(Type::Float),
            _ => self.schema.fields.get(&self.plan.references[call.argument].0).copied(),
        }
    }

    /// Whether some series have the field or the tag of a reference.
    fn is_known(&self, reference: usize) -> bool {
        let (name, _) = &self.plan.references[reference];
        self.schema.fields.contains_key(name) || self.schema.tags.contains(name)
    }

    /// Joins points of several calls at one time into one row.
    ///
    /// If a call has several points at one time, each is in a row of its own.
    fn joined(&self, sequences: Vec<Vec<Point>>, evaluator: &mut Evaluator<'_>) -> Result<Vec<OutRow>, StatementError> {
        let mut absent: Vec<_> = self.plan.calls.iter().map(|call| self.absent(call)).collect();
        let mut sequences: Vec<_> = sequences.into_iter().map(|points| points.into_iter().peekable()).collect();
        let mut before: Box<[Value]> = Box::default();
        let mut rows = Vec::new();
        loop {
            let times = sequences.iter_mut().filter_map(|points| points.peek().map(|point| point.time));
            let time = if self.settings.is_descending { times.max() } else { times.min() };
            let Some(time) = time else { return Ok(rows) };
            self.charge_rows(1, evaluator)?;
            evaluator.check_after(self.plan.columns.len() + self.plan.work)?;
            let mut values = Vec::with_capacity(sequences.len());
            let mut auxiliary = None;
            for (points, absent) in sequences.iter_mut().zip(&mut absent) {
                let Some(point) = points.next_if(|point| point.time == time) else {
                    values.push(absent.clone());
                    continue;
                };
                if self.settings.fill == Fill::Previous {
                    absent.clone_from(&point.value);
                }
                values.push(point.value);
                auxiliary = point.auxiliary;
            }
            let mut references = auxiliary.unwrap_or_default();
            self.fill_references(&mut references, &before);
            before.clone_from(&references);
            rows.push((time, self.plan.columns.iter().map(|(_, node)| node.value(&references, &values)).collect()));
        }
    }

    /// Applies `fill` to absent values of references that columns show beside a call.
    fn fill_references(&self, references: &mut [Value], before: &[Value]) {
        for (at, value) in references.iter_mut().enumerate() {
            let is_absent = value.is_null();
            match self.settings.fill {
                Fill::Number(number) if is_absent && self.is_known(at) => *value = Value::Float(number),
                Fill::Previous if is_absent => *value = before.get(at).cloned().unwrap_or(Value::Null),
                _ => {}
            }
        }
    }

    /// Returns the points of one call in a group, in the order of the rows.
    ///
    /// It fills windows without points, and applies the transform of the call.
    fn sequence(
        &self,
        at: usize,
        collected: Collected,
        evaluator: &mut Evaluator<'_>,
    ) -> Result<Vec<Point>, StatementError> {
        let call = &self.plan.calls[at];
        let windows = &self.dimensions.windows;
        let mut points = match (collected, &call.aggregate) {
            (Collected::Windows(reducers), Some(aggregate)) => {
                let mut points = Vec::new();
                for (start, reducer) in reducers {
                    let all = if self.settings.range.has_min() { self.settings.range.min } else { 0 };
                    let window = if windows.every_ns > 0 { start } else { all };
                    let is_point = aggregate.is_ranked() || (windows.every_ns == 0 && self.plan.selects_points());
                    let mut of_window =
                        reducer.finish(aggregate, Some(window).filter(|_| !is_point), self.settings.is_descending);
                    if self.settings.is_descending && windows.every_ns > 0 && aggregate.has_many_rows() {
                        of_window.reverse();
                    }
                    points.extend(of_window);
                }
                points
            }
            (Collected::Points(mut points), _) => {
                points.sort_by_key(|point| (point.time, point.order));
                points
            }
            (Collected::Windows(_), None) => Vec::new(),
        };
        let has_many_rows = call.aggregate.as_ref().is_some_and(Aggregate::has_many_rows);
        let is_filled =
            windows.every_ns > 0 && !has_many_rows && self.settings.fill != Fill::None && !points.is_empty();
        if is_filled {
            let range = self.ranges[at];
            let first = if range.has_min() { range.min } else { points[0].time };
            let count = (i128::from(range.max) - i128::from(first)) / i128::from(windows.every_ns) + 1;
            let count = usize::try_from(count).unwrap_or(usize::MAX).saturating_sub(points.len());
            evaluator.usage.buckets(count, self.plan.calls.len())?;
            points = fill(points, call, self.settings.fill, windows, range);
        }
        let is_reversed = self.settings.is_descending && (windows.every_ns > 0 || call.aggregate.is_none());
        if is_reversed {
            points.reverse();
        }
        match self.settings.fill {
            Fill::Previous if is_filled => fill_previous(&mut points),
            Fill::Linear if is_filled => fill_linear(&mut points),
            _ => {}
        }
        if let Some(function) = call.transform {
            points = transform(&points, function, self.settings.is_descending);
            if windows.every_ns > 0 {
                let first =
                    if self.settings.range.has_min() { windows.start_of(self.settings.range.min) } else { i64::MIN };
                points.retain(|point| point.time >= first && point.time <= self.settings.range.max);
            }
        }
        Ok(points)
    }
}
