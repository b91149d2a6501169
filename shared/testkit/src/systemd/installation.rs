//! What an administrator puts onto a machine: programs, units, a container runtime's configuration, a kubelet's
//! configuration and its way into a cluster, manifests.

use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::Machine;
use crate::containerd::Layout;
use crate::wait::{SHORT, eventually};
use crate::{Pod, build, image, machine};

/// Where the package puts the daemons; `kubelet` and `kubelet-ctl` are in /usr/bin.
pub const LIBEXEC: &str = "/usr/libexec/bulkhead";
/// `staticPodPath`, kubeadm's.
pub const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// `--config`, kubeadm's.
pub const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";
/// `--kubeconfig`, kubeadm's.
pub const KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";

/// Kinds of units that `systemd/` may hold.
const UNITS: &[&str] = &["service", "socket", "target", "slice", "path", "timer", "mount"];

impl Machine {
    /// Writes a file of the machine (a path as seen inside, below no tmpfs) in one step, with the folders above it.
    ///
    /// # Errors
    /// The file system is full, or refuses.
    pub fn write(&self, path: &str, content: &[u8], mode: u32) -> Result<()> {
        let target = self.outside(path);
        let what = || format!("writing {path} of the machine");
        let folder = target.parent().with_context(what)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).with_context(what)?;
        let mut draft = target.clone().into_os_string();
        draft.push(".draft");
        let _ = std::fs::remove_file(&draft);
        let mut file =
            std::fs::File::options().create_new(true).write(true).mode(mode).open(&draft).with_context(what)?;
        std::io::Write::write_all(&mut file, content).with_context(what)?;
        file.set_permissions(std::fs::Permissions::from_mode(mode)).with_context(what)?;
        std::fs::rename(&draft, &target).with_context(what)
    }

    /// Where a path of the machine is for the one outside. What lies on a tmpfs inside (/run, /tmp) is not there: see
    /// [`Machine::live_root`].
    pub fn outside(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    /// Installs the programs of a folder as the package does, each in one step: one that runs keeps its old file.
    ///
    /// # Errors
    /// A program is missing from the folder.
    pub fn install_programs(&self, folder: &Path) -> Result<()> {
        for program in build::PROGRAMS {
            self.install_program(&folder.join(program))?;
        }
        build::HELPERS
            .map(|helper| folder.join(helper))
            .iter()
            .filter(|helper| helper.is_file())
            .try_for_each(|helper| self.install_program(helper))
    }

    /// Installs one program, known by its file name.
    ///
    /// # Errors
    /// There is no such file.
    pub fn install_program(&self, program: &Path) -> Result<()> {
        let name = program.file_name().and_then(|name| name.to_str()).context("a program has a name")?;
        let folder = if matches!(name, "kubelet" | "kubelet-ctl") { "/usr/bin" } else { LIBEXEC };
        let content = std::fs::read(program).with_context(|| format!("reading {}", program.display()))?;
        self.write(&format!("{folder}/{name}"), &content, 0o755)
    }

    /// Installs the units of `repository`/systemd with their drop-ins, and the users and folders of its
    /// deploy/sysusers.d and deploy/tmpfiles.d, as the package does. Nothing is enabled or started.
    ///
    /// # Errors
    /// There is no unit, or systemd refuses one of the files.
    pub fn install_units(&self, repository: &Path) -> Result<()> {
        for (source, target) in unit_files(repository)? {
            self.write(&target, &std::fs::read(&source)?, 0o644)?;
        }
        self.check(&["systemd-sysusers"])?;
        // 65: some line of some package could not be carried out, which is normal in a container.
        let made = self.run(&["systemd-tmpfiles", "--create", "--prefix=/run", "--prefix=/var", "--prefix=/etc"])?;
        if !made.status.success() && made.status.code() != Some(65) {
            bail!("systemd-tmpfiles: {}: {}", made.status, String::from_utf8_lossy(&made.stderr));
        }
        self.check(&["systemctl", "daemon-reload"]).map(drop)
    }

    /// Adds a drop-in to a unit: `[Service]` and so on. Takes effect with the unit's next start.
    ///
    /// # Errors
    /// systemd refuses it.
    pub fn drop_in(&self, unit: &str, name: &str, content: &str) -> Result<()> {
        self.write(&format!("/etc/systemd/system/{unit}.d/{name}.conf"), content.as_bytes(), 0o644)?;
        self.check(&["systemctl", "daemon-reload"]).map(drop)
    }

    // === The container runtime ===

    /// The configuration of containerd that a machine in a test can run: its own folders where Debian's are.
    pub(super) fn configure_runtime(&self) -> Result<()> {
        let layout = Layout {
            root: "/var/lib/containerd",
            state: "/run/containerd",
            socket: "/run/containerd/containerd.sock",
            opt: "/opt/containerd",
            cni_bin: "/usr/lib/cni",
            cni_conf: "/etc/cni/net.d",
            overlay: machine::overlay_possible(self.folder()),
        };
        self.write("/etc/containerd/config.toml", layout.config().as_bytes(), 0o644)?;
        self.netns().write_cni_config(&self.outside("/etc/cni/net.d"), Path::new("/var/lib/cni/networks"))
    }

    /// Gives the machine's containerd the images of the test kit (busybox under two names, pause).
    ///
    /// # Errors
    /// containerd does not answer, or does not take them.
    pub fn import_images(&self) -> Result<()> {
        let inside = "/var/lib/bulkhead-images.tar";
        std::fs::copy(image::archive()?, self.outside(inside)).context("copying the image archive")?;
        self.import(inside, &image::names().collect::<Vec<_>>())?;
        std::fs::remove_file(self.outside(inside)).context("removing the image archive")
    }

    /// Gives the machine's containerd the images of an archive, which is known by its path inside, and waits until CRI knows
    /// those that are named.
    ///
    /// # Errors
    /// containerd does not answer, or does not take them.
    pub fn import(&self, archive: &str, names: &[&str]) -> Result<()> {
        self.check(&["ctr", "--namespace", "k8s.io", "images", "import", archive])?;
        // The CRI side learns of an image through an event and then labels it: before that it would try to pull.
        eventually("the images are known to CRI", SHORT, || {
            let list = self.check(&["ctr", "--namespace", "k8s.io", "images", "ls"])?;
            for name in names {
                let known = list.lines().any(|line| line.starts_with(name) && line.contains("image=managed"));
                ensure!(known, "{name} is not managed yet");
            }
            Ok(())
        })
    }

    // === The kubelet ===

    /// A KubeletConfiguration with which a node works in this machine, standalone; to be changed and given to
    /// [`Machine::configure_kubelet`].
    pub fn kubelet_config(&self) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": false,
            "failSwapOn": false,
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "staticPodPath": MANIFESTS,
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            // A developer's full disk is no reason for this node to evict.
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        })
    }

    /// Writes the configuration to where kubeadm does, and makes the manifest folder.
    ///
    /// # Errors
    /// The file system is full.
    pub fn configure_kubelet(&self, config: &Value) -> Result<()> {
        std::fs::create_dir_all(self.manifests()).context("making the manifest folder")?;
        self.write(KUBELET_CONFIG, format!("{config:#}").as_bytes(), 0o644)
    }

    /// The command line of kubelet.service, by a drop-in as kubeadm's own: `--config` is there already.
    ///
    /// # Errors
    /// systemd refuses the drop-in.
    pub fn kubelet_arguments(&self, arguments: &[&str]) -> Result<()> {
        let line = arguments.join(" ");
        let content = format!("[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --config={KUBELET_CONFIG} {line}\n");
        self.drop_in("kubelet.service", "10-command-line", &content)
    }

    /// Makes the machine's kubelet a member of a cluster: configuration (what `change` makes of it), kubeconfig,
    /// command line. Takes effect with the next start of kubelet.service.
    ///
    /// # Errors
    /// A file cannot be written.
    #[cfg(feature = "apiserver")]
    pub fn join(&self, cluster: &crate::Cluster, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut config = self.kubelet_config();
        self.write("/etc/kubernetes/pki/ca.crt", cluster.ca().as_bytes(), 0o644)?;
        config["authentication"] = json!({
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
        });
        config["authorization"] = json!({"mode": "Webhook"});
        change(&mut config);
        self.configure_kubelet(&config)?;
        let kubeconfig = cluster.kubeconfig_for_node(self.hostname())?;
        self.write(KUBECONFIG, &std::fs::read(&kubeconfig)?, 0o600)?;
        self.kubelet_arguments(&[
            &format!("--kubeconfig={KUBECONFIG}"),
            &format!("--node-ip={}", self.address()),
            &format!("--hostname-override={}", self.hostname()),
        ])
    }

    /// The manifest folder, from outside.
    pub fn manifests(&self) -> PathBuf {
        self.outside(MANIFESTS)
    }

    /// Puts a static pod's manifest into its folder in one step.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write_pod(&self, pod: &Pod) -> Result<()> {
        // Drafted elsewhere: a file that appears in the folder under another name would be one more pod.
        self.write("/etc/kubernetes/manifest", pod.to_json().as_bytes(), 0o644)?;
        std::fs::create_dir_all(self.manifests())?;
        std::fs::rename(self.outside("/etc/kubernetes/manifest"), self.manifests().join(format!("{}.yaml", pod.name())))
            .with_context(|| format!("moving the manifest of {} into place", pod.name()))
    }

    /// Takes a static pod's manifest away.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_pod(&self, pod: &str) -> Result<()> {
        std::fs::remove_file(self.manifests().join(format!("{pod}.yaml")))
            .with_context(|| format!("removing the manifest of {pod}"))
    }
}

