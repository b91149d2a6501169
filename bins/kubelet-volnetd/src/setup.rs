//! Once at start: the node's directories, the shared mount, the kernel's tunables (upstream `setupDataDirs` and
//! `setupKernelTunables`).
//!
//! Not here: sockets in device-plugins ([`crate::agent_sockets`]), the certificate directory (statusd's).

use std::os::unix::fs::{DirBuilderExt, MetadataExt as _};
use std::path::{Path, PathBuf};

use bulkhead_sys::mount::{self, MountError};
use rustix::fs::XattrFlags;

use crate::node::Settings;

/// Why the node cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("failed to create the directory {path}")]
    Dir { path: PathBuf, source: std::io::Error },
    #[error("{path} is a symbolic link: the root directory itself may be one, or {path} a mount point")]
    Linked { path: PathBuf },
    #[error(transparent)]
    Share(#[from] MountError),
    #[error("{}", .mismatches.join(", "))]
    Tunables { mismatches: Vec<String> },
}

/// sysctl and the value that pods are run with (upstream `pkg/kubelet/cm/container_manager_linux.go`).
const TUNABLES: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Makes the node's directories and its root a shared mount.
pub fn directories(settings: &Settings) -> Result<(), SetupError> {
    let root = &settings.paths.root_dir;
    create(root, 0o750)?;
    create(&settings.paths.pod_logs_dir, 0o750)?;
    folders(root)?;
    label_plugin_folders(Path::new("/sys/fs/selinux"), root);
    tell_of_device_plugins(Path::new(DEVICE_PLUGINS), &root.join("device-plugins"));
    // Upstream makes it with the gate ContainerCheckpoint alone; an empty folder harms nobody.
    create(&settings.paths.checkpoints(), 0o700)?;
    create(&settings.container_links_dir, 0o755)?;
    if mount::make_rshared(root)? {
        tracing::info!(path = %root.display(), "made the root directory a shared mount");
    }
    Ok(())
}

/// Mounts below are found by their paths, as the kernel tells them: a link on the way would hide those of every pod.
const NEVER_LINKED: [&str; 2] = ["pods", "plugins"];

/// The last is nobody's yet, but a DaemonSet may mount it with hostPath `type: Directory`.
fn folders(root: &Path) -> Result<(), SetupError> {
    if let Some(path) = NEVER_LINKED.map(|name| root.join(name)).into_iter().find(|path| path.is_symlink()) {
        return Err(SetupError::Linked { path });
    }
    ["pods", "plugins", "plugins_registry", "pod-resources", "device-plugins"]
        .into_iter()
        .try_for_each(|name| create(&root.join(name), 0o750))
}

/// Where sockets of plugins are, and the label with which an unprivileged container may put one there (upstream
/// `KubeletPluginsDirSELinuxLabel`).
const PLUGIN_FOLDERS: [&str; 3] = ["plugins", "plugins_registry", "device-plugins"];
const PLUGIN_LABEL: &[u8] = b"system_u:object_r:container_file_t:s0";

/// Where the kernel has SELinux. A label that cannot be set is a warning: plugins of the host need none.
fn label_plugin_folders(selinuxfs: &Path, root: &Path) {
    if !selinuxfs.join("enforce").exists() {
        return;
    }
    for path in PLUGIN_FOLDERS.map(|name| root.join(name)) {
        let set = rustix::fs::setxattr(&path, "security.selinux", PLUGIN_LABEL, XattrFlags::empty());
        if let Err(error) = set {
            tracing::warn!(path = %path.display(), %error, "cannot set the SELinux label: plugins in unprivileged containers may not work");
        }
    }
}

/// Where device plugins look for `kubelet.sock` and put their own sockets, whatever the root directory is (upstream `KubeletSocket` of
/// `pkg/apis/deviceplugin/v1beta1`). A machine may have several nodes, so each has the folder below its own root directory.
const DEVICE_PLUGINS: &str = "/var/lib/kubelet/device-plugins";

/// Says what an operator has to do about plugins where the two are not one folder. That is no fault: of several nodes one at most has
/// the fixed folder.
fn tell_of_device_plugins(fixed: &Path, own: &Path) {
    if !is_same_folder(fixed, own) {
        tracing::info!(path = %own.display(), "device plugins do not find this node, but where {} is a link to this folder", fixed.display());
    }
}

