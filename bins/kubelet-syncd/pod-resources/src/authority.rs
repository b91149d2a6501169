//! `:authority` of clients on a Unix socket. Libraries of gRPC other than Rust's make it of the socket's path: as it is, or with `%2F`
//! for each slash (Go's where the target is a bare path and a dialer of the program's connects, as upstream's own clients and most device
//! plugins do it, while a target `unix:` sends `localhost`; C's from 1.57 on, and all that stand on it). RFC 3986 allows neither as an
//! authority, and h2 resets such a request with PROTOCOL_ERROR before anybody sees it. Upstream's server takes any, and here it says
//! nothing: so each is replaced, whatever it was, by one letter.
//!
//! The letter takes no more room in HPACK's dynamic table than any value did: what a client believes to be in the table is there, in the
//! same places, and older entries that it believes to be gone are never named (RFC 7541, 2.3.3 and 4.4). No Huffman code is read for it.
//! An empty authority, which h2 refuses as well, grows by that letter: a table that was full to the last byte loses an entry early, and
//! with it the connection; a frame of exactly 16384 bytes becomes larger than a frame may be, and ends it as well.
//!
//! Not replaced, and so refused where they are paths: an authority that begins or ends in a CONTINUATION, behind 16 KiB of other headers
//! or where a client cuts its headers earlier; and one whose name is taken from the dynamic table, as by a client that sends a second
//! authority on one connection (h2's own encoder). To know that entry, every field that enters the table would have to be counted, those
//! of trailers and CONTINUATION as well; a client of a socket has one path, and so one authority.

use std::ops::Range;

/// Read of a client at a time, and the room that is kept for it.
pub const READ: usize = 4 << 10;
/// What a connection of HTTP/2 begins with (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Of a frame before its payload.
const HEAD: usize = 9;
/// A payload that is larger is refused: nobody is told that it may be (RFC 9113, 4.2).
const PAYLOAD_MAX: usize = 16 << 10;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;
/// `:authority` in the static table.
const AUTHORITY: usize = 1;
/// The same where a client does not use the table: lengths with texts, without and with Huffman's code.
const SPELT: [&[u8]; 2] = [b"\x0a:authority", b"\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f"];
/// A string of one letter, without Huffman.
const REPLACEMENT: [u8; 2] = [1, b'x'];

/// What comes of one client, on its way to the server.
#[derive(Debug, Default)]
pub struct Rewriter {
    state: State,
    /// A frame's head, and the payload of HEADERS, until they are whole.
    held: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// So much of the preface has come.
    Preface(usize),
    Head,
    /// So much of a payload that is none of ours is still to come.
    Pass(usize),
    /// Of HEADERS, head and payload together.
    Headers(usize),
    /// No HTTP/2: for the server to refuse.
    Foreign,
}

impl Default for State {
    fn default() -> Self {
        State::Preface(0)
    }
}

impl Rewriter {
    /// Takes the next bytes, however they are cut, and adds to `out` what the server is to read.
    pub fn take(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            let (wanted, holds) = match self.state {
                State::Preface(come) => (PREFACE.len() - come, false),
                State::Head => (HEAD - self.held.len(), true),
                State::Pass(left) => (left, false),
                State::Headers(whole) => (whole - self.held.len(), true),
                State::Foreign => (input.len(), false),
            };
            let (now, later) = input.split_at(wanted.min(input.len()));
            input = later;
            if holds {
                self.held.extend(now)
            } else {
                out.extend(now)
            }
            self.state = match self.state {
                State::Preface(come) if !PREFACE[come..].starts_with(now) => State::Foreign,
                State::Preface(come) if now.len() < wanted => State::Preface(come + now.len()),
                State::Pass(left) if now.len() < wanted => State::Pass(left - now.len()),
                State::Preface(_) | State::Pass(_) => State::Head,
                State::Head if now.len() < wanted => State::Head,
                State::Head => self.after_head(out),
                State::Headers(whole) if now.len() < wanted => State::Headers(whole),
                State::Headers(_) => self.after_headers(out),
                State::Foreign => State::Foreign,
            };
        }
    }

    fn after_head(&mut self, out: &mut Vec<u8>) -> State {
        let payload = self.held[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if self.held[3] == HEADERS && (1..=PAYLOAD_MAX).contains(&payload) {
            return State::Headers(HEAD + payload);
        }
        out.append(&mut self.held);
        if payload == 0 { State::Head } else { State::Pass(payload) }
    }

    fn after_headers(&mut self, out: &mut Vec<u8>) -> State {
        replace(&mut self.held);
        out.append(&mut self.held);
        // Few are longer.
        self.held.shrink_to(READ);
        State::Head
    }
}

/// Replaces the authority in a frame HEADERS, if all of it is there; what cannot be read is the server's to refuse.
fn replace(frame: &mut Vec<u8>) {
    let Some(value) = authority(frame) else { return };
    frame.splice(value, REPLACEMENT);
    let payload = frame.len() - HEAD;
    if let Ok(length) = u32::try_from(payload) {
        frame[..3].copy_from_slice(&length.to_be_bytes()[1..]);
    }
}

/// Where a frame HEADERS has the authority's value, its length included.
fn authority(frame: &[u8]) -> Option<Range<usize>> {
    let flags = frame[4];
    let (mut start, mut end) = (HEAD, frame.len());
    if flags & PADDED != 0 {
        end = end.checked_sub(usize::from(*frame.get(start)?))?;
        start += 1;
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    let mut fields = Fields { block: frame.get(..end)?, at: start };
    loop {
        let first = *fields.block.get(fields.at)?;
        // RFC 7541, 6: how much of the first byte is the number.
        let (bits, literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let name = fields.number(bits)?;
        if !literal {
            continue;
        }
        let spelt = if name == 0 { fields.block.get(fields.string()?) } else { None };
        let value = fields.string()?;
        if name == AUTHORITY || spelt.is_some_and(|name| SPELT.contains(&name)) {
            return Some(value);
        }
    }
}

/// Fields of a header block, one after the other.
struct Fields<'a> {
    block: &'a [u8],
    at: usize,
}

impl Fields<'_> {
    /// A number that begins in the last `bits` of the next byte (RFC 7541, 5.1), if it fits in 32.
    fn number(&mut self, bits: u32) -> Option<usize> {
        let mut next = || {
            let byte = *self.block.get(self.at)?;
            self.at += 1;
            Some(byte)
        };
        let most = (1_u64 << bits) - 1;
        let mut number = u64::from(next()?) & most;
        if number == most {
            for shift in [0, 7, 14, 21, 28] {
                let byte = next()?;
                number += u64::from(byte & 0x7f) << shift;
                if byte & 0x80 == 0 {
                    return u32::try_from(number).ok()?.try_into().ok();
                }
            }
            return None;
        }
        number.try_into().ok()
    }

    /// A string with its length, in whichever code.
    fn string(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        let length = self.number(7)?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.block.len())?;
        self.at = end;
        Some(start..end)
    }
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
