//! Resolves records: applies base fields to the records after them.

use super::{
    Options,
    field::Field,
    name::{MAX_NAME_BYTES, check_name, is_plain, too_long},
    record::Record,
};
use crate::wire::{
    Code,
    problem::{Parsed, rejection},
    timestamp::{LAST_EXACT_MS, whole_ms},
};

/// The smallest absolute time, in seconds since 1970.
///
/// Smaller times are relative to now.
const FIRST_ABSOLUTE_S: f64 = 268_435_456.0; // 2^28

/// The measurement of a record: at least a value or a sum.
#[derive(Debug, PartialEq)]
pub(super) struct Measurement<'r> {
    pub(super) device: &'r str,
    pub(super) metric: &'r str,
    /// The canonical text of the labels; empty without any.
    pub(super) labels: String,
    pub(super) unit: Option<&'r str>,
    /// The time in Unix milliseconds; `None` is the server's clock.
    pub(super) ts_ms: Option<i64>,
    /// Whether the time counts from now.
    pub(super) is_relative: bool,
    pub(super) value: Option<f64>,
    pub(super) sum: Option<f64>,
}

/// Resolves the records of a pack in order, and keeps the current base fields.
#[derive(Debug)]
pub(super) struct Resolver<'o> {
    options: &'o Options<'o>,
    /// The base name, followed by the name of the current record.
    name: String,
    /// The length of the base name.
    base_name: Parsed<usize>,
    /// The bytes of the base name that are known to be valid: all or none.
    checked: usize,
    /// The lengths of the device and the metric in the base name alone.
    ///
    /// `None`: they were not needed yet.
    cut: Option<(usize, Option<usize>)>,
    time: Parsed<Option<f64>>,
    unit: Parsed<Option<String>>,
    value: Parsed<Option<f64>>,
    sum: Parsed<Option<f64>>,
}

impl<'o> Resolver<'o> {
    pub(super) const fn new(options: &'o Options<'o>) -> Self {
        Self {
            options,
            name: String::new(),
            base_name: Ok(0),
            checked: 0,
            cut: None,
            time: Ok(None),
            unit: Ok(None),
            value: Ok(None),
            sum: Ok(None),
        }
    }

    /// The measurement of the next record.
    ///
    /// `None`: the record has only base fields, which are valid.
    pub(super) fn resolve<'r>(&'r mut self, record: &'r Record<'_>) -> Option<Parsed<Measurement<'r>>> {
        if record.has(Field::BaseName) {
            self.update_name(record);
        }
        replace_base(&mut self.time, record.has(Field::BaseTime), || record.number(Field::BaseTime));
        replace_base(&mut self.unit, record.has(Field::BaseUnit), || {
            Ok(record.unit(Field::BaseUnit)?.map(str::to_owned))
        });
        replace_base(&mut self.value, record.has(Field::BaseValue), || record.number(Field::BaseValue));
        replace_base(&mut self.sum, record.has(Field::BaseSum), || record.number(Field::BaseSum));
        match record.check_base() {
            Err(problem) => Some(Err(problem)),
            Ok(()) if record.is_base() => None,
            Ok(()) => Some(self.measurement(record)),
        }
    }

    fn update_name(&mut self, record: &Record<'_>) {
        replace_base(&mut self.base_name, true, || {
            let name = record.name(Field::BaseName)?.unwrap_or_default();
            self.name.clear();
            self.name.push_str(name);
            self.cut = None;
            self.checked = if check_name(name, 0).is_ok() { name.len() } else { 0 };
            Ok(name.len())
        });
    }

    fn measurement<'r>(&'r mut self, record: &'r Record<'_>) -> Parsed<Measurement<'r>> {
        let base = *self.base_name.as_ref().map_err(Clone::clone)?;
        let own = record.name(Field::Name)?.unwrap_or_default();
        if base + own.len() > MAX_NAME_BYTES {
            return Err(too_long(base + own.len()));
        }
        self.name.truncate(base);
        self.name.push_str(own);
        if !self.name.is_empty() || self.options.device.is_none() {
            check_name(&self.name, self.checked)?;
        }
        let (device, metric) = match self.cut.filter(|_| own.is_empty()) {
            Some((device, metric)) => {
                (&self.name[..device], metric.map(|metric| &self.name[device + 1..device + 1 + metric]))
            }
            None => self.options.split.split(&self.name),
        };
        if own.is_empty() {
            self.cut = Some((device.len(), metric.map(str::len)));
        }
        let (device, metric) = match self.options.device {
            Some(given) if metric.is_none() && is_plain(&self.name, device) => {
                (given, Some(device).filter(|name| !name.is_empty()))
            }
            _ => (device, metric),
        };
        let unit = match record.unit(Field::Unit)? {
            None => self.unit.as_ref().map_err(Clone::clone)?.as_deref(),
            own => own,
        };
        let unit = unit.filter(|unit| !unit.is_empty());
        let (value, sum) = (self.value(record)?, self.sum(record)?);
        if value.is_none() && !record.has_value(Field::Sum) {
            return Err(rejection(Code::MissingValues, "there is no \"v\", no \"vb\" and no \"s\""));
        }
        let metric = metric.or(unit).unwrap_or("value");
        let labels = record.series_labels()?;
        let (ts_ms, is_relative) = self.ts_ms(record)?;
        Ok(Measurement { device, metric, labels, unit, ts_ms, is_relative, value, sum })
    }

    /// The time, and whether it counts from now.
    fn ts_ms(&self, record: &Record<'_>) -> Parsed<(Option<i64>, bool)> {
        let seconds = self.time.clone()?.unwrap_or(0.0) + record.number(Field::Time)?.unwrap_or(0.0);
        let ms = whole_ms(seconds * 1_000.0);
        if ms.is_nan() || ms.abs() > LAST_EXACT_MS {
            return Err(rejection(Code::InvalidTimestamp, "the time, \"bt\" + \"t\" in seconds, is out of range"));
        }
        Ok(if seconds == 0.0 {
            (None, false)
        } else if seconds >= FIRST_ABSOLUTE_S {
            (Some(ms as i64), false)
        } else {
            (Some(self.options.now_ms.saturating_add(ms as i64)), true)
        })
    }

    fn value(&self, record: &Record<'_>) -> Parsed<Option<f64>> {
        let has_other = record.has_value(Field::StringValue) || record.has_value(Field::DataValue);
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

    fn sum(&self, record: &Record<'_>) -> Parsed<Option<f64>> {
        let (base, own) = (self.sum.clone()?, record.number(Field::Sum)?);
        Ok(if base.is_none() && own.is_none() { None } else { Some(base.unwrap_or(0.0) + own.unwrap_or(0.0)) })
    }
}

/// Replaces a base field if the record has it.
///
/// An invalid field stays until a record replaces it, so that no record uses an older value.
fn replace_base<T>(base: &mut Parsed<T>, is_there: bool, read: impl FnOnce() -> Parsed<T>) {
    if is_there {
        *base = read().map_err(|problem| {
            rejection(problem.code, format!("it needs a base field of an earlier record: {}", problem.detail))
        });
    }
}
