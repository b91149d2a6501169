//! `/pods` and `/runningpods/`: one pod at a time is asked of kubelet-syncd, written as upstream writes it, and sent.
//!
//! `/pods` is read as fast as its client takes it. So each list has a connection to kubelet-syncd of its own, where what is not taken
//! holds up nothing else; there are few lists at a time; and one of which nothing is taken ends.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::views_client::ViewsClient;
use bulkhead_ipc::syncd::{ObjectPiece, ObjectsRequest, RunningPod, RunningRequest};
use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _, stream};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tonic::Status;

use super::go_json;
use crate::peers::Peers;
use crate::server::answer::{self, Answer, BoxError};

/// Lists of `/pods` at once, from the question to the last byte taken. Each has a connection to kubelet-syncd and one pod in memory.
const LISTS: usize = 8;
/// Lists of `/runningpods/` that are made at once: the runtime lists all that it has for each.
const RUNNING: usize = 4;
/// How long a list waits for its turn. With [`BEGIN`] it is less than a request of the plain servers has.
const TURN: Duration = Duration::from_secs(4);
/// For the beginning of an answer: kubelet-syncd may just be starting again.
const BEGIN: Duration = Duration::from_secs(10);
/// For each pod after the first.
const NEXT: Duration = Duration::from_secs(30);
/// How long a client may take nothing of a list, whoever it is. The kernel asks for more when a third of what it holds has been taken,
/// which takes a slow client a while.
const STALL: Duration = Duration::from_secs(120);
/// A pod that the API server can hold has less: what is more is somebody's mistake, and not held in memory here.
const POD_BYTES_MAX: usize = 16 << 20;
/// Bytes of a list that are handed on at a time, so that a slow client is seen to take something of a large pod.
const PIECE_BYTES: usize = 16 << 10;
/// Pieces that wait to be taken.
const PIECES: usize = 4;

const HEAD: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":"#;

