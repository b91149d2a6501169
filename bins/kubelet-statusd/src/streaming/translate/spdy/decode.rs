//! Bytes as frames: data piece by piece, so that a frame of 16 MiB costs no more than one of ten bytes.

use bytes::{Buf as _, Bytes, BytesMut};
use thiserror::Error;

use super::{FLAG_FIN, VERSION, kind};

const HEAD: usize = 8;

/// What a peer said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// SYN_STREAM: the peer opened a stream.
    Opened { stream: u32 },
    /// SYN_REPLY: the peer took a stream of ours. `fin`: it will send nothing on it.
    Replied { stream: u32, fin: bool },
    /// A part of a DATA frame, or of HEADERS that end a stream. `fin`: the peer sends no more on this stream.
    Data { stream: u32, bytes: Bytes, fin: bool },
    /// RST_STREAM.
    Reset { stream: u32, status: u32 },
    /// PING, or the answer to one.
    Ping { id: u32 },
    /// GOAWAY: nothing comes after it.
    GoneAway,
}

/// What no peer may send. The connection is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    #[error("SPDY frame of version {0}")]
    Version(u16),
    #[error("SPDY frame of kind {kind} with {length} bytes")]
    Length { kind: u16, length: usize },
    #[error("SPDY frame of kind {kind} for stream 0")]
    NoStream { kind: u16 },
    #[error("SPDY data for stream 0")]
    DataWithoutStream,
}

/// Takes bytes off a buffer and tells frames. Holds no bytes itself.
#[derive(Debug, Default)]
pub struct Decoder {
    state: State,
}

#[derive(Debug, Default, Clone, Copy)]
enum State {
    #[default]
    Head,
    Data {
        stream: u32,
        left: usize,
        fin: bool,
    },
    Skip {
        left: usize,
    },
}

impl Decoder {
    /// The next frame or part of one; `None` when that needs more bytes than `input` has. What stays in `input` then are at
    /// most 15 bytes.
    ///
    /// # Errors
    /// The bytes are no SPDY/3; calling again makes no sense.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        loop {
            match self.state {
                State::Skip { left } => {
                    let now = left.min(input.len());
                    input.advance(now);
                    if now < left {
                        self.state = State::Skip { left: left - now };
                        return Ok(None);
                    }
                    self.state = State::Head;
                }
                State::Data { stream, left, fin } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let bytes = input.split_to(left.min(input.len())).freeze();
                    let left = left - bytes.len();
                    self.state = if left == 0 { State::Head } else { State::Data { stream, left, fin } };
                    return Ok(Some(Frame::Data { stream, bytes, fin: fin && left == 0 }));
                }
                State::Head => match self.head(input)? {
                    Head::Short => return Ok(None),
                    Head::Frame(frame) => return Ok(Some(frame)),
                    Head::Other => {}
                },
            }
        }
    }

    fn head(&mut self, input: &mut BytesMut) -> Result<Head, FrameError> {
        let Some(&[a, b, c, d, flags, e, f, g]) = input.first_chunk::<HEAD>() else { return Ok(Head::Short) };
        let fin = flags & FLAG_FIN != 0;
        let length = usize::from(e) << 16 | usize::from(f) << 8 | usize::from(g);
        if a & 0x80 == 0 {
            let stream = u32::from_be_bytes([a, b, c, d]);
            if stream == 0 {
                return Err(FrameError::DataWithoutStream);
            }
            input.advance(HEAD);
            if length == 0 {
                return Ok(Head::Frame(Frame::Data { stream, bytes: Bytes::new(), fin }));
            }
            self.state = State::Data { stream, left: length, fin };
            return Ok(Head::Other);
        }
        let version = u16::from_be_bytes([a & 0x7f, b]);
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let kind = u16::from_be_bytes([c, d]);
        // How much of the payload tells all that matters; the rest is passed over.
        let (needed, length_fits) = match kind {
            kind::SYN_STREAM => (4, length >= 10),
            kind::SYN_REPLY | kind::HEADERS => (4, length >= 4),
            kind::RST_STREAM | kind::GOAWAY => (8, length == 8),
            kind::WINDOW_UPDATE => (0, length == 8),
            kind::PING => (4, length == 4),
            kind::SETTINGS => (0, length >= 4),
            // Kinds that one does not know are to be ignored.
            _ => (0, true),
        };
        if !length_fits {
            return Err(FrameError::Length { kind, length });
        }
        if input.len() < HEAD + needed {
            return Ok(Head::Short);
        }
        input.advance(HEAD);
        self.state = State::Skip { left: length - needed };
        if needed == 0 {
            return Ok(Head::Other);
        }
        let first = input.get_u32() & 0x7fff_ffff;
        let stream = || if first == 0 { Err(FrameError::NoStream { kind }) } else { Ok(first) };
        Ok(match kind {
            kind::SYN_STREAM => Head::Frame(Frame::Opened { stream: stream()? }),
            kind::SYN_REPLY => Head::Frame(Frame::Replied { stream: stream()?, fin }),
            kind::RST_STREAM => Head::Frame(Frame::Reset { stream: stream()?, status: input.get_u32() }),
            kind::PING => Head::Frame(Frame::Ping { id: first }),
            kind::GOAWAY => {
                input.advance(4);
                Head::Frame(Frame::GoneAway)
            }
            // Headers after the first tell nothing; that they are the last does.
            _ if fin => Head::Frame(Frame::Data { stream: stream()?, bytes: Bytes::new(), fin }),
            _ => Head::Other,
        })
    }
}

