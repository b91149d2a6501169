//! Whose a pod of the runtime is. Several nodes may share a machine, even a runtime; only what this instance made, or
//! what lies where it would have made it, may be ended or tidied up by it.
//!
//! The containers' log paths tell; a sandbox without containers is asked for its own configuration once (CRI's verbose
//! status, in the form that containerd gives it). A runtime that does not tell leaves the pods that this instance knows
//! by its records or by their cgroup, and no others.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bulkhead_config::NodeConfig;
use bulkhead_cri::{CriClient, v1};
use bulkhead_types::{PodUid, SandboxId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use kubelet_edges::volnetd::Volnetd;
use kubelet_model::pod::model::{RunState, RuntimePod, SandboxState};

/// To whom a pod or a sandbox belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Ours,
    /// Another instance's, or no kubelet's at all.
    Foreign,
    /// Nothing says so: not touched either.
    Unclear,
}

/// Where everything of this instance's pods is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedCgroups {
    pub pod_logs_dir: PathBuf,
    /// Above all pods' cgroups, as each driver calls it. None: `cgroupsPerQOS` is off, and pods are put into a cgroup that
    /// others use, too.
    pub pods_cgroups: Option<[PathBuf; 2]>,
}

impl OwnedCgroups {
    pub fn of(config: &NodeConfig) -> Self {
        OwnedCgroups {
            pod_logs_dir: config.paths.pod_logs_dir.clone(),
            pods_cgroups: config
                .kubelet
                .cgroups_per_qos()
                .then(|| ["cgroupfs", "systemd"].map(|driver| config.pods_cgroup_of(driver).into())),
        }
    }

    /// Pure. None: its containers do not tell.
    fn of_containers(&self, pod: &RuntimePod) -> Option<Owner> {
        let mut logs = pod.containers.iter().map(|c| c.log_path.as_str()).filter(|path| !path.is_empty()).peekable();
        logs.peek()?;
        Some(if logs.all(|path| lies_below(path, &self.pod_logs_dir)) { Owner::Ours } else { Owner::Foreign })
    }

    /// Pure. `known`: this instance has had a pod of that uid.
    fn of_sandbox(&self, origin: Option<&Origin>, known: bool) -> Owner {
        let Some(origin) = origin else { return if known { Owner::Ours } else { Owner::Unclear } };
        let below = |pods: &[PathBuf; 2]| pods.iter().any(|pods| lies_below(&origin.cgroup_parent, pods));
        let in_cgroup = self.pods_cgroups.as_ref().is_none_or(below);
        if in_cgroup && lies_below(&origin.log_directory, &self.pod_logs_dir) { Owner::Ours } else { Owner::Foreign }
    }

    /// Pure. `sandboxes`: what is known of single ones. None: not all of them have been asked yet.
    fn of_pod(&self, pod: &RuntimePod, sandboxes: impl Fn(&SandboxId) -> Option<Owner>) -> Option<Owner> {
        if let Some(owner) = self.of_containers(pod) {
            return Some(owner);
        }
        let owners: Option<Vec<Owner>> = pod.sandboxes.iter().map(|s| sandboxes(&s.id)).collect();
        let owners = owners?;
        Some(if owners.contains(&Owner::Foreign) {
            Owner::Foreign
        } else if owners.is_empty() || owners.contains(&Owner::Unclear) {
            Owner::Unclear
        } else {
            Owner::Ours
        })
    }
}

/// An absolute path without detours, really below `folder`.
fn lies_below(path: &str, folder: &Path) -> bool {
    let path = Path::new(path);
    let plain = !path.components().any(|part| part == std::path::Component::ParentDir);
    plain && path != folder && path.starts_with(folder)
}

/// What a sandbox was made with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    pub log_directory: String,
    pub cgroup_parent: String,
}

