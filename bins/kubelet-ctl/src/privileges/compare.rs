//! Whether what is there is what the map says. Pure.

use std::collections::BTreeSet;

use serde::Serialize;

/// How map and reality stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Comparison {
    /// Nothing in the map to compare with: for people.
    Shown,
    Same,
    /// Less than the map, because the machine gives nobody more.
    Withheld,
    /// It cannot be seen from here.
    Unknown,
    Differs,
}

impl Comparison {
    /// The gravest.
    pub(super) fn of_all(verdicts: impl Iterator<Item = Comparison>) -> Self {
        verdicts.max().unwrap_or(Comparison::Shown)
    }

    pub(super) fn mark(self) -> &'static str {
        match self {
            Comparison::Shown => " ",
            Comparison::Same => "=",
            Comparison::Withheld => "--",
            Comparison::Unknown => "??",
            Comparison::Differs => "!!",
        }
    }

    pub(super) fn sentence(self) -> &'static str {
        match self {
            Comparison::Shown | Comparison::Same => "as in the map",
            Comparison::Withheld => "as in the map, but for what this machine withholds",
            Comparison::Unknown => "not all of it can be seen",
            Comparison::Differs => "DIFFERS from the map",
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Fact {
    pub(super) what: String,
    pub(super) map: String,
    pub(super) reality: String,
    pub(super) verdict: Comparison,
}

impl Fact {
    pub(super) fn new(what: &str, map: impl Into<String>, reality: impl Into<String>, verdict: Comparison) -> Self {
        Fact { what: what.into(), map: map.into(), reality: reality.into(), verdict }
    }

    /// One value that must be the same.
    pub(super) fn equal<T: PartialEq + std::fmt::Display>(what: &str, map: &T, reality: Option<T>) -> Self {
        match reality {
            None => Fact::new(what, map.to_string(), UNSEEN, Comparison::Unknown),
            Some(reality) => {
                let verdict = if reality == *map { Comparison::Same } else { Comparison::Differs };
                Fact::new(what, map.to_string(), reality.to_string(), verdict)
            }
        }
    }

    /// A list whose order does not matter.
    pub(super) fn same_list(what: &str, map: &[String], reality: Option<&[String]>) -> Self {
        let Some(reality) = reality else { return Fact::new(what, list(map), UNSEEN, Comparison::Unknown) };
        let set = |list: &[String]| list.iter().cloned().collect::<BTreeSet<String>>();
        let verdict = if set(map) == set(reality) { Comparison::Same } else { Comparison::Differs };
        Fact::new(what, list(map), list(reality), verdict)
    }

    /// Capabilities: one too many differs, one too few does only where the machine would have given it.
    pub(super) fn capabilities(
        what: &str,
        map: &[String],
        reality: Option<&[String]>,
        granted: Option<&[String]>,
    ) -> Self {
        let Some(reality) = reality else { return Fact::new(what, list(map), UNSEEN, Comparison::Unknown) };
        let mut verdict = Comparison::Same;
        let mut words = list(reality);
        let extra: Vec<String> = reality.iter().filter(|cap| !map.contains(cap)).cloned().collect();
        if !extra.is_empty() {
            verdict = Comparison::Differs;
            words.push_str(&format!("; too many: {}", list(&extra)));
        }
        let missing: Vec<String> = map.iter().filter(|cap| !reality.contains(cap)).cloned().collect();
        if !missing.is_empty() {
            let (why, how) = match granted {
                None => ("missing, and it cannot be seen what the machine grants", Comparison::Unknown),
                Some(granted) if missing.iter().any(|cap| granted.contains(cap)) => ("missing", Comparison::Differs),
                Some(_) => ("withheld by the machine", Comparison::Withheld),
            };
            verdict = verdict.max(how);
            words.push_str(&format!("; {why}: {}", list(&missing)));
        }
        Fact::new(what, list(map), words, verdict)
    }
}

/// What stands in the place of what cannot be seen.
pub(super) const UNSEEN: &str = "not to be seen";

/// "A, B", or "none".
pub(super) fn list(all: &[String]) -> String {
    if all.is_empty() { "none".into() } else { all.join(", ") }
}
