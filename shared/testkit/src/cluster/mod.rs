//! A cluster for tests: the stand-in API server (or a real control plane, where `KUBEBUILDER_ASSETS` says where one
//! is), a client for the test itself, and credentials for nodes and people.

pub mod client;
pub mod control_plane;
mod credentials;
pub mod kubeconfig;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use self::client::{Client, Credential, Event, Events};
use self::control_plane::{ControlPlane, Controllers, Programs};
pub use self::control_plane::{Storage, controllers_are_there};
use crate::wait::LONG;
use crate::{Lab, machine};
use bulkhead_apiserver::authority::Authority;
use bulkhead_apiserver::faults::Faults;
use bulkhead_apiserver::identity::MASTERS;
use bulkhead_apiserver::request_log::{Record, RequestLog};
use bulkhead_apiserver::resources::{named, of_object};
use bulkhead_apiserver::{ApiServer, Config};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// The folder of programs of a real control plane: kube-apiserver, etcd, kubectl.
pub const ASSETS: &str = "KUBEBUILDER_ASSETS";
/// With `stand-in`, labs get the stand-in although there are programs; tests that ask for a real control plane get one.
const CLUSTER: &str = "BULKHEAD_CLUSTER";

/// A cluster; clones share it, the last one to go ends it.
#[derive(Debug, Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // Order of fields is order of drop: connections, servers, the runtime they ran on, then the place.
    client: Client,
    controllers: Mutex<Option<Controllers>>,
    backend: Backend,
    runtime: Option<Runtime>,
    folder: PathBuf,
    _lab: Option<Lab>,
}

#[derive(Debug)]
enum Backend {
    StandIn(Box<ApiServer>),
    Real(Box<ControlPlane>),
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Connections that hang on purpose must not keep the test.
            runtime.shutdown_background();
        }
    }
}

impl Lab {
    /// A cluster that this lab's nodes can reach. With `KUBEBUILDER_ASSETS` a real control plane, else the stand-in.
    ///
    /// # Errors
    /// A server did not start.
    pub fn cluster(&self) -> Result<Cluster> {
        self.cluster_with(Config::default())
    }

    /// The same with a configuration, of which a real control plane takes nothing but the address.
    ///
    /// # Errors
    /// A server did not start.
    pub fn cluster_with(&self, mut config: Config) -> Result<Cluster> {
        config.listen = SocketAddr::new(IpAddr::V4(self.netns().gateway()), config.listen.port());
        Cluster::start_in(&self.folder().join("cluster"), config, Some(self.clone()), programs_for_pods())
    }

    /// The same with controllers and a scheduler: on a real control plane upstream's, where they are there, too; else the
    /// stand-in, which does of it what a node needs.
    ///
    /// # Errors
    /// A program did not start.
    pub fn cluster_with_controllers(&self) -> Result<Cluster> {
        if !controllers_are_there() {
            return self.stand_in(Config::default());
        }
        let cluster = self.cluster()?;
        cluster.start_controllers()?;
        Ok(cluster)
    }

    /// As [`Lab::cluster`], for whoever measures: a real control plane as it is by default ([`Storage::Stock`]).
    ///
    /// # Errors
    /// A server did not start.
    pub fn stock_cluster(&self) -> Result<Cluster> {
        if programs_for_pods().is_some() { self.cluster_on(Storage::Stock) } else { self.cluster() }
    }

    /// A real control plane on this storage; [`Storage::is_there`] says whether there is one.
    ///
    /// # Errors
    /// There is none, or a server did not start.
    pub fn cluster_on(&self, storage: Storage) -> Result<Cluster> {
        let folder = assets().with_context(|| format!("{ASSETS} names no folder of programs"))?;
        let config = Config { listen: SocketAddr::new(IpAddr::V4(self.netns().gateway()), 0), ..Config::default() };
        Cluster::start_in(
            &self.folder().join("cluster"),
            config,
            Some(self.clone()),
            Some(Programs { folder, storage }),
        )
    }

    /// The stand-in, whatever the environment says: for tests that inject faults or look behind the API.
    ///
    /// # Errors
    /// It did not start.
    pub fn stand_in(&self, mut config: Config) -> Result<Cluster> {
        config.listen = SocketAddr::new(IpAddr::V4(self.netns().gateway()), config.listen.port());
        Cluster::start_in(&self.folder().join("cluster"), config, Some(self.clone()), None)
    }
}

