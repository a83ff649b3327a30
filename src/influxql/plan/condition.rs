//! `WHERE`, without the comparisons with `time`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::ast::{Cast, Expr, Operator};
use super::super::error::StatementError;
use super::super::regex::Pattern;
use super::super::source::{Series, WantedTag};
use super::super::value::{Value, arithmetic};
use super::function::{is_unsupported, unknown};
use super::{Plan, Reference};
use crate::common::work;

/// A condition over the values of a row.
#[derive(Debug, Clone)]
pub(in super::super) enum Condition {
    Constant(bool),
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Compare(Operator, Operand, Operand),
    /// A comparison with a regular expression.
    ///
    /// `nth` is its index among all comparisons with regular expressions.
    Matches {
        operand: Operand,
        pattern: Pattern,
        is_negated: bool,
        nth: usize,
    },
}

/// The condition of a statement, by which a source leaves out series.
#[derive(Debug, Clone)]
pub struct TagFilter {
    condition: Condition,
    references: Vec<Reference>,
    /// Whether series without rows are needed too, such as those that lack a field of the condition.
    needs_rowless: bool,
}

#[derive(Debug, Clone)]
pub(in super::super) enum Operand {
    Reference(usize),
    Literal(Value),
    Binary(Operator, Box<Operand>, Box<Operand>),
}

impl Condition {
    /// Compiles a condition; the names in it become references of the plan.
    pub(in super::super) fn new(expr: &Expr, plan: &mut Plan) -> Result<Self, StatementError> {
        match expr {
            Expr::Logic(operator, operands) => {
                let operands = operands.iter().map(|operand| Self::new(operand, plan)).collect::<Result<_, _>>()?;
                Ok(if *operator == Operator::And { Self::All(operands) } else { Self::Any(operands) })
            }
            Expr::Group(inner) => Self::new(inner, plan),
            Expr::Boolean(value) => Ok(Self::Constant(*value)),
            Expr::Binary(operator @ (Operator::Matches | Operator::MatchesNot), left, right) => {
                let Expr::Regex(pattern) = &**right else {
                    return Err(format!("invalid condition expression: {expr}").into());
                };
                let operand = Operand::new(left, plan)?;
                let is_negated = *operator == Operator::MatchesNot;
                plan.patterns += 1;
                Ok(Self::Matches { operand, pattern: pattern.clone(), is_negated, nth: plan.patterns - 1 })
            }
            Expr::Binary(operator, left, right) if is_comparison(*operator) => {
                Ok(Self::Compare(*operator, Operand::new(left, plan)?, Operand::new(right, plan)?))
            }
            Expr::Call(name, _) => Err(call_error(name, expr)),
            other => Err(format!("invalid condition expression: {other}").into()),
        }
    }

    /// The work of an evaluation: the number of comparisons and arithmetic operations.
    pub(in super::super) fn size(&self) -> usize {
        match self {
            Self::All(operands) | Self::Any(operands) => operands.iter().map(Self::size).sum(),
            Self::Compare(_, left, right) => left.size() + right.size() + 1,
            Self::Matches { operand, .. } => operand.size() + 1,
            Self::Constant(_) => 1,
        }
    }

    /// Evaluates the regular expressions whose operands are known.
    ///
    /// `results` gets the result of each at the index `nth` of its comparison. [`Self::holds`] uses these
    /// results, so that a regular expression, which takes long, does not run for each row.
    pub(in super::super) fn match_known<'v>(
        &self,
        value: &impl Fn(usize) -> Option<&'v Value>,
        results: &mut [Option<bool>],
    ) {
        match self {
            Self::All(operands) | Self::Any(operands) => {
                for operand in operands {
                    operand.match_known(value, results);
                }
            }
            Self::Matches { nth, .. } => results[*nth] = self.holds(value, &[]),
            Self::Constant(_) | Self::Compare(..) => {}
        }
    }

    /// Whether the condition holds; `None`: it depends on a value not yet known.
    ///
    /// `value` returns `None` for a value that is not known yet. `matched` has the results of
    /// [`Self::match_known`], or is empty.
    pub(in super::super) fn holds<'v>(
        &self,
        value: &impl Fn(usize) -> Option<&'v Value>,
        matched: &[Option<bool>],
    ) -> Option<bool> {
        match self {
            Self::Constant(value) => Some(*value),
            Self::All(operands) => {
                let mut all = Some(true);
                for operand in operands {
                    match operand.holds(value, matched) {
                        Some(false) => return Some(false),
                        Some(true) => {}
                        None => all = None,
                    }
                }
                all
            }
            Self::Any(operands) => {
                let mut any = Some(false);
                for operand in operands {
                    match operand.holds(value, matched) {
                        Some(true) => return Some(true),
                        Some(false) => {}
                        None => any = None,
                    }
                }
                any
            }
            Self::Compare(operator, left, right) => {
                let (a, b) = (left.value(value)?, right.value(value)?);
                // An absent tag equals '', but not another absent tag.
                let is_of_names = matches!((left, right), (Operand::Reference(_), Operand::Reference(_)));
                let is_absent = is_of_names && matches!(&a, Value::Text(text) if text.is_empty());
                Some(compare(*operator, &a, &b) && !(is_absent && *operator == Operator::Equal))
            }
            Self::Matches { operand, pattern, is_negated, nth } => match matched.get(*nth) {
                Some(Some(result)) => Some(*result),
                _ => match operand.value(value)? {
                    Value::Text(text) => Some(pattern.matches(&text) != *is_negated),
                    _ => Some(false),
                },
            },
        }
    }
}

