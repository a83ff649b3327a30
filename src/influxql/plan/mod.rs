//! The plan of a `SELECT`: its columns, checked and compiled.
//!
//! A column is a [`Node`]: an expression over references (the fields and tags that the statement names) and
//! calls (its functions). Nodes refer to both by their indexes in the [`Plan`].

mod condition;
mod dimensions;
mod function;
mod wildcard;

use std::collections::HashMap;
use std::sync::Arc;

pub use condition::TagFilter;
pub(super) use condition::{Condition, wanted_tags};
pub(super) use dimensions::Dimensions;
pub(super) use function::{Aggregate, Transform};

use super::ast::{Cast, Expr, Operator, Select};
use super::error::StatementError;
use super::parser::NAME_MAX_BYTES;
use super::value::{Value, arithmetic};
use function::{Called, not_alone};
pub(super) use wildcard::{Schema, Type, has_wildcard, names_of};

/// The most columns of a `SELECT` after its wildcards are expanded.
const COLUMNS_MAX: usize = 2_000;

/// A field or tag that a statement names, with its cast.
pub(super) type Reference = (String, Option<Cast>);

/// A call: an aggregate, a transform, or both as in `derivative(mean(x))`.
///
/// Without an aggregate, the transform reads all points.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Call {
    pub(super) aggregate: Option<Aggregate>,
    pub(super) transform: Option<Transform>,
    /// The index of the argument in [`Plan::references`].
    pub(super) argument: usize,
}

impl Call {
    fn is_selector(&self) -> bool {
        self.transform.is_none() && self.aggregate.as_ref().is_some_and(Aggregate::is_selector)
    }
}

/// An expression over references and calls.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Reference(usize),
    Call(usize),
    Literal(Value),
    Binary(Operator, Box<Node>, Box<Node>),
}

impl Node {
    /// The number of its operators.
    fn size(&self) -> usize {
        match self {
            Self::Reference(_) | Self::Call(_) | Self::Literal(_) => 0,
            Self::Binary(_, left, right) => left.size() + right.size() + 1,
        }
    }

    /// Computes the expression from the values of the references and of the calls.
    pub(super) fn value(&self, references: &[Value], calls: &[Value]) -> Value {
        match self {
            Self::Reference(at) => references.get(*at).cloned().unwrap_or(Value::Null),
            Self::Call(at) => calls[*at].clone(),
            Self::Literal(value) => value.clone(),
            Self::Binary(operator, left, right) => {
                arithmetic(*operator, &left.value(references, calls), &right.value(references, calls))
            }
        }
    }
}

/// The compiled columns of a `SELECT`, with their references and calls.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The columns after `time`, each with its name.
    pub(super) columns: Vec<(String, Node)>,
    /// The type of each column; `None`: the data has no such field or tag.
    pub(super) types: Vec<Option<Type>>,
    pub(super) calls: Vec<Call>,
    pub(super) references: Vec<Reference>,
    /// The index of each reference in `references`.
    places: HashMap<Reference, usize>,
    /// How many references the columns use.
    ///
    /// They precede the references that only the condition uses.
    pub(super) shown: usize,
    /// Whether a column uses a reference outside of a call: `SELECT max(x), host`.
    pub(super) has_auxiliary: bool,
    /// The work for a row of the answer: its operators, its calls, and its references outside of calls.
    pub(super) work: usize,
    /// How many regular expressions the condition has.
    pub(super) patterns: usize,
}

impl Plan {
    /// Plans the columns of a `SELECT` over data of this schema.
    pub(super) fn new(select: &Select, schema: &Schema, dimensions: &Dimensions) -> Result<Self, StatementError> {
        let columns = wildcard::expand(&select.columns, schema, dimensions)?;
        let (mut plan, mut names) = (Self::default(), HashMap::new());
        for column in &columns {
            if matches!(&column.expr, Expr::Name(name, _) if name == "time") {
                continue;
            }
            if !has_name(&column.expr) {
                return Err("field must contain at least one variable".into());
            }
            let name = column.alias.clone();
            let is_named = name.is_some();
            let name = name.unwrap_or_else(|| column.expr.column_name());
            if !is_named && name.len() > NAME_MAX_BYTES {
                return Err(format!(
                    "the name of a column has at most {NAME_MAX_BYTES} bytes, this one has {}; name it with AS",
                    name.len()
                )
                .into());
            }
            schema.check_types(&column.expr)?;
            let kind = schema.type_of(&column.expr);
            let node = plan.node(&column.expr, dimensions, true)?;
            let ranked = match node {
                Node::Call(at) => match &plan.calls[at].aggregate {
                    Some(Aggregate::Top(ranked) | Aggregate::Bottom(ranked)) => ranked.tags.clone(),
                    _ => Vec::new(),
                },
                _ => Vec::new(),
            };
            plan.add_column(&mut names, name, is_named, (node, kind));
            for tag in ranked {
                let (name, cast) = plan.references[tag].clone();
                let kind = schema.type_of_name(&name, cast);
                plan.add_column(&mut names, name, false, (Node::Reference(tag), kind));
            }
        }
        if plan.columns.is_empty() {
            let has_none = columns.is_empty(); // the wildcards match no field or tag
            return if has_none { Ok(plan) } else { Err("at least 1 non-time field must be queried".into()) };
        }
        plan.shown = plan.references.len();
        plan.has_auxiliary = plan.columns.iter().any(|(_, node)| has_reference(node));
        let operators: usize = plan.columns.iter().map(|(_, node)| node.size()).sum();
        plan.work = operators + plan.calls.len() + if plan.has_auxiliary { plan.shown } else { 0 };
        plan.check(dimensions, select.limit.rows)?;
        Ok(plan)
    }

