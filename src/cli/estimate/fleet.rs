//! The flags that describe a fleet, and their ranges.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tidegauge::config::{Bytes, Period, UnitError};

/// A fleet, and the nodes that are there for it.
#[derive(Debug, Clone, Args)]
pub(in super::super) struct Fleet {
    /// The number of devices, 1 to 10000000000
    #[arg(long, value_parser = |text: &str| whole::<u64>(text, 1..=10_000_000_000))]
    pub(super) devices: u64,
    /// The time between two readings of a device, 1ms to 365d
    #[arg(long, default_value = "60s", value_parser = |text: &str| within(text, Period::millis(1), Period::days(365)))]
    pub(super) interval: Period,
    /// The metrics of a reading, 1 to 4096
    #[arg(long, default_value_t = 1, value_parser = |text: &str| whole::<u32>(text, 1..=4_096))]
    pub(super) metrics: u32,
    #[arg(long, value_parser = |text: &str| whole::<u32>(text, 1..=1_048_576),
          help = "The bytes of a reading in a request, 1 to 1048576. They count for the network only \
                  [default: 100, and 16 for each metric after the first]")]
    pub(super) bytes: Option<u32>,
    /// How long readings are kept (retention.readings), 1h to 24855d
    #[arg(long, default_value = "90d", value_parser = retention)]
    pub(super) retention: Period,
    /// How long rollups are kept (retention.rollups), 1h to 24855d; as long as readings if that is longer
    #[arg(long, default_value = "1830d", value_parser = retention)]
    pub(super) rollups_retention: Period,
    /// How many times the mean a peak is, 1 to 1000
    #[arg(long, default_value_t = 1.0, value_parser = peak)]
    pub(super) peak: f64,
    #[arg(
        long,
        value_enum,
        help = "The store and the layout of its documents [default: sqlite if a small machine is enough, with 1 \
                  core, 512MiB of memory and a disk of 32 GB; else readable]"
    )]
    layout: Option<Layout>,
    /// The readings of a request, 1 to 100000. Devices that send for themselves send one
    #[arg(long, default_value_t = 1, value_parser = |text: &str| whole::<u32>(text, 1..=100_000))]
    pub(super) batch: u32,
    #[arg(long, default_value = "30m", value_parser = |text: &str| within(text, Period::secs(1), Period::days(1)),
          help = "How long readings gather before they are stored (flush.max_age), 1s to 1d")]
    pub(super) max_age: Period,
    /// The processor cores of a node, 1 to 1024 [default: 8; of a small machine 1]
    #[arg(long, value_parser = |text: &str| whole::<u32>(text, 1..=1_024))]
    node_cores: Option<u32>,
    #[arg(long, value_parser = |text: &str| within(text, Bytes::mib(512), Bytes::gib(100_000)),
          help = "The memory of a node, 512MiB to 100000GiB [default: 32GiB; of a small machine 512MiB]")]
    node_memory: Option<Bytes>,
    #[arg(long, value_parser = |text: &str| within(text, Bytes(1_000_000_000), Bytes(1_000_000_000_000_000)),
          help = "The disk of a node, 1GB to 1000TB [default: 2TB; of a small machine 32GB]")]
    node_disk: Option<Bytes>,
}

/// A machine for an instance or a shard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    pub(super) cores: u32,
    pub(super) memory: Bytes,
    pub(super) disk: Bytes,
}

/// A single-board computer with an SD card.
const SMALL: Node = Node { cores: 1, memory: Bytes::mib(512), disk: Bytes(32_000_000_000) };

const SERVER: Node = Node { cores: 8, memory: Bytes::gib(32), disk: Bytes(2_000_000_000_000) };

impl Fleet {
    /// The same fleet with SQLite on a small machine, unless a flag names the layout.
    ///
    /// Flags for the node keep their values.
    pub(super) fn on_small_machine(&self) -> Option<Self> {
        self.layout.is_none().then(|| Self {
            layout: Some(Layout::Sqlite),
            node_cores: self.node_cores.or(Some(SMALL.cores)),
            node_memory: self.node_memory.or(Some(SMALL.memory)),
            node_disk: self.node_disk.or(Some(SMALL.disk)),
            ..self.clone()
        })
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout.unwrap_or(Layout::Readable)
    }

    pub(super) fn node(&self) -> Node {
        Node {
            cores: self.node_cores.unwrap_or(SERVER.cores),
            memory: self.node_memory.unwrap_or(SERVER.memory),
            disk: self.node_disk.unwrap_or(SERVER.disk),
        }
    }
}

/// A store, and the layout of its documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum Layout {
    /// MongoDB, mongodb.layout = "readable"
    Readable,
    /// MongoDB, mongodb.layout = "packed"
    Packed,
    /// MongoDB, store.kind = "mongodb-timeseries"
    Timeseries,
    /// The embedded store
    Sqlite,
}

impl Layout {
    /// The store and its layout, for people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Readable => "MongoDB, readable documents",
            Self::Packed => "MongoDB, packed documents",
            Self::Timeseries => "MongoDB, a time-series collection",
            Self::Sqlite => "SQLite",
        }
    }
}

/// Reads a size or a period from `min` to `max`.
fn within<T>(text: &str, min: T, max: T) -> Result<T, String>
where
    T: FromStr<Err = UnitError> + PartialOrd + Display + Copy,
{
    let value: T = text.parse().map_err(|error: UnitError| error.to_string())?;
    if value < min || value > max {
        return Err(format!("must be from {min} to {max}"));
    }
    Ok(value)
}

fn retention(text: &str) -> Result<Period, String> {
    if text == "forever" {
        return Err(
            "what is kept without an end has no size: name the time for which the disks must suffice, such as \
                    5y"
            .to_owned(),
        );
    }
    within(text, Period::hours(1), Period::MAX)
}

fn whole<T: TryFrom<u64>>(text: &str, range: RangeInclusive<u64>) -> Result<T, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("expected a whole number in digits, such as 50000".to_owned());
    }
    let (min, max) = (range.start(), range.end());
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| format!("must be from {min} to {max}"))
}

fn peak(text: &str) -> Result<f64, String> {
    let peak: f64 = text.parse().map_err(|_| "expected a number such as 5 or 2.5".to_owned())?;
    if (1.0..=1_000.0).contains(&peak) { Ok(peak) } else { Err("must be from 1 to 1000".to_owned()) }
}
