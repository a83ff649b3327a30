//! The columns of a packed document, written and read.

use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocument};

use super::super::super::decode::{DecodeError, integer};
use super::super::super::encode::Encoder;
use super::super::super::names;
use super::super::document::offset;
use super::{CELLS_MAX, INSTANTS_MAX, TIME};
use crate::codec::ChunkError;
use crate::codec::bson_column::{ColumnEncoder, Dates, Doubles};
use crate::model::{Contents, Hour, HourOffset};
use crate::store::HourSamples;

/// The subtype of binary data that is a column.
const COLUMN: u8 = 7;

/// The version of the server's own buckets whose columns are compressed and in time order.
const BUCKET_VERSION: i32 = 2;

/// Whether readings may be packed.
///
/// The number of their instants, times that of their metrics with values, is at most [`CELLS_MAX`].
pub(in super::super) fn is_dense(contents: &Contents) -> bool {
    let mut has_values = vec![false; contents.metrics().len()];
    contents.samples().iter().for_each(|sample| has_values[sample.metric as usize] = true);
    let columns = has_values.iter().filter(|has| **has).count();
    contents.reading_count().saturating_mul(columns) <= CELLS_MAX
}

/// Writes the fields `control` and `data` of one reading or more.
///
/// The readings must be dense ([`is_dense`]).
pub(in super::super) fn encode_columns(fields: &mut Encoder, hour: Hour, contents: &Contents) {
    let (first, last) = contents.span().expect("a part is written for its readings");
    let columns = by_metric(contents);
    let count = contents.reading_count();
    fields.document("control", |control| {
        control.int32("version", BUCKET_VERSION);
        control.document("min", |min| min.datetime(TIME, hour.instant_ms(first)));
        control.document("max", |max| max.datetime(TIME, hour.instant_ms(last)));
        control.int32("count", count as i32);
    });
    let mut encoder = ColumnEncoder::new();
    fields.document("data", |data| {
        let instants = contents.readings().map(|reading| hour.instant_ms(reading.offset));
        data.binary(TIME, COLUMN, |bytes| encoder.dates(instants, bytes));
        for (metric, values) in contents.metrics().iter().zip(&columns) {
            if !values.is_empty() {
                let column = Column { values: values.iter(), at: 0, count };
                data.binary(&*names::stored(metric), COLUMN, |bytes| encoder.doubles(column, bytes));
            }
        }
    });
}

/// The values of each metric. Each value has the number of its reading beside it.
fn by_metric(contents: &Contents) -> Vec<Vec<(usize, f64)>> {
    let mut columns = vec![Vec::new(); contents.metrics().len()];
    for (at, reading) in contents.readings().enumerate() {
        for sample in reading.samples {
            columns[sample.metric as usize].push((at, sample.value));
        }
    }
    columns
}

/// The values of a metric in all readings; `None` for a reading that lacks the metric.
#[derive(Clone)]
struct Column<'a> {
    values: std::slice::Iter<'a, (usize, f64)>,
    at: usize,
    count: usize,
}

impl Iterator for Column<'_> {
    type Item = Option<f64>;

    fn next(&mut self) -> Option<Option<f64>> {
        if self.at == self.count {
            return None;
        }
        let value = self.values.as_slice().first().filter(|(at, _)| *at == self.at).map(|(_, value)| *value);
        if value.is_some() {
            self.values.next();
        }
        self.at += 1;
        Some(value)
    }
}

/// The readings of a packed document.
#[derive(Debug)]
pub(in super::super) struct Columns<'a> {
    count: usize,
    data: &'a RawDocument,
}

impl<'a> Columns<'a> {
    /// The columns of a document, which are not decoded yet.
    pub(in super::super) fn of(document: &'a RawDocument) -> Result<Self, DecodeError> {
        let count = integer(document.get_document("control")?, "count")?;
        let count = usize::try_from(count).map_err(|_| DecodeError("control.count is below 0".into()))?;
        let data = document.get_document("data")?;
        let metrics = data.iter().count().saturating_sub(1); // one column is that of the instants
        if count > INSTANTS_MAX || metrics.saturating_mul(count) > CELLS_MAX {
            return Err(DecodeError("it has too many instants and metrics".into()));
        }
        Ok(Self { count, data })
    }

