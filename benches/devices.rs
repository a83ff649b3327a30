//! The processor time of a reading by the number of devices: `cargo bench --features bench --bench devices`.
//!
//! Every device sends a reading in each round, in another order each time, in requests of 1,000 lines. So
//! with many devices, the state of a device is not in the caches of the processor when its next reading
//! arrives. At the end of the hour all buckets are encoded for MongoDB. The hours after the first one are
//! measured. `-- ROUNDS` sets the readings of a device in an hour.
//!
//! The memory of a device-hour is what the process has more at the end of the first hour than before it, by
//! the estimate of pending and by the resident size.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tidegauge::bench::Fleet;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const DEVICES: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];

const ROUNDS: u32 = 60;

const HOUR: Duration = Duration::from_secs(3_600);

/// At least so many readings are measured.
const READINGS_MIN: u64 = 1_000_000;

/// Times of all readings of a fleet.
#[derive(Default)]
struct Times {
    admit: Duration,
    insert: Duration,
    flush: Duration,
    readings: u64,
}

fn main() {
    let rounds = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(ROUNDS);
    println!("`{}`: {rounds} readings of a device in an hour\n", std::env::args().collect::<Vec<_>>().join(" "));
    println!(
        "| devices | parse, admit, log (ns) | pending | flush | together | ratio | bytes a device-hour | resident |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut least = None;
    for devices in DEVICES {
        let (mut fleet, mut times) = (Fleet::new(devices), Times::default());
        let before = resident_bytes();
        let (bytes, resident) = hour(&mut fleet, 0, rounds, &mut Times::default());
        for next in 1.. {
            hour(&mut fleet, next, rounds, &mut times);
            if times.readings >= READINGS_MIN {
                break;
            }
        }
        let of = |time: Duration| time.as_nanos() as f64 / times.readings as f64;
        let [admit, insert, flush] = [times.admit, times.insert, times.flush].map(of);
        let together = admit + insert + flush;
        let ratio = together / *least.get_or_insert(together);
        let [bytes, resident] = [bytes, resident.saturating_sub(before)].map(|bytes| bytes / u64::from(devices));
        let times = format!("{admit:.0} | {insert:.0} | {flush:.0} | {together:.0} | {ratio:.2}");
        println!("| {devices} | {times} | {bytes} | {resident} |");
    }
}

/// Sends the readings of an hour, and returns the bytes that were pending at its end, estimated, and the
/// resident size.
fn hour(fleet: &mut Fleet, hour: u32, rounds: u32, times: &mut Times) -> (u64, u64) {
    let mut bytes = 0;
    for round in 0..rounds {
        fleet.begin_round(HOUR * hour + HOUR * round / rounds);
        for nth in 0.. {
            let Some(request) = fleet.request(nth) else { break };
            let (batch, admit) = timed(|| request.admit());
            times.readings += u64::from(batch.readings());
            let insert;
            (bytes, insert) = timed(|| fleet.insert(&batch));
            times.admit += admit;
            times.insert += insert;
        }
    }
    let resident = resident_bytes();
    times.flush += timed(|| while fleet.flush() {}).1;
    (bytes, resident)
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    kib.map_or(0, |kib: u64| kib << 10)
}

/// Measures the processor time of this thread.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = thread_cpu();
    let done = work();
    (done, thread_cpu().saturating_sub(start))
}

fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
