//! The pods API on a node: an agent is told of each pod and each change of its status, in Kubernetes' own form.

use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_testkit::{LONG, Pod, eventually};
use bulkhead_tests::lab;
use kubelet_pods_api::v1alpha1::pods_client::PodsClient;
use kubelet_pods_api::v1alpha1::{EventType, GetPodRequest, ListPodsRequest, WatchPodsEvent, WatchPodsRequest};
use prost::Message;
use serde_json::json;
use tonic::{Code, Streaming};

/// Of core/v1 Pod what is looked at here.
#[derive(Clone, PartialEq, Message)]
struct Told {
    #[prost(message, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(message, tag = "3")]
    status: Option<PodStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct PodStatus {
    #[prost(string, tag = "1")]
    phase: String,
}

/// Name, UID and phase.
fn told(bytes: &[u8]) -> Result<(String, String, String)> {
    let Told { metadata, status } = Told::decode(bytes)?;
    let metadata = metadata.context("no metadata")?;
    ensure!(metadata.namespace == "default", "{metadata:?}");
    Ok((metadata.name, metadata.uid, status.unwrap_or_default().phase))
}

/// Events up to one of that kind, pod and phase: what was told of it.
async fn until(
    events: &mut Streaming<WatchPodsEvent>,
    kind: EventType,
    pod: &str,
    phase: &str,
) -> Result<Vec<(EventType, String)>> {
    let mut seen = Vec::new();
    loop {
        let next = tokio::time::timeout(LONG, events.message()).await;
        let Some(event) = next.with_context(|| format!("{kind:?} {pod} {phase}: {seen:?}"))?? else {
            bail!("{seen:?}")
        };
        if event.r#type() == EventType::InitialSyncComplete {
            ensure!(event.pod.is_empty());
            seen.push((event.r#type(), String::new()));
            continue;
        }
        let (name, _, now) = told(&event.pod)?;
        seen.push((event.r#type(), name.clone()));
        if (event.r#type(), name.as_str(), now.as_str()) == (kind, pod, phase) {
            return Ok(seen);
        }
    }
}

#[test]
fn an_agent_follows_the_pods_of_its_node() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").config("featureGates", json!({"PodsAPI": true})).start()?;
    node.write(&Pod::idle("one"))?;
    node.wait_running("one", 1)?;
    let state = node.wait_pod("one", "it runs", |pod| pod.phase == "Running")?;
    let socket = node.root_dir().join("pods-api/pods-api.sock");
    eventually("the socket is there", LONG, || Ok(std::fs::metadata(&socket).map(drop)?))?;
    // As upstream's: root's alone by its folder.
    let (file, folder) = (std::fs::metadata(&socket)?, std::fs::metadata(socket.parent().context("no folder")?)?);
    ensure!((file.uid(), file.mode() & 0o7777) == (0, 0o755), "{:o}", file.mode());
    ensure!((folder.uid(), folder.mode() & 0o7777) == (0, 0o750), "{:o}", folder.mode());

    let (one, two) = (node.pod_name("one"), node.pod_name("two"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = PodsClient::new(bulkhead_ipc::client::channel(&socket));
        let mut events = client.watch_pods(WatchPodsRequest {}).await?.into_inner();
        let first = until(&mut events, EventType::Added, &one, "Running").await?;
        ensure!(first.len() == 1, "{first:?}");
        let listed = client.list_pods(ListPodsRequest {}).await?.into_inner().pods;
        let [only] = &listed[..] else { bail!("{} pods", listed.len()) };
        ensure!(told(only)? == (one.clone(), state.uid.clone(), "Running".into()), "{:?}", told(only)?);
        let got = client.get_pod(GetPodRequest { pod_uid: state.uid.clone() }).await?.into_inner().pod;
        ensure!(got == *only, "another pod");
        let none = client.get_pod(GetPodRequest { pod_uid: "nobody".into() }).await;
        let none = none.err().context("there is no such pod")?;
        ensure!((none.code(), none.message()) == (Code::NotFound, "pod with UID nobody not found"), "{none:?}");

        node.write(&Pod::idle("two"))?;
        let began = until(&mut events, EventType::Modified, &two, "Running").await?;
        ensure!(
            began[0].0 == EventType::InitialSyncComplete && began.contains(&(EventType::Added, two.clone())),
            "{began:?}"
        );
        node.remove("two")?;
        let ended = until(&mut events, EventType::Deleted, &two, "").await?;
        ensure!(ended.iter().all(|(kind, name)| *name != two || *kind != EventType::Added), "{ended:?}");
        Ok(())
    })?;
    let output = node.ctl_command(&["privileges"])?.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    node.finish()
}
