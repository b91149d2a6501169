//! The measured of volumes, as rows.

use std::time::Duration;

use serde_json::json;

use super::{Row, Section, pair, quantile, total};
use crate::measure::{Idle, Usage};
use crate::volumes::{Given, Measurements, Plan, SetUp};

/// In words.
const LOCAL: &str = "five local volumes";
const IDLE_CPU_PERCENT: f64 = 0.3;
/// More than the same pods take without the volume of the driver: the others could be had before persistent volumes.
const PSS_MIB: f64 = 3.0;

/// What volumes cost.
pub fn section(plan: &Plan, measured: &Measurements) -> Section {
    let mut rows: Vec<Row> = measured.given.iter().flat_map(given).collect();
    if plan.pods > 0 && !plan.local_only {
        rows.extend(of_pods(plan, measured));
    } else if plan.pods > 0 {
        rows.extend(idle(plan, ["none", LOCAL], None, [&measured.idle_without, &measured.idle_local]));
    }
    if !plan.judged {
        rows.iter_mut().for_each(|row| row.budget = None);
    }
    let note = format!(
        "{} pods, {} one after the other; idle over {:.0} s. floors, same run: chown -R; mkdir, mount and write by hand; the driver's \
         calls with nobody between; the same pods without volumes. Set-up: what storage_operation_duration_seconds tells.",
        plan.pods, plan.alone, measured.idle_without.seconds
    );
    let facts = [
        ("pods", json!(plan.pods)),
        ("files", json!(plan.files)),
        ("idle_seconds", json!(measured.idle_without.seconds)),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Section { title: "volumes", rows, note, facts }
}

fn given(given: &Given) -> [Row; 2] {
    let row = |what: &str, floor: Duration, node: Duration| {
        Row::new(format!("{what}, {} entries", given.entries), Some(floor.as_secs_f64()), node.as_secs_f64(), "s")
    };
    [
        row("fsGroup where all change (floor: group alone)", given.chown, given.node),
        row("fsGroup where nothing changes", given.chown_again, given.node_again),
    ]
}

fn of_pods(plan: &Plan, measured: &Measurements) -> Vec<Row> {
    let mut rows = Vec::new();
    for (what, setup, pods) in [("alone", &measured.alone, plan.alone), ("of all at once", &measured.burst, plan.pods)]
    {
        rows.extend(set_up(what, setup, pods, measured));
    }
    rows.push(pair("created to Running, alone, median (floor: no volumes)", &measured.start_alone, 0.5));
    rows.push(pair(&format!("created to Running, {} at once, last", plan.pods), &measured.start_many, 1.0));
    for (what, part) in [("median", 0.5), ("longest", 1.0)] {
        let milliseconds = quantile(&measured.growth, part) * 1000.0;
        rows.push(Row::new(format!("a claim's turn to NodeExpandVolume, {what}"), None, milliseconds, "ms"));
    }
    let sum = |used: &std::collections::BTreeMap<String, Usage>| used.values().copied().sum::<Usage>().cpu_ns as f64;
    let each = |ns: f64| ns / 1e6 / plan.pods.max(1) as f64;
    rows.push(Row::new(
        "CPU of the agent for a pod (floor: no volumes)",
        Some(each(sum(&measured.without_use))),
        each(sum(&measured.with_use)),
        "ms",
    ));
    for (name, used) in &measured.with_use {
        let without = measured.without_use.get(name).copied().unwrap_or_default();
        rows.push(Row::new(format!("  {name}"), Some(each(without.cpu_ns as f64)), each(used.cpu_ns as f64), "ms"));
    }
    rows.push(Row::new("CPU of the driver for a pod", None, each(measured.driver_cpu_ns as f64), "ms"));
    rows.extend(idle(plan, ["none", LOCAL], None, [&measured.idle_without, &measured.idle_local]));
    let budgets = Some([IDLE_CPU_PERCENT, PSS_MIB]);
    rows.extend(idle(plan, [LOCAL, "those and one of CSI"], budgets, [&measured.idle_local, &measured.idle]));
    rows
}

/// What pods with some volumes cost while nothing happens, beside pods with fewer: judged are the processor time, and the memory that
/// they take more.
fn idle(plan: &Plan, volumes: [&str; 2], budgets: Option<[f64; 2]>, [without, with]: [&Idle; 2]) -> Vec<Row> {
    let [cpu_budget, memory_budget] = budgets.map_or([None, None], |budgets| budgets.map(Some));
    let sum = |used: &std::collections::BTreeMap<String, Usage>| used.values().copied().sum::<Usage>().cpu_ns as f64;
    let percent = |idle: &Idle, ns: f64| ns / 1e7 / idle.seconds.max(1.0);
    let (floor, node) = (percent(without, sum(&without.used)), percent(with, sum(&with.used)));
    let [fewer, volumes] = volumes;
    let what = format!("{} pods, {volumes} (floor: {fewer})", plan.pods);
    let mut cpu = Row::new(format!("idle CPU, {what}"), Some(floor), node, "% of a core").judge(node);
    cpu.budget = cpu_budget;
    let mut rows = vec![cpu];
    for (name, used) in &with.used {
        let floor = without.used.get(name).map(|used| percent(without, used.cpu_ns as f64));
        rows.push(Row::new(format!("  {name}"), floor, percent(with, used.cpu_ns as f64), "% of a core"));
    }
    let (floor, node) = (total(&without.pss_kib), total(&with.pss_kib));
    let mut memory = Row::new(format!("PSS, {what}"), Some(floor), node, "MiB").judge(node - floor);
    memory.budget = memory_budget;
    rows.push(memory);
    for (name, kib) in &with.pss_kib {
        let without = without.pss_kib.get(name).map(|kib| *kib as f64 / 1024.0);
        rows.push(Row::new(format!("  {name}"), without, *kib as f64 / 1024.0, "MiB"));
    }
    rows
}

/// A pod's volumes one after the other, however much of it was at the same time.
fn set_up(what: &str, setup: &SetUp, pods: usize, measured: &Measurements) -> Vec<Row> {
    let milliseconds = |seconds: f64| seconds * 1000.0;
    let median = |times: &[Duration]| milliseconds(quantile(times, 0.5));
    let is_csi = |plugin: &str| plugin.contains("csi");
    let local: f64 = setup.operations.iter().filter(|(plugin, _)| !is_csi(plugin)).map(|(_, one)| one.seconds).sum();
    let mut rows = vec![Row::new(
        format!("five local volumes of a pod, {what}"),
        Some(median(&measured.files)),
        milliseconds(local) / pods.max(1) as f64,
        "ms",
    )];
    for (plugin, one) in setup.operations.iter().filter(|(plugin, _)| !is_csi(plugin)) {
        rows.push(Row::new(format!("  each {plugin}"), None, milliseconds(one.mean()), "ms"));
    }
    for (_, one) in setup.operations.iter().filter(|(plugin, _)| is_csi(plugin)) {
        let floor = Some(median(&measured.direct));
        rows.push(Row::new(format!("a CSI volume, {what}"), floor, milliseconds(one.mean()), "ms"));
    }
    rows.push(Row::new("  the driver's own time, median", None, median(&setup.inside), "ms"));
    rows.push(Row::new("  first call to last answer, median", None, median(&setup.between), "ms"));
    rows
}
