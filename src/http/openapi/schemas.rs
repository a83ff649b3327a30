//! JSON Schemas of parameters, bodies and rollups, written by hand.
//!
//! No type of Rust has them: parsers read the fields of bodies, and `read::rollups_json` writes rollups. The
//! schemas of other answers are derived from their types.

use serde_json::{Map, Value, json};
use strum::IntoEnumIterator;

use crate::query::Column;
use crate::wire::json::key_names;

/// The names of this file's schemas in `components`.
const NEW_READING: &str = "NewReading";
const NEW_READINGS: &str = "NewReadingsOfDevice";
const POINT: &str = "Point";
const ROLLUPS: &str = "RollupsOfDevice";
const ROLLUPS_OF_DEVICES: &str = "RollupsOfDevices";
const COMBINED: &str = "CombinedRollups";
const GROUPS: &str = "GroupsOfRollups";

/// Returns a reference to a schema in `components`.
pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The characters that no device ID has, for the brackets of a regular expression.
const NOT_IN_IDS: &str = r"\u0000-\u001F\u007F-\u009F\u2028-\u202E\u2066-\u2069\uFEFF";

/// Returns the schema of a device ID.
pub(super) fn device_id() -> Value {
    let pattern = format!(r"^[^\s{NOT_IN_IDS}]([^{NOT_IN_IDS}]*[^\s{NOT_IN_IDS}])?$");
    json!({ "type": "string", "pattern": pattern, "maxLength": 128, "not": { "enum": [".", ".."] } })
}

/// Returns the schema of the start of a device ID.
pub(super) fn device_prefix() -> Value {
    let pattern = format!(r"^([^\s{NOT_IN_IDS}][^{NOT_IN_IDS}]*)?$");
    json!({ "type": "string", "pattern": pattern, "maxLength": 128, "default": "" })
}

/// Returns the schema of a metric, or of a series as text.
pub(super) fn series() -> Value {
    let name = r"[^\u0000-\u001F\u007F-\u009F{}\uFF0E\uFF04]{1,128}";
    let text = r"([^\u0000-\u001F\u007F-\u009F{}\\,=\uFF0E\uFF04]|\\[\\{},=])+";
    let pattern = format!(r"^{name}(\{{{text}={text}(,{text}={text})*\}})?$");
    let reserved = json!({ "type": "string", "pattern": r"^ts($|\{)" });
    json!({ "type": "string", "pattern": pattern, "maxLength": 512, "not": reserved })
}

/// The key or value of a label, as a regular expression.
const LABEL: &str = r"[^\u0000-\u001F\u007F-\u009F\uFF0E\uFF04]+";

/// Returns the schema of an instant in a query string.
///
/// A local time needs the parameter `tz`.
pub(super) fn instant_of_query() -> Value {
    let local = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?$";
    let without_seconds = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$";
    json!({ "anyOf": [
        { "type": "string", "format": "date-time" },
        { "type": "integer", "minimum": -62_167_219_200_000_i64, "maximum": 1_199_999_999 },
        { "type": "integer", "minimum": 2_500_000_001_i64, "maximum": 253_402_300_800_000_i64 },
        { "type": "string", "pattern": "^(now|-[0-9]+[smhdw])$" },
        { "type": "string", "pattern": local },
        { "type": "string", "pattern": without_seconds },
    ] })
}

/// Returns the schema of a boolean in a query string.
pub(super) fn boolean(default: bool) -> Value {
    json!({ "anyOf": [{ "type": "boolean" }, { "type": "integer", "enum": [0, 1] }], "default": default })
}

/// Returns the schema of the parameters `label.KEY`, as the members of an object.
pub(super) fn labels_of_query() -> Value {
    members(&format!(r"^label\.{LABEL}$"), &json!({ "type": "string", "minLength": 1 }))
}

/// Returns the schema of the parameters `meta.KEY`, as the members of an object.
///
/// The key may be any text, except `!` alone.
pub(super) fn metadata_of_query() -> Value {
    members(r"^meta\.([^!]|[\s\S]{2,})$", &json!({ "type": "string" }))
}

fn members(names: &str, value: &Value) -> Value {
    let values = json!({ "anyOf": [value, { "type": "array", "items": value, "minItems": 1 }] });
    json!({ "type": "object", "propertyNames": { "pattern": names }, "additionalProperties": values })
}

/// Returns the schema of a JSON body of `POST /v1/readings`.
///
/// It is an object, or an array of objects.
pub(in crate::http) fn body_of_readings() -> Value {
    let [one, of_device] = [NEW_READING, NEW_READINGS].map(reference);
    json!({ "anyOf": [one, of_device, { "type": "array", "items": { "anyOf": [one, of_device] } }] })
}

