//! The systems that the load test can start, and what their answers promise.

mod server;

use std::path::{Path, PathBuf};

use clap::ValueEnum;

pub(crate) use self::server::{Environment, Server};
use crate::target::Target;

/// The paths of the programs.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Programs {
    /// The release build of tidegauge
    #[arg(long, default_value = "target/release/tidegauge")]
    pub(crate) tidegauge: PathBuf,
    /// The MongoDB server (`tests/get-mongod` prints one)
    #[arg(long, default_value = "mongod")]
    pub(crate) mongod: PathBuf,
    /// The cache of mongod, in GB
    #[arg(long, default_value_t = 4.0)]
    pub(crate) mongod_cache_gb: f64,
    /// Debian package victoria-metrics
    #[arg(long, default_value = "victoria-metrics")]
    pub(crate) victoria_metrics: PathBuf,
    /// `InfluxDB` 1.x, Debian package influxdb
    #[arg(long, default_value = "influxd")]
    pub(crate) influxd: PathBuf,
}

/// A system that the load test can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum System {
    TidegaugeSqlite,
    TidegaugeMongodb,
    TidegaugePacked,
    TidegaugeTimeseries,
    VictoriaMetrics,
    Influxdb,
    NaiveInsert,
    NaivePush,
    Bare,
}

impl System {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::TidegaugeSqlite => "tidegauge sqlite",
            Self::TidegaugeMongodb => "tidegauge mongodb",
            Self::TidegaugePacked => "tidegauge packed",
            Self::TidegaugeTimeseries => "tidegauge timeseries",
            Self::VictoriaMetrics => "VictoriaMetrics",
            Self::Influxdb => "InfluxDB 1.x",
            Self::NaiveInsert => "naive insert",
            Self::NaivePush => "naive push",
            Self::Bare => "bare axum",
        }
    }

    pub(crate) const fn target(self) -> Target {
        match self {
            Self::TidegaugeSqlite | Self::TidegaugeMongodb | Self::TidegaugePacked | Self::TidegaugeTimeseries => {
                Target::Tidegauge
            }
            Self::VictoriaMetrics => Target::VictoriaMetrics,
            Self::Influxdb => Target::Influxdb,
            Self::NaiveInsert | Self::NaivePush => Target::Naive,
            Self::Bare => Target::Bare,
        }
    }

    pub(crate) const fn needs_mongod(self) -> bool {
        matches!(
            self,
            Self::TidegaugeMongodb
                | Self::TidegaugePacked
                | Self::TidegaugeTimeseries
                | Self::NaiveInsert
                | Self::NaivePush
        )
    }

    /// The promise that an answer of the system makes, as text for people.
    pub(crate) const fn promise(self) -> &'static str {
        match self {
            Self::TidegaugeSqlite | Self::TidegaugeMongodb | Self::TidegaugePacked | Self::TidegaugeTimeseries => {
                "answers when its log is synced to disk (fdatasync, group commit); each reading is stored once"
            }
            Self::VictoriaMetrics => {
                "answers when the readings are in its memory; those of the last seconds are not on disk, and are lost \
                 with the process or the power"
            }
            Self::Influxdb => {
                "answers when its log is synced to disk (fsync, wal-fsync-delay = 0); a resent reading is stored once"
            }
            Self::NaiveInsert => {
                "one insert command per request, answered when mongod has journaled it (w: majority); a resent \
                 reading is stored twice"
            }
            Self::NaivePush => {
                "one $push upsert per reading, answered when mongod has journaled it (w: majority); a resent reading \
                 is stored twice"
            }
            Self::Bare => "reads the body and answers: stores nothing, and is there to show what HTTP alone costs",
        }
    }
}

impl Programs {
    /// The program that is missing to run a system, and how to install it.
    ///
    /// `None`: nothing is missing.
    pub(crate) fn missing(&self, system: System) -> Option<String> {
        let (program, remedy) = match system {
            System::Bare => return None,
            System::VictoriaMetrics => (&self.victoria_metrics, "apt-get install victoria-metrics"),
            System::Influxdb => (&self.influxd, "apt-get install influxdb"),
            System::NaiveInsert | System::NaivePush => (&self.mongod, GET_MONGOD),
            _ if !is_there(&self.tidegauge) => (&self.tidegauge, "cargo build --release"),
            _ if system.needs_mongod() => (&self.mongod, GET_MONGOD),
            _ => return None,
        };
        (!is_there(program)).then(|| format!("{} is not installed ({remedy})", program.display()))
    }
}

const GET_MONGOD: &str = "--mongod \"$(tests/get-mongod)\"";

/// Whether a program exists at its path, or is found by its name in `PATH`.
fn is_there(program: &Path) -> bool {
    let in_path = |folders: std::ffi::OsString| std::env::split_paths(&folders).any(|it| it.join(program).is_file());
    if program.components().count() > 1 { program.is_file() } else { std::env::var_os("PATH").is_some_and(in_path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_installed_is_named_with_a_remedy() {
        let nowhere = PathBuf::from("/nowhere/program");
        let programs = Programs {
            tidegauge: "sh".into(),
            mongod: nowhere.clone(),
            mongod_cache_gb: 4.0,
            victoria_metrics: "no-such-program-anywhere".into(),
            influxd: "sh".into(),
        };
        let missing = |system| programs.missing(system);
        assert_eq!(missing(System::TidegaugeSqlite), None);
        assert_eq!(missing(System::Influxdb), None);
        assert_eq!(missing(System::Bare), None);
        assert!(missing(System::TidegaugeMongodb).is_some_and(|why| why.contains("get-mongod")));
        assert!(missing(System::NaivePush).is_some_and(|why| why.starts_with("/nowhere/program is not installed")));
        assert!(missing(System::VictoriaMetrics).is_some_and(|why| why.contains("apt-get install victoria-metrics")));
    }
}
