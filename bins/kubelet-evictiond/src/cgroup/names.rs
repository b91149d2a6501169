//! Which cgroup is whose: names that the two cgroup drivers and the runtimes give.

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

/// Names that runtimes give a container's or a sandbox's cgroup inside its pod's.
pub fn container_candidates(pod: &str, container_id: &str) -> [String; 3] {
    [
        format!("{pod}/{container_id}"),
        format!("{pod}/cri-containerd-{container_id}.scope"),
        format!("{pod}/crio-{container_id}.scope"),
    ]
}

/// The two QoS levels that have a cgroup of their own below that of all pods.
pub fn qos_levels(pods: &str) -> [String; 2] {
    ["besteffort", "burstable"].map(|level| {
        match pods.rsplit('/').next().and_then(|name| name.strip_suffix(".slice")) {
            Some(stem) => format!("{pods}/{stem}-{level}.slice"),
            None => format!("{pods}/{level}"),
        }
    })
}

/// A cgroup as the configuration names it, or the one that a process's /proc/<pid>/cgroup says (v2's line, else that of
/// v1's memory). `None` for the root: it is the machine.
pub fn of_process(proc_cgroup: &str) -> Option<String> {
    let path_of = |wanted: fn(&str) -> bool| {
        proc_cgroup.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            wanted(controllers).then_some(path)
        })
    };
    let path = path_of(|controllers| controllers.split(',').any(|controller| controller == "memory"))
        .or_else(|| path_of(str::is_empty))?;
    (path != "/" && path.starts_with('/') && !path.split('/').any(|part| part == "..")).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn levels_of_both_drivers() {
        assert_eq!(qos_levels("/n1/kubepods"), ["/n1/kubepods/besteffort", "/n1/kubepods/burstable"]);
        assert_eq!(
            qos_levels("/kubepods.slice"),
            ["/kubepods.slice/kubepods-besteffort.slice", "/kubepods.slice/kubepods-burstable.slice"]
        );
    }

    #[test]
    fn a_process_is_in_one_cgroup() {
        let hybrid = "5:memory:/system.slice/kubelet.service\n3:pids:/x\n1:name=systemd:/y\n0::/z\n";
        assert_eq!(of_process(hybrid).as_deref(), Some("/system.slice/kubelet.service"));
        assert_eq!(of_process("0::/system.slice/a.service\n").as_deref(), Some("/system.slice/a.service"));
        assert_eq!(of_process("0::/\n"), None, "that is the machine");
        assert_eq!(of_process("0::/../up\n"), None);
        assert_eq!(of_process("nonsense"), None);
    }

    proptest! {
        #[test]
        fn no_name_goes_up(text in ".{0,120}") {
            let _ = of_process(&text);
            if let Some(path) = pod_path(&text) {
                prop_assert!(path.starts_with('/') || path.is_empty());
                prop_assert!(!path.split('/').any(|part| part == ".."));
            }
        }
    }
}
