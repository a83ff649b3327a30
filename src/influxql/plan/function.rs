//! Functions: their arguments and the errors about them.

use super::super::ast::Expr;
use super::super::duration;
use super::super::error::StatementError;

/// A function that turns the points of a window into one value, or into several.
#[derive(Debug, Clone, PartialEq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub(in super::super) enum Aggregate {
    Count,
    /// `count(distinct(x))`
    #[strum(disabled)]
    CountDistinct,
    Mean,
    Sum,
    Min,
    Max,
    First,
    Last,
    Spread,
    Median,
    Mode,
    Stddev,
    Percentile(f64),
    Distinct,
    /// `top(x, tag..., n)`
    Top(Ranked),
    /// `bottom(x, tag..., n)`
    Bottom(Ranked),
}

/// The arguments of `top` and `bottom`.
#[derive(Debug, Clone, PartialEq, Default)]
pub(in super::super) struct Ranked {
    /// The tags, as indexes of references of the plan.
    pub(in super::super) tags: Vec<usize>,
    pub(in super::super) limit: usize,
}

/// A function of successive values, such as `derivative`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in super::super) enum Transform {
    Derivative { unit_ns: i64, is_non_negative: bool },
    Difference { is_non_negative: bool },
    MovingAverage(usize),
    CumulativeSum,
    Elapsed { unit_ns: i64 },
}

impl Ranked {
    /// Checks that the call is the only one, and that its `n` does not exceed `LIMIT`.
    pub(super) fn check(&self, name: &str, is_alone: bool, limit_rows: usize) -> Result<(), StatementError> {
        if !is_alone {
            return Err(not_alone(name));
        }
        if limit_rows > 0 && self.limit > limit_rows {
            return Err(format!(
                "limit ({}) in {name} function can not be larger than the LIMIT ({limit_rows}) in the select statement",
                self.limit
            )
            .into());
        }
        Ok(())
    }
}

impl Aggregate {
    /// Whether this is a selector such as `max`, which chooses points of the window.
    ///
    /// Columns may then show the other values of these points.
    pub(in super::super) const fn is_selector(&self) -> bool {
        matches!(
            self,
            Self::Min | Self::Max | Self::First | Self::Last | Self::Percentile(_) | Self::Top(_) | Self::Bottom(_)
        )
    }

    /// Whether this is `first` or `last`.
    pub(in super::super) const fn is_end(&self) -> bool {
        matches!(self, Self::First | Self::Last)
    }

    /// Whether this is `top` or `bottom`.
    ///
    /// The rows of both have the instants of their points.
    pub(in super::super) const fn is_ranked(&self) -> bool {
        matches!(self, Self::Top(_) | Self::Bottom(_))
    }

    /// Whether a window may have several values.
    pub(in super::super) const fn has_many_rows(&self) -> bool {
        matches!(self, Self::Distinct | Self::Top(_) | Self::Bottom(_))
    }

    /// Whether all points of a window are kept in memory until the window is complete.
    pub(in super::super) const fn keeps_points(&self) -> bool {
        !matches!(
            self,
            Self::Count | Self::Mean | Self::Sum | Self::Min | Self::Max | Self::First | Self::Last | Self::Spread
        )
    }

    /// Whether the stats of hours suffice to compute the value of this aggregate.
    pub(in super::super) const fn is_of_stats(&self) -> bool {
        !self.keeps_points()
    }
}

/// The functions of InfluxDB that are not supported. Ascending.
#[rustfmt::skip]
const UNSUPPORTED: &[&str] = &[
    "abs", "acos", "asin", "atan", "atan2", "ceil", "chande_momentum_oscillator", "cos",
    "double_exponential_moving_average", "exp", "exponential_moving_average", "floor", "holt_winters",
    "holt_winters_with_fit", "integral", "kaufmans_adaptive_moving_average", "kaufmans_efficiency_ratio",
    "ln", "log", "log10", "log2", "pow", "relative_strength_index", "round", "sample", "sin", "sqrt", "tan",
    "triple_exponential_derivative", "triple_exponential_moving_average",
];

pub(super) fn is_unsupported(name: &str) -> bool {
    UNSUPPORTED.binary_search(&name).is_ok()
}

/// The error about a function that is not supported, or does not exist.
pub(super) fn unknown(name: &str) -> StatementError {
    if is_unsupported(name) {
        format!("the function {name}() is not supported").into()
    } else {
        format!("undefined function {name}()").into()
    }
}

/// The error about `top` or `bottom` beside or inside another function.
pub(super) fn not_alone(name: &str) -> StatementError {
    format!("selector function {name}() cannot be combined with other functions").into()
}

/// The largest `n` of `moving_average(x, n)`, `top(x, n)` and `bottom(x, n)`.
const COUNT_MAX: i64 = 1_000_000;

/// A function call as it is written in the query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Called<'e> {
    pub(super) name: &'e str,
    pub(super) arguments: &'e [Expr],
}