impl Origin {
    /// From the verbose part of CRI's PodSandboxStatus. None: the runtime does not tell, or not in this form.
    pub fn of(info: &BTreeMap<String, String>) -> Option<Origin> {
        #[derive(serde::Deserialize)]
        struct Info {
            config: Config,
        }
        #[derive(serde::Deserialize)]
        struct Config {
            #[serde(default)]
            log_directory: String,
            linux: Option<Linux>,
        }
        #[derive(serde::Deserialize)]
        struct Linux {
            #[serde(default)]
            cgroup_parent: String,
        }
        let Info { config } = serde_json::from_str(info.get("info")?).ok()?;
        let cgroup_parent = config.linux.map(|linux| linux.cgroup_parent).unwrap_or_default();
        Some(Origin { log_directory: config.log_directory, cgroup_parent })
    }
}

/// Asks, and remembers the answers. Shared by reference.
#[derive(Debug)]
pub struct Ownership {
    owned_cgroups: OwnedCgroups,
    cri: CriClient,
    volnetd: Volnetd,
    memory: Mutex<Memory>,
    /// One round of questions at a time.
    asking: AtomicBool,
    learned: Notify,
}

#[derive(Debug, Default)]
struct Memory {
    /// Answers, as long as the sandbox exists: what it was made with does not change.
    sandboxes: HashMap<SandboxId, Owner>,
    /// Pods that were ours by our own records.
    known: HashSet<PodUid>,
    /// Pods left alone of which the log says so.
    told: HashSet<PodUid>,
}

impl Ownership {
    /// `known`: pods of this instance's earlier lives.
    pub fn new(owned_cgroups: OwnedCgroups, cri: CriClient, volnetd: Volnetd, known: HashSet<PodUid>) -> Self {
        let memory = Mutex::new(Memory { known, ..Memory::default() });
        Ownership { owned_cgroups, cri, volnetd, memory, asking: AtomicBool::new(false), learned: Notify::new() }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Plain data, whole at every step.
        self.memory.lock()
    }

    /// This instance was told to run the pod.
    pub fn knows(&self, uid: &PodUid) {
        self.memory().known.insert(uid.clone());
    }

    /// What is known already. None: the runtime has to be asked first.
    pub fn decided(&self, pod: &RuntimePod) -> Option<Owner> {
        let memory = self.memory();
        self.owned_cgroups.of_pod(pod, |id| memory.sandboxes.get(id).copied())
    }

    /// Asks the runtime where needed. While it does not answer, the pod is unclear.
    pub async fn of(&self, pod: &RuntimePod) -> Owner {
        let owner = match self.decided(pod) {
            Some(owner) => owner,
            None => {
                self.ask(pod).await;
                match self.decided(pod) {
                    Some(owner) => owner,
                    None => return Owner::Unclear,
                }
            }
        };
        self.tell(pod, owner);
        owner
    }

