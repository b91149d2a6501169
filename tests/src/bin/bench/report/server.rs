//! The measured of the HTTPS server, as rows.

use std::time::Duration;

use serde_json::json;

use super::{Row, Section, median_of_ratios, quantile};
use crate::server::{Measurements, Plan};

/// What the HTTPS server costs.
pub fn section(plan: &Plan, measured: &Measurements) -> Section {
    let half = |values: &[Duration]| quantile(values, 0.5);
    let megabytes = measured.log_bytes as f64 / 1e6;
    let (cat, log) = (half(&measured.log.floor), half(&measured.log.node));
    let ratio = |pair: &crate::measure::Pair| median_of_ratios(&pair.floor, &pair.node);
    let mut rows = vec![
        Row::new(format!("a log of {megabytes:.0} MB, p50 (floor: cat)"), Some(cat), log, "s")
            .judge(ratio(&measured.log)),
        Row::new("the same, megabytes a second", Some(megabytes / cat.max(1e-9)), megabytes / log.max(1e-9), "MB/s"),
        Row::new("CPU of kubelet-statusd for it", None, measured.log_cpu_ns as f64 / 1e9, "s"),
        Row::new(
            "exec of `true`, p50 (floor: the runtime's own server)",
            Some(half(&measured.exec.floor) * 1e3),
            half(&measured.exec.node) * 1e3,
            "ms",
        ),
    ];
    let nothing = half(&measured.nothing) * 1e3;
    let pods = plan.pods;
    for (path, scrape) in &measured.scrapes {
        let what = format!("{path}, {pods} pods, {} KiB, p50 (floor: /healthz)", scrape.bytes / 1024);
        rows.push(Row::new(what, Some(nothing), half(&scrape.took) * 1e3, "ms"));
        let cpu: Vec<Duration> = scrape.cpu_ns.iter().map(|ns| Duration::from_nanos(*ns)).collect();
        let floor = path.starts_with("/stats").then_some(measured.files.as_secs_f64() * 1e3);
        let what = match floor {
            Some(_) => format!("  CPU of all processes for {path} (floor: reading the kernel's files)"),
            None => format!("  CPU of all processes for {path}"),
        };
        rows.push(Row::new(what, floor, half(&cpu) * 1e3, "ms"));
        for (name, used) in &scrape.by_process {
            let each = used.cpu_ns as f64 / 1e6 / scrape.took.len().max(1) as f64;
            rows.push(Row::new(format!("    {name}"), None, each, "ms"));
        }
    }
    let note =
        "Each request has a connection and a TLS handshake of its own. Scrapes are 11 s apart, so that statistics are \
                measured for each."
            .to_owned();
    let facts = [("pods", json!(pods)), ("log_bytes", json!(measured.log_bytes)), ("execs", json!(plan.execs))];
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Section { title: "server", rows, note, facts }
}
