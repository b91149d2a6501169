//! `kubeadm init`, kubelet-finalize and `kubeadm upgrade`, as far as a kubelet sees them.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cluster::kubeconfig;
use bulkhead_testkit::systemd::{KUBECONFIG, KUBELET_CONFIG};
use bulkhead_testkit::{SHORT, eventually};
use bulkhead_tests::checklist::Checklist;
use bulkhead_tests::installed;
use bulkhead_tests::joined::is_true;
use serde_json::{Value, json};

use super::host::{CURRENT, DROP_IN, ENV_FILE, EXTRA, Host, is_ready};

const HASH: &str = "kubernetes.io/config.hash";
/// Fields that kubeadm writes as zero, and what a kubelet makes of that (upstream's defaults).
const DEFAULTS: &[(&str, &str)] = &[
    ("/syncFrequency", "1m0s"),
    ("/fileCheckFrequency", "20s"),
    ("/httpCheckFrequency", "20s"),
    ("/nodeStatusUpdateFrequency", "10s"),
    ("/nodeStatusReportFrequency", "5m0s"),
    ("/imageMinimumGCAge", "2m0s"),
    ("/imageMaximumGCAge", "0s"),
    ("/volumeStatsAggPeriod", "1m0s"),
    ("/runtimeRequestTimeout", "2m0s"),
    ("/streamingConnectionIdleTimeout", "4h0m0s"),
    ("/cpuManagerReconcilePeriod", "10s"),
    ("/evictionPressureTransitionPeriod", "5m0s"),
    ("/shutdownGracePeriod", "0s"),
    ("/shutdownGracePeriodCriticalPods", "0s"),
    ("/authentication/webhook/cacheTTL", "2m0s"),
    ("/authorization/webhook/cacheAuthorizedTTL", "5m0s"),
    ("/authorization/webhook/cacheUnauthorizedTTL", "30s"),
];

/// Preflight, with nothing configured.
pub fn before(host: &Host, list: &mut Checklist) {
    let machine = &host.machine;
    list.holds("`kubelet --version`: one line that kubeadm's pattern takes, without root or configuration", || {
        let output = machine.run(&["setpriv", "--reuid=65534", "--clear-groups", "kubelet", "--version"])?;
        ensure!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout)?;
        ensure!(text.ends_with('\n') && text.lines().count() == 1, "{text:?}");
        let version = text.trim().strip_prefix("Kubernetes v").context("it does not begin as it must")?;
        let mut parts = version.splitn(3, '.');
        let mut part = || parts.next().context("three numbers");
        let (major, minor, rest) = (part()?, part()?, part()?);
        ensure!((major, minor) == ("1", "36") && rest.starts_with(|first: char| first.is_ascii_digit()), "{version}");
        let allowed = |one: char| one.is_ascii_alphanumeric() || "_.+-".contains(one);
        ensure!(rest.chars().all(allowed), "{version}");
        Ok(())
    });
    list.holds("the service is called kubelet, exists and is enabled", || {
        let (_, said) = host.systemctl(&["status", "kubelet"])?;
        ensure!(!said.contains("Loaded: not-found") && !said.contains("could not be found"), "{said}");
        ensure!(host.systemctl(&["is-enabled", "kubelet"])? == (0, "enabled".to_owned()));
        Ok(())
    });
    list.holds("kubeadm's drop-in lies beside the unit and is read", || {
        let (_, said) = host.systemctl(&["show", "--property=DropInPaths,ExecStart", "kubelet"])?;
        ensure!(said.contains(DROP_IN) && said.contains("$KUBELET_KUBEADM_ARGS"), "{said}");
        Ok(())
    });
    list.holds("without config.yaml it ends at once with an error, again and again; nothing listens on 10250", || {
        host.wait_refused()?;
        let (_, said) = host.systemctl(&["show", "--property=RestartUSec,ExecMainStatus", "kubelet"])?;
        ensure!(said.contains("RestartUSec=10s") && said.contains("ExecMainStatus=1"), "{said}");
        let said = machine.journal(&["--unit=kubelet"])?;
        ensure!(said.contains("/var/lib/kubelet/config.yaml"), "the file is not named: {said}");
        Ok(())
    });
    list.holds("tools that kubeadm looks for are there: losetup, mount, cp", || {
        machine.shell("command -v losetup mount cp").map(drop)
    });
}

