//! Answers as MessagePack. Without an epoch, times are extensions of type 5: seconds as `i64` and nanoseconds
//! as `u32`.

use super::super::eval::OutSeries;
use super::super::value::Value;
use super::{Epoch, Result};

/// The type of the extension for times. `TIME_BYTES` is its size.
const TIME: u8 = 5;
const TIME_BYTES: u8 = 12;

pub(super) fn open(results: usize, out: &mut Vec<u8>) {
    map(1, out);
    string("results", out);
    array(results, out);
}

pub(super) fn error(message: &str, out: &mut Vec<u8>) {
    map(1, out);
    string("error", out);
    string(message, out);
}

pub(super) fn result(
    id: usize,
    result: Result<'_>,
    messages: &[String],
    is_partial: bool,
    epoch: Option<Epoch>,
    out: &mut Vec<u8>,
) {
    let series = match result {
        Ok(series) => series,
        Err(message) => return error(&message.to_string(), out),
    };
    map(2 + usize::from(!messages.is_empty()) + usize::from(is_partial), out);
    string("statement_id", out);
    integer(id as i64, out);
    string("series", out);
    array(series.len(), out);
    for one in series {
        write_series(one, epoch, out);
    }
    if !messages.is_empty() {
        string("messages", out);
        array(messages.len(), out);
        for message in messages {
            map(2, out);
            string("level", out);
            string("warning", out);
            string("text", out);
            string(message, out);
        }
    }
    if is_partial {
        string("partial", out);
        out.push(0xc3);
    }
}

fn write_series(series: &OutSeries, epoch: Option<Epoch>, out: &mut Vec<u8>) {
    let optional = [!series.name.is_empty(), !series.tags.is_empty(), !series.rows.is_empty(), series.is_partial];
    map(1 + optional.iter().filter(|has| **has).count(), out);
    if !series.name.is_empty() {
        string("name", out);
        string(&series.name, out);
    }
    if !series.tags.is_empty() {
        string("tags", out);
        map(series.tags.len(), out);
        for (key, value) in &series.tags {
            string(key, out);
            string(value, out);
        }
    }
    string("columns", out);
    array(series.columns.len(), out);
    series.columns.iter().for_each(|column| string(column, out));
    if !series.rows.is_empty() {
        string("values", out);
        array(series.rows.len(), out);
        for (ns, values) in &series.rows {
            array(values.len() + usize::from(series.has_time), out);
            if series.has_time {
                write_time(*ns, epoch, out);
            }
            values.iter().for_each(|value| write_value(value, out));
        }
    }
    if series.is_partial {
        string("partial", out);
        out.push(0xc3);
    }
}

fn write_time(ns: i64, epoch: Option<Epoch>, out: &mut Vec<u8>) {
    if let Some(epoch) = epoch {
        return integer(epoch.of(ns), out);
    }
    out.extend_from_slice(&[0xc7, TIME_BYTES, TIME]);
    out.extend_from_slice(&ns.div_euclid(1_000_000_000).to_be_bytes());
    out.extend_from_slice(&(ns.rem_euclid(1_000_000_000) as u32).to_be_bytes());
}

fn write_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Float(value) if value.is_finite() => {
            out.push(0xcb);
            out.extend_from_slice(&value.to_be_bytes());
        }
        Value::Null | Value::Float(_) => out.push(0xc0),
        Value::Integer(value) => integer(*value, out),
        Value::Text(text) => string(text, out),
        Value::Boolean(value) => out.push(if *value { 0xc3 } else { 0xc2 }),
    }
}

/// Writes an integer: as one byte, or as a marker and its last 1, 2, 4 or 8 bytes.
fn integer(value: i64, out: &mut Vec<u8>) {
    if (-32..128).contains(&value) {
        return out.push(value as u8);
    }
    let (marker, width): (u8, usize) = if i8::try_from(value).is_ok() {
        (0xd0, 1)
    } else if i16::try_from(value).is_ok() {
        (0xd1, 2)
    } else if i32::try_from(value).is_ok() {
        (0xd2, 4)
    } else {
        (0xd3, 8)
    };
    out.push(marker);
    out.extend_from_slice(&value.to_be_bytes()[8 - width..]);
}

fn string(text: &str, out: &mut Vec<u8>) {
    let length = text.len();
    match length {
        0..32 => out.push(0xa0 | length as u8),
        32..256 => out.extend_from_slice(&[0xd9, length as u8]),
        _ => long(length, 0xda, out),
    }
    out.extend_from_slice(text.as_bytes());
}

fn array(length: usize, out: &mut Vec<u8>) {
    header(length, 0x90, 0xdc, out);
}

fn map(length: usize, out: &mut Vec<u8>) {
    header(length, 0x80, 0xde, out);
}

/// Writes the length of an array or a map.
///
/// The low bits of `short` hold a length up to 15.
fn header(length: usize, short: u8, marker: u8, out: &mut Vec<u8>) {
    if length < 16 {
        out.push(short | length as u8);
    } else {
        long(length, marker, out);
    }
}

/// Writes `marker` and a length of 16 bits, or `marker + 1` and one of 32 bits.
fn long(length: usize, marker: u8, out: &mut Vec<u8>) {
    if let Ok(length) = u16::try_from(length) {
        out.push(marker);
        out.extend_from_slice(&length.to_be_bytes());
    } else {
        out.push(marker + 1);
        out.extend_from_slice(&(length as u32).to_be_bytes());
    }
}
