//! The place at which an interrupted export continues.
//!
//! The file may end within a row, or may lack rows of its last instant. So the export removes the rows of the
//! last instant, and writes them again.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::super::import::Format;
use super::rows::HEADER;

/// The bytes at the end of the file that are read first.
///
/// If all their rows are of one instant, more bytes are read.
const FIRST_BYTES: u64 = 64 << 10;

/// The most bytes at the end of the file that are read.
const MAX_BYTES: u64 = 64 << 20;

/// Where an export continues.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The length of the part of the file that stays.
    pub(super) bytes: u64,
    /// The row to write next. `None`: the export begins with the first device.
    pub(super) next: Option<Next>,
}

/// The row at which an export continues.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) device: String,
    /// The instant, as the server writes it.
    pub(super) ts: String,
}

/// The device and the instant of a row.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Key {
    device_id: String,
    ts: String,
}

/// Finds the place at which the export of a file continues.
pub(super) fn find(file: &mut File, format: Format) -> anyhow::Result<Place> {
    let length = file.metadata()?.len();
    if format == Format::Csv {
        expect_header(file, length)?;
    }
    let mut bytes = FIRST_BYTES.min(length);
    loop {
        let start = length - bytes;
        file.seek(SeekFrom::Start(start))?;
        let mut end = vec![0; usize::try_from(bytes)?];
        file.read_exact(&mut end)?;
        if let Some(place) = find_in(&end, start, format)? {
            return Ok(place);
        }
        if bytes >= MAX_BYTES {
            bail!("the last {MAX_BYTES} bytes are of one instant: this is not the file of an export");
        }
        bytes = (4 * bytes).min(length);
    }
}

/// Refuses a file that does not begin with the header of CSV, or a part of it.
fn expect_header(file: &mut File, length: u64) -> anyhow::Result<()> {
    let mut begin = vec![0; HEADER.len().min(usize::try_from(length)?)];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut begin)?;
    if !HEADER.starts_with(&begin) {
        bail!("this file does not begin with the header of an export as CSV: its --format is another one");
    }
    Ok(())
}

/// Finds the place in `end`, the bytes of a file from `start` on.
///
/// `None`: an earlier start is needed.
fn find_in(end: &[u8], start: u64, format: Format) -> anyhow::Result<Option<Place>> {
    let rows = rows(end, start, format);
    let Some(&(_, last)) = rows.last() else { return Ok((start == 0).then(Place::default)) };
    let Key { device_id: device, ts } = key(last, format)?;
    for &(at, row) in rows.iter().rev() {
        let before = key(row, format)?;
        if before.device_id != device || before.ts != ts {
            let next = Some(Next { device, ts });
            return Ok(Some(Place { bytes: start + (at + row.len() + 1) as u64, next }));
        }
    }
    let next = Some(Next { device, ts });
    Ok((start == 0).then(|| Place { bytes: rows[0].0 as u64, next }))
}

/// The whole rows, without their line feeds, each with its offset in `end`.
fn rows(end: &[u8], start: u64, format: Format) -> Vec<(usize, &[u8])> {
    let mut rows = Vec::new();
    let mut at = 0;
    for line_end in memchr::memchr_iter(b'\n', end) {
        rows.push((at, &end[at..line_end]));
        at = line_end + 1;
    }
    let is_partial = start > 0; // the first row may have begun before `start`
    let has_header = start == 0 && format == Format::Csv;
    if (is_partial || has_header) && !rows.is_empty() {
        rows.remove(0);
    }
    rows
}

fn key(row: &[u8], format: Format) -> anyhow::Result<Key> {
    let key = match format {
        Format::Ndjson => serde_json::from_slice(row).ok(),
        Format::Csv => {
            csv::ReaderBuilder::new().has_headers(false).from_reader(row).records().next().and_then(of_cells)
        }
    };
    let shown = || String::from_utf8_lossy(row).chars().take(80).collect::<String>();
    key.with_context(|| format!("this row is not of an export: {}", shown()))
}

fn of_cells(cells: csv::Result<csv::StringRecord>) -> Option<Key> {
    let cells = cells.ok()?;
    Some(Key { device_id: cells.get(0)?.to_owned(), ts: cells.get(1)?.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn place(text: &str, format: Format) -> anyhow::Result<Place> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        find(&mut file, format)
    }

    fn place_at(bytes: u64, device: &str, ts: &str) -> Place {
        Place { bytes, next: Some(Next { device: device.to_owned(), ts: ts.to_owned() }) }
    }

    #[test]
    fn an_export_continues_with_the_last_instant_of_the_file() {
        let line = |device: &str, ts: &str| format!("{{\"deviceId\":\"{device}\",\"ts\":\"{ts}\",\"values\":{{}}}}\n");
        let lines = [line("a", "1"), line("a", "2"), line("b", "1"), line("b", "1")];
        let of = |count: usize, end: &str| place(&format!("{}{end}", lines[..count].concat()), Format::Ndjson).unwrap();
        let bytes = |count: usize| lines[..count].concat().len() as u64;
        for end in ["", "{", "{\"deviceId\":\"b\",\"ts\":\"1\"}"] {
            assert_eq!(of(0, end), Place::default());
            assert_eq!(of(1, end), place_at(0, "a", "1"));
            assert_eq!(of(2, end), place_at(bytes(1), "a", "2"));
            for of_last in [3, 4] {
                assert_eq!(of(of_last, end), place_at(bytes(2), "b", "1"));
            }
        }
    }

    #[test]
    fn all_rows_of_the_last_instant_are_written_again() {
        let header = "deviceId,ts,series,value,metadata\r\n";
        let first = "a,1,t,1,\r\n";
        let of_last: String = (0..20_000)
            .flat_map(|nth| ["a,2,\"t{n=".to_owned(), nth.to_string(), ",x=1}\",1,\r\n".to_owned()])
            .collect();
        let file = format!("{header}{first}{of_last}a,2,t");
        let bytes = (header.len() + first.len()) as u64;
        assert!(of_last.len() as u64 > FIRST_BYTES);
        assert_eq!(place(&file, Format::Csv).unwrap(), place_at(bytes, "a", "2"));
        let only = format!("{header}{of_last}");
        assert_eq!(place(&only, Format::Csv).unwrap(), place_at(header.len() as u64, "a", "2"));
        assert_eq!(place(header, Format::Csv).unwrap(), Place::default());
        assert_eq!(place("deviceId,t", Format::Csv).unwrap(), Place::default());
    }

    #[test]
    fn another_file_is_not_continued() {
        let error = place("{\"a\":1}\n", Format::Ndjson).unwrap_err().to_string();
        assert!(error.contains("{\"a\":1}"), "{error}");
        let line = "{\"deviceId\":\"a\",\"ts\":\"1\",\"values\":{\"t\":1,\"u\":2,\"v\":3}}\n";
        for text in [line, &line[..9], &line.repeat(20_000)] {
            let error = place(text, Format::Csv).unwrap_err().to_string();
            assert!(error.contains("the header of an export as CSV"), "{error}");
        }
        let error = place("deviceId,ts,series,value,metadata\r\n", Format::Ndjson).unwrap_err().to_string();
        assert!(error.contains("this row is not of an export: deviceId,"), "{error}");
    }
}
