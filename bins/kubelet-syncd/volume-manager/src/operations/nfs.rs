//! An export of an NFS server for a pod: its name is resolved here, kubelet-volnetd has the kernel mount it.

use std::net::IpAddr;
use std::time::Duration;

use bulkhead_ipc::volnetd as api;
use kubelet_edges::resolver;

use super::{Failure, Phase};

/// Of a resolver that does not answer nothing is waited for longer.
const RESOLVE: Duration = Duration::from_secs(15);
/// As many as kubelet-volnetd takes.
const ADDRESSES: usize = 8;

/// The request for an export; the server's addresses are in the order in which the resolver has them.
///
/// # Errors
/// The name stands for nothing, in mount.nfs's words.
pub async fn request(
    pod_uid: String,
    volume: String,
    server: &str,
    path: &str,
    options: Vec<String>,
    read_only: bool,
) -> Result<api::SetUpNfsRequest, Failure> {
    let addresses = addresses(server, &pod_uid)
        .await
        .map_err(|why| Failure::new(Phase::SetUp, format!("mount failed: Failed to resolve server {server}: {why}")))?;
    let addresses = addresses.into_iter().map(|address| address.to_string()).collect();
    let (server, path) = (server.to_owned(), path.to_owned());
    Ok(api::SetUpNfsRequest { pod_uid, volume, server, addresses, path, options, read_only })
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

    #[tokio::test]
    async fn literals_are_not_resolved_and_names_are() {
        for (server, address) in [("10.0.0.1", "10.0.0.1"), ("fd00::1", "fd00::1"), ("[fd00::1]", "fd00::1")] {
            let asked = request("u".into(), "v".into(), server, "/p", vec!["hard".into()], true).await.unwrap();
            assert_eq!((asked.server.as_str(), &asked.addresses[..]), (server, &[address.to_owned()][..]));
        }
        assert!(!addresses("localhost", "u").await.unwrap().is_empty());
        let refused = request("u".into(), "v".into(), "no such host", "/p", Vec::new(), false).await.unwrap_err();
        assert!(refused.text.starts_with("mount failed: Failed to resolve server no such host: "), "{}", refused.text);
        assert!(!refused.away, "the pod's event says it");
    }
}
