//! An hour as text, in the files of the data folder: the RFC 3339 instant of its start.

use crate::model::Hour;

/// Writes an hour.
///
/// # Errors
/// If no date has the year of the hour.
pub(super) fn encode(hour: Hour) -> std::io::Result<String> {
    let start = jiff::Timestamp::from_millisecond(hour.start_ms()).map_err(std::io::Error::other)?;
    Ok(start.to_string())
}

/// Reads the hour of an instant; `None` if the text is no instant.
pub(super) fn decode(text: &str) -> Option<Hour> {
    let instant: jiff::Timestamp = text.parse().ok()?;
    Some(Hour::of(instant.as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_read_as_they_were_written_with_or_without_milliseconds() {
        for hour in [Hour(-493_527), Hour(-1), Hour(0), Hour(493_527)] {
            assert_eq!(decode(&encode(hour).unwrap()), Some(hour));
        }
        assert_eq!(encode(Hour(493_527)).unwrap(), "2026-04-20T15:00:00Z");
        for text in ["2026-04-20T15:00:00.000Z", "2026-04-20T15:59:59.999Z"] {
            assert_eq!(decode(text), Some(Hour(493_527)), "{text}");
        }
        assert_eq!((decode(""), decode("soon"), decode("493527")), (None, None, None));
        assert!(encode(Hour(i32::MIN)).is_err());
    }
}
