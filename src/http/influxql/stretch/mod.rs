//! Tests that the cost of a statement is proportional to its size.
//!
//! The size is that of its text, of the data that it asks for, and of its answer. Each statement stretches
//! one thing, such as the number of fields, and runs at two sizes.
//!
//! The counts do not depend on the machine: the values, stats and entries of the device index that the store
//! scans; the work of the evaluator ([`work`]); the bytes that it allocates. Each count stays below a
//! multiple of the size, and the multiple is the same for four times the size. The statements ask a real
//! store in a file.

mod cases;
mod store;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use self::store::Counted;
use super::catalogue::Catalogue;
use super::source::Stored;
use crate::access::DeviceScope;
use crate::common::{counting, work::counted as work};
use crate::config::LineProtocol;
use crate::influxql::{
    Format, Memory, Options, OutSeries, Parameters, StatementError, Value, Writer, execute, parse, stream,
};
use crate::model::{BucketWrite, DeviceIdCase};
use crate::query::tests::{limits, over as queries_over};
use crate::query::{Queries, STATS_AT_ONCE};
use crate::store::Store;

/// The time of the statements, which is after all data, in Unix milliseconds.
const NOW_MS: i64 = cases::START_MS + 40 * 24 * 3_600_000;

/// The smaller number of things in a case. The larger one is four times that.
const COUNT: usize = 250;

/// The most that a statement may cost of one count: `multiple * size + fixed`.
struct Most {
    what: &'static str,
    /// The most for each unit of the size.
    multiple: usize,
    /// A further amount, which does not depend on the size.
    fixed: usize,
}

/// The most that a statement may cost.
///
/// Data may be scanned several times: the newest rows are found by the stats of their hours, and statements
/// in parts may read hours again. Much may be allocated for each byte: a value of the answer, and a regular
/// expression, take some hundred times their text while the statement is evaluated.
const MOST: [Most; 3] = [
    Most { what: "scanned", multiple: 3, fixed: 100 },
    Most { what: "work", multiple: 6, fixed: 1_000 },
    Most { what: "allocated", multiple: 1_000, fixed: 64 << 10 },
];

/// A statement that stretches one thing, such as the number of fields.
struct Case {
    name: &'static str,
    /// Makes the buckets with this many of the things.
    data: fn(usize) -> Vec<BucketWrite>,
    statement: Box<dyn Fn(usize) -> String>,
    /// Whether the answer is sent in parts.
    is_in_parts: bool,
}

/// The cost of a statement.
#[derive(Debug)]
struct Cost {
    /// The values, stats and entries of the index that the store has.
    data: usize,
    /// The size of the data, the text and the answer. Text and answer count in bytes.
    size: usize,
    scanned: usize,
    work: usize,
    allocated: usize,
}

impl Cost {
    /// Returns the counts, each after the size that bounds it.
    const fn counts(&self) -> [(usize, usize); 3] {
        [(self.data, self.scanned), (self.size, self.work), (self.size, self.allocated)]
    }

    /// Returns the count that is too large for the size, if any.
    fn excess(&self) -> Option<&'static str> {
        let is_beyond = |&((size, count), most): &((usize, usize), &Most)| count > most.multiple * size + most.fixed;
        self.counts().into_iter().zip(&MOST).find(is_beyond).map(|(_, most)| most.what)
    }

    /// Returns the count that grows faster than the size, if any.
    fn growth(&self, small: &Self) -> Option<&'static str> {
        for ((large, small), most) in self.counts().into_iter().zip(small.counts()).zip(&MOST) {
            let times = large.0.div_ceil(small.0) + 2; // a statement has parts that do not grow
            if large.1 > times * small.1 + most.fixed {
                return Some(most.what);
            }
        }
        None
    }
}

/// The memory that is left for statements.
#[derive(Debug)]
struct MemoryLeft {
    bytes: Cell<usize>,
    /// How often a statement has asked for memory without which it goes on.
    tries: Cell<usize>,
}

impl Memory for MemoryLeft {
    fn grow(&self, bytes: usize) -> Result<(), StatementError> {
        self.bytes.set(self.bytes.get().checked_sub(bytes).ok_or("no memory is left")?);
        Ok(())
    }

    fn try_grow(&self, bytes: usize) -> bool {
        self.tries.set(self.tries.get() + 1);
        self.grow(bytes).is_ok()
    }
}

