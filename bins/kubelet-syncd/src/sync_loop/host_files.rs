//! Files of pods on the host, by kubelet-volnetd's verbs.

use std::net::IpAddr;
use std::path::PathBuf;

use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::ContainerId;

use kubelet_edges::volnetd::{Volnetd, VolnetdError};
use kubelet_model::pod::spec::PodIdentity;
use kubelet_runtime::runtime::container_config::{MountedVolume, VolumeRoot};
use kubelet_runtime::runtime::hosts::EtcHosts;
use kubelet_runtime::runtime::ports::{HostFiles, HostFilesError, LogDirectory};
use kubelet_runtime::runtime::sub_paths::SubPath;

/// Asks kubelet-volnetd for them.
#[derive(Debug, Clone)]
pub struct VolnetdHostFiles(pub Volnetd);

fn failed(error: VolnetdError) -> HostFilesError {
    HostFilesError { transient: error.is_transient(), message: error.to_string() }
}

fn log_id(pod: &PodIdentity) -> Option<api::PodLogId> {
    Some(api::PodLogId { namespace: pod.namespace.to_string(), name: pod.name.to_string(), uid: pod.uid.to_string() })
}

impl HostFiles for VolnetdHostFiles {
    async fn prepare_log_directory(
        &self,
        pod: &PodIdentity,
        container: Option<&str>,
    ) -> Result<LogDirectory, HostFilesError> {
        let container = container.unwrap_or_default().to_owned();
        let request = api::PrepareLogDirectoryRequest { pod: log_id(pod), container };
        let reply = self.0.prepare_log_directory(&CallContext::for_pod(&pod.uid), request).await.map_err(failed)?;
        Ok(LogDirectory { highest_index: reply.highest_index })
    }

    async fn write_etc_hosts(&self, pod: &PodIdentity, hosts: &EtcHosts) -> Result<PathBuf, HostFilesError> {
        let alias =
            |(ip, hostnames): &(String, Vec<String>)| api::HostAlias { ip: ip.clone(), hostnames: hostnames.clone() };
        let request = api::WriteEtcHostsRequest {
            pod_uid: pod.uid.to_string(),
            host_network: hosts.host_network,
            pod_ips: hosts.pod_ips.iter().map(IpAddr::to_string).collect(),
            hostname: hosts.hostname.clone(),
            domain: hosts.domain.clone(),
            aliases: hosts.aliases.iter().map(alias).collect(),
        };
        let reply = self.0.write_etc_hosts(&CallContext::for_pod(&pod.uid), request).await.map_err(failed)?;
        Ok(reply.host_path.into())
    }

    async fn create_termination_file(&self, pod: &PodIdentity, container: &str) -> Result<PathBuf, HostFilesError> {
        let request =
            api::CreateTerminationFileRequest { pod_uid: pod.uid.to_string(), container: container.to_owned() };
        let reply = self.0.create_termination_file(&CallContext::for_pod(&pod.uid), request).await.map_err(failed)?;
        Ok(reply.host_path.into())
    }

    async fn prepare_sub_path(
        &self,
        pod: &PodIdentity,
        container: &str,
        part: &SubPath,
        volume: &MountedVolume,
    ) -> Result<PathBuf, HostFilesError> {
        let root = match &volume.root {
            VolumeRoot::Plugin(name) => api::prepare_sub_path_request::Root::Plugin((*name).to_owned()),
            VolumeRoot::Flex { driver } => api::prepare_sub_path_request::Root::Plugin(driver.clone()),
            VolumeRoot::HostPath => {
                api::prepare_sub_path_request::Root::HostPath(volume.host_path.to_string_lossy().into_owned())
            }
            VolumeRoot::Image => {
                let message = format!("volume {:?} is an image: its parts are the runtime's to show", part.volume);
                return Err(HostFilesError { message, transient: false });
            }
        };
        let request = api::PrepareSubPathRequest {
            pod_uid: pod.uid.to_string(),
            volume: volume.folder.clone().unwrap_or_else(|| part.volume.clone()),
            container: container.to_owned(),
            index: u32::try_from(part.index).unwrap_or(u32::MAX),
            sub_path: part.path.clone(),
            root: Some(root),
            // Upstream makes what is missing for a read-only mount, too.
            read_only: false,
        };
        let reply = self.0.prepare_sub_path(&CallContext::for_pod(&pod.uid), request).await.map_err(failed)?;
        Ok(reply.host_path.into())
    }

    async fn read_env_file(&self, pod: &PodIdentity, volume: &str, path: &str) -> Result<Vec<u8>, HostFilesError> {
        let file = api::EnvFile { pod_uid: pod.uid.to_string(), volume: volume.to_owned(), path: path.to_owned() };
        self.0.read_env_file(file).await.map_err(failed)
    }

    async fn link_container_log(
        &self,
        pod: &PodIdentity,
        container: &str,
        restart_count: u32,
        id: &ContainerId,
    ) -> Result<(), HostFilesError> {
        let request = api::LinkContainerLogRequest {
            pod: log_id(pod),
            container: container.to_owned(),
            restart_count,
            container_id: id.to_string(),
        };
        self.0.link_container_log(&CallContext::for_pod(&pod.uid), request).await.map(|_| ()).map_err(failed)
    }

    async fn remove_container_log(
        &self,
        pod: &PodIdentity,
        container: &str,
        restart_count: u32,
        id: &ContainerId,
    ) -> Result<(), HostFilesError> {
        let guard = Some(self.0.guard("remove_container_log").map_err(failed)?);
        let request = api::RemoveContainerLogRequest {
            pod: log_id(pod),
            container: container.to_owned(),
            restart_count,
            container_id: id.to_string(),
            guard,
        };
        self.0.remove_container_log(&CallContext::for_pod(&pod.uid), request).await.map(|_| ()).map_err(failed)
    }
}
