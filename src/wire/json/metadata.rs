//! `metadata`: an object that is checked by the rules of [`model`](crate::model) and passed on as its text.

use std::borrow::Cow;

use super::{
    SyntaxError,
    context::Context,
    lexer::{Kind, Lexer},
    problem::{Parsed, quoted, rejection, repeated},
};
use crate::model::{MetadataError, check_metadata_depth, check_metadata_key, check_metadata_number};
use crate::wire::{Code, Limits, Rejection};

/// Reads metadata. `null` is no metadata.
pub(super) fn read<'b>(
    key: &str,
    lexer: &mut Lexer<'b>,
    context: &mut Context<'b>,
) -> Result<Parsed<Option<&'b str>>, SyntaxError> {
    let kind = lexer.kind()?;
    if kind != Kind::Object {
        lexer.skip()?;
        let problem = || rejection(Code::InvalidMetadata, format!("\"{key}\" must be an object, found {kind}"));
        return Ok(if kind == Kind::Null { Ok(None) } else { Err(problem()) });
    }
    Ok(check(lexer, &mut context.metadata_keys, &context.limits, 1)?.map(Some))
}

/// Reads an object, and checks it by the rules of metadata.
///
/// `depth` is its level: 1 for metadata itself. `keys` is a buffer that calls reuse.
pub(in crate::wire) fn check<'b>(
    lexer: &mut Lexer<'b>,
    keys: &mut Vec<Cow<'b, str>>,
    limits: &Limits,
    depth: usize,
) -> Result<Parsed<&'b str>, SyntaxError> {
    let start = lexer.offset();
    keys.clear();
    let problem = problem(lexer, keys, depth, start.saturating_add(limits.max_metadata_bytes))?;
    let text = lexer.text_from(start);
    Ok(limits.check_metadata(text.len()).and_then(|()| problem.map_or(Ok(text), Err)))
}

#[cold]
fn invalid(error: MetadataError) -> Rejection {
    rejection(Code::InvalidMetadata, error.to_string())
}

/// Skips a value at `depth` and returns the first problem in it.
///
/// `keys` ends with the keys of the enclosing objects. Metadata that reaches beyond the offset `limit` is too
/// long in any case, so its further keys are not kept.
fn problem<'b>(
    lexer: &mut Lexer<'b>,
    keys: &mut Vec<Cow<'b, str>>,
    depth: usize,
    limit: usize,
) -> Result<Option<Rejection>, SyntaxError> {
    let kind = lexer.kind()?;
    if kind == Kind::Number {
        return Ok(check_metadata_number(lexer.number()?).err().map(invalid));
    }
    if !matches!(kind, Kind::Object | Kind::Array) {
        lexer.skip()?;
        return Ok((kind == Kind::NonFinite)
            .then(|| rejection(Code::InvalidMetadata, "metadata has neither NaN nor infinities")));
    }
    if let Err(error) = check_metadata_depth(depth) {
        lexer.skip()?;
        return Ok(Some(invalid(error)));
    }
    let mut found = None;
    let outer_keys = keys.len();
    lexer.open()?;
    if kind == Kind::Array {
        while lexer.element()? {
            found = found.or(problem(lexer, keys, depth + 1, limit)?);
        }
    } else {
        while let Some(key) = lexer.key()? {
            found = found.or(check_metadata_key(&key, depth).err().map(invalid));
            if lexer.offset() <= limit {
                keys.push(key);
            }
            found = found.or(problem(lexer, keys, depth + 1, limit)?);
        }
        found = found.or_else(|| {
            let key = repeated(keys[outer_keys..].iter().map(|key| &**key))?;
            Some(rejection(Code::DuplicateKey, format!("the key {} is duplicated in \"metadata\"", quoted(key))))
        });
        keys.truncate(outer_keys);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Limits;
    use crate::wire::json::Options;

    fn checked(json: &str) -> Parsed<&str> {
        let mut lexer = Lexer::new(json.as_bytes()).unwrap();
        let mut context = Context::new(Options::default(), Limits::NONE, "");
        let found = read("metadata", &mut lexer, &mut context).unwrap();
        lexer.end().unwrap();
        found.map(|text| text.unwrap_or("none"))
    }

    #[test]
    fn metadata_is_passed_on_as_its_text() {
        for json in ["{}", r#"{ "floor": 2,  "tags": ["a", {"b": null}], "x": {"floor": 3} }"#] {
            assert_eq!(checked(json), Ok(json));
        }
        assert_eq!(checked("  {\"a\":1} "), Ok("{\"a\":1}"));
    }

    #[test]
    fn metadata_is_an_object_of_at_most_8_levels() {
        for (json, found) in
            [("NaN", "NaN or an infinity"), ("[1]", "an array"), ("\"x\"", "a string"), ("false", "false")]
        {
            let detail = format!("\"metadata\" must be an object, found {found}");
            assert_eq!(checked(json), Err(rejection(Code::InvalidMetadata, detail)));
        }
        assert_eq!(checked("null"), Ok("none"));
        let nested = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1));
        assert!(checked(&nested(8)).is_ok());
        assert_eq!(checked(&nested(9)).unwrap_err().code, Code::InvalidMetadata);
    }

    #[test]
    fn metadata_that_a_store_would_refuse_or_alter_is_rejected() {
        for json in [
            r#"{"x":1e400}"#,
            r#"{"x":[{"y":-1e400}]}"#,
            r#"{"x":18446744073709551615}"#,
            r#"{"x":9223372036854775808}"#,
            r#"{"x\u0000":1}"#,
            "{\"a\u{FF0E}b\":1}",
            r#"{"":1}"#,
            r#"{"x":[NaN]}"#,
            r#"{"deviceId":"x"}"#,
        ] {
            assert_eq!(checked(json).map_err(|problem| problem.code), Err(Code::InvalidMetadata), "{json}");
        }
        for json in [r#"{"x":{"deviceId":9223372036854775807}}"#, r#"{"$a.b":"\u0000","c":[-0,1e300]}"#] {
            assert_eq!(checked(json), Ok(json));
        }
    }

    #[test]
    fn metadata_that_is_too_large_is_rejected_without_its_keys() {
        let json = format!("{{{}}}", vec![r#""k":1"#; 1_000].join(","));
        let mut lexer = Lexer::new(json.as_bytes()).unwrap();
        let limits = Limits { max_metadata_bytes: 60, ..Limits::NONE };
        let mut context = Context::new(Options::default(), limits, "");
        let refused = read("metadata", &mut lexer, &mut context).unwrap();
        assert_eq!(refused, Err(limits.check_metadata(json.len()).unwrap_err()));
        assert!(context.metadata_keys.capacity() < 20, "{}", context.metadata_keys.capacity());
    }

    #[test]
    fn a_key_occurs_once_in_each_object_of_metadata() {
        for json in [r#"{"a":1,"b":2,"\u0061":3}"#, r#"{"b":[{"x":{"a":1,"a":1}}],"c":{}}"#] {
            let detail = "the key \"a\" is duplicated in \"metadata\"";
            assert_eq!(checked(json), Err(rejection(Code::DuplicateKey, detail)));
        }
    }
}
