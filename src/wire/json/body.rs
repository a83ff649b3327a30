//! Parses a body: its lines or elements, the objects in them, and their readings.
//!
//! [`parse`], [`parse_lines`] and [`parse_value_or_lines`] find the objects. [`Reader::read`] takes the keys
//! of one object, and [`Reader::emit`] passes its readings on. These are two steps, because keys may be in
//! any order, and because text after the object may not be JSON. The second step also parses the array
//! `readings`.

use std::borrow::Cow;

use super::{
    Options, SyntaxError,
    context::Context,
    key::Key,
    lexer::{Kind, Lexer},
    metric_names::OuterNames,
    problem::{Parsed, duplicate_of, fill_known, not_an_object, rejection},
    reading::Reading,
};
use crate::wire::{Code, Ignored, Incoming, Limits, Rejection, Sink};

/// The text after a position that counts from the start of a line.
const OF_THE_LINE: &str = " of the line";

/// Parses a body that is one JSON value: an object, or an array of objects.
///
/// Skips a byte order mark.
///
/// If the first line is a whole object and another value follows on a later line, the body is NDJSON.
///
/// # Errors
/// When the body is not JSON. `sink` may have the readings before the error; the caller must drop them.
pub fn parse(body: &[u8], options: &Options<'_>, sink: &mut impl Sink) -> Result<(), SyntaxError> {
    let mut lexer = Lexer::new(body)?;
    if lexer.is_at_end() {
        return Err(SyntaxError::new(
            lexer.offset(),
            "expected an object or an array of objects but the body is empty",
        ));
    }
    let mut reader = Reader::new(options, sink.limits(), "");
    if lexer.kind()? != Kind::Object {
        return read_value(lexer, &mut reader, sink);
    }
    let start = lexer.offset();
    let object = reader.read(&mut lexer, sink)?;
    let end = lexer.offset();
    if lexer.is_at_end() {
        return reader.emit(object, sink);
    }
    let is_one_line = !body[start..end].contains(&b'\n');
    let line_of = |offset: usize| 1 + memchr::memchr_iter(b'\n', &body[..offset]).count() as u64;
    match body[end..lexer.offset()].iter().position(|&byte| byte == b'\n') {
        Some(line_end) if is_one_line && matches!(lexer.byte(), Some(b'{' | b'[')) => {
            sink.line(line_of(start));
            reader.emit(object, sink)?;
            reader.start_lines();
            let rest = end + line_end + 1;
            read_lines(&body[rest..], line_of(rest), &mut reader, sink);
            Ok(())
        }
        _ if lexer.byte() == Some(b'{') => Err(SyntaxError::new(
            lexer.offset(),
            "expected nothing after the value, or a value on each line, which is NDJSON,",
        )),
        _ => lexer.end(),
    }
}

/// Parses a body with one JSON value per line, an object or an array of objects.
///
/// Blank lines are skipped.
///
/// It calls [`Sink::line`] before each line that is not blank. A line that is not JSON is one rejection,
/// whose detail has the position in bytes from the start of the line.
pub fn parse_lines(body: &[u8], options: &Options<'_>, sink: &mut impl Sink) {
    read_lines(body, 1, &mut Reader::new(options, sink.limits(), OF_THE_LINE), sink);
}

/// Parses a body that is one JSON value, which may have line breaks; any other body as [`parse_lines`] does.
///
/// No reading of a value or line that is not JSON is passed on, so the body may be a part of a batch.
pub fn parse_value_or_lines(body: &[u8], options: &Options<'_>, sink: &mut impl Sink) {
    let has_lines = memchr::memchr(b'\n', body.trim_ascii()).is_some();
    let lexer = has_lines.then(|| Lexer::new(body)).and_then(Result::ok);
    match lexer.filter(|lexer| check(lexer).is_ok()) {
        Some(lexer) if !sink.is_over() => {
            let mut reader = Reader::new(options, sink.limits(), "");
            if let Err(error) = read_value(lexer, &mut reader, sink) {
                sink.reject(rejection(Code::InvalidJson, error.to_string()));
            }
        }
        _ => parse_lines(body, options, sink),
    }
}

