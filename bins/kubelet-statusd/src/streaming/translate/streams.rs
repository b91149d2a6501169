//! The runtime's side of a remote command: which SPDY streams there are, what each frame means for them, and when all
//! was said. Pure.
//!
//! As upstream's client has it (`client-go/tools/remotecommand/{v2,v3,v4}.go`): the streams are opened in a fixed order; stdin
//! waits until the runtime took all, because it drops data for a stream that it has not yet answered; the end is the end of
//! stdout, stderr and the error stream, in any order.

use bytes::{Bytes, BytesMut};

use super::super::options::StreamOptions;
use super::channels::{RESIZE, STATUS, STDERR, STDIN, STDOUT};
use super::spdy::{self, Frame};
use super::status::{self, Ending};

/// The channel on which a client is told that it is connected: the lowest that is written to.
pub fn greeting(options: StreamOptions) -> u8 {
    match options {
        StreamOptions { stdout: true, .. } => STDOUT,
        StreamOptions { stderr: true, .. } => STDERR,
        _ => STATUS,
    }
}

/// What a frame of the runtime means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// For the client, on this channel.
    Output {
        channel: u8,
        bytes: Bytes,
    },
    /// All streams were taken: input may flow.
    Ready,
    /// The command reads no more.
    InputEnded,
    /// The runtime wants an answer with the same number.
    Pinged(u32),
    /// The runtime opened a stream, which is refused.
    Refuse(u32),
}

/// The streams of one connection.
#[derive(Debug)]
pub struct Streams {
    streams: Vec<Stream>,
    error: Vec<u8>,
    ready: bool,
    /// The error stream was ended and not broken off.
    error_ended: bool,
    /// What came makes all that follows meaningless.
    failed: Option<Ending>,
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    id: u32,
    channel: u8,
    taken: bool,
    ended: bool,
}

impl Streams {
    /// The streams that `options` need, and the frames that open them.
    pub fn open(options: StreamOptions) -> (Self, BytesMut) {
        let wanted = [
            (true, STATUS, "error"),
            (options.stdin, STDIN, "stdin"),
            (options.stdout, STDOUT, "stdout"),
            // A terminal has one output.
            (options.stderr && !options.tty, STDERR, "stderr"),
            (options.tty, RESIZE, "resize"),
        ];
        let (mut streams, mut frames, mut blocks) = (Vec::new(), BytesMut::new(), spdy::HeaderBlocks::default());
        // A client's streams have odd numbers.
        for ((_, channel, name), id) in wanted.into_iter().filter(|(wanted, ..)| *wanted).zip((1..).step_by(2)) {
            spdy::put_syn_stream(&mut frames, &mut blocks, id, &[("streamtype", name)]);
            streams.push(Stream { id, channel, taken: false, ended: false });
        }
        (Streams { streams, error: Vec::new(), ready: false, error_ended: false, failed: None }, frames)
    }

    /// All streams were taken.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// The stream of a channel that the client writes to; `None`: nobody asked for it.
    pub fn input(&self, channel: u8) -> Option<u32> {
        let input = channel == STDIN || channel == RESIZE;
        self.streams.iter().find(|stream| input && stream.channel == channel).map(|stream| stream.id)
    }

    /// What a frame means. Whoever has done what is said looks at [`Self::ending`].
    pub fn take(&mut self, frame: Frame) -> Step {
        match frame {
            Frame::Replied { stream, fin } => self.replied(stream, fin),
            Frame::Data { stream, bytes, fin } => self.data(stream, bytes, fin),
            Frame::Reset { stream, .. } => self.reset(stream),
            // The answer to one of ours has our odd number.
            Frame::Ping { id } if id % 2 == 0 => Step::Pinged(id),
            Frame::Ping { .. } => Step::Nothing,
            Frame::Opened { stream } => Step::Refuse(stream),
            Frame::GoneAway => {
                self.failed = Some(self.lost());
                Step::Nothing
            }
        }
    }

