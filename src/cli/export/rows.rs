//! The rows of an export: those of the server, with the metadata of each device in its last row. Pure.
//!
//! Another server may refuse the older rows of a device, whose time is before its `retention.readings`. It
//! takes no metadata from a row that it refuses.

use std::collections::VecDeque;
use std::io::Write;

use anyhow::bail;
use serde_json::Value;

use super::super::import::Format;
use super::requests::Listed;

/// The size limit of a row.
///
/// The row of an instant with thousands of long series takes a fraction of it.
const ROW_MAX_BYTES: usize = 16 << 20;

/// The header of the file, and below it the header that the server sends.
pub(super) const HEADER: &[u8] = b"deviceId,ts,series,value,metadata\r\n";
const SERVER_HEADER: &[u8] = b"deviceId,ts,series,value\r";

/// The rows and devices that were written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) devices: u64,
    pub(super) rows: u64,
}

/// Writes the rows of files that the server sends, one file after the other.
pub(super) struct Rows<W> {
    format: Format,
    out: W,
    counts: Counts,
    /// The devices of this file whose rows have not begun.
    devices: VecDeque<Device>,
    /// The device of the last row.
    device: Device,
    /// The last row, which is not written yet: only the next row shows whether it is the last of its device.
    last: Vec<u8>,
    /// The beginning of a row whose end has not arrived.
    unfinished: Vec<u8>,
    /// Whether the next row is the header of a file.
    at_header: bool,
}

#[derive(Default)]
struct Device {
    /// How each of its rows begins.
    start: Vec<u8>,
    /// The device's metadata as text, which only its last row gets.
    metadata: String,
}

impl<W: Write> Rows<W> {
    pub(super) fn new(format: Format, out: W) -> Self {
        let (devices, device) = (VecDeque::new(), Device::default());
        let (last, unfinished) = (Vec::new(), Vec::new());
        Self { format, out, counts: Counts::default(), devices, device, last, unfinished, at_header: false }
    }

    /// Writes the header of the file, if its format has one.
    pub(super) fn begin(&mut self) -> anyhow::Result<()> {
        if self.format == Format::Csv {
            self.out.write_all(HEADER)?;
        }
        Ok(())
    }

    /// Begins a file with the readings of these devices, in this order.
    pub(super) fn start_file(&mut self, devices: &[Listed]) {
        let device = |listed: &Listed| {
            let (id, metadata) = (&listed.device_id, listed.metadata.as_ref().map(|metadata| metadata.get()));
            match self.format {
                Format::Csv => {
                    let quoted = if id.contains([',', '"']) { cell(id) } else { id.clone() };
                    Device { start: (quoted + ",").into(), metadata: metadata.map_or_else(String::new, cell) }
                }
                Format::Ndjson => Device {
                    start: format!("{{\"deviceId\":{},", Value::from(id.as_str())).into(),
                    metadata: metadata.map_or_else(String::new, |text| format!("\"metadata\":{text},")),
                },
            }
        };
        self.devices = devices.iter().map(device).collect();
        self.device = Device::default();
        self.at_header = self.format == Format::Csv;
    }

    /// Writes the rows that end in a piece of the file. The last one waits for the next piece.
    pub(super) fn add(&mut self, mut piece: &[u8]) -> anyhow::Result<()> {
        while let Some(end) = memchr::memchr(b'\n', piece) {
            let (row, rest) = (&piece[..end], &piece[end + 1..]);
            if self.unfinished.is_empty() {
                self.row(row)?;
            } else {
                let mut whole = std::mem::take(&mut self.unfinished);
                whole.extend_from_slice(row);
                self.row(&whole)?;
            }
            piece = rest;
        }
        if self.unfinished.len() + piece.len() > ROW_MAX_BYTES {
            bail!("the server sends a row of more than {ROW_MAX_BYTES} bytes");
        }
        self.unfinished.extend_from_slice(piece);
        Ok(())
    }

    /// The rows and devices that were written so far.
    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Writes the last row of a file. Fails if the file ends within a row.
    pub(super) fn end_file(&mut self) -> anyhow::Result<()> {
        if !self.unfinished.is_empty() {
            bail!("the answer of the server ends within a row");
        }
        self.write_last(true)
    }

    /// Flushes the output, and returns what was written.
    pub(super) fn finish(mut self) -> anyhow::Result<Counts> {
        self.out.flush()?;
        Ok(self.counts)
    }

    fn row(&mut self, row: &[u8]) -> anyhow::Result<()> {
        if std::mem::take(&mut self.at_header) {
            if row != SERVER_HEADER {
                bail!("the server sends CSV with another header: {:?}", String::from_utf8_lossy(row));
            }
            return Ok(());
        }
        let is_same_device = !self.device.start.is_empty() && row.starts_with(&self.device.start);
        self.write_last(!is_same_device)?;
        if !is_same_device {
            self.next_device(row)?;
        }
        self.last.extend_from_slice(row);
        Ok(())
    }

