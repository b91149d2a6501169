//! Four requests to systemd: start a slice, set properties of a unit (limits of a slice, addresses that a service may reach),
//! stop a unit, have a service read its configuration again.
//!
//! Spoken over systemd's private socket, which root may use and which needs no message bus. Of D-Bus only what these
//! calls need is here: one method call with a body that is built in code, and the reply that belongs to it.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::dbus::wire::{self, Body, Call, Kind};

const SOCKET: &str = "/run/systemd/private";
const DEADLINE: Duration = Duration::from_secs(10);
/// A reply is an object path or an error text.
const MAX_REPLY: usize = 1 << 20;
const SERIAL: u32 = 1;

/// Why systemd did not do it.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    #[error("failed to talk to {SOCKET}")]
    Socket(#[source] io::Error),
    #[error("systemd did not accept us on {SOCKET}")]
    Authentication,
    #[error("systemd's answer cannot be understood")]
    Malformed,
    #[error("systemd refused: {name}: {message}")]
    Refused { name: String, message: String },
}

/// Whether systemd is the machine's first process (sd_booted(3)).
pub fn is_running() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Starts a transient slice with accounting on. One that is there already is fine.
pub fn start_slice(name: &str) -> Result<(), SystemdError> {
    match call("StartTransientUnit", "ssa(sv)a(sa(sv))", &slice_body(name)) {
        Err(SystemdError::Refused { name, .. }) if name == "org.freedesktop.systemd1.UnitExists" => Ok(()),
        other => other,
    }
}

/// A property of a unit, by its name on the bus (org.freedesktop.systemd1(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    pub name: &'static str,
    pub value: Value,
}

/// Of D-Bus's types those that limits have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `t`; the largest number is systemd's "infinity".
    Number(u64),
    /// `ay`; a set of CPUs: bit n of byte n / 8.
    Bits(Vec<u8>),
    /// `a(iayu)`; addresses with the lengths of their prefixes.
    Addresses(Vec<(IpAddr, u8)>),
}

/// Gives a unit these properties until it is stopped or the machine restarts, and has them written to its cgroup. Others
/// stay as they are.
///
/// # Errors
/// See [`SystemdError`]; a property that this systemd does not know is refused.
pub fn set_properties(unit: &str, properties: &[Property]) -> Result<(), SystemdError> {
    call("SetUnitProperties", "sba(sv)", &properties_body(unit, properties))
}

fn properties_body(unit: &str, properties: &[Property]) -> Vec<u8> {
    let mut body = Body::default();
    body.string(unit);
    // Until the next boot, as with `systemctl set-property --runtime`: the machine then begins without pods.
    body.u32(1);
    body.array(8, |list| {
        for property in properties {
            match &property.value {
                Value::Number(number) => list.property(property.name, "t", |b| b.u64(*number)),
                Value::Bits(bits) => list.property(property.name, "ay", |b| b.array(1, |list| list.0.extend(bits))),
                Value::Addresses(all) => list.property(property.name, "a(iayu)", |b| {
                    b.array(8, |list| all.iter().for_each(|(address, prefix)| list.address(*address, *prefix)));
                }),
            }
        }
    });
    body.0
}

/// Stops a unit. One that is not loaded is fine.
pub fn stop_unit(name: &str) -> Result<(), SystemdError> {
    let mut body = Body::default();
    body.string(name);
    body.string("replace");
    match call("StopUnit", "ss", &body.0) {
        Err(SystemdError::Refused { name, .. }) if name == "org.freedesktop.systemd1.NoSuchUnit" => Ok(()),
        other => other,
    }
}

/// Sends SIGHUP to all processes of a service, at which those that know it read their configuration again.
///
/// # Errors
/// See [`SystemdError`].
pub fn reload_by_signal(unit: &str) -> Result<(), SystemdError> {
    let mut body = Body::default();
    body.string(unit);
    body.string("all");
    body.u32(libc::SIGHUP.cast_unsigned());
    call("KillUnit", "ssi", &body.0)
}

