//! The Debian package in a machine with systemd: installed in place of another kubelet, run, upgraded, removed, purged and
//! installed again, with a pod that notices none of it.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_testkit::systemd::{LIBEXEC, Machine, SERVICES};
use bulkhead_testkit::{LONG, Pod, SHORT, eventually};
use bulkhead_tests::installed::{self, PACKAGE, apt, install, processes, wait_pod, wait_pod_gone};
use bulkhead_tests::systemd_machine;
use serde_json::json;

const DEFAULTS: &str = "/etc/default/kubelet";
/// A unit for containerd that does not say what systemd is to end with it.
const SILENT: &str = "/etc/systemd/system/containerd.service";
const STATE: &str = "/var/lib/kubelet/bulkhead";
const RUN: &str = "/run/kubelet";
/// What deb-systemd-helper noted for the Kubernetes packages up to 1.28, and which those after them leave where it is.
const NOTES: &str = "/var/lib/systemd/deb-systemd-helper-enabled";
const ENABLED: &str = "multi-user.target.wants/kubelet.service";
/// The drop-in of the Kubernetes project's guide "Set up a High Availability etcd cluster with kubeadm".
const ETCD_MANAGER: &str = "[Service]\nExecStart=\n\
                            ExecStart=/usr/bin/kubelet --config=/etc/systemd/system/kubelet.service.d/kubelet.conf\nRestart=always\n";

