//! Lists of paths, as `[[webhook]]` and `[[mqtt.topics]]` have them.
//!
//! A list is one path (`"data.t"`), a table of names and paths (`{ temp = "data.t" }`), or an array of both.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::JsonPath;

/// A list whose entries are written as texts or as key-value pairs of tables.
///
/// `["data.h", { temp = "data.t" }]` has two entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathList<T>(pub Vec<T>);

/// An entry of a [`PathList`].
pub trait PathEntry: Sized {
    /// The valid forms, as an error names them after "expected".
    const EXPECTED: &str;

    /// Makes an entry of a text, such as `"data.t"`.
    ///
    /// # Errors
    /// The text is not a valid entry.
    fn of_text(text: &str) -> Result<Self, String>;

    /// Makes an entry of a key-value pair, such as `temp = "data.t"`.
    ///
    /// # Errors
    /// The pair is not a valid entry.
    fn of_pair(key: &str, value: &str) -> Result<Self, String>;

    /// The entry as it is serialized: an optional key, and a text or value.
    fn parts(&self) -> (Option<&str>, &str);
}

/// A path to a value, and the name of the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPath {
    /// The given name of the value. `None`: its name is the last key of the path.
    pub name: Option<String>,
    /// The path to the value.
    pub path: JsonPath,
}

/// A condition that a payload must meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The path that must exist in the payload.
    pub path: JsonPath,
    /// The text that the value at the path must be. `None`: any value except null.
    pub text: Option<String>,
}

impl NamedPath {
    /// The name of the value: the given one, or the last key of the path.
    ///
    /// `None`: there is no given name, and the path ends with an index or with `*`.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref().or_else(|| self.path.last_key())
    }
}

impl PathEntry for NamedPath {
    const EXPECTED: &str = "a path, a table { name = \"path\" }, or an array of both";

    fn of_text(text: &str) -> Result<Self, String> {
        path(text).map(|path| Self { name: None, path })
    }

    fn of_pair(key: &str, value: &str) -> Result<Self, String> {
        path(value).map(|path| Self { name: Some(key.to_owned()), path })
    }

    fn parts(&self) -> (Option<&str>, &str) {
        (self.name.as_deref(), self.path.as_str())
    }
}

impl PathEntry for Condition {
    const EXPECTED: &str = "a path, a table { \"path\" = \"text\" }, or an array of both";

    fn of_text(text: &str) -> Result<Self, String> {
        path(text).map(|path| Self { path, text: None })
    }

    fn of_pair(key: &str, value: &str) -> Result<Self, String> {
        path(key).map(|path| Self { path, text: Some(value.to_owned()) })
    }

    fn parts(&self) -> (Option<&str>, &str) {
        match &self.text {
            None => (None, self.path.as_str()),
            Some(text) => (Some(self.path.as_str()), text),
        }
    }
}

fn path(text: &str) -> Result<JsonPath, String> {
    text.parse().map_err(|error: super::JsonPathError| error.to_string())
}

impl<T: PathEntry> Serialize for PathList<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.0.len()))?;
        for entry in &self.0 {
            match entry.parts() {
                (None, text) => seq.serialize_element(text)?,
                (Some(key), value) => seq.serialize_element(&std::collections::BTreeMap::from([(key, value)]))?,
            }
        }
        seq.end()
    }
}

impl<'de, T: PathEntry> Deserialize<'de> for PathList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Entries { is_nested: false, of: PhantomData }).map(Self)
    }
}

/// The entries of one element of an array.
///
/// A text has one entry; a table has an entry for each of its pairs.
struct Element<T>(Vec<T>);

impl<'de, T: PathEntry> Deserialize<'de> for Element<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Entries { is_nested: true, of: PhantomData }).map(Self)
    }
}

struct Entries<T> {
    /// Whether the entries are inside an array. An array in an array is an error.
    is_nested: bool,
    of: PhantomData<T>,
}

impl<'de, T: PathEntry> Visitor<'de> for Entries<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
        Ok(vec![T::of_text(text).map_err(E::custom)?])
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<T>, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            entries.push(T::of_pair(&key, &value).map_err(de::Error::custom)?);
        }
        Ok(entries)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        if self.is_nested {
            return Err(de::Error::invalid_type(de::Unexpected::Seq, &self));
        }
        let mut entries = Vec::new();
        while let Some(Element(more)) = seq.next_element()? {
            entries.extend(more);
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Lists {
        metrics: PathList<NamedPath>,
        when: PathList<Condition>,
    }

    fn read(metrics: &str, when: &str) -> Result<Lists, String> {
        toml::from_str(&format!("metrics = {metrics}\nwhen = {when}"))
            .map_err(|error: toml::de::Error| error.to_string())
    }

    #[test]
    fn a_list_is_a_path_a_table_or_an_array_of_both() {
        let lists = read(r#"["a.*", { t = "b[0].c", "u v" = "d" }, "e"]"#, r#"{ method = "x", "a.b" = "" }"#).unwrap();
        let names: Vec<_> = lists.metrics.0.iter().map(|entry| (entry.name(), entry.path.as_str())).collect();
        assert_eq!(names, [(None, "a.*"), (Some("t"), "b[0].c"), (Some("u v"), "d"), (Some("e"), "e")]);
        let when: Vec<_> = lists.when.0.iter().map(|entry| (entry.path.as_str(), entry.text.as_deref())).collect();
        assert_eq!(when, [("a.b", Some("")), ("method", Some("x"))]);
        let again = toml::to_string(&lists).unwrap();
        assert_eq!(toml::from_str::<Lists>(&again).unwrap(), lists, "{again}");
        let one = read(r#""a""#, "[]").unwrap();
        assert_eq!((one.metrics.0.len(), one.when.0.len()), (1, 0));
    }

    #[test]
    fn anything_else_is_refused() {
        for (metrics, when, problem) in [
            ("1", "[]", "expected a path, a table"),
            ("[[\"a\"]]", "[]", "expected a path, a table"),
            ("[true]", "[]", "expected a path, a table"),
            ("{ t = 1 }", "[]", "expected a string"),
            ("\"a b\"", "[]", "at byte 1 of \"a b\""),
            ("{ t = \"a..b\" }", "[]", "at byte 2"),
            ("\"a\"", "{ \"a..b\" = \"x\" }", "at byte 2"),
        ] {
            let error = read(metrics, when).expect_err(metrics);
            assert!(error.contains(problem), "{metrics} {when}: {error}");
        }
    }
}
