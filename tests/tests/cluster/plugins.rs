//! Is a CSI driver registered on Node and CSINode as upstream registers it, and does one that hangs, lies or collides, or a process
//! that is away, hold back only itself?

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use bulkhead_csi::registration::v1::registration_server::{Registration, RegistrationServer};
use bulkhead_csi::registration::v1::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use bulkhead_csi::v1::node_server::{Node as CsiNode, NodeServer};
use bulkhead_csi::v1::{NodeGetInfoRequest, NodeGetInfoResponse, Topology};
use bulkhead_testkit::processes::signal;
use bulkhead_testkit::{Cluster, LONG, Node, eventually};
use bulkhead_tests::joined::{Member, NODE, wait_node};
use bulkhead_tests::lab;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// What a driver in this process says, and what it was told.
#[derive(Clone, Default)]
struct Driver {
    info: PluginInfo,
    node_id: String,
    topology: Vec<(String, String)>,
    limit: i64,
    /// GetInfo is never answered.
    hangs: bool,
    told: Arc<Mutex<Vec<(bool, String)>>>,
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        self.told.lock().push((status.plugin_registered, status.error));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl CsiNode for Driver {
    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let segments = self.topology.iter().cloned().collect();
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.node_id.clone(),
            max_volumes_per_node: self.limit,
            accessible_topology: Some(Topology { segments }),
        }))
    }
}

impl Driver {
    fn new(name: &str, topology: &[(&str, &str)]) -> Self {
        let topology = topology.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let info = PluginInfo {
            r#type: "CSIPlugin".into(),
            name: name.into(),
            supported_versions: vec!["1.0.0".into()],
            ..PluginInfo::default()
        };
        Driver { info, node_id: format!("id-of-{name}"), topology, ..Driver::default() }
    }

    fn told(&self) -> Vec<(bool, String)> {
        self.told.lock().clone()
    }

    fn wait_told(&self) -> Result<(bool, String)> {
        eventually("it is told what came of it", LONG, || self.told().first().cloned().context("nothing yet"))
    }
}

/// Serves drivers in this process, each on one socket in plugins_registry.
struct Drivers {
    runtime: tokio::runtime::Runtime,
    registry: PathBuf,
}

impl Drivers {
    fn of(node: &Node) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        Ok(Drivers { runtime, registry: node.root_dir().join("plugins_registry") })
    }

    fn socket(&self, driver: &Driver) -> PathBuf {
        self.registry.join(format!("{}-reg.sock", driver.info.name))
    }

    fn serve(&self, driver: &Driver) -> Result<tokio::task::JoinHandle<()>> {
        let path = self.socket(driver);
        let _ = std::fs::remove_file(&path);
        let _guard = self.runtime.enter();
        let listener = tokio::net::UnixListener::bind(&path)?;
        let incoming = futures_util::stream::unfold(listener, |listener| async move {
            let stream = listener.accept().await.map(|(stream, _)| stream);
            Some((stream, listener))
        });
        let server = tonic::transport::Server::builder()
            .add_service(RegistrationServer::new(driver.clone()))
            .add_service(NodeServer::new(driver.clone()))
            .serve_with_incoming(incoming);
        Ok(self.runtime.spawn(async move {
            let _ = server.await;
        }))
    }

    /// It goes, and its socket.
    fn remove(&self, driver: &Driver, serving: &tokio::task::JoinHandle<()>) -> Result<()> {
        serving.abort();
        Ok(std::fs::remove_file(self.socket(driver))?)
    }
}

fn entries(csi_node: &Value) -> Vec<&str> {
    let drivers = csi_node["spec"]["drivers"].as_array().map(Vec::as_slice).unwrap_or_default();
    drivers.iter().filter_map(|driver| driver["name"].as_str()).collect()
}

fn wait_entries(cluster: &Cluster, names: &[&str]) -> Result<Value> {
    cluster.wait_for("csinodes", "", NODE, &format!("it has the drivers {names:?}"), |node| {
        let mut have = entries(node);
        have.sort_unstable();
        have == names
    })
}

fn wait_node_ids(cluster: &Cluster, ids: &Value) -> Result<Value> {
    cluster.wait_for("nodes", "", NODE, "its annotation names the drivers", |node| {
        let text = node["metadata"]["annotations"][NODE_IDS].as_str().unwrap_or("{}");
        serde_json::from_str::<Value>(text).is_ok_and(|have| have == *ids)
    })
}

