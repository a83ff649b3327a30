//! Records of deletions.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::batch::Batch;
use super::record::Kind;
use crate::model::Deletion;

/// A record of a deletion: its beginning, or its execution.
///
/// # Grammar
/// The payload is this enum as JSON: deletions are rare, and people may have to read them.
/// ```json
/// {"begun":{"id":17,"by":"ops",
///           "deletion":{"device":"d","rangeMs":{"start":0,"end":3600000},"series":null}}}
/// {"executed":{"id":17}}
/// ```
/// A deletion removes what was appended before its `begun`, and nothing after it. `executed` says that the
/// store has executed it: after a crash, it must not be executed again, or it would remove what *another*
/// instance has stored since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum DeletionRecord {
    /// The deletion was accepted.
    Begun(BegunDeletion),
    /// The store has executed the deletion.
    Executed {
        /// The number of the deletion.
        id: u64,
    },
}

/// A deletion that was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BegunDeletion {
    /// A number that no other deletion in the log has.
    pub id: u64,
    /// The name of the token that asked for the deletion.
    pub by: Arc<str>,
    /// The device, the range and the series that are deleted.
    pub deletion: Arc<Deletion>,
    /// The instance that accepted the deletion, and may have executed it.
    ///
    /// `None`: this instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Arc<str>>,
}

impl DeletionRecord {
    /// Encodes this as the payload of a record.
    #[must_use]
    pub fn to_batch(&self) -> Batch {
        Batch::of_record(Kind::Deletion, serde_json::to_vec(self).expect("it has string keys only"), 0)
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// When the payload breaks the grammar.
    pub fn of(payload: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(payload).map_err(|error| format!("no record of a deletion: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SeriesFilter;

    #[test]
    fn the_format_is_read_and_written() {
        let begun_at = |from: Option<&str>, id, range_ms, series| {
            let deletion = Arc::new(Deletion { device: "d".into(), range_ms, series });
            DeletionRecord::Begun(BegunDeletion { id, by: "me".into(), deletion, from: from.map(Arc::from) })
        };
        let begun = |id, range_ms, series| begun_at(None, id, range_ms, series);
        let some = SeriesFilter::new(["b", "a{x=1}"], [("y", "2")]).unwrap();
        let golden = [
            (
                begun(u64::MAX, None, SeriesFilter::ALL),
                concat!(
                    r#"{"begun":{"id":18446744073709551615,"by":"me","#,
                    r#""deletion":{"device":"d","rangeMs":null,"series":null}}}"#
                ),
            ),
            (
                begun(0, Some(-1..2), some),
                concat!(
                    r#"{"begun":{"id":0,"by":"me","deletion":{"device":"d","rangeMs":{"start":-1,"end":2},"#,
                    r#""series":{"names":["b"],"texts":["a{x=1}"],"labels":["y=2"],"labelKeys":1}}}}"#
                ),
            ),
            (
                begun_at(Some("3f0a"), 1, None, SeriesFilter::ALL),
                concat!(
                    r#"{"begun":{"id":1,"by":"me","#,
                    r#""deletion":{"device":"d","rangeMs":null,"series":null},"from":"3f0a"}}"#
                ),
            ),
            (DeletionRecord::Executed { id: 7 }, r#"{"executed":{"id":7}}"#),
        ];
        for (record, text) in golden {
            assert_eq!(String::from_utf8_lossy(record.to_batch().payload()), text);
            assert_eq!(DeletionRecord::of(text.as_bytes()), Ok(record));
        }
        DeletionRecord::of(br#"{"executed":{"id":7,"more":1}}"#).unwrap_err();
        DeletionRecord::of(br#"{"paused":{"id":7}}"#).unwrap_err();
    }
}
