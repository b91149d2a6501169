//! Bytes of a client as frames: messages piece by piece, so that a message costs the same whatever its length.

use bytes::{Buf as _, Bytes, BytesMut};
use thiserror::Error;

use super::{MAX_CONTROL, opcode};

/// What a client said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The next part of a message. `text`: it is not a binary one. `end`: it is the message's last part.
    Message {
        text: bool,
        bytes: Bytes,
        end: bool,
    },
    /// Wants a pong with the same content.
    Ping(Bytes),
    Pong,
    /// Nothing comes after it.
    Close,
}

/// What no client may send. The connection is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    #[error("WebSocket frame that is not masked")]
    NotMasked,
    #[error("WebSocket frame with bits of an extension")]
    Extension,
    #[error("WebSocket frame of kind {0}")]
    Kind(u8),
    #[error("WebSocket control frame in parts")]
    ControlInParts,
    #[error("WebSocket frame of {0} bytes")]
    Length(u64),
    #[error("WebSocket message that goes on without having begun")]
    NotBegun,
    #[error("WebSocket message within a message")]
    NotEnded,
}

/// Takes bytes off a buffer and tells frames. Holds no bytes itself.
#[derive(Debug, Default)]
pub struct Decoder {
    /// A message has begun and not ended; whether it is text.
    message: Option<bool>,
    /// A frame of that message has begun and not ended.
    open: Option<Open>,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    mask: [u8; 4],
    left: u64,
    end: bool,
}

/// What the first bytes of a frame say.
#[derive(Debug, Clone, Copy)]
struct Head {
    fin: bool,
    opcode: u8,
    length: u64,
    mask: [u8; 4],
    /// How many bytes they were.
    size: usize,
}

/// Bytes of a head whose length stands in its second byte.
const SHORT_HEAD: usize = 6;

impl Decoder {
    /// The next frame or part of one; `None` when that needs more bytes than `input` has. What stays in `input` then are at
    /// most 130 bytes.
    ///
    /// # Errors
    /// The bytes are no client's; calling again makes no sense.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        if let Some(open) = self.open {
            return Ok(self.part(open, input));
        }
        let Some(head) = head(input)? else { return Ok(None) };
        if head.opcode & 0x8 != 0 {
            return control(head, input);
        }
        self.message = match (head.opcode, self.message) {
            (opcode::CONTINUATION, None) => return Err(FrameError::NotBegun),
            (opcode::CONTINUATION, text) => text,
            (opcode::TEXT | opcode::BINARY, Some(_)) => return Err(FrameError::NotEnded),
            (opcode::TEXT | opcode::BINARY, None) => Some(head.opcode == opcode::TEXT),
            (other, _) => return Err(FrameError::Kind(other)),
        };
        input.advance(head.size);
        let open = Open { mask: head.mask, left: head.length, end: head.fin };
        self.open = Some(open);
        Ok(self.part(open, input))
    }

    fn part(&mut self, open: Open, input: &mut BytesMut) -> Option<Frame> {
        if input.is_empty() && open.left > 0 {
            return None;
        }
        let now = usize::try_from(open.left).unwrap_or(usize::MAX).min(input.len());
        let mut bytes = input.split_to(now);
        unmask(&mut bytes, open.mask);
        let left = open.left - now as u64;
        let mut mask = open.mask;
        mask.rotate_left(now % 4);
        self.open = (left > 0).then_some(Open { mask, left, ..open });
        let text = self.message.unwrap_or_default();
        let end = left == 0 && open.end;
        if end {
            self.message = None;
        }
        Some(Frame::Message { text, bytes: bytes.freeze(), end })
    }
}

