//! Remembers whether a condition holds, so that only its changes are logged.

/// Remembers whether a condition holds, such as "the store is away".
///
/// It tells whether a new state differs from the last one. So a log line appears once for each change, and
/// not for each attempt.
#[derive(Debug, Default)]
pub struct OncePerChange {
    holds: bool,
}

impl OncePerChange {
    /// Whether the condition holds.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.holds
    }

    /// Notes that the condition holds. Returns whether it did not hold before.
    #[must_use]
    pub const fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.holds, true)
    }

    /// Notes that the condition does not hold. Returns whether it held before.
    pub const fn ends(&mut self) -> bool {
        std::mem::replace(&mut self.holds, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_reported_once() {
        let mut condition = OncePerChange::default();
        assert_eq!((condition.holds(), condition.ends()), (false, false));
        assert_eq!((condition.begins(), condition.begins(), condition.holds()), (true, false, true));
        assert_eq!((condition.ends(), condition.ends(), condition.holds()), (true, false, false));
    }
}
