//! Packs in JSON.

use super::{
    SenmlError, Take,
    record::{Item, LABELS, Record},
};
use crate::wire::json::{
    SyntaxError, labels,
    lexer::{self, Kind, Lexer},
};

impl From<SyntaxError> for SenmlError {
    fn from(error: SyntaxError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// Calls `take` for each record until it returns false.
pub(super) fn read<'b>(body: &'b [u8], take: Take<'_, 'b>) -> Result<(), SenmlError> {
    let mut lexer = Lexer::new(body)?;
    let kind = lexer.kind()?;
    if kind != Kind::Array {
        return Err(SenmlError::Invalid(format!("a pack must be an array of objects, found {kind}")));
    }
    lexer.open()?;
    while lexer.element()? {
        let kind = lexer.kind()?;
        if kind != Kind::Object {
            return Err(SenmlError::Invalid(format!("a record must be an object, found {kind}")));
        }
        let mut record = Record::default();
        lexer.open()?;
        while let Some(label) = lexer.key()? {
            if label == LABELS {
                record.put_labels(labels::read(&mut lexer)?);
            } else {
                let item = item(&mut lexer)?;
                record.put_labelled(label, item)?;
            }
        }
        if !take(&record) {
            return Ok(());
        }
    }
    Ok(lexer.end()?)
}

fn item<'b>(lexer: &mut Lexer<'b>) -> lexer::Result<Item<'b>> {
    let other = match lexer.kind()? {
        Kind::Number => {
            return Ok(Item::Number(lexer.number()?.parse().expect("every JSON number is one to Rust")));
        }
        Kind::NonFinite => Item::Number(f64::NAN),
        Kind::String => return lexer.string().map(Item::Text),
        Kind::True => Item::Boolean(true),
        Kind::False => Item::Boolean(false),
        Kind::Null => Item::Null,
        Kind::Array => Item::Other("an array"),
        Kind::Object => Item::Other("an object"),
    };
    lexer.skip()?;
    Ok(other)
}
