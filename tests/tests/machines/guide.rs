//! The operator's guide, done word by word on a machine with systemd: its commands are run as they stand there, from the
//! installation to the purge, with pods that notice none of it. Beside it the commands of systemd/README.md.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::cluster;
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::systemd::Machine;
use bulkhead_testkit::{Pod, SHORT, build, eventually};
use bulkhead_tests::guide::Guide;
use bulkhead_tests::installed::{self, apt, processes, wait_pod};
use bulkhead_tests::joined::{create, wait_node, wait_ready};
use bulkhead_tests::systemd_machine;

/// This machine has cgroup v1 and swap, which a node has not: flags win over what the guide's configuration says.
const OF_THIS_MACHINE: &str = "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --fail-cgroupv1=false --fail-swap-on=false \
                               --cgroup-driver=cgroupfs --v=2 $KUBELET_CONFIG_ARGS $KUBELET_EXTRA_ARGS\n";

#[test]
fn the_guide_is_right_word_by_word() -> Result<()> {
    let Some(builder) = systemd_machine()? else { return Ok(()) };
    cluster::ensure_kubectl(&|line| eprintln!("{line}"))?;
    let kubectl = cluster::kubectl().context("there is no kubectl")?.canonicalize()?;
    let machine = Machine::boot(builder.bind_read_only(&kubectl, "/usr/bin/kubectl"))?;
    let cluster = machine.stand_in(Config::default())?;
    let root = build::workspace_root();
    let mut guide = Guide::read(&root.join("docs/operators-guide.md"))?;
    let mut units = Guide::read(&root.join("systemd/README.md"))?;
    at_hand(&machine)?;
    machine.write("/root/.kube/config", &std::fs::read(cluster.admin_kubeconfig()?)?, 0o600)?;

    // Installation, without anything and with what the examples say.
    machine.drop_in("kubelet.service", "of-this-machine", OF_THIS_MACHINE)?;
    guide.run(&machine, "From the package (Debian and its relatives)", &[])?;
    eventually("it is tried again and again", SHORT, || {
        let unit = machine.unit("kubelet.service")?;
        ensure!(unit.sub == "auto-restart", "{unit:?}");
        Ok(())
    })?;
    let said = guide.run(&machine, "From the package (Debian and its relatives)", &["systemctl is-active"])?;
    said.has(&["activating\n", "failed to load kubelet config file, path: \"/var/lib/kubelet/config.yaml\""])?;
    guide.run(&machine, "Without kubeadm", &[])?;
    machine.write_pod(&Pod::idle("static"))?;
    wait_pod(&machine, "static")?;
    machine.write("/etc/kubernetes/pki/ca.crt", cluster.ca().as_bytes(), 0o644)?;
    let bootstrap = std::fs::read(cluster.bootstrap_kubeconfig(machine.hostname())?)?;
    machine.write("/etc/kubernetes/bootstrap-kubelet.conf", &bootstrap, 0o600)?;
    guide.run(&machine, "Without kubeadm", &[])?;
    wait_node(&cluster, "True")?;
    create(&cluster, Pod::idle("web-0"))?;
    wait_ready(&cluster, "web-0")?;
    let pods = machine.fingerprint()?;
    ensure!(pods.len() == 2, "{pods:?}");

    daily_work(&machine, &mut guide, &mut units)?;
    let untouched = |what: &str| untouched(&machine, &pods, what);
    untouched("daily work")?;
    guide.run(&machine, "Upgrading", &[])?;
    machine.wait_healthy()?;
    untouched("an upgrade and the way back")?;
    guide.run(&machine, "Upgrading and downgrading", &[])?;
    machine.wait_healthy()?;
    untouched("restarts one after the other")?;

    // To the Kubernetes kubelet, and here again.
    let said = guide.run(&machine, "Going back", &[])?;
    said.has(&["static-alpha\t"])?;
    let said = guide.run(&machine, "Going back", &["ls -l"])?;
    said.has(&["the same containers and sandboxes"])?;
    eventually("the other one runs, and nothing of ours", SHORT, || {
        let now = processes(&machine)?;
        ensure!(now.is_empty() && machine.unit("kubelet.service")?.active == "active", "{now:?}");
        Ok(())
    })?;
    untouched("going back")?;
    // What is left of ours is purged: the other one's unit and its file stay as they are.
    let said = apt(&machine, "purge bulkhead")?;
    ensure!(said.contains("is kept"), "a pod's notes are gone: {said}");
    let unit = machine.unit("kubelet.service")?;
    ensure!(unit.active == "active" && machine.outside("/etc/default/kubelet").exists(), "{unit:?}");
    ensure!(machine.check(&["systemctl", "is-enabled", "kubelet"])? == "enabled\n");
    untouched("a purge beside the other one")?;
    ensure!(machine.check(&["apt-mark", "showhold"])? == "kubelet\n", "as on most nodes");
    let coming = "Coming from upstream's kubelet";
    let before = guide.run(&machine, coming, &["ls ", "grep "])?;
    ensure!(!before.stdout.contains("kubernetes.io~"), "{}", before.stdout);
    before.has(&["f: /var/lib/kubelet/config.yaml", "f: /etc/kubernetes/kubelet.conf"])?;
    guide.run(&machine, coming, &[])?;
    guide.run(&machine, coming, &[])?;
    machine.wait_healthy()?;
    ensure!(machine.check(&["systemctl", "is-enabled", "kubelet"])? == "enabled\n", "not after the next boot");
    let known = || {
        let known = machine.check(&["kubelet-ctl", "pods"])?;
        ensure!(known.matches("Running").count() == 2, "{known}");
        Ok(())
    };
    eventually("the pods are known", SHORT, known)?;
    let said = guide.run(&machine, coming, &[])?;
    said.has(&["the same containers and sandboxes", "the same addresses, no restart", "Running"])?;
    untouched("coming from the other one")?;

    guide.run(&machine, "Uninstalling", &[])?;
    ensure!(processes(&machine)?.is_empty() && !machine.outside("/usr/bin/kubelet").exists());
    untouched("the purge")?;
    drop(cluster);
    guide.finish()?;
    units.finish()?;
    machine.finish()
}

