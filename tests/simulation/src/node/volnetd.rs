//! Lives of kubelet-volnetd.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_config::NodeConfig;
use bulkhead_simulation_kernel as kernel;
use parking_lot::Mutex;

use super::{NOBODY, Node, Seat, driver_socket, listen, plugin_socket, workers_socket};
use crate::process::Process;
use crate::root_dir::RootDir;
use crate::{apiserver, volnetd};

/// After which kubelet-volnetd's unit starts it again (`systemd/kubelet-volnetd.service`).
const START_AGAIN: Duration = Duration::from_millis(250);

impl Node {
    pub(super) fn start_volnetd(&mut self) -> Result<()> {
        let listener = listen(&self.volnetd_socket(&self.config))?;
        let side_path = self.config.paths.broker_socket();
        let _ = std::fs::remove_file(&side_path);
        let side = bulkhead_sys::scm::listen(&side_path, 0o600).context("listening for the broker")?;
        let epoch = {
            let mut world = self.world.lock();
            world.volnetd_epoch += 1;
            world.watchers.clear();
            world.volumes.watchers.clear();
            world.claims.watchers.clear();
            world.volnetd_epoch
        };
        let settings = self.world.lock().root_dir.settings(&self.config)?;
        self.disk.next_journals(&self.world.lock().root_dir)?;
        let workers = RootDir::workers(workers_socket(&self.folder));
        let taken_up = self.world.lock().root_dir.take_up(settings, epoch, workers);
        let node = match taken_up {
            Ok(node) => node,
            Err(error) => {
                let mut world = self.world.lock();
                let text = world.root_dir.named(&format!("cannot start: {error:#}"));
                world.tell("kubelet-volnetd", text);
                self.volnetd.back = Some(kernel::now() + START_AGAIN);
                return Ok(());
            }
        };
        let model = volnetd::Model {
            world: self.world.clone(),
            machine: self.machine.handle().context("no machine")?,
            epoch,
            node,
            manifests: self.folder.join("manifests"),
            state: self.state.clone(),
            runtime_socket: self.config.runtime_socket.clone(),
            kubeconfig: self.folder.join("kubeconfig"),
            driver_socket: driver_socket(&self.folder),
            plugin_socket: plugin_socket(&self.folder),
            drivers_folder: self.folder.clone(),
            registrar: self.registrar.clone(),
        };
        if self.cluster.is_some() {
            std::fs::write(&model.kubeconfig, apiserver::kubeconfig()).context("writing the kubeconfig")?;
        }
        let mut others = Vec::new();
        for (config, state) in self.others() {
            let listener = listen(&self.volnetd_socket(config))?;
            let side_path = config.paths.broker_socket();
            let _ = std::fs::remove_file(&side_path);
            let side = bulkhead_sys::scm::listen(&side_path, 0o600).context("listening for the broker")?;
            others.push((volnetd::Model { state: state.clone(), ..model.clone() }, listener, side));
        }
        let users = Arc::new(bulkhead_ipc::peers::PeerUsers {
            syncd: self.config.users.statusd,
            evictiond: NOBODY,
            statusd: NOBODY,
            pods_cgroup: "/simulated".into(),
            no_pods: None,
        });
        let process = Process::start(async move || {
            let others =
                others.into_iter().map(|(model, listener, side)| volnetd::serve(model, listener, side, users.clone()));
            tokio::join!(volnetd::serve(model, listener, side, users.clone()), futures_util::future::join_all(others));
        })?;
        self.volnetd = Seat::taken(process);
        Ok(())
    }

    /// Who has sockets of its own to kubelet-volnetd, and a state folder there, beside kubelet-syncd.
    pub(super) fn others(&self) -> impl Iterator<Item = (&NodeConfig, &Arc<Mutex<PathBuf>>)> {
        let statusd = self.cluster.iter().map(|cluster| (&cluster.config, &cluster.state));
        statusd.chain(self.evictiond.iter().map(|evictiond| (&evictiond.config, &evictiond.state)))
    }
}
