//! The secret of a key, which is hidden unless code asks for it by name.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::ConfigError;

/// 32 bytes in base64 without padding.
const MIN_BYTES: usize = 43;
const MAX_BYTES: usize = 256;

/// The secret of a key: 43 to 256 of `A-Z a-z 0-9 - _`, at least 32 random bytes in base64url.
///
/// It is in the configuration or in a file of its own. Unlike a token, of which the hash suffices, the secret
/// itself is needed to verify signatures. `Debug` and `Serialize` hide it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeySecret {
    text: String,
    file: Option<PathBuf>,
}

/// A text is not the secret of a key. The error does not quote it, because it may be a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not {MIN_BYTES} to {MAX_BYTES} of A-Z a-z 0-9 - _, as `tidegauge key new` prints it")]
pub struct KeySecretError;

impl KeySecret {
    /// Makes a secret of a text.
    ///
    /// # Errors
    /// The text is not a secret.
    pub fn new(text: impl Into<String>) -> Result<Self, KeySecretError> {
        let secret = Self { text: text.into(), file: None };
        secret.check()?;
        Ok(secret)
    }

    /// The secret in a file, without the white space around it.
    ///
    /// # Errors
    /// The file cannot be read, or its content is not a secret.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        Self::new(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("it is {error}")))
    }

    /// The secret itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// Reads the secret from its file, if it has one.
    pub(super) fn read(&mut self) -> Result<(), ConfigError> {
        let Some(file) = &self.file else { return Ok(()) };
        self.text = read(file).map_err(|error| {
            ConfigError::invalid("auth.keys.secret", format!("cannot be read from {}: {error}", file.display()))
        })?;
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), KeySecretError> {
        let is_good = (MIN_BYTES..=MAX_BYTES).contains(&self.text.len())
            && self.text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if is_good { Ok(()) } else { Err(KeySecretError) }
    }
}

/// Reads a file, but only its start if it is too long for a secret.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(64 << 10).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "*** of {}", file.display()),
            None => f.write_str("***"),
        }
    }
}

impl Serialize for KeySecret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(file) = &self.file else { return serializer.serialize_str("***") };
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("file", file)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for KeySecret {
    /// Accepts any text, so that a serialized configuration can be read. `KeySecret::check` follows later.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrFile)
    }
}

/// A text, or a table that names a file.
struct TextOrFile;

impl<'de> Visitor<'de> for TextOrFile {
    type Value = KeySecret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret, or { file = \"PATH\" }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<KeySecret, E> {
        Ok(KeySecret { text: text.to_owned(), file: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<KeySecret, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct InFile {
            file: PathBuf,
        }
        let InFile { file } = InFile::deserialize(MapAccessDeserializer::new(map))?;
        Ok(KeySecret { text: String::new(), file: Some(file) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "hunter2-hunter2-hunter2-hunter2-hunter2-hunter2";

    #[derive(Debug, Serialize, Deserialize)]
    struct Entry {
        secret: KeySecret,
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret = KeySecret::new(TEXT).unwrap();
        assert_eq!(secret.expose(), TEXT);
        assert_eq!(format!("{secret:?}"), "***");
        assert_eq!(toml::to_string(&Entry { secret }).unwrap(), "secret = \"***\"\n");
    }

    #[test]
    fn a_short_or_truncated_secret_is_refused_and_not_quoted() {
        for bad in
            ["", "***", "hunter2", &TEXT[..42], &TEXT.replace('-', "+"), &TEXT.replace('-', " "), &TEXT.repeat(6)]
        {
            let error = KeySecret::new(bad).unwrap_err().to_string();
            assert!(error.contains("43 to 256") && !error.contains("hunter2"), "{error}");
        }
        for good in [&TEXT[..43], &"aA0-_".repeat(20)] {
            assert!(KeySecret::new(good).is_ok(), "{good}");
        }
        for bad in ["[\"hunter2\"]", "{ fil = \"hunter2\" }", "{ file = \"x\", text = \"hunter2\" }", "true"] {
            let error = toml::from_str::<Entry>(&format!("secret = {bad}")).unwrap_err();
            assert!(error.message().contains("file") && !error.message().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_secret_in_a_file_is_trimmed_and_shown_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.key");
        std::fs::write(&path, format!("  {TEXT}\n")).unwrap();
        let line = format!("secret = {{ file = {path:?} }}\n");
        let Entry { mut secret } = toml::from_str(&line).unwrap();
        secret.read().unwrap();
        assert_eq!((secret.expose(), secret.check()), (TEXT, Ok(())));
        assert!(!format!("{secret:?}").contains(TEXT));
        let shown = toml::to_string(&Entry { secret }).unwrap();
        assert!(shown.contains("gateway.key") && !shown.contains(TEXT), "{shown}");
        assert!(toml::from_str::<Entry>(&shown).is_ok(), "{shown}");
        assert_eq!(KeySecret::from_file(&path).unwrap().expose(), TEXT);
        std::fs::write(&path, "short").unwrap();
        assert!(KeySecret::from_file(&path).unwrap_err().to_string().contains("43 to 256"));
        assert!(KeySecret::from_file(&folder.path().join("none")).is_err());
    }
}
