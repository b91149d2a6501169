//! What happens to containers and sandboxes, told by the runtime: the CRI's own event stream, or containerd's event
//! service on the same socket. Both become the same [`RuntimeEvent`]; neither is trusted for more than a hint.

use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use prost::Message;
use tokio::time::Instant;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};

use crate::client::CriClient;
use crate::containerd::{payload, service};
use crate::error::CriError;
use crate::v1;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeEventKind {
    Created,
    Started,
    /// The exit code, where the event carries one. containerd tells it before its CRI side knows.
    Exited(Option<i32>),
    /// containerd only: it has ended and all its output is written. Some 20 ms after the exit, and still some 20 ms
    /// before the CRI side of containerd 1.6 says so.
    Finished(i32),
    /// A process in it was killed for lack of memory; it need not be the container's own.
    OutOfMemory,
    Deleted,
}

/// Something happened to a container or a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeEvent {
    pub kind: RuntimeEventKind,
    /// Id of a container or of a sandbox: containerd's own events do not tell which.
    pub id: String,
    /// Given by the CRI's events, not by containerd's.
    pub pod_uid: Option<String>,
    /// When the runtime says that it happened.
    pub at: SystemTime,
}

/// A command that somebody ran in a container has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecEnd {
    /// On the host.
    pub pid: u32,
    /// 128 and the signal's number, where one ended it.
    pub exit_code: i32,
}

/// Ends only with an error, as [`EventStream`] does.
pub type ExecEndStream = Pin<Box<dyn Stream<Item = Result<ExecEnd, CriError>> + Send>>;

/// Ends only with an error. An error is also how an unsupported stream shows (`is_unimplemented`): a server that has
/// nothing to say yet answers nothing at all, so there is no telling a quiet stream from a slow one at the start.
pub type EventStream = Pin<Box<dyn Stream<Item = Result<RuntimeEvent, CriError>> + Send>>;

/// Topics of containerd worth waking for. Execs (`/tasks/exec-*`), images, snapshots and content stay on the server.
const CONTAINERD_FILTERS: [&str; 3] = [
    r#"topic~="^/tasks/(start|exit|delete|oom)$""#,
    r#"topic=="/containers/delete""#,
    r#"topic~="^/?sandboxes/(start|exit)$""#,
];

/// Of those the ones that tell of ends.
const CONTAINERD_ENDS: &str = r#"topic~="^/tasks/(exit|delete|oom)$""#;

const TASK_EXIT: &str = "containerd.events.TaskExit";

/// What ends later than this has stood.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);

/// Longer ids are nobody's: the rest of such an event is dropped.
const ID_BYTES_MAX: usize = 128;

impl CriClient {
    /// The CRI's `GetContainerEvents` (containerd 1.7 and newer, CRI-O where it is switched on).
    pub fn container_events(&self) -> EventStream {
        const METHOD: &str = "get_container_events";
        let mut client = self.runtime_client();
        let open = async move { client.get_container_events(Request::new(v1::GetEventsRequest {})).await };
        unless_refused(METHOD, until_error(METHOD, open, |event| from_cri(&event)))
    }

    /// containerd's own events of one containerd namespace (the CRI's is `k8s.io`).
    pub fn containerd_events(&self, namespace: &'static str) -> EventStream {
        const METHOD: &str = "containerd_subscribe";
        let filters = CONTAINERD_FILTERS.iter().map(|f| format!("namespace=={namespace},{f}")).collect();
        until_error(METHOD, self.subscribe(namespace, filters), |envelope| from_containerd(&envelope))
    }

    /// Those of [`CriClient::containerd_events`] that tell of an end or a lack of memory: `Exited`, `Finished` and `OutOfMemory`. For
    /// whoever follows the CRI's events, of which the one of an end comes when all is cleared away.
    pub fn containerd_ends(&self, namespace: &'static str) -> EventStream {
        const METHOD: &str = "containerd_subscribe";
        let filters = vec![format!("namespace=={namespace},{CONTAINERD_ENDS}")];
        until_error(METHOD, self.subscribe(namespace, filters), |envelope| from_containerd(&envelope))
    }

