//! One line: measurement, tags, fields and time, and the reading that they form.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{
    Options, Precision,
    fields::{Fields, unescaped},
    scan::{KEY, MEASUREMENT, Scanner, rejection_at},
};
use crate::common::work;
use crate::config::{LineProtocol, Strings};
use crate::model::{
    METRIC_MAX_BYTES, MetricNameError, check_metadata_key, check_metric_name,
    series::{self, SERIES_MAX_LABELS},
};
use crate::wire::{
    Code, Ignored, Incoming, Limits, Rejection, Sink, metadata,
    problem::{Parsed, quoted, rejection, repeated},
};

/// Readings of up to this many values are passed on without an allocation.
const USUAL_FIELDS: usize = 16;

/// The most tags of a line: labels, tags of metadata, and the device.
const MAX_TAGS: usize = SERIES_MAX_LABELS + 16 + 1;

/// Parses lines and passes on their readings, with the same buffers for all lines.
#[derive(Debug)]
pub(super) struct Reader<'b> {
    limits: Limits,
    tags: Vec<Tag<'b>>,
    fields: Fields<'b>,
    metadata: String,
    /// The labels of all metrics of the line, as the text of a series has them.
    labels: String,
    /// The texts of the series, concatenated.
    series: String,
}

#[derive(Debug)]
struct Tag<'b> {
    key: Cow<'b, str>,
    value: Cow<'b, str>,
    /// The position of the key on the line.
    offset: usize,
}

/// The parts of a line, except its tags and fields.
struct Point<'b> {
    measurement: Cow<'b, str>,
    /// The index of the tag that names the device.
    device: Option<usize>,
    ts_ms: Option<i64>,
    /// Whether a name on the line has a brace, which metric names do not have.
    has_brace: bool,
}