/// Reads lines. `first` is the number of the first line.
fn read_lines<'b>(body: &'b [u8], first: u64, reader: &mut Reader<'b>, sink: &mut impl Sink) {
    for (number, line) in (first..).zip(body.split(|&byte| byte == b'\n')) {
        if line.trim_ascii().is_empty() {
            continue;
        }
        if sink.is_over() {
            return;
        }
        sink.line(number);
        if let Err(error) = read_line(line, reader, sink) {
            sink.reject(rejection(Code::InvalidJson, format!("{error}{OF_THE_LINE}")));
        }
    }
}

fn read_line<'b>(line: &'b [u8], reader: &mut Reader<'b>, sink: &mut impl Sink) -> Result<(), SyntaxError> {
    let mut lexer = Lexer::new(line)?;
    if lexer.kind()? == Kind::Array {
        // A line that is not JSON must yield a rejection and no readings. So an array is checked to its end
        // before its readings are passed on.
        check(&lexer)?;
    }
    read_value(lexer, reader, sink)
}

/// Checks that the text from here on is one JSON value.
fn check(lexer: &Lexer<'_>) -> Result<(), SyntaxError> {
    let mut ahead = lexer.clone();
    ahead.skip()?;
    ahead.end()
}

fn read_value<'b>(mut lexer: Lexer<'b>, reader: &mut Reader<'b>, sink: &mut impl Sink) -> Result<(), SyntaxError> {
    if lexer.kind()? == Kind::Array {
        lexer.open()?;
        while lexer.element()? {
            let object = reader.read(&mut lexer, sink)?;
            reader.emit(object, sink)?;
            if sink.is_over() {
                return Ok(());
            }
        }
        return lexer.end();
    }
    let object = reader.read(&mut lexer, sink)?;
    lexer.end()?;
    reader.emit(object, sink)
}

/// Parses objects and passes on their readings. All objects share the buffers.
#[derive(Debug)]
struct Reader<'b> {
    context: Context<'b>,
    /// The number of owners that were passed on.
    owners: u32,
    /// The reading in the object itself.
    ///
    /// Its time, names and labels are the defaults of the `readings`.
    own: Reading<'b>,
    /// The current element of `readings`.
    inner: Reading<'b>,
}

/// The fields of an object besides its own reading. `None` is an absent key.
#[derive(Debug, Default)]
struct Object<'b> {
    seq: Option<u64>,
    has_seq_key: bool,
    /// A lexer at the array `readings`, which is known to be valid JSON.
    readings: Option<Parsed<Lexer<'b>>>,
    /// Whether the object is a line of a dead-letter file.
    is_dead_letter: bool,
}

/// The fields that the readings of an object share.
#[derive(Debug)]
struct Owner<'b> {
    /// See [`Incoming::owner`].
    number: Option<u32>,
    device: Option<Cow<'b, str>>,
    metadata: Option<&'b str>,
}

/// The owner of one reading.
#[derive(Debug)]
struct OwnerOfReading<'o> {
    number: Option<u32>,
    device: &'o str,
    metadata: Option<&'o str>,
}

impl<'b> Reader<'b> {
    fn new(options: &Options<'b>, limits: Limits, of_the_line: &'static str) -> Self {
        let context = Context::new(*options, limits, of_the_line);
        Self { context, owners: 0, own: Reading::default(), inner: Reading::default() }
    }

    /// From now on, places count from the start of the current line.
    const fn start_lines(&mut self) {
        self.context.of_the_line = OF_THE_LINE;
    }

