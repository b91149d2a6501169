//! WebSocket (RFC 6455), the server's side of it, without extensions: how a request becomes one, and its frames. No input
//! or output here.

mod decode;
mod encode;
mod handshake;

pub use decode::{Decoder, Frame, FrameError};
pub use encode::{MAX_HEAD, message_head, put_close, put_pong};
pub use handshake::{Handshake, Refusal, TUNNEL_PREFIX, V5, check, tunnelled};

/// Why a connection is closed.
pub mod close_code {
    /// All was said.
    pub const NORMAL: u16 = 1000;
    /// The client sent what no client may send.
    pub const PROTOCOL_ERROR: u16 = 1002;
    /// A message of a kind that is not for this protocol.
    pub const UNSUPPORTED: u16 = 1003;
}

/// The longest content of a ping, a pong or a close.
const MAX_CONTROL: usize = 125;

/// What a frame is, the low four bits of its first byte.
mod opcode {
    pub(super) const CONTINUATION: u8 = 0;
    pub(super) const TEXT: u8 = 1;
    pub(super) const BINARY: u8 = 2;
    pub(super) const CLOSE: u8 = 8;
    pub(super) const PING: u8 = 9;
    pub(super) const PONG: u8 = 10;
}
