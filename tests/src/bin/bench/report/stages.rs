//! Where the time of pods goes, as rows: for each owner and each thing that it does the milliseconds of a pod, which add up to the
//! pod's time.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Row, Section, median};
use crate::stages::{Measurements, Owner, Plan, Slice, Timelines};

/// What takes less of a pod's time is summed up.
const LEAST_SHARE: f64 = 0.01;
const NANOS_OF_MS: f64 = 1e6;

/// Starts and deletions, one by one and at once.
pub fn section(plan: &Plan, measured: &Measurements) -> Section {
    let mut rows = Vec::new();
    rows.extend(of("start one", &measured.start_one));
    rows.extend(of("delete one", &measured.delete_one));
    rows.extend(of(&format!("start {} at once", plan.pods), &measured.start_many));
    rows.extend(of(&format!("delete {} at once", plan.pods), &measured.delete_many));
    let note = format!(
        "{} pods one by one: medians of the whole, means of its parts; {} at once: means. Every moment counts once, for whom the pod \
         waits for: the runtime before the request that is under way beside it, that before the node's own work.",
        plan.alone, plan.pods
    );
    let facts = [("pods", json!(plan.pods)), ("alone", json!(plan.alone))];
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Section { title: "stages", rows, note, facts }
}

fn of(what: &str, timelines: &Timelines) -> Vec<Row> {
    if timelines.is_empty() {
        return Vec::new();
    }
    let whole = |slices: &Vec<Slice>| slices.iter().map(Slice::took).sum::<u64>() as f64 / NANOS_OF_MS;
    let pods = timelines.len() as f64;
    let mean = timelines.iter().map(whole).sum::<f64>() / pods;
    let mut rows =
        vec![Row::new(format!("{what}, p50"), None, median(timelines.iter().map(whole).collect::<Vec<_>>()), "ms")];
    for owner in Owner::ALL {
        let mut parts: BTreeMap<&str, f64> = BTreeMap::new();
        for slice in timelines.iter().flatten().filter(|slice| slice.owner == owner) {
            *parts.entry(&slice.what).or_default() += slice.took() as f64 / NANOS_OF_MS / pods;
        }
        let sum: f64 = parts.values().sum();
        if sum < mean * LEAST_SHARE {
            continue;
        }
        rows.push(Row::new(format!("  {}", owner.name()), None, sum, "ms"));
        let mut parts: Vec<(&str, f64)> = parts.into_iter().collect();
        parts.sort_by(|one, other| other.1.total_cmp(&one.1));
        let shown = parts.iter().filter(|(_, took)| *took >= mean * LEAST_SHARE);
        rows.extend(shown.map(|(name, took)| Row::new(format!("    {name}"), None, *took, "ms")));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(owner: Owner, what: &str, begin: u64, end: u64) -> Slice {
        Slice { owner, what: what.to_owned(), begin: begin * 1_000_000, end: end * 1_000_000 }
    }

    #[test]
    fn the_parts_of_an_owner_are_summed_and_small_ones_left_out() {
        let pod = vec![
            slice(Owner::Runtime, "RunPodSandbox", 0, 1000),
            slice(Owner::Node, "sync", 1000, 1001),
            slice(Owner::Runtime, "StartContainer", 1001, 1501),
            slice(Owner::Runtime, "ContainerStatus", 1501, 1502),
        ];
        let rows = of("start", &vec![pod.clone(), pod]);
        let shown: Vec<(&str, f64)> = rows.iter().map(|row| (row.what.as_str(), row.node)).collect();
        assert_eq!(
            shown,
            [
                ("start, p50", 1502.0),
                ("  runtime", 1501.0),
                ("    RunPodSandbox", 1000.0),
                ("    StartContainer", 500.0)
            ]
        );
        assert!(of("start", &Vec::new()).is_empty());
    }
}
