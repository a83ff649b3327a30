//! Converts OTLP in JSON to the same message in protobuf.
//!
//! The parser follows the JSON mapping of proto3: keys are in lower camel case or as in the schema, whole
//! numbers of 64 bits may be texts, `NaN` and the infinities are texts, and `null` is an absent field.
//! Unknown keys are ignored, as OTLP demands, and reported. Fields that the parser does not need are left
//! out. A key that occurs twice, perhaps in both forms, is an error. So are two members of one `oneof`, such
//! as `asInt` beside `asDouble`: in JSON, members have no order, so neither is the last.
//!
//! The message has at most three times the bytes of the JSON: an empty object of two bytes becomes six bytes,
//! a key of one byte and a length of five.

use super::super::json::{
    SyntaxError,
    lexer::{Kind, Lexer, Result},
};
use super::super::protobuf::Writer;

/// A field of a message.
struct Entry {
    name: &'static str,
    number: u32,
    is_list: bool,
    /// Whether the field is a member of the `oneof` of its message.
    ///
    /// No message of OTLP has two `oneof`s.
    is_choice: bool,
    form: Form,
}

/// The type of a field.
#[derive(Clone, Copy)]
enum Form {
    Message(&'static [Entry]),
    Text,
    Double,
    Boolean,
    /// An `int64`, `uint32` or an enumeration.
    Integer,
    Fixed64,
    SignedFixed64,
    /// A message that is only present or absent: its content does not matter.
    Presence,
    /// A field that the parser does not need.
    Unused,
}

const fn one(name: &'static str, number: u32, form: Form) -> Entry {
    Entry { name, number, is_list: false, is_choice: false, form }
}

const fn choice(name: &'static str, number: u32, form: Form) -> Entry {
    Entry { name, number, is_list: false, is_choice: true, form }
}

const fn list(name: &'static str, number: u32, form: Form) -> Entry {
    Entry { name, number, is_list: true, is_choice: false, form }
}

const fn unused(name: &'static str) -> Entry {
    one(name, 0, Form::Unused)
}

const REQUEST: &[Entry] = &[list("resourceMetrics", 1, Form::Message(RESOURCE_METRICS))];

const RESOURCE_METRICS: &[Entry] = &[
    one("resource", 1, Form::Message(RESOURCE)),
    list("scopeMetrics", 2, Form::Message(SCOPE_METRICS)),
    unused("schemaUrl"),
];

const RESOURCE: &[Entry] =
    &[list("attributes", 1, Form::Message(ATTRIBUTE)), unused("droppedAttributesCount"), unused("entityRefs")];

const ATTRIBUTE: &[Entry] = &[one("key", 1, Form::Text), one("value", 2, Form::Message(ANY_VALUE))];

const ANY_VALUE: &[Entry] = &[
    choice("stringValue", 1, Form::Text),
    choice("boolValue", 2, Form::Boolean),
    choice("intValue", 3, Form::Integer),
    choice("doubleValue", 4, Form::Double),
    choice("arrayValue", 5, Form::Presence),
    choice("kvlistValue", 6, Form::Presence),
    choice("bytesValue", 7, Form::Presence),
];

const SCOPE_METRICS: &[Entry] =
    &[one("scope", 1, Form::Message(SCOPE)), list("metrics", 2, Form::Message(METRIC)), unused("schemaUrl")];

const SCOPE: &[Entry] = &[
    one("name", 1, Form::Text),
    list("attributes", 3, Form::Presence),
    unused("version"),
    unused("droppedAttributesCount"),
];

const METRIC: &[Entry] = &[
    one("name", 1, Form::Text),
    one("description", 2, Form::Text),
    one("unit", 3, Form::Text),
    choice("gauge", 5, Form::Message(NUMBERS)),
    choice("sum", 7, Form::Message(NUMBERS)),
    choice("histogram", 9, Form::Message(HISTOGRAM)),
    choice("exponentialHistogram", 10, Form::Message(EXPONENTIAL_HISTOGRAM)),
    choice("summary", 11, Form::Message(SUMMARY)),
    list("metadata", 12, Form::Presence),
];

const NUMBERS: &[Entry] =
    &[list("dataPoints", 1, Form::Message(POINT)), unused("aggregationTemporality"), unused("isMonotonic")];

const HISTOGRAM: &[Entry] = &[list("dataPoints", 1, Form::Message(HISTOGRAM_POINT)), unused("aggregationTemporality")];

const EXPONENTIAL_HISTOGRAM: &[Entry] =
    &[list("dataPoints", 1, Form::Message(EXPONENTIAL_HISTOGRAM_POINT)), unused("aggregationTemporality")];

const SUMMARY: &[Entry] = &[list("dataPoints", 1, Form::Message(SUMMARY_POINT))];

const POINT: &[Entry] = &[
    list("attributes", 7, Form::Message(ATTRIBUTE)),
    unused("startTimeUnixNano"),
    one("timeUnixNano", 3, Form::Fixed64),
    choice("asDouble", 4, Form::Double),
    choice("asInt", 6, Form::SignedFixed64),
    list("exemplars", 5, Form::Presence),
    one("flags", 8, Form::Integer),
];

const HISTOGRAM_POINT: &[Entry] = &[
    list("attributes", 9, Form::Message(ATTRIBUTE)),
    unused("startTimeUnixNano"),
    one("timeUnixNano", 3, Form::Fixed64),
    one("count", 4, Form::Fixed64),
    one("sum", 5, Form::Double),
    list("bucketCounts", 6, Form::Presence),
    unused("explicitBounds"),
    list("exemplars", 8, Form::Presence),
    one("flags", 10, Form::Integer),
    one("min", 11, Form::Double),
    one("max", 12, Form::Double),
];

const EXPONENTIAL_HISTOGRAM_POINT: &[Entry] = &[
    list("attributes", 1, Form::Message(ATTRIBUTE)),
    unused("startTimeUnixNano"),
    one("timeUnixNano", 3, Form::Fixed64),
    one("count", 4, Form::Fixed64),
    one("sum", 5, Form::Double),
    unused("scale"),
    unused("zeroCount"),
    one("positive", 8, Form::Presence),
    one("negative", 9, Form::Presence),
    one("flags", 10, Form::Integer),
    list("exemplars", 11, Form::Presence),
    one("min", 12, Form::Double),
    one("max", 13, Form::Double),
    unused("zeroThreshold"),
];

const SUMMARY_POINT: &[Entry] = &[
    list("attributes", 7, Form::Message(ATTRIBUTE)),
    unused("startTimeUnixNano"),
    one("timeUnixNano", 3, Form::Fixed64),
    one("count", 4, Form::Fixed64),
    one("sum", 5, Form::Double),
    list("quantileValues", 6, Form::Presence),
    one("flags", 8, Form::Integer),
];

/// Converts a body in JSON to protobuf.
///
/// Calls `unknown` with each key that OTLP does not have.
pub(super) fn to_protobuf(body: &[u8], unknown: &mut dyn FnMut(&str)) -> Result<Vec<u8>> {
    let mut lexer = Lexer::new(body)?;
    let mut transcoder = Transcoder { writer: Writer::default(), unknown };
    transcoder.fields(&mut lexer, REQUEST)?;
    lexer.end()?;
    Ok(transcoder.writer.into_bytes())
}

struct Transcoder<'u> {
    writer: Writer,
    unknown: &'u mut dyn FnMut(&str),
}

