//! The measured of a member of a cluster, as rows.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::{Row, Section, median, median_of_ratios, quantile, total};
use crate::cluster::{Burst, Measurements, Of, Plan, Requests, is_write, writes_per_minute};
use crate::measure::Usage;

/// Requests to the API server that upstream makes for the pod's life, for comparison: none of ours is judged by it.
const UPSTREAM_REQUESTS: u64 = 39;
/// What the null agent asks of the runtime for a pod's start and for its end.
const START_CALLS: f64 = 4.0;
const DELETE_CALLS: f64 = 3.0;
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
        "{} single pods and {} bursts of each in turn; {} exits; idle over {:.0} s. floor = the null agent (the same CRI calls, {} \
         at a time, one PATCH and one DELETE for each pod). runtime alone: the calls without an agent, {} at a time. Times of pods \
         are those at which the API server shows it; of bursts, medians. {}",
        measured.node.start_one.len(),
        measured.node.bursts.len(),
        measured.node.exit_to_patch.len(),
        measured.node.idle_seconds,
        plan.null_in_flight,
        measured.runtime_in_flight,
        if measured.requests.is_some() {
            format!("Upstream's kubelet makes {UPSTREAM_REQUESTS} requests for the life of that pod.")
        } else {
            "A real control plane: requests are not counted, and exits are told when a watch shows them.".to_owned()
        }
    );
    let facts = [
        ("pairs", json!(measured.node.start_one.len())),
        ("pods", json!(plan.pods)),
        ("bursts", json!(measured.node.bursts.len())),
        ("exits", json!(measured.node.exit_to_patch.len())),
        ("null_in_flight", json!(plan.null_in_flight)),
        ("runtime_in_flight", json!(measured.runtime_in_flight)),
        ("idle_seconds", json!(measured.node.idle_seconds)),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Section { title: "cluster", rows, note, facts }
}

/// The rows of one figure that all agents have.
fn of_all(what: String, measured: &Measurements, value: impl Fn(&Of) -> f64) -> Row {
    Row::new(what, Some(value(&measured.null)), value(&measured.node), "s")
        .upstream(measured.upstream.as_ref().map(value))
}

/// The rows of one figure that a kubelet has, and the null agent has not.
fn of_kubelets(what: String, measured: &Measurements, unit: &'static str, value: impl Fn(&Of) -> f64) -> Row {
    Row::new(what, None, value(&measured.node), unit).upstream(measured.upstream.as_ref().map(value))
}

/// The median of the bursts' own figures.
fn of_bursts(of: &Of, value: impl Fn(&Burst) -> f64) -> f64 {
    median(of.bursts.iter().map(value).collect())
}

/// Requests to the runtime for each pod of the last burst, and of which kind.
fn runtime_requests(
    what: String,
    floor: f64,
    measured: &Measurements,
    of: impl Fn(&Burst) -> &BTreeMap<String, f64>,
) -> Vec<Row> {
    let all = |agent: &Of| agent.bursts.last().map(|burst| of(burst).values().sum::<f64>()).unwrap_or_default();
    let mut row = of_all(what, measured, all);
    row.floor = Some(floor);
    row.unit = "";
    let mut rows = vec![row];
    for (operation, count) in measured.node.bursts.last().map(|burst| of(burst).clone()).unwrap_or_default() {
        let beside = |upstream: &Of| of(upstream.bursts.last()?).get(&operation).copied();
        rows.push(
            Row::new(format!("  {operation}"), None, count, "").upstream(measured.upstream.as_ref().and_then(beside)),
        );
    }
    rows
}

/// In seconds of a processor.
fn cpu(used: &BTreeMap<String, Usage>) -> f64 {
    used.values().map(|used| used.cpu_ns as f64 / 1e9).sum()
}

/// Of all processes of an agent that idles.
fn idle(of: &Of, value: impl Fn(Usage) -> f64) -> f64 {
    value(of.idle.values().copied().sum()) / of.idle_seconds.max(1.0)
}

fn rows(plan: &Plan, measured: &Measurements) -> Vec<Row> {
    let pods = plan.pods;
    let mut rows = rows_of_pods(pods, measured);
    rows.extend(rows_of_idling(pods, measured));
    rows
}

