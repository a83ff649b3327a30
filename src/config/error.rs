//! The errors of a configuration.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use super::load::MAX_MISTAKES;

/// Why a configuration cannot be used. The text names the place of the mistake and contains no secret.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot read the configuration: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The file is not TOML, or a section, key or value is unknown, in the file, a variable or a flag.
    #[error("{place}: {message}")]
    Set {
        /// The place of the mistake.
        place: Place,
        /// The mistake, with the key if there is one.
        message: String,
    },
    /// A value is out of range or contradicts another one.
    #[error("{}{key} {problem}", place.as_ref().map_or_else(String::new, |place| format!("{place}: ")))]
    Invalid {
        /// The place that set the value. `None`: the value is a default, or an element of a list.
        place: Option<Place>,
        /// The key with its section, as in `log.max_bytes`.
        key: Cow<'static, str>,
        /// The mistake, such as "is 0, must be from 1 to 10".
        problem: String,
    },
    /// Several mistakes, each on its own line.
    #[error("{}{} mistakes in the configuration\n{}", at_least(.0.len()), .0.len(), lines(.0))]
    Several(Vec<ConfigError>),
}

/// The place that set a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The column in characters, counted from 1.
        column: usize,
    },
    /// In an environment variable of this name.
    Environment(String),
    /// By this flag, such as `--http`.
    Flag(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Environment(variable) => write!(f, "environment variable {variable}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

impl ConfigError {
    pub(super) fn invalid(key: impl Into<Cow<'static, str>>, problem: impl Into<String>) -> Self {
        Self::Invalid { place: None, key: key.into(), problem: problem.into() }
    }

    pub(super) fn environment(variable: String, message: impl Into<String>) -> Self {
        Self::Set { place: Place::Environment(variable), message: message.into() }
    }

    /// One error for all mistakes. The mistakes of the file come first, in the order of the file. `None`:
    /// there are no mistakes.
    pub(super) fn of(mut mistakes: Vec<Self>) -> Option<Self> {
        mistakes.sort_by_key(Self::line); // stable: the others keep their order
        if mistakes.len() > 1 { Some(Self::Several(mistakes)) } else { mistakes.pop() }
    }

    /// The line and column of a mistake in the file; a place after all lines for other mistakes.
    fn line(&self) -> (usize, usize) {
        match self {
            Self::Set { place: Place::File { line, column, .. }, .. }
            | Self::Invalid { place: Some(Place::File { line, column, .. }), .. } => (*line, *column),
            _ => (usize::MAX, 0),
        }
    }
}

/// "at least " if the search for mistakes stopped before the end of the file, else nothing.
const fn at_least(mistakes: usize) -> &'static str {
    if mistakes < MAX_MISTAKES { "" } else { "at least " }
}

fn lines(mistakes: &[ConfigError]) -> String {
    mistakes.iter().map(ConfigError::to_string).collect::<Vec<_>>().join("\n")
}
