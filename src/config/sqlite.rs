//! `[sqlite]`: the embedded store.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// The embedded store.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sqlite {
    /// The database file. `None`: see [`super::Config::sqlite_file`].
    pub file: Option<PathBuf>,
}

impl Sqlite {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.file.as_deref() == Some(Path::new("")) {
            return Err(ConfigError::invalid("sqlite.file", "is empty, must name a file"));
        }
        Ok(())
    }
}
