//! Divides the open files (`RLIMIT_NOFILE`) between connections and everything else.
//!
//! Clients can open any number of connections, and a log that cannot open its next segment has failed. So
//! connections get only the files that the other parts do not need.

use nix::libc::rlim_t;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tidegauge::config::Config;
use tidegauge::http;

use super::options::mongodb_connections;

/// The files of other parts, with some to spare.
///
/// These are the log, SQLite with its readers, and the runtime.
const OTHERS: u64 = 64;

/// The files that the runtime of one connection thread needs, rounded up.
const OF_THREAD: u64 = 4;

/// The servers of a MongoDB replica set. The driver connects to each.
const MONGODB_SERVERS: u64 = 3;

/// The connections by which the driver monitors one server.
const MONITORS: u64 = 3;

/// Raises the limit as far as the system allows.
///
/// The common soft limit of 1024 is for programs with `select`.
pub(super) fn raise_limit() {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files was not raised");
    }
}

/// The number of HTTP connections that may be open.
///
/// It is `http.max_connections`, or less if the limit of open files is too low.
pub(super) fn max_connections(config: &Config) -> usize {
    let [http, mqtt] = wanted(config);
    max_of("http.max_connections", http, mqtt, config)
}

/// The number of connections of MQTT devices that may be open.
///
/// It is `mqtt_listener.max_connections`, or less, as with [`max_connections`].
pub(super) fn max_mqtt_connections(config: &Config) -> usize {
    let [http, mqtt] = wanted(config);
    max_of("mqtt_listener.max_connections", mqtt, http, config)
}

/// The configured connections for HTTP and for MQTT devices.
///
/// Without a listener for MQTT devices, the second number is 0.
fn wanted(config: &Config) -> [usize; 2] {
    let mqtt = &config.mqtt_listener;
    [config.http.max_connections, mqtt.listen.address().map_or(0, |_| mqtt.max_connections)]
}

fn max_of(key: &'static str, wanted: usize, others: usize, config: &Config) -> usize {
    let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted };
    let allowed = share(fitting(limit, http::Threads::count(), config), wanted, others);
    if allowed < wanted {
        tracing::warn!(
            limit,
            wanted,
            connections = allowed,
            "the limit of open files allows fewer connections than {key}: raise it (LimitNOFILE= in systemd, ulimit -n \
             in a shell)"
        );
    }
    allowed
}

/// The number of connections that one of the two servers may have.
///
/// `fitting` is the number for both together, `wanted` and `others` are what this server and the other one
/// want. With 100 fitting connections, a server that wants 80 gets 50 if the other one wants 60, and 70 if
/// the other one wants 30.
fn share(fitting: usize, wanted: usize, others: usize) -> usize {
    wanted.min(fitting.saturating_sub(others).max(fitting / 2)).max(1)
}

fn fitting(limit: rlim_t, threads: usize, config: &Config) -> usize {
    let of_mongodb = if config.store_kind().is_mongodb() {
        MONGODB_SERVERS * (u64::from(mongodb_connections(config)) + MONITORS)
    } else {
        0
    };
    let reserved = OTHERS + OF_THREAD * threads as u64 + config.udp.sockets as u64 + of_mongodb;
    let left = limit.saturating_sub(reserved).max(limit / 4);
    http::connections_within(usize::try_from(left).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_everything_else() {
        let sqlite = Config::default();
        let mongodb = Config {
            store: tidegauge::config::Store { kind: Some(tidegauge::config::StoreKind::Mongodb) },
            ..Config::default()
        };
        for (limit, of_sqlite, of_mongodb) in
            [(1, 1, 1), (20, 3, 3), (100, 17, 13), (1_024, 702, 633), (65_536, 65_214, 65_145)]
        {
            let found = [&sqlite, &mongodb].map(|config| fitting(limit, 0, config));
            assert_eq!(found, [of_sqlite, of_mongodb], "{limit}");
        }
        for (fitting, wanted, others, expected) in [
            (100, 10, 0, 10),
            (100, 200, 0, 100),
            (100, 80, 20, 80),
            (100, 80, 40, 60),
            (100, 80, 90, 50),
            (1, 5, 5, 1),
        ] {
            assert_eq!(share(fitting, wanted, others), expected, "{fitting} {wanted} {others}");
        }
        assert_eq!(fitting(65_536, 10, &sqlite), 65_214 - 40, "each thread of connections needs some");
    }
}
