//! Measures hours of ordinary operation, with a clock that runs faster than time.

use super::table::short;
use super::{Bench, Section};
use crate::steady::{self, Store};

impl Bench<'_> {
    /// Measures three hours of a fleet, as `loadtest steady` does.
    pub(super) async fn hours(&mut self) -> anyhow::Result<()> {
        let Some(store) = Store::of(self.system) else { return Ok(()) };
        let (devices, speed) = if self.args.long { (200_000, 60) } else { (5_000, 360) };
        let args = steady::Args::fleet(self.args.programs.clone(), store, devices, speed)?;
        let report = steady::measure(&args).await?;
        let whose = if self.system.needs_mongod() { &["service", "mongod"][..] } else { &["service"] };
        let fleet = format!("{} devices", short(devices as f64));
        for (at, name) in whose.iter().enumerate() {
            let of = |what| format!("{fleet}, {name}, {what}");
            self.add(Section::Hours, &of("CPU seconds per million readings"), report.cost()[at]);
            self.add(Section::Hours, &of("at rest, CPU milliseconds a second"), report.rest()[at] * 1e3);
        }
        self.add(Section::Hours, &format!("{fleet}, a reading waits, s"), report.wait_seconds());
        Ok(())
    }
}
