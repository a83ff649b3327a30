//! Wire formats: bytes in, readings out.
//!
//! A parser knows one format and nothing else: it borrows from the body, calls a [`Sink`] for each reading it
//! finds, in order, and never stops at a reading that is bad by itself. What makes a reading acceptable
//! whatever its format (names, limits, the clock) is decided by the sink, so that all formats obey the same
//! rules.
//!
//! Work and memory grow in proportion to the body, whatever stands in it: what would be refused for its size
//! is not built at first ([`Limits`]), and nothing that a body says once is copied for each of its readings.
//! The tests in `ingest::stretch` hold each format to that.

use std::borrow::Cow;

use strum::{EnumCount, EnumIter, IntoStaticStr};

#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod json;
pub mod line_protocol;
mod metadata;
#[cfg(test)]
mod notes;
mod problem;
pub mod senml;
mod source;
pub mod timestamp;
pub(crate) mod work;

pub use source::{Format, Protocol, Source, Transport};

/// A reading as it stood in the bytes.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// The device id, not checked yet.
    pub device: &'a str,
    /// The device's metadata, when it came along: the text of a JSON object that obeys the rules for metadata
    /// in `model`.
    pub metadata: Option<&'a str>,
    /// A number that the parser gives to device and metadata together, counted from 0 in each body. Readings
    /// with the same number share both, so they need to be checked and kept once only. `None`: not known.
    pub owner: Option<u32>,
    /// The instant in Unix milliseconds; `None` asks for the server's clock.
    pub ts_ms: Option<i64>,
    /// Metric names and values, neither checked yet. Never empty.
    pub values: &'a [(Cow<'a, str>, f64)],
}

/// Sizes beyond which a reading is refused, so a parser builds nothing larger.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How many metrics a reading may have.
    pub max_metrics: usize,
    /// How long the text of a device's metadata may be, in bytes.
    pub max_metadata_bytes: usize,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self { max_metrics: usize::MAX, max_metadata_bytes: usize::MAX };

    /// Checks how many metrics a reading has.
    ///
    /// # Errors
    /// When they are too many.
    pub fn check_metrics(&self, found: usize) -> Result<(), Rejection> {
        let limit = self.max_metrics;
        if found <= limit {
            return Ok(());
        }
        let detail = format!("a reading has at most {limit} metrics, this has {found}");
        Err(Rejection { code: Code::TooManyMetrics, detail })
    }

    /// Checks how long the text of metadata is.
    ///
    /// # Errors
    /// When it is too long.
    pub fn check_metadata(&self, bytes: usize) -> Result<(), Rejection> {
        let limit = self.max_metadata_bytes;
        if bytes <= limit {
            return Ok(());
        }
        let detail = format!("metadata has at most {limit} bytes, this has {bytes}");
        Err(Rejection { code: Code::MetadataTooLarge, detail })
    }
}

/// Takes what a parser finds.
pub trait Sink {
    /// What the readings of this body may have.
    fn limits(&self) -> Limits {
        Limits::NONE
    }
    /// Whether the request is refused whatever follows, so that the parser may stop.
    fn is_over(&self) -> bool {
        false
    }
    /// A reading.
    fn reading(&mut self, incoming: Incoming<'_>);
    /// Something that was meant to be a reading and is none.
    fn reject(&mut self, rejection: Rejection);
    /// What follows stands on this line of the body, counted from 1. Called by line-based formats only.
    fn line(&mut self, _number: u64) {}
    /// What follows is the message with this number of a device that numbers its messages one by one. The
    /// device id is not checked yet. Called by formats that have such a number only.
    fn sequence(&mut self, _device: &str, _number: u64) {}
}

/// Why a reading is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The stable code.
    pub code: Code,
    /// What is wrong, for a person.
    pub detail: String,
}

/// The stable codes of rejected readings, in answers and as the `reason` of
/// `tidegauge_readings_rejected_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumCount, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[expect(missing_docs, reason = "each says what its name says")]
pub enum Code {
    InvalidJson,
    InvalidLine,
    InvalidSenml,
    UnsupportedSenml,
    MissingDeviceId,
    InvalidDeviceId,
    MissingValues,
    InvalidMetricName,
    InvalidValue,
    NonFiniteValue,
    InvalidTimestamp,
    TimestampTooOld,
    TimestampInFuture,
    TooManyMetrics,
    DuplicateKey,
    InvalidMetadata,
    MetadataTooLarge,
    DeviceForbidden,
    DeviceRateLimited,
    TooManyDeviceMetrics,
    TooManyNewDevices,
    RequestTooLarge,
}

impl Code {
    /// The only format whose readings are rejected with this code; `None` for a code of every format.
    #[must_use]
    pub const fn format(self) -> Option<Format> {
        match self {
            Self::InvalidJson => Some(Format::Json),
            Self::InvalidLine => Some(Format::LineProtocol),
            Self::InvalidSenml | Self::UnsupportedSenml => Some(Format::Senml),
            _ => None,
        }
    }

    /// Whether the same reading may be accepted later.
    #[must_use]
    pub const fn is_for_now(self) -> bool {
        matches!(self, Self::DeviceRateLimited | Self::TooManyNewDevices)
    }

    /// The code as answers and metrics have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
