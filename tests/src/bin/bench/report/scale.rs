//! What grows with the number of pods, as rows: figure by figure, so that a column of numbers shows how it grows.

use std::time::Duration;

use serde_json::json;

use super::{Row, Section, quantile, total};
use crate::scale::{Measurements, Of, Plan, READ};

/// A restarted process is whole again.
const WHOLE_S: f64 = 1.0;

/// One node with more and more pods.
pub fn section(plan: &Plan, measured: &Measurements) -> Section {
    let seconds = plan.idle.as_secs_f64().max(1.0);
    let mut rows: Vec<Row> = measured.all.iter().map(|of| started(measured, of)).collect();
    let mut each = |what: &str, unit: &'static str, value: &dyn Fn(&Of) -> f64| {
        rows.extend(measured.all.iter().map(|of| Row::new(format!("{what}, {} pods", of.pods), None, value(of), unit)));
    };
    let cpu = |used: &std::collections::BTreeMap<String, crate::measure::Usage>| -> f64 {
        used.values().map(|used| used.cpu_ns as f64).sum()
    };
    each("CPU of the agent for each of those", "ms", &|of| cpu(&of.start_use) / 1e6 / of.started.len().max(1) as f64);
    if measured.all.iter().all(|of| of.requests.is_some()) {
        each("requests to the API server for each of those", "", &|of| {
            of.requests.unwrap_or_default() as f64 / of.started.len().max(1) as f64
        });
    }
    each("idle CPU", "% of a core", &|of| cpu(&of.idle.used) / 1e7 / of.idle.seconds.max(1.0));
    each("PSS of all processes", "MiB", &|of| total(&of.idle.pss_kib));
    let processes: Vec<String> = measured.all.iter().flat_map(|of| of.idle.pss_kib.keys().cloned()).collect();
    for process in std::collections::BTreeSet::from_iter(processes) {
        each(&format!("  {process}"), "MiB", &|of| of.idle.pss_kib.get(&process).copied().unwrap_or(0) as f64 / 1024.0);
    }
    for path in READ {
        each(&format!("GET {path}"), "ms", &|of| of.read.get(path).map_or(0.0, |took| quantile(took, 0.5) * 1000.0));
    }
    let daemons: Vec<&str> = measured.all.first().into_iter().flat_map(|of| of.whole.keys().copied()).collect();
    for daemon in daemons {
        for of in &measured.all {
            let whole = of.whole.get(daemon).map_or(0.0, Duration::as_secs_f64);
            let row = Row::new(format!("{daemon} killed until whole again, {} pods", of.pods), None, whole, "s");
            rows.push(if plan.judged { row.budget(WHOLE_S) } else { row });
        }
    }
    let deleted = measured.deleted.len();
    if deleted > 0 {
        let used = cpu(&measured.delete_use) / 1e6;
        let floor = each_of(&measured.floor.deleted);
        rows.push(Row::new(
            "deleted to gone, each of all at once",
            floor,
            each_of(&measured.deleted).unwrap_or(0.0),
            "s",
        ));
        rows.push(Row::new("CPU of the agent for each of those", None, used / deleted as f64, "ms"));
    }
    let broke = measured.broke.as_ref().map_or_else(String::new, |what| format!(" BROKE: {what}."));
    Section {
        title: "scale",
        rows,
        note: format!(
            "One node that joined a cluster, pods that only wait; idle, and memory as the median of samples, over {seconds:.0} s, \
             medians of three readings; a killed daemon is whole again when the next one is ready and says of every pod what the one \
             before said. floor = the null agent with the same pods.{broke}"
        ),
        facts: [("pods".to_owned(), json!(plan.pods)), ("idle_seconds".to_owned(), json!(seconds))]
            .into_iter()
            .collect(),
    }
}

fn started(measured: &Measurements, of: &Of) -> Row {
    let floor = measured.floor.started.get(&of.pods).and_then(|times| each_of(times));
    let what = format!("created to Running, each of those that came, {} pods", of.pods);
    Row::new(what, floor, each_of(&of.started).unwrap_or(0.0), "s")
}

/// Seconds for each of those that began together.
fn each_of(times: &[Duration]) -> Option<f64> {
    (!times.is_empty()).then(|| quantile(times, 1.0) / times.len() as f64)
}
