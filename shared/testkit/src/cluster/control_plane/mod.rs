//! A real control plane: etcd and kube-apiserver from a folder of programs, with our own authority.
//!
//! A start takes seconds, so the tests of a run share instances, each used by one test at a time. The first test that
//! needs one starts it below a keeper (`keeper.sh`), a process that ends it with the run (the test runner's process), or
//! when nobody has used it for a minute. Who takes an instance over finds it as new: whatever etcd holds beyond what it
//! held at first is removed, what was changed is put back, and the API server's caches have seen that.

mod controllers;
mod etcd;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use serde_json::{Value, json};

pub(super) use self::controllers::Controllers;
use self::controllers::Place;
use self::etcd::{Content, Etcd};
use super::client::Client;
use super::kubeconfig;
use crate::containerd::tail;
use crate::wait::{SHORT, insist};
use crate::{machine, processes};
use bulkhead_apiserver::authority::Authority;
use bulkhead_apiserver::request_log::RequestLog;
use bulkhead_apiserver::resources::{Resource, of_object};

const AUDIT_LOG: &str = "audit.log";
const KEEPER: &str = include_str!("keeper.sh");
/// More than tests run beside each other.
const INSTANCES: u8 = 32;
/// What the API server calls itself towards pods. It is nobody's address, but in a lab whose pods are to reach the
/// service `kubernetes` ([`NetNs::host_answers_at`](crate::netns::NetNs::host_answers_at)).
pub const ADVERTISED: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The first address of the range of services.
const SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
/// What the API server keeps there for itself, whenever it likes.
const ITS_OWN: &[&str] = &[
    "/registry/apiregistration.k8s.io/",
    "/registry/configmaps/kube-system/",
    "/registry/endpointslices/default/kubernetes",
    "/registry/flowschemas/",
    "/registry/ipaddresses/10.96.0.1",
    "/registry/leases/kube-system/",
    "/registry/masterleases/",
    "/registry/peerserverleases/",
    "/registry/prioritylevelconfigurations/",
    "/registry/ranges/",
    "/registry/servicecidrs/",
    "/registry/services/endpoints/default/kubernetes",
    "/registry/services/specs/default/kubernetes",
];

/// What the API server keeps its objects in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Storage {
    /// The programs' own etcd: lists can be streamed.
    #[default]
    Etcd,
    /// An etcd that cannot report the progress of watches (Debian's 3.4): streamed lists are refused.
    WithoutWatchProgress,
    /// As the first, and the API server serves trust bundles and requests for certificates of pods, which are off by default.
    WithPodCertificates,
    /// As the first, and the API server does what it does by default and no more, for whoever measures: objects lie in protobuf, nothing
    /// is audited. So neither an object's history nor a log of requests is to be had.
    Stock,
}

impl Storage {
    const fn program(self) -> &'static str {
        match self {
            Self::Etcd | Self::WithPodCertificates | Self::Stock => "etcd",
            Self::WithoutWatchProgress => "etcd-old",
        }
    }

    /// What its instances are called by: those of another kind are not taken.
    const fn kind(self) -> &'static str {
        match self {
            Self::WithPodCertificates => "certificates",
            Self::Stock => "stock",
            Self::Etcd | Self::WithoutWatchProgress => self.program(),
        }
    }

    /// More of the API server's command line.
    fn flags(self) -> Vec<String> {
        let flags: &[&str] = match self {
            Self::WithPodCertificates => &[
                "--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true,PodCertificateRequest=true",
                "--runtime-config=certificates.k8s.io/v1beta1=true",
            ],
            _ => &[],
        };
        flags.iter().map(|flag| (*flag).to_owned()).collect()
    }

    /// Whether `$KUBEBUILDER_ASSETS` names a folder with a control plane on this storage.
    pub fn is_there(self) -> bool {
        super::assets().is_some_and(|folder| has(&folder, &["kube-apiserver", self.program()]))
    }
}

/// Whether `$KUBEBUILDER_ASSETS` names a folder with a control plane and the controllers of a cluster.
pub fn controllers_are_there() -> bool {
    Storage::Etcd.is_there() && super::assets().is_some_and(|folder| has(&folder, &controllers::PROGRAMS))
}

