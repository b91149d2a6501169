//! Whether the CPU, memory, topology and DRA managers can start: settings, machine and their state files must fit together. Asked here,
//! by the function that kubelet-syncd starts them by: that process would be restarted on and on, while healthz says ok.

use std::io;
use std::path::{Path, PathBuf};

use bulkhead_config::NodeConfig;
use kubelet_container_manager::StartError;
use kubelet_container_manager::checkpoint::cpu::InitialContainers;
use kubelet_container_manager::checkpoint::{CheckpointError, cpu, dra, memory};
use kubelet_container_manager::manager::Found;
use kubelet_container_manager::settings::{self, SYSTEM};

/// What kubelet-volnetd takes of one file, bytes.
const BYTES_MAX: u64 = 16 << 20;

/// Why they cannot; upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum ManagersError {
    #[error("failed to read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("failed to start ContainerManager: {0}")]
    Start(#[source] Box<StartError>),
    #[error(
        "create ResourceClaim cache: GetOrCreate() on checkpoint state: failed to get checkpoint {name}: {error}",
        name = dra::FILE
    )]
    Claims { error: CheckpointError },
}

/// `memory`: bytes that the machine has.
pub fn check(config: &NodeConfig, memory: u64) -> Result<(), ManagersError> {
    let root = &config.paths.root_dir;
    if let Some(file) = read(&root.join(dra::FILE))? {
        dra::read(&file).map_err(|error| ManagersError::Claims { error })?;
    }
    let found = Found { cpu: read(&root.join(cpu::FILE))?, memory: read(&root.join(memory::FILE))? };
    match settings::start(config, Path::new(SYSTEM), memory, &found, &InitialContainers::new()) {
        // Of the first version: which containers there are is known to the runtime, which kubelet-syncd asks.
        Ok(_) | Err(StartError::CpuFile { error: CheckpointError::UnknownContainer(_), .. }) => Ok(()),
        Err(error) => Err(ManagersError::Start(Box::new(error))),
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, ManagersError> {
    let failed = |error| ManagersError::Read(path.to_owned(), error);
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, BYTES_MAX), &mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(policy: &str, file: Option<&str>) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let mut config = NodeConfig::for_tests(folder.path());
        std::fs::create_dir_all(&config.paths.root_dir).unwrap();
        config.kubelet.cpu_manager_policy = policy.to_owned();
        config.kubelet.kube_reserved.insert("cpu".to_owned(), "500m".to_owned());
        if let Some(text) = file {
            std::fs::write(config.paths.root_dir.join(cpu::FILE), text).unwrap();
        }
        let text = check(&config, 1 << 30).err()?.to_string();
        Some(text.replace(&folder.path().display().to_string(), ""))
    }

    const NONE: &str = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;

    #[test]
    fn state_files() {
        assert_eq!(refusal("none", None), None);
        assert_eq!(refusal("none", Some(NONE)), None);
        assert_eq!(refusal("static", None), None);
        let changed = "failed to start ContainerManager: start cpu manager error: could not restore state from checkpoint: \
                       configured policy \"static\" differs from state checkpoint policy \"none\", please drain this node and \
                       delete the CPU manager checkpoint file \"/root/cpu_manager_state\" before restarting Kubelet";
        assert_eq!(refusal("static", Some(NONE)).as_deref(), Some(changed));
        let damaged = refusal("none", Some(&NONE.replace("1353318690", "7"))).unwrap();
        assert!(damaged.contains("checkpoint is corrupted"), "{damaged}");
        // Of the first version; the runtime knows the container.
        let first = r#"{"policyName":"none","defaultCpuSet":"","entries":{"id":"1"}}"#;
        assert_eq!(refusal("none", Some(first)), None);
    }

    #[test]
    fn claims_of_drivers() {
        let folder = tempfile::tempdir().unwrap();
        let config = NodeConfig::for_tests(folder.path());
        std::fs::create_dir_all(&config.paths.root_dir).unwrap();
        let refusal = |text: &str| {
            std::fs::write(config.paths.root_dir.join(dra::FILE), text).unwrap();
            check(&config, 1 << 30).err().map(|error| error.to_string())
        };
        assert_eq!(refusal(r#"{"Data":"{}","Checksum":2745614147}"#), None);
        let damaged = "create ResourceClaim cache: GetOrCreate() on checkpoint state: failed to get checkpoint dra_manager_state: ";
        assert_eq!(refusal(r#"{"Data":"{}","Checksum":7}"#), Some(format!("{damaged}checkpoint is corrupted")));
        assert_eq!(refusal(r#"{"Data":"#), Some(format!("{damaged}unexpected end of JSON input")));
    }

    #[test]
    fn a_file_that_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let config = NodeConfig::for_tests(folder.path());
        std::fs::create_dir_all(config.paths.root_dir.join(memory::FILE)).unwrap();
        assert!(matches!(check(&config, 1 << 30), Err(ManagersError::Read(..))));
    }
}
