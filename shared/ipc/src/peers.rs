//! Who is on the other end of a socket, and what it may call.
//!
//! A uid alone says little: a pod may run with a daemon's uid. So a peer is a process of ours only if its uid is that
//! process's, it lives in our own user namespace, and its cgroup is not below the pods' tree.

use std::sync::Arc;

use bulkhead_sys::peer::PeerIdentity;
use bulkhead_sys::vsock;
use bulkhead_types::Process;

/// Stands for "no user" (chown(2)'s -1), which no process can have.
const NO_UID: u32 = u32::MAX;

/// What a peer is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Syncd,
    Evictiond,
    Statusd,
    /// uid 0 outside the pods: kubelet-ctl, grpcurl, the launcher. Read-only methods.
    Operator,
    /// Whoever comes over vsock from this machine or from the one that it is a guest of: vsock has no users. May call what
    /// the operator may, and has a share of its own, so that it cannot lock the operator out.
    Vsock,
}

impl Role {
    pub const ALL: [Role; 5] = [Role::Syncd, Role::Evictiond, Role::Statusd, Role::Operator, Role::Vsock];

    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Syncd => "kubelet-syncd",
            Role::Evictiond => "kubelet-evictiond",
            Role::Statusd => "kubelet-statusd",
            Role::Operator => "operator",
            Role::Vsock => "vsock",
        }
    }

    /// Whom a table of methods has to name for this role.
    const fn in_tables(self) -> Role {
        match self {
            Role::Vsock => Role::Operator,
            role => role,
        }
    }

    /// The daemon behind the role.
    pub const fn process(self) -> Option<Process> {
        match self {
            Role::Syncd => Some(Process::Syncd),
            Role::Evictiond => Some(Process::Evictiond),
            Role::Statusd => Some(Process::Statusd),
            Role::Operator | Role::Vsock => None,
        }
    }
}

/// Which user is which daemon on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerUsers {
    pub syncd: u32,
    pub evictiond: u32,
    pub statusd: u32,
    /// Path of the pods' cgroup tree as `/proc/<pid>/cgroup` shows it, e.g. `/kubepods`; nothing below it is a peer.
    pub pods_cgroup: Box<str>,
    /// Set where pods have no cgroups of ours (`cgroupsPerQOS: false`): the runtime puts them anywhere, so that peers are known by
    /// where no pod is. These are the cgroups of this process, one for each hierarchy; see [`PeerUsers::classify`] for the others.
    pub no_pods: Option<Vec<String>>,
}

/// Where systemd puts users' sessions, itself and services, and where everything is without it; a runtime puts containers into
/// scopes or groups of their own there. The units of a node are in a slice of their own.
fn holds_no_container(cgroup: &str) -> bool {
    let service_of = |slice: &str| {
        let unit = cgroup.strip_prefix(slice).and_then(|rest| rest.strip_prefix('/'));
        cgroup == slice || unit.is_some_and(|unit| !unit.contains('/') && unit.ends_with(".service"))
    };
    let in_sessions =
        || cgroup.strip_prefix("/user.slice").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    ["/", "/init.scope"].contains(&cgroup)
        || in_sessions()
        || service_of("/system.slice")
        || service_of("/kubelet.slice")
}

/// A checked peer.
#[derive(Debug, Clone)]
pub struct Peer {
    pub uid: u32,
    pub pid: i32,
    /// The role, or why it has none.
    pub role: Result<Role, &'static str>,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.role {
            Ok(role) => write!(f, "{} (pid {})", role.as_str(), self.pid),
            Err(_) => write!(f, "uid {} (pid {})", self.uid, self.pid),
        }
    }
}

impl PeerUsers {
    /// Decides what a peer is: by its user, and by its cgroups, which must not be a pod's. Where pods may be in any cgroup
    /// (`no_pods`), each of its cgroups must be this process's own or one that holds no containers. Pure.
    pub fn classify(&self, identity: &PeerIdentity) -> Peer {
        let role = if !identity.same_user_namespace {
            Err("peer is in another user namespace")
        } else if identity.cgroups.iter().any(|cgroup| self.is_pod_cgroup(cgroup)) {
            Err("peer runs in a pod")
        } else if self.no_pods.as_ref().is_some_and(|ours| {
            identity.cgroups.iter().any(|cgroup| !ours.contains(cgroup) && !holds_no_container(cgroup))
        }) {
            Err("peer may run in a pod: with cgroupsPerQOS false its cgroup is none of a service or session")
        } else {
            match identity.uid {
                uid if uid == self.syncd => Ok(Role::Syncd),
                uid if uid == self.evictiond => Ok(Role::Evictiond),
                uid if uid == self.statusd => Ok(Role::Statusd),
                0 => Ok(Role::Operator),
                _ => Err("peer is no process of this node"),
            }
        };
        Peer { uid: identity.uid, pid: identity.pid, role }
    }

