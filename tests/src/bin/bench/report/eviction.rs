//! The measured of evictions, as rows.

use std::time::Duration;

use serde_json::json;

use super::{Row, Section, quantile};
use crate::eviction::{Measurements, Plan, RATE, Run};

/// One part of what a run took.
type Part = fn(&Run) -> Duration;

/// From the crossing to the first signal, 95 of 100, milliseconds.
const TOLD_MS: f64 = 150.0;
/// Until a disk is judged, milliseconds.
const VERDICT_MS: f64 = 1000.0;
/// Percent of takers that may be ended by the kernel.
const KILLED_PERCENT: f64 = 5.0;

/// How soon who takes the memory is told to end.
pub fn section(plan: &Plan, measured: &Measurements) -> Section {
    let evicted: Vec<_> = measured.runs.iter().filter(|run| run.evicted).collect();
    let of =
        |part: Part, share: f64| quantile(&evicted.iter().map(|run| part(run)).collect::<Vec<_>>(), share) * 1000.0;
    let mut rows = Vec::new();
    let parts: [(&str, Part); 4] = [
        ("threshold crossed to judged", |run| run.judged),
        ("  to ranked", |run| run.ranked),
        ("  to written down by kubelet-syncd", |run| run.accepted),
        ("  to SIGTERM in the process", |run| run.told),
    ];
    for (name, part) in parts {
        for (label, share) in [("p50", 0.5), ("p95", 0.95), ("max", 1.0)] {
            let mut row = Row::new(format!("{name}, {label}"), None, of(part, share), "ms");
            if plan.judged && name.contains("SIGTERM") && label == "p95" {
                row = row.budget(TOLD_MS);
            }
            rows.push(row);
        }
    }
    let runs = measured.runs.len();
    let killed = 100.0 * (runs - evicted.len()) as f64 / runs.max(1) as f64;
    let mut row = Row::new(format!("takers of {RATE} MiB/s that the kernel ended, of {runs}"), None, killed, "%");
    if plan.judged {
        row = row.budget(KILLED_PERCENT);
    }
    rows.push(row);
    for (label, share) in [("p50", 0.5), ("max", 1.0)] {
        let mut row = Row::new(
            format!("nodefs.available crossed to judged, {label} of {}", measured.disks.len()),
            None,
            quantile(&measured.disks, share) * 1000.0,
            "ms",
        );
        if plan.judged && label == "max" {
            row = row.budget(VERDICT_MS);
        }
        rows.push(row);
    }
    for cell in &measured.cells {
        let what = format!("evicted at {} MiB/s, ends after {} ms, of {}", cell.rate, cell.end_after, cell.runs);
        rows.push(Row::new(what, None, cell.evicted as f64, "pods"));
    }
    let note = String::from(
        "Pods may have 700 MiB and are evicted below 100 MiB left (allocatableMemory.available, hard, 1 s of grace). The kernel \
         wins where rate x (time to SIGTERM + time to end) is more than 100 MiB.",
    );
    let facts = [("runs", json!(runs)), ("evicted", json!(evicted.len()))];
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Section { title: "eviction", rows, note, facts }
}
