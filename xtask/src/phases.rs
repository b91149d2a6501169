//! How long each phase of a command took.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// The phases that are over, each begun when the one before it ended.
#[derive(Debug)]
pub struct Phases {
    over: Vec<(&'static str, Duration)>,
    since: Instant,
}

impl Default for Phases {
    fn default() -> Self {
        Self { over: Vec::new(), since: Instant::now() }
    }
}

impl Phases {
    /// What was done until now was this.
    pub fn end(&mut self, name: &'static str) {
        let now = Instant::now();
        self.over.push((name, now.duration_since(self.since)));
        self.since = now;
    }

    /// Whether this one is over.
    pub fn has(&self, name: &str) -> bool {
        self.over.iter().any(|(over, _)| *over == name)
    }

    /// A line for each, and for all of them.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        for (name, took) in &self.over {
            let _ = writeln!(text, "  {:>6}  {name}", minutes(*took));
        }
        let _ = writeln!(text, "  {:>6}  in all", minutes(self.over.iter().map(|(_, took)| *took).sum()));
        text
    }
}

/// `12:03`
pub fn minutes(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_summed() {
        let over = vec![("format", Duration::from_millis(1600)), ("tests", Duration::from_secs(723))];
        let phases = Phases { over, ..Phases::default() };
        assert_eq!(phases.lines(), "    0:02  format\n   12:03  tests\n   12:05  in all\n");
    }
}
