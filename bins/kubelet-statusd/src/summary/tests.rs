//! The document's shape, beside what an upstream node with one pod says.

use super::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const TIME: &str = "2026-11-21T00:47:43.512Z";

fn psi() -> Option<stats::Psi> {
    let line = Some(stats::PsiData { total: 7, avg10: 0.0, avg60: 1.25, avg300: 0.0 });
    Some(stats::Psi { some: line, full: line })
}

fn cpu() -> Option<stats::CpuStats> {
    Some(stats::CpuStats {
        time: TIME.into(),
        usage_nano_cores: Some(5),
        usage_core_nano_seconds: Some(u64::MAX),
        psi: psi(),
    })
}

fn memory() -> Option<stats::MemoryStats> {
    Some(stats::MemoryStats {
        time: TIME.into(),
        available_bytes: Some(1),
        usage_bytes: Some(2),
        working_set_bytes: Some(3),
        rss_bytes: Some(4),
        page_faults: Some(5),
        major_page_faults: Some(6),
        psi: psi(),
    })
}

fn io() -> Option<stats::IoStats> {
    Some(stats::IoStats { time: TIME.into(), psi: psi() })
}

fn swap() -> Option<stats::SwapStats> {
    Some(stats::SwapStats { time: TIME.into(), available_bytes: Some(0), usage_bytes: Some(0) })
}

fn fs() -> Option<stats::FsStats> {
    Some(stats::FsStats {
        time: TIME.into(),
        available_bytes: Some(1),
        capacity_bytes: Some(2),
        used_bytes: Some(3),
        inodes_free: Some(4),
        inodes: Some(5),
        inodes_used: Some(6),
    })
}

fn network(names: &[&str]) -> Option<stats::NetworkStats> {
    let interface = |name: &&str| stats::InterfaceStats { name: (*name).into(), rx_bytes: 9, ..Default::default() };
    Some(stats::NetworkStats { time: TIME.into(), interfaces: names.iter().map(interface).collect() })
}

fn node() -> stats::NodeStats {
    stats::NodeStats {
        node_name: "n".into(),
        start_time: "2026-11-20T23:16:56Z".into(),
        cpu: cpu(),
        memory: memory(),
        node_fs: fs(),
        image_fs: fs(),
        container_fs: fs(),
        max_pid: 32768,
        running_processes: 191,
        system_containers: vec![stats::SystemContainer {
            name: "pods".into(),
            cpu: cpu(),
            memory: memory(),
            start_time: TIME.into(),
            io: io(),
            swap: swap(),
        }],
        pods_known: true,
        io: io(),
        swap: swap(),
        network: network(&["ifb0", "eth0"]),
        rlimit_time: "2026-11-21T00:47:47.9Z".into(),
    }
}

fn pod() -> stats::PodStats {
    stats::PodStats {
        uid: "u".into(),
        namespace: "d".into(),
        name: "p".into(),
        start_time: TIME.into(),
        cpu: cpu(),
        memory: memory(),
        process: Some(stats::ProcessStats { process_count: Some(2) }),
        containers: vec![stats::ContainerStats {
            name: "c".into(),
            start_time: TIME.into(),
            cpu: cpu(),
            memory: memory(),
            logs: fs(),
            rootfs: fs(),
            io: io(),
            swap: swap(),
        }],
        volumes: vec![
            stats::VolumeStats { name: "v".into(), fs: fs(), ..stats::VolumeStats::default() },
            stats::VolumeStats {
                name: "w".into(),
                fs: fs(),
                claim_namespace: "default".into(),
                claim_name: "data".into(),
                abnormal: Some(true),
            },
        ],
        ephemeral_storage: fs(),
        io: io(),
        swap: swap(),
        network: network(&["eth0"]),
    }
}

fn parsed(document: &[u8]) -> Value {
    serde_json::from_slice(document).unwrap()
}

/// All paths of objects' fields, lists as "[]".
fn paths(value: &Value, at: &str, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{at}.{name}");
                paths(value, &path, out);
                out.insert(path);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| paths(value, &format!("{at}[]"), out)),
        _ => {}
    }
}

/// What an upstream node says of each object; "psi" stands for its lines.
fn upstream() -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let mut add = |at: &str, names: &str| out.extend(names.split_whitespace().map(|name| format!("{at}{name}")));
    let psi = "psi psi.full psi.some psi.full.total psi.full.avg10 psi.full.avg60 psi.full.avg300 psi.some.total \
               psi.some.avg10 psi.some.avg60 psi.some.avg300";
    let fs = "time availableBytes capacityBytes usedBytes inodesFree inodes inodesUsed";
    let interface = "name rxBytes rxErrors txBytes txErrors";
    let usages = [".node.", ".node.systemContainers[].", ".pods[].", ".pods[].containers[]."];
    for at in usages {
        add(at, "cpu memory io swap startTime");
        add(&format!("{at}cpu."), &format!("time usageNanoCores usageCoreNanoSeconds {psi}"));
        let memory = "time availableBytes usageBytes workingSetBytes rssBytes pageFaults majorPageFaults";
        add(&format!("{at}memory."), &format!("{memory} {psi}"));
        add(&format!("{at}io."), &format!("time {psi}"));
        add(&format!("{at}swap."), "time swapAvailableBytes swapUsageBytes");
    }
    add(".", "node pods");
    add(".node.", "nodeName systemContainers network fs runtime runtime.imageFs runtime.containerFs rlimit");
    add(".node.systemContainers[].", "name");
    add(".node.rlimit.", "time maxpid curproc");
    add(".pods[].", "podRef podRef.name podRef.namespace podRef.uid containers network volume ephemeral-storage");
    add(".pods[].", "process_stats process_stats.process_count");
    add(".pods[].containers[].", "name rootfs logs");
    add(".pods[].volume[].", "name pvcRef pvcRef.name pvcRef.namespace volumeHealthStats volumeHealthStats.abnormal");
    for at in [".node.network.", ".pods[].network."] {
        add(at, &format!("time interfaces {interface}"));
        add(&format!("{at}interfaces[]."), interface);
    }
    let file_systems = [
        ".node.fs.",
        ".node.runtime.imageFs.",
        ".node.runtime.containerFs.",
        ".pods[].volume[].",
        ".pods[].ephemeral-storage.",
        ".pods[].containers[].rootfs.",
        ".pods[].containers[].logs.",
    ];
    file_systems.into_iter().for_each(|at| add(at, fs));
    out
}