    /// Adds the readings to the samples of their hour.
    ///
    /// If the values of some metrics cannot be read, it adds the values of the other metrics.
    pub(in super::super) fn add_to(&self, into: &mut HourSamples) -> Result<(), DecodeError> {
        let mut outcome = Ok(());
        let mut columns = Vec::new();
        for element in self.data {
            let (key, value) = element?;
            if key.as_str() == TIME {
                continue;
            }
            let Some(metric) = into.metric(key.as_str(), names::original) else { continue };
            match bytes_of(value) {
                Ok(bytes) => columns.push((metric, Some(Doubles::new(bytes)))),
                Err(error) => outcome = Err(error),
            }
        }
        for offset in self.offsets(into.hour())? {
            if offset >= into.window().end {
                break; // the end moves back while samples arrive
            }
            for (metric, values) in &mut columns {
                match values.as_mut().map(Iterator::next) {
                    None | Some(Some(Ok(None))) => {}
                    Some(Some(Ok(Some(value)))) if value.is_finite() => into.push(offset, *metric, value),
                    Some(damaged) => {
                        *values = None;
                        outcome = Err(DecodeError(match damaged {
                            Some(Err(error)) => error.to_string(),
                            Some(Ok(value)) => format!("a value is {value:?}"),
                            None => "a column is too short".into(),
                        }));
                    }
                }
            }
        }
        outcome
    }

    /// The instants as offsets into the hour, ascending.
    fn offsets(&self, hour: Hour) -> Result<Vec<HourOffset>, DecodeError> {
        let times = self.data.get(TIME)?.ok_or_else(|| DecodeError("it has no column ts".into()))?;
        let time_of = |ts_ms: Result<Option<i64>, ChunkError>| {
            offset(hour, ts_ms?.ok_or_else(|| DecodeError("a reading has no ts".into()))?)
        };
        let times = Dates::new(bytes_of(times)?).take(self.count + 1).map(time_of);
        let times: Vec<HourOffset> = times.collect::<Result<_, DecodeError>>()?;
        if times.len() == self.count && times.is_sorted_by(|a, b| a < b) {
            Ok(times)
        } else {
            Err(DecodeError("its instants are not as many as control.count, or do not ascend".into()))
        }
    }
}

impl From<ChunkError> for DecodeError {
    fn from(error: ChunkError) -> Self {
        Self(error.to_string())
    }
}