#[test]
fn installed_upgraded_removed_purged_and_installed_again() -> Result<()> {
    let Some(builder) = systemd_machine()? else { return Ok(()) };
    let machine = Machine::boot(builder)?;
    let package = installed::package(&machine)?;
    let before = files(&machine)?;
    let runtime = machine.unit("containerd.service")?;

    in_place_of_another(&machine, &package)?;
    what_it_brings(&machine)?;
    ensure!(machine.unit("containerd.service")? == runtime, "the installation restarted containerd");

    // A node without a cluster.
    configure(&machine)?;
    machine.check(&["systemctl", "restart", "kubelet"])?;
    machine.wait_healthy()?;
    machine
        .write_pod(&Pod::idle("web").spec("volumes", json!([{"name": "data", "emptyDir": {"medium": "Memory"}}])))?;
    let pod = wait_pod(&machine, "web")?;
    let mounts = machine.mounts_below("/var/lib/kubelet/pods")?;
    let untouched = |what: &str| -> Result<()> {
        let now = machine.fingerprint()?;
        ensure!(now == pod, "{what}: {pod:?} became {now:?}");
        let now = machine.mounts_below("/var/lib/kubelet/pods")?;
        ensure!(now == mounts, "{what}: {mounts:?} became {now:?}");
        Ok(())
    };

    as_the_manager_of_etcd(&machine)?;
    untouched("a drop-in that was written for the other unit")?;
    containerd_restarts(&machine)?;
    untouched("restart of containerd")?;
    let runtime = machine.unit("containerd.service")?;

    // Upgraded: all programs are new, the file that was changed stays, and the pod does not notice.
    let old = SERVICES.iter().map(|service| machine.unit(service)).collect::<Result<Vec<_>>>()?;
    let newer = installed::as_version(&package, "0.1.0-2")?;
    install(&machine, &newer)?;
    for (service, old) in SERVICES.iter().zip(&old) {
        machine.wait_another_run(service, old)?;
    }
    machine.wait_healthy()?;
    ensure!(version(&machine)? == "0.1.0-2");
    ensure!(machine.check(&["cat", DEFAULTS])?.contains("--v=2"), "the administrator's line is gone");
    knows_its_pod(&machine)?;
    untouched("upgrade")?;

    // Downgraded while it is stopped: it stays stopped.
    machine.check(&["systemctl", "stop", "kubelet"])?;
    let inside = machine.outside("/opt/older.deb");
    std::fs::copy(&package, &inside)?;
    apt(&machine, "install --allow-downgrades /opt/older.deb")?;
    std::fs::remove_file(&inside)?;
    ensure!(version(&machine)? == "0.1.0-1");
    let state = machine.run(&["systemctl", "is-active", "kubelet"])?;
    ensure!(state.stdout == b"inactive\n" && processes(&machine)?.is_empty(), "{state:?}");
    untouched("downgrade")?;
    // So it does when dpkg takes back an upgrade: its scripts have stopped nothing.
    for taken_back in ["abort-upgrade", "abort-deconfigure"] {
        machine
            .shell(&format!("DPKG_MAINTSCRIPT_PACKAGE={PACKAGE} /var/lib/dpkg/info/{PACKAGE}.postinst {taken_back}"))?;
        ensure!(machine.unit("kubelet.service")?.active == "inactive", "{taken_back} has started it");
    }
    machine.check(&["systemctl", "start", "kubelet"])?;
    machine.wait_healthy()?;

    // Removed: no process, no socket, no unit; the pod runs on.
    apt(&machine, &format!("remove {PACKAGE}"))?;
    eventually("no process is left", SHORT, || {
        let left = processes(&machine)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })?;
    let units = machine.check(&["systemctl", "list-units", "--all", "--plain", "--no-legend", "kubelet*"])?;
    ensure!(!units.lines().any(|line| line.contains(" loaded ")), "{units}");
    ensure!(
        machine.run(&["test", "-e", "/run/kubelet/kubelet-syncd.sock"])?.status.code() == Some(1),
        "a socket is left"
    );
    ensure!(machine.outside(DEFAULTS).exists() && !machine.outside("/usr/bin/kubelet").exists());
    let shown = machine.check(&["systemctl", "show", "--property=DropInPaths,KillMode", "containerd"])?;
    ensure!(shown.contains("KillMode=control-group") && !shown.contains("bulkhead"), "{shown}");
    std::fs::remove_file(machine.outside(SILENT)).context("removing the unit that says nothing")?;
    machine.check(&["systemctl", "daemon-reload"])?;
    untouched("removal")?;

    // Purged while a node runs from a folder: what that one uses stays, and that is told.
    machine.shell(&format!("install -D /bin/sleep /opt/folder/kubelet-syncd; mkdir -p {RUN}"))?;
    machine.check(&["systemd-run", "--quiet", "--unit=from-a-folder", "/opt/folder/kubelet-syncd", "infinity"])?;
    let said = machine.shell(&format!("sh /var/lib/dpkg/info/{PACKAGE}.postrm purge 2>&1"))?;
    ensure!(said.contains(&format!("{RUN} and {STATE} are kept")), "{said}");
    machine.shell(&format!("test -d {RUN} && systemctl stop from-a-folder && rm -r /opt/folder"))?;

    // Purged while the pod runs: what says who the pod is stays, and that is told.
    let said = apt(&machine, &format!("purge {PACKAGE}"))?;
    ensure!(said.contains(&format!("{STATE} is kept")), "{said}");
    let kept = machine.check(&["ls", STATE])?;
    ensure!(kept.contains("syncd"), "{kept}");
    ensure!(!machine.outside(DEFAULTS).exists(), "{said}");
    untouched("purge")?;

    // Installed again: the pod is taken over as it is.
    install(&machine, &package)?;
    configure(&machine)?;
    machine.check(&["systemctl", "restart", "kubelet"])?;
    machine.wait_healthy()?;
    knows_its_pod(&machine)?;
    untouched("reinstallation")?;

    // The end of the pod, and of everything that is ours.
    machine.remove_pod("web")?;
    wait_pod_gone(&machine, "web")?;
    eventually("the pod's folder is gone", SHORT, || {
        let left = machine.check(&["ls", "/var/lib/kubelet/pods"])?;
        ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    })?;
    let said = apt(&machine, &format!("purge {PACKAGE}"))?;
    ensure!(!said.contains("is kept"), "{said}");
    let after = files(&machine)?;
    let left: Vec<_> = after.difference(&before).filter(|path| !somebody_elses(path)).collect();
    ensure!(left.is_empty(), "left after the purge: {left:#?}");
    let gone: Vec<_> = before.difference(&after).filter(|path| !somebody_elses(path)).collect();
    ensure!(gone.is_empty(), "taken away though it was there before: {gone:#?}");
    ensure!(
        machine.check(&["getent", "passwd", "kubelet-syncd"])?.contains("nologin"),
        "users stay, and cannot log in"
    );
    ensure!(machine.unit("containerd.service")? == runtime, "containerd was restarted by a package");
    machine.finish()
}

