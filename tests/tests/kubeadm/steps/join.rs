//! `kubeadm join`: TLS bootstrap, as far as the kubelet does it.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::systemd::KUBECONFIG;
use bulkhead_testkit::{LONG, Pod, eventually};
use bulkhead_tests::checklist::Checklist;
use bulkhead_tests::installed;

use super::host::{BOOTSTRAP, CURRENT, Host, is_ready};

/// A worker joins, on the host that was reset.
pub fn join(host: &Host, list: &mut Checklist) -> Result<()> {
    let machine = &host.machine;
    let name = machine.hostname();
    host.cluster.delete("nodes", "", name, Some(0))?;
    host.write_ca()?;
    host.write_config()?;
    host.write_flags(&format!("--node-ip={} --register-with-taints=example.com/new=:NoSchedule", machine.address()))?;
    list.holds("with neither kubelet.conf nor a bootstrap file it ends at once with an error", || {
        let _ = host.restart();
        host.wait_refused()
    });

    machine.check(&["systemctl", "stop", "kubelet"])?;
    let bootstrap = host.cluster.bootstrap_kubeconfig(name)?;
    machine.write(BOOTSTRAP, &std::fs::read(bootstrap)?, 0o600)?;
    list.holds("join: healthz, then kubelet.conf with a certificate that loads, within kubeadm's wait", || {
        host.restart()?;
        host.wait_healthz()?;
        eventually("kubelet.conf loads", LONG, || {
            let text = machine.check(&["cat", KUBECONFIG])?;
            for line in ["default-cluster", "default-context", "default-auth", CURRENT] {
                ensure!(text.contains(line), "{line} is not in {text}");
            }
            let pem = machine.check(&["cat", CURRENT])?;
            ensure!(pem.contains("BEGIN CERTIFICATE") && pem.contains("PRIVATE KEY"), "half a file");
            Ok(())
        })
        .map_err(|error| error.context(machine.last_words(&["kubelet*"], 40)))?;
        let requests = host.cluster.list("certificatesigningrequests", None)?;
        let ours = |request: &&serde_json::Value| {
            request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
                && request["status"]["certificate"].is_string()
        };
        ensure!(requests.iter().any(|request| ours(&request)), "{requests:#?}");
        Ok(())
    });
    list.holds("join: the files of it are root's, 0600", || {
        let modes = machine.shell(&format!("stat -L -c '%a %u' {KUBECONFIG} {CURRENT}"))?;
        ensure!(modes == "600 0\n600 0\n", "{modes}");
        Ok(())
    });
    list.holds("join: a serving certificate of its own: pki/kubelet.crt and kubelet.key", || {
        let folder = "/var/lib/kubelet/pki";
        let modes = machine.shell(&format!("stat -L -c '%a %u' {folder}/kubelet.crt {folder}/kubelet.key"))?;
        ensure!(modes == "644 0\n600 0\n", "{modes}");
        Ok(())
    });
    list.holds("join: the Node registers with the new certificate and the taints of --register-with-taints", || {
        let node = host.node("it is ready", is_ready)?;
        let taints = node["spec"]["taints"].as_array().context("no taints")?;
        ensure!(taints.iter().any(|taint| taint["key"] == "example.com/new"), "{taints:?}");
        ensure!(node["metadata"]["labels"]["kubernetes.io/hostname"] == name);
        Ok(())
    });
    // kubeadm does so when its wait ends, whatever came of it.
    std::fs::remove_file(machine.outside(BOOTSTRAP)).context("removing the bootstrap file")?;
    list.holds("join: the bootstrap file is not wanted again: pods run, a restart works without it", || {
        host.cluster.create(
            Pod::idle("worker")
                .spec("nodeName", name.into())
                .spec("tolerations", serde_json::json!([{"operator": "Exists"}]))
                .value(),
        )?;
        bulkhead_tests::joined::wait_ready(&host.cluster, "worker")?;
        let before = machine.fingerprint()?;
        let lease = host.cluster.get("leases", "kube-node-lease", name)?;
        host.restart()?;
        host.wait_healthz()?;
        host.cluster.wait_for("leases", "kube-node-lease", name, "it is renewed", |now| {
            now["spec"]["renewTime"] != lease["spec"]["renewTime"]
        })?;
        ensure!(machine.fingerprint()? == before);
        Ok(())
    });
    list.holds("the node is drained of its pod and stopped: no process is left", || {
        host.cluster.delete("pods", "default", "worker", Some(0))?;
        eventually("no container runs", LONG, || {
            let left = machine.fingerprint()?;
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })?;
        machine.check(&["systemctl", "stop", "kubelet"])?;
        ensure!(installed::processes(machine)?.is_empty());
        Ok(())
    });
    Ok(())
}
