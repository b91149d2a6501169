//! Messages of D-Bus as bytes: calls that are built in code, and what comes back. Pure.
//!
//! Of the types only those that these calls need are here. What comes in may be anybody's on the machine: every length is checked.

use std::net::IpAddr;

/// What every message begins with: byte order, kind, flags, version, length of the body, serial, length of the fields.
pub(crate) const HEAD: usize = 16;

/// Bytes in D-Bus order, little-endian, aligned from the start of the body.
#[derive(Debug, Default)]
pub(crate) struct Body(pub(crate) Vec<u8>);

impl Body {
    pub(crate) fn align(&mut self, to: usize) {
        while !self.0.len().is_multiple_of(to) {
            self.0.push(0);
        }
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.align(4);
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.align(8);
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn string(&mut self, text: &str) {
        // Unit and property names: far below 4 GiB.
        self.u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    pub(crate) fn signature(&mut self, text: &str) {
        self.0.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    /// An array whose elements are aligned to `element`; the padding before the first does not count in its length.
    pub(crate) fn array(&mut self, element: usize, fill: impl FnOnce(&mut Body)) {
        self.u32(0);
        let length_at = self.0.len() - 4;
        self.align(element);
        let start = self.0.len();
        fill(self);
        let length = u32::try_from(self.0.len() - start).unwrap_or(u32::MAX);
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// One `(iayu)`: family, address, length of the prefix.
    pub(crate) fn address(&mut self, address: IpAddr, prefix: u8) {
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
    pub(crate) fn property(&mut self, name: &str, signature: &str, value: impl FnOnce(&mut Body)) {
        self.align(8);
        self.string(name);
        self.signature(signature);
        value(self);
    }

    /// One header field `(yv)`.
    pub(crate) fn field(&mut self, code: u8, signature: &str, value: impl FnOnce(&mut Body)) {
        self.align(8);
        self.0.push(code);
        self.signature(signature);
        value(self);
    }
}

/// A method call whose every word stands in the code.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) destination: &'static str,
    pub(crate) path: &'static str,
    pub(crate) interface: &'static str,
    pub(crate) member: &'static str,
    /// Of the body's arguments; empty: there are none.
    pub(crate) signature: &'static str,
    pub(crate) body: Body,
}

/// The bytes of a call.
pub(crate) fn encode(call: &Call, serial: u32) -> Vec<u8> {
    let mut message = Body::default();
    // Little-endian, method call, no flags, protocol version 1.
    message.0.extend([b'l', 1, 0, 1]);
    message.u32(u32::try_from(call.body.0.len()).unwrap_or(u32::MAX));
    message.u32(serial);
    message.array(8, |fields| {
        fields.field(1, "o", |b| b.string(call.path));
        fields.field(2, "s", |b| b.string(call.interface));
        fields.field(3, "s", |b| b.string(call.member));
        fields.field(6, "s", |b| b.string(call.destination));
        if !call.signature.is_empty() {
            fields.field(8, "g", |b| b.signature(call.signature));
        }
    });
    message.align(8);
    message.0.extend(&call.body.0);
    message.0
}

/// Kinds of messages, as far as they matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Return,
    Error,
    Signal,
    Other,
}

/// A message that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) reply_to: Option<u32>,
    pub(crate) path: Option<String>,
    pub(crate) interface: Option<String>,
    pub(crate) member: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) signature: String,
    /// Descriptors that came with it.
    pub(crate) descriptors: u32,
    body: Vec<u8>,
    big_endian: bool,
}

/// Length of the message whose first [`HEAD`] bytes these are. `None`: no message of this protocol begins so.
pub(crate) fn length(head: &[u8]) -> Option<usize> {
    let big_endian = order(head)?;
    let number = |at| Reader { bytes: head, at, big_endian }.u32();
    let (body, fields) = (number(4)? as usize, number(12)? as usize);
    fields.checked_add(HEAD)?.checked_next_multiple_of(8)?.checked_add(body)
}

fn order(head: &[u8]) -> Option<bool> {
    match head.first()? {
        b'l' => Some(false),
        b'B' => Some(true),
        _ => None,
    }
}

/// A whole message. `None`: it is malformed, or a field of it has a type that no field has.
pub(crate) fn parse(bytes: &[u8]) -> Option<Message> {
    let big_endian = order(bytes)?;
    let body = bytes.len().checked_sub(Reader { bytes, at: 4, big_endian }.u32()? as usize)?;
    let end = Reader { bytes, at: 12, big_endian }.u32()? as usize + HEAD;
    if length(bytes)? != bytes.len() || end > body {
        return None;
    }
    let mut message = Message {
        kind: match bytes.get(1)? {
            2 => Kind::Return,
            3 => Kind::Error,
            4 => Kind::Signal,
            _ => Kind::Other,
        },
        reply_to: None,
        path: None,
        interface: None,
        member: None,
        error: None,
        signature: String::new(),
        descriptors: 0,
        body: bytes[body..].to_vec(),
        big_endian,
    };
    let mut fields = Reader { bytes: &bytes[..end], at: HEAD, big_endian };
    while fields.at < end {
        fields.align(8);
        let code = fields.byte()?;
        match fields.signature()?.as_str() {
            "s" | "o" => {
                let text = Some(fields.string()?);
                match code {
                    1 => message.path = text,
                    2 => message.interface = text,
                    3 => message.member = text,
                    4 => message.error = text,
                    _ => {}
                }
            }
            "g" => {
                let signature = fields.signature()?;
                if code == 8 {
                    message.signature = signature;
                }
            }
            "u" => {
                let number = fields.u32()?;
                match code {
                    5 => message.reply_to = Some(number),
                    9 => message.descriptors = number,
                    _ => {}
                }
            }
            _ => return None,
        }
    }
    Some(message)
}

impl Message {
    fn reader(&self) -> Reader<'_> {
        Reader { bytes: &self.body, at: 0, big_endian: self.big_endian }
    }