impl Called<'_> {
    /// Whether the function is a [`Transform`].
    pub(super) fn is_transform(self) -> bool {
        matches!(
            self.name,
            "derivative"
                | "non_negative_derivative"
                | "difference"
                | "non_negative_difference"
                | "moving_average"
                | "cumulative_sum"
                | "elapsed"
        )
    }

    pub(super) fn is_ranked(self) -> bool {
        matches!(self.name, "top" | "bottom")
    }

    /// Checks that the function exists, and the number of its arguments.
    pub(super) fn check(self) -> Result<(), StatementError> {
        let Self { name, arguments } = self;
        let found = arguments.len();
        let (allowed, expected) = match name {
            "distinct" if found == 0 => return Err("distinct function requires at least one argument".into()),
            "distinct" if found > 1 => return Err("distinct function can only have one argument".into()),
            "distinct" => return Ok(()),
            "percentile" | "moving_average" => (2..=2, "2"),
            "derivative" | "non_negative_derivative" | "elapsed" => (1..=2, "at least 1 but no more than 2"),
            "top" | "bottom" => (2..=usize::MAX, "at least 2"),
            _ if self.is_transform() || name.parse::<Aggregate>().is_ok() => (1..=1, "1"),
            _ => return Err(unknown(name)),
        };
        if allowed.contains(&found) {
            return Ok(());
        }
        Err(format!("invalid number of arguments for {name}, expected {expected}, got {found}").into())
    }

    /// Returns the aggregate of this call.
    ///
    /// `tags` are the tags of `top` and `bottom`, as indexes of references.
    pub(super) fn aggregate(self, tags: Vec<usize>) -> Result<Aggregate, StatementError> {
        let aggregate: Aggregate = self.name.parse().map_err(|_| unknown(self.name))?;
        Ok(match aggregate {
            Aggregate::Percentile(_) => match &self.arguments[1] {
                Expr::Integer(value) => Aggregate::Percentile(*value as f64),
                Expr::Number(value) => Aggregate::Percentile(*value),
                _ => return Err("expected float argument in percentile()".into()),
            },
            Aggregate::Top(_) => Aggregate::Top(Ranked { tags, limit: self.ranked_limit()? }),
            Aggregate::Bottom(_) => Aggregate::Bottom(Ranked { tags, limit: self.ranked_limit()? }),
            others => others,
        })
    }

    fn ranked_limit(self) -> Result<usize, StatementError> {
        let Self { name, arguments } = self;
        match arguments.last() {
            Some(Expr::Integer(limit)) if *limit < 1 => {
                Err(format!("limit ({limit}) in {name} function must be at least 1").into())
            }
            Some(Expr::Integer(limit)) if *limit > COUNT_MAX => {
                Err(format!("limit ({limit}) in {name} function must be at most {COUNT_MAX}").into())
            }
            Some(Expr::Integer(limit)) => Ok(*limit as usize),
            Some(other) => Err(format!("expected integer as last argument in {name}(), found {other}").into()),
            None => Err(format!("expected integer as last argument in {name}()").into()),
        }
    }

    /// Returns the transform of this call.
    ///
    /// `every_ns` is the length of the windows. It is the default unit of a derivative of an aggregate, such
    /// as `derivative(mean(x))`.
    pub(super) fn transform(self, every_ns: i64, is_nested: bool) -> Result<Transform, StatementError> {
        Ok(match self.name {
            "derivative" | "non_negative_derivative" => {
                let default = if is_nested && every_ns > 0 { every_ns } else { 1_000_000_000 };
                let is_non_negative = self.name == "non_negative_derivative";
                Transform::Derivative { unit_ns: self.unit(default)?, is_non_negative }
            }
            "difference" => Transform::Difference { is_non_negative: false },
            "non_negative_difference" => Transform::Difference { is_non_negative: true },
            "cumulative_sum" => Transform::CumulativeSum,
            "elapsed" => Transform::Elapsed { unit_ns: self.unit(1)? },
            _ => match &self.arguments[1] {
                Expr::Integer(count) if *count <= 1 => {
                    return Err(format!("moving_average window must be greater than 1, got {count}").into());
                }
                Expr::Integer(count) if *count > COUNT_MAX => {
                    return Err(format!("moving_average window must be at most {COUNT_MAX}, got {count}").into());
                }
                Expr::Integer(count) => Transform::MovingAverage(*count as usize),
                other => {
                    let kind = other.kind();
                    let message = format!("second argument for moving_average must be an integer, got {kind}");
                    return Err(message.into());
                }
            },
        })
    }

    fn unit(self, default: i64) -> Result<i64, StatementError> {
        match self.arguments.get(1) {
            None => Ok(default),
            Some(Expr::Duration(ns)) if *ns <= 0 => {
                Err(format!("duration argument must be positive, got {}", duration::format(*ns)).into())
            }
            Some(Expr::Duration(ns)) => Ok(*ns),
            Some(other) => {
                Err(format!("second argument to {} must be a duration, got {}", self.name, other.kind()).into())
            }
        }
    }
}
