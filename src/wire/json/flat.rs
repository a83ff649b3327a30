//! Flat objects (`ingest.json.flat`): an unknown key is a metric, and `{"a": {"b": 1}}` is the metric `a.b`.

use std::borrow::Cow;

use super::{
    SyntaxError,
    context::Context,
    lexer::{Kind, Lexer},
    problem::{quoted, rejection},
    reading::Reading,
};
use crate::common::work;
use crate::model::METRIC_MAX_BYTES;
use crate::wire::{Code, Ignored, Sink};

/// The most levels of objects below the reading.
const MAX_LEVELS: usize = 8;

/// The keys from the reading to a value, joined with dots, which name the metric.
///
/// In `{"a": {"b": 1}}` the path is `a` at the object, and `a.b` at the value.
#[derive(Debug, Default)]
struct Path {
    text: String,
    levels: usize,
    /// Whether the last key is left out: with it, the metric name would be too long.
    is_too_long: bool,
}

impl Path {
    /// Adds a key. Returns the length to go back to.
    fn push(&mut self, key: &str) -> usize {
        let outer_bytes = self.text.len();
        self.levels += 1;
        self.is_too_long = outer_bytes + ".".len() + key.len() > METRIC_MAX_BYTES;
        if !self.is_too_long {
            if self.levels > 1 {
                self.text.push('.');
            }
            self.text.push_str(key);
            work::count(1 + key.len());
        }
        outer_bytes
    }

    fn pop(&mut self, outer_bytes: usize) {
        self.text.truncate(outer_bytes);
        self.levels -= 1;
        self.is_too_long = false;
    }
}

impl<'b> Reading<'b> {
    /// Reads the value of an unknown key as a metric, or as an object of metrics.
    pub(super) fn read_flat(
        &mut self,
        key: Cow<'b, str>,
        lexer: &mut Lexer<'b>,
        context: &Context<'b>,
        sink: &mut impl Sink,
    ) -> Result<(), SyntaxError> {
        match lexer.kind()? {
            Kind::Object => {
                let mut path = Path::default();
                path.push(&key);
                self.read_level(&mut path, lexer, context, sink)
            }
            Kind::String => {
                sink.ignore(Ignored::String, &key);
                lexer.skip().map(drop)
            }
            _ => self.read_value(key, lexer, context),
        }
    }

    /// Reads the object at a path.
    fn read_level(
        &mut self,
        path: &mut Path,
        lexer: &mut Lexer<'b>,
        context: &Context<'b>,
        sink: &mut impl Sink,
    ) -> Result<(), SyntaxError> {
        if path.is_too_long || path.levels > MAX_LEVELS {
            return self.reject_path(path, lexer, context);
        }
        lexer.open()?;
        while let Some(key) = lexer.key()? {
            let kind = lexer.kind()?;
            let outer_bytes = path.push(&key);
            match kind {
                Kind::String => {
                    sink.ignore(Ignored::String, &path.text);
                    lexer.skip()?;
                }
                Kind::Object => self.read_level(path, lexer, context, sink)?,
                _ if path.is_too_long => self.reject_path(path, lexer, context)?,
                _ => {
                    work::count(path.text.len());
                    self.read_value(Cow::Owned(path.text.clone()), lexer, context)?;
                }
            }
            path.pop(outer_bytes);
        }
        Ok(())
    }

    #[cold]
    fn reject_path(&mut self, path: &Path, lexer: &mut Lexer<'b>, context: &Context<'b>) -> Result<(), SyntaxError> {
        let at = lexer.offset();
        lexer.skip()?;
        self.bad_value(context, || {
            let (start, place) = (quoted(&path.text), context.place(at));
            let detail = if path.is_too_long {
                format!("a metric name has at most {METRIC_MAX_BYTES} bytes, the path after {start} is longer {place}")
            } else {
                format!("the metrics below {start} have more than {MAX_LEVELS} levels {place}")
            };
            rejection(Code::InvalidMetricName, detail)
        });
        Ok(())
    }
}