/// Starts and ends.
fn rows_of_pods(pods: usize, measured: &Measurements) -> Vec<Row> {
    let plain = |what: String, value: f64, unit: &'static str| Row::new(what, None, value, unit);
    let all = |requests: &Requests| requests.values().sum::<u64>() as f64;
    let (null, node) = (&measured.null, &measured.node);
    let alone = |value: f64| Row::new("  runtime alone", None, value, "s");
    let ratio = |of: fn(&Of) -> &Vec<Duration>| median_of_ratios(of(null), of(node));
    let last_use = node.bursts.last().cloned().unwrap_or_default();

    let mut rows = vec![
        of_all("start one, p50 (median of the pairs' ratios)".to_owned(), measured, |of| quantile(&of.start_one, 0.5))
            .judge(ratio(|of| &of.start_one)),
        of_all("start one, p90".to_owned(), measured, |of| quantile(&of.start_one, 0.9)),
        of_all("delete one, p50 (median of the pairs' ratios)".to_owned(), measured, |of| {
            quantile(&of.delete_one, 0.5)
        })
        .judge(ratio(|of| &of.delete_one)),
        of_all("delete one, p90".to_owned(), measured, |of| quantile(&of.delete_one, 0.9)),
    ];
    for (name, share) in [("last", 1.0), ("median", 0.5)] {
        let what = format!("start {pods} at once, {name} Running");
        rows.push(of_all(what, measured, |of| of_bursts(of, |burst| quantile(&burst.started, share))));
        rows.push(alone(quantile(&measured.runtime_alone.floor, share)));
    }
    rows.push(of_all(format!("CPU of the agent for {pods} starts"), measured, |of| {
        of_bursts(of, |burst| cpu(&burst.start_use))
    }));
    rows.extend(of_processes(&last_use.start_use, |used| used.cpu_ns as f64 / 1e9, "s"));
    rows.extend(runtime_requests("CRI calls for a start".to_owned(), START_CALLS, measured, |burst| {
        &burst.start_requests
    }));
    if let Some(requests) = &measured.requests {
        rows.push(plain(format!("requests for {pods} starts"), all(&requests.start_many), ""));
        rows.extend(of_requests(&requests.start_many));
        rows.push(plain("requests for the life of one pod".to_owned(), all(&requests.one_pod), "").budget(REQUESTS));
        rows.extend(of_requests(&requests.one_pod));
    }
    for (name, share) in [("first", 0.0), ("median", 0.5), ("last", 1.0)] {
        let what = format!("delete {pods} at once, {name} object gone");
        rows.push(of_all(what, measured, |of| of_bursts(of, |burst| quantile(&burst.deleted, share))));
    }
    rows.push(alone(quantile(&measured.runtime_alone.node, 1.0)));
    rows.push(of_all(format!("CPU of the agent for {pods} deletions"), measured, |of| {
        of_bursts(of, |burst| cpu(&burst.delete_use))
    }));
    rows.extend(of_processes(&last_use.delete_use, |used| used.cpu_ns as f64 / 1e9, "s"));
    rows.extend(runtime_requests("CRI calls for a deletion".to_owned(), DELETE_CALLS, measured, |burst| {
        &burst.delete_requests
    }));
    if let Some(requests) = &measured.requests {
        rows.push(plain(format!("requests for {pods} deletions"), all(&requests.delete_many), ""));
        rows.extend(of_requests(&requests.delete_many));
    }
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        let what = format!("container exit to status PATCH, {name}");
        let row = of_kubelets(what, measured, "s", |of| quantile(&of.exit_to_patch, share));
        rows.push(if name == "p99" { row.budget(EXIT_SECONDS) } else { row });
    }
    rows
}

