//! Frames as bytes.

use bytes::{BufMut as _, BytesMut};

use super::{FLAG_FIN, HeaderBlocks, MAX_PAYLOAD, VERSION, kind};

/// Why a stream is reset: it was never wanted.
pub const REFUSED_STREAM: u32 = 3;
/// Why a stream is reset: whoever opened it needs it no longer.
pub const CANCEL: u32 = 5;

/// SYN_STREAM: a stream of both directions; names of headers in lower case.
pub fn put_syn_stream(out: &mut BytesMut, blocks: &mut HeaderBlocks, stream: u32, headers: &[(&str, &str)]) {
    let block = blocks.encode(headers);
    put_control_head(out, kind::SYN_STREAM, 10 + block.len());
    out.put_u32(stream);
    // No stream that it belongs to, the highest priority, no client certificate.
    out.put_u32(0);
    out.put_u16(0);
    out.put_slice(&block);
}

/// RST_STREAM: neither side sends on the stream again. `status` is not 0.
pub fn put_reset(out: &mut BytesMut, stream: u32, status: u32) {
    put_control_head(out, kind::RST_STREAM, 8);
    out.put_u32(stream);
    out.put_u32(status);
}

/// PING, or the answer to one; clients' own are odd, answers carry the number that came.
pub fn put_ping(out: &mut BytesMut, id: u32) {
    put_control_head(out, kind::PING, 4);
    out.put_u32(id);
}

/// GOAWAY: no stream after `last` is taken, and nothing went wrong.
pub fn put_go_away(out: &mut BytesMut, last: u32) {
    put_control_head(out, kind::GOAWAY, 8);
    out.put_u32(last);
    out.put_u32(0);
}

/// What goes before `length` bytes of a stream's data: at most [`MAX_PAYLOAD`]. `fin`: they are the last.
pub fn data_head(stream: u32, length: usize, fin: bool) -> [u8; 8] {
    let [a, b, c, d] = (stream & 0x7fff_ffff).to_be_bytes();
    let [_, e, f, g] = length_bytes(length);
    [a, b, c, d, if fin { FLAG_FIN } else { 0 }, e, f, g]
}

fn put_control_head(out: &mut BytesMut, kind: u16, length: usize) {
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    out.put_slice(&length_bytes(length));
}

fn length_bytes(length: usize) -> [u8; 4] {
    u32::try_from(length.min(MAX_PAYLOAD)).unwrap_or_default().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(put: impl FnOnce(&mut BytesMut)) -> BytesMut {
        let mut out = BytesMut::new();
        put(&mut out);
        out
    }

    #[test]
    fn bytes_on_the_wire() {
        assert_eq!(data_head(5, 0x01_0203, false), [0, 0, 0, 5, 0, 1, 2, 3]);
        assert_eq!(data_head(5, 0, true), [0, 0, 0, 5, 1, 0, 0, 0]);
        assert_eq!(bytes(|out| put_reset(out, 5, CANCEL)).as_ref(), b"\x80\x03\0\x03\0\0\0\x08\0\0\0\x05\0\0\0\x05");
        assert_eq!(bytes(|out| put_ping(out, 9)).as_ref(), b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x09");
        assert_eq!(bytes(|out| put_go_away(out, 0)).as_ref(), b"\x80\x03\0\x07\0\0\0\x08\0\0\0\0\0\0\0\0");
        let stream = bytes(|out| put_syn_stream(out, &mut HeaderBlocks::default(), 1, &[("a", "b")]));
        assert_eq!(&stream[..18], b"\x80\x03\0\x01\0\0\0\x28\0\0\0\x01\0\0\0\0\0\0");
        assert_eq!(stream.len(), 8 + 0x28);
    }
}
