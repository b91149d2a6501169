//! What is asked of logind: how long a shutdown may be delayed, the delay itself, and whether a shutdown is being prepared
//! (org.freedesktop.login1(5)). Every word of a request stands here.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::bus::{Bus, BusError};
use super::wire::{Body, Call, Message};

const SERVICE: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SIGNAL: &str = "PrepareForShutdown";
/// By path, interface and member, and not by who sends it, as upstream's: its tests send the signal themselves.
const RULE: &str = "type='signal',path='/org/freedesktop/login1',interface='org.freedesktop.login1.Manager',\
                    member='PrepareForShutdown'";
/// What, who, why, how: as upstream's, and as `systemd-inhibit --list` shows them.
const INHIBIT: [&str; 4] = ["shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay"];

/// How long a shutdown waits at most (`InhibitDelayMaxUSec`).
///
/// # Errors
/// See [`BusError`].
pub async fn longest_delay(bus: &mut Bus) -> Result<Duration, BusError> {
    let reply = property(bus, "InhibitDelayMaxUSec").await?;
    Ok(Duration::from_micros(reply.variant_number().ok_or(BusError::Malformed)?))
}

/// Whether a shutdown has begun (`PreparingForShutdown`).
///
/// # Errors
/// See [`BusError`].
pub async fn is_preparing(bus: &mut Bus) -> Result<bool, BusError> {
    property(bus, "PreparingForShutdown").await?.variant_truth().ok_or(BusError::Malformed)
}

async fn property(bus: &mut Bus, name: &str) -> Result<Message, BusError> {
    let mut body = Body::default();
    body.string(MANAGER);
    body.string(name);
    let interface = "org.freedesktop.DBus.Properties";
    let call = Call { destination: SERVICE, path: PATH, interface, member: "Get", signature: "ss", body };
    Ok(bus.call(call).await?.message)
}

/// Takes the lock: a shutdown waits until the descriptor, and every copy of it, is closed. The connection must take descriptors.
///
/// # Errors
/// See [`BusError`]; logind refuses while a shutdown is being prepared.
pub async fn inhibit_shutdown(bus: &mut Bus) -> Result<OwnedFd, BusError> {
    let mut body = Body::default();
    INHIBIT.iter().for_each(|text| body.string(text));
    let call =
        Call { destination: SERVICE, path: PATH, interface: MANAGER, member: "Inhibit", signature: "ssss", body };
    bus.call(call).await?.descriptors.pop().ok_or(BusError::Malformed)
}

/// Has the bus pass on that a shutdown begins, or is called off.
///
/// # Errors
/// See [`BusError`].
pub async fn follow_shutdown(bus: &mut Bus) -> Result<(), BusError> {
    bus.follow(RULE).await
}

/// Waits for the next signal of [`follow_shutdown`]: true when a shutdown begins. Nothing is lost when the wait is given up.
///
/// # Errors
/// See [`BusError`].
pub async fn next_shutdown(bus: &mut Bus) -> Result<bool, BusError> {
    loop {
        if let Some(begins) = begins(&bus.signal().await?) {
            return Ok(begins);
        }
    }
}

