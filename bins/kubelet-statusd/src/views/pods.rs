//! `/pods` and `/runningpods/`: one pod at a time is asked of kubelet-syncd, written as upstream writes it, and sent.

use std::time::Duration;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::views_client::ViewsClient;
use bulkhead_ipc::syncd::{ObjectPiece, ObjectsRequest, RunningPod, RunningRequest};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::go_json;
use crate::peers::Peers;
use crate::server::answer::{self, Answer, BoxError};

/// For the beginning of an answer: kubelet-syncd may just be starting again.
const BEGIN: Duration = Duration::from_secs(10);
/// For each pod after the first.
const NEXT: Duration = Duration::from_secs(30);
/// A pod that the API server can hold has less: what is more is somebody's mistake, and not held in memory here.
const POD_BYTES_MAX: usize = 16 << 20;

const HEAD: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":"#;

fn client(peers: &Peers) -> ViewsClient<Channel> {
    ViewsClient::new(peers.syncd().channel()).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

/// `/pods`.
pub async fn wanted(peers: &Peers) -> Answer {
    let mut client = client(peers);
    let call = client.objects(CallContext::new().request(ObjectsRequest {}, BEGIN));
    let begin = async {
        let mut pods = Objects { pieces: call.await?.into_inner() };
        // With the first pod it is known that there will be an answer.
        let first = pods.next().await?;
        Ok((pods, first))
    };
    match in_time(BEGIN, begin).await {
        Ok((pods, first)) => list(first, pods),
        Err(status) => unavailable(&status),
    }
}

/// `/runningpods/`.
pub async fn running(peers: &Peers) -> Answer {
    let mut client = client(peers);
    let call = client.running(CallContext::new().request(RunningRequest {}, BEGIN));
    let all = async {
        let mut pods = call.await?.into_inner();
        let mut items = String::new();
        while let Some(pod) = pods.message().await? {
            items.push(if items.is_empty() { '[' } else { ',' });
            go_json::write_pod(&runtime_pod(pod), &mut items);
        }
        items.push_str(if items.is_empty() { "null" } else { "]" });
        Ok(items)
    };
    match in_time(BEGIN, all).await {
        Ok(items) => answer::json(format!("{HEAD}{items}}}\n")),
        Err(status) => unavailable(&status),
    }
}

async fn in_time<T>(limit: Duration, what: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = || Status::deadline_exceeded("kubelet-syncd does not answer");
    tokio::time::timeout(limit, what).await.unwrap_or_else(|_| Err(late()))
}

fn unavailable(status: &Status) -> Answer {
    tracing::warn!(code = ?status.code(), "failed to list pods from kubelet-syncd: {}", status.message());
    answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", status.message()))
}

/// What upstream makes of the runtime's list (`pkg/kubelet/container/runtime.go`, ToAPIPod).
fn runtime_pod(pod: RunningPod) -> Value {
    let containers = pod.containers.into_iter().map(|c| json!({"name": c.name, "image": c.image}));
    let containers: Vec<Value> = containers.collect();
    let containers = if containers.is_empty() { Value::Null } else { containers.into() };
    json!({
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "spec": {"containers": containers},
    })
}

/// The pods that are still to come.
struct Objects {
    pieces: Streaming<ObjectPiece>,
}

impl Objects {
    /// The next pod as upstream writes it; `None` when there is no other.
    async fn next(&mut self) -> Result<Option<String>, Status> {
        let mut pod = ObjectPiece::default();
        loop {
            let Some(piece) = self.pieces.message().await? else {
                let cut = !pod.pod_json.is_empty();
                return if cut { Err(Status::internal("a pod came without its end")) } else { Ok(None) };
            };
            pod.pod_json.extend_from_slice(&piece.pod_json);
            pod.status_json.extend_from_slice(&piece.status_json);
            pod.managed_fields_json.extend_from_slice(&piece.managed_fields_json);
            if pod.pod_json.len() + pod.status_json.len() + pod.managed_fields_json.len() > POD_BYTES_MAX {
                return Err(Status::resource_exhausted(format!("a pod has more than {POD_BYTES_MAX} bytes")));
            }
            if piece.last {
                return written(&pod).map(Some).map_err(|error| Status::internal(format!("a pod is no JSON: {error}")));
            }
        }
    }
}

fn written(parts: &ObjectPiece) -> Result<String, serde_json::Error> {
    let mut pod: Value = serde_json::from_slice(&parts.pod_json)?;
    if let Some(fields) = pod.as_object_mut() {
        fields.retain(|key, _| key != "kind" && key != "apiVersion");
        if !parts.status_json.is_empty() {
            fields.insert("status".to_owned(), serde_json::from_slice(&parts.status_json)?);
        }
    }
    if !parts.managed_fields_json.is_empty()
        && let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.insert("managedFields".to_owned(), serde_json::from_slice(&parts.managed_fields_json)?);
    }
    let mut out = String::with_capacity(parts.pod_json.len() + parts.status_json.len() + 1024);
    go_json::write_pod(&pod, &mut out);
    Ok(out)
}

