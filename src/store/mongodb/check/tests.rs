//! Compares the table of questions with what the store sends, as the profiler of a real server records it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bson::{Bson, Document, doc};

use super::questions::{self, Example, Question};
use crate::config::{BucketLayout, Timeseries};
use crate::model::{BucketWrite, Day, Deletion, Hour, HourOffset, Sample, SeriesFilter};
use crate::store::mongodb::layout::Layout;
use crate::store::mongodb::store::MongoStore;
use crate::store::mongodb::tests::Scratch;
use crate::store::mongodb::{BucketStore, MongodbOptions, TimeseriesStore};
use crate::store::{Deletions, DeviceSet, ReadingsQuery, Rollups, StatsNeeds, Store};

/// 2026-04-20T14:00:00Z.
const HOUR: Hour = Hour(493_526);

/// The collections of the options.
const COLLECTIONS: [&str; 4] = ["buckets", "readings", "rollups", "devices"];

/// The metric of all readings.
const METRIC: &str = "lux";

/// The name of a series without a value.
const NO_METRIC: &str = "none";

/// The form of a question: collection, verb, fields of the filter, order and hint.
type Form = (String, &'static str, BTreeSet<String>, String, String);

/// The fields that a filter compares, those of all alternatives together. Conditions on single series are
/// left out: the index is used before them.
fn fields_of(filter: &Document) -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    for (field, value) in filter {
        match (field.as_str(), value) {
            ("$or" | "$and", Bson::Array(parts)) => {
                fields.extend(parts.iter().filter_map(Bson::as_document).flat_map(fields_of));
            }
            ("$expr", _) => {}
            (series, _) if [METRIC, NO_METRIC].contains(&series) || series.starts_with("stats.") => {}
            (field, _) => _ = fields.insert(field.to_owned()),
        }
    }
    fields
}

fn form_of(collection: &str, command: &Document) -> Option<Form> {
    let text = |field: &str| command.get_document(field).map(Document::to_string).unwrap_or_default();
    let of = |verb, filter: &Document, sort, hint| Some((collection.to_owned(), verb, fields_of(filter), sort, hint));
    if command.contains_key("find") {
        let filter = command.get_document("filter").cloned().unwrap_or_default();
        return of("find", &filter, text("sort"), text("hint"));
    }
    if let Ok(pipeline) = command.get_array("pipeline") {
        let stages: Vec<&Document> = pipeline.iter().filter_map(Bson::as_document).collect();
        let filter = stages.first()?.get_document("$match").ok()?;
        let sort = stages.iter().find_map(|stage| stage.get_document("$sort").ok());
        return of("aggregate", filter, sort.map(Document::to_string).unwrap_or_default(), String::new());
    }
    let statement =
        ["updates", "deletes"].into_iter().find_map(|list| command.get_array(list).ok()?.first()?.as_document());
    let statement = statement.unwrap_or(command); // the profiler has each statement by itself
    let verb = if statement.contains_key("u") { "update" } else { "delete" };
    of(verb, statement.get_document("q").ok()?, String::new(), String::new())
}

fn table<L: Layout>(store: &MongoStore<L>) -> BTreeSet<Form> {
    let example = Example { device: "a".to_owned(), hour: HOUR };
    let mut questions: Vec<Question> = store.layout.questions(&example);
    questions.extend(questions::of_rollups("rollups", &example));
    questions.extend(questions::of_devices("devices", &example));
    questions.iter().map(|question| form_of(&question.collection, &question.command).expect("a form")).collect()
}

