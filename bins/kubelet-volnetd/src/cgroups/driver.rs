//! Names of cgroups under the two drivers (upstream `pkg/kubelet/cm/cgroup_manager_linux.go`).
//!
//! | | cgroupfs | systemd |
//! |---|---|---|
//! | burstable pod | `/kubepods/burstable/pod<uid>` | `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid, - as _>.slice` |
//! | cgroupRoot `/a/b` | `/a/b/kubepods` | `/a.slice/a-b.slice/a-b-kubepods.slice` |

use bulkhead_sys::cgroup::{CgroupError, CgroupPath};
use bulkhead_types::{ContainerId, PodUid};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    Cgroupfs,
    Systemd,
}

impl Driver {
    /// As in the configuration's `cgroupDriver`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "cgroupfs" => Some(Driver::Cgroupfs),
            "systemd" => Some(Driver::Systemd),
            _ => None,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Driver::Cgroupfs => "cgroupfs",
            Driver::Systemd => "systemd",
        }
    }

    /// The cgroup of these levels below a root that is given in cgroupfs form.
    pub fn path(self, root: &CgroupPath, names: &[&str]) -> Result<CgroupPath, CgroupError> {
        let levels = root.as_str().split('/').filter(|c| !c.is_empty()).chain(names.iter().copied());
        let mut path = CgroupPath::root();
        let mut slice = String::new();
        for level in levels {
            match self {
                Driver::Cgroupfs => path = path.child(level)?,
                Driver::Systemd => {
                    if !slice.is_empty() {
                        slice.push('-');
                    }
                    slice.push_str(&level.trim_end_matches(".slice").replace('-', "_"));
                    path = path.child(&format!("{slice}.slice"))?;
                }
            }
        }
        Ok(path)
    }

    /// The pod whose cgroup is called `name` in `level`; None for anything else there.
    pub fn pod_of(self, level: &CgroupPath, name: &str) -> Option<PodUid> {
        match self {
            Driver::Cgroupfs => PodUid::parse(name.strip_prefix("pod")?).ok(),
            Driver::Systemd => {
                let parent = level.name().strip_suffix(".slice")?;
                let uid = name.strip_suffix(".slice")?.strip_prefix(parent)?.strip_prefix("-pod")?;
                PodUid::parse(&uid.replace('_', "-")).ok()
            }
        }
    }
}

/// What runtimes call a container's cgroup in its pod's: containerd, CRI-O and cri-dockerd, by either driver.
pub fn names_of_container(container: &ContainerId) -> [String; 5] {
    [
        container.to_string(),
        format!("crio-{container}"),
        format!("cri-containerd-{container}.scope"),
        format!("crio-{container}.scope"),
        format!("docker-{container}.scope"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_names_and_back() {
        let root = CgroupPath::root();
        let nested = CgroupPath::parse("/a/b").unwrap();
        let cases = [
            (Driver::Cgroupfs, &root, &["kubepods"][..], "/kubepods"),
            (Driver::Cgroupfs, &nested, &["kubepods", "burstable", "pod1-2"], "/a/b/kubepods/burstable/pod1-2"),
            (Driver::Systemd, &root, &["kubepods"], "/kubepods.slice"),
            (Driver::Systemd, &nested, &["kubepods"], "/a.slice/a-b.slice/a-b-kubepods.slice"),
            (
                Driver::Systemd,
                &root,
                &["kubepods", "burstable", "pod1-2"],
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice",
            ),
        ];
        for (driver, root, names, expected) in cases {
            assert_eq!(driver.path(root, names).unwrap().as_str(), expected);
        }
        for driver in [Driver::Cgroupfs, Driver::Systemd] {
            for levels in [&["kubepods"][..], &["kubepods", "besteffort"]] {
                let level = driver.path(&nested, levels).unwrap();
                let mut names = levels.to_vec();
                names.push("pod9b6d61c0-820b");
                let pod = driver.path(&nested, &names).unwrap();
                assert_eq!(driver.pod_of(&level, pod.name()).unwrap().as_str(), "9b6d61c0-820b");
                assert_eq!(driver.pod_of(&level, "burstable"), None);
                assert_eq!(driver.pod_of(&level, "kubepods-burstable.slice"), None);
            }
        }
    }

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_generated_uid_comes_back(uid in "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}", burstable in any::<bool>()) {
            for driver in [Driver::Cgroupfs, Driver::Systemd] {
                let levels: &[&str] = if burstable { &["kubepods", "burstable"] } else { &["kubepods"] };
                let level = driver.path(&CgroupPath::root(), levels).unwrap();
                let pod = format!("pod{uid}");
                let path = driver.path(&CgroupPath::root(), &[levels, &[pod.as_str()]].concat()).unwrap();
                prop_assert!(path.as_str().starts_with(level.as_str()));
                prop_assert_eq!(driver.pod_of(&level, path.name()).unwrap().to_string(), uid.clone());
            }
        }
    }
}
