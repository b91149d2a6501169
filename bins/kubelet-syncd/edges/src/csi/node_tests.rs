//! Calls of a driver that answers as it is told to, over a real socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bulkhead_csi::v1::node_server::{Node, NodeServer};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::super::{Driver, Outcome, Version};
use super::*;
use crate::fixtures::Direct;

#[derive(Debug, Default)]
struct Told(Mutex<Vec<(String, &'static str, Code)>>);

impl CallObserver for Told {
    fn call_ended(&self, driver: &str, method: &'static str, code: Code, _: Duration) {
        self.0.lock().push((driver.to_owned(), method, code));
    }
}

/// The volume's id says how it is answered.
struct Obeying;

#[tonic::async_trait]
impl Node for Obeying {
    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<v1::NodeGetVolumeStatsResponse>, Status> {
        let mut answer = v1::NodeGetVolumeStatsResponse::default();
        match request.get_ref().volume_id.as_str() {
            "large" => {
                let message = "x".repeat(ANSWER_BYTES_MAX);
                answer.volume_condition = Some(v1::VolumeCondition { abnormal: true, message });
            }
            "long words" => return Err(Status::internal("y".repeat(20_000))),
            "out of range" => return Err(Status::out_of_range("no such size")),
            "never" => std::future::pending().await,
            _ => {}
        }
        Ok(Response::new(answer))
    }
}

struct Lab {
    _folder: tempfile::TempDir,
    client: CsiClient,
    told: Arc<Told>,
    told_of_migrated: Arc<Told>,
    connections: Arc<AtomicUsize>,
    path: PathBuf,
}

fn lab() -> Lab {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("csi.sock");
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap()).inspect(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    tokio::spawn(
        tonic::transport::Server::builder().add_service(NodeServer::new(Obeying)).serve_with_incoming(incoming),
    );
    let drivers = Drivers::default();
    let version = Version::parse("1.0.0").unwrap();
    drivers.set("d", Driver { endpoint: path.display().to_string(), version });
    let (told, told_of_migrated) = (Arc::new(Told::default()), Arc::new(Told::default()));
    let client = CsiClient::new(drivers, Arc::new(Direct)).observed_by(told.clone(), told_of_migrated.clone());
    Lab { _folder: folder, client, told, told_of_migrated, connections, path }
}

fn stats(id: &str) -> v1::NodeGetVolumeStatsRequest {
    v1::NodeGetVolumeStatsRequest { volume_id: id.into(), ..Default::default() }
}

#[tokio::test]
async fn one_connection_a_call_and_a_bound_on_the_answer() {
    let lab = lab();
    lab.client.node_get_volume_stats("d", stats("a")).await.unwrap();
    lab.client.node_get_volume_stats("d", stats("a")).await.unwrap();
    assert_eq!(lab.connections.load(Ordering::Relaxed), 2);
    for (id, code, outcome) in [
        ("large", Code::ResourceExhausted, Outcome::Uncertain),
        ("out of range", Code::OutOfRange, Outcome::Failed),
        ("long words", Code::Internal, Outcome::Failed),
    ] {
        let error = lab.client.node_get_volume_stats("d", stats(id)).await.unwrap_err();
        assert_eq!((error.code(), error.outcome()), (Some(code), outcome), "{id}: {error}");
    }
    let error = lab.client.node_get_info("d", v1::NodeGetInfoRequest {}).await.unwrap_err();
    assert_eq!((error.code(), error.outcome()), (Some(Code::Unimplemented), Outcome::Failed));
    let told = lab.told.0.lock().clone();
    assert_eq!(told.len(), 6);
    assert_eq!(told.last(), Some(&("d".into(), "/csi.v1.Node/NodeGetInfo", Code::Unimplemented)));
    // A volume of an in-tree kind is counted apart.
    lab.client.of_migrated().node_get_volume_stats("d", stats("a")).await.unwrap();
    assert_eq!((lab.told.0.lock().len(), lab.told_of_migrated.0.lock().len()), (6, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_answered_ends_with_its_deadline() {
    let lab = lab();
    let before = tokio::time::Instant::now();
    let error = lab.client.node_get_volume_stats("d", stats("never")).await.unwrap_err();
    assert_eq!((error.code(), before.elapsed().as_secs()), (Some(Code::DeadlineExceeded), CSI_TIMEOUT.as_secs()));
    assert_eq!(error.outcome(), Outcome::Uncertain);
}

#[tokio::test]
async fn nobody_there_is_uncertain_and_nobody_registered_is_not_called() {
    let lab = lab();
    std::fs::remove_file(&lab.path).unwrap();
    let error = lab.client.node_get_volume_stats("d", stats("a")).await.unwrap_err();
    assert_eq!((error.code(), error.outcome()), (Some(Code::Unavailable), Outcome::Uncertain), "{error}");
    assert!(error.to_string().contains("transport: Error while dialing: dial unix"), "{error}");
    let error = lab.client.node_get_volume_stats("e", stats("a")).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotCalled);
    assert_eq!(error.to_string(), "driver name e not found in the list of registered CSI drivers");
}

#[tokio::test]
async fn a_server_that_hangs_up_or_speaks_another_language() {
    let lab = lab();
    for garbage in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        std::fs::remove_file(&lab.path).unwrap();
        let listener = UnixListener::bind(&lab.path).unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, garbage).await.unwrap();
        };
        let (asked, ()) = tokio::join!(lab.client.node_get_volume_stats("d", stats("a")), serve);
        let error = asked.unwrap_err();
        assert_eq!((error.code(), error.outcome()), (Some(Code::Unavailable), Outcome::Uncertain), "{error}");
    }
}
