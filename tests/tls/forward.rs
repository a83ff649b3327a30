//! Forwarding to a server whose certificate a private authority has issued.

use serde_json::json;

use super::Folder;
use crate::forward::{forwarded, to};
use crate::harness::{Server, wait_until};

#[tokio::test]
async fn readings_are_forwarded_only_to_a_server_with_a_certificate_of_the_configured_authority() {
    let (folder, other) = (Folder::new(), Folder::new());
    let centre = Server::start(folder.setup("")).await;
    let mut edge = Server::start(to(centre.url()).set("forward.ca_file", other.file("ca.pem"))).await;
    edge.accepts(&json!({ "deviceId": "S1", "ts": 1_713_621_600_000_i64, "value": 1 })).await;
    wait_until("the certificate is refused", async || {
        let metrics = edge.metrics().await;
        (metrics.count_where("tidegauge_forward_errors_total", &[("reason", "connection")]) > 1).then_some(())
    })
    .await;
    let log = edge.logged("readings cannot be forwarded; they wait in the log").await;
    assert!(log.contains("certificate") && log.contains("(forward.ca_file)"), "{log}");
    assert_eq!(centre.metrics().await.count("tidegauge_readings_received_total"), 0);

    edge.start_again_after_stop(to(centre.url()).set("forward.ca_file", folder.file("ca.pem"))).await;
    wait_until("the centre has the reading", async || {
        (centre.metrics().await.count("tidegauge_readings_accepted_total") == 1).then_some(())
    })
    .await;
    forwarded(&edge).await;
}
