//! Instruments: the objects by which code records values of a metric.
//!
//! A metric without labels has one instrument, such as a [`Counter`]. [`PerVariant`] and [`Labelled`] have an
//! instrument for each value of a label.

use std::collections::HashMap;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use foldhash::fast::RandomState;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::PrometheusRecorder;
use strum::IntoEnumIterator;

/// The definition of a metric: a line of the table in `metrics.rs`.
#[derive(Debug)]
pub(super) struct Definition {
    /// The full name of the metric, such as `tidegauge_log_bytes`.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) unit: Unit,
    /// The names of the labels. [`Site::with`] adds their values in this order.
    pub(super) labels: &'static [&'static str],
    /// The upper bounds of a histogram's buckets; empty for other kinds.
    pub(super) buckets: &'static [f64],
    pub(super) help: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric, and values for some of its labels, from the first label on.
///
/// Once all labels have values, [`Instrument::at`] registers an instrument for them.
#[derive(Debug, Clone)]
pub(super) struct Site {
    recorder: Arc<PrometheusRecorder>,
    definition: &'static Definition,
    labels: Vec<Label>,
}

impl Site {
    /// The site of a metric, without values of labels yet.
    ///
    /// It gives the recorder the unit and the help of the metric.
    pub(super) fn new(recorder: &Arc<PrometheusRecorder>, definition: &'static Definition) -> Self {
        let name = KeyName::from_const_str(definition.name);
        let (unit, help) = (Some(definition.unit), SharedString::const_str(definition.help));
        match definition.kind {
            Kind::Counter => recorder.describe_counter(name, unit, help),
            Kind::Gauge => recorder.describe_gauge(name, unit, help),
            Kind::Histogram => recorder.describe_histogram(name, unit, help),
        }
        Self { recorder: Arc::clone(recorder), definition, labels: Vec::new() }
    }

    /// The same site with a value for the next label.
    pub(super) fn with(&self, value: impl Into<SharedString>) -> Self {
        let mut site = self.clone();
        site.labels.push(Label::new(self.definition.labels[self.labels.len()], value));
        site
    }

    fn key(&self) -> Key {
        debug_assert_eq!(self.labels.len(), self.definition.labels.len(), "a value for each label");
        Key::from_parts(self.definition.name, self.labels.clone())
    }
}

/// The metadata that the recorder requires and ignores.
const METADATA: Metadata<'static> = Metadata::new("tidegauge", Level::INFO, None);

/// A type that records values of a metric.
pub(super) trait Instrument {
    const KIND: Kind;

    /// Registers the instrument for the metric and the labels of `site`.
    fn at(site: Site) -> Self;
}

impl Instrument for Counter {
    const KIND: Kind = Kind::Counter;

    fn at(site: Site) -> Self {
        site.recorder.register_counter(&site.key(), &METADATA)
    }
}

impl Instrument for Gauge {
    const KIND: Kind = Kind::Gauge;

    fn at(site: Site) -> Self {
        site.recorder.register_gauge(&site.key(), &METADATA)
    }
}

impl Instrument for Histogram {
    const KIND: Kind = Kind::Histogram;

    fn at(site: Site) -> Self {
        site.recorder.register_histogram(&site.key(), &METADATA)
    }
}

/// An instrument for each variant of an enum.
///
/// The variant as text is the label's value.
#[derive(Debug)]
pub struct PerVariant<E, T>(HashMap<E, T, RandomState>);

impl<E: Copy + Eq + Hash, T> PerVariant<E, T> {
    /// The instrument of a variant.
    pub fn of(&self, variant: E) -> &T {
        &self.0[&variant]
    }
}

impl<E: IntoEnumIterator + Into<&'static str> + Copy + Eq + Hash, T: Instrument> Instrument for PerVariant<E, T> {
    const KIND: Kind = T::KIND;

    fn at(site: Site) -> Self {
        let instrument = |variant: E| (variant, T::at(site.with(variant.into())));
        Self(E::iter().map(instrument).collect())
    }
}

/// An instrument for each value of a label, registered when it is first used.
///
/// Only the code that records the metric knows the values. They must be few.
#[derive(Debug)]
pub struct Labelled<T> {
    site: Site,
    instrument: PhantomData<fn() -> T>,
}

#[expect(private_bounds, reason = "only this room makes instruments")]
impl<T: Instrument> Labelled<T> {
    /// Registers instruments for these values, which `/metrics` then shows as 0.
    pub fn start_with(&self, values: &[&'static str]) {
        for value in values {
            drop(self.with(value));
        }
    }

    /// The instrument of a value.
    ///
    /// Each call is a lookup, so code that records often keeps the instrument.
    #[must_use]
    pub fn with(&self, value: &'static str) -> T {
        T::at(self.site.with(value))
    }

    /// The instrument of a value from the configuration, such as a client ID.
    #[must_use]
    pub fn of_configured(&self, value: &str) -> T {
        T::at(self.site.with(value.to_owned()))
    }
}

impl<T: Instrument> Instrument for Labelled<T> {
    const KIND: Kind = T::KIND;

    fn at(site: Site) -> Self {
        Self { site, instrument: PhantomData }
    }
}

/// A gauge that `/metrics` does not show until its value is known.
#[derive(Debug)]
pub struct LateGauge(Site);

impl LateGauge {
    /// Sets the gauge. From now on `/metrics` shows it.
    pub fn set(&self, value: f64) {
        Gauge::at(self.0.clone()).set(value);
    }
}

impl Instrument for LateGauge {
    const KIND: Kind = Kind::Gauge;

    fn at(site: Site) -> Self {
        Self(site)
    }
}

/// The part of a gauge that one owner contributes. Dropping it subtracts the part.
#[derive(Debug)]
pub struct GaugeGuard {
    gauge: Gauge,
    count: u32,
}

impl GaugeGuard {
    /// Adds `count` to the gauge.
    #[must_use]
    pub fn new(gauge: &Gauge, count: u32) -> Self {
        gauge.increment(f64::from(count));
        Self { gauge: gauge.clone(), count }
    }

    /// Changes the part of the gauge to `count`.
    pub fn set(&mut self, count: u32) {
        if count != self.count {
            self.gauge.increment(f64::from(count) - f64::from(self.count));
            self.count = count;
        }
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A gauge that is always 1, with the version and platform as labels.
#[derive(Debug)]
pub struct BuildInfo(());

impl Instrument for BuildInfo {
    const KIND: Kind = Kind::Gauge;

    fn at(site: Site) -> Self {
        use std::env::consts::{ARCH, OS};
        let version = site.with(env!("CARGO_PKG_VERSION")).with(super::REVISION);
        Gauge::at(version.with(OS).with(ARCH)).set(1);
        Self(())
    }
}
