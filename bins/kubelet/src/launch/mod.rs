//! From a checked configuration to four running daemons.
//!
//! Order: claim what no two instances may share ([`claims`], [`users`]), write the configuration, make the sockets
//! ([`sockets`]), start and supervise ([`supervise`]). Whatever needs root's powers is done before the first daemon
//! runs; afterwards the launcher keeps what restarting them takes and nothing else.

pub mod child;
pub mod claims;
mod disks;
mod flexvolume;
pub mod folder;
mod helper;
mod iptables;
mod journal;
mod kernel_log;
mod notify;
mod privileges;
mod programs;
mod restart;
mod sockets;
mod store;
mod supervise;
pub mod users;
mod walker;

use std::path::Path;

use bulkhead_config::{NodeConfig, Users};

pub use claims::ClaimError;
pub use supervise::LaunchError;

/// What this instance holds for its life: its root directory, its cgroup root, its users.
#[derive(Debug)]
pub struct Instance {
    claims: Vec<claims::Claim>,
    users: users::ClaimedUsers,
}

impl Instance {
    /// Claims root directory, cgroup root and users.
    ///
    /// # Errors
    /// Another instance holds one of them; the error names it. Nothing is held then.
    pub fn claim(root_dir: &Path, cgroup_root: &str, node_name: &str) -> Result<Self, ClaimError> {
        let holder = claims::Holder::me(root_dir, node_name);
        let registry = claims::Registry::open(Path::new("/run/kubelet.claims"))?;
        let mut claims = Vec::new();
        let mut claim_all = || {
            claims.push(registry.claim(claims::Subject::RootDir(root_dir), &holder)?);
            claims.push(registry.claim(claims::Subject::CgroupRoot(cgroup_root), &holder)?);
            users::claim(&registry, &holder, root_dir)
        };
        match claim_all() {
            Ok(users) => Ok(Instance { claims, users }),
            Err(error) => {
                claims.into_iter().for_each(claims::Claim::release);
                Err(error)
            }
        }
    }

    pub fn users(&self) -> Users {
        self.users.users
    }

    /// Gives the claims back, on a clean stop.
    fn release(self) {
        self.claims.into_iter().chain(self.users.claims).for_each(claims::Claim::release);
    }
}

/// Runs the node until SIGTERM or SIGINT; the daemons are stopped then, the pods are not.
///
/// # Errors
/// Sockets or configuration cannot be made, or a daemon cannot run at all.
pub fn run(config: &NodeConfig, instance: Instance) -> Result<(), LaunchError> {
    for warning in bulkhead_daemon::privileges::apply_to_launcher(config).map_err(LaunchError::Memory)? {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LaunchError::Runtime)?;
    let done = runtime.block_on(supervise::run(config));
    instance.release();
    done
}
