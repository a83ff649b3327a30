//! Finds the columns of the time, the device ID and the metrics in a CSV file. Pure.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use csv::StringRecord;
use tidegauge::common::clock::rfc3339;
use tidegauge::model::series::{self, Series, SeriesError};

use super::numbers::{self, Unclear};
use super::time::Times;

const TIME_NAMES: [&str; 5] = ["timestamp", "time", "ts", "datetime", "date"];
const DEVICE_NAMES: [&str; 5] = ["deviceId", "device_id", "device", "sensor_id", "host"];
/// The names of columns that mostly name the metric of each row, beside one of [`VALUE_NAMES`].
const METRIC_NAMES: [&str; 12] = [
    "metric",
    "measurement",
    "variable",
    "parameter",
    "signal",
    "tag",
    "series",
    "channel",
    "field",
    "point",
    "sensor",
    "name",
];
const VALUE_NAMES: [&str; 4] = ["value", "val", "reading", "wert"];
const UNIT_NAMES: [&str; 2] = ["unit", "units"];
/// Fewer rows do not show that a column tells the rows of an instant apart.
const TELLING_ROWS: usize = 10;

/// The columns named on the command line.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// The source of the device ID.
    pub(super) device: WantedDevice,
    /// The column of the time, or of the date and the time of day: `date,time`.
    pub(super) time_column: Option<String>,
    /// The column that names the metric of each row.
    pub(super) metric_column: Option<String>,
    /// The metrics; empty for every column of numbers.
    pub(super) metrics: Vec<WantedMetric>,
}

impl Wanted {
    /// Whether the command line names nothing.
    pub(super) const fn is_nothing(&self) -> bool {
        matches!(self.device, WantedDevice::Customary)
            && self.time_column.is_none()
            && self.metric_column.is_none()
            && self.metrics.is_empty()
    }
}

/// The source of the device ID.
#[derive(Debug, Clone)]
pub(super) enum WantedDevice {
    /// This device ID for all rows.
    Fixed(String),
    /// The column of this name.
    Column(String),
    /// The column with the first customary name in the header, such as `deviceId`.
    Customary,
}

/// A metric and, if given, its column: `NAME[=COLUMN]`.
///
/// Labels may follow the name: `cpu{core=0}=COLUMN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WantedMetric {
    /// The canonical text of the series.
    name: String,
    column: Option<String>,
}

impl std::str::FromStr for WantedMetric {
    type Err = SeriesError;

    fn from_str(text: &str) -> Result<Self, SeriesError> {
        let (name, column) = match end_of_name(text) {
            Some(at) => (&text[..at], Some(text[at + 1..].to_owned())),
            None => (text, None),
        };
        Ok(Self { name: series::canonical(name)?.into_owned(), column })
    }
}

/// The place of the first `=` that does not belong to a label.
fn end_of_name(text: &str) -> Option<usize> {
    let (mut in_labels, mut is_escaped) = (false, false);
    text.bytes().position(|byte| {
        match byte {
            _ if is_escaped => {}
            b'{' => in_labels = true,
            b'}' => in_labels = false,
            _ => {}
        }
        is_escaped = in_labels && byte == b'\\' && !is_escaped;
        byte == b'=' && !in_labels
    })
}

/// The most characters of the names of columns in an error.
const LISTED_CHARS: usize = 1000;

/// Why the columns of a file cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ColumnsError {
    #[error("the file is empty, besides comments and blank or skipped lines")]
    Empty,
    #[error(
        "several of the characters , ; | and tab may separate the columns: name one, such as --delimiter ';' (in \
         quotes)"
    )]
    Delimiter,
    #[error(transparent)]
    Decimal(#[from] Unclear),
    /// An ambiguous time.
    ///
    /// Examples are 01/02/2026, a number that may be a date, and a time without its zone.
    #[error("line {0}: {1}")]
    Time(u64, String),
    #[error("no time column; name it with --time-column (columns: {0})")]
    NoTime(String),
    #[error("no device column; name it with --device-column, or the device with --device (columns: {0})")]
    NoDevice(String),
    #[error("there is no column {0:?} (columns: {1})")]
    Absent(String, String),
    #[error("there is no column {0:?} for the metric; write --metric {0}=COLUMN (columns: {1})")]
    NoMetric(String, String),
    #[error("several columns are called {0:?} (columns: {1})")]
    Several(String, String),
    #[error("no column contains numbers (columns: {0})")]
    NoValues(String),
    #[error("several columns contain numbers: name that of the values, such as --metric value (columns: {0})")]
    SeveralValues(String),
    #[error(
        "the column {0:?} seems to name the metric of each row: add --metric-column {0:?}, or --device-column {0:?} \
         without --device if it names the device, or --metric NAME={1:?} if all rows have the same metric"
    )]
    NamesMetrics(String, String),
    #[error("the metric {0:?} would be read from two columns")]
    Twice(String),
    #[error(transparent)]
    Series(#[from] SeriesError),
    #[error("a file of an export has the columns deviceId,ts,series,value,metadata; this one has {0:?} too")]
    NotOfExport(String),
}

