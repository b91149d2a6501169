//! Credentials as they come in earnest: descriptors from a broker, and a stream that tells of changes.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_apiclient::{ApiClient, Lane};
use bulkhead_ipc::broker::{self, BrokerClient, BrokerRequest, Caller};
use bulkhead_ipc::client::Link;
use bulkhead_ipc::common::process_server::{Process as ProcessApi, ProcessServer};
use bulkhead_ipc::common::{
    HelloReply, HelloRequest, MetricsReply, MetricsRequest, PrivilegesReply, PrivilegesRequest,
};
use bulkhead_ipc::limits::{Gate, Limits};
use bulkhead_ipc::peers::PeerUsers;
use bulkhead_ipc::volnetd::watches_server::{Watches, WatchesServer};
use bulkhead_ipc::volnetd::{WatchEvent, WatchKind, WatchRequest, credential, open_request::Kind, watch_event};
use bulkhead_types::Process;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::world::{self, Server, answer, kubeconfig, soon};

struct Volnetd {
    changes: watch::Receiver<()>,
}

#[tonic::async_trait]
impl ProcessApi for Volnetd {
    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let reply = HelloReply { process: "kubelet-volnetd".into(), epoch: 7, ready: true, ..Default::default() };
        Ok(Response::new(reply))
    }
    async fn privileges(&self, _: Request<PrivilegesRequest>) -> Result<Response<PrivilegesReply>, Status> {
        Err(Status::unimplemented(""))
    }
    async fn metrics(&self, _: Request<MetricsRequest>) -> Result<Response<MetricsReply>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[tonic::async_trait]
impl Watches for Volnetd {
    type WatchStream = BoxStream<'static, Result<WatchEvent, Status>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        if request.into_inner().kind() != WatchKind::Credentials {
            return Err(Status::invalid_argument("another kind"));
        }
        let events = futures_util::stream::unfold(self.changes.clone(), |mut changes| async move {
            changes.changed().await.ok()?;
            let change = watch_event::Change::Rescan.into();
            Some((Ok(WatchEvent { change, ..Default::default() }), changes))
        });
        Ok(Response::new(events.boxed()))
    }
}

/// Where the file of a kind lies in the test's folder.
fn path_of(folder: &Path, kind: &Kind) -> Option<PathBuf> {
    let Kind::Credential(credential) = kind else { return None };
    let name = match credential.kind() {
        credential::Kind::Kubeconfig => "kubelet.conf",
        credential::Kind::Token => "token",
        _ => return None,
    };
    Some(folder.join(name))
}

fn open(folder: &Path, request: &BrokerRequest) -> Result<Option<OwnedFd>, Status> {
    let BrokerRequest::Open(kind) = request else { return Err(Status::unimplemented("not asked for here")) };
    let path = path_of(folder, kind).ok_or_else(|| Status::invalid_argument("another kind"))?;
    match std::fs::File::open(path) {
        Ok(file) => Ok(Some(file.into())),
        Err(_) => Err(Status::not_found("no such file")),
    }
}

#[tokio::test]
async fn the_broker_gives_descriptors_and_announces_changes() {
    let (server, cluster) =
        Server::tls(|_| answer(200, r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#)).await;
    let folder = tempfile::tempdir().unwrap();
    let uid = bulkhead_sys::process::PrivilegeReport::read().unwrap().uid;
    let users = PeerUsers {
        syncd: 1_000_001,
        evictiond: 1_000_002,
        statusd: uid,
        pods_cgroup: "/none/kubepods".into(),
        no_pods: None,
    };
    let socket = folder.path().join("fd.sock");
    let files = folder.path().to_owned();
    let handler = move |_: Caller, request: BrokerRequest| std::future::ready(open(&files, &request));
    let listener = bulkhead_sys::scm::listen(&socket, 0o600).unwrap();
    tokio::spawn(broker::serve(
        listener,
        Arc::new(users),
        Gate::new(Limits::default()),
        handler,
        std::future::pending(),
    ));
    let (changed, changes) = watch::channel(());
    let grpc = folder.path().join("volnetd.sock");
    let incoming = tokio_stream::wrappers::UnixListenerStream::new(tokio::net::UnixListener::bind(&grpc).unwrap());
    let (_, health) = tonic_health::server::health_reporter();
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(health)
            .add_service(ProcessServer::new(Volnetd { changes: changes.clone() }))
            .add_service(WatchesServer::new(Volnetd { changes }))
            .serve_with_incoming(incoming),
    );
    let link = Link::open("kubelet-statusd", Process::Volnetd, &grpc);
    let api = ApiClient::start("kubelet-statusd", world::config().into(), BrokerClient::new(&socket), link);
    // There is no kubeconfig yet; it comes, and is told.
    std::fs::write(folder.path().join("token"), "one").unwrap();
    let text = kubeconfig(&cluster, "tokenFile: /elsewhere/token");
    std::fs::write(folder.path().join("kubelet.conf"), text).unwrap();
    changed.send_replace(());
    assert_eq!(soon(api.ready()).await, format!("https://{}", server.address));
    let nodes: Api<Node> = Api::all(api.client(Lane::Main));
    soon(nodes.get("n")).await.unwrap();
    assert_eq!(server.seen()[0].header("authorization"), "Bearer one");
    std::fs::write(folder.path().join("token"), "two").unwrap();
    changed.send_replace(());
    soon(async {
        while server.seen().last().unwrap().header("authorization") != "Bearer two" {
            nodes.get("n").await.unwrap();
        }
    })
    .await;
}
