//! Every promise under fire: devices send to the real binary while it, its store, its disk and its clock
//! fail; then an audit compares what was acknowledged with what is stored.
//!
//! A [`siege`] is one such fight. Its [`workload`] is made from a seed: values that no two writes share,
//! readings that are late, out of order, sent twice, or at an instant that has a value already, and some that
//! must be refused. A [`client`] per group of devices sends one request after the other, so that "the last
//! value written" is well defined. The [`ledger`] knows of each write whether it was acknowledged, refused,
//! or got no answer. The faults come from the same seed. At the end the [`audit`] asks for everything and
//! judges it:
//! - what was acknowledged is stored exactly once, with the last value written; what was refused is not
//!   stored;
//! - the rollups are the fold of the readings, and so are the stats in the documents of MongoDB;
//! - `/metrics` balances.
//!
//! Each siege prints a line on stderr as it ends. One that fails prints its seed: `FIRE_SEED` sets the seed
//! of the next run, which repeats the workload and the schedule of the faults. (Which request a fault meets
//! also depends on the machine.) `FIRE_SECONDS` sets how long each siege lasts; `make soak` does it.

mod audit;
mod client;
mod clock;
mod damage;
mod fail_points;
mod failover;
mod full_disk;
mod kills;
mod ledger;
mod outages;
mod refusals;
mod report;
mod siege;
mod store;
mod two_instances;
mod workload;