    /// containerd's word of each command in one container that ends from about now on; a runtime without such events
    /// answers with an error, one that does not know the container with nothing. `container`: a `ContainerId`.
    pub fn exec_ends(&self, namespace: &'static str, container: &str) -> ExecEndStream {
        const METHOD: &str = "containerd_subscribe";
        let filter = format!(r#"namespace=={namespace},topic=="/tasks/exit",event.container_id=={container:?}"#);
        until_error(METHOD, self.subscribe(namespace, vec![filter]), |envelope| exec_end(&envelope))
    }

    fn subscribe(
        &self,
        namespace: &'static str,
        filters: Vec<String>,
    ) -> impl Future<Output = Result<tonic::Response<tonic::Streaming<service::Envelope>>, tonic::Status>> + Send + 'static
    {
        let mut events = self.events.clone();
        async move {
            let mut request = Request::new(service::SubscribeRequest { filters });
            request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(namespace));
            events.subscribe(request).await
        }
    }
}

/// The end of a process that is not the container's own. None: something else.
fn exec_end(envelope: &service::Envelope) -> Option<ExecEnd> {
    let any = envelope.event.as_ref().filter(|any| any.type_url.rsplit('/').next() == Some(TASK_EXIT))?;
    let event = payload::TaskExit::decode(any.value.as_slice()).ok()?;
    (event.id != event.container_id).then(|| ExecEnd { pid: event.pid, exit_code: exit_code(event.exit_status) })
}

fn until_error<M: Send + 'static, E: Send + 'static>(
    method: &'static str,
    open: impl Future<Output = Result<tonic::Response<tonic::Streaming<M>>, tonic::Status>> + Send + 'static,
    read: impl Fn(M) -> Option<E> + Send + 'static,
) -> Pin<Box<dyn Stream<Item = Result<E, CriError>> + Send>> {
    let messages = stream::once(open).map_ok(tonic::Response::into_inner).try_flatten();
    let events = messages
        .map_err(move |status| CriError::from_status(method, &status))
        .try_filter_map(move |message| std::future::ready(Ok(read(message))));
    Box::pin(events.chain(stream::once(async move { Err(CriError::stream_ended(method)) })))
}

/// A stream that ends before it has told anything is not offered: CRI-O without `enable_pod_events` ends it at once, and with no error
/// (`server/container_events.go`). One that stood for a while was ended with the runtime.
fn unless_refused(method: &'static str, events: EventStream) -> EventStream {
    let (began, mut is_first) = (Instant::now(), true);
    Box::pin(events.map(move |told| {
        let is_first = std::mem::replace(&mut is_first, false);
        match told {
            Err(end) if is_first && end == CriError::stream_ended(method) && began.elapsed() < REFUSED_WITHIN => {
                Err(CriError { code: Code::Unimplemented, ..end })
            }
            told => told,
        }
    }))
}

/// Maps an event of the CRI. None: of no use.
fn from_cri(event: &v1::ContainerEventResponse) -> Option<RuntimeEvent> {
    use v1::ContainerEventType as Type;
    let id = known_id(&event.container_id)?;
    let kind = match Type::try_from(event.container_event_type).ok()? {
        Type::ContainerCreatedEvent => RuntimeEventKind::Created,
        Type::ContainerStartedEvent => RuntimeEventKind::Started,
        Type::ContainerStoppedEvent => {
            RuntimeEventKind::Exited(event.containers_statuses.iter().find(|c| c.id == id).map(|c| c.exit_code))
        }
        Type::ContainerDeletedEvent => RuntimeEventKind::Deleted,
    };
    let metadata = event.pod_sandbox_status.as_ref().and_then(|s| s.metadata.as_ref());
    let pod_uid = metadata.map(|m| m.uid.clone()).filter(|uid| !uid.is_empty());
    let at = UNIX_EPOCH + Duration::from_nanos(u64::try_from(event.created_at).unwrap_or(0));
    Some(RuntimeEvent { kind, id, pod_uid, at })
}

