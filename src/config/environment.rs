//! Environment variables: `TIDEGAUGE_HTTP__LISTEN` sets `http.listen`.
//!
//! A variable with the prefix `TIDEGAUGE_` that sets no key is an error, unless it is known to mean something
//! else: `TIDEGAUGE_TOKEN` of client commands, and variables of Kubernetes services.

use serde::Deserialize;
use toml::{Table, Value};

use super::load::insert;
use super::{Config, ConfigError};

const PREFIX: &str = "TIDEGAUGE_";

/// The variable with the token of client commands. It sets no key.
const CLIENT_TOKEN: &str = "TIDEGAUGE_TOKEN";

/// The variables of this process that begin with `TIDEGAUGE_`.
///
/// They are the `env` of [`Config::load`].
///
/// # Errors
/// One of these variables is not valid UTF-8.
pub fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    let ours = std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
    let readable = ours.map(|(name, value)| {
        let variable = name.to_string_lossy().into_owned();
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => Ok((name, value)),
            _ => Err(ConfigError::environment(variable, "is not valid UTF-8")),
        }
    });
    readable.collect()
}

/// The section and the key that a variable sets.
///
/// For `TIDEGAUGE_HTTP__LISTEN` they are `http` and `listen`.
///
/// `None`: the variable does not belong to the configuration.
///
/// # Errors
/// The variable begins with `TIDEGAUGE_` and belongs to no other program, but has no `__`.
pub(super) fn path_of(variable: &str, value: &str) -> Result<Option<Vec<String>>, String> {
    let Some(name) = variable.strip_prefix(PREFIX) else { return Ok(None) };
    if variable == CLIENT_TOKEN || is_service_link(name, value) {
        return Ok(None);
    }
    let path: Vec<_> = name.split("__").map(str::to_ascii_lowercase).collect();
    if path.len() > 1 { Ok(Some(path)) } else { Err(no_key(name)) }
}

/// Whether Kubernetes or Docker sets this variable, and not an operator.
///
/// For a service named `tidegauge` they set variables with its address: `TIDEGAUGE_SERVICE_HOST`,
/// `TIDEGAUGE_SERVICE_PORT_HTTP`, `TIDEGAUGE_PORT=tcp://10.0.0.1:8080`, `TIDEGAUGE_PORT_8080_TCP_ADDR`.
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
    let meant = keys_like(&name.to_ascii_lowercase());
    let variables: Vec<String> =
        meant.iter().map(|key| format!("{PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"))).collect();
    let hint = if variables.is_empty() { String::new() } else { format!("; do you mean {}?", variables.join(" or ")) };
    format!("names no key; write {PREFIX}<SECTION>__<KEY>, with two underscores{hint}")
}

/// The keys that an operator may mean by `name`, for the hint in an error.
///
/// `http_listen` means `http.listen`, and `data_dir` means `server.data_dir`.
fn keys_like(name: &str) -> Vec<String> {
    let sections = Table::try_from(Config::default()).unwrap_or_default();
    let mut names: Vec<String> = Vec::new();
    for (section, value) in &sections {
        names.push(section.clone());
        let inner = value.as_table().into_iter().flatten().filter(|(_, value)| value.is_table());
        names.extend(inner.map(|(name, _)| format!("{section}.{name}")));
    }
    let with_section = names.iter().filter_map(|section| {
        let key = name.strip_prefix(&section.replace('.', "_"))?.strip_prefix('_')?;
        Some(format!("{section}.{key}"))
    });
    let alone = names.iter().map(|section| format!("{section}.{name}"));
    with_section.chain(alone).filter(|key| is_key(key)).collect()
}

/// Whether the configuration has this key.
///
/// The value `true` is tried. An error about this value shows that the key exists.
fn is_key(key: &str) -> bool {
    let path: Vec<String> = key.split('.').map(str::to_owned).collect();
    let mut table = Table::new();
    insert(&mut table, &path, Value::Boolean(true));
    Config::deserialize(table).err().is_none_or(|error| !error.message().starts_with("unknown field"))
}
