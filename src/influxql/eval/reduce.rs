//! Aggregates: turn the points of a window into its value.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::super::plan::Aggregate;
use super::super::source::HourStats;
use super::super::time::NS_PER_MS;
use super::super::value::{Total, Value};
use crate::model::Sum;

/// A value at an instant.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) time: i64,
    /// The order of the point's series, which sorts the points of one instant.
    pub(super) order: u32,
    pub(super) value: Value,
    /// The values of all references in the row, if columns show some beside the call.
    pub(super) auxiliary: Option<Box<[Value]>>,
}

/// The state of an aggregate in a window.
#[derive(Debug, Clone)]
pub(super) enum Reducer {
    Count(i64),
    Mean { sum: Sum, count: u64 },
    Sum(Total),
    Selected(Point),
    Spread { min: Value, max: Value },
    Points(Vec<Point>),
}

impl Reducer {
    pub(super) fn new(aggregate: &Aggregate, first: Point) -> Self {
        match aggregate {
            Aggregate::Count => Self::Count(1),
            Aggregate::Mean => Self::Mean { sum: Sum::of(first.value.as_f64().unwrap_or_default()), count: 1 },
            Aggregate::Sum => Self::Sum(Total::of(first.value)),
            Aggregate::Min | Aggregate::Max | Aggregate::First | Aggregate::Last => Self::Selected(first),
            Aggregate::Spread => Self::Spread { min: first.value.clone(), max: first.value },
            _ => Self::Points(vec![first]),
        }
    }

    pub(super) fn add(&mut self, aggregate: &Aggregate, point: Point) {
        match self {
            Self::Count(count) => *count += 1,
            Self::Mean { sum, count } => {
                sum.add(point.value.as_f64().unwrap_or_default());
                *count += 1;
            }
            Self::Sum(sum) => sum.add(&point.value),
            Self::Selected(selected) => {
                if is_better(aggregate, &point, selected) {
                    *selected = point;
                }
            }
            Self::Spread { min, max } => {
                if point.value.order(min) == Ordering::Less {
                    *min = point.value;
                } else if point.value.order(max) == Ordering::Greater {
                    *max = point.value;
                }
            }
            Self::Points(points) => points.push(point),
        }
    }

    /// Creates a reducer from the stats of an hour.
    ///
    /// `order` is the order of the series. The points of `min` and `max` get the start of the hour as their
    /// instant, because stats lack the instants of these values.
    pub(super) fn of_stats(aggregate: &Aggregate, stats: &HourStats, order: u32) -> Self {
        let point = |(ms, value): (i64, f64)| {
            let time = ms.saturating_mul(NS_PER_MS);
            Self::Selected(Point { time, order, value: Value::Float(value), auxiliary: None })
        };
        match aggregate {
            Aggregate::Count => Self::Count(stats.count as i64),
            Aggregate::Mean => Self::Mean { sum: Sum::of(stats.sum), count: stats.count },
            Aggregate::Sum => Self::Sum(Total::of(Value::Float(stats.sum))),
            Aggregate::Min => point((stats.start_ms, stats.min)),
            Aggregate::Max => point((stats.start_ms, stats.max)),
            Aggregate::First => point(stats.first),
            Aggregate::Spread => Self::Spread { min: Value::Float(stats.min), max: Value::Float(stats.max) },
            _ => point(stats.last),
        }
    }

    /// Merges another reducer of the same aggregate into this one.
    pub(super) fn merge(&mut self, aggregate: &Aggregate, other: Self) {
        match (self, other) {
            (Self::Count(count), Self::Count(more)) => *count += more,
            (Self::Mean { sum, count }, Self::Mean { sum: more, count: others }) => {
                sum.merge(more);
                *count += others;
            }
            (Self::Sum(sum), Self::Sum(more)) => sum.add(&more.value()),
            (Self::Selected(selected), Self::Selected(other)) => {
                if is_better(aggregate, &other, selected) {
                    *selected = other;
                }
            }
            (Self::Spread { min, max }, Self::Spread { min: other_min, max: other_max }) => {
                if other_min.order(min) == Ordering::Less {
                    *min = other_min;
                }
                if other_max.order(max) == Ordering::Greater {
                    *max = other_max;
                }
            }
            (Self::Points(points), Self::Points(more)) => points.extend(more),
            _ => debug_assert!(false, "reducers of one aggregate have one shape"),
        }
    }

    /// Returns the points of the result.
    ///
    /// They have the instant `window`. If it is `None`, points that a selector such as `max` has selected
    /// keep their own instants, and other points get the instant 0.
    pub(super) fn finish(self, aggregate: &Aggregate, window: Option<i64>, is_descending: bool) -> Vec<Point> {
        let of_window =
            |value: Value| vec![Point { time: window.unwrap_or_default(), order: 0, value, auxiliary: None }];
        match self {
            Self::Count(count) => of_window(Value::Integer(count)),
            Self::Mean { sum, count } => of_window(Value::Float(sum.finish() / count as f64)),
            Self::Sum(sum) => of_window(sum.value()),
            Self::Spread { min, max } => of_window(max.minus(&min)),
            Self::Selected(point) => vec![at(point, window)],
            Self::Points(mut points) => {
                points.sort_by_key(|point| (point.time, point.order));
                if is_descending {
                    points.reverse();
                }
                finish_points(points, aggregate, window)
            }
        }
    }
}

fn at(mut point: Point, window: Option<i64>) -> Point {
    point.time = window.unwrap_or(point.time);
    point
}

