//! A node read with upstream's eyes, after Bulkhead has been stopped: everything at which upstream's kubelet would
//! restart a container, kill a pod, remove a folder or refuse to start is a line.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::Result;
use bulkhead_testkit::cgroups;
use bulkhead_testkit::cri::{Container, Cri, Sandbox};
use serde_json::Value;

use super::checkpoints;
use super::leave::Place;

/// A pod as upstream's sources would give it: of the API server, or of a file.
#[derive(Debug, Clone)]
pub struct ExpectedPod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub is_static: bool,
    /// `v1.Pod`'s spec: names and images of its containers.
    pub spec: Value,
}

/// What upstream makes in its root directory or takes for its own, and the one folder that is ours.
const ROOT: [&str; 20] = [
    "pods",
    "plugins",
    "plugins_registry",
    "pod-resources",
    "pods-api",
    "checkpoints",
    "device-plugins",
    "image_manager",
    "pki",
    "seccomp",
    "config.yaml",
    "kubeadm-flags.env",
    "cpu_manager_state",
    "memory_manager_state",
    "dra_manager_state",
    "dra_health_state",
    "graceful_node_shutdown_state",
    "allocated_pods_state",
    "actuated_pods_state",
    "bulkhead",
];
/// What upstream knows in a pod's folder.
const POD: [&str; 7] = ["volumes", "volumeDevices", "volume-subpaths", "plugins", "containers", "etc-hosts", "userns"];

/// Everything that upstream would stumble over, one line each.
///
/// # Errors
/// The runtime does not answer.
pub fn stumbles(place: &Place, cri: &Cri, wanted: &[ExpectedPod]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let (sandboxes, containers) = (cri.sandboxes()?, cri.containers()?);
    for pod in wanted {
        let all: Vec<&Sandbox> = sandboxes.iter().filter(|one| one.ready && one.uid == pod.uid).collect();
        let [sandbox] = all.as_slice() else {
            found.push(format!(
                "{}: {} ready sandboxes with uid {}: it would be made anew",
                pod.name,
                all.len(),
                pod.uid
            ));
            continue;
        };
        of_sandbox(&mut found, place, pod, sandbox);
        for container in containers.iter().filter(|one| one.sandbox == sandbox.id && (one.running || one.exited)) {
            of_container(&mut found, place, pod, container);
        }
        of_folder(&mut found, &place.root.join("pods").join(&pod.uid));
    }
    for sandbox in sandboxes.iter().filter(|one| one.ready && !wanted.iter().any(|pod| pod.uid == one.uid)) {
        found.push(format!("sandbox {} of {} is of no pod: it would be killed", sandbox.id, sandbox.pod));
    }
    of_root(&mut found, place, wanted);
    of_cgroups(&mut found, place, wanted);
    of_logs(&mut found, place, wanted);
    Ok(found)
}

fn of_sandbox(found: &mut Vec<String>, place: &Place, pod: &ExpectedPod, sandbox: &Sandbox) {
    let mut wrong = |what: String| found.push(format!("sandbox of {}: {what}", pod.name));
    for (label, value) in [("name", &pod.name), ("namespace", &pod.namespace), ("uid", &pod.uid)] {
        let has = sandbox.labels.get(&format!("io.kubernetes.pod.{label}"));
        if has != Some(value) {
            wrong(format!("label {label} is {has:?}"));
        }
    }
    let source = sandbox.annotations.get("kubernetes.io/config.source").map(String::as_str);
    if source != Some(if pod.is_static { "file" } else { "api" }) {
        wrong(format!("its source is {source:?}"));
    }
    if !sandbox.annotations.contains_key("kubernetes.io/config.seen") {
        wrong("it is not told when it was first seen".into());
    }
    if pod.is_static && sandbox.annotations.get("kubernetes.io/config.hash") != Some(&pod.uid) {
        wrong("its hash is not its uid".into());
    }
    if !place.logs.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid)).is_dir() {
        wrong("it has no log folder".into());
    }
}

