//! The measured as tables for people and as JSON for comparisons, with the budget beside each.

mod busy;
mod cluster;
mod collection;
mod eviction;
mod filters;
mod probes;
mod resources;
mod scale;
mod server;
mod stages;
mod volumes;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::measure::{Measurements, Pair, Plan};

pub use busy::section as busy;
pub use cluster::section as cluster;
pub use collection::section as collection;
pub use eviction::section as eviction;
pub use filters::section as filters;
pub use probes::section as probes;
pub use resources::section as resources;
pub use scale::section as scale;
pub use server::section as server;
pub use stages::section as stages;
pub use volumes::section as volumes;

/// One table.
#[derive(Debug)]
pub struct Section {
    title: &'static str,
    rows: Vec<Row>,
    /// What a reader has to know of how it was measured.
    note: String,
    /// The same for programs.
    facts: Map<String, Value>,
}

/// One line: what, the floor's value, the node's, their ratio, what is allowed.
#[derive(Debug)]
struct Row {
    what: String,
    floor: Option<f64>,
    node: f64,
    /// The same of upstream's kubelet, where it was measured too.
    upstream: Option<f64>,
    unit: &'static str,
    /// Judged is the ratio to the floor where there is one, else the node's value itself.
    budget: Option<f64>,
    /// Judged instead of the above, where the budget is about something else (the median against the last).
    judged: Option<f64>,
}

impl Row {
    fn new(what: impl Into<String>, floor: Option<f64>, node: f64, unit: &'static str) -> Self {
        Self { what: what.into(), floor, node, upstream: None, unit, budget: None, judged: None }
    }

    fn budget(mut self, budget: f64) -> Self {
        self.budget = Some(budget);
        self
    }

    fn judge(mut self, value: f64) -> Self {
        self.judged = Some(value);
        self
    }

    fn upstream(mut self, value: Option<f64>) -> Self {
        self.upstream = value;
        self
    }

    fn ratio(&self) -> Option<f64> {
        self.floor.filter(|floor| *floor > 0.0).map(|floor| self.node / floor)
    }

    fn value_judged(&self) -> f64 {
        self.judged.or_else(|| self.ratio()).unwrap_or(self.node)
    }

    fn within(&self) -> Option<bool> {
        self.budget.map(|budget| self.value_judged() <= budget)
    }
}

