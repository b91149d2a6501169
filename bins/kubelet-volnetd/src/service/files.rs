//! `kubelet.volnetd.v1.Files`.

use bulkhead_ipc::volnetd::files_server::Files;
use bulkhead_ipc::volnetd::*;
use tonic::{Request, Response, Status};

use super::{Verbs, text};
use crate::files::etc_hosts::{self, Hosts};
use crate::files::{logs, rotation, termination};
use crate::validate::{self, InvalidRequest};

#[tonic::async_trait]
impl Files for Verbs {
    async fn write_etc_hosts(&self, request: Request<WriteEtcHostsRequest>) -> Result<Response<HostFileReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_uid(&request.pod_uid)?;
        let hosts = hosts(request)?;
        let lock = self.node.lock_pod(&pod).await?;
        let path = self.run(Some(lock), move |node| etc_hosts::write(node, &pod, &hosts)).await?;
        Ok(Response::new(HostFileReply { host_path: self.told(&path) }))
    }

    async fn create_termination_file(
        &self,
        request: Request<CreateTerminationFileRequest>,
    ) -> Result<Response<HostFileReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_uid(&request.pod_uid)?;
        let container = validate::container(&request.container)?;
        let lock = self.node.lock_pod(&pod).await?;
        let path = self.run(Some(lock), move |node| termination::create(node, &pod, &container)).await?;
        Ok(Response::new(HostFileReply { host_path: self.told(&path) }))
    }

    async fn prepare_log_directory(
        &self,
        request: Request<PrepareLogDirectoryRequest>,
    ) -> Result<Response<PrepareLogDirectoryReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_log(request.pod.as_ref())?;
        let container =
            if request.container.is_empty() { None } else { Some(validate::container(&request.container)?) };
        let (path, highest_index) = self.run(None, move |node| logs::prepare(node, &pod, container.as_ref())).await?;
        Ok(Response::new(PrepareLogDirectoryReply { pod_log_dir: text(&path), highest_index }))
    }

    async fn link_container_log(
        &self,
        request: Request<LinkContainerLogRequest>,
    ) -> Result<Response<LinkContainerLogReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_log(request.pod.as_ref())?;
        let container = validate::container(&request.container)?;
        let id = validate::container_id(&request.container_id)?;
        let link = self.run(None, move |node| logs::link(node, &pod, &container, request.restart_count, &id)).await?;
        Ok(Response::new(LinkContainerLogReply { link: text(&link) }))
    }

    async fn remove_container_log(
        &self,
        request: Request<RemoveContainerLogRequest>,
    ) -> Result<Response<RemoveContainerLogReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_log(request.pod.as_ref())?;
        let container = validate::container(&request.container)?;
        let id = validate::container_id(&request.container_id)?;
        self.guard(request.guard.as_ref())?;
        self.run(None, move |node| logs::remove(node, &pod, &container, request.restart_count, &id)).await?;
        Ok(Response::new(RemoveContainerLogReply {}))
    }

    async fn prune_logs(&self, request: Request<PruneLogsRequest>) -> Result<Response<PruneLogsReply>, Status> {
        let request = request.into_inner();
        let known = validate::known_pods(&request.known_pod_uids)?;
        self.guard(request.guard.as_ref())?;
        let removed = self.run(None, move |node| logs::prune(node, &known)).await?;
        Ok(Response::new(PruneLogsReply { removed }))
    }

    async fn rotate_container_log(
        &self,
        request: Request<RotateContainerLogRequest>,
    ) -> Result<Response<RotateContainerLogReply>, Status> {
        let request = request.into_inner();
        let place = validate::log_place(request.pod.as_ref(), &request.container, request.restart_count)?;
        self.guard(request.guard.as_ref())?;
        let lock = self.node.lock_pod(&place.pod.uid).await?;
        let stamp = self.run(Some(lock), move |node| rotation::rotate(node, &place)).await?;
        Ok(Response::new(RotateContainerLogReply { stamp: stamp.to_string() }))
    }

    async fn restore_container_log(
        &self,
        request: Request<RestoreContainerLogRequest>,
    ) -> Result<Response<RestoreContainerLogReply>, Status> {
        let request = request.into_inner();
        let place = validate::log_place(request.pod.as_ref(), &request.container, request.restart_count)?;
        let stamp = validate::log_stamp(&request.stamp)?;
        self.guard(request.guard.as_ref())?;
        let lock = self.node.lock_pod(&place.pod.uid).await?;
        let restored = self.run(Some(lock), move |node| rotation::restore(node, &place, stamp)).await?;
        Ok(Response::new(RestoreContainerLogReply { restored }))
    }

    async fn remove_rotated_logs(
        &self,
        request: Request<RemoveRotatedLogsRequest>,
    ) -> Result<Response<RemoveRotatedLogsReply>, Status> {
        let request = request.into_inner();
        let place = validate::log_place(request.pod.as_ref(), &request.container, request.restart_count)?;
        let files = validate::removals(&request.files)?;
        self.guard(request.guard.as_ref())?;
        let lock = self.node.lock_pod(&place.pod.uid).await?;
        self.run(Some(lock), move |node| rotation::remove(node, &place, &files)).await?;
        Ok(Response::new(RemoveRotatedLogsReply {}))
    }
}

/// Any number of aliases that fits a message, each as it stands in the pod (upstream's hostsEntriesFromHostAliases), so long as it
/// is one word: what an address is in there, resolvers decide.
fn hosts(request: WriteEtcHostsRequest) -> Result<Hosts, InvalidRequest> {
    let optional_word =
        |field, text: &str| if text.is_empty() { Ok(String::new()) } else { validate::hosts_word(field, text) };
    let mut aliases = Vec::with_capacity(request.aliases.len());
    for alias in &request.aliases {
        let names: Result<Vec<_>, _> =
            alias.hostnames.iter().map(|name| validate::hosts_word("hostnames", name)).collect();
        aliases.push((validate::hosts_word("ip", &alias.ip)?, names?));
    }
    Ok(Hosts {
        host_network: request.host_network,
        pod_ips: request.pod_ips.iter().map(|ip| validate::address("pod_ips", ip)).collect::<Result<_, _>>()?,
        hostname: optional_word("hostname", &request.hostname)?,
        domain: optional_word("domain", &request.domain)?,
        aliases,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_words_as_they_stand_in_the_pod() {
        let ask = |ip: &str, count: usize| {
            let alias = HostAlias { ip: ip.to_owned(), hostnames: vec!["a".into(), "b".into()] };
            hosts(WriteEtcHostsRequest { aliases: vec![alias; count], ..Default::default() }).map(|hosts| hosts.aliases)
        };
        let names = || vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(ask("010.000.000.001", 1).unwrap(), [("010.000.000.001".to_owned(), names())]);
        assert_eq!(ask("fd00::1", 2000).unwrap().len(), 2000);
        for bad in ["", "10.0.0.1 evil", "10.0.0.1\n10.0.0.2", "10.0.0.1\t", "#", "10.0.0.1\0"] {
            assert!(ask(bad, 1).is_err(), "{bad:?}");
        }
    }
}
