//! Resolving records: what a record measures, once the base fields before it are applied.

use std::borrow::Cow;

use super::{Options, field::Field, name::check_name, record::Record};
use crate::wire::{
    Code,
    problem::{Found, rejection},
};

/// Times from here on are absolute, in seconds since 1970; below, they are relative to now.
const FIRST_ABSOLUTE_S: f64 = 268_435_456.0; // 2^28

/// Up to here, a float holds every millisecond.
const LAST_EXACT_MS: f64 = 9_007_199_254_740_992.0; // 2^53

/// What a record measures: at least a value or a sum.
#[derive(Debug, PartialEq)]
pub(super) struct Measured<'b> {
    pub(super) device: String,
    pub(super) metric: String,
    pub(super) unit: Option<Cow<'b, str>>,
    /// In Unix milliseconds; `None` is the server's clock.
    pub(super) ts_ms: Option<i64>,
    pub(super) value: Option<f64>,
    pub(super) sum: Option<f64>,
}

/// Goes through the records of a pack in order and keeps the base fields that hold.
#[derive(Debug)]
pub(super) struct Resolver<'o, 'b> {
    options: &'o Options,
    name: Found<Option<Cow<'b, str>>>,
    time: Found<Option<f64>>,
    unit: Found<Option<Cow<'b, str>>>,
    value: Found<Option<f64>>,
    sum: Found<Option<f64>>,
}

impl<'o, 'b> Resolver<'o, 'b> {
    pub(super) const fn new(options: &'o Options) -> Self {
        Self { options, name: Ok(None), time: Ok(None), unit: Ok(None), value: Ok(None), sum: Ok(None) }
    }

    /// What the next record measures; `None` for a record of good base fields only.
    pub(super) fn resolve(&mut self, record: &Record<'b>) -> Option<Found<Measured<'b>>> {
        renew(&mut self.name, record.has(Field::BaseName), || record.text(Field::BaseName));
        renew(&mut self.time, record.has(Field::BaseTime), || record.number(Field::BaseTime));
        renew(&mut self.unit, record.has(Field::BaseUnit), || record.text(Field::BaseUnit));
        renew(&mut self.value, record.has(Field::BaseValue), || record.number(Field::BaseValue));
        renew(&mut self.sum, record.has(Field::BaseSum), || record.number(Field::BaseSum));
        match record.check_base() {
            Err(problem) => Some(Err(problem)),
            Ok(()) if record.is_base() => None,
            Ok(()) => Some(self.measured(record)),
        }
    }

    fn measured(&self, record: &Record<'b>) -> Found<Measured<'b>> {
        let (base_name, own_name) = (self.name.clone()?, record.text(Field::Name)?);
        let name = [base_name.unwrap_or_default(), own_name.unwrap_or_default()].concat();
        check_name(&name)?;
        let (device, metric) = self.options.split.split(&name);
        let unit = match record.text(Field::Unit)? {
            None => self.unit.clone()?,
            own => own,
        };
        let unit = unit.filter(|unit| !unit.is_empty());
        let (value, sum) = (self.value(record)?, self.sum(record)?);
        if value.is_none() && !record.has(Field::Sum) {
            return Err(rejection(Code::MissingValues, "there is no \"v\", no \"vb\" and no \"s\""));
        }
        let metric = metric.or(unit.as_deref()).unwrap_or("value").to_owned();
        Ok(Measured { device: device.to_owned(), metric, unit, ts_ms: self.ts_ms(record)?, value, sum })
    }

    fn ts_ms(&self, record: &Record<'_>) -> Found<Option<i64>> {
        let seconds = self.time.clone()?.unwrap_or(0.0) + record.number(Field::Time)?.unwrap_or(0.0);
        let ms = (seconds * 1_000.0).round();
        if ms.is_nan() || ms.abs() > LAST_EXACT_MS {
            return Err(rejection(Code::InvalidTimestamp, "the time, \"bt\" + \"t\" in seconds, is out of range"));
        }
        Ok(if seconds == 0.0 {
            None
        } else if seconds >= FIRST_ABSOLUTE_S {
            Some(ms as i64)
        } else {
            Some(self.options.now_ms.saturating_add(ms as i64))
        })
    }

    fn value(&self, record: &Record<'_>) -> Found<Option<f64>> {
        let has_other = record.has(Field::StringValue) || record.has(Field::DataValue);
        match (record.number(Field::Value)?, record.boolean(Field::BooleanValue)?, has_other) {
            (None, None, false) => Ok(None),
            (Some(value), None, false) => Ok(Some(self.value.clone()?.unwrap_or(0.0) + value)),
            (None, Some(value), false) => Ok(Some(f64::from(u8::from(value)))),
            (None, None, true) => {
                Err(rejection(Code::InvalidValue, "only numbers and booleans can be stored, not \"vs\" or \"vd\""))
            }
            _ => Err(rejection(Code::InvalidValue, "a record has only one of \"v\", \"vs\", \"vb\" and \"vd\"")),
        }
    }

    fn sum(&self, record: &Record<'_>) -> Found<Option<f64>> {
        let (base, own) = (self.sum.clone()?, record.number(Field::Sum)?);
        Ok(if base.is_none() && own.is_none() { None } else { Some(base.unwrap_or(0.0) + own.unwrap_or(0.0)) })
    }
}

/// Takes a base field over. A bad one stays bad until there is another, so that no record falls back on an older one.
fn renew<T>(base: &mut Found<T>, is_there: bool, read: impl FnOnce() -> Found<T>) {
    if is_there {
        *base = read().map_err(|problem| {
            rejection(problem.code, format!("it needs a base field of an earlier record: {}", problem.detail))
        });
    }
}
