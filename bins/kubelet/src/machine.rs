//! Facts of this machine that a configuration is checked against before anything is started or created.

use std::io;
use std::path::Path;

use bulkhead_config::cpu_set::CpuSet;
use bulkhead_config::reserved::{self, Enforcement};
use bulkhead_config::validate::{Machine, UnfitCgroup};
use bulkhead_config::{KubeletConfiguration, path_text};
use bulkhead_sys::cgroup::{CgroupError, CgroupPath, Hierarchies, Version};
use bulkhead_types::chain;

/// A fact that the start depends on could not be had.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("failed to look at the cgroup hierarchies")]
    Cgroups(#[source] CgroupError),
    #[error("failed to read {0}")]
    Read(&'static str, #[source] io::Error),
}

/// Gathers the facts that this configuration is about.
pub fn facts(kubelet: &KubeletConfiguration, root_dir: &Path) -> Result<Machine, MachineError> {
    let hierarchies = Hierarchies::detect().map_err(MachineError::Cgroups)?;
    let root = path_text::clean(&format!("/{}", kubelet.cgroup_root));
    // Without cgroups for QoS classes it is not looked at. The runtime may use the other driver, and its word will count.
    let mut cgroup_root_exists = !kubelet.cgroups_per_qos();
    for systemd in [false, true] {
        let path = CgroupPath::parse(&reserved::path(&root, systemd)).map_err(MachineError::Cgroups)?;
        cgroup_root_exists |= hierarchies.exists(&path);
    }
    Ok(Machine {
        cgroup_v2: hierarchies.version() == Version::V2,
        // A kernel without swap has no such file.
        swaps: swaps(&std::fs::read_to_string("/proc/swaps").unwrap_or_default()),
        online_cpus: std::fs::read_to_string("/sys/devices/system/cpu/online")
            .ok()
            .and_then(|text| CpuSet::parse(text.trim()).ok()),
        memory_bytes: std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| memory_bytes(&text)),
        cgroup_root_exists,
        root_dir_bytes: file_system_bytes(root_dir),
        unfit_cgroups: unfit_cgroups(kubelet, &hierarchies),
        in_user_namespace: !is_initial(&std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default()),
    })
}

/// Cgroups of `enforceNodeAllocatable` that could not be written to.
fn unfit_cgroups(kubelet: &KubeletConfiguration, hierarchies: &Hierarchies) -> Vec<UnfitCgroup> {
    let configured = kubelet.cgroup_driver == "systemd";
    let unfit = |enforcement: &Enforcement| -> Option<String> {
        if enforcement.is_empty {
            return Some(enforcement.nothing_reserved(configured));
        }
        // The runtime may use the other driver, and its word will count.
        let why = check(enforcement, hierarchies, configured).err()?;
        check(enforcement, hierarchies, !configured).err().map(|_| chain(&why))
    };
    let all = reserved::enforcements(kubelet).into_iter();
    all.filter_map(|e| unfit(&e).map(|why| UnfitCgroup { part: e.part, cgroup: e.cgroup, why })).collect()
}

fn check(enforcement: &Enforcement, hierarchies: &Hierarchies, systemd: bool) -> Result<(), CgroupError> {
    let path = CgroupPath::parse(&reserved::path(&enforcement.cgroup, systemd))?;
    hierarchies.check_existing(&path, &enforcement.controllers(), systemd)
}

/// Size of the file system that holds the path, or will hold it.
fn file_system_bytes(path: &Path) -> Option<i64> {
    let stat = path.ancestors().find_map(|path| rustix::fs::statvfs(path).ok())?;
    i64::try_from(stat.f_blocks.checked_mul(stat.f_frsize)?).ok()
}

/// This boot's id; empty where there is none.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// A name for this start that none before it had; empty where the kernel makes none.
pub fn start_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default().trim().to_owned()
}

/// The kernel's host name.
pub fn hostname() -> Result<String, MachineError> {
    let path = "/proc/sys/kernel/hostname";
    std::fs::read_to_string(Path::new(path)).map_err(|error| MachineError::Read(path, error))
}

/// Names of the areas; a tmpfs that the file lists as such is none (upstream `pkg/kubelet/cm` does the same).
fn swaps(text: &str) -> Vec<String> {
    let mut areas = Vec::new();
    for line in text.lines().skip(1) {
        let mut fields = line.split_whitespace();
        if let (Some(name), Some(kind)) = (fields.next(), fields.next())
            && kind != "tmpfs"
        {
            areas.push(name.to_owned());
        }
    }
    areas
}

/// The line `MemTotal:  1024 kB`.
fn memory_bytes(meminfo: &str) -> Option<i64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: i64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The initial user namespace maps every id to itself; so does an empty answer of a kernel without them.
fn is_initial(uid_map: &str) -> bool {
    let fields: Vec<&str> = uid_map.split_whitespace().collect();
    fields.is_empty() || fields == ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_areas() {
        let head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(swaps(head).is_empty() && swaps("").is_empty());
        let text = format!("{head}/dev/sda2 partition 100 0 -2\n/x tmpfs 1 0 -3\n/swap\\040file file 1 0 -4\n");
        assert_eq!(swaps(&text), ["/dev/sda2", "/swap\\040file"]);
    }

    #[test]
    fn memory() {
        assert_eq!(memory_bytes("MemTotal:        2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        assert!(memory_bytes("MemFree: 1 kB\n").is_none() && memory_bytes("MemTotal: x kB").is_none());
        assert!(
            facts(&KubeletConfiguration::default(), Path::new("/"))
                .unwrap()
                .memory_bytes
                .is_some_and(|bytes| bytes > 1 << 20)
        );
    }

    #[test]
    fn user_namespaces() {
        assert!(is_initial("         0          0 4294967295\n") && is_initial(""));
        assert!(!is_initial("0 100000 65536\n"));
    }

    #[test]
    fn this_machine_has_facts() {
        let mut kubelet = KubeletConfiguration::default();
        let machine = facts(&kubelet, Path::new("/no/such/folder")).unwrap();
        assert!(machine.cgroup_root_exists && machine.online_cpus.is_some_and(|cpus| !cpus.is_empty()));
        assert!(machine.root_dir_bytes.is_some_and(|bytes| bytes > 0) && machine.unfit_cgroups.is_empty());
        kubelet.cgroup_root = "no-such-cgroup-of-kubelet-test".into();
        kubelet.enforce_node_allocatable = vec!["pods".into(), "system-reserved".into(), "kube-reserved".into()];
        kubelet.system_reserved_cgroup = "/no-such/cgroup".into();
        kubelet.system_reserved.insert("cpu".into(), "100m".into());
        let machine = facts(&kubelet, Path::new("/")).unwrap();
        assert!(!machine.cgroup_root_exists);
        kubelet.cgroups_per_qos = Some(false);
        assert!(facts(&kubelet, Path::new("/")).unwrap().cgroup_root_exists);
        let [missing, empty] = machine.unfit_cgroups.as_slice() else { panic!("{:?}", machine.unfit_cgroups) };
        assert!(missing.why.contains("cgroup [\"no-such\" \"cgroup\"]"), "{}", missing.why);
        assert_eq!((empty.part.key, empty.why.as_str()), ("kube-reserved", "[] cgroup is not configured properly"));
        assert!(!hostname().unwrap().trim().is_empty());
    }
}