impl Cluster {
    /// A cluster without a lab; its files go to `folder`. With `KUBEBUILDER_ASSETS` a real control plane.
    ///
    /// # Errors
    /// A server did not start.
    pub fn start(folder: &Path, config: Config) -> Result<Self> {
        Self::start_in(folder, config, None, assets().map(|folder| Programs { folder, storage: Storage::default() }))
    }

    /// The stand-in without a lab.
    ///
    /// # Errors
    /// It did not start.
    pub fn stand_in(folder: &Path, config: Config) -> Result<Self> {
        Self::start_in(folder, config, None, None)
    }

    fn start_in(folder: &Path, config: Config, lab: Option<Lab>, programs: Option<Programs>) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        // One thread is enough for a server that waits; what else runs on this machine is being measured.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("apiserver")
            .enable_all()
            .build()
            .context("starting the server's runtime")?;
        let backend = match programs {
            None => Backend::StandIn(Box::new(ApiServer::start(config, runtime.handle())?)),
            Some(programs) => Backend::Real(Box::new(ControlPlane::take(&programs, config.listen.ip())?)),
        };
        let (address, authority) = match &backend {
            Backend::StandIn(server) => (server.address(), server.authority()),
            Backend::Real(plane) => (plane.address(), plane.authority()),
        };
        let admin = Credential::Certificate(authority.client("bulkhead-testkit", MASTERS, YEAR)?);
        let ca = authority.pem();
        let client = Client::new(runtime.handle(), address, &ca, &admin)?;
        let mut inner = Inner {
            client: client.clone(),
            controllers: Mutex::default(),
            backend,
            runtime: Some(runtime),
            folder: folder.to_owned(),
            _lab: lab,
        };
        match &mut inner.backend {
            Backend::StandIn(_) => {
                let account = named("serviceaccounts").path(Some("default"), Some("default"));
                crate::wait::eventually("the API server is ready", LONG, || {
                    client.get("/readyz")?.success()?;
                    client.get(&account)?.success()
                })?;
            }
            Backend::Real(plane) => plane.settle(&client, || {
                let namespaces = ["default", "kube-system", "kube-public", "kube-node-lease"];
                namespaces.iter().try_for_each(|namespace| furnish(&client, &ca, namespace))
            })?,
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether this is the stand-in, of which more can be asked than of a real server.
    pub fn is_stand_in(&self) -> bool {
        matches!(self.inner.backend, Backend::StandIn(_))
    }

    /// The stand-in itself.
    ///
    /// # Errors
    /// The control plane is a real one.
    pub fn server(&self) -> Result<&ApiServer> {
        match &self.inner.backend {
            Backend::StandIn(server) => Ok(server),
            Backend::Real(_) => bail!("a real control plane does not show its inside"),
        }
    }

    fn authority(&self) -> &Authority {
        match &self.inner.backend {
            Backend::StandIn(server) => server.authority(),
            Backend::Real(plane) => plane.authority(),
        }
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        match &self.inner.backend {
            Backend::StandIn(server) => server.address(),
            Backend::Real(plane) => plane.address(),
        }
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// The authority's certificate in PEM.
    pub fn ca(&self) -> String {
        self.authority().pem()
    }

    // === Objects, as the administrator ===

    /// The administrator's client, for whatever the methods below do not offer.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// A client for somebody else.
    ///
    /// # Errors
    /// A credential that cannot be read.
    pub fn client_as(&self, credential: &Credential) -> Result<Client> {
        let runtime = self.inner.runtime.as_ref().context("the cluster has ended")?;
        Client::new(runtime.handle(), self.address(), &self.ca(), credential)
    }

    /// A client with a node's certificate.
    ///
    /// # Errors
    /// No randomness.
    pub fn client_as_node(&self, node: &str) -> Result<Client> {
        self.client_as(&Credential::Certificate(self.node_certificate(node, YEAR)?))
    }

    /// Creates an object by its own `apiVersion` and `kind` (namespace `default` where it names none).
    ///
    /// # Errors
    /// The server's refusal.
    pub fn create(&self, object: &Value) -> Result<Value> {
        let (kind, version) =
            (object["kind"].as_str().unwrap_or_default(), object["apiVersion"].as_str().unwrap_or_default());
        let resource = of_object(version, kind).with_context(|| format!("{version} {kind} is not served"))?;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        let created = self.inner.client.send_json("POST", &resource.path(Some(namespace), None), object)?.success();
        let created = created.with_context(|| format!("creating {kind} {}", object["metadata"]["name"]))?;
        if kind == "Namespace" && !self.is_stand_in() {
            furnish(&self.inner.client, &self.ca(), created["metadata"]["name"].as_str().unwrap_or_default())?;
        }
        Ok(created)
    }

    /// An object; `kind` is a kind or a plural, `namespace` is ignored where there is none.
    ///
    /// # Errors
    /// It does not exist.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Result<Value> {
        let answer = self.inner.client.get(&named(kind).path(Some(namespace), Some(name)))?;
        answer.success().with_context(|| format!("getting {kind} {namespace}/{name}"))
    }

    /// An object, if it exists.
    ///
    /// # Errors
    /// The server did not say.
    pub fn find(&self, kind: &str, namespace: &str, name: &str) -> Result<Option<Value>> {
        let answer = self.inner.client.get(&named(kind).path(Some(namespace), Some(name)))?;
        if answer.status == 404 { Ok(None) } else { answer.success().map(Some) }
    }

    /// All objects of a kind, in one namespace or in all.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn list(&self, kind: &str, namespace: Option<&str>) -> Result<Vec<Value>> {
        let list = self.inner.client.get(&named(kind).path(namespace, None))?.success()?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// A merge patch of an object.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn patch(&self, kind: &str, namespace: &str, name: &str, patch: &Value) -> Result<Value> {
        let path = named(kind).path(Some(namespace), Some(name));
        let answer = self.inner.client.patch(&path, "merge-patch", patch)?;
        answer.success().with_context(|| format!("patching {kind} {namespace}/{name}"))
    }