/// kubelet-start and wait-control-plane: nothing answers yet, and no network plug-in is there.
pub fn without_a_cluster(host: &Host, list: &mut Checklist) -> Result<()> {
    let machine = &host.machine;
    machine.shell("mkdir /etc/cni/later && mv /etc/cni/net.d/* /etc/cni/later/ && systemctl restart containerd")?;
    host.write_ca()?;
    host.write_kubeconfig()?;
    machine.write("/etc/kubernetes/manifests/kube-apiserver.yaml", host.manifest("1").to_string().as_bytes(), 0o600)?;
    list.holds("`systemctl stop kubelet` also while it is tried again", || {
        machine.check(&["systemctl", "stop", "kubelet"])?;
        ensure!(host.systemctl(&["is-active", "kubelet"])?.1 == "inactive");
        Ok(())
    });
    let address = machine.address();
    host.write_flags(&format!("--node-ip={address} --node-labels=example.com/rack=r1 --v=2"))?;
    machine.write(EXTRA, b"KUBELET_EXTRA_ARGS=--v=3 --node-labels=example.com/rack=r2\n", 0o644)?;
    host.write_config()?;
    list.holds("started by `daemon-reload` and `restart`; is-active says active", || {
        host.restart()?;
        ensure!(host.systemctl(&["is-active", "kubelet"])? == (0, "active".to_owned()));
        Ok(())
    });
    list.holds("healthz on 127.0.0.1:10248 says 200 over plain HTTP with no API server, no Node and no CNI", || {
        host.wait_healthz()
    });
    list.holds("static pods as kubeadm writes them run without an API server", || host.pod().map(drop));
    list.holds("the dot-file in the manifest folder is no pod and no error", || {
        let said = machine.journal(&["--unit=kubelet*"])?;
        ensure!(machine.outside("/etc/kubernetes/manifests/.kubelet-keep").exists() && !said.contains(".kubelet-keep"));
        let sandboxes = machine.cri()?.sandboxes()?;
        ensure!(sandboxes.len() == 1, "{sandboxes:?}");
        Ok(())
    });
    list.holds("restarts at any point leave the pods alone (init makes two)", || {
        let before = host.pod()?;
        for _ in 0..2 {
            host.restart()?;
            host.wait_healthz()?;
        }
        ensure!(machine.fingerprint()? == before, "{before:?}");
        Ok(())
    });
    // The plug-in comes. containerd 1.6 in a machine like this one does not see it by itself.
    machine.shell("mv /etc/cni/later/* /etc/cni/net.d/ && systemctl restart containerd").map(drop)
}

