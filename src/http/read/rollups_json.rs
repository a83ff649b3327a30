//! Rollups as JSON.
//!
//! An answer has tens of thousands of points. This file writes them field by field into one buffer, in a
//! fraction of the time that serde needs.

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::rollups_table::{self, Subject};
use crate::common::clock::{HourTexts, write_local_rfc3339, write_rfc3339};
use crate::http::answer::body_in_pieces::BodyInPieces;
use crate::http::answer::format::{Cells, Format, write_json, write_number};
use crate::model::ValueAt;
use crate::query::{Answer, Column, Columns, Compared, DeviceGroup, Listed, LocalTime, Point, Series};

/// The usual length of a point in bytes, by which memory is reserved.
const POINT_BYTES: usize = 120;

/// The form of an answer with rollups, whatever its format.
#[derive(Debug, Clone)]
pub(super) struct Form {
    /// The step as the client wrote it: `1h`.
    pub(super) step: String,
    /// The columns of each point.
    pub(super) columns: Columns,
    /// Whether each point has the local time at which its step starts.
    pub(super) is_local: bool,
    /// Whether each point is compared with the point of an earlier step.
    pub(super) is_compared: bool,
    pub(super) format: Format,
    pub(super) cells: Cells,
}

/// The rollups of one device, written in the format of the answer.
pub(super) struct OfDevice {
    /// In JSON a comma and an object; in the other formats rows.
    pub(super) text: Vec<u8>,
    /// Whether the device has no points.
    pub(super) is_empty: bool,
}

impl OfDevice {
    pub(super) fn new(device_id: &str, form: &Form, metrics: &Compared, local: &LocalTime) -> Self {
        let is_empty = metrics.now.is_empty();
        if form.format != Format::Json {
            return Self { text: rollups_table::rows(Subject::Device(device_id), form, metrics, local), is_empty };
        }
        let mut json = Vec::with_capacity(256 + metrics.points() * POINT_BYTES);
        json.push(b',');
        braces(&mut json, |object| {
            write_json(object.field("deviceId"), device_id);
            write_json(object.field("step"), &form.step);
            write_metrics(object.field("metrics"), form, metrics, local);
        });
        Self { text: json, is_empty }
    }
}

/// Makes the response for one device.
pub(super) fn of_device(answer: Answer<OfDevice>) -> Response {
    let Answer { body: OfDevice { text: mut json, .. }, lagging, partial } = answer;
    json.pop();
    let mut object = Object { json: &mut json, is_empty: false };
    write_notes(&mut object, &Answer { body: (), lagging, partial });
    json.push(b'}');
    response([Bytes::from(json).slice(1..)])
}