/// Arguments of StartTransientUnit as runc gives them for a slice (`libcontainer/cgroups/systemd`).
fn slice_body(name: &str) -> Vec<u8> {
    let mut body = Body::default();
    body.string(name);
    body.string("replace");
    body.array(8, |properties| {
        properties.property("Description", "s", |b| b.string(&format!("libcontainer container {name}")));
        if let Some(parent) = parent_slice(name) {
            properties.property("Wants", "as", |b| b.array(4, |list| list.string(&parent)));
        }
        for accounting in ["MemoryAccounting", "CPUAccounting", "IOAccounting", "TasksAccounting"] {
            properties.property(accounting, "b", |b| b.u32(1));
        }
        properties.property("DefaultDependencies", "b", |b| b.u32(0));
    });
    body.array(8, |_auxiliary_units| {});
    body.0
}

/// "a-b-c.slice" lies in "a-b.slice".
fn parent_slice(name: &str) -> Option<String> {
    Some(format!("{}.slice", name.strip_suffix(".slice")?.rsplit_once('-')?.0))
}

fn message(member: &'static str, signature: &'static str, body: &[u8]) -> Vec<u8> {
    let call = Call {
        destination: "org.freedesktop.systemd1",
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        member,
        signature,
        body: Body(body.to_vec()),
    };
    wire::encode(&call, SERIAL)
}

fn call(member: &'static str, signature: &'static str, body: &[u8]) -> Result<(), SystemdError> {
    let connect = || -> io::Result<UnixStream> {
        let stream = UnixStream::connect(SOCKET)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        Ok(stream)
    };
    converse(connect().map_err(SystemdError::Socket)?, &message(member, signature, body))
}