/// A drop-in that was written for the Kubernetes package's unit, with a command and `Restart=` of its own, fits ours.
fn as_the_manager_of_etcd(machine: &Machine) -> Result<()> {
    let folder = "/etc/systemd/system/kubelet.service.d";
    // Nobody may come in, as there; and it ends in .conf, so systemd tries to read it too.
    let mut config = machine.kubelet_config();
    config["authentication"] = json!({"anonymous": {"enabled": false}, "webhook": {"enabled": false}});
    machine.write(&format!("{folder}/kubelet.conf"), format!("{config:#}").as_bytes(), 0o644)?;
    machine.drop_in("kubelet.service", "20-etcd-service-manager", ETCD_MANAGER)?;
    machine.check(&["systemctl", "restart", "kubelet"])?;
    machine.wait_healthy()?;
    let shown = machine.check(&["systemctl", "show", "--property=Restart,LoadState,ExecStart", "kubelet"])?;
    for word in ["Restart=always", "LoadState=loaded", "--config=/etc/systemd/system/kubelet.service.d/kubelet.conf"] {
        ensure!(shown.contains(word), "{word} is not in {shown}");
    }
    eventually("it has ended, and is not restarted for that", SHORT, || {
        let unit = machine.unit("kubelet.service")?;
        ensure!(unit.active == "active" && unit.sub == "exited" && unit.restarts == 0, "{unit:?}");
        Ok(())
    })?;
    knows_its_pod(machine)?;
    std::fs::remove_dir_all(machine.outside(folder)).context("removing the drop-in")?;
    machine.check(&["systemctl", "daemon-reload"])?;
    machine.check(&["systemctl", "restart", "kubelet"])?;
    machine.wait_healthy()
}

/// Under a unit that says nothing of it systemd would end every container with containerd: the drop-in says it, without a
/// restart of its own.
fn containerd_restarts(machine: &Machine) -> Result<()> {
    let unit = machine.check(&["cat", "/usr/lib/systemd/system/containerd.service"])?;
    let silent = ["KillMode=", "Delegate=", "OOMScoreAdjust="];
    let unit: Vec<_> = unit.lines().filter(|line| !silent.iter().any(|one| line.starts_with(one))).collect();
    machine.write(SILENT, unit.join("\n").as_bytes(), 0o644)?;
    machine.check(&["systemctl", "daemon-reload"])?;
    let shown = machine.check(&["systemctl", "show", "--property=KillMode,Delegate,OOMScoreAdjust", "containerd"])?;
    for line in ["KillMode=process", "Delegate=yes", "OOMScoreAdjust=-999"] {
        ensure!(shown.lines().any(|one| one == line), "{line} is not in {shown}");
    }
    machine.check(&["systemctl", "restart", "containerd"])?;
    // Its CRI side comes a moment after its unit is up.
    eventually("the runtime answers", LONG, || machine.fingerprint().map(drop))?;
    machine.wait_healthy()?;
    knows_its_pod(machine)
}

