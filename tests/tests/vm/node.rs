//! The node in the machine and its pods: what is written to its disk, what the cluster has, and where its pods are.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::Cluster;
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::cluster::kubeconfig as made;
use bulkhead_testkit::systemd::MANIFESTS;
use bulkhead_testkit::vm::{OUTSIDE, Vm};
use serde_json::{Value, json};

/// Seconds inside the machine until pods have started or gone, or the node is well again. Seen: 25 on an idle machine.
pub const PODS: u32 = 360;
/// Below the root of the tree.
pub const TREE: &str = "/sys/fs/cgroup/kubepods.slice";
pub const GUARANTEED: &str = "kubepods-pod11111111_2222_3333_4444_555555555555.slice";
const GUARANTEED_UID: &str = "11111111-2222-3333-4444-555555555555";
pub const MIB: u64 = 1 << 20;
/// The namespace of all pods.
pub const NAMESPACE: &str = "default";
/// The node's name, which is the machine's.
const NAME: &str = "vm";

/// `/etc/default/kubelet`.
pub const DEFAULTS: &str = "KUBELET_EXTRA_ARGS=\"--config=/var/lib/kubelet/config.yaml \
                            --kubeconfig=/etc/kubernetes/kubelet.conf --node-ip=10.0.2.15 --v=2\"\n";

/// The machine, and the cluster outside that its node is a member of.
pub struct World {
    pub vm: Vm,
    pub cluster: Cluster,
}

/// Nothing about cgroup v1: that upstream's default refuses it does not matter here.
pub fn config() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "systemd",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "staticPodPath": MANIFESTS,
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "readOnlyPort": 10255,
        "podPidsLimit": 200,
        "kubeReserved": {"cpu": "500m", "memory": "256Mi", "pid": "1000"},
        "featureGates": {"MemoryQoS": true},
        "memoryReservationPolicy": "TieredReservation",
        "memoryThrottlingFactor": 0.5,
        // A soft one is of the machine's memory alone; MemoryQoS would throttle who takes more than half of what pods may have.
        "evictionSoft": {"memory.available": "1Gi"},
        "evictionSoftGracePeriod": {"memory.available": "1s"},
        "evictionMaxPodGracePeriod": 30,
        "evictionPressureTransitionPeriod": "10s",
    })
}

/// The node's way to the cluster: the address inside is not one that the server's certificate names.
pub fn kubeconfig(cluster: &Cluster) -> Result<Value> {
    let year = std::time::Duration::from_secs(365 * 24 * 3600);
    let credential = Credential::Certificate(cluster.node_certificate(NAME, year)?);
    let server = format!("https://{OUTSIDE}:{}", cluster.address().port());
    let mut content = made::content(&server, &cluster.ca(), NAME, &credential);
    content["clusters"][0]["cluster"]["tls-server-name"] = json!("localhost");
    Ok(content)
}

pub const IDLE: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";
/// Takes 52 MiB when it is told to, and gives them back.
const TAKES: &str = "trap 'exit 0' TERM; trap take USR1\n\
                     take() { dd if=/dev/zero of=/dev/shm/taken bs=64k count=832; echo $? > /dev/shm/done; rm /dev/shm/taken; }\n\
                     while :; do sleep 1000 & wait $!; done";

pub fn pod(name: &str, command: &str, resources: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": "bulkhead.test/busybox:1",
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", command],
                "resources": resources,
            }],
        },
    })
}

/// Path and content of the static pods.
pub fn manifests() -> Vec<(String, String)> {
    let mut guaranteed = pod("guaranteed", IDLE, &json!({"limits": {"cpu": "250m", "memory": "64Mi"}}));
    guaranteed["metadata"]["uid"] = json!(GUARANTEED_UID);
    let besteffort = pod("besteffort", IDLE, &json!({}));
    let write = |pod: &Value| {
        (format!("{MANIFESTS}/{}.yaml", pod["metadata"]["name"].as_str().unwrap_or_default()), pod.to_string())
    };
    vec![write(&guaranteed), write(&besteffort)]
}