/// The columns to read, by their position in a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Columns {
    /// The time, or the date and the time of day.
    pub(super) time: Vec<usize>,
    /// The device ID.
    pub(super) device: DeviceSource,
    /// The column that names the metric of the value of each row.
    ///
    /// Then there is one column of values, whose own metric does not matter.
    pub(super) metric: Option<MetricColumn>,
    /// The metrics, at least one.
    pub(super) values: Vec<ValueColumn>,
    /// The names of the columns that are not read.
    pub(super) ignored: Vec<String>,
}

/// The source of the device ID of a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DeviceSource {
    /// The same for all rows.
    Fixed(String),
    /// This column.
    Column(usize),
}

/// A column that names the metric of each row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MetricColumn {
    /// The position of the column in a row.
    pub(super) at: usize,
    /// The position of the column of units.
    pub(super) unit: Option<usize>,
}

/// A column of values.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ValueColumn {
    /// The position of the column in a row.
    pub(super) at: usize,
    /// The metric.
    pub(super) metric: String,
}

impl Columns {
    /// Finds the columns. `sample` has the first rows.
    ///
    /// Without named metrics, a column is a metric if most of its non-empty cells in the sample are numbers,
    /// or if all its cells are empty, so that no column of numbers is ignored silently.
    ///
    /// In a file with the form of the server's, the first column is the time, and no column is the device.
    pub(super) fn find(
        header: &StringRecord,
        sample: &[&StringRecord],
        wanted: &Wanted,
        times: &Times,
    ) -> Result<Self, ColumnsError> {
        let is_like_of_server = is_like_of_server(header, sample, wanted);
        let header = Header::new(header, is_like_of_server && is_bare(header, sample));
        let time = match &wanted.time_column {
            Some(name) => header.time(name)?,
            None if is_like_of_server => vec![0],
            None => vec![header.customary(&TIME_NAMES).ok_or_else(|| ColumnsError::NoTime(header.list()))?],
        };
        let customary_device = header.customary(&DEVICE_NAMES).filter(|_| !is_like_of_server);
        let (device, device_column) = match &wanted.device {
            WantedDevice::Fixed(device) => (DeviceSource::Fixed(device.clone()), customary_device),
            WantedDevice::Column(name) => header.named(name).map(|at| (DeviceSource::Column(at), Some(at)))?,
            WantedDevice::Customary => {
                let at = customary_device.ok_or_else(|| ColumnsError::NoDevice(header.list()))?;
                (DeviceSource::Column(at), Some(at))
            }
        };
        let metric = wanted.metric_column.as_ref().map(|name| header.metric(name)).transpose()?;
        let is_key = |at: usize| {
            let is_of_metric = metric.as_ref().is_some_and(|of| of.at == at || of.unit == Some(at));
            time.contains(&at) || Some(at) == device_column || is_of_metric
        };
        let is_value = |&at: &usize| !is_key(at) && header.names[at].is_series && holds_numbers(sample, at);
        let all = 0..header.names.len();
        let candidates: Vec<usize> = all.clone().filter(is_value).collect();
        let mut values = header.values(&candidates, &wanted.metrics)?;
        let of_row = header.value_of_row(&values);
        if metric.is_some() {
            let nth = of_row.ok_or_else(|| ColumnsError::SeveralValues(header.list()))?;
            values = vec![values.swap_remove(nth)];
        }
        let of_values: HashSet<usize> = values.iter().map(|value| value.at).collect();
        let is_read = |at: usize| is_key(at) || of_values.contains(&at);
        let is_empty = |at: usize| header.names[at].text.is_empty() && cells(sample, at).next().is_none();
        let unread: Vec<usize> = all.filter(|&at| !is_read(at) && !is_empty(at)).collect();
        let text = |at: usize| header.names[at].text.to_owned();
        if let (None, true, Some(nth)) = (&metric, wanted.metrics.is_empty(), of_row) {
            let device = if let DeviceSource::Column(at) = device { Some(at) } else { None };
            let identity: Vec<usize> = time.iter().copied().chain(device).collect();
            let texts: Vec<usize> = unread.iter().copied().filter(|&at| !holds_numbers(sample, at)).collect();
            // The date tells rows apart too, if their time is only the time of day. Their errors say so.
            let is_timed = |row: &&StringRecord| times.parse(&joined(row, &time)).is_ok();
            let timed: Vec<&StringRecord> = sample.iter().copied().filter(is_timed).collect();
            if let Some(at) = header.naming_metrics(&texts, values[nth].at, &timed, &identity) {
                return Err(ColumnsError::NamesMetrics(text(at), text(values[nth].at)));
            }
        }
        let ignored = unread.into_iter().map(text).collect();
        Ok(Self { time, device, metric, values, ignored })
    }
}

