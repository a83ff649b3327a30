//! The values that a payload, or one element of it, has at the paths of a hook.

use std::borrow::Cow;

use super::super::json::{lexer::Kind, problem::fill};
use super::super::problem::{Parsed, invalid_time, quoted, rejection};
use super::Hook;
use super::time;
use super::tree::Role;
use crate::model::series;
use crate::wire::{Code, Ignored, Limits, Rejection};

/// The values found so far. Elements share the buffers.
#[derive(Debug, Default)]
pub(super) struct Found<'b> {
    pub(super) device: Option<Parsed<Cow<'b, str>>>,
    pub(super) ts_ms: Option<Parsed<i64>>,
    /// The labels by the number of their path; `None`: absent.
    pub(super) labels: Vec<Option<Parsed<Cow<'b, str>>>>,
    /// The JSON texts by the number of their path; `None`: absent.
    pub(super) metadata: Vec<Option<Parsed<&'b str>>>,
    /// Whether the payload meets a condition of the hook.
    pub(super) is_meant: bool,
    /// The values, up to the limit of a reading.
    pub(super) values: Vec<(Cow<'b, str>, f64)>,
    /// The rejections of values.
    ///
    /// Together with `values`, they stay within the limit of a reading.
    pub(super) rejected_values: Vec<Rejection>,
    /// The number of values beyond the limit.
    pub(super) surplus: usize,
    /// The ignored values, by their keys.
    pub(super) ignored: Vec<(Ignored, Cow<'b, str>)>,
    /// The rejection of a key that occurs twice in an object on the way to the values.
    pub(super) repeated_key: Option<Rejection>,
}

/// A value in the payload.
#[derive(Debug)]
pub(super) enum Value<'b> {
    Text(Cow<'b, str>),
    Number(&'b str),
    Boolean(bool),
    Null,
    /// An object, an array, or `NaN` and infinities: no value for a metric or label.
    Container(Kind),
}

impl Value<'_> {
    /// The value of a metric: a number, or 1 or 0 for a boolean.
    ///
    /// `None` for anything else.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(number.parse().expect("every JSON number is one to Rust")),
            Self::Boolean(is_true) => Some(f64::from(u8::from(*is_true))),
            _ => None,
        }
    }

    fn is_text(&self, text: &str) -> bool {
        match self {
            Self::Text(found) => found == text,
            Self::Number(found) => *found == text,
            Self::Boolean(is_true) => text == if *is_true { "true" } else { "false" },
            Self::Null | Self::Container(_) => false,
        }
    }

    /// The value in "expected a number, found ...".
    fn kind(&self) -> Kind {
        match self {
            Self::Text(_) => Kind::String,
            Self::Number(_) => Kind::Number,
            Self::Boolean(true) => Kind::True,
            Self::Boolean(false) => Kind::False,
            Self::Null => Kind::Null,
            Self::Container(kind) => *kind,
        }
    }
}

impl<'b> Found<'b> {
    pub(super) fn new(hook: &Hook) -> Self {
        let mut found = Self::default();
        found.clear(hook);
        found
    }

    /// Forgets everything but the buffers.
    pub(super) fn clear(&mut self, hook: &Hook) {
        (self.device, self.ts_ms, self.is_meant, self.surplus) = (None, None, false, 0);
        self.labels.clear();
        self.labels.resize_with(hook.label_names.len(), || None);
        self.metadata.clear();
        self.metadata.resize_with(hook.metadata_keys.len(), || None);
        self.values.clear();
        self.rejected_values.clear();
        self.ignored.clear();
        self.repeated_key = None;
    }

    /// Takes the value that the path of a role leads to.
    ///
    /// Does nothing for metadata, whose text [`Self::metadata`] takes.
    pub(super) fn take(&mut self, role: Role, value: &Value<'b>, hook: &'b Hook, limits: &Limits) {
        match role {
            Role::Device => self.take_device(value),
            Role::Time => self.take_time(value, hook),
            Role::Metric(path) => {
                let name = hook.metric_names[path].as_str();
                match (value.number(), value) {
                    (Some(number), _) => self.value(Cow::Borrowed(name), number, limits),
                    (None, Value::Null) => {}
                    (None, other) => {
                        let kind = other.kind();
                        self.reject_value(limits, || {
                            let detail = format!("{} must be a number or a boolean, found {kind}", quoted(name));
                            rejection(Code::InvalidValue, detail)
                        });
                    }
                }
            }
            Role::Label(path) => {
                let found = match value {
                    Value::Text(text) if text.is_empty() => return,
                    Value::Text(text) => Ok(text.clone()),
                    Value::Number(number) => Ok(Cow::Borrowed(*number)),
                    Value::Boolean(is_true) => Ok(Cow::Borrowed(if *is_true { "true" } else { "false" })),
                    Value::Null => return,
                    Value::Container(kind) => {
                        let name = quoted(&hook.label_names[path]);
                        let detail = format!("the label {name} must be a text, a number or a boolean, found {kind}");
                        Err(rejection(Code::InvalidLabel, detail))
                    }
                };
                // All elements of an array may share this label, so its length is checked once, here.
                let found = found.and_then(|text| {
                    series::check_length(text.len())?;
                    Ok(text)
                });
                fill(&mut self.labels[path], &hook.label_names[path], found);
            }
            Role::Condition(number) => {
                self.is_meant |= match &hook.conditions[number].text {
                    None => !matches!(value, Value::Null),
                    Some(text) => value.is_text(text),
                };
            }
            Role::Metadata(_) => {}
        }
    }

    fn take_device(&mut self, value: &Value<'b>) {
        let found = match value {
            Value::Null => return,
            Value::Text(text) => Ok(text.clone()),
            Value::Number(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Cow::Borrowed(*number)),
            other => {
                let detail = format!("the device must be a text or a whole number, found {}", other.kind());
                Err(rejection(Code::InvalidDeviceId, detail))
            }
        };
        fill(&mut self.device, "device", found);
    }

    fn take_time(&mut self, value: &Value<'b>, hook: &Hook) {
        let found = match value {
            Value::Null => return,
            Value::Text(text) => time::of_text(text, hook.time_unit),
            Value::Number(number) => time::of_number(number, hook.time_unit),
            other => Err(invalid_time(format!("the time must be a text or a number, found {}", other.kind()))),
        };
        fill(&mut self.ts_ms, "time", found);
    }

    /// Takes the JSON text of metadata.
    pub(super) fn metadata(&mut self, path: usize, text: &'b str, hook: &Hook) {
        if text != "null" {
            fill(&mut self.metadata[path], &hook.metadata_keys[path], Ok(text));
        }
    }

    pub(super) fn value(&mut self, name: Cow<'b, str>, value: f64, limits: &Limits) {
        if self.has_room(limits) {
            self.values.push((name, value));
        }
    }

    pub(super) fn reject_value(&mut self, limits: &Limits, rejection: impl FnOnce() -> Rejection) {
        if self.has_room(limits) {
            self.rejected_values.push(rejection());
        }
    }

    /// Whether a reading may have another value. If not, the value is only counted.
    fn has_room(&mut self, limits: &Limits) -> bool {
        let has_room = self.values.len() + self.rejected_values.len() < limits.max_metrics;
        self.surplus += usize::from(!has_room);
        has_room
    }
}
