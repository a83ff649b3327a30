//! The schema of the data of a `SELECT`. It expands wildcards and checks the types of operands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::ast::{Cast, Column, Expr, Operator};
use super::super::error::StatementError;
use super::super::regex::Pattern;
use super::super::source::{Aliases, Series};
use super::function::Called;
use super::{COLUMNS_MAX, Dimensions};

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub(in super::super) enum Type {
    Float,
    Integer,
    #[strum(serialize = "string")]
    Text,
    Tag,
    Boolean,
}

impl Type {
    const fn is_number(self) -> bool {
        matches!(self, Self::Float | Self::Integer)
    }
}

/// The fields and tags of all data that a `SELECT` reads.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Schema {
    pub(in super::super) fields: BTreeMap<String, Type>,
    pub(in super::super) tags: BTreeSet<String>,
    /// Other names of one of the tags.
    pub(in super::super) aliases: Arc<Aliases>,
}

/// Replaces wildcards and regular expressions by the columns that they stand for.
pub(super) fn expand(
    columns: &[Column],
    schema: &Schema,
    dimensions: &Dimensions,
) -> Result<Vec<Column>, StatementError> {
    let mut expanded = Vec::new();
    for column in columns {
        match &column.expr {
            Expr::Wildcard(cast) => expanded.extend(schema.all(*cast, None, dimensions)),
            Expr::Regex(pattern) => expanded.extend(schema.all(None, Some(pattern), dimensions)),
            Expr::Call(name, arguments) => expand_call(name, arguments, column, schema, &mut expanded)?,
            other => {
                if has_wildcard(other) {
                    return Err("unable to use wildcard in a binary expression".into());
                }
                expanded.push(column.clone());
            }
        }
        if expanded.len() > COLUMNS_MAX {
            return Err(format!("the SELECT has more than {COLUMNS_MAX} columns").into());
        }
    }
    Ok(expanded)
}

/// Expands `mean(*)`, and `derivative(mean(*))`, to a call for each field.
fn expand_call(
    name: &str,
    arguments: &[Expr],
    column: &Column,
    schema: &Schema,
    expanded: &mut Vec<Column>,
) -> Result<(), StatementError> {
    let called = Called { name, arguments };
    let inner: &[Expr] = if let [Expr::Call(_, inner), ..] = arguments { inner } else { arguments };
    let pattern = match inner.first() {
        Some(Expr::Wildcard(None | Some(Cast::Field))) => None,
        Some(Expr::Regex(pattern)) => Some(pattern),
        Some(Expr::Wildcard(_)) => return Err(format!("unable to use tag wildcard in {name}()").into()),
        _ => {
            expanded.push(column.clone());
            return Ok(());
        }
    };
    called.check()?;
    if called.is_ranked() {
        let message = format!("expected first argument to be a field in {name}(), found {}", arguments[0]);
        return Err(message.into());
    }
    let prefix = column.alias.clone().unwrap_or_else(|| name.to_owned());
    let is_counted =
        |kind: Type| kind.is_number() || matches!(name, "count" | "first" | "last" | "distinct" | "elapsed");
    let is_meant = |field: &str| pattern.is_none_or(|pattern| pattern.matches(field));
    let meant = schema.fields.iter().filter(|(field, kind)| is_counted(**kind) && is_meant(field));
    // The plan refuses any other call because of its first column. So no long text or list is repeated.
    let is_number = |argument: &Expr| matches!(argument, Expr::Integer(_) | Expr::Number(_) | Expr::Duration(_));
    let is_good = inner.len() <= 2 && inner.iter().skip(1).chain(arguments.iter().skip(1)).all(is_number);
    for (field, _) in meant.take(if is_good { COLUMNS_MAX + 1 } else { 1 }) {
        let mut arguments = arguments.to_vec();
        let place = match &mut arguments[0] {
            Expr::Call(_, inner) => &mut inner[0],
            other => other,
        };
        *place = Expr::Name(field.clone(), None);
        let expr = Expr::Call(name.to_owned(), arguments);
        expanded.push(Column { expr, alias: Some(format!("{prefix}_{field}")) });
    }
    Ok(())
}

