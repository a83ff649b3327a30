//! A secret in the configuration or in a file of its own.
//!
//! Only [`Secret::expose`] shows it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::ConfigError;

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
///
/// It reads only the first 64 KiB of a file.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(64 << 10).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
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
struct TextOrFile;

impl<'de> Visitor<'de> for TextOrFile {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret, or { file = \"PATH\" }")
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