    fn node(&mut self, expr: &Expr, dimensions: &Dimensions, is_whole: bool) -> Result<Node, StatementError> {
        Ok(match expr {
            Expr::Name(name, cast) => Node::Reference(self.reference(name, *cast)),
            Expr::Call(name, arguments) => {
                let call = self.call(Called { name, arguments }, dimensions, is_whole)?;
                Node::Call(self.call_place(call))
            }
            Expr::Distinct(name) => {
                let argument = self.reference(name, None);
                let aggregate = Some(Aggregate::Distinct);
                Node::Call(self.call_place(Call { aggregate, transform: None, argument }))
            }
            Expr::Group(inner) => self.node(inner, dimensions, is_whole)?,
            Expr::Binary(operator, left, right) => {
                let left = self.node(left, dimensions, false)?;
                Node::Binary(*operator, Box::new(left), Box::new(self.node(right, dimensions, false)?))
            }
            Expr::Integer(value) => Node::Literal(Value::Integer(*value)),
            Expr::Number(value) => Node::Literal(Value::Float(*value)),
            Expr::Boolean(value) => Node::Literal(Value::Boolean(*value)),
            Expr::Text(text) => Node::Literal(Value::Text(Arc::from(&**text))),
            Expr::Duration(_) => Node::Literal(Value::Null), // a duration has no value here
            other => return Err(format!("invalid expression in a column: {other}").into()),
        })
    }

    /// Returns the index of a reference, and adds the reference if it is new.
    pub(super) fn reference(&mut self, name: &str, cast: Option<Cast>) -> usize {
        let reference = (name.to_owned(), cast);
        if let Some(place) = self.places.get(&reference) {
            return *place;
        }
        self.places.insert(reference.clone(), self.references.len());
        self.references.push(reference);
        self.references.len() - 1
    }

    fn call_place(&mut self, call: Call) -> usize {
        let place = self.calls.iter().position(|known| *known == call);
        place.unwrap_or_else(|| {
            self.calls.push(call);
            self.calls.len() - 1
        })
    }

    fn call(&mut self, called: Called<'_>, dimensions: &Dimensions, is_whole: bool) -> Result<Call, StatementError> {
        called.check()?;
        let name = called.name;
        let first = &called.arguments[0];
        if called.is_ranked() {
            return self.ranked(called, is_whole);
        }
        if !called.is_transform() {
            return self.aggregate(called);
        }
        match first {
            Expr::Call(inner, arguments) => {
                let inner = Called { name: inner, arguments };
                inner.check()?;
                if inner.is_ranked() {
                    return Err(not_alone(inner.name));
                }
                if dimensions.windows.every_ns == 0 {
                    return Err(format!("{name} aggregate requires a GROUP BY interval").into());
                }
                let transform = called.transform(dimensions.windows.every_ns, true)?;
                Ok(Call { transform: Some(transform), ..self.aggregate(inner)? })
            }
            Expr::Name(field, cast) => {
                if dimensions.windows.every_ns > 0 {
                    return Err(format!("aggregate function required inside the call to {name}").into());
                }
                let transform = Some(called.transform(0, false)?);
                Ok(Call { aggregate: None, transform, argument: self.reference(field, *cast) })
            }
            _ => Err(format!("expected field argument in {name}()").into()),
        }
    }

