//! The flags that stand above the configuration file.

use std::path::PathBuf;

use clap::Args;
use tidegauge::config::{Config, ConfigError, Override, environment};

/// Where the configuration comes from, and what overrules it.
#[derive(Debug, Args)]
pub(super) struct Settings {
    /// The configuration file, TOML; without it the defaults hold
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[arg(long, value_name = "ADDR", help = "The address to listen on for HTTP [key: http.listen]")]
    http: Option<String>,
    #[arg(long, value_name = "ADDR", help = "The address to listen on for UDP, or off [key: udp.listen]")]
    udp: Option<String>,
    #[arg(long, value_name = "DIR", help = "The folder of the log and of the embedded store [key: server.data_dir]")]
    data_dir: Option<String>,
    #[arg(
        long,
        value_name = "STORE",
        help = "Where readings live: sqlite, mongodb or mongodb-timeseries [key: store.kind]"
    )]
    store: Option<String>,
    #[arg(
        long,
        value_name = "URI",
        help = "The connection string of MongoDB, which implies --store mongodb [key: mongodb.uri]"
    )]
    mongodb_uri: Option<String>,
    #[arg(
        long,
        value_name = "FORMAT",
        help = "What the server's own log lines look like: text or json [key: telemetry.log_format]"
    )]
    log_format: Option<String>,
}

/// Which configuration a command goes by that does not serve.
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    /// The configuration file, TOML; without it the defaults hold
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data folder of the server (`server.data_dir`)
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
}

impl ConfigArgs {
    pub(super) fn load(&self) -> Result<Config, ConfigError> {
        let data_dir = self.data_dir.clone().map(|value| Override {
            flag: "--data-dir",
            section: "server",
            key: "data_dir",
            value,
        });
        Config::load(self.config.as_deref(), environment()?.into_iter(), data_dir.as_slice())
    }
}

impl Settings {
    /// The configuration: flags before environment before file before defaults.
    pub(super) fn load(&self) -> Result<Config, ConfigError> {
        Config::load(self.config.as_deref(), environment()?.into_iter(), &self.overrides())
    }

    fn overrides(&self) -> Vec<Override> {
        let flags = [
            ("--http", "http", "listen", &self.http),
            ("--udp", "udp", "listen", &self.udp),
            ("--data-dir", "server", "data_dir", &self.data_dir),
            ("--store", "store", "kind", &self.store),
            ("--mongodb-uri", "mongodb", "uri", &self.mongodb_uri),
            ("--log-format", "telemetry", "log_format", &self.log_format),
        ];
        let given = |(flag, section, key, value): (&'static str, _, _, &Option<String>)| {
            Some(Override { flag, section, key, value: value.clone()? })
        };
        flags.into_iter().filter_map(given).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
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
        let overrides = overrides(&[&line[..], &["--log-format", "json", "--udp", "off"]].concat());
        let config = Config::load(None, std::iter::empty(), &overrides).unwrap();
        assert_eq!((config.http.listen.port(), config.server.data_dir), (9, "d".into()));
        assert_eq!(config.mongodb.uri.as_ref().map(MongodbUri::expose), Some(uri));
        assert_eq!(config.udp.listen, Listen::Off);
        assert_eq!(overrides.len(), 6);
    }

    #[test]
    fn a_flag_that_is_not_given_overrules_nothing() {
        assert_eq!(overrides(&["tidegauge", "--config", "f"]), []);
    }
}
