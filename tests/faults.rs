//! Fault tests: devices send to the real binary while it, its store, its disk or its clock fails. An audit
//! then compares the acknowledged readings with the stored ones.
//!
//! A [`fault_test`] covers one kind of fault on one store. A seed determines its [`workload`]: values that no
//! two writes share, readings that are late, out of order, sent twice, or at an instant that already has a
//! value, and some that the server must reject. A [`client`] for each group of devices sends one request
//! after the other, so that "the last value written" is well defined. The [`history`] keeps the outcome of
//! each write: acknowledged, refused, or no answer. The same seed determines the faults. At the end the
//! [`audit`] reads everything and checks that
//! - each acknowledged value is stored exactly once, with the last value written, and no refused value is
//!   stored;
//! - the rollups are the fold of the readings, and so are the stats in the documents of MongoDB;
//! - the counters in `/metrics` balance.
//!
//! Each fault test prints a line on stderr when it ends. A failing one prints its seed: `FAULT_SEED` sets the
//! seed of the next run, which repeats the workload and the schedule of the faults. (Which request a fault
//! meets also depends on the machine.) `FAULT_SECONDS` sets how long each fault test lasts; `make soak` sets
//! both.

mod audit;
mod brokers;
mod client;
mod clock;
mod damage;
mod deletions;
mod fail_points;
mod failover;
mod fault_test;
mod forwarding;
mod full_disk;
mod history;
mod kills;
mod mqtt_devices;
mod outages;
mod refusals;
mod report;
mod shared_deletions;
mod store;
mod two_instances;
mod workload;
