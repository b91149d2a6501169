//! Counters of network interfaces: `/proc/<pid>/net/dev` shows those of that process's network to everybody, so a pod's
//! are read at its sandbox's process without entering anything. Which interfaces count follows cAdvisor.
//! `/proc/<pid>/net/sockstat` is the same for the sockets of that network: which process has which, the kernel shows to tracers alone.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bulkhead_ipc::evictiond::InterfaceStats;

use crate::kernel::Reader;

/// Most interfaces that are told of one network.
const INTERFACES_MAX: usize = 256;

/// Of the process with that id. `None`: it is gone, or the file is not as expected.
pub fn of_process(reader: &mut Reader, pid: u32) -> Option<Vec<InterfaceStats>> {
    reader.read(&Path::new("/proc").join(pid.to_string()).join("net/dev")).ok().and_then(parse)
}

/// Of the network that this process is in: the node's.
pub fn of_node(reader: &mut Reader) -> Option<Vec<InterfaceStats>> {
    reader.read(Path::new("/proc/self/net/dev")).ok().and_then(parse)
}

/// Tells networks apart for everybody, where `/proc/<pid>/ns/net` is shown to tracers alone: each has a file `net/dev` of its own.
/// `of`: "self" or the id of a process.
pub fn identity(of: &str) -> Option<u64> {
    std::fs::metadata(Path::new("/proc").join(of).join("net/dev")).ok().map(|file| file.ino())
}

/// Sockets of processes in the network of the process with that id; of all families, and none of the kernel's own.
pub fn sockets_of_process(reader: &mut Reader, pid: u32) -> Option<u64> {
    reader.read(&Path::new("/proc").join(pid.to_string()).join("net/sockstat")).ok().and_then(sockets)
}

/// Of the node's network.
pub fn sockets_of_node(reader: &mut Reader) -> Option<u64> {
    reader.read(Path::new("/proc/self/net/sockstat")).ok().and_then(sockets)
}

/// "sockets: used 27" is the first line.
fn sockets(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.lines().find_map(|line| line.strip_prefix("sockets: used "))?.trim().parse().ok()
}

/// The file's lines, without the loopback and the ends of pods' pairs. `None` when a line is not as expected: then no
/// other is believed, either.
pub fn parse(text: &[u8]) -> Option<Vec<InterfaceStats>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut interfaces = Vec::new();
    for line in text.lines().skip(2) {
        let (name, counters) = line.rsplit_once(':')?;
        let name = name.trim();
        let counters: Vec<u64> = counters.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let [rx_bytes, rx_packets, rx_errors, rx_dropped, _, _, _, _, tx_bytes, tx_packets, tx_errors, tx_dropped, ..] =
            counters[..]
        else {
            return None;
        };
        let lower = name.to_ascii_lowercase();
        if ["lo", "veth", "docker", "nerdctl"].iter().any(|ignored| lower.starts_with(ignored)) {
            continue;
        }
        if interfaces.len() == INTERFACES_MAX {
            break;
        }
        interfaces.push(InterfaceStats {
            name: name.to_owned(),
            rx_bytes,
            rx_packets,
            rx_errors,
            rx_dropped,
            tx_bytes,
            tx_packets,
            tx_errors,
            tx_dropped,
        });
    }
    Some(interfaces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: &str = "Inter-|   Receive                                                |  Transmit\n \
                        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n";

    #[test]
    fn interfaces_that_count() {
        let text = format!(
            "{HEAD}    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  eth0:1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
             vethab: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"
        );
        let interfaces = parse(text.as_bytes()).unwrap();
        assert_eq!(interfaces.len(), 1);
        let eth0 = &interfaces[0];
        assert_eq!((eth0.name.as_str(), eth0.rx_bytes, eth0.rx_packets), ("eth0", 1, 2));
        assert_eq!((eth0.rx_errors, eth0.rx_dropped, eth0.tx_bytes, eth0.tx_dropped), (3, 4, 9, 12));
        assert_eq!(parse(format!("{HEAD}eth0: 1 2\n").as_bytes()), None);
        assert_eq!(parse(HEAD.as_bytes()), Some(Vec::new()), "a network without interfaces");
    }

    #[test]
    fn this_machine_has_a_network() {
        let mut reader = Reader::default();
        assert_eq!(of_process(&mut reader, std::process::id()), of_node(&mut reader));
        assert_eq!(of_process(&mut reader, u32::MAX), None);
    }

    #[test]
    fn this_process_is_in_the_node_s_network() {
        assert!(identity("self").is_some());
        assert_eq!(identity(&std::process::id().to_string()), identity("self"));
        assert_eq!(identity(&u32::MAX.to_string()), None);
    }

    #[test]
    fn sockets_of_a_network() {
        let text = b"sockets: used 27\nTCP: inuse 3 orphan 0 tw 0 alloc 4 mem 0\nUDP: inuse 0 mem 0\n";
        assert_eq!(sockets(text), Some(27));
        for bad in [&b""[..], b"sockets: used -1\n", b"sockets: used\n", b"TCP: inuse 3\n", b"\xff"] {
            assert_eq!(sockets(bad), None, "{bad:?}");
        }
        let mut reader = Reader::default();
        assert_eq!(sockets_of_process(&mut reader, u32::MAX), None);
        let listeners: Vec<_> = (0..200).map(|_| std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap()).collect();
        assert!(sockets_of_process(&mut reader, std::process::id()).unwrap() >= 200);
        assert!(sockets_of_node(&mut reader).unwrap() >= 200);
        drop(listeners);
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in ".{0,300}") {
            let _ = parse(text.as_bytes());
            let _ = parse(format!("{HEAD}{text}").as_bytes());
        }
    }
}
