//! `labels`: an object of texts.

use super::{
    SyntaxError,
    lexer::{Kind, Lexer},
    problem::{Parsed, rejection},
};
use crate::wire::{Code, labels::Labels};

/// Reads labels.
///
/// `null` is no labels, and a label with the value `null` is left out.
pub(in crate::wire) fn read<'b>(lexer: &mut Lexer<'b>) -> Result<Parsed<Labels<'b>>, SyntaxError> {
    let mut labels = Labels::default();
    let kind = lexer.kind()?;
    if kind != Kind::Object {
        lexer.skip()?;
        let problem =
            || rejection(Code::InvalidLabel, format!("\"labels\" must be an object of strings, found {kind}"));
        return Ok(if kind == Kind::Null { Ok(labels) } else { Err(problem()) });
    }
    lexer.open()?;
    while let Some(key) = lexer.key()? {
        match lexer.kind()? {
            Kind::String => labels.push(key, lexer.string()?),
            kind => {
                lexer.skip()?;
                if kind != Kind::Null {
                    labels.push_invalid(&key, kind);
                }
            }
        }
    }
    Ok(Ok(labels))
}
