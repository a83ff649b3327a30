//! The labels of a series: its metric, its device, and the text of the series.

use smallvec::SmallVec;

use super::super::protobuf::{Fields, Result};
use super::super::{
    Code, Ignored, Limits, Rejection, Sink,
    grouping::{Grouping, SampleRejection, check_device_length},
    metadata,
    problem::{quoted, rejection, repeated},
};
use super::{Options, Version};
use crate::common::work;
use crate::model::series::{self, SERIES_MAX_BYTES, SERIES_MAX_LABELS, SeriesError};

/// The label with the name of the metric.
const METRIC: &str = "__name__";

/// The longest value of a label that describes the device, in bytes.
const METADATA_VALUE_MAX_BYTES: usize = 128;

/// Up to this many labels are collected without an allocation.
const USUAL_METADATA: usize = 4;

/// Reads the labels of one series after the other, with the same buffers for all.
#[derive(Debug)]
pub(super) struct SeriesReader<'b, 'o> {
    options: &'o Options<'o>,
    symbols: &'o [&'b str],
    max_metadata_bytes: usize,
    /// The labels of the series, except empty labels.
    labels: Vec<(&'b str, &'b str)>,
    metric: &'b str,
    is_derived: bool,
    /// The name of the metric with a suffix.
    name: String,
    /// The canonical texts of the series, by [`Part`].
    texts: [Text; 3],
    metadata: String,
}

/// The values that samples and histograms have.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Sample,
    /// The count of a histogram.
    Count,
    /// The sum of a histogram.
    Sum,
}

/// The canonical text of a series.
#[derive(Debug, Default)]
struct Text {
    text: String,
    /// Whether the text is valid; `None`: it is not written yet.
    written: Option<std::result::Result<(), Rejection>>,
}