impl Transcoder<'_> {
    /// Writes the fields of the object that follows.
    fn fields(&mut self, lexer: &mut Lexer<'_>, entries: &[Entry]) -> Result<()> {
        expect(lexer, Kind::Object)?;
        lexer.open()?;
        let (mut chosen, mut seen) = (None, 0_u32); // `seen` has a bit for each entry
        while let Some(key) = lexer.key()? {
            if let Some(at) = entries.iter().position(|entry| is_name(&key, entry.name)) {
                let entry = &entries[at];
                if seen >> at & 1 == 1 {
                    let detail = format!("{} is duplicated", entry.name);
                    return Err(SyntaxError { offset: lexer.key_offset(), detail });
                }
                seen |= 1 << at;
                if entry.is_choice && lexer.kind()? != Kind::Null {
                    match chosen.replace(entry.name) {
                        None => {}
                        Some(first) => return Err(conflict(lexer.offset(), first, entry.name)),
                    }
                }
                self.field(lexer, entry)?;
            } else {
                (self.unknown)(&key);
                lexer.skip()?;
            }
        }
        Ok(())
    }

    fn field(&mut self, lexer: &mut Lexer<'_>, entry: &Entry) -> Result<()> {
        if lexer.kind()? == Kind::Null || matches!(entry.form, Form::Unused) {
            lexer.skip()?;
            return Ok(());
        }
        if !entry.is_list {
            return self.value(lexer, entry);
        }
        expect(lexer, Kind::Array)?;
        lexer.open()?;
        while lexer.element()? {
            self.value(lexer, entry)?;
        }
        Ok(())
    }

    fn value(&mut self, lexer: &mut Lexer<'_>, entry: &Entry) -> Result<()> {
        let number = entry.number;
        match entry.form {
            Form::Message(entries) => {
                let open = self.writer.message(number);
                self.fields(lexer, entries)?;
                self.writer.end(open);
            }
            Form::Text => {
                expect(lexer, Kind::String)?;
                self.writer.bytes(number, lexer.string()?.as_bytes());
            }
            Form::Double => {
                let value = read_number(lexer, "a number", double)?;
                self.writer.fixed64(number, value.to_bits());
            }
            Form::Integer => {
                let value = read_number(lexer, "a whole number of 64 bits", signed)?;
                self.writer.varint(number, value.cast_unsigned());
            }
            Form::SignedFixed64 => {
                let value = read_number(lexer, "a whole number of 64 bits", signed)?;
                self.writer.fixed64(number, value.cast_unsigned());
            }
            Form::Fixed64 => {
                let value = read_number(lexer, "a whole number of 64 bits without a sign", unsigned)?;
                self.writer.fixed64(number, value);
            }
            Form::Boolean => {
                let kind = lexer.kind()?;
                if !matches!(kind, Kind::True | Kind::False) {
                    return Err(expected(lexer.offset(), "true or false", kind));
                }
                lexer.skip()?;
                self.writer.varint(number, u64::from(kind == Kind::True));
            }
            Form::Presence => {
                lexer.skip()?;
                self.writer.bytes(number, b"");
            }
            Form::Unused => {}
        }
        Ok(())
    }
}