/// The value below which `share` of all lie, in seconds.
fn quantile(values: &[Duration], share: f64) -> f64 {
    let mut sorted: Vec<f64> = values.iter().map(Duration::as_secs_f64).collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

/// Median of the pairs' own ratios: the two of a pair ran next to each other, on the same machine's mood.
fn median_of_ratios(floor: &[Duration], node: &[Duration]) -> f64 {
    let ratios: Vec<Duration> = floor
        .iter()
        .zip(node)
        .filter(|(floor, _)| !floor.is_zero())
        .map(|(floor, node)| Duration::from_secs_f64(node.as_secs_f64() / floor.as_secs_f64()))
        .collect();
    quantile(&ratios, 0.5)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn pair(what: &str, pair: &Pair, share: f64) -> Row {
    Row::new(what, Some(quantile(&pair.floor, share)), quantile(&pair.node, share), "s")
}

/// In MiB.
fn total(pss_kib: &BTreeMap<String, u64>) -> f64 {
    pss_kib.values().sum::<u64>() as f64 / 1024.0
}

fn rows(plan: &Plan, measured: &Measurements) -> Vec<Row> {
    let pods = plan.pods;
    let half = |values: &[Duration]| quantile(values, 0.5);
    let last = |values: &[Duration]| quantile(values, 1.0);
    let seconds = measured.idle_seconds.max(1.0);
    let start_ratio = median_of_ratios(&measured.start_one.floor, &measured.start_one.node);
    let delete_ratio = median_of_ratios(&measured.delete_one.floor, &measured.delete_one.node);
    let (many_floor, many_node) = (&measured.start_many.floor, &measured.start_many.node);
    let median_share = if last(many_node) > 0.0 { half(many_node) / last(many_node) } else { 0.0 };
    let mut rows = vec![
        pair("start one, p50 (median of the pairs' ratios)", &measured.start_one, 0.5).judge(start_ratio).budget(1.15),
        pair("start one, p90", &measured.start_one, 0.9),
        pair("delete one, p50 (median of the pairs' ratios)", &measured.delete_one, 0.5).judge(delete_ratio),
        Row::new(format!("start {pods} at once, last"), Some(last(many_floor)), last(many_node), "s").budget(1.15),
        Row::new(
            format!("start {pods} at once, median (judged: its share of the last)"),
            Some(half(many_floor)),
            half(many_node),
            "s",
        )
        .judge(median_share)
        .budget(0.6),
        pair(&format!("delete {pods} at once, last"), &measured.delete_many, 1.0),
        pair("container exit to known, p50", &measured.exit_to_known, 0.5),
        pair("container exit to known, max", &measured.exit_to_known, 1.0),
        Row::new(format!("CPU of the agent for {pods} starts"), None, measured.start_many_cpu_ns as f64 / 1e9, "s"),
        Row::new(
            format!("idle CPU with {pods} pods"),
            None,
            measured.idle.cpu_ns as f64 / 1e7 / seconds,
            "% of a core",
        )
        .budget(1.0),
        Row::new(
            format!("idle context switches with {pods} pods"),
            None,
            measured.idle.context_switches as f64 / seconds,
            "per s",
        ),
        Row::new("PSS of all processes, empty", None, total(&measured.pss_empty_kib), "MiB"),
        Row::new(format!("PSS of all processes, {pods} pods"), None, total(&measured.pss_full_kib), "MiB").budget(36.0),
    ];
    for (name, kib) in &measured.pss_full_kib {
        rows.push(Row::new(format!("  {name}"), None, *kib as f64 / 1024.0, "MiB"));
    }
    if !plan.judged {
        rows.iter_mut().for_each(|row| row.budget = None);
    }
    rows.push(Row::new("exits that no event told and a relist found", None, measured.events_missed as f64, ""));
    rows
}

/// The node on its own.
pub fn standalone(plan: &Plan, measured: &Measurements) -> Section {
    let pairs = measured.start_one.floor.len();
    let note = format!(
        "{pairs} pairs; floor of many: {} in flight; idle over {:.0} s. floor = the same CRI calls with no agent, same run.",
        measured.floor_in_flight, measured.idle_seconds
    );
    let facts = [
        ("pairs", json!(pairs)),
        ("pods", json!(plan.pods)),
        ("floor_in_flight", json!(measured.floor_in_flight)),
        ("idle_seconds", json!(measured.idle_seconds)),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Section { title: "standalone", rows: rows(plan, measured), note, facts }
}

impl Section {
    /// For people.
    pub fn table(&self) -> String {
        let width = self.rows.iter().map(|row| row.what.len()).max().unwrap_or(0);
        let title = self.title;
        let number = |value: f64| if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") };
        // A column that is there only where something stands in it.
        let beside = self.rows.iter().any(|row| row.upstream.is_some());
        let upstream = |text: &str| if beside { format!("  {text:>9}") } else { String::new() };
        let heading = upstream("upstream");
        let mut text =
            format!("\n{title:width$}  {:>9}  {:>9}{heading}  {:>7}  {:>8}\n", "floor", "node", "ratio", "budget");
        for row in &self.rows {
            let floor = row.floor.map_or_else(|| "-".to_owned(), number);
            let ratio = row.judged.or_else(|| row.ratio()).map_or_else(|| "-".to_owned(), |it| format!("{it:.2}"));
            let budget = row.budget.map_or_else(|| "-".to_owned(), |budget| format!("<= {budget}"));
            let verdict = match row.within() {
                Some(true) => "ok",
                Some(false) => "OVER",
                None => "",
            };
            let _ = writeln!(
                text,
                "{:width$}  {floor:>9}  {:>9}{}  {ratio:>7}  {budget:>8}  {:<11} {verdict}",
                row.what,
                number(row.node),
                upstream(&row.upstream.map_or_else(|| "-".to_owned(), number)),
                row.unit
            );
        }
        let _ = writeln!(text, "\n{}", self.note);
        text
    }

    /// For programs.
    fn json(&self) -> Value {
        // What is indented is a part of the row above.
        let mut whole = "";
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                if !row.what.starts_with(' ') {
                    whole = &row.what;
                }
                json!({
                    "of": row.what.starts_with(' ').then_some(whole),
                    "what": row.what.trim(),
                    "floor": row.floor,
                    "node": row.node,
                    "upstream": row.upstream,
                    "unit": row.unit,
                    "ratio": row.judged.or_else(|| row.ratio()),
                    "budget": row.budget,
                    "within": row.within(),
                })
            })
            .collect();
        let mut facts = self.facts.clone();
        facts.insert("rows".to_owned(), rows.into());
        facts.into()
    }
}

/// All sections, by their titles.
pub fn json(sections: &[Section]) -> Value {
    sections.iter().map(|section| (section.title.to_owned(), section.json())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_few_values() {
        let values: Vec<Duration> = [3, 1, 2].into_iter().map(Duration::from_secs).collect();
        assert_eq!((quantile(&values, 0.0), quantile(&values, 0.5), quantile(&values, 1.0)), (1.0, 2.0, 3.0));
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn a_ratio_over_its_budget_is_marked() {
        assert_eq!(Row::new("x", Some(1.0), 1.2, "s").budget(1.15).within(), Some(false));
        assert_eq!(Row::new("x", None, 0.5, "%").budget(1.0).within(), Some(true));
        assert_eq!(Row::new("x", Some(1.0), 1.2, "s").within(), None);
    }
}
