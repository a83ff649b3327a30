//! Finds the columns of the time, the device ID and the metrics in a CSV file. Pure.

use csv::StringRecord;
use tidegauge::model::series::{self, SeriesError};

const TIME_NAMES: [&str; 5] = ["timestamp", "time", "ts", "datetime", "date"];
const DEVICE_NAMES: [&str; 5] = ["deviceId", "device_id", "device", "sensor_id", "host"];

/// The columns named on the command line.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// The source of the device ID.
    pub(super) device: WantedDevice,
    /// The name of the time column, if it is given.
    pub(super) time_column: Option<String>,
    /// The metrics; empty for every column of numbers.
    pub(super) metrics: Vec<WantedMetric>,
}

impl Wanted {
    /// Whether the command line names nothing.
    pub(super) const fn is_nothing(&self) -> bool {
        matches!(self.device, WantedDevice::Customary) && self.time_column.is_none() && self.metrics.is_empty()
    }
}

/// The source of the device ID.
#[derive(Debug, Clone)]
pub(super) enum WantedDevice {
    /// This device ID for all rows.
    Fixed(String),
    /// The column of this name.
    Column(String),
    /// The first column with a customary name.
    Customary,
}

/// A metric and, if given, its column: `NAME[=COLUMN]`. Labels may follow the name: `cpu{core=0}=COLUMN`.
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

/// Why the columns of a file cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ColumnsError {
    #[error("the columns seem to be separated by {0}, but only commas are supported: convert the file first")]
    Separator(&'static str),
    #[error("no time column; name it with --time-column (columns: {0})")]
    NoTime(String),
    #[error("no device column; name it with --device-column, or the device with --device (columns: {0})")]
    NoDevice(String),
    #[error("there is no column {0:?} (columns: {1})")]
    Absent(String, String),
    #[error("there is no column {0:?} for the metric; write --metric {0}=COLUMN (columns: {1})")]
    NoMetric(String, String),
    #[error("no column contains numbers (columns: {0})")]
    NoValues(String),
    #[error("the metric {0:?} would be read from two columns")]
    Twice(String),
    #[error("a file of an export has the columns deviceId,ts,series,value,metadata; this one has {0:?} too")]
    NotOfExport(String),
}

/// The columns to read, by their position in a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Columns {
    /// The time.
    pub(super) time: usize,
    /// The device ID.
    pub(super) device: DeviceSource,
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

/// A column of values.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ValueColumn {
    /// Its position in a row.
    pub(super) at: usize,
    /// The metric.
    pub(super) metric: String,
}

impl Columns {
    /// Finds the columns. `sample` is the first rows.
    ///
    /// Without named metrics, a column is a metric if most of its non-empty cells in the sample are numbers,
    /// or if all its cells are empty, so that no column of numbers is ignored silently.
    pub(super) fn find(header: &StringRecord, sample: &[&StringRecord], wanted: &Wanted) -> Result<Self, ColumnsError> {
        if let (1, Some(only)) = (header.len(), header.get(0)) {
            let separators = [(';', "\";\""), ('\t', "tabs"), ('|', "\"|\"")];
            if let Some((_, name)) = separators.into_iter().find(|(separator, _)| only.contains(*separator)) {
                return Err(ColumnsError::Separator(name));
            }
        }
        let header = Header(header.iter().map(str::trim).collect());
        let time = match &wanted.time_column {
            Some(name) => header.named(name)?,
            None => header.customary(&TIME_NAMES).ok_or_else(|| ColumnsError::NoTime(header.list()))?,
        };
        let customary_device = header.customary(&DEVICE_NAMES);
        let (device, device_column) = match &wanted.device {
            WantedDevice::Fixed(device) => (DeviceSource::Fixed(device.clone()), customary_device),
            WantedDevice::Column(name) => header.named(name).map(|at| (DeviceSource::Column(at), Some(at)))?,
            WantedDevice::Customary => {
                let at = customary_device.ok_or_else(|| ColumnsError::NoDevice(header.list()))?;
                (DeviceSource::Column(at), Some(at))
            }
        };
        let is_value = |&at: &usize| {
            at != time
                && Some(at) != device_column
                && series::canonical(header.0[at]).is_ok()
                && holds_numbers(sample, at)
        };
        let candidates: Vec<usize> = (0..header.0.len()).filter(is_value).collect();
        let values = header.values(&candidates, &wanted.metrics)?;
        let read = |at: usize| at == time || Some(at) == device_column || values.iter().any(|value| value.at == at);
        let ignored = (0..header.0.len()).filter(|&at| !read(at)).map(|at| header.0[at].to_owned()).collect();
        Ok(Self { time, device, values, ignored })
    }
}

/// The names of the columns, trimmed.
struct Header<'a>(Vec<&'a str>);

