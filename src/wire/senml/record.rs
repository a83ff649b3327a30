//! A record of a pack, before base fields are applied.

use std::{borrow::Cow, fmt};

use super::{SenmlError, field::Field, name};
use crate::common::work;
use crate::wire::{
    Code,
    json::problem::fill,
    labels::{self, Labels},
    problem::{Parsed, quoted, rejection},
};

/// The newest supported version of `SenML`, which RFC 8428 defines.
const VERSION: f64 = 10.0;

/// The longest unit. The units that RFC 8428 registers have up to 8 bytes.
const MAX_UNIT_BYTES: usize = 32;

/// The value of a field.
#[derive(Debug, Clone)]
pub(super) enum Item<'b> {
    Number(f64),
    Text(Cow<'b, str>),
    Boolean(bool),
    Null,
    /// A value of another kind, which no field may have, in words for messages.
    Other(&'static str),
}

/// The text in "must be a number, found ...".
impl fmt::Display for Item<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::Boolean(_) => "a boolean",
            Self::Null => "null",
            Self::Other(words) => words,
        })
    }
}

/// The label of the field with the labels of the series. The RFC does not have it.
pub(super) const LABELS: &str = "labels";

/// The fields of a record, indexed by [`Field`].
#[derive(Debug, Default)]
pub(super) struct Record<'b> {
    fields: [Option<Parsed<Item<'b>>>; Field::COUNT],
    labels: Option<Parsed<Labels<'b>>>,
    /// The labels of the unknown fields.
    unknown: Vec<Cow<'b, str>>,
}

impl<'b> Record<'b> {
    /// Adds a field. A duplicate rejects the record.
    pub(super) fn put(&mut self, field: Field, item: Item<'b>) -> Result<(), SenmlError> {
        if field == Field::Version && !matches!(item, Item::Number(version) if version <= VERSION) {
            return Err(SenmlError::Unsupported(format!("\"bver\" must be a number of at most {VERSION}")));
        }
        fill(&mut self.fields[field as usize], field.label(), Ok(item));
        Ok(())
    }

    /// Adds a field by its text label.
    ///
    /// Unknown fields are ignored if the label allows it.
    pub(super) fn put_labelled(&mut self, label: Cow<'b, str>, item: Item<'b>) -> Result<(), SenmlError> {
        match Field::of_text(&label) {
            Some(field) => self.put(field, item),
            None if label.ends_with('_') => {
                Err(SenmlError::Unsupported(format!("the field {} must be supported, and is not", quoted(&label))))
            }
            None => {
                self.put_unknown(label);
                Ok(())
            }
        }
    }

    /// Adds an unknown field.
    ///
    /// `ut`, the time until the next update, is known and ignored.
    pub(super) fn put_unknown(&mut self, label: Cow<'b, str>) {
        if label != "ut" {
            self.unknown.push(label);
        }
    }

    /// Adds the labels of the series.
    pub(super) fn put_labels(&mut self, labels: Parsed<Labels<'b>>) {
        fill(&mut self.labels, LABELS, labels);
    }

    /// The labels of the unknown fields.
    pub(super) fn unknown(&self) -> &[Cow<'b, str>] {
        &self.unknown
    }

    /// The canonical text of the labels of the series; empty without any.
    pub(super) fn series_labels(&self) -> Parsed<String> {
        match &self.labels {
            None => Ok(String::new()),
            Some(labels) => labels::text(Some(labels.as_ref().map_err(Clone::clone)?), None, None),
        }
    }

    pub(super) const fn has(&self, field: Field) -> bool {
        self.fields[field as usize].is_some()
    }

    /// Whether the record has base fields only.
    pub(super) fn is_base(&self) -> bool {
        let mut fields = Field::all().filter(|&field| self.has(field)).peekable();
        self.labels.is_none() && fields.peek().is_some() && fields.all(Field::is_base)
    }

    /// The first problem among the base fields.
    pub(super) fn check_base(&self) -> Parsed<()> {
        self.name(Field::BaseName)?;
        self.number(Field::BaseTime)?;
        self.unit(Field::BaseUnit)?;
        self.number(Field::BaseValue)?;
        self.number(Field::BaseSum)?;
        self.number(Field::Version).map(drop)
    }

    /// Whether the record has a field that is not null.
    pub(super) const fn has_value(&self, field: Field) -> bool {
        self.has(field) && !matches!(self.fields[field as usize], Some(Ok(Item::Null)))
    }

    pub(super) fn number(&self, field: Field) -> Parsed<Option<f64>> {
        self.get(field, "a number", |item| if let Item::Number(number) = item { Some(*number) } else { None })
    }

    pub(super) fn boolean(&self, field: Field) -> Parsed<Option<bool>> {
        self.get(field, "a boolean", |item| if let Item::Boolean(boolean) = item { Some(*boolean) } else { None })
    }

    /// A name, or a part of a name. Its length is checked.
    pub(super) fn name(&self, field: Field) -> Parsed<Option<&str>> {
        match self.text(field)? {
            Some(text) if text.len() > name::MAX_NAME_BYTES => Err(name::too_long(text.len())),
            text => Ok(text),
        }
    }

    /// A unit. It may be empty.
    pub(super) fn unit(&self, field: Field) -> Parsed<Option<&str>> {
        let unit = self.text(field)?;
        let reject = |what: String| Err(rejection(Code::InvalidMetadata, what));
        match unit {
            Some(unit) if unit.len() > MAX_UNIT_BYTES => {
                reject(format!("a unit has at most {MAX_UNIT_BYTES} bytes, this has {}", unit.len()))
            }
            Some(unit) if unit.chars().any(char::is_control) => reject("a unit has no control characters".to_owned()),
            _ => Ok(unit),
        }
    }

    fn text(&self, field: Field) -> Parsed<Option<&str>> {
        self.get(field, "a string", |item| if let Item::Text(text) = item { Some(&**text) } else { None })
    }

    fn get<'r, T>(
        &'r self,
        field: Field,
        expected: &str,
        read: impl Fn(&'r Item<'b>) -> Option<T>,
    ) -> Parsed<Option<T>> {
        work::count(1);
        let Some(found) = &self.fields[field as usize] else { return Ok(None) };
        let item = found.as_ref().map_err(Clone::clone)?;
        if field.is_value() && matches!(item, Item::Null) {
            return Ok(None);
        }
        read(item).map(Some).ok_or_else(|| field.rejection(expected, item))
    }
}
