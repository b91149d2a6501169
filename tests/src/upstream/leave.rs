//! What upstream's kubelet leaves behind: running pods made by its recorded requests, their folders and volumes, its
//! checkpoints, and what it last told the API server.

use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use bulkhead_testkit::cri::Cri;
use bulkhead_testkit::{Cluster, LONG, Node, eventually};
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};

use super::checkpoints;
use crate::golden::Recording;
use crate::golden::proxy::encoded;

/// When upstream's kubelet started the pods, as it told the API server.
const STARTED: &str = "2026-11-21T00:41:42Z";
/// The folder of the atomic writer that upstream made at that time.
pub const WRITTEN: &str = "..2026_11_21_00_41_42.1234567890";

/// Where upstream's paths are on a node of a test.
#[derive(Debug, Clone)]
pub struct Place {
    pub root: PathBuf,
    pub logs: PathBuf,
    /// Above `kubepods`.
    pub cgroup: String,
}

/// A pod that upstream's kubelet made.
#[derive(Debug, Clone)]
pub struct Left {
    pub namespace: String,
    pub name: String,
    /// Of sandbox, folder and cgroup: for a static pod not that of its mirror.
    pub uid: String,
    pub sandbox: String,
    /// Container name to id.
    pub containers: BTreeMap<String, String>,
}

impl Place {
    pub fn of(node: &Node) -> Self {
        Self { root: node.root_dir().to_owned(), logs: node.pod_logs(), cgroup: node.cgroup_root().to_owned() }
    }

