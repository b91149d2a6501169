//! Sockets: families, ports, addresses, and listeners of others.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

use rustix::net::{AddressFamily, Protocol, SocketType, netlink, socket};

use crate::plan::Plan;
use crate::report::Report;

const PATIENCE: Duration = Duration::from_secs(2);

fn make(family: AddressFamily, kind: SocketType, protocol: Option<Protocol>) -> io::Result<()> {
    Ok(socket(family, kind, protocol).map(|_| ())?)
}

pub fn all(report: &mut Report, plan: &Plan) {
    use AddressFamily as Family;
    let raw = SocketType::RAW;
    report.attempt("raw-socket", || make(Family::INET, raw, Some(rustix::net::ipproto::ICMP)));
    report.attempt("raw-socket-v6", || make(Family::INET6, raw, Some(rustix::net::ipproto::ICMPV6)));
    report.attempt("packet-socket", || make(Family::PACKET, raw, None));
    report.attempt("vsock-socket", || make(Family::from_raw(40), SocketType::STREAM, None));
    report.attempt("crypto-socket", || make(Family::from_raw(38), SocketType::SEQPACKET, None));
    report.attempt("xdp-socket", || make(Family::from_raw(44), raw, None));
    report.attempt("bluetooth-socket", || make(Family::from_raw(31), raw, None));
    // Protocol 0 is NETLINK_ROUTE.
    report.attempt("netlink-socket", || make(Family::NETLINK, raw, None));
    report.attempt("netlink-remove-an-interface", remove_interface);
    report.attempt("netlink-audit", || make(Family::NETLINK, raw, Some(netlink::AUDIT)));
    // Where a unit's address filter drops what is sent, nothing comes back.
    let discard = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
    report.attempt("tcp-connect", || match TcpStream::connect_timeout(&discard, PATIENCE) {
        // Nobody listens: the way was free.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        other => other.map(|_| ()),
    });
    report.attempt("udp-send", || UdpSocket::bind("127.0.0.1:0")?.send_to(b"x", "127.0.0.1:9").map(|_| ()));
    report.attempt("tcp-low-port", || TcpListener::bind("127.0.0.1:81").map(|_| ()));
    report.attempt("tcp-any-port", || TcpListener::bind("127.0.0.1:0").map(|_| ()));
    report.attempt("tcp-chosen-port", || TcpListener::bind("127.0.0.1:18181").map(|_| ()));
    report.attempt("abstract-socket", || {
        use std::os::linux::net::SocketAddrExt as _;
        let name = format!("bulkhead-intruder-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        std::os::unix::net::UnixListener::bind_addr(&address).map(|_| ())
    });
    report.attempt("runtime-socket", || UnixStream::connect(&plan.runtime_socket).map(|_| ()));
    report.attempt("socket-of-a-pod", || UnixStream::connect(&plan.pod_socket).map(|_| ()));
    report.attempt("system-bus", || connect_if_there("/run/dbus/system_bus_socket"));
    report.attempt("systemd-private-socket", || connect_if_there("/run/systemd/private"));
    report.attempt("notify-as-another", || {
        let socket = UnixDatagram::unbound()?;
        let others = ["kubelet-volnetd", "kubelet-syncd", "kubelet-evictiond", "kubelet-statusd"];
        let mut refused = None;
        let own = std::env::var("NOTIFY_SOCKET").unwrap_or_default();
        for other in others {
            let path = plan.run_dir.join(format!("{other}.notify"));
            if !own.ends_with(&format!("{other}.notify")) {
                match socket.send_to(b"STATUS=intruder", &path) {
                    Ok(_) => return Ok(()),
                    Err(error) => refused = Some(error),
                }
            }
        }
        refused.map_or(Ok(()), Err)
    });
}

/// Where it is not, nobody can be connected to.
fn connect_if_there(path: &str) -> io::Result<()> {
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(io::Error::from_raw_os_error(2)),
        other => other.map(|_| ()),
    }
}

/// RTM_DELLINK of an interface that there is not: refused to whoever may not, unknown to whoever may.
fn remove_interface() -> io::Result<()> {
    const RTM_DELLINK: u16 = 17;
    const REQUEST_AND_ACK: u16 = 1 | 4;
    const NO_SUCH: i32 = i32::MAX - 7;
    const ENODEV: i32 = 19;
    let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    let mut message = Vec::new();
    message.extend(32u32.to_ne_bytes());
    message.extend(RTM_DELLINK.to_ne_bytes());
    message.extend(REQUEST_AND_ACK.to_ne_bytes());
    message.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    message.extend([0; 4]);
    message.extend(NO_SUCH.to_ne_bytes());
    message.extend([0; 8]);
    rustix::net::send(&socket, &message, rustix::net::SendFlags::empty())?;
    let mut answer = [0u8; 256];
    let (length, _) = rustix::net::recv(&socket, &mut answer[..], rustix::net::RecvFlags::empty())?;
    // nlmsghdr, then the error as a negative number.
    let code = answer.get(16..20).filter(|_| length >= 20).and_then(|bytes| bytes.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) if code == -ENODEV => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}