/// A store with some buckets, and the queries over it.
struct Service {
    runtime: Runtime,
    queries: Queries,
    store: Arc<Counted>,
    memory: MemoryLeft,
    _folder: tempfile::TempDir,
}

impl Service {
    fn new(buckets: Vec<BucketWrite>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(runtime.block_on(Counted::new(&folder.path().join("tidegauge.sqlite"), buckets)));
        let to: Arc<dyn Store> = Arc::<Counted>::clone(&store);
        let queries = queries_over(to, folder.path(), limits());
        let memory = MemoryLeft { bytes: Cell::new(usize::MAX), tries: Cell::new(0) };
        Self { runtime, queries, store, memory, _folder: folder }
    }

    /// Answers a statement that may read at most `max_values` values.
    fn ask(&self, text: &str, is_in_parts: bool, max_values: usize) -> Result<Vec<OutSeries>, StatementError> {
        let statements = parse(text, &Parameters::default()).unwrap();
        let limits = self.queries.limits();
        let mut source = Stored {
            queries: &self.queries,
            scope: &DeviceScope::of(DeviceIdCase::Preserve, None, None),
            runtime: self.runtime.handle(),
            deadline: self.queries.deadline(),
            is_in_parts,
            cancelled: &CancellationToken::new(),
            catalogue: &Catalogue::new(&LineProtocol::default()),
            memory: &self.memory,
            now_ms: NOW_MS,
            max_series: limits.max_points,
            places: Vec::new(),
            lagging: None,
            is_of_index: false,
            notes_missing: true,
            lacks_devices: false,
            incomplete: None,
            has_memory_ahead: false,
            failure: None,
        };
        let options = Options {
            now_ns: NOW_MS * 1_000_000,
            databases: Vec::new(),
            limits: crate::influxql::Limits {
                max_series: limits.max_points,
                max_buckets: limits.max_points,
                max_points: max_values,
                max_rows: limits.max_points,
            },
            memory: &self.memory,
        };
        if !is_in_parts {
            return execute(&statements[0], &mut source, &options);
        }
        let mut parts = Vec::new();
        stream(&statements[0], &mut source, &options, &mut |part| {
            parts.push(part);
            Ok(())
        })?;
        Ok(parts)
    }
}

/// Returns the number of bytes of an answer as JSON.
fn text_of(answer: &[OutSeries]) -> usize {
    let mut text = Vec::new();
    let mut writer = Writer::new(Format::Json, None, false, None, 1, &mut text);
    writer.result(0, Ok(answer), &mut text);
    writer.finish(&mut text);
    text.len()
}

/// Returns the cost of the statement of a case for `count` things, which are the data of `service`.
///
/// For the smaller number, also checks that the values that the store passes count as read.
fn cost_of(case: &Case, service: &Service, count: usize) -> Cost {
    let (store, text) = (&service.store, (case.statement)(count));
    let (work_before, scanned_before, passed_before) = (work::so_far(), store.scanned(), store.passed());
    let (answer, allocated) = counting::counted(|| service.ask(&text, case.is_in_parts, usize::MAX));
    let work = usize::try_from(work::so_far() - work_before).unwrap();
    let (scanned, passed) = (store.scanned() - scanned_before, store.passed() - passed_before);
    let answer = answer.unwrap_or_else(|error| panic!("{}: {error}", case.name));
    assert!(!answer.is_empty(), "{}: the answer has no rows", case.name);
    if count == COUNT && passed > 100 && !case.is_in_parts && !text.contains(" LIMIT ") {
        let error = service.ask(&text, false, passed - 1).expect_err("more values are passed than may be read");
        assert!(error.to_string().contains("query.max_values_read"), "{}: {error}", case.name);
    }
    let data = store.size();
    let size = data + text.len() + text_of(&answer);
    Cost { data, size, scanned, work, allocated: allocated.total }
}

