//! The two machines with everything that an administrator puts onto them before kubeadm, and what is asked of them.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::systemd::{Machine, MachineBuilder};
use bulkhead_testkit::{LONG, build, eventually, image, kubernetes_images};
use bulkhead_tests::installed;
use serde_json::{Value, json};

/// Where the machines have the programs, and the archive of images.
const PROGRAMS: &str = "/opt/kubernetes";
const IMAGES: &str = "/opt/images.tar";
const INIT: &str = "/etc/kubernetes-init.json";
const PATCHES: &str = "/etc/kubernetes-patches";
const RUNTIME: &str = "/etc/containerd/config.toml";
/// What is so of these machines, and an error of kubeadm's: cgroups of version 1, and what a small one may lack.
const IGNORED: &str = "--ignore-preflight-errors=SystemVerification,NumCPU,Mem,Swap";
const CRI: &str = "--cri-socket=unix:///run/containerd/containerd.sock";
const DEPLOYMENT: &str = "web";

/// A control plane node and a worker.
pub struct Hosts {
    pub first: Machine,
    pub second: Machine,
}

/// A pod of the Deployment, as `kubectl get pods` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub name: String,
    pub node: String,
    pub address: String,
    pub container: String,
    pub restarts: u64,
    pub ready: bool,
}

impl Hosts {
    /// Both run, reach each other, and have the images.
    pub fn boot(programs: &Path) -> Result<Self> {
        let archive = kubernetes_images::archive(programs)?;
        let of = |name: &str| {
            let builder = MachineBuilder::new().named(name);
            builder.bind_read_only(programs, PROGRAMS).bind_read_only(&archive, IMAGES)
        };
        let beside = std::env::var_os("BULKHEAD_BESIDE").is_some();
        let first = Machine::boot(if beside { of("first").beside() } else { of("first") })?;
        // The first one is this test's claim on machines.
        let second = Machine::boot(of("second").beside())?;
        first.netns().connect(second.netns())?;
        Ok(Self { first, second })
    }

    pub fn both(&self) -> [&Machine; 2] {
        [&self.first, &self.second]
    }