/// Links are followed, and a bind mount is the folder that it shows.
fn is_same_folder(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    file(one).is_some_and(|one| file(other) == Some(one))
}

/// An existing directory keeps its mode, as upstream has it.
fn create(path: &Path, mode: u32) -> Result<(), SetupError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|source| SetupError::Dir { path: path.to_owned(), source })
}

/// Brings the kernel's tunables in line, or refuses where the operator protects them. One that cannot be written (a
/// read-only /proc/sys) is a warning: pods run all the same.
pub fn kernel_tunables(proc_sys: &Path, protect: bool) -> Result<(), SetupError> {
    let mut mismatches = Vec::new();
    for (name, expected) in TUNABLES {
        let path = proc_sys.join(name);
        let actual = match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().to_owned(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read a kernel tunable");
                continue;
            }
        };
        if actual == expected {
            continue;
        }
        if protect {
            mismatches.push(format!("invalid kernel flag: {name}, expected value: {expected}, actual value: {actual}"));
        } else {
            match std::fs::write(&path, expected) {
                Ok(()) => tracing::info!(flag = name, actual, expected, "changed a kernel tunable"),
                Err(error) => tracing::warn!(flag = name, actual, expected, %error, "cannot change a kernel tunable"),
            }
        }
    }
    if mismatches.is_empty() { Ok(()) } else { Err(SetupError::Tunables { mismatches }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_plugins_and_their_label() {
        let dir = tempfile::tempdir().unwrap();
        let (root, selinuxfs) = (dir.path().join("root"), dir.path().join("selinux"));
        folders(&root).unwrap();
        assert!(root.join("device-plugins").is_dir());
        for name in NEVER_LINKED {
            std::fs::rename(root.join(name), dir.path().join(name)).unwrap();
            std::os::unix::fs::symlink(dir.path().join(name), root.join(name)).unwrap();
            let refused = folders(&root).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("{}/{name} is a symbolic link", root.display())), "{refused}");
            std::fs::remove_file(root.join(name)).unwrap();
            folders(&root).unwrap();
        }
        let label = |name: &str| {
            let mut value = [0; 64];
            let length = rustix::fs::getxattr(root.join(name), "security.selinux", &mut value).ok()?;
            String::from_utf8(value[..length].to_vec()).ok()
        };
        let before = label("plugins");
        label_plugin_folders(&selinuxfs, &root);
        assert_eq!(label("plugins"), before, "no SELinux, no label");
        std::fs::create_dir(&selinuxfs).unwrap();
        std::fs::write(selinuxfs.join("enforce"), "1").unwrap();
        label_plugin_folders(&selinuxfs, &root);
        // To set one takes root and a file system that keeps it.
        if rustix::fs::setxattr(dir.path(), "security.selinux", PLUGIN_LABEL, XattrFlags::empty()).is_ok() {
            for name in PLUGIN_FOLDERS {
                assert_eq!(label(name).unwrap().as_bytes(), PLUGIN_LABEL, "{name}");
            }
        }
        assert_eq!(label("pods"), before, "none of theirs");
    }

    #[test]
    fn plugins_find_the_node_by_a_link_to_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["own", "fixed"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::os::unix::fs::symlink("own", at("link")).unwrap();
        std::os::unix::fs::symlink("missing", at("dangling")).unwrap();
        for (fixed, is_found) in
            [("own", true), ("link", true), ("fixed", false), ("missing", false), ("dangling", false)]
        {
            assert_eq!(is_same_folder(&at(fixed), &at("own")), is_found, "{fixed}");
        }
        assert!(!is_same_folder(&at("missing"), &at("missing")));
    }

    #[test]
    fn protected_tunables_are_named_and_others_written() {
        let dir = tempfile::tempdir().unwrap();
        for (name, value) in TUNABLES {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{value}\n")).unwrap();
        }
        kernel_tunables(dir.path(), true).unwrap();
        std::fs::write(dir.path().join("kernel/panic"), "0\n").unwrap();
        let error = kernel_tunables(dir.path(), true).unwrap_err().to_string();
        assert_eq!(error, "invalid kernel flag: kernel/panic, expected value: 10, actual value: 0");
        kernel_tunables(dir.path(), false).unwrap();
        kernel_tunables(dir.path(), true).unwrap();
    }
}
