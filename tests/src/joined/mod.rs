//! A node that is a member of a cluster, in one vocabulary for all tests: [`Member`] is both, and its pods; the functions are
//! for tests that keep cluster and node apart.
//!
//! | module | what |
//! |---|---|
//! | [`claims`] | claims of devices, and pods that have them |
//! | [`pods`] | objects to create |
//! | [`status`] | what the API server shows of node and pods |
//! | [`events`] | the events about an object |
//! | [`requests`] | the requests that the API server got |
//! | [`versions`] | all versions that there were of a pod |

pub mod claims;
pub mod events;
pub mod pods;
pub mod requests;
pub mod status;
pub mod versions;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::{Cluster, IDLE, LONG, Lab, Node, NodeBuilder, eventually};
use serde_json::{Value, json};

pub use events::{events, reasons, wait_event, wait_events};
pub use pods::{config_map, create, ends_on_sign, give_sign, idle, pod, secret};
pub use requests::{busiest, is_list, is_no_storm, process_of};
pub use status::{condition, is_ready, is_true, main_of, wait_node, wait_phase, wait_ready, waiting};
pub use versions::{never_back, never_back_but_times, never_stirred, one_life};

/// The node of most tests.
pub const NODE: &str = "alpha";
/// The namespace of most tests.
pub const NAMESPACE: &str = "default";

/// See the module.
#[derive(Debug)]
pub struct Member {
    pub cluster: Cluster,
    pub node: Node,
}

impl Member {
    /// A cluster with `objects` in it, and a node that has joined it.
    ///
    /// # Errors
    /// One of them did not start, or an object was refused.
    pub fn start(lab: &Lab, objects: &[Value], configure: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Result<Self> {
        let cluster = lab.cluster()?;
        for object in objects {
            cluster.create(object)?;
        }
        let node = configure(lab.node(NODE).joins(&cluster)?).start()?;
        Ok(Self { cluster, node })
    }

    /// The process that decides dies; waits until the next one knows the pod and that it runs.
    ///
    /// # Errors
    /// What is known of it instead.
    pub fn decide_anew(&mut self, pod: &str) -> Result<()> {
        self.node.kill_daemon("kubelet-syncd")?;
        self.node.wait_healthy()?;
        let agent = self.node.agent()?;
        eventually(&format!("{pod} is known again"), LONG, || {
            let all = agent.pods()?;
            let found = all.iter().find(|one| one.name == pod).context("it is not known")?;
            ensure!(found.phase == "Running", "{} {}", found.phase, found.why);
            Ok(())
        })
    }

    /// Creates a pod that is bound to the node: what `spec` says, with one container `main` that idles unless it says
    /// otherwise.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn create(&self, name: &str, spec: &Value) -> Result<Value> {
        self.create_with(&json!({"name": name}), spec)
    }

