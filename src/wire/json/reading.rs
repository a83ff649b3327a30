//! One reading: the fields of an object, or of an element of its `readings`.

use std::borrow::Cow;

use super::{
    SyntaxError,
    context::Context,
    key::Key,
    labels,
    lexer::{Kind, Lexer},
    metadata,
    metric_names::{Names, OuterNames},
    problem::{Parsed, duplicate_key, duplicate_of, fill_known, not_an_object, quoted, rejection, repeated},
    time::{read_age, read_ts},
};
use crate::wire::{Code, Ignored, Limits, Rejection, Sink};

/// A metric and its value.
type Value<'b> = (Cow<'b, str>, f64);

/// The fields of a reading that were read so far. Readings share the buffer `values`.
#[derive(Debug, Default)]
pub(super) struct Reading<'b> {
    pub(super) device: Option<Parsed<Cow<'b, str>>>,
    ts_ms: Option<Parsed<Option<i64>>>,
    /// The first values, up to the limit of a reading.
    values: Vec<Value<'b>>,
    /// The number of values beyond the limit.
    surplus: usize,
    /// The index in `values` of the value of the key `value`.
    value_at: Option<usize>,
    has_value_key: bool,
    has_values_key: bool,
    rare: Rare<'b>,
    /// Whether `rare` has anything.
    has_rare: bool,
}

/// The fields that a plain reading does not have.
#[derive(Debug, Default)]
struct Rare<'b> {
    metadata: Option<Parsed<Option<&'b str>>>,
    age_ms: Option<Parsed<Option<i64>>>,
    names: Names<'b>,
    /// The values that are rejected by themselves.
    bad_values: Vec<Rejection>,
    /// The first unknown key.
    unknown_key: Option<Rejection>,
    /// The first problem of the whole reading.
    problem: Option<Rejection>,
    has_null: bool,
}