    /// True for the pods' tree of this node and for any other tree that looks like one.
    fn is_pod_cgroup(&self, cgroup: &str) -> bool {
        let below = |root: &str| {
            let root = root.trim_end_matches('/');
            !root.is_empty() && (cgroup == root || cgroup.strip_prefix(root).is_some_and(|rest| rest.starts_with('/')))
        };
        below(&self.pods_cgroup)
            || cgroup
                .split('/')
                .any(|part| part == "kubepods" || part == "kubepods.slice" || part.ends_with("-kubepods.slice"))
    }
}

/// Decides what a peer is that came over vsock from the machine `cid`. No other machine than the host reaches a guest
/// unless the host passes it on, and then it is none of ours. Pure.
pub fn of_vsock(cid: u32) -> Peer {
    let known = [vsock::HOST_CID, vsock::LOCAL_CID].contains(&cid);
    let role = if known { Ok(Role::Vsock) } else { Err("peer is another machine than this one and its host") };
    Peer { uid: NO_UID, pid: 0, role }
}

/// One row of a process's table of methods: who may call it.
#[derive(Debug, Clone, Copy)]
pub struct MethodRule {
    /// `/kubelet.volnetd.v1.Volumes/PreparePod`.
    pub method: &'static str,
    pub peers: &'static [Role],
}

/// A process's table. What is not in it may not be called; health, reflection and Process are open to every role.
#[derive(Debug, Clone)]
pub struct Policy {
    pub users: Arc<PeerUsers>,
    pub rules: &'static [MethodRule],
}