impl Schema {
    /// Adds the fields and tags of series.
    pub(in super::super) fn add(&mut self, series: &[Series]) {
        if let Some(first) = series.first() {
            self.aliases = Arc::clone(&first.aliases);
        }
        for one in series {
            for field in &one.fields {
                if !self.fields.contains_key(&**field) {
                    self.fields.insert(field.to_string(), Type::Float);
                }
            }
            for (key, _) in &one.tags {
                if !self.tags.contains(&**key) {
                    self.tags.insert(key.to_string());
                }
            }
        }
    }

    /// The tag that `name` is another name of.
    pub(in super::super) fn tag_of_alias(&self, name: &str) -> Option<&str> {
        self.aliases.key_of(name).filter(|key| self.tags.contains(*key))
    }

    /// The other names of a tag that a pattern means.
    pub(super) fn aliases_in<'s>(&'s self, pattern: &'s Pattern) -> impl Iterator<Item = &'s String> {
        let has_tag = self.tags.contains(&self.aliases.key);
        self.aliases.named_by(pattern).filter(move |_| has_tag)
    }

    /// The columns that a wildcard or a regular expression stands for, by name.
    ///
    /// If they are too many for a `SELECT`, some are left out.
    fn all(&self, cast: Option<Cast>, pattern: Option<&Pattern>, dimensions: &Dimensions) -> Vec<Column> {
        let fields = self.fields.keys().filter(|_| cast != Some(Cast::Tag));
        let has_tags = cast != Some(Cast::Field) && !dimensions.has_wildcard();
        let is_free = |tag: &&String| has_tags && !dimensions.tags.contains(*tag);
        let aliases = pattern.into_iter().flat_map(|pattern| self.aliases_in(pattern));
        let mut names: Vec<_> = fields.chain(self.tags.iter().chain(aliases).filter(is_free)).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| pattern.is_none_or(|pattern| pattern.matches(name)));
        let column = |name: &String| Column { expr: Expr::Name(name.clone(), None), alias: None };
        names.into_iter().take(COLUMNS_MAX + 1).map(column).collect()
    }

    /// The type of a field or tag; `None` if there is none of this name.
    pub(super) fn type_of_name(&self, name: &str, cast: Option<Cast>) -> Option<Type> {
        match cast {
            Some(Cast::Float) => Some(Type::Float),
            Some(Cast::Integer | Cast::Unsigned) => Some(Type::Integer),
            Some(Cast::Text) => Some(Type::Text),
            Some(Cast::Boolean) => Some(Type::Boolean),
            Some(Cast::Tag) => Some(Type::Tag),
            None | Some(Cast::Field) => {
                let is_tag = || self.tags.contains(name) || self.tag_of_alias(name).is_some();
                self.fields.get(name).copied().or_else(|| is_tag().then_some(Type::Tag))
            }
        }
    }

    /// The type of an expression; `None` if it is not known.
    pub(super) fn type_of(&self, expr: &Expr) -> Option<Type> {
        match expr {
            Expr::Name(name, cast) => self.type_of_name(name, *cast),
            Expr::Distinct(name) => self.type_of_name(name, None),
            Expr::Integer(_) => Some(Type::Integer),
            Expr::Number(_) => Some(Type::Float),
            Expr::Text(_) => Some(Type::Text),
            Expr::Boolean(_) => Some(Type::Boolean),
            Expr::Group(inner) => self.type_of(inner),
            Expr::Call(name, arguments) => match &**name {
                "count" | "elapsed" => Some(Type::Integer),
                "mean" | "median" | "stddev" | "derivative" | "non_negative_derivative" | "moving_average" => {
                    Some(Type::Float)
                }
                _ => arguments.first().and_then(|argument| self.type_of(argument)),
            },
            Expr::Binary(operator, left, right) => match (self.type_of(left)?, self.type_of(right)?) {
                (Type::Integer, Type::Integer) if *operator != Operator::Divide => Some(Type::Integer),
                _ => Some(Type::Float),
            },
            _ => None,
        }
    }

    /// Checks that each operator suits the types of its operands.
    pub(super) fn check_types(&self, expr: &Expr) -> Result<(), StatementError> {
        match expr {
            Expr::Binary(operator, left, right) => {
                self.check_types(left)?;
                self.check_types(right)?;
                let (Some(a), Some(b)) = (self.type_of(left), self.type_of(right)) else { return Ok(()) };
                let is_of_bits = matches!(operator, Operator::BitAnd | Operator::BitOr | Operator::BitXor);
                let is_good = if is_of_bits { a == b && a != Type::Float } else { a.is_number() && b.is_number() };
                if is_good {
                    return Ok(());
                }
                let (left, operator, right) = (self.typed(left), operator.text(), self.typed(right));
                Err(format!("type error: {left} {operator} {right}: incompatible types: {a} and {b}").into())
            }
            Expr::Group(inner) => self.check_types(inner),
            _ => Ok(()),
        }
    }

    /// Checks that each bit operator of a condition suits the types of its operands.
    pub(in super::super) fn check_condition(&self, expr: &Expr) -> Result<(), StatementError> {
        match expr {
            Expr::Binary(Operator::BitAnd | Operator::BitOr | Operator::BitXor, ..) => self.check_types(expr),
            Expr::Binary(_, left, right) => {
                self.check_condition(left)?;
                self.check_condition(right)
            }
            Expr::Logic(_, operands) => operands.iter().try_for_each(|operand| self.check_condition(operand)),
            Expr::Group(inner) => self.check_condition(inner),
            _ => Ok(()),
        }
    }

    /// The expression as text, with the types of names.
    fn typed(&self, expr: &Expr) -> String {
        match expr {
            Expr::Name(name, cast) => match self.type_of_name(name, *cast) {
                Some(kind) => format!("{}::{kind}", Expr::Name(name.clone(), None)),
                None => expr.to_string(),
            },
            Expr::Group(inner) => format!("({})", self.typed(inner)),
            Expr::Binary(operator, left, right) => {
                format!("{} {} {}", self.typed(left), operator.text(), self.typed(right))
            }
            other => other.to_string(),
        }
    }
}

