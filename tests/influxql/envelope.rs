//! Parameters, credentials, status codes and errors of `/query`.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Connection, Server, Setup, in_stores, secret_of, wait_until};

pub(super) const TS_NS: i64 = 1_713_621_610_000_000_000; // 2024-04-20T14:00:10Z

/// The path of a query, with these further parameters.
fn path(query: &str, more: &[(&str, &str)]) -> String {
    let mut params = form_urlencoded::Serializer::new(String::new());
    params.append_pair("q", query).extend_pairs(more);
    format!("/query?{}", params.finish())
}

async fn ask(server: &Server, query: &str) -> Value {
    server.get_json(&path(query, &[("db", "plant")])).await
}

/// Writes lines, with the token of this name.
pub(super) async fn write(server: &Server, token: Option<&str>, lines: &str) {
    let mut request = server.request(Method::POST, "/write?db=plant").body(lines.to_owned());
    if let Some(token) = token {
        request = request.basic_auth("any", Some(secret_of(token)));
    }
    let answer = server.send(request).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
}

/// The rows of the only series of the only statement.
fn rows(answer: &Value) -> &Value {
    &answer["results"][0]["series"][0]["values"]
}

#[tokio::test]
async fn what_line_protocol_has_written_is_read_by_its_own_names() {
    let server = Server::start(Setup::sqlite()).await;
    write(&server, None, &format!("climate,device_id=S1 temp=20 {TS_NS}\nclimate,device_id=S2 temp=30 {TS_NS}")).await;
    let answer = ask(&server, r#"SELECT mean("temp") FROM "climate" WHERE "device_id" = 'S1'"#).await;
    assert_eq!(rows(&answer), &json!([["1970-01-01T00:00:00Z", 20]]));
    let answer = ask(&server, "SHOW TAG VALUES WITH KEY = device_id; SHOW FIELD KEYS").await;
    assert_eq!(rows(&answer), &json!([["device_id", "S1"], ["device_id", "S2"]]));
    let fields = json!([{ "name": "climate", "columns": ["fieldKey", "fieldType"], "values": [["temp", "float"]] }]);
    assert_eq!(answer["results"][1]["series"], fields);
}

#[tokio::test]
async fn a_measurement_ends_where_it_ended_in_its_line() {
    let server = Server::start(Setup::sqlite()).await;
    write(
        &server,
        None,
        &format!("a,host=h b_c=1 {TS_NS}\na_b,host=h d=2,value=3 {TS_NS}\na_b_e,host=h value=4 {TS_NS}"),
    )
    .await;
    let answer = ask(&server, "SHOW FIELD KEYS").await;
    let fields: Vec<_> = answer["results"][0]["series"]
        .as_array()
        .expect("series")
        .iter()
        .map(|series| (series["name"].clone(), series["values"].clone()))
        .collect();
    let field = |name: &str| json!([name, "float"]);
    assert_eq!(
        fields,
        [
            (json!("a"), json!([field("b_c")])),
            (json!("a_b"), json!([field("d"), field("value")])),
            (json!("a_b_e"), json!([field("value")])),
        ]
    );
}

#[tokio::test]
async fn readings_of_other_protocols_are_measurements_with_the_field_value() {
    let server = Server::start(Setup::sqlite()).await;
    let metadata = json!({ "room": "hall", "floor": 2, "lit": true, "place": { "x": 1 } });
    let reading =
        json!({ "deviceId": "S1", "ts": TS_NS / 1_000_000, "values": { "temp": 21.5 }, "metadata": metadata });
    assert_eq!(server.ingest(&reading).await.status, 200);
    let answer = ask(&server, "SHOW SERIES; SELECT * FROM temp WHERE room = 'hall' AND floor = '2'").await;
    assert_eq!(rows(&answer), &json!([["temp,device_id=S1,floor=2,lit=true,room=hall"]]));
    let series = &answer["results"][1]["series"][0];
    assert_eq!(series["columns"], json!(["time", "device_id", "floor", "lit", "room", "value"]));
    assert_eq!(series["values"], json!([["2024-04-20T14:00:10Z", "S1", "2", "true", "hall", 21.5]]));
}

#[tokio::test]
async fn a_metric_of_json_and_of_line_protocol_is_a_field() {
    let server = Server::start(Setup::sqlite()).await;
    let reading = json!({ "deviceId": "S1", "ts": TS_NS / 1_000_000, "values": { "climate_temp": 1 } });
    assert_eq!(server.ingest(&reading).await.status, 200);
    write(&server, None, &format!("climate,device_id=S2 temp=2 {TS_NS}")).await;
    let count = "SELECT count(temp) FROM climate";
    assert_eq!(rows(&ask(&server, count).await), &json!([["1970-01-01T00:00:00Z", 1]]), "that of S2 alone");
    write(&server, None, &format!("climate,device_id=S1 temp=2 {}", TS_NS + 1_000_000_000)).await;
    assert_eq!(rows(&ask(&server, count).await), &json!([["1970-01-01T00:00:00Z", 3]]), "and both of S1");
}

#[tokio::test]
async fn fields_of_a_device_with_more_series_than_the_index_keeps_are_found_by_name() {
    let setup = Setup::sqlite().set("ingest.max_metrics_per_reading", 4_096).set("limits.device_metrics_per_hour", 0);
    fields_beyond_the_index_are_found(&Server::start(setup.clone().all_pending()).await, false).await;
    fields_beyond_the_index_are_found(&Server::start(setup).await, true).await;
}

async fn fields_beyond_the_index_are_found(server: &Server, is_stored: bool) {
    let line = |fields: std::ops::Range<u32>, day: i64| {
        let fields: Vec<_> = fields.map(|nth| format!("r{nth:04}={nth}")).collect();
        format!("plc,device_id=S1 {} {}", fields.join(","), TS_NS + day * 86_400_000_000_000)
    };
    write(server, None, &format!("{}\n{}", line(0..2_500, 0), line(2_500..5_000, 1))).await;
    if is_stored {
        server.settled().await;
    }
    let range = "time >= '2024-04-20' AND time < '2024-04-22'";
    let answer = ask(server, &format!("SELECT r0000, r2000, r2499, r2500 FROM plc WHERE {range}")).await;
    let expected =
        json!([["2024-04-20T14:00:10Z", 0, 2000, 2499, null], ["2024-04-21T14:00:10Z", null, null, null, 2500],]);
    assert_eq!(rows(&answer), &expected);
    let sums = "SELECT sum(r0000) + sum(r2000) + sum(r2499) AS total FROM plc";
    let answer = ask(server, &format!("{sums} WHERE {range} AND device_id = 'S1' GROUP BY time(1d) FILL(0)")).await;
    assert_eq!(rows(&answer)[0], json!(["2024-04-20T00:00:00Z", 4499]));
    let answer = ask(server, &format!("SELECT value FROM plc_r2000 WHERE {range}")).await;
    assert_eq!(answer["results"][0]["series"], Value::Null, "it is a field of plc");
    for wildcard in ["SELECT * FROM plc", "SELECT r0000 FROM /plc/", "SELECT r0000 FROM plc GROUP BY *"] {
        let error = ask(server, wildcard).await["results"][0]["error"].take();
        let error = error.as_str().unwrap_or_default();
        assert!(error.contains("device S1 has more than 4096 series"), "{wildcard}: {error}");
    }
    let shown = ask(server, "SHOW FIELD KEYS").await;
    assert_eq!(rows(&shown).as_array().map(Vec::len), Some(4_096));
    let warning = shown["results"][0]["messages"][0]["text"].as_str().unwrap_or_default();
    assert!(warning.starts_with("device S1 has more than 4096 series"), "{shown}");
}

#[tokio::test]
async fn each_tag_that_may_name_the_device_names_it() {
    let server = Server::start(Setup::sqlite()).await;
    write(&server, None, &format!("cpu,host=pi,cpu=cpu0 idle=1 {TS_NS}\ncpu,host=nas,cpu=cpu0 idle=2 {TS_NS}")).await;
    let answer = ask(&server, "SELECT idle FROM cpu WHERE host = 'pi' GROUP BY host").await;
    assert_eq!(answer["results"][0]["series"][0]["tags"], json!({ "host": "pi" }));
    assert_eq!(rows(&answer), &json!([["2024-04-20T14:00:10Z", 1]]));
    let answer = ask(&server, "SHOW TAG VALUES FROM cpu WITH KEY = host").await;
    assert_eq!(rows(&answer), &json!([["host", "nas"], ["host", "pi"]]));
    let answer = ask(&server, "SHOW TAG KEYS").await;
    assert_eq!(rows(&answer), &json!([["cpu"], ["device_id"]]));
    // A label precedes the other names of the device tag.
    write(&server, None, &format!("cpu,deviceId=x,host=pi,cpu=cpu0 idle=3 {TS_NS}")).await;
    let answer = ask(&server, "SELECT idle, device_id, host FROM cpu WHERE host = 'pi' ORDER BY time DESC").await;
    assert_eq!(
        rows(&answer),
        &json!([["2024-04-20T14:00:10Z", 3, "x", "pi"], ["2024-04-20T14:00:10Z", 1, "pi", "pi"]])
    );
}

#[tokio::test]
async fn parameters_are_taken_from_the_query_string_and_from_forms() {
    let server = Server::start(Setup::sqlite()).await;
    write(&server, None, &format!("m,device_id=d value=1 {TS_NS}\nm,device_id=d value=2 {}", TS_NS + 1_000_000_000))
        .await;
    let query = "SELECT value FROM m WHERE device_id = $device";
    let values = json!([[TS_NS / 1_000_000_000, 1], [TS_NS / 1_000_000_000 + 1, 2]]);
    let series = json!([{ "name": "m", "columns": ["time", "value"], "values": values }]);
    let expected = json!({ "results": [{ "statement_id": 0, "series": series }] });
    let more = [("epoch", "s"), ("params", r#"{"device":"d"}"#), ("db", "plant"), ("u", "ann"), ("rp", "autogen")];
    let both = path(query, &more);
    assert_eq!(server.get_json(&both).await, expected);
    assert_eq!(server.send(server.request(Method::POST, &both)).await.json(), expected, "a POST without a body");
    let (_, form) = both.split_once('?').expect("a query string");
    let answer = server.post("/query?epoch=h&q=nope", "application/x-www-form-urlencoded", form.to_owned()).await;
    assert_eq!(answer.json(), expected, "a form precedes the query string");
    let pretty = server.get(&path(query, &[more[0], more[1], ("pretty", "true")])).await;
    assert_eq!((pretty.json(), pretty.text().lines().count() > 10), (expected, true));
    assert_eq!((pretty.header("content-type"), pretty.header("x-influxdb-version")), ("application/json", "1.8.10"));

    let chunked =
        server.get(&path("SELECT value FROM m; SHOW DATABASES", &[("chunked", "true"), ("chunk_size", "1")])).await;
    let chunks: Vec<Value> = chunked.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(chunks.len(), 3, "{}", chunked.text());
    assert_eq!(chunks[0]["results"][0]["partial"], true);
    assert_eq!(chunks[2]["results"][0]["series"][0]["values"], json!([["tidegauge"]]));
}

#[tokio::test]
async fn errors_are_those_of_influxdb() {
    let server = Server::start(Setup::sqlite()).await;
    for (path, error) in [
        ("/query?db=plant".to_owned(), "missing required parameter \"q\""),
        (path("SELEC x", &[]), "error parsing query: found SELEC, expected SELECT"),
        (path("SELECT x FROM m", &[("params", "[")]), "error parsing query parameters: "),
    ] {
        let answer = server.get(&path).await;
        assert_eq!(answer.status, 400, "{path}");
        let found = answer.json()["error"].as_str().expect("a text").to_owned();
        assert!(found.starts_with(error), "{found}");
        assert!(answer.header("x-influxdb-error").starts_with(error));
    }
    let part = "--x\r\nContent-Disposition: form-data; name=\"q\"\r\n\r\nSHOW DATABASES\r\n--x--\r\n";
    let answer = server.post("/query", "multipart/form-data; boundary=x", part).await;
    let error =
        "missing required parameter \"q\"; the body is multipart/form-data: send application/x-www-form-urlencoded";
    assert_eq!((answer.status, &answer.json()["error"]), (400, &json!(error)));
    let answer = ask(&server, "DROP DATABASE plant; SHOW DATABASES").await;
    assert_eq!(answer["results"][0]["error"], "DROP DATABASE is not supported");
    assert_eq!(answer["results"][1]["error"], "not executed");
}

#[tokio::test]
async fn create_database_succeeds_without_effect() {
    let server = Server::start(Setup::sqlite()).await;
    let created = json!({ "results": [{ "statement_id": 0 }] });
    let create = "/query?q=CREATE+DATABASE+%22plant%22";
    assert_eq!(server.get_json(create).await, created);
    assert_eq!(server.send(server.request(Method::POST, create)).await.json(), created);
    let form = "q=CREATE+DATABASE+%22plant%22&db=";
    let answer = server.post("/query", "application/x-www-form-urlencoded", form).await;
    assert_eq!((answer.status, answer.json()), (200, created));
}

#[tokio::test]
async fn a_token_reads_its_own_devices_and_a_writer_only_creates_databases() {
    let setup = Setup::sqlite()
        .token("a", "scopes = ['ingest', 'query']\ndevice_prefix = 'a-'")
        .token("some", "scopes = ['query']\ndevice_prefix = 'a-'\ndevices = ['d1']")
        .token("writer", "scopes = ['ingest']")
        .token("reader", "scopes = ['query']")
        .token("operator", "scopes = ['admin']");
    let server = Server::start(setup).await;
    let ask = async |token: &str, query: &str| -> Answer {
        let request = server.request(Method::GET, &path(query, &[]));
        server.send(request.basic_auth("any", Some(secret_of(token)))).await
    };
    let lines = format!("m,device_id=d1 v=1 {TS_NS}\nm,device_id=d2 v=2 {TS_NS}");
    write(&server, Some("a"), &lines).await;
    for (token, sum, devices) in
        [("a", 3, json!([["d1"], ["d2"]])), ("some", 1, json!([["d1"]])), ("reader", 3, json!([["a-d1"], ["a-d2"]]))]
    {
        let answer = ask(token, "SELECT sum(v) FROM m; SELECT device_id, v FROM m GROUP BY device_id").await.json();
        assert_eq!(answer["results"][0]["series"][0]["values"][0][1], sum, "{token}");
        let found: Vec<_> = answer["results"][1]["series"].as_array().expect("series").iter().collect();
        let found: Vec<_> = found.iter().map(|series| json!([series["tags"]["device_id"]])).collect();
        assert_eq!(json!(found), devices, "{token}");
    }
    let foreign = ask("some", "SELECT v FROM m WHERE device_id = 'd2'").await.json();
    assert_eq!(foreign, json!({ "results": [{ "statement_id": 0 }] }), "another device is as unknown as none");
    assert_eq!(ask("writer", "CREATE DATABASE plant").await.status, 200);
    for query in ["SHOW DATABASES", "CREATE DATABASE x; SHOW MEASUREMENTS"] {
        let refused = ask("writer", query).await;
        let said = json!("a query needs a token with the scope \"query\"");
        assert_eq!((refused.status, &refused.json()["error"]), (403, &said));
    }
    let unknown = ask("nobody", "SHOW DATABASES").await;
    assert_eq!((unknown.status, &unknown.json()["error"]), (401, &json!("the token is not known")));
}

#[tokio::test]
async fn limits_are_named_when_they_are_met() {
    let server = Server::start(Setup::sqlite().set("query.max_values_read", 8).set("query.max_points", 3)).await;
    let lines: Vec<String> =
        (0..8).map(|at| format!("m,device_id=d value={at} {}", TS_NS + at * 1_000_000_000)).collect();
    write(&server, None, &lines.join("\n")).await;
    for (query, error) in [
        ("SELECT value FROM m", "max-select-point limit exceeded: (16/8); query.max_values_read is the limit"),
        ("SELECT value FROM m WHERE time < 1713621614s", "the answer has 4 rows, more than 3 (query.max_points)"),
        (
            "SELECT mean(value) FROM m WHERE time > 1713621609s AND time < 1713621619s GROUP BY time(2s)",
            "max-select-buckets",
        ),
    ] {
        let answer = ask(&server, query).await;
        let found = answer["results"][0]["error"].as_str().unwrap_or_else(|| panic!("{query}: {answer}")).to_owned();
        assert!(found.contains(error), "{query}: {found}");
    }
    // Rows that are sent in parts have no limit.
    let chunked = server.get(&path("SELECT value FROM m", &[("chunked", "true"), ("chunk_size", "5")])).await;
    let chunks: Vec<Value> = chunked.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let sizes = chunks.iter().map(|chunk| rows(chunk).as_array().map(Vec::len));
    assert_eq!(sizes.collect::<Vec<_>>(), [Some(5), Some(3)], "{}", chunked.text());
}

in_stores!(only_series_that_may_have_rows_count, [sqlite, mongodb, packed, timeseries]);

/// Six devices have sent nothing for two days, and two others begin then.
async fn only_series_that_may_have_rows_count(setup: Setup) {
    let setup = setup.set("query.max_points", 4);
    let mut server = Server::start(setup.clone().all_pending()).await;
    let line = |device: &str, value: i64, day: i64| {
        format!("m,device_id={device} v={value} {}", TS_NS + day * 86_400_000_000_000)
    };
    let mut lines: Vec<String> = (0..6).map(|nth| line(&format!("old-{nth}"), 1, 0)).collect();
    lines.extend([line("live-1", 10, 2), line("live-2", 20, 2)]);
    write(&server, None, &lines.join("\n")).await;
    let sum = async |server: &Server, condition: &str| {
        let answer = ask(server, &format!("SELECT sum(v) FROM m WHERE {condition}")).await;
        assert!(answer["results"][0]["error"].is_null(), "{condition}: {answer}");
        rows(&answer)[0][1].clone()
    };
    for is_pending in [true, false] {
        if !is_pending {
            server.start_again_after_stop(setup.clone()).await;
            server.settled().await;
        }
        assert_eq!(sum(&server, "device_id =~ /^live/").await, 30);
        assert_eq!(sum(&server, "device_id !~ /^old/ AND v > 0").await, 30);
        assert_eq!(sum(&server, "time >= '2024-04-22'").await, 30);
        assert_eq!(sum(&server, "time >= '2024-04-22T14:00:10Z' AND time < '2024-04-22T14:00:11Z'").await, 30);
        assert_eq!(sum(&server, "time >= '2024-04-21' AND time < '2024-04-22'").await, Value::Null);
        let shown = ask(&server, "SHOW TAG VALUES WITH KEY = device_id WHERE device_id =~ /^live/").await;
        assert_eq!(rows(&shown), &json!([["device_id", "live-1"], ["device_id", "live-2"]]));
        let all = ask(&server, "SELECT sum(v) FROM m").await;
        let error = all["results"][0]["error"].as_str().unwrap_or_default();
        assert!(error.starts_with("max-select-series limit exceeded: (5/4)"), "{all}");
    }
    write(&server, None, &format!("{}\n{}", line("live-1", 100, 0), line("old-0", 1_000, 2))).await;
    assert_eq!(sum(&server, "time < '2024-04-21' AND device_id =~ /^live/").await, 100);
    assert_eq!(sum(&server, "time >= '2024-04-22'").await, 1_030);
    let deleted = server.send(server.request(Method::DELETE, "/v1/devices/old-0")).await;
    assert_eq!(deleted.status, 200, "{}", deleted.text());
    assert_eq!(sum(&server, "time >= '2024-04-22'").await, 30);
}

/// The last device has readings of more hours than a query may read, and no device before it.
#[tokio::test]
async fn a_csv_answer_in_chunks_breaks_off_if_a_later_part_fails() {
    let server = Server::start(Setup::sqlite().set("query.max_hours", 48)).await;
    let line = |device: &str, days: i64| format!("m,device_id={device} v=1 {}", TS_NS + days * 86_400_000_000_000);
    let mut lines: Vec<String> = (0..70).map(|nth| line(&format!("d{nth:02}"), 0)).collect();
    lines.extend([line("z", 0), line("z", 10)]);
    write(&server, None, &lines.join("\n")).await;
    let chunked = |query: &str| path(query, &[("chunked", "true")]);
    let all = chunked("SELECT v FROM m GROUP BY device_id");
    let json = server.get(&all).await.text().to_owned();
    assert!(json.contains("\"d00\"") && json.contains("(query.max_hours)"), "{json}");
    let csv = match server.request(Method::GET, &all).header("accept", "text/csv").send().await {
        Ok(answer) => answer.text().await,
        Err(error) => Err(error),
    };
    assert!(csv.is_err(), "{csv:?}");
    server.logged("a statement failed after its first rows were sent").await;
    let one = server.get_as(&chunked("SELECT foo(v) FROM m"), "text/csv").await;
    assert!(one.text().starts_with("error\n") && one.text().contains("foo"), "{}", one.text());

    let head = format!("GET {all} HTTP/1.0\r\nHost: localhost\r\nAccept: text/csv\r\n\r\n");
    let (status, _, body) = Connection::open(&server).await.ask(head.as_bytes()).await;
    assert!(status == 505 && String::from_utf8_lossy(&body).contains("needs HTTP/1.1"), "{status}");
}

#[tokio::test]
async fn stats_outlive_readings_and_an_hour_without_readings_is_not_split() {
    let mut server = Server::start(Setup::sqlite()).await;
    let start_s = 1_713_618_000; // 2024-04-20T13:00:00Z
    let lines: Vec<String> =
        (0..8).map(|at| format!("m,device_id=d v={at} {}", (start_s + at * 900) * 1_000_000_000)).collect();
    write(&server, None, &lines.join("\n")).await;
    server.settled().await;
    server.terminate().await;
    server.start_again_with(Setup::sqlite().set("retention.readings", "1d")).await;
    wait_until("the readings have expired", async || {
        let left = ask(&server, "SELECT v FROM m").await;
        left["results"][0]["series"].is_null().then_some(())
    })
    .await;
    let sum = async |from: i64| {
        ask(&server, &format!("SELECT sum(v) FROM m WHERE time >= {from}s AND time < {}s", start_s + 7_200)).await
    };
    assert_eq!(rows(&sum(start_s).await)[0][1], 28);
    let of_hours = async |columns: &str, clause: &str| {
        let range = format!("time >= {start_s}s AND time < {}s", start_s + 7_200);
        rows(&ask(&server, &format!("SELECT {columns} FROM m WHERE {range} {clause}")).await).clone()
    };
    assert_eq!(of_hours("max(v)", "").await, json!([["2024-04-20T14:00:00Z", 7]]), "at the start of its hour");
    assert_eq!(of_hours("min(v)", "").await, json!([["2024-04-20T13:00:00Z", 0]]));
    let means = of_hours("mean(v), difference(mean(v))", "GROUP BY time(1h)").await;
    assert_eq!(means, json!([["2024-04-20T13:00:00Z", 1.5, null], ["2024-04-20T14:00:00Z", 5.5, 4]]));
    let split = sum(start_s + 1_800).await;
    let error = split["results"][0]["error"].as_str().unwrap_or_else(|| panic!("{split}"));
    assert!(error.contains("device d from 2024-04-20T13:00:00.000Z on have expired (retention.readings)"), "{error}");
}
