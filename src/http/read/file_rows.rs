//! The rows of files: readings as cells of CSV or of a workbook, or as NDJSON.
//!
//! A file of cells about one device has a row for each instant and a column for each series. A file about
//! several devices has a row for each value. NDJSON has a line for each instant, in the form that `POST
//! /v1/readings` takes, or several lines if a reading cannot have that many values.

use std::collections::HashMap;

use super::streamed_file::{FileError, Output, Rows};
use crate::common::clock::HourInstants;
use crate::http::answer::format::{Cells, write_number};
use crate::model::{METRICS_PER_READING, Metric, Sample};
use crate::query::{Slice, SliceHour};

/// Writes cells of one device: the column `ts`, and one for each series.
///
/// A cell without a value is empty.
pub(super) struct Columns {
    metrics: Vec<Metric>,
    places: HashMap<Metric, usize>,
    /// The values of the current row. NaN, which no reading has, means no value.
    row: Vec<f64>,
    cells: Cells,
}

/// Writes cells with a row for each value: `deviceId,ts,series,value`.
pub(super) struct Values(pub(super) Cells);

/// Writes NDJSON with a line for each instant, or several if it has more than [`METRICS_PER_READING`] values:
/// `{"deviceId","ts","values"}`.
pub(super) struct Lines;

impl Columns {
    pub(super) fn new(metrics: Vec<Metric>, cells: Cells) -> Self {
        let places = metrics.iter().cloned().enumerate().map(|(at, metric)| (metric, at)).collect();
        Self { row: vec![f64::NAN; metrics.len()], metrics, places, cells }
    }
}

impl Rows for Columns {
    fn begin(&mut self, out: &mut Output) -> Result<(), FileError> {
        self.cells.header(&mut out.text, std::iter::once("ts").chain(self.metrics.iter().map(|metric| &**metric)));
        out.send_if_full()
    }

    fn write(&mut self, _: &str, slice: &Slice, out: &mut Output) -> Result<(), FileError> {
        for hour in slice.hours() {
            let places: Vec<Option<usize>> =
                hour.metrics.iter().map(|metric| self.places.get(metric).copied()).collect();
            let mut instants = HourInstants::new(hour.hour.start_ms());
            for samples in hour.instants() {
                for sample in samples {
                    let place = places[sample.metric as usize];
                    let new = || FileError::NewSeries(hour.metrics[sample.metric as usize].clone());
                    self.row[place.ok_or_else(new)?] = sample.value;
                }
                let (cells, text) = (&self.cells, &mut out.text);
                text.extend_from_slice(cells.lead(0));
                write_instant(cells, text, &mut instants, &hour, samples[0].offset);
                for value in &mut self.row {
                    text.extend_from_slice(cells.lead(1));
                    if value.is_nan() {
                        cells.empty(text);
                    } else {
                        cells.number(text, *value);
                        *value = f64::NAN;
                    }
                }
                cells.end_row(text);
                out.send_if_full()?;
            }
        }
        Ok(())
    }
}

impl Rows for Values {
    fn begin(&mut self, out: &mut Output) -> Result<(), FileError> {
        self.0.header(&mut out.text, ["deviceId", "ts", "series", "value"].into_iter());
        Ok(())
    }

    fn write(&mut self, device: &str, slice: &Slice, out: &mut Output) -> Result<(), FileError> {
        let cells = &self.0;
        let mut before_ts = cells.lead(0).to_owned();
        cells.cell(&mut before_ts, device);
        before_ts.extend_from_slice(cells.lead(1));
        let mut ts = Vec::new();
        for hour in slice.hours() {
            let order = Order::of(&hour);
            let after_ts: Vec<Vec<u8>> = hour.metrics.iter().map(|metric| between_leads(cells, metric)).collect();
            let mut instants = HourInstants::new(hour.hour.start_ms());
            let mut sorted = Vec::new();
            for samples in hour.instants() {
                ts.clear();
                write_instant(cells, &mut ts, &mut instants, &hour, samples[0].offset);
                for sample in order.sort(samples, &mut sorted) {
                    out.text.extend_from_slice(&before_ts);
                    out.text.extend_from_slice(&ts);
                    out.text.extend_from_slice(&after_ts[sample.metric as usize]);
                    cells.number(&mut out.text, sample.value);
                    cells.end_row(&mut out.text);
                }
                out.send_if_full()?;
            }
        }
        Ok(())
    }
}