fn head(input: &BytesMut) -> Result<Option<Head>, FrameError> {
    let [first, second, rest @ ..] = input.as_ref() else { return Ok(None) };
    if first & 0x70 != 0 {
        return Err(FrameError::Extension);
    }
    if second & 0x80 == 0 {
        return Err(FrameError::NotMasked);
    }
    let (length, rest) = match second & 0x7f {
        126 => match rest.split_first_chunk::<2>() {
            Some((length, rest)) => (u64::from(u16::from_be_bytes(*length)), rest),
            None => return Ok(None),
        },
        127 => match rest.split_first_chunk::<8>() {
            Some((length, rest)) => (u64::from_be_bytes(*length), rest),
            None => return Ok(None),
        },
        short => (u64::from(short), rest),
    };
    if length > i64::MAX as u64 {
        return Err(FrameError::Length(length));
    }
    let Some((mask, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
    let size = input.len() - rest.len();
    Ok(Some(Head { fin: first & 0x80 != 0, opcode: first & 0x0f, length, mask: *mask, size }))
}

fn control(head: Head, input: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
    if !head.fin {
        return Err(FrameError::ControlInParts);
    }
    let length = usize::try_from(head.length).unwrap_or(usize::MAX);
    // A length in more bytes than it needs, too (RFC 6455 section 5.2).
    if length > MAX_CONTROL || head.size > SHORT_HEAD || (head.opcode == opcode::CLOSE && length == 1) {
        return Err(FrameError::Length(head.length));
    }
    if !matches!(head.opcode, opcode::CLOSE | opcode::PING | opcode::PONG) {
        return Err(FrameError::Kind(head.opcode));
    }
    if input.len() < head.size + length {
        return Ok(None);
    }
    input.advance(head.size);
    let mut content = input.split_to(length);
    unmask(&mut content, head.mask);
    Ok(Some(match head.opcode {
        opcode::CLOSE => Frame::Close,
        // Copied: a pong may wait, and must not hold the whole buffer.
        opcode::PING => Frame::Ping(Bytes::copy_from_slice(&content)),
        _ => Frame::Pong,
    }))
}

fn unmask(bytes: &mut [u8], mask: [u8; 4]) {
    let wide = u64::from(u32::from_ne_bytes(mask));
    let wide = wide << 32 | wide;
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;
    use proptest::prelude::*;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
    use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, Frame as Foreign};

    use super::*;

    /// Frames from bytes that come in pieces of these sizes; parts of messages put together again.
    fn decode(bytes: &[u8], pieces: &[usize]) -> Result<Vec<Frame>, FrameError> {
        let (mut decoder, mut input, mut frames) = (Decoder::default(), BytesMut::new(), Vec::<Frame>::new());
        let (mut rest, mut sizes) = (bytes, pieces.iter().cycle());
        loop {
            while let Some(frame) = decoder.next(&mut input)? {
                match (frames.last_mut(), frame) {
                    (Some(Frame::Message { bytes: b, end: e @ false, .. }), Frame::Message { bytes, end, .. }) => {
                        *b = [b.as_ref(), &bytes].concat().into();
                        *e = end;
                    }
                    (_, frame) => frames.push(frame),
                }
            }
            assert!(input.len() <= 130, "{} bytes wait for a frame", input.len());
            if rest.is_empty() {
                return Ok(frames);
            }
            let (now, later) = rest.split_at(sizes.next().copied().unwrap_or(1).clamp(1, rest.len()));
            input.put_slice(now);
            rest = later;
        }
    }

    fn message(text: bool, bytes: &'static [u8], end: bool) -> Frame {
        Frame::Message { text, bytes: Bytes::from_static(bytes), end }
    }

    #[test]
    fn table() {
        // The mask 0 leaves bytes as they are.
        for (bytes, expected) in [
            // RFC 6455, 5.7: "Hello", masked.
            (b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58".as_slice(), Ok(vec![message(true, b"Hello", true)])),
            (b"\x82\x80\0\0\0\0", Ok(vec![message(false, b"", true)])),
            (b"\x82\xfe\0\x03\0\0\0\0\0ab", Ok(vec![message(false, b"\0ab", true)])),
            (b"\x82\xff\0\0\0\0\0\0\0\x03\0\0\0\0\0ab", Ok(vec![message(false, b"\0ab", true)])),
            (b"\x82\x83\0\0\0\0ab", Ok(vec![message(false, b"ab", false)])),
            // In parts, with a ping between them.
            (
                b"\x02\x81\0\0\0\0a\x89\x81\0\0\0\0p\x80\x81\0\0\0\0b",
                Ok(vec![
                    message(false, b"a", false),
                    Frame::Ping(Bytes::from_static(b"p")),
                    message(false, b"b", true),
                ]),
            ),
            (b"\x8a\x80\0\0\0\0\x88\x80\0\0\0\0", Ok(vec![Frame::Pong, Frame::Close])),
            (b"\x88\x82\0\0\0\0\x03\xe8", Ok(vec![Frame::Close])),
            (b"\x82\x03abc", Err(FrameError::NotMasked)),
            (b"\xc2\x80\0\0\0\0", Err(FrameError::Extension)),
            (b"\x83\x80\0\0\0\0", Err(FrameError::Kind(3))),
            (b"\x8b\x80\0\0\0\0", Err(FrameError::Kind(11))),
            (b"\x09\x80\0\0\0\0", Err(FrameError::ControlInParts)),
            (b"\x89\xfe\0\x7e\0\0\0\0", Err(FrameError::Length(126))),
            (b"\x89\xfe\0\x01\0\0\0\0p", Err(FrameError::Length(1))),
            (b"\x88\x81\0\0\0\0\0", Err(FrameError::Length(1))),
            (b"\x82\xff\x80\0\0\0\0\0\0\0\0\0\0\0", Err(FrameError::Length(1 << 63))),
            (b"\x80\x80\0\0\0\0", Err(FrameError::NotBegun)),
            (b"\x02\x80\0\0\0\0\x82\x80\0\0\0\0", Err(FrameError::NotEnded)),
        ] {
            for size in [1, 3, 100] {
                assert_eq!(decode(bytes, &[size]), expected, "{bytes:?} by {size}");
            }
        }
    }

    /// Whatever length a message says to have, nothing is set aside for it.
    #[test]
    fn a_message_of_the_greatest_length() {
        let mut input = BytesMut::from(b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0ab".as_slice());
        let mut decoder = Decoder::default();
        assert_eq!(decoder.next(&mut input).unwrap(), Some(message(false, b"ab", false)));
        assert_eq!(decoder.next(&mut input).unwrap(), None);
    }

    fn foreign() -> impl Strategy<Value = (Foreign, Frame)> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..400).prop_map(Bytes::from);
        let short = proptest::collection::vec(any::<u8>(), 0..=125).prop_map(Bytes::from);
        prop_oneof![
            bytes().prop_map(|bytes| {
                let frame = Foreign::message(bytes.clone(), OpCode::Data(Data::Binary), true);
                (frame, Frame::Message { text: false, bytes, end: true })
            }),
            short.prop_map(|bytes| (Foreign::ping(bytes.clone()), Frame::Ping(bytes))),
            Just((Foreign::pong(Bytes::new()), Frame::Pong)),
            Just((Foreign::close(Some(CloseFrame { code: CloseCode::Normal, reason: "done".into() })), Frame::Close)),
        ]
    }

    proptest! {
        /// Another implementation writes, we read, however the bytes are cut.
        #[test]
        fn what_a_client_writes_is_read(
            frames in proptest::collection::vec((foreign(), any::<[u8; 4]>()), 0..10),
            pieces in proptest::collection::vec(1..200usize, 1..8),
        ) {
            let mut bytes = Vec::new();
            for ((frame, _), mask) in &frames {
                let mut frame = frame.clone();
                frame.header_mut().mask = Some(*mask);
                frame.format(&mut bytes).unwrap();
            }
            let expected: Vec<_> = frames.into_iter().map(|((_, frame), _)| frame).collect();
            prop_assert_eq!(decode(&bytes, &pieces).unwrap(), expected);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), pieces in proptest::collection::vec(1..50usize, 1..4)) {
            let _ = decode(&bytes, &pieces);
        }
    }
}
