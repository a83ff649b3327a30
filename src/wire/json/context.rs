//! The state that the parsers of objects and readings share: options, limits, buffers.

use std::borrow::Cow;

use super::{
    Options, SyntaxError,
    key::Key,
    lexer::{Kind, Lexer},
    problem::{quoted, rejection},
};
use crate::wire::{Code, Ignored, Limits, Rejection, Sink};

/// The most unknown keys of a body for which a hint is computed.
const MAX_HINTS: u32 = 100;

/// The end of a hint: settings for payloads that cannot be changed.
///
/// It is short, because it may be in the rejection of each reading.
const OTHER_FORMS: &str = "(other forms: ingest.json.flat, [[webhook]])";

/// The options, the limits and the buffers of a body.
#[derive(Debug)]
pub(super) struct Context<'b> {
    pub(super) options: Options<'b>,
    pub(super) limits: Limits,
    /// The text after a position in a message: empty or ` of the line`.
    ///
    /// In NDJSON, positions count from the start of the line.
    pub(super) of_the_line: &'static str,
    /// How many hints may still be computed.
    hints_left: u32,
    /// A buffer for [`metadata::read`](super::metadata::read).
    pub(super) metadata_keys: Vec<Cow<'b, str>>,
}

impl<'b> Context<'b> {
    pub(super) const fn new(options: Options<'b>, limits: Limits, of_the_line: &'static str) -> Self {
        Self { options, limits, of_the_line, hints_left: MAX_HINTS, metadata_keys: Vec::new() }
    }

    /// The text of a position in a message: `at byte 5`.
    pub(super) fn place(&self, offset: usize) -> String {
        format!("at byte {}{}", offset + 1, self.of_the_line)
    }

    /// Skips the value of an unknown key.
    ///
    /// Returns the rejection of its reading, unless unknown keys are ignored.
    #[cold]
    pub(super) fn unknown_key(
        &mut self,
        key: &str,
        lexer: &mut Lexer<'_>,
        sink: &mut impl Sink,
    ) -> Result<Option<Rejection>, SyntaxError> {
        let (at, kind) = (lexer.key_offset(), lexer.kind()?);
        lexer.skip()?;
        if self.options.ignore_unknown_keys {
            sink.ignore(Ignored::UnknownKey, key);
            return Ok(None);
        }
        let hint = self.hint(key, kind);
        Ok(Some(rejection(Code::UnknownKey, format!("unknown key {} {}{hint}", quoted(key), self.place(at)))))
    }

    fn hint(&mut self, key: &str, kind: Kind) -> String {
        let Some(left) = self.hints_left.checked_sub(1) else { return String::new() };
        self.hints_left = left;
        match (Key::meant_by(key), kind) {
            _ if Key::of(key).is_some() => "; it has its place in the outermost object only".to_owned(),
            _ if matches!(key, "bn" | "bt" | "n") => "; SenML is of type application/senml+json".to_owned(),
            (Some("deviceId"), _) => format!("; did you mean \"deviceId\"? {OTHER_FORMS}"),
            (Some(meant), _) => format!("; did you mean \"{meant}\"?"),
            (None, Kind::Number | Kind::True | Kind::False) => {
                format!("; metrics belong into \"values\" {OTHER_FORMS}")
            }
            _ => String::new(),
        }
    }
}
