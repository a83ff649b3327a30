//! The JSON of rollups.
//!
//! An answer has tens of thousands of points. Written here, field by field into one buffer, they take a
//! fraction of the time that serde needs.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::common::clock::write_rfc3339;
use crate::query::{Answer, Rollups, Series};

/// The usual length of a point, to reserve memory.
const POINT_BYTES: usize = 120;

/// The rollups of one device.
#[derive(Clone, Copy)]
pub(super) struct OfDevice<'a> {
    pub(super) device_id: &'a str,
    pub(super) step: &'a str,
    pub(super) metrics: &'a Rollups,
}

/// The response for one device.
pub(super) fn of_device(answer: &Answer<OfDevice<'_>>) -> Response {
    response(answer, answer.body.points(), |object| answer.body.write_fields(object))
}

/// The response for several devices, and the last of them if there are more.
pub(super) fn of_devices(answer: &Answer<(Vec<OfDevice<'_>>, Option<&str>)>) -> Response {
    let (devices, next) = &answer.body;
    response(answer, devices.iter().map(OfDevice::points).sum(), |object| {
        let json = object.field("devices");
        array(json, devices, |json, device| braces(json, |object| device.write_fields(object)));
        value(object.field("next"), next);
    })
}

/// The response for `devices` devices whose rollups are combined.
pub(super) fn combined(answer: &Answer<Rollups>, devices: usize, step: &str) -> Response {
    let points = answer.body.values().map(Vec::len).sum();
    response(answer, points, |object| {
        value(object.field("devices"), &devices);
        value(object.field("step"), step);
        write_metrics(object.field("metrics"), &answer.body);
    })
}

impl OfDevice<'_> {
    fn points(&self) -> usize {
        self.metrics.values().map(Vec::len).sum()
    }

    fn write_fields(&self, object: &mut Object<'_>) {
        value(object.field("deviceId"), self.device_id);
        value(object.field("step"), self.step);
        write_metrics(object.field("metrics"), self.metrics);
    }
}

/// Writes the fields of an answer, then what may be missing in it.
fn response<T>(answer: &Answer<T>, points: usize, write_fields: impl FnOnce(&mut Object<'_>)) -> Response {
    let mut json = Vec::with_capacity(256 + points * POINT_BYTES);
    braces(&mut json, |object| {
        write_fields(object);
        if let Some(lagging) = answer.lagging {
            value(object.field("laggingSeconds"), &lagging.as_secs_f64());
        }
        if answer.partial {
            value(object.field("partial"), &true);
        }
    });
    ([(CONTENT_TYPE, "application/json")], json).into_response()
}

fn write_metrics(json: &mut Vec<u8>, rollups: &Rollups) {
    braces(json, |object| {
        for (metric, series) in rollups {
            write_points(object.field(metric), series);
        }
    });
}

fn write_points(json: &mut Vec<u8>, series: &Series) {
    array(json, series, |json, (ts_ms, stats)| {
        json.extend_from_slice(br#"{"ts":""#);
        write_rfc3339(json, *ts_ms);
        json.extend_from_slice(br#"","count":"#);
        value(json, &stats.count);
        for (key, number) in [
            (&br#","min":"#[..], stats.min),
            (br#","max":"#, stats.max),
            (br#","avg":"#, stats.avg()),
            (br#","sum":"#, stats.sum),
        ] {
            json.extend_from_slice(key);
            value(json, &number); // null if it is infinite
        }
        json.push(b'}');
    });
}

/// An object that is being written.
struct Object<'a> {
    json: &'a mut Vec<u8>,
    is_empty: bool,
}

impl Object<'_> {
    /// Writes a key. Its value must follow.
    fn field(&mut self, key: &str) -> &mut Vec<u8> {
        if !std::mem::take(&mut self.is_empty) {
            self.json.push(b',');
        }
        value(self.json, key);
        self.json.push(b':');
        self.json
    }
}

fn braces(json: &mut Vec<u8>, fill: impl FnOnce(&mut Object<'_>)) {
    json.push(b'{');
    fill(&mut Object { json, is_empty: true });
    json.push(b'}');
}

fn array<T>(json: &mut Vec<u8>, elements: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) {
    json.push(b'[');
    for (at, element) in elements.iter().enumerate() {
        if at > 0 {
            json.push(b',');
        }
        write(json, element);
    }
    json.push(b']');
}

/// Writes a text or a number.
fn value<T: Serialize + ?Sized>(json: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(json, value).expect("a Vec takes every write");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::model::Stats;

    async fn text(response: Response) -> String {
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    fn rollups() -> Rollups {
        let two = Stats { count: 2, min: -0.5, max: 1e300, sum: f64::INFINITY, first: None, last: None };
        let series = vec![(1_776_693_600_000, Stats::of(0, 20.0)), (1_776_697_200_000, two)];
        [(r#"a "b" \é"#.into(), series), ("c".into(), Vec::new())].into_iter().collect()
    }

    fn points() -> Value {
        json!({ r#"a "b" \é"#: [
            { "ts": "2026-04-20T14:00:00.000Z", "count": 1, "min": 20.0, "max": 20.0, "avg": 20.0, "sum": 20.0 },
            { "ts": "2026-04-20T15:00:00.000Z", "count": 2, "min": -0.5, "max": 1e300, "avg": null, "sum": null },
        ], "c": [] })
    }

    fn answer<T>(body: T) -> Answer<T> {
        Answer { body, lagging: None, partial: false }
    }

    #[tokio::test]
    async fn the_json_of_a_device_has_its_fields_in_order() {
        let (metrics, step) = (rollups(), "1h");
        let device = OfDevice { device_id: "d\n1", step, metrics: &metrics };
        let json = text(of_device(&answer(device))).await;
        assert!(json.starts_with(r#"{"deviceId":"d\n1","step":"1h","metrics":{"a \"b\" \\é":[{"ts":"2026-"#), "{json}");
        assert_eq!(
            serde_json::from_str::<Value>(&json).unwrap(),
            json!({ "deviceId": "d\n1", "step": "1h", "metrics": points() })
        );
        let incomplete = Answer { body: device, lagging: Some(Duration::from_millis(1500)), partial: true };
        assert!(text(of_device(&incomplete)).await.ends_with(r#"},"laggingSeconds":1.5,"partial":true}"#));
    }

    #[tokio::test]
    async fn several_devices_are_apart_or_combined() {
        let metrics = rollups();
        let device = |device_id| OfDevice { device_id, step: "1d", metrics: &metrics };
        let of = |id: &str| json!({ "deviceId": id, "step": "1d", "metrics": points() });
        let parsed = async |response| serde_json::from_str::<Value>(&text(response).await).unwrap();
        let apart = parsed(of_devices(&answer((vec![device("a"), device("b")], Some("b"))))).await;
        assert_eq!(apart, json!({ "devices": [of("a"), of("b")], "next": "b" }));
        let none = parsed(of_devices(&answer((Vec::new(), None)))).await;
        assert_eq!(none, json!({ "devices": [], "next": null }));
        let together = parsed(combined(&answer(rollups()), 7, "1h")).await;
        assert_eq!(together, json!({ "devices": 7, "step": "1h", "metrics": points() }));
    }
}
