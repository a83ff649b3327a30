//! Rollups as rows: CSV and NDJSON.

use std::time::Duration;

use axum::response::Response;

use super::rollups_json::Form;
use super::table::Table;
use crate::common::clock::write_local_rfc3339;
use crate::model::ValueAt;
use crate::query::{Column, LocalTime, Point, Rollups};

/// The rows of one device, or of several devices together, which have no ID: a row per point.
pub(super) fn rows(device_id: Option<&str>, form: &Form, rollups: &Rollups, local: &LocalTime) -> Vec<u8> {
    let mut table = table(device_id.is_some(), form);
    let columns: Vec<Column> = form.columns.iter().collect();
    for (metric, series) in rollups {
        for point in series {
            if let Some(device_id) = device_id {
                table.text(device_id);
            }
            table.instant(point.start_ms);
            if form.is_local {
                let mut text = Vec::with_capacity(29);
                write_local_rfc3339(&mut text, point.start_ms, local.offset_ms_at(point.start_ms));
                table.text(std::str::from_utf8(&text).expect("ASCII"));
            }
            table.text(metric);
            for column in &columns {
                write_column(&mut table, *column, point);
            }
        }
    }
    table.into_rows()
}

/// The response with the rows of devices.
pub(super) fn respond(
    is_of_devices: bool,
    form: &Form,
    rows: impl IntoIterator<Item = Vec<u8>>,
    name: &str,
    (next, lagging): (Option<String>, Option<Duration>),
) -> Response {
    table(is_of_devices, form).into_response(rows, name, next, lagging)
}

/// The table without rows.
pub(super) fn table(is_of_devices: bool, form: &Form) -> Table {
    let mut columns = Vec::new();
    columns.extend(is_of_devices.then_some("deviceId"));
    columns.push("ts");
    columns.extend(form.is_local.then_some("local"));
    columns.push("series");
    for column in form.columns.iter() {
        columns.push(column.into());
        match column {
            Column::First => columns.push("firstTs"),
            Column::Last => columns.push("lastTs"),
            _ => {}
        }
    }
    Table::new(form.format, columns)
}

fn write_column(table: &mut Table, column: Column, point: &Point) {
    let stats = &point.stats;
    match column {
        Column::Count => table.json(&serde_json::to_string(&point.count()).expect("a number is JSON")),
        Column::Min => table.number(stats.min),
        Column::Max => table.number(stats.max),
        Column::Avg => table.number(stats.avg()),
        Column::Sum => table.number(stats.sum),
        Column::First => write_value_at(table, stats.first),
        Column::Last => write_value_at(table, stats.last),
        Column::Increase => table.number(point.increase),
    }
}

/// Writes a value and its instant, or null twice.
fn write_value_at(table: &mut Table, value_at: Option<ValueAt>) {
    let Some(ValueAt { ts_ms, value }) = value_at else {
        table.json("null");
        return table.json("null");
    };
    table.number(value);
    table.instant(ts_ms);
}
