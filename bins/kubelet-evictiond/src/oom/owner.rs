//! Whose count a kill is: the control group that statistics are made of and that the victim was in. A container may have groups of
//! its own below its own; what is killed there, it has lost. Pure.

use super::kill::Scope;
use crate::cgroup;

/// The machine's group, which stands for what the machine as a whole ran out of, as upstream counts it.
const MACHINE: &str = "/";

/// Groups that have statistics.
#[derive(Debug, Clone, Default)]
pub struct Owners {
    /// The trees that all pods may be in.
    pub pods: Vec<String>,
    /// Cgroups of the system.
    pub system: Vec<String>,
}

impl Owners {
    /// `None`: nobody's of whom there are statistics.
    pub fn of(&self, scope: &Scope) -> Option<String> {
        let group = match scope {
            Scope::System => return Some(MACHINE.to_owned()),
            Scope::Group(group) => group.as_deref()?,
        };
        let pods = self.pods.iter().filter_map(|tree| in_pods(tree, group));
        let system = self.system.iter().filter(|own| below(own, group).is_some()).cloned();
        // The nearest of those that are around each other.
        pods.chain(system).max_by_key(String::len)
    }
}

/// What follows `tree` in the path of a group that is it or in it.
fn below<'a>(tree: &str, group: &'a str) -> Option<&'a str> {
    group.strip_prefix(tree.trim_end_matches('/')).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The container or sandbox, else the pod, the level, or the tree of all.
fn in_pods(tree: &str, group: &str) -> Option<String> {
    let level = cgroup::qos_levels(tree).into_iter().find(|level| below(level, group).is_some());
    let around = level.as_deref().unwrap_or(tree).trim_end_matches('/');
    let rest = below(around, group)?;
    // The pod's name, and that of one group in it.
    let pod = first(rest);
    let container = first(&rest[pod..]);
    Some(format!("{around}{}", &rest[..pod + container]))
}

/// Bytes of the first name of a path, with the slash before it.
fn first(path: &str) -> usize {
    path.strip_prefix('/').map_or(0, |name| 1 + name.find('/').unwrap_or(name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owners() -> Owners {
        Owners {
            pods: vec!["/n1/kubepods".into(), "/kubepods.slice".into()],
            system: vec!["/kubelet.slice".into(), "/system.slice/containerd.service".into()],
        }
    }

    fn of(group: &str) -> Option<String> {
        owners().of(&Scope::Group(Some(group.to_owned())))
    }

    #[test]
    fn of_both_drivers() {
        for (group, owner) in [
            ("/n1/kubepods/besteffort/podu/c", Some("/n1/kubepods/besteffort/podu/c")),
            ("/n1/kubepods/besteffort/podu/c/system.slice/x.service", Some("/n1/kubepods/besteffort/podu/c")),
            ("/n1/kubepods/podu/c", Some("/n1/kubepods/podu/c")),
            ("/n1/kubepods/podu/c/d", Some("/n1/kubepods/podu/c")),
            ("/n1/kubepods/burstable/podu", Some("/n1/kubepods/burstable/podu")),
            ("/n1/kubepods/burstable", Some("/n1/kubepods/burstable")),
            ("/n1/kubepods", Some("/n1/kubepods")),
            ("/n1/kubepods2/podu/c", None),
            ("/kubepods/besteffort/podu/c", None),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu.slice/cri-containerd-c.scope/x",
                Some("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu.slice/cri-containerd-c.scope"),
            ),
            (
                "/kubepods.slice/kubepods-podu.slice/cri-containerd-c.scope",
                Some("/kubepods.slice/kubepods-podu.slice/cri-containerd-c.scope"),
            ),
            ("/kubelet.slice/kubelet-statusd.service", Some("/kubelet.slice")),
            ("/system.slice/containerd.service", Some("/system.slice/containerd.service")),
            ("/system.slice/ssh.service", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(of(group).as_deref(), owner, "{group}");
        }
        assert_eq!(owners().of(&Scope::System).as_deref(), Some("/"));
        assert_eq!(owners().of(&Scope::Group(None)), None, "a group, and nobody knows which");
        let beside = Owners { pods: vec!["/kubepods".into()], system: vec!["/kubepods/podu/c/x".into()] };
        let found = beside.of(&Scope::Group(Some("/kubepods/podu/c/x/y".into())));
        assert_eq!(found.as_deref(), Some("/kubepods/podu/c/x"), "the nearest");
    }

    proptest! {
        #[test]
        fn an_owner_is_the_group_or_around_it(group in "(/(n1|kubepods|kubepods.slice|besteffort|podu|c|é)?){0,8}") {
            if let Some(owner) = of(&group) {
                prop_assert!(below(&owner, &group).is_some(), "{} {}", group, owner);
            }
        }
    }
}
