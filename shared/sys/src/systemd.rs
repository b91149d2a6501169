//! Three requests to systemd: start a slice, set properties of a unit (limits of a slice, addresses that a service may reach),
//! stop a unit.
//!
//! Spoken over systemd's private socket, which root may use and which needs no message bus. Of D-Bus only what these
//! calls need is here: one method call with a body that is built in code, and the reply that belongs to it.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

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

/// Bytes in D-Bus order, little-endian, aligned from the start of the body.
#[derive(Debug, Default)]
struct Body(Vec<u8>);

impl Body {
    fn align(&mut self, to: usize) {
        while !self.0.len().is_multiple_of(to) {
            self.0.push(0);
        }
    }

    fn u32(&mut self, value: u32) {
        self.align(4);
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.align(8);
        self.0.extend(value.to_le_bytes());
    }

    fn string(&mut self, text: &str) {
        // Unit and property names: far below 4 GiB.
        self.u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, text: &str) {
        self.0.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    /// An array whose elements are aligned to `element`; the padding before the first does not count in its length.
    fn array(&mut self, element: usize, fill: impl FnOnce(&mut Body)) {
        self.u32(0);
        let length_at = self.0.len() - 4;
        self.align(element);
        let start = self.0.len();
        fill(self);
        let length = u32::try_from(self.0.len() - start).unwrap_or(u32::MAX);
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// One `(iayu)`: family, address, length of the prefix.
    fn address(&mut self, address: IpAddr, prefix: u8) {
        let (family, bytes) = match address {
            IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
            IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
        };
        self.align(8);
        self.u32(family.cast_unsigned());
        self.array(1, |list| list.0.extend(bytes));
        self.u32(prefix.into());
    }

    /// One `(sv)`.
    fn property(&mut self, name: &str, signature: &str, value: impl FnOnce(&mut Body)) {
        self.align(8);
        self.string(name);
        self.signature(signature);
        value(self);
    }

    /// One header field `(yv)`.
    fn field(&mut self, code: u8, signature: &str, value: impl FnOnce(&mut Body)) {
        self.align(8);
        self.0.push(code);
        self.signature(signature);
        value(self);
    }
}

fn message(member: &str, signature: &str, body: &[u8]) -> Vec<u8> {
    let mut message = Body::default();
    // Little-endian, method call, no flags, protocol version 1.
    message.0.extend([b'l', 1, 0, 1]);
    message.u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
    message.u32(SERIAL);
    message.array(8, |fields| {
        fields.field(1, "o", |b| b.string("/org/freedesktop/systemd1"));
        fields.field(2, "s", |b| b.string("org.freedesktop.systemd1.Manager"));
        fields.field(3, "s", |b| b.string(member));
        fields.field(6, "s", |b| b.string("org.freedesktop.systemd1"));
        fields.field(8, "g", |b| b.signature(signature));
    });
    message.align(8);
    message.0.extend(body);
    message.0
}

fn call(member: &str, signature: &str, body: &[u8]) -> Result<(), SystemdError> {
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
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
        let (body_length, fields_length) = (number(4), number(12));
        if head[0] != b'l' || body_length > MAX_REPLY || fields_length > MAX_REPLY {
            return Err(SystemdError::Malformed);
        }
        let mut rest = vec![0; fields_length.next_multiple_of(8) + body_length];
        stream.read_exact(&mut rest).map_err(SystemdError::Socket)?;
        let (fields, body) = rest.split_at(fields_length.next_multiple_of(8));
        // Signals of other units come along on this socket; only the two kinds of reply matter.
        match head[1] {
            2 => return Ok(()),
            3 => {
                let name = error_name(&fields[..fields_length]).ok_or(SystemdError::Malformed)?;
                let message = string_at(body, 0).unwrap_or_default();
                return Err(SystemdError::Refused { name, message });
            }
            _ => {}
        }
    }
}

/// The string of header field 4, ERROR_NAME. Fields start at multiples of 8; only types s, o, g and u occur.
fn error_name(fields: &[u8]) -> Option<String> {
    let mut at = 0;
    while at < fields.len() {
        at = at.next_multiple_of(8);
        let (code, signature) = (*fields.get(at)?, *fields.get(at + 2)?);
        at += 4;
        match signature {
            b's' | b'o' => {
                let text = string_at(fields, at)?;
                if code == 4 {
                    return Some(text);
                }
                at = at.next_multiple_of(4) + 4 + text.len() + 1;
            }
            b'g' => at += usize::from(*fields.get(at)?) + 2,
            b'u' => at = at.next_multiple_of(4) + 4,
            _ => return None,
        }
    }
    None
}

fn string_at(bytes: &[u8], at: usize) -> Option<String> {
    let at = at.next_multiple_of(4);
    let length = u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize;
    Some(String::from_utf8_lossy(bytes.get(at + 4..at.checked_add(4)?.checked_add(length)?)?).into_owned())
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