impl<'b> Reader<'b> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            tags: Vec::new(),
            fields: Fields::default(),
            metadata: String::new(),
            labels: String::new(),
            series: String::new(),
        }
    }

    /// Parses a line that is not blank.
    pub(super) fn read(&mut self, line: &'b str, options: &Options<'_>, sink: &mut impl Sink) {
        match self.point(line, options, sink) {
            Ok(point) => self.emit(&point, options, sink),
            Err(rejection) => sink.reject(rejection),
        }
    }

    /// Parses a line, and writes the labels and metadata that its metrics share.
    fn point(&mut self, line: &'b str, options: &Options<'_>, sink: &mut impl Sink) -> Parsed<Point<'b>> {
        let mut scanner = Scanner::new(line);
        let measurement = scanner.name(MEASUREMENT)?;
        if measurement.is_empty() {
            return Err(scanner.rejection(Code::InvalidLine, "expected a measurement"));
        }
        self.read_tags(&mut scanner)?;
        let tags_end = scanner.offset();
        let device = self.device(&options.mapping.device_tags);
        if let Some(device) = self.device_id(device, options) {
            sink.expect(device);
        }
        scanner.skip_spaces();
        self.fields.read(&mut scanner, &self.limits)?;
        scanner.skip_spaces();
        let ts_ms = read_time(&mut scanner, options.precision)?;
        if device.is_none() && options.device.is_none() {
            return Err(no_device(&options.mapping.device_tags, tags_end));
        }
        self.labels.clear();
        self.metadata.clear();
        if self.tags.len() > usize::from(device.is_some()) {
            self.write_labels(device, options.mapping)?;
        }
        if !options.mapping.metadata_tags.is_empty() || options.mapping.strings == Strings::Metadata {
            self.write_metadata(device, options.mapping)?;
        }
        Ok(Point { measurement, device, ts_ms, has_brace: scanner.has_brace() })
    }

    fn read_tags(&mut self, scanner: &mut Scanner<'b>) -> Parsed<()> {
        self.tags.clear();
        let start = scanner.offset();
        while scanner.take_if(b',') {
            let tag = read_tag(scanner)?;
            if self.tags.len() == MAX_TAGS {
                return Err(rejection_at(
                    start,
                    Code::TooManyLabels,
                    format_args!("a line has at most {MAX_TAGS} tags, this has more"),
                ));
            }
            self.tags.push(tag);
        }
        if scanner.byte() == Some(b'=') {
            return Err(scanner.rejection(Code::InvalidLine, "'=' in the value of a tag needs a backslash before it"));
        }
        match repeated(self.tags.iter().map(|tag| &*tag.key)) {
            None => Ok(()),
            Some(key) => {
                let offset = self.tags.iter().filter(|tag| tag.key == key).nth(1).map_or(0, |tag| tag.offset);
                Err(rejection_at(offset, Code::DuplicateKey, format_args!("the tag {} is duplicated", quoted(key))))
            }
        }
    }

    /// The index of the tag that names the device.
    fn device(&self, device_tags: &[String]) -> Option<usize> {
        let named = |name: &String| self.tags.iter().position(|tag| tag.key == *name);
        device_tags.iter().find_map(named)
    }

    /// The device ID: the value of the tag, or else the device of the options.
    fn device_id<'s>(&'s self, tag: Option<usize>, options: &Options<'s>) -> Option<&'s str> {
        tag.map(|tag| &*self.tags[tag].value).or(options.device)
    }

    /// Writes the tags that are neither the device nor metadata as labels.
    fn write_labels(&mut self, device: Option<usize>, mapping: &LineProtocol) -> Parsed<()> {
        let mut labels: SmallVec<[_; USUAL_FIELDS]> = (0..)
            .zip(&self.tags)
            .filter(|(place, tag)| Some(*place) != device && !is_metadata(tag, mapping))
            .map(|(_, tag)| (&*tag.key, &*tag.value))
            .collect();
        series::append_labels(&mut self.labels, &mut labels)?;
        work::count(self.labels.len());
        Ok(())
    }

    /// Writes the tags of metadata, and the strings if they are metadata too.
    #[cold]
    fn write_metadata(&mut self, device: Option<usize>, mapping: &LineProtocol) -> Parsed<()> {
        let mut members: Vec<(&str, Cow<'_, str>)> = (0..)
            .zip(&self.tags)
            .filter(|(place, tag)| Some(*place) != device && is_metadata(tag, mapping))
            .map(|(_, tag)| (&*tag.key, Cow::Borrowed(&*tag.value)))
            .collect();
        for (key, _) in &members {
            work::count(key.len());
            if let Err(why) = check_metadata_key(key, 1) {
                return Err(rejection(Code::InvalidMetadata, format!("tag {}: {why}", quoted(key))));
            }
        }
        if mapping.strings == Strings::Metadata && !self.fields.numbers.is_empty() {
            for string in &mut self.fields.strings {
                let text = unescaped(string.text);
                let is_valid =
                    check_metadata_key(&string.key, 1).is_ok() && !text.contains(|c: char| c.is_ascii_control());
                let is_new = || members.iter().all(|(known, _)| **known != *string.key);
                if is_valid && is_new() {
                    string.is_metadata = true;
                    members.push((&string.key, text));
                }
            }
        }
        let members = || members.iter().map(|(key, value)| (*key, &**value));
        self.limits.check_metadata(metadata::bytes(members()))?;
        metadata::write(&mut self.metadata, members());
        Ok(())
    }

    fn emit(&mut self, point: &Point<'_>, options: &Options<'_>, sink: &mut impl Sink) {
        let metric_bytes = |key: &str| metric_bytes(&point.measurement, key);
        let (labels_bytes, has_brace) = (self.labels.len(), point.has_brace);
        let is_valid = |key: &str| metric_bytes(key) <= METRIC_MAX_BYTES.min(series::SERIES_MAX_BYTES - labels_bytes);
        if has_brace || !self.fields.numbers.iter().all(|field| is_valid(&field.key)) {
            self.reject_names(point);
        }
        if options.mapping.strings == Strings::Reject {
            self.reject_strings();
        }
        let Fields { numbers, strings, rejections } = &mut self.fields;
        if numbers.is_empty() && !rejections.is_empty() {
            sink.reject(rejections.swap_remove(0));
            return;
        }
        if !strings.is_empty() {
            let dropped = strings.iter().filter(|string| !string.is_metadata);
            dropped.for_each(|string| sink.ignore(Ignored::String, &string.key));
            if numbers.is_empty() {
                return;
            }
        }
        if !rejections.is_empty() {
            rejections.drain(..).for_each(|rejection| sink.reject_value(rejection));
        }
        self.write_series(&point.measurement);
        let mut series = self.series.as_str();
        let values = self.fields.numbers.iter().map(|field| {
            let (text, others) = series.split_at(metric_bytes(&field.key) + labels_bytes);
            series = others;
            (Cow::Borrowed(text), field.value)
        });
        let values: SmallVec<[_; USUAL_FIELDS]> = values.collect();
        sink.reading(Incoming {
            device: self.device_id(point.device, options).unwrap_or_default(),
            metadata: Some(&*self.metadata).filter(|metadata| !metadata.is_empty()),
            owner: None,
            ts_ms: point.ts_ms,
            measurement_bytes: u8::try_from(point.measurement.len()).unwrap_or(0),
            values: &values,
        });
    }

    /// Rejects the numbers whose metric name is invalid or too long.
    #[cold]
    fn reject_names(&mut self, Point { measurement, .. }: &Point<'_>) {
        let Fields { numbers, rejections, .. } = &mut self.fields;
        let labels_bytes = self.labels.len();
        numbers.retain(|field| {
            let bytes = metric_bytes(measurement, &field.key);
            let checked = if bytes > METRIC_MAX_BYTES {
                Err(MetricNameError::TooLong(bytes).into())
            } else {
                let mut name = String::with_capacity(bytes);
                append_metric(&mut name, measurement, &field.key);
                check_metric_name(&name).map_err(Into::into).and_then(|()| series::check_length(bytes + labels_bytes))
            };
            if let Err(error) = &checked {
                rejections.push(rejection(Code::from(error), format!("field {}: {error}", quoted(&field.key))));
            }
            checked.is_ok()
        });
    }

    #[cold]
    fn reject_strings(&mut self) {
        let Fields { strings, rejections, .. } = &mut self.fields;
        rejections.extend(strings.drain(..).map(|string| {
            let what =
                format!("the value of field {} must be a number or a boolean, found a string", quoted(&string.key));
            rejection_at(string.offset, Code::InvalidValue, &what)
        }));
    }

    fn write_series(&mut self, measurement: &str) {
        self.series.clear();
        for field in &self.fields.numbers {
            append_metric(&mut self.series, measurement, &field.key);
            self.series.push_str(&self.labels);
        }
        work::count(self.series.len());
    }
}

