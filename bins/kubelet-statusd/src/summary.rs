//! `/stats/summary`: the JSON that upstream serves (`k8s.io/kubelet/pkg/apis/stats/v1alpha1`). Unknown figures are
//! absent. Times have whole seconds.

use std::sync::Arc;

use bulkhead_ipc::evictiond::{ContainerStats, CpuStats, FsStats, MemoryStats, NodeStats, PodStats};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::routes;
use crate::server::answer::{self, Answer};

/// `/stats/summary`.
pub async fn serve(app: &Arc<App>, request: Request<Incoming>) -> Answer {
    // Upstream: only when it is there exactly once and says "true".
    let asked: Vec<String> = routes::pairs(request.uri().query().unwrap_or_default())
        .filter(|(key, _)| key == "only_cpu_and_memory")
        .map(|(_, value)| value)
        .collect();
    match app.peers.summary().await {
        Ok((node, pods)) => answer::json(format!("{:#}\n", document(&node, &pods, asked == ["true"]))),
        Err(status) => {
            tracing::warn!(code = ?status.code(), "statistics are not to be had: {}", status.message());
            let text = format!("Internal Error: failed to get statistics: {}", status.message());
            answer::text(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

/// The whole document. `only_cpu_and_memory` leaves out file systems, processes and volumes.
pub fn document(node: &NodeStats, pods: &[PodStats], only_cpu_and_memory: bool) -> Value {
    let all = !only_cpu_and_memory;
    let mut out = Map::new();
    out.insert("nodeName".into(), node.node_name.clone().into());
    let system: Vec<Value> = node
        .system_containers
        .iter()
        .map(|container| {
            let mut out = Map::new();
            out.insert("name".into(), container.name.clone().into());
            usage(&mut out, container.cpu.as_ref(), container.memory.as_ref());
            Value::Object(out)
        })
        .collect();
    if !system.is_empty() {
        out.insert("systemContainers".into(), system.into());
    }
    out.insert("startTime".into(), time(&node.start_time));
    usage(&mut out, node.cpu.as_ref(), node.memory.as_ref());
    if all {
        put(&mut out, "fs", node.node_fs.as_ref().map(fs));
        let mut runtime = Map::new();
        put(&mut runtime, "imageFs", node.image_fs.as_ref().map(fs));
        put(&mut runtime, "containerFs", node.container_fs.as_ref().map(fs));
        if !runtime.is_empty() {
            out.insert("runtime".into(), runtime.into());
        }
        let at = node.cpu.as_ref().map(|cpu| time(&cpu.time)).unwrap_or_default();
        out.insert("rlimit".into(), json!({"time": at, "maxpid": node.max_pid, "curproc": node.running_processes}));
    }
    let pods: Vec<Value> = pods.iter().map(|stats| pod(stats, all)).collect();
    json!({"node": out, "pods": pods})
}

fn pod(pod: &PodStats, all: bool) -> Value {
    let mut out = Map::new();
    out.insert("podRef".into(), json!({"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}));
    out.insert("startTime".into(), time(&pod.start_time));
    let containers: Vec<Value> = pod.containers.iter().map(|stats| container(stats, all)).collect();
    out.insert("containers".into(), containers.into());
    usage(&mut out, pod.cpu.as_ref(), pod.memory.as_ref());
    if all {
        let volumes: Vec<Value> = pod
            .volumes
            .iter()
            .filter_map(|volume| {
                let mut out = fs(volume.fs.as_ref()?);
                out.as_object_mut()?.insert("name".into(), volume.name.clone().into());
                Some(out)
            })
            .collect();
        if !volumes.is_empty() {
            out.insert("volume".into(), volumes.into());
        }
        put(&mut out, "ephemeral-storage", pod.ephemeral_storage.as_ref().map(fs));
        if let Some(count) = pod.process.as_ref().and_then(|process| process.process_count) {
            out.insert("process_stats".into(), json!({"process_count": count}));
        }
    }
    Value::Object(out)
}

fn container(container: &ContainerStats, all: bool) -> Value {
    let mut out = Map::new();
    out.insert("name".into(), container.name.clone().into());
    out.insert("startTime".into(), time(&container.start_time));
    usage(&mut out, container.cpu.as_ref(), container.memory.as_ref());
    if all {
        put(&mut out, "rootfs", container.rootfs.as_ref().map(fs));
        put(&mut out, "logs", container.logs.as_ref().map(fs));
    }
    Value::Object(out)
}

fn usage(out: &mut Map<String, Value>, cpu: Option<&CpuStats>, memory: Option<&MemoryStats>) {
    if let Some(cpu) = cpu {
        let mut stats = Map::from_iter([("time".to_owned(), time(&cpu.time))]);
        put(&mut stats, "usageNanoCores", cpu.usage_nano_cores);
        put(&mut stats, "usageCoreNanoSeconds", cpu.usage_core_nano_seconds);
        out.insert("cpu".into(), stats.into());
    }
    if let Some(memory) = memory {
        let mut stats = Map::from_iter([("time".to_owned(), time(&memory.time))]);
        put(&mut stats, "availableBytes", memory.available_bytes);
        put(&mut stats, "usageBytes", memory.usage_bytes);
        put(&mut stats, "workingSetBytes", memory.working_set_bytes);
        put(&mut stats, "rssBytes", memory.rss_bytes);
        put(&mut stats, "pageFaults", memory.page_faults);
        put(&mut stats, "majorPageFaults", memory.major_page_faults);
        out.insert("memory".into(), stats.into());
    }
}

fn fs(fs: &FsStats) -> Value {
    let mut out = Map::from_iter([("time".to_owned(), time(&fs.time))]);
    put(&mut out, "availableBytes", fs.available_bytes);
    put(&mut out, "capacityBytes", fs.capacity_bytes);
    put(&mut out, "usedBytes", fs.used_bytes);
    put(&mut out, "inodesFree", fs.inodes_free);
    put(&mut out, "inodes", fs.inodes);
    put(&mut out, "inodesUsed", fs.inodes_used);
    Value::Object(out)
}

fn put(out: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        out.insert(name.to_owned(), value.into());
    }
}

/// Whole seconds; null for no time, as Go writes its zero time.
fn time(text: &str) -> Value {
    match text.parse::<jiff::Timestamp>() {
        Ok(at) => Value::String(jiff::Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()),
        Err(_) => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape() {
        let node = NodeStats {
            node_name: "n".into(),
            start_time: "2026-11-20T23:16:56Z".into(),
            cpu: Some(CpuStats {
                time: "2026-11-21T00:47:43.5Z".into(),
                usage_nano_cores: Some(5),
                usage_core_nano_seconds: Some(7),
                psi: None,
            }),
            node_fs: Some(FsStats { used_bytes: Some(3), ..Default::default() }),
            max_pid: 32768,
            running_processes: 191,
            ..Default::default()
        };
        let pod = PodStats { name: "p".into(), namespace: "d".into(), uid: "u".into(), ..Default::default() };
        let full = document(&node, std::slice::from_ref(&pod), false);
        assert_eq!(
            full["node"]["cpu"],
            json!({"time": "2026-11-21T00:47:43Z", "usageNanoCores": 5, "usageCoreNanoSeconds": 7})
        );
        assert_eq!(full["node"]["rlimit"], json!({"time": "2026-11-21T00:47:43Z", "maxpid": 32768, "curproc": 191}));
        assert_eq!(full["node"]["fs"]["usedBytes"], 3);
        assert_eq!(full["pods"][0]["podRef"], json!({"name": "p", "namespace": "d", "uid": "u"}));
        assert_eq!(full["pods"][0]["containers"], json!([]));
        assert!(full["node"].get("memory").is_none());
        let small = document(&node, &[pod], true);
        assert!(small["node"].get("fs").is_none() && small["node"].get("rlimit").is_none());
    }
}