impl Condition {
    /// Returns the text with which all values of a tag begin for which the condition holds.
    ///
    /// It is empty if they may begin with any text.
    fn start_of(&self, is_tag: &impl Fn(usize) -> bool) -> &str {
        match self {
            Self::All(operands) => {
                let starts = operands.iter().map(|operand| operand.start_of(is_tag));
                starts.max_by_key(|start| start.len()).unwrap_or_default()
            }
            Self::Matches { operand: Operand::Reference(at), pattern, is_negated: false, .. } if is_tag(*at) => {
                pattern.start()
            }
            _ => "",
        }
    }
}

impl TagFilter {
    /// `None`: there is no condition, or it is malformed, so that the plan will refuse it.
    pub(in super::super) fn new(condition: Option<&Expr>, needs_rowless: bool) -> Option<Self> {
        let mut plan = Plan::default();
        let condition = Condition::new(condition?, &mut plan).ok()?;
        Some(Self { condition, references: plan.references, needs_rowless })
    }

    /// Whether the condition may hold for a row of the series.
    ///
    /// A name without a cast is a field if the series has such a field, and else a tag. If other series have
    /// the field, the name is a field that the series lacks, and no comparison with it holds. If series
    /// without rows are needed, a comparison with a name that the series lacks may hold.
    #[must_use]
    pub fn may_hold(&self, series: &Series) -> bool {
        work::count(self.condition.size() + self.references.len());
        let value = |(name, cast): &Reference| {
            let is_tag = is_of_tag(*cast) && (cast.is_some() || series.field(name).is_none());
            let text = is_tag.then(|| series.tag(name));
            let is_known = |text: &&str| cast.is_some() || !self.needs_rowless || !text.is_empty();
            text.filter(is_known).map(|text| Value::Text(text.into()))
        };
        let values: Vec<Option<Value>> = self.references.iter().map(value).collect();
        self.condition.holds(&|at| values[at].as_ref(), &[]) != Some(false)
    }

    /// Returns the text with which the values of a tag begin in all series that the condition may hold for.
    ///
    /// `is_tag` says whether a name is that of the tag. The text is empty if the values may begin with any.
    #[must_use]
    pub fn start_of(&self, is_tag: impl Fn(&str) -> bool) -> &str {
        self.condition.start_of(&|at| {
            let (name, cast) = &self.references[at];
            is_of_tag(*cast) && is_tag(name)
        })
    }
}

impl Operand {
    fn new(expr: &Expr, plan: &mut Plan) -> Result<Self, StatementError> {
        Ok(match expr {
            Expr::Name(name, cast) => Self::Reference(plan.reference(name, *cast)),
            Expr::Group(inner) => Self::new(inner, plan)?,
            Expr::Integer(value) => Self::Literal(Value::Integer(*value)),
            Expr::Number(value) => Self::Literal(Value::Float(*value)),
            Expr::Boolean(value) => Self::Literal(Value::Boolean(*value)),
            Expr::Text(text) => Self::Literal(Value::Text(Arc::from(&**text))),
            Expr::Duration(ns) => Self::Literal(Value::Integer(*ns)),
            Expr::Binary(operator, left, right) if !is_comparison(*operator) => {
                Self::Binary(*operator, Box::new(Self::new(left, plan)?), Box::new(Self::new(right, plan)?))
            }
            Expr::Call(name, _) => return Err(call_error(name, expr)),
            other => return Err(format!("invalid condition expression: {other}").into()),
        })
    }

    fn size(&self) -> usize {
        match self {
            Self::Reference(_) | Self::Literal(_) => 0,
            Self::Binary(_, left, right) => left.size() + right.size() + 1,
        }
    }

