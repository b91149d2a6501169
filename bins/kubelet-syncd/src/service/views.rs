//! What /pods and /runningpods/ are made of: the pods that the sources want, each cut into pieces that fit into messages,
//! and what the runtime says that runs.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::views_server::Views;
use futures_util::{Stream, stream};
use kubelet_model::v1::Pod;
use tonic::{Request, Response, Status};

use super::api::{Answer, SyncdApi};
use super::running_pods;
use crate::desired;
use crate::hub::pods::PodHub;
use kubelet_model::pod::spec;

/// Of the texts in one piece; with the rest of a message it stays below the bound of the socket.
const PIECE_BYTES: usize = 192 << 10;

/// While this process starts it is waited for the sources: a little less than kubelet-statusd waits for the first pod.
/// Without the runtime's answer there are none, and no list says which pods are wanted; upstream's kubelet does not
/// start without one.
const SOURCES_BEGIN: Duration = Duration::from_secs(9);

#[tonic::async_trait]
impl Views for SyncdApi {
    type ObjectsStream = Answer<api::ObjectPiece>;

    async fn objects(&self, _: Request<api::ObjectsRequest>) -> Result<Response<Self::ObjectsStream>, Status> {
        let sources = self.node.sources_within(SOURCES_BEGIN).await;
        let sources = sources.ok_or_else(|| Status::unavailable("the sources of pods have not begun yet"))?;
        Ok(Response::new(Box::pin(objects(sources.pods(), self.pods.clone()))))
    }

    type RunningStream = Answer<api::RunningPod>;

    async fn running(&self, _: Request<api::RunningRequest>) -> Result<Response<Self::RunningStream>, Status> {
        let cri = self.node.cri().ok_or_else(|| Status::unavailable("the runtime is not known yet"))?;
        let pods = self.running.get(|| running_pods::list(&cri)).await?;
        let pods = (0..pods.len()).filter_map(move |at| pods.get(at).cloned().map(Ok));
        Ok(Response::new(Box::pin(stream::iter(pods))))
    }
}

/// One pod after the other is made into text, when its turn has come.
fn objects(pods: Vec<Arc<Pod>>, hub: Arc<PodHub>) -> impl Stream<Item = Result<api::ObjectPiece, Status>> + Send {
    let rest = (pods.into_iter(), Vec::new().into_iter(), hub);
    stream::unfold(rest, |(mut pods, mut pieces, hub)| async move {
        loop {
            if let Some(piece) = pieces.next() {
                return Some((Ok(piece), (pods, pieces, hub)));
            }
            let next: Arc<Pod> = pods.next()?;
            pieces = match texts(&next, &hub) {
                Ok(texts) => pieces_of(texts).into_iter(),
                Err(error) => {
                    let status = Status::internal(format!("a pod could not be written: {error}"));
                    return Some((Err(status), (Vec::new().into_iter(), Vec::new().into_iter(), hub)));
                }
            };
        }
    })
}

/// Pod, status, managed fields.
type Texts = [Vec<u8>; 3];

fn texts(pod: &Pod, hub: &PodHub) -> Result<Texts, serde_json::Error> {
    let uid = desired::uid_of(pod);
    // Who watches the API server sees what was reported there; of a static pod nobody has told it.
    let state = uid.as_ref().filter(|_| spec::is_static(pod)).and_then(|uid| hub.get(uid));
    let live = state.map(|state| state.status_json.clone()).unwrap_or_default();
    let managed = uid.as_ref().and_then(|uid| hub.managed_fields(uid));
    let managed = managed.map(|text| text.to_vec()).unwrap_or_default();
    let pod = if live.is_empty() {
        serde_json::to_vec(pod)?
    } else {
        serde_json::to_vec(&Pod { metadata: pod.metadata.clone(), spec: pod.spec.clone(), status: None })?
    };
    Ok([pod, live, managed])
}