/// Makes the response for several devices.
pub(super) fn of_devices(answer: Answer<Listed<OfDevice>>) -> Response {
    let Answer { body: Listed { devices, next }, lagging, partial } = answer;
    let mut end = vec![b']'];
    let mut object = Object { json: &mut end, is_empty: false };
    write_json(object.field("next"), &next.as_deref());
    write_notes(&mut object, &Answer { body: (), lagging, partial });
    end.push(b'}');
    let devices = devices.into_iter().map(|device| Bytes::from(device.text)).enumerate();
    let devices = devices.map(|(at, json)| if at == 0 { json.slice(1..) } else { json });
    let start = Bytes::from_static(br#"{"devices":["#);
    response([start].into_iter().chain(devices).chain([end.into()]))
}

/// Makes the response for the combined rollups of `devices` devices.
pub(super) fn combined(answer: &Answer<(Vec<Compared>, LocalTime)>, devices: usize, form: &Form) -> Response {
    let (rollups, local) = &answer.body;
    let mut json = Vec::new();
    braces(&mut json, |object| {
        for rollups in rollups {
            write_combined(object, devices, form, rollups, local);
        }
        write_notes(object, answer);
    });
    response([json.into()])
}

/// Makes the response for groups of devices, each with its combined rollups.
///
/// The devices of a group have the same values of `keys` in their metadata.
pub(super) fn combined_groups(
    answer: &Answer<(Vec<Compared>, LocalTime)>,
    groups: &[DeviceGroup],
    keys: &[String],
    form: &Form,
) -> Response {
    let (rollups, local) = &answer.body;
    let groups: Vec<_> = groups.iter().zip(rollups).collect();
    let mut json = Vec::new();
    braces(&mut json, |object| {
        array(object.field("groups"), &groups, |json, (group, rollups)| {
            braces(json, |object| {
                braces(object.field("by"), |by| {
                    for (key, of_group) in keys.iter().zip(&group.values) {
                        write_json(by.field(key), of_group);
                    }
                });
                write_combined(object, group.devices, form, rollups, local);
            });
        });
        write_notes(object, answer);
    });
    response([json.into()])
}

/// Writes the fields of the combined rollups of `devices` devices.
fn write_combined(object: &mut Object<'_>, devices: usize, form: &Form, rollups: &Compared, local: &LocalTime) {
    object.json.reserve(256 + rollups.points() * POINT_BYTES);
    write_json(object.field("devices"), &devices);
    write_json(object.field("step"), &form.step);
    write_metrics(object.field("metrics"), form, rollups, local);
}

/// Writes notes on what may be missing in the answer.
fn write_notes<T>(object: &mut Object<'_>, answer: &Answer<T>) {
    if let Some(lagging) = answer.lagging {
        write_json(object.field("laggingSeconds"), &lagging.as_secs_f64());
    }
    if let Some(missing) = answer.partial {
        write_json(object.field("partial"), &true);
        write_json(object.field("partialReason"), &missing.reason());
    }
}

fn response(json: impl IntoIterator<Item = Bytes>) -> Response {
    ([(CONTENT_TYPE, "application/json")], Body::new(BodyInPieces::new(json))).into_response()
}

fn write_metrics(json: &mut Vec<u8>, form: &Form, rollups: &Compared, local: &LocalTime) {
    let local = form.is_local.then_some(local);
    let columns: Vec<Column> = form.columns.iter().collect();
    braces(json, |object| {
        for (metric, series, earlier) in rollups.series() {
            write_points(object.field(metric), &columns, series, earlier, local);
        }
    });
}

fn write_points(
    json: &mut Vec<u8>,
    columns: &[Column],
    series: &Series,
    earlier: Option<&Series>,
    local: Option<&LocalTime>,
) {
    let mut hours = HourTexts::default();
    let mut earlier = earlier.into_iter().flatten();
    array(json, series, |json, point| {
        json.extend_from_slice(br#"{"ts":""#);
        json.extend_from_slice(hours.text_of(point.start_ms));
        json.push(b'"');
        if let Some(local) = local {
            json.extend_from_slice(br#","local":""#);
            write_local_rfc3339(json, point.start_ms, local.offset_ms_at(point.start_ms));
            json.push(b'"');
        }
        for column in columns {
            write_column(json, *column, point);
        }
        if let Some(point) = earlier.next() {
            json.extend_from_slice(br#","compared":{"ts":""#);
            write_rfc3339(json, point.start_ms);
            json.push(b'"');
            for column in columns {
                write_column(json, *column, point);
            }
            json.push(b'}');
        }
        json.push(b'}');
    });
}

/// Writes a comma and the field of a column: `,"min":20.5`.
fn write_column(json: &mut Vec<u8>, column: Column, point: &Point) {
    let (name, stats): (&str, _) = (column.into(), &point.stats);
    for part in [",\"", name, "\":"] {
        json.extend_from_slice(part.as_bytes());
    }
    match column {
        Column::Count => write_json(json, &point.count()),
        Column::Min => write_number(json, stats.min),
        Column::Max => write_number(json, stats.max),
        Column::Avg => write_json(json, &stats.avg()), // seldom a short decimal; null if it is infinite
        Column::Sum => write_number(json, point.sum()),
        Column::First => write_value_at(json, stats.first),
        Column::Last => write_value_at(json, stats.last),
        Column::Increase => write_number(json, point.increase),
    }
}

/// Writes a value with its instant, or null for a point without values.
fn write_value_at(json: &mut Vec<u8>, ValueAt { ts_ms, value }: ValueAt) {
    if value.is_nan() {
        return json.extend_from_slice(b"null");
    }
    json.extend_from_slice(br#"{"ts":""#);
    write_rfc3339(json, ts_ms);
    json.extend_from_slice(br#"","value":"#);
    write_number(json, value);
    json.push(b'}');
}

/// A JSON object that is being written.
struct Object<'a> {
    json: &'a mut Vec<u8>,
    is_empty: bool,
}

impl Object<'_> {
    /// Writes a key. The caller must write its value into the returned buffer.
    fn field(&mut self, key: &str) -> &mut Vec<u8> {
        if !std::mem::take(&mut self.is_empty) {
            self.json.push(b',');
        }
        write_json(self.json, key);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::model::Stats;
    use crate::query::{Missing, Rollups, Zone};

    async fn text(response: Response) -> String {
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    fn form(step: &str) -> Form {
        Form {
            step: step.to_owned(),
            columns: Columns::default(),
            is_local: false,
            is_compared: false,
            format: Format::Json,
            cells: Cells::default(),
        }
    }

    fn berlin() -> LocalTime {
        Zone::named("Europe/Berlin").unwrap().local_time(0..2_000_000_000_000)
    }

    fn rollups() -> Compared {
        let unknown = ValueAt::unknown(0);
        let two = Stats { count: 2, min: -0.5, max: 1e300, sum: f64::INFINITY, first: unknown, last: unknown };
        let point = |start_ms, stats| Point { start_ms, stats, increase: 0.5, is_filled: false };
        let series = vec![point(1_776_693_600_000, Stats::of(0, 20.0)), point(1_776_697_200_000, two)];
        let rollups: Rollups = [(r#"a "b" \é"#.into(), series), ("c".into(), Vec::new())].into_iter().collect();
        rollups.into()
    }

    fn points() -> Value {
        json!({ r#"a "b" \é"#: [
            { "ts": "2026-04-20T14:00:00.000Z", "count": 1, "min": 20.0, "max": 20.0, "avg": 20.0, "sum": 20.0 },
            { "ts": "2026-04-20T15:00:00.000Z", "count": 2, "min": -0.5, "max": 1e300, "avg": null, "sum": null },
        ], "c": [] })
    }

    fn answer<T>(body: T) -> Answer<T> {
        Answer { body, lagging: None, partial: None }
    }

    #[tokio::test]
    async fn the_json_of_a_device_has_its_fields_in_order() {
        let device = || OfDevice::new("d\n1", &form("1h"), &rollups(), &berlin());
        let json = text(of_device(answer(device()))).await;
        let start = r#"{"deviceId":"d\n1","step":"1h","metrics":{"a \"b\" \\é":[{"ts":"2026-"#;
        assert!(json.starts_with(start), "{json}");
        assert_eq!(
            serde_json::from_str::<Value>(&json).unwrap(),
            json!({ "deviceId": "d\n1", "step": "1h", "metrics": points() })
        );
        let incomplete =
            Answer { body: device(), lagging: Some(Duration::from_millis(1500)), partial: Some(Missing::Stored) };
        assert!(
            text(of_device(incomplete))
                .await
                .ends_with(r#"},"laggingSeconds":1.5,"partial":true,"partialReason":"the store does not answer"}"#)
        );
    }

    #[tokio::test]
    async fn several_devices_are_apart_or_combined() {
        let device = |device_id| OfDevice::new(device_id, &form("1d"), &rollups(), &berlin());
        let of = |id: &str| json!({ "deviceId": id, "step": "1d", "metrics": points() });
        let parsed = async |response| serde_json::from_str::<Value>(&text(response).await).unwrap();
        let apart =
            parsed(of_devices(answer(Listed { devices: vec![device("a"), device("b")], next: Some("b".into()) })))
                .await;
        assert_eq!(apart, json!({ "devices": [of("a"), of("b")], "next": "b" }));
        let none = text(of_devices(Answer {
            partial: Some(Missing::Devices),
            ..answer(Listed { devices: Vec::new(), next: None })
        }))
        .await;
        let reason = Missing::Devices.reason();
        assert_eq!(none, format!(r#"{{"devices":[],"next":null,"partial":true,"partialReason":"{reason}"}}"#));
        let together = parsed(combined(&answer((vec![rollups()], berlin())), 7, &form("1h"))).await;
        assert_eq!(together, json!({ "devices": 7, "step": "1h", "metrics": points() }));
    }

    #[tokio::test]
    async fn a_point_has_the_columns_of_the_request() {
        let columns = Columns::NONE.with(Column::Increase).with(Column::Last).with(Column::Max).with(Column::First);
        let form = Form { columns, is_local: true, ..form("1h") };
        let device = text(of_device(answer(OfDevice::new("d", &form, &rollups(), &berlin())))).await;
        let points = &serde_json::from_str::<Value>(&device).unwrap()["metrics"][r#"a "b" \é"#];
        let only = json!({ "ts": "1970-01-01T00:00:00.000Z", "value": 20.0 });
        let expected = json!([
            { "ts": "2026-04-20T14:00:00.000Z", "local": "2026-04-20T16:00:00.000+02:00", "max": 20.0,
              "first": only, "last": only, "increase": 0.5 },
            { "ts": "2026-04-20T15:00:00.000Z", "local": "2026-04-20T17:00:00.000+02:00", "max": 1e300,
              "first": null, "last": null, "increase": 0.5 },
        ]);
        assert_eq!(*points, expected);
        assert!(device.contains(r#""max":20.0,"first":{"ts""#), "in the order of an answer: {device}");
    }

    #[tokio::test]
    async fn a_point_has_the_one_that_it_is_compared_with() {
        let mut compared = rollups();
        let mut earlier = compared.now.clone();
        earlier.values_mut().flatten().for_each(|point| point.start_ms -= 604_800_000);
        compared.earlier = Some(earlier);
        let form = Form { columns: Columns::NONE.with(Column::Max), is_compared: true, ..form("1h") };
        let device = text(of_device(answer(OfDevice::new("d", &form, &compared, &berlin())))).await;
        assert_eq!(
            serde_json::from_str::<Value>(&device).unwrap()["metrics"][r#"a "b" \é"#],
            json!([
                { "ts": "2026-04-20T14:00:00.000Z", "max": 20.0,
                  "compared": { "ts": "2026-04-13T14:00:00.000Z", "max": 20.0 } },
                { "ts": "2026-04-20T15:00:00.000Z", "max": 1e300,
                  "compared": { "ts": "2026-04-13T15:00:00.000Z", "max": 1e300 } },
            ])
        );
    }
}