    fn aggregate(&mut self, called: Called<'_>) -> Result<Call, StatementError> {
        let mut aggregate = called.aggregate(Vec::new())?;
        let argument = match &called.arguments[0] {
            Expr::Name(field, cast) => self.reference(field, *cast),
            Expr::Distinct(field) if aggregate == Aggregate::Count => {
                aggregate = Aggregate::CountDistinct;
                self.reference(field, None)
            }
            Expr::Call(inner, arguments) if aggregate == Aggregate::Count && inner == "distinct" => {
                Called { name: inner, arguments }.check()?;
                let Expr::Name(field, cast) = &arguments[0] else {
                    return Err("expected field argument in distinct()".into());
                };
                aggregate = Aggregate::CountDistinct;
                self.reference(field, *cast)
            }
            _ => return Err(format!("expected field argument in {}()", called.name).into()),
        };
        Ok(Call { aggregate: Some(aggregate), transform: None, argument })
    }

    fn ranked(&mut self, called: Called<'_>, is_whole: bool) -> Result<Call, StatementError> {
        let Called { name, arguments } = called;
        let Expr::Name(field, cast) = &arguments[0] else {
            return Err(format!("expected first argument to be a field in {name}(), found {}", arguments[0]).into());
        };
        called.aggregate(Vec::new())?;
        if !is_whole {
            return Err(not_alone(name));
        }
        let argument = self.reference(field, *cast);
        let mut tags = Vec::new();
        for tag in &arguments[1..arguments.len() - 1] {
            let Expr::Name(tag, cast) = tag else {
                return Err(format!("only fields or tags are allowed in {name}(), found {tag}").into());
            };
            tags.push(self.reference(tag, *cast));
        }
        Ok(Call { aggregate: Some(called.aggregate(tags)?), transform: None, argument })
    }

    /// Adds a column.
    ///
    /// A column with an alias (`is_named`) keeps its name, even if an earlier column has the same one.
    fn add_column(
        &mut self,
        names: &mut HashMap<String, usize>,
        name: String,
        is_named: bool,
        (node, kind): (Node, Option<Type>),
    ) {
        let name = if is_named { name } else { unique(names, name) };
        names.entry(name.clone()).or_insert(1);
        self.columns.push((name, node));
        self.types.push(kind);
    }

    /// Checks that the calls and fields may be combined.
    fn check(&self, dimensions: &Dimensions, limit_rows: usize) -> Result<(), StatementError> {
        if self.calls.is_empty() {
            if dimensions.windows.every_ns > 0 {
                return Err("GROUP BY requires at least one aggregate function".into());
            }
            return Ok(());
        }
        let has_fields = self.has_auxiliary;
        for call in &self.calls {
            let is_alone = self.calls.len() == 1;
            match &call.aggregate {
                Some(Aggregate::Distinct) if call.transform.is_none() && (!is_alone || has_fields) => {
                    return Err(
                        "aggregate function distinct() cannot be combined with other functions or fields".into()
                    );
                }
                Some(Aggregate::Top(ranked)) => ranked.check("top", is_alone, limit_rows)?,
                Some(Aggregate::Bottom(ranked)) => ranked.check("bottom", is_alone, limit_rows)?,
                _ => {}
            }
        }
        if has_fields && !self.calls.iter().all(Call::is_selector) {
            return Err("mixing aggregate and non-aggregate queries is not supported".into());
        }
        if has_fields && self.calls.len() > 1 {
            return Err("mixing multiple selector functions with tags or fields is not supported".into());
        }
        Ok(())
    }

    /// Whether the columns have calls, or use a field or a tag that the data has.
    pub(super) fn is_of(&self, schema: &Schema) -> bool {
        let mut shown = self.references[..self.shown].iter();
        !self.calls.is_empty() || shown.any(|(name, cast)| schema.type_of_name(name, *cast).is_some())
    }

    /// Whether the only call is a selector such as `max`.
    ///
    /// Rows may then have the instants of its points.
    pub(super) fn selects_points(&self) -> bool {
        if let [call] = &*self.calls { call.is_selector() } else { false }
    }
}

/// Appends a number to a name that an earlier column has, such as `mean_1`.
///
/// `names` has the next number of each name.
fn unique(names: &mut HashMap<String, usize>, name: String) -> String {
    let Some(mut suffix) = names.get(&name).copied() else { return name };
    loop {
        let candidate = format!("{name}_{suffix}");
        suffix += 1;
        if !names.contains_key(&candidate) {
            names.insert(name, suffix);
            return candidate;
        }
    }
}

fn has_name(expr: &Expr) -> bool {
    match expr {
        Expr::Name(..) | Expr::Call(..) | Expr::Distinct(_) => true,
        Expr::Group(inner) => has_name(inner),
        Expr::Binary(_, left, right) => has_name(left) || has_name(right),
        Expr::Logic(_, operands) => operands.iter().any(has_name),
        _ => false,
    }
}

fn has_reference(node: &Node) -> bool {
    match node {
        Node::Reference(_) => true,
        Node::Binary(_, left, right) => has_reference(left) || has_reference(right),
        Node::Call(_) | Node::Literal(_) => false,
    }
}
