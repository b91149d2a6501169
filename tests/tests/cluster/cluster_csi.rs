//! The hostpath CSI driver with its sidecars and upstream's controllers: does a pod get what its claims name, see it, and give it
//! back?

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::cluster::{Storage, controllers_are_there, programs};
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{Cluster, IDLE, LONG, Lab, Node, eventually, image};
use bulkhead_tests::joined::{NODE, is_true, wait_event};
use bulkhead_tests::lab;
use serde_json::{Value, json};

const DRIVER: &str = "hostpath.csi.k8s.io";

/// The driver and its sidecars as processes of the machine. They end with the test.
struct HostPath {
    folder: PathBuf,
    programs: PathBuf,
    children: Vec<(&'static str, Child)>,
}

impl Drop for HostPath {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl HostPath {
    fn start(cluster: &Cluster, node: &Node) -> Result<Self> {
        let programs = programs().context("no programs")?;
        let folder = node.root_dir().join("plugins/csi-hostpath");
        std::fs::create_dir_all(&folder)?;
        let mut driver = HostPath { folder, programs, children: Vec::new() };
        let state = node.lab().folder().join("csi-state");
        std::fs::create_dir_all(&state)?;
        let (socket, state) = (driver.socket(), state.display().to_string());
        driver.spawn(
            "hostpathplugin",
            &[
                "-drivername",
                DRIVER,
                "-endpoint",
                &format!("unix://{socket}"),
                "-nodeid",
                NODE,
                "-statedir",
                &state,
                "-enable-attach=true",
                "-v=5",
            ],
        )?;
        eventually("the driver serves", LONG, || {
            ensure!(Path::new(&socket).exists(), "no socket");
            Ok(())
        })?;
        let kubeconfig = cluster.admin_kubeconfig()?.display().to_string();
        let address = format!("--csi-address={socket}");
        let config = format!("--kubeconfig={kubeconfig}");
        driver.register(node)?;
        driver.spawn("csi-provisioner", &[&address, &config, "--feature-gates=Topology=true", "--v=5"])?;
        driver.spawn("csi-attacher", &[&address, &config, "--v=5"])?;
        driver.spawn("csi-resizer", &[&address, &config, "--v=5"])?;
        Ok(driver)
    }

    fn socket(&self) -> String {
        self.folder.join("csi.sock").display().to_string()
    }

    fn register(&mut self, node: &Node) -> Result<()> {
        let registry = node.root_dir().join("plugins_registry").display().to_string();
        let socket = self.socket();
        let address = format!("--csi-address={socket}");
        let told = format!("--kubelet-registration-path={socket}");
        let registry = format!("--plugin-registration-path={registry}");
        self.spawn("csi-node-driver-registrar", &[&address, &told, &registry, "--v=5"])
    }

    fn spawn(&mut self, program: &'static str, arguments: &[&str]) -> Result<()> {
        let log = std::fs::File::create(self.folder.with_file_name(format!("{program}.log")))?;
        let child = Command::new(self.programs.join(program))
            .args(arguments)
            .env("NODE_NAME", NODE)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| program.to_owned())?;
        self.children.push((program, child));
        Ok(())
    }
}

fn create(cluster: &Cluster, objects: &[Value]) -> Result<()> {
    let file = cluster.folder().join("objects.json");
    std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())?;
    cluster.kubectl(&["create", "--validate=false", "-f", &file.display().to_string()]).map(drop)
}

fn classes() -> [Value; 2] {
    [
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": {
            "attachRequired": true, "podInfoOnMount": true, "volumeLifecycleModes": ["Persistent", "Ephemeral"],
            "fsGroupPolicy": "File"}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "hp"},
            "provisioner": DRIVER, "allowVolumeExpansion": true}),
    ]
}

fn claim(name: &str, mode: &str, size: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": mode, "storageClassName": "hp",
            "resources": {"requests": {"storage": size}}}})
}

fn cluster(lab: &Lab) -> Result<Option<Cluster>> {
    if !controllers_are_there() {
        skip_this_test(Lack::ControlPlane)?;
        return Ok(None);
    }
    let cluster = lab.cluster_on(Storage::default())?;
    cluster.start_controllers_with(&[])?;
    Ok(Some(cluster))
}

