//! The secret of a key. Only [`KeySecret::expose`] shows it.

use std::fmt;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::secret::{self, Secret};

/// The length of 32 bytes in base64url without padding.
const MIN_BYTES: usize = 43;
const MAX_BYTES: usize = 256;

/// The secret of a key: at least 32 random bytes in base64url.
///
/// Its text has 43 to 256 characters of `A-Z a-z 0-9 - _`, and is in the configuration or in a file of its
/// own. `Debug` and `Serialize` hide it. The server needs the secret itself to verify signatures; of a token
/// it needs only the hash.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeySecret(Secret);

/// A text is not the secret of a key.
///
/// The error does not quote the text, which may be a part of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not {MIN_BYTES} to {MAX_BYTES} of A-Z a-z 0-9 - _, as `tidegauge key new` prints it")]
pub struct KeySecretError;

impl KeySecret {
    /// Makes a secret of a text in the configuration.
    ///
    /// # Errors
    /// The text is not a secret.
    pub fn new(text: impl Into<String>) -> Result<Self, KeySecretError> {
        let secret = Self(Secret::new(text));
        secret.check()?;
        Ok(secret)
    }

    /// Reads a secret from a file, and removes white space around it.
    ///
    /// # Errors
    /// The file cannot be read, or its content is not a secret.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        let text = secret::read(path)?;
        Self::new(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("it is {error}")))
    }

    /// The secret in plain text.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose()
    }

    /// The file of the secret; `None` if the secret is in the configuration itself.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.0.file()
    }

    /// Reads the secret from its file, if it has one.
    pub(super) fn read(&mut self) -> Result<(), ConfigError> {
        self.0.read("auth.keys.secret")
    }

    pub(super) fn check(&self) -> Result<(), KeySecretError> {
        let text = self.expose();
        let is_good = (MIN_BYTES..=MAX_BYTES).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if is_good { Ok(()) } else { Err(KeySecretError) }
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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
