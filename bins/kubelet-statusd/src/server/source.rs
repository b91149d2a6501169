//! Where a client comes from, as shares are counted: one address of IPv4, one network of 64 bits of IPv6. Who has one
//! address of IPv6 has as a rule all of its network, and would count as many otherwise.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source(IpAddr);

impl Source {
    /// All whose address is not known, together.
    pub const UNKNOWN: Source = Source(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
}

impl From<SocketAddr> for Source {
    fn from(address: SocketAddr) -> Self {
        // A socket that listens for both kinds shows IPv4 inside of IPv6.
        Source(match address.ip().to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address @ IpAddr::V4(_) => address,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let of = |address: &str| Source::from(SocketAddr::new(address.parse().unwrap(), 1));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_ne!(of("::1"), of("127.0.0.1"));
    }
}
