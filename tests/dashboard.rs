//! The dashboard in a real browser: it shows what the server has, and says what it cannot show.
//!
//! Each test ends with [`Tab::close`], which fails if the page logged an error or asked another server.

mod browser;
mod charts;
mod devices;
mod front;
mod service;
mod states;

use serde_json::{Value, json};

use crate::harness::{Server, Setup};
use browser::Tab;

/// 2024-04-20T14:00:00Z, 16:00 in the time zone of the tabs.
const START_MS: i64 = 1_713_621_600_000;

/// Stores the value of a metric at some seconds after [`START_MS`].
async fn send(server: &Server, device: &str, metric: &str, values: &[(i64, f64)]) {
    let reading = |&(at, value): &(i64, f64)| json!({ "ts": START_MS + at * 1_000, "values": { metric: value } });
    let readings: Vec<Value> = values.iter().map(reading).collect();
    server.accepts(&json!({ "deviceId": device, "readings": readings })).await;
}

/// Stores a value now.
async fn send_now(server: &Server, device: &str, value: f64) {
    server.accepts(&json!({ "deviceId": device, "values": { "temp": value } })).await;
}

#[tokio::test]
async fn the_page_needs_no_token_and_its_policy_is_strict() {
    let server = Server::start(Setup::sqlite().token("operator", "scopes = ['admin']")).await;
    let page = server.get("/").await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    let policy = page.header("content-security-policy");
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let file = page.text().split('"').find(|text| text.ends_with("/main.js")).expect("a script").to_owned();
    assert_eq!(server.get(&file).await.header("content-type"), "text/javascript; charset=utf-8");
    assert_eq!(server.get("/dashboard/0/main.js").await.status, 404);
    let foreign = server.request(reqwest::Method::GET, &file).header("sec-fetch-site", "cross-site");
    assert_eq!(server.send(foreign).await.status, 403, "a page of another site may not load it");
    let rebound = server.request(reqwest::Method::GET, "/").header("host", "rebind.example");
    assert_eq!(server.send(rebound).await.status, 200, "with tokens a name alone gives no access");
}

/// The functions without a view, in the browser that runs them.
#[tokio::test(flavor = "multi_thread")]
async fn texts_of_series_gaps_steps_and_times() {
    let server = Server::start(Setup::sqlite()).await;
    let tab = Tab::open().await;
    tab.go(&format!("{}/", server.url())).await;
    tab.wait("document.querySelector('link[href$=\"series.js\"]')").await;
    let module = |name: &str| format!("(await import(document.querySelector('link[href$=\"{name}.js\"]').href))");
    let run = async |name: &str, expression: &str| {
        tab.js(&format!("(async () => {{ const m = {}; return {expression}; }})()", module(name))).await
    };
    for (text, expected) in [
        ("temp", json!({ "name": "temp", "labels": {} })),
        ("a{b=c,d=e}", json!({ "name": "a", "labels": { "b": "c", "d": "e" } })),
        (r"a\b", json!({ "name": r"a\b", "labels": {} })),
        (r"a\{b\=\,=c\\d\}}", json!({ "name": r"a\", "labels": { "b=,": r"c\d}" } })),
    ] {
        assert_eq!(run("series", &format!("m.parseSeries({})", Value::from(text))).await, expected, "{text}");
    }
    for (length, expected) in
        [("36e5", "1m"), ("864e5", "2m"), ("7*864e5", "1h"), ("365*864e5", "12h"), ("9e12", "1mo")]
    {
        assert_eq!(run("series", &format!("m.stepFor({length})")).await, expected, "{length}");
    }
    let gaps = run("series", "m.withGaps({ ts: [0, 10, 20, 60, 70], mean: [1, 2, 3, 4, 5] })").await;
    assert_eq!(gaps, json!([[0, 10, 20, 30, 60, 70], [1, 2, 3, null, 4, 5]]), "a point without a value in the gap");
    let steps = "m.withGaps({ ts: [0, 10, 30], mean: [1, 2, 3], min: [0, 1, 2], max: [2, 3, 4] }, 10)";
    let expected = json!([[0, 10, 20, 30], [1, 2, null, 3], [0, 1, null, 2], [2, 3, null, 4]]);
    assert_eq!(run("series", steps).await, expected);
    let compared = json!([
        { "count": 0, "min": null, "max": null, "avg": null },
        { "count": 1, "min": 2, "max": 2, "avg": 2 },
        { "count": 3, "min": 1, "max": 12, "avg": 6 },
    ]);
    let point = |nth: usize, count: u32, value: Option<u32>| {
        let ts = format!("2024-04-20T{}:00:00Z", 14 + nth);
        json!({ "ts": ts, "count": count, "min": value, "max": value, "avg": value, "compared": compared[nth] })
    };
    let metrics = json!({ "temp": [point(0, 3, Some(10)), point(1, 1, Some(1_000)), point(2, 0, None)] });
    let lines = format!("m.linesOfRollups([{}])", json!({ "deviceId": "A", "metrics": metrics }));
    let expected = json!([{ "low": 10, "high": 1_000, "mean": 257.5 }, { "low": 1, "high": 12, "mean": 5 }]);
    assert_eq!(run("series", &format!("{lines}.map(m.summary)")).await, expected, "of readings, not of steps");
    let texts = format!("m.axisTexts([{START_MS}, {START_MS} + 36e5 * 8], 36e5)");
    assert_eq!(
        run("time", &texts).await,
        json!(["04:00 PM\nApr 20", "12:00 AM\nApr 21"]),
        "by the clock of the viewer"
    );
    for (text, expected) in
        [("90s", json!(90_000)), ("1w", json!(604_800_000)), ("0h", Value::Null), ("x", Value::Null)]
    {
        assert_eq!(run("time", &format!("m.lengthOf('{text}')")).await, expected, "{text}");
    }
    for (value, expected) in [
        ("0.1 + 0.2", "0.3"),
        ("1/3", "0.333333333333"),
        ("-12345678.25", "-12345678.25"),
        ("1713621600123", "1713621600123"),
        ("1e300", "1.0000e300"),
    ] {
        assert_eq!(run("page", &format!("m.exact({value})")).await, expected, "{value}");
    }
    for (value, expected) in [
        ("12345678", "12345678"),
        ("-1234567.8", "-1234568"),
        ("1/3", "0.33333"),
        ("99999.9", "100000"),
        ("0, 0", "0"),
        ("101325.2, 0.2", "101325.2"), // a tick of an axis
        ("101325.25, 0.25", "101325.25"),
        ("1013.2468, 0.08", "1013.247"),
        ("0.1 + 0.2, 0", "0.3"),
    ] {
        assert_eq!(run("page", &format!("m.short({value})")).await, expected, "{value}");
    }
    tab.close(server.url(), &[]).await;
}
