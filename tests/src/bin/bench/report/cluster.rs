//! The measured of a member of a cluster, as rows.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Row, Section, pair, quantile, total};
use crate::cluster::{Measurements, Plan, Requests, is_write, writes_per_minute};
use crate::measure::Usage;

/// Requests to the API server that upstream makes for the pod's life, for comparison: none of ours is judged by it.
const UPSTREAM_REQUESTS: u64 = 39;
const REQUESTS: f64 = 18.0;
const EXIT_SECONDS: f64 = 0.1;
const IDLE_CPU_PERCENT: f64 = 0.5;
const PSS_MIB: f64 = 44.0;

/// The node in a cluster.
pub fn section(plan: &Plan, measured: &Measurements) -> Section {
    let mut rows = rows(plan, measured);
    if !plan.judged {
        rows.iter_mut().for_each(|row| row.budget = None);
    }
    let note = format!(
        "{} exits; floor of many: {} in flight; idle over {:.0} s. Times of pods are those at which the API server shows it. \
         {}",
        measured.exit_to_patch.len(),
        measured.floor_in_flight,
        measured.idle_seconds,
        if measured.requests.is_some() {
            format!("Upstream's kubelet makes {UPSTREAM_REQUESTS} requests for the life of that pod.")
        } else {
            "A real control plane: requests are not counted, and exits are told when a watch shows them.".to_owned()
        }
    );
    let facts = [
        ("pods", json!(plan.pods)),
        ("exits", json!(measured.exit_to_patch.len())),
        ("floor_in_flight", json!(measured.floor_in_flight)),
        ("idle_seconds", json!(measured.idle_seconds)),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Section { title: "cluster", rows, note, facts }
}

fn rows(plan: &Plan, measured: &Measurements) -> Vec<Row> {
    let pods = plan.pods;
    let plain = |what: String, value: f64, unit: &'static str| Row::new(what, None, value, unit);
    let all = |requests: &Requests| requests.values().sum::<u64>() as f64;
    let start = &measured.start_many;
    let seconds = measured.idle_seconds.max(1.0);
    let idle: Usage = measured.idle.values().copied().sum();
    let used: Usage = measured.start_many_use.values().copied().sum();

    let mut rows = vec![
        pair(&format!("start {pods} at once, last Running"), start, 1.0),
        pair(&format!("start {pods} at once, median Running"), start, 0.5),
        plain(format!("CPU of the agent for {pods} starts"), used.cpu_ns as f64 / 1e9, "s"),
    ];
    rows.extend(of_processes(&measured.start_many_use, |used| used.cpu_ns as f64 / 1e9, "s"));
    if let Some(requests) = &measured.requests {
        rows.push(plain(format!("requests for {pods} starts"), all(&requests.start_many), ""));
        rows.extend(of_requests(&requests.start_many));
        rows.push(plain("requests for the life of one pod".to_owned(), all(&requests.one_pod), "").budget(REQUESTS));
        rows.extend(of_requests(&requests.one_pod));
    }
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        let row =
            plain(format!("container exit to status PATCH, {name}"), quantile(&measured.exit_to_patch, share), "s");
        rows.push(if name == "p99" { row.budget(EXIT_SECONDS) } else { row });
    }
    if let Some(requests) = &measured.requests {
        let writes = writes_per_minute(&requests.idle, seconds);
        rows.push(plain(format!("idle with {pods} pods, writes to the API"), writes, "per min"));
        rows.extend(of_requests(&requests.idle));
    }
    rows.push(
        plain(format!("idle with {pods} pods, CPU"), idle.cpu_ns as f64 / 1e7 / seconds, "% of a core")
            .budget(IDLE_CPU_PERCENT),
    );
    rows.extend(of_processes(&measured.idle, |used| used.cpu_ns as f64 / 1e7 / seconds, "% of a core"));
    let switches = idle.context_switches as f64 / seconds;
    rows.push(plain(format!("idle with {pods} pods, context switches"), switches, "per s"));
    rows.extend(of_processes(&measured.idle, |used| used.context_switches as f64 / seconds, "per s"));
    rows.push(plain("PSS of all processes, joined and empty".to_owned(), total(&measured.pss_empty_kib), "MiB"));
    rows.extend(of_processes(&measured.pss_empty_kib, |kib| *kib as f64 / 1024.0, "MiB"));
    rows.push(
        plain(format!("PSS of all processes, {pods} pods"), total(&measured.pss_full_kib), "MiB").budget(PSS_MIB),
    );
    rows.extend(of_processes(&measured.pss_full_kib, |kib| *kib as f64 / 1024.0, "MiB"));
    rows.push(pair(&format!("delete {pods} at once, last object gone"), &measured.delete_many, 1.0));
    if let Some(requests) = &measured.requests {
        rows.push(plain(format!("requests for {pods} deletions"), all(&requests.delete_many), ""));
        rows.extend(of_requests(&requests.delete_many));
    }
    rows
}

fn of_processes<T>(measured: &BTreeMap<String, T>, value: impl Fn(&T) -> f64, unit: &'static str) -> Vec<Row> {
    measured.iter().map(|(name, figure)| Row::new(format!("  {name}"), None, value(figure), unit)).collect()
}

fn of_requests(requests: &Requests) -> Vec<Row> {
    requests
        .iter()
        .map(|((process, what), count)| {
            let kind = if is_write(what) { "writes" } else { "reads" };
            Row::new(format!("  {process}: {what}"), None, *count as f64, kind)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::AllRequests;

    #[test]
    fn requests_are_judged_by_their_sum_and_writes_by_the_minute() {
        let of = |what: &str, count| (("kubelet-statusd".to_owned(), what.to_owned()), count);
        let one_pod: Requests = [of("patch pods/status", 12), of("get pods", 7)].into();
        let idle: Requests = [of("update leases", 3), of("watch pods", 5)].into();
        let requests = Some(AllRequests { one_pod, idle, ..AllRequests::default() });
        let measured = Measurements { requests, idle_seconds: 30.0, ..Measurements::default() };
        let mut plan = Plan { judged: true, pods: 2, exits: 1, idle: Duration::ZERO, in_flight: vec![2] };
        let within = |plan: &Plan, what: &str| {
            let section = section(plan, &measured);
            let row = section.rows.into_iter().find(|row| row.what.contains(what)).unwrap();
            (row.node, row.within())
        };
        assert_eq!(within(&plan, "life of one pod"), (19.0, Some(false)));
        assert_eq!(within(&plan, "writes to the API"), (6.0, None));
        plan.judged = false;
        assert_eq!(within(&plan, "life of one pod"), (19.0, None));
        let real = Measurements { idle_seconds: 30.0, ..Measurements::default() };
        assert!(
            !section(&plan, &real).rows.iter().any(|row| row.what.contains("requests") || row.what.contains("writes"))
        );
    }
}
