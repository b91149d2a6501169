//! `/metrics/resource`: what metrics-server reads. Names, help and timestamps are upstream's
//! (`pkg/kubelet/metrics/collectors/resource_metrics.go`).

use std::sync::Arc;

use bulkhead_ipc::evictiond::{CpuStats, MemoryStats, NodeStats, PodStats};
use http::Request;
use hyper::body::Incoming;

use crate::app::App;
use crate::exposition::{Family, Kind, Sample};
use crate::scrape;
use crate::server::answer::Answer;

/// `/metrics/resource`.
pub async fn serve(app: &Arc<App>, request: Request<Incoming>) -> Answer {
    let stats = app.peers.summary().await;
    if let Err(status) = &stats {
        tracing::warn!(code = ?status.code(), "statistics are not to be had: {}", status.message());
    }
    scrape::answer(&families(stats.ok().as_ref()), request.headers())
}

/// The families of a node's statistics; `None` when there are none to be had, which upstream calls a scrape error.
pub fn families(stats: Option<&(NodeStats, Vec<PodStats>)>) -> Vec<Family> {
    let family = |name: &str, kind, help: &str| Family {
        name: name.to_owned(),
        help: format!("[STABLE] {help}"),
        kind,
        samples: Vec::new(),
    };
    let mut families = vec![
        family(
            "container_cpu_usage_seconds_total",
            Kind::Counter,
            "Cumulative cpu time consumed by the container in core-seconds",
        ),
        family("container_memory_working_set_bytes", Kind::Gauge, "Current working set of the container in bytes"),
        family("container_start_time_seconds", Kind::Gauge, "Start time of the container since unix epoch in seconds"),
        family(
            "node_cpu_usage_seconds_total",
            Kind::Counter,
            "Cumulative cpu time consumed by the node in core-seconds",
        ),
        family("node_memory_working_set_bytes", Kind::Gauge, "Current working set of the node in bytes"),
        family("pod_cpu_usage_seconds_total", Kind::Counter, "Cumulative cpu time consumed by the pod in core-seconds"),
        family("pod_memory_working_set_bytes", Kind::Gauge, "Current working set of the pod in bytes"),
        family(
            "resource_scrape_error",
            Kind::Gauge,
            "1 if there was an error while getting container metrics, 0 otherwise",
        ),
    ];
    let mut add = |name: &str, labels: &[(&str, &str)], value: Option<(f64, Option<i64>)>| {
        let Some((value, timestamp)) = value else { return };
        if let Some(family) = families.iter_mut().find(|family| family.name == name) {
            let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            family.samples.push(Sample { name: name.to_owned(), labels, value, timestamp });
        }
    };
    if let Some((node, pods)) = stats {
        add("node_cpu_usage_seconds_total", &[], cpu(node.cpu.as_ref()));
        add("node_memory_working_set_bytes", &[], working_set(node.memory.as_ref()));
        for pod in pods {
            let of_pod = [("namespace", pod.namespace.as_str()), ("pod", pod.name.as_str())];
            add("pod_cpu_usage_seconds_total", &of_pod, cpu(pod.cpu.as_ref()));
            add("pod_memory_working_set_bytes", &of_pod, working_set(pod.memory.as_ref()));
            for container in &pod.containers {
                let [namespace, name] = of_pod;
                let labels = [("container", container.name.as_str()), namespace, name];
                add("container_cpu_usage_seconds_total", &labels, cpu(container.cpu.as_ref()));
                add("container_memory_working_set_bytes", &labels, working_set(container.memory.as_ref()));
                let started = container.start_time.parse::<jiff::Timestamp>().ok();
                add("container_start_time_seconds", &labels, started.map(|at| (at.as_duration().as_secs_f64(), None)));
            }
        }
    }
    add("resource_scrape_error", &[], Some((if stats.is_some() { 0.0 } else { 1.0 }, None)));
    families.retain(|family| !family.samples.is_empty());
    families
}

#[allow(clippy::cast_precision_loss, reason = "the format has floating point numbers alone")]
fn cpu(stats: Option<&CpuStats>) -> Option<(f64, Option<i64>)> {
    let stats = stats?;
    Some((stats.usage_core_nano_seconds? as f64 / 1e9, milliseconds(&stats.time)))
}

#[allow(clippy::cast_precision_loss, reason = "the format has floating point numbers alone")]
fn working_set(stats: Option<&MemoryStats>) -> Option<(f64, Option<i64>)> {
    let stats = stats?;
    Some((stats.working_set_bytes? as f64, milliseconds(&stats.time)))
}

fn milliseconds(time: &str) -> Option<i64> {
    Some(time.parse::<jiff::Timestamp>().ok()?.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::evictiond::ContainerStats;

    #[test]
    fn as_upstream_writes_it() {
        let time = "2026-11-21T00:47:47.915Z".to_owned();
        let cpu = |ns| Some(CpuStats { time: time.clone(), usage_core_nano_seconds: Some(ns), ..Default::default() });
        let memory = |b| Some(MemoryStats { time: time.clone(), working_set_bytes: Some(b), ..Default::default() });
        let pod = PodStats {
            namespace: "default".into(),
            name: "gold-a".into(),
            cpu: cpu(109_051_233),
            containers: vec![ContainerStats {
                name: "gold-a".into(),
                start_time: "2026-11-21T00:46:32.6789505Z".into(),
                cpu: cpu(67_754_488),
                memory: memory(688_128),
                ..Default::default()
            }],
            ..Default::default()
        };
        let text = crate::exposition::render(&families(Some(&(NodeStats::default(), vec![pod]))));
        for line in [
            "# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds",
            "# TYPE container_cpu_usage_seconds_total counter",
            "container_cpu_usage_seconds_total{container=\"gold-a\",namespace=\"default\",pod=\"gold-a\"} 0.067754488 1795222067915",
            "container_memory_working_set_bytes{container=\"gold-a\",namespace=\"default\",pod=\"gold-a\"} 688128 1795222067915",
            "container_start_time_seconds{container=\"gold-a\",namespace=\"default\",pod=\"gold-a\"} 1795221992.6789505",
            "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"gold-a\"} 0.109051233 1795222067915",
            "resource_scrape_error 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert!(!text.contains("pod_memory"), "what is unknown is absent, not 0");
        crate::exposition::parse(&text).unwrap();
        assert!(crate::exposition::render(&families(None)).ends_with("resource_scrape_error 1\n"));
    }
}
