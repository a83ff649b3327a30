//! A secret in the configuration or in a file of its own.
//!
//! Only [`Secret::expose`] shows it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::ConfigError;
use crate::common::small_file::read_small_text;

/// A secret: a text, or `{ file = "PATH" }`. `Debug` and `Serialize` hide it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    file: Option<PathBuf>,
}

impl Secret {
    /// A secret that is in the configuration itself.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), file: None }
    }

    /// The secret in plain text. A secret in a file is empty until the file is read.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// The file of the secret; `None` if the secret is in the configuration itself.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the secret from its file, if it is in a file.
    ///
    /// `key` is the configuration key of the secret, for the error.
    pub(super) fn read(&mut self, key: &'static str) -> Result<(), ConfigError> {
        let Some(file) = &self.file else { return Ok(()) };
        self.text = read(file)
            .map_err(|error| ConfigError::invalid(key, format!("cannot be read from {}: {error}", file.display())))?;
        Ok(())
    }
}

/// Reads a file and removes white space around the content.
pub(super) fn read(path: &Path) -> io::Result<String> {
    Ok(read_small_text(path)?.trim().to_owned())
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "*** of {}", file.display()),
            None => f.write_str("***"),
        }
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(file) = &self.file else { return serializer.serialize_str("***") };
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("file", file)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Secret {
    /// Accepts any text, also the `***` of a printed configuration.
    ///
    /// The section checks the secret later.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrFile)
    }
}

/// A text, or a table that names a file.
///
/// It refuses other values itself, because the errors of serde repeat them.
struct TextOrFile;

const EXPECTED: &str = "a secret in quotes, or { file = \"PATH\" }";

/// The error about a number or a boolean, which may be the secret.
fn no_text<E: de::Error>() -> E {
    E::custom(format_args!("expected {EXPECTED}"))
}

impl<'de> Visitor<'de> for TextOrFile {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Secret, E> {
        Err(no_text())
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Secret, E> {
        Err(no_text())
    }

    fn visit_i128<E: de::Error>(self, _: i128) -> Result<Secret, E> {
        Err(no_text())
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Secret, E> {
        Err(no_text())
    }

    fn visit_u128<E: de::Error>(self, _: u128) -> Result<Secret, E> {
        Err(no_text())
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Secret, E> {
        Err(no_text())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Secret, E> {
        Ok(Secret::new(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Secret, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct InFile {
            file: PathBuf,
        }
        let InFile { file } = InFile::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Secret { text: String::new(), file: Some(file) })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_secret_without_quotes_is_refused_and_not_repeated() {
        for value in [
            "true",
            "471108",
            "-471108",
            "9471108471108471108",                     // more than an i64
            "471108471108471108471108",                // more than a u64
            "271108471108471108471108471108471108471", // more than an i128
            "471108.5",
            "2047-11-08",
        ] {
            for written in [value.to_owned(), format!("[{value}]")] {
                let error = toml::from_str::<BTreeMap<String, Secret>>(&format!("password = {written}")).unwrap_err();
                assert!(error.message().contains("expected") && !error.message().contains(value), "{error}");
            }
        }
        let from_environment = toml::Value::Integer(471_108);
        let error = Secret::deserialize(from_environment).unwrap_err();
        assert_eq!(error.message(), "expected a secret in quotes, or { file = \"PATH\" }");
    }

    #[test]
    fn a_secret_is_read_whole_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let long = format!("hunter2{}hunter2", " ".repeat(64 << 10));
        std::fs::write(&path, format!(" {long}\n")).unwrap();
        assert_eq!(read(&path).unwrap(), long);
        let error = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("more than 16 MiB"), "{error}");
    }
}
