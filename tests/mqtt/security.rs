//! TLS, users, and what `tidegauge check --full` says of a broker.

use std::fs;

use super::{TOPICS, at, connected, readings, received};
use crate::check::{check, small};
use crate::harness::{Broker, Server, Setup};
use crate::tls::authority::Authority;

#[tokio::test]
async fn a_broker_with_tls_knows_the_certificate_of_the_client() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("a temporary folder"));
    authority.write_server(folder.path());
    authority.client("tidegauge", &[]).write(folder.path(), "client");
    let path = folder.path().display();
    let broker = Broker::start_with(&format!(
        "cafile {path}/ca.pem\ncertfile {path}/server.pem\nkeyfile {path}/server.key\nrequire_certificate true\n\
         use_identity_as_username true\n"
    ))
    .await;
    let url = format!("url = 'mqtts://localhost:{}'\nclient_id = 'tidegauge'\n", broker.port());
    let files = format!("ca_file = '{path}/ca.pem'\ncert_file = '{path}/client.pem'\nkey_file = '{path}/client.key'\n");
    let server = Server::start(Setup::sqlite().mqtt(&format!("{url}{files}{TOPICS}"))).await;
    connected(&server).await;
    let args = ["-h", "localhost", "--cafile", "ca.pem", "--cert", "client.pem", "--key", "client.key"];
    let args: Vec<String> =
        args.iter().map(|arg| if arg.contains('.') { format!("{path}/{arg}") } else { (*arg).to_owned() }).collect();
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    let payload = at(0, 1);
    args.extend(["-q", "1", "-t", "plant/north/a/temp", "-m", &payload]);
    broker.publish_with(&args);
    received(&server, 1).await;
    assert_eq!(readings(&server, "a").await.len(), 1);

    fs::write(folder.path().join("other.pem"), Authority::named("other").pem()).expect("writable");
    let wrong = files.replace("/ca.pem", "/other.pem");
    let server = Server::start(Setup::sqlite().mqtt(&format!("{url}{wrong}{TOPICS}"))).await;
    server.logged("no connection to the MQTT broker").await;
    assert_eq!(server.metrics().await.count("tidegauge_mqtt_connected"), 0);
}

#[tokio::test]
async fn the_check_says_what_a_broker_grants() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let acl = folder.path().join("acl");
    fs::write(&acl, "topic read plant/#\n").expect("writable");
    let lines = format!("allow_anonymous true\nacl_file {}\nmax_qos 0\n", acl.display());
    let broker = Broker::start_with(&lines).await;
    let setup = small(broker.subscribed(Setup::sqlite(), "[[topics]]\ntopic = 'plant/{deviceId}'\n"));
    let found = check(&setup, folder.path()).await;
    found.has("warning", "mqtt-topics", "grants quality of service 0 for plant/+");
    assert!(found.report.to_string().contains("takes the client with MQTT 5"), "{found:#?}");
    assert!(broker.log().contains("tidegauge-check"), "the check has a client ID of its own");

    let mut broker = broker;
    broker.kill9();
    let found = check(&setup, folder.path()).await;
    let mend = found.has("error", "mqtt-broker", "Connection refused");
    assert!(mend.contains("start the broker"), "{mend}");
}

#[tokio::test]
async fn a_wrong_password_is_named_and_never_shown() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The hash fits no password.
    fs::write(folder.path().join("users"), "ann:$7$101$c2FsdHNhbHQ=$aGFzaA==\n").expect("writable");
    let broker = Broker::start_with(&format!("password_file {}/users\n", folder.path().display())).await;
    fs::write(folder.path().join("password"), "hunter2\n").expect("writable");
    let keys = format!("user = 'ann'\npassword = {{ file = '{}/password' }}\n{TOPICS}", folder.path().display());
    let server = Server::start(broker.subscribed(Setup::sqlite(), &keys)).await;
    let log = server.logged("refuses the connection").await;
    assert!(!log.contains("hunter2"), "{log}");
}
