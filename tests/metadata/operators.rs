//! Metadata has two authors: a key that an operator has set stays until the operator removes it, and the
//! device's own value of this key is kept beneath it.

use std::pin::pin;

use bson::doc;
use futures_util::future::{Either, join, select};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::forward;
use crate::harness::{Answer, Database, Mongod, Server, Setup, now_ms, run, secret_of, wait_until};

/// 2024-04-20T14:00:00Z.
const START_MS: i64 = 1_713_621_600_000;

/// Sends a change of the metadata of a device.
async fn change(server: &Server, method: Method, device: &str, body: &Value) -> Answer {
    change_if(server, method, device, body, &[]).await
}

async fn change_if(server: &Server, method: Method, device: &str, body: &Value, headers: &[(&str, &str)]) -> Answer {
    let path = format!("/v1/devices/{}/metadata", device.replace('/', "%2F"));
    let request = server.request(method, &path).header("content-type", "application/json").body(body.to_string());
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    server.send(request).await
}

async fn accepted(server: &Server, method: Method, device: &str, body: &Value) {
    let answer = change(server, method, device, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn metadata(server: &Server, device: &str) -> Value {
    server.get_json(&format!("/v1/devices/{}/metadata", device.replace('/', "%2F"))).await
}

/// A reading with metadata of its device, `nth` hours after the start.
fn reading(device: &str, nth: i64, metadata: &Value) -> Value {
    json!({ "deviceId": device, "ts": START_MS + nth * 3_600_000, "value": 1, "metadata": metadata })
}

/// The metadata that a device should have.
#[derive(Debug, Default, Clone)]
struct Expected {
    own: Option<Map<String, Value>>,
    operator: Map<String, Value>,
}

impl Expected {
    fn in_effect(&self) -> Map<String, Value> {
        let mut all = self.own.clone().unwrap_or_default();
        all.extend(self.operator.clone());
        all
    }

    fn patch(&mut self, patch: &Map<String, Value>) {
        for (key, value) in patch {
            match value {
                Value::Null => _ = self.operator.remove(key),
                value => _ = self.operator.insert(key.clone(), value.clone()),
            }
        }
    }

    /// Waits until a server shows it: another instance may have acknowledged the last change.
    async fn is_shown_by(&self, server: &Server, device: &str) {
        let expected = json!({
            "deviceId": device, "metadata": self.in_effect(), "setByOperators": self.operator,
            "sentByDevice": self.own,
        });
        wait_until(&format!("{device} has {expected}"), async || {
            (metadata(server, device).await == expected).then_some(())
        })
        .await;
    }
}

fn random_object(random: &mut StdRng, allows_null: bool) -> Map<String, Value> {
    let keys = ["note", "unit", "limits.x", "$kind", "hall"];
    let values = [json!("Küche"), json!(2), json!([1, null]), json!(0.1), json!(true)];
    let count = random.random_range(0..3);
    let pick = |random: &mut StdRng| {
        let key = keys[random.random_range(0..keys.len())].to_owned();
        let is_null = allows_null && random.random_bool(0.4);
        (key, if is_null { Value::Null } else { values[random.random_range(0..values.len())].clone() })
    };
    (0..count).map(|_| pick(random)).collect()
}

/// Devices and operators write at random through `servers`, which share a store and are killed at random.
async fn every_change_is_there(mut servers: Vec<Server>, seed: u64) {
    println!("TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let devices = ["a", "a/1", "b:2"];
    let mut expected = vec![Expected::default(); devices.len()];
    for step in 0..50_i64 {
        let (at, of) = (random.random_range(0..servers.len()), random.random_range(0..devices.len()));
        let (device, model) = (devices[of], &mut expected[of]);
        match random.random_range(0..10) {
            0..3 => {
                // In time series and with two instances, the metadata of the newest hour stays.
                let own = random_object(&mut random, false);
                servers[at].accepts(&reading(device, step, &json!(own))).await;
                model.own = Some(own);
            }
            3..7 => {
                let patch = random_object(&mut random, true);
                accepted(&servers[at], Method::PATCH, device, &json!(patch)).await;
                model.patch(&patch);
            }
            7..9 => {
                model.operator = random_object(&mut random, false);
                accepted(&servers[at], Method::PUT, device, &json!(model.operator)).await;
            }
            _ => {
                servers[at].kill9();
                servers[at].start_again().await;
            }
        }
        if step % 5 == 4 {
            let reader = &servers[random.random_range(0..servers.len())];
            for (device, expected) in devices.iter().zip(&expected) {
                expected.is_shown_by(reader, device).await;
            }
        }
    }
    for server in &mut servers {
        server.settled().await;
        server.terminate().await;
        server.start_again().await;
        for (device, expected) in devices.iter().zip(&expected) {
            expected.is_shown_by(server, device).await;
            let listed = server.get_json(&format!("/v1/devices?device={}", device.replace('/', "%2F"))).await;
            let listed = listed["devices"].get(0).map(|listed| listed["metadata"].clone());
            let is_known = expected.own.is_some();
            assert_eq!(listed, is_known.then(|| json!(expected.in_effect())), "{device}");
        }
    }
}

fn seed() -> u64 {
    std::env::var("TEST_SEED").map_or_else(|_| rand::random::<u32>().into(), |text| text.parse().expect("a number"))
}

#[tokio::test]
async fn sqlite_has_every_change_of_devices_and_operators_through_kills() {
    every_change_is_there(vec![Server::start(Setup::sqlite()).await], seed()).await;
}

#[tokio::test]
async fn two_instances_with_mongodb_have_every_change_through_kills() {
    for setup in [Setup::mongodb, Setup::packed, Setup::timeseries] as [fn(&Database) -> Setup; 3] {
        let database = Database::new();
        let servers = vec![Server::start(setup(&database)).await, Server::start(setup(&database)).await];
        every_change_is_there(servers, seed()).await;
    }
}

#[tokio::test]
async fn instances_that_change_different_keys_at_the_same_time_lose_none() {
    let database = Database::new();
    let servers = [Server::start(Setup::mongodb(&database)).await, Server::start(Setup::mongodb(&database)).await];
    let change_all = async |server: &Server, of: &str| {
        for nth in 0..20 {
            accepted(server, Method::PATCH, "shared", &json!({ format!("{of}{nth}"): nth })).await;
        }
    };
    tokio::join!(change_all(&servers[0], "a"), change_all(&servers[1], "b"));
    for server in &servers {
        wait_until("all keys are there", async || {
            let found = metadata(server, "shared").await;
            (found["setByOperators"].as_object().expect("an object").len() == 40).then_some(())
        })
        .await;
    }
}

/// Each change is made to the result of the one before it, which another instance has acknowledged.
#[tokio::test]
async fn instances_that_change_members_of_a_key_one_after_the_other_lose_none() {
    let database = Database::new();
    let setup = || Setup::mongodb(&database).set("query.catch_up_timeout", "1m");
    let servers = [Server::start(setup()).await, Server::start(setup()).await];
    for nth in 0..20 {
        let server = &servers[nth % 2];
        let members = |nth: usize| -> Map<String, Value> {
            (0..=nth).map(|nth| (format!("m{nth}"), json!({ "max": nth }))).collect()
        };
        let patch = json!({ "limits": { format!("m{nth}"): { "max": nth } } });
        let answer = change(server, Method::PATCH, "shared", &patch).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["setByOperators"], json!({ "limits": members(nth) }));
    }
}

/// The store takes no change during the test, so each one waits until other instances may see it.
#[tokio::test]
async fn changes_that_wait_for_the_store_leave_their_places_to_queries() {
    let mongod = Mongod::start();
    let database = Database::on(&mongod);
    let setup = Setup::mongodb(&database).set("query.max_concurrent", 1).set("query.catch_up_timeout", "1m");
    let server = Server::start(setup).await;
    accepted(&server, Method::PUT, "S1", &json!({ "name": "Press 1" })).await;
    let admin = mongodb::Client::with_uri_str(mongod.uri()).await.expect("a URI").database("admin");
    let data = doc! {
        "failCommands": ["insert", "update"], "namespace": format!("{}.buckets_metadata", database.name),
        "blockConnection": true, "blockTimeMS": 60_000,
    };
    let slow = doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data };
    admin.run_command(slow).await.expect("the fail point is there");

    let patch = json!({ "name": "Press 2" });
    let patched = change(&server, Method::PATCH, "S1", &patch);
    let posted = async {
        server.logged("Press 2").await;
        let change = json!({ "keys": { "name": { "atMs": START_MS, "value": "Press 3" } } });
        let line = json!({ "deviceId": "S2", "change": change }).to_string();
        server.post("/v1/metadata", "application/x-ndjson", line).await
    };
    let queried = pin!(async {
        server.logged("Press 3").await;
        [metadata(&server, "S1").await, metadata(&server, "S2").await]
    });
    let changed = pin!(join(patched, posted));
    let Either::Right((found, _)) = select(changed, queried).await else { panic!("the changes have not waited") };
    assert_eq!(found.map(|of| of["metadata"]["name"].clone()), ["Press 2", "Press 3"]);
}

#[tokio::test]
async fn every_reader_has_the_metadata_in_effect_before_and_after_it_is_stored() {
    let databases = [Database::new(), Database::new(), Database::new()];
    for setup in Setup::of_each_store(&databases) {
        let mut server = Server::start(setup.clone().all_pending()).await;
        let own = json!({ "name": "sensor-7", "floor": 1, "limits": { "value": { "max": 100 } } });
        server.accepts(&reading("S1", 0, &own)).await;
        let set = json!({ "name": "Press 3", "hall": "A", "limits": { "value": { "min": 2 } } });
        accepted(&server, Method::PUT, "S1", &set).await;
        accepted(&server, Method::PUT, "not-sent-yet", &json!({ "name": "Spare" })).await;
        for is_stored in [false, true] {
            if is_stored {
                server.start_again_after_stop(setup.clone()).await;
                server.accepts(&reading("S1", 1, &own)).await; // the device repeats its own metadata
                server.settled().await;
            }
            let in_effect = json!({
                "name": "Press 3", "hall": "A", "floor": 1, "limits": { "value": { "min": 2 } },
            });
            let found = metadata(&server, "S1").await;
            assert_eq!(found["metadata"], in_effect, "stored: {is_stored}");
            assert_eq!((&found["setByOperators"], &found["sentByDevice"]), (&set, &own));
            assert_eq!(metadata(&server, "not-sent-yet").await["metadata"], json!({ "name": "Spare" }));
            assert_eq!(server.get_json("/v1/devices/S1").await["metadata"], in_effect);
            let listed = server.get_json("/v1/devices").await;
            assert_eq!(listed["devices"].as_array().map(Vec::len), Some(1), "a device is listed once it has sent");
            assert_eq!(listed["devices"][0]["metadata"], in_effect);
            for (query, count) in [("meta.hall=A", 1), ("meta.name=sensor-7", 0), ("meta.floor=1&meta.name=Press*", 1)]
            {
                let found = server.get_json(&format!("/v1/devices?{query}")).await;
                assert_eq!(found["devices"].as_array().map(Vec::len), Some(count), "{query}");
            }
            for path in ["/v1/devices/S1/latest", "/v1/latest"] {
                let latest = server.get_json(path).await;
                let latest = latest.get("devices").map_or(&latest, |devices| &devices[0]);
                assert_eq!(latest["metrics"]["value"]["beyond"], "min", "{path}: {latest}");
            }
            let text = server.get("/metrics/latest?label=name").await.text().to_owned();
            assert!(text.contains(r#"{device="S1",metric="value",name="Press 3"}"#), "{text}");
            let range = "from=2024-04-20T00:00:00Z&to=2024-04-21T00:00:00Z";
            let groups = server.get_json(&format!("/v1/rollups?{range}&combine=by:name")).await;
            assert_eq!(groups["groups"][0]["by"], json!({ "name": "Press 3" }), "{groups}");
            let tags = server.get_json("/query?db=tidegauge&q=SHOW+TAG+VALUES+WITH+KEY+%3D+%22name%22").await;
            assert!(tags.to_string().contains("Press 3") && !tags.to_string().contains("sensor-7"), "{tags}");
        }
        accepted(&server, Method::PATCH, "S1", &json!({ "name": null, "limits": null })).await;
        let shown = metadata(&server, "S1").await["metadata"].take();
        assert_eq!(
            shown,
            json!({ "name": "sensor-7", "floor": 1, "hall": "A", "limits": { "value": { "max": 100 } } })
        );
    }
}

#[tokio::test]
async fn a_change_holds_only_if_its_precondition_does() {
    let server = Server::start(Setup::sqlite()).await;
    let tag_of = async |device: &str| {
        let answer = server.get(&format!("/v1/devices/{device}/metadata")).await;
        answer.header("etag").to_owned()
    };
    let put = async |headers: &[(&str, &str)], body: Value| change_if(&server, Method::PUT, "S1", &body, headers).await;
    let empty = tag_of("S1").await;
    assert!(empty.starts_with('"'), "{empty}");
    assert_eq!(put(&[("if-match", "*")], json!({})).await.status, 412, "nothing is set");
    let first = put(&[("if-none-match", "*")], json!({ "name": "one" })).await;
    assert_eq!((first.status, first.header("etag")), (200, &*tag_of("S1").await));
    let refused = put(&[("if-match", &empty)], json!({ "name": "two" })).await;
    assert_eq!((refused.status, &refused.json()["code"]), (412, &json!("precondition_failed")));
    assert_eq!(put(&[("if-none-match", "*")], json!({ "name": "two" })).await.status, 412);
    let known = tag_of("S1").await;
    server.accepts(&reading("S1", 0, &json!({ "floor": 1 }))).await;
    assert_eq!(tag_of("S1").await, known, "it is the tag of what operators have set");
    assert_eq!(put(&[("if-match", &format!("\"x\", {known}"))], json!({ "name": "two" })).await.status, 200);
    assert_eq!(metadata(&server, "S1").await["metadata"], json!({ "floor": 1, "name": "two" }));
    // One of many changes with the same tag holds.
    let known = tag_of("S1").await;
    let all = (0..8).map(|nth| {
        let (server, known) = (&server, &known);
        async move {
            let body = json!({ "nth": nth });
            change_if(server, Method::PATCH, "S1", &body, &[("if-match", known)]).await.status
        }
    });
    let statuses = futures_util::future::join_all(all).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
}

#[tokio::test]
async fn a_change_that_breaks_a_rule_is_refused_whole_with_the_reason() {
    let server = Server::start(Setup::sqlite()).await;
    accepted(&server, Method::PUT, "S1", &json!({ "name": "before" })).await;
    let send = async |method: Method, kind: &str, body: &str| {
        let request = server.request(method, "/v1/devices/S1/metadata").header("content-type", kind);
        server.send(request.body(body.to_owned())).await
    };
    let long = format!(r#"{{"x":"{}"}}"#, "x".repeat(5_000));
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(8), "]".repeat(8));
    let deepest = format!(r#"{{"a":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    for (body, why) in [
        ("[]", "an array"),
        ("null", "null"),
        (r#"{"a":1} x"#, "byte 9"),
        (r#"{"a":1,"\u0061":2}"#, "duplicated"),
        (r#"{"b":{"a":1,"a":2}}"#, "duplicated"),
        (r#"{"deviceId":"S2"}"#, "deviceId"),
        (r#"{"":1}"#, "empty"),
        (r#"{"a\u0000":1}"#, "NUL"),
        (r#"{"a":1e400}"#, "64-bit float"),
        (r#"{"a":NaN}"#, "NaN"),
        (&long, "at most 4096 bytes"),
        (&deep, "8 levels"),
        (&deepest, "at most 4096 bytes"),
        (r#"{"limits":{"temp":{"hihg":1}}}"#, "limits.temp"),
        (r#"{"limits":[1]}"#, "limits"),
        (r#"{"units":"%"}"#, "units"),
        (r#"{"units":{"hum":"%","temp":1}}"#, "units.temp"),
        (r#"{"kind":{"energy":"counter","temp":"gauge"}}"#, "kind.temp"),
        (r#"{"kind":["counter"]}"#, "kind"),
        (r#"{"name":7}"#, "name"),
    ] {
        for method in [Method::PUT, Method::PATCH] {
            let answer = send(method.clone(), "application/json", body).await;
            let shown: String = body.chars().take(60).collect();
            assert_eq!(answer.status, 400, "{method} {shown}: {}", answer.text());
            let (code, detail) = (&answer.json()["code"], answer.json()["detail"].to_string());
            assert_eq!(*code, json!("invalid_metadata"), "{detail}");
            assert!(detail.contains(why), "{method} {shown}: {detail}");
        }
    }
    let null = send(Method::PUT, "application/json", r#"{"name":null}"#).await;
    assert_eq!((null.status, &null.json()["code"]), (400, &json!("invalid_metadata")));
    for kind in ["text/plain", "application/x-ndjson", "application/x-www-form-urlencoded"] {
        assert!([403, 415].contains(&send(Method::PUT, kind, "{}").await.status), "{kind}");
    }
    assert_eq!(send(Method::PUT, "application/merge-patch+json", "{}").await.status, 415);
    let patched = send(Method::PATCH, "application/merge-patch+json", r#"{"limits":{"temp":{"min":1}}}"#).await;
    assert_eq!(patched.status, 200);
    assert_eq!(send(Method::PATCH, "application/json", r#"{"limits":{"temp":{"max":0}}}"#).await.status, 400);
    // Many small changes together are not larger than one may be.
    for nth in 0..6 {
        let body = json!({ format!("k{nth}"): "x".repeat(1_000) });
        let answer = change(&server, Method::PATCH, "S1", &body).await;
        assert_eq!(answer.status, if nth < 4 { 200 } else { 400 }, "{nth}: {}", answer.text());
    }
    let found = metadata(&server, "S1").await;
    assert_eq!(
        (&found["metadata"]["name"], &found["metadata"]["limits"]),
        (&json!("before"), &json!({ "temp": { "min": 1 } }),)
    );
    for device in ["..%2F", "a%00b", "%20", "x".repeat(129).as_str(), "a%0Ab"] {
        let request = server.request(Method::PUT, &format!("/v1/devices/{device}/metadata"));
        let answer = server.send(request.header("content-type", "application/json").body("{}")).await;
        let is_id = device == "..%2F";
        assert_eq!(answer.status, if is_id { 200 } else { 400 }, "{device}: {}", answer.text());
    }
    for (line, why) in [
        (r#"{"deviceId":"S1"}"#, "change"),
        (r#"["S1",{}]"#, "a line is an object"),
        (r#"{"deviceId":"S1","change":[1]}"#, "is an object"),
        (r#"{"deviceId":"S1","change":{"keys":{"a":1}}}"#, "has no object"),
        (r#"{"deviceId":"S1","change":{"keys":{"a":[1]}}}"#, "has no object"),
        (r#"{"deviceId":"S1","change":{"keys":{"a":{"value":1}}}}"#, "atMs"),
        (r#"{"deviceId":"S1","change":{"keys":{"a":{"atMs":1,"at":2}}}}"#, "at"),
        (r#"{"deviceId":"S1","change":{"keys":{"a":{"atMs":1},"a":{"atMs":2}}}}"#, "duplicated"),
        (r#"{"deviceId":"S1","change":{"keys":{"a":{"atMs":1,"value":{"b":1,"b":2}}}}}"#, "duplicated"),
        (r#"{"deviceId":"S1","change":{"keys":{"a":{"atMs":1,"value":9223372036854775808}}}}"#, "2^63"),
        (r#"{"deviceId":"S1","change":{"keys":{"deviceId":{"atMs":1,"value":1}}}}"#, "cannot be a key"),
        (r#"{"deviceId":"S1","change":{"keys":{"a":{"atMs":1,"value":{"":1}}}}}"#, "empty"),
        (r#"{"deviceId":"S1","change":{"keys":{"":{"atMs":1}}}}"#, "empty"),
        (r#"{"deviceId":"S1","change":{"replacedMs":253402300799000}}"#, "ahead"),
        (r#"{"deviceId":"S2","change":{"keys":{"limits":{"atMs":1,"value":[1]}}}}"#, "line 1: "),
        (r#"{"deviceId":"a\tb","change":{}}"#, "deviceId"),
    ] {
        let answer = server.post("/v1/metadata", "application/x-ndjson", line).await;
        assert_eq!(answer.status, 400, "{line}");
        assert!(answer.text().contains(why) && !answer.text().contains("struct"), "{line}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_wrong_form_from_before_refuses_no_copy_and_only_changes_of_its_key() {
    let server = Server::start(Setup::sqlite()).await;
    let keys = json!({ "name": { "atMs": 1, "value": 7 }, "units": { "atMs": 1, "value": { "dew": 5 } } });
    let line = json!({ "deviceId": "S1", "change": { "keys": keys } }).to_string();
    let copied = server.post("/v1/metadata", "application/x-ndjson", line).await;
    assert_eq!(copied.status, 200, "{}", copied.text());
    accepted(&server, Method::PATCH, "S1", &json!({ "place": "Hall 2", "kind": "pump" })).await;
    let refused = change(&server, Method::PATCH, "S1", &json!({ "units": { "temp": "°C" } })).await;
    assert_eq!(refused.status, 400);
    let detail = refused.json()["detail"].to_string();
    assert!(detail.contains("units.dew"), "{detail}");
    accepted(&server, Method::PATCH, "S1", &json!({ "units": { "temp": "°C", "dew": null } })).await;
    let expected = json!({ "name": 7, "place": "Hall 2", "kind": "pump", "units": { "temp": "°C" } });
    assert_eq!(metadata(&server, "S1").await["setByOperators"], expected);
}

#[tokio::test]
async fn a_token_changes_the_metadata_of_its_own_devices_only() {
    let of_tenant = |tenant: &str| format!("scopes = ['ingest', 'query', 'metadata']\ndevice_prefix = '{tenant}/'");
    let setup = Setup::sqlite()
        .token("operator", "scopes = ['admin']")
        .token("reader", "scopes = ['ingest', 'query', 'admin']")
        .token("setter", "scopes = ['metadata']")
        .token("some", "scopes = ['query', 'metadata']\ndevices = ['press-*']")
        .token("acme", &of_tenant("acme"))
        .token("other", &of_tenant("other"));
    let server = Server::start(setup).await;
    let send = async |name: &str, method: Method, device: &str, body: &str| {
        let request = server.request(method, &format!("/v1/devices/{device}/metadata")).bearer_auth(secret_of(name));
        server.send(request.header("content-type", "application/json").body(body.to_owned())).await
    };
    for method in [Method::PUT, Method::PATCH] {
        let refused = send("reader", method, "S1", "{}").await;
        assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("forbidden")));
    }
    assert_eq!(send("operator", Method::GET, "S1", "").await.status, 403);
    for tenant in ["acme", "other"] {
        assert_eq!(send(tenant, Method::PUT, "S1", &format!(r#"{{"name":"of {tenant}"}}"#)).await.status, 200);
    }
    for tenant in ["acme", "other"] {
        let found = send(tenant, Method::GET, "S1", "").await.json();
        assert_eq!((&found["deviceId"], &found["metadata"]["name"]), (&json!("S1"), &json!(format!("of {tenant}"))));
        let request = server.request(Method::GET, "/v1/metadata").bearer_auth(secret_of(tenant));
        let listed = server.send(request).await;
        assert_eq!(listed.text().lines().count(), 1, "{}", listed.text());
        assert!(listed.text().contains(r#""deviceId":"S1""#), "{}", listed.text());
    }
    assert_eq!(send("reader", Method::GET, "S1", "").await.json()["metadata"], json!({}));
    assert_eq!(send("reader", Method::GET, "acme%2FS1", "").await.json()["metadata"]["name"], "of acme");
    let set = send("setter", Method::PATCH, "acme%2FS1", "{}").await;
    let expected = json!({ "deviceId": "acme/S1", "setByOperators": { "name": "of acme" } });
    assert_eq!((set.status, set.json()), (200, expected), "it may not query");
    assert_eq!(send("some", Method::PUT, "press-1", r#"{"name":"a"}"#).await.status, 200);
    let refused = send("some", Method::PUT, "pump-1", r#"{"name":"a"}"#).await;
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("device_forbidden")));
    let audit = server.logged("set metadata of a device").await;
    assert!(audit.contains("acme/S1"), "{audit}");
}

/// The lines of each page of a list, as the token of this name gets them.
async fn pages(server: &Server, token: Option<&str>, path: &str) -> Vec<Vec<String>> {
    let (mut path, mut pages) = (path.to_owned(), Vec::new());
    loop {
        let request = server.request(Method::GET, &path);
        let request = token.iter().fold(request, |request, token| request.bearer_auth(secret_of(token)));
        let page = server.send(request).await;
        assert_eq!(page.status, 200, "{}", page.text());
        pages.push(page.text().lines().map(str::to_owned).collect());
        match page.header("link").split_once('<').and_then(|(_, rest)| rest.split_once('>')) {
            Some((next, _)) => next.clone_into(&mut path),
            None => return pages,
        }
    }
}

/// A page that skips too many devices of others ends with those that it has found.
#[tokio::test]
async fn a_token_lists_its_devices_among_thousands_of_others() {
    let setup = Setup::sqlite()
        .set("limits.new_devices_per_minute", 0)
        .token("operator", "scopes = ['admin']")
        .token("all", "scopes = ['query', 'metadata']")
        .token("one", "scopes = ['query']\ndevices = ['S1']")
        .token("zone", "scopes = ['query']\ndevices = ['*-ZONE4']")
        .token("none", "scopes = ['query']\ndevices = ['*-ZONE5']");
    let server = Server::start(setup).await;
    let of = |nth: usize| format!("S1-{nth:05}{}", if nth % 200 == 100 { "-ZONE4" } else { "" });
    let ids: Vec<String> = std::iter::once("S1".to_owned()).chain((0..10_700).map(of)).collect();
    for some in ids.chunks(500) {
        let change = json!({ "keys": { "hall": { "atMs": START_MS, "value": 2 } } });
        let lines: Vec<String> =
            some.iter().map(|id| json!({ "deviceId": id, "change": change }).to_string()).collect();
        wait_until("the store has taken the changes before", async || {
            let request = server.request(Method::POST, "/v1/metadata").bearer_auth(secret_of("all"));
            let request = request.header("content-type", "application/x-ndjson").body(lines.join("\n"));
            let answer = server.send(request).await;
            assert!([200, 503].contains(&answer.status), "{}", answer.text());
            (answer.status == 200).then_some(())
        })
        .await;
    }
    let one = pages(&server, Some("one"), "/v1/metadata").await;
    assert!(one.len() == 1 && one[0].len() == 1 && one[0][0].contains(r#""deviceId":"S1""#), "{one:?}");
    for (limit, count) in [(100, 2), (53, 2), (20, 3)] {
        let zone = pages(&server, Some("zone"), &format!("/v1/metadata?limit={limit}")).await;
        assert_eq!(zone.len(), count, "{limit}: {zone:?}");
        let zone = zone.concat();
        assert!(zone.iter().all(|line| line.contains("-ZONE4")) && zone.len() == 53, "{limit}: {zone:?}");
    }
    let none = server.send(server.request(Method::GET, "/v1/metadata").bearer_auth(secret_of("none"))).await;
    assert_eq!((none.status, &none.json()["code"]), (400, &json!("too_many_devices")), "{}", none.text());
}

/// As many keys as 4 KiB of metadata may have.
fn many_keys() -> Value {
    let letters = 'a'..='z';
    let names = letters.clone().flat_map(|first| letters.clone().map(move |second| format!("{first}{second}")));
    let keys: Map<String, Value> = names.take(585).map(|name| (name, json!(1))).collect();
    assert_eq!(json!(keys).to_string().len(), 4_096);
    json!(keys)
}

#[tokio::test]
async fn all_that_operators_have_set_is_listed_and_taken_by_another_server() {
    let (from, to) = (Server::start(Setup::sqlite()).await, Server::start(Setup::sqlite()).await);
    for nth in 0..25 {
        accepted(&from, Method::PUT, &format!("d{nth:02}"), &json!({ "name": format!("Device {nth}") })).await;
    }
    accepted(&from, Method::PATCH, "d07", &json!({ "name": null, "hall": 2 })).await;
    accepted(&to, Method::PUT, "d08", &json!({ "name": "newer", "note": "stays" })).await;
    for (nth, value) in (0..5).flat_map(|nth| [(nth, json!(1)), (nth, Value::Null)]) {
        let long = format!("{nth}{}", "x".repeat(3_900));
        accepted(&from, Method::PATCH, "removed", &json!({ long: value })).await;
    }
    accepted(&from, Method::PATCH, "removed", &many_keys()).await;
    let lines = pages(&from, None, "/v1/metadata?limit=10").await.concat();
    assert_eq!(lines.len(), 26);
    let removals = lines[25].matches('x').count() / 3_900;
    assert_eq!(removals, 1, "the names of removed keys have at most 4 KiB: {}", lines[25]);
    for _ in 0..2 {
        let answer = to.post("/v1/metadata", "application/x-ndjson", lines.join("\n")).await;
        assert_eq!((answer.status, answer.text()), (200, r#"{"accepted":26}"#));
    }
    for (device, expected) in [
        ("d00", json!({ "name": "Device 0" })),
        ("d07", json!({ "hall": 2 })),
        ("d08", json!({ "name": "newer", "note": "stays" })),
        ("removed", many_keys()),
    ] {
        assert_eq!(metadata(&to, device).await["setByOperators"], expected);
    }
}

#[tokio::test]
async fn what_operators_set_is_forwarded_and_the_newer_value_of_a_key_stays() {
    let centre = Server::start(Setup::sqlite()).await;
    let mut edge = Server::start(forward::to(centre.url())).await;
    edge.accepts(&reading("S1", 0, &json!({ "name": "sensor-7", "floor": 1 }))).await;
    accepted(&edge, Method::PUT, "S1", &json!({ "name": "Press 3", "hall": "A" })).await;
    accepted(&edge, Method::PATCH, "not-sent-yet", &json!({ "name": "Spare" })).await;
    accepted(&edge, Method::PUT, "many-keys", &many_keys()).await;
    edge.kill9(); // before or after it has sent them
    edge.start_again().await;
    edge.accepts(&reading("S1", 1, &json!({ "name": "sensor-7", "floor": 1 }))).await;
    forward::forwarded(&edge).await;
    assert_eq!(
        metadata(&centre, "S1").await,
        json!({
            "deviceId": "S1", "metadata": { "name": "Press 3", "hall": "A", "floor": 1 },
            "setByOperators": { "name": "Press 3", "hall": "A" }, "sentByDevice": { "name": "sensor-7", "floor": 1 },
        })
    );
    assert_eq!(metadata(&centre, "not-sent-yet").await["metadata"], json!({ "name": "Spare" }));
    assert_eq!(metadata(&centre, "many-keys").await["metadata"], many_keys());
    accepted(&centre, Method::PATCH, "S1", &json!({ "hall": "B" })).await;
    accepted(&edge, Method::PATCH, "S1", &json!({ "name": null, "note": "edge" })).await;
    edge.accepts(&reading("S1", 2, &json!({ "name": "sensor-7", "floor": 1 }))).await;
    forward::forwarded(&edge).await;
    let expected = json!({ "name": "sensor-7", "hall": "B", "floor": 1, "note": "edge" });
    wait_until("the centre has the change", async || {
        (metadata(&centre, "S1").await["metadata"] == expected).then_some(())
    })
    .await;
    assert_eq!(edge.metrics().await.count("tidegauge_forward_metadata_refused_total"), 0);
}

/// The instant of each later change is after that of the change before it.
#[tokio::test]
async fn changes_after_one_of_a_clock_that_was_years_ahead_are_forwarded_and_win() {
    let centre = Server::start(Setup::sqlite()).await;
    let edge = Server::start(forward::to(centre.url())).await;
    for (device, years) in [("S1", 1_i64), ("S2", 999)] {
        let at_ms = now_ms() + years * 365 * 86_400_000;
        let line = json!({ "deviceId": device, "change": { "keys": { "name": { "atMs": at_ms, "value": "A" } } } });
        let answer = edge.post("/v1/metadata", "application/x-ndjson", line.to_string()).await;
        assert_eq!(answer.status, 200, "{device}: {}", answer.text());
        accepted(&edge, Method::PATCH, device, &json!({ "name": "B", "hall": 2 })).await;
        accepted(&edge, Method::PATCH, device, &json!({ "hall": null })).await;
        edge.accepts(&reading(device, 0, &json!({}))).await;
    }
    forward::forwarded(&edge).await;
    for device in ["S1", "S2"] {
        assert_eq!(metadata(&centre, device).await["metadata"], json!({ "name": "B" }));
        accepted(&centre, Method::PUT, device, &json!({ "name": "C" })).await;
        assert_eq!(metadata(&centre, device).await["metadata"], json!({ "name": "C" }));
    }
    assert_eq!(edge.metrics().await.count("tidegauge_forward_metadata_refused_total"), 0);
}

#[tokio::test]
async fn metadata_that_the_centre_refuses_is_counted_and_holds_up_no_reading() {
    let scopes = |scopes: &str| format!("scopes = [{scopes}]");
    let setup = Setup::sqlite().token("operator", &scopes("'admin', 'query'")).token("edge", &scopes("'ingest'"));
    let centre = Server::start(setup).await;
    let edge = Server::start(forward::to(centre.url()).set("forward.token", secret_of("edge"))).await;
    accepted(&edge, Method::PUT, "S1", &json!({ "name": "Press 3" })).await;
    edge.accepts(&reading("S1", 0, &json!({ "floor": 1 }))).await;
    forward::forwarded(&edge).await;
    assert_eq!(edge.metrics().await.count("tidegauge_forward_metadata_refused_total"), 1);
    assert!(edge.logged("metadata is refused where it is forwarded to").await.contains("Press 3"));
    let request = centre.request(Method::GET, "/v1/devices/S1").bearer_auth(secret_of("operator"));
    assert_eq!(centre.send(request).await.json()["metadata"], json!({ "floor": 1 }));
}

#[tokio::test]
async fn a_backup_has_what_operators_have_set() {
    let server = Server::start(Setup::sqlite()).await;
    accepted(&server, Method::PUT, "stored", &json!({ "name": "Press 3" })).await;
    server.accepts(&reading("stored", 0, &json!({}))).await;
    server.settled().await;
    accepted(&server, Method::PUT, "just-now", &json!({ "name": "Spare" })).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let (data, copy) = (server.data_dir().display().to_string(), place.path().join("copy"));
    let copy = copy.to_str().expect("text");
    let made = run(&["backup", "--data-dir", &data, "--to", copy]).await;
    assert_eq!(made.code, Some(0), "{}{}", made.stdout, made.stderr);
    let fill = |data: &std::path::Path| {
        let data = data.to_str().expect("text");
        let restored = std::process::Command::new(crate::harness::binary())
            .args(["restore", "--from", copy, "--data-dir", data])
            .output()
            .expect("the binary runs");
        assert!(restored.status.success(), "{restored:?}");
    };
    let restored = Server::start_with_data(Setup::sqlite(), fill).await;
    for (device, name) in [("stored", "Press 3"), ("just-now", "Spare")] {
        assert_eq!(metadata(&restored, device).await["metadata"]["name"], name);
    }
}

#[tokio::test]
async fn changes_that_the_store_does_not_take_are_bounded_and_survive_a_kill() {
    let mut server = Server::start(Setup::sqlite()).await;
    server.accepts(&reading("d0", 0, &json!({ "floor": 1 }))).await;
    server.settled().await;
    let lock = rusqlite::Connection::open(server.data_dir().join("tidegauge.sqlite")).expect("the store");
    lock.execute_batch("BEGIN IMMEDIATE").expect("the store waits for this transaction");
    accepted(&server, Method::PUT, "d0", &json!({ "hall": 0 })).await;
    for (some, status) in [("p", 200), ("q", 503)] {
        let change = json!({ "keys": { "name": { "atMs": START_MS, "value": "N" } } });
        let line = |nth: usize| json!({ "deviceId": format!("{some}{nth}"), "change": change }).to_string();
        let lines: Vec<String> = (0..500).map(line).collect();
        let answer = server.post("/v1/metadata", "application/x-ndjson", lines.join("\n")).await;
        assert_eq!(answer.status, status, "{}", answer.text());
    }
    let mut taken = 1;
    let refused = loop {
        let answer = change(&server, Method::PUT, &format!("d{taken}"), &json!({ "hall": taken })).await;
        if answer.status != 200 {
            break answer;
        }
        taken += 1;
    };
    assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("overloaded")), "{}", refused.text());
    assert!(!refused.header("retry-after").is_empty() && (450..=550).contains(&taken), "{taken}");
    server.accepts(&reading("d0", 1, &json!({ "floor": 1 }))).await; // readings go on
    let expected = json!({ "floor": 1, "hall": 0 });
    assert_eq!(server.get_json("/v1/devices/d0").await["metadata"], expected);
    server.kill9();
    drop(lock);
    server.start_again().await;
    assert_eq!(server.get_json("/v1/devices/d0").await["metadata"], expected);
    let last = taken - 1;
    assert_eq!(metadata(&server, &format!("d{last}")).await["metadata"], json!({ "hall": last }));
    server.settled().await;
}

/// Devices that only an operator knows count as new ones, those that have sent something do not.
#[tokio::test]
async fn new_devices_of_operators_are_as_limited_as_those_that_send() {
    let limited = Setup::sqlite().set("limits.new_devices_per_minute", 1).set("limits.start_grace", "0ms");
    let server = Server::start(limited).await;
    server.accepts(&reading("sender", 0, &json!({}))).await;
    let mut refused = None;
    for nth in 0..30 {
        let answer = change(&server, Method::PATCH, &format!("new-{nth}"), &json!({ "name": "N" })).await;
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("a burst of ten minutes is spent");
    assert_eq!((refused.status, &refused.json()["code"]), (429, &json!("rate_limited")), "{}", refused.text());
    assert!(refused.text().contains("limits.new_devices_per_minute"), "{}", refused.text());
    assert!(!refused.header("retry-after").is_empty());
    let line = json!({ "deviceId": "other", "change": { "keys": { "name": { "atMs": 1, "value": "N" } } } });
    let listed = server.post("/v1/metadata", "application/x-ndjson", line.to_string()).await;
    assert_eq!(listed.status, 429, "{}", listed.text());
    let empty = change(&server, Method::PATCH, "nobody", &json!({})).await;
    assert_eq!(empty.status, 200, "a change of nothing makes no device: {}", empty.text());
    for device in ["sender", "new-0"] {
        accepted(&server, Method::PATCH, device, &json!({ "name": "M" })).await;
    }
    let limits = [("limit", "limits.new_devices_per_minute")];
    assert_eq!(server.metrics().await.count_where("tidegauge_limited_total", &limits), 2);
}
