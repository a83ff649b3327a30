//! Bringing file, environment and flags together.
//!
//! Each value is tried as it is added to what came before, so that a mistake is known to be in what was added last.

use std::path::Path;

use serde::Deserialize;
use toml::{Table, Value};

use super::environment::path_of;
use super::{Config, ConfigError};

/// A value from the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// The flag as it is written, such as `--http`, for messages.
    pub flag: &'static str,
    /// The section whose key the flag sets.
    pub section: &'static str,
    /// The key that the flag sets.
    pub key: &'static str,
    /// The value as it was given.
    pub value: String,
}

impl Config {
    /// Makes the configuration of the defaults, the TOML `file`, the variables of `env` named
    /// `TIDEGAUGE_<SECTION>__<KEY>`, and `overrides`, each overruling those before it, reads the secrets that stand in
    /// files of their own, and checks the whole.
    ///
    /// Variables and overrides are read as TOML values where that gives what the key takes, else as plain text, so that
    /// text needs no quotes. A variable that begins like these and names no key is refused, unless it is known to be meant
    /// for somebody else; all others are ignored.
    ///
    /// # Errors
    /// Says which place of the file, which variable, which flag or which key is wrong, and why.
    pub fn load(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        overrides: &[Override],
    ) -> Result<Self, ConfigError> {
        let mut layers = match file {
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
                Layers::from_text(&text, path)?
            }
            None => Layers::default(),
        };
        for (variable, value) in env {
            let set = path_of(&variable, &value).and_then(|path| path.map_or(Ok(()), |path| layers.set(&path, &value)));
            set.map_err(|message| ConfigError::Environment { variable, message })?;
        }
        for Override { flag, section, key, value } in overrides {
            let path = [section, key].map(|&name| name.to_owned());
            layers.set(&path, value).map_err(|message| ConfigError::Flag { flag, message })?;
        }
        layers.config.auth.read_secrets()?;
        layers.config.check()?;
        Ok(layers.config)
    }
}

/// What was set so far, and the configuration that it makes.
#[derive(Default)]
pub(super) struct Layers {
    set: Table,
    pub(super) config: Config,
}

impl Layers {
    /// What the file at `path` sets.
    pub(super) fn from_text(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let at = |error: &toml::de::Error, message: String| {
            let (line, column) = line_and_column(text, error.span().map_or(0, |span| span.start));
            ConfigError::File { path: path.to_owned(), line, column, message }
        };
        let set: Table = toml::from_str(text).map_err(|error| at(&error, error.message().to_owned()))?;
        let deserializer = toml::Deserializer::parse(text).map_err(|error| at(&error, error.message().to_owned()))?;
        let config = serde_path_to_error::deserialize(deserializer)
            .map_err(|error| at(error.inner(), format!("{}: {}", error.path(), error.inner().message())))?;
        Ok(Self { set, config })
    }

    /// Sets the key at the end of `path`, or says why a section, its name or its value is wrong.
    pub(super) fn set(&mut self, path: &[String], text: &str) -> Result<(), String> {
        let plain = Value::String(text.to_owned());
        let Ok(typed) = text.parse::<Value>() else {
            return self.try_set(path, plain);
        };
        // when neither will do, what is wrong with the typed value says more
        self.try_set(path, typed).or_else(|problem| self.try_set(path, plain).map_err(|_| problem))
    }

    fn try_set(&mut self, path: &[String], value: Value) -> Result<(), String> {
        let mut set = self.set.clone();
        insert(&mut set, path, value);
        let config = Config::deserialize(set.clone()).map_err(|error| error.message().to_owned())?;
        *self = Self { set, config };
        Ok(())
    }
}

/// Puts `value` at the end of `path`, making sections on the way. What stands where a section should be is replaced, so
/// that it is the variable that is wrong and says so.
fn insert(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [key] => drop(table.insert(key.clone(), value)),
        [section, rest @ ..] => {
            let mut inner = match table.remove(section) {
                Some(Value::Table(inner)) => inner,
                _ => Table::new(),
            };
            insert(&mut inner, rest, value);
            table.insert(section.clone(), Value::Table(inner));
        }
    }
}

/// The line and the column in characters, both from 1, of a byte of `text`.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