fn state_of(node: &Node, name: &str) -> Result<Value> {
    let all: Value = serde_json::from_str(&node.ctl(&["plugins", "-o", "json"])?)?;
    let found = all.as_array().into_iter().flatten().find(|plugin| {
        plugin["name"] == name || plugin["socket"].as_str().is_some_and(|socket| socket.starts_with(name))
    });
    found.cloned().with_context(|| format!("{name} is not listed: {all:#}"))
}

#[test]
fn one_plugin_holds_back_nobody_else() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, mut node } =
        Member::start(&lab, &[], |node| node.argument("--node-labels=example.com/zone=here"))?;
    wait_node(&cluster, "True")?;
    let drivers = Drivers::of(&node)?;
    let hangs = Driver { hangs: true, ..Driver::new("a-hangs.test", &[]) };
    let collides = Driver::new("collides.test", &[("example.com/zone", "there")]);
    let device = Driver {
        info: PluginInfo { r#type: "DevicePlugin".into(), ..Driver::new("device.test", &[]).info },
        ..Driver::new("device.test", &[])
    };
    let invalid = Driver::new("invalid.test", &[("no label/at all!", "x")]);
    let good =
        Driver { limit: 5, ..Driver::new("good.test", &[("example.com/zone", "here"), ("example.com/rack", "r1")]) };
    for driver in [&hangs, &collides, &device, &invalid] {
        drivers.serve(driver)?;
    }
    let serving = drivers.serve(&good)?;
    ensure!(good.wait_told()? == (true, String::new()), "{:?}", good.told());
    let csi_node = wait_entries(&cluster, &["good.test"])?;
    let entry = json!([{
        "name": "good.test", "nodeID": "id-of-good.test", "topologyKeys": ["example.com/rack", "example.com/zone"],
        "allocatable": {"count": 5},
    }]);
    ensure!(csi_node["spec"]["drivers"] == entry, "{csi_node:#}");
    let seen = wait_node_ids(&cluster, &json!({"good.test": "id-of-good.test"}))?;
    ensure!(seen["metadata"]["labels"]["example.com/rack"] == "r1", "{seen:#}");
    for (driver, words) in [
        (
            &collides,
            "detected topology value collision: driver reported \"example.com/zone\":\"there\" but existing label is \"example.com/zone\":\"here\"",
        ),
        (
            &device,
            "RegisterPlugin error -- plugin validation failed with err: manager version, v1beta1, is not among plugin supported",
        ),
        (&invalid, "RegisterPlugin error -- plugin registration failed with err: "),
    ] {
        let (registered, why) = driver.wait_told()?;
        ensure!(!registered && why.contains(words), "{}: {why}", driver.info.name);
        let listed = state_of(&node, &driver.info.name)?;
        ensure!(listed["why"].as_str().is_some_and(|listed| !listed.is_empty()), "{listed:#}");
    }
    ensure!(state_of(&node, "good.test")?["state"] == "registered");
    eventually("the one that hangs is shown", LONG, || {
        let state = state_of(&node, "a-hangs.test")?;
        ensure!(
            state["state"] == "failed" && state["why"].as_str().is_some_and(|why| why.contains("GetInfo")),
            "{state:#}"
        );
        Ok(())
    })?;

    // The writer stands still: whoever comes waits, and whoever is there stays.
    let statusd = node.pids()["kubelet-statusd"];
    let late = Driver::new("late.test", &[]);
    signal(statusd, Signal::SIGSTOP);
    drivers.serve(&late)?;
    eventually("it is asked", LONG, || {
        let state = state_of(&node, "late.test")?;
        ensure!(state["type"] == "CSIPlugin" && state["state"] == "registering", "{state:#}");
        Ok(())
    })?;
    ensure!(late.told().is_empty(), "{:?}", late.told());
    signal(statusd, Signal::SIGCONT);
    ensure!(late.wait_told()?.0, "{:?}", late.told());
    wait_entries(&cluster, &["good.test", "late.test"])?;

    // Whoever decides begins anew: all are registered again, and nobody misses an entry meanwhile.
    let told = late.told().len();
    node.kill_daemon("kubelet-syncd")?;
    node.wait_healthy()?;
    eventually("it is registered again", LONG, || {
        ensure!(late.told().len() > told && good.told().len() > 1, "{:?}", late.told());
        Ok(())
    })?;
    for version in cluster.history("csinodes", "", NODE)?.iter().rev().take(2) {
        ensure!(entries(version).contains(&"good.test"), "{version:#}");
    }

    // It goes: entry and annotation go, labels stay.
    drivers.remove(&good, &serving)?;
    wait_entries(&cluster, &["late.test"])?;
    let seen = wait_node_ids(&cluster, &json!({"late.test": "id-of-late.test"}))?;
    ensure!(seen["metadata"]["labels"]["example.com/rack"] == "r1", "{seen:#}");
    node.finish_after_deaths()
}