fn pieces_of(texts: Texts) -> Vec<api::ObjectPiece> {
    let mut pieces = Vec::new();
    let mut piece = api::ObjectPiece::default();
    let mut room = PIECE_BYTES;
    for (place, text) in texts.iter().enumerate() {
        let mut text = text.as_slice();
        while !text.is_empty() {
            if room == 0 {
                pieces.push(std::mem::take(&mut piece));
                room = PIECE_BYTES;
            }
            let (now, later) = text.split_at(text.len().min(room));
            match place {
                0 => piece.pod_json.extend_from_slice(now),
                1 => piece.status_json.extend_from_slice(now),
                _ => piece.managed_fields_json.extend_from_slice(now),
            }
            room -= now.len();
            text = later;
        }
    }
    piece.last = true;
    pieces.push(piece);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::EventRing;
    use crate::service::node_view::NodeView;
    use crate::sources::file::NoManifests;
    use crate::sources::uids::Forgetful;
    use crate::sources::{Sources, SourcesConfig};
    use bulkhead_config::NodeConfig;
    use bulkhead_types::{Epoch, NodeName};
    use futures_util::StreamExt as _;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn the_sources_are_waited_for() {
        let (config, hub) = (NodeConfig::for_tests(std::path::Path::new("/t")), Arc::new(PodHub::default()));
        let view = NodeView::new(Arc::new(config), hub.clone());
        let (epoch, events) = (Epoch::from_random(1), Arc::new(EventRing::new(1)));
        let service = SyncdApi {
            epoch,
            pods: hub,
            events,
            node: view.clone(),
            running: Arc::default(),
            stop: Default::default(),
        };
        let late = service.objects(Request::new(api::ObjectsRequest {})).await.err().unwrap();
        assert_eq!(late.code(), tonic::Code::Unavailable);

        let asked = tokio::spawn(async move { service.objects(Request::new(api::ObjectsRequest {})).await });
        tokio::task::yield_now().await;
        assert!(!asked.is_finished());
        let node = NodeName::parse("n").unwrap();
        let config = SourcesConfig { node: node.into(), file: None, http: None, api: true, running: Vec::new() };
        let (sources, _updates) = Sources::start(config, NoManifests, Box::new(Forgetful), Arc::new(|_| {}));
        view.set_sources(Arc::new(sources));
        let mut pods = asked.await.unwrap().unwrap().into_inner();
        assert!(pods.next().await.is_none(), "nothing is wanted yet");
    }

    fn pod(name: &str, source: &str, filler: usize) -> Arc<Pod> {
        let pod = json!({"metadata": {"name": name, "namespace": "d", "uid": name, "annotations": {
                "kubernetes.io/config.source": source, "filler": "x".repeat(filler)}},
            "spec": {"containers": []}, "status": {"phase": "Pending"}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    async fn collect(pods: Vec<Arc<Pod>>, hub: Arc<PodHub>) -> Vec<(serde_json::Value, String, String)> {
        let mut all = Vec::new();
        let mut now = api::ObjectPiece::default();
        let mut pieces = std::pin::pin!(objects(pods, hub));
        while let Some(piece) = pieces.next().await {
            let piece = piece.unwrap();
            let bytes = piece.pod_json.len() + piece.status_json.len() + piece.managed_fields_json.len();
            assert!(bytes <= PIECE_BYTES, "{bytes}");
            now.pod_json.extend(piece.pod_json);
            now.status_json.extend(piece.status_json);
            now.managed_fields_json.extend(piece.managed_fields_json);
            if piece.last {
                let done = std::mem::take(&mut now);
                let text = |bytes| String::from_utf8(bytes).unwrap();
                let pod = serde_json::from_slice(&done.pod_json).unwrap();
                all.push((pod, text(done.status_json), text(done.managed_fields_json)));
            }
        }
        all
    }

    #[tokio::test]
    async fn a_static_pods_status_is_the_live_one_and_size_does_not_matter() {
        let hub = Arc::new(PodHub::default());
        for uid in ["a", "s"] {
            let uid = bulkhead_types::PodUid::parse(uid).unwrap();
            hub.modify(&uid, |state| state.status_json = br#"{"phase":"Running"}"#.to_vec());
            hub.keep_managed_fields(&uid, || Some(br#"[{"manager":"m"}]"#.to_vec()));
        }
        let pods = vec![pod("a", "api", 600 << 10), pod("s", "file", 0), pod("t", "http", PIECE_BYTES)];
        let shown = collect(pods, hub).await;
        assert_eq!(shown.len(), 3);
        assert_eq!((shown[0].0["status"]["phase"].as_str(), shown[0].1.as_str()), (Some("Pending"), ""));
        assert_eq!(shown[0].0["metadata"]["annotations"]["filler"].as_str().unwrap().len(), 600 << 10);
        assert_eq!(shown[0].2, r#"[{"manager":"m"}]"#);
        assert_eq!((shown[1].0.get("status"), shown[1].1.as_str()), (None, r#"{"phase":"Running"}"#));
        // Nothing has been computed of the last one.
        assert_eq!((shown[2].0["status"]["phase"].as_str(), shown[2].2.as_str()), (Some("Pending"), ""));
    }
}
