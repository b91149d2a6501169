//! What of the node's configuration concerns this process.

use std::path::{Path, PathBuf};

use bulkhead_config::{Feature, NodeConfig, reserved, shutdown};
use bulkhead_sys::cgroup::CgroupPath;

use crate::cgroups::Driver;
use crate::node::{Certificates, Settings};

/// Why the configuration cannot be worked with. The launcher has checked it: these are its bugs or another build's.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cgroupRoot")]
    CgroupRoot(#[from] bulkhead_sys::cgroup::CgroupError),
    #[error("cgroupDriver {0:?} is not known: cgroupfs or systemd")]
    CgroupDriver(String),
    #[error("failed to find the working directory")]
    WorkingDirectory(#[source] std::io::Error),
    #[error("the root directory {path} cannot be resolved")]
    RootDir { path: PathBuf, source: std::io::Error },
}

pub fn from_config(config: &NodeConfig) -> Result<Settings, SettingsError> {
    let driver = &config.kubelet.cgroup_driver;
    let mut paths = config.paths.clone();
    let named_root_dir = paths.root_dir.clone();
    // Paths are compared with mountinfo, which shows none of the links on the way; others are told them by the name that was
    // written. A root directory that is not there yet is made by us, and its parents are resolved all the same.
    paths.root_dir =
        resolve(&paths.root_dir).map_err(|source| SettingsError::RootDir { path: paths.root_dir.clone(), source })?;
    Ok(Settings {
        node_name: config.node_name.clone(),
        start_id: config.start_id.clone(),
        paths,
        named_root_dir,
        container_links_dir: PathBuf::from("/var/log/containers"),
        node_logs_dir: PathBuf::from("/var/log"),
        runtime_endpoint: Some(config.runtime_socket.clone()),
        image_endpoint: Some(config.image_socket.clone()),
        manifests: config
            .static_pod_path()
            .map(std::path::absolute)
            .transpose()
            .map_err(SettingsError::WorkingDirectory)?,
        kubeconfig: match config.flags.kubeconfig.as_str() {
            "" => None,
            path => Some(std::path::absolute(path).map_err(SettingsError::WorkingDirectory)?),
        },
        registry_configs: registry_configs(
            &config.paths.root_dir,
            &std::env::current_dir().map_err(SettingsError::WorkingDirectory)?,
            std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from),
        ),
        serving: config.serving_pair().absolute().map_err(SettingsError::WorkingDirectory)?,
        client_ca: match config.kubelet.authentication.x509.client_ca_file.as_str() {
            "" => None,
            path => Some(std::path::absolute(path).map_err(SettingsError::WorkingDirectory)?),
        },
        certificates: certificates(config).map_err(SettingsError::WorkingDirectory)?,
        cgroup_root: CgroupPath::parse(&config.cgroup_root)?,
        reserved: reserved::enforcements(&config.kubelet),
        cgroups_per_qos: config.kubelet.cgroups_per_qos(),
        cgroup_driver: Driver::parse(driver).ok_or_else(|| SettingsError::CgroupDriver(driver.clone()))?,
        cpu_load_balance_disable: config.kubelet.cpu_manager_policy == "static",
        shutdown_delay: Some(shutdown::total(&shutdown::grace_periods(&config.kubelet, &config.feature_gates())))
            .filter(|delay| !delay.is_zero()),
        protect_kernel_defaults: config.kubelet.protect_kernel_defaults,
        pods_api: config.feature_gates().enabled(Feature::PodsAPI),
        manage_kernel_tunables: true,
    })
}

fn certificates(config: &NodeConfig) -> std::io::Result<Certificates> {
    let bootstrap = config.bootstrap_kubeconfig().map(std::path::absolute).transpose()?;
    Ok(Certificates {
        // Without a name it is the working directory, as upstream.
        folder: std::env::current_dir()?.join(&config.flags.cert_dir),
        client: config.rotates_client() || bootstrap.is_some(),
        serving: config.asks_for_serving(),
        bootstrap,
    })
}

/// Where docker's credentials are looked for, each kind of file in all folders before the next kind (upstream
/// `pkg/credentialprovider/config.go`). Without a home its folders are the working directory's.
fn registry_configs(root_dir: &Path, working_dir: &Path, home: Option<PathBuf>) -> Vec<PathBuf> {
    let home = working_dir.join(home.unwrap_or_default());
    let json = [root_dir, working_dir, &home.join(".docker"), Path::new("/.docker")].map(|dir| dir.join("config.json"));
    let legacy = [root_dir, working_dir, &home, Path::new("/")].map(|dir| dir.join(".dockercfg"));
    json.into_iter().chain(legacy).collect()
}

/// Resolves links in the part of the path that exists.
fn resolve(path: &Path) -> std::io::Result<PathBuf> {
    match std::fs::canonicalize(path) {
        Ok(real) => Ok(real),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => Ok(resolve(parent)?.join(name)),
            _ => Err(err),
        },
        Err(err) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_directory_is_free_of_links() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("real")).unwrap();
        std::os::unix::fs::symlink("real", real.join("link")).unwrap();
        let mut config = NodeConfig::for_tests(&real);
        config.paths.root_dir = real.join("link/new/root");
        config.cgroup_root = "/x".into();
        let settings = from_config(&config).unwrap();
        assert_eq!(settings.paths.root_dir, real.join("real/new/root"));
        for (path, told) in [
            (
                "real/new/root/pods/u/volumes/kubernetes.io~csi/v/mount",
                "link/new/root/pods/u/volumes/kubernetes.io~csi/v/mount",
            ),
            ("link/new/root/pods/u", "link/new/root/pods/u"),
            ("real/new/root-2/pods", "real/new/root-2/pods"),
            ("real/logs", "real/logs"),
        ] {
            assert_eq!(settings.told(&real.join(path)), real.join(told), "{path}");
        }
        assert_eq!((settings.cgroup_root.as_str(), settings.cgroup_driver), ("/x", Driver::Cgroupfs));
        assert!(settings.cgroups_per_qos && settings.manifests.is_some());
        assert!(!settings.cpu_load_balance_disable);
        config.kubelet.cpu_manager_policy = "static".into();
        assert!(from_config(&config).unwrap().cpu_load_balance_disable);
        assert_eq!(settings.kubeconfig, None);
        config.flags.kubeconfig = "/etc/kubernetes/kubelet.conf".into();
        assert_eq!(from_config(&config).unwrap().kubeconfig, Some("/etc/kubernetes/kubelet.conf".into()));
        config.flags.cert_dir = PathBuf::new();
        assert_eq!(from_config(&config).unwrap().certificates.folder, std::env::current_dir().unwrap());
        config.kubelet.cgroup_driver = "openrc".into();
        assert!(from_config(&config).is_err());
    }

    #[test]
    fn registry_credentials_are_looked_for_in_upstreams_order() {
        let of = |home: Option<&str>| {
            let paths = registry_configs(Path::new("/r"), Path::new("/w"), home.map(PathBuf::from));
            paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            of(Some("/root")),
            "/r/config.json /w/config.json /root/.docker/config.json /.docker/config.json /r/.dockercfg /w/.dockercfg \
             /root/.dockercfg /.dockercfg"
        );
        assert!(of(None).contains(" /w/.docker/config.json "));
    }
}
