//! Bound parameters: the values that replace `$name` in a query.

use std::collections::BTreeMap;

use serde_json::Value;

use super::duration;
use super::lexer::Kind;

/// The kind and the text of the token that replaces a parameter.
///
/// `Err`: why the value of the parameter cannot be bound.
pub(super) type Bound = Result<(Kind, String), String>;

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
        Value::String(text) => Ok((Kind::Text, text.clone())),
        Value::Bool(value) => Ok(boolean(*value)),
        Value::Number(number) => Ok(match number.as_i64() {
            Some(integer) => (Kind::Integer, integer.to_string()),
            None => (Kind::Number, number.as_f64().unwrap_or_default().to_string()),
        }),
        Value::Object(typed) => match typed.iter().next() {
            Some((kind, value)) if typed.len() == 1 => bound_as(kind, value),
            _ => Err("bound object parameter value must have exactly one entry".to_owned()),
        },
        Value::Null => Err("unable to bind parameter with type <nil>".to_owned()),
        Value::Array(_) => Err("unable to bind parameter with type []interface {}".to_owned()),
    }
}

/// Binds a value with its type, such as `{"duration": "1h"}`.
fn bound_as(kind: &str, value: &Value) -> Bound {
    let text = value.as_str().map(str::to_owned);
    let bound = match kind {
        "string" => text.map(|text| (Kind::Text, text)),
        "identifier" => text.map(|name| (Kind::Name, name)),
        "regex" => text.map(|regex| (Kind::Regex, regex)),
        "duration" => {
            let ns = text.map_or_else(|| value.as_i64(), |text| duration::parse(&text));
            ns.map(|ns| (Kind::Duration, duration::format(ns)))
        }
        "integer" => value.as_i64().map(|value| (Kind::Integer, value.to_string())),
        "float" | "number" => value.as_f64().map(|value| (Kind::Number, value.to_string())),
        "boolean" => value.as_bool().map(boolean),
        _ => return Err(format!("unknown bind object type: {kind}")),
    };
    bound.ok_or_else(|| format!("unable to bind parameter of type {kind}"))
}

fn boolean(value: bool) -> (Kind, String) {
    (Kind::Keyword, if value { "TRUE" } else { "FALSE" }.to_owned())
}
