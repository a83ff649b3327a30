//! Converts the configuration to the options of each room.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use tidegauge::access::DeviceScope;
use tidegauge::common::clock::Clock;
use tidegauge::config::{self, Config, Json, Period, UnknownKeys};
use tidegauge::flush::{self, Closing};
use tidegauge::http::{Formats, Hosts, Webhook};
use tidegauge::ingest::Rules;
use tidegauge::ingest::devices::DeviceLimits;
use tidegauge::limits::Rate;
use tidegauge::log::MinFree;
use tidegauge::model::{Hour, Keep};
use tidegauge::store::UnreadableDocuments;
use tidegauge::store::mongodb::MongodbOptions;
use tidegauge::store::sqlite::{self, SqliteStore};
use tidegauge::telemetry::Metrics;
use tidegauge::wire::{self, json, senml::NameSplit};
use tidegauge::{access, http, mqtt, pending, query, udp};

use super::super::Usage;
use super::super::data_dir::{self, DataDir};
use super::open_files;

/// Connections to MongoDB for queries, in addition to those for writes.
const QUERY_CONNECTIONS: u32 = 16;

pub(in super::super) fn mongodb(config: &Config, metrics: &Metrics) -> MongodbOptions {
    let mongodb = &config.mongodb;
    MongodbOptions {
        uri: mongodb.uri.clone().expect("a configuration with a MongoDB store has a URI"),
        database: mongodb.database(),
        collection: mongodb.collection.clone(),
        rollups_collection: mongodb.rollups_collection.clone(),
        devices_collection: mongodb.devices_collection.clone(),
        timeout: mongodb.timeout.as_duration(),
        query_timeout: config.query.timeout.as_duration(),
        layout: mongodb.layout,
        max_readings_per_document: u32::try_from(mongodb.max_readings_per_document).unwrap_or(u32::MAX),
        max_document_bytes: mongodb.max_document_bytes.as_usize(),
        slow_writes: metrics.store_slow_path_total.clone(),
        unreadable_readings: unreadable_readings(metrics),
        unreadable_rollups: UnreadableDocuments::new(metrics.store_unreadable_total.with("rollups")),
        unreadable_devices: UnreadableDocuments::new(metrics.store_unreadable_total.with("devices")),
        retention: config.retention.readings.period().map(Period::as_duration),
        rollups_retention: config.retention.rollups().period().map(Period::as_duration),
        block_compressor: mongodb.block_compressor,
        validate: mongodb.validate,
        max_connections: mongodb_connections(config),
    }
}

/// The counter of readings that a store skips because it cannot read them.
pub(super) fn unreadable_readings(metrics: &Metrics) -> UnreadableDocuments {
    UnreadableDocuments::new(metrics.store_unreadable_total.with("readings"))
}

/// The number of connections to each MongoDB server.
pub(super) fn mongodb_connections(config: &Config) -> u32 {
    u32::try_from(config.flush.max_in_flight).unwrap_or(u32::MAX).saturating_add(QUERY_CONNECTIONS)
}

/// The wait after the end of an hour or day before it is closed and rolled up.
///
/// By then, the buckets of its hours are stored: each is written within eleven minutes of its hour's end,
/// whatever `flush.max_age`. Most late readings arrive within minutes, too, and each write to an hour that is
/// rolled up costs another write. No option changes the wait: instances that share a database must agree, and
/// the shortest retention leaves time for it (`retention.readings` in `src/config`).
const ROLLUP_DELAY: Duration = Duration::from_secs(1_200);

/// The least time from the roll-up of a day to the expiry of its first readings.
///
/// The roll-up of many devices takes time, and the service may be down. With a shorter retention, each hour
/// is rolled up by itself ([`closing`]).
const ROLLUP_MARGIN: Duration = Duration::from_secs(43_200);

pub(super) fn flush(config: &Config, data: &DataDir, clock: &Clock) -> flush::Options {
    flush::Options {
        limits: pending::Limits {
            max_bytes: config.pending.max_bytes.0,
            max_readings: u32::try_from(config.flush.max_readings).unwrap_or(u32::MAX),
            max_age: config.flush.max_age.as_duration(),
        },
        gather: config.flush.gather.as_duration(),
        max_in_flight: config.flush.max_in_flight,
        max_buckets_per_write: config.flush.max_buckets_per_write,
        max_write_bytes: config.flush.max_write_bytes.0,
        closing: closing(config.retention.readings),
        rollup_delay: ROLLUP_DELAY,
        rollup_progress: data.rollup_progress(),
        closed_hours: data.closed_hours(),
        instance: data.instance(),
        retry: config.flush.retry_initial.as_duration()..=config.flush.retry_max.as_duration(),
        clock: clock.clone(),
    }
}

/// Whether the hours of a day are rolled up together, or each by itself.
///
/// Each is rolled up by itself if the first readings of a day might expire before the day is rolled up.
fn closing(retention: config::Keep) -> Closing {
    const DAY: Duration = Duration::from_secs(86_400);
    match retention.period() {
        Some(period) if period.as_duration() < DAY + ROLLUP_DELAY + ROLLUP_MARGIN => Closing::Hourly,
        _ => Closing::Daily,
    }
}