/// The turns of both lists.
#[derive(Debug)]
pub struct PodLists {
    wanted: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl Default for PodLists {
    fn default() -> Self {
        PodLists { wanted: Arc::new(Semaphore::new(LISTS)), running: Arc::new(Semaphore::new(RUNNING)) }
    }
}

impl PodLists {
    /// `/pods`: every pod that a source wants.
    pub async fn wanted(&self, peers: &Peers) -> Answer {
        let Ok(Ok(turn)) = tokio::time::timeout(TURN, self.wanted.clone().acquire_owned()).await else {
            return too_many();
        };
        let mut client =
            ViewsClient::new(peers.syncd().separate_channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let call = client.objects(CallContext::new().request(ObjectsRequest {}, BEGIN));
        let begin = async {
            let mut pods = Objects { pieces: call.await?.into_inner() };
            // With the first pod it is known that there will be an answer.
            let first = pods.next().await?;
            Ok((pods, first))
        };
        match in_time(BEGIN, begin).await {
            Ok((pods, first)) => list(first, pods, turn),
            Err(status) => unavailable(&status),
        }
    }

    /// `/runningpods/`: what the runtime says that runs.
    pub async fn running(&self, peers: &Peers) -> Answer {
        let Ok(Ok(_turn)) = tokio::time::timeout(TURN, self.running.acquire()).await else { return too_many() };
        let mut client = ViewsClient::new(peers.syncd().channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
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
}

fn too_many() -> Answer {
    tracing::debug!("a list of pods is refused: as many as there may be are being read");
    answer::text(StatusCode::TOO_MANY_REQUESTS, "maximum number of in-flight requests exceeded\n")
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
struct Objects<S> {
    pieces: S,
}

impl<S: Stream<Item = Result<ObjectPiece, Status>> + Unpin> Objects<S> {
    /// The next pod as upstream writes it; `None` when there is no other.
    async fn next(&mut self) -> Result<Option<String>, Status> {
        let mut pod = ObjectPiece::default();
        loop {
            let Some(piece) = self.pieces.try_next().await? else {
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

/// What comes of a list. Without an end it is broken off.
enum Part {
    Text(Bytes),
    Broken(Status),
    End,
}

/// Nobody takes the list.
#[derive(Debug, thiserror::Error)]
#[error("the client took nothing of the list of pods for {}s", STALL.as_secs())]
struct NotTaken;

/// The answer: a task hands the pods on for as long as they are taken, and has the list's turn.
fn list(
    first: Option<String>,
    pods: Objects<impl Stream<Item = Result<ObjectPiece, Status>> + Send + Unpin + 'static>,
    turn: tokio::sync::OwnedSemaphorePermit,
) -> Answer {
    let (to, parts) = mpsc::channel(PIECES);
    tokio::spawn(async move {
        let _turn = turn;
        tokio::select! {
            handed = hand_on(first, pods, &to) => if let Err(error) = handed {
                tracing::debug!("{error}");
            },
            () = to.closed() => {}
        }
    });
    let mut answer = answer::stream(body(parts));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

async fn hand_on(
    first: Option<String>,
    mut pods: Objects<impl Stream<Item = Result<ObjectPiece, Status>> + Unpin>,
    to: &mpsc::Sender<Part>,
) -> Result<(), NotTaken> {
    let Some(mut pod) = first else {
        hand(to, format!("{HEAD}null}}\n")).await?;
        return give(to, Part::End).await;
    };
    let mut before = format!("{HEAD}[");
    loop {
        hand(to, format!("{before}{pod}")).await?;
        before = ",".to_owned();
        pod = match in_time(NEXT, pods.next()).await {
            Ok(Some(pod)) => pod,
            Ok(None) => {
                hand(to, "]}\n".to_owned()).await?;
                return give(to, Part::End).await;
            }
            Err(status) => {
                tracing::warn!(code = ?status.code(), "kubelet-syncd broke off the list of pods: {}", status.message());
                return give(to, Part::Broken(status)).await;
            }
        };
    }
}

async fn hand(to: &mpsc::Sender<Part>, text: String) -> Result<(), NotTaken> {
    let mut text = Bytes::from(text);
    while !text.is_empty() {
        let piece = text.split_to(text.len().min(PIECE_BYTES));
        give(to, Part::Text(piece)).await?;
    }
    Ok(())
}

async fn give(to: &mpsc::Sender<Part>, part: Part) -> Result<(), NotTaken> {
    match tokio::time::timeout(STALL, to.send(part)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(NotTaken),
    }
}

fn body(parts: mpsc::Receiver<Part>) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
    stream::unfold(Some(parts), |parts| async move {
        let mut parts = parts?;
        match parts.recv().await {
            Some(Part::Text(text)) => Some((Ok(text), Some(parts))),
            Some(Part::End) => None,
            Some(Part::Broken(status)) => Some((Err(status.into()), None)),
            None => Some((Err(NotTaken.into()), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::syncd::RunningContainer;
    use futures_util::StreamExt as _;
    use http_body_util::BodyExt as _;
    use tokio::time::Instant;

    /// A list of `count` pods of `size` bytes, which nobody has begun to take; and how many turns are left of one.
    async fn begun(count: usize, size: usize) -> (Answer, Arc<Semaphore>) {
        let turns = Arc::new(Semaphore::new(1));
        let pod_json = format!(r#"{{"metadata":{{"name":"{}"}}}}"#, "x".repeat(size)).into_bytes();
        let piece = ObjectPiece { pod_json, last: true, ..Default::default() };
        let mut pods = Objects { pieces: stream::iter(vec![Ok(piece); count]) };
        let first = pods.next().await.unwrap();
        (list(first, pods, turns.clone().acquire_owned().await.unwrap()), turns)
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_of_which_nothing_is_taken_ends_and_a_slow_client_has_all_of_it() {
        let (answer, turns) = begun(100, 10_000).await;
        let began = Instant::now();
        drop(turns.acquire().await.unwrap());
        assert_eq!(began.elapsed(), STALL, "another has its turn");
        let broken = answer.into_body().collect().await.unwrap_err();
        assert!(broken.is::<NotTaken>(), "{broken}");

        // One pod is large: what is taken of it counts.
        let (answer, turns) = begun(2, 1_000_000).await;
        let mut body = answer.into_body().into_data_stream();
        let mut bytes = Vec::new();
        while let Some(piece) = body.next().await {
            bytes.extend(piece.unwrap());
            tokio::time::sleep(STALL - Duration::from_secs(1)).await;
        }
        let list: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(list["items"].as_array().unwrap().len(), 2);
        assert_eq!(turns.available_permits(), 1);

        let (answer, turns) = begun(100, 10_000).await;
        drop(answer);
        let began = Instant::now();
        drop(turns.acquire().await.unwrap());
        assert_eq!(began.elapsed(), Duration::ZERO, "whoever goes away has no turn any more");
    }

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
