//! The filter of devices by their metadata.
//!
//! A condition has a key, and the texts that the member with this key may have. The key `floor` names the
//! member `floor` of the metadata. The key `site.floor` names the member `site.floor`, and also the member
//! `floor` of the object `site`. A string, `true`, `false` and `null` match their text. A number matches each
//! of its spellings: 2 matches `2`, `2.0` and `2e0`. An array matches if one of its elements does that is no
//! array itself. An object matches no text.
//!
//! A match takes time in proportion to the length of the metadata and the number of conditions, however long
//! the conditions are.

use std::sync::Arc;

use serde_json::{Map, Number, Value};

/// Selects devices by their metadata. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetadataFilter {
    conditions: Arc<[Condition]>,
}

/// The texts that a member may have, or must not have.
#[derive(Debug, Clone, PartialEq)]
struct Condition {
    key: Box<str>,
    is_negated: bool,
    /// At least one pattern must match. If the condition is negated, none may match.
    patterns: Vec<TextPattern>,
}

/// A text such as `Zone 4`, or the start of texts such as `Zone*`.
#[derive(Debug, Clone, PartialEq)]
struct TextPattern {
    text: Box<str>,
    is_start: bool,
    /// The text as a number, if it is a number.
    number: Option<Numeric>,
}

/// A number. Whole numbers are compared exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Numeric {
    Whole(i128),
    Float(f64),
}

/// Why a condition is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataFilterError {
    /// The condition has no key.
    #[error("names no key of the metadata; write meta.KEY=VALUE")]
    NoKey,
    /// A `*` is not at the end.
    #[error("a `*` stands for any rest, so it must be the last character; write \\* for the character itself")]
    StarInside,
    /// There are more values than one filter may have.
    #[error("a query may have {MAX_VALUES} values for metadata, this one has {0}")]
    TooMany(usize),
    /// A key or a value is longer than a condition may be.
    #[error("a key or a value has at most {MAX_BYTES} bytes; `VALUE*` selects by the start of a longer value")]
    TooLong,
}

/// The most values of a filter.
const MAX_VALUES: usize = 64;

/// The longest key, and the longest value.
const MAX_BYTES: usize = 1_024;

impl MetadataFilter {
    /// Makes a filter of devices whose metadata meets all `conditions`.
    ///
    /// A condition is a key and a value: `floor` and `2`. A `*` at the end of the value stands for any rest.
    /// With `!` at the end of the key (`floor!`), the member must not have the value. Values of the same key
    /// are alternatives.
    ///
    /// # Errors
    /// When a condition has no key, a misplaced `*` or a text that is too long, or when there are too many
    /// values.
    pub fn new<'a>(conditions: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, MetadataFilterError> {
        let mut of_keys: Vec<Condition> = Vec::new();
        let mut values = 0;
        for (name, value) in conditions {
            values += 1;
            let (key, is_negated) = name.strip_suffix('!').map_or((name, false), |key| (key, true));
            if key.is_empty() {
                return Err(MetadataFilterError::NoKey);
            }
            if key.len() > MAX_BYTES || value.len() > MAX_BYTES {
                return Err(MetadataFilterError::TooLong);
            }
            let pattern = value.parse()?;
            if values > MAX_VALUES {
                continue; // counted only
            }
            match of_keys.iter_mut().find(|of| *of.key == *key && of.is_negated == is_negated) {
                Some(known) => known.patterns.push(pattern),
                None => of_keys.push(Condition { key: key.into(), is_negated, patterns: vec![pattern] }),
            }
        }
        if values > MAX_VALUES {
            Err(MetadataFilterError::TooMany(values))
        } else {
            Ok(Self { conditions: of_keys.into() })
        }
    }

    /// Whether all devices match.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Whether a device with this metadata, the text of a JSON object, matches.
    #[must_use]
    pub fn matches(&self, metadata: Option<&str>) -> bool {
        if self.is_all() {
            return true;
        }
        let object: Map<String, Value> = metadata.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        self.conditions.iter().all(|condition| condition.is_met_by(&object))
    }
}

impl Condition {
    fn is_met_by(&self, object: &Map<String, Value>) -> bool {
        find_member(object, &self.key, &|value| self.has(value).then_some(())).is_some() != self.is_negated
    }

