//! The limits whose being reached is counted.

use metrics::Counter;

use super::instrument::{Instrument, Kind, Site};
use crate::wire::Code;

/// A limit, named by the key that sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is told at its key")]
pub enum Limit {
    Connections,
    BytesInFlight,
    BodyBytes,
    ReadingsPerRequest,
    MetricsPerReading,
    MetadataBytes,
    LogBytes,
    LogMinFree,
    TokenReadings,
    TokenRequests,
    TokenBytesInFlight,
    DeviceReadings,
    DeviceMetrics,
    NewDevices,
    Queries,
    TokenQueries,
    QueryBytes,
}

impl Limit {
    /// All limits, so that each has its metric from the start.
    pub const ALL: [Self; 17] = [
        Self::Connections,
        Self::BytesInFlight,
        Self::BodyBytes,
        Self::ReadingsPerRequest,
        Self::MetricsPerReading,
        Self::MetadataBytes,
        Self::LogBytes,
        Self::LogMinFree,
        Self::TokenReadings,
        Self::TokenRequests,
        Self::TokenBytesInFlight,
        Self::DeviceReadings,
        Self::DeviceMetrics,
        Self::NewDevices,
        Self::Queries,
        Self::TokenQueries,
        Self::QueryBytes,
    ];

    /// The key that sets it.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Connections => "http.max_connections",
            Self::BytesInFlight => "http.max_bytes_in_flight",
            Self::BodyBytes => "http.max_body_bytes",
            Self::ReadingsPerRequest => "ingest.max_readings_per_request",
            Self::MetricsPerReading => "ingest.max_metrics_per_reading",
            Self::MetadataBytes => "ingest.max_metadata_bytes",
            Self::LogBytes => "log.max_bytes",
            Self::LogMinFree => "log.min_free_bytes",
            Self::TokenReadings => "limits.token_readings_per_second",
            Self::TokenRequests => "limits.token_requests_per_second",
            Self::TokenBytesInFlight => "limits.token_bytes_in_flight",
            Self::DeviceReadings => "limits.device_readings_per_second",
            Self::DeviceMetrics => "limits.device_metrics_per_hour",
            Self::NewDevices => "limits.new_devices_per_minute",
            Self::Queries => "query.max_concurrent",
            Self::TokenQueries => "query.max_concurrent_per_token",
            Self::QueryBytes => "query.max_bytes_in_flight",
        }
    }

    /// The limit at which a reading with this code was refused, if it was one.
    #[must_use]
    pub const fn of(code: Code) -> Option<Self> {
        match code {
            Code::TooManyMetrics => Some(Self::MetricsPerReading),
            Code::MetadataTooLarge => Some(Self::MetadataBytes),
            Code::DeviceRateLimited => Some(Self::DeviceReadings),
            Code::TooManyDeviceMetrics => Some(Self::DeviceMetrics),
            Code::TooManyNewDevices => Some(Self::NewDevices),
            _ => None,
        }
    }
}

/// A counter per limit, found without a lookup.
#[derive(Debug)]
pub struct PerLimit([Counter; Limit::ALL.len()]);

impl PerLimit {
    /// The counter of a limit.
    pub const fn of(&self, limit: Limit) -> &Counter {
        &self.0[limit as usize]
    }
}

impl Instrument for PerLimit {
    const KIND: Kind = Kind::Counter;

    fn at(site: Site) -> Self {
        Self(Limit::ALL.map(|limit| Counter::at(site.with(limit.key()))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn each_limit_counts_under_a_key_of_the_reference() {
        let (metrics, exposition) = Metrics::new();
        for (count, limit) in (1..).zip(Limit::ALL) {
            metrics.limited_total.of(limit).increment(count);
        }
        let (text, reference) = (exposition.render(), include_str!("../../config/tidegauge.toml"));
        for (count, limit) in (1..).zip(Limit::ALL) {
            let line = format!("tidegauge_limited_total{{limit=\"{}\"}} {count}\n", limit.key());
            assert!(text.contains(&line), "{line} in\n{text}");
            let (section, key) = limit.key().split_once('.').expect("a section and a key");
            let (_, of_section) = reference.split_once(&format!("\n[{section}]\n")).expect("a section");
            let of_section = of_section.split("\n[").next().unwrap_or_default();
            assert!(
                of_section.contains(&format!("\n{key} = ")) || of_section.contains(&format!("\n#{key} = ")),
                "{key}"
            );
        }
    }
}