    /// Writes the last row, if there is one: with the metadata of its device if it is the device's last.
    fn write_last(&mut self, is_last_of_device: bool) -> anyhow::Result<()> {
        if self.last.is_empty() {
            return Ok(());
        }
        let metadata = if is_last_of_device { self.device.metadata.as_str() } else { "" };
        match self.format {
            Format::Ndjson => {
                let (start, rest) = self.last.split_at(self.device.start.len());
                for part in [start, metadata.as_bytes(), rest, b"\n"] {
                    self.out.write_all(part)?;
                }
            }
            Format::Csv => {
                for part in [self.last.trim_ascii_end(), b",", metadata.as_bytes(), b"\r\n"] {
                    self.out.write_all(part)?;
                }
            }
        }
        self.last.clear();
        self.counts.rows += 1;
        Ok(())
    }

    /// Moves on to the device whose first row is `row`.
    fn next_device(&mut self, row: &[u8]) -> anyhow::Result<()> {
        while let Some(device) = self.devices.pop_front() {
            if row.starts_with(&device.start) {
                self.device = device;
                self.counts.devices += 1;
                return Ok(());
            }
        }
        let shown: String = String::from_utf8_lossy(row).chars().take(80).collect();
        bail!("the server sends a row of a device that was not asked for, or not in this order: {shown}")
    }
}

/// A text as a cell in quotes.
fn cell(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(devices: &str) -> Vec<Listed> {
        serde_json::from_str(devices).unwrap()
    }

    /// The rows of a file that arrives in pieces of each size.
    fn rows(format: Format, devices: &str, file: &str) -> anyhow::Result<(String, Counts)> {
        let mut all = Vec::new();
        for size in [1, 7, 1000] {
            let mut out = Vec::new();
            let mut rows = Rows::new(format, &mut out);
            rows.begin()?;
            rows.start_file(&listed(devices));
            for piece in file.as_bytes().chunks(size) {
                rows.add(piece)?;
            }
            rows.end_file()?;
            let counts = rows.finish()?;
            all.push((String::from_utf8(out).unwrap(), counts));
        }
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        Ok(all.remove(0))
    }

    const DEVICES: &str = r#"[{"deviceId":"a","metadata":{"n":"x,y"}},{"deviceId":"b","metadata":{"n":1}},
        {"deviceId":"b1","metadata":null}]"#;

    #[test]
    fn the_last_line_of_a_device_has_its_metadata() {
        let file = "{\"deviceId\":\"a\",\"ts\":1}\n{\"deviceId\":\"a\",\"ts\":2}\n{\"deviceId\":\"b1\",\"ts\":1}\n";
        let (text, counts) = rows(Format::Ndjson, DEVICES, file).unwrap();
        let expected = "{\"deviceId\":\"a\",\"ts\":1}\n{\"deviceId\":\"a\",\"metadata\":{\"n\":\"x,y\"},\"ts\":2}\n\
                        {\"deviceId\":\"b1\",\"ts\":1}\n";
        assert_eq!((text.as_str(), counts), (expected, Counts { devices: 2, rows: 3 }));
        assert_eq!(rows(Format::Ndjson, DEVICES, "").unwrap().1, Counts::default());
    }

    #[test]
    fn the_last_row_of_a_device_has_its_metadata() {
        let file = "deviceId,ts,series,value\r\na,1,t,2\r\na,1,\"x{a=1,b=2}\",3\r\nb,1,t,4\r\n";
        let (text, counts) = rows(Format::Csv, DEVICES, file).unwrap();
        let expected = "deviceId,ts,series,value,metadata\r\na,1,t,2,\r\n\
                        a,1,\"x{a=1,b=2}\",3,\"{\"\"n\"\":\"\"x,y\"\"}\"\r\nb,1,t,4,\"{\"\"n\"\":1}\"\r\n";
        assert_eq!((text.as_str(), counts), (expected, Counts { devices: 2, rows: 3 }));
    }

    #[test]
    fn an_answer_that_was_not_asked_for_is_an_error() {
        for (format, file, why) in [
            (Format::Ndjson, "{\"deviceId\":\"c\",\"ts\":1}\n", "not asked for"),
            (Format::Ndjson, "{\"deviceId\":\"b\",\"ts\":1}\n{\"deviceId\":\"a\",\"ts\":1}\n", "not in this order"),
            (Format::Ndjson, "{\"deviceId\":\"a\",\"ts\":1}", "within a row"),
            (Format::Csv, "ts,value\r\n", "another header"),
        ] {
            let error = rows(format, DEVICES, file).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