fn has(folder: &Path, programs: &[&str]) -> bool {
    programs.iter().all(|one| folder.join(one).is_file())
}

/// Which programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Programs {
    pub folder: PathBuf,
    pub storage: Storage,
}

/// One running pair, ours alone as long as we hold its lock.
#[derive(Debug)]
struct Instance {
    programs: Programs,
    /// Locks, and in `run` everything else.
    folder: PathBuf,
    port: u16,
    etcd: Etcd,
    authority: Authority,
    // Given back when the process ends, not before: a node that a test has left behind goes with it too.
    _owner: Flock<File>,
    _users: Flock<File>,
}

/// Those of this process that no test has just now.
static IDLE: Mutex<Vec<Instance>> = Mutex::new(Vec::new());

fn idle() -> parking_lot::MutexGuard<'static, Vec<Instance>> {
    IDLE.lock()
}

/// An instance in use.
#[derive(Debug)]
pub(super) struct ControlPlane {
    /// `None` only while it is dropped.
    instance: Option<Instance>,
    address: SocketAddr,
    /// Only what came later is this test's.
    began: u64,
    log: RequestLog,
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        idle().extend(self.instance.take());
    }
}

impl ControlPlane {
    /// An instance that nobody uses, or a new one. It is not ready before [`ControlPlane::settle`].
    ///
    /// # Errors
    /// A program is missing or cannot be started.
    pub(super) fn take(programs: &Programs, address: IpAddr) -> Result<Self> {
        for program in ["kube-apiserver", programs.storage.program()] {
            if !programs.folder.join(program).is_file() {
                bail!("{} has no {program}", programs.folder.display());
            }
        }
        let kept = {
            let mut idle = idle();
            let fits = idle.iter().position(|one| one.programs == *programs && one.alive().is_ok());
            fits.map(|index| idle.swap_remove(index))
        };
        let instance = match kept {
            Some(instance) => instance,
            None => Instance::claim(programs)?,
        };
        let log = RequestLog::of_audit_log(&instance.file(AUDIT_LOG))?;
        let address = SocketAddr::new(address, instance.port);
        Ok(Self { instance: Some(instance), address, began: 0, log })
    }

