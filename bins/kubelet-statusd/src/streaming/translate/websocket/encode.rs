//! Frames as bytes: a server's are not masked.

use bytes::{BufMut as _, BytesMut};

use super::{MAX_CONTROL, opcode};

const FIN: u8 = 0x80;

/// The longest head of a message, bytes.
pub const MAX_HEAD: usize = 10;

/// Appends what goes before a binary message of `length` bytes that is one frame.
pub fn message_head(out: &mut BytesMut, length: usize) {
    out.put_u8(FIN | opcode::BINARY);
    put_length(out, length);
}

/// Appends the answer to a ping; a ping's content has at most 125 bytes.
pub fn put_pong(out: &mut BytesMut, content: &[u8]) {
    let content = &content[..content.len().min(MAX_CONTROL)];
    out.put_u8(FIN | opcode::PONG);
    put_length(out, content.len());
    out.put_slice(content);
}

/// Appends the last frame.
pub fn put_close(out: &mut BytesMut, code: u16) {
    out.put_u8(FIN | opcode::CLOSE);
    put_length(out, 2);
    out.put_u16(code);
}

fn put_length(out: &mut BytesMut, length: usize) {
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..126), _) => out.put_u8(short),
        (_, Ok(middle)) => {
            out.put_u8(126);
            out.put_u16(middle);
        }
        _ => {
            out.put_u8(127);
            out.put_u64(length as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_on_the_wire() {
        let head = |length| {
            let mut out = BytesMut::new();
            message_head(&mut out, length);
            assert!(out.len() <= MAX_HEAD);
            out
        };
        assert_eq!(head(0).as_ref(), b"\x82\x00");
        assert_eq!(head(125).as_ref(), b"\x82\x7d");
        assert_eq!(head(126).as_ref(), b"\x82\x7e\x00\x7e");
        assert_eq!(head(65_535).as_ref(), b"\x82\x7e\xff\xff");
        assert_eq!(head(65_536).as_ref(), b"\x82\x7f\0\0\0\0\0\x01\0\0");
        let mut out = BytesMut::new();
        put_pong(&mut out, b"ab");
        put_close(&mut out, 1000);
        assert_eq!(out.as_ref(), b"\x8a\x02ab\x88\x02\x03\xe8");
    }
}
