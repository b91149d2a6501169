//! What does not answer, in words for a person.

use std::fmt;

use tokio::time::Instant;

/// A request that has not been answered for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hanging {
    pub pid: u32,
    pub what: String,
    pub since: Instant,
    /// It may be at work all the same ([`crate::shares::Kind::takes_long`]).
    pub takes_long: bool,
}

impl fmt::Display for Hanging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker process {} has been in {} for {} s", self.pid, self.what, self.since.elapsed().as_secs())
    }
}

/// What a person should know of file systems that do not answer; `None` where all do, and nothing takes long.
pub fn degraded(hanging: &[Hanging]) -> Option<String> {
    let said = |words: &str, takes_long: bool| {
        let names = hanging.iter().filter(|one| one.takes_long == takes_long).map(ToString::to_string);
        let names: Vec<String> = names.collect();
        (!names.is_empty()).then(|| format!("{words}: {}", names.join("; ")))
    };
    let all = [said("file systems do not answer", false), said("volumes take long or do not answer", true)];
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_not_called_silent() {
        let one = |what: &str, takes_long| Hanging { pid: 1, what: what.into(), since: Instant::now(), takes_long };
        assert_eq!(degraded(&[]), None);
        let said = degraded(&[one("a walk", true), one("a statfs", false)]).unwrap();
        let expected = "file systems do not answer: worker process 1 has been in a statfs for 0 s; \
                        volumes take long or do not answer: worker process 1 has been in a walk for 0 s";
        assert_eq!(said, expected);
        assert!(degraded(&[one("a walk", true)]).unwrap().starts_with("volumes take long"));
    }
}