/// Asserts that each case stays within its limits.
///
/// The limits hold at both sizes, and no count may grow faster than the size. Reports all cases that fail.
/// Cases with the same data ask the same store.
fn check(cases: Vec<Case>) {
    let mut excesses = Vec::new();
    let mut services: HashMap<(usize, usize), Service> = HashMap::new();
    for case in cases {
        let [small, large] = [COUNT, 4 * COUNT].map(|count| {
            let of_data = services.entry((case.data as usize, count));
            cost_of(&case, of_data.or_insert_with(|| Service::new((case.data)(count))), count)
        });
        let factor =
            |((size, count), most): ((usize, usize), &Most)| format!("{} {:.2}", most.what, count as f64 / size as f64);
        let factors: Vec<String> = large.counts().into_iter().zip(&MOST).map(factor).collect();
        println!("{}: size {}, {}", case.name, large.size, factors.join(", "));
        if let Some(what) = small.excess().or(large.excess()).or(large.growth(&small)) {
            excesses.push(format!("{}: too much {what}: {small:?}, {large:?}", case.name));
        }
    }
    assert!(excesses.is_empty(), "{}", excesses.join("\n"));
}

#[test]
fn no_measurement_costs_more_than_its_data() {
    check(cases::measurements());
}

#[test]
fn no_range_of_a_measurement_costs_more_than_its_data() {
    check(cases::ranges());
}

#[test]
fn no_subquery_costs_more_than_its_data() {
    check(cases::subqueries());
}

#[test]
fn no_field_costs_more_than_its_data() {
    check(cases::fields());
}

#[test]
fn no_label_set_costs_more_than_its_data() {
    check(cases::label_sets());
}

#[test]
fn no_device_costs_more_than_its_data() {
    check(cases::devices());
}

#[test]
fn no_window_or_function_costs_more_than_its_data() {
    check(cases::windows());
}

#[test]
fn no_condition_costs_more_than_its_text() {
    check(cases::conditions());
}

#[test]
fn no_list_of_the_index_costs_more_than_its_entries() {
    check(cases::shows());
}

/// Subqueries whose ranges begin at different hours and have no end.
///
/// Their ranges overlap: together they have some hundred times as many hours as the data.
#[test]
fn hours_that_are_asked_for_again_count_as_values() {
    let inner = |at| format!("(SELECT mean(value) AS v FROM m{at} WHERE time >= 1776643200000000000 + {at}h - 3h)");
    let text = format!("SELECT v FROM {}", cases::list(500, ",", inner));
    let service = Service::new(cases::measurements_of_each_age(500));
    let work_before = work::so_far();
    assert_eq!(service.ask(&text, false, usize::MAX).unwrap().len(), 500);
    let (scanned, work) = (service.store.scanned(), work::so_far() - work_before);
    assert!(scanned <= 2 * service.store.size(), "{scanned}");
    let error = service.ask(&text, false, work as usize / 20).unwrap_err().to_string();
    assert!(error.contains("query.max_values_read"), "{error}");
}

/// Each subquery wants another label set of another device, and each device has all of them.
#[test]
fn stats_of_label_sets_that_other_devices_want_are_read_a_part_at_a_time() {
    let inner = |at| format!("(SELECT mean(value) AS v FROM m WHERE device_id = 'd{at}' AND nr = '{at}')");
    let service = Service::new(cases::devices_with_the_same_label_sets(100));
    let answer = service.ask(&format!("SELECT v FROM {}", cases::list(100, ",", inner)), false, usize::MAX).unwrap();
    assert_eq!(answer.iter().map(|series| series.rows.len()).sum::<usize>(), 100);
    let most = service.store.most_passed();
    assert!((100 * 24..=STATS_AT_ONCE).contains(&most), "{most}");
}

#[test]
fn stats_of_devices_with_their_own_label_sets_are_read_at_once() {
    let service = Service::new(cases::devices_with_their_own_label_sets(100, 10, 24));
    let answer = service.ask("SELECT count(value) FROM m GROUP BY device_id", false, usize::MAX).unwrap();
    assert_eq!(answer.len(), 100);
    assert_eq!((service.store.requests(), service.store.most_passed()), (1, 100 * 10 * 24));
}

#[test]
fn devices_with_very_many_label_sets_of_their_own_are_read_a_part_at_a_time() {
    let service = Service::new(cases::devices_with_their_own_label_sets(12, 1_000, 1));
    let hour = "time >= '2026-04-20T00:00:00Z' AND time < '2026-04-20T01:00:00Z'";
    let text = format!("SELECT count(value) FROM m WHERE {hour} GROUP BY device_id");
    assert_eq!(service.ask(&text, false, usize::MAX).unwrap().len(), 12);
    assert_eq!((service.store.requests(), service.store.most_named()), (2, 10_000));
}