    fn value<'v>(&self, value: &impl Fn(usize) -> Option<&'v Value>) -> Option<Value> {
        match self {
            Self::Reference(at) => value(*at).cloned(),
            Self::Literal(literal) => Some(literal.clone()),
            Self::Binary(operator, left, right) => {
                Some(arithmetic(*operator, &left.value(value)?, &right.value(value)?))
            }
        }
    }
}

fn call_error(name: &str, call: &Expr) -> StatementError {
    if is_unsupported(name) { unknown(name) } else { format!("invalid function call in condition: {call}").into() }
}

const fn is_comparison(operator: Operator) -> bool {
    matches!(
        operator,
        Operator::Equal
            | Operator::NotEqual
            | Operator::Less
            | Operator::LessOrEqual
            | Operator::Greater
            | Operator::GreaterOrEqual
    )
}

/// Compares two values.
///
/// The result is false for values of different kinds, such as a number and a text. For two texts, only `=`
/// and `!=` can be true.
fn compare(operator: Operator, left: &Value, right: &Value) -> bool {
    let order = match (left, right) {
        (Value::Text(a), Value::Text(b)) => {
            return match operator {
                Operator::Equal => a == b,
                Operator::NotEqual => a != b,
                _ => false,
            };
        }
        (Value::Boolean(a), Value::Boolean(b)) => Some(a.cmp(b)),
        (Value::Integer(a), Value::Integer(b)) => Some(a.cmp(b)),
        _ => match (left.as_f64(), right.as_f64()) {
            (Some(a), Some(b)) => a.partial_cmp(&b),
            _ => None,
        },
    };
    let Some(order) = order else { return false };
    match operator {
        Operator::Equal => order == Ordering::Equal,
        Operator::NotEqual => order != Ordering::Equal,
        Operator::Less => order == Ordering::Less,
        Operator::LessOrEqual => order != Ordering::Greater,
        Operator::Greater => order == Ordering::Greater,
        Operator::GreaterOrEqual => order != Ordering::Less,
        _ => false,
    }
}

/// Returns the tags that a series must have for a condition to hold.
///
/// Each key occurs once.
pub(in super::super) fn wanted_tags(condition: Option<&Expr>) -> Vec<WantedTag> {
    let mut wanted = Wanted::new();
    if let Some(condition) = condition {
        collect_wanted(condition, &mut wanted);
    }
    wanted.into_iter().map(|(key, values)| WantedTag { key: key.to_owned(), values }).collect()
}

/// The values that all conditions on a tag allow, by the key of the tag.
type Wanted<'e> = BTreeMap<&'e str, BTreeSet<String>>;

fn want<'e>(wanted: &mut Wanted<'e>, key: &'e str, values: impl Iterator<Item = String>) {
    let values: BTreeSet<_> = values.collect();
    match wanted.get_mut(key) {
        Some(known) => known.retain(|value| values.contains(value)),
        None => _ = wanted.insert(key, values),
    }
}

fn collect_wanted<'e>(condition: &'e Expr, wanted: &mut Wanted<'e>) {
    match condition {
        Expr::Group(inner) => collect_wanted(inner, wanted),
        Expr::Logic(Operator::And, operands) => operands.iter().for_each(|operand| collect_wanted(operand, wanted)),
        Expr::Logic(_, operands) => {
            let each: Option<Vec<_>> = operands.iter().map(equality).collect();
            let Some(each) = each else { return };
            let key = each[0].0;
            if each.iter().all(|(known, _)| *known == key) {
                want(wanted, key, each.into_iter().flat_map(|(_, values)| values));
            }
        }
        other => {
            if let Some((key, values)) = equality(other) {
                want(wanted, key, values.into_iter());
            }
        }
    }
}

/// Returns the tag key and the values that an equality allows.
///
/// An equality is `key = 'a'`, or `key =~ /^(a|b)$/`, which dashboards send. The result is `None` if a value
/// is empty, because an empty value also means that the tag is absent.
fn equality(expr: &Expr) -> Option<(&str, Vec<String>)> {
    let Expr::Binary(operator, left, right) = expr else {
        return if let Expr::Group(inner) = expr { equality(inner) } else { None };
    };
    let (key, values) = match (operator, &**left, &**right) {
        (Operator::Equal, Expr::Name(key, cast), Expr::Text(value))
        | (Operator::Equal, Expr::Text(value), Expr::Name(key, cast))
            if is_of_tag(*cast) =>
        {
            (key, vec![value.clone()])
        }
        (Operator::Matches, Expr::Name(key, cast), Expr::Regex(pattern)) if is_of_tag(*cast) => {
            (key, pattern.literals()?)
        }
        _ => return None,
    };
    if values.iter().any(String::is_empty) { None } else { Some((key, values)) }
}

const fn is_of_tag(cast: Option<Cast>) -> bool {
    matches!(cast, None | Some(Cast::Tag))
}
