//! The measured of filters, as rows.

use std::time::Duration;

use serde_json::json;

use super::{Row, Section, median_of_ratios, quantile};
use crate::filters::{CALLS, Measurements, Plan};

/// What confinement costs.
pub fn section(plan: &Plan, measured: &Measurements) -> Section {
    let ns = |times: &[Duration]| quantile(times, 0.5) * 1e9;
    let mut rows = Vec::new();
    for (process, pairs) in &measured.pairs {
        for (call, pair) in CALLS.iter().zip(pairs) {
            let ratio = median_of_ratios(&pair.free, &pair.confined);
            let row = Row::new(format!("{process}: {call}"), Some(ns(&pair.free)), ns(&pair.confined), "ns");
            rows.push(row.judge(ratio));
        }
    }
    let note = format!(
        "{} batches of each, in turn; medians. floor = the same calls by a thread that nothing confines, same run. Under the \
         launcher's filter and its own.",
        plan.rounds
    );
    let facts = [("rounds".to_owned(), json!(plan.rounds))].into_iter().collect();
    Section { title: "filters", rows, note, facts }
}
