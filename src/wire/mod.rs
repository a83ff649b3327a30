//! Wire formats: bytes in, readings out.
//!
//! A parser knows one format and nothing else. It borrows from the body, calls a [`Sink`] for each reading in
//! order, and goes on after an invalid reading. The sink applies the rules that do not depend on the format
//! (names, limits, the clock), so that all formats obey the same rules.
//!
//! Work and memory grow in proportion to the body, whatever its content: a parser builds nothing larger than
//! the limits of the sink ([`Limits`]), and copies nothing once for each reading that the body has once for
//! all of them. The tests in `ingest::stretch` check that for each format.

use std::borrow::Cow;

use strum::{EnumCount, EnumIter, IntoStaticStr};

use crate::model::series::SeriesError;

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod grouping;
pub mod json;
mod labels;
pub mod line_protocol;
mod metadata;
pub mod otlp;
mod problem;
mod protobuf;
#[cfg(test)]
pub(crate) mod readings_only;
#[cfg(test)]
pub(crate) mod recording_sink;
pub mod remote_read;
pub mod remote_write;
pub mod senml;
mod source;
pub mod timestamp;
mod values;
pub mod webhook;
mod xor_chunk;

pub use protobuf::ProtobufError;
pub use source::{Format, Protocol, Source, Transport};

/// A reading that a parser found.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// The client ID of the device, not checked yet.
    pub device: &'a str,
    /// The device's metadata, if the body has any.
    ///
    /// It is the text of a JSON object that obeys the rules for metadata in `model`.
    pub metadata: Option<&'a str>,
    /// The number of the owner (device and metadata together), from 0 in each body.
    ///
    /// Readings with the same number have the same owner, so admission checks and encodes the owner once.
    /// `None`: the parser does not number owners.
    pub owner: Option<u32>,
    /// The instant in Unix milliseconds; `None` is the server's clock.
    pub ts_ms: Option<i64>,
    /// The metrics and values, not checked yet.
    ///
    /// Never empty. A metric with labels is a text of [`model::series`](crate::model::series), with its
    /// labels in any order.
    pub values: &'a [(Cow<'a, str>, f64)],
    /// The length in bytes of the measurement that begins the metric names.
    ///
    /// It is 3 for `cpu_idle` (measurement `cpu`, field `idle`). A name without `_` at this place, such as
    /// `cpu` alone, has no measurement. 0: no name has one.
    pub measurement_bytes: u8,
}

/// The limits of one reading. A parser builds nothing larger.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most metrics of a reading.
    pub max_metrics: usize,
    /// The longest metadata of a device, in bytes.
    pub max_metadata_bytes: usize,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self { max_metrics: usize::MAX, max_metadata_bytes: usize::MAX };

    /// Checks the number of metrics of a reading.
    ///
    /// # Errors
    /// When there are too many.
    pub fn check_metrics(&self, found: usize) -> Result<(), Rejection> {
        let limit = self.max_metrics;
        if found <= limit {
            return Ok(());
        }
        let detail =
            format!("a reading has at most {limit} metrics (ingest.max_metrics_per_reading), this has {found}");
        Err(Rejection { code: Code::TooManyMetrics, detail })
    }

    /// Checks the length of metadata.
    ///
    /// # Errors
    /// When it is too long.
    pub fn check_metadata(&self, bytes: usize) -> Result<(), Rejection> {
        let limit = self.max_metadata_bytes;
        if bytes <= limit {
            return Ok(());
        }
        let detail = format!("metadata has at most {limit} bytes (ingest.max_metadata_bytes), this has {bytes}");
        Err(Rejection { code: Code::MetadataTooLarge, detail })
    }
}

/// Receives the readings and rejections of a parser.
pub trait Sink {
    /// The limits of the readings of this body.
    fn limits(&self) -> Limits {
        Limits::NONE
    }
    /// Whether the request is refused in any case, so that the parser may stop.
    fn is_over(&self) -> bool {
        false
    }
    /// Receives the unchecked device of the next reading before its values are parsed.
    ///
    /// Meanwhile the sink can prefetch data of the device. If the reading proves invalid, [`Self::reading`]
    /// is not called.
    fn expect(&mut self, _device: &str) {}
    /// Receives a reading.
    fn reading(&mut self, incoming: Incoming<'_>);
    /// Learns that the next reading has a relative time: the body has its age.
    ///
    /// The call of [`Self::reading`] follows at once.
    fn relative_time(&mut self) {}
    /// Receives the number of histograms in the next reading, and of their values.
    fn histograms(&mut self, _histograms: u64, _values: u64) {}
    /// Receives the rejection of an invalid reading.
    fn reject(&mut self, rejection: Rejection);
    /// Receives the rejection of one value of the next reading.
    ///
    /// The other values of the reading follow. If no value is left, the parser rejects the reading instead.
    fn reject_value(&mut self, rejection: Rejection);
    /// Receives the name of a part of the body that is dropped on purpose.
    fn ignore(&mut self, what: Ignored, name: &str);
    /// Receives the number of the next line, counted from 1.
    ///
    /// Only line-based formats call it.
    fn line(&mut self, _number: u64) {}
    /// Receives the sequence number of the next message of a device.
    ///
    /// The device ID is not checked yet. Only formats with sequence numbers call it.
    fn sequence(&mut self, _device: &str, _number: u64) {}
}

/// Why a reading is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The stable code.
    pub code: Code,
    /// The problem, as text for people.
    pub detail: String,
}

