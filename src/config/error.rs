//! The errors of a configuration.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use super::load::MAX_MISTAKES;

/// Why a configuration cannot be used.
///
/// The text names the place of the mistake and contains no secret.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot read the configuration: {error}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The file is not TOML, or a section, key or value is not known.
    #[error("{place}: {message}")]
    Set {
        /// The place of the mistake.
        place: Place,
        /// The mistake. It names the key, if the mistake is about one.
        message: String,
    },
    /// A value is out of its range or contradicts another value.
    #[error("{}{key} {problem}", place.as_ref().map_or_else(String::new, |place| format!("{place}: ")))]
    Invalid {
        /// The place that set the value.
        ///
        /// `None`: the value is a default, or is inside a list, whose places are not recorded.
        place: Option<Place>,
        /// The key with its section, such as `log.max_bytes`.
        key: Cow<'static, str>,
        /// The mistake as it follows the key: "is 0, must be from 1 to 10".
        problem: String,
    },
    /// Several mistakes, each on its own line.
    #[error("{}{} mistakes in the configuration\n{}", at_least(.0.len()), .0.len(), lines(.0))]
    Several(Vec<ConfigError>),
}

/// The place that set a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A place in the configuration file.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The column in characters, counted from 1.
        column: usize,
    },
    /// The environment variable of this name.
    Environment(String),
    /// The flag, such as `--http`.
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

    /// Makes one error of all mistakes; `None` if there are no mistakes.
    ///
    /// The mistakes in the file are the first, in the order of the file.
    pub(super) fn of(mut mistakes: Vec<Self>) -> Option<Self> {
        mistakes.sort_by_key(Self::line); // stable: the others keep their order
        if mistakes.len() > 1 { Some(Self::Several(mistakes)) } else { mistakes.pop() }
    }

    /// The line and column of a mistake, to sort by.
    ///
    /// Mistakes that are not in the file have a line after all lines of the file.
    fn line(&self) -> (usize, usize) {
        match self {
            Self::Set { place: Place::File { line, column, .. }, .. }
            | Self::Invalid { place: Some(Place::File { line, column, .. }), .. } => (*line, *column),
            _ => (usize::MAX, 0),
        }
    }
}

/// "at least " if the search stopped at [`MAX_MISTAKES`], else "".
const fn at_least(mistakes: usize) -> &'static str {
    if mistakes < MAX_MISTAKES { "" } else { "at least " }
}

fn lines(mistakes: &[ConfigError]) -> String {
    mistakes.iter().map(ConfigError::to_string).collect::<Vec<_>>().join("\n")
}