/// A program that dies with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &Path, arguments: &[String], log: &Path) -> Result<Program> {
    let log = std::fs::File::create(log)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(Program(command.spawn().with_context(|| program.display().to_string())?))
}

/// As upstream was recorded with the same programs.
#[test]
fn the_hostpath_driver_and_its_registrar() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Some(programs) = bulkhead_testkit::cluster::programs() else { return Ok(()) };
    let (plugin, registrar) = (programs.join("hostpathplugin"), programs.join("csi-node-driver-registrar"));
    ensure!(plugin.exists() && registrar.exists(), "{} has no CSI driver", programs.display());
    let Member { cluster, mut node } = Member::start(&lab, &[], |node| node)?;
    wait_node(&cluster, "True")?;
    let folder = node.root_dir().join("plugins/csi-hostpath");
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&folder)?;
    let socket = folder.join("csi.sock");
    let data = tempfile::tempdir()?;
    let _driver = start(
        &plugin,
        &[
            "--drivername=hostpath.csi.k8s.io".to_owned(),
            format!("--endpoint=unix://{}", socket.display()),
            format!("--nodeid={NODE}"),
            format!("--statedir={}", data.path().display()),
        ],
        &data.path().join("driver.log"),
    )?;
    let registrar = start(
        &registrar,
        &[
            format!("--csi-address={}", socket.display()),
            format!("--kubelet-registration-path={}", socket.display()),
            format!("--plugin-registration-path={}", node.root_dir().join("plugins_registry").display()),
        ],
        &data.path().join("registrar.log"),
    )?;
    let log = || std::fs::read_to_string(data.path().join("registrar.log")).unwrap_or_default();
    let csi_node = wait_entries(&cluster, &["hostpath.csi.k8s.io"]).with_context(log)?;
    let entry =
        json!([{"name": "hostpath.csi.k8s.io", "nodeID": NODE, "topologyKeys": ["topology.hostpath.csi/node"]}]);
    ensure!(csi_node["spec"]["drivers"] == entry, "{csi_node:#}");
    let seen = wait_node_ids(&cluster, &json!({"hostpath.csi.k8s.io": NODE}))?;
    ensure!(seen["metadata"]["labels"]["topology.hostpath.csi/node"] == NODE, "{seen:#}");
    eventually("the registrar is told", LONG, || {
        ensure!(log().contains("plugin_registered:true"), "{}", log());
        Ok(())
    })?;
    let listed = state_of(&node, "hostpath.csi.k8s.io")?;
    ensure!(listed["state"] == "registered" && listed["endpoint"] == socket.display().to_string(), "{listed:#}");
    let version = csi_node["metadata"]["resourceVersion"].clone();
    node.kill_daemon("kubelet-volnetd")?;
    node.kill_daemon("kubelet-syncd")?;
    node.wait_healthy()?;
    eventually("it is registered again", LONG, || {
        ensure!(log().matches("plugin_registered:true").count() == 2, "{}", log());
        Ok(())
    })?;
    let again = cluster.get("csinodes", "", NODE)?;
    ensure!(again["metadata"]["resourceVersion"] == version, "it was written again: {again:#}");
    // The registrar takes its socket with it.
    nix::sys::signal::kill(Pid::from_raw(registrar.0.id().try_into()?), Signal::SIGTERM)?;
    wait_entries(&cluster, &[])?;
    wait_node_ids(&cluster, &json!({}))?;
    node.finish_after_deaths()
}