/// Whether a file has the form of the server's files of one device, which have no column of the device.
///
/// Other programs may write the same form, so a unit in brackets becomes a label. With `--time-column`, the
/// file is read like any other.
fn is_like_of_server(header: &StringRecord, sample: &[&StringRecord], wanted: &Wanted) -> bool {
    let is_instant =
        |text: &str| text.parse::<jiff::Timestamp>().is_ok_and(|instant| rfc3339(instant.as_millisecond()) == text);
    matches!(wanted.device, WantedDevice::Fixed(_))
        && wanted.time_column.is_none()
        && header.get(0) == Some("ts")
        && !sample.is_empty()
        && sample.iter().all(|row| row.get(0).is_some_and(is_instant))
}

/// Whether only CRLF, as the server writes it, is around the cells of the rows.
///
/// Then white space in the header belongs to the names of metrics.
fn is_bare(header: &StringRecord, sample: &[&StringRecord]) -> bool {
    let ends = |row: &StringRecord| row.iter().next_back().is_some_and(|last| last.ends_with('\r'));
    let is_row = |row: &StringRecord| row.iter().all(|cell| cell.trim() == cell.strip_suffix('\r').unwrap_or(cell));
    ends(header) && sample.iter().all(|row| ends(row) && is_row(row))
}

/// The columns by their names.
struct Header<'a> {
    names: Vec<Name<'a>>,
}

/// The name of a column.
struct Name<'a> {
    /// The name in the file, trimmed unless white space belongs to it.
    text: &'a str,
    /// The canonical text of the series with this name.
    ///
    /// A name that is no valid series is kept as it is.
    series: String,
    is_series: bool,
    /// The name without its unit.
    metric: &'a str,
}