/// What a node costs that does nothing.
fn rows_of_idling(pods: usize, measured: &Measurements) -> Vec<Row> {
    let node = &measured.node;
    let seconds = node.idle_seconds.max(1.0);
    let mut rows = Vec::new();
    if let Some(requests) = &measured.requests {
        let writes = writes_per_minute(&requests.idle, seconds);
        rows.push(Row::new(format!("idle with {pods} pods, writes to the API"), None, writes, "per min"));
        rows.extend(of_requests(&requests.idle));
    }
    rows.push(
        of_kubelets(format!("idle with {pods} pods, CPU"), measured, "% of a core", |of| {
            idle(of, |used| used.cpu_ns as f64 / 1e7)
        })
        .budget(IDLE_CPU_PERCENT),
    );
    rows.extend(of_processes(&node.idle, |used| used.cpu_ns as f64 / 1e7 / seconds, "% of a core"));
    rows.push(of_kubelets(format!("idle with {pods} pods, context switches"), measured, "per s", |of| {
        idle(of, |used| used.context_switches as f64)
    }));
    rows.extend(of_processes(&node.idle, |used| used.context_switches as f64 / seconds, "per s"));
    rows.push(of_kubelets("PSS of all processes, joined and empty".to_owned(), measured, "MiB", |of| {
        total(&of.pss_empty_kib)
    }));
    rows.extend(of_processes(&node.pss_empty_kib, |kib| *kib as f64 / 1024.0, "MiB"));
    rows.push(
        of_kubelets(format!("PSS of all processes, {pods} pods"), measured, "MiB", |of| total(&of.pss_full_kib))
            .budget(PSS_MIB),
    );
    rows.extend(of_processes(&node.pss_full_kib, |kib| *kib as f64 / 1024.0, "MiB"));
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
    use super::*;
    use crate::cluster::AllRequests;

    fn plan() -> Plan {
        Plan {
            judged: true,
            pairs: 1,
            pods: 2,
            bursts: 3,
            exits: 1,
            idle: Duration::ZERO,
            null_in_flight: 8,
            in_flight: vec![2],
            upstream: false,
        }
    }

    fn row(plan: &Plan, measured: &Measurements, what: &str) -> Row {
        section(plan, measured).rows.into_iter().find(|row| row.what.contains(what)).unwrap()
    }

    #[test]
    fn requests_are_judged_by_their_sum_and_writes_by_the_minute() {
        let of = |what: &str, count| (("kubelet-statusd".to_owned(), what.to_owned()), count);
        let one_pod: Requests = [of("patch pods/status", 12), of("get pods", 7)].into();
        let idle: Requests = [of("update leases", 3), of("watch pods", 5)].into();
        let requests = Some(AllRequests { one_pod, idle, ..AllRequests::default() });
        let node = Of { idle_seconds: 30.0, ..Of::default() };
        let measured = Measurements { requests, node: node.clone(), ..Measurements::default() };
        let mut plan = plan();
        let within = |plan: &Plan, what: &str| {
            let row = row(plan, &measured, what);
            (row.node, row.within())
        };
        assert_eq!(within(&plan, "life of one pod"), (19.0, Some(false)));
        assert_eq!(within(&plan, "writes to the API"), (6.0, None));
        plan.judged = false;
        assert_eq!(within(&plan, "life of one pod"), (19.0, None));
        let real = Measurements { node, ..Measurements::default() };
        assert!(
            !section(&plan, &real).rows.iter().any(|row| row.what.contains("requests") || row.what.contains("writes"))
        );
    }

    #[test]
    fn a_burst_is_beside_the_null_agents_and_upstreams() {
        let burst = |seconds: u64| Burst {
            started: [1, seconds].map(Duration::from_secs).into(),
            deleted: [2, seconds].map(Duration::from_secs).into(),
            ..Burst::default()
        };
        let of = |seconds: [u64; 3]| Of { bursts: seconds.map(burst).into(), ..Of::default() };
        let mut measured =
            Measurements { null: of([4, 4, 5]), node: of([6, 90, 5]), upstream: None, ..Measurements::default() };
        let last = row(&plan(), &measured, "at once, last Running");
        assert_eq!((last.floor, last.node, last.upstream, last.ratio()), (Some(4.0), 6.0, None, Some(1.5)));
        assert_eq!(row(&plan(), &measured, "first object gone").node, 2.0);
        assert!(!section(&plan(), &measured).table().contains("  upstream  "));
        measured.upstream = Some(of([9, 8, 7]));
        assert_eq!(row(&plan(), &measured, "last object gone").upstream, Some(8.0));
        assert!(section(&plan(), &measured).table().contains("  upstream  "));
    }
}
