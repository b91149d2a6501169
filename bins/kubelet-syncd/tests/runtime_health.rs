//! What is known of the runtime over its restarts, against a stand-in for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bulkhead_cri::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use bulkhead_cri::{CriClient, CriDeadlines, DirectConnector, v1};
use kubelet_syncd::sync_loop::runtime_health::{RuntimeHealth, Told, follow};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

const LIMIT: Duration = Duration::from_secs(10);

/// Its network is never ready, so that it is asked again soon.
#[derive(Clone, Default)]
struct Runtime {
    is_down: Arc<AtomicBool>,
    failed: Arc<AtomicUsize>,
    version: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl Runtime {
    fn install(&self, version: &str) {
        version.clone_into(&mut self.version.lock());
    }
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let runtime_version = self.version.lock().clone();
        Ok(Response::new(v1::VersionResponse { runtime_version, ..Default::default() }))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        if self.is_down.load(Ordering::SeqCst) {
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Err(Status::unavailable("restarts"));
        }
        Ok(Response::new(v1::StatusResponse::default()))
    }
}

#[tokio::test]
async fn a_runtime_that_comes_back_is_asked_who_it_is() {
    let (runtime, folder) = (Runtime::default(), tempfile::tempdir().unwrap());
    runtime.install("1.7.0");
    let path = folder.path().join("cri.sock");
    let listener = UnixListenerStream::new(tokio::net::UnixListener::bind(&path).unwrap());
    let server = tonic::transport::Server::builder().add_service(RuntimeServiceServer::new(runtime.clone()));
    tokio::spawn(server.serve_with_incoming(listener));
    let client = CriClient::new(Arc::new(DirectConnector(path)), CriDeadlines::default());
    let (health, _health) = watch::channel(RuntimeHealth::default());
    let (answered, mut answers) = watch::channel(None);
    let (version, mut versions) = watch::channel(None);
    tokio::spawn(follow(client, Told { health, answered, version }));

    let mut told = async |wanted: &str| {
        let is_wanted =
            |known: &Option<v1::VersionResponse>| known.as_ref().is_some_and(|v| v.runtime_version == wanted);
        tokio::time::timeout(LIMIT, versions.wait_for(is_wanted)).await.expect("the version is told").unwrap();
    };
    told("1.7.0").await;
    for _ in 0..2 {
        answers.changed().await.unwrap();
    }
    assert_eq!(runtime.asked.load(Ordering::SeqCst), 1, "while it answers it is asked rarely");

    runtime.is_down.store(true, Ordering::SeqCst);
    while runtime.failed.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    runtime.install("2.1.0");
    runtime.is_down.store(false, Ordering::SeqCst);
    told("2.1.0").await;
}
