//! Finds the devices of a collection one after the other by its `_id`s, until the device index has them.
//!
//! An `_id` is `<deviceId>/<time>`, and ends with `/<part>` where a bucket has several. Three things make the
//! order of the `_id`s differ from that of the devices: `a-b/...` sorts before `a/...`, because `-` and `.`
//! sort before `/`; and the `_id`s of the device `a/2026-04-20T05` are among those of the device `a`.
//!
//! The walk therefore looks for the first `_id` of any device that is still to be found, and reads the device
//! from it. If another one is before that device, then it is the beginning of its ID. The server looks at
//! each `_id` of the index on the way and at no document, so a walk over all devices takes time in proportion
//! to the `_id`s.

use std::ops::ControlFlow;

use bson::{Document, RawDocument, RawDocumentBuf, doc};
use mongodb::Collection;
use mongodb::options::Hint;

use super::command::Commands;
use super::seek::Seek;
use crate::model::check_device_id;
use crate::store::StoreError;

/// The end of the `_id`s of a collection, after the device.
#[derive(Debug, Clone, Copy)]
pub(super) enum Suffix {
    /// `/2026-04-20T05`, and perhaps `/1`.
    Bucket,
    /// `/2026-04-20`.
    Day,
}

/// A question for the first `_id` in a range whose device is, or is not, one of some.
#[derive(Debug)]
struct Wanted<'a> {
    /// Inclusive.
    from: String,
    /// Exclusive.
    end: String,
    devices: Which<'a>,
}

#[derive(Debug)]
enum Which<'a> {
    Only(&'a str),
    AllBut(Vec<&'a str>),
}

/// The index of the `_id`s of a collection.
trait Ids: Sync {
    type Error;

    /// The first `_id` that is wanted.
    fn first(&self, wanted: Wanted<'_>) -> impl Future<Output = Result<Option<String>, Self::Error>> + Send;
}

/// The same on the server.
struct Stored<'a> {
    commands: &'a Commands,
    documents: &'a Collection<RawDocumentBuf>,
    suffix: Suffix,
}

impl Ids for Stored<'_> {
    type Error = StoreError;

    async fn first(&self, wanted: Wanted<'_>) -> Result<Option<String>, StoreError> {
        let find = self.documents.find(wanted.filter(self.suffix)).projection(doc! { "_id": 1 });
        let find = find.sort(doc! { "_id": 1 }).hint(Hint::Keys(doc! { "_id": 1 })).limit(1);
        let mut found = None;
        let visit = |document: &RawDocument| {
            found = Some(document.get_str("_id")?.to_owned());
            Ok(ControlFlow::Break(()))
        };
        self.commands.each_document(self.commands.limited(find), visit).await?;
        Ok(found)
    }
}

/// The next device of a search; `None` if there is none.
pub(super) async fn next_device(
    commands: &Commands,
    documents: &Collection<RawDocumentBuf>,
    suffix: Suffix,
    seek: &Seek,
) -> Result<Option<String>, StoreError> {
    next(seek, suffix, &Stored { commands, documents, suffix }).await
}

async fn next<I: Ids>(seek: &Seek, suffix: Suffix, ids: &I) -> Result<Option<String>, I::Error> {
    let (prefix, after) = seek.prefix_and_after();
    let from = after.unwrap_or(prefix);
    // Their `_id`s may be behind `from`, though the devices are not.
    let known = beginnings(from).into_iter().chain(after).filter(|known| check_device_id(known).is_ok()).collect();
    let wanted = Wanted { from: from.to_owned(), end: seek.end(), devices: Which::AllBut(known) };
    let Some(id) = ids.first(wanted).await? else { return Ok(None) };
    let Some(device) = suffix.device_of(&id) else { return Ok(None) };
    for shorter in beginnings(device) {
        if shorter.starts_with(prefix) && after.is_none_or(|after| shorter > after) {
            // `0` sorts after `/`.
            let (from, end) = (format!("{shorter}/"), format!("{shorter}0"));
            if ids.first(Wanted { from, end, devices: Which::Only(shorter) }).await?.is_some() {
                return Ok(Some(shorter.to_owned()));
            }
        }
    }
    Ok(Some(device.to_owned()))
}

/// The IDs of devices that are the beginning of `device`, and whose `_id`s may be behind its own: the next
/// character sorts before `/`, or is one.
fn beginnings(device: &str) -> Vec<&str> {
    let before = device.match_indices(['-', '.', '/']).map(|(at, _)| &device[..at]);
    before.filter(|shorter| !shorter.is_empty()).collect()
}

impl Wanted<'_> {
    fn filter(&self, suffix: Suffix) -> Document {
        let suffix = suffix.pattern();
        let pattern = match &self.devices {
            Which::Only(device) => format!("^{}{suffix}", escaped(device)),
            Which::AllBut(devices) if devices.is_empty() => format!("^.+{suffix}"),
            Which::AllBut(devices) => {
                let devices: Vec<String> = devices.iter().map(|device| escaped(device)).collect();
                format!("^(?!(?:{}){suffix}).+{suffix}", devices.join("|"))
            }
        };
        doc! { "_id": { "$gte": &self.from, "$lt": &self.end, "$regex": pattern } }
    }
}

