//! The machine's runtime and kernel as independent witnesses: what a test believes about its pods comes from there.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};

use super::Machine;
use crate::cri::{Cri, Fingerprint};
use crate::processes::{self, ProcessId};

impl Machine {
    /// A client of the machine's containerd.
    ///
    /// # Errors
    /// The machine does not run.
    pub fn cri(&self) -> Result<Cri> {
        Cri::new(&self.live_root()?.join("run/containerd/containerd.sock"))
    }

    /// Names, ids, start times and first processes of all running containers; processes by their numbers inside.
    ///
    /// # Errors
    /// The runtime did not answer.
    pub fn fingerprint(&self) -> Result<Vec<Fingerprint>> {
        let (cri, proc) = (self.cri()?, self.live_root()?.join("proc"));
        let mut found = Vec::new();
        for container in cri.containers()?.into_iter().filter(|container| container.running) {
            let pid = cri.pid(&container.id)?;
            found.push(Fingerprint {
                pod: container.pod,
                container: container.name,
                id: container.id,
                sandbox: container.sandbox,
                started_at: container.started_at,
                process: ProcessId { pid, start_ticks: processes::stat_in(&proc, pid)?.start_ticks },
            });
        }
        found.sort();
        Ok(found)
    }

    /// The mounts in the machine's own namespace at and below a folder, each with the kernel's number for it: one that was
    /// taken away and made again has another.
    ///
    /// # Errors
    /// The machine does not run.
    pub fn mounts_below(&self, folder: &str) -> Result<BTreeSet<String>> {
        let path = format!("/proc/{}/mountinfo", self.leader()?);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let prefix = format!("{folder}/");
        Ok(text
            .lines()
            .filter_map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                let (id, device, root, at) = (fields.first()?, fields.get(2)?, fields.get(3)?, fields.get(4)?);
                (*at == folder || at.starts_with(&prefix)).then(|| format!("{id} {device} {root} {at}"))
            })
            .collect())
    }

    /// Program and arguments of every process of the machine, by its number inside. Kernel threads and zombies have none.
    ///
    /// # Errors
    /// The machine does not run.
    pub fn processes(&self) -> Result<Vec<(i32, Vec<String>)>> {
        Ok(processes::all_in(&self.live_root()?.join("proc")))
    }
}