impl From<SeriesError> for Rejection {
    #[cold]
    fn from(error: SeriesError) -> Self {
        Self { code: Code::from(&error), detail: error.to_string() }
    }
}

/// The parts of a body that are dropped on purpose.
///
/// They are the `reason` of `tidegauge_fields_ignored_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumCount, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Ignored {
    /// A text where only numbers are stored.
    String,
    /// A key without a meaning, which the configuration or the format allows.
    UnknownKey,
    /// The marker of a series that has ended, or a data point without a recorded value.
    Stale,
    /// A value of remote write that is no finite number.
    NonFinite,
    /// A sample that Prometheus derives from readings: of an alert, or of a latest value of this server.
    Derived,
    /// The buckets of a histogram, or the quantiles of a summary.
    ///
    /// Remote write sends them in native histograms, OTLP in data points.
    Histogram,
    /// An exemplar: a single measured value, with a reference to its trace.
    Exemplar,
    /// The unit, the description or the type of a metric.
    ///
    /// Also a label of remote write that should become metadata of the device, but is not valid there, or
    /// makes it too long.
    Metadata,
    /// An attribute of a resource or a scope that cannot be metadata.
    ///
    /// It is neither a text nor a number, or does not fit.
    Attribute,
    /// An array below a `*` of a webhook.
    Array,
    /// A payload that has no readings for its webhook.
    ///
    /// It meets no condition of the webhook, or its array of readings is empty.
    Event,
    /// A value of an identity that has another value before it in the body, which the store keeps.
    LaterValue,
}

impl Ignored {
    /// Whether a body of this format may have this part.
    #[must_use]
    pub const fn occurs_in(self, format: Format) -> bool {
        match self {
            Self::String => matches!(format, Format::Json | Format::LineProtocol | Format::Webhook),
            Self::UnknownKey => !matches!(format, Format::LineProtocol | Format::Webhook),
            Self::Stale | Self::Histogram | Self::Exemplar | Self::Metadata => {
                matches!(format, Format::RemoteWrite | Format::Otlp)
            }
            Self::NonFinite | Self::Derived => matches!(format, Format::RemoteWrite),
            Self::Attribute => matches!(format, Format::Otlp),
            Self::Array | Self::Event => matches!(format, Format::Webhook),
            Self::LaterValue => true,
        }
    }
}

/// The stable codes of rejected readings and values.
///
/// Answers have them, and they are the `reason` of `tidegauge_readings_rejected_total` and
/// `tidegauge_values_rejected_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumCount, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[expect(missing_docs, reason = "each says what its name says")]
pub enum Code {
    InvalidJson,
    InvalidLine,
    InvalidSenml,
    UnsupportedSenml,
    InvalidRemoteWrite,
    InvalidOtlp,
    MissingDeviceId,
    InvalidDeviceId,
    MissingValues,
    InvalidMetricName,
    InvalidLabel,
    TooManyLabels,
    SeriesTooLong,
    InvalidValue,
    NonFiniteValue,
    InvalidTimestamp,
    TimestampTooOld,
    TimestampInFuture,
    TooManyMetrics,
    DuplicateKey,
    UnknownKey,
    InvalidMetadata,
    MetadataTooLarge,
    DeviceForbidden,
    DeviceRateLimited,
    TooManyDeviceMetrics,
    TooManyNewDevices,
    RequestTooLarge,
}

impl Code {
    /// Whether a body of this format may have a reading that is rejected with this code.
    #[must_use]
    pub const fn occurs_in(self, format: Format) -> bool {
        match self {
            Self::InvalidJson => matches!(format, Format::Json | Format::Webhook),
            Self::InvalidLine => matches!(format, Format::LineProtocol),
            Self::InvalidSenml | Self::UnsupportedSenml => matches!(format, Format::Senml),
            Self::InvalidRemoteWrite => matches!(format, Format::RemoteWrite),
            Self::InvalidOtlp => matches!(format, Format::Otlp),
            _ => true,
        }
    }

    /// Whether single values are rejected with this code, and not only whole readings.
    #[must_use]
    pub const fn is_of_value(self) -> bool {
        matches!(
            self,
            Self::InvalidMetricName
                | Self::InvalidLabel
                | Self::TooManyLabels
                | Self::SeriesTooLong
                | Self::InvalidValue
                | Self::NonFiniteValue
        )
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

impl From<&SeriesError> for Code {
    fn from(error: &SeriesError) -> Self {
        match error {
            SeriesError::Name(_) => Self::InvalidMetricName,
            SeriesError::TooManyLabels(_) => Self::TooManyLabels,
            SeriesError::TooLong(_) => Self::SeriesTooLong,
            SeriesError::Label(_) | SeriesError::DuplicateLabel(_) | SeriesError::Form(_) => Self::InvalidLabel,
        }
    }
}
