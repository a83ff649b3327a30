//! One line: measurement, tags, fields and time, and the reading that they form.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{
    Options, Precision, fields,
    fields::Field,
    scan::{KEY, MEASUREMENT, Scanner, rejection_at},
};
use crate::model::{METRIC_MAX_BYTES, MetricNameError, check_metadata_key};
use crate::wire::{
    Code, Incoming, Limits, Rejection, Sink, metadata,
    problem::{Parsed, quoted, rejection, repeated},
    work,
};

/// Readings of up to this many values are passed on without an allocation.
const USUAL_FIELDS: usize = 16;

/// Parses lines and passes on their readings. Lines share its buffers.
#[derive(Debug)]
pub(super) struct Reader<'b> {
    limits: Limits,
    tags: Vec<Tag<'b>>,
    fields: Vec<Field<'b>>,
    metadata: String,
    /// The names of the metrics, concatenated.
    metrics: String,
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
    device: usize,
    ts_ms: Option<i64>,
}

impl<'b> Reader<'b> {
    pub(super) const fn new(limits: Limits) -> Self {
        Self { limits, tags: Vec::new(), fields: Vec::new(), metadata: String::new(), metrics: String::new() }
    }

    /// Parses a line that is not blank.
    pub(super) fn read(&mut self, line: &'b str, options: &Options<'_>, sink: &mut impl Sink) {
        let point = self.point(line, options).and_then(|point| self.check_sizes(&point).map(|()| point));
        match point {
            Ok(point) => self.emit(&point, sink),
            Err(rejection) => sink.reject(rejection),
        }
    }

    fn point(&mut self, line: &'b str, options: &Options<'_>) -> Parsed<Point<'b>> {
        let mut scanner = Scanner::new(line);
        let measurement = scanner.name(MEASUREMENT)?;
        if measurement.is_empty() {
            return Err(scanner.rejection(Code::InvalidLine, "expected a measurement"));
        }
        self.read_tags(&mut scanner)?;
        let tags_end = scanner.offset();
        scanner.skip_spaces();
        fields::read(&mut scanner, &mut self.fields, &self.limits)?;
        scanner.skip_spaces();
        let ts_ms = read_time(&mut scanner, options.precision)?;
        let device = self.device(options.device_tags, tags_end)?;
        Ok(Point { measurement, device, ts_ms })
    }

    fn read_tags(&mut self, scanner: &mut Scanner<'b>) -> Parsed<()> {
        self.tags.clear();
        let start = scanner.offset();
        while scanner.take_if(b',') {
            let tag = read_tag(scanner)?;
            if self.tags.len() < self.max_tags() {
                self.tags.push(tag);
            } else {
                return Err(self.too_many_tags(scanner, start));
            }
        }
        if scanner.byte() == Some(b'=') {
            return Err(scanner.rejection(Code::InvalidLine, "'=' in the value of a tag needs a backslash before it"));
        }
        match repeated(self.tags.iter().map(|tag| &*tag.key)) {
            None => Ok(()),
            Some(key) => {
                let offset = self.tags.iter().filter(|tag| tag.key == key).nth(1).map_or(0, |tag| tag.offset);
                Err(rejection_at(offset, Code::DuplicateKey, &format!("the tag {} is duplicated", quoted(key))))
            }
        }
    }

    /// The most tags whose metadata may fit the limit: a tag has at least the bytes of `"k":"v",`.
    const fn max_tags(&self) -> usize {
        (self.limits.max_metadata_bytes / r#""k":"v","#.len()).saturating_add(2)
    }

    #[cold]
    fn too_many_tags(&self, scanner: &Scanner<'_>, start: usize) -> Rejection {
        let (limit, found) = (self.limits.max_metadata_bytes, scanner.offset() - start);
        let what = format!("metadata has at most {limit} bytes, the tags have {found} and more");
        rejection_at(start, Code::MetadataTooLarge, &what)
    }

    /// The index of the tag that names the device. A rejection points at `tags_end`.
    fn device(&self, device_tags: &[String], tags_end: usize) -> Parsed<usize> {
        let named = |name: &String| self.tags.iter().position(|tag| tag.key == *name);
        device_tags.iter().find_map(named).ok_or_else(|| {
            let what = format!("no tag names the device (looked for {}): the tags end", device_tags.join(", "));
            rejection_at(tags_end, Code::MissingDeviceId, &what)
        })
    }

    /// Checks the sizes of metric names and metadata before they are built.
    fn check_sizes(&self, point: &Point<'_>) -> Parsed<()> {
        for field in &self.fields {
            let bytes = metric_bytes(&point.measurement, &field.key);
            if bytes > METRIC_MAX_BYTES {
                let why = MetricNameError::TooLong(bytes);
                return Err(rejection(Code::InvalidMetricName, format!("field {}: {why}", quoted(&field.key))));
            }
        }
        let others = || self.other_tags(point);
        for (key, _) in others() {
            work::count(key.len());
            if let Err(why) = check_metadata_key(key, 1) {
                return Err(rejection(Code::InvalidMetadata, format!("tag {}: {why}", quoted(key))));
            }
        }
        self.limits.check_metadata(metadata::bytes(others()))
    }

    /// The tags except the one that names the device.
    fn other_tags(&self, point: &Point<'_>) -> impl Iterator<Item = (&str, &str)> {
        let device = point.device;
        let others = self.tags.iter().enumerate().filter(move |&(place, _)| place != device);
        others.map(|(_, tag)| (&*tag.key, &*tag.value))
    }

    fn emit(&mut self, point: &Point<'_>, sink: &mut impl Sink) {
        self.name_metrics(&point.measurement);
        let mut names = self.metrics.as_str();
        let values = self.fields.iter().map(|field| {
            let (name, others) = names.split_at(metric_bytes(&point.measurement, &field.key));
            names = others;
            (Cow::Borrowed(name), field.value)
        });
        let values: SmallVec<[_; USUAL_FIELDS]> = values.collect();
        let others = self.tags.iter().enumerate().filter(|&(place, _)| place != point.device);
        sink.reading(Incoming {
            device: &self.tags[point.device].value,
            metadata: metadata::write(&mut self.metadata, others.map(|(_, tag)| (&*tag.key, &*tag.value))),
            owner: None,
            ts_ms: point.ts_ms,
            values: &values,
            measurement_bytes: 0,
        });
    }

    fn name_metrics(&mut self, measurement: &str) {
        self.metrics.clear();
        for field in &self.fields {
            self.metrics.push_str(measurement);
            if field.key != "value" {
                self.metrics.push('_');
                self.metrics.push_str(&field.key);
            }
        }
        work::count(self.metrics.len());
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

/// Parses decimal digits, at least one. A number that does not fit becomes `u64::MAX`.
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

/// Parses eight digits at once, because times are a third of the bytes of many lines. Neighbours are combined
/// into numbers of two digits, then of four, then of eight.
fn eight_digits(ascii: [u8; 8]) -> Option<u64> {
    const ONES: u64 = u64::MAX / 0xFF;
    let word = u64::from_le_bytes(ascii);
    let digits = word ^ (ONES * 0x30);
    // Only the digits 0 to 9 have an empty upper half now, and also after adding 6.
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
