//! The flags that override the configuration file.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use tidegauge::config::{Config, ConfigError, Overridden, Override, environment};

/// The configuration file and the flags that override it.
#[derive(Debug, Args)]
pub(super) struct Settings {
    #[arg(
        long,
        value_name = "FILE",
        help = "The configuration file, TOML [default: none, all keys have their defaults]"
    )]
    config: Option<PathBuf>,
    #[arg(
        long,
        value_name = "ADDR",
        help = "The address to listen on for HTTP [key: http.listen, variable: TIDEGAUGE_HTTP__LISTEN, default: \
                127.0.0.1:8080]"
    )]
    http: Option<String>,
    #[arg(
        long,
        value_name = "ADDR",
        help = "The address to listen on for UDP, or off [key: udp.listen, variable: TIDEGAUGE_UDP__LISTEN, default: \
                127.0.0.1:8089]"
    )]
    udp: Option<String>,
    #[arg(
        long,
        value_name = "DIR",
        help = "The folder of the log and of the embedded store [key: server.data_dir, variable: \
                TIDEGAUGE_SERVER__DATA_DIR, default: ./data]"
    )]
    data_dir: Option<String>,
    #[arg(
        long,
        value_name = "STORE",
        value_parser = Offered(&["sqlite", "mongodb", "mongodb-timeseries"]),
        hide_possible_values = true,
        help = "The store of the readings: sqlite, mongodb or mongodb-timeseries [key: store.kind, variable: \
                TIDEGAUGE_STORE__KIND, default: sqlite; with a connection string mongodb]"
    )]
    store: Option<String>,
    #[arg(
        long,
        value_name = "URI",
        help = "The connection string of MongoDB. The list of processes shows a password in it: in that case use the \
                variable [key: mongodb.uri, variable: TIDEGAUGE_MONGODB__URI, default: none]"
    )]
    mongodb_uri: Option<String>,
    #[arg(
        long,
        value_name = "FORMAT",
        value_parser = Offered(&["text", "json"]),
        hide_possible_values = true,
        help = "The format of the server's log lines: text or json [key: telemetry.log_format, variable: \
                TIDEGAUGE_TELEMETRY__LOG_FORMAT, default: text]"
    )]
    log_format: Option<String>,
    #[arg(
        long,
        value_name = "LEVEL",
        help = "The filter of log lines: off, error, warn, info, debug, trace, or directives such as \
                tidegauge::flush=debug, which leave all else at info [key: telemetry.log_level, variable: \
                TIDEGAUGE_TELEMETRY__LOG_LEVEL, default: info]"
    )]
    log_level: Option<String>,
}

/// The values that shells offer for a flag. It takes any text, which the configuration checks.
#[derive(Clone)]
struct Offered(&'static [&'static str]);

impl TypedValueParser for Offered {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().copied().map(PossibleValue::new)))
    }
}

/// The configuration of a command that does not serve.
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[arg(
        long,
        value_name = "FILE",
        help = "The configuration file, TOML [default: none, all keys have their defaults]"
    )]
    config: Option<PathBuf>,
    #[arg(
        long,
        value_name = "DIR",
        help = "The data folder of the server [key: server.data_dir, variable: TIDEGAUGE_SERVER__DATA_DIR, default: \
                ./data]"
    )]
    data_dir: Option<String>,
}

impl ConfigArgs {
    pub(super) fn load(&self) -> Result<Config, ConfigError> {
        load_with(self.config.as_deref(), &[("--data-dir", "server", "data_dir", self.data_dir.as_ref())])
    }
}

/// A flag, the section and the key that it overrides, and its value if it is given.
pub(super) type Flag<'a> = (&'static str, &'static str, &'static str, Option<&'a String>);