/// The newest hour that is closed now.
///
/// A write to this hour or to an earlier one has to roll up the written hour.
pub(in super::super) fn newest_closed_hour(config: &Config, clock: &Clock) -> Hour {
    closing(config.retention.readings).newest_closed(clock.now_ms(), ROLLUP_DELAY)
}

/// When hours are rolled up, for people.
pub(in super::super) fn rollups(config: &Config) -> &'static str {
    if !config.store_kind().is_mongodb() {
        return "with each write";
    }
    match closing(config.retention.readings) {
        Closing::Daily => "each day after its end",
        Closing::Hourly => "each hour after its end, because retention.readings is less than about 36 hours",
    }
}

/// The space that the log leaves free if its disk has no SQLite file.
///
/// It is for dead letters and for the log's own files.
const MIN_FREE_WITHOUT_STORE_BYTES: u64 = 16 << 20;

pub(in super::super) fn min_free(config: &Config) -> MinFree {
    match config.log.min_free_bytes {
        config::MinFree::Bytes(bytes) => MinFree::Bytes(bytes.0),
        config::MinFree::Auto if has_sqlite_on_the_disk_of_the_log(config) => {
            MinFree::ForStore(SqliteStore::space_needed(config.flush.max_buckets_per_write))
        }
        config::MinFree::Auto => MinFree::ForStore(MIN_FREE_WITHOUT_STORE_BYTES),
    }
}

/// Whether an SQLite file is in use on the file system of the log.
fn has_sqlite_on_the_disk_of_the_log(config: &Config) -> bool {
    let lock = sqlite::lock_of(&config.sqlite_file()); // beside the file, also if sqlite.file is a link to it
    let folder = lock.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    !config.store_kind().is_mongodb() && disk_of(folder) == disk_of(&data_dir::log_dir(&config.server.data_dir))
}

/// The file system of a path, or of its nearest folder that exists.
fn disk_of(path: &Path) -> Option<u64> {
    let absolute = std::path::absolute(path).ok()?;
    absolute.ancestors().find_map(|path| std::fs::metadata(path).ok()).map(|found| found.dev())
}

/// The rules of admission before a store that keeps this one of several values.
pub(super) fn rules(config: &Config, keep: Keep) -> Rules {
    Rules {
        max_age: config.retention.readings.period().map(Period::as_duration),
        max_future: config.ingest.max_future.as_duration(),
        max_readings: config.ingest.max_readings_per_request,
        limits: wire::Limits {
            max_metrics: config.ingest.max_metrics_per_reading,
            max_metadata_bytes: config.ingest.max_metadata_bytes.as_usize(),
        },
        keep,
    }
}

pub(super) fn udp(config: &Config) -> udp::Options {
    udp::Options { udp: config.udp.clone(), line_protocol: config.ingest.line_protocol.clone(), json: json(config) }
}

/// The address and the options of the server for MQTT devices, if it is on.
pub(super) fn mqtt_listener(config: &Config) -> Option<(SocketAddr, mqtt::ListenerOptions)> {
    let listener = &config.mqtt_listener;
    let options = mqtt::ListenerOptions {
        max_connections: open_files::max_mqtt_connections(config),
        max_packet_bytes: listener.max_packet_bytes.as_usize(),
        receive_maximum: listener.receive_maximum,
        packet_timeout: listener.packet_timeout.as_duration(),
        topics: listener.topics.iter().flat_map(mqtt::Topic::all).collect(),
        formats: mqtt_formats(config),
    };
    Some((listener.listen.address()?, options))
}

fn mqtt_formats(config: &Config) -> mqtt::Formats {
    mqtt::Formats {
        line_protocol: config.ingest.line_protocol.clone(),
        json: json(config),
        senml_names: NameSplit::at(config.ingest.senml.separators.as_str()),
    }
}

/// The options of the clients of MQTT brokers.
///
/// An error is a mistake in the configuration.
pub(in super::super) fn mqtt(config: &Config) -> anyhow::Result<Vec<mqtt::Options>> {
    let formats = mqtt_formats(config);
    let options = |broker: &config::Mqtt| {
        let connector = mqtt::Connector::new(broker).map_err(|error| Usage(error.to_string()))?;
        Ok(mqtt::Options {
            broker: broker.clone(),
            connector,
            scope: DeviceScope::of(config.ingest.device_id_case, None, broker.device_prefix.as_deref()),
            topics: broker.topics.iter().flat_map(mqtt::Topic::all).collect(),
            formats: formats.clone(),
            subscriptions_file: config.server.data_dir.join(subscriptions_file(broker)),
        })
    };
    config.mqtt.iter().map(options).collect()
}

/// The name of the file with the subscriptions of a broker's session.
fn subscriptions_file(broker: &config::Mqtt) -> String {
    let session = format!("{}\n{}", broker.url, broker.client_id);
    format!("mqtt-{:08x}.json", crc32fast::hash(session.as_bytes()))
}