/// Maps an event of containerd. None: of no use, or of a process that is not the container's own.
fn from_containerd(envelope: &service::Envelope) -> Option<RuntimeEvent> {
    let any = envelope.event.as_ref()?;
    let name = any.type_url.rsplit('/').next().unwrap_or_default();
    let bytes = any.value.as_slice();
    let (id, kind, at) = match name {
        "containerd.events.TaskStart" => {
            let event = payload::TaskStart::decode(bytes).ok()?;
            (event.container_id, RuntimeEventKind::Started, None)
        }
        TASK_EXIT => {
            let event = payload::TaskExit::decode(bytes).ok()?;
            if event.id != event.container_id {
                return None;
            }
            (event.container_id, RuntimeEventKind::Exited(Some(exit_code(event.exit_status))), event.exited_at)
        }
        "containerd.events.TaskDelete" => {
            let event = payload::TaskDelete::decode(bytes).ok()?;
            if !event.id.is_empty() && event.id != event.container_id {
                return None;
            }
            (event.container_id, RuntimeEventKind::Finished(exit_code(event.exit_status)), event.exited_at)
        }
        "containerd.events.TaskOOM" => {
            (payload::TaskOom::decode(bytes).ok()?.container_id, RuntimeEventKind::OutOfMemory, None)
        }
        "containerd.events.ContainerDelete" => {
            (payload::ContainerDelete::decode(bytes).ok()?.id, RuntimeEventKind::Deleted, None)
        }
        "containerd.events.SandboxStart" => {
            (payload::SandboxStart::decode(bytes).ok()?.sandbox_id, RuntimeEventKind::Started, None)
        }
        "containerd.events.SandboxExit" => {
            let event = payload::SandboxExit::decode(bytes).ok()?;
            (event.sandbox_id, RuntimeEventKind::Exited(Some(exit_code(event.exit_status))), event.exited_at)
        }
        _ => return None,
    };
    let at = at.or(envelope.timestamp).and_then(|t| SystemTime::try_from(t).ok()).unwrap_or(UNIX_EPOCH);
    Some(RuntimeEvent { kind, id: known_id(&id)?, pod_uid: None, at })
}

/// Exit statuses are 8 bits plus the runtime's own 255; a larger one is kept as the largest number there is.
fn exit_code(status: u32) -> i32 {
    i32::try_from(status).unwrap_or(i32::MAX)
}