impl<'a> Header<'a> {
    fn new(header: &'a StringRecord, has_space: bool) -> Self {
        let text = move |name: &'a str| if has_space { name.strip_suffix('\r').unwrap_or(name) } else { name.trim() };
        let texts = || header.iter().map(text);
        let mut columns_of = HashMap::<&str, usize>::new();
        for (metric, _) in texts().filter_map(with_unit) {
            *columns_of.entry(metric).or_default() += 1;
        }
        let name = |text: &'a str| {
            // `t (min)` and `t (max)` are two metrics: the text in the brackets is no unit.
            let (metric, unit) = with_unit(text).filter(|(metric, _)| columns_of[metric] == 1).unzip();
            let mut series = String::new();
            let is_of_unit = metric
                .zip(unit)
                .is_some_and(|(metric, unit)| series::write(&mut series, metric, &mut [("unit", unit)]).is_ok());
            if is_of_unit {
                return Name { text, series, is_series: true, metric: metric.unwrap_or(text) };
            }
            let canonical = series::canonical(text);
            let is_series = canonical.is_ok();
            Name { text, series: canonical.unwrap_or(text.into()).into_owned(), is_series, metric: text }
        };
        Self { names: texts().map(name).collect() }
    }

    fn position(&self, text: &str) -> Option<usize> {
        self.names.iter().position(|name| name.text == text)
    }

    /// The column with this text. Several such columns are an error.
    fn named(&self, name: &str) -> Result<usize, ColumnsError> {
        let mut found = self.names.iter().enumerate().filter(|(_, column)| column.text == name);
        match (found.next(), found.next()) {
            (Some((at, _)), None) => Ok(at),
            (None, _) => Err(ColumnsError::Absent(name.to_owned(), self.list())),
            (Some(_), Some(_)) => Err(ColumnsError::Several(name.to_owned(), self.list())),
        }
    }

    /// The column of the time, or of the date and the time.
    fn time(&self, name: &str) -> Result<Vec<usize>, ColumnsError> {
        match name.split_once(',') {
            Some((date, time)) if self.position(name).is_none() => {
                Ok(vec![self.named(date.trim())?, self.named(time.trim())?])
            }
            _ => Ok(vec![self.named(name)?]),
        }
    }

    /// The column with the first of `names` that exists.
    fn customary(&self, names: &[&str]) -> Option<usize> {
        let position = |name: &&str| self.names.iter().position(|column| column.text.eq_ignore_ascii_case(name));
        names.iter().find_map(position)
    }

    /// The column that names the metric of each row, with that of its unit.
    fn metric(&self, name: &str) -> Result<MetricColumn, ColumnsError> {
        let at = self.named(name)?;
        Ok(MetricColumn { at, unit: self.customary(&UNIT_NAMES).filter(|unit| *unit != at) })
    }

    /// Whether a column has one of `names`, as InfluxDB writes it too: `_value`.
    fn has_name_of(&self, at: usize, names: &[&str]) -> bool {
        let name = self.names[at].metric.trim_start_matches('_');
        names.iter().any(|known| name.eq_ignore_ascii_case(known))
    }

    /// Which of the columns has the value, if a row has one only: `None` if several may have it.
    fn value_of_row(&self, values: &[ValueColumn]) -> Option<usize> {
        match values {
            [_] => Some(0),
            _ => values.iter().position(|value| self.has_name_of(value.at, &VALUE_NAMES)),
        }
    }

    /// The column, of these columns of text, that seems to name the metric of each row.
    ///
    /// It is called so beside a column `value`, or tells the rows of one device and time apart. `timed` has
    /// the rows with a time.
    fn naming_metrics(
        &self,
        texts: &[usize],
        value: usize,
        timed: &[&StringRecord],
        identity: &[usize],
    ) -> Option<usize> {
        let find = |is_it: &dyn Fn(usize) -> bool| texts.iter().copied().find(|&at| is_it(at));
        let is_beside_value = self.has_name_of(value, &VALUE_NAMES);
        find(&|at| is_beside_value && self.has_name_of(at, &METRIC_NAMES))
            .or_else(|| find(&|at| tells_apart(timed, identity, at)))
    }

    /// The columns of the named metrics; if none is named, all candidates.
    fn values(&self, candidates: &[usize], wanted: &[WantedMetric]) -> Result<Vec<ValueColumn>, ColumnsError> {
        let values: Vec<ValueColumn> = if wanted.is_empty() {
            let value = |&at: &usize| ValueColumn { at, metric: self.names[at].series.clone() };
            candidates.iter().map(value).collect()
        } else {
            wanted.iter().map(|metric| self.value(metric, candidates)).collect::<Result<_, ColumnsError>>()?
        };
        if values.is_empty() {
            return Err(ColumnsError::NoValues(self.list()));
        }
        let mut metrics = HashSet::new();
        if let Some(twice) = values.iter().find(|value| !metrics.insert(&value.metric)) {
            return Err(ColumnsError::Twice(twice.metric.clone()));
        }
        Ok(values)
    }

    /// The column of a metric, and its series.
    ///
    /// It is the column that the metric names, else the one with the metric's name, else the only candidate.
    /// A new name keeps the unit of its column, unless it has one itself or the column's text follows it.
    fn value(&self, metric: &WantedMetric, candidates: &[usize]) -> Result<ValueColumn, ColumnsError> {
        let WantedMetric { name, column } = metric;
        let at = match (self.of_metric(column.as_ref().unwrap_or(name))?, column, candidates) {
            (Some(at), None, _) => return Ok(ValueColumn { at, metric: self.names[at].series.clone() }),
            (Some(at), Some(column), _) if self.names[at].text == column => {
                return Ok(ValueColumn { at, metric: name.clone() });
            }
            (Some(at), Some(_), _) | (None, None, &[at]) => at,
            (None, Some(column), _) => return Err(ColumnsError::Absent(column.clone(), self.list())),
            (None, None, _) => return Err(ColumnsError::NoMetric(name.clone(), self.list())),
        };
        Ok(ValueColumn { at, metric: with_unit_of(&self.names[at].series, name)? })
    }

    /// The column with this text, else that of this series, else that of this metric.
    ///
    /// Several such columns are an error.
    fn of_metric(&self, name: &str) -> Result<Option<usize>, ColumnsError> {
        let level = |column: &Name<'_>| {
            [column.text, column.series.as_str(), column.metric].iter().position(|known| *known == name)
        };
        let found = self.names.iter().enumerate().filter_map(|(at, column)| Some((level(column)?, at)));
        let mut found: Vec<(usize, usize)> = found.collect();
        found.sort_unstable();
        match &found[..] {
            [(first, _), (second, _), ..] if first == second => {
                Err(ColumnsError::Several(name.to_owned(), self.list()))
            }
            _ => Ok(found.first().map(|&(_, at)| at)),
        }
    }

    /// The names for an error, or the first of very many.
    fn list(&self) -> String {
        let list = self.names.iter().map(|name| name.text).collect::<Vec<_>>().join(", ");
        match list.char_indices().nth(LISTED_CHARS) {
            Some((end, _)) => format!("{}... of {}", &list[..end], self.names.len()),
            None => list,
        }
    }
}

/// The metric and the unit in a name: `Temperatur [°C]` or `Temperatur (°C)`.
fn with_unit(name: &str) -> Option<(&str, &str)> {
    let (open, rest) = match name.strip_suffix(']') {
        Some(rest) => ('[', rest),
        None => ('(', name.strip_suffix(')')?),
    };
    let (metric, unit) = rest.rsplit_once(open).map(|(metric, unit)| (metric.trim(), unit.trim()))?;
    (!metric.is_empty() && !unit.is_empty() && !metric.contains('{')).then_some((metric, unit))
}

/// The series `name` with the unit of the series `column`, unless it has one itself.
fn with_unit_of(column: &str, name: &str) -> Result<String, SeriesError> {
    let column = Series::parse(column).ok();
    labelled(name, column.as_ref().and_then(unit_of))
}