/// A pattern of a device ID: of all its characters, only `.` has a meaning of its own.
fn escaped(device: &str) -> String {
    device.replace('.', "\\.")
}

impl Suffix {
    /// A regular expression of the server.
    const fn pattern(self) -> &'static str {
        match self {
            Self::Bucket => r"/[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}(?:/[0-9]+)?\z",
            Self::Day => r"/[0-9]{4}-[0-9]{2}-[0-9]{2}\z",
        }
    }

    /// The device of an `_id`.
    pub(super) fn device_of(self, id: &str) -> Option<&str> {
        let (before, last) = id.rsplit_once('/')?;
        let device = match self {
            Self::Day => looks_like(last, "0000-00-00").then_some(before),
            Self::Bucket if looks_like(last, "0000-00-00T00") => Some(before),
            Self::Bucket => {
                let is_part = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
                let (device, hour) = before.rsplit_once('/').filter(|_| is_part)?;
                looks_like(hour, "0000-00-00T00").then_some(device)
            }
        };
        device.filter(|device| !device.is_empty())
    }
}

/// Whether a text has digits where `form` has zeros, and else the same characters.
fn looks_like(text: &str, form: &str) -> bool {
    let same = |(byte, of_form): (u8, u8)| if of_form == b'0' { byte.is_ascii_digit() } else { byte == of_form };
    text.len() == form.len() && text.bytes().zip(form.bytes()).all(same)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::convert::Infallible;

    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::super::names;
    use super::*;
    use crate::model::Hour;

    #[test]
    fn an_id_tells_its_device() {
        for device in ["a", "a/b", "a/2026-04-20T05", "a/2026-04-20", "a/7", "2026-04-20T05", "a-b.c", "/", "//"] {
            for part in [0, 1, 2_026, i32::MAX] {
                let id = names::document_id(device, Hour(493_526), part);
                assert_eq!(Suffix::Bucket.device_of(&id), Some(device), "{id}");
            }
            assert_eq!(Suffix::Day.device_of(&names::day_id(device, 20_563)), Some(device));
        }
        for foreign in
            ["", "a", "/", "/2026-04-20T05", "a/2026-04-20T5", "a/2026-04-20T05/", "a/2026-04-20T05/x", "a/1"]
        {
            assert_eq!(Suffix::Bucket.device_of(foreign), None, "{foreign}");
        }
    }

    /// A plain model of the server.
    struct Known {
        ids: BTreeSet<String>,
        suffix: Suffix,
    }

    impl Ids for Known {
        type Error = Infallible;

        async fn first(&self, Wanted { from, end, devices }: Wanted<'_>) -> Result<Option<String>, Infallible> {
            let is_wanted = |id: &&String| {
                let device = self.suffix.device_of(id).expect("a device");
                match &devices {
                    Which::Only(only) => device == *only,
                    Which::AllBut(others) => !others.contains(&device),
                }
            };
            Ok(self.ids.iter().filter(|id| (&from..&end).contains(id)).find(is_wanted).cloned())
        }
    }

    /// IDs that are the beginnings of others, and look like the documents of others.
    fn device() -> impl Strategy<Value = String> {
        let piece =
            prop::sample::select(vec!["a", "b", "-", ".", "/", "0", "9", "/2026-04-20", "T05", "/1", "A", "_", ":"]);
        prop::collection::vec(piece, 1..6)
            .prop_map(|pieces| pieces.concat())
            .prop_filter("a device", |id| check_device_id(id).is_ok())
    }

    proptest! {
        #[test]
        fn a_walk_finds_each_device_once_in_order(
            stored in prop::collection::btree_set(device(), 0..12),
            prefix in prop_oneof![Just(String::new()), device()],
            start in prop::option::of(device()),
            hours in prop::collection::vec((493_500_i32..493_550, 0_i32..3), 1..6),
        ) {
            for suffix in [Suffix::Bucket, Suffix::Day] {
                let ids_of = |device: &String| hours.iter().map(|&(hour, part)| match suffix {
                    Suffix::Bucket => names::document_id(device, Hour(hour), part),
                    Suffix::Day => names::day_id(device, hour / 24),
                }).collect::<Vec<_>>();
                let ids: BTreeSet<String> = stored.iter().flat_map(ids_of).collect();
                let ids = Known { ids, suffix };
                let mut seek = Seek::new(&prefix, start.as_deref());
                let mut found = Vec::new();
                while let Ok(Some(device)) = next(&seek, suffix, &ids).now_or_never().unwrap() {
                    seek.advance(&device);
                    found.push(device);
                    prop_assert!(found.len() <= stored.len());
                }
                let is_after = |id: &String| start.as_ref().is_none_or(|start| id > start);
                let is_wanted = |id: &&String| id.starts_with(&prefix) && is_after(id);
                prop_assert!(found.iter().eq(stored.iter().filter(is_wanted)), "{:?}", found);
            }
        }
    }
}
