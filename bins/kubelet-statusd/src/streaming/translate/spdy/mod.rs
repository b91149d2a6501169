//! SPDY/3.1 as container runtimes' streaming servers speak it (`github.com/moby/spdystream`): which frames are sent and
//! what those that come mean. No input or output here.
//!
//! Such servers announce no window and heed none: what holds a sender back is the connection itself. A reply's headers
//! say nothing that is needed, so compressed headers are written and never read.

mod block;
mod decode;
mod encode;
#[cfg(test)]
pub(crate) mod peer;

pub use block::HeaderBlocks;
pub use decode::{Decoder, Frame, FrameError};
pub use encode::{CANCEL, REFUSED_STREAM, data_head, put_go_away, put_ping, put_reset, put_syn_stream};

/// Longest payload of a frame, bytes: its length has 24 bits.
pub const MAX_PAYLOAD: usize = (1 << 24) - 1;

/// The only version there is on the wire; 3.1 differs from it in windows alone.
const VERSION: u16 = 3;
/// The sender will not send on this stream again.
const FLAG_FIN: u8 = 0x01;

/// Numbers of control frames.
mod kind {
    pub(super) const SYN_STREAM: u16 = 1;
    pub(super) const SYN_REPLY: u16 = 2;
    pub(super) const RST_STREAM: u16 = 3;
    pub(super) const SETTINGS: u16 = 4;
    pub(super) const PING: u16 = 6;
    pub(super) const GOAWAY: u16 = 7;
    pub(super) const HEADERS: u16 = 8;
    pub(super) const WINDOW_UPDATE: u16 = 9;
}
