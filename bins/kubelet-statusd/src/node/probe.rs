//! What the machine and the resolver say about addresses. Asks the kernel's routing, sends nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use super::addresses::{self, Probed, Wanted};

/// The resolver may wait for servers that are gone; the node's status must not.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(3);
/// Names resolve to a few addresses.
const MAX_RESOLVED: usize = 32;
/// Addresses for documentation (RFC 5737, RFC 3849): no more specific route than the default one leads there.
const FAR_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const FAR_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// Remembers the last good answer of the resolver: its outage must not change the node's address.
#[derive(Debug, Default)]
pub struct Prober {
    resolved: Vec<IpAddr>,
}

impl Prober {
    /// Finds out what [`addresses::decide`] needs.
    pub async fn probe(&mut self, wanted: &Wanted<'_>, has_addresses: bool) -> Probed {
        let mut probed = Probed::default();
        if addresses::has_to_detect(wanted, has_addresses) {
            let lookup = tokio::time::timeout(RESOLVE_DEADLINE, tokio::net::lookup_host((wanted.name, 0)));
            if let Ok(Ok(found)) = lookup.await {
                self.resolved = found.map(|address| address.ip()).take(MAX_RESOLVED).collect();
                self.resolved.dedup();
            }
            probed.resolved.clone_from(&self.resolved);
            probed.default_v4 = source_towards(FAR_V4).ok().filter(|ip| addresses::usable(*ip).is_ok());
            probed.default_v6 = source_towards(FAR_V6).ok().filter(|ip| addresses::usable(*ip).is_ok());
        }
        let asked = wanted.node_ips.iter().chain(&probed.resolved).copied();
        probed.local = asked.filter(|ip| is_local(*ip)).collect();
        probed
    }
}

/// The source address of a packet to `target`. Connecting a UDP socket makes the kernel choose it and sends nothing.
fn source_towards(target: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(target, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// Whether an interface has this address: only then a packet to it comes from it.
fn is_local(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && source_towards(ip).is_ok_and(|source| source == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_known_and_strangers_are_not() {
        assert!(is_local(Ipv4Addr::LOCALHOST.into()));
        for stranger in [FAR_V4, FAR_V6, Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::BROADCAST.into()] {
            assert!(!is_local(stranger), "{stranger}");
        }
        if let Ok(ip) = source_towards(FAR_V4) {
            assert!(is_local(ip), "{ip} is how this machine reaches the world");
        }
    }

    #[tokio::test]
    async fn a_given_address_needs_no_resolver() {
        let node_ips = [IpAddr::V4(Ipv4Addr::LOCALHOST), FAR_V4];
        let wanted = Wanted { node_ips: &node_ips, name: "name.invalid", external_cloud_provider: false };
        let probed = Prober::default().probe(&wanted, false).await;
        assert_eq!(probed.local, [IpAddr::V4(Ipv4Addr::LOCALHOST)].into());
        assert_eq!((probed.default_v4, probed.resolved.len()), (None, 0));
    }

    #[tokio::test]
    async fn an_outage_of_the_resolver_changes_nothing() {
        let mut prober = Prober { resolved: vec![Ipv4Addr::LOCALHOST.into()] };
        let wanted = Wanted { node_ips: &[], name: "name.invalid", external_cloud_provider: false };
        assert_eq!(prober.probe(&wanted, false).await.resolved, [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    }
}
