//! The table of metrics.

use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram, Unit};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::instrument::{BuildInfo, Definition, Instrument, Labelled, LateGauge, PerVariant, Site};
use super::{Exposition, Limit, RequestSeconds};
use crate::wire::Protocol;

/// Bucket bounds for times, in seconds: from a fast sync to a store that hangs.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// Bucket bounds for how long a lock is held, in seconds.
const HOLDS: &[f64] = &[0.000_001, 0.000_01, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.1, 1.0];

/// Bucket bounds for counts, such as the readings in a bucket.
const COUNTS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0];

/// Defines [`Metrics`] and its [`TABLE`] from the lines of the table below.
///
/// A metric is `/// help`, and `name: instrument, unit {labels} in buckets;`. The name has no prefix
/// `tidegauge_`; labels and buckets are optional.
macro_rules! table {
    ($(
        $(#[doc = $help:literal])+
        $name:ident: $instrument:ty, $unit:ident $({ $($label:ident),+ })? $(in $buckets:ident)?;
    )+) => {
        /// The metrics. Each is exported as `tidegauge_` and the name of its field.
        ///
        /// The documentation of a field is the help of its metric.
        #[derive(Debug)]
        pub struct Metrics {
            $( $(#[doc = $help])+ pub $name: $instrument, )+
        }

        /// The definitions of the metrics, in the order of the fields of [`Metrics`].
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
    /// Readings received. Each is accepted or rejected.
    readings_received_total: PerVariant<Protocol, Counter>, Count {protocol};
    /// Readings accepted into the log. Each is pending until it is stored, a duplicate, dead-lettered or
    /// deleted.
    readings_accepted_total: PerVariant<Protocol, Counter>, Count {protocol};
    /// Readings rejected, by code. A refused request or datagram that was not parsed counts as one reading.
    readings_rejected_total: PerVariant<Protocol, Labelled<Counter>>, Count {protocol, reason};
    /// Accepted readings that replaced a value of the same device, time and series in the same request.
    readings_overwritten_total: PerVariant<Protocol, Counter>, Count {protocol};
    /// Values rejected, by code. The other values of their readings are accepted.
    values_rejected_total: PerVariant<Protocol, Labelled<Counter>>, Count {protocol, reason};
    /// Parts of accepted requests that are not stored and not an error, such as texts in line protocol.
    fields_ignored_total: PerVariant<Protocol, Labelled<Counter>>, Count {protocol, reason};
    /// Connections, requests or readings refused by a limit, by configuration key.
    limited_total: PerVariant<Limit, Counter>, Count {limit};
    /// Devices known without asking the store.
    known_devices: Gauge, Count;
    /// Readings that recovery read from the log at the start, because they were not known to be stored. They
    /// count in addition to the accepted readings.
    readings_recovered_total: Counter, Count;
    /// Readings written to the store that were new to it.
    readings_stored_total: Counter, Count;
    /// Readings that the store already had, or that a later reading of the same instant replaced before the
    /// flush.
    readings_duplicate_total: Counter, Count;
    /// Pending readings that a deletion removed. Stored readings that it removed count as stored.
    readings_deleted_total: Counter, Count;
    /// Readings that the store refused permanently and that are in the dead-letter file.
    readings_dead_lettered_total: Labelled<Counter>, Count {reason};
    /// Metadata that the store refused permanently, once for each change of a device. The readings are stored
    /// without it.
    metadata_refused_total: Counter, Count;
    /// Readings accepted and not stored yet.
    readings_pending: Gauge, Count;
    /// Size of the dead-letter file, with what a retry has taken from it and not finished.
    dead_letter_bytes: Gauge, Bytes;
    /// Size at which the dead-letter file is full and refused readings stay pending.
    dead_letter_limit_bytes: Gauge, Bytes;

    /// Size of the records in the log. It falls by whole segments, so not to 0 when all is stored.
    log_bytes: Gauge, Bytes;
    /// Size at which the log is full and readings are refused.
    log_limit_bytes: Gauge, Bytes;
    /// Time to sync the log to disk.
    log_sync_seconds: Histogram, Seconds in SECONDS;
    /// Records of the log that were written together and share a sync.
    log_group_records: Histogram, Count in COUNTS;

    /// Memory of the pending readings, and of the names of their series.
    pending_bytes: Gauge, Bytes;
    /// Memory at which no more readings are read from the log.
    pending_limit_bytes: Gauge, Bytes;
    /// Buckets with pending readings.
    pending_buckets: Gauge, Count;
    /// Time for which the lock of the pending readings was held.
    pending_lock_seconds: Histogram, Seconds in HOLDS;
    /// Age of the oldest pending reading.
    oldest_pending_seconds: Gauge, Seconds;

    /// Time of a write command to the store, by store.
    flush_seconds: Labelled<Histogram>, Seconds {store} in SECONDS;
    /// Buckets written, by the reason why they were due: many readings (size), age (age), the end of their
    /// hour (hour), lack of memory or of space in the log (memory, log), the end of the service (drain).
    flush_buckets_total: Labelled<Counter>, Count {reason};
    /// Age at which a bucket is written at the latest, if the store keeps up.
    flush_max_age_seconds: Gauge, Seconds;
    /// Readings written to one bucket at once.
    flush_readings_per_bucket: Histogram, Count in COUNTS;
    /// Write commands that failed in whole or in part and were sent again, by reason.
    flush_retries_total: Labelled<Counter>, Count {reason};
    /// Write commands that the store is executing.
    flush_in_flight: Gauge, Count;
    /// Whether the store answers: 1 or 0.
    store_up: Gauge, Count;
    /// Devices that have been silent for longer than the configuration allows, counted each quarter of that
    /// time, at least a minute and at most 15; more often at first. There is no sample until the first count
    /// is complete, and the count stays while the store is away, its device index lacks devices, or pending
    /// is full.
    devices_silent: LateGauge, Count;
    /// Size of the store on disk, read once a minute: the SQLite file and its write-ahead file, or all
    /// collections and indexes of the MongoDB database. 0 until it is known.
    store_bytes: Gauge, Bytes;
    /// Buckets that could not be appended to, because readings are late or resent or a document is full. They
    /// are read, merged and written back, which costs the store more.
    store_slow_path_total: Counter, Count;

    /// Documents (MongoDB) or chunks of readings (SQLite) that reads skipped because they are damaged or
    /// foreign. Each read of one counts again.
    store_unreadable_total: Labelled<Counter>, Count {what};

    /// Hours of devices rolled up, for the first time or again.
    rollups_written_total: Counter, Count;
    /// Hours of devices that the store refuses to roll up, for example because the document of the day would
    /// be too large. Queries read their readings until these expire.
    rollups_refused_total: Counter, Count;
    /// Failed attempts to roll up hours, by reason. Each is tried again.
    rollup_retries_total: Labelled<Counter>, Count {reason};
    /// Time since the end of the first day (hour, if each hour is rolled up by itself) whose rollups are due
    /// and not written. 0 if none is.
    rollup_lag_seconds: Gauge, Seconds;

    /// Instances that share the MongoDB database and do not count as down, this one included. 0 with SQLite,
    /// and until they are known.
    instances: Gauge, Count;
    /// Deletions that wait until an instance that shares the MongoDB database has executed them. 0 with
    /// SQLite.
    deletions_waiting: Gauge, Count;

    /// Readings that the server at forward.url has accepted. Those sent again after a crash count again.
    forward_readings_total: Counter, Count;
    /// Readings that the server at forward.url has refused for good, by code. They are in a dead-letter file
    /// of their own, as long as it has space.
    forward_refused_total: Labelled<Counter>, Count {reason};
    /// Changes of metadata by operators that the server at forward.url has refused for good. The log lines
    /// have them.
    forward_metadata_refused_total: Counter, Count;
    /// Requests to forward.url that are sent again: no connection (connection), no answer in time (timeout),
    /// a token without the right (unauthorized), a rate (rate_limited), a server that takes no readings at
    /// the moment (unavailable) or that fails (internal), or an answer of something else, such as a proxy
    /// (unexpected).
    forward_errors_total: Labelled<Counter>, Count {reason};
    /// Bytes of the compressed bodies sent to forward.url.
    forward_bytes_total: Counter, Bytes;
    /// Age of the oldest reading in the log that is not forwarded. 0 if all are, and without forward.url.
    forward_lag_seconds: Gauge, Seconds;
    /// Bytes of the log that are not forwarded. 0 without forward.url.
    forward_lag_bytes: Gauge, Bytes;

    /// Time from the head of a request to its answer, by route, method and status.
    http_request_seconds: RequestSeconds, Seconds {route, method, status} in SECONDS;
    /// Open connections.
    http_connections: Gauge, Count;
    /// Connections refused because too many were open.
    http_connections_refused_total: Counter, Count;
    /// Failed TLS handshakes: the handshake took too long (timeout), the client disconnected (closed), did
    /// not speak TLS (foreign), had no valid certificate (certificate), or shared no version or cipher with
    /// the server (protocol).
    tls_handshakes_failed_total: Labelled<Counter>, Count {reason};
    /// Expiry of the server's certificate, as Unix time. 0 without TLS.
    tls_certificate_expiry_timestamp_seconds: Gauge, Seconds;
    /// Bytes of request bodies in memory.
    http_bytes_in_flight: Gauge, Bytes;

    /// Datagrams received. Datagrams that the kernel dropped are not included; those dropped for another
    /// reason are.
    udp_datagrams_total: Counter, Count;
    /// Bytes of the received datagrams.
    udp_bytes_total: Counter, Bytes;
    /// Datagrams received without an accepted reading, including those whose signature is missing or invalid.
    udp_malformed_total: Counter, Count;
    /// Datagrams whose readings are lost: the receive buffer in the kernel was full (kernel), the log
    /// accepted no records (overload), the datagram was larger than allowed (truncated), or
    /// its key had reached its rate (rate_limited).
    udp_dropped_total: Labelled<Counter>, Count {reason};
    /// Sequence numbers missing between the messages of devices that number them.
    udp_sequence_gaps_total: Counter, Count;
    /// Size of the receive buffer that the kernel grants to each socket.
    udp_receive_buffer_bytes: Gauge, Bytes;

    /// Whether the client has a connection to its MQTT broker and the broker grants all its subscriptions: 1
    /// or 0, by client ID.
    mqtt_connected: Labelled<Gauge>, Count {client};
    /// Messages received from an MQTT broker, those that were sent again included.
    mqtt_messages_total: Labelled<Counter>, Count {client};
    /// Messages from which nothing is stored, by reason: no reading of the payload is accepted (payload), no
    /// configured topic has it (topic), it is larger than a packet may be (size), it is retained and has no
    /// time of its own (retained), or its token has reached its rate (rate). They are acknowledged all the
    /// same. Or its quality of service is 0, and its connection ended before it was in the log (overloaded).
    mqtt_refused_total: Labelled<Counter>, Count {reason};
    /// Messages received and not acknowledged yet.
    mqtt_unacknowledged: Labelled<Gauge>, Count {client};
    /// Age of the oldest message that is not acknowledged. 0 if all are.
    mqtt_oldest_unacknowledged_seconds: Labelled<Gauge>, Seconds {client};
    /// Connections to an MQTT broker that ended or could not be made, by reason: the network (network), an
    /// answer that did not come in time (timeout), the broker (broker), a packet that is none (protocol), or
    /// another client with the same client ID, which has taken over the session.
    mqtt_disconnects_total: Labelled<Counter>, Count {reason};
    /// Connections at which the MQTT broker no longer had the session of the client: messages since the
    /// connection before may be lost.
    mqtt_sessions_lost_total: Labelled<Counter>, Count {client};
    /// Open connections of MQTT devices to this server.
    mqtt_listener_connections: Gauge, Count;
    /// Connections of MQTT devices that ended, by reason: the client, the network, a client that was silent
    /// for longer than its keep-alive, or too slow (timeout), another connection with the same client ID,
    /// which has taken over, a stop of the server (shutdown), a packet that is none (protocol), a version
    /// other than 5 and 3.1.1, a message of quality of service 2 (qos), no valid token or certificate
    /// (unauthorized), a token without the scope ingest (forbidden) or at its rate of requests, or the limit
    /// of connections.
    mqtt_listener_ended_total: Labelled<Counter>, Count {reason};
    /// Messages received from MQTT devices, those that were sent again included.
    mqtt_listener_messages_total: Counter, Count;
    /// Messages received from MQTT devices and not acknowledged yet.
    mqtt_listener_unacknowledged: Gauge, Count;
    /// MQTT messages that their sender, a broker or a device, marks as sent again.
    mqtt_redelivered_total: Counter, Count;
    /// Readings of such messages without a time of their own: they may be stored twice.
    mqtt_redelivered_untimed_total: Counter, Count;

    /// Version and platform of the running program. Always 1.
    build_info: BuildInfo, Count {version, revision, os, arch};
    /// Whether the configuration was valid when it was last read, at the start or by SIGHUP: 1 or 0.
    config_last_reload_successful: Gauge, Count;
    /// Time of the last valid configuration, as Unix time.
    config_last_reload_success_timestamp_seconds: Gauge, Seconds;
}

impl Metrics {
    /// Registers all metrics, and returns them with their exposition.
    ///
    /// Each call creates metrics of its own, so tests do not share them.
    #[must_use]
    pub fn new() -> (Self, Exposition) {
        let (recorder, exposition) = Exposition::of(TABLE);
        (Self::register(&Arc::new(recorder)), exposition)
    }

    /// Records that the configuration was read at `now_ms`, and whether it is valid.
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

    /// The exposition of metrics that were recorded at least once each.
    fn rendered() -> String {
        let (metrics, exposition) = Metrics::new();
        metrics.devices_silent.set(1.0);
        metrics.readings_rejected_total.of(Protocol::Http).with("invalid_json").increment(1);
        metrics.values_rejected_total.of(Protocol::Http).with("invalid_value").increment(1);
        metrics.fields_ignored_total.of(Protocol::Influx).with("string").increment(1);
        metrics.readings_dead_lettered_total.with("validation").increment(1);
        metrics.flush_seconds.with("sqlite").record(0.01);
        metrics.flush_buckets_total.with("age").increment(1);
        metrics.flush_retries_total.with("timeout").increment(1);
        metrics.rollup_retries_total.with("timeout").increment(1);
        metrics.store_unreadable_total.with("readings").increment(1);
        metrics.forward_refused_total.with("timestamp_too_old").increment(1);
        metrics.forward_errors_total.with("connection").increment(1);
        metrics.udp_dropped_total.with("kernel").increment(1);
        metrics.tls_handshakes_failed_total.with("timeout").increment(1);
        for gauge in
            [&metrics.mqtt_connected, &metrics.mqtt_unacknowledged, &metrics.mqtt_oldest_unacknowledged_seconds]
        {
            gauge.with("tidegauge").set(0.0);
        }
        metrics.mqtt_messages_total.with("tidegauge").increment(1);
        metrics.mqtt_refused_total.with("payload").increment(1);
        metrics.mqtt_disconnects_total.with("network").increment(1);
        metrics.mqtt_sessions_lost_total.with("tidegauge").increment(1);
        metrics.mqtt_listener_ended_total.with("client").increment(1);
        metrics.http_request_seconds.record("/v1/readings", "POST", 200, Duration::from_millis(1));
        exposition.render()
    }

    /// The kind as the exposition names it.
    fn kind_of(definition: &Definition) -> &'static str {
        match definition.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }

    #[test]
    fn each_metric_is_exported_with_its_help_and_type() {
        let text = rendered();
        for definition @ Definition { name, help, .. } in TABLE {
            let kind = kind_of(definition);
            assert!(text.contains(&format!("# HELP {name} {help}\n")), "help of {name} in\n{text}");
            assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "type of {name} in\n{text}");
        }
    }

    #[test]
    fn the_metrics_are_a_contract() {
        let line = |definition: &Definition| {
            let Definition { name, labels, help, .. } = definition;
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            format!("{name}{labels} {} {help}", kind_of(definition))
        };
        let mut lines: Vec<String> = TABLE.iter().map(line).collect();
        lines.sort();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn names_are_unique_and_end_with_their_unit_and_kind() {
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
    fn counters_start_at_zero() {
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
    fn a_number_that_is_not_known_yet_has_no_sample() {
        let (metrics, exposition) = Metrics::new();
        assert!(!exposition.render().contains("tidegauge_devices_silent"));
        metrics.devices_silent.set(0.0);
        assert!(exposition.render().contains("\ntidegauge_devices_silent 0\n"));
    }

    #[test]
    fn two_sets_of_metrics_are_separate() {
        let ((one, _), (_two, exposition)) = (Metrics::new(), Metrics::new());
        one.readings_stored_total.increment(5);
        assert!(exposition.render().contains("tidegauge_readings_stored_total 0\n"));
    }
}
