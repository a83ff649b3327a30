//! Reads the fields of a reading.

use std::borrow::Cow;

use super::super::{
    SyntaxError,
    context::Context,
    key::Key,
    labels,
    lexer::{Kind, Lexer},
    metadata,
    problem::{Parsed, duplicate_of, fill_known, not_an_object, quoted, rejection},
    time::{read_age, read_ts},
};
use super::Reading;
use crate::wire::{Code, Rejection, Sink};

impl<'b> Reading<'b> {
    /// Parses an element of `readings`. If the element is not an object, returns a rejection.
    pub(in crate::wire::json) fn read(
        &mut self,
        lexer: &mut Lexer<'b>,
        context: &mut Context<'b>,
        sink: &mut impl Sink,
    ) -> Result<Parsed<()>, SyntaxError> {
        let kind = lexer.kind()?;
        if kind != Kind::Object {
            lexer.skip()?;
            return Ok(Err(not_an_object(kind)));
        }
        self.clear();
        lexer.open()?;
        while let Some(key) = lexer.key()? {
            match Key::of(&key) {
                Some(known) if !matches!(known, Key::Readings | Key::Sequence) => {
                    self.read_field(known, &key, lexer, context)?;
                }
                _ => self.read_other(key, lexer, context, sink)?,
            }
        }
        Ok(Ok(()))
    }

    /// Reads the value of a known key.
    pub(in crate::wire::json) fn read_field(
        &mut self,
        known: Key,
        key: &str,
        lexer: &mut Lexer<'b>,
        context: &mut Context<'b>,
    ) -> Result<(), SyntaxError> {
        match known {
            Key::Device => {
                let found = read_device(key, lexer)?;
                fill_known(&mut self.device, known, key, found);
            }
            Key::Time => {
                let found = read_ts(key, lexer)?;
                fill_known(&mut self.ts_ms, known, key, found);
            }
            Key::Value => {
                self.once(known, key, |reading| &mut reading.has_value_key);
                let place = self.values.len();
                self.read_value(Cow::Borrowed("value"), lexer, context)?;
                self.value_at = (self.values.len() > place).then_some(place);
            }
            Key::Values => {
                self.once(known, key, |reading| &mut reading.has_values_key);
                self.read_values(key, lexer, context)?;
            }
            _ => self.read_rare(known, key, lexer, context)?,
        }
        Ok(())
    }

    #[inline(never)]
    fn read_rare(
        &mut self,
        known: Key,
        key: &str,
        lexer: &mut Lexer<'b>,
        context: &mut Context<'b>,
    ) -> Result<(), SyntaxError> {
        let rare = self.rare();
        match known {
            Key::Age => fill_known(&mut rare.age_ms, known, key, read_age(lexer)?),
            Key::Metric => {
                fill_known(&mut rare.names.metric, known, key, read_text(key, Code::InvalidMetricName, lexer)?);
            }
            Key::Unit => fill_known(&mut rare.names.unit, known, key, read_text(key, Code::InvalidLabel, lexer)?),
            Key::Labels => fill_known(&mut rare.names.labels, known, key, labels::read(lexer)?),
            Key::Metadata => {
                let found = metadata::read(key, lexer, context)?;
                fill_known(&mut rare.metadata, known, key, found);
            }
            Key::Device | Key::Time | Key::Value | Key::Values | Key::Readings | Key::Sequence => {
                lexer.skip()?;
            }
        }
        Ok(())
    }

    /// Reads the value of any other key.
    #[cold]
    pub(in crate::wire::json) fn read_other(
        &mut self,
        key: Cow<'b, str>,
        lexer: &mut Lexer<'b>,
        context: &mut Context<'b>,
        sink: &mut impl Sink,
    ) -> Result<(), SyntaxError> {
        if context.options.flat && !matches!(Key::of(&key), Some(Key::Readings | Key::Sequence)) {
            return self.read_flat(key, lexer, context, sink);
        }
        if let Some(unknown) = context.unknown_key(&key, lexer, sink)? {
            self.rare().unknown_key.get_or_insert(unknown);
        }
        Ok(())
    }

