//! What can be wrong with a configuration.

use std::path::PathBuf;

/// Why a configuration cannot be used. The text says where the mistake stands and never holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot read the configuration: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The file is not TOML, or a section, key or value in it is not known.
    #[error("{}:{line}:{column}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The column in characters, counted from 1.
        column: usize,
        /// What is wrong, with the key where there is one.
        message: String,
    },
    /// An environment variable names no key or has a value that its key does not take.
    #[error("environment variable {variable}: {message}")]
    Environment {
        /// The variable.
        variable: String,
        /// What is wrong.
        message: String,
    },
    /// A flag has a value that its key does not take.
    #[error("{flag}: {message}")]
    Flag {
        /// The flag, as it is written on the command line.
        flag: &'static str,
        /// What is wrong.
        message: String,
    },
    /// A value makes no sense, by itself or beside the others, wherever it came from.
    #[error("{key} {problem}")]
    Invalid {
        /// The key with its section, as in `log.max_bytes`.
        key: &'static str,
        /// What is wrong: "is 0, must be from 1 to 10".
        problem: String,
    },
}

impl ConfigError {
    pub(super) fn invalid(key: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid { key, problem: problem.into() }
    }
}