fn mounts_below(folder: &Path) -> Result<Vec<String>> {
    let all = std::fs::read_to_string("/proc/self/mountinfo")?;
    let below = folder.display().to_string();
    Ok(all.lines().filter(|line| line.contains(&below) && line.contains("csi")).map(ToOwned::to_owned).collect())
}

#[test]
fn claims_are_mounted_seen_and_given_back() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Some(cluster) = cluster(&lab)? else { return Ok(()) };
    let mut node = lab.node(NODE).joins(&cluster)?.start()?;
    cluster.wait_for("nodes", "", NODE, "it is ready", |node| is_true(node, "Ready"))?;
    let driver = HostPath::start(&cluster, &node)?;
    create(&cluster, &classes())?;
    cluster.wait_for("csinodes", "", NODE, "the driver is there", |csinode| {
        csinode["spec"]["drivers"][0]["name"] == DRIVER
    })?;
    let script = format!(
        "echo hello > /data/f; stat -c 'data %g' /data; stat -c 'raw %F' /dev/raw0; touch /inline/x && echo inline; \
         {IDLE}"
    );
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "csi-pod", "namespace": "default"},
        "spec": {"terminationGracePeriodSeconds": 1, "securityContext": {"fsGroup": 2000},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "inline", "mountPath": "/inline"},
                    {"name": "data", "mountPath": "/sub", "subPath": "below"}],
                "volumeDevices": [{"name": "raw", "devicePath": "/dev/raw0"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "raw", "persistentVolumeClaim": {"claimName": "raw"}},
                {"name": "inline", "csi": {"driver": DRIVER, "volumeAttributes": {"a": "b"}}}]}});
    create(&cluster, &[claim("data", "Filesystem", "64Mi"), claim("raw", "Block", "16Mi"), pod])?;
    let running = cluster.wait_for("pods", "default", "csi-pod", "it runs", |pod| is_true(pod, "Ready"))?;
    let log = node.wait_for_log_of(&running, "main", "inline")?;
    ensure!(log.contains("data 2000") && log.contains("raw block special file"), "{log}");
    wait_event(&cluster, &running, "Normal SuccessfulMountVolume")?;
    let in_use = cluster.get("nodes", "", NODE)?["status"]["volumesInUse"].clone();
    ensure!(in_use.as_array().is_some_and(|all| all.len() == 2), "{in_use}");
    let files = std::fs::read_dir(lab.folder().join("csi-state"))?.count();
    ensure!(files > 0, "the driver has nothing");

    // Another life of the process that decides adopts all of it.
    node.kill_daemon("kubelet-syncd")?;
    node.wait_healthy()?;
    let before = mounts_below(node.root_dir())?;
    ensure!(before.len() >= 4, "{before:#?}");
    cluster.wait_for("pods", "default", "csi-pod", "it runs", |pod| is_true(pod, "Ready"))?;

    // A larger claim is a larger volume, while the pod runs.
    let larger = json!({"spec": {"resources": {"requests": {"storage": "128Mi"}}}});
    cluster.patch("persistentvolumeclaims", "default", "data", &larger)?;
    cluster.wait_for("persistentvolumeclaims", "default", "data", "it has grown", |claim| {
        claim["status"]["capacity"]["storage"] == "128Mi" && claim["status"]["conditions"].is_null()
    })?;
    wait_event(&cluster, &running, "Normal FileSystemResizeSuccessful")?;

    cluster.delete("pods", "default", "csi-pod", None)?;
    cluster.wait_gone("pods", "default", "csi-pod")?;
    eventually("nothing is mounted any more", LONG, || {
        let left = mounts_below(node.root_dir())?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })?;
    cluster.wait_for("nodes", "", NODE, "nothing is in use", |node| {
        node["status"]["volumesInUse"].is_null() && node["status"]["volumesAttached"].is_null()
    })?;
    cluster.delete("persistentvolumeclaims", "default", "data", None)?;
    cluster.delete("persistentvolumeclaims", "default", "raw", None)?;
    cluster.wait_gone("persistentvolumeclaims", "default", "data")?;
    eventually("the volumes are gone", LONG, || {
        let left = cluster.list("persistentvolumes", None)?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })?;
    drop(driver);
    node.finish_after_deaths()
}