/// Whether a key is `name`, or its lower camel case: `asInt` for `as_int`.
fn is_name(key: &str, name: &str) -> bool {
    key == name || {
        let mut rest = name.bytes();
        let is_equal = |byte: u8| match byte {
            b'_' => true,
            byte => rest.next().is_some_and(|expected| expected.eq_ignore_ascii_case(&byte)),
        };
        key.len() <= 2 * name.len() && key.bytes().all(is_equal) && rest.next().is_none()
    }
}

fn expect(lexer: &mut Lexer<'_>, kind: Kind) -> Result<()> {
    let found = lexer.kind()?;
    if found == kind { Ok(()) } else { Err(expected(lexer.offset(), &kind.to_string(), found)) }
}

#[cold]
fn conflict(offset: usize, first: &str, second: &str) -> SyntaxError {
    SyntaxError { offset, detail: format!("{first} and {second} exclude each other: a message has one of them") }
}

#[cold]
fn expected(offset: usize, what: &str, found: Kind) -> SyntaxError {
    SyntaxError { offset, detail: format!("expected {what}, found {found}") }
}

/// Reads a number, or a text with a number.
fn read_number<T>(lexer: &mut Lexer<'_>, what: &str, parse: fn(&str) -> Option<T>) -> Result<T> {
    let kind = lexer.kind()?;
    let offset = lexer.offset();
    let parsed = match kind {
        Kind::Number => parse(lexer.number()?),
        Kind::String => parse(&lexer.string()?),
        _ => return Err(expected(offset, what, kind)),
    };
    parsed.ok_or_else(|| SyntaxError { offset, detail: format!("expected {what}") })
}

fn double(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        // Rust also parses "inf", "nan" and "+1", which this first byte excludes.
        _ if text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => {
            text.parse().ok().filter(|number: &f64| number.is_finite())
        }
        _ => None,
    }
}

fn signed(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| {
        let number = double(text).filter(|number| number.fract() == 0.0)?;
        (number.abs() < 2f64.powi(63)).then_some(number as i64)
    })
}

fn unsigned(text: &str) -> Option<u64> {
    text.parse().ok().or_else(|| {
        let number = double(text).filter(|number| number.fract() == 0.0)?;
        (0.0..2f64.powi(64)).contains(&number).then_some(number as u64)
    })
}