fn known_id(id: &str) -> Option<String> {
    (!id.is_empty() && id.len() <= ID_BYTES_MAX).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(type_url: &str, value: Vec<u8>) -> service::Envelope {
        service::Envelope {
            timestamp: Some(prost_types::Timestamp { seconds: 5, nanos: 0 }),
            namespace: "k8s.io".into(),
            topic: String::new(),
            event: Some(prost_types::Any { type_url: type_url.into(), value }),
        }
    }

    /// Bytes made by hand: tag (field << 3 | wire type), length, content.
    #[test]
    fn task_exit_from_bytes_as_containerd_writes_them() {
        let own = b"\x0a\x02c1\x12\x02c1\x18\x07\x20\x89\x01\x2a\x04\x08\x64\x10\x05".to_vec();
        for url in ["containerd.events.TaskExit", "types.containerd.io/containerd.events.TaskExit"] {
            let event = from_containerd(&envelope(url, own.clone())).unwrap();
            assert_eq!(event.kind, RuntimeEventKind::Exited(Some(137)));
            assert_eq!(event.id, "c1");
            assert_eq!(event.at, UNIX_EPOCH + Duration::new(100, 5));
        }
        let exec = b"\x0a\x02c1\x12\x05probe\x18\x07".to_vec();
        let exec = envelope("containerd.events.TaskExit", exec);
        assert_eq!(from_containerd(&exec), None);
        assert_eq!(exec_end(&exec), Some(ExecEnd { pid: 7, exit_code: 0 }));
        assert_eq!(exec_end(&envelope("containerd.events.TaskExit", own)), None);
        assert_eq!(exec_end(&envelope("containerd.events.TaskStart", Vec::new())), None);
        assert_eq!(exec_end(&envelope("containerd.events.TaskExit", vec![0xff])), None, "broken payload");
    }

    #[test]
    fn the_rest_of_containerd() {
        let id = b"\x0a\x02c1".to_vec();
        let kind = |name: &str, bytes: &[u8]| from_containerd(&envelope(name, bytes.to_vec())).map(|e| e.kind);
        assert_eq!(kind("containerd.events.TaskStart", &id), Some(RuntimeEventKind::Started));
        assert_eq!(kind("containerd.events.TaskDelete", b"\x0a\x02c1\x18\x03"), Some(RuntimeEventKind::Finished(3)));
        assert_eq!(kind("containerd.events.TaskDelete", b"\x0a\x02c1\x18\x03\x2a\x04exec"), None);
        assert_eq!(kind("containerd.events.TaskOOM", &id), Some(RuntimeEventKind::OutOfMemory));
        assert_eq!(kind("containerd.events.ContainerDelete", &id), Some(RuntimeEventKind::Deleted));
        assert_eq!(kind("containerd.events.SandboxStart", &id), Some(RuntimeEventKind::Started));
        assert_eq!(kind("containerd.events.TaskExecAdded", &id), None);
        assert_eq!(kind("containerd.events.TaskStart", b"\xff\xff"), None, "broken payload");
        assert_eq!(kind("containerd.events.TaskStart", b""), None, "no id");
        let long = [b"\x0a\x81\x01".as_slice(), &[b'x'; 129]].concat();
        assert_eq!(kind("containerd.events.TaskStart", &long), None, "too long an id");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_ends_at_once_without_a_word_is_not_offered() {
        const METHOD: &str = "get_container_events";
        let event = from_containerd(&envelope("containerd.events.TaskStart", b"\x0a\x02c1".to_vec())).unwrap();
        let broken = CriError { code: Code::Unavailable, method: METHOD, message: "refused".to_owned() };
        for (events, ends_after, end, unimplemented) in [
            (vec![], Duration::ZERO, CriError::stream_ended(METHOD), true),
            (vec![], REFUSED_WITHIN, CriError::stream_ended(METHOD), false),
            (vec![], Duration::ZERO, broken, false),
            (vec![event], Duration::ZERO, CriError::stream_ended(METHOD), false),
        ] {
            let told = events.len();
            let last = stream::once(async move {
                tokio::time::sleep(ends_after).await;
                Err(end)
            });
            let events = stream::iter(events.into_iter().map(Ok)).chain(last);
            let told = unless_refused(METHOD, Box::pin(events)).skip(told).next().await;
            assert_eq!(told.unwrap().unwrap_err().is_unimplemented(), unimplemented, "after {ends_after:?}");
        }
    }

    #[test]
    fn cri_events_carry_the_pod() {
        let event = v1::ContainerEventResponse {
            container_id: "c1".into(),
            container_event_type: v1::ContainerEventType::ContainerStoppedEvent as i32,
            created_at: 1_000_000_001,
            pod_sandbox_status: Some(v1::PodSandboxStatus {
                metadata: Some(v1::PodSandboxMetadata { uid: "u1".into(), ..Default::default() }),
                ..Default::default()
            }),
            containers_statuses: vec![v1::ContainerStatus { id: "c1".into(), exit_code: 3, ..Default::default() }],
        };
        let mapped = from_cri(&event).unwrap();
        assert_eq!(mapped.kind, RuntimeEventKind::Exited(Some(3)));
        assert_eq!(mapped.pod_uid.as_deref(), Some("u1"));
        assert_eq!(mapped.at, UNIX_EPOCH + Duration::from_nanos(1_000_000_001));
        let unknown = v1::ContainerEventResponse { container_event_type: 99, ..event };
        assert_eq!(from_cri(&unknown), None);
    }
}
