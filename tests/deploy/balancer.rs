//! The configuration of nginx before two instances, with a real nginx.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use reqwest::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::text_of;
use crate::harness::mongod::free_port;
use crate::harness::{Connection, Killed, Server, Setup, client, fetched, wait_until};

/// A running nginx with `deploy/compose/sharded/nginx.conf`.
struct Nginx {
    _child: Killed,
    _folder: TempDir,
    url: String,
    client: Client,
}

impl Nginx {
    async fn before(servers: &[Server; 2]) -> Self {
        let (folder, port) = (TempDir::new().expect("a temporary folder"), free_port());
        let mut config = text_of("deploy/compose/sharded/nginx.conf");
        for (from, to) in [
            ("tidegauge-1:8080", servers[0].http_addr().to_string()),
            ("tidegauge-2:8080", servers[1].http_addr().to_string()),
            ("listen 8080;", format!("listen 127.0.0.1:{port};")),
            ("/tmp/", format!("{}/", folder.path().display())),
        ] {
            assert!(config.contains(from), "nginx.conf has no {from}");
            config = config.replace(from, &to);
        }
        let file = folder.path().join("nginx.conf");
        fs::write(&file, config).expect("the folder is writable");
        // As one process: it then keeps the user of the test, who owns the folder.
        let child = Command::new(fetched("get nginx"))
            .args(["-g", "daemon off; master_process off;", "-c"])
            .arg(&file)
            .arg("-p")
            .arg(folder.path())
            .stdin(Stdio::null())
            .spawn()
            .expect("nginx runs");
        let client = client(None).build().expect("a client");
        let nginx = Self { _child: Killed(child), _folder: folder, url: format!("http://127.0.0.1:{port}"), client };
        let healthz = format!("{}/healthz", nginx.url);
        wait_until("nginx answers", async || nginx.client.get(&healthz).send().await.is_ok().then_some(())).await;
        nginx
    }

    async fn write(&self, device: &str, value: i32) -> u16 {
        let reading = json!({ "deviceId": device, "ts": 1_776_693_610_000_i64, "value": value });
        let request = self.client.post(format!("{}/v1/readings", self.url)).header("X-Device-Id", device);
        let request = request.header("Content-Type", "application/json").body(reading.to_string());
        request.send().await.expect("nginx answers").status().as_u16()
    }

    async fn latest(&self, device: &str) -> Value {
        let request = self.client.get(format!("{}/v1/devices/{device}/latest", self.url));
        let body = request.send().await.expect("nginx answers").bytes().await.expect("a body");
        serde_json::from_slice(&body).expect("JSON")
    }
}

#[tokio::test]
async fn a_device_has_one_instance_until_that_is_away() {
    // The readings stay pending: only the instance that accepted them has them.
    let setup = Setup::sqlite().all_pending();
    let mut servers = [Server::start(setup.clone()).await, Server::start(setup).await];
    let nginx = Nginx::before(&servers).await;
    let devices: Vec<String> = (0..24).map(|number| format!("pump-{number}")).collect();
    for (value, device) in (0..).zip(&devices) {
        assert_eq!(nginx.write(device, value).await, 200, "{device}");
    }
    for (value, device) in (0..).zip(&devices) {
        let latest = nginx.latest(device).await;
        assert_eq!(latest["metrics"]["value"]["value"], f64::from(value), "{device}: {latest}");
    }
    let mut of_each = Vec::new();
    for server in &servers {
        of_each.push(server.metrics().await.count("tidegauge_readings_accepted_total"));
    }
    assert!(of_each.iter().sum::<u64>() == 24 && of_each.iter().all(|count| *count > 0), "{of_each:?}");

    servers[1].kill9();
    let answers: BTreeSet<u16> = {
        let mut answers = BTreeSet::new();
        for device in &devices {
            answers.insert(nginx.write(device, 100).await);
        }
        answers
    };
    assert_eq!(answers, BTreeSet::from([200]), "the other instance accepts all devices");
}

#[tokio::test]
async fn the_instances_see_the_name_that_the_client_used() {
    let servers = [Server::start(Setup::sqlite()).await, Server::start(Setup::sqlite()).await];
    let nginx = Nginx::before(&servers).await;
    let status = async |host: &str| {
        let request = nginx.client.get(format!("{}/v1/devices", nginx.url)).header("host", host);
        request.send().await.expect("nginx answers").status().as_u16()
    };
    assert_eq!(status("rebind.evil.example:8080").await, 421);
    assert_eq!(status("localhost:8080").await, 200);
    let address = nginx.url.strip_prefix("http://").expect("a URL");
    let mut connection = Connection::over(TcpStream::connect(address).await.expect("nginx listens"));
    let (status, ..) = connection.ask(b"GET /v1/devices HTTP/1.0\r\n\r\n").await;
    assert_eq!(status, 200, "a client without a host name");
}