#[cold]
fn no_device(device_tags: &[String], tags_end: usize) -> Rejection {
    let looked_for = device_tags.join(", ");
    let what = format_args!("no tag names the device (looked for {looked_for}): the tags end");
    rejection_at(tags_end, Code::MissingDeviceId, what)
}

fn is_metadata(tag: &Tag<'_>, mapping: &LineProtocol) -> bool {
    mapping.metadata_tags.iter().any(|name| *name == *tag.key)
}

/// Appends the metric name of a field.
fn append_metric(to: &mut String, measurement: &str, key: &str) {
    to.push_str(measurement);
    if key != "value" {
        to.push('_');
        to.push_str(key);
    }
}

/// The length of the metric name of a field.
fn metric_bytes(measurement: &str, key: &str) -> usize {
    measurement.len() + if key == "value" { 0 } else { "_".len() + key.len() }
}

fn read_tag<'b>(scanner: &mut Scanner<'b>) -> Parsed<Tag<'b>> {
    let offset = scanner.offset();
    let key = scanner.name(KEY)?;
    if key.is_empty() {
        return Err(scanner.rejection(Code::InvalidLine, "expected the key of a tag"));
    }
    if !scanner.take_if(b'=') {
        return Err(scanner.rejection(Code::InvalidLine, &format!("expected '=' after the tag {}", quoted(&key))));
    }
    let value = scanner.name(KEY)?;
    if value.is_empty() {
        return Err(scanner.rejection(Code::InvalidLine, &format!("expected the value of tag {}", quoted(&key))));
    }
    Ok(Tag { key, value, offset })
}

