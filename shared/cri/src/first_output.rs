//! The first part of what a command has written, and no more of it in memory.
//!
//! ExecSync answers with all of a command's output in one message, as large as the runtime lets it be, and gRPC's client holds
//! a message as a whole before anybody sees it. A probe needs an exit code and 10 KiB. So the answer is read here as it comes:
//! the first bytes of each output are kept, the rest is let go of piece by piece, and the client is given the short message.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame};
use prost::Message as _;
use prost::bytes::{Buf, BufMut, Bytes, BytesMut};
use tonic::transport::Channel;

use crate::v1::ExecSyncResponse;

/// Of each output, bytes (upstream `pkg/probe/exec/exec.go`, `maxReadLength`).
pub const OUTPUT_BYTES_MAX: usize = 10 << 10;

/// gRPC's frame of a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// The longest varint of protobuf.
const VARINT_BYTES: usize = 10;
/// Fields of ExecSyncResponse.
const STDOUT: u64 = 1;
const STDERR: u64 = 2;
const EXIT_CODE: u64 = 3;

/// A connection to a runtime whose answers to ExecSync are cut on their way. For no other call.
#[derive(Debug, Clone)]
pub(crate) struct FirstOutput(pub(crate) Channel);

type Answer = http::Response<CutBody<tonic::body::Body>>;

impl tower::Service<http::Request<tonic::body::Body>> for FirstOutput {
    type Response = Answer;
    type Error = tonic::transport::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        tower::Service::poll_ready(&mut self.0, cx)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let answer = tower::Service::call(&mut self.0, request);
        Box::pin(async move { Ok(answer.await?.map(|body| CutBody { body, cut: Cut::default() })) })
    }
}

/// An answer's body, with the short message in place of the long one.
#[derive(Debug)]
pub(crate) struct CutBody<B> {
    body: B,
    cut: Cut,
}

impl<B> Body for CutBody<B>
where
    B: Body<Data = Bytes, Error = tonic::Status> + Unpin,
{
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        loop {
            let frame = match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            };
            match self.cut.take(data) {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                Ok(None) => {}
                Err(what) => return Poll::Ready(Some(Err(tonic::Status::internal(format!("ExecSync: {what}"))))),
            }
        }
    }
}

/// Reads one message as it comes.
#[derive(Debug, Default)]
struct Cut {
    at: At,
    /// What is not whole yet: a frame's prefix, a field's tag, a number. Never more than a few bytes.
    partial: BytesMut,
    /// Bytes of the message that are still to come.
    left: usize,
    answer: ExecSyncResponse,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum At {
    #[default]
    Prefix,
    Tag,
    /// The value of a field that is a number, or the length of one that is bytes.
    Number {
        field: u64,
        is_length: bool,
    },
    /// Inside a field's bytes, or a number of fixed length that nobody asks for.
    Bytes {
        field: u64,
        left: usize,
    },
}

impl Cut {
    /// Takes what has come; answers with the short message in its frame once the long one is over.
    fn take(&mut self, mut data: Bytes) -> Result<Option<Bytes>, &'static str> {
        loop {
            match self.at {
                At::Prefix => {
                    while self.partial.len() < PREFIX_BYTES {
                        if !data.has_remaining() {
                            return Ok(None);
                        }
                        self.partial.put_u8(data.get_u8());
                    }
                    let (compressed, length) = (self.partial.get_u8(), self.partial.get_u32());
                    if compressed != 0 {
                        return Err("a compressed answer, which was not asked for");
                    }
                    self.left = usize::try_from(length).map_err(|_| "too long")?;
                    self.at = At::Tag;
                }
                At::Tag if self.left == 0 && self.partial.is_empty() => {
                    self.at = At::Prefix;
                    let answer = std::mem::take(&mut self.answer);
                    let mut message = BytesMut::with_capacity(PREFIX_BYTES + answer.encoded_len());
                    message.put_u8(0);
                    message.put_u32(u32::try_from(answer.encoded_len()).map_err(|_| "too long")?);
                    message.put_slice(&answer.encode_to_vec());
                    return Ok(Some(message.freeze()));
                }
                At::Tag => {
                    let Some(tag) = self.varint(&mut data)? else { return Ok(None) };
                    let field = tag >> 3;
                    self.at = match tag & 7 {
                        0 => At::Number { field, is_length: false },
                        1 => At::Bytes { field: 0, left: 8 },
                        2 => At::Number { field, is_length: true },
                        5 => At::Bytes { field: 0, left: 4 },
                        _ => return Err("a field of no known type"),
                    };
                }
                At::Number { field, is_length } => {
                    let Some(value) = self.varint(&mut data)? else { return Ok(None) };
                    if is_length {
                        let left = usize::try_from(value).map_err(|_| "a field that is too long")?;
                        self.at = At::Bytes { field, left };
                        continue;
                    }
                    if field == EXIT_CODE {
                        // protobuf writes a negative int32 as the 64 bits of the same number.
                        self.answer.exit_code = value as i32;
                    }
                    self.at = At::Tag;
                }
                At::Bytes { field, left } => {
                    if left > self.left {
                        return Err("a field that is longer than its message");
                    }
                    let piece = data.split_to(left.min(data.len()));
                    self.left -= piece.len();
                    let kept = match field {
                        STDOUT => Some(&mut self.answer.stdout),
                        STDERR => Some(&mut self.answer.stderr),
                        _ => None,
                    };
                    if let Some(kept) = kept {
                        let room = OUTPUT_BYTES_MAX.saturating_sub(kept.len());
                        kept.extend_from_slice(&piece[..piece.len().min(room)]);
                    }
                    match left - piece.len() {
                        0 => self.at = At::Tag,
                        _ if !data.has_remaining() => {
                            self.at = At::Bytes { field, left: left - piece.len() };
                            return Ok(None);
                        }
                        left => self.at = At::Bytes { field, left },
                    }
                }
            }
        }
    }