    /// How it ended, once every stream that the client reads has.
    pub fn ending(&self) -> Option<Ending> {
        let ended = |stream: &Stream| stream.ended || matches!(stream.channel, STDIN | RESIZE);
        self.failed.clone().or_else(|| self.streams.iter().all(ended).then(|| self.lost()))
    }

    /// How it ended when nothing more can come: the runtime's connection ended, or it said that it goes.
    pub fn lost(&self) -> Ending {
        if self.error_ended || !self.error.is_empty() {
            return status::ending(&self.error);
        }
        status::failure(if self.ready {
            "the container runtime ended the stream without saying how the command ended"
        } else {
            "unable to create streams: the container runtime ended the connection"
        })
    }

    fn find(&mut self, id: u32) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.id == id)
    }

    fn replied(&mut self, id: u32, fin: bool) -> Step {
        let Some(stream) = self.find(id) else { return Step::Nothing };
        stream.taken = true;
        if fin {
            self.end(id, true);
        }
        if !self.ready && self.streams.iter().all(|stream| stream.taken) {
            self.ready = true;
            return Step::Ready;
        }
        Step::Nothing
    }

    fn data(&mut self, id: u32, bytes: Bytes, fin: bool) -> Step {
        let Some(&mut Stream { channel, ended: false, .. }) = self.find(id) else { return Step::Nothing };
        if channel == STATUS {
            if self.error.len() + bytes.len() > status::LONGEST {
                self.failed = Some(status::failure("error stream protocol error: it is too long"));
                return Step::Nothing;
            }
            self.error.extend_from_slice(&bytes);
        }
        let step = if fin { self.end(id, true) } else { Step::Nothing };
        match channel {
            STDOUT | STDERR if !bytes.is_empty() => Step::Output { channel, bytes },
            _ => step,
        }
    }

    fn reset(&mut self, id: u32) -> Step {
        let ready = self.ready;
        match self.find(id) {
            None => Step::Nothing,
            Some(stream) if !ready && !stream.taken => {
                self.failed = Some(status::failure("unable to create streams: the container runtime refused one"));
                Step::Nothing
            }
            Some(_) => self.end(id, false),
        }
    }

    fn end(&mut self, id: u32, orderly: bool) -> Step {
        let Some(stream) = self.find(id) else { return Step::Nothing };
        stream.ended = true;
        match stream.channel {
            STDIN => return Step::InputEnded,
            STATUS => self.error_ended |= orderly,
            _ => {}
        }
        Step::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: StreamOptions = StreamOptions { stdin: true, stdout: true, stderr: true, tty: false };
    const SUCCESS: &[u8] = br#"{"status":"Success"}"#;

    fn data(stream: u32, bytes: &'static [u8], fin: bool) -> Frame {
        Frame::Data { stream, bytes: Bytes::from_static(bytes), fin }
    }

    fn reset(stream: u32) -> Frame {
        Frame::Reset { stream, status: spdy::CANCEL }
    }

    /// With all streams taken.
    fn ready(options: StreamOptions) -> Streams {
        let (mut streams, _) = Streams::open(options);
        let ids: Vec<u32> = streams.streams.iter().map(|stream| stream.id).collect();
        let steps = ids.iter().map(|id| streams.take(Frame::Replied { stream: *id, fin: false }));
        assert_eq!(steps.last(), Some(Step::Ready));
        streams
    }

    fn text(ending: Option<Ending>) -> String {
        String::from_utf8(ending.unwrap().status).unwrap()
    }

    #[test]
    fn streams_in_upstreams_order() {
        for (options, expected, channel) in [
            (ALL, "error stdin stdout stderr", 1),
            (StreamOptions { tty: true, ..ALL }, "error stdin stdout resize", 1),
            (StreamOptions { stdin: false, stdout: false, ..ALL }, "error stderr", 2),
            (StreamOptions { stdout: false, stderr: false, ..ALL }, "error stdin", 3),
        ] {
            let (streams, mut frames) = Streams::open(options);
            let mut context = flate2::Decompress::new(true);
            let mut names = Vec::new();
            for stream in &streams.streams {
                let frame = frames.split_to(8 + usize::from(frames[6]) * 256 + usize::from(frames[7]));
                assert_eq!(frame[..4], [0x80, 3, 0, 1]);
                assert_eq!(frame[8..12], stream.id.to_be_bytes());
                let headers = spdy::peer::headers(&mut context, &frame[18..]).unwrap();
                assert_eq!(headers[0].0, "streamtype");
                names.push(headers[0].1.clone());
            }
            assert_eq!(names.join(" "), expected);
            assert_eq!(greeting(options), channel);
        }
    }

    #[test]
    fn a_command_from_begin_to_end() {
        let mut streams = ready(ALL);
        assert_eq!(streams.input(STDIN), Some(3));
        assert_eq!((streams.input(RESIZE), streams.input(STDOUT), streams.input(9)), (None, None, None));
        let output = Step::Output { channel: STDOUT, bytes: Bytes::from_static(b"out") };
        assert_eq!(streams.take(data(5, b"out", true)), output);
        // Nothing comes after the end of a stream, and nothing of streams that there are not.
        assert_eq!(streams.take(data(5, b"late", false)), Step::Nothing);
        assert_eq!(streams.take(data(11, b"x", false)), Step::Nothing);
        assert_eq!(streams.take(data(1, SUCCESS, false)), Step::Nothing);
        assert_eq!(streams.take(reset(3)), Step::InputEnded);
        assert_eq!(streams.take(reset(1)), Step::Nothing);
        assert_eq!(streams.ending(), None, "stderr has not ended");
        assert_eq!(streams.take(reset(7)), Step::Nothing);
        assert_eq!(text(streams.ending()), r#"{"metadata":{},"status":"Success"}"#);
        assert_eq!(streams.take(Frame::Ping { id: 2 }), Step::Pinged(2));
        assert_eq!(streams.take(Frame::Ping { id: 1 }), Step::Nothing);
        assert_eq!(streams.take(Frame::Opened { stream: 2 }), Step::Refuse(2));
    }

    #[test]
    fn ends_that_are_none() {
        let mut streams = ready(ALL);
        streams.take(Frame::GoneAway);
        assert!(text(streams.ending()).contains("without saying how the command ended"));
        // An error stream that was ended without a word is a success; one that was broken off is not.
        for (last, expected) in [(data(1, b"", true), "Success"), (reset(1), "without saying")] {
            let mut streams = ready(StreamOptions { stdin: false, stderr: false, ..ALL });
            streams.take(reset(3));
            streams.take(last);
            assert!(text(streams.ending()).contains(expected));
        }
        let (mut streams, _) = Streams::open(ALL);
        streams.take(reset(3));
        assert!(text(streams.ending()).contains("refused one"));
        assert!(text(Some(Streams::open(ALL).0.lost())).contains("unable to create streams"));
        let mut streams = ready(ALL);
        let chunk = Bytes::from(vec![b'x'; 100_000]);
        for _ in 0..3 {
            streams.take(Frame::Data { stream: 1, bytes: chunk.clone(), fin: false });
        }
        assert!(text(streams.ending()).contains("too long"));
    }

    proptest! {
        /// In whatever order frames come: nothing panics, output goes to channels that were asked for.
        #[test]
        fn any_frames(frames in proptest::collection::vec((0..7u8, 1..12u32, any::<bool>()), 0..60)) {
            let (mut streams, _) = Streams::open(ALL);
            for (kind, stream, fin) in frames {
                let step = streams.take(match kind {
                    0 => Frame::Replied { stream, fin },
                    1 | 2 => data(stream, b"x", fin),
                    3 => reset(stream),
                    4 => Frame::Ping { id: stream },
                    5 => Frame::Opened { stream },
                    _ => Frame::GoneAway,
                });
                if let Step::Output { channel, .. } = step {
                    prop_assert!(channel == STDOUT || channel == STDERR);
                }
                let _ = streams.ending();
            }
        }
    }
}
