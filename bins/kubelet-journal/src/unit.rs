//! As a unit of systemd: who may ask, and what `kubelet` means there.

use std::os::fd::OwnedFd;

use bulkhead_ipc::common::JournalQuery;
use bulkhead_sys::peer::{self, PeerIdentity};

/// Where the journal has what `kubelet` says: upstream is one unit, this node agent is five.
const UNITS: [&str; 5] = ["kubelet", "kubelet-syncd", "kubelet-volnetd", "kubelet-evictiond", "kubelet-statusd"];

/// Refuses whoever is not kubelet-statusd's unit. `ours`: the cgroups of this process.
///
/// # Errors
/// Who it is instead, for the log.
pub fn may_ask(connection: &OwnedFd, ours: &[String]) -> Result<(), String> {
    match peer::identify(connection) {
        Ok(peer) if is_statusd(&peer, ours) => Ok(()),
        Ok(peer) => Err(format!("process {} of user {} may not ask", peer.pid, peer.uid)),
        Err(error) => Err(bulkhead_types::chain(&error)),
    }
}

/// The daemon's unit is the neighbour of our own, in every hierarchy in which both are units. A pod may have the daemon's
/// user, and the socket's group if it is given the folder, but never its cgroup.
fn is_statusd(peer: &PeerIdentity, ours: &[String]) -> bool {
    let neighbours = ours
        .iter()
        .filter_map(|path| Some(format!("{}kubelet-statusd.service", path.strip_suffix("kubelet-journal.service")?)));
    peer.same_user_namespace && neighbours.into_iter().any(|path| peer.cgroups.contains(&path))
}

/// Who asks for `kubelet` means the node agent.
pub fn with_all_units(mut query: JournalQuery) -> JournalQuery {
    if query.units.iter().any(|unit| unit == UNITS[0]) {
        for unit in UNITS {
            if !query.units.iter().any(|asked| asked == unit) {
                query.units.push(unit.to_owned());
            }
        }
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(units: &[&str]) -> JournalQuery {
        JournalQuery { units: units.iter().map(|unit| (*unit).to_owned()).collect(), ..JournalQuery::default() }
    }

    #[test]
    fn the_neighbours_unit_may_ask_and_no_other() {
        let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
        let ours = paths(&["/", "/kubelet.slice/kubelet-journal.service"]);
        let peer = |cgroup: &str, same_user_namespace| PeerIdentity {
            pid: 1,
            uid: 990,
            gid: 990,
            same_user_namespace,
            cgroups: paths(&["/", cgroup]),
        };
        assert!(is_statusd(&peer("/kubelet.slice/kubelet-statusd.service", true), &ours));
        assert!(!is_statusd(&peer("/kubelet.slice/kubelet-statusd.service", false), &ours));
        for other in [
            "/kubelet.slice/kubelet-syncd.service",
            "/kubepods.slice/kubelet-statusd.service",
            "/kubelet.slice/kubelet-statusd.service/below",
            "/",
        ] {
            assert!(!is_statusd(&peer(other, true), &ours), "{other}");
        }
        assert!(!is_statusd(&peer("/kubelet.slice/kubelet-statusd.service", true), &paths(&["/"])), "we are no unit");
    }

    #[test]
    fn the_node_agent_is_all_its_units() {
        assert_eq!(with_all_units(asks(&["containerd"])), asks(&["containerd"]));
        let all = with_all_units(asks(&["containerd", "kubelet", "kubelet-syncd"]));
        assert_eq!(all.units.len(), 1 + UNITS.len());
    }
}
