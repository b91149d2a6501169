//! A node that is asked for much at once, as rows: each load alone and all together, beyond what it uses with nothing of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;

use super::{Row, Section, quantile, total};
use crate::busy::mix::Kind;
use crate::busy::{Floors, LINE_BYTES, Load, Measurements, Of, Plan, rounds};
use crate::server::SCRAPED;

const LOADS: [Load; 4] = [Load::Probes, Load::Followers, Load::Scrapes, Load::Everything];
const SHARES: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

/// Percent of a core.
fn share(cpu_ns: u64, seconds: f64) -> f64 {
    cpu_ns as f64 / 1e7 / seconds.max(1.0)
}

/// What the processes use under a load beyond what they use without, percent of a core, by program. One that is only there under the
/// load counts as a whole.
fn beyond(of: &Of, without: &Of) -> BTreeMap<String, f64> {
    let before = |name: &str| without.idle.used.get(name).map_or(0, |used| used.cpu_ns);
    let cost = |name: &str, cpu_ns: u64| share(cpu_ns, of.idle.seconds) - share(before(name), without.idle.seconds);
    of.idle.used.iter().map(|(name, used)| (name.clone(), cost(name, used.cpu_ns))).collect()
}

/// What bare loops use for a load: of their own, and of the runtime; percent of a core.
fn floor(plan: &Plan, floors: &Floors, without: &Of, load: Load) -> (f64, f64) {
    let seconds = plan.watched.as_secs_f64();
    // The loop of probes makes as many as are due in that time, and may take longer for them.
    let idle = share(without.runtime_ns, without.idle.seconds) * floors.seconds / seconds.max(1.0);
    let probes = (share(floors.probes_ns, seconds), share(floors.probes_runtime_ns, seconds) - idle);
    let followers = (share(floors.followers_ns, seconds), 0.0);
    let scrapes = (share(floors.scrapes_ns(plan.scrapers, rounds(plan.watched)), seconds), 0.0);
    match load {
        Load::Nothing => (0.0, 0.0),
        Load::Probes => probes,
        Load::Followers => followers,
        Load::Scrapes => scrapes,
        Load::Everything => {
            [probes, followers, scrapes].iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        }
    }
}

fn named(plan: &Plan, load: Load) -> String {
    let (probes, followers, scrapers) = (plan.pods, plan.followers, plan.scrapers);
    match load {
        Load::Nothing => "nothing of it".to_owned(),
        Load::Probes => format!("{probes} probes a second"),
        Load::Followers => format!("{followers} followers of logs"),
        Load::Scrapes => format!("{scrapers} scrapes of each path at once"),
        Load::Everything => "everything".to_owned(),
    }
}

fn milliseconds(values: Option<&Vec<Duration>>, part: f64) -> f64 {
    values.map_or(0.0, |values| quantile(values, part) * 1e3)
}

fn probe_rows(measured: &Measurements, load: Load, of: &Of, rows: &mut Vec<Row>) {
    let when = if load == Load::Everything { "everything" } else { "alone" };
    for kind in Kind::ALL {
        for (what, part) in SHARES {
            let floor = milliseconds(measured.floors.probes.get(&kind), part);
            let node = match kind {
                Kind::Exec => of.execs.quantile(part) * 1e3,
                Kind::Http | Kind::Tcp | Kind::Grpc => milliseconds(of.probes.get(&kind), part),
            };
            rows.push(Row::new(format!("a probe by {}, {when}, {what}", kind.name()), Some(floor), node, "ms"));
        }
    }
}

fn scrape_rows(measured: &Measurements, load: Load, of: &Of, rows: &mut Vec<Row>) {
    let when = if load == Load::Everything { "everything" } else { "alone" };
    for path in SCRAPED {
        for (what, part) in SHARES {
            let floor = quantile(&measured.floors.nothing, part) * 1e3;
            let node = milliseconds(of.scrapes.get(path), part);
            rows.push(Row::new(format!("a scrape of {path}, {when}, {what}"), Some(floor), node, "ms"));
        }
    }
}