impl Policy {
    /// Whether this peer may call this method; the error is for the caller and says who may. Pure.
    pub fn check(&self, peer: &Peer, method: &str) -> Result<Role, tonic::Status> {
        let role = match peer.role {
            Ok(role) => role,
            Err(why) => return Err(tonic::Status::permission_denied(format!("uid {}: {why}", peer.uid))),
        };
        const OPEN: [&str; 4] = [
            "/grpc.health.v1.Health/",
            "/grpc.reflection.v1.",
            "/grpc.reflection.v1alpha.",
            "/kubelet.common.v1.Process/",
        ];
        if OPEN.iter().any(|prefix| method.starts_with(prefix)) {
            return Ok(role);
        }
        // What is taken is gone for the next one, so there is one taker. How much is logged is changed by whoever asked
        // for it outside, and that is checked by one process.
        const STATUSDS: [&str; 2] = ["/kubelet.common.v1.Traces/Take", "/kubelet.common.v1.Logging/SetVerbosity"];
        if STATUSDS.contains(&method) && role == Role::Statusd {
            return Ok(role);
        }
        match self.rules.iter().find(|rule| rule.method == method) {
            None => Err(tonic::Status::unimplemented(format!("{method} is not served here"))),
            Some(rule) if rule.peers.contains(&role.in_tables()) => Ok(role),
            Some(rule) => {
                let allowed: Vec<&str> = rule.peers.iter().map(|r| r.as_str()).collect();
                Err(tonic::Status::permission_denied(format!(
                    "{method} is for {}, not for {}",
                    allowed.join(" and "),
                    role.as_str()
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> PeerUsers {
        PeerUsers {
            syncd: 61001,
            evictiond: 61002,
            statusd: 61003,
            pods_cgroup: "/test/kubepods".into(),
            no_pods: None,
        }
    }

    fn identity(uid: u32, same_user_namespace: bool, cgroup: &str) -> PeerIdentity {
        PeerIdentity { uid, gid: uid, pid: 1, same_user_namespace, cgroups: vec![cgroup.into()] }
    }

    #[test]
    fn a_uid_is_not_enough() {
        let cases: [(u32, bool, &str, Option<Role>); 10] = [
            (61001, true, "/", Some(Role::Syncd)),
            (61002, true, "/system.slice/x", Some(Role::Evictiond)),
            (61003, true, "/", Some(Role::Statusd)),
            (0, true, "/", Some(Role::Operator)),
            (1000, true, "/", None),
            (61001, false, "/", None),
            (61001, true, "/test/kubepods/burstable/podx/c", None),
            (0, true, "/kubepods/besteffort/pody/c", None),
            (0, true, "/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope", None),
            (61001, true, "/test/kubepods-other", Some(Role::Syncd)),
        ];
        for (uid, same, cgroup, expected) in cases {
            assert_eq!(users().classify(&identity(uid, same, cgroup)).role.ok(), expected, "{uid} {same} {cgroup}");
        }
    }

    #[test]
    fn without_cgroups_of_pods_peers_are_where_no_container_is() {
        let users = PeerUsers { no_pods: Some(vec!["/".into(), "/docker/1".into()]), ..users() };
        for inside in [
            "/",
            "/docker/1",
            "/init.scope",
            "/user.slice",
            "/user.slice/user-0.slice/session-1.scope",
            "/system.slice",
            "/system.slice/ssh.service",
            "/kubelet.slice/kubelet-syncd.service",
        ] {
            assert_eq!(users.classify(&identity(0, true, inside)).role.ok(), Some(Role::Operator), "{inside}");
            assert_eq!(users.classify(&identity(61001, true, inside)).role.ok(), Some(Role::Syncd), "{inside}");
        }
        for outside in [
            "/4f3c",
            "/k8s.io/4f3c",
            "/docker/1/4f3c",
            "/docker/2",
            "/system.slice/cri-containerd-4f3c.scope",
            "/system.slice/containerd.service/4f3c",
            "/kubelet.slice/x.scope",
            "/user.slices/1",
            "/kubepods/pod1",
        ] {
            assert!(users.classify(&identity(0, true, outside)).role.is_err(), "{outside}");
            assert!(users.classify(&identity(61001, true, outside)).role.is_err(), "{outside}");
        }
        let mixed = PeerIdentity { cgroups: vec!["/".into(), "/4f3c".into()], ..identity(61001, true, "/") };
        assert!(users.classify(&mixed).role.is_err(), "each hierarchy counts");
    }

    #[test]
    fn methods_not_in_the_table_are_closed() {
        const RULES: &[MethodRule] = &[MethodRule { method: "/a.B/C", peers: &[Role::Syncd] }];
        let policy = Policy { users: Arc::new(users()), rules: RULES };
        let syncd = users().classify(&identity(61001, true, "/"));
        let statusd = users().classify(&identity(61003, true, "/"));
        assert_eq!(policy.check(&syncd, "/a.B/C").ok(), Some(Role::Syncd));
        assert_eq!(policy.check(&statusd, "/a.B/C").map_err(|s| s.code()).err(), Some(tonic::Code::PermissionDenied));
        assert_eq!(policy.check(&syncd, "/a.B/D").map_err(|s| s.code()).err(), Some(tonic::Code::Unimplemented));
        assert!(policy.check(&statusd, "/grpc.health.v1.Health/Check").is_ok());
        assert!(policy.check(&statusd, "/kubelet.common.v1.Logging/SetVerbosity").is_ok());
        assert!(policy.check(&syncd, "/kubelet.common.v1.Logging/SetVerbosity").is_err());
    }

    #[test]
    fn vsock_is_a_reader_from_two_machines() {
        const RULES: &[MethodRule] = &[
            MethodRule { method: "/a.B/Read", peers: &[Role::Syncd, Role::Operator] },
            MethodRule { method: "/a.B/Write", peers: &[Role::Syncd] },
        ];
        let policy = Policy { users: Arc::new(users()), rules: RULES };
        for cid in [vsock::LOCAL_CID, vsock::HOST_CID] {
            let peer = of_vsock(cid);
            assert_eq!(policy.check(&peer, "/a.B/Read").ok(), Some(Role::Vsock));
            for closed in ["/a.B/Write", "/kubelet.common.v1.Logging/SetVerbosity", "/kubelet.common.v1.Traces/Take"] {
                assert!(policy.check(&peer, closed).is_err(), "{closed}");
            }
        }
        for cid in [0, 3, 4242, u32::MAX] {
            assert!(of_vsock(cid).role.is_err(), "{cid}");
        }
    }
}