/// What the guide has lying in root's folder, and where the Kubernetes packages come from. Questions of apt are answered.
fn at_hand(machine: &Machine) -> Result<()> {
    let package = installed::package(machine)?;
    let newer = installed::as_version(&package, "0.1.0-2")?;
    for (file, name) in [(&package, "bulkhead_0.1.0-1_amd64.deb"), (&newer, "bulkhead_0.1.0-2_amd64.deb")] {
        std::fs::copy(file, machine.outside("/root").join(name)).with_context(|| name.to_owned())?;
    }
    machine.write("/etc/apt/apt.conf.d/99answers", b"APT::Get::Assume-Yes \"true\";\n", 0o644)?;

    let upstreams = installed::kubernetes_package(machine)?;
    let archive = machine.outside("/opt/kubernetes");
    std::fs::create_dir_all(&archive)?;
    std::fs::copy(&upstreams, archive.join("kubelet.deb"))?;
    let script = r#"dpkg-deb --field kubelet.deb; printf 'Filename: ./kubelet.deb\nSize: %s\nSHA256: %s\n' \
        "$(stat -c %s kubelet.deb)" "$(sha256sum kubelet.deb | cut -d' ' -f1)""#;
    let index = Command::new("/bin/sh").args(["-ec", script]).current_dir(&archive).output()?;
    ensure!(index.status.success(), "{}", String::from_utf8_lossy(&index.stderr));
    std::fs::write(archive.join("Packages"), index.stdout)?;
    let list = "/etc/apt/sources.list.d/kubernetes.list";
    machine.write(list, b"deb [trusted=yes] file:/opt/kubernetes ./\n", 0o644)?;
    machine.shell(&format!("apt-get update -o Dir::Etc::sourcelist={list} -o Dir::Etc::sourceparts=- 2>&1")).map(drop)
}

fn daily_work(machine: &Machine, guide: &mut Guide, units: &mut Guide) -> Result<()> {
    guide.run(machine, "Daily work", &[])?;
    let said = guide.run(machine, "Daily work", &[])?;
    said.has(&["web-0", "static-alpha", "kubelet-volnetd.service"])?;
    ensure!(!said.stdout.contains("unwell"), "{}", said.stdout);
    let said = guide.run(machine, "Troubleshooting", &[])?;
    said.has(&["RUNNING", "ok"])?;
    // Off until then, and part of the agent from then on. No driver of the guide's name is there.
    ensure!(machine.unit("kubelet-flexvolume.socket")?.active == "inactive", "nobody has enabled it");
    guide.run(machine, "FlexVolume drivers", &["namei", "eval"])?;
    ensure!(machine.unit("kubelet-flexvolume.socket")?.active == "active");
    let old = machine.unit("kubelet-syncd.service")?;
    guide.run(machine, "Troubleshooting", &[])?;
    machine.wait_another_run("kubelet-syncd.service", &old)?;
    units.run(machine, "Daily work", &[])?.has(&["inactive"])?;
    machine.wait_healthy()
}

/// Not a container is another one, in whichever hands the node is.
fn untouched(machine: &Machine, pods: &[Fingerprint], what: &str) -> Result<()> {
    let now = machine.fingerprint()?;
    ensure!(now == pods, "{what}: {pods:?} became {now:?}");
    Ok(())
}
