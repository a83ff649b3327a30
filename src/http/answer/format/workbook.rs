//! The container of an XLSX file: sheets in a ZIP archive, written as a stream.
//!
//! A workbook may have any number of rows, in the memory of one compressor. When a sheet is full, the next
//! rows are in a further sheet with the same header. The sizes of an entry follow its data (bit 3), as they
//! do in archives that are written as a stream. The archive avoids ZIP64, which not every spreadsheet reads.
//!
//! Sources: APPNOTE.TXT of PKWARE, ECMA-376 part 2 (packages).

use std::io::{self, Write};

use flate2::write::DeflateEncoder;

use super::encoding::DEFLATE_LEVEL;

/// The most rows of a sheet in Excel, its header included.
const MAX_ROWS: u32 = 1_048_576;

/// About the most bytes of the XML of a sheet.
///
/// An entry without ZIP64 has at most 4 GiB.
const MAX_SHEET_BYTES: u32 = 1 << 31;

/// The date of each entry, 1980-01-01.
///
/// It is always the same, so the same readings make the same bytes.
const DOS_DATE: u16 = 0x21;

const SHEET_END: &[u8] = b"</sheetData></worksheet>";

/// The styles, which [`super::Cells`] names by index.
///
/// They are: 0 none, 1 a time, 2 a time with milliseconds, 3 bold.
const STYLES: &str = concat!(
    r#"<?xml version="1.0" encoding="UTF-8" standalone="yes"?>"#,
    r#"<styleSheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><numFmts count="2">"#,
    r#"<numFmt numFmtId="164" formatCode="yyyy\-mm\-dd\ hh:mm:ss"/>"#,
    r#"<numFmt numFmtId="165" formatCode="yyyy\-mm\-dd\ hh:mm:ss.000"/></numFmts><fonts count="2">"#,
    r#"<font><sz val="11"/><name val="Calibri"/><family val="2"/></font>"#,
    r#"<font><b/><sz val="11"/><name val="Calibri"/><family val="2"/></font></fonts><fills count="2">"#,
    r#"<fill><patternFill patternType="none"/></fill>"#,
    r#"<fill><patternFill patternType="gray125"/></fill></fills>"#,
    r#"<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>"#,
    r#"<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>"#,
    r#"<cellXfs count="4"><xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>"#,
    r#"<xf numFmtId="164" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>"#,
    r#"<xf numFmtId="165" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>"#,
    r#"<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/></cellXfs>"#,
    r#"<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>"#,
);

/// The content types of parts that have no type of their own.
const DEFAULT_TYPES: &str = concat!(
    r#"<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>"#,
    r#"<Default Extension="xml" ContentType="application/xml"/>"#,
);

const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\"?>";
const MAIN: &str = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
const PACKAGE: &str = "http://schemas.openxmlformats.org/package/2006";
const KIND: &str = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";

/// Makes an archive of the text of one table.
///
/// The first line of the text is the start of a sheet with its header. Each further line is a row. No row has
/// a line feed inside.
pub(in crate::http) struct Workbook {
    /// Compresses the entry that is being written. Finished bytes wait in its `Vec`.
    encoder: DeflateEncoder<Vec<u8>>,
    crc: crc32fast::Hasher,
    entries: Vec<Entry>,
    /// The number of bytes that the archive has returned so far.
    passed: usize,
    /// The first line, with which each sheet begins.
    head: Vec<u8>,
    sheets: usize,
    /// The number of rows of the last sheet, its header included.
    rows: u32,
    max_rows: u32,
    is_within_row: bool,
}

struct Entry {
    name: String,
    start: u32,
    data_start: usize,
    crc: u32,
    compressed: u32,
    size: u32,
}

impl Workbook {
    pub(super) fn new() -> Self {
        Self {
            encoder: DeflateEncoder::new(Vec::new(), DEFLATE_LEVEL),
            crc: crc32fast::Hasher::new(),
            entries: Vec::new(),
            passed: 0,
            head: Vec::new(),
            sheets: 0,
            rows: 0,
            max_rows: MAX_ROWS,
            is_within_row: false,
        }
    }

