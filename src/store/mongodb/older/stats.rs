//! Counts and stats of a document, compared with its readings.

use std::collections::HashMap;

use bson::RawBsonRef;

use super::Remark;
use super::instant::{kind_of, nearest_number_of, quoted};
use crate::model::{Contents, Hour, Metric, Stats};

/// The share of a number by which it may differ from the readings: a program may have added them in another
/// order.
const ROUNDED: f64 = 1e-9;

/// A number that a document says about its readings, such as their maximum.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    field: String,
    /// The metric that the number is about; `None`: all readings.
    metric: Option<&'a str>,
    what: What,
    number: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Count,
    Min,
    Max,
    Sum,
    /// Follows from sum and count, and is mostly rounded: it is not compared.
    Mean,
}

impl What {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "count" => Self::Count,
            "min" => Self::Min,
            "max" => Self::Max,
            "sum" | "total" => Self::Sum,
            "avg" | "mean" | "average" => Self::Mean,
            _ => return None,
        })
    }
}

/// Adds the claim of a field such as `readingCount`.
pub(super) fn add_count(field: &str, value: RawBsonRef<'_>, claims: &mut Vec<Claim<'_>>) -> Result<(), String> {
    add(field.to_owned(), None, What::Count, value, claims)
}

/// Adds the claim of a field such as `sum_temperature`.
///
/// Returns whether the field is such a claim.
pub(super) fn add_of_metric<'a>(
    field: &'a str,
    value: RawBsonRef<'_>,
    claims: &mut Vec<Claim<'a>>,
) -> Result<bool, String> {
    let Some((what, metric)) = field.split_once('_').and_then(|(what, metric)| Some((What::of(what)?, metric))) else {
        return Ok(false);
    };
    add(field.to_owned(), Some(metric), what, value, claims).map(|()| true)
}

/// Adds the claims of the field `stats`.
///
/// The field is `{ min, max, ... }`, or has one such object for each metric.
///
/// The error names the field that is not understood.
pub(super) fn add_stats<'a>(value: RawBsonRef<'a>, claims: &mut Vec<Claim<'a>>) -> Result<(), String> {
    let RawBsonRef::Document(stats) = value else { return Err("stats".to_owned()) };
    for element in stats {
        let (key, value) = element.map_err(|_| "stats".to_owned())?;
        let key = key.as_str();
        match (What::of(key), value) {
            (_, RawBsonRef::Document(of_metric)) => {
                for element in of_metric {
                    let (name, value) = element.map_err(|_| format!("stats.{key}"))?;
                    let field = format!("stats.{key}.{}", name.as_str());
                    let what = What::of(name.as_str()).ok_or_else(|| field.clone())?;
                    add(field.clone(), Some(key), what, value, claims).map_err(|_| field)?;
                }
            }
            (Some(what), value) => {
                let field = format!("stats.{key}");
                add(field.clone(), None, what, value, claims).map_err(|_| field)?;
            }
            (None, _) => return Err(format!("stats.{key}")),
        }
    }
    Ok(())
}

fn add<'a>(
    field: String,
    metric: Option<&'a str>,
    what: What,
    value: RawBsonRef<'_>,
    claims: &mut Vec<Claim<'a>>,
) -> Result<(), String> {
    if matches!(value, RawBsonRef::Boolean(_)) {
        return Err(format!("is {}, and no number", kind_of(value)));
    }
    if let Some(number) = nearest_number_of(value)? {
        claims.push(Claim { field, metric, what, number });
    }
    Ok(())
}

/// The first claim that the readings do not confirm. `items` is the length of their array.
pub(super) fn check(claims: &[Claim<'_>], items: u64, hours: &[(Hour, Contents)]) -> Option<Remark> {
    let mut stats: HashMap<Metric, Stats> = HashMap::new();
    for (hour, contents) in hours {
        for (metric, of_hour) in contents.stats(*hour) {
            stats.entry(metric).and_modify(|known| known.merge(&of_hour)).or_insert(of_hour);
        }
    }
    let only = if stats.len() == 1 { stats.values().next() } else { None };
    claims.iter().find_map(|claim| {
        let Claim { field, metric, what, number } = claim;
        let of = match metric {
            None if *what == What::Count => return differing_count(field, *number, items),
            None => only?, // of several metrics it says nothing
            Some(metric) => match stats.get(*metric) {
                Some(of) => of,
                None => return Some(differs(format!("{field} is {number}, and no reading has {}", quoted(metric)))),
            },
        };
        let actual = match what {
            What::Count => of.count as f64,
            What::Min => of.min,
            What::Max => of.max,
            What::Sum => of.sum,
            What::Mean => return None,
        };
        let scale = of.min.abs().max(of.max.abs()) * if *what == What::Sum { of.count as f64 } else { 1.0 };
        let is_same = (number - actual).abs() <= ROUNDED * scale;
        (!is_same).then(|| differs(format!("{field} is {number}, and of the readings it is {actual}")))
    })
}

#[expect(clippy::float_cmp, reason = "counts are whole numbers")]
fn differing_count(field: &str, number: f64, items: u64) -> Option<Remark> {
    (number != items as f64).then(|| {
        let about = format!("{field} is not the number of readings (--ignore {field} skips it)");
        Remark::new(about, format!("{field} is {number}, and there are {items}"))
    })
}

fn differs(detail: String) -> Remark {
    Remark::new("the stats are not those of the readings (--ignore FIELD skips one)", detail)
}
