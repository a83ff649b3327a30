//! The points of one call in one group, by time: fills windows without points, and applies transforms.

use super::super::ast::Fill;
use super::super::plan::{Aggregate, Call, Transform};
use super::super::time::TimeRange;
use super::super::value::{Total, Value};
use super::super::window::Windows;
use super::reduce::Point;
use crate::model::Sum;

/// Adds a point for each window that has none.
///
/// `points` ascend by time, and each window has at most one. If `range` has no start, the windows begin with
/// the first point. If it has no end, they end with the last point.
pub(super) fn fill(points: Vec<Point>, call: &Call, fill: Fill, windows: &Windows, range: TimeRange) -> Vec<Point> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return points };
    let start = if range.has_min() { windows.start_of(range.min) } else { first.time };
    let end = if range.has_max() { windows.start_of(range.max) } else { last.time };
    let is_count = matches!(call.aggregate, Some(Aggregate::Count | Aggregate::CountDistinct));
    let is_integer = matches!(points[0].value, Value::Integer(_));
    let empty = match fill {
        Fill::Null if is_count => Value::Integer(0),
        Fill::Number(number) if is_integer => Value::Integer(number as i64),
        Fill::Number(number) => Value::Float(number),
        _ => Value::Null,
    };
    let auxiliary = match (&points[0].auxiliary, fill) {
        (Some(values), Fill::Number(number)) => Some(values.iter().map(|_| Value::Float(number)).collect()),
        _ => None,
    };
    let mut filled = Vec::with_capacity(points.len());
    let mut points = points.into_iter().peekable();
    let mut time = start;
    loop {
        if let Some(point) = points.next_if(|point| point.time <= time) {
            let is_here = point.time == time;
            filled.push(point);
            if !is_here {
                continue;
            }
        } else if time <= end {
            filled.push(Point { time, order: 0, value: empty.clone(), auxiliary: auxiliary.clone() });
        }
        let next = windows.after(time);
        if next <= time || (next > end && points.peek().is_none()) {
            filled.extend(points);
            return filled;
        }
        time = next;
    }
}

/// Replaces each null by the value before it, in the order of the rows.
pub(super) fn fill_previous(points: &mut [Point]) {
    for at in 1..points.len() {
        if points[at].value.is_null() {
            let (before, rest) = points.split_at_mut(at);
            if let (Some(before), Some(point)) = (before.last(), rest.first_mut()) {
                point.value = before.value.clone();
                point.auxiliary.clone_from(&before.auxiliary);
            }
        }
    }
}

/// Replaces the nulls between two values by linear interpolation.
pub(super) fn fill_linear(points: &mut [Point]) {
    let mut known: Option<usize> = None;
    for at in 0..points.len() {
        if points[at].value.is_null() {
            continue;
        }
        if let Some(before) = known {
            let (from, to) = (points[before].clone(), points[at].clone());
            for point in &mut points[before + 1..at] {
                point.value = between(&from, &to, point.time);
            }
        }
        known = Some(at);
    }
}

fn between(from: &Point, to: &Point, time: i64) -> Value {
    let (Some(a), Some(b)) = (from.value.as_f64(), to.value.as_f64()) else { return Value::Null };
    let slope = (b - a) / to.time.saturating_sub(from.time) as f64;
    let value = a + slope * time.saturating_sub(from.time) as f64;
    match from.value {
        Value::Integer(_) => Value::Integer(value as i64),
        _ => Value::Float(value),
    }
}

/// Applies a transform to values in the order of the rows. Nulls are skipped.
pub(super) fn transform(points: &[Point], transform: Transform, is_descending: bool) -> Vec<Point> {
    let points = points.iter().filter(|point| point.value.as_f64().is_some());
    match transform {
        Transform::CumulativeSum => {
            let mut sum = Total::of(Value::Integer(0));
            let add = |point: &Point| {
                sum.add(&point.value);
                with_value(point, sum.value())
            };
            points.map(add).collect()
        }
        Transform::MovingAverage(size) => moving_average(points, size),
        Transform::Elapsed { unit_ns } => {
            let mut before: Option<&Point> = None;
            let elapsed = |point| {
                let before = before.replace(point)?;
                Some(with_value(point, Value::Integer(point.time.saturating_sub(before.time) / unit_ns)))
            };
            points.filter_map(elapsed).collect()
        }
        Transform::Difference { is_non_negative } => {
            successive(points, is_non_negative, |before, point| point.value.minus(&before.value))
        }
        Transform::Derivative { unit_ns, is_non_negative } => successive(points, is_non_negative, |before, point| {
            let elapsed = point.time.saturating_sub(before.time);
            let elapsed = if is_descending { elapsed.saturating_neg() } else { elapsed };
            let difference = point.value.minus(&before.value).as_f64().unwrap_or_default();
            Value::Float(difference / (elapsed as f64 / unit_ns as f64))
        }),
    }
}

fn with_value(point: &Point, value: Value) -> Point {
    Point { time: point.time, order: point.order, value, auxiliary: None }
}

/// Computes a value from each point and the one before it.
///
/// A second point at one instant is skipped. With `is_non_negative`, negative values are left out.
fn successive<'p>(
    points: impl Iterator<Item = &'p Point>,
    is_non_negative: bool,
    compute: impl Fn(&Point, &Point) -> Value,
) -> Vec<Point> {
    let mut before: Option<&Point> = None;
    let mut found = Vec::new();
    for point in points {
        let Some(known) = before else {
            before = Some(point);
            continue;
        };
        if known.time == point.time {
            continue;
        }
        let value = compute(known, point);
        before = Some(point);
        if !is_non_negative || value.as_f64().is_some_and(|value| value >= 0.0) {
            found.push(with_value(point, value));
        }
    }
    found
}

/// Returns the mean of each `size` successive values, in linear time.
///
/// It subtracts nothing, so that a row depends only on its own values. The values form blocks of `size`: a
/// row adds the last values of one block and the first ones of the next.
fn moving_average<'p>(points: impl Iterator<Item = &'p Point>, size: usize) -> Vec<Point> {
    let mut block = Vec::new();
    let mut sum_of_block = Sum::of(0.0);
    let mut sums_before = Vec::new(); // of the last value of the block before, its last two values, ...
    let mut found = Vec::new();
    for point in points {
        let value = point.value.as_f64().unwrap_or_default();
        block.push(value);
        sum_of_block.add(value);
        let is_full = block.len() == size;
        let before = if is_full { Some(Sum::of(0.0)) } else { sums_before.pop() };
        if let Some(mut sum) = before {
            sum.merge(sum_of_block);
            found.push(with_value(point, Value::Float(sum.finish() / size as f64)));
        }
        if is_full {
            let mut sum = Sum::of(0.0);
            for value in block.drain(1..).rev() {
                sum.add(value);
                sums_before.push(sum);
            }
            block.clear();
            sum_of_block = Sum::of(0.0);
        }
    }
    found
}