    /// Its first argument, a string.
    pub(crate) fn text(&self) -> Option<String> {
        if self.signature.starts_with('s') { self.reader().string() } else { None }
    }

    /// Its first argument, a boolean.
    pub(crate) fn truth(&self) -> Option<bool> {
        if self.signature.starts_with('b') { Some(self.reader().u32()? != 0) } else { None }
    }

    /// Its one argument, a variant with a boolean: a property.
    pub(crate) fn variant_truth(&self) -> Option<bool> {
        Some(self.variant("b")?.u32()? != 0)
    }

    /// Its one argument, a variant with a number of 64 bits: a property.
    pub(crate) fn variant_number(&self) -> Option<u64> {
        self.variant("t")?.u64()
    }

    fn variant(&self, signature: &str) -> Option<Reader<'_>> {
        let mut reader = self.reader();
        if self.signature != "v" || reader.signature()? != signature {
            return None;
        }
        Some(reader)
    }
}

/// Bytes with the place that is read next; nothing past the end is ever read.
#[derive(Debug, Clone)]
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    big_endian: bool,
}

impl Reader<'_> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at)?;
        self.at += 1;
        Some(*byte)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.align(N);
        let bytes = self.bytes.get(self.at..self.at.checked_add(N)?)?.try_into().ok()?;
        self.at += N;
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        let bytes = self.take()?;
        Some(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn u64(&mut self) -> Option<u64> {
        let bytes = self.take()?;
        Some(if self.big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }

    fn string(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        self.text(length)
    }

    fn signature(&mut self) -> Option<String> {
        let length = usize::from(self.byte()?);
        self.text(length)
    }

    /// So many bytes and the NUL behind them.
    fn text(&mut self, length: usize) -> Option<String> {
        let end = self.at.checked_add(length)?;
        let text = self.bytes.get(self.at..end)?;
        if self.bytes.get(end)? != &0 {
            return None;
        }
        self.at = end + 1;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message as a service sends it.
    pub(crate) fn sent(kind: u8, fields: impl FnOnce(&mut Body), body: &Body) -> Vec<u8> {
        let mut message = Body::default();
        message.0.extend([b'l', kind, 0, 1]);
        message.u32(u32::try_from(body.0.len()).unwrap());
        message.u32(7);
        message.array(8, fields);
        message.align(8);
        message.0.extend(&body.0);
        message.0
    }

    pub(crate) fn preparing(is: bool) -> Vec<u8> {
        let mut body = Body::default();
        body.u32(is.into());
        sent(
            4,
            |fields| {
                fields.field(1, "o", |b| b.string("/org/freedesktop/login1"));
                fields.field(2, "s", |b| b.string("org.freedesktop.login1.Manager"));
                fields.field(3, "s", |b| b.string("PrepareForShutdown"));
                fields.field(7, "s", |b| b.string(":1.3"));
                fields.field(8, "g", |b| b.signature("b"));
            },
            &body,
        )
    }

    #[test]
    fn a_call_reads_back() {
        let mut body = Body::default();
        body.string("shutdown");
        let call = Call {
            destination: "org.example",
            path: "/org/example",
            interface: "org.example.I",
            member: "Do",
            signature: "s",
            body,
        };
        let bytes = encode(&call, 3);
        assert_eq!(length(&bytes[..HEAD]), Some(bytes.len()));
        let message = parse(&bytes).unwrap();
        assert_eq!((message.kind, message.path.as_deref()), (Kind::Other, Some("/org/example")));
        assert_eq!((message.interface.as_deref(), message.member.as_deref()), (Some("org.example.I"), Some("Do")));
        assert_eq!(message.text().as_deref(), Some("shutdown"));
        assert_eq!((message.truth(), message.variant_truth(), message.variant_number()), (None, None, None));
    }

    #[test]
    fn signals_and_properties() {
        let signal = parse(&preparing(true)).unwrap();
        assert_eq!((signal.kind, signal.truth(), signal.descriptors), (Kind::Signal, Some(true), 0));
        assert_eq!(parse(&preparing(false)).unwrap().truth(), Some(false));
        let property = |signature: &'static str, fill: fn(&mut Body)| {
            let mut body = Body::default();
            body.signature(signature);
            fill(&mut body);
            let fields = |fields: &mut Body| {
                fields.field(5, "u", |b| b.u32(9));
                fields.field(8, "g", |b| b.signature("v"));
                fields.field(9, "u", |b| b.u32(1));
            };
            parse(&sent(2, fields, &body)).unwrap()
        };
        let number = property("t", |b| b.u64(5_000_000));
        assert_eq!((number.reply_to, number.descriptors), (Some(9), 1));
        assert_eq!((number.variant_number(), number.variant_truth()), (Some(5_000_000), None));
        assert_eq!(property("b", |b| b.u32(1)).variant_truth(), Some(true));
    }

    proptest! {
        #[test]
        fn nothing_that_comes_ends_the_process(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..200, value: u8) {
            let _ = (length(&bytes), parse(&bytes));
            if let Some(first) = bytes.first_mut() {
                *first = b'l';
            }
            let _ = parse(&bytes);
            let mut signal = preparing(true);
            let at = at % signal.len();
            signal[at] = value;
            let _ = parse(&signal).map(|m| (m.text(), m.truth(), m.variant_truth(), m.variant_number()));
        }
    }
}