    fn read_values(&mut self, key: &str, lexer: &mut Lexer<'b>, context: &Context<'b>) -> Result<(), SyntaxError> {
        let kind = lexer.kind()?;
        if kind != Kind::Object {
            let at = lexer.offset();
            lexer.skip()?;
            if kind == Kind::Null {
                self.rare().has_null = true;
            } else {
                let detail = || format!("\"{key}\" must be an object of metrics and numbers, found {kind}");
                self.bad_value(context, || rejection(Code::InvalidValue, detail() + " " + &context.place(at)));
            }
            return Ok(());
        }
        lexer.open()?;
        while let Some(metric) = lexer.key()? {
            self.read_value(metric, lexer, context)?;
        }
        Ok(())
    }

    pub(in crate::wire::json) fn read_value(
        &mut self,
        metric: Cow<'b, str>,
        lexer: &mut Lexer<'b>,
        context: &Context<'b>,
    ) -> Result<(), SyntaxError> {
        let kind = lexer.kind()?;
        if kind == Kind::Number {
            let number = lexer.number()?.parse().expect("every JSON number is one to Rust");
            self.push(metric, number, context);
            return Ok(());
        }
        self.read_other_value(metric, kind, lexer, context)
    }

    /// Reads a value that is not a number: null is no value, a boolean is 1 or 0, others are rejected.
    #[cold]
    fn read_other_value(
        &mut self,
        metric: Cow<'b, str>,
        kind: Kind,
        lexer: &mut Lexer<'b>,
        context: &Context<'b>,
    ) -> Result<(), SyntaxError> {
        let at = lexer.offset();
        let text = lexer.skip()?;
        match kind {
            Kind::True | Kind::False => self.push(metric, f64::from(u8::from(kind == Kind::True)), context),
            Kind::Null => self.rare().has_null = true,
            Kind::NonFinite => self.bad_value(context, || {
                let detail = format!("the value of {} is not a finite number {}", quoted(&metric), context.place(at));
                rejection(Code::NonFiniteValue, detail)
            }),
            _ => self.bad_value(context, || {
                let is_quoted_number = text.len() < 32 && text.trim_matches('"').parse::<f64>().is_ok();
                let hint = if is_quoted_number { "; send numbers without quotation marks" } else { "" };
                let (name, place) = (quoted(&metric), context.place(at));
                let expected = format!("the value of {name} must be a number or a boolean, found {kind}");
                rejection(Code::InvalidValue, format!("{expected} {place}{hint}"))
            }),
        }
        Ok(())
    }

    fn push(&mut self, metric: Cow<'b, str>, number: f64, context: &Context<'b>) {
        if self.values.len() < context.limits.max_metrics {
            self.values.push((metric, number));
        } else {
            self.surplus += 1;
        }
    }

    /// Rejects a value by itself. Values beyond the limit are only counted.
    #[cold]
    pub(in crate::wire::json) fn bad_value(&mut self, context: &Context<'b>, problem: impl FnOnce() -> Rejection) {
        if self.values.len() + self.rare().bad_values.len() < context.limits.max_metrics {
            self.rare.bad_values.push(problem());
        } else {
            self.surplus += 1;
        }
    }

    fn once(&mut self, known: Key, key: &str, seen: impl Fn(&mut Self) -> &mut bool) {
        if std::mem::replace(seen(self), true) {
            self.reject(duplicate_of(known, key));
        }
    }
}

fn read_device<'b>(key: &str, lexer: &mut Lexer<'b>) -> Result<Parsed<Cow<'b, str>>, SyntaxError> {
    let kind = lexer.kind()?;
    if kind == Kind::String {
        return Ok(Ok(lexer.string()?));
    }
    lexer.skip()?;
    Ok(Err(rejection(Code::InvalidDeviceId, format!("\"{key}\" must be a string, found {kind}"))))
}

/// Reads a text; `None` for `null`.
fn read_text<'b>(key: &str, code: Code, lexer: &mut Lexer<'b>) -> Result<Parsed<Option<Cow<'b, str>>>, SyntaxError> {
    let kind = lexer.kind()?;
    if kind == Kind::String {
        return Ok(Ok(Some(lexer.string()?)));
    }
    lexer.skip()?;
    let problem = || rejection(code, format!("\"{key}\" must be a string, found {kind}"));
    Ok(if kind == Kind::Null { Ok(None) } else { Err(problem()) })
}