fn of_container(found: &mut Vec<String>, place: &Place, pod: &ExpectedPod, container: &Container) {
    let mut wrong = |what: String| found.push(format!("container {} of {}: {what}", container.name, pod.name));
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let mut specs = lists.iter().filter_map(|list| pod.spec[list].as_array()).flatten();
    let Some(spec) = specs.find(|one| one["name"] == container.name.as_str()) else {
        return wrong("the pod has none of that name: it would be killed".into());
    };
    let expected = checkpoints::container_hash(&container.name, spec["image"].as_str().unwrap_or_default());
    let of = |name: &str| container.annotations.get(&format!("io.kubernetes.container.{name}")).map(String::as_str);
    if of("hash") != Some(&expected) {
        wrong(format!("its hash is {:?} and not {expected}: it would be restarted", of("hash")));
    }
    if of("restartCount").and_then(|count| count.parse::<u32>().ok()) != Some(container.attempt) {
        wrong(format!("its count of restarts is {:?}, its attempt {}", of("restartCount"), container.attempt));
    }
    if of("terminationMessagePolicy").is_none() || of("terminationMessagePath").is_none() {
        wrong("it is not told where its last words are".into());
    }
    if !container.annotations.contains_key("io.kubernetes.pod.terminationGracePeriod") {
        wrong("its grace period is not there".into());
    }
    let log = format!("{}/{}.log", container.name, container.attempt);
    let folder = place.logs.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid));
    if Path::new(&container.log_path) != folder.join(&log) {
        wrong(format!("its log is {}", container.log_path));
    }
    let link = format!("/var/log/containers/{}_{}_{}-{}.log", pod.name, pod.namespace, container.name, container.id);
    if container.running && !Path::new(&link).exists() {
        wrong(format!("{link} leads nowhere"));
    }
    for (inside, host) in &container.mounts {
        if host.starts_with(&*place.root.to_string_lossy()) && !Path::new(host).exists() {
            wrong(format!("{host} at {inside} is gone"));
        }
    }
}

/// The pod's folder: nothing that upstream would not know, volumes as it rebuilds them from the disk.
fn of_folder(found: &mut Vec<String>, pod: &Path) {
    let mut wrong = |path: &Path, what: &str| found.push(format!("{}: {what}", path.display()));
    if !pod.is_dir() {
        return wrong(pod, "it is missing");
    }
    for entry in names(pod) {
        if !POD.contains(&entry.as_str()) {
            wrong(&pod.join(&entry), "upstream does not know it, and the pod's folder would stay for ever");
        }
    }
    for plugin in names(&pod.join("volumes")) {
        for volume in names(&pod.join("volumes").join(&plugin)) {
            let folder = pod.join("volumes").join(&plugin).join(&volume);
            let wrapped =
                ["secret", "configmap", "projected", "downward-api"].map(|kind| format!("kubernetes.io~{kind}"));
            let marker = pod.join("plugins/kubernetes.io~empty-dir");
            if wrapped.contains(&plugin) {
                if !marker.join(format!("wrapped_{volume}")).join("ready").is_file() {
                    wrong(&folder, "it is not marked ready");
                }
                if let Some(problem) = atomic_writer(&folder) {
                    wrong(&folder, &problem);
                }
            } else if plugin == "kubernetes.io~empty-dir" && !marker.join(&volume).join("ready").is_file() {
                wrong(&folder, "it is not marked ready: it would be emptied");
            }
        }
    }
    for container in names(&pod.join("containers")) {
        for message in names(&pod.join("containers").join(&container)) {
            let file = pod.join("containers").join(&container).join(&message);
            let hex = message.len() == 8 && message.bytes().all(|byte| byte.is_ascii_hexdigit());
            let mode = std::fs::metadata(&file).map(|file| file.permissions().mode() & 0o777).unwrap_or_default();
            if !hex || mode != 0o666 {
                wrong(&file, &format!("no file for last words, mode {mode:o}"));
            }
        }
    }
}