/// Each device has values at 0:00, 0:10, 0:20 and 0:30, and at the same minutes of the next hour.
#[test]
fn hours_at_the_ends_of_a_range_are_read_only_of_devices_with_values_in_them() {
    let service = Service::new(cases::many_devices(20));
    for (ends, reads, count) in [
        (["2026-04-19T21:10:00Z", "2026-04-20T05:40:00Z"], 0, 8),
        (["2026-04-19T21:10:00Z", "2026-04-20T01:15:00Z"], 20, 6),
        (["2026-04-20T00:15:00Z", "2026-04-20T05:40:00Z"], 20, 6),
    ] {
        let before = service.store.reads();
        let range = format!("time >= '{}' AND time < '{}'", ends[0], ends[1]);
        let text = format!("SELECT count(value) FROM m WHERE {range} GROUP BY device_id");
        let answer = service.ask(&text, false, usize::MAX).unwrap();
        assert_eq!(answer.len(), 20, "{text}");
        assert!(answer.iter().all(|series| series.rows[0].1[0] == Value::Integer(count)), "{text}");
        assert_eq!(service.store.reads() - before, reads, "{text}");
    }
}

/// The first device is read alone, because it may have many values.
#[test]
fn readings_of_several_devices_are_read_at_once_and_passed_in_order() {
    let service = Service::new(cases::many_devices(17));
    service.store.answer_reads_by(8);
    let mut ids: Vec<String> = (0..17).map(|at| format!("d{at}")).collect();
    ids.sort();
    let answer = service.ask("SELECT value FROM m GROUP BY device_id", false, usize::MAX).unwrap();
    assert!(answer.iter().all(|series| series.rows.len() == 8));
    assert_eq!(answer.iter().map(|series| series.tags[0].1.to_string()).collect::<Vec<_>>(), ids);
    let newest = "SELECT value, device_id FROM m ORDER BY time DESC LIMIT 17";
    for text in ["SELECT value, device_id FROM m WHERE value >= 0 LIMIT 17", newest] {
        let answer = service.ask(text, false, usize::MAX).unwrap();
        let devices = answer[0].rows.iter().map(|(_, values)| match &values[1] {
            Value::Text(id) => id.to_string(),
            other => panic!("{other:?}"),
        });
        let mut devices: Vec<String> = devices.collect();
        devices.sort();
        assert_eq!(devices, ids, "{text}");
    }
    assert_eq!(service.store.reads(), 3 * 17);
}

/// A statement goes on without the memory for reading ahead. Dense devices have 2,400 values each.
#[test]
fn readings_are_read_ahead_only_after_few_values_and_while_memory_is_left() {
    let (sparse, dense) = (|| cases::many_devices(9), cases::devices_with_their_own_label_sets(3, 100, 24));
    for (data, devices, bytes, tries) in
        [(sparse(), 9, usize::MAX, 1), (sparse(), 9, 3 << 20, 7), (dense, 3, usize::MAX, 0)]
    {
        let service = Service::new(data);
        service.memory.bytes.set(bytes);
        let answer = service.ask("SELECT value FROM m GROUP BY device_id", false, usize::MAX).unwrap();
        assert_eq!((answer.len(), service.memory.tries.get()), (devices, tries));
    }
}

/// The index has a hundred devices, each with two series.
#[test]
fn only_devices_whose_ids_begin_as_the_expression_does_are_listed() {
    let service = Service::new(cases::many_devices(100));
    let of = |start: &str| format!("SELECT value FROM m WHERE device_id =~ /^{start}[0-9]*/");
    let both = format!("SELECT value FROM ({}), ({})", of("d91"), of("d92"));
    for (text, rows) in [(of("d9"), 11 * 8), (both, 2 * 8)] {
        let before = service.store.scanned();
        let answer = service.ask(&text, false, usize::MAX).unwrap();
        assert_eq!(answer.iter().map(|series| series.rows.len()).sum::<usize>(), rows, "{text}");
        assert!(service.store.scanned() - before < 3 * 100, "{text}");
    }
}

#[test]
fn a_store_that_is_read_for_each_measurement_is_found() {
    let data = cases::measurements().swap_remove(0).data;
    let cost = |count: usize| {
        let service = Service::new(data(count));
        for at in 0..count {
            service.ask(&format!("SELECT value FROM m{at}"), false, usize::MAX).unwrap();
        }
        let data = service.store.size();
        Cost { data, size: data, scanned: service.store.scanned(), work: 0, allocated: 0 }
    };
    assert_eq!(cost(100).growth(&cost(25)), Some("scanned"));
}
