//! Usage of a control group, v1 or v2, from the kernel's files. Which numbers make "usage" and "working set" follows
//! cAdvisor (`container/libcontainer/handler.go`): working set = usage - inactive_file.

use std::path::{Path, PathBuf};

use crate::kernel::{self, Reader};

/// Where the hierarchies are mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchy {
    /// Controllers that are not mounted are `None` and their figures are left out.
    V1 {
        cpuacct: Option<PathBuf>,
        memory: Option<PathBuf>,
        pids: Option<PathBuf>,
    },
    V2 {
        root: PathBuf,
    },
}

/// What one cgroup uses, its children included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_nanoseconds: Option<u64>,
    pub memory: Option<Memory>,
    /// Tasks (threads count, as pids.max does).
    pub tasks: Option<u64>,
}

/// Memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    pub usage: u64,
    pub working_set: u64,
    pub rss: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    /// `None`: no limit.
    pub limit: Option<u64>,
}

/// Above this a v1 limit means "none" (upstream `pkg/kubelet/stats/helper.go`).
const UNLIMITED: u64 = 1 << 62;

impl Hierarchy {
    /// Finds the mounts in the text of /proc/self/mountinfo. Memory on v1 makes it v1, as hybrid systems have an empty
    /// v2 beside it.
    pub fn from_mountinfo(mountinfo: &str) -> Option<Self> {
        let (mut cpuacct, mut memory, mut pids, mut unified) = (None, None, None, None);
        for line in mountinfo.lines() {
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let Some(point) = before.split(' ').nth(4).map(unescape) else { continue };
            let mut fields = after.split(' ');
            match (fields.next(), fields.nth(1)) {
                (Some("cgroup2"), _) => unified = unified.or(Some(point)),
                (Some("cgroup"), Some(options)) => {
                    for option in options.split(',') {
                        let slot = match option {
                            "cpuacct" => &mut cpuacct,
                            "memory" => &mut memory,
                            "pids" => &mut pids,
                            _ => continue,
                        };
                        slot.get_or_insert_with(|| point.clone());
                    }
                }
                _ => {}
            }
        }
        match unified {
            Some(root) if memory.is_none() && cpuacct.is_none() => Some(Hierarchy::V2 { root }),
            _ if memory.is_some() || cpuacct.is_some() => Some(Hierarchy::V1 { cpuacct, memory, pids }),
            _ => None,
        }
    }

    /// Reads a cgroup by its path as /proc/<pid>/cgroup shows it ("/kubepods/pod…"). What cannot be read is absent.
    pub fn usage(&self, reader: &mut Reader, cgroup: &str) -> Usage {
        let cgroup = cgroup.trim_start_matches('/');
        match self {
            Hierarchy::V1 { cpuacct, memory, pids } => Usage {
                cpu_nanoseconds: cpuacct.as_deref().and_then(|at| reader.number(&file(at, cgroup, "cpuacct.usage"))),
                memory: memory.as_deref().and_then(|at| {
                    let usage = reader.number(&file(at, cgroup, "memory.usage_in_bytes"))?;
                    let limit = reader.number(&file(at, cgroup, "memory.limit_in_bytes"));
                    let stat = reader.read(&file(at, cgroup, "memory.stat")).unwrap_or_default();
                    Some(memory_v1(usage, limit, stat))
                }),
                tasks: pids.as_deref().and_then(|at| reader.number(&file(at, cgroup, "pids.current"))),
            },
            Hierarchy::V2 { root } => Usage {
                cpu_nanoseconds: reader.read(&file(root, cgroup, "cpu.stat")).ok().and_then(cpu_v2),
                memory: reader.number(&file(root, cgroup, "memory.current")).map(|usage| {
                    let limit = reader.number(&file(root, cgroup, "memory.max"));
                    let stat = reader.read(&file(root, cgroup, "memory.stat")).unwrap_or_default();
                    memory_v2(usage, limit, stat)
                }),
                tasks: reader.number(&file(root, cgroup, "pids.current")),
            },
        }
    }

