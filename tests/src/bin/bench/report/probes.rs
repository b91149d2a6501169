//! The measured of probes, as rows.

use serde_json::json;

use super::{Row, Section};
use crate::measure::Usage;
use crate::probes::{Measurements, Plan};

const CPU_PERCENT: f64 = 3.0;

/// What probes cost.
pub fn section(plan: &Plan, measured: &Measurements) -> Section {
    let probes = measured.probes;
    let share = |cpu_ns: u64| cpu_ns as f64 / 1e7 / measured.seconds.max(1.0);
    let sum = |used: &std::collections::BTreeMap<String, Usage>| used.values().copied().sum::<Usage>();
    let (without, with) = (sum(&measured.without), sum(&measured.with));
    let cost = share(with.cpu_ns.saturating_sub(without.cpu_ns));
    let per_probe = cost * measured.seconds.max(1.0) * 1e4 / (measured.made.max(1) as f64);
    let floor = share(measured.floor.cpu_ns);
    let mut total = Row::new(format!("{probes} probes at 1 s, CPU of all processes"), Some(floor), cost, "% of a core");
    if plan.judged {
        total = total.judge(cost).budget(CPU_PERCENT);
    }
    let mut rows = vec![
        total,
        Row::new("CPU of one probe", Some(floor * cost.recip() * per_probe), per_probe, "µs"),
        Row::new("the same containers without probes", None, share(without.cpu_ns), "% of a core"),
    ];
    for (name, used) in &measured.with {
        let before = measured.without.get(name).copied();
        rows.push(Row::new(format!("  {name}"), None, share(used.since(before).cpu_ns), "% of a core"));
    }
    let note = format!(
        "Half TCP, half HTTP, over {:.0} s, {} arrived. floor = the same connections made by one thread, same run.",
        measured.seconds, measured.made
    );
    let facts = [("probes", json!(probes)), ("made", json!(measured.made)), ("seconds", json!(measured.seconds))];
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Section { title: "probes", rows, note, facts }
}
