//! The text, beside an upstream node's, and as metrics-server reads it.

use super::*;
use std::collections::BTreeMap;

const TIME: &str = "2026-11-21T00:47:47.915Z";

fn cpu_of(nanoseconds: u64) -> Option<CpuStats> {
    Some(CpuStats { time: TIME.into(), usage_core_nano_seconds: Some(nanoseconds), ..Default::default() })
}

fn memory_of(bytes: u64) -> Option<MemoryStats> {
    Some(MemoryStats { time: TIME.into(), working_set_bytes: Some(bytes), ..Default::default() })
}

fn swap_of(available: Option<u64>) -> Option<SwapStats> {
    Some(SwapStats { time: TIME.into(), available_bytes: available, usage_bytes: Some(0) })
}

fn container(name: &str, nanoseconds: u64, bytes: u64) -> ContainerStats {
    ContainerStats {
        name: name.into(),
        start_time: "2026-11-21T00:46:32.6789505Z".into(),
        cpu: cpu_of(nanoseconds),
        memory: memory_of(bytes),
        swap: swap_of(Some(0)),
        ..Default::default()
    }
}

fn pod(name: &str, containers: Vec<ContainerStats>) -> PodStats {
    PodStats {
        namespace: "default".into(),
        name: name.into(),
        cpu: cpu_of(109_051_233),
        memory: memory_of(1_216_512),
        swap: swap_of(None),
        containers,
        ..Default::default()
    }
}

fn node() -> NodeStats {
    NodeStats {
        cpu: cpu_of(9_043_972_106_547),
        memory: memory_of(5_391_286_272),
        swap: swap_of(Some(0)),
        pods_known: true,
        ..Default::default()
    }
}

fn text(stats: Option<&(NodeStats, Vec<PodStats>)>) -> String {
    let mut encoder = crate::scrape::encode::Encoder::new(crate::scrape::encode::Dialect::Prometheus);
    families(stats).iter().for_each(|family| encoder.family(family));
    encoder.finish()
}

#[test]
fn as_upstream_writes_it() {
    let text = text(Some(&(node(), vec![pod("gold-a", vec![container("gold-a", 67_754_488, 688_128)])])));
    for line in [
        "# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds",
        "# TYPE container_cpu_usage_seconds_total counter",
        "container_cpu_usage_seconds_total{container=\"gold-a\",namespace=\"default\",pod=\"gold-a\"} 0.067754488 1795222067915",
        "container_memory_working_set_bytes{container=\"gold-a\",namespace=\"default\",pod=\"gold-a\"} 688128 1795222067915",
        "container_start_time_seconds{container=\"gold-a\",namespace=\"default\",pod=\"gold-a\"} 1795221992.6789505",
        "container_swap_limit_bytes{container=\"gold-a\",namespace=\"default\",pod=\"gold-a\"} 0 1795222067915",
        "container_swap_usage_bytes{container=\"gold-a\",namespace=\"default\",pod=\"gold-a\"} 0 1795222067915",
        "node_cpu_usage_seconds_total 9043.972106547 1795222067915",
        "node_swap_usage_bytes 0 1795222067915",
        "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"gold-a\"} 0.109051233 1795222067915",
        "pod_swap_usage_bytes{namespace=\"default\",pod=\"gold-a\"} 0 1795222067915",
        "resource_scrape_error 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
    let names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert!(names.is_sorted() && names.len() == 12, "{names:?}");
    crate::scrape::lines::scan(&text).unwrap();
}

#[test]
fn an_unknown_value_is_absent_and_the_scrape_error_is_set() {
    assert_eq!(text(None).lines().last(), Some("resource_scrape_error 1"));
    let no_memory = pod("p", vec![ContainerStats { memory: None, ..container("c", 1, 1) }]);
    let unknown = text(Some(&(NodeStats { pods_known: false, ..node() }, vec![no_memory])));
    assert!(unknown.contains("node_cpu_usage_seconds_total 9043"), "the node is measured all the same");
    assert!(unknown.contains("resource_scrape_error 1"), "but nobody said which pods there are");
    assert!(!unknown.contains("container_"), "no lone series of a container");
    assert!(!text(Some(&(NodeStats::default(), Vec::new()))).contains("node_"), "what is unknown is absent, not 0");
}

/// How metrics-server reads a scrape: it looks for raw texts, not for labels, and drops a pod for one zero.
#[derive(Debug, Default, PartialEq)]
struct Point {
    cpu: u64,
    memory: u64,
    start: f64,
    timestamp: i64,
}

fn raw_label<'a>(labels: &'a str, name: &str) -> &'a str {
    let start = labels.find(&format!("{name}=\"")).unwrap() + name.len() + 2;
    let rest = &labels[start..];
    &rest[..rest.find('"').unwrap()]
}

/// Node, then containers by (namespace, pod, container).
fn metrics_server(text: &str) -> (Point, BTreeMap<(String, String, String), Point>) {
    let (mut node, mut containers) = (Point::default(), BTreeMap::new());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let end = line.find(['{', ' ']).unwrap();
        let (name, rest) = line.split_at(end);
        let (labels, values) = rest.rsplit_once('}').unwrap_or(("", rest));
        let mut values = values.split_whitespace();
        let value: f64 = values.next().unwrap().parse().unwrap();
        let timestamp = values.next().map(|text| text.parse::<i64>().unwrap());
        if let Some(what) = name.strip_prefix("node_") {
            node.timestamp = timestamp.unwrap();
            match what {
                "cpu_usage_seconds_total" => node.cpu = (value * 1e9) as u64,
                "memory_working_set_bytes" => node.memory = value as u64,
                _ => {}
            }
        } else if let Some(what) = name.strip_prefix("container_") {
            let of = |label| raw_label(labels, label).to_owned();
            let point: &mut Point = containers.entry((of("namespace"), of("pod"), of("container"))).or_default();
            match what {
                "cpu_usage_seconds_total" => point.cpu = (value * 1e9) as u64,
                "memory_working_set_bytes" => point.memory = value as u64,
                "start_time_seconds" => point.start = value,
                _ => continue,
            }
            point.timestamp = timestamp.unwrap_or(point.timestamp);
        }
    }
    (node, containers)
}

#[test]
fn as_metrics_server_reads_it() {
    let idle = container("idle", 5_000_000, 0);
    let fresh = container("fresh", 0, 4096);
    let unnamed = ContainerStats { start_time: String::new(), ..container("unnamed", 1, 1) };
    let pods = vec![
        pod("whole", vec![container("a", 1_500_000_000, 1 << 20), container("b", 250_000_000, 1 << 30)]),
        pod("half", vec![container("main", 7_000_000, 8192), idle, fresh, unnamed]),
    ];
    let (node, containers) = metrics_server(&text(Some(&(node(), pods))));
    assert!(node.cpu > 9_000_000_000_000 && node.memory > 0 && node.timestamp > 0);
    let seen: Vec<_> = containers.keys().map(|(_, pod, name)| (pod.as_str(), name.as_str())).collect();
    assert_eq!(seen, [("half", "main"), ("whole", "a"), ("whole", "b")], "no point with a zero costs a pod");
    for (name, point) in &containers {
        assert!(point.cpu > 0 && point.memory > 0 && point.start > 1.7e9, "{name:?} {point:?}");
        assert_eq!(point.timestamp, 1_795_222_067_915);
    }
    let whole = &containers[&("default".into(), "whole".into(), "a".into())];
    assert_eq!((whole.cpu, whole.memory), (1_500_000_000, 1 << 20));
}
