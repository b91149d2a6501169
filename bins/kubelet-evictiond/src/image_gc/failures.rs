//! Which failure of a round is told (upstream StartGarbageCollection: the event `ImageGCFailed` comes from the second failure in a row
//! on). Upstream has a round in five minutes; rounds that come sooner count as one with the last. Pure.

use super::schedule::PERIOD_MS;

/// Failures in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Failures {
    in_a_row: u32,
    counted_ms: Option<i64>,
}

/// A failure that is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// It is not the first one in a row.
    pub repeated: bool,
}

impl Failures {
    pub fn succeeded(&mut self) {
        *self = Failures::default();
    }

    /// `None`: one of these five minutes was told already.
    pub fn failed(&mut self, now_ms: i64) -> Option<Told> {
        if self.counted_ms.is_some_and(|at| now_ms.saturating_sub(at) < PERIOD_MS) {
            return None;
        }
        self.counted_ms = Some(now_ms);
        self.in_a_row = self.in_a_row.saturating_add(1);
        Some(Told { repeated: self.in_a_row > 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_the_second_in_a_row_on() {
        let mut failures = Failures::default();
        assert_eq!(failures.failed(0), Some(Told { repeated: false }));
        assert_eq!(failures.failed(PERIOD_MS - 1), None, "too soon to be another one");
        assert_eq!(failures.failed(PERIOD_MS), Some(Told { repeated: true }));
        assert_eq!(failures.failed(2 * PERIOD_MS), Some(Told { repeated: true }));
        failures.succeeded();
        assert_eq!(failures.failed(2 * PERIOD_MS + 1), Some(Told { repeated: false }));
    }
}