/// The pod of the API server's that stays, with a network of its own. Throttled from 48 MiB on.
pub fn burstable() -> Value {
    let size = json!({"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"memory": "80Mi"}});
    let mut pod = bound(pod("burstable", TAKES, &size));
    pod["spec"]["hostNetwork"] = json!(false);
    pod
}

/// Two processes, of which the second takes more than there is: all of the container goes.
pub fn greedy() -> Value {
    bound(pod("greedy", "sleep 1000 & tail /dev/zero", &json!({"limits": {"memory": "24Mi"}})))
}

/// Takes memory step by step until it is told to end.
pub fn taker() -> Value {
    let script =
        "trap 'exit 3' TERM; i=0; while true; do dd if=/dev/zero of=/mem/$i bs=1M count=8; i=$((i+1)); sleep 0.2; done";
    let mut pod = bound(pod("taker", script, &json!({"requests": {"memory": "8Mi"}})));
    pod["spec"]["volumes"] = json!([{"name": "mem", "emptyDir": {"medium": "Memory"}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "mem", "mountPath": "/mem"}]);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(30);
    pod
}

/// Holds more than anybody else who is as likely to be killed for the machine's memory.
pub fn glutton() -> Value {
    bound(pod("glutton", "held=$(head -c 16000000 /dev/zero | tr '\\0' x); while :; do sleep 1000; done", &json!({})))
}

pub fn bound(mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = json!(NAME);
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod
}

/// Names of the three pods that run all the time, as the API server shows them.
pub fn wanted() -> [&'static str; 3] {
    ["guaranteed-vm", "besteffort-vm", "burstable"]
}

/// A pod's name as it is shown everywhere: a static one has the node's behind its own.
pub fn shown(pod: &str) -> String {
    if pod == "burstable" { pod.to_owned() } else { format!("{pod}-{NAME}") }
}

/// Where the pods' cgroups and containers are, and what must not change by itself.
pub struct Node {
    /// By pod name: its slice below [`TREE`].
    pub slices: BTreeMap<String, String>,
    /// By pod name: its container's scope below [`TREE`].
    pub scopes: BTreeMap<String, String>,
    /// Ids, start times and restart counts of the running containers.
    pub running: BTreeMap<String, Value>,
}

impl Node {
    /// The last part of a pod's slice: systemd's name of it.
    pub fn unit(&self, pod: &str) -> &str {
        last(&self.slices[pod])
    }
}

/// The last part of a path.
pub fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

impl World {
    /// What the node in the machine says of its pods, once all of them run.
    pub fn node(&mut self) -> Result<Node> {
        let pods = format!(
            "{} > /tmp/pods; [ $(grep -o '\"running\":{{' /tmp/pods | wc -l) = 3 ]; cat /tmp/pods",
            get("/pods")
        );
        let pods: Value = serde_json::from_str(&self.vm.until("the pods are known", PODS, &pods)?)?;
        let found = self.vm.run(&format!("cd {TREE}; find . -name 'cri-containerd-*.scope'"))?;
        let (mut slices, mut scopes, mut running) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for pod in pods["items"].as_array().context("no list")? {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default().trim_end_matches("-vm").to_owned();
            let status = &pod["status"]["containerStatuses"][0];
            let id = status["containerID"].as_str().and_then(|id| id.strip_prefix("containerd://")).context("an id")?;
            let scope = found.lines().find(|path| path.ends_with(&format!("/cri-containerd-{id}.scope")));
            let scope = scope.with_context(|| format!("no scope of {name} in {found}"))?.trim_start_matches("./");
            let (slice, _) = scope.rsplit_once('/').with_context(|| format!("{name} is in no slice: {scope}"))?;
            slices.insert(name.clone(), slice.to_owned());
            scopes.insert(name.clone(), scope.to_owned());
            running.insert(name, json!([id, status["state"], status["restartCount"]]));
        }
        ensure!(running.len() == 3, "{running:?}");
        Ok(Node { slices, scopes, running })
    }

    /// Waits until the API server shows a pod as wanted. What it shows on the way is looked at as well.
    pub fn wait(&self, pod: &str, what: &str, mut shown: impl FnMut(&Value) -> bool) -> Result<Value> {
        // More than the usual patience: everything in there takes ten times as long.
        let mut wait = || self.cluster.wait_for("pods", NAMESPACE, pod, what, &mut shown);
        wait().or_else(|_| wait()).or_else(|_| wait())
    }
}

impl World {
    /// Waits until the API server has no such pod any more.
    pub fn gone(&self, pod: &str) -> Result<()> {
        let wait = || self.cluster.wait_gone("pods", NAMESPACE, pod);
        wait().or_else(|_| wait()).or_else(|_| wait())
    }
}

/// A script that prints a page of the read-only port.
pub fn get(path: &str) -> String {
    format!("http 10255 '{path}'")
}

/// The one line of each of these files.
pub fn values(vm: &mut Vm, files: &[String]) -> Result<Vec<String>> {
    let seen = vm.run(&format!("cd {TREE}\nfor file in {}; do echo \"$(cat $file)\"; done", files.join(" ")))?;
    let seen: Vec<String> = seen.lines().map(str::to_owned).collect();
    ensure!(seen.len() == files.len(), "{files:?}: {seen:?}");
    Ok(seen)
}

/// Compares files below [`TREE`] with what is to be in them.
pub fn expect(vm: &mut Vm, table: &[(String, String)]) -> Result<()> {
    let files: Vec<String> = table.iter().map(|(file, _)| file.clone()).collect();
    let seen = values(vm, &files)?;
    let wrong: Vec<String> = table
        .iter()
        .zip(&seen)
        .filter(|((_, wanted), seen)| wanted != *seen)
        .map(|((file, wanted), seen)| format!("{file} is {seen}, not {wanted}"))
        .collect();
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// What systemd shows of units, in their order.
pub fn properties(vm: &mut Vm, units: &[String], names: &str) -> Result<Vec<BTreeMap<String, String>>> {
    let shown = vm.run(&format!("systemctl show -p {names} {}", units.join(" ")))?;
    let of = |block: &str| {
        block.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    };
    let all: Vec<BTreeMap<String, String>> = shown.split("\n\n").map(of).collect();
    ensure!(all.len() == units.len(), "{units:?}: {shown}");
    Ok(all)
}

/// Weight of cgroup v2 for thousandths of a CPU.
pub fn weight(milli: u64) -> u64 {
    1 + ((milli * 1024 / 1000).max(2) - 2) * 9999 / 262_142
}
