//! Which paths and ports Landlock leaves to whom.
//!
//! A rule stands for the folder that is there when the process starts, and for all below it. So rules name folders that
//! live as long as the machine runs, and never a file that is replaced by a rename (`/etc/resolv.conf`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use bulkhead_config::NodeConfig;
use bulkhead_sys::fence::Fence;
use bulkhead_sys::open;
use bulkhead_types::Process;

use crate::row::{Program, Row};

/// What a process without privileges reads of the machine: name resolution, certificates, time zones, the C library's
/// modules for these, what the kernel tells. Where systems keep what /etc links to stands last.
const MACHINE: [&str; 10] = [
    "/etc",
    "/proc",
    "/run",
    "/sys",
    "/usr",
    "/lib",
    "/lib64",
    "/var/lib/sss",
    "/nix/store",
    // SUSE's bundles of certificates.
    "/var/lib/ca-certificates",
];

/// Every library may want one of these.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];

/// Where clouds tell a machine what it is, and give whoever asks from it credentials of the machine: AWS and most others, ECS and
/// EKS for containers, Scaleway, AWS and EKS over IPv6, Google, OpenStack.
pub const METADATA_ADDRESSES: [IpAddr; 8] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 42, 42)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
];

/// Whether a process is fenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fencing {
    Fence {
        fence: Fence,
    },
    /// And why not.
    None(&'static str),
}