/// The control plane answers: the Node, mirror pods, mark-control-plane.
pub fn with_a_cluster(host: &Host, list: &mut Checklist) -> Result<()> {
    let machine = &host.machine;
    let name = machine.hostname();
    list.holds(
        "the Node registers with kubernetes.io/hostname, its version, InternalIP and port 10250; Ready follows",
        || {
            let node = host.node("it is ready", is_ready)?;
            ensure!(node["metadata"]["labels"]["kubernetes.io/hostname"] == name, "{:#}", node["metadata"]);
            let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap_or_default();
            ensure!(version.starts_with("v1.36."), "{version}");
            let addresses = node["status"]["addresses"].as_array().cloned().unwrap_or_default();
            ensure!(addresses.contains(&json!({"type": "InternalIP", "address": machine.address().to_string()})));
            ensure!(node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 10250);
            Ok(())
        },
    );
    list.holds("of kubeadm's flags and the administrator's the later ones win", || {
        let node = host.node("it is there", |_| true)?;
        ensure!(node["metadata"]["labels"]["example.com/rack"] == "r2", "{:#}", node["metadata"]["labels"]);
        Ok(())
    });
    list.holds("zeros in config.yaml are defaults; instance-config.yaml is not read", || {
        let said = host.cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{name}/proxy/configz")])?;
        let config: Value = serde_json::from_str(&said)?;
        let config = &config["kubeletconfig"];
        for (field, value) in DEFAULTS {
            ensure!(config.pointer(field).is_some_and(|one| one == value), "{field}: {:?}", config.pointer(field));
        }
        ensure!(config["containerRuntimeEndpoint"] == "unix:///var/run/containerd/containerd.sock", "{config:#}");
        ensure!(config["logging"]["verbosity"] == 3, "{:#}", config["logging"]);
        Ok(())
    });
    list.holds("the mirror pod <component>-<node>: phase Running, labels passed on, config.hash", || {
        let mirror = host.mirror("it is ready", |pod| is_true(pod, "Ready"))?;
        ensure!(mirror["status"]["phase"] == "Running", "{:#}", mirror["status"]);
        let labels = &mirror["metadata"]["labels"];
        ensure!(labels["component"] == "kube-apiserver" && labels["tier"] == "control-plane", "{labels:#}");
        ensure!(mirror["metadata"]["annotations"][HASH].is_string(), "{:#}", mirror["metadata"]);
        Ok(())
    });
    list.holds("mark-control-plane: labels and taint that kubeadm puts on the Node stay, the pod runs on", || {
        let before = host.pod()?;
        let labels = json!({"node-role.kubernetes.io/control-plane": "", "node.kubernetes.io/exclude-from-external-load-balancers": ""});
        let taint = json!({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"});
        let patch = json!({"metadata": {"labels": labels}, "spec": {"taints": [taint]}});
        host.cluster.patch("nodes", "", name, &patch)?;
        host.restart()?;
        host.wait_healthz()?;
        let node = host.node("it is ready", is_ready)?;
        ensure!(node["spec"]["taints"].as_array().is_some_and(|all| all.contains(&taint)), "{:#}", node["spec"]);
        ensure!(node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] == "");
        ensure!(machine.fingerprint()? == before);
        Ok(())
    });
    list.holds("the API server reaches the kubelet on 10250 with its client certificate (a container's log)", || {
        let log = format!("pods/kube-apiserver-{name}");
        host.cluster.kubectl(&["logs", "--namespace=kube-system", &log, "--limit-bytes=10"]).map(drop)
    });
    Ok(())
}

/// The certificate that init has put into kubelet.conf becomes a file that the kubelet renews.
pub fn finalize(host: &Host, list: &mut Checklist) -> Result<()> {
    let machine = &host.machine;
    list.holds("kubelet-finalize: the embedded certificate is kept as kubelet-client-current.pem", || {
        eventually("the link is there", SHORT, || {
            let target = std::fs::read_link(machine.outside(CURRENT)).context("there is no link")?;
            ensure!(target.to_string_lossy().contains("kubelet-client-"), "{}", target.display());
            let pem = std::fs::read_to_string(
                machine.outside(CURRENT).with_file_name(target.file_name().context("a name")?),
            )?;
            ensure!(
                pem.contains("BEGIN CERTIFICATE") && pem.contains("PRIVATE KEY"),
                "certificate and key in one file"
            );
            Ok(())
        })
    });
    list.holds(
        "kubelet-finalize: kubelet.conf with that file in place of the data, restart: the Node lives on",
        || {
            let before = host.pod()?;
            let files = json!({"client-certificate": CURRENT, "client-key": CURRENT});
            let user = format!("system:node:{}", machine.hostname());
            let content = kubeconfig::with_user(&host.cluster.url(), &host.cluster.ca(), &user, files);
            machine.write(KUBECONFIG, format!("{content:#}").as_bytes(), 0o600)?;
            let lease = host.cluster.get("leases", "kube-node-lease", machine.hostname())?;
            host.restart()?;
            host.wait_healthz()?;
            host.cluster.wait_for("leases", "kube-node-lease", machine.hostname(), "it is renewed", |now| {
                now["spec"]["renewTime"] != lease["spec"]["renewTime"]
            })?;
            host.node("it is ready", is_ready)?;
            ensure!(machine.fingerprint()? == before);
            Ok(())
        },
    );
    Ok(())
}

/// `kubeadm upgrade`: one manifest is moved away, another one in, from another file system.
pub fn upgrade(host: &Host, list: &mut Checklist) -> Result<()> {
    let machine = &host.machine;
    host.wait_manifest_read()?;
    let before = host.mirror("it is there", |_| true)?;
    let old = host.pod()?;
    machine.write("/etc/kubernetes/tmp/new.yaml", host.manifest("2").to_string().as_bytes(), 0o600)?;
    let folder = "/etc/kubernetes/manifests";
    machine.shell(&format!(
        "cp /etc/kubernetes/tmp/new.yaml /dev/shm/new.yaml
         mv {folder}/kube-apiserver.yaml /dev/shm/old.yaml; mv /dev/shm/new.yaml {folder}/kube-apiserver.yaml"
    ))?;
    list.holds(
        "upgrade: another manifest gives another config.hash, on a mirror pod of the same name that runs",
        || {
            let hash = &before["metadata"]["annotations"][HASH];
            let after = host.mirror("another one is ready", |pod| {
                pod["metadata"]["annotations"][HASH] != *hash && is_true(pod, "Ready")
            })?;
            ensure!(after["metadata"]["annotations"]["example.com/version"] == "2", "{:#}", after["metadata"]);
            ensure!(after["status"]["phase"] == "Running", "{:#}", after["status"]);
            // The port can be had by one of them: had the old one not ended first, the new one would have failed once.
            let said =
                || host.machine.journal(&["--unit=kubelet-syncd", "--lines=80", "--output=cat"]).unwrap_or_default();
            let container = &after["status"]["containerStatuses"][0];
            ensure!(container["restartCount"] == 0, "{container:#}\n{}", said());
            let new = host.pod()?;
            ensure!(new.iter().all(|one| !old.contains(one)), "{new:?}");
            Ok(())
        },
    );
    list.holds("upgrade: a manifest that is the same again changes nothing", || {
        let before = host.pod()?;
        machine.shell(&format!(
            "mv {folder}/kube-apiserver.yaml /etc/kubernetes/tmp/same.yaml; mv /etc/kubernetes/tmp/same.yaml {folder}/kube-apiserver.yaml"
        ))?;
        // Whatever it makes of that has been done once a pod written afterwards runs.
        machine.write_pod(&bulkhead_testkit::Pod::idle("later").host_network())?;
        installed::wait_pod(machine, "later")?;
        ensure!(host.pod()? == before, "{before:?}");
        machine.remove_pod("later")?;
        installed::wait_pod_gone(machine, "later")
    });
    Ok(())
}

/// `kubeadm upgrade node`: config.yaml is written anew, perhaps patched; the administrator restarts the service later.
pub fn another_config(host: &Host, list: &mut Checklist) -> Result<()> {
    let machine = &host.machine;
    let path = format!("/api/v1/nodes/{}/proxy/configz", machine.hostname());
    let max_pods = || -> Result<Value> {
        let said = host.cluster.kubectl(&["get", "--raw", &path])?;
        Ok(serde_json::from_str::<Value>(&said)?["kubeletconfig"]["maxPods"].clone())
    };
    list.holds("upgrade: config.yaml written anew with a patch takes effect with the restart; the pods run on", || {
        let before = host.pod()?;
        let text = machine.check(&["cat", KUBELET_CONFIG])?;
        machine.write(KUBELET_CONFIG, format!("{text}maxPods: 77\n").as_bytes(), 0o644)?;
        ensure!(max_pods()? == 110, "it took effect by itself");
        host.restart()?;
        host.wait_healthz()?;
        eventually("it is in effect", SHORT, || {
            let now = max_pods()?;
            ensure!(now == 77, "{now}");
            Ok(())
        })?;
        host.node("it says so", |node| node["status"]["capacity"]["pods"] == "77")?;
        ensure!(machine.fingerprint()? == before);
        Ok(())
    });
    Ok(())
}

/// Forms that kubeadm-flags.env may have, and what older versions of kubeadm have left in it.
pub fn flags(host: &Host, list: &mut Checklist) -> Result<()> {
    let machine = &host.machine;
    let kept = machine.check(&["cat", ENV_FILE])?;
    list.holds("kubeadm-flags.env may be missing, empty, quoted, with blanks, with a name twice", || {
        let before = host.pod()?;
        let address = machine.address();
        let extra = "--container-runtime-endpoint=unix:///run/containerd/containerd.sock --cert-dir=/var/lib/kubelet/pki \
                     --provider-id=test://a --rotate-server-certificates=false";
        for content in [
            None,
            Some("KUBELET_KUBEADM_ARGS=\n".to_owned()),
            Some("KUBELET_KUBEADM_ARGS=\"\"\n".to_owned()),
            Some(format!("KUBELET_KUBEADM_ARGS=\"  --v=1   --node-ip={address} {extra} --v=2 \"\n")),
            Some(format!("KUBELET_KUBEADM_ARGS='--node-ip={address} \"--node-labels=example.com/a=b,example.com/c=\"'\n")),
        ] {
            match &content {
                Some(text) => machine.write(ENV_FILE, text.as_bytes(), 0o644)?,
                None => std::fs::remove_file(machine.outside(ENV_FILE))?,
            }
            host.restart().with_context(|| format!("{content:?}"))?;
            host.wait_healthz()?;
        }
        ensure!(machine.fingerprint()? == before);
        Ok(())
    });
    list.holds(
        "a flag that 1.36 has no more (--pod-infra-container-image) is refused, as by the Kubernetes kubelet",
        || {
            let before = host.pod()?;
            host.write_flags("--pod-infra-container-image=registry.k8s.io/pause:3.10")?;
            let _ = host.restart();
            host.wait_refused()?;
            let said = host.machine.journal(&["--unit=kubelet", "--lines=20"])?;
            ensure!(said.contains("unknown flag: --pod-infra-container-image"), "{said}");
            ensure!(host.machine.fingerprint()? == before, "the pods run on");
            Ok(())
        },
    );
    machine.write(ENV_FILE, kept.as_bytes(), 0o644)?;
    list.holds("after that it starts again with what it had", || {
        host.restart()?;
        host.wait_healthz()
    });
    Ok(())
}

/// The unit of the Kubernetes packages: no readiness, no units for the daemons, restarted always.
pub fn under_the_kubernetes_unit(host: &Host, list: &mut Checklist) -> Result<()> {
    let machine = &host.machine;
    let unit = "[Unit]\nWants=network-online.target\nAfter=network-online.target\n[Service]\nExecStart=/usr/bin/kubelet\n\
                Restart=always\nStartLimitInterval=0\nRestartSec=10\n[Install]\nWantedBy=multi-user.target\n";
    let own = "/etc/systemd/system/kubelet.service";
    let before = host.pod()?;
    list.holds("under the unit of the Kubernetes packages (Type=simple, Restart=always) with the same drop-in", || {
        machine.check(&["systemctl", "stop", "kubelet"])?;
        machine.write(own, unit.as_bytes(), 0o644)?;
        host.restart()?;
        host.wait_healthz()?;
        let mut processes = installed::processes(machine)?;
        processes.sort();
        // "kubelet-volnetd: fork server" and workers are kubelet-volnetd's own, and kubelet-iptables is there for moments.
        processes.retain(|process| !process.contains(": ") && process != "kubelet-iptables");
        let all =
            ["kubelet", "kubelet-evictiond", "kubelet-statusd", "kubelet-syncd", "kubelet-volnetd", "kubelet-walker"];
        ensure!(processes == all, "{processes:?}");
        ensure!(machine.fingerprint()? == before);
        machine.check(&["systemctl", "stop", "kubelet"])?;
        ensure!(installed::processes(machine)?.is_empty() && machine.fingerprint()? == before);
        host.port_is_free()
    });
    std::fs::remove_file(machine.outside(own)).context("removing the other unit")?;
    list.holds("and back to units of their own, on the live node", || {
        host.restart()?;
        machine.wait_healthy()?;
        ensure!(machine.fingerprint()? == before);
        Ok(())
    });
    Ok(())
}
