//! Times the stages of a reading and the log: `cargo bench --features bench --bench stages`.
//!
//! `src/bench.rs` defines the stages. `log_append` measures the whole log with its thread: one request at a
//! time, and 64 at once, which share a sync. In `memory` the files are on a tmpfs, where a sync costs
//! nothing.

use std::path::Path;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidegauge::bench::{STAGES, request};
use tidegauge::log::{Batch, Log, MinFree, Options, Sync};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The log is cut each time after this many requests.
const CUT_AFTER: usize = 1_024;

fn stages(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("stages");
    for stage in STAGES {
        group.throughput(Throughput::Elements(stage.count));
        group.bench_function(stage.name, |bencher| {
            bencher.iter_batched(stage.prepare, |work| work(), BatchSize::PerIteration);
        });
    }
}

fn log_append(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("log_append");
    for (place, folder) in [("memory", Path::new("/dev/shm")), ("disk", Path::new(env!("CARGO_TARGET_TMPDIR")))] {
        let folder = tempfile::Builder::new().prefix("stages-").tempdir_in(folder).expect("a folder for the log");
        let log = open(folder.path());
        for requests in [1, 64] {
            let batches = vec![request(0); requests];
            group.throughput(Throughput::Elements(batches.iter().map(|batch| u64::from(batch.readings())).sum()));
            group.bench_function(BenchmarkId::new(place, requests), |bencher| append_all(bencher, &log, &batches));
        }
    }
}

fn open(dir: &Path) -> Log {
    let options = Options {
        dir: dir.to_owned(),
        sync: Sync::Always,
        group_window: Duration::ZERO,
        segment_bytes: 16 << 20,
        max_bytes: 1 << 30,
        min_free: MinFree::Bytes(0),
    };
    Log::open(options, tidegauge::log::Instruments::default()).expect("an empty folder").0
}

fn append_all(bencher: &mut criterion::Bencher<'_>, log: &Log, batches: &[Batch]) {
    let mut appended = 0;
    let next = || {
        appended += batches.len();
        if appended >= CUT_AFTER {
            appended = 0;
            log.cut(log.usage().readable).expect("the disk is sound");
        }
        batches.to_vec()
    };
    let append = |batches: Vec<Batch>| {
        let acks: Vec<_> = batches.into_iter().map(|batch| log.append(batch).expect("the log has room")).collect();
        for ack in acks {
            ack.wait().expect("durable");
        }
    };
    bencher.iter_batched(next, append, BatchSize::PerIteration);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = stages, log_append
}
criterion_main!(benches);
