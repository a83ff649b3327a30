//! The types of the options of `loadtest steady`.

use std::str::FromStr;

use anyhow::{Context, ensure};
use clap::ValueEnum;

use crate::systems::System;

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lowercase")]
pub(crate) enum End {
    /// When all readings are stored and all closed days are rolled up
    Stored,
    /// After the last reading: what is pending then is not stored
    Sent,
}

/// A store of tidegauge, with its layout of documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Store {
    Sqlite,
    Mongodb,
    Packed,
    Timeseries,
}

impl Store {
    /// The store of a system; `None` if the system is not tidegauge.
    pub(crate) const fn of(system: System) -> Option<Self> {
        match system {
            System::TidegaugeSqlite => Some(Self::Sqlite),
            System::TidegaugeMongodb => Some(Self::Mongodb),
            System::TidegaugePacked => Some(Self::Packed),
            System::TidegaugeTimeseries => Some(Self::Timeseries),
            _ => None,
        }
    }

    pub(super) const fn system(self) -> System {
        match self {
            Self::Sqlite => System::TidegaugeSqlite,
            Self::Mongodb => System::TidegaugeMongodb,
            Self::Packed => System::TidegaugePacked,
            Self::Timeseries => System::TidegaugeTimeseries,
        }
    }
}

/// A configuration key, such as `flush.max_age`, and its value.
#[derive(Debug, Clone)]
pub(crate) struct Setting(pub(super) String, pub(super) String);

impl FromStr for Setting {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, value) = text.split_once('=').context("it is not KEY=VALUE")?;
        ensure!(key.contains('.'), "{key} is not SECTION.KEY");
        Ok(Self(key.to_owned(), value.to_owned()))
    }
}
