//! The host, with what kubeadm leaves on it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::systemd::{KUBECONFIG, KUBELET_CONFIG, Machine};
use bulkhead_testkit::{Cluster, LONG, SHORT, build, eventually};
use bulkhead_tests::installed;
use serde_json::{Value, json};

pub const BOOTSTRAP: &str = "/etc/kubernetes/bootstrap-kubelet.conf";
pub const ENV_FILE: &str = "/var/lib/kubelet/kubeadm-flags.env";
pub const EXTRA: &str = "/etc/default/kubelet";
pub const CURRENT: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";
pub const DROP_IN: &str = "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf";
/// What kubeadm calls a control plane component.
pub const COMPONENT: &str = "kube-apiserver";

pub struct Host {
    pub machine: Machine,
    pub cluster: Cluster,
}

impl Host {
    /// Our package, and the part of kubeadm's that concerns a kubelet.
    pub fn install(&self) -> Result<()> {
        let drop_in = std::fs::read_to_string(build::workspace_root().join("deploy/kubeadm/10-kubeadm.conf"))?;
        let control = "Package: kubeadm\nVersion: 1.36.0-1.1\n";
        let kubeadm = installed::stand_in(&self.machine, control, &[(DROP_IN, &drop_in, 0o644)])?;
        installed::install(&self.machine, &kubeadm)?;
        let package = installed::package(&self.machine)?;
        installed::install(&self.machine, &package).map(drop)
    }