    /// Parses the next value, which should be an object.
    fn read(&mut self, lexer: &mut Lexer<'b>, sink: &mut impl Sink) -> Result<Parsed<Object<'b>>, SyntaxError> {
        let kind = lexer.kind()?;
        if kind != Kind::Object {
            lexer.skip()?;
            return Ok(Err(not_an_object(kind)));
        }
        let mut object = Object::default();
        self.own.clear();
        lexer.open()?;
        while let Some(key) = lexer.key()? {
            match Key::of(&key) {
                Some(known @ Key::Readings) => fill_known(&mut object.readings, known, &key, skip_readings(lexer)?),
                Some(known @ Key::Sequence) => {
                    object.seq = read_seq(lexer, sink)?;
                    if std::mem::replace(&mut object.has_seq_key, true) {
                        object.seq = None;
                        self.own.reject(duplicate_of(known, &key));
                    }
                }
                Some(known) => self.own.read_field(known, &key, lexer, &mut self.context)?,
                None if object.has_note(&key) => drop(lexer.skip()?),
                None => self.own.read_other(key, lexer, &mut self.context, sink)?,
            }
        }
        if self.own.device.is_none() {
            self.own.device = self.context.options.device.map(|device| Ok(Cow::Borrowed(device)));
        }
        Ok(Ok(object))
    }

    /// Passes on the readings of the last parsed object.
    fn emit(&mut self, object: Parsed<Object<'b>>, sink: &mut impl Sink) -> Result<(), SyntaxError> {
        let Object { seq, readings, .. } = match object {
            Ok(object) => object,
            Err(rejection) => {
                sink.reject(rejection);
                return Ok(());
            }
        };
        if readings.is_none() && seq.is_none() && self.own.is_plain() {
            match self.plain() {
                Ok(incoming) => sink.reading(incoming),
                Err(rejection) => sink.reject(rejection),
            }
            return Ok(());
        }
        let owner = self.owner();
        if let (Ok(Owner { device: Some(device), .. }), Some(seq)) = (&owner, seq) {
            sink.sequence(device, seq);
        }
        let has_own = self.own.has_values();
        if readings.is_none() || has_own {
            let owner = owner.as_ref().map_err(Clone::clone).and_then(Owner::by_ref);
            emit(&mut self.own, None, owner, (&Ok(None), false), &self.context, sink);
        }
        match readings {
            None => {}
            Some(Ok(lexer)) => self.emit_readings(lexer, owner, has_own, sink)?,
            Some(Err(rejection)) => sink.reject(rejection),
        }
        Ok(())
    }

    /// The reading of an object that has a device, a time and values only.
    ///
    /// Most objects are like this, so they take this short way.
    fn plain(&self) -> Parsed<Incoming<'_>> {
        let device = match &self.own.device {
            Some(device) => device.as_deref().map_err(Clone::clone)?,
            None => return Err(without_device()),
        };
        let ts_ms = self.own.plain_ts_ms()?;
        let values = self.own.plain_values(&self.context.limits)?;
        Ok(Incoming { device, metadata: None, owner: None, ts_ms, values, measurement_bytes: 0 })
    }

    fn emit_readings(
        &mut self,
        mut lexer: Lexer<'b>,
        mut owner: Parsed<Owner<'b>>,
        has_own: bool,
        sink: &mut impl Sink,
    ) -> Result<(), SyntaxError> {
        let Self { context, owners, own, inner } = self;
        let (default_ts_ms, has_age) = (own.ts_ms(context.options.now_ms, &Ok(None)), own.has_age());
        let names = own.outer_names();
        let (mut is_empty, mut needs_time) = (true, false);
        if let Ok(owner) = &mut owner {
            owner.number = Some(next(owners));
        }
        lexer.open()?;
        while !sink.is_over() && lexer.element()? {
            is_empty = false;
            if let Err(rejection) = inner.read(&mut lexer, context, sink)? {
                sink.reject(rejection);
                continue;
            }
            needs_time |= inner.needs_time();
            let device = inner.device.take();
            let of_reading = if device.is_none() && !inner.has_metadata() {
                owner.as_ref().map_err(Clone::clone).and_then(Owner::by_ref)
            } else {
                owner
                    .as_mut()
                    .map_err(|problem| problem.clone())
                    .and_then(|owner| owner.of_reading(device.as_ref(), inner.metadata()?, owners))
            };
            emit(inner, names.as_ref(), of_reading, (&default_ts_ms, has_age), context, sink);
        }
        if !is_empty && !has_own {
            if let Some(names) = names {
                names.finish(sink);
            }
            if default_ts_ms.is_err() && !needs_time {
                own.time_keys().for_each(|key| sink.ignore(Ignored::UnknownKey, key));
            }
        }
        if is_empty && !has_own {
            sink.reject(rejection(Code::MissingValues, "\"readings\" is empty"));
        }
        Ok(())
    }

    /// The device and the metadata of the object.
    fn owner(&mut self) -> Parsed<Owner<'b>> {
        if let Some(unknown) = self.own.take_unknown_key() {
            return Err(unknown);
        }
        Ok(Owner { number: None, device: self.own.device.take().transpose()?, metadata: self.own.metadata()? })
    }
}