impl<'b> Reading<'b> {
    /// Parses an element of `readings`. If the element is not an object, returns a rejection.
    pub(super) fn read(
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
    pub(super) fn read_field(
        &mut self,
        known: Key,
        key: &str,
        lexer: &mut Lexer<'b>,
        context: &mut Context<'b>,
    ) -> Result<(), SyntaxError> {
        match known {
            Key::Device => fill_known(&mut self.device, known, key, read_device(key, lexer)?),
            Key::Time => fill_known(&mut self.ts_ms, known, key, read_ts(key, lexer)?),
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
            Key::MeasurementBytes => {
                fill_known(&mut rare.names.measurement_bytes, known, key, read_measurement_bytes(lexer)?);
            }
            Key::Metadata => fill_known(&mut rare.metadata, known, key, metadata::read(key, lexer, context)?),
            Key::Device | Key::Time | Key::Value | Key::Values | Key::Readings | Key::Sequence => {
                lexer.skip()?;
            }
        }
        Ok(())
    }

    /// Reads the value of any other key.
    #[cold]
    pub(super) fn read_other(
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

    pub(super) fn read_value(
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
    pub(super) fn bad_value(&mut self, context: &Context<'b>, problem: impl FnOnce() -> Rejection) {
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

    /// Clears all fields.
    pub(super) fn clear(&mut self) {
        self.values.clear();
        (self.device, self.ts_ms) = (None, None);
        (self.surplus, self.value_at) = (0, None);
        (self.has_value_key, self.has_values_key) = (false, false);
        if std::mem::take(&mut self.has_rare) {
            self.rare = Rare::default();
        }
    }

    /// Rejects the whole reading, unless there is a reason already.
    #[cold]
    pub(super) fn reject(&mut self, problem: Rejection) {
        self.rare().problem.get_or_insert(problem);
    }

    /// Whether the reading has a device, a time and values only.
    pub(super) const fn is_plain(&self) -> bool {
        !self.has_rare
    }

    /// The instant of a plain reading in Unix milliseconds.
    pub(super) fn plain_ts_ms(&self) -> Parsed<Option<i64>> {
        self.ts_ms.as_ref().map_or(Ok(None), Clone::clone)
    }

    /// The values of a plain reading: at least one, and each metric once.
    pub(super) fn plain_values(&self, limits: &Limits) -> Parsed<&[Value<'b>]> {
        limits.check_metrics(self.values.len() + self.surplus)?;
        if self.values.is_empty() {
            return Err(self.without_values());
        }
        match repeated(self.values.iter().map(|(metric, _)| &**metric)) {
            Some(metric) => Err(duplicate_key(metric)),
            None => Ok(&self.values),
        }
    }

    /// The reason to reject all readings of this object: an unknown key.
    pub(super) fn take_unknown_key(&mut self) -> Option<Rejection> {
        if self.has_rare { self.rare.unknown_key.take() } else { None }
    }

    pub(super) const fn has_metadata(&self) -> bool {
        self.has_rare && self.rare.metadata.is_some()
    }

    /// The metadata, if there is any.
    pub(super) fn metadata(&self) -> Parsed<Option<&'b str>> {
        match &self.rare.metadata {
            Some(found) if self.has_rare => found.clone(),
            _ => Ok(None),
        }
    }

    /// Whether there is a value, valid or not, or a problem of the whole reading.
    pub(super) fn has_values(&self) -> bool {
        !self.values.is_empty()
            || self.surplus > 0
            || self.has_rare && (self.rare.problem.is_some() || !self.rare.bad_values.is_empty())
    }

    /// The instant in Unix milliseconds, or `default` if the reading has none.
    pub(super) fn ts_ms(&self, now_ms: i64, default: &Parsed<Option<i64>>) -> Parsed<Option<i64>> {
        if self.has_rare && self.rare.age_ms.is_some() {
            return self.ts_ms_by_age(now_ms, default);
        }
        match &self.ts_ms {
            None | Some(Ok(None)) => default.clone(),
            Some(found) => found.clone(),
        }
    }

    #[cold]
    fn ts_ms_by_age(&self, now_ms: i64, default: &Parsed<Option<i64>>) -> Parsed<Option<i64>> {
        let ts_ms = self.ts_ms.clone().transpose()?.flatten();
        match (ts_ms, self.rare.age_ms.clone().transpose()?.flatten()) {
            (Some(_), Some(_)) => {
                let names = "a reading has either a time (\"ts\", \"timestamp\" or \"time\") or an \"ageMs\"";
                Err(rejection(Code::DuplicateKey, format!("{names}, and this has both")))
            }
            (None, Some(age_ms)) => Ok(Some(now_ms.saturating_sub(age_ms))),
            (Some(ts_ms), None) => Ok(Some(ts_ms)),
            (None, None) => default.clone(),
        }
    }

    /// Whether the reading has an age in place of a time.
    pub(super) fn has_age(&self) -> bool {
        self.has_rare && matches!(self.rare.age_ms, Some(Ok(Some(_))))
    }

    /// Whether the reading has no time of its own.
    pub(super) fn needs_time(&self) -> bool {
        let has_age = self.has_rare && !matches!(self.rare.age_ms, None | Some(Ok(None)));
        !has_age && matches!(self.ts_ms, None | Some(Ok(None)))
    }

    /// The keys of the time that are present.
    pub(super) fn time_keys(&self) -> impl Iterator<Item = &'static str> {
        let keys = [("ts", self.ts_ms.is_some()), ("ageMs", self.has_rare && self.rare.age_ms.is_some())];
        keys.into_iter().filter_map(|(key, is_present)| is_present.then_some(key))
    }

    /// The defaults of the names of `readings`, if this object has any.
    pub(super) fn outer_names(&self) -> Option<OuterNames<'_, 'b>> {
        let Names { metric, unit, labels, measurement_bytes } = &self.rare.names;
        let has_any = metric.is_some() || unit.is_some() || labels.is_some() || measurement_bytes.is_some();
        let has_names = self.has_rare && has_any;
        has_names.then(|| OuterNames::new(&self.rare.names))
    }

    /// The valid values (at least one, and each metric once), the rejections of the other values, and the
    /// length of the measurement that begins the metric names.
    pub(super) fn values(
        &mut self,
        outer: Option<&OuterNames<'_, 'b>>,
        context: &Context<'b>,
        sink: &mut impl Sink,
    ) -> Parsed<(&[Value<'b>], Vec<Rejection>, u8)> {
        let (mut bad_values, mut measurement_bytes) = (Vec::new(), 0);
        if self.has_rare || outer.is_some() {
            (bad_values, measurement_bytes) = self.complete(outer, context, sink)?;
        }
        context.limits.check_metrics(self.values.len() + self.surplus + bad_values.len())?;
        if self.values.is_empty() && !bad_values.is_empty() {
            return Err(bad_values.swap_remove(0));
        }
        Ok((self.plain_values(&context.limits)?, bad_values, measurement_bytes))
    }

    #[cold]
    fn without_values(&self) -> Rejection {
        let detail = match (self.rare.has_null && self.has_rare, self.has_values_key) {
            (true, _) => "there is no value except null, which stands for none",
            (false, true) => "\"values\" is empty",
            (false, false) => "there is no \"value\" and no \"values\"",
        };
        rejection(Code::MissingValues, detail)
    }

    /// Completes the names of the metrics.
    ///
    /// Returns the rejections of single values, and the length of the measurement.
    #[cold]
    fn complete(
        &mut self,
        outer: Option<&OuterNames<'_, 'b>>,
        context: &Context<'b>,
        sink: &mut impl Sink,
    ) -> Parsed<(Vec<Rejection>, u8)> {
        if let Some(problem) = self.rare.problem.take() {
            return Err(problem);
        }
        let mut bad_values = std::mem::take(&mut self.rare.bad_values);
        if self.has_value_key {
            outer.inspect(|outer| outer.describe(&self.rare.names, self.value_at.is_some()));
        } else {
            for (key, _) in self.rare.names.of_value().iter().filter(|(_, is_present)| *is_present) {
                if context.options.flat {
                    sink.ignore(Ignored::String, key);
                } else {
                    let detail = format!("\"{key}\" describes \"value\", and there is none");
                    bad_values.push(rejection(Code::InvalidValue, detail));
                }
            }
        }
        self.rare.names.complete(&mut self.values, self.value_at, outer, &mut bad_values)?;
        let measurement_bytes = self.rare.names.measurement_bytes(outer, &self.values)?;
        Ok((bad_values, measurement_bytes))
    }

    fn rare(&mut self) -> &mut Rare<'b> {
        self.has_rare = true;
        &mut self.rare
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

/// Reads the length of a measurement. Null is no length.
fn read_measurement_bytes(lexer: &mut Lexer<'_>) -> Result<Parsed<Option<u8>>, SyntaxError> {
    const EXPECTED: &str = "\"measurementBytes\" must be a whole number from 0 to 255";
    let kind = lexer.kind()?;
    let number: Option<f64> = lexer.skip()?.parse().ok().filter(|_| kind == Kind::Number);
    let bytes = number.filter(|number| number.fract() == 0.0 && (0.0..256.0).contains(number));
    let problem = || rejection(Code::InvalidMetricName, EXPECTED);
    Ok(if kind == Kind::Null { Ok(None) } else { bytes.map(|bytes| Some(bytes as u8)).ok_or_else(problem) })
}