    /// Waits, with `client` speaking for masters, until the server answers, and then until it is as new; `furnish` makes
    /// what a new one lacks.
    ///
    /// # Errors
    /// A server has ended, or is not ready in time.
    pub(super) fn settle(&mut self, client: &Client, furnish: impl FnOnce() -> Result<()>) -> Result<()> {
        let instance = self.instance.as_ref().context("the control plane is gone")?;
        insist("the API server is ready", crate::wait::LONG, || {
            if let Err(ended) = instance.alive() {
                return Ok(Err(ended));
            }
            let ready = client.get("/readyz")?;
            ensure!(ready.status == 200, "{}: {}", ready.status, String::from_utf8_lossy(&ready.body));
            // Made soon after; pods' variables tell of it.
            client.get("/api/v1/namespaces/default/services/kubernetes")?.success()?;
            Ok(Ok(()))
        })??;
        if instance.file(FIRST_CONTENT).exists() {
            instance.reset(client)?;
        } else {
            furnish()?;
            instance.remember()?;
        }
        self.began = instance.etcd.content()?.1;
        self.log.forget();
        Ok(())
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    fn instance(&self) -> &Instance {
        match &self.instance {
            Some(instance) => instance,
            None => unreachable!("an instance is given back by nothing but the end of its value"),
        }
    }

    pub(super) fn authority(&self) -> &Authority {
        &self.instance().authority
    }

    /// # Errors
    /// The control plane is a stock one.
    pub(super) fn log(&self) -> Result<&RequestLog> {
        ensure!(!self.is_stock(), "a stock control plane keeps no log of requests");
        Ok(&self.log)
    }

    fn is_stock(&self) -> bool {
        self.instance().programs.storage == Storage::Stock
    }

    /// All versions of an object since this test began, oldest first; a deleted one comes once more, as watchers see it.
    ///
    /// # Errors
    /// etcd does not tell, or the control plane is a stock one.
    pub(super) fn history(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Vec<Value>> {
        ensure!(!self.is_stock(), "a stock control plane stores no objects that can be read");
        let mut versions = Vec::new();
        for change in self.instance().etcd.changes_after(self.began)? {
            if !change.key.ends_with(&format!("/{name}")) {
                continue;
            }
            let mut object: Value = serde_json::from_slice(&change.value).with_context(|| change.key.clone())?;
            let metadata = &object["metadata"];
            if object["kind"] == resource.kind
                && metadata["namespace"].as_str().unwrap_or_default() == namespace
                && metadata["name"] == name
            {
                object["metadata"]["resourceVersion"] = json!(change.revision.to_string());
                versions.push(object);
            }
        }
        Ok(versions)
    }

    /// Starts kube-controller-manager (with `flags`) and kube-scheduler beside it, with their files in `folder`.
    ///
    /// # Errors
    /// A program is missing, cannot be started or ends at once.
    pub(super) fn controllers(&self, folder: &Path, flags: &[&str]) -> Result<Controllers> {
        let instance = self.instance();
        let place = Place {
            programs: &instance.programs.folder,
            folder,
            address: self.address,
            authority: &instance.authority,
            account_key: &instance.file("sa.key"),
        };
        Controllers::start(&place, flags)
    }
}

/// How long a process that becomes another program may look like none.
const MOMENT: Duration = Duration::from_secs(5);
/// What etcd held when an instance was new. Its being there says that the instance has become ready.
const FIRST_CONTENT: &str = "first-content.json";
const STATE: &str = "state.json";

impl Instance {
    fn run(folder: &Path) -> PathBuf {
        folder.join("run")
    }

    fn file(&self, name: &str) -> PathBuf {
        Self::run(&self.folder).join(name)
    }

    /// One that nobody uses: running, or started now.
    fn claim(programs: &Programs) -> Result<Self> {
        let name = programs.storage.kind();
        for number in 1..=INSTANCES {
            let folder = home().join(format!("control-plane-{name}-{number}"));
            let Some(owner) = lock(&folder, "owner", FlockArg::LockExclusiveNonblock)? else { continue };
            let Some(users) = lock(&folder, "users", FlockArg::LockShared)? else { continue };
            let (run, state) = Self::state(&folder);
            // Another run's goes with that run, which may be now.
            if run != Some(run_id()) && run.is_some_and(processes::is_alive) {
                continue;
            }
            let found = if run == Some(run_id()) { Self::read(programs, &folder, &state).ok() } else { None };
            if found.is_none() {
                clear(&folder)?;
            }
            // The keeper may have removed the folder in between, and with it the locks.
            if owner.metadata().is_ok_and(|file| file.nlink() == 0) {
                return Self::claim(programs);
            }
            let (port, etcd, authority) = found.map_or_else(|| start(programs, &folder), Ok)?;
            return Ok(Self {
                programs: programs.clone(),
                folder,
                port,
                etcd,
                authority,
                _owner: owner,
                _users: users,
            });
        }
        bail!("all {INSTANCES} control planes are in use")
    }

    /// The process of the run that started it, and all that was noted.
    fn state(folder: &Path) -> (Option<i32>, Value) {
        let text = std::fs::read_to_string(Self::run(folder).join(STATE)).unwrap_or_default();
        let state: Value = serde_json::from_str(&text).unwrap_or_default();
        (state["run"].as_i64().and_then(|run| i32::try_from(run).ok()), state)
    }

    /// What runs already, as far as its files say and it answers.
    fn read(programs: &Programs, folder: &Path, state: &Value) -> Result<(u16, Etcd, Authority)> {
        let run = Self::run(folder);
        let text = |name: &str| std::fs::read_to_string(run.join(name)).with_context(|| name.to_owned());
        ensure!(state["programs"] == json!(programs.folder), "other programs");
        ensure!(run.join(FIRST_CONTENT).exists(), "it never became ready");
        let port = state["port"].as_u64().and_then(|port| u16::try_from(port).ok()).context("no port")?;
        let etcd = Etcd(state["etcd"].as_str().context("no etcd")?.parse()?);
        std::net::TcpStream::connect_timeout(&SocketAddr::new(super::LOCAL, port), SHORT)?;
        etcd.content()?;
        Ok((port, etcd, Authority::load(&text("ca.crt")?, &text("ca.key")?)?))
    }

    /// # Errors
    /// A server has ended: the end of its log.
    fn alive(&self) -> Result<()> {
        for name in ["etcd", "kube-apiserver"] {
            // The script becomes the program, and a process has no arguments while it becomes another: on a busy machine, and with
            // a program of 100 MB, for longer than one look takes.
            insist(&format!("{name} runs"), MOMENT, || {
                let starting = self.starting(name);
                let running = processes::with_argument_below(&self.file(&format!("{name}.data")));
                let log = || tail(&self.file(&format!("{name}.log")), 20);
                ensure!(starting || !running.is_empty(), "{name} has ended: {}", log());
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whether the keeper has not come to start it yet, or its script runs.
    fn starting(&self, name: &str) -> bool {
        !self.file(&format!("{name}.log")).exists()
            || !processes::with_argument_below(&self.file(&format!("{name}.sh"))).is_empty()
    }

    fn remember(&self) -> Result<()> {
        let (content, _) = self.etcd.content()?;
        let encoded: serde_json::Map<String, Value> =
            content.into_iter().map(|(key, value)| (key, json!(STANDARD.encode(value)))).collect();
        kubeconfig::write(&self.file(FIRST_CONTENT), &Value::Object(encoded).to_string())
    }

    /// Makes everything as it was at first.
    fn reset(&self, client: &Client) -> Result<()> {
        let text = std::fs::read_to_string(self.file(FIRST_CONTENT))?;
        let encoded: std::collections::BTreeMap<String, String> = serde_json::from_str(&text)?;
        let first = encoded
            .into_iter()
            .map(|(key, value)| Ok((key, STANDARD.decode(value)?)))
            .collect::<Result<Content>>()
            .context("reading what etcd held at first")?;
        let (now, revision) = self.etcd.content()?;
        let changes = to_reset(&first, &now);
        self.etcd.change(&changes)?;
        // Nobody asks for what was before, and etcd would grow all through a run. It refuses where nothing has happened since.
        let _ = self.etcd.compact(revision);
        let touched = changes.iter().filter_map(|(key, _)| now.get(key));
        let kinds: BTreeSet<String> =
            touched.filter_map(|value| resource_of(value)).map(|one| one.path(None, None)).collect();
        for path in kinds {
            let names = |path: &str| -> Result<BTreeSet<(String, String)>> {
                let list = client.get(path)?.success()?;
                let items = list["items"].as_array().into_iter().flatten();
                Ok(items.map(bulkhead_apiserver::storage::key_of).collect())
            };
            insist("the API server's cache follows", SHORT, || {
                let (cached, stored) = (names(&format!("{path}?resourceVersion=0"))?, names(&path)?);
                ensure!(cached == stored, "{path}: {cached:?} instead of {stored:?}");
                Ok(())
            })?;
        }
        Ok(())
    }
}

fn resource_of(stored: &[u8]) -> Option<&'static Resource> {
    let object: Value = serde_json::from_slice(stored).ok()?;
    of_object(object["apiVersion"].as_str()?, object["kind"].as_str()?)
}

/// What has to be stored or removed (`None`) to have the first content again.
fn to_reset(first: &Content, now: &Content) -> Vec<(String, Option<Vec<u8>>)> {
    let ours = |key: &&String| key.starts_with("/registry/") && !ITS_OWN.iter().any(|own| key.starts_with(own));
    let extra = now.keys().filter(|key| !first.contains_key(*key)).filter(ours).map(|key| (key.clone(), None));
    let lost = first.keys().filter(|key| now.get(*key) != first.get(*key)).filter(ours);
    extra.chain(lost.map(|key| (key.clone(), first.get(key).cloned()))).collect()
}

/// The process of the run that this test belongs to: the test runner.
fn run_id() -> i32 {
    i32::try_from(std::os::unix::process::parent_id()).unwrap_or(i32::MAX)
}

/// Where instances are: below a folder that nobody else may write to.
fn home() -> PathBuf {
    if machine::is_root() {
        crate::lab::FOLDERS.into()
    } else {
        std::env::temp_dir().join(format!("bulkhead-lab-{}", nix::unistd::geteuid()))
    }
}

/// A lock in an instance's folder; `None` where somebody else has it.
fn lock(folder: &Path, name: &str, how: FlockArg) -> Result<Option<Flock<File>>> {
    let path = folder.join(name);
    let what = || format!("locking {}", path.display());
    loop {
        std::fs::create_dir_all(folder).with_context(what)?;
        let file = match File::options().create(true).append(true).open(&path) {
            Ok(file) => file,
            // Its keeper removes the folder just now.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(what),
        };
        match Flock::lock(file, how) {
            Ok(held) if held.metadata().is_ok_and(|file| file.nlink() == 0) => continue,
            Ok(held) => return Ok(Some(held)),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, error)) => return Err(error).with_context(what),
        }
    }
}

/// Removes what a keeper that was killed, or a start that failed, has left.
fn clear(folder: &Path) -> Result<()> {
    let run = Instance::run(folder);
    insist("the former control plane ends", SHORT, || {
        let left = processes::with_argument_below(&run);
        left.iter().for_each(|pid| processes::signal(*pid, Signal::SIGKILL));
        ensure!(left.is_empty(), "processes {left:?}");
        Ok(())
    })?;
    match std::fs::remove_dir_all(&run) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", run.display()))
        }
        _ => Ok(()),
    }
}

/// Starts the programs below a keeper; does not wait for them.
fn start(programs: &Programs, folder: &Path) -> Result<(u16, Etcd, Authority)> {
    let run = Instance::run(folder);
    std::fs::create_dir_all(&run).with_context(|| format!("creating {}", run.display()))?;
    let authority = Authority::new()?;
    let file = |name: &str, text: &str| -> Result<String> {
        let path = run.join(name);
        kubeconfig::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let ca = file("ca.crt", &authority.pem())?;
    file("ca.key", &authority.key_pem())?;
    // The gateway of every lab that there can be: which ones use it is not known yet.
    let gateways = (1..=250).map(|number| IpAddr::V4(Ipv4Addr::new(198, 18, number, 1)));
    let addresses: Vec<IpAddr> = gateways.chain([super::LOCAL, SERVICE]).collect();
    let names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let server = authority.server(&names, &addresses)?;
    let (certificate, key) = (file("apiserver.crt", &server.certificate)?, file("apiserver.key", &server.key)?);
    // The public half as a certificate: the API server reads no public key out of PKCS #8.
    let account = authority.server(&["service-accounts"], &[])?;
    let (account, account_key) = (file("sa.crt", &account.certificate)?, file("sa.key", &account.key)?);
    let kubelet = authority.client("kube-apiserver-kubelet-client", "system:masters", super::YEAR)?;
    let kubelet = (file("kubelet-client.crt", &kubelet.certificate)?, file("kubelet-client.key", &kubelet.key)?);
    let record = what_tests_read(programs.storage, &file)?;

    let etcd_address = SocketAddr::new(super::LOCAL, free_port(super::LOCAL)?);
    let (client_url, peer_url) =
        (format!("http://{etcd_address}"), format!("http://{}:{}", super::LOCAL, free_port(super::LOCAL)?));
    let etcd = [
        // Nothing of it is to outlive the power of the machine.
        "--unsafe-no-fsync".to_owned(),
        format!("--data-dir={}", run.join("etcd.data").display()),
        format!("--listen-client-urls={client_url}"),
        format!("--advertise-client-urls={client_url}"),
        format!("--listen-peer-urls={peer_url}"),
        format!("--initial-advertise-peer-urls={peer_url}"),
        format!("--initial-cluster=default={peer_url}"),
    ];
    let storage = programs.storage;
    file("etcd.sh", &script(storage, &programs.folder.join(storage.program()), &run.join("etcd.log"), &etcd))?;
    let port = free_port(Ipv4Addr::UNSPECIFIED.into())?;
    let apiserver = [
        format!("--cert-dir={}", run.join("kube-apiserver.data").display()),
        format!("--etcd-servers={client_url}"),
        "--bind-address=0.0.0.0".to_owned(),
        format!("--advertise-address={ADVERTISED}"),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={certificate}"),
        format!("--tls-private-key-file={key}"),
        format!("--client-ca-file={ca}"),
        format!("--kubelet-client-certificate={}", kubelet.0),
        format!("--kubelet-client-key={}", kubelet.1),
        // As kubeadm has it: names of nodes resolve nowhere.
        "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname".to_owned(),
        format!("--service-account-key-file={account}"),
        format!("--service-account-signing-key-file={account_key}"),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-bootstrap-token-auth".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
    ];
    let apiserver: Vec<String> = apiserver.into_iter().chain(record).chain(programs.storage.flags()).collect();
    file(
        "kube-apiserver.sh",
        &script(storage, &programs.folder.join("kube-apiserver"), &run.join("kube-apiserver.log"), &apiserver),
    )?;
    file(
        STATE,
        &json!({"programs": programs.folder, "port": port, "etcd": etcd_address.to_string(), "run": run_id()})
            .to_string(),
    )?;
    let keeper = file("keeper.sh", KEEPER)?;
    let log = File::create(run.join("keeper.log"))?;
    Command::new("sh")
        .args([keeper, folder.display().to_string(), run_id().to_string()])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // The runner ends the group of a test with the test.
        .process_group(0)
        .spawn()
        .context("starting the control plane's keeper")?;
    Ok((port, Etcd(etcd_address), authority))
}

/// What the API server is told to keep of objects and requests so that tests can read it. `file` writes one of the instance's files.
fn what_tests_read(storage: Storage, file: &impl Fn(&str, &str) -> Result<String>) -> Result<Vec<String>> {
    let audit = file(AUDIT_LOG, "")?;
    if storage == Storage::Stock {
        return Ok(Vec::new());
    }
    let policy = file("audit-policy.json", &audit_policy().to_string())?;
    Ok(vec![
        // Every version of an object ([`ControlPlane::history`]), which is read as it is stored.
        "--etcd-compaction-interval=0".to_owned(),
        "--storage-media-type=application/json".to_owned(),
        format!("--audit-policy-file={policy}"),
        format!("--audit-log-path={audit}"),
        // One file, which each test begins anew.
        "--audit-log-maxsize=100000".to_owned(),
    ])
}

/// Everything that others than the cluster's own processes ask, with what they send, when it comes and when it is answered.
fn audit_policy() -> Value {
    let own = ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"];
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitManagedFields": true,
        // Controllers speak by accounts of this namespace.
        "rules": [
            {"level": "None", "users": own},
            {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
            {"level": "Request"},
        ],
    })
}

fn script(storage: Storage, program: &Path, log: &Path, arguments: &[String]) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let arguments: Vec<String> = arguments.iter().map(|one| quoted(one)).collect();
    let (program, log) = (quoted(&program.display().to_string()), quoted(&log.display().to_string()));
    // Memory is there; what is collected less often leaves the processors to the tests.
    let collection = if storage == Storage::Stock { "" } else { "export GOGC=400\n" };
    format!("{collection}exec {program} {} >>{log} 2>&1 </dev/null\n", arguments.join(" "))
}