    /// The next number, once all of it is there.
    fn varint(&mut self, data: &mut Bytes) -> Result<Option<u64>, &'static str> {
        loop {
            if !data.has_remaining() {
                return if self.left == 0 { Err("a message that ends in a field") } else { Ok(None) };
            }
            if self.left == 0 || self.partial.len() >= VARINT_BYTES {
                return Err("a number that does not end");
            }
            let byte = data.get_u8();
            self.left -= 1;
            self.partial.put_u8(byte);
            if byte & 0x80 == 0 {
                let number = prost::encoding::decode_varint(&mut self.partial).map_err(|_| "not a number")?;
                self.partial.clear();
                return Ok(Some(number));
            }
        }
    }

    /// Bytes of memory that it holds.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.partial.len() + self.answer.stdout.capacity() + self.answer.stderr.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(message: &[u8]) -> Bytes {
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(u32::try_from(message.len()).unwrap());
        frame.put_slice(message);
        frame.freeze()
    }

    /// What comes out when it comes in pieces of `size`, and the most that was held meanwhile.
    fn cut(message: &[u8], size: usize) -> Result<(Vec<ExecSyncResponse>, usize), &'static str> {
        let (mut cut, mut out, mut most) = (Cut::default(), Vec::new(), 0);
        for piece in frame(message).chunks(size) {
            let given = cut.take(Bytes::copy_from_slice(piece))?;
            out.extend(given.map(|given| ExecSyncResponse::decode(&given[PREFIX_BYTES..]).unwrap()));
            most = most.max(cut.held());
        }
        Ok((out, most))
    }

    #[test]
    fn the_first_part_is_kept_and_the_rest_is_not_held() {
        let output = |length: usize| (0..length).map(|n| (n % 251) as u8).collect::<Vec<u8>>();
        for (stdout, stderr, exit_code) in
            [(0, 0, 0), (3, 0, 1), (0, 5, -1), (OUTPUT_BYTES_MAX, OUTPUT_BYTES_MAX + 1, 137), (3 << 20, 2 << 20, 7)]
        {
            let whole = ExecSyncResponse { stdout: output(stdout), stderr: output(stderr), exit_code };
            for size in [1, 7, 16 << 10, usize::MAX] {
                if size < 16 && stdout > 1 << 20 {
                    continue;
                }
                let (out, most) = cut(&whole.encode_to_vec(), size).unwrap();
                let mut expected = whole.clone();
                expected.stdout.truncate(OUTPUT_BYTES_MAX);
                expected.stderr.truncate(OUTPUT_BYTES_MAX);
                assert_eq!(out, [expected], "{stdout} {stderr} in pieces of {size}");
                // A vector grows by doubling.
                assert!(most <= 4 * OUTPUT_BYTES_MAX + VARINT_BYTES, "{most} bytes were held");
            }
        }
    }

    #[test]
    fn fields_of_a_later_version_are_passed_over_and_nonsense_is_an_error() {
        // Fields 9: a number, 64 bits, bytes, 32 bits; then the exit code.
        let mut message = vec![0x48, 0x96, 0x01, 0x49, 1, 2, 3, 4, 5, 6, 7, 8, 0x4a, 2, 0xff, 0xff, 0x4d, 1, 2, 3, 4];
        message.extend([0x18, 5]);
        for size in 1..message.len() {
            let (out, _) = cut(&message, size).unwrap();
            assert_eq!(out, [ExecSyncResponse { exit_code: 5, ..Default::default() }]);
        }
        for nonsense in [&[0x0a, 0x7f][..], &[0x0a], &[0x0f], &[0x80; 12], &[0x18]] {
            for size in [1, 64] {
                assert!(cut(nonsense, size).is_err() || cut(nonsense, size).unwrap().0.is_empty(), "{nonsense:?}");
            }
        }
        let mut compressed = Cut::default();
        assert!(compressed.take(Bytes::from_static(&[1, 0, 0, 0, 0])).is_err());
    }
}