impl Object<'_> {
    /// Whether the key is a note that a dead-letter file adds to a reading.
    #[cold]
    fn has_note(&mut self, key: &str) -> bool {
        self.is_dead_letter |= key == "refusedAt";
        self.is_dead_letter && matches!(key, "refusedAt" | "reason" | "detail" | "replaces")
    }
}

impl<'b> Owner<'b> {
    fn by_ref(&self) -> Parsed<OwnerOfReading<'_>> {
        let device = self.device.as_deref().ok_or_else(without_device)?;
        Ok(OwnerOfReading { number: self.number, device, metadata: self.metadata })
    }

    /// The owner of a reading that names a device or has metadata.
    ///
    /// If the reading is of the object's device, its metadata replaces the object's metadata, for this
    /// reading and all later ones. A reading of another device has only its own metadata.
    #[cold]
    fn of_reading<'o>(
        &'o mut self,
        device: Option<&'o Parsed<Cow<'b, str>>>,
        metadata: Option<&'b str>,
        owners: &mut u32,
    ) -> Parsed<OwnerOfReading<'o>> {
        if let Some(device) = device {
            let device = device.as_deref().map_err(Clone::clone)?;
            if self.device.as_deref() != Some(device) {
                if self.device.is_none() && self.metadata.is_some() {
                    let detail = "beside \"readings\" there is \"metadata\" and no \"deviceId\"";
                    return Err(rejection(Code::MissingDeviceId, detail));
                }
                return Ok(OwnerOfReading { number: None, device, metadata });
            }
        }
        if metadata.is_some() {
            (self.metadata, self.number) = (metadata, Some(next(owners)));
        }
        self.by_ref()
    }
}

#[cold]
fn without_device() -> Rejection {
    rejection(Code::MissingDeviceId, "there is no \"deviceId\"")
}

fn next(owners: &mut u32) -> u32 {
    *owners += 1;
    *owners - 1
}

fn emit<'b>(
    reading: &mut Reading<'b>,
    outer: Option<&OuterNames<'_, 'b>>,
    owner: Parsed<OwnerOfReading<'_>>,
    (default_ts_ms, is_default_relative): (&Parsed<Option<i64>>, bool),
    context: &Context<'b>,
    sink: &mut impl Sink,
) {
    let is_relative = reading.has_age() || is_default_relative && reading.needs_time();
    let unknown_key = reading.take_unknown_key();
    let complete = |sink: &mut _| {
        let OwnerOfReading { number, device, metadata } = unknown_key.map_or(owner, Err)?;
        let ts_ms = reading.ts_ms(context.options.now_ms, default_ts_ms)?;
        let (values, bad_values, measurement_bytes) = reading.values(outer, context, sink)?;
        let incoming = Incoming { device, metadata, owner: number, ts_ms, values, measurement_bytes };
        Ok((incoming, bad_values))
    };
    match complete(sink) {
        Ok((incoming, bad_values)) => {
            for problem in bad_values {
                sink.reject_value(problem);
            }
            if is_relative {
                sink.relative_time();
            }
            sink.reading(incoming);
        }
        Err(rejection) => sink.reject(rejection),
    }
}

/// Reads a sequence number. Any other value is ignored, and counted.
fn read_seq(lexer: &mut Lexer<'_>, sink: &mut impl Sink) -> Result<Option<u64>, SyntaxError> {
    let kind = lexer.kind()?;
    let number = lexer.skip()?.parse().ok().filter(|_| kind == Kind::Number);
    if number.is_none() && kind != Kind::Null {
        sink.ignore(Ignored::UnknownKey, "seq");
    }
    Ok(number)
}

/// Skips `readings`, because the key of their device may follow.
///
/// Returns a lexer at the array.
fn skip_readings<'b>(lexer: &mut Lexer<'b>) -> Result<Parsed<Lexer<'b>>, SyntaxError> {
    let kind = lexer.kind()?;
    let bookmark = lexer.clone();
    lexer.skip()?;
    if kind == Kind::Array {
        return Ok(Ok(bookmark));
    }
    Ok(Err(rejection(Code::MissingValues, format!("\"readings\" must be an array of readings, found {kind}"))))
}
