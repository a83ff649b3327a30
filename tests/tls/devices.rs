//! Client certificates as the identities of devices.

use reqwest::Method;
use serde_json::{Value, json};

use super::authority::{dns, uri};
use super::{Folder, post, reqwest_client};
use crate::harness::{Answer, Server, Setup, secret_of};

const NS: &str = "1713621610000000000";

fn setup(folder: &Folder) -> Setup {
    let setup = folder.with_clients("").set("auth.client_certificate", "device");
    setup.token("operator", "scopes = ['admin']").token("reader", "scopes = ['query']")
}

fn reading(device: &str) -> Value {
    json!({ "deviceId": device, "ts": "2024-04-20T14:00:10Z", "value": 1 })
}

/// The devices that there are.
async fn devices(server: &Server) -> Vec<String> {
    let request = server.request(Method::GET, "/v1/devices").bearer_auth(secret_of("reader"));
    let answer = server.send(request).await.json();
    let devices = answer["devices"].as_array().expect("devices");
    devices.iter().map(|device| device["deviceId"].as_str().expect("an id").to_owned()).collect()
}

#[track_caller]
fn unauthorized(answer: &Answer, said: &str) {
    assert_eq!((answer.status, &answer.json()["code"]), (401, &json!("unauthorized")), "{}", answer.text());
    assert!(answer.text().contains(said), "{said}: {}", answer.text());
    assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"tidegauge\"");
}

#[tokio::test]
async fn a_certificate_writes_readings_of_its_own_device_only() {
    let folder = Folder::new();
    let server = Server::start(setup(&folder)).await;
    let names = [dns("pump-2"), uri("urn:dev:ops:3-pump"), dns("*.pumps")];
    let client = reqwest_client(&folder, &folder.authority.client("pump-1", &names));
    let who = (&client, &server, None);
    for device in ["pump-1", "pump-2", "urn:dev:ops:3-pump"] {
        let answer = post(who, "/v1/readings", "application/json", reading(device).to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let array = json!([reading("pump-1"), reading("pump-3"), { "readings": [{ "value": 1 }], "deviceId": "x.pumps" }]);
    let lines = [reading("pump-3"), reading("pump-1")].map(|line| line.to_string()).join("\n");
    for (content_type, body, at) in
        [("application/json", array.to_string(), [1, 2]), ("application/x-ndjson", lines, [0, 0])]
    {
        let answer = post(who, "/v1/readings", content_type, body).await.json();
        assert_eq!((&answer["code"], &answer["accepted"]), (&json!("partially_rejected"), &json!(1)), "{answer}");
        for (error, index) in answer["errors"].as_array().expect("errors").iter().zip(at) {
            assert_eq!((&error["index"], &error["code"]), (&json!(index), &json!("device_forbidden")), "{answer}");
        }
    }
    let lines = format!("m,device=pump-1 v=1 {NS}\nm,device=pump-1,deviceId=pump-4 v=1 {NS}");
    let answer = post(who, "/write", "text/plain", lines).await;
    assert!(answer.status == 400 && answer.text().contains("pump-4"), "{}", answer.text());
    assert_eq!(devices(&server).await, ["pump-1", "pump-2", "urn:dev:ops:3-pump"]);
}

#[tokio::test]
async fn a_device_may_do_nothing_but_write() {
    let folder = Folder::new();
    let server = Server::start(setup(&folder)).await;
    let client = reqwest_client(&folder, &folder.authority.client("pump-1", &[]));
    for path in ["/v1/devices", "/v1/devices/pump-1/latest", "/metrics", "/version"] {
        let answer = server.send(client.request(Method::GET, format!("{}{path}", server.url()))).await;
        unauthorized(&answer, "this request needs a token: Authorization: Bearer TOKEN");
    }
    let healthy = server.send(client.request(Method::GET, format!("{}/healthz", server.url()))).await;
    assert_eq!(healthy.status, 200, "this is open");
}

#[tokio::test]
async fn writing_needs_a_token_or_a_device_certificate() {
    let folder = Folder::new();
    let server = Server::start(setup(&folder)).await;
    let body = || reading("pump-1").to_string();
    let nothing = server.post("/v1/readings", "application/json", body()).await;
    unauthorized(&nothing, "a token (Authorization: Bearer TOKEN) or a client certificate");
    let nameless = reqwest_client(&folder, &folder.authority.client("Gateway\u{202E}", &[dns("..")]));
    let nameless = post((&nameless, &server, None), "/v1/readings", "application/json", body()).await;
    unauthorized(&nameless, "none of the names in the client certificate");
    let literal = reqwest_client(&folder, &folder.authority.client("pump-*", &[dns("*")]));
    let answer = post((&literal, &server, None), "/v1/readings", "application/json", body()).await;
    assert!(answer.status == 400 && answer.text().contains("device_forbidden"), "no wildcard: {}", answer.text());
    assert_eq!(devices(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_token_beside_a_certificate_must_allow_the_device_too() {
    let folder = Folder::new();
    let gateway = "scopes = ['ingest', 'query']\ndevices = ['pump-*']";
    let server = Server::start(setup(&folder).token("gateway", gateway)).await;
    let client = reqwest_client(&folder, &folder.authority.client("pump-1", &[dns("light-1")]));
    let who = (&client, &server, Some("gateway"));
    for (device, status) in [("pump-1", 200), ("pump-2", 400), ("light-1", 400)] {
        let answer = post(who, "/v1/readings", "application/json", reading(device).to_string()).await;
        assert_eq!(answer.status, status, "{device}: {}", answer.text());
    }
    let body = || reading("pump-1").to_string();
    let read_only = post((&client, &server, Some("reader")), "/v1/readings", "application/json", body()).await;
    assert_eq!(read_only.status, 403, "{}", read_only.text());
    let unknown = post((&client, &server, Some("nobody")), "/v1/readings", "application/json", body()).await;
    assert_eq!(unknown.status, 401, "{}", unknown.text());
    let pump_2 = "/v1/devices/pump-2/latest";
    let question = client.request(Method::GET, format!("{}{pump_2}", server.url())).bearer_auth(secret_of("gateway"));
    assert_eq!(server.send(question).await.status, 404, "reading goes by the token alone: there is none such");
}

#[tokio::test]
async fn certificates_identify_devices_only_if_configured() {
    let folder = Folder::new();
    let setup = folder.with_clients("").token("operator", "scopes = ['admin']");
    let server = Server::start(setup).await;
    let client = reqwest_client(&folder, &folder.authority.client("pump-1", &[]));
    let answer =
        post((&client, &server, None), "/v1/readings", "application/json", reading("pump-1").to_string()).await;
    unauthorized(&answer, "this request needs a token: Authorization: Bearer TOKEN");
}

#[tokio::test]
async fn a_device_that_resumes_its_session_is_still_known() {
    let folder = Folder::new();
    let server = Server::start(setup(&folder)).await;
    for version in super::BOTH {
        let client = folder.client(&[version], Some(&folder.authority.client("pump-1", &[])));
        for is_resumed in [false, true] {
            let stream = super::connect(&server, &client).await.expect("a connection");
            let kind = stream.get_ref().1.handshake_kind();
            assert_eq!(kind == Some(rustls::HandshakeKind::Resumed), is_resumed, "{version:?}");
            let mut connection = crate::harness::Connection::over(stream);
            for (device, status) in [("pump-1", 200), ("pump-2", 400)] {
                let body = reading(device).to_string();
                let head = "POST /v1/readings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
                let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                assert_eq!(connection.ask(request.as_bytes()).await.0, status, "{version:?} {device}");
            }
        }
    }
}