/// Whether a selector prefers `point` to `selected`.
///
/// For equal values, `min` and `max` prefer the earlier point. For points at one instant, `first` and `last`
/// prefer the larger value. If points still tie, the one of the first series wins.
fn is_better(aggregate: &Aggregate, point: &Point, selected: &Point) -> bool {
    let by_value = point.value.order(&selected.value);
    let by_time = point.time.cmp(&selected.time);
    let by_series = point.order.cmp(&selected.order);
    match aggregate {
        Aggregate::Min => by_value.then(by_time).then(by_series) == Ordering::Less,
        Aggregate::Max => by_value.reverse().then(by_time).then(by_series) == Ordering::Less,
        Aggregate::First => by_time.then(by_value.reverse()).then(by_series) == Ordering::Less,
        _ => by_time.then(by_value).then(by_series.reverse()) == Ordering::Greater,
    }
}

fn finish_points(mut points: Vec<Point>, aggregate: &Aggregate, window: Option<i64>) -> Vec<Point> {
    let time = window.unwrap_or_default();
    let single = |value: Value| vec![Point { time, order: 0, value, auxiliary: None }];
    match aggregate {
        Aggregate::CountDistinct => single(Value::Integer(distinct(&points).len() as i64)),
        Aggregate::Distinct => {
            let mut first = distinct(&points);
            first.sort_by(|a, b| a.time.cmp(&b.time).then_with(|| a.value.order(&b.value)));
            first
                .into_iter()
                .map(|point| Point { time, order: 0, value: point.value.clone(), auxiliary: None })
                .collect()
        }
        Aggregate::Mode => single(mode(points)),
        Aggregate::Median => {
            let mut values: Vec<_> = points.iter().filter_map(|point| point.value.as_f64()).collect();
            values.sort_by(f64::total_cmp);
            let middle = values.len() / 2;
            let median = match values.get(middle) {
                None => Value::Null,
                Some(value) if values.len() % 2 == 1 => Value::Float(*value),
                Some(value) => {
                    let low = values[middle - 1];
                    Value::Float(low + (value - low) / 2.0)
                }
            };
            single(median)
        }
        Aggregate::Stddev => single(stddev(&points)),
        Aggregate::Percentile(percent) => {
            let rank = (points.len() as f64 * percent / 100.0 + 0.5).floor() as i64 - 1;
            points.sort_by(|a, b| a.value.order(&b.value));
            match usize::try_from(rank) {
                Ok(rank) if rank < points.len() => vec![at(points.swap_remove(rank), window)],
                _ => Vec::new(),
            }
        }
        Aggregate::Top(ranked) => top(points, &ranked.tags, ranked.limit, |a, b| b.order(a)),
        Aggregate::Bottom(ranked) => top(points, &ranked.tags, ranked.limit, Value::order),
        _ => Vec::new(),
    }
}

/// Returns a key that stands for a value in a set. Equal values have equal keys.
fn identity(value: &Value) -> (u8, u64, &str) {
    match value {
        Value::Null => (0, 0, ""),
        Value::Float(value) => (1, if *value == 0.0 { 0 } else { value.to_bits() }, ""),
        Value::Integer(value) => (2, *value as u64, ""),
        Value::Text(text) => (3, 0, text),
        Value::Boolean(value) => (4, u64::from(*value), ""),
    }
}

/// Returns the first point of each value, in the order of the points.
fn distinct(points: &[Point]) -> Vec<&Point> {
    let mut known = HashSet::new();
    points.iter().filter(|point| known.insert(identity(&point.value))).collect()
}

/// Returns the most frequent value.
///
/// If several values are equally frequent, it is the one that occurred first. If each value occurs only once,
/// it is the smallest.
fn mode(mut points: Vec<Point>) -> Value {
    points.sort_by(|a, b| a.value.order(&b.value).then(a.time.cmp(&b.time)));
    let mut best: &[Point] = &[];
    for same in points.chunk_by(|a, b| a.value == b.value) {
        let is_earlier = same.len() > 1 && same.len() == best.len() && same[0].time < best[0].time;
        if same.len() > best.len() || is_earlier {
            best = same;
        }
    }
    best.first().map_or(Value::Null, |point| point.value.clone())
}

/// Returns the standard deviation of a sample.
///
/// For a single value it is NaN, and `fill` does not replace it.
fn stddev(points: &[Point]) -> Value {
    if points.len() < 2 {
        return Value::Float(f64::NAN);
    }
    let values = || points.iter().filter_map(|point| point.value.as_f64());
    let mut mean = 0.0;
    for (at, value) in values().enumerate() {
        mean += (value - mean) / (at + 1) as f64;
    }
    let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / (points.len() - 1) as f64;
    Value::Float(variance.sqrt())
}

/// Returns the `limit` best points, in the order of time.
///
/// `order` puts the best value first. With `tags`, each combination of tag values has at most one point, its
/// best.
fn top(mut points: Vec<Point>, tags: &[usize], limit: usize, order: impl Fn(&Value, &Value) -> Ordering) -> Vec<Point> {
    points.sort_by(|a, b| order(&a.value, &b.value).then(a.time.cmp(&b.time)));
    if !tags.is_empty() {
        let mut known = HashSet::new();
        points.retain(|point| {
            let auxiliary = point.auxiliary.as_deref().unwrap_or_default();
            let key: Vec<_> = tags.iter().map(|tag| auxiliary.get(*tag).map(identity_owned)).collect();
            known.insert(key)
        });
    }
    points.truncate(limit);
    points.sort_by_key(|point| point.time);
    points
}

fn identity_owned(value: &Value) -> (u8, u64, String) {
    let (kind, bits, text) = identity(value);
    (kind, bits, text.to_owned())
}
