//! The limits for which the metric `limited_total` counts refusals and rejections.

use strum::{EnumIter, IntoStaticStr};

use crate::wire::Code;

/// A limit, named by the configuration key that sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumIter, IntoStaticStr)]
#[expect(missing_docs, reason = "the reference of the configuration describes each key")]
pub enum Limit {
    #[strum(serialize = "http.max_connections")]
    Connections,
    #[strum(serialize = "mqtt_listener.max_connections")]
    MqttConnections,
    #[strum(serialize = "http.max_bytes_in_flight")]
    BytesInFlight,
    #[strum(serialize = "http.max_body_bytes")]
    BodyBytes,
    #[strum(serialize = "ingest.max_readings_per_request")]
    ReadingsPerRequest,
    #[strum(serialize = "ingest.max_metrics_per_reading")]
    MetricsPerReading,
    #[strum(serialize = "ingest.max_metadata_bytes")]
    MetadataBytes,
    #[strum(serialize = "log.max_bytes")]
    LogBytes,
    #[strum(serialize = "log.min_free_bytes")]
    LogMinFree,
    #[strum(serialize = "limits.token_readings_per_second")]
    TokenReadings,
    #[strum(serialize = "limits.token_requests_per_second")]
    TokenRequests,
    #[strum(serialize = "limits.token_bytes_in_flight")]
    TokenBytesInFlight,
    #[strum(serialize = "limits.device_readings_per_second")]
    DeviceReadings,
    #[strum(serialize = "limits.device_metrics_per_hour")]
    DeviceMetrics,
    #[strum(serialize = "limits.new_devices_per_minute")]
    NewDevices,
    #[strum(serialize = "query.max_concurrent")]
    Queries,
    #[strum(serialize = "query.max_concurrent_per_token")]
    TokenQueries,
    #[strum(serialize = "query.max_files")]
    Files,
    #[strum(serialize = "query.max_bytes_in_flight")]
    QueryBytes,
}

impl Limit {
    /// The configuration key that sets the limit.
    #[must_use]
    pub fn key(self) -> &'static str {
        self.into()
    }

    /// The limit that this code of a rejection stands for; `None` for other codes.
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

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator;

    use super::super::Metrics;
    use super::*;

    #[test]
    fn each_limit_is_named_by_a_key_of_the_reference() {
        let (metrics, exposition) = Metrics::new();
        for (count, limit) in (1..).zip(Limit::iter()) {
            metrics.limited_total.of(limit).increment(count);
        }
        let (text, reference) = (exposition.render(), include_str!("../../config/tidegauge.toml"));
        for (count, limit) in (1..).zip(Limit::iter()) {
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