    /// The folders that upstream's kubelet makes at its start, the root directory shared with all mount namespaces, and
    /// the files that no pod has brought.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn prepare(&self) -> Result<()> {
        for (folder, mode) in [
            ("pods", 0o750),
            ("plugins", 0o750),
            ("plugins_registry", 0o750),
            ("pod-resources", 0o750),
            ("device-plugins", 0o750),
            ("checkpoints", 0o700),
            ("image_manager/pulling", 0o700),
            ("image_manager/pulled", 0o700),
            ("plugins/kubernetes.io/csi", 0o750),
        ] {
            folder_with(&self.root.join(folder), mode)?;
        }
        let none: Option<&str> = None;
        mount(Some(&self.root), &self.root, none, MsFlags::MS_BIND | MsFlags::MS_REC, none).context("binding")?;
        mount(none, &self.root, none, MsFlags::MS_SHARED | MsFlags::MS_REC, none).context("sharing")?;
        for (file, content) in self.unmanaged() {
            write(&self.root.join(file), &content, 0o600)?;
        }
        Ok(())
    }

    /// Upstream's files that nobody but upstream's kubelet has a use for: name and content.
    pub fn unmanaged(&self) -> Vec<(&'static str, String)> {
        let image = json!({"kind": "ImagePulledRecord", "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "lastUpdatedTime": STARTED, "imageRef": "sha256:4ea9", "credentialMapping":
            {"registry.k8s.io/e2e-test-images/busybox": {"nodePodsAccessible": true}}});
        vec![
            ("cpu_manager_state", checkpoints::cpu_manager()),
            ("memory_manager_state", checkpoints::memory_manager()),
            ("device-plugins/kubelet_internal_checkpoint", checkpoints::devices()),
            ("dra_manager_state", json!({"Data": "{}", "Checksum": 2_745_614_147_u32}).to_string()),
            ("dra_health_state", "{}".to_owned()),
            ("graceful_node_shutdown_state", json!({"startTime": STARTED, "endTime": STARTED}).to_string()),
            ("image_manager/pulled/sha256-0a1b", image.to_string()),
            ("plugins/kubernetes.io/csi/example.test/0a1b/vol_data.json", "{\"driverName\":\"example.test\"}\n".into()),
        ]
    }

    /// Makes the pod of a recording: sandbox, containers up to those that run, folders and volumes. `uid`: in place of the
    /// recorded one.
    ///
    /// # Errors
    /// The runtime refuses, or a folder cannot be made.
    pub fn pod(&self, cri: &Cri, recording: &Recording, uid: &str, volumes: &[Volume]) -> Result<Left> {
        let rename = |request: &Value| -> Result<Value> {
            let text = request.to_string();
            let text = text
                .replace(&recording.uid, uid)
                .replace("/var/lib/kubelet/", &format!("{}/", self.root.display()))
                .replace("/var/log/pods/", &format!("{}/", self.logs.display()))
                .replace("\"/kubepods/", &format!("\"{}/kubepods/", self.cgroup));
            Ok(serde_json::from_str(&text)?)
        };
        let pod_folder = self.root.join("pods").join(uid);
        for folder in ["", "volumes", "plugins", "containers"] {
            folder_with(&pod_folder.join(folder), 0o750)?;
        }
        for volume in volumes {
            volume.make(&pod_folder)?;
        }
        let mut left = Left {
            namespace: String::new(),
            name: String::new(),
            uid: uid.to_owned(),
            sandbox: String::new(),
            containers: BTreeMap::new(),
        };
        for (_, call) in &recording.calls {
            let mut request = rename(&call.request)?;
            match call.method.as_str() {
                "RunPodSandbox" => {
                    let metadata = &request["config"]["metadata"];
                    let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
                    (left.namespace, left.name) = (text("namespace"), text("name"));
                    let logs = request["config"]["log_directory"].as_str().context("no log directory")?;
                    folder_with(Path::new(logs), 0o755)?;
                    left.sandbox = cri.replay_sandbox(&encoded("RunPodSandboxRequest", &request)?)?;
                    let address = cri.address(&left.sandbox)?;
                    write(&pod_folder.join("etc-hosts"), &hosts(&address.to_string(), &left.name), 0o644)?;
                }
                "CreateContainer" => {
                    request["pod_sandbox_id"] = json!(left.sandbox);
                    request["config"]["image"]["image"] = json!(bulkhead_testkit::image::BUSYBOX);
                    let container = request["config"]["metadata"]["name"].as_str().context("no name")?.to_owned();
                    for mount in request["config"]["mounts"].as_array().into_iter().flatten() {
                        let host = Path::new(mount["host_path"].as_str().unwrap_or_default());
                        if host.starts_with(pod_folder.join("containers")) {
                            folder_with(&pod_folder.join("containers").join(&container), 0o750)?;
                            write(host, "", 0o666)?;
                        }
                    }
                    folder_with(&self.log_folder(&left).join(&container), 0o755)?;
                    let id = cri.replay_container(&encoded("CreateContainerRequest", &request)?)?;
                    symlink(self.log_folder(&left).join(&container).join("0.log"), log_link(&left, &container, &id))?;
                    left.containers.insert(container.clone(), id.clone());
                    if is_init(recording, &container) {
                        eventually("an init container ends", LONG, || {
                            let all = cri.containers()?;
                            all.iter().find(|one| one.id == id && one.exited).map(|_| ()).context("it runs")
                        })?;
                    }
                }
                // From here on the recorded pod was deleted.
                "StopContainer" | "StopPodSandbox" => break,
                _ => {}
            }
        }
        Ok(left)
    }

    pub fn log_folder(&self, pod: &Left) -> PathBuf {
        self.logs.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid))
    }
}

/// `/var/log/containers/<pod>_<namespace>_<container>-<id>.log`.
pub fn log_link(pod: &Left, container: &str, id: &str) -> PathBuf {
    Path::new("/var/log/containers").join(format!("{}_{}_{container}-{id}.log", pod.name, pod.namespace))
}