/// apt exchanges the Kubernetes package for ours by itself, and what the administrator wrote in its file stays.
fn in_place_of_another(machine: &Machine, package: &std::path::Path) -> Result<()> {
    install(machine, &installed::kubernetes_package(machine)?)?;
    ensure!(machine.check(&["systemctl", "is-enabled", "kubelet"])? == "enabled\n");
    machine.check(&["systemctl", "start", "kubelet"])?;
    machine.write(
        &format!("{NOTES}/kubelet.service.dsh-also"),
        format!("/etc/systemd/system/{ENABLED}\n").as_bytes(),
        0o644,
    )?;
    machine.write(&format!("{NOTES}/{ENABLED}"), b"", 0o644)?;
    let needs_one = "Package: needs-a-kubelet\nVersion: 1\nDepends: kubelet (>= 1.35)\n";
    install(machine, &installed::stand_in(machine, needs_one, &[])?)?;
    machine.write(DEFAULTS, b"KUBELET_EXTRA_ARGS=--v=3\n", 0o644)?;

    install(machine, package)?;
    let others = machine.run(&["dpkg-query", "--show", "--showformat=${db:Status-Status}", "kubelet"])?;
    ensure!(others.stdout != b"installed", "both are installed");
    ensure!(machine.check(&["dpkg-query", "-W", "-f=${db:Status-Status}", "needs-a-kubelet"])? == "installed");
    ensure!(machine.check(&["cat", DEFAULTS])? == "KUBELET_EXTRA_ARGS=--v=3\n", "the administrator's line is gone");
    apt(machine, "purge needs-a-kubelet kubelet")?;
    ensure!(machine.outside(DEFAULTS).exists(), "the other's purge took our file");

    // Nothing is configured: it is enabled, refuses at once and is tried again.
    ensure!(machine.check(&["systemctl", "is-enabled", "kubelet"])? == "enabled\n");
    eventually("it is tried again and again", SHORT, || {
        let unit = machine.unit("kubelet.service")?;
        ensure!(unit.active == "activating" && unit.sub == "auto-restart", "{unit:?}");
        Ok(())
    })?;
    let said = machine.journal(&["--unit=kubelet"])?;
    ensure!(said.contains("failed to load kubelet config file, path: \"/var/lib/kubelet/config.yaml\""), "{said}");
    Ok(())
}

/// What lintian would look at.
fn what_it_brings(machine: &Machine) -> Result<()> {
    let changed = machine.run(&["dpkg", "--verify", PACKAGE])?.stdout;
    let changed = String::from_utf8_lossy(&changed).into_owned();
    ensure!(changed.lines().all(|line| line.ends_with(DEFAULTS)), "other files than the package has: {changed}");
    let list = machine.check(&["dpkg", "--listfiles", PACKAGE])?;
    let mut conffiles: Vec<_> = Vec::new();
    for path in list.lines().filter(|path| *path != "/.") {
        let file = machine.outside(path);
        let meta = file.symlink_metadata().with_context(|| format!("looking at {path}"))?;
        let mode = meta.permissions().mode() & 0o7777;
        ensure!(meta.uid() == 0 && meta.gid() == 0, "{path} belongs to {}:{}", meta.uid(), meta.gid());
        let program = path.starts_with("/usr/bin/") || path.starts_with(&format!("{LIBEXEC}/"));
        let wanted = if meta.is_dir() || program { 0o755 } else { 0o644 };
        ensure!(mode == wanted, "{path} has mode {mode:o}");
        if path.starts_with("/etc/") && meta.is_file() {
            conffiles.push(path);
        }
    }
    let marked = machine.check(&["dpkg-query", "--show", "--showformat=${Conffiles}", PACKAGE])?;
    let marked: Vec<_> = marked.split_whitespace().filter(|word| word.starts_with('/')).collect();
    ensure!(conffiles == marked, "in /etc are {conffiles:?}, configuration files are {marked:?}");
    ensure!(!list.contains("/var/lib/kubelet/config.yaml"), "the configuration is kubeadm's");
    for keep in ["/var/lib/kubelet/.kubelet-keep", "/etc/kubernetes/manifests/.kubelet-keep"] {
        ensure!(list.lines().any(|path| path == keep), "{keep} is missing");
    }
    let text = |path: &str| machine.check(&["cat", path]);
    ensure!(text("/usr/share/doc/bulkhead/copyright")?.starts_with("Format: https://www.debian.org/doc/"));

    // Each program has a page with its own options, and a shell completes them.
    let programs: Vec<_> = list
        .lines()
        .filter_map(|path| path.strip_prefix("/usr/bin/").or(path.strip_prefix(&format!("{LIBEXEC}/"))))
        .collect();
    ensure!(programs.len() == 11, "{programs:?}");
    for program in &programs {
        let page = machine.outside(&format!("/usr/share/man/man8/{program}.8.gz"));
        ensure!(page.exists(), "{program} has no page");
        if std::path::Path::new("/usr/bin/man").exists() {
            let folder = machine.outside("/usr/share/man");
            let found = Command::new("man").arg("-M").arg(&folder).args(["-w", "8", program]).output()?;
            ensure!(found.status.success(), "{program}: {}", String::from_utf8_lossy(&found.stderr));
            let shown = Command::new("man").args(["--warnings", "-l"]).arg(&page).env("MANWIDTH", "100").output()?;
            ensure!(shown.stderr.is_empty(), "{program}: {}", String::from_utf8_lossy(&shown.stderr));
        }
    }
    let page = machine.check(&["zcat", "/usr/share/man/man8/kubelet.8.gz"])?;
    for flag in ["config", "kubeconfig", "bootstrap\\-kubeconfig", "node\\-ip"] {
        ensure!(page.contains(&format!("\\-\\-{flag}")), "{flag} is not described");
    }
    for (shell, file) in [("bash", "bash-completion/completions"), ("zsh", "zsh/vendor-completions/_")] {
        for program in ["kubelet", "kubelet-ctl"] {
            let gap = if file.ends_with('_') { "" } else { "/" };
            let script = text(&format!("/usr/share/{file}{gap}{program}"))?;
            ensure!(script.contains(program), "{shell} does not complete {program}");
        }
    }
    machine.check(&[
        "bash",
        "-c",
        "shopt -s progcomp; . /usr/share/bash-completion/completions/kubelet && complete -p kubelet",
    ])?;
    machine.check(&["bash", "-n", "/usr/share/bash-completion/completions/kubelet-ctl"])?;

    // systemd finds nothing wrong with the units, and the version is one line that kubeadm understands.
    let said = machine.run(&["systemd-analyze", "verify", "--man=no", "kubelet.service", "kubelet.target"])?;
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    ensure!(!said.contains("kubelet"), "{said}");
    let reported = machine.check(&["kubelet", "--version"])?;
    let provided = machine.check(&["dpkg-query", "--show", "--showformat=${Provides}", PACKAGE])?;
    let version = reported.trim().strip_prefix("Kubernetes v").and_then(|version| version.split('-').next());
    ensure!(version.is_some_and(|version| provided == format!("kubelet (= {version})")), "{reported} {provided}");
    Ok(())
}