/// Others may send us signals that nobody asked for.
fn begins(signal: &Message) -> Option<bool> {
    let named = |text: &Option<String>, name| text.as_deref() == Some(name);
    let ours = named(&signal.path, PATH) && named(&signal.interface, MANAGER) && named(&signal.member, SIGNAL);
    signal.truth().filter(|_| ours)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::dbus::wire::tests::{preparing, sent};
    use crate::dbus::wire::{self, HEAD};
    use crate::scm;

    /// Reads one call and gives its serial and its member.
    fn called(stream: &mut impl std::io::Read) -> (u32, String) {
        let mut bytes = vec![0; HEAD];
        stream.read_exact(&mut bytes).unwrap();
        bytes.resize(wire::length(&bytes).unwrap(), 0);
        stream.read_exact(&mut bytes[HEAD..]).unwrap();
        let serial = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        (serial, wire::parse(&bytes).unwrap().member.unwrap())
    }

    fn reply(kind: u8, serial: u32, signature: &'static str, descriptors: u32, body: &Body) -> Vec<u8> {
        let fields = |fields: &mut Body| {
            fields.field(5, "u", |b| b.u32(serial));
            if kind == 3 {
                fields.field(4, "s", |b| b.string("org.freedesktop.login1.OperationInProgress"));
            }
            fields.field(8, "g", |b| b.signature(signature));
            fields.field(9, "u", |b| b.u32(descriptors));
        };
        sent(kind, fields, body)
    }

    fn property_of(name: &str, value: u64) -> Body {
        let mut body = Body::default();
        if name == "t" {
            body.signature("t");
            body.u64(value);
        } else {
            body.signature("b");
            body.u32(u32::try_from(value).unwrap());
        }
        body
    }

    /// Plays the bus and logind, in the order of the test below.
    fn play(stream: UnixStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        let mut out = stream;
        let mut line = String::new();
        for answer in ["OK 0123\r\n", "AGREE_UNIX_FD\r\n", ""] {
            line.clear();
            lines.read_line(&mut line).unwrap();
            out.write_all(answer.as_bytes()).unwrap();
        }
        assert_eq!(line, "BEGIN\r\n");
        let empty = Body::default();
        let (serial, member) = called(&mut lines);
        assert_eq!(member, "Hello");
        out.write_all(&reply(2, serial, "", 0, &empty)).unwrap();
        let (serial, member) = called(&mut lines);
        assert_eq!(member, "AddMatch");
        // The signal is before the reply, and in two pieces.
        let early = preparing(true);
        out.write_all(&early[..20]).unwrap();
        out.write_all(&[&early[20..], &reply(2, serial, "", 0, &empty)].concat()).unwrap();
        let (serial, member) = called(&mut lines);
        assert_eq!(member, "Get");
        out.write_all(&reply(2, serial, "v", 0, &property_of("t", 5_000_000))).unwrap();
        let (serial, _) = called(&mut lines);
        out.write_all(&reply(2, serial, "v", 0, &property_of("b", 1))).unwrap();
        let (serial, member) = called(&mut lines);
        assert_eq!(member, "Inhibit");
        let mut index = Body::default();
        index.u32(0);
        let lock = UnixStream::pair().unwrap().0;
        scm::send(&out, &reply(2, serial, "h", 1, &index), &[lock.as_fd()]).unwrap();
        let (serial, _) = called(&mut lines);
        let mut why = Body::default();
        why.string("already running");
        out.write_all(&reply(3, serial, "s", 0, &why)).unwrap();
        out.write_all(&preparing(false)).unwrap();
        drop(out);
        let _ = lines.read_to_end(&mut Vec::new());
    }

    #[tokio::test]
    async fn a_conversation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus");
        let listener = UnixListener::bind(&path).unwrap();
        let player = std::thread::spawn(move || play(listener.accept().unwrap().0));
        let mut bus = Bus::connect(&path, true).await.unwrap();
        follow_shutdown(&mut bus).await.unwrap();
        assert_eq!(longest_delay(&mut bus).await.unwrap(), Duration::from_secs(5));
        assert!(is_preparing(&mut bus).await.unwrap());
        let lock = inhibit_shutdown(&mut bus).await.unwrap();
        assert!(rustix::io::fcntl_getfd(&lock).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        match inhibit_shutdown(&mut bus).await {
            Err(BusError::Refused { name, message }) => {
                assert_eq!((&*name, &*message), ("org.freedesktop.login1.OperationInProgress", "already running"));
            }
            other => panic!("{other:?}"),
        }
        assert!(next_shutdown(&mut bus).await.unwrap(), "it waited while replies were read");
        assert!(!next_shutdown(&mut bus).await.unwrap());
        drop(bus);
        player.join().unwrap();
    }

    #[tokio::test]
    async fn a_bus_that_is_away_or_closes_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus");
        assert!(matches!(Bus::connect(&path, false).await, Err(BusError::Socket(_))));
        let listener = UnixListener::bind(&path).unwrap();
        let player = std::thread::spawn(move || drop(listener.accept()));
        assert!(matches!(Bus::connect(&path, false).await, Err(BusError::Closed | BusError::Socket(_))));
        player.join().unwrap();
    }
}
