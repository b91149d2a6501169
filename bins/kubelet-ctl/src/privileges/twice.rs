//! Whether what is wrong was wrong a moment before too. Pure.
//!
//! A process has the privileges of whoever started it until it has applied its own, and a helper that has done its work ends while
//! it is looked at: neither is a difference.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Shown;
use super::compare::Comparison;

/// Between two looks: a process that was just started applies its privileges first of all.
pub(super) const BETWEEN: Duration = Duration::from_millis(300);
/// Processes that are started again and again look different each time; what the last look shows is told then.
pub(super) const LOOKS: usize = 4;

/// Whether `now` can be told: nothing is wrong, or nothing but what was wrong `before`, in the same process.
pub(super) fn is_certain(before: Option<&[Shown]>, now: &[Shown]) -> bool {
    let now = wrong(now);
    now.is_empty() || before.is_some_and(|before| now.is_subset(&wrong(before)))
}

/// Each wrong fact by its process, with what the map says: some facts are there several times.
fn wrong(all: &[Shown]) -> BTreeSet<(&'static str, Option<u32>, &str, &str)> {
    let of = |process: &Shown| (process.process, process.pid);
    all.iter()
        .flat_map(|process| process.facts.iter().map(move |fact| (of(process), fact)))
        .filter(|(_, fact)| matches!(fact.verdict, Comparison::Differs | Comparison::Unknown))
        .map(|((process, pid), fact)| (process, pid, fact.what.as_str(), fact.map.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::compare::Fact;
    use super::*;

    fn shown(pid: u32, wrong: &[(&str, Comparison)]) -> Vec<Shown> {
        let fact = |(what, verdict): &(&str, Comparison)| Fact::new(what, "map", "reality", *verdict);
        let facts: Vec<Fact> = wrong.iter().map(fact).collect();
        let verdict = Comparison::of_all(facts.iter().map(|fact| fact.verdict));
        let (serves, warnings) = (Vec::new(), Vec::new());
        vec![Shown { process: "kubelet-iptables", pid: Some(pid), verdict, facts, serves, warnings }]
    }

    #[test]
    fn what_is_wrong_twice_is_told() {
        use Comparison::{Differs, Same, Unknown, Withheld};
        let (filter, user) = (("filter", Differs), ("user", Unknown));
        let well = shown(7, &[("filter", Same), ("user", Withheld)]);
        for (what, before, now, certain) in [
            ("nothing is wrong at once", None, well.clone(), true),
            ("wrong for the first time", None, shown(7, &[filter]), false),
            ("wrong again", Some(shown(7, &[filter])), shown(7, &[filter]), true),
            ("less is wrong than before", Some(shown(7, &[filter, user])), shown(7, &[filter]), true),
            ("nothing is any more", Some(shown(7, &[filter])), well.clone(), true),
            ("more is wrong than before", Some(shown(7, &[filter])), shown(7, &[filter, user]), false),
            ("another process", Some(shown(7, &[filter])), shown(8, &[filter]), false),
            ("it was well before", Some(well), shown(7, &[user]), false),
        ] {
            assert_eq!(is_certain(before.as_deref(), &now), certain, "{what}");
        }
    }
}
