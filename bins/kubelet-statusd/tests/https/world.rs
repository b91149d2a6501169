//! A server with certificates of its own, and whoever comes to it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bulkhead_apiclient::{ApiClient, CredentialFile, MemorySource};
use bulkhead_config::NodeConfig;
use bulkhead_daemon::progress::Progress;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::helper::Asker;
use bulkhead_testkit::apiserver::authority::Pair;
use bulkhead_testkit::apiserver::{ApiServer, Config};
use bulkhead_testkit::cluster::client::{Answer, Credential};
use bulkhead_testkit::https::Https;
use bulkhead_types::Process;
use kubelet_statusd::server::gate::Gate;
use kubelet_statusd::server::listener;
use kubelet_statusd::server::tls::follow::{self, Files};
use kubelet_statusd::server::tls::pair::self_signed;
use kubelet_statusd::server::tls::policy::Policy;
use kubelet_statusd::{HealthChecks, Limits, Parts, Peers, Router, Surface};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio::runtime::Runtime;

/// An authority.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Ca {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "clients");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Ca { issuer: Issuer::new(params, key), pem }
    }

    /// A client's certificate, for `name` of the group `staff`.
    pub fn client(&self, name: &str) -> Credential {
        self.client_with(name, |_| {})
    }

    pub fn client_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Credential {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "staff");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = (SystemTime::now() - Duration::from_secs(7200)).into();
        params.not_after = (SystemTime::now() + Duration::from_secs(7200)).into();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Credential::Certificate(Pair { certificate, key: key.serialize_pem() })
    }
}

/// A running server.
pub struct World {
    /// Ends with the world.
    _runtime: Runtime,
    pub ca: Ca,
    pub files: MemorySource,
    pub api: Option<ApiServer>,
    pub registry: prometheus::Registry,
    pub address: SocketAddr,
    _folder: tempfile::TempDir,
}

/// What is different from a server that believes its authority's clients, and lets them do everything.
pub struct Plan {
    pub limits: Limits,
    /// With an API server, which is asked about everything.
    pub webhook: bool,
    /// Somebody asks who it is.
    pub gate: bool,
    pub api: Config,
}

impl Default for Plan {
    fn default() -> Self {
        Plan { limits: Limits::main(4096), webhook: false, gate: true, api: Config::default() }
    }
}

pub fn start(plan: Plan, change: impl FnOnce(&mut NodeConfig)) -> World {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let mut config = NodeConfig::for_tests(folder.path());
    config.kubelet.authentication.x509.client_ca_file = "/ca".into();
    config.kubelet.authentication.anonymous.enabled = Some(false);
    if plan.webhook {
        config.flags.kubeconfig = "/kubeconfig".into();
        config.kubelet.authentication.webhook.enabled = Some(true);
        config.kubelet.authorization.mode = "Webhook".into();
    }
    change(&mut config);
    let config = Arc::new(config);
    let files = MemorySource::new("");
    let pair = self_signed("test-node", &[]).unwrap();
    files.put_all([
        (CredentialFile::ServingCertificate, pair.certificates),
        (CredentialFile::ServingKey, pair.key),
        (CredentialFile::ClientCa, ca.pem.clone()),
    ]);
    let entered = runtime.enter();
    let api = plan.webhook.then(|| ApiServer::start(plan.api, runtime.handle()).unwrap());
    let client = api.as_ref().map(|api| client(api, &config));
    let registry = prometheus::Registry::new();
    let broker = BrokerClient::new(Path::new("/nonexistent"));
    let link = |process: Process| Link::open("kubelet-statusd", process, &folder.path().join(process.name()));
    let peers = Arc::new(Peers::new(link(Process::Syncd), link(Process::Volnetd), link(Process::Evictiond)));
    let health = Arc::new(HealthChecks::new(peers.clone(), config.sync_frequency(), None));
    let serving = follow::start(Files {
        source: Arc::new(files.clone()),
        broker: broker.clone(),
        policy: Policy::of(&config.kubelet),
        signed: false,
        own: None,
        client_ca: true,
        client_uids: true,
    });
    let gate = Gate::new(&config, serving.clone(), client.as_ref(), &registry).unwrap();
    let gate = plan.gate.then_some(gate);
    let (journal, progress) = (Asker::default(), Progress::default());
    let parts = Parts { config, peers, health, broker, journal, registry: registry.clone(), gate, progress };
    let router = Arc::new(Router::new(parts).unwrap());
    let bound = runtime.block_on(listener::bind("127.0.0.1:0".parse().unwrap())).unwrap();
    let address = bound.local_addr().unwrap();
    let endpoint = router.endpoint(Surface::Main, plan.limits, Some(serving));
    runtime.spawn(listener::accept(bound, endpoint));
    if let Some(client) = client {
        runtime.block_on(client.ready());
    }
    drop(entered);
    World { _runtime: runtime, ca, files, api, registry, address, _folder: folder }
}

/// The node's own way to its API server.
fn client(api: &ApiServer, config: &Arc<NodeConfig>) -> ApiClient {
    let pair = api.authority().client("system:node:test-node", "system:nodes", Duration::from_secs(3600)).unwrap();
    let source = MemorySource::new(&format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: \"https://{}\", certificate-authority: /ca}}}}]\n\
         users: [{{name: u, user: {{client-certificate: /cert, client-key: /key}}}}]\n",
        api.address()
    ));
    source.put_all([
        (CredentialFile::ClusterCa, api.authority().pem()),
        (CredentialFile::ClientCertificate, pair.certificate),
        (CredentialFile::ClientKey, pair.key),
    ]);
    ApiClient::start_with("kubelet-statusd", config.clone(), Arc::new(source))
}

impl World {
    pub fn with(&self, credential: &Credential) -> Https {
        Https::new(self.address, credential)
    }

    /// Status and body of a GET.
    pub fn get(&self, credential: &Credential, path: &str) -> (u16, String) {
        said(&self.with(credential).get(path).unwrap())
    }

    /// Samples of a counter, or of a histogram's count, summed over its labels that hold `labels`.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = prometheus::TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        let is_of = |line: &&str| {
            let family = line.split(['{', ' ']).next().unwrap_or_default();
            family == name || family.strip_suffix("_count") == Some(name)
        };
        let has = |line: &&str| labels.iter().all(|(key, value)| line.contains(&format!("{key}=\"{value}\"")));
        let values = text.lines().filter(is_of).filter(has).map(|line| line.rsplit(' ').next().unwrap_or_default());
        values.map(|value| value.parse::<f64>().unwrap()).sum()
    }
}

pub fn said(answer: &Answer) -> (u16, String) {
    (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
}

/// Somebody with a token.
pub fn token(token: &str) -> Credential {
    Credential::Token(token.to_owned())
}

/// Tries until it is so.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..400 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("not in time: {what}");
}