enum Rest {
    Begin(Option<String>, Objects),
    More(Objects),
    Done,
}

fn list(first: Option<String>, pods: Objects) -> Answer {
    let pieces = stream::unfold(Rest::Begin(first, pods), |rest| async move {
        let end = |text: String| Some((Ok::<_, BoxError>(Bytes::from(text)), Rest::Done));
        match rest {
            Rest::Begin(None, _) => end(format!("{HEAD}null}}\n")),
            Rest::Begin(Some(pod), pods) => Some((Ok(format!("{HEAD}[{pod}").into()), Rest::More(pods))),
            Rest::More(mut pods) => match in_time(NEXT, pods.next()).await {
                Ok(Some(pod)) => Some((Ok(format!(",{pod}").into()), Rest::More(pods))),
                Ok(None) => end("]}\n".to_owned()),
                Err(status) => {
                    tracing::warn!(code = ?status.code(), "kubelet-syncd broke off the list of pods: {}", status.message());
                    Some((Err(status.into()), Rest::Done))
                }
            },
            Rest::Done => None,
        }
    });
    let mut answer = answer::stream(pieces);
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::syncd::RunningContainer;

    #[test]
    fn running_pods_are_upstreams_bytes() {
        let pod = RunningPod {
            uid: "912dbd16-9ecc-46d4-a742-b2a09cb647a1".into(),
            namespace: "default".into(),
            name: "gold-a".into(),
            containers: vec![RunningContainer {
                name: "gold-a".into(),
                image: "sha256:4ea977a6837f0b238472be5bcbf66f06c2e6e92bb59281ee12523322b5f55a9b".into(),
            }],
        };
        let mut item = String::new();
        go_json::write_pod(&runtime_pod(pod), &mut item);
        assert_eq!(format!("{HEAD}[{item}]}}\n"), include_str!("../../tests/golden/runningpods.json"));
        let mut bare = String::new();
        go_json::write_pod(&runtime_pod(RunningPod::default()), &mut bare);
        assert!(bare.contains(r#""containers":null"#), "{bare}");
    }

    #[test]
    fn the_parts_of_a_pod_come_together() {
        let parts = ObjectPiece {
            pod_json: br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"containers":[]}}"#.to_vec(),
            status_json: br#"{"phase":"Running"}"#.to_vec(),
            managed_fields_json: br#"[{"manager":"m"}]"#.to_vec(),
            last: true,
        };
        assert_eq!(
            written(&parts).unwrap(),
            r#"{"metadata":{"name":"a","managedFields":[{"manager":"m"}]},"spec":{"containers":[]},"status":{"phase":"Running"}}"#
        );
        assert!(written(&ObjectPiece { pod_json: b"{".to_vec(), ..parts }).is_err());
    }
}