/// Authenticates as root (uid 0 in hexadecimal ASCII), sends, and waits for the reply to our serial.
fn converse(mut stream: impl Read + Write, message: &[u8]) -> Result<(), SystemdError> {
    stream.write_all(b"\0AUTH EXTERNAL 30\r\n").map_err(SystemdError::Socket)?;
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).map_err(SystemdError::Socket)?;
        line.push(byte[0]);
        if line.len() > 256 {
            return Err(SystemdError::Authentication);
        }
    }
    if !line.starts_with(b"OK ") {
        return Err(SystemdError::Authentication);
    }
    stream.write_all(b"BEGIN\r\n").and_then(|()| stream.write_all(message)).map_err(SystemdError::Socket)?;
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head).map_err(SystemdError::Socket)?;
        let length = wire::length(&head).filter(|length| *length <= MAX_REPLY).ok_or(SystemdError::Malformed)?;
        let mut whole = head.to_vec();
        whole.resize(length, 0);
        stream.read_exact(&mut whole[head.len()..]).map_err(SystemdError::Socket)?;
        let message = wire::parse(&whole).ok_or(SystemdError::Malformed)?;
        // Signals of other units come along on this socket; only the two kinds of reply matter.
        match message.kind {
            Kind::Return => return Ok(()),
            Kind::Error => {
                let text = message.text().unwrap_or_default();
                let name = message.error.ok_or(SystemdError::Malformed)?;
                return Err(SystemdError::Refused { name, message: text });
            }
            Kind::Other | Kind::Signal => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a server's part from a script and keeps what was sent.
    struct Script {
        replies: io::Cursor<Vec<u8>>,
        sent: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.replies.read(buffer)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.sent.extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn reply(kind: u8, error: Option<&str>) -> Vec<u8> {
        let mut message = Body::default();
        message.0.extend([b'l', kind, 0, 1]);
        let mut body = Body::default();
        body.string("why not");
        message.u32(u32::try_from(body.0.len()).unwrap());
        message.u32(7);
        message.array(8, |fields| {
            fields.field(5, "u", |b| b.u32(SERIAL));
            fields.field(8, "g", |b| b.signature("s"));
            if let Some(name) = error {
                fields.field(4, "s", |b| b.string(name));
            }
        });
        message.align(8);
        message.0.extend(body.0);
        message.0
    }

    fn run(replies: &[Vec<u8>]) -> (Result<(), SystemdError>, Vec<u8>) {
        let mut script = Script { replies: io::Cursor::new(replies.concat()), sent: Vec::new() };
        let result = converse(&mut script, b"message");
        (result, script.sent)
    }

    #[test]
    fn a_conversation() {
        let ok = b"OK 0123\r\n".to_vec();
        let (result, sent) = run(&[ok.clone(), reply(4, None), reply(2, None)]);
        result.unwrap();
        assert_eq!(sent, b"\0AUTH EXTERNAL 30\r\nBEGIN\r\nmessage");
        let (result, _) = run(&[ok.clone(), reply(3, Some("org.freedesktop.systemd1.UnitExists"))]);
        match result {
            Err(SystemdError::Refused { name, message }) => {
                assert_eq!((name.as_str(), message.as_str()), ("org.freedesktop.systemd1.UnitExists", "why not"));
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(run(&[b"REJECTED\r\n".to_vec()]).0, Err(SystemdError::Authentication)));
        assert!(matches!(run(&[ok, vec![b'B'; 16]]).0, Err(SystemdError::Malformed)));
    }

    #[test]
    fn bodies_are_aligned() {
        let body = slice_body("kubepods-pod1.slice");
        // Name with its length and NUL, mode, array length, padding, first property at a multiple of 8.
        assert_eq!(&body[..4], 19u32.to_le_bytes());
        assert_eq!(&body[4..24], b"kubepods-pod1.slice\0");
        assert_eq!(&body[28..36], b"replace\0");
        assert_eq!(&body[44..55], b"Description");
        assert_eq!(parent_slice("kubepods-pod1.slice").as_deref(), Some("kubepods.slice"));
        assert_eq!(parent_slice("kubepods.slice"), None);
        let limits = [
            Property { name: "MemoryMax", value: Value::Number(7) },
            Property { name: "AllowedCPUs", value: Value::Bits(vec![3]) },
        ];
        let body = properties_body("a.slice", &limits);
        // Name with its length and NUL, the flag for "until the next boot", array length; then each property at a multiple of 8: name,
        // signature, value in its own alignment.
        assert_eq!(body[12..16], 1u32.to_le_bytes());
        assert_eq!(body[16..20], 57u32.to_le_bytes());
        assert_eq!(&body[24..48], b"\x09\0\0\0MemoryMax\0\x01t\0\0\0\0\0\0\0\0");
        assert_eq!(body[48..56], 7u64.to_le_bytes());
        assert_eq!(&body[56..], b"\x0b\0\0\0AllowedCPUs\0\x02ay\0\x01\0\0\0\x03");
        let addresses = vec![("169.254.169.254".parse().unwrap(), 32), ("fd00::1".parse().unwrap(), 128)];
        let allow = Property { name: "IPAddressAllow", value: Value::Addresses(addresses) };
        let body = properties_body("a.service", &[allow]);
        let value = body.windows(7).position(|w| w == b"a(iayu)").unwrap() + 8;
        let value = value.next_multiple_of(4);
        assert_eq!(body[value..value + 4], 44u32.to_le_bytes(), "16 and 28 bytes, the second at a multiple of 8");
        let first = (value + 4).next_multiple_of(8);
        assert_eq!(body[first..first + 16], [2, 0, 0, 0, 4, 0, 0, 0, 169, 254, 169, 254, 32, 0, 0, 0]);
        assert_eq!(body[first + 16..first + 24], [10, 0, 0, 0, 16, 0, 0, 0]);
        assert_eq!(body.len(), first + 16 + 28);
        let message = message("StopUnit", "ss", b"");
        assert!(message.len().is_multiple_of(8));
        assert!(message.windows(8).any(|w| w == b"StopUnit"));
    }
}
