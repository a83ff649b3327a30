//! A broker of other authors, which speaks MQTT 3.1.1 only: amqtt, in Python.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::{TOPICS, at, connected, readings, received};
use crate::clients::clients;
use crate::harness::{Killed, Server, Setup, free_port, publish};

/// The broker, which ends with the test.
struct Amqtt {
    _child: Killed,
    port: u16,
}

impl Amqtt {
    fn start() -> Self {
        let port = free_port();
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/amqtt_broker.py");
        let mut command = Command::new("python3");
        command.args([program, &port.to_string()]).env("PYTHONPATH", clients()).env("PYTHONDONTWRITEBYTECODE", "1");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = Killed(child.expect("python3 is there"));
        let mut line = String::new();
        let mut output = BufReader::new(child.0.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("it prints a line");
        assert_eq!(line, "listening\n");
        Self { _child: child, port }
    }
}

/// amqtt forgets messages whose publisher has left, and those on their way to a client that was killed, so
/// neither happens here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_amqtt_are_stored_once() {
    let broker = tokio::task::block_in_place(Amqtt::start);
    let url = format!("url = 'mqtt://127.0.0.1:{}'\nclient_id = 'tidegauge'\nversion = '3.1.1'\n{TOPICS}", broker.port);
    let mut server = Server::start(Setup::sqlite().mqtt(&url)).await;
    let mut publishers = Vec::new();
    for round in 0..2 {
        connected(&server).await;
        let numbers = round * 200..(round + 1) * 200;
        let messages: Vec<_> = numbers.map(|n| ("plant/north/a/temp".to_owned(), at(n, n))).collect();
        let published = tokio::task::block_in_place(|| publish(broker.port, &messages));
        publishers.push(published.expect("the broker is there"));
        received(&server, 200).await;
        server.terminate().await;
        server.start_again().await;
    }
    let stored = readings(&server, "a").await;
    assert_eq!((stored.len(), stored[399]["values"]["temp"].as_f64()), (400, Some(399.0)));
}