/// Parses the time, if there is one, and the end of the line.
fn read_time(scanner: &mut Scanner<'_>, precision: Precision) -> Parsed<Option<i64>> {
    let start = scanner.offset();
    let text = scanner.word();
    let ts_ms = if text.is_empty() {
        None
    } else {
        let found = unix_ms(text, precision);
        Some(found.map_err(|what| rejection_at(start, Code::InvalidTimestamp, what))?)
    };
    scanner.skip_spaces();
    match scanner.byte() {
        None => Ok(ts_ms),
        Some(_) => Err(scanner.rejection(Code::InvalidLine, "expected the end of the line")),
    }
}

fn unix_ms(text: &str, precision: Precision) -> Result<i64, &'static str> {
    let (is_past, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let time = match whole_number(digits.as_bytes()).ok_or("the time is not a whole number")? {
        number if is_past => 0i64.checked_sub_unsigned(number),
        number => i64::try_from(number).ok(),
    };
    time.and_then(|time| precision.to_ms(time)).ok_or("the time does not fit into 64 bits")
}

/// Parses decimal digits, at least one.
///
/// A number that does not fit becomes `u64::MAX`.
fn whole_number(digits: &[u8]) -> Option<u64> {
    let (eights, ones) = digits.as_chunks();
    let mut number = 0u64;
    for &eight in eights {
        number = number.saturating_mul(100_000_000).saturating_add(eight_digits(eight)?);
    }
    for one in ones {
        let digit = one.is_ascii_digit().then(|| u64::from(one - b'0'))?;
        number = number.saturating_mul(10).saturating_add(digit);
    }
    (!digits.is_empty()).then_some(number)
}

/// Parses eight digits at once: times are a third of the bytes of many lines.
///
/// Neighbours are combined into numbers of two digits, then of four, then of eight.
fn eight_digits(ascii: [u8; 8]) -> Option<u64> {
    const ONES: u64 = u64::MAX / 0xFF;
    let word = u64::from_le_bytes(ascii);
    let digits = word ^ (ONES * 0x30);
    // `digits` is `ascii` XOR `0`. Only for the digits 0 to 9 is the upper half of each byte 0, and still 0
    // after adding 6.
    if (digits | digits.wrapping_add(ONES * 6)) & (ONES * 0xF0) != 0 {
        return None;
    }
    let twos = (digits * 10 + (digits >> 8)) & 0x00FF_00FF_00FF_00FF;
    let fours = (twos * 100 + (twos >> 16)) & 0x0000_FFFF_0000_FFFF;
    Some((fours * 10_000 + (fours >> 32)) & 0xFFFF_FFFF)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_byte_that_is_not_a_digit_is_found_in_every_place() {
        for byte in 0..=u8::MAX {
            for place in 0..19 {
                let mut digits = *b"9090909090909090909";
                digits[place] = byte;
                let number = std::str::from_utf8(&digits).ok().and_then(|text| text.parse().ok());
                let number = number.filter(|_| byte != b'+');
                assert_eq!(whole_number(&digits), number, "{byte} at {place}");
            }
        }
        assert_eq!(whole_number(b""), None);
    }

    proptest! {
        #[test]
        fn whole_numbers_are_read_as_rust_reads_them(digits in "[0-9]{1,30}", number: u64) {
            prop_assert_eq!(whole_number(digits.as_bytes()), Some(digits.parse().unwrap_or(u64::MAX)));
            prop_assert_eq!(whole_number(number.to_string().as_bytes()), Some(number));
        }
    }
}