/// TCP ports of kubelet-statusd that are switched on. A port that validation let through fits.
pub fn statusd_ports(config: &NodeConfig) -> Vec<u16> {
    let kubelet = &config.kubelet;
    let port = |port: i32| u16::try_from(port).ok().filter(|port| *port != 0);
    let healthz = config.healthz_address().map(|address| address.port());
    let mut ports: Vec<u16> =
        [port(kubelet.port), port(kubelet.read_only_port), healthz].into_iter().flatten().collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

impl Row {
    /// Its fence. The configuration is needed for daemons alone. Looks at the file system to follow `resolvConf`.
    pub fn fencing(&self, config: Option<&NodeConfig>) -> Fencing {
        let (process, config) = match (self.program, config) {
            (Program::Launcher, _) => return Fencing::None("its children mount, and fences are inherited"),
            (Program::Iptables, _) => return Fencing::Fence { fence: iptables() },
            (Program::Disks, _) => return Fencing::Fence { fence: disks() },
            (Program::Flexvolume, _) => {
                return Fencing::None("a fenced process may not mount, and where drivers work nobody knows");
            }
            (Program::Journal, _) => return Fencing::Fence { fence: journal() },
            (Program::Daemon(_) | Program::Walker, None) => return Fencing::None("there is no configuration"),
            (Program::Walker, Some(config)) => return Fencing::Fence { fence: walker(config) },
            (Program::Daemon(process), Some(config)) => (process, config),
        };
        if process == Process::Volnetd {
            return Fencing::None("a fenced process may not mount, and hostPath reaches everywhere");
        }
        if self.may_run_programs(Some(config)) {
            return Fencing::None("programs that the operator named for credentials would inherit it");
        }
        let common = Fence { keep_signals: true, keep_abstract_sockets: true, ..Fence::default() };
        let fence = match process {
            // Of /sys the control groups alone: the rest of it is the machine's.
            Process::Evictiond => {
                let mut read_files = vec!["/proc".into()];
                read_files.extend(bulkhead_sys::cgroup::mount_points().unwrap_or_default());
                // How long thresholds have been met outlives it.
                Fence { read_files, read_write: vec![config.paths.private_state(process)], ..common }
            }
            Process::Syncd | Process::Statusd | Process::Volnetd => {
                let mut read_files: Vec<PathBuf> = MACHINE.map(PathBuf::from).into();
                let resolver = config.resolv_conf().filter(|_| process == Process::Syncd).and_then(folder_of);
                read_files.extend(resolver.filter(|folder| !read_files.iter().any(|known| folder.starts_with(known))));
                let tcp_bind = match process {
                    // 0 for the end of a stream's connection, which is bound to the runtime's own address.
                    Process::Statusd => [vec![0], statusd_ports(config)].concat(),
                    _ => Vec::new(),
                };
                Fence {
                    read_files,
                    read_write: vec![config.paths.private_state(process)],
                    devices: DEVICES.map(PathBuf::from).into(),
                    tcp_bind: Some(tcp_bind),
                    ..common
                }
            }
        };
        Fencing::Fence { fence }
    }
}

/// The folder that a file is really in: links are followed now, because rules are about folders and not about names.
fn folder_of(path: &Path) -> Option<PathBuf> {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if real.is_dir() { Some(real) } else { real.parent().map(Path::to_owned) }
}

/// Listing of the folders that are walked. Its capability opens every file, so that there is nothing else; without Landlock its
/// filter opens none (decision 93).
fn walker(config: &NodeConfig) -> Fence {
    Fence {
        read_dirs: vec![config.paths.pods(), config.paths.pod_logs_dir.clone()],
        keep_signals: true,
        keep_abstract_sockets: true,
        ..Fence::default()
    }
}

/// journalctl with its libraries, settings and journal. The journal's folder may be made later, so it is what is above it
/// that counts; whose files they are is the file system's to say.
fn journal() -> Fence {
    Fence {
        run_files: ["/usr", "/bin", "/lib", "/lib64", "/nix/store"].map(PathBuf::from).into(),
        read_files: ["/etc", "/proc", "/sys", "/run", "/var/log", "/var/lib/systemd"].map(PathBuf::from).into(),
        devices: DEVICES.map(PathBuf::from).into(),
        keep_signals: true,
        keep_abstract_sockets: true,
        ..Fence::default()
    }
}

/// The file that whoever changes tables with the legacy variant of iptables locks.
pub const XTABLES_LOCK: &str = "/run/xtables.lock";

/// iptables with its libraries, and what these look up. The process lives for seconds, so that files which are replaced by a
/// rename may be named. Nothing of /proc and /sys.
fn iptables() -> Fence {
    Fence {
        run_files: ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"].map(PathBuf::from).into(),
        read_files: ["/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/protocols", "/etc/services", XTABLES_LOCK]
            .map(PathBuf::from)
            .into(),
        devices: DEVICES.map(PathBuf::from).into(),
        tcp_bind: Some(Vec::new()),
        keep_signals: true,
        keep_abstract_sockets: true,
        ..Fence::default()
    }
}

/// Where SCSI hosts of iSCSI sessions are.
const SESSIONS: &str = "/sys/devices/platform";

/// iscsiadm's records, of Debian's and of newer ones.
const RECORDS: [&str; 2] = ["/etc/iscsi", "/var/lib/iscsi"];

/// Of iscsiadm's lock. kubelet-disks makes it before it has its fence, where records are; somebody else's there is no rule for.
const ISCSI_LOCK: &str = "/run/lock/iscsi";

/// What iscsiadm writes, its lock among it; nothing on a machine that has none.
fn of_iscsiadm() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = RECORDS.map(PathBuf::from).into_iter().filter(|folder| folder.is_dir()).collect();
    if !folders.is_empty() && open::is_own_folder(Path::new(ISCSI_LOCK)).is_ok_and(|own| own) {
        folders.push(ISCSI_LOCK.into());
    }
    folders
}

/// Folders of the kernel's SCSI hosts: below each are its `scan` and its devices with their `delete`. One that is there only later
/// is there for the next process. Those of iSCSI come with a login, and the disk is looked for by the process that had it made: a rule
/// about a folder that is not there yet there is none, so it is about the one that they are all in.
fn scsi_hosts() -> Vec<PathBuf> {
    let hosts = std::fs::read_dir("/sys/class/scsi_host").into_iter().flatten().flatten();
    let folders = hosts.filter_map(|host| std::fs::canonicalize(host.path().join("device")).ok());
    let mut folders: Vec<PathBuf> = folders.filter(|folder| folder.starts_with("/sys/devices")).collect();
    folders.retain(|folder| !folder.starts_with(SESSIONS));
    folders.push(SESSIONS.into());
    folders.sort();
    folders
}