fn free_port(address: IpAddr) -> Result<u16> {
    Ok(TcpListener::bind(SocketAddr::new(address, 0)).context("looking for a free port")?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tests_made_goes_and_what_they_changed_comes_back() {
        let content = |all: &[(&str, &str)]| -> Content {
            all.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
        };
        let first = content(&[
            ("/registry/namespaces/default", "1"),
            ("/registry/serviceaccounts/default/default", "1"),
            ("/registry/leases/kube-system/apiserver-x", "1"),
        ]);
        let now = content(&[
            ("/registry/namespaces/default", "2"),
            ("/registry/leases/kube-system/apiserver-x", "2"),
            ("/registry/masterleases/198.18.0.1", "1"),
            ("/registry/minions/a", "1"),
            ("/bulkhead-testkit", ""),
        ]);
        let changes = to_reset(&first, &now);
        assert_eq!(
            changes,
            [
                ("/registry/minions/a".to_owned(), None),
                ("/registry/namespaces/default".to_owned(), Some(b"1".to_vec())),
                ("/registry/serviceaccounts/default/default".to_owned(), Some(b"1".to_vec())),
            ]
        );
    }

    #[test]
    fn scripts_keep_any_argument() {
        let text = |storage| script(storage, Path::new("/p"), Path::new("/l"), &["--a=it's".to_owned()]);
        let run = "exec '/p' '--a=it'\\''s' >>'/l' 2>&1 </dev/null\n";
        assert_eq!(text(Storage::Stock), run);
        assert_eq!(text(Storage::Etcd), format!("export GOGC=400\n{run}"));
    }
}