impl<'b, 'o> SeriesReader<'b, 'o> {
    pub(super) fn new(options: &'o Options<'o>, symbols: &'o [&'b str], limits: Limits) -> Self {
        let max_metadata_bytes = limits.max_metadata_bytes;
        let (labels, name, metadata) = (Vec::new(), String::new(), String::new());
        let (metric, is_derived, texts) = ("", false, Default::default());
        Self { options, symbols, max_metadata_bytes, labels, metric, is_derived, name, texts, metadata }
    }

    /// The metric of the series; empty if it has none.
    pub(super) const fn metric(&self) -> &'b str {
        self.metric
    }

    /// Whether Prometheus derives the series from readings. Its device is not set.
    pub(super) const fn is_derived(&self) -> bool {
        self.is_derived
    }

    /// The canonical text of the series of a part.
    ///
    /// It is written once for all samples of the series.
    pub(super) fn text(&mut self, part: Part) -> std::result::Result<&str, &Rejection> {
        let suffix = match part {
            Part::Sample => "",
            Part::Count => "_count",
            Part::Sum => "_sum",
        };
        let Text { text, written } = &mut self.texts[part as usize];
        let written = written.get_or_insert_with(|| {
            let of_labels = self.labels.iter().map(|(key, value)| key.len() + value.len() + 2).sum::<usize>();
            let bytes = self.metric.len() + suffix.len() + of_labels;
            if self.metric.is_empty() {
                return Err(rejection(Code::InvalidMetricName, format!("a series has no label {METRIC}")));
            }
            series::check_length(bytes)?;
            work::count(bytes);
            self.name.clear();
            self.name.extend([self.metric, suffix]);
            Ok(series::write(text, &self.name, &mut self.labels)?)
        });
        written.as_ref().map(|()| text.as_str())
    }

    /// Reads the labels of a series, and sets its device unless the series is derived.
    pub(super) fn read<S: Sink>(
        &mut self,
        series: &'b [u8],
        readings: &mut Grouping<'_, S>,
    ) -> Result<std::result::Result<(), SampleRejection>> {
        self.labels.clear();
        self.metric = "";
        self.texts.iter_mut().for_each(|text| text.written = None);
        let read = match self.options.version {
            Version::V1 => self.read_texts(series)?,
            Version::V2 => self.read_references(series)?,
        };
        Ok(self.identify(read, readings))
    }

    /// Reads the labels of version 1.0. Returns their number.
    fn read_texts(&mut self, series: &'b [u8]) -> Result<std::result::Result<usize, Rejection>> {
        let mut count = 0;
        let mut fields = Fields::of(series);
        while let Some(field) = fields.next()? {
            if field.number == 1 {
                let (mut key, mut value) = ("", "");
                let mut label = field.message()?;
                while let Some(field) = label.next()? {
                    match field.number {
                        1 => key = field.text()?,
                        2 => value = field.text()?,
                        _ => {}
                    }
                }
                self.push(key, value, &mut count);
            }
        }
        Ok(Ok(count))
    }

    /// Reads the labels of version 2.0. Returns their number.
    fn read_references(&mut self, series: &'b [u8]) -> Result<std::result::Result<usize, Rejection>> {
        let mut count = 0;
        let mut key = None;
        let mut fields = Fields::of(series);
        while let Some(field) = fields.next()? {
            if field.number != 1 {
                continue;
            }
            let mut references = field.varints()?;
            while let Some(reference) = references.next()? {
                let symbol = usize::try_from(reference).ok().and_then(|at| self.symbols.get(at)).copied();
                let Some(symbol) = symbol else {
                    let what = format!("a label refers to symbol {reference} of {}", self.symbols.len());
                    return Ok(Err(rejection(Code::InvalidLabel, what)));
                };
                match key.take() {
                    None => key = Some(symbol),
                    Some(key) => self.push(key, symbol, &mut count),
                }
            }
        }
        Ok(match key {
            None => Ok(count),
            Some(key) => Err(rejection(Code::InvalidLabel, format!("the label {} has no value", quoted(key)))),
        })
    }

    /// Counts a label that is not empty, and keeps it unless there are too many.
    fn push(&mut self, key: &'b str, value: &'b str, count: &mut usize) {
        if value.is_empty() {
            return;
        }
        *count += 1;
        if self.labels.len() < self.max_labels() {
            self.labels.push((key, value));
        }
    }

    /// The most labels of a valid series: with its metric, device and metadata.
    const fn max_labels(&self) -> usize {
        SERIES_MAX_LABELS + self.options.metadata_labels.len() + 2
    }

    fn identify<S: Sink>(
        &mut self,
        read: std::result::Result<usize, Rejection>,
        readings: &mut Grouping<'_, S>,
    ) -> std::result::Result<(), SampleRejection> {
        let read = read.and_then(|count| self.check(count));
        self.metric = self.take(METRIC).unwrap_or_default();
        self.is_derived = is_derived(self.metric);
        if self.is_derived {
            return Ok(());
        }
        let device = self.options.device_labels.iter().find_map(|label| self.take(label));
        let device = device.ok_or_else(|| {
            let looked_for = self.options.device_labels.join(", ");
            let what = format!("no label of {} names the device (looked for {looked_for})", quoted(self.metric));
            SampleRejection::NoDevice(read.clone().err().unwrap_or_else(|| rejection(Code::MissingDeviceId, what)))
        })?;
        check_device_length(device)?;
        self.take_metadata(readings.sink());
        readings.set_device(device, &self.metadata);
        read.map_err(SampleRejection::Series)
    }

    /// Checks the number of labels, and the length of each, before labels are compared.
    fn check(&self, count: usize) -> std::result::Result<(), Rejection> {
        if count > self.max_labels() {
            return Err(SeriesError::TooManyLabels(count).into());
        }
        let is_metadata = |key: &str| self.options.metadata_labels.iter().any(|label| label == key);
        for &(key, value) in &self.labels {
            let longest = key.len().max(value.len());
            if longest > SERIES_MAX_BYTES && (key.len() > SERIES_MAX_BYTES || !is_metadata(key)) {
                return Err(SeriesError::TooLong(longest).into());
            }
        }
        match repeated(self.labels.iter().map(|&(key, _)| key)) {
            None => Ok(()),
            Some(key) => Err(SeriesError::DuplicateLabel(key.to_owned()).into()),
        }
    }

    /// Removes a label, and returns its value.
    fn take(&mut self, key: &str) -> Option<&'b str> {
        work::count(self.labels.len());
        let at = self.labels.iter().position(|&(known, _)| known == key)?;
        Some(self.labels.swap_remove(at).1)
    }

    /// Moves the labels that describe the device to its metadata, as far as they fit.
    fn take_metadata(&mut self, sink: &mut impl Sink) {
        let mut members: SmallVec<[(&str, &str); USUAL_METADATA]> = SmallVec::new();
        let options = self.options;
        for key in options.metadata_labels {
            let Some(value) = self.take(key) else { continue };
            members.push((key, value));
            let fits = value.len() <= METADATA_VALUE_MAX_BYTES
                && metadata::is_member(key, value)
                && metadata::bytes(members.iter().copied()) <= self.max_metadata_bytes;
            if !fits {
                members.pop();
                sink.ignore(Ignored::Metadata, key);
            }
        }
        metadata::write(&mut self.metadata, members.into_iter());
    }
}

/// Whether Prometheus derives the series of a metric from readings.
fn is_derived(metric: &str) -> bool {
    matches!(metric, "ALERTS" | "ALERTS_FOR_STATE") || metric.starts_with("tidegauge_latest_")
}