/// Whether an expression has a wildcard or a pattern.
///
/// Such an expression stands for several columns.
pub(in super::super) fn has_wildcard(expr: &Expr) -> bool {
    match expr {
        Expr::Wildcard(_) | Expr::Regex(_) => true,
        Expr::Group(inner) => has_wildcard(inner),
        Expr::Binary(_, left, right) => has_wildcard(left) || has_wildcard(right),
        Expr::Call(_, arguments) => arguments.iter().any(has_wildcard),
        _ => false,
    }
}

/// Returns the fields and tags in the columns and in the condition of a `SELECT`.
///
/// `None`: a column has a wildcard.
pub(in super::super) fn names_of<'e>(columns: &'e [Column], condition: Option<&'e Expr>) -> Option<BTreeSet<&'e str>> {
    let mut names = BTreeSet::new();
    for expr in columns.iter().map(|column| &column.expr).chain(condition) {
        add_names(expr, &mut names);
    }
    (!columns.iter().any(|column| has_wildcard(&column.expr))).then_some(names)
}

fn add_names<'e>(expr: &'e Expr, names: &mut BTreeSet<&'e str>) {
    match expr {
        Expr::Name(name, _) | Expr::Distinct(name) => _ = names.insert(name),
        Expr::Group(inner) => add_names(inner, names),
        Expr::Binary(_, left, right) => [left, right].into_iter().for_each(|side| add_names(side, names)),
        Expr::Logic(_, parts) | Expr::Call(_, parts) => parts.iter().for_each(|part| add_names(part, names)),
        _ => {}
    }
}