    pub fn systemctl(&self, words: &[&str]) -> Result<(i32, String)> {
        let output = self.machine.run(&[&["systemctl"], words].concat())?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).trim().to_owned()))
    }

    /// As kubeadm starts a service: always by a restart.
    pub fn restart(&self) -> Result<()> {
        self.machine.check(&["systemctl", "daemon-reload"])?;
        self.machine.check(&["systemctl", "restart", "kubelet"]).map(drop)
    }

    /// `config.yaml` as kubeadm writes it, with the patch that a machine of this kind needs (kubeadm's own way of changing
    /// it: patches with the target `kubeletconfiguration`).
    pub fn write_config(&self) -> Result<()> {
        let path = build::workspace_root().join("tests/fixtures/kubeadm/config.yaml");
        let mut text = std::fs::read_to_string(path)?.replace("cgroupDriver: systemd", "cgroupDriver: cgroupfs");
        text.push_str(
            "failCgroupV1: false\nfailSwapOn: false\nevictionHard: {memory.available: 50Mi, nodefs.available: 1%}\n",
        );
        // A patch for kubeadm alone: a kubelet that read it would find no runtime.
        let instance = b"containerRuntimeEndpoint: \"unix:///nowhere.sock\"\n";
        self.machine.write("/var/lib/kubelet/instance-config.yaml", instance, 0o644)?;
        self.machine.write(KUBELET_CONFIG, text.as_bytes(), 0o644)
    }

    pub fn write_flags(&self, flags: &str) -> Result<()> {
        self.machine.write(ENV_FILE, format!("KUBELET_KUBEADM_ARGS=\"{flags}\"\n").as_bytes(), 0o644)
    }

    /// The kubeconfig of `init`: a certificate of a year within it.
    pub fn write_kubeconfig(&self) -> Result<()> {
        let made = self.cluster.kubeconfig_for_node(self.machine.hostname())?;
        self.machine.write(KUBECONFIG, &std::fs::read(made)?, 0o600)
    }

    pub fn write_ca(&self) -> Result<()> {
        self.machine.write("/etc/kubernetes/pki/ca.crt", self.cluster.ca().as_bytes(), 0o644)
    }

    /// A control plane component's manifest as kubeadm writes it, but for what runs in it.
    pub fn manifest(&self, version: &str) -> Value {
        let probe = |path: &str, timeout: i32, period: i32, failures: i32, delay: i32| {
            json!({"httpGet": {"host": self.machine.address(), "path": path, "port": "probe-port", "scheme": "HTTP"},
                "initialDelaySeconds": delay, "timeoutSeconds": timeout, "periodSeconds": period, "failureThreshold": failures})
        };
        let script = "mkdir -p /tmp/www && echo ok > /tmp/www/livez && exec httpd -f -p 6443 -h /tmp/www";
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": COMPONENT,
                "namespace": "kube-system",
                "labels": {"component": COMPONENT, "tier": "control-plane"},
                "annotations": {"example.com/version": version},
            },
            "spec": {
                "hostNetwork": true,
                "priority": 2_000_001_000,
                "priorityClassName": "system-node-critical",
                "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": COMPONENT,
                    "image": bulkhead_testkit::image::LOCAL_BUSYBOX,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/bin/sh", "-c", script],
                    "ports": [{"name": "probe-port", "containerPort": 6443, "protocol": "TCP"}],
                    "livenessProbe": probe("/livez", 15, 10, 8, 10),
                    "readinessProbe": probe("/livez", 15, 1, 3, 0),
                    "startupProbe": probe("/livez", 15, 10, 24, 0),
                    "resources": {"requests": {"cpu": "50m"}},
                    "volumeMounts": [
                        {"mountPath": "/etc/kubernetes/pki", "name": "k8s-certs", "readOnly": true},
                        {"mountPath": "/etc/kubernetes/scheduler.conf", "name": "kubeconfig", "readOnly": true},
                        {"mountPath": "/scratch", "name": "scratch"},
                    ],
                }],
                "volumes": [
                    {"name": "k8s-certs", "hostPath": {"path": "/etc/kubernetes/pki", "type": "DirectoryOrCreate"}},
                    {"name": "kubeconfig", "hostPath": {"path": "/etc/kubernetes/scheduler.conf", "type": "FileOrCreate"}},
                    // Not kubeadm's: for a mount below /var/lib/kubelet.
                    {"name": "scratch", "emptyDir": {"medium": "Memory"}},
                ],
            },
        })
    }

    pub fn pod(&self) -> Result<Vec<Fingerprint>> {
        installed::wait_pod(&self.machine, COMPONENT)
    }

    pub fn mirror_name(&self) -> String {
        format!("{COMPONENT}-{}", self.machine.hostname())
    }

    /// The mirror pod, once `wanted` holds of it.
    pub fn mirror(&self, what: &str, wanted: impl FnMut(&Value) -> bool) -> Result<Value> {
        let found = self.cluster.wait_for("pods", "kube-system", &self.mirror_name(), what, wanted);
        found.map_err(|error| error.context(self.machine.last_words(&["kubelet*"], 40)))
    }

    /// kubeadm's own wait: a plain GET, and 200 alone counts.
    pub fn wait_healthz(&self) -> Result<()> {
        eventually("healthz says 200", LONG, || {
            let (status, body) = self.machine.netns().http_get(IpAddr::V4(Ipv4Addr::LOCALHOST), 10248, "/healthz")?;
            ensure!(status == 200, "{status}: {body}");
            Ok(())
        })
        .map_err(|error| error.context(self.machine.last_words(&["kubelet*"], 40)))
    }

    /// Waits until the kubelet-syncd of now has read the manifest folder: one that was replaced before would be the first that it
    /// sees, and the pod of the old one an orphan, which ends beside the start of the new one.
    pub fn wait_manifest_read(&self) -> Result<()> {
        let name = format!("{COMPONENT}-{}", self.machine.hostname());
        eventually(&format!("kubelet-ctl shows {name}"), LONG, || {
            let pods = self.machine.check(&["kubelet-ctl", "pods"])?;
            ensure!(pods.contains(&name), "{pods}");
            Ok(())
        })
    }

    /// As kubeadm's preflight: to listen on all addresses must succeed.
    pub fn port_is_free(&self) -> Result<()> {
        self.machine.netns().run(|| {
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, 10250)).context("port 10250 is not free")?;
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, 10250)).context("port 10250 is not free").map(drop)
        })
    }

    /// The service is tried again and again, and ended by itself.
    pub fn wait_refused(&self) -> Result<()> {
        eventually("the kubelet refuses and is tried again", SHORT, || {
            let unit = self.machine.unit("kubelet.service")?;
            ensure!(
                unit.active == "activating" && unit.sub == "auto-restart" && unit.result == "exit-code",
                "{unit:?}"
            );
            Ok(())
        })?;
        let (code, said) = self.systemctl(&["is-active", "kubelet"])?;
        ensure!(said == "activating" && code != 0, "{code} {said}");
        eventually("no daemon runs", SHORT, || {
            let processes = installed::processes(&self.machine)?;
            ensure!(processes.is_empty(), "{processes:?}");
            Ok(())
        })?;
        self.port_is_free()
    }

    pub fn node(&self, what: &str, wanted: impl FnMut(&Value) -> bool) -> Result<Value> {
        let found = self.cluster.wait_for("nodes", "", self.machine.hostname(), what, wanted);
        found.map_err(|error| error.context(self.machine.last_words(&["kubelet*"], 40)))
    }
}

/// Whether a Node is ready.
pub fn is_ready(node: &Value) -> bool {
    bulkhead_tests::joined::is_true(node, "Ready")
}