    /// The whole machine: the root cgroup. v2 has no memory.current there, so used memory is what /proc/meminfo does
    /// not call free, as libcontainer does.
    pub fn machine(&self, reader: &mut Reader) -> Usage {
        let mut usage = self.usage(reader, "/");
        let meminfo = reader.read(Path::new("/proc/meminfo")).unwrap_or_default();
        let total = kernel::meminfo(meminfo, "MemTotal");
        let free = kernel::meminfo(meminfo, "MemFree");
        let inactive_file = kernel::meminfo(meminfo, "Inactive(file)");
        if usage.memory.is_none()
            && let (Some(total), Some(free)) = (total, free)
        {
            let mut memory = match self {
                Hierarchy::V2 { root } => memory_v2(
                    total.saturating_sub(free),
                    None,
                    reader.read(&root.join("memory.stat")).unwrap_or_default(),
                ),
                Hierarchy::V1 { .. } => Memory { usage: total.saturating_sub(free), ..Memory::default() },
            };
            if memory.rss.is_none() {
                memory.working_set = memory.usage.saturating_sub(inactive_file.unwrap_or(0));
            }
            usage.memory = Some(memory);
        }
        if let Some(memory) = &mut usage.memory {
            memory.limit = total;
        }
        usage
    }

    /// Whether this cgroup is there.
    pub fn exists(&self, cgroup: &str) -> bool {
        let at = match self {
            Hierarchy::V1 { cpuacct, memory, .. } => memory.as_deref().or(cpuacct.as_deref()),
            Hierarchy::V2 { root } => Some(root.as_path()),
        };
        at.is_some_and(|at| at.join(cgroup.trim_start_matches('/')).is_dir())
    }
}

fn file(mount: &Path, cgroup: &str, name: &str) -> PathBuf {
    let mut path = PathBuf::with_capacity(mount.as_os_str().len() + cgroup.len() + name.len() + 2);
    path.push(mount);
    path.push(cgroup);
    path.push(name);
    path
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &str) -> PathBuf {
    let mut text = field.to_owned();
    for (from, to) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        if text.contains(from) {
            text = text.replace(from, to);
        }
    }
    text.into()
}

/// `usage_usec` of cpu.stat in nanoseconds.
pub fn cpu_v2(stat: &[u8]) -> Option<u64> {
    kernel::keyed(stat, "usage_usec")?.checked_mul(1000)
}

/// The `total_` values count children in; page faults are the cgroup's own, as cAdvisor reports them.
pub fn memory_v1(usage: u64, limit: Option<u64>, stat: &[u8]) -> Memory {
    Memory {
        usage,
        working_set: usage.saturating_sub(kernel::keyed(stat, "total_inactive_file").unwrap_or(0)),
        rss: kernel::keyed(stat, "total_rss"),
        page_faults: kernel::keyed(stat, "pgfault"),
        major_page_faults: kernel::keyed(stat, "pgmajfault"),
        limit: limit.filter(|limit| *limit <= UNLIMITED),
    }
}

/// v2 counts children in everywhere.
pub fn memory_v2(usage: u64, limit: Option<u64>, stat: &[u8]) -> Memory {
    Memory {
        usage,
        working_set: usage.saturating_sub(kernel::keyed(stat, "inactive_file").unwrap_or(0)),
        rss: kernel::keyed(stat, "anon"),
        page_faults: kernel::keyed(stat, "pgfault"),
        major_page_faults: kernel::keyed(stat, "pgmajfault"),
        limit: limit.filter(|limit| *limit <= UNLIMITED),
    }
}

/// The path of a pod's cgroup: cgroupfs names it in full, systemd's driver by its slice alone, whose dashes are levels.
/// `None` for what is neither (an id with "..", an empty text).
pub fn pod_path(cgroup_parent: &str) -> Option<String> {
    if cgroup_parent.split('/').any(|part| part == "..") {
        return None;
    }
    if cgroup_parent.starts_with('/') {
        return Some(cgroup_parent.trim_end_matches('/').to_owned());
    }
    let name = cgroup_parent.strip_suffix(".slice").filter(|name| !name.is_empty() && !name.contains('/'))?;
    let mut path = String::new();
    for (at, _) in name.match_indices('-') {
        path.push('/');
        path.push_str(&name[..at]);
        path.push_str(".slice");
    }
    path.push('/');
    path.push_str(cgroup_parent);
    Some(path)
}

