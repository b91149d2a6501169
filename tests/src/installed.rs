//! A node as it is installed: the Debian package in a machine with systemd, its pods, and what apt says.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::systemd::Machine;
use bulkhead_testkit::{LONG, build, eventually, package};

/// The name of our package.
pub const PACKAGE: &str = "bulkhead";
/// The Kubernetes package of the kubelet, as far as it meets ours, with its scripts as debbuild makes them of
/// `%systemd_post`, `%systemd_preun` and `%systemd_postun` (kubernetes/release, kubelet.spec): nothing starts the service.
const KUBERNETES_PACKAGE: &[(&str, &str, u32)] = &[
    ("/usr/bin/kubelet", "#!/bin/sh\nexec sleep infinity\n", 0o755),
    (
        "/usr/lib/systemd/system/kubelet.service",
        "[Unit]\nDescription=another kubelet\n[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\nRestartSec=10\n\
         [Install]\nWantedBy=multi-user.target\n",
        0o600,
    ),
    ("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=\n", 0o644),
    ("/etc/kubernetes/manifests/.kubelet-keep", "", 0o644),
    ("/var/lib/kubelet/.kubelet-keep", "", 0o644),
    ("DEBIAN/conffiles", "/etc/default/kubelet\n", 0o644),
    (
        "DEBIAN/postinst",
        "#!/bin/sh\nif [ \"$1\" = configure ]; then systemctl preset kubelet.service >/dev/null 2>&1 || :; fi\n",
        0o755,
    ),
    (
        "DEBIAN/prerm",
        "#!/bin/sh\nif [ \"$1\" = remove ] || [ \"$1\" = purge ]; then\n\
         systemctl --no-reload disable kubelet.service >/dev/null 2>&1 || :\n\
         systemctl stop kubelet.service >/dev/null 2>&1 || :\nfi\n",
        0o755,
    ),
    ("DEBIAN/postrm", "#!/bin/sh\nsystemctl daemon-reload >/dev/null 2>&1 || :\n", 0o755),
];

/// Makes the package of the programs under test, without compressing it well.
///
/// # Errors
/// What cargo-deb said.
pub fn package(machine: &Machine) -> Result<PathBuf> {
    package::make(
        &package::Options {
            programs: build::bin_dir()?,
            version: None,
            output: Some(machine.folder().join("packages")),
            fast: true,
        },
        &|line| eprintln!("{line}"),
    )
}

/// The same package under another version.
///
/// # Errors
/// What dpkg-deb said.
pub fn as_version(package: &Path, version: &str) -> Result<PathBuf> {
    let folder = package.parent().context("a package lies in a folder")?;
    let (tree, target) = (folder.join("tree"), folder.join(format!("{PACKAGE}_{version}.deb")));
    let script = r#"dpkg-deb --raw-extract "$1" "$2" && sed -i "s/^Version: .*/Version: $3/" "$2/DEBIAN/control" &&
        dpkg-deb --build --root-owner-group -Znone "$2" "$4" && rm -r "$2""#;
    let output = Command::new("/bin/sh")
        .args(["-c", script, "sh"])
        .args([package, &tree])
        .arg(version)
        .arg(&target)
        .output()
        .context("starting dpkg-deb")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(target)
}

/// A package of a few files, made by hand: a stand-in for somebody else's. `files`: path, content, mode.
///
/// # Errors
/// What dpkg-deb said.
pub fn stand_in(machine: &Machine, control: &str, files: &[(&str, &str, u32)]) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let name = control.lines().find_map(|line| line.strip_prefix("Package: ")).context("it has no name")?;
    let tree = machine.folder().join("packages").join(name);
    let control =
        format!("{control}Architecture: all\nMaintainer: Nobody <nobody@example.org>\nDescription: a stand-in\n");
    for (path, content, mode) in [("DEBIAN/control", control.as_str(), 0o644)].iter().chain(files) {
        let file = tree.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(file.parent().context("a file lies in a folder")?)?;
        std::fs::write(&file, content).with_context(|| format!("writing {}", file.display()))?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(*mode))?;
    }
    let target = tree.with_extension("deb");
    let output = Command::new("dpkg-deb")
        .args(["--build", "--root-owner-group", "-Znone"])
        .args([&tree, &target])
        .output()
        .context("starting dpkg-deb")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(target)
}

/// A stand-in for the Kubernetes package of the kubelet.
///
/// # Errors
/// What dpkg-deb said.
pub fn kubernetes_package(machine: &Machine) -> Result<PathBuf> {
    stand_in(machine, "Package: kubelet\nVersion: 1.36.1-1.1\n", KUBERNETES_PACKAGE)
}

/// Installs a package as an administrator does, answering no question; gives what was said.
///
/// # Errors
/// apt's refusal.
pub fn install(machine: &Machine, package: &Path) -> Result<String> {
    let inside = "/opt/to-install.deb";
    std::fs::copy(package, machine.outside(inside)).with_context(|| format!("copying {}", package.display()))?;
    let said = apt(machine, &format!("install --no-install-recommends {inside}"));
    std::fs::remove_file(machine.outside(inside)).context("removing the package file")?;
    said
}

/// apt-get with these words, answering no question; gives what was said on both channels.
///
/// # Errors
/// It failed.
pub fn apt(machine: &Machine, words: &str) -> Result<String> {
    machine.shell(&format!("DEBIAN_FRONTEND=noninteractive apt-get --assume-yes --quiet {words} 2>&1"))
}

/// Waits until the newest container of this static pod runs; what no change of the agent may change of it.
///
/// # Errors
/// What runs instead.
pub fn wait_pod(machine: &Machine, pod: &str) -> Result<Vec<Fingerprint>> {
    let name = format!("{pod}-{}", machine.hostname());
    eventually(&format!("{name} runs"), LONG, || {
        let all: Vec<_> = machine.fingerprint()?.into_iter().filter(|one| one.pod == name).collect();
        if all.is_empty() { bail!("no container of it runs") } else { Ok(all) }
    })
    .map_err(|error| error.context(machine.last_words(&["kubelet*"], 30)))
}

/// Waits until nothing of this static pod is left in the runtime.
///
/// # Errors
/// What is left.
pub fn wait_pod_gone(machine: &Machine, pod: &str) -> Result<()> {
    let name = format!("{pod}-{}", machine.hostname());
    let cri = machine.cri()?;
    eventually(&format!("{name} is gone"), LONG, || {
        let left: Vec<_> = cri.sandboxes()?.into_iter().filter(|sandbox| sandbox.pod == name).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

/// Processes of the node agent, by the names of their programs.
///
/// # Errors
/// The machine does not run.
pub fn processes(machine: &Machine) -> Result<Vec<String>> {
    let ours = |line: &Vec<String>| {
        let program = line.first().map_or("", |first| first.rsplit('/').next().unwrap_or_default());
        program.starts_with("kubelet").then(|| program.to_owned())
    };
    Ok(machine.processes()?.iter().filter_map(|(_, line)| ours(line)).collect())
}
