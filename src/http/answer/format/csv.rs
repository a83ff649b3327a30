//! Cells of CSV (RFC 4180).

/// Appends a cell, in quotes if its text would be read as more than one cell.
///
/// The text of a series and a device ID never have line breaks, but metadata may.
pub(in crate::http) fn write_cell(row: &mut Vec<u8>, text: &str) {
    if !text.bytes().any(|byte| matches!(byte, b'"' | b',' | b'\r' | b'\n')) {
        return row.extend_from_slice(text.as_bytes());
    }
    row.push(b'"');
    for (at, part) in text.split('"').enumerate() {
        if at > 0 {
            row.extend_from_slice(b"\"\"");
        }
        row.extend_from_slice(part.as_bytes());
    }
    row.push(b'"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_reader_of_csv_finds_the_same_cells(
            rows in prop::collection::vec(prop::collection::vec("[a\" ,\r\né;'=]{0,6}", 2..4), 1..5),
        ) {
            let mut text = Vec::new();
            for row in &rows {
                for (at, cell) in row.iter().enumerate() {
                    if at > 0 {
                        text.push(b',');
                    }
                    write_cell(&mut text, cell);
                }
                text.extend_from_slice(b"\r\n");
            }
            let mut reader = csv::ReaderBuilder::new();
            reader.has_headers(false).flexible(true).terminator(csv::Terminator::CRLF);
            let found: Vec<Vec<String>> =
                reader.from_reader(&text[..]).deserialize().collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(found, rows);
        }
    }
}