/// The series `name` with a unit, unless it has one itself.
pub(super) fn labelled(name: &str, unit: Option<&str>) -> Result<String, SeriesError> {
    let new = Series::parse(name)?;
    let Some(unit) = unit.filter(|_| unit_of(&new).is_none()) else {
        return Ok(series::canonical(name)?.into_owned());
    };
    let labels = new.labels.iter().map(|(key, value)| (&**key, &**value));
    let mut labels: Vec<(&str, &str)> = labels.chain([("unit", unit)]).collect();
    let mut text = String::new();
    series::write(&mut text, new.metric, &mut labels)?;
    Ok(text)
}

fn unit_of<'a>(series: &'a Series<'_>) -> Option<&'a str> {
    series.labels.iter().find(|(key, _)| key == "unit").map(|(_, unit)| &**unit)
}

/// Whether a column contains numbers, according to the sample.
fn holds_numbers(sample: &[&StringRecord], at: usize) -> bool {
    let (numbers, others): (Vec<&str>, Vec<&str>) = cells(sample, at).partition(|cell| numbers::is_number(cell));
    numbers.len() > others.len() || others.is_empty()
}

/// Whether many rows have the device and the time of another one, and a column tells them all apart.
///
/// The columns of `identity` have the device and the time.
fn tells_apart(sample: &[&StringRecord], identity: &[usize], at: usize) -> bool {
    let (mut instants, mut rows) = (HashSet::new(), HashSet::new());
    for &row in sample {
        let cell = |at: usize| row.get(at).unwrap_or_default().trim();
        let instant: Vec<&str> = identity.iter().map(|&at| cell(at)).collect();
        rows.insert((instant.clone(), cell(at)));
        instants.insert(instant);
    }
    sample.len() >= TELLING_ROWS && instants.len() * 3 <= sample.len() * 2 && rows.len() == sample.len()
}

/// The cells at these places, with a space between them.
pub(super) fn joined<'a>(row: &'a StringRecord, at: &[usize]) -> Cow<'a, str> {
    let cell = |at: usize| row.get(at).unwrap_or_default().trim();
    match *at {
        [only] => cell(only).into(),
        _ => at.iter().map(|at| cell(*at)).collect::<Vec<_>>().join(" ").into(),
    }
}