/// Loads the configuration of a file, with these flags.
pub(super) fn load_with(file: Option<&Path>, flags: &[Flag<'_>]) -> Result<Config, ConfigError> {
    Config::load(file, environment()?.into_iter(), &given(flags))
}

/// The flags that are given.
fn given(flags: &[Flag<'_>]) -> Vec<Override> {
    let given = |&(flag, section, key, value): &Flag<'_>| Some(Override { flag, section, key, value: value?.clone() });
    flags.iter().filter_map(given).collect()
}

impl Settings {
    /// The configuration file, if one is given.
    pub(super) fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Loads the configuration.
    pub(super) fn load(&self) -> Result<Config, ConfigError> {
        self.load_and_compare().map(|(config, _)| config)
    }

    /// Loads the configuration, and lists the values of the file that are overridden.
    pub(super) fn load_and_compare(&self) -> Result<(Config, Vec<Overridden>), ConfigError> {
        Config::load_and_compare(self.config.as_deref(), environment()?.into_iter(), &self.overrides())
    }

    /// Whether a flag or variable sets JSON log lines.
    ///
    /// This is needed before the configuration is loaded.
    pub(super) fn ask_for_json(&self) -> bool {
        let variable = std::env::var("TIDEGAUGE_TELEMETRY__LOG_FORMAT").ok();
        self.log_format.as_ref().or(variable.as_ref()).is_some_and(|format| format == "json")
    }

    fn overrides(&self) -> Vec<Override> {
        given(&[
            ("--http", "http", "listen", self.http.as_ref()),
            ("--udp", "udp", "listen", self.udp.as_ref()),
            ("--data-dir", "server", "data_dir", self.data_dir.as_ref()),
            ("--store", "store", "kind", self.store.as_ref()),
            ("--mongodb-uri", "mongodb", "uri", self.mongodb_uri.as_ref()),
            ("--log-format", "telemetry", "log_format", self.log_format.as_ref()),
            ("--log-level", "telemetry", "log_level", self.log_level.as_ref()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};
    use tidegauge::config::{Listen, MongodbUri};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: Settings,
    }

    fn overrides(line: &[&str]) -> Vec<Override> {
        Line::try_parse_from(line).unwrap().settings.overrides()
    }

    #[test]
    fn every_flag_sets_a_key_that_the_configuration_has() {
        let uri = "mongodb://127.0.0.1";
        let line =
            ["tidegauge", "--http", "127.0.0.1:9", "--data-dir", "d", "--store", "mongodb", "--mongodb-uri", uri];
        let overrides =
            overrides(&[&line[..], &["--log-format", "json", "--udp", "off", "--log-level", "warn"]].concat());
        let config = Config::load(None, std::iter::empty(), &overrides).unwrap();
        assert_eq!((config.http.listen.port(), config.server.data_dir), (9, "d".into()));
        assert_eq!(config.mongodb.uri.as_ref().map(MongodbUri::expose), Some(uri));
        assert_eq!(config.udp.listen, Listen::Off);
        assert_eq!(config.telemetry.log_level.to_string(), "warn");
        assert_eq!(overrides.len(), 7);
    }

    #[test]
    fn a_flag_that_is_not_given_overrides_nothing() {
        assert_eq!(overrides(&["tidegauge", "--config", "f"]), []);
    }

    #[test]
    fn the_help_of_each_flag_names_its_variable_and_its_default() {
        let flags = ["--http", "--udp", "--data-dir", "--store", "--mongodb-uri", "--log-format", "--log-level"];
        let line: Vec<&str> = flags.into_iter().flat_map(|flag| [flag, "x"]).collect();
        let overrides = overrides(&[&["tidegauge"], &line[..]].concat());
        let defaults = toml::Table::try_from(Config::default().filled()).unwrap();
        let command = Line::command();
        for Override { flag, section, key, .. } in overrides {
            let is_flag = |arg: &&clap::Arg| arg.get_long() == flag.strip_prefix("--");
            let help = command.get_arguments().find(is_flag).unwrap().get_help().unwrap().to_string();
            let variable = format!("TIDEGAUGE_{section}__{key}").to_uppercase();
            let default = defaults[section].get(key).and_then(toml::Value::as_str).unwrap_or("none");
            let said = format!("[key: {section}.{key}, variable: {variable}, default: {default}");
            assert!(help.contains(&said), "{flag}: {help} lacks {said}");
        }
    }
}