fn configure(machine: &Machine) -> Result<()> {
    machine.configure_kubelet(&machine.kubelet_config())?;
    machine.write(DEFAULTS, b"KUBELET_EXTRA_ARGS=--v=2\n", 0o644)
}

fn version(machine: &Machine) -> Result<String> {
    machine.check(&["dpkg-query", "--show", "--showformat=${Version}", PACKAGE])
}

fn knows_its_pod(machine: &Machine) -> Result<()> {
    eventually("the node knows its pod", SHORT, || {
        let pods = machine.check(&["kubelet-ctl", "pods"])?;
        if pods.contains("web-") && pods.contains("Running") { Ok(()) } else { bail!("{pods}") }
    })
}

/// All files and folders that a package may leave behind.
fn files(machine: &Machine) -> Result<BTreeSet<String>> {
    let found =
        machine.shell("find /bin /etc /lib /opt /root /srv /usr /var /run/kubelet* -xdev 2>/dev/null || true")?;
    Ok(found.lines().map(str::to_owned).collect())
}

/// What others write while a package comes and goes, and what is named as staying in decision 35.
fn somebody_elses(path: &str) -> bool {
    let below = [
        // dpkg's and apt's own.
        "/var/lib/dpkg/",
        "/var/lib/apt/",
        "/var/cache/",
        "/var/log/",
        "/var/backups/",
        // The runtime's.
        "/var/lib/cni",
        "/opt/containerd",
        "/opt/cni",
        // This test's, and what kubeadm writes on a node: never removed by a package.
        "/var/lib/kubelet",
        "/etc/kubernetes",
        "/var/lib/systemd/",
    ];
    // Users stay; so do the copies that sysusers makes of its files.
    let users = ["/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/subuid-", "/etc/subgid-"];
    let ours =
        ["/var/lib/kubelet/bulkhead", "/var/lib/kubelet/.kubelet-keep", "/etc/kubernetes/manifests/.kubelet-keep"];
    !ours.iter().any(|own| path.starts_with(own))
        && (below.iter().any(|folder| path.starts_with(folder)) || users.contains(&path) || path == "/etc/.pwd.lock")
}
