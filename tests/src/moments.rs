//! Spans of time in which something was being done to a process, and which of several moments lie outside of all.

use std::time::SystemTime;

/// Milliseconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// From when to when, both milliseconds since 1970 and both part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub from: i64,
    pub to: i64,
}

impl Span {
    pub fn holds(self, moment: i64) -> bool {
        self.from <= moment && moment <= self.to
    }

    pub fn meets(self, other: Self) -> bool {
        self.from <= other.to && other.from <= self.to
    }
}

/// The longest time between two neighbours of `moments` (ascending) that no part of `excused` lies in; with its beginning.
pub fn longest_gap(moments: &[i64], excused: &[Span]) -> Option<(i64, i64)> {
    moments
        .windows(2)
        .map(|pair| Span { from: pair[0], to: pair[1] })
        .filter(|gap| !excused.iter().any(|one| one.meets(*gap)))
        .map(|gap| (gap.to - gap.from, gap.from))
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_that_something_lies_in_do_not_count() {
        let moments = [0, 10, 50, 60, 75];
        assert_eq!(longest_gap(&moments, &[]), Some((40, 10)));
        assert_eq!(longest_gap(&moments, &[Span { from: 20, to: 30 }]), Some((15, 60)));
        assert_eq!(longest_gap(&moments, &[Span { from: 0, to: 80 }]), None);
        assert!(Span { from: 1, to: 2 }.holds(2) && !Span { from: 1, to: 2 }.holds(3));
    }
}
