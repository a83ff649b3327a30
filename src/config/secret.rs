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

#[cfg(test)]
mod tests {
    use super::*;

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
