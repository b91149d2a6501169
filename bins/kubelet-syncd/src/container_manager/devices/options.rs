//! What plugins are asked for a pod, and what its containers get of their answers.

use std::collections::BTreeSet;

use bulkhead_cri::v1;
use bulkhead_device_plugin::v1beta1::{DeviceSpec, Mount};
use kubelet_container_manager::devices::manager::{Call, pre_start_failed, stopped};
use kubelet_container_manager::devices::{Admission, Grants, Question};
use kubelet_container_manager::request::ContainerRequest;
use kubelet_edges::device_plugin::DevicePlugin;
use kubelet_model::v1::{Container, Pod};
use kubelet_runtime::runtime::run_options::RunContainerOptions;
use tokio::time::Instant;

use super::DevicePlugins;
use super::connections::words;

impl DevicePlugins {
    fn serving(&self, question: &Question) -> Result<DevicePlugin, String> {
        let plugins = self.plugins.lock();
        let connected = plugins.get(&question.resource).filter(|found| found.generation == question.generation);
        connected.map(|found| found.plugin.clone()).ok_or_else(|| stopped(&question.resource))
    }

    /// Asks plugins for all that a pod was given and has not been allocated.
    async fn ask(&self, uid: &str, order: &[ContainerRequest]) -> Result<(), String> {
        loop {
            let Some(question) = self.manager.lock().next_question(uid, order)? else { return Ok(()) };
            let plugin = self.serving(&question)?;
            let resource = &question.resource;
            match question.call.clone() {
                Call::GetPreferredAllocation { available, must_include, size } => {
                    let answer = plugin.preferred(available, must_include, size).await;
                    let preferred = answer.map_err(|status| {
                        format!("device plugin GetPreferredAllocation rpc failed with err: {}", words(&status))
                    })?;
                    let preferred = preferred.into_iter().collect();
                    self.manager.lock().preferred(uid, order, &question, &preferred)?;
                }
                Call::Allocate { devices } => {
                    let began = Instant::now();
                    let answer = plugin.allocate(devices).await;
                    self.metrics.allocated(resource, began.elapsed(), |name| self.is_registered(name));
                    let response = answer.map_err(|status| words(&status))?;
                    let response = response.ok_or("no containers return in allocation response &AllocateResponse{}")?;
                    self.manager.lock().allocated(uid, &question, prost::Message::encode_to_vec(&response));
                }
            }
        }
    }

    /// The same, with the checkpoint written before anybody relies on it.
    pub(super) async fn settle(&self, uid: &str, order: &[ContainerRequest]) -> Result<(), String> {
        let done = match self.ask(uid, order).await {
            Ok(()) => self.write_now().await,
            failed => failed,
        };
        if done.is_err() {
            self.manager.lock().drop_open(uid);
            self.changed.send_replace(());
        }
        done
    }

    pub(super) async fn options(&self, pod: &Pod, container: &Container) -> Result<RunContainerOptions, String> {
        if self.is_idle() {
            return Ok(RunContainerOptions::default());
        }
        let request = self.request(pod);
        let (uid, name) = (request.uid.as_str(), container.name.as_str());
        let lacks = self.manager.lock().lacks(&request, name);
        if let Some(wanted) = request.container(name).filter(|_| lacks) {
            tracing::info!(uid, name, "Needs to re-allocate device plugin resources for pod");
            // Nothing counts as running: it is about to be made.
            Admission::new(&mut *self.manager.lock(), Box::new(|_: &str| BTreeSet::<String>::new()))
                .take(uid, wanted, None)?;
            self.settle(uid, std::slice::from_ref(wanted)).await?;
        }
        let calls = self.manager.lock().pre_start(&request, name)?;
        for (resource, generation, devices) in calls {
            let plugin =
                self.plugins.lock().get(&resource).filter(|c| c.generation == generation).map(|c| c.plugin.clone());
            let plugin = plugin.ok_or_else(|| pre_start_failed(&stopped(&resource)))?;
            plugin.pre_start(devices).await.map_err(|status| pre_start_failed(&words(&status)))?;
        }
        let grants = self.manager.lock().grants(uid, name);
        Ok(in_cri(grants))
    }
}

/// In the runtime's words.
fn in_cri(grants: Grants) -> RunContainerOptions {
    let device = |d: DeviceSpec| v1::Device {
        container_path: d.container_path,
        host_path: d.host_path,
        permissions: d.permissions,
    };
    let mount = |m: Mount| v1::Mount {
        container_path: m.container_path,
        host_path: m.host_path,
        readonly: m.read_only,
        ..v1::Mount::default()
    };
    RunContainerOptions {
        devices: grants.devices.into_iter().map(device).collect(),
        mounts: grants.mounts.into_iter().map(mount).collect(),
        envs: grants.envs.into_iter().map(|(name, value)| (name, value.into_bytes())).collect(),
        annotations: grants.annotations,
        cdi_devices: grants.cdi_devices,
        ..RunContainerOptions::default()
    }
}
