//! A condition whose changes are reported once.

/// Whether a condition holds. It reports each change once, so that a log line appears once per change.
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

    /// Notes that the condition holds. Returns whether that is a change.
    #[must_use]
    pub const fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.holds, true)
    }

    /// Notes that the condition does not hold. Returns whether that is a change.
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
