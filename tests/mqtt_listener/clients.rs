//! Unmodified clients: `mosquitto_pub`, the bridge of mosquitto, paho for Python, and `MQTT.js`.

use std::process::{Command, Stdio};

use super::{TOKEN, TOPICS, at, readings, setup};
use crate::clients::run_program;
use crate::harness::{Broker, Server, mqtt_js, publisher, secret_of, wait_until};

#[tokio::test]
async fn mosquitto_pub_publishes_with_each_version_and_quality() {
    let server = Server::start(setup()).await;
    let port = server.mqtt_addr().port().to_string();
    for (n, (version, qos)) in [("5", "1"), ("5", "0"), ("311", "1"), ("311", "0")].into_iter().enumerate() {
        let (topic, payload) = (format!("plant/north/v{version}-{qos}/temp"), at(n as i64, n));
        let mut command = Command::new(publisher());
        command.args(["-p", &port, "-V", if version == "5" { "5" } else { "mqttv311" }, "-q", qos]);
        command.args(["-u", "any", "-P", &secret_of(TOKEN), "-t", &topic, "-m", &payload]);
        let output = command.stdin(Stdio::null()).output().expect("mosquitto_pub runs");
        assert!(output.status.success(), "{version} {qos}: {}", String::from_utf8_lossy(&output.stderr));
        let device = format!("v{version}-{qos}");
        wait_until("it is stored", async || (readings(&server, &device).await.len() == 1).then_some(())).await;
    }
    // Without a token it is told so.
    let mut command = Command::new(publisher());
    command.args(["-p", &port, "-V", "5", "-q", "1", "-t", "plant/north/a/temp", "-m", "1"]);
    let output = command.stdin(Stdio::null()).output().expect("mosquitto_pub runs");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("Not authorized"), "{output:?}");
}

/// The broker of a site passes its messages on, and keeps them while the server is away.
///
/// Messages that are too large do not stop the bridge, although there are more of them than it may have
/// unacknowledged.
#[tokio::test]
async fn the_bridge_of_mosquitto_passes_messages_on() {
    let topics = format!("max_packet_bytes = '1KiB'\nreceive_maximum = 5\n{TOPICS}");
    let mut server = Server::start(setup().mqtt_listener(&topics)).await;
    let port = server.mqtt_addr().port();
    let broker = Broker::start_with(&format!(
        "allow_anonymous true\nconnection centre\naddress 127.0.0.1:{port}\ntopic plant/# out 1\nremote_username any\n\
         remote_password {}\ncleansession false\nrestart_timeout 1\nbridge_protocol_version mqttv50\n\
         notifications false\n",
        secret_of(TOKEN)
    ))
    .await;
    let messages =
        |from: i64| -> Vec<_> { (from..from + 200).map(|n| ("plant/north/a/temp".to_owned(), at(n, n))).collect() };
    let large: Vec<_> = (0..10).map(|_| ("plant/north/a/temp".to_owned(), "1".repeat(2_000))).collect();
    broker.publish_all(&large).expect("the broker is there");
    broker.publish_all(&messages(0)).expect("the broker is there");
    wait_until("the first are stored", async || (readings(&server, "a").await.len() == 200).then_some(())).await;
    let metrics = server.metrics().await;
    assert!(metrics.count_where("tidegauge_mqtt_refused_total", &[("reason", "size")]) >= 10);
    server.terminate().await;
    broker.publish_all(&messages(200)).expect("the broker is there");
    let listen = format!("listen = '127.0.0.1:{port}'\n{topics}");
    server.start_again_with(setup().mqtt_listener(&listen)).await;
    wait_until("the others are stored", async || (readings(&server, "a").await.len() == 400).then_some(())).await;
}

#[tokio::test]
async fn paho_for_python_publishes() {
    let tokens = setup().token("client", "scopes = ['ingest']");
    let server = Server::start(tokens).await;
    let port = server.mqtt_addr().port().to_string();
    run_program("paho_publish.py", &[&port, &secret_of("client")]).await;
    for device in ["paho-5", "paho-311"] {
        assert_eq!(readings(&server, device).await.len(), 300, "{device}");
    }
}

#[tokio::test]
async fn mqtt_js_publishes_and_is_refused_a_subscription() {
    let tokens = setup().token("client", "scopes = ['ingest']");
    let server = Server::start(tokens).await;
    mqtt_js(server.mqtt_addr().port(), &[&secret_of("client")]).await;
    for device in ["mqtt-js-5", "mqtt-js-311"] {
        assert_eq!(readings(&server, device).await.len(), 300, "{device}");
    }
}