    async fn ask(&self, pod: &RuntimePod) {
        let Some(uid) = &pod.uid else { return };
        for sandbox in &pod.sandboxes {
            if self.memory().sandboxes.contains_key(&sandbox.id) {
                continue;
            }
            let request = v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox.id.to_string(), verbose: true };
            let origin = match self.cri.pod_sandbox_status(request).await {
                Ok(reply) => Origin::of(&reply.info),
                Err(error) => {
                    // Gone meanwhile, or asked for again later.
                    tracing::debug!(pod_uid = %uid, sandbox = %sandbox.id, %error, "whose sandbox it is could not be asked");
                    return;
                }
            };
            let known = match &origin {
                Some(_) => false,
                None if self.memory().known.contains(uid) => true,
                None => match self.volnetd.list_pod_cgroups().await {
                    Ok(pods) => pods.contains(uid),
                    Err(error) => {
                        tracing::debug!(pod_uid = %uid, "pods' cgroups could not be listed: {error}");
                        return;
                    }
                },
            };
            let owner = self.owned_cgroups.of_sandbox(origin.as_ref(), known);
            self.memory().sandboxes.insert(sandbox.id.clone(), owner);
        }
    }

    fn tell(&self, pod: &RuntimePod, owner: Owner) {
        let Some(uid) = &pod.uid else { return };
        let why = match owner {
            Owner::Ours => return,
            Owner::Foreign => "its logs or its cgroup are not below this node's",
            Owner::Unclear => "the runtime does not tell where it belongs, and this node has no record of it",
        };
        if self.memory().told.insert(uid.clone()) {
            tracing::info!(pod_uid = %uid, name = pod.name, namespace = pod.namespace, "ignoring pod that another kubelet runs: {why}");
        }
    }

    /// Finds out about several, in the background; [`Self::learned`] wakes when there is something new.
    pub fn learn(self: &Arc<Self>, pods: Vec<Arc<RuntimePod>>) {
        if pods.is_empty() || self.asking.swap(true, Ordering::Relaxed) {
            return;
        }
        let this = self.clone();
        tokio::spawn(async move {
            let mut news = false;
            for pod in pods {
                this.of(&pod).await;
                news |= this.decided(&pod).is_some();
            }
            this.asking.store(false, Ordering::Relaxed);
            // Without news there would be no end of asking: housekeeping comes back by itself.
            if news {
                this.learned.notify_one();
            }
        });
    }

    /// Wakes once after [`Self::learn`].
    pub async fn learned(&self) {
        self.learned.notified().await;
    }

    /// Forgets pods that are neither in the runtime nor desired any more.
    pub fn retain(&self, runtime: &[(PodUid, Arc<RuntimePod>)], wanted: &HashSet<PodUid>) {
        let pods: HashSet<&PodUid> = runtime.iter().map(|(uid, _)| uid).collect();
        let sandboxes: HashSet<&SandboxId> =
            runtime.iter().flat_map(|(_, pod)| pod.sandboxes.iter().map(|s| &s.id)).collect();
        let mut memory = self.memory();
        memory.sandboxes.retain(|id, _| sandboxes.contains(id));
        memory.known.retain(|uid| pods.contains(uid) || wanted.contains(uid));
        memory.told.retain(|uid| pods.contains(uid));
    }
}

