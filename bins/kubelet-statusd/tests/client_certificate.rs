//! The task that keeps the client certificate, against a broker of the test's own.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bulkhead_apiclient::{ApiClient, MemorySource};
use bulkhead_config::NodeConfig;
use bulkhead_daemon::StateDir;
use bulkhead_ipc::broker::{self, BrokerClient, BrokerRequest, Caller};
use bulkhead_ipc::client::Link;
use bulkhead_ipc::limits::{Gate, Limits};
use bulkhead_ipc::peers::PeerUsers;
use bulkhead_ipc::volnetd::{credential, open_request::Kind};
use bulkhead_types::Process;
use kubelet_statusd::certificates::client::ClientCertificate;
use kubelet_statusd::certificates::metrics::ClientMetrics;
use kubelet_statusd::server::tls::pair;
use tonic::Status;

const BOOTSTRAP: &str = "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
    clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: t}}]\n";

/// A node whose pair is good, whose kubeconfig is missing, and whose bootstrap kubeconfig goes between the look at it and
/// its use: it can be read, and nothing can be written from it.
fn answer(pair: &str, puts: &AtomicUsize, request: BrokerRequest) -> Result<Option<OwnedFd>, Status> {
    let file = |text: &str| {
        let mut file = tempfile::tempfile()?;
        file.write_all(text.as_bytes())?;
        std::io::Seek::rewind(&mut file)?;
        Ok(Some(OwnedFd::from(file)))
    };
    match request {
        BrokerRequest::Open(Kind::Credential(asked)) => match asked.kind() {
            credential::Kind::BootstrapKubeconfig => file(BOOTSTRAP),
            credential::Kind::ClientPair => file(pair),
            _ => Err(Status::not_found("no such file")),
        },
        BrokerRequest::PutCredential(credential::Kind::Kubeconfig, _) => {
            puts.fetch_add(1, Ordering::Relaxed);
            Err(Status::not_found("no bootstrap kubeconfig"))
        }
        other => Err(Status::invalid_argument(format!("{other:?}"))),
    }
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_written_is_a_failure_with_a_pause() {
    let folder = tempfile::tempdir().unwrap();
    let uid = bulkhead_sys::process::PrivilegeReport::read().unwrap().uid;
    let users = PeerUsers {
        syncd: 1_000_001,
        evictiond: 1_000_002,
        statusd: uid,
        pods_cgroup: "/none/kubepods".into(),
        no_pods: None,
    };
    let made = pair::self_signed("node", &[]).unwrap();
    let (pair, puts) = (made.certificates + &made.key, Arc::new(AtomicUsize::new(0)));
    let counted = puts.clone();
    let handler = move |_: Caller, request: BrokerRequest| std::future::ready(answer(&pair, &counted, request));
    let socket = folder.path().join("fd.sock");
    let listener = bulkhead_sys::scm::listen(&socket, 0o600).unwrap();
    tokio::spawn(broker::serve(
        listener,
        Arc::new(users),
        Gate::new(Limits::default()),
        handler,
        std::future::pending(),
    ));

    let mut config = NodeConfig::for_tests(folder.path());
    config.flags.kubeconfig = "/etc/kubernetes/kubelet.conf".into();
    config.flags.bootstrap_kubeconfig = "/etc/kubernetes/bootstrap-kubelet.conf".into();
    config.kubelet.rotate_certificates = true;
    let config = Arc::new(config);
    let api = ApiClient::start_with("kubelet-statusd", config.clone(), Arc::new(MemorySource::new(BOOTSTRAP)));
    let volnetd = Link::open("kubelet-statusd", Process::Volnetd, Path::new("/nonexistent"));
    let state = Arc::new(StateDir::lock(std::fs::File::open(folder.path()).unwrap().into()).unwrap());
    let metrics = ClientMetrics::register(&prometheus::Registry::new()).unwrap();
    let failures = metrics.failures.clone();
    let task = ClientCertificate::new(config, api, BrokerClient::new(&socket), volnetd, state, Some(metrics)).unwrap();
    let failed = async {
        while failures.get() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = task.run() => {}
        failed = tokio::time::timeout(Duration::from_secs(30), failed) => failed.unwrap(),
    }
    assert_eq!(puts.load(Ordering::Relaxed), 1, "tried once, then a pause");
}
