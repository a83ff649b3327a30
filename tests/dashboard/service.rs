//! The view of the service: figures from the metrics, and only for those who may see them.

use std::io::Write;

use serde_json::json;

use super::browser::Tab;
use super::send_now;
use crate::harness::{Server, Setup};
use crate::mqtt_listener::{connect, publish};

#[tokio::test(flavor = "multi_thread")]
async fn the_service_shows_its_readings_and_refusals() {
    let server = Server::start(Setup::sqlite()).await;
    send_now(&server, "A", 1.0).await;
    server.settled().await;
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.click("nav a[data-view=service]").await;
    tab.wait_for("[data-chart=rates] header", "collecting").await;
    tab.wait_for("[data-figure=store]", "Answers").await;
    tab.wait_for("[data-figure=stored]", "1").await;
    tab.wait_for("[data-figure=pending]", "0").await;
    tab.wait_for("[data-figure=log]", "of 8.0 GiB").await;
    tab.wait_for("[data-card=errors]", "None since this page was opened").await;
    assert_eq!(server.ingest(&json!({ "deviceId": "A", "value": "high" })).await.status, 400);
    tab.wait_for("[data-card=rejected]", "invalid_value").await;
    tab.wait_for("[data-card=errors]", "1 reading rejected: invalid_value (http)").await;
    for value in [1.0, 2.0] {
        send_now(&server, "A", value).await;
    }
    tab.wait_for("[data-chart=rates] .legend", "http").await;
    tab.wait("document.querySelector('[data-chart=rates] .legend td:nth-child(3)').textContent === '4'").await;
    assert_eq!(tab.text("[data-chart=rates] header").await, "Readings per second");
    tab.check("service").await;
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn datagrams_are_counted() {
    let server = Server::start(Setup::sqlite()).await;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.send_to(b"not a reading", server.udp_addr()).expect("it is sent");
    let tab = Tab::open().await;
    tab.go(&format!("{}/#/service", server.url())).await;
    tab.wait("document.querySelector('[data-card=udp] tr.warn')").await;
    assert_eq!(tab.text("[data-card=udp] tr.warn").await.replace('\t', " "), "without an accepted reading 1");
    tab.close(server.url(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_mqtt_devices_are_counted() {
    let server = Server::start(Setup::sqlite().mqtt_listener("[[topics]]\ntopic = 'own/#'\n")).await;
    let mut device = std::net::TcpStream::connect(server.mqtt_addr()).expect("it listens");
    device.write_all(&connect(true, "d1", None, 0)).expect("it reads");
    device.write_all(&publish(true, 1, "own/x", "nonsense")).expect("it reads");
    let tab = Tab::open().await;
    tab.go(&format!("{}/#/service", server.url())).await;
    tab.wait("document.querySelector('[data-card=mqtt] tr.warn')").await;
    assert_eq!(tab.text("[data-card=mqtt] tr.warn").await.replace('\t', " "), "nothing stored: payload 1");
    tab.wait_for("[data-card=mqtt]", "connections of devices").await;
    tab.close(server.url(), &[]).await;
}
