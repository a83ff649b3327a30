//! The columns of a point.

use strum::{EnumIter, EnumString, IntoEnumIterator, IntoStaticStr};

use crate::store::StatsNeeds;

/// A column of a point, by its name in requests and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumIter, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Column {
    /// The number of values.
    Count,
    /// The smallest value.
    Min,
    /// The largest value.
    Max,
    /// The arithmetic mean.
    Avg,
    /// The sum of the values.
    Sum,
    /// The first value and its instant.
    First,
    /// The last value and its instant.
    Last,
    /// The growth of a counter.
    Increase,
}

/// A set of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns(u8);

impl Columns {
    /// No column.
    pub const NONE: Self = Self(0);

    /// Adds a column to the set.
    #[must_use]
    pub const fn with(self, column: Column) -> Self {
        Self(self.0 | 1 << column as u8)
    }

    /// Whether the set has a column.
    #[must_use]
    pub const fn has(self, column: Column) -> bool {
        self.0 & 1 << column as u8 != 0
    }

    /// The columns of the set, in the order of an answer.
    pub fn iter(self) -> impl Iterator<Item = Column> {
        Column::iter().filter(move |column| self.has(*column))
    }

    /// The stats that the columns need.
    #[must_use]
    pub const fn needs(self) -> StatsNeeds {
        let ends = self.has(Column::First) || self.has(Column::Last) || self.has(Column::Increase);
        if ends { StatsNeeds::All } else { StatsNeeds::Numbers }
    }
}

/// The columns of a request that names none.
impl Default for Columns {
    fn default() -> Self {
        Self::NONE.with(Column::Count).with(Column::Min).with(Column::Max).with(Column::Avg).with(Column::Sum)
    }
}