    /// The runtime as kubeadm wants it, our package, kubeadm's with the part of it that is about a kubelet, its configuration.
    pub fn install(&self) -> Result<()> {
        let drop_in = std::fs::read_to_string(build::workspace_root().join("deploy/kubeadm/10-kubeadm.conf"))?;
        let files = [("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", drop_in.as_str(), 0o644)];
        let kubeadm = installed::stand_in(&self.first, "Package: kubeadm\nVersion: 1.36.2-1.1\n", &files)?;
        let package = installed::package(&self.first)?;
        for machine in self.both() {
            let runtime = std::fs::read_to_string(machine.outside(RUNTIME))?;
            machine.write(RUNTIME, runtime.replace(image::PAUSE, kubernetes_images::PAUSE).as_bytes(), 0o644)?;
            machine.shell("systemctl restart containerd; echo 1 > /proc/sys/net/ipv4/ip_forward")?;
            machine.shell(&format!("ln -s {PROGRAMS}/kubeadm {PROGRAMS}/kubectl /usr/bin/"))?;
            installed::install(machine, &kubeadm)?;
            installed::install(machine, &package)?;
        }
        let names = kubernetes_images::names();
        self.first.import(IMAGES, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
        // Only one of them is for a worker; an archive is read as a whole.
        self.second.import(IMAGES, &[kubernetes_images::PAUSE])?;
        self.first.write(INIT, self.init_configuration().as_bytes(), 0o600)?;
        let patches: [(&str, Value); 2] = [
            ("kube-scheduler", json!({"metadata": {"annotations": {"example.com/upgraded": "yes"}}})),
            ("kubeletconfiguration", json!({"containerLogMaxFiles": 7})),
        ];
        for (target, patch) in patches {
            self.first.write(&format!("{PATCHES}/{target}+strategic.json"), patch.to_string().as_bytes(), 0o644)?;
        }
        Ok(())
    }

    /// Three documents; YAML takes JSON.
    fn init_configuration(&self) -> String {
        let api = "kubeadm.k8s.io/v1beta4";
        let documents = [
            json!({
                "apiVersion": api, "kind": "InitConfiguration",
                "localAPIEndpoint": {"advertiseAddress": self.first.address()},
                "nodeRegistration": {"criSocket": CRI.trim_start_matches("--cri-socket="), "imagePullPolicy": "IfNotPresent"},
            }),
            json!({
                "apiVersion": api, "kind": "ClusterConfiguration",
                "kubernetesVersion": kubernetes_images::VERSION,
                "etcd": {"local": {"imageTag": kubernetes_images::ETCD}},
                // There are no images of them.
                "proxy": {"disabled": true}, "dns": {"disabled": true},
            }),
            json!({
                "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
                "cgroupDriver": "cgroupfs", "failCgroupV1": false, "failSwapOn": false,
                // A developer's full disk is no reason for a node to evict.
                "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            }),
        ];
        documents.map(|document| document.to_string()).join("\n---\n")
    }

    // === kubeadm ===

    pub fn init(&self) -> Result<String> {
        kubeadm(&self.first, &["init", "--config", INIT, IGNORED])
    }

    /// The command that `kubeadm token create` prints, on the other machine.
    pub fn join(&self) -> Result<String> {
        let command = kubeadm(&self.first, &["token", "create", "--print-join-command"])?;
        let line = command.lines().find_map(|line| line.strip_prefix("kubeadm "));
        let words = line.with_context(|| format!("no command: {command}"))?;
        let words: Vec<&str> = words.split_ascii_whitespace().chain([CRI, IGNORED]).collect();
        kubeadm(&self.second, &words)
    }

    pub fn upgrade_node(&self) -> Result<String> {
        kubeadm(&self.second, &["upgrade", "node", IGNORED])
    }

    pub fn upgrade_apply(&self) -> Result<String> {
        let version = kubernetes_images::VERSION;
        // It looks for CoreDNS whether it is wanted or not.
        let ignored = format!("{IGNORED},CoreDNSUnsupportedPlugins,CoreDNSMigration");
        kubeadm(&self.first, &["upgrade", "apply", version, "--yes", "--force", "--patches", PATCHES, &ignored])
    }

    pub fn renew_certificates(&self) -> Result<String> {
        kubeadm(&self.first, &["certs", "renew", "all"])
    }

    // === kubectl ===

    /// On the control plane node, as its administrator.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        let command = ["env", "KUBECONFIG=/etc/kubernetes/admin.conf", "kubectl"];
        self.first.check(&[&command, words].concat()).map_err(|error| error.context(self.last_words()))
    }

    /// `kubectl get ... -o json`.
    pub fn get(&self, words: &[&str]) -> Result<Value> {
        let command = ["env", "KUBECONFIG=/etc/kubernetes/admin.conf", "kubectl", "get", "--output=json"];
        serde_json::from_str(&self.first.check(&[&command, words].concat())?).context("reading what kubectl gets")
    }

    /// `kubectl get --raw`.
    pub fn get_raw(&self, path: &str) -> Result<Value> {
        serde_json::from_str(&self.kubectl(&["get", "--raw", path])?).with_context(|| format!("reading {path}"))
    }

    /// `kubectl wait`: all Nodes are Ready.
    pub fn wait_nodes(&self) -> Result<()> {
        self.kubectl(&["wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s"]).map(drop)
    }

    /// The Deployment: two pods on each node, which answer over HTTP and end when they are asked to.
    pub fn deploy(&self) -> Result<()> {
        let script = "mkdir /www; hostname | tee /www/index.html; trap 'exit 0' TERM; httpd -f -p 8080 -h /www & wait";
        let labels = json!({"app": DEPLOYMENT});
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": DEPLOYMENT},
            "spec": {
                "replicas": 4,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
                        "topologySpreadConstraints": [{
                            "maxSkew": 1,
                            "topologyKey": "kubernetes.io/hostname",
                            "whenUnsatisfiable": "DoNotSchedule",
                            "labelSelector": {"matchLabels": labels},
                        }],
                        "containers": [{
                            "name": "main",
                            "image": image::LOCAL_BUSYBOX,
                            "command": ["/bin/sh", "-c", script],
                            "readinessProbe": {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1},
                            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                        }],
                        "volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory"}}],
                    },
                },
            },
        });
        let file = "/root/deployment.json";
        self.first.write(file, deployment.to_string().as_bytes(), 0o644)?;
        // A young API server does not say yet what there is to validate by.
        self.kubectl(&["create", "--validate=false", "--filename", file])?;
        self.kubectl(&["rollout", "status", &format!("deployment/{DEPLOYMENT}"), "--timeout=120s"]).map(drop)
    }

    /// What is told of the Deployment's pods, in the order of names.
    pub fn pods(&self) -> Result<Vec<Seen>> {
        let list = self.get(&["pods", "--selector", &format!("app={DEPLOYMENT}")])?;
        let items = list["items"].as_array().context("no items")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let seen = |pod: &Value| {
            let container = &pod["status"]["containerStatuses"][0];
            Seen {
                name: text(&pod["metadata"]["name"]),
                node: text(&pod["spec"]["nodeName"]),
                address: text(&pod["status"]["podIP"]),
                container: text(&container["containerID"]),
                restarts: container["restartCount"].as_u64().unwrap_or_default(),
                ready: container["ready"] == true && bulkhead_tests::joined::is_true(pod, "Ready"),
            }
        };
        Ok(items.iter().map(seen).collect())
    }

    /// The same of one node.
    pub fn pods_on(&self, machine: &Machine) -> Result<Vec<Seen>> {
        Ok(self.pods()?.into_iter().filter(|pod| pod.node == machine.hostname()).collect())
    }

    /// Static pods of the control plane: name, and what is told of it.
    pub fn control_plane(&self) -> Result<Vec<Value>> {
        let list = self.get(&["pods", "--namespace=kube-system", "--selector=tier=control-plane"])?;
        let pods = list["items"].as_array().cloned().context("no items")?;
        ensure!(pods.len() == 4, "{} mirror pods", pods.len());
        Ok(pods)
    }

    /// All four of them are Ready.
    pub fn wait_control_plane(&self) -> Result<()> {
        eventually("the control plane is ready", LONG, || {
            for pod in self.control_plane()? {
                let ready = bulkhead_tests::joined::is_true(&pod, "Ready");
                ensure!(ready, "{}: {:#}", pod["metadata"]["name"], pod["status"]["containerStatuses"]);
            }
            Ok(())
        })
        .map_err(|error| error.context(self.last_words()))
    }

    /// As an administrator after a change of the configuration.
    pub fn restart_kubelet(&self, machine: &Machine) -> Result<()> {
        machine.shell("systemctl daemon-reload; systemctl restart kubelet")?;
        machine.wait_healthy()
    }

    /// What both kubelets said last.
    pub fn last_words(&self) -> String {
        self.both().map(|machine| format!("{}\n{}", machine.hostname(), machine.last_words(&["kubelet*"], 30))).concat()
    }
}

/// `kubeadm reset`, as an administrator who is sure.
pub fn reset(machine: &Machine) -> Result<String> {
    kubeadm(machine, &["reset", "--force", CRI])
}

/// Runs kubeadm to its end, says how long that took, and gives what it printed.
fn kubeadm(machine: &Machine, words: &[&str]) -> Result<String> {
    let began = Instant::now();
    let output = machine.run(&[&["kubeadm"], words].concat())?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let what = words.iter().take_while(|word| !word.starts_with('-')).copied().collect::<Vec<_>>().join(" ");
    eprintln!("{:>6.1} s kubeadm {what} on {}", began.elapsed().as_secs_f32(), machine.hostname());
    ensure!(
        output.status.success(),
        "kubeadm {what}: {}\n{said}{}",
        output.status,
        machine.last_words(&["kubelet*"], 40)
    );
    Ok(said)
}
