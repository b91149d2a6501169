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

/// Names that runtimes give a container's or a sandbox's cgroup inside its pod's. `pod`: None where pods have no cgroups
/// (`cgroupsPerQOS` is false): then it lies where the runtime puts what it is told no place for.
pub fn container_candidates(pod: Option<&str>, container_id: &str) -> impl Iterator<Item = String> {
    /// What stands before and behind the id.
    const IN_POD: [(&str, &str); 5] = [
        ("/", ""),
        ("/cri-containerd-", ".scope"),
        ("/crio-", ".scope"),
        // CRI-O with cgroupfs, and its sandboxes without a process (`drop_infra_ctr`) with either driver.
        ("/crio-", ""),
        // cri-dockerd with systemd.
        ("/docker-", ".scope"),
    ];
    /// containerd's namespace of CRI; CRI-O and Docker with either driver.
    const ALONE: [(&str, &str); 5] = [
        ("/k8s.io/", ""),
        ("/crio/crio-", ""),
        ("/system.slice/crio-", ".scope"),
        ("/docker/", ""),
        ("/system.slice/docker-", ".scope"),
    ];
    let names = if pod.is_some() { IN_POD } else { ALONE };
    let pod = pod.unwrap_or_default();
    names.into_iter().map(move |(before, behind)| format!("{pod}{before}{container_id}{behind}"))
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

/// The cgroup that a process's /proc/<pid>/cgroup names: v2's line, or that of v1's memory where the processor's is the
/// same. `None` for the root, which is the machine, and where the controllers do not agree: no one cgroup is it.
pub fn of_process(proc_cgroup: &str) -> Option<String> {
    let path_of = |wanted: fn(&str) -> bool| {
        proc_cgroup.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            wanted(controllers).then_some(path)
        })
    };
    let path = match (
        path_of(|list| list.split(',').any(|one| one == "memory")),
        path_of(|list| list.split(',').any(|one| one == "cpuacct")),
    ) {
        (Some(memory), Some(cpu)) if memory == cpu => memory,
        (None, None) => path_of(str::is_empty)?,
        _ => return None,
    };
    (path != "/" && path.starts_with('/') && !path.split('/').any(|part| part == "..")).then(|| path.to_owned())
}

/// The cgroup of the whole node agent, from that of this process: the one that `kubeletCgroups` names, if this process is in it or below
/// it; else the launcher's, which all its daemons share, or the slice around the units, each of which is a cgroup of its own.
/// Upstream makes the named group and moves the kubelet there (`pkg/kubelet/cm/container_manager_linux.go`, setupNode); here nobody does,
/// and what is elsewhere tells nothing of the agent.
pub fn of_agent(own: String, named: &str) -> String {
    let named = named.trim_end_matches('/');
    let below = named.starts_with('/').then(|| own.strip_prefix(named)).flatten();
    if below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        return named.to_owned();
    }
    match own.rsplit_once('/') {
        Some((slice, UNIT)) if slice.ends_with(".slice") && !slice.ends_with("/system.slice") => slice.to_owned(),
        _ => own,
    }
}

/// This daemon's unit.
const UNIT: &str = "kubelet-evictiond.service";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_agent() {
        for (own, named, agent) in [
            ("/kubelet.slice/kubelet-evictiond.service", "", "/kubelet.slice"),
            ("/system.slice/kubelet.service", "", "/system.slice/kubelet.service"),
            // An operator's drop-in put the units beside all others: what the slice uses is not the agent's.
            ("/system.slice/kubelet-evictiond.service", "", "/system.slice/kubelet-evictiond.service"),
            ("/lab/node", "", "/lab/node"),
            ("/kubelet-evictiond.service", "", "/kubelet-evictiond.service"),
            // `kubeletCgroups`, where nobody is in it, and where this process is.
            ("/runtime.slice/kubelet-1.service", "/kubelet.slice", "/runtime.slice/kubelet-1.service"),
            ("/kubelet.slice/kubelet-evictiond.service", "/kubelet", "/kubelet.slice"),
            ("/kubelet.slice/kubelet-evictiond.service", "/kubelet.slice/", "/kubelet.slice"),
            ("/node/agent/kubelet", "/node", "/node"),
            ("/node", "/node", "/node"),
            ("/node", "/", "/node"),
            ("/node", "node", "/node"),
        ] {
            assert_eq!(of_agent(own.to_owned(), named), agent, "{own} {named}");
        }
    }
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
    fn containers_without_a_cgroup_of_their_pod_s() {
        let in_pod: Vec<String> = container_candidates(Some("/p.slice"), "c0").collect();
        assert_eq!(in_pod[0], "/p.slice/c0");
        for name in ["/p.slice/crio-c0", "/p.slice/docker-c0.scope"] {
            assert!(in_pod.iter().any(|one| one == name), "{name}");
        }
        assert_eq!(container_candidates(None, "c0").next().as_deref(), Some("/k8s.io/c0"));
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
        let hybrid = "5:memory:/system.slice/k.service\n4:cpu,cpuacct:/system.slice/k.service\n3:pids:/x\n0::/z\n";
        assert_eq!(of_process(hybrid).as_deref(), Some("/system.slice/k.service"));
        assert_eq!(of_process("5:memory:/a\n4:cpu,cpuacct:/\n0::/a\n"), None, "half of it is the machine's");
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
