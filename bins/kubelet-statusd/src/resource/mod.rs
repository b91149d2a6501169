//! `/metrics/resource`: what metrics-server reads. Names, help and timestamps are upstream's
//! (`pkg/kubelet/metrics/collectors/resource_metrics.go`).
//!
//! metrics-server drops a whole pod for one container with a zero or without one of its three series. So a container
//! that has not used anything yet, or of which not everything is known, has none.

use bulkhead_ipc::evictiond::{ContainerStats, CpuStats, MemoryStats, NodeStats, PodStats, SwapStats};
use http::Request;
use hyper::body::Incoming;

use crate::peers::Peers;
use crate::scrape;
use crate::scrape::exposition::{Family, Kind, Sample};
use crate::server::answer::Answer;

/// `/metrics/resource`.
pub async fn serve(peers: &Peers, request: Request<Incoming>) -> Answer {
    let stats = peers.summary(true).await;
    if let Err(status) = &stats {
        tracing::warn!(code = ?status.code(), "failed to get statistics from kubelet-evictiond: {}", status.message());
    }
    scrape::answer(&families(stats.ok().as_ref()), request.headers())
}

/// A value with the time at which it was measured, in milliseconds since the epoch.
type Reading = (f64, Option<i64>);

/// The families of a node's statistics, those without a series left out. `None` when there are no statistics, which
/// upstream calls a scrape error; that nobody told which pods there are is one, too.
pub fn families(stats: Option<&(NodeStats, Vec<PodStats>)>) -> Vec<Family> {
    let (node, pods) = match stats {
        Some((node, pods)) => (Some(node), pods.as_slice()),
        None => (None, &[][..]),
    };
    let of_containers = |reading: fn(&ContainerStats) -> Option<Reading>| {
        let whole = |pod: &PodStats| pod.containers.iter().filter(|one| is_complete(one)).cloned().collect::<Vec<_>>();
        let mut samples = Vec::new();
        for pod in pods {
            for container in whole(pod) {
                let labels =
                    [("container", container.name.as_str()), ("namespace", &pod.namespace), ("pod", &pod.name)];
                samples.extend(reading(&container).map(|reading| sample(&labels, reading)));
            }
        }
        samples
    };
    let of_pods = |reading: fn(&PodStats) -> Option<Reading>| {
        let labelled =
            |pod: &PodStats| Some(sample(&[("namespace", &pod.namespace), ("pod", &pod.name)], reading(pod)?));
        pods.iter().filter_map(labelled).collect::<Vec<_>>()
    };
    let of_node = |reading: fn(&NodeStats) -> Option<Reading>| {
        node.and_then(reading).map(|reading| sample(&[], reading)).into_iter().collect::<Vec<_>>()
    };
    let failed = node.is_none_or(|node| !node.pods_known);
    let families = vec![
        family(
            "container_cpu_usage_seconds_total",
            Kind::Counter,
            "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
            of_containers(|one| cpu(one.cpu.as_ref())),
        ),
        family(
            "container_memory_working_set_bytes",
            Kind::Gauge,
            "[STABLE] Current working set of the container in bytes",
            of_containers(|one| working_set(one.memory.as_ref())),
        ),
        family(
            "container_start_time_seconds",
            Kind::Gauge,
            "[STABLE] Start time of the container since unix epoch in seconds",
            of_containers(start_time),
        ),
        family(
            "container_swap_limit_bytes",
            Kind::Gauge,
            "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
            of_containers(|one| swap_limit(one.swap.as_ref())),
        ),
        family(
            "container_swap_usage_bytes",
            Kind::Gauge,
            "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
            of_containers(|one| swap_usage(one.swap.as_ref())),
        ),
        family(
            "node_cpu_usage_seconds_total",
            Kind::Counter,
            "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
            of_node(|node| cpu(node.cpu.as_ref())),
        ),
        family(
            "node_memory_working_set_bytes",
            Kind::Gauge,
            "[STABLE] Current working set of the node in bytes",
            of_node(|node| working_set(node.memory.as_ref())),
        ),
        family(
            "node_swap_usage_bytes",
            Kind::Gauge,
            "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
            of_node(|node| swap_usage(node.swap.as_ref())),
        ),
        family(
            "pod_cpu_usage_seconds_total",
            Kind::Counter,
            "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
            of_pods(|pod| cpu(pod.cpu.as_ref())),
        ),
        family(
            "pod_memory_working_set_bytes",
            Kind::Gauge,
            "[STABLE] Current working set of the pod in bytes",
            of_pods(|pod| working_set(pod.memory.as_ref())),
        ),
        family(
            "pod_swap_usage_bytes",
            Kind::Gauge,
            "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
            of_pods(|pod| swap_usage(pod.swap.as_ref())),
        ),
        family(
            "resource_scrape_error",
            Kind::Gauge,
            "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
            vec![sample(&[], (f64::from(u8::from(failed)), None))],
        ),
    ];
    families.into_iter().filter(|family| !family.samples.is_empty()).collect()
}

/// All three series that metrics-server wants, and none of them zero.
fn is_complete(container: &ContainerStats) -> bool {
    let positive = |reading: Option<Reading>| reading.is_some_and(|(value, _)| value > 0.0);
    positive(cpu(container.cpu.as_ref()))
        && positive(working_set(container.memory.as_ref()))
        && positive(start_time(container))
}

/// Series get the family's name.
fn family(name: &str, kind: Kind, help: &str, mut samples: Vec<Sample>) -> Family {
    for sample in &mut samples {
        name.clone_into(&mut sample.name);
    }
    Family { name: name.to_owned(), help: help.to_owned(), kind, samples }
}

fn sample(labels: &[(&str, &str)], (value, timestamp): Reading) -> Sample {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Sample { name: String::new(), labels, value, timestamp }
}

#[allow(clippy::cast_precision_loss, reason = "the format has floating point numbers alone")]
fn cpu(stats: Option<&CpuStats>) -> Option<Reading> {
    let stats = stats?;
    Some((stats.usage_core_nano_seconds? as f64 / 1e9, milliseconds(&stats.time)))
}

#[allow(clippy::cast_precision_loss, reason = "the format has floating point numbers alone")]
fn working_set(stats: Option<&MemoryStats>) -> Option<Reading> {
    let stats = stats?;
    Some((stats.working_set_bytes? as f64, milliseconds(&stats.time)))
}

#[allow(clippy::cast_precision_loss, reason = "the format has floating point numbers alone")]
fn swap_usage(stats: Option<&SwapStats>) -> Option<Reading> {
    let stats = stats?;
    Some((stats.usage_bytes? as f64, milliseconds(&stats.time)))
}

/// What is used and what is left; none without a limit.
#[allow(clippy::cast_precision_loss, reason = "the format has floating point numbers alone")]
fn swap_limit(stats: Option<&SwapStats>) -> Option<Reading> {
    let stats = stats?;
    let limit = stats.available_bytes?.saturating_add(stats.usage_bytes.unwrap_or(0));
    Some((limit as f64, milliseconds(&stats.time)))
}

fn start_time(container: &ContainerStats) -> Option<Reading> {
    let started = container.start_time.parse::<jiff::Timestamp>().ok()?;
    Some((started.as_duration().as_secs_f64(), None))
}

fn milliseconds(time: &str) -> Option<i64> {
    Some(time.parse::<jiff::Timestamp>().ok()?.as_millisecond())
}

#[cfg(test)]
mod tests;