/// Programs for disks with their libraries and settings, what they ask the kernel, and devices, which may have any name. A file
/// system that is mounted is let grow through its folder, which may be anywhere: folders are opened and listed, no file is.
fn disks() -> Fence {
    Fence {
        read_dirs: vec!["/".into()],
        run_files: ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"].map(PathBuf::from).into(),
        read_files: [
            "/etc/ld.so.cache",
            "/etc/mke2fs.conf",
            "/etc/e2fsck.conf",
            "/etc/blkid.conf",
            "/etc/fstab",
            "/proc",
            "/sys",
        ]
        .map(PathBuf::from)
        .into(),
        read_write: of_iscsiadm(),
        // Written, and nothing made: that is what the rule for devices says.
        devices: [vec!["/dev".into()], scsi_hosts()].concat(),
        tcp_bind: Some(Vec::new()),
        keep_signals: true,
        // multipathd has one.
        keep_abstract_sockets: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_config::credential_providers::CredentialProviders;

    fn fence(program: Program, config: &NodeConfig) -> Option<Fence> {
        match program.row().fencing(Some(config)) {
            Fencing::Fence { fence, .. } => Some(fence),
            Fencing::None(_) => None,
        }
    }

    #[test]
    fn who_has_a_fence() {
        let config = NodeConfig::for_tests(Path::new("/var/lib/kubelet"));
        let fenced: Vec<&str> =
            Program::ALL.into_iter().filter(|program| fence(*program, &config).is_some()).map(Program::name).collect();
        assert_eq!(
            fenced,
            [
                "kubelet-syncd",
                "kubelet-evictiond",
                "kubelet-statusd",
                "kubelet-walker",
                "kubelet-journal",
                "kubelet-iptables",
                "kubelet-disks"
            ]
        );
    }

    #[test]
    fn programs_for_credentials_are_not_fenced_in() {
        let plain = NodeConfig::for_tests(Path::new("/t"));
        let api = NodeConfig { kubeconfig_runs_program: true, ..plain.clone() };
        let bootstrap = NodeConfig { bootstrap_runs_program: true, ..plain.clone() };
        let images = NodeConfig {
            credential_providers: Some(CredentialProviders {
                bin_dir: "/p".into(),
                providers: Vec::new(),
                config_hash: None,
            }),
            ..plain
        };
        let (syncd, statusd) = (Program::Daemon(Process::Syncd), Program::Daemon(Process::Statusd));
        let table = [(&api, false, false), (&bootstrap, true, false), (&images, false, true)];
        for (config, syncd_fenced, statusd_fenced) in table {
            assert_eq!(fence(syncd, config).is_some(), syncd_fenced);
            assert_eq!(fence(statusd, config).is_some(), statusd_fenced);
            assert_eq!(syncd.row().may_run_programs(Some(config)), !syncd_fenced);
            assert_eq!(statusd.row().may_run_programs(Some(config)), !statusd_fenced);
        }
    }

    #[test]
    fn the_resolver_s_folder_is_where_the_file_really_is() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("real")).unwrap();
        std::fs::write(real.join("real/resolv"), "").unwrap();
        std::os::unix::fs::symlink("real/resolv", real.join("link")).unwrap();
        let mut config = NodeConfig::for_tests(Path::new("/t"));
        config.kubelet.resolv_conf = Some(real.join("link").display().to_string());
        let syncd = fence(Program::Daemon(Process::Syncd), &config).unwrap();
        assert_eq!(syncd.read_files.last(), Some(&real.join("real")));
        let statusd = fence(Program::Daemon(Process::Statusd), &config).unwrap();
        assert_eq!(statusd.read_files.len(), MACHINE.len(), "it does not read the pods' resolver");
        config.kubelet.resolv_conf = Some("/etc/somewhere/resolv.conf".into());
        assert_eq!(fence(Program::Daemon(Process::Syncd), &config).unwrap().read_files.len(), MACHINE.len());
    }

    #[test]
    fn ports_are_those_that_are_on() {
        let mut config = NodeConfig::for_tests(Path::new("/t"));
        config.kubelet.port = 10250;
        config.kubelet.read_only_port = 0;
        config.kubelet.healthz_port = Some(0);
        assert_eq!(statusd_ports(&config), [10250]);
        config.kubelet.read_only_port = 10255;
        config.kubelet.healthz_port = Some(10248);
        assert_eq!(statusd_ports(&config), [10248, 10250, 10255]);
        let statusd = fence(Program::Daemon(Process::Statusd), &config).unwrap();
        assert_eq!(statusd.tcp_bind, Some(vec![0, 10248, 10250, 10255]));
        assert_eq!(fence(Program::Daemon(Process::Syncd), &config).unwrap().tcp_bind, Some(Vec::new()));
    }
}
