//! One line for each process: what it may do, in words, and whether that is what was declared. Pure.

use std::collections::BTreeMap;

use super::compare::{Comparison, Fact, UNSEEN};
use super::{Shown, count};
use crate::table::Table;

/// The table of all processes, and what to do next where something differs.
pub(super) fn table(all: &[Shown]) -> String {
    let mut table =
        Table::new(&["PROCESS", "PID", "USER", "CAPABILITIES", "NETWORK", "FILES", "FILTER", "AS DECLARED"]);
    for process in all {
        let pid = process.pid.map(|pid| pid.to_string()).unwrap_or_default();
        let facts = &process.facts;
        let cells = [user(facts), capabilities(facts), network(facts), files(facts), filter(facts), declared(process)];
        table.row([vec![process.process.to_owned(), pid], cells.to_vec()].concat());
    }
    let mut out = table.render(0);
    let warned = all.iter().any(|process| !process.warnings.is_empty());
    let seen = |verdict| count(all, verdict) > 0;
    if warned || seen(Comparison::Differs) || seen(Comparison::Unknown) || seen(Comparison::Withheld) {
        out.push_str("\nkubelet-ctl privileges --detail shows each fact beside its declaration.\n");
    }
    out
}

/// What is there of one kind; what is declared where that cannot be seen.
fn fact<'a>(facts: &'a [Fact], what: &str) -> Option<&'a str> {
    let fact = facts.iter().find(|fact| fact.what == what)?;
    Some(if fact.reality == UNSEEN { &fact.map } else { &fact.reality })
}

fn user(facts: &[Fact]) -> String {
    match fact(facts, "user") {
        Some("0") => "root".to_owned(),
        other => other.unwrap_or_default().to_owned(),
    }
}

fn capabilities(facts: &[Fact]) -> String {
    // What is too many or missing stands in the last column.
    let effective = fact(facts, "effective").unwrap_or_default();
    effective.split(';').next().unwrap_or_default().replace(", ", " ")
}

/// "unix, IP; TCP 10248 10250"
fn network(facts: &[Fact]) -> String {
    let families = fact(facts, "sockets of").unwrap_or_default();
    let mut words: Vec<&str> = families
        .split(", ")
        .map(|family| match family {
            "AF_UNIX" => "unix",
            "AF_INET" | "AF_INET6" => "IP",
            "AF_INET (raw)" | "AF_INET6 (raw)" => "raw IP",
            "AF_NETLINK (netfilter)" => "netfilter",
            "AF_VSOCK" => "vsock",
            other => other,
        })
        .collect();
    words.dedup();
    let listens = fact(facts, "listens on").unwrap_or_default();
    let ports: Vec<&str> = listens.split(", ").filter_map(|one| one.strip_prefix("tcp:")).collect();
    match ports.as_slice() {
        [] => words.join(", "),
        ports => format!("{}; TCP {}", words.join(", "), ports.join(" ")),
    }
}

/// "lists /a; reads /b /c; writes /d". Devices like /dev/null and what is no file are left to the long form.
fn files(facts: &[Fact]) -> String {
    let mut rules = facts.iter().filter(|fact| fact.what == "landlock").peekable();
    if rules.peek().is_some_and(|fact| fact.map.starts_with("none")) {
        return "any that its user may open".to_owned();
    }
    let mut paths: BTreeMap<usize, (&str, Vec<&str>)> = BTreeMap::new();
    for rule in rules {
        let reality = if rule.reality == UNSEEN { &rule.map } else { &rule.reality };
        let words = [("read-dir ", "lists"), ("read-file ", "reads"), ("run ", "runs"), ("read-write ", "writes")];
        for (at, (prefix, verb)) in words.into_iter().enumerate() {
            if let Some(path) = reality.strip_prefix(prefix) {
                let path = path.split(" (by ").next().unwrap_or_default();
                paths.entry(at).or_insert((verb, Vec::new())).1.push(path);
            }
        }
    }
    let groups: Vec<String> = paths.into_values().map(|(verb, paths)| format!("{verb} {}", paths.join(" "))).collect();
    groups.join("; ")
}

/// "on", with the number of groups of calls that it denies, or "off".
fn filter(facts: &[Fact]) -> String {
    let mode = fact(facts, "filter").unwrap_or_default().split(',').next().unwrap_or_default();
    let denied = fact(facts, "calls denied").filter(|denied| *denied != "none");
    match (mode, denied) {
        ("filter", Some(denied)) => format!("denies {}", denied.split(", ").count()),
        ("filter", None) => "on".to_owned(),
        (other, _) => other.to_owned(),
    }
}

/// "yes", or what differs.
fn declared(process: &Shown) -> String {
    let facts = |verdict| process.facts.iter().filter(move |fact| fact.verdict == verdict);
    let names = |verdict| {
        let mut names: Vec<&str> = facts(verdict).map(|fact| fact.what.as_str()).collect();
        names.dedup();
        names.join(", ")
    };
    match process.verdict {
        Comparison::Shown | Comparison::Same => "yes".to_owned(),
        Comparison::Withheld => format!("yes, but for what this machine withholds: {}", names(Comparison::Withheld)),
        Comparison::Unknown => format!("not to be seen: {}", names(Comparison::Unknown)),
        Comparison::Differs => {
            let all: Vec<String> =
                facts(Comparison::Differs).map(|fact| format!("{}: {}", fact.what, fact.reality)).collect();
            format!("NO: {}", all.join("; "))
        }
    }
}
