//! Which addresses this machine can be reached at: what the kernel's routing and the resolver say, and which of it is taken
//! (upstream `nodestatus/setters.go`, NodeAddress; `kubelet_node_status.go`, validateNodeIP). Sends nothing but what the
//! resolver sends.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// The resolver may wait for servers that are gone; nobody else must.
pub const RESOLVE_DEADLINE: Duration = Duration::from_secs(3);
/// Names resolve to a few addresses.
const MAX_RESOLVED: usize = 32;
/// Addresses for documentation (RFC 5737, RFC 3849): no more specific route than the default one leads there.
const FAR_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const FAR_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// What was found out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Probed {
    /// Of the addresses in question, those that the machine has.
    pub local: BTreeSet<IpAddr>,
    /// Addresses of the node's name, as the resolver gave them.
    pub resolved: Vec<IpAddr>,
    /// The addresses from which the machine speaks by its default routes, if it has any.
    pub default_v4: Option<IpAddr>,
    pub default_v6: Option<IpAddr>,
}

/// Why an address cannot be the node's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIp {
    #[error("nodeIP can't be loopback address")]
    Loopback,
    #[error("nodeIP can't be a multicast address")]
    Multicast,
    #[error("nodeIP can't be a link-local unicast address")]
    LinkLocal,
    #[error("nodeIP can't be an all zeros address")]
    Unspecified,
    #[error("node IP: \"{0}\" not found in the host's network interfaces")]
    NotHere(IpAddr),
}

/// Whether an address can be the node's, the interfaces aside.
///
/// # Errors
/// It cannot, and why.
pub fn usable(ip: IpAddr) -> Result<(), InvalidIp> {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if ip.is_loopback() {
        Err(InvalidIp::Loopback)
    } else if ip.is_multicast() {
        Err(InvalidIp::Multicast)
    } else if link_local {
        Err(InvalidIp::LinkLocal)
    } else if ip.is_unspecified() {
        Err(InvalidIp::Unspecified)
    } else {
        Ok(())
    }
}

impl Probed {
    /// Whether an address can be the node's.
    ///
    /// # Errors
    /// It cannot, and why.
    pub fn check(&self, ip: IpAddr) -> Result<(), InvalidIp> {
        usable(ip)?;
        if self.local.contains(&ip) { Ok(()) } else { Err(InvalidIp::NotHere(ip)) }
    }

    /// The address of a node that was told none: its name's, then the default route's; the family of an unspecified
    /// `--node-ip` is preferred in each, and another one is better than nothing.
    pub fn detected(&self, node_ips: &[IpAddr]) -> Option<IpAddr> {
        let prefer_v4 = node_ips.first().is_none_or(IpAddr::is_ipv4);
        let usable: Vec<IpAddr> = self.resolved.iter().copied().filter(|ip| self.check(*ip).is_ok()).collect();
        let resolved = usable.iter().find(|ip| ip.is_ipv4() == prefer_v4).or(usable.first()).copied();
        let (first, second) =
            if prefer_v4 { (self.default_v4, self.default_v6) } else { (self.default_v6, self.default_v4) };
        resolved.or(first).or(second)
    }
}

/// Remembers the last good answer of the resolver: its outage must not change the node's address.
#[derive(Debug, Default)]
pub struct Prober {
    resolved: Vec<IpAddr>,
}

impl Prober {
    /// Finds out what there is to know; the name and the default routes are looked at only where there is something to
    /// `detect`.
    pub async fn probe(&mut self, node_ips: &[IpAddr], name: &str, detect: bool) -> Probed {
        self.look(node_ips, name, detect, RESOLVE_DEADLINE).await
    }

    async fn look(&mut self, node_ips: &[IpAddr], name: &str, detect: bool, patience: Duration) -> Probed {
        let mut probed = Probed::default();
        if detect {
            let lookup = tokio::time::timeout(patience, tokio::net::lookup_host((name, 0)));
            if let Ok(Ok(found)) = lookup.await {
                self.resolved = found.map(|address| address.ip()).take(MAX_RESOLVED).collect();
                self.resolved.dedup();
            }
            probed.resolved.clone_from(&self.resolved);
            probed.default_v4 = source_towards(FAR_V4).ok().filter(|ip| usable(*ip).is_ok());
            probed.default_v6 = source_towards(FAR_V6).ok().filter(|ip| usable(*ip).is_ok());
        }
        let asked = node_ips.iter().chain(&probed.resolved).copied();
        probed.local = asked.filter(|ip| is_local(*ip)).collect();
        probed
    }

    /// The addresses of a node of which the API server has none, primary first: those of `--node-ip`, else the one in its
    /// name, else the one that is detected; the resolver is given `patience`. Empty: there is none at this moment.
    pub async fn host_ips(&mut self, node_ips: &[IpAddr], name: &str, patience: Duration) -> Vec<IpAddr> {
        let given: Vec<IpAddr> = node_ips.iter().copied().filter(|ip| !ip.is_unspecified()).collect();
        if !given.is_empty() {
            return given;
        }
        match name.parse() {
            Ok(ip) => vec![ip],
            Err(_) => self.look(node_ips, name, true, patience).await.detected(node_ips).into_iter().collect(),
        }
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
        let probed = Prober::default().probe(&node_ips, "name.invalid", false).await;
        assert_eq!(probed.local, [IpAddr::V4(Ipv4Addr::LOCALHOST)].into());
        assert_eq!((probed.default_v4, probed.resolved.len()), (None, 0));
    }

    #[tokio::test]
    async fn an_outage_of_the_resolver_changes_nothing() {
        let mut prober = Prober { resolved: vec![Ipv4Addr::LOCALHOST.into()] };
        let probed = prober.probe(&[], "name.invalid", true).await;
        assert_eq!(probed.resolved, [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    }

    #[tokio::test]
    async fn what_is_given_is_taken() {
        let ips =
            async |node_ips: &[IpAddr], name: &str| Prober::default().host_ips(node_ips, name, RESOLVE_DEADLINE).await;
        assert_eq!(ips(&[FAR_V6, FAR_V4], "name.invalid").await, [FAR_V6, FAR_V4]);
        assert_eq!(ips(&[Ipv4Addr::UNSPECIFIED.into()], "192.0.2.1").await, [FAR_V4]);
    }
}
