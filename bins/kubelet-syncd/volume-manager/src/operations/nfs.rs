//! An export of an NFS server for a pod: its name is resolved here, kubelet-volnetd has the kernel mount it.

use std::net::IpAddr;
use std::time::Duration;

use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;
use kubelet_edges::resolver;

use super::mount::Mount;
use super::{Failure, Phase};
use crate::spec::VolumeSpec;

/// Of a resolver that does not answer nothing is waited for longer.
const RESOLVE: Duration = Duration::from_secs(15);
/// As many as kubelet-volnetd takes.
const ADDRESSES: usize = 8;

impl Mount<'_> {
    pub(super) async fn set_up_nfs(&self, server: &str, path: &str) -> Result<(), Failure> {
        if self.spec.block {
            return Err(Failure::new(Phase::NewMounter, "no block volume plugin matched: kubernetes.io/nfs"));
        }
        let request = request(self.uid, &self.spec, server, path).await?;
        self.one_of_its_pods()?;
        let reply = self.context.ports.verbs.set_up_nfs(request).await;
        let reply = reply.map_err(|error| Failure::verb(Phase::SetUp, &error))?;
        self.mounted(reply.host_path);
        Ok(())
    }
}

/// The request for an export; the server's addresses are in the order in which the resolver has them.
///
/// # Errors
/// The name stands for nothing, in mount.nfs's words.
async fn request(uid: &PodUid, spec: &VolumeSpec, server: &str, path: &str) -> Result<api::SetUpNfsRequest, Failure> {
    let addresses = addresses(server, uid.as_str())
        .await
        .map_err(|why| Failure::new(Phase::SetUp, format!("mount failed: Failed to resolve server {server}: {why}")))?;
    Ok(api::SetUpNfsRequest {
        pod_uid: uid.to_string(),
        volume: spec.name.clone(),
        server: server.to_owned(),
        addresses: addresses.into_iter().map(|address| address.to_string()).collect(),
        path: path.to_owned(),
        options: spec.mount_options.clone(),
        read_only: spec.read_only,
    })
}

async fn addresses(server: &str, pod_uid: &str) -> Result<Vec<IpAddr>, String> {
    let bare = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(server);
    if let Ok(address) = bare.parse() {
        return Ok(vec![address]);
    }
    let found = tokio::time::timeout(RESOLVE, resolver::lookup(server, pod_uid)).await;
    let found = found.map_err(|_| "the resolver does not answer".to_owned())?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found? {
        if addresses.len() < ADDRESSES && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err("no address".to_owned()) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Source;

    async fn asked(server: &str) -> Result<api::SetUpNfsRequest, Failure> {
        let source = Source::Nfs { server: server.into(), path: "/p".into() };
        let spec = VolumeSpec::inline("v".into(), source);
        let spec = VolumeSpec { mount_options: vec!["hard".into()], read_only: true, ..spec };
        request(&PodUid::parse("u").unwrap(), &spec, server, "/p").await
    }

    #[tokio::test]
    async fn literals_are_not_resolved_and_names_are() {
        for (server, address) in [("10.0.0.1", "10.0.0.1"), ("fd00::1", "fd00::1"), ("[fd00::1]", "fd00::1")] {
            let expected = api::SetUpNfsRequest {
                pod_uid: "u".into(),
                volume: "v".into(),
                server: server.into(),
                addresses: vec![address.into()],
                path: "/p".into(),
                options: vec!["hard".into()],
                read_only: true,
            };
            assert_eq!(asked(server).await, Ok(expected));
        }
        assert!(!addresses("localhost", "u").await.unwrap().is_empty());
        let refused = asked("no such host").await.unwrap_err();
        assert!(refused.text.starts_with("mount failed: Failed to resolve server no such host: "), "{}", refused.text);
        assert!(!refused.away, "the pod's event says it");
    }
}