    /// Adds a piece of the text, and returns the bytes that are ready.
    pub(super) fn encode(&mut self, text: &[u8]) -> io::Result<Vec<u8>> {
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let ends = line.ends_with(b"\n");
            if self.sheets == 0 {
                self.head.extend_from_slice(line);
                if ends {
                    self.begin_sheet()?;
                }
                continue;
            }
            let is_full = self.rows == self.max_rows || self.entries.last().is_some_and(|of| of.size > MAX_SHEET_BYTES);
            if is_full && !self.is_within_row {
                self.end_sheet()?;
                self.begin_sheet()?;
            }
            self.put(line)?;
            self.is_within_row = !ends;
            self.rows += u32::from(ends);
        }
        Ok(self.take())
    }

    /// Ends the archive, and returns its last bytes.
    pub(super) fn finish(mut self) -> io::Result<Vec<u8>> {
        self.end_sheet()?;
        let each = |write: fn(usize) -> String| (1..=self.sheets).map(write).collect::<Vec<_>>().concat();
        let sheets = each(|nth| format!(r#"<sheet name="Sheet{nth}" sheetId="{nth}" r:id="rId{nth}"/>"#));
        let relations = each(|nth| relation(nth, "worksheet", &format!("worksheets/sheet{nth}.xml")));
        let types = each(|nth| part(&format!("worksheets/sheet{nth}"), "worksheet"));
        let workbook =
            format!(r#"{DECLARATION}<workbook xmlns="{MAIN}" xmlns:r="{KIND}"><sheets>{sheets}</sheets></workbook>"#);
        let relations = format!(
            r#"{DECLARATION}<Relationships xmlns="{PACKAGE}/relationships">{relations}{}</Relationships>"#,
            relation(self.sheets + 1, "styles", "styles.xml"),
        );
        let of_package = format!(
            r#"{DECLARATION}<Relationships xmlns="{PACKAGE}/relationships">{}</Relationships>"#,
            relation(1, "officeDocument", "xl/workbook.xml"),
        );
        let types = format!(
            r#"{DECLARATION}<Types xmlns="{PACKAGE}/content-types">{DEFAULT_TYPES}{}{}{types}</Types>"#,
            part("workbook", "sheet.main"),
            part("styles", "styles"),
        );
        for (name, text) in [
            ("xl/workbook.xml", &*workbook),
            ("xl/_rels/workbook.xml.rels", &relations),
            ("xl/styles.xml", STYLES),
            ("_rels/.rels", &of_package),
            ("[Content_Types].xml", &types),
        ] {
            self.begin(name.to_owned())?;
            self.put(text.as_bytes())?;
            self.end()?;
        }
        self.write_directory()?;
        Ok(self.take())
    }

    fn begin_sheet(&mut self) -> io::Result<()> {
        self.sheets += 1;
        self.rows = 1;
        self.begin(format!("xl/worksheets/sheet{}.xml", self.sheets))?;
        let head = std::mem::take(&mut self.head);
        self.put(&head)?;
        self.head = head;
        Ok(())
    }

    fn end_sheet(&mut self) -> io::Result<()> {
        self.put(SHEET_END)?;
        self.end()
    }

    /// Begins an entry with its local header, which has no sizes yet.
    fn begin(&mut self, name: String) -> io::Result<()> {
        let start = self.position()?;
        let out = self.encoder.get_mut();
        out.extend_from_slice(b"PK\x03\x04");
        write_attributes(out, [0; 3], name.len());
        out.extend_from_slice(name.as_bytes());
        let data_start = self.passed + self.encoder.get_ref().len();
        self.entries.push(Entry { name, start, data_start, crc: 0, compressed: 0, size: 0 });
        Ok(())
    }

    fn put(&mut self, text: &[u8]) -> io::Result<()> {
        self.crc.update(text);
        if let Some(entry) = self.entries.last_mut() {
            entry.size = entry.size.checked_add(length(text.len())?).ok_or_else(too_large)?;
        }
        self.encoder.write_all(text)
    }

    /// Ends an entry with its data descriptor, which has the sizes.
    fn end(&mut self) -> io::Result<()> {
        *self.encoder.get_mut() = self.encoder.reset(Vec::new())?;
        let end = self.passed + self.encoder.get_ref().len();
        let crc = std::mem::take(&mut self.crc).finalize();
        if let Some(entry) = self.entries.last_mut() {
            (entry.crc, entry.compressed) = (crc, length(end - entry.data_start)?);
            let out = self.encoder.get_mut();
            out.extend_from_slice(b"PK\x07\x08");
            for number in [entry.crc, entry.compressed, entry.size] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        Ok(())
    }

    /// Writes the central directory and the end of the archive.
    fn write_directory(&mut self) -> io::Result<()> {
        let start = self.position()?;
        let count = u16::try_from(self.entries.len()).map_err(|_| too_large())?.to_le_bytes();
        let entries = std::mem::take(&mut self.entries);
        let out = self.encoder.get_mut();
        let begin = out.len();
        for Entry { name, start, crc, compressed, size, .. } in entries {
            out.extend_from_slice(b"PK\x01\x02\x14\0"); // made by version 2.0
            write_attributes(out, [crc, compressed, size], name.len());
            out.extend_from_slice(&[0; 10]); // no comment, first disk, no attributes
            out.extend_from_slice(&start.to_le_bytes());
            out.extend_from_slice(name.as_bytes());
        }
        let bytes = length(out.len() - begin)?.to_le_bytes();
        out.extend_from_slice(b"PK\x05\x06\0\0\0\0"); // one disk
        out.extend_from_slice(&[count, count].concat());
        out.extend_from_slice(&[bytes, start.to_le_bytes()].concat());
        out.extend_from_slice(&[0; 2]); // no comment
        Ok(())
    }

    fn position(&self) -> io::Result<u32> {
        length(self.passed + self.encoder.get_ref().len())
    }

    fn take(&mut self) -> Vec<u8> {
        let ready = std::mem::take(self.encoder.get_mut());
        self.passed += ready.len();
        ready
    }
}

/// Writes the fields that both headers of an entry have.
///
/// These are all fields from the needed version to the lengths.
fn write_attributes(out: &mut Vec<u8>, crc_and_sizes: [u32; 3], name_length: usize) {
    out.extend_from_slice(&[20, 0, 8, 0, 8, 0, 0, 0]); // version 2.0; sizes follow; deflated; midnight
    out.extend_from_slice(&DOS_DATE.to_le_bytes());
    for number in crc_and_sizes {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&(name_length as u16).to_le_bytes());
    out.extend_from_slice(&[0; 2]); // no extra field
}

/// Returns the relationship to a part, with the identifier `rId{nth}`.
fn relation(nth: usize, kind: &str, target: &str) -> String {
    format!(r#"<Relationship Id="rId{nth}" Type="{KIND}/{kind}" Target="{target}"/>"#)
}

/// Returns the content type of a part of the package.
fn part(name: &str, kind: &str) -> String {
    let media = "application/vnd.openxmlformats-officedocument.spreadsheetml";
    format!(r#"<Override PartName="/xl/{name}.xml" ContentType="{media}.{kind}+xml"/>"#)
}

fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| too_large())
}

fn too_large() -> io::Error {
    io::Error::other("a workbook has at most 4 GiB")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use super::*;

    /// The entries of an archive by name, read from its central directory.
    fn entries(archive: &[u8]) -> BTreeMap<String, String> {
        let number = |at: usize, bytes: usize| {
            archive[at..at + bytes].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
        };
        let end = archive.len() - 22;
        assert_eq!(&archive[end..end + 4], b"PK\x05\x06");
        let (count, mut at) = (number(end + 10, 2), number(end + 16, 4));
        assert_eq!(at + number(end + 12, 4), end, "the directory ends before the end of the archive");
        let mut found = BTreeMap::new();
        for _ in 0..count {
            let name = String::from_utf8(archive[at + 46..at + 46 + number(at + 28, 2)].to_vec()).unwrap();
            let start = number(at + 42, 4);
            assert_eq!(&archive[start..start + 4], b"PK\x03\x04");
            let data = start + 30 + name.len();
            let mut text = String::new();
            let compressed = &archive[data..data + number(at + 20, 4)];
            flate2::read::DeflateDecoder::new(compressed).read_to_string(&mut text).unwrap();
            assert_eq!(
                (text.len(), crc32fast::hash(text.as_bytes()) as usize),
                (number(at + 24, 4), number(at + 16, 4))
            );
            at += 46 + name.len();
            found.insert(name, text);
        }
        assert_eq!(at, end);
        found
    }

    #[test]
    fn rows_beyond_a_sheet_are_in_further_ones_whatever_the_pieces() {
        let text = "head\n<row>1</row>\n<row>2</row>\n<row>3</row>\n<row>4</row>\n<row>5</row>\n";
        for piece in [1, 7, 1_000] {
            let mut workbook = Workbook { max_rows: 3, ..Workbook::new() };
            let mut archive = Vec::new();
            for piece in text.as_bytes().chunks(piece) {
                archive.extend(workbook.encode(piece).unwrap());
            }
            archive.extend(workbook.finish().unwrap());
            let found = entries(&archive);
            let sheets: Vec<&str> = (1..=3).map(|nth| &*found[&format!("xl/worksheets/sheet{nth}.xml")]).collect();
            let end = "</sheetData></worksheet>";
            assert_eq!(
                sheets,
                [
                    format!("head\n<row>1</row>\n<row>2</row>\n{end}"),
                    format!("head\n<row>3</row>\n<row>4</row>\n{end}"),
                    format!("head\n<row>5</row>\n{end}"),
                ]
            );
            assert_eq!(found.len(), 3 + 5);
            assert!(found["[Content_Types].xml"].contains("/xl/worksheets/sheet3.xml"));
        }
    }
}