/// Something of it has ended: only then is there anything to tidy up.
pub fn has_dead_parts(pod: &RuntimePod) -> bool {
    pod.containers.iter().any(|c| c.state != RunState::Running)
        || pod.sandboxes.iter().any(|s| s.state == SandboxState::NotReady)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_model::fixtures::{container_status, sandbox_status, uid};

    fn owned_cgroups() -> OwnedCgroups {
        OwnedCgroups {
            pod_logs_dir: "/var/log/pods".into(),
            pods_cgroups: Some(["/a/kubepods".into(), "/a.slice/a-kubepods.slice".into()]),
        }
    }

    #[test]
    fn sandboxes_by_what_they_were_made_with() {
        const LOGS: &str = "/var/log/pods/n_p_u";
        const CGROUP: &str = "/a/kubepods/besteffort/podu";
        #[rustfmt::skip]
        let cases = [
            // log directory, cgroup, known, whose
            (Some((LOGS, CGROUP)),                          false, Owner::Ours),
            (Some((LOGS, "/a.slice/a-kubepods.slice/a-kubepods-podu.slice")), false, Owner::Ours),
            (Some((LOGS, "/b/kubepods/podu")),              false, Owner::Foreign),
            (Some((LOGS, "/b/kubepods/podu")),              true,  Owner::Foreign),
            (Some(("/other/logs/n_p_u", CGROUP)),           false, Owner::Foreign),
            (Some(("/var/log/pods-b/n_p_u", CGROUP)),       false, Owner::Foreign),
            (Some(("/var/log/pods", CGROUP)),               false, Owner::Foreign),
            (Some(("/var/log/pods/../x/n_p_u", CGROUP)),    false, Owner::Foreign),
            (Some((LOGS, "/a/kubepods")),                   false, Owner::Foreign),
            (Some((LOGS, "")),                              false, Owner::Foreign),
            (Some(("", "")),                                true,  Owner::Foreign),
            (None,                                          false, Owner::Unclear),
            (None,                                          true,  Owner::Ours),
        ];
        for (made, known, expected) in cases {
            let origin = made.map(|(log_directory, cgroup_parent)| Origin {
                log_directory: log_directory.into(),
                cgroup_parent: cgroup_parent.into(),
            });
            assert_eq!(owned_cgroups().of_sandbox(origin.as_ref(), known), expected, "{made:?} {known}");
        }
        let shared = OwnedCgroups { pods_cgroups: None, ..owned_cgroups() };
        let origin = Origin { log_directory: LOGS.into(), cgroup_parent: "/".into() };
        assert_eq!(shared.of_sandbox(Some(&origin), false), Owner::Ours);
    }

    #[test]
    fn pods_by_their_containers_and_else_by_their_sandboxes() {
        use Owner::{Foreign, Ours, Unclear};
        type Case<'a> = (&'a [&'a str], &'a [Option<Owner>], Option<Owner>);
        #[rustfmt::skip]
        let cases: &[Case<'_>] = &[
            // log paths of containers, owners of sandboxes, whose
            (&["/var/log/pods/n_p_u/c/0.log"],                           &[None],                    Some(Ours)),
            (&["/var/log/pods/n_p_u/c/0.log"],                           &[Some(Foreign)],           Some(Ours)),
            (&["/other/n_p_u/c/0.log"],                                  &[Some(Ours)],              Some(Foreign)),
            (&["/var/log/pods/n_p_u/c/0.log", "/other/n_p_u/c/0.log"],   &[None],                    Some(Foreign)),
            (&[""],                                                      &[Some(Ours)],              Some(Ours)),
            (&[""],                                                      &[None],                    None),
            (&[],                                                        &[None],                    None),
            (&[],                                                        &[Some(Ours), None],        None),
            (&[],                                                        &[Some(Ours), Some(Ours)],  Some(Ours)),
            (&[],                                                        &[Some(Ours), Some(Foreign)], Some(Foreign)),
            (&[],                                                        &[Some(Ours), Some(Unclear)], Some(Unclear)),
            (&[],                                                        &[],                        Some(Unclear)),
        ];
        for (logs, owners, expected) in cases {
            let mut pod = RuntimePod { uid: Some(uid()), ..RuntimePod::default() };
            for log in *logs {
                let mut status = container_status("c", RunState::Running, 0);
                status.log_path = (*log).into();
                pod.containers.push(status);
            }
            for index in 0..owners.len() {
                pod.sandboxes.push(sandbox_status(&format!("s{index}"), 0, SandboxState::Ready));
            }
            let known = |id: &SandboxId| owners[id.as_str()[1..].parse::<usize>().unwrap()];
            assert_eq!(owned_cgroups().of_pod(&pod, known), *expected, "{logs:?} {owners:?}");
        }
    }

    #[test]
    fn the_origin_by_the_info_of_the_runtime() {
        let info = |text: &str| BTreeMap::from([("info".to_owned(), text.to_owned())]);
        let told = r#"{"pid":7,"config":{"metadata":{"name":"p"},"log_directory":"/l/n_p_u","linux":{"cgroup_parent":"/c/podu"}}}"#;
        let expected = Origin { log_directory: "/l/n_p_u".into(), cgroup_parent: "/c/podu".into() };
        assert_eq!(Origin::of(&info(told)), Some(expected));
        assert_eq!(Origin::of(&info(r#"{"config":{}}"#)), Some(Origin::default()));
        for nothing in ["", "{}", "null", "[1]", r#"{"config":null}"#, r#"{"config":{"log_directory":1}}"#] {
            assert_eq!(Origin::of(&info(nothing)), None, "{nothing}");
        }
        assert_eq!(Origin::of(&BTreeMap::new()), None);
    }

    #[test]
    fn dead_parts() {
        let mut pod = RuntimePod::default();
        pod.sandboxes.push(sandbox_status("s", 0, SandboxState::Ready));
        pod.containers.push(container_status("c", RunState::Running, 0));
        assert!(!has_dead_parts(&pod));
        pod.containers.push(container_status("c", RunState::Exited, 0));
        assert!(has_dead_parts(&pod));
    }
}
