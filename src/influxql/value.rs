//! Values and arithmetic.

use std::cmp::Ordering;
use std::sync::Arc;

use super::ast::Operator;
use crate::model::Sum;

/// A value in a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// No value.
    Null,
    /// A number with a point.
    ///
    /// It may be infinite or NaN, which an answer shows as null.
    Float(f64),
    /// An integer, such as a count.
    Integer(i64),
    /// A tag or another text.
    Text(Arc<str>),
    /// A boolean literal, or the result of `&`, `|` or `^` on booleans.
    Boolean(bool),
}

impl Value {
    /// Whether this is [`Self::Null`].
    #[must_use]
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The value as a float; `None` if it is no number.
    #[must_use]
    pub const fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            Self::Integer(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// Compares two numbers, or two texts.
    ///
    /// Any other value compares as NaN: two such values are equal, and numbers are less.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => a.cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (a, b) => a.as_f64().unwrap_or(f64::NAN).total_cmp(&b.as_f64().unwrap_or(f64::NAN)),
        }
    }

    /// Returns this number minus `other`.
    pub(super) fn minus(&self, other: &Self) -> Self {
        arithmetic(Operator::Subtract, self, other)
    }
}

/// The sum of numbers; null if a value is none.
///
/// The sum of floats includes the rounding errors. Integers wrap around on overflow.
#[derive(Debug, Clone)]
pub(super) enum Total {
    Floats(Sum),
    Others(Value),
}

impl Total {
    pub(super) fn of(value: Value) -> Self {
        match value {
            Value::Float(value) => Self::Floats(Sum::of(value)),
            other => Self::Others(other),
        }
    }

    pub(super) fn add(&mut self, value: &Value) {
        if let (Self::Floats(sum), Some(value)) = (&mut *self, value.as_f64()) {
            sum.add(value);
        } else {
            *self = Self::of(arithmetic(Operator::Add, &self.value(), value));
        }
    }

    pub(super) fn value(&self) -> Value {
        match self {
            Self::Floats(sum) => Value::Float(sum.finish()),
            Self::Others(value) => value.clone(),
        }
    }
}

/// Applies an operator to two values.
///
/// The result is null if the operator does not apply to their types. A division by zero gives 0, as in
/// InfluxDB.
pub(super) fn arithmetic(operator: Operator, left: &Value, right: &Value) -> Value {
    match (left, right) {
        (Value::Integer(a), Value::Integer(b)) => integers(operator, *a, *b),
        (Value::Boolean(a), Value::Boolean(b)) => match operator {
            Operator::BitAnd => Value::Boolean(a & b),
            Operator::BitOr => Value::Boolean(a | b),
            Operator::BitXor => Value::Boolean(a ^ b),
            _ => Value::Null,
        },
        _ => match (left.as_f64(), right.as_f64()) {
            (Some(a), Some(b)) => floats(operator, a, b),
            _ => Value::Null,
        },
    }
}

fn integers(operator: Operator, a: i64, b: i64) -> Value {
    Value::Integer(match operator {
        Operator::Add => a.wrapping_add(b),
        Operator::Subtract => a.wrapping_sub(b),
        Operator::Multiply => a.wrapping_mul(b),
        Operator::Divide => return Value::Float(if b == 0 { 0.0 } else { a as f64 / b as f64 }),
        Operator::Remainder => a.checked_rem(b).unwrap_or(0),
        Operator::BitAnd => a & b,
        Operator::BitOr => a | b,
        Operator::BitXor => a ^ b,
        _ => return Value::Null,
    })
}

fn floats(operator: Operator, a: f64, b: f64) -> Value {
    Value::Float(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => {
            if b == 0.0 {
                0.0
            } else {
                a / b
            }
        }
        Operator::Remainder => a % b,
        _ => return Value::Null,
    })
}