/// The files of `repository`'s units with their drop-ins, users and folders, and where the package puts each.
///
/// # Errors
/// There is no unit.
pub(crate) fn unit_files(repository: &Path) -> Result<Vec<(PathBuf, String)>> {
    const INSTALLED: &str = "/usr/lib/systemd/system";
    let mut all = Vec::new();
    for (path, name) in files(&repository.join("systemd"))? {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if extension == "d" && path.is_dir() {
            all.extend(files(&path)?.into_iter().map(|(path, file)| (path, format!("{INSTALLED}/{name}/{file}"))));
        } else if UNITS.contains(&extension) {
            all.push((path, format!("{INSTALLED}/{name}")));
        }
    }
    ensure!(!all.is_empty(), "there is no unit in {}/systemd", repository.display());
    for folder in ["sysusers.d", "tmpfiles.d"] {
        let here = files(&repository.join("deploy").join(folder))?;
        all.extend(here.into_iter().map(|(path, name)| (path, format!("/usr/lib/{folder}/{name}"))));
    }
    Ok(all)
}

/// Path and name of what is in a folder, in the order of names; nothing where there is no folder.
fn files(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut found: Vec<(PathBuf, String)> =
        entries.flatten().filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?))).collect();
    found.sort();
    Ok(found)
}
