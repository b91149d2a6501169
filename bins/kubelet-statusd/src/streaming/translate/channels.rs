//! What a client's messages mean in `v5.channel.k8s.io`: the first byte names a channel, 255 closes the channel that the
//! next byte names (KEP-4006). Pure.

use bytes::{Buf as _, Bytes};
use thiserror::Error;

/// To the command.
pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
/// How it ended, as JSON.
pub const STATUS: u8 = 3;
/// Sizes of the client's terminal, as JSON.
pub const RESIZE: u8 = 4;
/// Greatest channel there is.
const LAST: u8 = RESIZE;
/// In the place of a channel: the byte after it names one that the client closes.
const CLOSE: u8 = 255;

/// What a part of a message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// For a channel, which may be none there is.
    Data { channel: u8, bytes: Bytes },
    /// The client sends nothing more on a channel there is.
    Closed(u8),
}

/// A close that is none. Upstream ends the connection, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ChannelError {
    #[error("one byte has to follow a close")]
    CloseLength,
    #[error("close of channel {0}, which there is not")]
    CloseOf(u8),
}

/// Takes parts of messages, one after the other.
#[derive(Debug, Default)]
pub struct Channels {
    message: Message,
}

#[derive(Debug, Default, Clone, Copy)]
enum Message {
    #[default]
    NotBegun,
    For(u8),
    Close(Option<u8>),
}

impl Channels {
    /// The next part of a message. `end`: it is the message's last.
    ///
    /// # Errors
    /// See [`ChannelError`]; calling again makes no sense.
    pub fn take(&mut self, mut bytes: Bytes, end: bool) -> Result<Option<Input>, ChannelError> {
        let mut message = self.message;
        if matches!(message, Message::NotBegun) && !bytes.is_empty() {
            message = match bytes.get_u8() {
                CLOSE => Message::Close(None),
                channel => Message::For(channel),
            };
        }
        let input = match &mut message {
            Message::NotBegun => None,
            Message::For(channel) => (!bytes.is_empty()).then_some(Input::Data { channel: *channel, bytes }),
            Message::Close(channel) => {
                match (bytes.as_ref(), *channel) {
                    ([], _) => {}
                    ([one], None) => *channel = Some(*one),
                    _ => return Err(ChannelError::CloseLength),
                }
                match *channel {
                    _ if !end => None,
                    Some(channel) if channel <= LAST => Some(Input::Closed(channel)),
                    Some(channel) => return Err(ChannelError::CloseOf(channel)),
                    None => return Err(ChannelError::CloseLength),
                }
            }
        };
        self.message = if end { Message::NotBegun } else { message };
        Ok(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Part = (&'static [u8], bool);

    fn take(parts: &[Part]) -> Result<Vec<Input>, ChannelError> {
        let mut channels = Channels::default();
        let taken = parts.iter().map(|(bytes, end)| channels.take(Bytes::from_static(bytes), *end));
        taken.filter_map(Result::transpose).collect()
    }

    #[test]
    fn table() {
        let data = |channel, bytes: &'static [u8]| Input::Data { channel, bytes: Bytes::from_static(bytes) };
        let cases: [(&[Part], _); 11] = [
            (&[(b"\0ab", true)], Ok(vec![data(0, b"ab")])),
            (&[(b"", true), (b"\0", true), (b"\x04{}", true)], Ok(vec![data(4, b"{}")])),
            (&[(b"", false), (b"\0", false), (b"a", false), (b"b", true)], Ok(vec![data(0, b"a"), data(0, b"b")])),
            (&[(b"\x09x", true)], Ok(vec![data(9, b"x")])),
            (&[(b"\xff\0", true), (b"\0x", true)], Ok(vec![Input::Closed(0), data(0, b"x")])),
            (&[(b"\xff", false), (b"", false), (b"\x04", false), (b"", true)], Ok(vec![Input::Closed(4)])),
            (&[(b"\xff", true)], Err(ChannelError::CloseLength)),
            (&[(b"\xff\0\0", true)], Err(ChannelError::CloseLength)),
            (&[(b"\xff\0", false), (b"\0", true)], Err(ChannelError::CloseLength)),
            (&[(b"\xff\x05", true)], Err(ChannelError::CloseOf(5))),
            (&[(b"\xff\xff", true)], Err(ChannelError::CloseOf(255))),
        ];
        for (parts, expected) in cases {
            assert_eq!(take(parts), expected, "{parts:?}");
        }
    }

    proptest! {
        /// However a message is cut, the channel gets the same bytes.
        #[test]
        fn cuts_do_not_matter(message in proptest::collection::vec(any::<u8>(), 1..50), cut in 0..50usize) {
            let whole = Channels::default().take(message.clone().into(), true);
            let (first, second) = message.split_at(cut.min(message.len()));
            let mut channels = Channels::default();
            let parts = channels.take(first.to_vec().into(), false)
                .and_then(|first| Ok((first, channels.take(second.to_vec().into(), true)?)));
            let joined = parts.map(|parts| match parts {
                (Some(Input::Data { channel, bytes: a }), Some(Input::Data { bytes: b, .. })) => {
                    Some(Input::Data { channel, bytes: [a, b].concat().into() })
                }
                (first, second) => first.or(second),
            });
            prop_assert_eq!(joined, whole);
        }
    }
}