    /// A merge patch of an object's status.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn patch_status(&self, kind: &str, namespace: &str, name: &str, patch: &Value) -> Result<Value> {
        let path = format!("{}/status", named(kind).path(Some(namespace), Some(name)));
        let answer = self.inner.client.patch(&path, "merge-patch", patch)?;
        answer.success().with_context(|| format!("patching the status of {kind} {namespace}/{name}"))
    }

    /// Deletes an object, with the grace period that it has or this one, in seconds.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str, grace_period: Option<i64>) -> Result<()> {
        let path = named(kind).path(Some(namespace), Some(name));
        let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if let Some(seconds) = grace_period {
            options["gracePeriodSeconds"] = json!(seconds);
        }
        let answer = self.inner.client.send_json("DELETE", &path, &options)?;
        answer.success().map(drop).with_context(|| format!("deleting {kind} {namespace}/{name}"))
    }

    /// Watches a kind from now on, what is there first; `query` is added (`fieldSelector=...`).
    ///
    /// # Errors
    /// The server's refusal.
    pub fn watch(&self, kind: &str, namespace: Option<&str>, query: &str) -> Result<Events> {
        let path = named(kind).path(namespace, None);
        self.inner.client.watch(&if query.is_empty() { path } else { format!("{path}?{query}") })
    }

    /// Watches what happens to a kind from now on. The server ends a watch that falls behind, which one of very many objects may do
    /// while it is told of those that are there.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn watch_changes(&self, kind: &str, namespace: &str) -> Result<Events> {
        let path = named(kind).path(Some(namespace), None);
        let list = self.inner.client.get(&format!("{path}?limit=1"))?.success()?;
        let version = list["metadata"]["resourceVersion"].as_str().with_context(|| format!("no version of {path}"))?;
        self.inner.client.watch(&format!("{path}?resourceVersion={version}"))
    }

    /// Waits, woken by the server, until an object is as wanted.
    ///
    /// # Errors
    /// It was not in time: what it was like at the end.
    pub fn wait_for(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        what: &str,
        mut wanted: impl FnMut(&Value) -> bool,
    ) -> Result<Value> {
        let mut last = Value::Null;
        self.wait_event(kind, namespace, name, what, |event| {
            last = event.object.clone();
            event.kind != "DELETED" && wanted(&event.object)
        })
        .map(|event| event.object)
        .with_context(|| format!("{kind} {namespace}/{name} was at last {}", summary(&last)))
    }

    /// Waits until an object is gone.
    ///
    /// # Errors
    /// It was still there in the end.
    pub fn wait_gone(&self, kind: &str, namespace: &str, name: &str) -> Result<()> {
        let began = Instant::now();
        let mut last = Value::Null;
        loop {
            // The watch first, then the look: what goes in between is seen by one of them.
            let mut events = self.watch(kind, Some(namespace), &format!("fieldSelector=metadata.name%3D{name}"))?;
            if self.find(kind, namespace, name)?.is_none() {
                return Ok(());
            }
            loop {
                if crate::wait::interrupted() {
                    bail!("{kind} {namespace}/{name} goes: interrupted");
                }
                let left = LONG
                    .checked_sub(began.elapsed())
                    .with_context(|| format!("{kind} {namespace}/{name} is still there: {}", summary(&last)))?;
                let Ok(next) = events.next(left.min(Duration::from_secs(1))) else { continue };
                match next {
                    Some(event) if event.kind == "DELETED" => return Ok(()),
                    Some(event) if event.kind == "ERROR" => break,
                    Some(event) => last = event.object,
                    None => break,
                }
            }
        }
    }

    fn wait_event(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        what: &str,
        mut wanted: impl FnMut(&Event) -> bool,
    ) -> Result<Event> {
        let began = Instant::now();
        loop {
            let mut events = self.watch(kind, Some(namespace), &format!("fieldSelector=metadata.name%3D{name}"))?;
            loop {
                if crate::wait::interrupted() {
                    bail!("{what}: interrupted");
                }
                let left = LONG.checked_sub(began.elapsed()).with_context(|| format!("{what}: not in time"))?;
                // In slices, so that an interrupt is noticed.
                let Ok(next) = events.next(left.min(Duration::from_secs(1))) else { continue };
                match next {
                    Some(event) if wanted(&event) => return Ok(event),
                    Some(event) if event.kind == "ERROR" => break,
                    Some(_) => {}
                    None => break,
                }
            }
        }
    }

    /// All versions of an object that there were, oldest first; the last of a deleted one is what watchers saw.
    ///
    /// # Errors
    /// The storage of a real control plane does not tell, or is a stock one's ([`Storage::Stock`]).
    pub fn history(&self, kind: &str, namespace: &str, name: &str) -> Result<Vec<Value>> {
        let resource = named(kind);
        let namespace = if resource.namespaced { namespace } else { "" };
        let server = match &self.inner.backend {
            Backend::StandIn(server) => server,
            Backend::Real(plane) => return plane.history(resource, namespace, name),
        };
        let versions = server.with_store(|store| store.versions(resource, namespace, name));
        Ok(versions.into_iter().map(|(_, object)| object.value.clone()).collect())
    }

    /// The distinct statuses that an object had, oldest first.
    ///
    /// # Errors
    /// As [`Cluster::history`].
    pub fn statuses(&self, kind: &str, namespace: &str, name: &str) -> Result<Vec<Value>> {
        let mut statuses: Vec<Value> =
            self.history(kind, namespace, name)?.into_iter().map(|mut object| object["status"].take()).collect();
        statuses.dedup();
        Ok(statuses)
    }

    /// The log of requests: the stand-in's own, or the audit log of a real server.
    ///
    /// # Errors
    /// The audit log cannot be read, or a stock control plane ([`Storage::Stock`]) keeps none.
    pub fn log(&self) -> Result<&RequestLog> {
        let log = match &self.inner.backend {
            Backend::StandIn(server) => server.log(),
            Backend::Real(plane) => plane.log()?,
        };
        log.read_on()?;
        Ok(log)
    }

    /// Requests of others than the kit, oldest first.
    ///
    /// # Errors
    /// As [`Cluster::log`].
    pub fn requests(&self) -> Result<Vec<Record>> {
        Ok(self.log()?.after(0))
    }

    /// From now on kube-controller-manager and kube-scheduler look after a real control plane, until the cluster or the
    /// thread that called this ends. The stand-in does what a node needs of it anyway.
    ///
    /// # Errors
    /// A program is missing or did not start.
    pub fn start_controllers(&self) -> Result<()> {
        self.start_controllers_with(&[])
    }

    /// The same with flags of kube-controller-manager.
    ///
    /// # Errors
    /// As [`Cluster::start_controllers`].
    pub fn start_controllers_with(&self, flags: &[&str]) -> Result<()> {
        let mut controllers = self.inner.controllers.lock();
        if let Backend::Real(plane) = &self.inner.backend
            && controllers.is_none()
        {
            // As kubeadm has it: nodes renew their certificates without anybody's approval.
            let role = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient";
            self.bind("node-autoapprove-certificate-rotation", role, "system:nodes")?;
            *controllers = Some(plane.controllers(&self.inner.folder, flags)?);
        }
        Ok(())
    }

    // === Misbehaving (stand-in only) ===

    /// Misbehaviour on request.
    ///
    /// # Errors
    /// The control plane is a real one.
    pub fn faults(&self) -> Result<&Faults> {
        Ok(self.server()?.faults())
    }

    /// Breaks all connections and refuses new ones; what is stored stays.
    ///
    /// # Errors
    /// The control plane is a real one.
    pub fn stop(&self) -> Result<()> {
        self.server()?.stop();
        Ok(())
    }

    /// Listens again, on the same port.
    ///
    /// # Errors
    /// The port is taken, or the control plane is a real one.
    pub fn resume(&self) -> Result<()> {
        self.server()?.resume()
    }

    /// Where the cluster's files are.
    pub fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// What `kubectl` prints, as the administrator.
    ///
    /// # Errors
    /// There is none, or it ended with another code than 0.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let output = self.kubectl_command(arguments)?.output().context("starting kubectl")?;
        if !output.status.success() {
            bail!("kubectl {arguments:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// `kubectl`, told which cluster it is about.
    ///
    /// # Errors
    /// There is none.
    pub fn kubectl_command(&self, arguments: &[&str]) -> Result<Command> {
        let program = kubectl().context("there is no kubectl (Debian: kubernetes-client)")?;
        let mut command = Command::new(program);
        command
            .arg("--kubeconfig")
            .arg(self.admin_kubeconfig()?)
            .arg("--cache-dir")
            .arg(self.inner.folder.join("kubectl-cache"))
            .args(arguments)
            .env("HOME", &self.inner.folder)
            .stdin(Stdio::null());
        Ok(command)
    }
}

/// What controllers of a real cluster give to every namespace: the account `default` and the cluster's authority.
fn furnish(client: &Client, ca: &str, namespace: &str) -> Result<()> {
    let objects = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": ca},
            "metadata": {"name": "kube-root-ca.crt", "namespace": namespace}}),
        // Some builds of the API server put this one into pods' token volumes, too.
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"service-ca.crt": ""},
            "metadata": {"name": "openshift-service-ca.crt", "namespace": namespace}}),
    ];
    for object in objects {
        let kind = object["kind"].as_str().unwrap_or_default();
        let answer = client.send_json("POST", &named(kind).path(Some(namespace), None), &object)?;
        // The server makes the first namespaces itself, and controllers make the rest where they run.
        if answer.status != 409 {
            answer.success().with_context(|| format!("creating {kind} of namespace {namespace}"))?;
        }
    }
    Ok(())
}