/// `..data` leads to one folder with a date in its name, and every other name leads through it.
fn atomic_writer(folder: &Path) -> Option<String> {
    let data = match std::fs::read_link(folder.join("..data")) {
        Ok(data) => data.to_string_lossy().into_owned(),
        Err(error) => return Some(format!("..data: {error}")),
    };
    let is_date = data.starts_with("..20") && data.len() > 22 && data.as_bytes().get(21) == Some(&b'.');
    if !is_date || !folder.join(&data).is_dir() {
        return Some(format!("..data leads to {data}"));
    }
    for name in names(folder) {
        if name.starts_with("..") {
            if name != "..data" && name != data {
                return Some(format!("{name} was left behind"));
            }
        } else if std::fs::read_link(folder.join(&name)).ok() != Some(Path::new("..data").join(&name)) {
            return Some(format!("{name} does not lead through ..data"));
        }
    }
    None
}

fn of_root(found: &mut Vec<String>, place: &Place, wanted: &[ExpectedPod]) {
    for name in names(&place.root) {
        if !ROOT.contains(&name.as_str()) {
            found.push(format!("{name} in the root directory is not upstream's"));
        }
    }
    for uid in names(&place.root.join("pods")) {
        if !wanted.iter().any(|pod| pod.uid == uid) {
            found.push(format!("pods/{uid} is of no pod"));
        }
    }
    for file in ["allocated_pods_state", "actuated_pods_state"] {
        // A missing one is a fresh node's.
        let Ok(content) = std::fs::read_to_string(place.root.join(file)) else { continue };
        match checkpoints::read_resources(&content) {
            Ok(entries) => {
                for uid in entries.as_object().into_iter().flatten().map(|(uid, _)| uid) {
                    if !wanted.iter().any(|pod| pod.uid == *uid) {
                        found.push(format!("{file} has {uid}, which is of no pod"));
                    }
                }
            }
            Err(error) => found.push(format!("{file}: upstream would not start: {error:#}")),
        }
    }
    // Whoever registers a plugin is looked for here: a socket of nobody costs upstream a dial for each pass. The kubelet's own are
    // bound anew by the next one.
    for folder in ["plugins_registry", "pod-resources", "device-plugins"] {
        for name in names(&place.root.join(folder)) {
            if folder != "plugins_registry" && name == "kubelet.sock" {
                continue;
            }
            let socket = std::fs::symlink_metadata(place.root.join(folder).join(&name));
            if socket.is_ok_and(|file| file.file_type().is_socket()) {
                found.push(format!("{folder}/{name} is a socket that nobody serves"));
            }
        }
    }
}

/// Pods' cgroups are where upstream looks for them, and no others.
fn of_cgroups(found: &mut Vec<String>, place: &Place, wanted: &[ExpectedPod]) {
    let mut seen = BTreeSet::new();
    for cgroup in cgroups::below(&place.cgroup) {
        let cgroup = format!("/{cgroup}");
        let Some((above, uid)) = cgroup.rsplit_once("/pod") else { continue };
        if uid.contains('/') {
            continue;
        }
        if !["/kubepods", "/kubepods/burstable", "/kubepods/besteffort"].contains(&above) {
            found.push(format!("cgroup {cgroup} is not where upstream looks"));
        }
        seen.insert(uid.to_owned());
    }
    let uids: BTreeSet<String> = wanted.iter().map(|pod| pod.uid.clone()).collect();
    for uid in seen.difference(&uids) {
        found.push(format!("cgroup pod{uid} is of no pod"));
    }
    for uid in uids.difference(&seen) {
        found.push(format!("cgroup pod{uid} is missing"));
    }
}

fn of_logs(found: &mut Vec<String>, place: &Place, wanted: &[ExpectedPod]) {
    for name in names(&place.logs) {
        let uid = name.rsplit('_').next().unwrap_or_default();
        if !wanted.iter().any(|pod| pod.uid == uid) {
            found.push(format!("log folder {name} is of no pod"));
        }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
