//! One object of a body: its device, metadata and readings.

use std::borrow::Cow;

use super::{
    SyntaxError,
    lexer::{Kind, Lexer},
    metadata,
    problem::{Parsed, fill, not_an_object, rejection},
    reading::Reading,
};
use crate::wire::{Code, Incoming, Limits, Sink};

/// Parses objects and passes on their readings. Objects share its buffers.
#[derive(Debug)]
pub(super) struct Reader<'b> {
    limits: Limits,
    /// The number of objects with `readings` that were passed on.
    owners: u32,
    /// The reading in the object itself. Its time is the default of the `readings`.
    own: Reading<'b>,
    /// The current element of `readings`.
    inner: Reading<'b>,
    metadata_keys: Vec<Cow<'b, str>>,
}

/// The fields of an object, except those of its own reading. `None` is an absent key.
#[derive(Debug, Default)]
pub(super) struct Object<'b> {
    device: Option<Parsed<Cow<'b, str>>>,
    metadata: Option<Parsed<&'b str>>,
    seq: Option<u64>,
    /// A bookmark at the array, which is valid JSON.
    readings: Option<Parsed<Lexer<'b>>>,
}

/// The fields that all readings of an object share.
struct Owner<'b> {
    device: Cow<'b, str>,
    metadata: Option<&'b str>,
}

impl<'b> Reader<'b> {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, owners: 0, own: Reading::new(limits), inner: Reading::new(limits), metadata_keys: Vec::new() }
    }

    /// Parses the next value, which should be an object.
    pub(super) fn read(&mut self, lexer: &mut Lexer<'b>) -> Result<Parsed<Object<'b>>, SyntaxError> {
        let kind = lexer.kind()?;
        if kind != Kind::Object {
            lexer.skip()?;
            return Ok(Err(not_an_object(kind)));
        }
        let mut object = Object::default();
        self.own.clear();
        lexer.open()?;
        while let Some(key) = lexer.key()? {
            match &*key {
                "deviceId" => fill(&mut object.device, &key, read_device(lexer)?),
                "metadata" => {
                    let found = metadata::read(lexer, &mut self.metadata_keys, &self.limits)?;
                    fill(&mut object.metadata, &key, found);
                }
                "seq" => object.seq = read_seq(lexer)?,
                "readings" => fill(&mut object.readings, &key, skip_readings(lexer)?),
                _ if self.own.read_field(&key, lexer)? => {}
                _ => drop(lexer.skip()?),
            }
        }
        Ok(Ok(object))
    }

    /// Passes on the readings of the last parsed object.
    pub(super) fn emit(&mut self, object: Parsed<Object<'b>>, sink: &mut impl Sink) -> Result<(), SyntaxError> {
        let (owner, seq, readings) = match object {
            Ok(object) => (owner(object.device, object.metadata), object.seq, object.readings),
            Err(rejection) => {
                sink.reject(rejection);
                return Ok(());
            }
        };
        if let (Ok(owner), Some(seq)) = (&owner, seq) {
            sink.sequence(&owner.device, seq);
        }
        if readings.is_none() || self.own.has_values() {
            emit(&self.own, &owner, None, &Ok(None), sink);
        }
        match readings {
            None => {}
            Some(Ok(lexer)) => self.emit_readings(lexer, &owner, sink)?,
            Some(Err(rejection)) => sink.reject(rejection),
        }
        Ok(())
    }

    fn emit_readings(
        &mut self,
        mut lexer: Lexer<'b>,
        owner: &Parsed<Owner<'_>>,
        sink: &mut impl Sink,
    ) -> Result<(), SyntaxError> {
        let default_ts_ms = self.own.ts_ms(&Ok(None));
        let mut is_empty = true;
        let number = self.owners;
        self.owners += 1;
        lexer.open()?;
        while !sink.is_over() && lexer.element()? {
            is_empty = false;
            match self.inner.read(&mut lexer)? {
                Ok(()) => emit(&self.inner, owner, Some(number), &default_ts_ms, sink),
                Err(rejection) => sink.reject(rejection),
            }
        }
        if is_empty && !self.own.has_values() {
            sink.reject(rejection(Code::MissingValues, "\"readings\" is empty"));
        }
        Ok(())
    }
}

fn emit(
    reading: &Reading<'_>,
    owner: &Parsed<Owner<'_>>,
    number: Option<u32>,
    default_ts_ms: &Parsed<Option<i64>>,
    sink: &mut impl Sink,
) {
    let complete = || {
        let owner = owner.as_ref().map_err(Clone::clone)?;
        let ts_ms = reading.ts_ms(default_ts_ms)?;
        let values = reading.values()?;
        Ok(Incoming {
            device: &owner.device,
            metadata: owner.metadata,
            owner: number,
            ts_ms,
            values,
            measurement_bytes: 0,
        })
    };
    match complete() {
        Ok(incoming) => sink.reading(incoming),
        Err(rejection) => sink.reject(rejection),
    }
}

fn owner<'b>(device: Option<Parsed<Cow<'b, str>>>, metadata: Option<Parsed<&'b str>>) -> Parsed<Owner<'b>> {
    let device = device.unwrap_or_else(|| Err(rejection(Code::MissingDeviceId, "there is no \"deviceId\"")))?;
    Ok(Owner { device, metadata: metadata.transpose()? })
}

fn read_device<'b>(lexer: &mut Lexer<'b>) -> Result<Parsed<Cow<'b, str>>, SyntaxError> {
    let kind = lexer.kind()?;
    if kind == Kind::String {
        return Ok(Ok(lexer.string()?));
    }
    lexer.skip()?;
    Ok(Err(rejection(Code::InvalidDeviceId, format!("\"deviceId\" must be a string, found {kind}"))))
}

fn read_seq(lexer: &mut Lexer<'_>) -> Result<Option<u64>, SyntaxError> {
    if lexer.kind()? == Kind::Number {
        return Ok(lexer.number()?.parse().ok());
    }
    lexer.skip()?;
    Ok(None)
}

/// Skips `readings`: the key of their device may follow.
fn skip_readings<'b>(lexer: &mut Lexer<'b>) -> Result<Parsed<Lexer<'b>>, SyntaxError> {
    let kind = lexer.kind()?;
    let bookmark = lexer.clone();
    lexer.skip()?;
    if kind == Kind::Array {
        return Ok(Ok(bookmark));
    }
    Ok(Err(rejection(Code::MissingValues, format!("\"readings\" must be an array of readings, found {kind}"))))
}