/// Returns the schemas of this file that are in `components`.
pub(super) fn components() -> [(&'static str, Value); 7] {
    [
        (NEW_READING, new_reading()),
        (NEW_READINGS, new_readings_of_device()),
        (POINT, point()),
        (ROLLUPS, rollups(&[("deviceId", json!({ "type": "string", "description": "The ID of the device." }))])),
        (ROLLUPS_OF_DEVICES, rollups_of_devices()),
        (COMBINED, rollups(&[("devices", number_of_devices())])),
        (GROUPS, groups_of_rollups()),
    ]
}

/// Returns the schema of the answer of `GET /v1/devices/{deviceId}/rollups`.
pub(in crate::http) fn answer_of_rollups() -> Value {
    reference(ROLLUPS)
}

/// Returns the schema of the answers of `GET /v1/rollups`.
pub(in crate::http) fn answers_of_rollups_of_devices() -> Value {
    json!({ "anyOf": [reference(ROLLUPS_OF_DEVICES), reference(COMBINED), reference(GROUPS)] })
}

/// Returns the schema of one reading.
fn new_reading() -> Value {
    let mut reading = reading_without(&["readings"]);
    reading["description"] = json!("One reading of a device.");
    reading["required"] = json!(["deviceId"]);
    reading
}

/// Returns the schema of several readings of a device.
fn new_readings_of_device() -> Value {
    let inner = reading_without(&["readings", "seq"]);
    let mut outer = properties(&["readings"]);
    for name in ["ts", "ageMs", "metric", "unit", "measurementBytes"] {
        let about = &outer[name]["description"];
        outer[name] = json!({ "description": about }); // checked for the readings that need it
    }
    outer.insert("readings".to_owned(), json!({ "type": "array", "items": inner, "description": "The readings." }));
    json!({
        "description": "Several readings of a device. What stands beside `readings` is that of each reading that has \
                        none of its own.",
        "type": "object",
        "properties": outer,
        "required": ["deviceId", "readings"],
        "additionalProperties": false,
    })
}

/// Returns the schema of a reading that has none of the keys in `absent`.
///
/// The reading must have a value.
fn reading_without(absent: &[&str]) -> Value {
    let value = json!({ "required": ["value"], "properties": { "value": { "type": ["number", "boolean"] } } });
    let some = json!({ "type": "object", "not": { "additionalProperties": { "type": "null" } } });
    json!({
        "type": "object",
        "properties": properties(absent),
        "additionalProperties": false,
        "anyOf": [value, { "required": ["values"], "properties": { "values": some } }],
    })
}

/// Returns the schemas of the keys of a reading, except those in `absent`.
///
/// The description of a key lists its other names.
fn properties(absent: &[&str]) -> Map<String, Value> {
    let keys = key_names().filter(|names| !absent.contains(&names[0]));
    keys.map(|names| {
        let mut schema = key(names[0]);
        if let Some(about) = schema.get("description").and_then(Value::as_str)
            && names.len() > 1
        {
            schema["description"] = json!(format!("{about} Other names: `{}`.", names[1..].join("`, `")));
        }
        (names[0].to_owned(), schema)
    })
    .collect()
}

/// Returns the schema of a key of a reading. Null is no value.
fn key(name: &str) -> Value {
    let about = |text: &str, mut schema: Value| {
        schema["description"] = json!(text);
        schema
    };
    let value = json!({ "type": ["number", "boolean", "null"], "minimum": f64::MIN, "maximum": f64::MAX });
    let label = format!("^{LABEL}$");
    match name {
        "deviceId" => about("The ID of the device.", device_id()),
        "ts" => {
            let instants = json!([
                { "type": "string", "format": "date-time" },
                { "type": "number", "minimum": -62_167_219_200_000_i64, "exclusiveMaximum": 253_402_300_800_000_i64 },
                { "type": "string", "pattern": r"^-?[0-9]{1,14}(\.[0-9]+)?$" },
                { "type": "null" },
            ]);
            let text = "The time: RFC 3339, or Unix milliseconds. By default the server's time.";
            about(text, json!({ "anyOf": instants }))
        }
        "ageMs" => {
            let age = json!({ "type": ["integer", "null"], "minimum": 0 });
            about("The age of the reading in milliseconds, in place of a time.", age)
        }
        "metric" => {
            let mut metric = series();
            metric["type"] = json!(["string", "null"]);
            about("The metric or series of `value`. By default `value`.", metric)
        }
        "value" => about("The value of one metric. `true` is 1, `false` is 0, null is no value.", value),
        "unit" => {
            let unit = json!({ "type": ["string", "null"], "pattern": format!("^$|{label}"), "maxLength": 512 });
            about("The unit of `value`, which becomes the label `unit`.", unit)
        }
        "values" => about(
            "The values by metric or series, at most `ingest.max_metrics_per_reading`.",
            json!({ "type": ["object", "null"], "propertyNames": series(), "additionalProperties": value }),
        ),
        "labels" => about(
            "The labels of the metrics.",
            json!({
                "type": ["object", "null"], "maxProperties": 32, "propertyNames": { "pattern": label },
                "additionalProperties": { "type": ["string", "null"], "pattern": label },
            }),
        ),
        "measurementBytes" => {
            let bytes = json!({ "type": ["integer", "null"], "minimum": 0, "maximum": 255 });
            let text = "The length in bytes of the measurement of InfluxDB that begins the names of the metrics: 3 in \
                        `cpu_idle`. By default they have none.";
            about(text, bytes)
        }
        "metadata" => about("Metadata of the device.", json!({ "type": ["object", "null"] })),
        "seq" => about("The number of the message. Anything but a whole number is ignored, and reported.", json!({})),
        _ => json!({}),
    }
}

/// Returns the schema of a point, which `read::rollups_json` writes.
fn point() -> Value {
    let mut properties = json!({
        "ts": { "type": "string", "format": "date-time", "description": "The start of the step." },
    });
    for column in Column::iter() {
        let name: &str = column.into();
        properties[name] = match column {
            Column::Count => json!({ "type": "integer", "minimum": 0, "description": "The number of values." }),
            Column::Min => number("The smallest value."),
            Column::Max => number("The largest value."),
            Column::Avg => number("The mean. Null if the sum is beyond the range of a double."),
            Column::Sum => number("The sum. Null if it is beyond the range of a double."),
            Column::First | Column::Last => json!({
                "description": format!("The {name} value and its instant."),
                "type": ["object", "null"],
                "properties": {
                    "ts": { "type": "string", "format": "date-time", "description": "Its instant." },
                    "value": { "type": "number", "description": "The value." },
                },
                "required": ["ts", "value"],
            }),
            Column::Increase => number("The growth of a counter."),
        };
    }
    let of_earlier = properties.clone();
    properties["local"] = json!({
        "type": "string", "format": "date-time", "description": "The start of the step by the clock of `tz`.",
    });
    properties["compared"] = json!({
        "description": "The earlier step that `compare` asks for, with the same columns.",
        "type": "object", "properties": of_earlier, "required": ["ts"],
    });
    json!({
        "description": "The stats of the values in a step: the columns that `fn` chooses.",
        "type": "object", "properties": properties, "required": ["ts"],
    })
}

/// Returns the schema of rollups, with `fields` before `step`.
///
/// `read::rollups_json` writes rollups.
fn rollups(fields: &[(&str, Value)]) -> Value {
    let step = json!({ "type": "string", "description": "The length of a step, as the request names it." });
    let points = json!({ "type": "array", "items": reference(POINT) });
    let about = "The points of each series, in time order.";
    let metrics = json!({ "type": "object", "additionalProperties": points, "description": about });
    let mut properties = json!({ "step": step, "metrics": metrics });
    for (name, schema) in fields {
        properties[name] = schema.clone();
    }
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).chain(["step", "metrics"]).collect();
    json!({ "description": "Rollups.", "type": "object", "properties": properties, "required": required })
}

fn number_of_devices() -> Value {
    json!({ "type": "integer", "minimum": 0, "description": "The number of devices whose rollups are combined." })
}

fn rollups_of_devices() -> Value {
    let devices = json!({ "type": "array", "items": reference(ROLLUPS), "description": "The devices." });
    let about = "The `cursor` of the next page, or null.";
    json!({
        "description": "A page of the rollups of devices.", "type": "object",
        "properties": { "devices": devices, "next": { "type": ["string", "null"], "description": about } },
        "required": ["devices", "next"],
    })
}

fn groups_of_rollups() -> Value {
    let by = json!({ "type": "object", "description": "The value of each key of the metadata, or null." });
    let group = rollups(&[("by", by), ("devices", number_of_devices())]);
    json!({
        "description": "The rollups of groups of devices.", "type": "object",
        "properties": { "groups": { "type": "array", "items": group, "description": "The groups." } },
        "required": ["groups"],
    })
}

fn number(about: &str) -> Value {
    json!({ "type": ["number", "null"], "description": about })
}