    fn has(&self, value: &Value) -> bool {
        match value {
            Value::Array(elements) => elements.iter().any(|element| !element.is_array() && self.has(element)),
            Value::Object(_) => false,
            scalar => self.patterns.iter().any(|pattern| pattern.matches(scalar)),
        }
    }
}

/// Calls `look` with the members that `keys` names, until it returns a result. `a.b` names the member `a.b`,
/// and the member `b` of the object `a`.
///
/// Two ways of splitting `keys` never lead to the same member, so `look` gets no member twice. The search
/// compares each key of an object with the start of `keys`. It does not try each dot of `keys`, because
/// metadata is short, but `keys` may be long.
pub fn find_member<'v, T>(
    object: &'v Map<String, Value>,
    keys: &str,
    look: &impl Fn(&'v Value) -> Option<T>,
) -> Option<T> {
    object.get(keys).and_then(look).or_else(|| {
        object.iter().find_map(|(key, value)| {
            let rest = keys.strip_prefix(&**key)?.strip_prefix('.')?;
            find_member(value.as_object()?, rest, look)
        })
    })
}

impl std::str::FromStr for TextPattern {
    type Err = MetadataFilterError;

    /// Parses the value of a condition. `\*` is a star and `\\` is a backslash. Before any other character, a
    /// backslash stands for itself.
    fn from_str(value: &str) -> Result<Self, MetadataFilterError> {
        let (mut text, mut is_start) = (String::with_capacity(value.len()), false);
        let mut characters = value.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '*' if characters.peek().is_some() => return Err(MetadataFilterError::StarInside),
                '*' => is_start = true,
                '\\' => text.push(characters.next_if(|next| matches!(next, '*' | '\\')).unwrap_or('\\')),
                other => text.push(other),
            }
        }
        let number = if is_start { None } else { Numeric::of_text(&text) };
        Ok(Self { text: text.into(), is_start, number })
    }
}

impl TextPattern {
    fn matches(&self, scalar: &Value) -> bool {
        match scalar {
            Value::String(text) => self.is_text(text),
            Value::Bool(value) => self.is_text(if *value { "true" } else { "false" }),
            Value::Null => self.is_text("null"),
            Value::Number(number) => {
                self.number.map_or_else(|| self.is_text(&number.to_string()), |own| own.is(number))
            }
            Value::Array(_) | Value::Object(_) => false,
        }
    }

    fn is_text(&self, text: &str) -> bool {
        if self.is_start { text.starts_with(&*self.text) } else { *text == *self.text }
    }
}

impl Numeric {
    fn of_text(text: &str) -> Option<Self> {
        text.parse().map(Self::Whole).or_else(|_| text.parse().map(Self::Float)).ok()
    }

