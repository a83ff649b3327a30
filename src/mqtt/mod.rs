//! MQTT ingest: a message is acknowledged when its readings are on disk.
//!
//! Each connection has one task. `client` connects to a broker, and `session` has its state of the protocol.
//! `listener` is the server for devices. A task puts the messages that arrive into its `queue`. The queue
//! appends the readings of all waiting messages to the log as one record. When the record is durable, the
//! task acknowledges the messages in the order of their arrival. Meanwhile it reads on and answers pings.
//! `frame` finds packets in bytes.
//!
//! `payload` makes readings of a message. The topic matches a template of the configuration (`topic`), which
//! may name the device, the metric, labels and metadata. The payload is in a format of its own, JSON by the
//! keys of a webhook ([`wire::webhook`](crate::wire::webhook)), or a plain number.
//!
//! Promises:
//! - A message with quality of service 1 is acknowledged when its readings are durable, not before. Until
//!   then the broker keeps the message, and sends it again after a lost connection. Readings with a time of
//!   their own are stored once nevertheless.
//! - While the log refuses appends, nothing is acknowledged and nothing is dropped: the sender stops at
//!   `receive_maximum`, and the connection stays. It charges a message to its rates once, at about the
//!   message's arrival.
//! - A message that cannot be stored never blocks those after it: it is counted, named in a log line and
//!   acknowledged.
//! - Memory is bounded: a connection to a broker has one incomplete packet, `client::MAX_WAITING_BYTES` of
//!   messages and their answers, a connection of a device less (`listener`).
//! - A stop acknowledges the messages on disk. Their senders keep the others.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::DeviceScope;
use crate::config::{self, LineProtocol};
use crate::ingest::Ingest;
use crate::telemetry::{Metrics, RefusalLog};
use crate::wire::json;
use crate::wire::senml::NameSplit;

mod client;
mod connect;
mod error;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod listener;
mod message;
mod payload;
mod probe;
mod queue;
mod reconnect;
mod session;
mod subscriptions;
mod topic;

pub use connect::Connector;
pub use error::MqttError;
pub use listener::{Listener, ListenerOptions, Rooms};
pub use probe::{Grant, probe};
pub use topic::{Kind, Topic};

use client::Client;
use queue::Intake;

/// The reasons in the metrics for which nothing of a message is stored.
const REFUSED: [&str; 6] = ["payload", "topic", "size", "retained", "rate", "overloaded"];

/// The options of a client of a broker.
#[derive(Debug)]
pub struct Options {
    /// The table `[[mqtt]]` of the broker in the configuration.
    pub broker: config::Mqtt,
    /// Makes the connections to the broker.
    pub connector: Connector,
    /// The device scope of the messages.
    pub scope: DeviceScope,
    /// The topics of the table, one for each template.
    pub topics: Arc<[Topic]>,
    /// The choices of the configuration for formats.
    pub formats: Formats,
    /// The file with the subscriptions of the broker's session.
    pub subscriptions_file: PathBuf,
}

/// The choices of the configuration for formats of payloads.
#[derive(Debug, Clone)]
pub struct Formats {
    /// The meaning of tags and strings in line protocol.
    pub line_protocol: LineProtocol,
    /// The options of the JSON parser.
    pub json: json::Options<'static>,
    /// The rule that splits a `SenML` name into device and metric.
    pub senml_names: NameSplit,
}

/// Starts a client for each broker, and returns.
///
/// Each client is one of `tasks`. It runs until `shutdown` is cancelled, and ends at most some seconds later.
/// Must be called on a runtime.
pub fn subscribe(
    brokers: Vec<Options>,
    ingest: &Ingest,
    metrics: &Arc<Metrics>,
    refusals: &Arc<RefusalLog>,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) {
    if !brokers.is_empty() {
        metrics.mqtt_refused_total.start_with(&REFUSED);
        metrics.mqtt_disconnects_total.start_with(&MqttError::CODES);
    }
    for options in brokers {
        let intake = Intake {
            topics: Arc::clone(&options.topics),
            formats: options.formats.clone(),
            ingest: ingest.clone(),
            metrics: Arc::clone(metrics),
            refusals: Arc::clone(refusals),
        };
        tasks.spawn(Client::new(options, intake, shutdown.clone()).run());
    }
}