enum Head {
    /// More bytes are needed.
    Short,
    Frame(Frame),
    /// Another look will tell.
    Other,
}

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;
    use proptest::prelude::*;

    use super::super::{HeaderBlocks, data_head, put_go_away, put_ping, put_reset, put_syn_stream};
    use super::*;

    /// Frames from bytes that come in pieces of these sizes; parts of data put together again.
    fn decode(bytes: &[u8], pieces: &[usize]) -> Result<Vec<Frame>, FrameError> {
        let (mut decoder, mut input, mut frames) = (Decoder::default(), BytesMut::new(), Vec::new());
        let (mut rest, mut sizes) = (bytes, pieces.iter().cycle());
        loop {
            while let Some(frame) = decoder.next(&mut input)? {
                match (frames.last_mut(), frame) {
                    (Some(Frame::Data { stream: s, bytes: b, fin: f @ false }), Frame::Data { stream, bytes, fin })
                        if *s == stream =>
                    {
                        *b = [b.as_ref(), &bytes].concat().into();
                        *f = fin;
                    }
                    (_, frame) => frames.push(frame),
                }
            }
            assert!(input.len() < 16, "{} bytes wait for a frame", input.len());
            if rest.is_empty() {
                return Ok(frames);
            }
            let (now, later) = rest.split_at(sizes.next().copied().unwrap_or(1).clamp(1, rest.len()));
            input.put_slice(now);
            rest = later;
        }
    }

    fn data(stream: u32, bytes: &'static [u8], fin: bool) -> Frame {
        Frame::Data { stream, bytes: Bytes::from_static(bytes), fin }
    }

    #[test]
    fn what_a_runtime_sends() {
        // SYN_REPLY with no headers, as zlib with the dictionary compresses them; a command's output; the end.
        let reply = b"\x80\x03\0\x02\0\0\0\x14\0\0\0\x01\x78\xf9\xe3\xc6\xa7\xc2\x02\xa6\x23\x06\0\0\0\0\xff\xff";
        let recorded = [
            reply.as_slice(),
            b"\0\0\0\x05\0\0\0\x03abc\0\0\0\x05\x01\0\0\0",
            b"\x80\x03\0\x07\0\0\0\x08\0\0\0\0\0\0\0\0",
        ];
        assert_eq!(
            decode(&recorded.concat(), &[7]).unwrap(),
            [Frame::Replied { stream: 1, fin: false }, data(5, b"abc", true), Frame::GoneAway]
        );
    }

    #[test]
    fn table() {
        for (bytes, expected) in [
            (b"".as_slice(), Ok(vec![])),
            (b"\0\0\0\x05\0\0", Ok(vec![])),
            (b"\0\0\0\x05\0\0\0\x05ab", Ok(vec![data(5, b"ab", false)])),
            (b"\0\0\0\x05\x01\0\0\0", Ok(vec![data(5, b"", true)])),
            (b"\0\0\0\0\0\0\0\0", Err(FrameError::DataWithoutStream)),
            (b"\x80\x02\0\x06\0\0\0\x04\0\0\0\x02", Err(FrameError::Version(2))),
            (b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x02", Ok(vec![Frame::Ping { id: 2 }])),
            (b"\x80\x03\0\x06\0\0\0\x05", Err(FrameError::Length { kind: 6, length: 5 })),
            (b"\x80\x03\0\x03\0\0\0\x08\0\0\0\x03\0\0\0\x05", Ok(vec![Frame::Reset { stream: 3, status: 5 }])),
            (b"\x80\x03\0\x03\0\0\0\x08\0\0\0\0\0\0\0\x05", Err(FrameError::NoStream { kind: 3 })),
            (b"\x80\x03\0\x03\0\0\0\x04\0\0\0\x03", Err(FrameError::Length { kind: 3, length: 4 })),
            (b"\x80\x03\0\x02\x01\0\0\x04\0\0\0\x03", Ok(vec![Frame::Replied { stream: 3, fin: true }])),
            (b"\x80\x03\0\x01\0\0\0\x0a\0\0\0\x02\0\0\0\0\0\0", Ok(vec![Frame::Opened { stream: 2 }])),
            (b"\x80\x03\0\x01\0\0\0\x09", Err(FrameError::Length { kind: 1, length: 9 })),
            // SETTINGS, WINDOW_UPDATE and kinds that are not known: passed over.
            (
                b"\x80\x03\0\x04\0\0\0\x0c\0\0\0\x01\x07\0\0\0\0\0\0\x64\0\0\0\x01\x01\0\0\0",
                Ok(vec![data(1, b"", true)]),
            ),
            (b"\x80\x03\0\x09\0\0\0\x08\0\0\0\x01\0\0\xff\xff\0\0\0\x01\x01\0\0\0", Ok(vec![data(1, b"", true)])),
            (b"\x80\x03\0\x63\0\0\0\x02zz\0\0\0\x01\x01\0\0\0", Ok(vec![data(1, b"", true)])),
            (b"\x80\x03\0\x08\0\0\0\x05\0\0\0\x03z", Ok(vec![])),
            (b"\x80\x03\0\x08\x01\0\0\x05\0\0\0\x03z", Ok(vec![data(3, b"", true)])),
        ] {
            for size in [1, 3, 100] {
                assert_eq!(decode(bytes, &[size]), expected, "{bytes:?} by {size}");
            }
        }
    }

    #[test]
    fn a_frame_of_the_greatest_length_is_never_held() {
        let (mut decoder, mut input, mut seen) = (Decoder::default(), BytesMut::new(), 0);
        input.put_slice(&data_head(7, super::super::MAX_PAYLOAD, true));
        let piece = [0u8; 4096];
        while seen < super::super::MAX_PAYLOAD {
            input.put_slice(&piece[..piece.len().min(super::super::MAX_PAYLOAD - seen)]);
            while let Some(frame) = decoder.next(&mut input).unwrap() {
                let Frame::Data { stream: 7, bytes, fin } = frame else { panic!("{frame:?}") };
                seen += bytes.len();
                assert_eq!(fin, seen == super::super::MAX_PAYLOAD);
            }
            assert!(input.is_empty());
        }
    }

    fn any_frame() -> impl Strategy<Value = Frame> {
        let stream = 1..0x7fff_ffffu32;
        prop_oneof![
            stream.clone().prop_map(|stream| Frame::Opened { stream }),
            (stream.clone(), proptest::collection::vec(any::<u8>(), 0..300)).prop_map(|(stream, bytes)| Frame::Data {
                stream,
                bytes: bytes.into(),
                fin: true
            }),
            (stream.clone(), 1..12u32).prop_map(|(stream, status)| Frame::Reset { stream, status }),
            stream.prop_map(|id| Frame::Ping { id }),
            Just(Frame::GoneAway),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_however_it_is_cut(
            frames in proptest::collection::vec(any_frame(), 0..20),
            pieces in proptest::collection::vec(1..200usize, 1..8),
        ) {
            let (mut out, mut blocks) = (BytesMut::new(), HeaderBlocks::default());
            for frame in &frames {
                match frame {
                    Frame::Opened { stream } => put_syn_stream(&mut out, &mut blocks, *stream, &[("streamtype", "data")]),
                    Frame::Data { stream, bytes, fin } => {
                        out.put_slice(&data_head(*stream, bytes.len(), *fin));
                        out.put_slice(bytes);
                    }
                    Frame::Reset { stream, status } => put_reset(&mut out, *stream, *status),
                    Frame::Ping { id } => put_ping(&mut out, *id),
                    Frame::GoneAway | Frame::Replied { .. } => put_go_away(&mut out, 0),
                }
            }
            prop_assert_eq!(decode(&out, &pieces).unwrap(), frames);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), pieces in proptest::collection::vec(1..50usize, 1..4)) {
            let _ = decode(&bytes, &pieces);
        }

        #[test]
        fn no_bytes_of_right_version_panic(
            kinds in proptest::collection::vec((0..12u8, any::<u8>(), 0..40u8), 0..20),
            noise in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = Vec::new();
            for (kind, flags, length) in kinds {
                bytes.extend([0x80, 3, 0, kind, flags, 0, 0, length]);
                bytes.extend(noise.iter().cycle().take(usize::from(length).min(noise.len() * 40)));
            }
            let _ = decode(&bytes, &[5, 1]);
        }
    }
}