    /// The same with any metadata.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn create_with(&self, metadata: &Value, spec: &Value) -> Result<Value> {
        let (mut metadata, mut spec) = (metadata.clone(), spec.clone());
        metadata["namespace"] = json!(NAMESPACE);
        spec["nodeName"] = json!(NODE);
        spec["terminationGracePeriodSeconds"] = json!(1);
        if spec["containers"].is_null() {
            spec["containers"] = json!([{"name": "main"}]);
        }
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                if container["image"].is_null() {
                    container["image"] = json!(self.node.image());
                }
                if container["command"].is_null() {
                    container["command"] = json!(["sh", "-c", IDLE]);
                }
            }
        }
        self.cluster.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
    }

    /// Waits until the API server shows the pod as wanted.
    ///
    /// # Errors
    /// How it shows the pod.
    pub fn wait(&self, name: &str, what: &str, wanted: impl FnMut(&Value) -> bool) -> Result<Value> {
        self.cluster.wait_for("pods", NAMESPACE, name, what, wanted)
    }

    /// Waits until the pod is ready.
    ///
    /// # Errors
    /// As [`Member::wait`].
    pub fn wait_ready(&self, name: &str) -> Result<Value> {
        wait_ready(&self.cluster, name)
    }

    /// Waits until a container waits for `reason`; gives the message.
    ///
    /// # Errors
    /// As [`Member::wait`].
    pub fn wait_waiting(&self, name: &str, container: &str, reason: &str) -> Result<String> {
        let mut message = String::new();
        self.wait(name, reason, |pod| match waiting(pod, container) {
            Some((seen, text)) if seen == reason => {
                message = text;
                true
            }
            _ => false,
        })?;
        Ok(message)
    }

    /// Waits until the pod has ended; gives the log of a container.
    ///
    /// # Errors
    /// As [`Member::wait`], or it failed.
    pub fn output(&self, name: &str, container: &str) -> Result<String> {
        let ended = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let pod = self.wait(name, "it has ended", ended)?;
        let log = self.log(&pod, container)?;
        ensure!(pod["status"]["phase"] == "Succeeded", "{name} failed: {}: {log}", pod["status"]);
        Ok(log)
    }

    /// The latest log of a container, without what the runtime adds to each line.
    ///
    /// # Errors
    /// There is none.
    pub fn log(&self, pod: &Value, container: &str) -> Result<String> {
        let folder = self.node.log_folder_of(pod).join(container);
        let newest = std::fs::read_dir(&folder)?.flatten().map(|entry| entry.path()).max();
        let text = std::fs::read(newest.with_context(|| format!("no log in {}", folder.display()))?)?;
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default());
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    /// Waits for an event about a pod whose message `wanted` accepts; gives the event.
    ///
    /// # Errors
    /// The events that there are.
    pub fn wait_event(&self, name: &str, reason: &str, wanted: impl Fn(&str) -> bool) -> Result<Value> {
        eventually(&format!("there is an event {reason} about {name}"), LONG, || {
            let events = self.events(name)?;
            let fits = |event: &&Value| event["reason"] == reason && event["message"].as_str().is_some_and(&wanted);
            let found = events.iter().find(fits).cloned();
            found.with_context(|| {
                let texts: Vec<_> = events.iter().map(|e| format!("{} {}", e["reason"], e["message"])).collect();
                texts.join("; ")
            })
        })
    }

    /// The events about a pod, those of former pods of its name too.
    ///
    /// # Errors
    /// The server did not answer.
    pub fn events(&self, name: &str) -> Result<Vec<Value>> {
        let mut events = self.cluster.list("events", Some(NAMESPACE))?;
        events.retain(|event| event["involvedObject"]["name"] == name);
        Ok(events)
    }

    /// Standard output of a command in a running container of a pod; it must succeed.
    ///
    /// # Errors
    /// The container does not run, or the command failed.
    pub fn exec(&self, name: &str, container: &str, command: &[&str]) -> Result<String> {
        let (code, output) = self.try_exec(name, container, command)?;
        ensure!(code == 0, "{command:?} in {name}: {code}: {output}");
        Ok(output)
    }

    /// The same with the exit code.
    ///
    /// # Errors
    /// The container does not run.
    pub fn try_exec(&self, name: &str, container: &str, command: &[&str]) -> Result<(i32, String)> {
        let cri = self.node.cri()?;
        let all = cri.containers()?;
        let found = all.iter().rfind(|one| one.pod == name && one.name == container && one.running);
        cri.exec(&found.with_context(|| format!("{name}/{container} does not run"))?.id, command)
    }

    /// Waits until a command in a container says `text`.
    ///
    /// # Errors
    /// What it said instead.
    pub fn wait_exec(&self, name: &str, container: &str, command: &[&str], text: &str) -> Result<()> {
        eventually(&format!("{command:?} in {name} says {text:?}"), LONG, || {
            let (_, output) = self.try_exec(name, container, command)?;
            ensure!(output.trim_end() == text, "{output:?}");
            Ok(())
        })
    }
}
