//! What becomes of upstream's metric families here, as `fixtures/metric-families.txt` has it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::scrape::{Family, Format, Scrape};

/// When a family is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Always,
    Used,
    Absent,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub when: When,
    pub kind: String,
    /// What its help text begins with, in brackets; empty for those of Prometheus' own collectors.
    pub stability: String,
    pub labels: Vec<String>,
    pub bounds: Vec<String>,
}

/// The table, by name of the family.
///
/// # Errors
/// A row that is not in its form.
pub fn table() -> Result<BTreeMap<String, Row>> {
    let text = include_str!("../fixtures/metric-families.txt");
    let mut buckets: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let mut word = || words.next().with_context(|| line.to_owned());
        let first = word()?;
        if first == "buckets" {
            let name = word()?;
            buckets.insert(name, words.map(str::to_owned).collect());
            continue;
        }
        let when = match first {
            "always" => When::Always,
            "used" => When::Used,
            _ => When::Absent,
        };
        let (kind, stability, name, labels, bounds) = (word()?, word()?, word()?, word()?, word()?);
        let reason = words.next();
        ensure!((when == When::Absent) == reason.is_some() && matches!(first, "always" | "used" | "absent"), "{line}");
        let list = |text: &str| text.split(',').filter(|part| *part != "-").map(str::to_owned).collect::<Vec<_>>();
        let bounds = match bounds {
            "-" => Vec::new(),
            name => buckets.get(name).with_context(|| format!("{line}: bounds"))?.clone(),
        };
        let stability = if stability == "-" { String::new() } else { stability.to_owned() };
        let mut labels = list(labels);
        labels.sort();
        let row = Row { when, kind: kind.to_owned(), stability, labels, bounds };
        ensure!(rows.insert(name.to_owned(), row).is_none(), "{name} twice");
    }
    Ok(rows)
}

/// Beginnings of names that are upstream's alone: a family that has one is in the table.
const THEIRS: [&str; 14] = [
    "apiserver_",
    "authentication_",
    "csi_",
    "dra_",
    "force_cleaned_",
    "go_",
    "kubelet_",
    "kubernetes_",
    "plugin_manager_",
    "process_",
    "reconstruct_",
    "rest_client_",
    "volume_",
    "workqueue_",
];

/// Everything in which an answer of `/metrics` departs from the table.
///
/// # Errors
/// The table cannot be read.
pub fn differences(scrape: &Scrape, format: Format) -> Result<Vec<String>> {
    let table = table()?;
    let mut found = Vec::new();
    for (name, row) in &table {
        let shown = match format {
            Format::OpenMetrics if row.kind == "counter" => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        match (scrape.families.get(shown), row.when) {
            (None, When::Always) => found.push(format!("{name} is missing")),
            (Some(_), When::Absent) => found.push(format!("{name} is there")),
            (Some(family), _) => found.extend(of_family(name, family, row, format)),
            (None, _) => {}
        }
    }
    let theirs = |name: &&String| THEIRS.iter().any(|start| name.starts_with(start));
    let known = |name: &str| table.contains_key(name) || table.contains_key(&format!("{name}_total"));
    found.extend(
        scrape.families.keys().filter(theirs).filter(|name| !known(name)).map(|name| format!("{name}: whose?")),
    );
    Ok(found)
}

fn of_family(name: &str, family: &Family, row: &Row, format: Format) -> Vec<String> {
    let mut found = Vec::new();
    let kind = match (row.kind.as_str(), format) {
        ("counter", Format::OpenMetrics) if !name.ends_with("_total") => "unknown",
        (kind, _) => kind,
    };
    if family.kind != kind {
        found.push(format!("{name} is a {}, not a {kind}", family.kind));
    }
    let start = if row.stability.is_empty() { String::new() } else { format!("[{}]", row.stability) };
    if !family.help.starts_with(&start) || (start.is_empty() && family.help.starts_with('[')) {
        found.push(format!("{name}: help {:?}, not {start}", family.help));
    }
    let labels: Vec<&str> = family.labels().into_iter().collect();
    if labels != row.labels.iter().map(String::as_str).collect::<Vec<_>>() {
        found.push(format!("{name}: labels {labels:?}, not {:?}", row.labels));
    }
    let bounds = family.bounds();
    let same = |(shown, known): (&&str, &String)| shown.parse::<f64>().ok() == known.parse::<f64>().ok();
    let written = format == Format::OpenMetrics || bounds == row.bounds.iter().map(String::as_str).collect::<Vec<_>>();
    if !written || bounds.len() != row.bounds.len() || !bounds.iter().zip(&row.bounds).all(same) {
        found.push(format!("{name}: bounds {bounds:?}, not {:?}", row.bounds));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_read() -> Result<()> {
        let table = table()?;
        ensure!(table.len() > 150, "{}", table.len());
        ensure!(table.get("kubelet_pod_worker_duration_seconds").is_some_and(|row| row.bounds.len() == 11));
        Ok(())
    }

    #[test]
    fn departures_are_found() -> Result<()> {
        let text = "# HELP kubelet_evictions [ALPHA] x\n# TYPE kubelet_evictions counter\nkubelet_evictions{a=\"b\"} 1\n\
                    # HELP kubelet_new_total x\n# TYPE kubelet_new_total counter\nkubelet_new_total 1\n\
                    # HELP kubelet_running_pods x\n# TYPE kubelet_running_pods counter\nkubelet_running_pods{a=\"b\"} 1\n";
        let found = differences(&Scrape::read(text, Format::Prometheus)?, Format::Prometheus)?.join("\n");
        for part in [
            "kubelet_evictions is there",
            "kubelet_new_total: whose?",
            "kubelet_running_pods is a counter",
            "kubelet_running_pods: help",
            "kubelet_running_pods: labels",
            "kubelet_pleg_discard_events is missing",
        ] {
            ensure!(found.contains(part), "{part} in {found}");
        }
        Ok(())
    }
}