/// The bytes of a column; an error if the value is of another type.
fn bytes_of(value: RawBsonRef<'_>) -> Result<&[u8], DecodeError> {
    match value {
        RawBsonRef::Binary(RawBinaryRef { subtype: BinarySubtype::Column, bytes }) => Ok(bytes),
        other => Err(DecodeError(format!("a {:?} where a column should be", other.element_type()))),
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, doc};
    use proptest::prelude::*;

    use super::*;
    use crate::model::Sample;

    const HOUR: Hour = Hour(493_526);

    fn contents(samples: &[(HourOffset, u32, f64)]) -> Contents {
        let samples = samples.iter().map(|&(offset, metric, value)| Sample { value, offset, metric });
        Contents::new(["a.b", "c", "d"].map(Into::into).to_vec(), samples.collect())
    }

    fn encoded(contents: &Contents) -> RawDocumentBuf {
        Encoder::build(|top| encode_columns(top, HOUR, contents))
    }

    fn decoded(document: &RawDocument) -> Result<Contents, DecodeError> {
        let mut samples = HourSamples::all(HOUR);
        Columns::of(document)?.add_to(&mut samples)?;
        Ok(samples.finish().0)
    }

    /// Stored documents have these bytes: a change of them needs another schema version.
    #[test]
    fn columns_have_a_fixed_form() {
        let samples = (0..60).flat_map(|at| {
            let offset = at * 60_000 + at % 3;
            [(offset, 0, 20.5 + f64::from(at % 7) / 10.0), (offset, 1, if at == 7 { -0.0 } else { 1.0 / 3.0 })]
        });
        let mut samples: Vec<_> = samples.collect();
        samples.retain(|(offset, metric, _)| *metric == 0 || offset / 60_000 % 2 == 1);
        insta::assert_debug_snapshot!(encoded(&contents(&samples)));
    }

    fn any_finite() -> impl Strategy<Value = f64> {
        prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO
    }

    proptest! {
        #[test]
        fn readings_come_back_to_the_bit(
            samples in prop::collection::vec((0..3_600_000u32, 0..3u32, any_finite()), 1..80),
            decimals in prop::collection::vec((0..90u32, 0..3u32, -500..500i32), 1..200),
        ) {
            let decimals = decimals.iter().map(|&(at, metric, tenths)| (at * 40_000, metric, f64::from(tenths) / 10.0));
            for contents in [contents(&samples), contents(&decimals.collect::<Vec<_>>())] {
                let document = encoded(&contents);
                let back = decoded(&document).unwrap();
                let bits = |contents: &Contents| {
                    let named = contents.samples().iter().map(|sample| {
                        (sample.offset, contents.metric_of(sample).to_string(), sample.value.to_bits())
                    });
                    let mut named: Vec<_> = named.collect();
                    named.sort_unstable();
                    named
                };
                prop_assert_eq!(bits(&back), bits(&contents));
                let size = super::super::super::capacity::Size::of(&contents);
                prop_assert!(document.as_bytes().len() < size.bytes + 128, "smaller than as an array");
            }
        }
    }

    #[test]
    fn damaged_columns_cost_themselves_and_damaged_instants_cost_all() {
        let whole =
            bson::Document::try_from(encoded(&contents(&[(1, 0, 1.0), (1, 1, 2.0), (5, 1, 3.0)])).as_ref()).unwrap();
        let with = |field: &str, value: bson::Bson| {
            let mut document = whole.clone();
            let (section, key) = field.split_once('.').unwrap();
            document.get_document_mut(section).unwrap().insert(key, value);
            let document = RawDocumentBuf::try_from(&document).unwrap();
            let mut samples = HourSamples::all(HOUR);
            let columns = Columns::of(&document).map_err(|_| "document")?;
            let outcome = columns.add_to(&mut samples);
            outcome.map_err(|_| if samples.finish().0.is_empty() { "all" } else { "some" })
        };
        let column = |bytes: &[u8]| bson::Binary { subtype: BinarySubtype::Column, bytes: bytes.to_vec() };
        assert_eq!(with("control.count", 2.into()), Ok(()));
        for (field, value, lost) in [
            ("control.count", bson::Bson::from(-1), "document"),
            ("control.count", (1_i64 << 40).into(), "document"),
            ("control.count", 100_001.into(), "document"),
            ("control.count", 1.into(), "all"),
            ("control.count", 3.into(), "all"),
            ("data.ts", column(&[0]).into(), "all"),
            ("data.ts", 7.into(), "all"),
            ("data.c", column(&[9, 9, 9]).into(), "some"),
            ("data.c", column(&[0]).into(), "some"),
            ("data.c", 7.into(), "some"),
            ("data.x", doc! {}.into(), "some"),
        ] {
            assert_eq!(with(field, value), Err(lost), "{field}");
        }
    }

    #[test]
    fn only_the_first_readings_are_decoded_if_no_more_are_needed() {
        let all: Vec<_> = (0..100).map(|at| (at, 0, f64::from(at))).collect();
        let document = encoded(&contents(&all));
        let mut first = HourSamples::first(HOUR, 10..90, crate::model::SeriesFilter::ALL, (5, 100));
        Columns::of(&document).unwrap().add_to(&mut first).unwrap();
        assert_eq!(first.finish().0.span(), Some((10, 14)));
    }

    #[test]
    fn readings_that_lack_most_metrics_are_not_dense() {
        let of = |instants: u32, metrics: u32| {
            let samples = (0..instants).map(|at| Sample { value: 1.0, offset: at, metric: at % metrics });
            Contents::new((0..metrics).map(|metric| metric.to_string().into()).collect(), samples.collect())
        };
        assert!(is_dense(&of(3_600, 10)) && is_dense(&of(700, 700)));
        assert!(!is_dense(&of(800, 800)));
    }
}
