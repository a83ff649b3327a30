//! Count, minimum, maximum and sum of one metric.

/// The stats of one metric over some readings. Never empty: an absent metric has no `Stats`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stats {
    /// How many values, at least 1.
    pub count: u64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The sum of the values, added in time order.
    pub sum: f64,
}

impl Stats {
    /// The stats of a single value.
    #[must_use]
    pub const fn of(value: f64) -> Self {
        Self { count: 1, min: value, max: value, sum: value }
    }

    /// Takes one more value in.
    pub const fn add(&mut self, value: f64) {
        self.merge(&Self::of(value));
    }

    /// Takes in the stats of other readings.
    pub const fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
    }

    /// The arithmetic mean.
    #[must_use]
    pub const fn avg(&self) -> f64 {
        self.sum / self.count as f64
    }
}
