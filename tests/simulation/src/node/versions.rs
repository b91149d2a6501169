//! Processes of other versions: who stands between them, and who is replaced by what.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use bulkhead_config::NodeConfig;
use bulkhead_types::Process as Name;

use super::{Node, listen};
use crate::gateway::{self, Edge};
use crate::mutants::WORKSPACE;
use crate::schedule::{Deed, Program, Schedule};
use crate::versions::{Age, Record};
use crate::versions_schedule::VersionDeed;
use crate::world::Command;

/// Whether processes of other versions come up.
pub(super) fn come_up(schedule: &Schedule) -> bool {
    schedule.steps.iter().any(|step| matches!(step.deed, Deed::Version { .. }))
}

/// Where a process listens itself whose place somebody else has taken.
fn itself(socket: &Path) -> PathBuf {
    socket.with_extension("itself")
}

impl Node {
    /// Where kubelet-volnetd's model listens for one of its callers.
    pub(super) fn volnetd_socket(&self, config: &NodeConfig) -> PathBuf {
        let socket = config.paths.socket(Name::Volnetd);
        if self.is_mixed { itself(&socket) } else { socket }
    }

    /// Somebody stands between the processes from here on.
    pub(super) fn mix(&mut self) -> Result<()> {
        self.is_mixed = true;
        let record = Record::newest(Path::new(WORKSPACE))?;
        let record = Arc::new(record);
        let machine = self.machine.handle().context("no machine")?;
        let between = |socket: PathBuf, from: Program, to: Program| -> Result<()> {
            let behind = itself(&socket);
            if to != Program::Volnetd {
                // The name of another one's socket.
                std::fs::rename(&socket, &behind).context("renaming a socket")?;
            }
            let listener: UnixListener = listen(&socket)?;
            let edge = Edge { world: self.world.clone(), record: record.clone(), from, to, behind };
            machine.spawn(gateway::serve(edge, listener));
            Ok(())
        };
        between(self.config.paths.socket(Name::Volnetd), Program::Syncd, Program::Volnetd)?;
        if let Some(cluster) = &self.cluster {
            let paths = &cluster.config.paths;
            between(paths.socket(Name::Volnetd), Program::Statusd, Program::Volnetd)?;
            between(paths.socket(Name::Syncd), Program::Statusd, Program::Syncd)?;
            if let Some(evictiond) = &self.evictiond {
                between(paths.socket(Name::Evictiond), Program::Statusd, Program::Evictiond)?;
                // Behind it is the relay, so that kubelet-syncd sees who it is.
                between(evictiond.config.paths.socket(Name::Syncd), Program::Evictiond, Program::Syncd)?;
            }
        }
        self.world.lock().record = Some(record);
        Ok(())
    }

    pub(super) fn do_version_step(&mut self, deed: VersionDeed) {
        let VersionDeed { program, age, down } = deed;
        let command = match program {
            Program::Syncd => Command::KillSyncd { down },
            Program::Statusd => Command::KillStatusd { down },
            Program::Volnetd => Command::RestartVolnetd { down },
            Program::Evictiond => Command::KillEvictiond { down },
            _ => return,
        };
        // Of one that is away it is the next life that is of this version.
        self.world.lock().set_age(program, age);
        self.command(command);
    }

    /// What is left of other versions is replaced.
    pub(super) fn end_versions(&mut self) {
        let others: Vec<Program> = self.world.lock().ages.iter().map(|(program, _)| *program).collect();
        for program in others {
            self.do_version_step(VersionDeed { program, age: Age::Same, down: 100 });
        }
    }
}