fn between_leads(cells: &Cells, metric: &Metric) -> Vec<u8> {
    let mut text = cells.lead(2).to_owned();
    cells.cell(&mut text, metric);
    text.extend_from_slice(cells.lead(3));
    text
}

/// Writes the instant `offset` milliseconds after the start of an hour.
fn write_instant(cells: &Cells, text: &mut Vec<u8>, instants: &mut HourInstants, hour: &SliceHour<'_>, offset: u32) {
    if cells.is_local() {
        cells.instant(text, hour.hour.instant_ms(offset));
    } else {
        text.extend_from_slice(instants.text_of(offset));
    }
}

impl Rows for Lines {
    fn begin(&mut self, _: &mut Output) -> Result<(), FileError> {
        Ok(())
    }

    fn write(&mut self, device: &str, slice: &Slice, out: &mut Output) -> Result<(), FileError> {
        let before_ts = format!("{{\"deviceId\":{},\"ts\":\"", json(device)).into_bytes();
        for hour in slice.hours() {
            let order = Order::of(&hour);
            let keys: Vec<Vec<u8>> =
                hour.metrics.iter().map(|metric| format!("{}:", json(metric)).into_bytes()).collect();
            let mut instants = HourInstants::new(hour.hour.start_ms());
            let mut sorted = Vec::new();
            for samples in hour.instants() {
                for part in order.sort(samples, &mut sorted).chunks(METRICS_PER_READING) {
                    out.text.extend_from_slice(&before_ts);
                    out.text.extend_from_slice(instants.text_of(samples[0].offset));
                    out.text.extend_from_slice(b"\",\"values\":{");
                    for (at, sample) in part.iter().enumerate() {
                        if at > 0 {
                            out.text.push(b',');
                        }
                        out.text.extend_from_slice(&keys[sample.metric as usize]);
                        write_number(&mut out.text, sample.value);
                    }
                    out.text.extend_from_slice(b"}}\n");
                }
                out.send_if_full()?;
            }
        }
        Ok(())
    }
}

/// Returns a text as JSON.
fn json(text: &str) -> String {
    serde_json::to_string(text).expect("a text is JSON")
}

/// The order of the series of an hour by their texts.
struct Order {
    /// The rank of each metric of the hour by its text.
    ///
    /// `None`: the metrics are sorted already.
    ranks: Option<Vec<u32>>,
}

impl Order {
    fn of(hour: &SliceHour<'_>) -> Self {
        if hour.metrics.is_sorted() {
            return Self { ranks: None };
        }
        let mut by_text: Vec<usize> = (0..hour.metrics.len()).collect();
        by_text.sort_unstable_by_key(|&at| &hour.metrics[at]);
        let mut ranks = vec![0; by_text.len()];
        for (rank, at) in (0..).zip(by_text) {
            ranks[at] = rank;
        }
        Self { ranks: Some(ranks) }
    }

    /// Returns the values of one instant, sorted by their series.
    fn sort<'s>(&self, samples: &'s [Sample], sorted: &'s mut Vec<Sample>) -> &'s [Sample] {
        match &self.ranks {
            Some(ranks) if samples.len() > 1 => {
                sorted.clear();
                sorted.extend_from_slice(samples);
                sorted.sort_unstable_by_key(|sample| ranks[sample.metric as usize]);
                sorted
            }
            _ => samples,
        }
    }
}