/// What much at once costs.
pub fn section(plan: &Plan, measured: &Measurements) -> Section {
    let nothing = Of::default();
    let without = measured.loads.get(&Load::Nothing).unwrap_or(&nothing);
    let used: u64 = without.idle.used.values().map(|used| used.cpu_ns).sum();
    let mut rows = vec![
        Row::new("nothing of it, CPU of all processes", None, share(used, without.idle.seconds), "% of a core"),
        Row::new("nothing of it, PSS of all processes", None, total(&without.idle.pss_kib), "MiB"),
    ];
    let processes: BTreeSet<&String> = measured.loads.values().flat_map(|of| of.idle.pss_kib.keys()).collect();
    for load in LOADS {
        let Some(of) = measured.loads.get(&load) else { continue };
        let (name, cost) = (named(plan, load), beyond(of, without));
        let (own, runtime) = floor(plan, &measured.floors, without, load);
        rows.push(Row::new(format!("{name}, CPU of all processes"), Some(own), cost.values().sum(), "% of a core"));
        rows.extend(cost.iter().map(|(process, cost)| Row::new(format!("  {process}"), None, *cost, "% of a core")));
        let idle = share(without.runtime_ns, without.idle.seconds);
        let node = share(of.runtime_ns, of.idle.seconds) - idle;
        rows.push(Row::new(format!("{name}, CPU of the runtime"), Some(runtime), node, "% of a core"));
        rows.push(Row::new(format!("{name}, PSS of all processes"), None, total(&of.idle.pss_kib), "MiB"));
        let held = |process: &str| of.idle.pss_kib.get(process).copied().unwrap_or(0) as f64 / 1024.0;
        rows.extend(processes.iter().map(|process| Row::new(format!("  {process}"), None, held(process), "MiB")));
        if load.follows() {
            let lines = of.followed_bytes as f64 / LINE_BYTES as f64 / of.idle.seconds.max(1.0);
            // A pod writes one a second.
            rows.push(Row::new(format!("{name}, lines that came"), Some(plan.followers as f64), lines, "per s"));
        }
        if matches!(load, Load::Probes | Load::Everything) {
            probe_rows(measured, load, of, &mut rows);
        }
        if load.scrapes() {
            scrape_rows(measured, load, of, &mut rows);
        }
    }
    let seconds = plan.watched.as_secs();
    let note = format!(
        "One node that joined a cluster, {} pods that write a line a second, {} of their probes commands, over {seconds} s each; CPU \
         is beyond what is used with nothing of it, memory the median of samples. floor = the same probes by one thread; inotify and \
         as many plain sockets in one thread; for the time of a scrape /healthz as often at once, for its CPU the kernel's files read \
         once for each scrape but those of /metrics; same run. A probe lasts as long as its connection at the server, a command as \
         the node's histogram has it (the floor's is timed).",
        plan.pods, plan.execs
    );
    let facts = [
        ("pods", json!(plan.pods)),
        ("execs", json!(plan.execs)),
        ("followers", json!(plan.followers)),
        ("scrapers", json!(plan.scrapers)),
        ("seconds", json!(seconds)),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Section { title: "busy", rows, note, facts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Idle, Usage};

    fn of(seconds: f64, used: &[(&str, u64)], runtime_ms: u64) -> Of {
        let used =
            used.iter().map(|(name, ms)| ((*name).to_owned(), Usage { cpu_ns: ms * 1_000_000, context_switches: 0 }));
        let idle = Idle { used: used.collect(), seconds, pss_kib: BTreeMap::new() };
        Of { idle, runtime_ns: runtime_ms * 1_000_000, ..Of::default() }
    }

    fn plan() -> Plan {
        Plan { pods: 100, execs: 10, followers: 1000, scrapers: 10, watched: Duration::from_secs(30) }
    }

    #[test]
    fn a_load_is_what_it_takes_beyond_nothing() {
        let (without, with) = (of(10.0, &[("a", 100)], 0), of(20.0, &[("a", 1200), ("b", 200)], 0));
        let cost = beyond(&with, &without);
        // 6 % of a core, of which 1 % would be there anyway.
        assert!((cost["a"] - 5.0).abs() < 1e-9 && (cost["b"] - 1.0).abs() < 1e-9, "{cost:?}");
    }

    #[test]
    fn the_floor_of_everything_is_that_of_its_parts() {
        let floors = Floors {
            seconds: 33.0,
            probes_ns: 300_000_000,
            probes_runtime_ns: 930_000_000,
            followers_ns: 600_000_000,
            files_ns: 1_000_000,
            ..Floors::default()
        };
        let without = of(30.0, &[], 300);
        let of = |load| floor(&plan(), &floors, &without, load);
        // Two rounds of ten scrapes of three paths that read files.
        let expected = [(1.0, 2.0), (2.0, 0.0), (0.2, 0.0), (3.2, 2.0)];
        for (load, expected) in LOADS.into_iter().zip(expected) {
            let found = of(load);
            assert!((found.0 - expected.0).abs() < 1e-9 && (found.1 - expected.1).abs() < 1e-9, "{load:?}: {found:?}");
        }
        assert_eq!(of(Load::Nothing), (0.0, 0.0));
    }

    #[test]
    fn each_row_has_a_name_of_its_own() {
        let loads = [Load::Nothing].into_iter().chain(LOADS);
        let measured = Measurements {
            loads: loads.map(|load| (load, of(10.0, &[("a", 1)], 1))).collect(),
            ..Measurements::default()
        };
        let section = section(&plan(), &measured);
        let whole: Vec<&String> =
            section.rows.iter().map(|row| &row.what).filter(|what| !what.starts_with(' ')).collect();
        assert_eq!(whole.len(), whole.iter().collect::<BTreeSet<_>>().len(), "{whole:?}");
        assert!(section.table().contains("everything, CPU of the runtime"));
    }
}