fn write_of(device: &str, hour: Hour, offsets: impl IntoIterator<Item = HourOffset>) -> Arc<BucketWrite> {
    let sample = |offset| (Sample { value: f64::from(offset), offset, metric: 0 }, true);
    let metadata = Some(r#"{"floor":2}"#.into());
    BucketWrite::new(device.into(), hour, metadata, vec![METRIC.into()], offsets.into_iter().map(sample)).into()
}

/// Does all that the service does with a store.
async fn use_all<L: Layout>(store: &MongoStore<L>) {
    let yesterday = Hour(HOUR.0 - 24);
    for offsets in [vec![1_000, 2_000], vec![3_000, 4_000], vec![500, 1_000, 5_000]] {
        let writes = ["a", "b", "c"].map(|device| write_of(device, yesterday, offsets.clone()));
        assert!(store.write(&writes).await.iter().all(Result::is_ok));
    }
    let other = store.write(&[write_of("a", HOUR, [7]), write_of("b", HOUR, [7])]).await;
    assert!(other.iter().all(Result::is_ok));
    let devices: Vec<Arc<str>> = ["a", "b"].map(Arc::from).to_vec();
    let hours = Hour(yesterday.0 - 2)..Hour(HOUR.0 + 1);
    for filter in [SeriesFilter::ALL, SeriesFilter::new([METRIC], []).unwrap()] {
        store.hour_stats(&devices, hours.clone(), &filter, StatsNeeds::All).await.unwrap();
        let query = ReadingsQuery { series: filter, max_instants: 2, ..ReadingsQuery::all("a", &hours) };
        assert!(!store.readings(&query).await.unwrap().hours.is_empty());
    }
    store.recent_stats(&devices, HOUR..Hour(i32::MAX)).await.unwrap();
    store.latest("a", HOUR).await.unwrap();
    store.last_hour("a").await.unwrap();
    for (series, expected) in [(METRIC, Some(HOUR)), (NO_METRIC, None)] {
        let series = BTreeSet::from([series.into()]);
        assert_eq!(store.last_hour_with("a", &series, Hour(0)..Hour(HOUR.0 + 1)).await.unwrap(), expected);
    }
    let list = store.entries("", None, 10).await.unwrap();
    assert_eq!(list.devices.len(), 3);
    store.last_instants(&list.devices, Hour(HOUR.0 + 500)).await.unwrap();
    store.entries_of(&devices).await.unwrap();
    assert_eq!(store.count_silent(HOUR.start_ms(), DeviceSet::default()).await.unwrap(), 1);
    let day = Day::of(yesterday).hours();
    for from in [Hour(i32::MIN), Hour(0), Hour(yesterday.0 - 9)] {
        assert_eq!(store.next_hour(from).await.unwrap(), Some(yesterday));
    }
    store.roll_up_devices(day.clone(), None).await.unwrap();
    store.roll_up_devices(day, Some("a")).await.unwrap();
    store.write(&[write_of("a", yesterday, [600])]).await.remove(0).unwrap();
    store.roll_up(&[("a".into(), yesterday)]).await.remove(0).unwrap();
    store.hour_stats(&devices, hours, &SeriesFilter::ALL, StatsNeeds::All).await.unwrap();
    if L::DELETES_DEVICES_ONLY.is_none() {
        let range_ms = Some(yesterday.start_ms()..yesterday.start_ms() + 1_500);
        let of = |range_ms| Deletion { device: "b".into(), range_ms, series: SeriesFilter::ALL };
        store.delete(&of(range_ms), &BTreeSet::new()).await.unwrap();
        store.delete(&of(Some(yesterday.start_ms()..yesterday.end_ms())), &BTreeSet::new()).await.unwrap();
    }
    store.delete(&Deletion::of_device("c".into()), &BTreeSet::new()).await.unwrap();
}

/// The records of the profiler, by form, with an example and the plans.
async fn recorded(scratch: &Scratch) -> BTreeMap<Form, (Document, BTreeSet<String>)> {
    scratch.run(doc! { "profile": 0 }).await;
    let mut recorded: BTreeMap<Form, (Document, BTreeSet<String>)> = BTreeMap::new();
    let find = doc! { "find": "system.profile", "batchSize": 10_000 };
    for entry in scratch.all(find).await {
        let Ok(command) = entry.get_document("command") else { continue };
        let of = ["find", "aggregate"].into_iter().find_map(|verb| command.get_str(verb).ok());
        let collection =
            of.or_else(|| entry.get_str("ns").ok()?.split_once('.').map(|(_, name)| name)).unwrap_or_default();
        let is_question = ["query", "update", "remove"].contains(&entry.get_str("op").unwrap_or_default())
            || command.contains_key("aggregate");
        let collection = collection.trim_start_matches("system.buckets.");
        let is_of_server = command.get_document("q").is_ok_and(|filter| filter.get_object_id("_id").is_ok());
        if !is_question || is_of_server || !COLLECTIONS.contains(&collection) {
            continue;
        }
        let Some(form) = form_of(collection, command) else { continue };
        let plan = entry.get_str("planSummary").unwrap_or_default().to_owned();
        recorded.entry(form).or_insert_with(|| (command.clone(), BTreeSet::new())).1.insert(plan);
    }
    recorded
}

async fn all_questions_are_in_the_table<L: Layout>(scratch: &Scratch, store: &MongoStore<L>) {
    store.ensure_schema().await.unwrap();
    scratch.run(doc! { "profile": 2 }).await;
    use_all(store).await;
    let (known, recorded) = (table(store), recorded(scratch).await);
    let unknown: Vec<_> = recorded.iter().filter(|(form, _)| !known.contains(*form)).collect();
    assert!(unknown.is_empty(), "not in the table: {unknown:#?}");
    let whole: Vec<_> = recorded.iter().filter(|(_, (_, plans))| plans.contains("COLLSCAN")).collect();
    assert!(whole.is_empty(), "reads a whole collection: {whole:#?}");
    assert!(recorded.len() >= 15, "the profiler has {} forms", recorded.len());
}

#[tokio::test]
async fn the_questions_about_readable_documents_are_in_the_table() {
    let scratch = Scratch::new().await;
    let store = BucketStore::connect(scratch.options()).await.unwrap();
    all_questions_are_in_the_table(&scratch, &store).await;
}

#[tokio::test]
async fn the_questions_about_packed_documents_are_in_the_table() {
    let scratch = Scratch::new().await;
    let options = MongodbOptions { layout: BucketLayout::Packed, ..scratch.options() };
    all_questions_are_in_the_table(&scratch, &BucketStore::connect(options).await.unwrap()).await;
}

#[tokio::test]
async fn the_questions_about_a_time_series_are_in_the_table() {
    let scratch = Scratch::new().await;
    let timeseries = Timeseries::default();
    let store = TimeseriesStore::connect(scratch.options(), timeseries).await.unwrap();
    all_questions_are_in_the_table(&scratch, &store).await;
}