/// A volume as upstream has set it up.
#[derive(Debug, Clone)]
pub enum Volume {
    EmptyDir(&'static str),
    /// Plugin, name, whether it is on tmpfs, and files: path, content, mode.
    Files(&'static str, &'static str, bool, Vec<(&'static str, &'static str, u32)>),
}

impl Volume {
    fn make(&self, pod: &Path) -> Result<()> {
        let ready = |name: &str| -> Result<()> {
            let folder = pod.join("plugins/kubernetes.io~empty-dir").join(name);
            folder_with(&folder, 0o750)?;
            write(&folder.join("ready"), "", 0o640)
        };
        match self {
            Volume::EmptyDir(name) => {
                let folder = pod.join("volumes/kubernetes.io~empty-dir").join(name);
                folder_with(&folder, 0o777)?;
                ready(name)
            }
            Volume::Files(plugin, name, in_memory, files) => {
                let folder = pod.join("volumes").join(plugin).join(name);
                folder_with(&folder, 0o777)?;
                if *in_memory {
                    mount(Some("tmpfs"), &folder, Some("tmpfs"), MsFlags::empty(), Some("mode=0777,size=1m"))
                        .context("mounting a tmpfs")?;
                }
                ready(&format!("wrapped_{name}"))?;
                for (path, content, mode) in files {
                    let file = folder.join(WRITTEN).join(path);
                    folder_with(file.parent().context("no folder")?, 0o755)?;
                    write(&file, content, *mode)?;
                    let first = path.split('/').next().unwrap_or(path);
                    symlink(format!("..data/{first}"), folder.join(first))?;
                }
                Ok(symlink(WRITTEN, folder.join("..data"))?)
            }
        }
    }
}

/// What upstream last told the API server of a running pod.
///
/// # Errors
/// The runtime does not know the pod.
pub fn status(cri: &Cri, node_address: &str, recording: &Recording, left: &Left) -> Result<Value> {
    let mut status = recording.statuses.iter().rfind(|one| one["deleting"] != true).context("no status")?.clone();
    let address = cri.address(&left.sandbox)?.to_string();
    let fields = status.as_object_mut().context("a status")?;
    fields.remove("deleting");
    for (field, value) in [
        ("podIP", json!(address)),
        ("podIPs", json!([{"ip": address}])),
        ("hostIP", json!(node_address)),
        ("hostIPs", json!([{"ip": node_address}])),
        ("startTime", json!(STARTED)),
    ] {
        fields.insert(field.to_owned(), value);
    }
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        condition["lastProbeTime"] = Value::Null;
        condition["lastTransitionTime"] = json!(STARTED);
    }
    let image = bulkhead_testkit::image::BUSYBOX;
    let known: BTreeMap<String, bulkhead_testkit::cri::Container> =
        cri.containers()?.into_iter().map(|container| (container.id.clone(), container)).collect();
    for list in ["containerStatuses", "initContainerStatuses"] {
        for container in status[list].as_array_mut().into_iter().flatten() {
            let id = left.containers.get(container["name"].as_str().unwrap_or_default()).context("no container")?;
            let seen = known.get(id).context("the runtime does not know it")?;
            let told = format!("containerd://{id}");
            container["containerID"] = json!(told);
            container["image"] = json!(image);
            container["imageID"] = json!("");
            let at = json!(time_of(seen.started_at));
            if container["state"]["running"].is_object() {
                container["state"]["running"]["startedAt"] = at;
            } else {
                container["state"]["terminated"]["startedAt"] = at.clone();
                container["state"]["terminated"]["finishedAt"] = at;
                container["state"]["terminated"]["containerID"] = json!(told);
            }
        }
    }
    Ok(status)
}

/// Tells the API server so.
///
/// # Errors
/// It refuses.
pub fn tell(cluster: &Cluster, left: &Left, status: &Value) -> Result<Value> {
    cluster.patch_status("pods", &left.namespace, &left.name, &json!({"status": status}))
}

fn is_init(recording: &Recording, container: &str) -> bool {
    let list = recording.pod.as_ref().and_then(|pod| pod["spec"]["initContainers"].as_array());
    list.into_iter().flatten().any(|one| one["name"] == container)
}

/// RFC 3339 of nanoseconds since 1970, whole seconds. Days to dates as in Howard Hinnant's `civil_from_days`.
fn time_of(nanoseconds: i64) -> String {
    let seconds = nanoseconds.div_euclid(1_000_000_000);
    let (days, of_day) = (seconds.div_euclid(86_400) + 719_468, seconds.rem_euclid(86_400));
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) =
        (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn hosts(address: &str, name: &str) -> String {
    let fixed = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
                 fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";
    format!("# Kubernetes-managed hosts file.\n{fixed}{address}\t{name}\n")
}

fn folder_with(path: &Path, mode: u32) -> Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path).with_context(|| path.display().to_string())?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?)
}

fn write(path: &Path, content: &str, mode: u32) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, content).with_context(|| path.display().to_string())?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_305_599, "2026-11-21T23:59:59Z"),
        ] {
            assert_eq!(time_of(seconds * 1_000_000_000 + 5), text);
        }
    }
}