/// Names that runtimes give a container's cgroup inside its pod's.
pub fn container_candidates(pod: &str, container_id: &str) -> [String; 3] {
    [
        format!("{pod}/{container_id}"),
        format!("{pod}/cri-containerd-{container_id}.scope"),
        format!("{pod}/crio-{container_id}.scope"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HYBRID: &str = "\
25 1 0:22 / /sys rw - sysfs sysfs rw
30 25 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw
31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 25 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
";

    #[test]
    fn mounts_are_found() {
        assert_eq!(
            Hierarchy::from_mountinfo(HYBRID),
            Some(Hierarchy::V1 {
                cpuacct: Some("/sys/fs/cgroup/cpu,cpuacct".into()),
                memory: Some("/sys/fs/cgroup/memory".into()),
                pids: None
            })
        );
        assert_eq!(
            Hierarchy::from_mountinfo("30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"),
            Some(Hierarchy::V2 { root: "/sys/fs/cgroup".into() })
        );
        assert_eq!(Hierarchy::from_mountinfo("1 0 8:1 / / rw - ext4 /dev/vda rw\n"), None);
    }

    #[test]
    fn working_set_is_usage_without_inactive_file() {
        let stat = b"cache 5\nrss 1\npgfault 9\npgmajfault 2\ninactive_file 3\ntotal_rss 11\ntotal_inactive_file 40\n";
        let memory = memory_v1(100, Some(u64::MAX >> 1), stat);
        assert_eq!(
            memory,
            Memory {
                usage: 100,
                working_set: 60,
                rss: Some(11),
                page_faults: Some(9),
                major_page_faults: Some(2),
                limit: None
            }
        );
        assert_eq!(memory_v1(30, Some(64), stat).working_set, 0, "never below zero");
        assert_eq!(memory_v1(30, Some(64), stat).limit, Some(64));
        let v2 = memory_v2(100, None, b"anon 7\nfile 3\ninactive_file 10\npgfault 1\npgmajfault 0\n");
        assert_eq!((v2.working_set, v2.rss), (90, Some(7)));
        assert_eq!(cpu_v2(b"usage_usec 12\nuser_usec 7\n"), Some(12_000));
    }

    #[test]
    fn pod_paths_of_both_drivers() {
        for (given, expected) in [
            ("/kubepods/burstable/podx", Some("/kubepods/burstable/podx")),
            ("/n1/kubepods/podx/", Some("/n1/kubepods/podx")),
            (
                "kubepods-burstable-pod1_2.slice",
                Some("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"),
            ),
            ("kubepods.slice", Some("/kubepods.slice")),
            ("", None),
            ("kubepods", None),
            ("/kubepods/../x", None),
            (".slice", None),
        ] {
            assert_eq!(pod_path(given).as_deref(), expected, "{given}");
        }
    }

    #[test]
    fn this_machine_has_usage() {
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let hierarchy = Hierarchy::from_mountinfo(&mountinfo).unwrap();
        let usage = hierarchy.machine(&mut Reader::default());
        let memory = usage.memory.unwrap();
        assert!(usage.cpu_nanoseconds.is_some_and(|cpu| cpu > 0));
        assert!(memory.working_set > 0 && memory.working_set <= memory.limit.unwrap());
        assert_eq!(hierarchy.usage(&mut Reader::default(), "/no/such/cgroup"), Usage::default());
        assert!(!hierarchy.exists("/no/such/cgroup") && hierarchy.exists("/"));
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parsers_panic(text in ".{0,300}", stat in proptest::collection::vec(any::<u8>(), 0..300),
                                           usage in any::<u64>(), limit in any::<Option<u64>>()) {
            let _ = Hierarchy::from_mountinfo(&text);
            let _ = cpu_v2(&stat);
            prop_assert!(memory_v1(usage, limit, &stat).working_set <= usage);
            prop_assert!(memory_v2(usage, limit, &stat).working_set <= usage);
            if let Some(path) = pod_path(&text) {
                prop_assert!(path.starts_with('/') || path.is_empty());
                prop_assert!(!path.split('/').any(|part| part == ".."));
            }
        }
    }
}
