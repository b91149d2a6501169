//! A container runtime's end of a SPDY connection, for tests: reads frames by a parser of its own, and headers as a strict
//! peer does.

use flate2::Decompress;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::spdy;

/// What came from our side.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Stream { id: u32, name: String },
    Data { id: u32, bytes: Vec<u8>, fin: bool },
    Reset(u32),
    Ping(u32),
    End,
}

#[derive(Debug)]
pub(super) struct FakeRuntime {
    pub(super) io: DuplexStream,
    inflate: Decompress,
    streams: Vec<(String, u32)>,
}

impl FakeRuntime {
    pub(super) fn new(io: DuplexStream) -> Self {
        FakeRuntime { io, inflate: Decompress::new(true), streams: Vec::new() }
    }

    pub(super) fn id(&self, name: &str) -> u32 {
        self.streams.iter().find(|(of, _)| of == name).unwrap_or_else(|| panic!("no stream {name}")).1
    }

    pub(super) async fn see(&mut self) -> Seen {
        let mut head = [0; 8];
        if self.io.read_exact(&mut head).await.is_err() {
            return Seen::End;
        }
        let length = usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
        let mut bytes = vec![0; length];
        self.io.read_exact(&mut bytes).await.unwrap();
        let number = |from: usize| u32::from_be_bytes(bytes[from..from + 4].try_into().unwrap());
        match [head[0], head[1], head[2], head[3]] {
            [0x80, 3, 0, 1] => {
                let headers = spdy::peer::headers(&mut self.inflate, &bytes[10..]).unwrap();
                assert_eq!(headers.len(), 1);
                assert_eq!(headers[0].0, "streamtype");
                Seen::Stream { id: number(0), name: headers[0].1.clone() }
            }
            [0x80, 3, 0, 3] => Seen::Reset(number(0)),
            [0x80, 3, 0, 6] => Seen::Ping(number(0)),
            [first, ..] if first & 0x80 != 0 => panic!("frame of kind {head:?}"),
            id => Seen::Data { id: u32::from_be_bytes(id), bytes, fin: head[4] & 1 != 0 },
        }
    }

    /// What comes next that is no ping.
    pub(super) async fn see_data(&mut self) -> Seen {
        loop {
            match self.see().await {
                Seen::Ping(_) => {}
                other => return other,
            }
        }
    }

    /// Takes these streams, in this order.
    pub(super) async fn take(&mut self, names: &[&str]) {
        for expected in names {
            let Seen::Stream { id, name } = self.see_data().await else { panic!("no stream {expected}") };
            assert_eq!(name, *expected);
            self.streams.push((name, id));
        }
        for (_, id) in self.streams.clone() {
            // With headers that nobody reads.
            self.raw(&[&[0x80, 3, 0, 2, 0, 0, 0, 9], id.to_be_bytes().as_slice(), b"block"].concat()).await;
        }
    }

    pub(super) async fn raw(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.unwrap();
    }

    pub(super) async fn say(&mut self, name: &str, bytes: &[u8], fin: bool) {
        let head = spdy::data_head(self.id(name), bytes.len(), fin);
        self.raw(&head).await;
        self.raw(bytes).await;
    }

    pub(super) async fn reset(&mut self, name: &str) {
        let mut frame = bytes::BytesMut::new();
        spdy::put_reset(&mut frame, self.id(name), spdy::CANCEL);
        self.raw(&frame).await;
    }

    /// The status of a command, and the end as runtimes make it: all streams reset, and gone.
    pub(super) async fn end(&mut self, status: &str) {
        self.say("error", status.as_bytes(), false).await;
        let mut frames = bytes::BytesMut::new();
        for (_, id) in &self.streams {
            spdy::put_reset(&mut frames, *id, spdy::CANCEL);
        }
        spdy::put_go_away(&mut frames, 0);
        self.raw(&frames).await;
    }
}
