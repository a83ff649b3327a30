//! Writers of one bucket that take turns at every step, on a model of the collection.
//!
//! Each writer has a layout, a capacity, and a memory of its own. Some are killed between two steps; their
//! write is sent again to a writer that knows nothing. In the end each identity is in one document.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::capacity::{Capacity, Size};
use super::super::document::Part;
use super::super::plan::{is_consistent, plan};
use super::is_dense;
use crate::config::BucketLayout;
use crate::model::{BucketWrite, Contents, Hour, HourOffset, Sample};

const HOUR: Hour = Hour(0);

/// The documents of the bucket, by part.
type Documents = RefCell<BTreeMap<i32, Part>>;

#[derive(Debug, Clone)]
struct Writer {
    layout: BucketLayout,
    capacity: Capacity,
    /// The last known part, and its last instant.
    known: Option<(i32, HourOffset)>,
}

/// Lets the other writers and readers take their turns.
async fn turn() {
    let mut is_over = false;
    std::future::poll_fn(|_| if std::mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

impl Writer {
    /// Writes as the store does.
    async fn write(&mut self, documents: &Documents, write: &BucketWrite) {
        turn().await;
        let is_done = match self.layout {
            BucketLayout::Readable => self.append(documents, &write.contents),
            BucketLayout::Packed => self.insert_known_or_learned(documents, &write.contents).await,
        };
        if is_done {
            return;
        }
        let mut seen = Vec::new();
        loop {
            turn().await;
            let parts = read(documents).await;
            let numbers: Vec<i32> = parts.iter().map(|part| part.number).collect();
            let is_whole = numbers.iter().copied().eq(0..numbers.len() as i32) || numbers == seen;
            seen = numbers;
            if is_whole && is_consistent(&parts) && self.change(documents, write, &parts).await {
                return;
            }
        }
    }

    async fn insert_known_or_learned(&mut self, documents: &Documents, contents: &Contents) -> bool {
        let is_unknown = self.known.is_none();
        if self.insert(documents, contents) {
            return true;
        }
        if !is_unknown {
            return false;
        }
        turn().await;
        if let Some((number, part)) = documents.borrow().last_key_value() {
            self.known = (part.layout == BucketLayout::Packed).then_some((*number, part.last));
        }
        turn().await;
        self.known.is_some() && self.insert(documents, contents)
    }

    fn insert(&mut self, documents: &Documents, contents: &Contents) -> bool {
        let (first, last) = contents.span().unwrap();
        let number = match self.known {
            None => 0,
            Some((number, known)) if known < first => number + 1,
            Some(_) => return false,
        };
        let mut documents = documents.borrow_mut();
        if !self.capacity.fits(Size::of(contents)) || !is_dense(contents) || documents.contains_key(&number) {
            return false;
        }
        documents.insert(number, part(number, self.layout, last, contents));
        self.known = Some((number, last));
        true
    }

    fn append(&self, documents: &Documents, contents: &Contents) -> bool {
        let (first, last) = contents.span().unwrap();
        let number = self.known.map_or(0, |(number, _)| number);
        let mut documents = documents.borrow_mut();
        let size = Size::of(contents);
        if !self.capacity.fits(size) {
            return false;
        }
        match documents.get_mut(&number) {
            None if number == 0 => _ = documents.insert(0, part(0, self.layout, last, contents)),
            Some(stored)
                if stored.layout == BucketLayout::Readable
                    && !stored.full
                    && stored.last < first
                    && self.capacity.fits(Size::of(&stored.contents) + size) =>
            {
                stored.contents = stored.contents.merge(contents);
                stored.last = last;
                stored.rev += 1;
            }
            _ => return false,
        }
        true
    }

    async fn change(&mut self, documents: &Documents, write: &BucketWrite, parts: &[Part]) -> bool {
        let changes = plan(parts, write, None, self.capacity, self.layout);
        let after = parts.iter().chain(changes.iter().map(|change| &change.part));
        let last = after.max_by_key(|part| part.number).map(|part| (part.number, part.last));
        for change in changes {
            turn().await;
            let mut documents = documents.borrow_mut();
            if documents.get(&change.part.number).map(|stored| stored.rev) != change.guard {
                return false;
            }
            documents.insert(change.part.number, change.part);
        }
        self.known = last;
        true
    }
}

/// The numbers of parts in the order of their `_id`s.
static ORDER: LazyLock<Vec<i32>> = LazyLock::new(|| {
    let mut order: Vec<i32> = (0..60).collect();
    order.sort_by_key(|number| if *number == 0 { String::new() } else { number.to_string() });
    order
});

/// Reads the parts one after the other, while writers change them.
async fn read(documents: &Documents) -> Vec<Part> {
    let mut parts = Vec::new();
    for &number in &*ORDER {
        let found = documents.borrow().get(&number).cloned();
        if found.is_some() || documents.borrow().contains_key(&(number + 1)) {
            turn().await;
        }
        parts.extend(found);
    }
    parts.sort_by_key(|part| part.number);
    parts
}

fn part(number: i32, layout: BucketLayout, last: HourOffset, contents: &Contents) -> Part {
    let contents = contents.clone();
    Part { number, layout, rev: 1, full: false, deleted_from: false, last, metadata: None, contents }
}

fn any_write(rng: &mut StdRng) -> BucketWrite {
    let from = rng.random_range(0..60);
    let metrics = ["a", "b"].iter().map(|name| (*name).into()).collect();
    let count = rng.random_range(1..12);
    let samples = (0..count).map(|_| {
        let offset = rng.random_range(from..from + 12);
        (Sample { value: f64::from(rng.random_range(0..9_u8)), offset, metric: rng.random_range(0..2) }, true)
    });
    BucketWrite::new("d".into(), HOUR, None, metrics, samples.collect::<Vec<_>>())
}

fn identities(contents: &Contents) -> impl Iterator<Item = (HourOffset, String)> + '_ {
    contents.samples().iter().map(|sample| (sample.offset, contents.metric_of(sample).to_string()))
}

fn race(seed: u64, layouts: &[BucketLayout], capacities: &[u32]) {
    let rng = &mut StdRng::seed_from_u64(seed);
    let fresh = |nth: usize| Writer {
        layout: layouts[nth % layouts.len()],
        capacity: Capacity::new(capacities[nth % capacities.len()], 1 << 20),
        known: None,
    };
    let documents = Documents::default();
    let mut expected = HashSet::new();
    let mut queues: Vec<Vec<BucketWrite>> = (0..4).map(|_| (0..6).map(|_| any_write(rng)).collect()).collect();
    queues.iter().flatten().for_each(|write| expected.extend(identities(&write.contents)));
    if seed.is_multiple_of(2) {
        for queue in &mut queues {
            queue.sort_by_key(|write| write.contents.span()); // mostly in the order of time
        }
    }
    let documents = &documents;
    let start = |writes: Vec<BucketWrite>, mut writer: Writer| -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move {
            for write in &writes {
                writer.write(documents, write).await;
            }
        })
    };
    let all = queues.clone();
    let mut running: Vec<_> =
        queues.into_iter().enumerate().map(|(nth, writes)| (nth, start(writes, fresh(nth)))).collect();
    let mut context = Context::from_waker(Waker::noop());
    let mut kills = 4;
    while !running.is_empty() {
        let at = rng.random_range(0..running.len());
        let nth = running[at].0;
        if kills > 0 && rng.random_range(0..50) == 0 {
            kills -= 1;
            // Killed. All of its writes are sent again: those that were done change nothing.
            running[at].1 = start(all[nth].clone(), fresh(nth));
        } else if running[at].1.as_mut().poll(&mut context).is_ready() {
            drop(running.swap_remove(at));
        }
    }
    let mut stored = HashSet::new();
    for part in documents.borrow().values() {
        for identity in identities(&part.contents) {
            assert!(stored.insert(identity.clone()), "seed {seed}: {identity:?} is stored twice");
        }
        assert!(part.contents.span().unwrap().1 <= part.last, "seed {seed}");
    }
    assert_eq!(stored, expected, "seed {seed}");
}

#[test]
fn packed_writers_store_each_identity_once() {
    (0..150).for_each(|seed| race(seed, &[BucketLayout::Packed], &[100]));
    (0..150).for_each(|seed| race(seed, &[BucketLayout::Packed], &[6, 11]));
}

#[test]
fn writers_of_both_layouts_store_each_identity_once() {
    (0..150).for_each(|seed| race(seed, &[BucketLayout::Packed, BucketLayout::Readable], &[100]));
    (0..150).for_each(|seed| race(seed, &[BucketLayout::Packed, BucketLayout::Readable], &[6, 11]));
}
