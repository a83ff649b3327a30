//! Units of times.

use serde_json::json;

use super::{ALL, TS_NS, V1, V2, V3, write};
use crate::harness::{Server, Setup};

#[tokio::test]
async fn each_version_has_its_names_and_its_default() {
    let server = Server::start(Setup::sqlite()).await;
    let (ns, us, ms, s) = (1, 1_000, 1_000_000, 1_000_000_000);
    let (m, h) = (60 * s, 3_600 * s);
    let table: [(&str, &[(&str, i64)]); 3] = [
        (V1, &[("", ns), ("n", ns), ("ns", ns), ("u", us), ("us", us), ("ms", ms), ("s", s), ("m", m), ("h", h)]),
        (V2, &[("", ns), ("ns", ns), ("us", us), ("ms", ms), ("s", s)]),
        (V3, &[("nanosecond", ns), ("microsecond", us), ("millisecond", ms), ("second", s)]),
    ];
    for (path, units) in table {
        for (number, &(name, unit)) in units.iter().enumerate() {
            let path = if name.is_empty() { path.to_owned() } else { format!("{path}&precision={name}") };
            let device = format!("p{number}{}", path.len());
            let answer = write(&server, &path, format!("m,device={device} value=1 {}", TS_NS / unit)).await;
            assert_eq!(answer.status, 204, "{path}: {}", answer.text());
            let ts = jiff::Timestamp::from_nanosecond(i128::from(TS_NS / unit * unit)).expect("in range");
            let expected = json!([{ "ts": format!("{ts:.3}"), "values": { "m": 1.0 } }]);
            assert_eq!(server.readings(&device).await, expected, "{path}");
        }
    }
}

#[tokio::test]
async fn version_3_detects_units_by_magnitude() {
    let server = Server::start(Setup::sqlite()).await;
    for (device, path) in [("default", V3.to_owned()), ("auto", format!("{V3}&precision=auto"))] {
        let line = |number: i64, time: i64| format!("m,device={device} value={number} {time}\n");
        let lines: String = [(1, 1_000_000_000), (2, 1_000_000), (3, 1_000), (4, 1)]
            .map(|(number, unit)| line(number, (TS_NS + number * 1_000_000_000) / unit))
            .concat();
        assert_eq!(write(&server, &path, lines).await.status, 204);
        let times: Vec<_> = server
            .readings(device)
            .await
            .as_array()
            .expect("readings")
            .iter()
            .map(|reading| reading["ts"].clone())
            .collect();
        assert_eq!(times, [11, 12, 13, 14].map(|second| json!(format!("2024-04-20T14:00:{second}.000Z"))));
    }
}

#[tokio::test]
async fn points_in_the_same_millisecond_are_one_reading() {
    let server = Server::start(Setup::sqlite()).await;
    for (number, path) in ALL.into_iter().enumerate() {
        let (first, second, next) = (TS_NS + 1_000_001, TS_NS + 1_999_999, TS_NS + 2_000_000);
        let point = |value: i64, time: i64| format!("m,device=c{number} value={value} {time}\n");
        let lines = point(1, first) + &point(2, second) + &point(3, next);
        assert_eq!(write(&server, path, lines).await.status, 204);
        let expected = json!([
            { "ts": "2024-04-20T14:00:10.001Z", "values": { "m": 2.0 } },
            { "ts": "2024-04-20T14:00:10.002Z", "values": { "m": 3.0 } },
        ]);
        assert_eq!(server.readings(&format!("c{number}")).await, expected, "{path}");
    }
    let metrics = server.settled().await;
    assert_eq!(metrics.count("tidegauge_readings_stored_total"), 6);
    assert_eq!(metrics.count("tidegauge_readings_duplicate_total"), 3);
}

#[tokio::test]
async fn other_units_are_refused_in_the_format_of_the_version() {
    let server = Server::start(Setup::sqlite()).await;
    let line = format!("m,device=d value=1 {TS_NS}");
    for (path, body) in [
        (V1, json!({ "error": "precision: expected n, u, ms, s, m or h, found \"x\"" })),
        (V2, json!({ "code": "invalid", "message": "precision: expected ns, us, ms or s, found \"x\"" })),
        (
            V3,
            json!({ "error": "precision: expected auto, second, millisecond, microsecond or nanosecond, found \"x\"" }),
        ),
    ] {
        let answer = write(&server, &format!("{path}&precision=x"), line.as_str()).await;
        assert_eq!((answer.status, answer.json()), (400, body), "{path}");
    }
    assert_eq!(write(&server, &format!("{V2}&precision=h"), line.as_str()).await.status, 400);
    assert_eq!(write(&server, &format!("{V1}&precision=s"), line.as_str()).await.status, 400, "64 bits overflow");
}
