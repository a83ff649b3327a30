//! A real MQTT broker (mosquitto) on a free port, and publishers.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::mongod::kill_on_exit::KillOnExit;
use super::mongod::{free_port, signal};
use super::{Setup, fetched, wait_until};

/// A broker, running or not.
#[derive(Debug)]
pub(crate) struct Broker {
    port: u16,
    running: Option<(Child, KillOnExit)>,
    folder: TempDir,
}

impl Broker {
    /// Starts a broker that keeps sessions and admits every client.
    pub(crate) async fn start() -> Self {
        Self::start_with("allow_anonymous true\n").await
    }

    /// Starts a broker with these lines for its listener.
    pub(crate) async fn start_with(lines: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("tidegauge-broker-").tempdir().expect("a temporary folder");
        let (port, path) = (free_port(), folder.path().display());
        // As root, mosquitto would change to a user that cannot read this folder.
        let config = format!(
            "user root\npersistence true\npersistence_location {path}/\nautosave_interval 1\nautosave_on_changes true\n\
             max_queued_messages 100000\nlog_type all\nlog_dest stderr\nlistener {port} 127.0.0.1\n{lines}"
        );
        fs::write(folder.path().join("mosquitto.conf"), config).expect("the folder is writable");
        let mut broker = Self { port, running: None, folder };
        broker.start_again().await;
        broker
    }

