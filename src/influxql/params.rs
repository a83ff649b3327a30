//! The values of bound parameters.

use std::collections::BTreeMap;

use serde_json::Value;

use super::duration;

/// The value of a bound parameter.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Bound {
    Text(String),
    Name(String),
    Regex(String),
    Integer(i64),
    Number(f64),
    Boolean(bool),
    Duration(i64),
    /// A value that cannot be bound, with the reason.
    Bad(String),
}

/// The values of the parameters of a query, by name.
#[derive(Debug, Clone, Default)]
pub struct Parameters(BTreeMap<String, Bound>);

impl Parameters {
    /// Reads parameters from the JSON object of a request.
    ///
    /// # Errors
    /// A message, if `json` is not an object.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let values: BTreeMap<String, Value> =
            serde_json::from_str(json).map_err(|error| format!("error parsing query parameters: {error}"))?;
        Ok(Self(values.into_iter().map(|(name, value)| (name, bound(&value))).collect()))
    }

    pub(super) fn get(&self, name: &str) -> Option<&Bound> {
        self.0.get(name)
    }
}

fn bound(value: &Value) -> Bound {
    match value {
        Value::String(text) => Bound::Text(text.clone()),
        Value::Bool(value) => Bound::Boolean(*value),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => Bound::Integer(integer),
            None => Bound::Number(number.as_f64().unwrap_or_default()),
        },
        Value::Object(typed) => match typed.iter().next() {
            Some((kind, value)) if typed.len() == 1 => bound_as(kind, value),
            _ => Bound::Bad("bound object parameter value must have exactly one entry".to_owned()),
        },
        Value::Null => Bound::Bad("unable to bind parameter with type <nil>".to_owned()),
        Value::Array(_) => Bound::Bad("unable to bind parameter with type []interface {}".to_owned()),
    }
}

/// The value of an object such as `{"duration": "1h"}`.
fn bound_as(kind: &str, value: &Value) -> Bound {
    let text = value.as_str().map(str::to_owned);
    let bound = match kind {
        "string" => text.map(Bound::Text),
        "identifier" => text.map(Bound::Name),
        "regex" => text.map(Bound::Regex),
        "duration" => match text {
            Some(text) => duration::parse(&text).map(Bound::Duration),
            None => value.as_i64().map(Bound::Duration),
        },
        "integer" => value.as_i64().map(Bound::Integer),
        "float" | "number" => value.as_f64().map(Bound::Number),
        "boolean" => value.as_bool().map(Bound::Boolean),
        _ => return Bound::Bad(format!("unknown bind object type: {kind}")),
    };
    bound.unwrap_or_else(|| Bound::Bad(format!("unable to bind parameter of type {kind}")))
}