    fn is(self, number: &Number) -> bool {
        match (self, number.as_i128()) {
            (Self::Whole(whole), Some(number)) => whole == number,
            (Self::Whole(whole), None) => number.as_f64() == Some(whole as f64),
            (Self::Float(float), _) => number.as_f64() == Some(float),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn is_met(conditions: &[(&str, &str)], metadata: &Value) -> bool {
        MetadataFilter::new(conditions.iter().copied()).unwrap().matches(Some(&metadata.to_string()))
    }

    #[test]
    fn conditions_compare_texts_and_numbers() {
        let metadata = json!({
            "floor": 2, "level": 2.0, "big": 9_007_199_254_740_993_i64, "zone": "Zone 4", "star": "a*",
            "slash": "a\\b", "on": true, "none": null, "tags": ["x", 7, ["deep"]],
            "at": { "city": "Graz", "x.y": { "z": 1 } }, "at.city": "Linz",
        });
        for (name, value, expected) in [
            ("floor", "2", true),
            ("floor", "2.0", true),
            ("floor", "2e0", true),
            ("floor", "3", false),
            ("floor", "2*", true),
            ("level", "2", true),
            ("level", "2.0", true),
            ("big", "9007199254740993", true),
            ("big", "9007199254740992", false),
            ("zone", "Zone 4", true),
            ("zone", "Zone", false),
            ("zone", "Zone*", true),
            ("zone", "zone*", false),
            ("zone", "*", true),
            ("star", "a\\*", true),
            ("star", "a*", true),
            ("zone", "Zone\\*", false),
            ("slash", "a\\b", true),
            ("slash", "a\\\\b", true),
            ("slash", "a\\\\*", true),
            ("on", "true", true),
            ("on", "1", false),
            ("none", "null", true),
            ("tags", "x", true),
            ("tags", "7", true),
            ("tags", "deep", false),
            ("at", "*", false),
            ("at.city", "Graz", true),
            ("at.city", "Linz", true),
            ("at.x.y.z", "1", true),
            ("at.x", "*", false),
            ("nothing", "*", false),
            ("floor!", "2", false),
            ("floor!", "3", true),
            ("at.city!", "Graz", false),
            ("nothing!", "*", true),
            ("zone!", "*", false),
        ] {
            assert_eq!(is_met(&[(name, value)], &metadata), expected, "{name}={value}");
        }
        assert!(is_met(&[("floor", "1"), ("zone", "Zone*"), ("floor", "2")], &metadata), "one of the values");
        assert!(!is_met(&[("floor", "2"), ("zone", "Hall")], &metadata), "all of the keys");
        assert!(!is_met(&[("floor!", "1"), ("floor!", "2")], &metadata), "none of the values");
        assert!(is_met(&[("floor", "*"), ("floor!", "3")], &metadata));
    }

    #[test]
    fn a_device_without_metadata_meets_only_negated_conditions() {
        let filter = |name, value| MetadataFilter::new([(name, value)]).unwrap();
        for metadata in [None, Some("{}"), Some("no JSON")] {
            assert!(!filter("floor", "*").matches(metadata) && filter("floor!", "2").matches(metadata));
            assert!(MetadataFilter::default().matches(metadata));
        }
    }

    #[test]
    fn what_is_no_condition_is_an_error() {
        let error = |name, value| MetadataFilter::new([(name, value)]).unwrap_err();
        assert_eq!([error("", "x"), error("!", "x")], [MetadataFilterError::NoKey, MetadataFilterError::NoKey]);
        assert_eq!(
            [error("a", "*b"), error("a", "**")],
            [MetadataFilterError::StarInside, MetadataFilterError::StarInside]
        );
        let long = "x".repeat(MAX_BYTES + 1);
        assert_eq!(
            [error(&long, "x"), error("x", &long)],
            [MetadataFilterError::TooLong, MetadataFilterError::TooLong]
        );
        assert!(MetadataFilter::new([(&long[1..], &long[1..])]).is_ok());
        let many = |count| MetadataFilter::new(std::iter::repeat_n(("a", "b"), count));
        assert_eq!(many(MAX_VALUES + 3), Err(MetadataFilterError::TooMany(MAX_VALUES + 3)));
        assert!(many(MAX_VALUES).is_ok());
    }

    /// Counts the members that `look` gets: a key of many dots leads to each member once.
    #[test]
    fn a_long_key_is_followed_along_the_members_that_exist() {
        let deep = (0..7).fold(json!(1), |inner, _| json!({ "a": inner, "a.a": 2, "b": 3 }));
        let dots = vec!["a"; 512].join(".");
        let looked = std::cell::Cell::new(0);
        let look = |_: &Value| {
            looked.set(looked.get() + 1);
            None::<()>
        };
        assert_eq!(find_member(deep.as_object().unwrap(), &dots, &look), None);
        assert_eq!(find_member(deep.as_object().unwrap(), "a.a.a.a.a.a.a", &look), None);
        assert_eq!(looked.get(), 2, "seven levels, or six with a last key of two");
    }

    proptest! {
        /// With escapes as documented, a text matches only itself, and with `*` behind it, all texts that
        /// begin with it.
        #[test]
        fn any_text_can_be_written(text in r"[ab*\\é]{0,6}", other in r"[ab*\\é]{0,6}") {
            let escaped = text.replace('\\', r"\\").replace('*', r"\*");
            let metadata = json!({ "a": &other });
            prop_assert_eq!(is_met(&[("a", &escaped)], &metadata), text == other);
            prop_assert_eq!(is_met(&[("a", &format!("{escaped}*"))], &metadata), other.starts_with(&text));
            prop_assert_eq!(is_met(&[("a!", &escaped)], &metadata), text != other);
        }
    }
}