impl Header<'_> {
    fn position(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|&column| column == name)
    }

    fn named(&self, name: &str) -> Result<usize, ColumnsError> {
        self.position(name).ok_or_else(|| ColumnsError::Absent(name.to_owned(), self.list()))
    }

    /// The column with the first of `names` that exists.
    fn customary(&self, names: &[&str]) -> Option<usize> {
        names.iter().find_map(|name| self.0.iter().position(|column| column.eq_ignore_ascii_case(name)))
    }

    /// The columns of the named metrics; all candidates if there are none.
    fn values(&self, candidates: &[usize], wanted: &[WantedMetric]) -> Result<Vec<ValueColumn>, ColumnsError> {
        let values: Vec<ValueColumn> = if wanted.is_empty() {
            candidates.iter().map(|&at| ValueColumn { at, metric: canonical(self.0[at]) }).collect()
        } else {
            let place = |metric: &WantedMetric| {
                Ok(ValueColumn { at: self.place(metric, candidates)?, metric: metric.name.clone() })
            };
            wanted.iter().map(place).collect::<Result<_, _>>()?
        };
        if values.is_empty() {
            return Err(ColumnsError::NoValues(self.list()));
        }
        for (at, value) in values.iter().enumerate() {
            if values[..at].iter().any(|other| other.metric == value.metric) {
                return Err(ColumnsError::Twice(value.metric.clone()));
            }
        }
        Ok(values)
    }

    /// The column of a metric: the named one, else the one with the metric's name, else the only candidate.
    fn place(&self, metric: &WantedMetric, candidates: &[usize]) -> Result<usize, ColumnsError> {
        if let Some(column) = &metric.column {
            return self.named(column);
        }
        let of_metric = self.0.iter().position(|column| canonical(column) == metric.name);
        match (of_metric, candidates) {
            (Some(at), _) => Ok(at),
            (None, &[only]) => Ok(only),
            (None, _) => Err(ColumnsError::NoMetric(metric.name.clone(), self.list())),
        }
    }

    fn list(&self) -> String {
        self.0.join(", ")
    }
}

/// The canonical text of the series that a column is named by, or its name if that is no series.
fn canonical(column: &str) -> String {
    series::canonical(column).unwrap_or(column.into()).into_owned()
}

/// Whether a column contains numbers, according to the sample.
fn holds_numbers(sample: &[&StringRecord], at: usize) -> bool {
    let cells = sample.iter().filter_map(|row| row.get(at)).map(str::trim).filter(|cell| !cell.is_empty());
    let (mut numbers, mut others) = (0, 0);
    for cell in cells {
        match cell.parse::<f64>() {
            Ok(_) => numbers += 1,
            Err(_) => others += 1,
        }
    }
    numbers > others || others == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(table: &[&[&str]], device: WantedDevice, metrics: &[&str]) -> Result<Columns, ColumnsError> {
        let rows: Vec<StringRecord> = table.iter().map(|row| StringRecord::from(row.to_vec())).collect();
        let sample: Vec<&StringRecord> = rows[1..].iter().collect();
        let metrics = metrics.iter().map(|metric| metric.parse().unwrap()).collect();
        Columns::find(&rows[0], &sample, &Wanted { device, time_column: None, metrics })
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
        assert_eq!((columns.time, &columns.device), (3, &DeviceSource::Column(2)));
        assert_eq!(values(&columns), [(4, "t")]);
        assert_eq!(columns.ignored, ["Host", "date"]);
    }

    #[test]
    fn every_column_of_numbers_is_a_metric_and_the_others_are_named_as_ignored() {
        let table: [&[&str]; 4] = [
            &["ts", "", "temp", "state", "hum", "rare"],
            &["1", "0", "°C", "ok", "", ""],
            &["2", "1", "20.5", "ok", "40", ""],
            &["3", "2", "-1e1", "1", "NaN", ""],
        ];
        let columns = find(&table, fixed(), &[]).unwrap();
        assert_eq!(values(&columns), [(2, "temp"), (4, "hum"), (5, "rare")]);
        assert_eq!(columns.ignored, ["", "state"]);
    }

    #[test]
    fn a_named_device_keeps_the_device_column_from_becoming_a_metric() {
        let table: [&[&str]; 2] = [&["ts", "sensor_id", "temp"], &["1", "17", "2"]];
        assert_eq!(values(&find(&table, fixed(), &[]).unwrap()), [(2, "temp")]);
    }

    #[test]
    fn a_header_that_is_separated_by_something_else_is_recognized() {
        let refused = find(&[&["timestamp;temp;hum"], &["1;20", "5;40"]], fixed(), &[]);
        assert_eq!(refused, Err(ColumnsError::Separator("\";\"")));
        assert_eq!(find(&[&["timestamp"], &["1"]], fixed(), &[]), Err(ColumnsError::NoValues("timestamp".into())));
    }

    #[test]
    fn a_metric_is_read_from_the_column_said_or_its_own_or_the_only_one() {
        let one: [&[&str]; 2] = [&["timestamp", "value"], &["1", "2"]];
        assert_eq!(values(&find(&one, fixed(), &["value"]).unwrap()), [(1, "value")]);
        assert_eq!(values(&find(&one, fixed(), &["temp"]).unwrap()), [(1, "temp")]);
        assert_eq!(values(&find(&one, fixed(), &["temp=value"]).unwrap()), [(1, "temp")]);
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
    fn what_is_missing_is_said_with_the_columns_there_are() {
        let table: [&[&str]; 2] = [&["when", "temp"], &["1", "2"]];
        assert_eq!(find(&table, fixed(), &[]), Err(ColumnsError::NoTime("when, temp".into())));
        let table: [&[&str]; 2] = [&["time", "temp"], &["1", "2"]];
        assert_eq!(find(&table, WantedDevice::Customary, &[]), Err(ColumnsError::NoDevice("time, temp".into())));
        let table: [&[&str]; 2] = [&["time", "state"], &["1", "on"]];
        assert_eq!(find(&table, fixed(), &[]), Err(ColumnsError::NoValues("time, state".into())));
    }
}