/// The cells of a column in the sample that are not empty.
fn cells<'a>(sample: &'a [&StringRecord], at: usize) -> impl Iterator<Item = &'a str> {
    sample.iter().filter_map(move |row| row.get(at)).map(str::trim).filter(|cell| !cell.is_empty())
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    fn find(table: &[&[&str]], device: WantedDevice, metrics: &[&str]) -> Result<Columns, ColumnsError> {
        let rows: Vec<StringRecord> = table.iter().map(|row| StringRecord::from(row.to_vec())).collect();
        let sample: Vec<&StringRecord> = rows[1..].iter().collect();
        let metrics = metrics.iter().map(|metric| metric.parse().unwrap()).collect();
        Columns::find(&rows[0], &sample, &Wanted { device, time_column: None, metric_column: None, metrics }, &utc())
    }

    fn utc() -> Times {
        Times::usual(TimeZone::UTC)
    }

    fn fixed() -> WantedDevice {
        WantedDevice::Fixed("d".into())
    }

    fn values(columns: &Columns) -> Vec<(usize, &str)> {
        columns.values.iter().map(|value| (value.at, value.metric.as_str())).collect()
    }

    #[test]
    fn time_and_device_are_found_by_customary_names_in_any_case_the_earlier_name_first() {
        let table: [&[&str]; 2] = [&["Host", "date", "DEVICEID", " Time ", "t"], &["h", "x", "d", "x", "1"]];
        let columns = find(&table, WantedDevice::Customary, &[]).unwrap();
        assert_eq!((&columns.time[..], &columns.device), (&[3][..], &DeviceSource::Column(2)));
        assert_eq!(values(&columns), [(4, "t")]);
        assert_eq!(columns.ignored, ["Host", "date"]);
    }

    #[test]
    fn every_column_of_numbers_is_a_metric_and_the_others_are_named_as_ignored() {
        let table: [&[&str]; 4] = [
            &["ts", "", "temp", "state", "hum", "rare", "door"],
            &["1", "0", "°C", "ok", "", "", "true"],
            &["2", "1", "20.5", "ok", "40", "", "False"],
            &["3", "2", "-1e1", "1", "NaN", "", ""],
        ];
        let columns = find(&table, fixed(), &[]).unwrap();
        assert_eq!(values(&columns), [(2, "temp"), (4, "hum"), (5, "rare"), (6, "door")]);
        assert_eq!(columns.ignored, ["", "state"]);
    }

    #[test]
    fn a_named_device_keeps_the_device_column_from_becoming_a_metric() {
        let table: [&[&str]; 2] = [&["ts", "sensor_id", "temp"], &["1", "17", "2"]];
        assert_eq!(values(&find(&table, fixed(), &[]).unwrap()), [(2, "temp")]);
    }

    #[test]
    fn a_name_with_a_unit_is_a_metric_with_the_label_unit() {
        let names =
            ["ts", "Temperatur [°C]", "Druck (bar)", "t (min)", "t (max)", "Leistung [kW] ", "[x]", "a{b=c}", ""];
        let table: [&[&str]; 2] = [&names, &["1", "2", "3", "4", "5", "6", "7", "8", ""]];
        let columns = find(&table, fixed(), &[]).unwrap();
        let expected = [
            (1, "Temperatur{unit=°C}"),
            (2, "Druck{unit=bar}"),
            (3, "t (min)"),
            (4, "t (max)"),
            (5, "Leistung{unit=kW}"),
            (6, "[x]"),
            (7, "a{b=c}"),
        ];
        assert_eq!(values(&columns), expected);
        assert_eq!(columns.ignored, [""; 0], "an empty column without a name is no column");
        for (metric, at, series) in [
            ("Temperatur", 1, "Temperatur{unit=°C}"),
            ("Druck{unit=bar}", 2, "Druck{unit=bar}"),
            ("t (max)", 4, "t (max)"),
            ("Temperatur [°C]", 1, "Temperatur{unit=°C}"),
            ("x=Leistung [kW]", 5, "x"),
            ("x{unit=W}=Leistung [kW]", 5, "x{unit=W}"),
            ("x=Leistung", 5, "x{unit=kW}"),
            ("x{of=a}=Druck{unit=bar}", 2, "x{of=a,unit=bar}"),
            ("x{unit=W}=Leistung", 5, "x{unit=W}"),
            ("a{b=c}", 7, "a{b=c}"),
        ] {
            assert_eq!(values(&find(&table, fixed(), &[metric]).unwrap()), [(at, series)]);
        }
        let twice = find(&table, fixed(), &["Druck", "Druck{unit=bar}"]);
        assert_eq!(twice, Err(ColumnsError::Twice("Druck{unit=bar}".into())));
    }

    #[test]
    fn a_column_may_name_the_metric_of_each_row() {
        let find = |names: &[&str], row: &[&str], metrics: &[&str]| {
            let [header, row] = [names, row].map(|cells| StringRecord::from(cells.to_vec()));
            let metrics = metrics.iter().map(|metric| metric.parse().unwrap()).collect();
            let metric_column = Some("tag".to_owned());
            let wanted = Wanted { device: fixed(), time_column: None, metric_column, metrics };
            Columns::find(&header, &[&row], &wanted, &utc()).map(|found| {
                (found.metric, found.values.iter().map(|value| value.at).collect::<Vec<_>>(), found.ignored)
            })
        };
        let names = ["ts", "tag", "Value", "quality", "Unit"];
        let (row, metric) = (["1", "7", "2", "192", "°C"], Some(MetricColumn { at: 1, unit: Some(4) }));
        assert_eq!(find(&names, &row, &[]), Ok((metric, vec![2], vec!["quality".to_owned()])));
        let (names, row) = (["ts", "tag", "raw", "quality"], ["1", "a", "2", "192"]);
        let list = || names.join(", ");
        assert_eq!(find(&names, &row, &[]), Err(ColumnsError::SeveralValues(list())));
        let metric = Some(MetricColumn { at: 1, unit: None });
        assert_eq!(find(&names, &row, &["raw"]), Ok((metric, vec![2], vec!["quality".to_owned()])));
        let absent = find(&["ts", "value"], &["1", "2"], &[]);
        assert_eq!(absent, Err(ColumnsError::Absent("tag".into(), "ts, value".into())));
    }

    #[test]
    fn a_column_that_seems_to_name_the_metric_of_each_row_is_asked_about() {
        let seems = |column: &str, value: &str| ColumnsError::NamesMetrics(column.into(), value.into());
        for (names, row, column) in [
            (["ts", "Metric", "value", "note"], ["1", "temp", "2", "a"], "Metric"),
            (["ts", "_field", "_value", "_measurement"], ["1", "temp", "2", "a"], "_field"),
            (["ts", "quality", "value", "tag"], ["1", "192", "2", "a"], "tag"),
        ] {
            assert_eq!(find(&[&names, &row], fixed(), &[]), Err(seems(column, names[2])));
            assert!(find(&[&names, &row], fixed(), &[&format!("x={}", names[2])]).is_ok());
        }
        for (names, row) in [(["ts", "tag", "temp"], ["1", "a", "2"]), (["ts", "state", "value"], ["1", "on", "2"])] {
            assert!(find(&[&names, &row], fixed(), &[]).is_ok(), "{names:?}");
        }
        // Without a telling name, many rows tell.
        let find_in = |names: [&str; 3], rows: usize, row: &dyn Fn(usize) -> [String; 3]| {
            let rows: Vec<StringRecord> = (0..rows).map(|at| StringRecord::from(row(at).to_vec())).collect();
            let wanted = Wanted { device: fixed(), time_column: None, metric_column: None, metrics: Vec::new() };
            let sample: Vec<&StringRecord> = rows.iter().collect();
            Columns::find(&StringRecord::from(names.to_vec()), &sample, &wanted, &utc()).map(|found| found.ignored)
        };
        let table = |rows: usize, of_instant: usize, of_text: usize| {
            let row = |row: usize| [(row / of_instant).to_string(), format!("t{}", row % of_text), "1".into()];
            find_in(["ts", "what", "temp"], rows, &row)
        };
        assert_eq!(table(100, 4, 4), Err(seems("what", "temp")));
        assert_eq!(table(99, 2, 2), Err(seems("what", "temp")));
        for (rows, of_instant, of_text) in [(8, 4, 4), (100, 1, 4), (100, 4, 3), (100, 4, 1)] {
            let expected = Ok(vec!["what".to_owned()]);
            assert_eq!(table(rows, of_instant, of_text), expected, "{rows} {of_instant} {of_text}");
        }
        // The date and the time of day have two columns: neither is a time.
        let hour = |row: usize| [format!("2026-10-{:02}", row / 24 + 1), format!("{:02}:00", row % 24), "1".into()];
        for (names, ignored) in [(["Date", "Time", "Temp"], "Date"), (["Date", "Clock", "Temp"], "Clock")] {
            assert_eq!(find_in(names, 100, &hour), Ok(vec![ignored.to_owned()]));
        }
    }

    #[test]
    fn a_file_like_those_of_the_server_has_its_time_in_the_first_column_and_no_device() {
        let names = ["ts", " t", "Druck (bar)", "host", "u", "time", "timestamp\r"];
        let find_at = |time: &str, device: WantedDevice, metrics: &[&str]| {
            find(&[&names, &[time, "1", "2", "3", "4", "5", "6"]], device, metrics).unwrap()
        };
        let of_server = find_at("2026-10-25T00:30:00.000Z", fixed(), &[]);
        assert_eq!(of_server.time, [0]);
        let series = [(1, "t"), (2, "Druck{unit=bar}"), (3, "host"), (4, "u"), (5, "time"), (6, "timestamp")];
        assert_eq!(values(&of_server), series);
        let named = find_at("2026-10-25T00:30:00.000Z", fixed(), &["x=Druck (bar)", "time"]);
        assert_eq!((&named.time[..], values(&named)), (&[0][..], vec![(2, "x"), (5, "time")]));
        for time in ["2026-10-25T00:30:00Z", "2026-10-25T00:30:00.000+00:00", "1792852215"] {
            let foreign = find_at(time, fixed(), &["Druck"]);
            assert_eq!((&foreign.time[..], values(&foreign)), (&[6][..], vec![(2, "Druck{unit=bar}")]), "{time}");
        }
        let of_column = find_at("2026-10-25T00:30:00.000Z", WantedDevice::Customary, &["Druck"]);
        assert_eq!((&of_column.time[..], &of_column.device), (&[6][..], &DeviceSource::Column(3)));
    }

    #[test]
    fn white_space_belongs_to_the_names_in_a_file_of_the_server_only() {
        let names = ["ts", " t", "t", "temp ", "ts \r"];
        let find_in = |header: &[&str], row: &[&str]| find(&[header, row], fixed(), &[]);
        let time = "2026-10-25T00:30:00.000Z";
        let of_server = find_in(&names, &[time, "1", "2", "", "4\r"]).unwrap();
        assert_eq!(values(&of_server), [(1, " t"), (2, "t"), (3, "temp "), (4, "ts ")]);
        assert_eq!(of_server.ignored, [""; 0]);
        for (header, row) in [
            (&["ts", " t", "temp \r"][..], [time, " 1", "2\r"]),
            (&["ts", " t", "temp \r"], [time, "1", "2"]),
            (&["ts", " t", "temp "], [time, "1", "2\r"]),
            (&["ts", " t", "temp \r"], ["1792852215", "1", "2\r"]),
        ] {
            assert_eq!(values(&find_in(header, &row).unwrap()), [(1, "t"), (2, "temp")], "{header:?} {row:?}");
        }
    }

    #[test]
    fn date_and_time_may_have_two_columns() {
        let rows = [StringRecord::from(vec!["Datum", "Uhrzeit", "a,b", "v"])];
        let find = |time: &str| {
            let time_column = Some(time.to_owned());
            let wanted = Wanted { device: fixed(), time_column, metric_column: None, metrics: Vec::new() };
            Columns::find(&rows[0], &[], &wanted, &utc()).map(|columns| columns.time)
        };
        assert_eq!(find("Datum, Uhrzeit"), Ok(vec![0, 1]));
        assert_eq!(find("a,b"), Ok(vec![2]));
        assert_eq!(find("Datum,Zeit"), Err(ColumnsError::Absent("Zeit".into(), "Datum, Uhrzeit, a,b, v".into())));
    }

    #[test]
    fn the_time_and_the_device_are_not_read_from_one_of_several_columns_of_their_name() {
        let header = StringRecord::from(vec!["t", "t", "d", "d ", "time", "v", "w"]);
        let find = |time: &str, device: &str| {
            let (device, time_column) = (WantedDevice::Column(device.to_owned()), Some(time.to_owned()));
            let metrics = vec!["w".parse().unwrap()];
            let wanted = Wanted { device, time_column, metric_column: None, metrics };
            Columns::find(&header, &[], &wanted, &utc()).map(|columns| (columns.time, columns.device))
        };
        let several = |name: &str| ColumnsError::Several(name.into(), "t, t, d, d, time, v, w".into());
        for (time, device, name) in [("t", "v", "t"), ("time,t", "v", "t"), ("time", "d", "d")] {
            assert_eq!(find(time, device), Err(several(name)), "{time} {device}");
        }
        assert_eq!(find("time", "v"), Ok((vec![4], DeviceSource::Column(5))));
    }

    #[test]
    fn a_metric_is_read_from_the_column_said_or_its_own_or_the_only_one() {
        let one: [&[&str]; 2] = [&["timestamp", "value"], &["1", "2"]];
        assert_eq!(values(&find(&one, fixed(), &["value"]).unwrap()), [(1, "value")]);
        assert_eq!(values(&find(&one, fixed(), &["temp"]).unwrap()), [(1, "temp")]);
        assert_eq!(values(&find(&one, fixed(), &["temp=value"]).unwrap()), [(1, "temp")]);
        let one: [&[&str]; 2] = [&["timestamp", "value [°C]"], &["1", "2"]];
        assert_eq!(values(&find(&one, fixed(), &["temp"]).unwrap()), [(1, "temp{unit=°C}")]);
        let two: [&[&str]; 2] = [&["timestamp", "a", "b"], &["1", "2", "3"]];
        assert_eq!(values(&find(&two, fixed(), &["b"]).unwrap()), [(2, "b")]);
        assert_eq!(find(&two, fixed(), &["c"]), Err(ColumnsError::NoMetric("c".into(), "timestamp, a, b".into())));
        assert_eq!(find(&two, fixed(), &["x=c"]), Err(ColumnsError::Absent("c".into(), "timestamp, a, b".into())));
        let labelled: [&[&str]; 2] = [&["timestamp", "cpu{core=1,a=2}", "b", "b{"], &["1", "2", "3", "4"]];
        assert_eq!(values(&find(&labelled, fixed(), &[]).unwrap()), [(1, "cpu{a=2,core=1}"), (2, "b")]);
        assert_eq!(values(&find(&labelled, fixed(), &["cpu{a=2,core=1}"]).unwrap()), [(1, "cpu{a=2,core=1}")]);
        assert_eq!(values(&find(&labelled, fixed(), &[r"x{a\==\}}=b{"]).unwrap()), [(3, r"x{a\==\}}")]);
        assert_eq!(find(&two, fixed(), &["b", "b=a"]), Err(ColumnsError::Twice("b".into())));
    }

    #[test]
    fn a_metric_is_not_read_from_one_of_several_columns_of_its_name() {
        let names = ["ts", "t", "t", "c{b=1,a=2}", "c{b=1,a=2}", "p{unit=bar}", "p [bar]"];
        let table: [&[&str]; 2] = [&names, &["1", "2", "3", "4", "5", "6", "7"]];
        for (metric, name) in [("t", "t"), ("x=t", "t"), ("c{a=2,b=1}", "c{a=2,b=1}"), ("x=c{b=1,a=2}", "c{b=1,a=2}")] {
            let several = ColumnsError::Several(name.into(), names.join(", "));
            assert_eq!(find(&table, fixed(), &[metric]), Err(several), "{metric}");
        }
        for (metric, at) in [("p{unit=bar}", 5), ("p [bar]", 6), ("p", 6)] {
            assert_eq!(values(&find(&table, fixed(), &[metric]).unwrap()), [(at, "p{unit=bar}")], "{metric}");
        }
    }

    #[test]
    fn what_is_missing_is_said_with_the_columns_there_are() {
        let table: [&[&str]; 2] = [&["when", "temp"], &["1", "2"]];
        assert_eq!(find(&table, fixed(), &[]), Err(ColumnsError::NoTime("when, temp".into())));
        let table: [&[&str]; 2] = [&["time", "temp"], &["1", "2"]];
        assert_eq!(find(&table, WantedDevice::Customary, &[]), Err(ColumnsError::NoDevice("time, temp".into())));
        let table: [&[&str]; 2] = [&["time", "state"], &["1", "on"]];
        assert_eq!(find(&table, fixed(), &[]), Err(ColumnsError::NoValues("time, state".into())));
        let many = vec!["ä"; 200_000];
        let shown = format!("{}ä... of 200000", "ä, ".repeat(333));
        assert_eq!(find(&[&many[..]], fixed(), &[]), Err(ColumnsError::NoTime(shown)));
    }
}
