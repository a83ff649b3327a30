//! The parameters of query strings, for handlers and for the document.

use serde_json::{Value, json};
use strum::{IntoEnumIterator, VariantNames};

use super::schemas;
use crate::http::Limits;
use crate::query::{Column, Fill, Step};

/// A parameter of a query string.
///
/// A handler names the parameters that it reads, and its description lists the same ones.
#[derive(Debug)]
pub(in crate::http) struct Parameter {
    /// The name; `label.KEY` stands for all names that start with `label.`.
    name: &'static str,
    description: &'static str,
    schema: fn(&Limits) -> Value,
    /// The example value, as JSON. A test sends it.
    example: &'static str,
}

/// The parameters that a route may have, in groups that routes may share.
pub(in crate::http) type Parameters = &'static [&'static [&'static Parameter]];

/// Parameters of answers that may be tables: the format, the form of the cells.
pub(in crate::http) const TABLE: &[&Parameter] = &[&FORMAT, &DELIMITER, &DECIMAL, &BOM, &TIMES];

/// Parameters of answers that are files: the format, the form of the cells.
pub(in crate::http) const FILE: &[&Parameter] = &[&FORMAT_OF_FILE, &DELIMITER, &DECIMAL, &BOM, &TIMES];

/// Parameters of lists of devices: the page, and the selection of the devices.
pub(in crate::http) const LIST_OF_DEVICES: &[&Parameter] =
    &[&LIMIT_OF_DEVICES, &CURSOR_OF_DEVICES, &DEVICE, &PREFIX, &METADATA];

/// The end of a name that stands for many names.
const KEY: &str = "KEY";

impl Parameter {
    /// The name; `label.KEY` stands for all names that start with `label.`.
    pub(in crate::http) const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether this is the parameter `name`.
    ///
    /// The parameter `label.KEY` stands for many names. For it, `name` is their start, `label.`.
    pub(in crate::http) fn describes(&self, name: &str) -> bool {
        self.name.strip_suffix(KEY).unwrap_or(self.name) == name
    }

    /// Returns the parameter object.
    pub(super) fn to_json(&self, limits: &Limits) -> Value {
        let schema = (self.schema)(limits);
        let example: Value = serde_json::from_str(self.example).expect("the example is JSON");
        let is_list = schema["type"] == "array";
        let mut object = json!({
            "name": self.name, "in": "query", "description": self.description, "schema": schema, "example": example,
        });
        if is_list || self.name.ends_with(KEY) {
            object["style"] = json!("form");
            object["explode"] = json!(self.name != FN.name); // fn=min,max, but metric=a&metric=b
        }
        object
    }
}

const FORMAT: Parameter = Parameter {
    name: "format",
    description: "The format of the answer. Without it, the header `Accept` chooses.",
    schema: |_| json!({ "type": "string", "enum": ["json", "csv", "ndjson", "xlsx"], "default": "json" }),
    example: r#""json""#,
};

const FORMAT_OF_FILE: Parameter = Parameter {
    name: "format",
    description: "The format of the file. Without it, the header `Accept` chooses.",
    schema: |_| json!({ "type": "string", "enum": ["ndjson", "csv", "xlsx"], "default": "ndjson" }),
    example: r#""csv""#,
};

const DELIMITER: Parameter = Parameter {
    name: "delimiter",
    description: "What is between the cells of CSV: `,`, `;` or `tab`.",
    schema: |_| json!({ "type": "string", "enum": [",", ";", "tab"], "default": "," }),
    example: r#"",""#,
};

const DECIMAL: Parameter = Parameter {
    name: "decimal",
    description: "The decimal mark of numbers in CSV. The comma needs another `delimiter`.",
    schema: |_| json!({ "type": "string", "enum": [".", ","], "default": "." }),
    example: r#"".""#,
};

const BOM: Parameter = Parameter {
    name: "bom",
    description: "Whether CSV begins with the byte order mark by which some spreadsheets recognise UTF-8.",
    schema: |_| json!({ "type": "string", "enum": ["0", "1", "false", "true"], "default": "0" }),
    example: r#""0""#,
};

const TIMES: Parameter = Parameter {
    name: "times",
    description: "The times of CSV: `utc`, or `local` in the zone `tz`, without an offset. A workbook has local times \
                  if there is `tz`.",
    schema: |_| json!({ "type": "string", "enum": ["utc", "local"], "default": "utc" }),
    example: r#""utc""#,
};

pub(in crate::http) const FROM: Parameter = Parameter {
    name: "from",
    description: "The start of the range, inclusive: RFC 3339, Unix milliseconds, `now`, or a time before now such as \
                  `-24h` (`s`, `m`, `h`, `d`, `w`). By default a day before `to`, for rollups by the step.",
    schema: |_| schemas::instant_of_query(),
    example: r#""2026-04-20T14:00:00Z""#,
};

pub(in crate::http) const TO: Parameter = Parameter {
    name: "to",
    description: "The end of the range, exclusive, in the forms of `from`. By default now.",
    schema: |_| schemas::instant_of_query(),
    example: r#""2026-04-20T15:00:00Z""#,
};

pub(in crate::http) const METRIC: Parameter = Parameter {
    name: "metric",
    description: "A metric with all its label sets (`cpu_idle`), or one series (`cpu_idle{cpu=cpu0}`). May repeat. By \
                  default all series.",
    schema: |_| json!({ "type": "array", "items": schemas::series(), "maxItems": 256 }),
    example: r#"["temp"]"#,
};

pub(in crate::http) const LABELS: Parameter = Parameter {
    name: "label.KEY",
    description: "A label that series must have, as in `label.cpu=cpu0`. Several values of one key are alternatives.",
    schema: |_| schemas::labels_of_query(),
    example: r#"{"label.cpu":"cpu0"}"#,
};

pub(in crate::http) const METADATA: Parameter = Parameter {
    name: "meta.KEY",
    description: "The metadata of the devices, as in `meta.floor=2`, or `meta.floor!=2` for all others. Several values \
                  of one key are alternatives, several keys must all hold. `*` at the end matches any end; dots in \
                  the key name members of objects.",
    schema: |_| schemas::metadata_of_query(),
    example: r#"{"meta.floor":"2"}"#,
};

pub(in crate::http) const METADATA_LABEL: Parameter = Parameter {
    name: "label",
    description: "A key of the metadata that each metric has as a label. May repeat, up to eight times. Dots in the \
                  key name members of objects. Characters that Prometheus does not allow become `_`.",
    schema: |_| json!({ "type": "array", "items": { "type": "string", "maxLength": 256 }, "maxItems": 8 }),
    example: r#"["floor"]"#,
};

pub(in crate::http) const DEVICE: Parameter = Parameter {
    name: "device",
    description: "The ID of a device. May repeat. Cannot be combined with `prefix`.",
    schema: |limits| json!({ "type": "array", "items": schemas::device_id(), "maxItems": limits.max_devices }),
    example: r#"["S1"]"#,
};

pub(in crate::http) const PREFIX: Parameter = Parameter {
    name: "prefix",
    description: "The start of the IDs of the devices.",
    schema: |_| schemas::device_prefix(),
    example: r#""S""#,
};

pub(in crate::http) const SILENT_FOR: Parameter = Parameter {
    name: "silent_for",
    description: "Only devices whose last reading is longer ago than this: `500ms`, `90s`, `15m`, `24h`, `7d`, \
                  `1h30m`.",
    schema: |_| {
        let pattern = "^(?=.)([0-9]{1,3}w)?([0-9]{1,4}d)?([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?([0-9]{1,4}ms)?$";
        json!({ "type": "string", "pattern": pattern })
    },
    example: r#""15m""#,
};

pub(in crate::http) const BEYOND: Parameter = Parameter {
    name: "beyond",
    description: "`limits`: only devices with a latest value beyond the limits in their metadata.",
    schema: |_| json!({ "type": "string", "enum": ["limits"] }),
    example: r#""limits""#,
};

pub(in crate::http) const LIMIT_OF_DEVICES: Parameter = Parameter {
    name: "limit",
    description: "The most devices of a page. Without it, tables have all devices.",
    schema: |limits| {
        let default = limits.max_devices.min(100);
        json!({ "type": "integer", "minimum": 1, "maximum": limits.max_devices, "default": default })
    },
    example: "100",
};

pub(in crate::http) const LIMIT_OF_READINGS: Parameter = Parameter {
    name: "limit",
    description: "The most readings of a page. In a file, which has no pages, the most readings of all: any number, by \
                  default no limit.",
    schema: |limits| {
        let default = limits.default_readings.min(limits.max_readings);
        let up_to =
            |max: usize, what: &str| json!({ "type": "integer", "minimum": 1, "maximum": max, "description": what });
        let of = [up_to(limits.max_readings, "Of a page."), up_to(usize::MAX, "Of a file.")];
        json!({ "anyOf": of, "default": default })
    },
    example: "100",
};

pub(in crate::http) const LIMIT_OF_FILE: Parameter = Parameter {
    name: "limit",
    description: "The most readings of the file. By default no limit.",
    schema: |_| json!({ "type": "integer", "minimum": 1, "maximum": u64::MAX }),
    example: "100",
};

pub(in crate::http) const CURSOR_OF_DEVICES: Parameter = Parameter {
    name: "cursor",
    description: "The `next` of the page before, with the same other parameters.",
    schema: |_| schemas::device_id(),
    example: r#""S0""#,
};

pub(in crate::http) const CURSOR_OF_READINGS: Parameter = Parameter {
    name: "cursor",
    description: "The `next` of the page before, with the same other parameters. A file has no pages and no cursor.",
    schema: |_| json!({ "type": "string", "pattern": "^-?[0-9]{1,15}$" }),
    example: r#""1776693610000""#,
};

pub(in crate::http) const STEP: Parameter = Parameter {
    name: "step",
    description: "The length of a step: minutes that divide an hour, hours that divide a day, a day, a week from \
                  Monday on, or months.",
    schema: |_| {
        let steps: Vec<&str> = Step::names().collect();
        json!({ "type": "string", "enum": steps, "default": "1h" })
    },
    example: r#""1h""#,
};

pub(in crate::http) const OFFSET: Parameter = Parameter {
    name: "offset",
    description: "How much later each step begins by the local clock: `step=8h&offset=6h` are shifts from 6, 14 and 22 \
                  o'clock. Whole minutes, less than the step, and less than 28 days.",
    schema: |_| {
        let pattern = "^(?=.)([0-9]{1,2}w)?([0-9]{1,2}d)?([0-9]{1,3}h)?([0-9]{1,4}m)?$";
        json!({ "type": "string", "pattern": pattern })
    },
    example: r#""30m""#,
};

pub(in crate::http) const TZ: Parameter = Parameter {
    name: "tz",
    description: "The IANA name of a time zone whose clock the steps follow, and `from` and `to` without an offset. \
                  Its rules are those of this release, and not those of the system. By default the steps follow UTC.",
    schema: |_| json!({ "type": "string" }),
    example: r#""Europe/Berlin""#,
};

pub(in crate::http) const TZ_OF_RANGE: Parameter = Parameter {
    description: "The IANA name of the time zone of `from` and `to` without an offset, and of the times of a workbook.",
    ..TZ
};

pub(in crate::http) const TZ_OF_TIMES: Parameter =
    Parameter { description: "The IANA name of the time zone of `times=local`, and of the times of a workbook.", ..TZ };

pub(in crate::http) const FN: Parameter = Parameter {
    name: "fn",
    description: "The columns of a point, separated by commas.",
    schema: |_| {
        let columns: Vec<&str> = Column::iter().map(Into::into).collect();
        let default: Vec<&str> = crate::query::Columns::default().iter().map(Into::into).collect();
        json!({ "type": "array", "items": { "type": "string", "enum": columns }, "minItems": 1, "default": default })
    },
    example: r#"["count","min","max","avg","sum","first","last","increase"]"#,
};

pub(in crate::http) const FILL: Parameter = Parameter {
    name: "fill",
    description: "What an answer has for a step without readings: nothing, a point of nulls, or the point before it \
                  with `count`, `sum` and `increase` 0.",
    schema: |_| json!({ "type": "string", "enum": Fill::VARIANTS, "default": "none" }),
    example: r#""null""#,
};

pub(in crate::http) const COMPARE: Parameter = Parameter {
    name: "compare",
    description: "How much earlier the steps begin with which those of the answer are compared, by the local calendar: \
                  `-1d`, `-4w`; with steps of months `-1mo`, `-1y`.",
    schema: |_| json!({ "type": "string", "pattern": "^-[0-9]{1,5}(d|w|mo|y)$" }),
    example: r#""-7d""#,
};

pub(in crate::http) const COMBINE: Parameter = Parameter {
    name: "combine",
    description: "`true` folds the series of all devices. `by:floor` folds those of the devices with the same \
                  metadata, by up to eight keys with commas between.",
    schema: |_| {
        let pattern = "^(true|false|1|0|by:[^,]{1,256}(,[^,]{1,256}){0,7})$";
        json!({ "type": "string", "pattern": pattern, "default": "false" })
    },
    example: r#""by:floor""#,
};

pub(in crate::http) const PARTIAL: Parameter = Parameter {
    name: "partial",
    description: "Whether valid readings are accepted beside rejected ones. `false`: all or nothing.",
    schema: |_| schemas::boolean(true),
    example: "true",
};

pub(in crate::http) const PRECISION_1: Parameter = Parameter {
    name: "precision",
    description: "The unit of the times; an empty one is the default. Parameters with other names are ignored.",
    schema: |_| json!({ "type": "string", "enum": ["", "n", "ns", "u", "us", "ms", "s", "m", "h"], "default": "n" }),
    example: r#""ns""#,
};

pub(in crate::http) const PRECISION_2: Parameter = Parameter {
    name: "precision",
    description: "The unit of the times; an empty one is the default. Parameters with other names are ignored.",
    schema: |_| json!({ "type": "string", "enum": ["", "ns", "us", "ms", "s"], "default": "ns" }),
    example: r#""ns""#,
};

pub(in crate::http) const PRECISION_3: Parameter = Parameter {
    name: "precision",
    description: "The unit of the times; `auto`, or an empty one, tells it by their size. Parameters with other names \
                  are ignored.",
    schema: |_| {
        let units = ["", "auto", "second", "millisecond", "microsecond", "nanosecond"];
        json!({ "type": "string", "enum": units, "default": "auto" })
    },
    example: r#""nanosecond""#,
};

pub(in crate::http) const ACCEPT_PARTIAL: Parameter = Parameter {
    name: "accept_partial",
    description: "Whether valid lines are accepted beside rejected ones.",
    schema: |_| schemas::boolean(true),
    example: "true",
};

pub(in crate::http) const VERBOSE: Parameter = Parameter {
    name: "verbose",
    description: "Any value but an empty one, `0` and `false`: the answer is `200`, with the version in a body.",
    schema: |_| json!({ "type": "string", "default": "false" }),
    example: r#""true""#,
};

pub(in crate::http) const Q: Parameter = Parameter {
    name: "q",
    description: "Statements of InfluxQL. A form in the body may have this parameter, and the others, instead.",
    schema: |_| json!({ "type": "string" }),
    example: r#""SHOW DATABASES""#,
};

pub(in crate::http) const DB: Parameter = Parameter {
    name: "db",
    description: "The name of the database. All data is in one, whatever its name.",
    schema: |_| json!({ "type": "string" }),
    example: r#""telegraf""#,
};

pub(in crate::http) const EPOCH: Parameter = Parameter {
    name: "epoch",
    description: "The unit of times in the answer: `ns`, `u`, `ms`, `s`, `m` or `h`. By default they are RFC 3339.",
    schema: |_| json!({ "type": "string" }),
    example: r#""ms""#,
};

pub(in crate::http) const PARAMS: Parameter = Parameter {
    name: "params",
    description: "A JSON object with the values of `$name` in the statements.",
    schema: |_| json!({ "type": "string" }),
    example: r#""{\"floor\":2}""#,
};

pub(in crate::http) const PRETTY: Parameter = Parameter {
    name: "pretty",
    description: "`true`: with line breaks and indentation.",
    schema: |_| json!({ "type": "string", "default": "false" }),
    example: r#""true""#,
};

pub(in crate::http) const CHUNKED: Parameter = Parameter {
    name: "chunked",
    description: "`true`: as many documents, one after the other, each with some rows.",
    schema: |_| json!({ "type": "string", "default": "false" }),
    example: r#""true""#,
};

pub(in crate::http) const CHUNK_SIZE: Parameter = Parameter {
    name: "chunk_size",
    description: "The most rows of a chunk.",
    schema: |_| json!({ "type": "string", "default": "10000" }),
    example: r#""100""#,
};

pub(in crate::http) const DRY_RUN: Parameter = Parameter {
    name: "dry_run",
    description: "Only count. Of other instances, only what is stored counts.",
    schema: |_| schemas::boolean(false),
    example: "true",
};

pub(in crate::http) const ALL: Parameter = Parameter {
    name: "all",
    description: "Of all times. Without it, `from` and `to` are required.",
    schema: |_| schemas::boolean(false),
    example: "true",
};
