//! Packs in CBOR (RFC 8949).
//!
//! Declared lengths are counted down and never allocated: a missing element is an error.

use std::borrow::Cow;

use minicbor::{
    data::{Tag, Type},
    decode::{Decoder, Error},
};

use super::{
    SenmlError, Take,
    field::Field,
    record::{Item, LABELS, Record},
};
use crate::wire::{
    Code,
    labels::Labels,
    problem::{Parsed, rejection},
};

/// The most levels of nested arrays, maps and tags in the value of a field.
const MAX_DEPTH: usize = 64;

/// The label of `ut`, the time until the next update, which is known and ignored.
const UPDATE_TIME: i128 = 7;

const DECIMAL_FRACTION: Tag = Tag::new(4);

impl From<Error> for SenmlError {
    fn from(error: Error) -> Self {
        Self::Invalid(format!("the body is not CBOR: {error}"))
    }
}

/// Calls `take` for each record until it returns false.
pub(super) fn read<'b>(body: &'b [u8], take: Take<'_, 'b>) -> Result<(), SenmlError> {
    let mut decoder = Decoder::new(body);
    if !matches!(decoder.datatype()?, Type::Array | Type::ArrayIndef) {
        return Err(SenmlError::Invalid(format!("a pack must be an array of maps, found {}", decoder.datatype()?)));
    }
    let mut records = Left(decoder.array()?);
    while records.take_one(&mut decoder)? {
        if !matches!(decoder.datatype()?, Type::Map | Type::MapIndef) {
            return Err(SenmlError::Invalid(format!("a record must be a map, found {}", decoder.datatype()?)));
        }
        let mut record = Record::default();
        let mut fields = Left(decoder.map()?);
        while fields.take_one(&mut decoder)? {
            read_field(&mut decoder, &mut record)?;
        }
        if !take(&record) {
            return Ok(());
        }
    }
    if decoder.position() == body.len() {
        return Ok(());
    }
    Err(SenmlError::Invalid(format!("expected nothing after the pack at byte {}", decoder.position() + 1)))
}

fn read_field<'b>(decoder: &mut Decoder<'b>, record: &mut Record<'b>) -> Result<(), SenmlError> {
    match decoder.datatype()? {
        Type::String | Type::StringIndef => {
            let label = text(decoder)?;
            if label == LABELS {
                record.put_labels(labels(decoder)?);
                return Ok(());
            }
            let item = item(decoder)?;
            record.put_labelled(label, item)
        }
        kind if is_integer(kind) => {
            let label = i128::from(decoder.int()?);
            let item = item(decoder)?;
            if let Some(field) = i64::try_from(label).ok().and_then(Field::of_number) {
                return record.put(field, item);
            }
            if label != UPDATE_TIME {
                record.put_unknown(Cow::Owned(label.to_string()));
            }
            Ok(())
        }
        _ => {
            record.put_unknown(Cow::Borrowed("a label that is neither a text nor a number"));
            skip(decoder, MAX_DEPTH)?;
            skip(decoder, MAX_DEPTH)
        }
    }
}

/// Reads the labels of a series, a map of texts.
///
/// Null is no labels, and a label with the value null is left out.
fn labels<'b>(decoder: &mut Decoder<'b>) -> Result<Parsed<Labels<'b>>, SenmlError> {
    let mut labels = Labels::default();
    if !matches!(decoder.datatype()?, Type::Map | Type::MapIndef) {
        return Ok(match item(decoder)? {
            Item::Null => Ok(labels),
            found => {
                Err(rejection(Code::InvalidLabel, format!("\"labels\" must be an object of strings, found {found}")))
            }
        });
    }
    let mut entries = Left(decoder.map()?);
    while entries.take_one(decoder)? {
        match (item(decoder)?, item(decoder)?) {
            (Item::Text(key), Item::Text(value)) => labels.push(key, value),
            (Item::Text(_), Item::Null) => {}
            (Item::Text(key), found) => labels.push_invalid(&key, found),
            (found, _) => labels.push_invalid("", format_args!("{found} as its key")),
        }
    }
    Ok(Ok(labels))
}

