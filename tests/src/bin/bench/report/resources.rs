//! The measured of resource managers, as rows.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Row, Section, quantile, total};
use crate::measure::Usage;
use crate::resources::{Measurements, Of, Plan};

const IDLE_CPU_PERCENT: f64 = 0.3;
/// More than the same pods take without managers.
const PSS_MIB: f64 = 2.0;

/// What devices, claims and policies cost beside the same pods without them.
pub fn section(plan: &Plan, measured: &Measurements) -> Section {
    let (plain, managed) = (&measured.plain, &measured.managed);
    let mut rows = vec![Row::new(
        format!("created to Running, {} at once, last", plan.pods),
        Some(quantile(&plain.started, 0.5)),
        quantile(&managed.started, 0.5),
        "s",
    )];
    let each = 1e6 * plan.pods.max(1) as f64;
    rows.extend(cpu("CPU of the agent for a pod", |of| &of.start_use, each, "ms", measured));
    let percent = 1e7 * plan.idle.as_secs_f64().max(1.0);
    let idle = cpu(&format!("idle with {} pods, CPU", plan.pods), |of| &of.idle, percent, "% of a core", measured);
    rows.extend(idle.into_iter().enumerate().map(|(index, row)| match index {
        0 => {
            let value = row.node;
            row.judge(value).budget(IDLE_CPU_PERCENT)
        }
        _ => row,
    }));
    rows.extend(memory(plain, managed, plan.pods));
    if !plan.judged {
        rows.iter_mut().for_each(|row| row.budget = None);
    }
    let facts =
        [("pods", json!(plan.pods)), ("rounds", json!(plan.rounds)), ("idle_seconds", json!(plan.idle.as_secs_f64()))];
    Section {
        title: "resources",
        rows,
        note: format!(
            "{} pods with a device and a claim each, policies static, Static and best-effort; idle over {:.0} s; medians of {} rounds. \
             floor = the same pods on a node without policies, devices and claims, in turn.",
            plan.pods,
            plan.idle.as_secs_f64(),
            plan.rounds
        ),
        facts: facts.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(),
    }
}

/// All processes together, then each.
fn cpu(
    what: &str,
    of: impl Fn(&Of) -> &Vec<BTreeMap<String, Usage>>,
    divisor: f64,
    unit: &'static str,
    measured: &Measurements,
) -> Vec<Row> {
    let of_process = |name: Option<&str>, node: &Of| {
        let used = |all: &BTreeMap<String, Usage>| -> f64 {
            let chosen = all.iter().filter(|(process, _)| name.is_none_or(|name| name == process.as_str()));
            chosen.map(|(_, used)| used.cpu_ns as f64).sum()
        };
        median(of(node).iter().map(used).collect()) / divisor
    };
    let row = |what: String, name: Option<&str>| {
        Row::new(what, Some(of_process(name, &measured.plain)), of_process(name, &measured.managed), unit)
    };
    let names = of(&measured.managed).first().into_iter().flat_map(BTreeMap::keys);
    std::iter::once(row(what.to_owned(), None))
        .chain(names.map(|name| row(format!("  {name}"), Some(name.as_str()))))
        .collect()
}

fn memory(plain: &Of, managed: &Of, pods: usize) -> Vec<Row> {
    let sum = |of: &Of| median(of.pss_kib.iter().map(total).collect());
    let (without, with) = (sum(plain), sum(managed));
    let mut rows = vec![
        Row::new(format!("PSS with {pods} pods"), Some(without), with, "MiB").judge(with - without).budget(PSS_MIB),
    ];
    let of_process = |of: &Of, name: &str| {
        median(of.pss_kib.iter().map(|all| all.get(name).copied().unwrap_or_default() as f64 / 1024.0).collect())
    };
    for name in managed.pss_kib.first().into_iter().flat_map(BTreeMap::keys) {
        rows.push(Row::new(format!("  {name}"), Some(of_process(plain, name)), of_process(managed, name), "MiB"));
    }
    rows
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