/// What a cluster for pods is made of: the programs of `$KUBEBUILDER_ASSETS`, unless `$BULKHEAD_CLUSTER` is `stand-in`.
fn programs_for_pods() -> Option<Programs> {
    let wanted = std::env::var_os(CLUSTER).is_none_or(|which| which != "stand-in");
    assets().filter(|_| wanted).map(|folder| Programs { folder, storage: Storage::default() })
}

/// Where the programs of a real control plane are that clusters for pods are made of; `None` where it is to be the stand-in.
pub fn programs() -> Option<PathBuf> {
    programs_for_pods().map(|programs| programs.folder)
}

/// The folder of a real control plane's programs, where the environment names one.
fn assets() -> Option<PathBuf> {
    std::env::var_os(ASSETS).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// `kubectl`: that of the real control plane, or the machine's.
pub fn kubectl() -> Option<PathBuf> {
    let own = assets().map(|folder| folder.join("kubectl"));
    let machines = ["/usr/bin/kubectl", "/usr/local/bin/kubectl"].map(PathBuf::from);
    own.into_iter().chain(machines).find(|path| path.is_file())
}

/// Installs Debian's kubectl where there is none.
///
/// # Errors
/// As [`machine::install`].
pub fn ensure_kubectl(say: &dyn Fn(&str)) -> Result<()> {
    if kubectl().is_some() { Ok(()) } else { machine::install(&["kubernetes-client"], say) }
}

/// An object in few words, for messages.
fn summary(object: &Value) -> String {
    if object.is_null() {
        return "not there".to_owned();
    }
    let mut shown = json!({"metadata": {}, "status": object["status"]});
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "resourceVersion"] {
        if !object["metadata"][field].is_null() {
            shown["metadata"][field] = object["metadata"][field].clone();
        }
    }
    shown.to_string()
}

/// The loopback address, for clusters without a lab.
pub const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[cfg(test)]
mod kubelets_tests;
#[cfg(test)]
mod tests;
