//! `metadata`: an object that is checked and then handed on as the text it is.

use std::borrow::Cow;

use super::{
    SyntaxError,
    lexer::{Kind, Lexer},
    problem::{Found, quoted, rejection, repeated},
};
use crate::wire::{Code, Rejection};

/// How many arrays and objects of metadata may stand inside each other, the outermost included.
const MAX_DEPTH: usize = 8;

/// Reads the metadata that comes next. `keys` is room to work in.
pub(super) fn read<'b>(lexer: &mut Lexer<'b>, keys: &mut Vec<Cow<'b, str>>) -> Result<Found<&'b str>, SyntaxError> {
    let kind = lexer.kind()?;
    if kind != Kind::Object {
        lexer.skip()?;
        return Ok(Err(rejection(Code::InvalidMetadata, format!("\"metadata\" must be an object, found {kind}"))));
    }
    let start = lexer.offset();
    keys.clear();
    Ok(match problem(lexer, keys, 1)? {
        None => Ok(lexer.text_from(start)),
        Some(problem) => Err(problem),
    })
}

/// Reads over a value at `depth` and returns the first problem in it. `keys` ends with the keys of the objects around.
fn problem<'b>(
    lexer: &mut Lexer<'b>,
    keys: &mut Vec<Cow<'b, str>>,
    depth: usize,
) -> Result<Option<Rejection>, SyntaxError> {
    let kind = lexer.kind()?;
    if !matches!(kind, Kind::Object | Kind::Array) {
        lexer.skip()?;
        return Ok(None);
    }
    if depth > MAX_DEPTH {
        lexer.skip()?;
        return Ok(Some(rejection(Code::InvalidMetadata, format!("\"metadata\" has more than {MAX_DEPTH} levels"))));
    }
    let mut found = None;
    let outer_keys = keys.len();
    lexer.open()?;
    if kind == Kind::Array {
        while lexer.element()? {
            found = found.or(problem(lexer, keys, depth + 1)?);
        }
    } else {
        while let Some(key) = lexer.key()? {
            keys.push(key);
            found = found.or(problem(lexer, keys, depth + 1)?);
        }
        found = found.or_else(|| {
            let key = repeated(keys[outer_keys..].iter().map(|key| &**key))?;
            Some(rejection(Code::DuplicateKey, format!("the key {} stands twice in \"metadata\"", quoted(key))))
        });
        keys.truncate(outer_keys);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(json: &str) -> Found<&str> {
        let mut lexer = Lexer::new(json.as_bytes()).unwrap();
        let found = read(&mut lexer, &mut Vec::new()).unwrap();
        lexer.end().unwrap();
        found
    }

    #[test]
    fn metadata_is_its_own_text() {
        for json in ["{}", r#"{ "floor": 2,  "tags": ["a", {"b": null}], "x": {"floor": 3} }"#] {
            assert_eq!(checked(json), Ok(json));
        }
        assert_eq!(checked("  {\"a\":1} "), Ok("{\"a\":1}"));
    }

    #[test]
    fn metadata_is_an_object_of_at_most_8_levels() {
        for (json, found) in [("null", "null"), ("[1]", "an array"), ("\"x\"", "a string"), ("false", "false")] {
            let detail = format!("\"metadata\" must be an object, found {found}");
            assert_eq!(checked(json), Err(rejection(Code::InvalidMetadata, detail)));
        }
        let nested = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1));
        assert!(checked(&nested(8)).is_ok());
        assert_eq!(checked(&nested(9)).unwrap_err().code, Code::InvalidMetadata);
    }

    #[test]
    fn a_key_stands_once_in_each_object_of_metadata() {
        for json in [r#"{"a":1,"b":2,"\u0061":3}"#, r#"{"b":[{"x":{"a":1,"a":1}}],"c":{}}"#] {
            let detail = "the key \"a\" stands twice in \"metadata\"";
            assert_eq!(checked(json), Err(rejection(Code::DuplicateKey, detail)));
        }
    }
}
