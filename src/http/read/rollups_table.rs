//! Rollups as rows of CSV, NDJSON or a workbook.

use std::borrow::Cow;

use serde_json::Value;

use super::rollups_json::Form;
use super::table::Table;
use crate::common::clock::write_local_rfc3339;
use crate::model::ValueAt;
use crate::query::{Column, Compared, LocalTime, Point};

/// The device or the devices of a row, which its first columns name.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject<'a> {
    /// All devices of the query together. No column names them.
    All,
    /// The device with this ID, in the column `deviceId`.
    Device(&'a str),
    /// The group of devices with these keys and values in their metadata.
    Group(&'a [String], &'a [Value]),
}

impl<'a> Subject<'a> {
    fn columns(self) -> Vec<Cow<'a, str>> {
        match self {
            Self::All => Vec::new(),
            Self::Device(_) => vec!["deviceId".into()],
            // `meta.floor` is also the parameter that selects these devices. No other column has a dot.
            Self::Group(keys, _) => keys.iter().map(|key| format!("meta.{key}").into()).collect(),
        }
    }

    fn write(self, table: &mut Table) {
        match self {
            Self::All => {}
            Self::Device(id) => table.text(id),
            Self::Group(_, values) => {
                for value in values {
                    match value {
                        Value::String(text) => table.text(text),
                        // A float has the decimal mark of the table.
                        Value::Number(number) if number.is_f64() => table.number(number.as_f64().expect("a float")),
                        value => table.json(&value.to_string()),
                    }
                }
            }
        }
    }
}

/// Writes the rows of a subject, one for each point.
pub(super) fn rows(subject: Subject<'_>, form: &Form, rollups: &Compared, local: &LocalTime) -> Vec<u8> {
    let mut table = table(subject, form);
    let columns: Vec<Column> = form.columns.iter().collect();
    for (metric, series, earlier) in rollups.series() {
        let mut earlier = earlier.into_iter().flatten();
        for point in series {
            subject.write(&mut table);
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
            if let Some(point) = earlier.next() {
                table.instant(point.start_ms);
                for column in &columns {
                    write_column(&mut table, *column, point);
                }
            }
        }
    }
    table.into_rows()
}

/// Makes a table without rows, for subjects of the same kind.
pub(super) fn table(subject: Subject<'_>, form: &Form) -> Table {
    let mut columns = subject.columns();
    columns.push("ts".into());
    columns.extend(form.is_local.then_some("local".into()));
    columns.push("series".into());
    let mut of_point: Vec<&str> = Vec::new();
    for column in form.columns.iter() {
        of_point.push(column.into());
        match column {
            Column::First => of_point.push("firstTs"),
            Column::Last => of_point.push("lastTs"),
            _ => {}
        }
    }
    columns.extend(of_point.iter().map(|name| (*name).into()));
    if form.is_compared {
        let compared = |name: &str| format!("compared{}{}", name[..1].to_uppercase(), &name[1..]).into();
        columns.extend(["ts"].iter().chain(&of_point).map(|name| compared(name)));
    }
    Table::new(form.format, &form.cells, columns)
}

fn write_column(table: &mut Table, column: Column, point: &Point) {
    let stats = &point.stats;
    match column {
        Column::Count => table.json(&point.count().to_string()),
        Column::Min => table.number(stats.min),
        Column::Max => table.number(stats.max),
        Column::Avg => table.number(stats.avg()),
        Column::Sum => table.number(point.sum()),
        Column::First => write_value_at(table, stats.first),
        Column::Last => write_value_at(table, stats.last),
        Column::Increase => table.number(point.increase),
    }
}

/// Writes a value and its instant: two nulls for a point without values.
fn write_value_at(table: &mut Table, ValueAt { ts_ms, value }: ValueAt) {
    table.number(value);
    if value.is_nan() { table.json("null") } else { table.instant(ts_ms) }
}