    /// Starts the broker again, on the same port.
    pub(crate) async fn start_again(&mut self) {
        assert!(self.running.is_none(), "it is running");
        let log = File::options().create(true).append(true).open(self.folder.path().join("log"));
        let mut command = Command::new(fetched("get mosquitto"));
        command.arg("-c").arg(self.folder.path().join("mosquitto.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("the folder is writable"));
        let child = command.spawn().expect("tests/get mosquitto names a program that runs");
        let kill_on_exit = KillOnExit::new(&child, self.folder.path());
        self.running = Some((child, kill_on_exit));
        wait_until("the broker listens", async || TcpStream::connect(("127.0.0.1", self.port)).ok()).await;
    }

    /// Kills the broker. Its sessions stay as it last wrote them.
    pub(crate) fn kill9(&mut self) {
        let (mut child, _kill_on_exit) = self.running.take().expect("it is running");
        child.kill().expect("our child");
        child.wait().expect("our child");
    }

    /// Stops the broker with SIGSTOP: its connections stay open and it does not answer.
    pub(crate) fn freeze(&self) {
        let (child, _kill_on_exit) = self.running.as_ref().expect("it is running");
        signal(child, "STOP");
    }

    /// Removes the sessions of a broker that is not running.
    pub(crate) fn forget_sessions(&self) {
        assert!(self.running.is_none(), "it is running");
        let _ = fs::remove_file(self.folder.path().join("mosquitto.db")); // it may not have written one
    }

    /// Ends the connection of a client.
    ///
    /// A second client with the same ID takes over its session, and then closes its connection without a
    /// DISCONNECT.
    pub(crate) fn take_over(&self, client_id: &str) {
        let length = u8::try_from(client_id.len()).expect("a short ID");
        let mut packet = vec![0x10, 12 + length, 0, 4, b'M', b'Q', b'T', b'T', 4, 0, 0, 0, 0, length];
        packet.extend_from_slice(client_id.as_bytes());
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the broker is there");
        stream.write_all(&packet).expect("the broker reads");
        stream.read_exact(&mut [0; 4]).expect("the broker answers");
    }

    /// The port of the broker.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// The log of the broker, which has each packet.
    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The topics of the messages that this client has acknowledged as good.
    ///
    /// A topic is listed once for each acknowledgement.
    pub(crate) fn acknowledged_by(&self, client_id: &str) -> Vec<String> {
        let (mut sent, mut acknowledged) = (std::collections::HashMap::new(), Vec::new());
        let sending = format!("Sending PUBLISH to {client_id} (");
        let received = format!("Received PUBACK from {client_id} (Mid: ");
        for line in self.log().lines() {
            if let Some((_, rest)) = line.split_once(&sending) {
                let id = rest.split(", ").find_map(|part| part.strip_prefix('m')).expect("a packet ID").to_owned();
                let topic = rest.split('\'').nth(1).expect("a topic").to_owned();
                sent.insert(id, topic);
            } else if let Some((_, rest)) = line.split_once(&received) {
                let (id, code) = rest.split_once(", RC:").expect("a code");
                if code.trim_end_matches(')') == "0" {
                    acknowledged.extend(sent.get(id).cloned());
                }
            }
        }
        acknowledged
    }

    /// Runs `mosquitto_pub` with these arguments.
    pub(crate) fn publish_with(&self, args: &[&str]) {
        let mut command = Command::new(publisher());
        command.args(["-p", &self.port.to_string()]).args(args);
        let output = command.stdin(Stdio::null()).output().expect("tests/get mosquitto_pub names a program that runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Publishes a message with quality of service 1.
    pub(crate) fn publish(&self, topic: &str, payload: &str) {
        self.publish_all(&[(topic.to_owned(), payload.to_owned())]).expect("the broker is there");
    }

    /// Publishes messages with quality of service 1.
    ///
    /// It waits until the broker has acknowledged all of them.
    pub(crate) fn publish_all(&self, messages: &[(String, String)]) -> std::io::Result<()> {
        publish(self.port, messages)?.write_all(&[0xe0, 0])
    }

    /// Adds a client of this broker, with the ID `tidegauge`, to a configuration.
    pub(crate) fn subscribed(&self, setup: Setup, keys: &str) -> Setup {
        setup.mqtt(&format!("url = 'mqtt://127.0.0.1:{}'\nclient_id = 'tidegauge'\n{keys}", self.port))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let end = log.lines().rev().take(100).collect::<Vec<_>>();
            eprintln!("--- mosquitto logged at the end, latest first:\n{}\n---", end.join("\n"));
        }
        if self.running.is_some() {
            self.kill9();
        }
    }
}

/// Publishes messages with quality of service 1 to a broker on this port.
///
/// It waits until the broker has acknowledged all of them, and returns the connection.
pub(crate) fn publish(port: u16, messages: &[(String, String)]) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(&[0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, 1, b'p'])?;
    stream.read_exact(&mut [0; 4])?;
    for (id, (topic, payload)) in (1_u16..).zip(messages) {
        stream.write_all(&packet(topic, payload, id))?;
    }
    let mut answers = vec![0; 4 * messages.len()];
    stream.read_exact(&mut answers)?;
    assert!(answers.chunks(4).all(|answer| answer[0] == 0x40), "{answers:?}");
    Ok(stream)
}

/// A message of MQTT 3.1.1 with quality of service 1.
fn packet(topic: &str, payload: &str, id: u16) -> Vec<u8> {
    let topic_bytes = u16::try_from(topic.len()).expect("a topic").to_be_bytes();
    let body = [&topic_bytes[..], topic.as_bytes(), &id.to_be_bytes(), payload.as_bytes()].concat();
    let (mut packet, mut length) = (vec![0x32], body.len());
    loop {
        let more = if length >= 128 { 0x80 } else { 0 };
        packet.push(u8::try_from(length % 128).expect("below 128") | more);
        length /= 128;
        if length == 0 {
            break;
        }
    }
    [packet, body].concat()
}

/// Publishes with `MQTT.js`, to a broker or a server on this port.
///
/// The program is `tests/clients/mqtt_publish.js`.
pub(crate) async fn mqtt_js(port: u16, args: &[&str]) {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/mqtt_publish.js");
    let mut command = tokio::process::Command::new(fetched("get-mqtt-js"));
    let output = command.arg(program).arg(port.to_string()).args(args).kill_on_drop(true).output();
    let output = output.await.expect("node runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The path of `mosquitto_pub`.
pub(crate) fn publisher() -> &'static str {
    fetched("get mosquitto_pub")
}