fn item<'b>(decoder: &mut Decoder<'b>) -> Result<Item<'b>, SenmlError> {
    let other = match decoder.datatype()? {
        kind if is_integer(kind) => return Ok(Item::Number(i128::from(decoder.int()?) as f64)),
        Type::F16 | Type::F32 | Type::F64 => return Ok(Item::Number(decoder.f64()?)),
        Type::String | Type::StringIndef => return text(decoder).map(Item::Text),
        Type::Bool => return Ok(Item::Boolean(decoder.bool()?)),
        Type::Tag => {
            let mut ahead = decoder.clone();
            if let Some(number) = decimal_fraction(&mut ahead) {
                *decoder = ahead;
                return Ok(Item::Number(number));
            }
            Item::Other("a tagged value")
        }
        Type::Null => Item::Null,
        Type::Array | Type::ArrayIndef => Item::Other("an array"),
        Type::Map | Type::MapIndef => Item::Other("an object"),
        Type::Bytes | Type::BytesIndef => Item::Other("bytes"),
        _ => Item::Other("a simple value"),
    };
    skip(decoder, MAX_DEPTH)?;
    Ok(other)
}

const fn is_integer(kind: Type) -> bool {
    use Type::{I8, I16, I32, I64, Int, U8, U16, U32, U64};
    matches!(kind, U8 | U16 | U32 | U64 | I8 | I16 | I32 | I64 | Int)
}

/// Parses tag 4 (an exponent of 10 and a mantissa) with one rounding.
///
/// `None` for anything else.
fn decimal_fraction(decoder: &mut Decoder<'_>) -> Option<f64> {
    if decoder.tag().ok()? != DECIMAL_FRACTION || decoder.array().ok()? != Some(2) {
        return None;
    }
    let exponent = decoder.i64().ok()?;
    let mantissa = decoder.i128().ok()?;
    format!("{mantissa}e{exponent}").parse().ok()
}

fn text<'b>(decoder: &mut Decoder<'b>) -> Result<Cow<'b, str>, SenmlError> {
    if decoder.datatype()? == Type::String {
        return Ok(Cow::Borrowed(decoder.str()?));
    }
    let pieces: Result<String, Error> = decoder.str_iter()?.collect();
    Ok(Cow::Owned(pieces?))
}

/// Skips a value with at most `depth` levels.
fn skip(decoder: &mut Decoder<'_>, depth: usize) -> Result<(), SenmlError> {
    let Some(inner_depth) = depth.checked_sub(1) else {
        return Err(SenmlError::Invalid(format!(
            "more than {MAX_DEPTH} levels of nesting at byte {}",
            decoder.position() + 1
        )));
    };
    match decoder.datatype()? {
        Type::Array | Type::ArrayIndef => {
            let mut elements = Left(decoder.array()?);
            while elements.take_one(decoder)? {
                skip(decoder, inner_depth)?;
            }
        }
        Type::Map | Type::MapIndef => {
            let mut entries = Left(decoder.map()?);
            while entries.take_one(decoder)? {
                skip(decoder, inner_depth)?;
                skip(decoder, inner_depth)?;
            }
        }
        Type::Tag => {
            decoder.tag()?;
            skip(decoder, inner_depth)?;
        }
        // The decoder's own `skip` takes a break for a value.
        Type::Break => {
            let at = decoder.position() + 1;
            return Err(SenmlError::Invalid(format!("the body is not CBOR: a break without a beginning at byte {at}")));
        }
        _ => decoder.skip()?,
    }
    Ok(())
}

/// The number of elements that are left in an array or map.
///
/// `None`: the length is indefinite, so a break ends the elements.
struct Left(Option<u64>);

impl Left {
    /// Whether there is another element, which the caller must then read.
    ///
    /// If not, the decoder is now after the last element.
    fn take_one(&mut self, decoder: &mut Decoder<'_>) -> Result<bool, SenmlError> {
        match &mut self.0 {
            Some(0) => Ok(false),
            Some(left) => {
                *left -= 1;
                Ok(true)
            }
            None if decoder.datatype()? == Type::Break => {
                decoder.set_position(decoder.position() + 1);
                Ok(false)
            }
            None => Ok(true),
        }
    }
}
