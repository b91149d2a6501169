//! What is on a machine - files, mounts, cgroups, processes, units - and what `kubeadm reset` has left there.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use bulkhead_testkit::systemd::Machine;
use bulkhead_tests::installed;

/// Files that come and go with others: the runtime, systemd, journals, dpkg's own.
const SOMEBODY_ELSES: &[&str] = &[
    "/etc/cni",
    "/opt/",
    "/run/containerd/",
    "/run/log/",
    "/run/systemd/",
    "/var/cache/",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/systemd/",
    "/var/log/",
    "/var/tmp/",
];
/// What kubeadm leaves, or takes away with its folder, whichever kubelet there is.
const KUBEADMS: &[&str] = &[
    "/etc/kubernetes/manifests/.kubelet-keep",
    "/etc/kubernetes/pki",
    "/etc/kubernetes/tmp",
    "/root/",
    // Folders of the machine that the manifests name, made where they were not.
    "/etc/ca-certificates",
    "/etc/ssl",
    "/usr/local/share/ca-certificates",
    "/usr/share/ca-certificates",
    "/var/lib/etcd",
    "/var/lib/kubelet/.kubelet-keep",
];
/// Locks that nobody holds any more, with the text of who held them: they go with the next boot.
const CLAIMS: &str = "/run/kubelet.claims/";
/// kubeadm ends the kubelet before the pods, so that nobody removes the cgroups of those that still run then: of upstream's
/// kubelet they stay behind too, without a process ([`nothing_runs`]).
const KUBEPODS: &str = "kubepods";

/// The lock of the legacy variant of iptables, and the rules of the chain that upstream's kubelet leaves behind too.
const XTABLES_LOCK: &str = "/run/xtables.lock";
const FIREWALL: &str = "KUBE-FIREWALL";

/// A machine at one moment.
#[derive(Debug)]
pub struct State {
    files: BTreeSet<String>,
    mounts: BTreeSet<String>,
    cgroups: BTreeSet<String>,
    units: BTreeSet<String>,
    rules: BTreeSet<String>,
}

impl State {
    pub fn of(machine: &Machine) -> Result<Self> {
        let lines = |script: &str| -> Result<BTreeSet<String>> {
            Ok(machine.shell(script)?.lines().map(str::to_owned).collect())
        };
        let alien = |path: &String| SOMEBODY_ELSES.iter().chain(KUBEADMS).any(|other| path.starts_with(other));
        let mut files = lines("find /etc /opt /root /run /srv /usr /var -xdev 2>/dev/null || true")?;
        files.retain(|path| !alien(path) && !path.starts_with(CLAIMS) && path != XTABLES_LOCK);
        Ok(Self {
            files,
            mounts: lines("cut -d' ' -f5 /proc/self/mountinfo")?,
            cgroups: lines("cd /sys/fs/cgroup && find . -mindepth 2 -type d | cut -d/ -f3-")?,
            units: lines("systemctl list-units --all --plain --no-legend 'kubelet*' 'kube*' | cut -d' ' -f1")?,
            rules: lines("iptables-save 2>/dev/null | grep -v '^[#:*]' | grep KUBE || true")?,
        })
    }

    /// Nothing is here that was not there before, of the kinds that a kubelet makes.
    pub fn holds_no_more_than(&self, before: &Self) -> Result<()> {
        let more = |now: &BTreeSet<String>, before: &BTreeSet<String>| -> Vec<String> {
            now.difference(before).cloned().collect()
        };
        let files = more(&self.files, &before.files);
        ensure!(files.is_empty(), "files: {files:#?}");
        let mounts = more(&self.mounts, &before.mounts);
        ensure!(mounts.is_empty(), "mounts: {mounts:#?}");
        let mut cgroups = more(&self.cgroups, &before.cgroups);
        cgroups.retain(|path| path.contains("kube") && path.split('/').next() != Some(KUBEPODS));
        ensure!(cgroups.is_empty(), "cgroups: {cgroups:#?}");
        let units = more(&self.units, &before.units);
        ensure!(units.is_empty(), "units: {units:#?}");
        let mut rules = more(&self.rules, &before.rules);
        rules.retain(|rule| !rule.contains(FIREWALL));
        ensure!(rules.is_empty(), "rules: {rules:#?}");
        Ok(())
    }
}

/// No process of a kubelet or of a pod, no lock, no socket, and the service is as kubeadm wants to find it.
pub fn nothing_runs(machine: &Machine) -> Result<()> {
    let ours = installed::processes(machine)?;
    ensure!(ours.is_empty(), "{ours:?}");
    let of_pods = ["containerd-shim", "kube-", "etcd", "httpd", "sleep 2147483647"];
    let pods: Vec<_> = machine.processes()?.into_iter().map(|(_, line)| line.join(" ")).collect();
    let pods: Vec<_> = pods.iter().filter(|line| of_pods.iter().any(|program| line.contains(program))).collect();
    ensure!(pods.is_empty(), "{pods:?}");
    let cri = machine.cri()?;
    ensure!(cri.sandboxes()?.is_empty() && cri.containers()?.is_empty(), "the runtime has pods");
    let locked = machine.shell("cut -d: -f2- /proc/locks | grep FLOCK | awk '{print $5}' || true")?;
    let claims = machine.shell(&format!("ls -i {CLAIMS} | awk '{{print $1}}'"))?;
    let held: Vec<_> =
        claims.lines().filter(|inode| locked.lines().any(|lock| lock.ends_with(&format!(":{inode}")))).collect();
    ensure!(held.is_empty(), "claims that are held: {held:?}");
    let sockets = machine.shell("ls /run/kubelet/*.sock 2>/dev/null || true")?;
    ensure!(sockets.is_empty(), "{sockets}");
    let failed = machine.shell("systemctl --failed --plain --no-legend")?;
    ensure!(!failed.contains("kubelet"), "{failed}");
    let unit = machine.unit("kubelet.service")?;
    ensure!(unit.active == "inactive" && unit.result == "success", "{unit:?}");
    machine.check(&["systemctl", "is-enabled", "kubelet"]).map(drop)
}