pub(super) fn devices(config: &Config) -> DeviceLimits {
    let limits = &config.limits;
    DeviceLimits {
        readings: Rate::new(limits.device_readings_per_second, Duration::from_secs(1), limits.burst.as_duration()),
        metrics_per_hour: Some(limits.device_metrics_per_hour).filter(|&max| max > 0),
        new_devices: access::new_devices(limits),
        start_grace: limits.start_grace.as_duration(),
        max_known: limits.known_devices,
    }
}

/// The options of JSON. `now_ms` is set when a body arrives.
pub(super) fn json(config: &Config) -> json::Options<'static> {
    let Json { unknown_keys, flat } = config.ingest.json;
    json::Options { device: None, ignore_unknown_keys: unknown_keys == UnknownKeys::Ignore, flat, now_ms: 0 }
}

pub(super) fn formats(config: &Config) -> Formats {
    Formats {
        line_protocol: config.ingest.line_protocol.clone(),
        json: json(config),
        remote_write: config.ingest.remote_write.clone(),
        otlp: config.ingest.otlp.clone(),
        senml_names: NameSplit::at(config.ingest.senml.separators.as_str()),
        webhooks: config.webhook.iter().map(Webhook::new).collect(),
    }
}

pub(super) fn hosts(config: &Config) -> Hosts {
    let machine = nix::unistd::gethostname().unwrap_or_default();
    Hosts::new(&config.http.allowed_hosts, &machine.to_string_lossy())
}

pub(super) fn query(config: &Config) -> query::Limits {
    query::Limits {
        max_hours: config.query.max_hours,
        max_points: config.query.max_points,
        max_values_read: config.query.max_values_read,
        catch_up: config.query.catch_up_timeout.as_duration(),
        timeout: config.query.timeout.as_duration(),
        kept: config.retention.rollups().period().map(Period::as_duration),
    }
}

pub(super) fn queries(config: &Config) -> http::QueryLimits {
    let limits = &config.query;
    http::QueryLimits::new(limits.max_concurrent, limits.max_files, limits.max_bytes_in_flight.as_usize())
}

pub(super) fn http(config: &Config) -> http::Limits {
    http::Limits {
        max_connections: open_files::max_connections(config),
        max_body_bytes: config.http.max_body_bytes.as_usize(),
        header_timeout: config.http.header_timeout.as_duration(),
        body_timeout: config.http.body_timeout.as_duration(),
        max_readings: config.query.max_readings,
        default_readings: config.query.default_readings,
        max_devices: config.query.max_devices,
        max_points: config.query.max_points,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_rolled_up_if_their_first_readings_stay_long_enough() {
        for (retention, expected) in [
            ("1h", Closing::Hourly),
            ("1d", Closing::Hourly),
            ("36h19m59s", Closing::Hourly),
            ("36h20m", Closing::Daily),
            ("2d", Closing::Daily),
            ("90d", Closing::Daily),
            ("forever", Closing::Daily),
        ] {
            assert_eq!(closing(retention.parse().unwrap()), expected, "{retention}");
        }
    }

    /// A measurement at the beginning of an hour is deleted after the retention; a bucket document an hour
    /// later.
    #[test]
    fn the_shortest_retention_leaves_time_to_roll_up_and_max_age_changes_no_delay() {
        let hour = Duration::from_secs(3_600);
        for (store, shortest, expires_later) in [("mongodb", "1h", hour), ("mongodb-timeseries", "2h", Duration::ZERO)]
        {
            for max_age in ["1ms", "15m", "1d"] {
                let environment = [
                    ("TIDEGAUGE_STORE__KIND", store),
                    ("TIDEGAUGE_MONGODB__URI", "mongodb://h"),
                    ("TIDEGAUGE_RETENTION__READINGS", shortest),
                    ("TIDEGAUGE_FLUSH__MAX_AGE", max_age),
                ];
                let environment = environment.map(|(key, value)| (key.to_owned(), value.to_owned()));
                let config = Config::load(None, environment.into_iter(), &[]).unwrap();
                let folder = tempfile::tempdir().unwrap();
                let data = DataDir::lock(folder.path()).unwrap();
                let options = flush(&config, &data, &Clock::system());
                assert_eq!(options.rollup_delay, ROLLUP_DELAY, "{max_age}");
                let kept = config.retention.readings.period().unwrap().as_duration() + expires_later;
                assert!(kept >= hour + options.rollup_delay + Duration::from_secs(1_800), "{store}");
            }
        }
    }

    #[test]
    fn the_reserve_of_a_first_start_is_that_of_later_ones() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.server.data_dir = folder.path().join("new");
        let first = min_free(&config);
        std::fs::create_dir_all(data_dir::log_dir(&config.server.data_dir)).unwrap();
        // On overlayfs, a file may have another device than its folder, as this link has.
        std::os::unix::fs::symlink("/dev/null", sqlite::lock_of(&config.sqlite_file())).unwrap();
        let expected = SqliteStore::space_needed(config.flush.max_buckets_per_write);
        assert!(expected > MIN_FREE_WITHOUT_STORE_BYTES);
        for found in [first, min_free(&config)] {
            assert!(matches!(found, MinFree::ForStore(bytes) if bytes == expected), "{found:?}");
        }
    }
}
