//! The table of metrics.

use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram, Unit};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::instrument::{BuildInfo, Definition, Instrument, Labelled, PerVariant, Site};
use super::{Exposition, Limit, RequestSeconds};
use crate::wire::Protocol;

/// Bucket bounds for times, in seconds: from a fast sync to a hung store.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// Bucket bounds for how long a lock is held, in seconds.
const HOLDS: &[f64] = &[0.000_001, 0.000_01, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.1, 1.0];

/// Bucket bounds for how many things go together.
const COUNTS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0];

/// Makes [`Metrics`] and its [`TABLE`] of lines `/// help` and `name: instrument, unit {labels} in buckets;`,
/// where the name lacks its `tidegauge_` and labels and buckets may be missing.
macro_rules! table {
    ($(
        $(#[doc = $help:literal])+
        $name:ident: $instrument:ty, $unit:ident $({ $($label:ident),+ })? $(in $buckets:ident)?;
    )+) => {
        /// The metrics, each exported under its field's name behind `tidegauge_`, with its documentation as
        /// help.
        #[derive(Debug)]
        pub struct Metrics {
            $( $(#[doc = $help])+ pub $name: $instrument, )+
        }

        /// The metrics as they are exported, in the order of the fields of [`Metrics`].
        pub(super) static TABLE: &[Definition] = &[$(Definition {
            name: concat!("tidegauge_", stringify!($name)),
            kind: <$instrument as Instrument>::KIND,
            unit: Unit::$unit,
            labels: &[$($(stringify!($label)),+)?],
            buckets: [$($buckets,)? &[]][0],
            help: concat!($($help),+).trim_ascii(),
        }),+];

        impl Metrics {
            fn register(recorder: &Arc<PrometheusRecorder>) -> Self {
                let mut sites = TABLE.iter().map(|definition| Site::new(recorder, definition));
                Self {
                    $( $name: <$instrument>::at(sites.next().expect("the table has a line for each field")), )+
                }
            }
        }
    };
}

table! {
    /// Readings that arrived. Each is accepted or rejected.
    readings_received_total: PerVariant<Protocol, Counter>, Count {protocol};
    /// Readings that were accepted: they are in the log. Each becomes stored, duplicate or dead-lettered, and
    /// is pending until then.
    readings_accepted_total: PerVariant<Protocol, Counter>, Count {protocol};
    /// Readings that were refused, by the code that the client got.
    readings_rejected_total: PerVariant<Protocol, Labelled<Counter>>, Count {protocol, reason};
    /// What was refused at a limit, by the key that sets it: connections, requests, or where it is about a
    /// device or a reading, readings.
    limited_total: PerVariant<Limit, Counter>, Count {limit};
    /// Devices that are known without asking the store.
    known_devices: Gauge, Count;
    /// Readings that a start found in the log and that were not known to be stored. They add to the accepted
    /// ones.
    readings_recovered_total: Counter, Count;
    /// Readings that the store took and that brought something new.
    readings_stored_total: Counter, Count;
    /// Readings that the store had already, or that a later reading of the same instant replaced before they
    /// were stored.
    readings_duplicate_total: Counter, Count;
    /// Readings that the store refused for good, and that went to the dead-letter file.
    readings_dead_lettered_total: Labelled<Counter>, Count {reason};
    /// Metadata that the store refused for good, once for each change of a device. The readings that came
    /// with it are stored without it.
    metadata_refused_total: Counter, Count;
    /// Readings that are accepted and not stored yet.
    readings_pending: Gauge, Count;
    /// Size of the file of what the store refused for good.
    dead_letter_bytes: Gauge, Bytes;
    /// Size at which that file is full, and refused readings stay pending.
    dead_letter_limit_bytes: Gauge, Bytes;

    /// Size of the log on disk.
    log_bytes: Gauge, Bytes;
    /// Size at which the log is full and readings are refused.
    log_limit_bytes: Gauge, Bytes;
    /// Time to sync the log to disk.
    log_sync_seconds: Histogram, Seconds in SECONDS;
    /// Records that were written to the log together and share a sync.
    log_group_records: Histogram, Count in COUNTS;

    /// Memory of the pending readings.
    pending_bytes: Gauge, Bytes;
    /// Memory at which no more readings are taken from the log.
    pending_limit_bytes: Gauge, Bytes;
    /// Buckets with pending readings.
    pending_buckets: Gauge, Count;
    /// Time for which the lock of pending was held, each time.
    pending_lock_seconds: Histogram, Seconds in HOLDS;
    /// How long the oldest pending reading has waited.
    oldest_pending_seconds: Gauge, Seconds;

    /// Time of a write command to the store, by store.
    flush_seconds: Labelled<Histogram>, Seconds {store} in SECONDS;
    /// Readings that were written to one bucket at once.
    flush_readings_per_bucket: Histogram, Count in COUNTS;
    /// Write commands that the store did not take, or not whole, and that were sent again.
    flush_retries_total: Labelled<Counter>, Count {reason};
    /// Write commands that are at the store now.
    flush_in_flight: Gauge, Count;
    /// Whether the store answers: 1 or 0.
    store_up: Gauge, Count;
    /// Size of the store on disk, looked up once a minute: the SQLite file and its write-ahead file, or all
    /// collections and indexes of the MongoDB database. 0 until it is known.
    store_bytes: Gauge, Bytes;
    /// Buckets that could not be appended to and had to be read, merged and written back.
    store_slow_path_total: Counter, Count;

    /// Documents (MongoDB) or chunks of readings (SQLite) that reads skipped because tidegauge did not write
    /// them, or somebody or a disk changed them. Each counts again whenever a read meets it.
    store_unreadable_total: Labelled<Counter>, Count {what};

    /// Hours of devices that were rolled up, again or for the first time.
    rollups_written_total: Counter, Count;
    /// Failures to roll hours up, each of which is followed by another try.
    rollup_retries_total: Labelled<Counter>, Count {reason};
    /// Time from the first hour that is due to be rolled up and is not to the last one: 0 when all are.
    rollup_lag_seconds: Gauge, Seconds;

    /// Time from the head of a request to its answer, by route, method and status.
    http_request_seconds: RequestSeconds, Seconds {route, method, status} in SECONDS;
    /// Open connections.
    http_connections: Gauge, Count;
    /// Connections that were refused because too many were open.
    http_connections_refused_total: Counter, Count;
    /// Connections that did not come about because their TLS handshake failed: it took too long (timeout),
    /// the client went away (closed), did not speak TLS (foreign), had no good certificate (certificate), or
    /// could not agree with the server (protocol).
    tls_handshakes_failed_total: Labelled<Counter>, Count {reason};
    /// When the server's certificate expires, as Unix time: 0 without TLS.
    tls_certificate_expiry_timestamp_seconds: Gauge, Seconds;
    /// Bytes of bodies that are being received or wait for the log.
    http_bytes_in_flight: Gauge, Bytes;

    /// Datagrams that were received. Those that the kernel dropped are not among them; those that were
    /// dropped for another reason are.
    udp_datagrams_total: Counter, Count;
    /// Bytes of the datagrams that were received.
    udp_bytes_total: Counter, Bytes;
    /// Datagrams that were received and held no acceptable reading, those included that were not signed as
    /// they should be.
    udp_malformed_total: Counter, Count;
    /// Datagrams whose readings are lost: the kernel had no room (kernel), the log took nothing (overload),
    /// they were larger than allowed (truncated), or more came with a key than its rate allows
    /// (rate_limited).
    udp_dropped_total: Labelled<Counter>, Count {reason};
    /// Numbers that devices which number their messages have left out.
    udp_sequence_gaps_total: Counter, Count;
    /// How many bytes of datagrams the kernel holds for each socket.
    udp_receive_buffer_bytes: Gauge, Bytes;

    /// What is running: always 1.
    build_info: BuildInfo, Count {version, revision, os, arch};
    /// Whether the last reading of the configuration, at the start or by SIGHUP, was successful: 1 or 0.
    config_last_reload_successful: Gauge, Count;
    /// When the configuration was last read successfully, as Unix time.
    config_last_reload_success_timestamp_seconds: Gauge, Seconds;
}

impl Metrics {
    /// Registers all metrics, and returns them with the way to export them. Each call makes metrics of their
    /// own.
    #[must_use]
    pub fn new() -> (Self, Exposition) {
        let (recorder, exposition) = Exposition::of(TABLE);
        (Self::register(&Arc::new(recorder)), exposition)
    }

    /// Records that the configuration was read at `now_ms`, and whether it can be used.
    pub fn record_config(&self, is_good: bool, now_ms: i64) {
        self.config_last_reload_successful.set(f64::from(u8::from(is_good)));
        if is_good {
            self.config_last_reload_success_timestamp_seconds.set(now_ms as f64 / 1e3);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::super::instrument::Kind;
    use super::*;

    /// Metrics of which each has been recorded at least once, as they are exported.
    fn rendered() -> String {
        let (metrics, exposition) = Metrics::new();
        metrics.readings_dead_lettered_total.with("validation").increment(1);
        metrics.flush_seconds.with("sqlite").record(0.01);
        metrics.flush_retries_total.with("timeout").increment(1);
        metrics.rollup_retries_total.with("timeout").increment(1);
        metrics.store_unreadable_total.with("readings").increment(1);
        metrics.udp_dropped_total.with("kernel").increment(1);
        metrics.tls_handshakes_failed_total.with("timeout").increment(1);
        metrics.http_request_seconds.record("/v1/readings", "POST", 200, Duration::from_millis(1));
        exposition.render()
    }

    #[test]
    fn each_metric_is_exported_with_its_help_and_type() {
        let text = rendered();
        for Definition { name, kind, help, .. } in TABLE {
            assert!(text.contains(&format!("# HELP {name} {help}\n")), "help of {name} in\n{text}");
            assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "type of {name} in\n{text}");
        }
    }

    #[test]
    fn the_metrics_are_a_contract() {
        let mut lines: Vec<String> = TABLE.iter().map(Definition::to_string).collect();
        lines.sort();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn names_are_unique_and_end_as_their_kind_and_unit_ask() {
        let mut seen = HashSet::new();
        for definition in TABLE {
            let name = definition.name;
            assert!(seen.insert(name), "{name} twice");
            assert_eq!(name.ends_with("_total"), definition.kind == Kind::Counter, "{name}");
            assert_eq!(definition.unit == Unit::Seconds, name.ends_with("_seconds"), "{name}");
            assert_eq!(definition.unit == Unit::Bytes, name.contains("bytes"), "{name}");
            let is_histogram = definition.kind == Kind::Histogram;
            assert_eq!(is_histogram, !definition.buckets.is_empty(), "{name}");
        }
    }

    #[test]
    fn counters_start_at_zero_before_anything_happens() {
        let (_metrics, exposition) = Metrics::new();
        let text = exposition.render();
        for line in [
            "tidegauge_readings_received_total{protocol=\"http\"} 0",
            "tidegauge_limited_total{limit=\"log.max_bytes\"} 0",
            "tidegauge_readings_stored_total 0",
            "tidegauge_store_up 0",
            "tidegauge_log_sync_seconds_bucket{le=\"0.0001\"} 0",
        ] {
            assert!(text.lines().any(|rendered| rendered == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn two_sets_of_metrics_do_not_meet() {
        let ((one, _), (_two, exposition)) = (Metrics::new(), Metrics::new());
        one.readings_stored_total.increment(5);
        assert!(exposition.render().contains("tidegauge_readings_stored_total 0\n"));
    }
}