#[test]
fn every_field_of_upstream_and_no_other() {
    let mut ours = BTreeSet::new();
    paths(&parsed(&document(&node(), &[pod()], false)), "", &mut ours);
    assert_eq!(ours, upstream());
}

#[test]
fn values_as_upstream_writes_them() {
    let text = String::from_utf8(document(&node(), &[pod()], false)).unwrap();
    assert!(text.starts_with("{\n \"node\": {\n  \"nodeName\": \"n\",\n  \"systemContainers\": ["), "{text}");
    assert!(text.contains("\"avg10\": 0,") && text.contains("\"avg60\": 1.25,"), "no fraction in whole numbers");
    let all = parsed(text.as_bytes());
    assert_eq!(all["node"]["cpu"]["time"], "2026-11-21T00:47:43Z", "whole seconds");
    assert_eq!(all["node"]["cpu"]["usageCoreNanoSeconds"], u64::MAX);
    assert_eq!(all["node"]["rlimit"], json!({"time": "2026-11-21T00:47:47Z", "maxpid": 32768, "curproc": 191}));
    assert_eq!(all["node"]["network"]["name"], "eth0", "the default interface stands for all");
    assert_eq!(all["node"]["network"]["interfaces"][0]["name"], "ifb0");
    assert_eq!(all["pods"][0]["podRef"], json!({"name": "p", "namespace": "d", "uid": "u"}));
    let order: Vec<_> = ["nodeName", "startTime\": \"2026-11-20", "\"fs\"", "\"runtime\"", "\"rlimit\"", "\"pods\": ["]
        .iter()
        .map(|name| text.find(name).unwrap())
        .collect();
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn unknown_figures_are_absent() {
    let bare = stats::PodStats { name: "p".into(), namespace: "d".into(), uid: "u".into(), ..Default::default() };
    let all = parsed(&document(&stats::NodeStats::default(), &[bare], false));
    assert_eq!(all["pods"][0]["containers"], json!([]));
    assert_eq!(all["pods"][0]["startTime"], Value::Null);
    for missing in ["cpu", "memory", "volume", "network", "ephemeral-storage", "process_stats"] {
        assert!(all["pods"][0].get(missing).is_none(), "{missing}");
    }
    assert!(all["node"].get("memory").is_none() && all["node"].get("runtime").is_none());
    let other = stats::NodeStats { network: network(&["ens3"]), ..Default::default() };
    let network = parsed(&document(&other, &[], false))["node"]["network"].clone();
    assert_eq!((&network["name"], network.get("rxBytes")), (&json!(""), None));
    assert_eq!(network["interfaces"][0]["rxBytes"], 9);
}

#[test]
fn pressure_that_the_kernel_does_not_give_is_zero() {
    let told = |psi| {
        let cpu = Some(stats::CpuStats { psi, ..cpu().unwrap() });
        parsed(&document(&stats::NodeStats { cpu, ..node() }, &[], false))["node"]["cpu"]["psi"].take()
    };
    let zeros = json!({"total": 0, "avg10": 0, "avg60": 0, "avg300": 0});
    assert_eq!(told(Some(stats::Psi::default())), json!({"full": zeros, "some": zeros}));
    assert_eq!(told(None), Value::Null, "nobody measures it");
}

#[test]
fn cpu_and_memory_alone() {
    let small = parsed(&document(&node(), &[pod()], true));
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(names(&small["node"]), set(&["nodeName", "systemContainers", "startTime", "cpu", "memory", "swap"]));
    assert_eq!(names(&small["pods"][0]), set(&["podRef", "startTime", "containers", "cpu", "memory", "swap"]));
    let container = &small["pods"][0]["containers"][0];
    assert_eq!(names(container), set(&["name", "startTime", "cpu", "memory", "swap"]));
}

#[test]
fn once_and_true() {
    for (parameters, small) in [
        ("only_cpu_and_memory=true", true),
        ("a=b&only_cpu_and_memory=true", true),
        ("only_cpu_and_memory=1", false),
        ("only_cpu_and_memory", false),
        ("only_cpu_and_memory=true&only_cpu_and_memory=true", false),
        ("", false),
    ] {
        let parsed: Vec<_> = crate::routes::pairs(parameters).collect();
        assert_eq!(only_cpu_and_memory(&parsed), small, "{parameters}");
    }
}
