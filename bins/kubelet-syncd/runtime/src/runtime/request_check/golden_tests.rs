//! What upstream's kubelet was recorded asking its runtime for passes for the pods that it was asked for.

use std::path::{Path, PathBuf};

use bulkhead_cri::v1;
use kubelet_model::v1::Pod;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::{Value, json};

use super::*;
use kubelet_model::node_facts::HostFacts;
use kubelet_model::pod::spec::find_container;

fn crates(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path)
}

fn definitions() -> DescriptorPool {
    let folder = crates("shared/cri/proto");
    let files = protox::compile([folder.join("runtime/v1/api.proto")], [&folder]).unwrap();
    DescriptorPool::from_file_descriptor_set(files).unwrap()
}

/// A request as it stands in a recording.
fn request<M: prost::Message + Default>(pool: &DescriptorPool, name: &str, recorded: &Value) -> M {
    let kind = pool.get_message_by_name(&format!("runtime.v1.{name}")).unwrap();
    let message = DynamicMessage::deserialize(kind, recorded).unwrap();
    M::decode(&*message.encode_to_vec()).unwrap()
}

/// The pod as upstream's kubelet had it.
fn pod_of(recording: &Value, sandbox: &v1::PodSandboxConfig) -> Pod {
    let mut pod = recording.get("pod").or_else(|| recording.get("mirror")).unwrap().clone();
    pod["metadata"]["uid"] = json!(sandbox.metadata.as_ref().unwrap().uid);
    pod["metadata"]["annotations"] = json!(sandbox.annotations);
    if let Some(ephemeral) = recording.get("ephemeralContainers") {
        pod["spec"]["ephemeralContainers"] = ephemeral.clone();
    }
    serde_json::from_value(pod).unwrap()
}

#[test]
fn upstreams_requests_are_right() {
    let pool = definitions();
    let folder = std::fs::read_dir(crates("tests/golden")).unwrap();
    let files = folder.map(|entry| entry.unwrap().path());
    let (mut sandboxes, mut containers) = (0, 0);
    for file in files.filter(|path| path.extension().is_some_and(|e| e == "json")) {
        let recording: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        for call in recording["cri"].as_array().into_iter().flatten() {
            let facts = NodeFacts::new(HostFacts { memory_capacity: 24 << 30, ..HostFacts::default() });
            let runtime = PodRuntime::default();
            let root = ImageUser { uid: Some(0), username: String::new() };
            let check = |config: &v1::PodSandboxConfig, then: &dyn Fn(&RequestContext<'_>) -> Checked| {
                let pod = pod_of(&recording, config);
                let identity = PodIdentity::of(&pod).unwrap();
                let cgroup_parent = config.linux.as_ref().unwrap().cgroup_parent.as_str();
                let known =
                    RequestContext { pod: &pod, identity: &identity, facts: &facts, cgroup_parent, runtime: &runtime };
                assert_eq!(then(&known), Ok(()), "{}", file.display());
            };
            match call["method"].as_str().unwrap() {
                "RunPodSandbox" => {
                    let asked: v1::RunPodSandboxRequest = request(&pool, "RunPodSandboxRequest", &call["request"]);
                    let config = asked.config.unwrap();
                    check(&config, &|known| sandbox(known, &config, &asked.runtime_handler));
                    sandboxes += 1;
                }
                "CreateContainer" => {
                    let asked: v1::CreateContainerRequest = request(&pool, "CreateContainerRequest", &call["request"]);
                    let (config, in_sandbox) = (asked.config.unwrap(), asked.sandbox_config.unwrap());
                    check(&in_sandbox, &|known| {
                        let name = &config.metadata.as_ref().unwrap().name;
                        let starts = find_container(known.pod, name).unwrap().1;
                        let context = config.linux.as_ref().unwrap().security_context.as_ref().unwrap();
                        let target = context.namespace_options.as_ref().unwrap().target_id.as_str();
                        let target = Some(target).filter(|target| !target.is_empty());
                        container(
                            known,
                            &Starting {
                                container: &starts,
                                image_user: &root,
                                options: &RunContainerOptions::default(),
                                target,
                            },
                            &config,
                            &in_sandbox,
                        )
                    });
                    containers += 1;
                }
                _ => {}
            }
        }
    }
    assert!(sandboxes > 30 && containers > 40, "{sandboxes} sandboxes and {containers} containers");
}
