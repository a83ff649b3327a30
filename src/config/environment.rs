//! Which variables of the environment set which keys, and which are not about the configuration.

use toml::Table;

use super::{Config, ConfigError};

const PREFIX: &str = "TIDEGAUGE_";

/// The token of commands that are clients: the one variable with our prefix that is no key.
const CLIENT_TOKEN: &str = "TIDEGAUGE_TOKEN";

/// The variables of this process, for [`Config::load`].
///
/// # Errors
/// When a variable that might configure something is not valid UTF-8.
pub fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    let ours = std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
    let readable = ours.map(|(name, value)| {
        let variable = name.to_string_lossy().into_owned();
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => Ok((name, value)),
            _ => Err(ConfigError::Environment { variable, message: "is not valid UTF-8".to_owned() }),
        }
    });
    readable.collect()
}

/// What a variable sets: of `TIDEGAUGE_HTTP__LISTEN` it is `http` and `listen`, at least a section and a key. `None`: the
/// variable is not about the configuration.
///
/// # Errors
/// When it has our prefix and cannot be meant for anybody else, but names no key.
pub(super) fn path_of(variable: &str, value: &str) -> Result<Option<Vec<String>>, String> {
    let Some(name) = variable.strip_prefix(PREFIX) else { return Ok(None) };
    if variable == CLIENT_TOKEN || is_service_link(name, value) {
        return Ok(None);
    }
    let path: Vec<_> = name.split("__").map(str::to_ascii_lowercase).collect();
    if path.len() > 1 { Ok(Some(path)) } else { Err(no_key(name)) }
}

/// Whether Kubernetes or Docker tells with this variable where a service is whose name is, or begins with, `tidegauge`:
/// `TIDEGAUGE_SERVICE_HOST`, `TIDEGAUGE_SERVICE_PORT_HTTP`, `TIDEGAUGE_PORT=tcp://10.0.0.1:8080`,
/// `TIDEGAUGE_PORT_8080_TCP_ADDR`.
///
/// Source: <https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>.
fn is_service_link(name: &str, value: &str) -> bool {
    let name = format!("_{name}");
    let has_numbered_port =
        name.split("_PORT_").skip(1).any(|behind| behind.starts_with(|first: char| first.is_ascii_digit()));
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || has_numbered_port
        || (name.ends_with("_PORT") && value.contains("://"))
}

fn no_key(name: &str) -> String {
    let sections = Table::try_from(Config::default()).unwrap_or_default();
    let hint = match name.split_once('_') {
        Some((section, key)) if sections.contains_key(&section.to_ascii_lowercase()) => {
            format!("; is {PREFIX}{section}__{key} meant?")
        }
        _ => String::new(),
    };
    format!("names no key, as {PREFIX}<SECTION>__<KEY> with two underscores does{hint}")
}
