//! Floods and stalls of a gRPC socket. Each runs until the server ends it or it has done its amount; that it is ended
//! early is not an error, and what it was told does not matter: what counts is how the server fares.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::frames::{self, CONTINUATION, DATA, END_HEADERS, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, frame};

/// A method that every process serves.
pub const HELLO: &str = "/kubelet.common.v1.Process/Hello";
const METRICS: &str = "/kubelet.common.v1.Process/Metrics";
/// How long a write may wait for a server that does not read.
const STUCK: Duration = Duration::from_secs(1);

/// One way to be a nuisance. The number is the round, for what should differ.
pub type Flood = fn(&Path, u64) -> Result<()>;

/// All of them, by name.
pub const FLOODS: [(&str, Flood); 14] = [
    ("garbage", garbage),
    ("another protocol", another_protocol),
    ("pings", pings),
    ("settings", settings),
    ("rapid resets", rapid_resets),
    ("endless headers", endless_headers),
    ("giant headers", giant_headers),
    ("streams without end", streams_without_end),
    ("a gibibyte announced", announced),
    ("a gibibyte sent", sent),
    ("a byte now and then", trickle),
    ("answers never read", never_read),
    ("half closed", half_closed),
    ("frames that lie", lies),
];

fn connect(socket: &Path) -> Result<UnixStream> {
    let stream = UnixStream::connect(socket).context("connecting")?;
    stream.set_write_timeout(Some(STUCK))?;
    stream.set_read_timeout(Some(STUCK))?;
    Ok(stream)
}

/// Writes as long as the server takes it; false when it does not any more.
fn push(stream: &mut UnixStream, bytes: &[u8]) -> bool {
    stream.write_all(bytes).is_ok()
}

fn greeted(socket: &Path) -> Result<UnixStream> {
    let mut stream = connect(socket)?;
    push(&mut stream, PREFACE);
    Ok(stream)
}

/// The same piece again and again.
fn repeat(stream: &mut UnixStream, piece: &[u8], times: usize) {
    let many = piece.repeat(100);
    for _ in 0..times / 100 {
        if !push(stream, &many) {
            return;
        }
    }
}

fn garbage(socket: &Path, round: u64) -> Result<()> {
    let mut dice = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes: Vec<u8> = (0..100_000)
        .map(|_| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            dice.to_be_bytes()[0]
        })
        .collect();
    push(&mut connect(socket)?, &bytes);
    // After a good beginning it is read as frames.
    push(&mut greeted(socket)?, &bytes);
    Ok(())
}

fn another_protocol(socket: &Path, _: u64) -> Result<()> {
    push(&mut connect(socket)?, b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\n\r\n");
    push(&mut connect(socket)?, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    push(&mut connect(socket)?, &PREFACE[..10]);
    Ok(())
}

fn pings(socket: &Path, _: u64) -> Result<()> {
    repeat(&mut greeted(socket)?, &frame(PING, 0, 0, &[7; 8]), 100_000);
    Ok(())
}

fn settings(socket: &Path, round: u64) -> Result<()> {
    // The window of new streams, up and down: every stream's account would have to change.
    let window = [0, 4, 0, 0, u8::try_from(round % 100).unwrap_or(0), 1];
    repeat(&mut greeted(socket)?, &frame(SETTINGS, 0, 0, &window), 100_000);
    Ok(())
}

fn rapid_resets(socket: &Path, _: u64) -> Result<()> {
    let mut stream = greeted(socket)?;
    for id in (1..40_000).step_by(2) {
        let both = [frames::empty_call(METRICS, id), frame(RST_STREAM, 0, id, &[0, 0, 0, 8])].concat();
        if !push(&mut stream, &both) {
            break;
        }
    }
    Ok(())
}

fn endless_headers(socket: &Path, _: u64) -> Result<()> {
    let mut stream = greeted(socket)?;
    push(&mut stream, &frame(HEADERS, 0, 1, &frames::call(HELLO)));
    repeat(&mut stream, &frame(CONTINUATION, 0, 1, &frames::padding(1000)), 20_000);
    let mut stream = greeted(socket)?;
    push(&mut stream, &frame(HEADERS, 0, 1, &frames::call(HELLO)));
    repeat(&mut stream, &frame(CONTINUATION, 0, 1, &[]), 100_000);
    Ok(())
}

fn giant_headers(socket: &Path, _: u64) -> Result<()> {
    let mut stream = greeted(socket)?;
    for id in (1..200).step_by(2) {
        let mut block = frames::call(HELLO);
        block.extend(frames::padding(200_000));
        let mut pieces = block.chunks(16_000).peekable();
        let mut first = true;
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() { END_HEADERS } else { 0 };
            let kind = if std::mem::take(&mut first) { HEADERS } else { CONTINUATION };
            if !push(&mut stream, &frame(kind, flags, id, piece)) {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn streams_without_end(socket: &Path, _: u64) -> Result<()> {
    let mut stream = greeted(socket)?;
    for id in (1..20_000).step_by(2) {
        if !push(&mut stream, &frame(HEADERS, END_HEADERS, id, &frames::call(HELLO))) {
            break;
        }
    }
    Ok(())
}

/// The prefix of a message of 1 GiB, and a megabyte of it.
fn announced(socket: &Path, _: u64) -> Result<()> {
    let mut stream = greeted(socket)?;
    for id in (1..200).step_by(2) {
        push(&mut stream, &frame(HEADERS, END_HEADERS, id, &frames::call(HELLO)));
        push(&mut stream, &frame(DATA, 0, id, &[0, 0x40, 0, 0, 0]));
        repeat(&mut stream, &frame(DATA, 0, id, &[7; 1000]), 1000);
    }
    Ok(())
}

/// A message that is really as long, past the window that the server gave.
fn sent(socket: &Path, _: u64) -> Result<()> {
    let mut stream = greeted(socket)?;
    push(&mut stream, &frame(HEADERS, END_HEADERS, 1, &frames::call(HELLO)));
    push(&mut stream, &frame(DATA, 0, 1, &[0, 0x40, 0, 0, 0]));
    repeat(&mut stream, &frame(DATA, 0, 1, &[7; 16 * 1024]), 65_536);
    Ok(())
}

fn trickle(socket: &Path, _: u64) -> Result<()> {
    let started = Instant::now();
    let mut early = connect(socket)?;
    let mut late = greeted(socket)?;
    let call = frames::empty_call(HELLO, 1);
    for at in 0..PREFACE.len() {
        let still = [push(&mut early, &PREFACE[at..=at]), push(&mut late, call.get(at..=at).unwrap_or_default())];
        if !still.contains(&true) || started.elapsed() > Duration::from_secs(20) {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn never_read(socket: &Path, _: u64) -> Result<()> {
    let mut stream = greeted(socket)?;
    for id in (1..4000).step_by(2) {
        if !push(&mut stream, &frames::empty_call(METRICS, id)) {
            break;
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}

fn half_closed(socket: &Path, _: u64) -> Result<()> {
    let mut stream = greeted(socket)?;
    push(&mut stream, &frame(HEADERS, END_HEADERS, 1, &frames::call(HELLO)));
    stream.shutdown(Shutdown::Write)?;
    let _ = stream.read(&mut [0; 4096]);
    let stream = connect(socket)?;
    stream.shutdown(Shutdown::Read)?;
    Ok(())
}

fn lies(socket: &Path, _: u64) -> Result<()> {
    for bytes in [
        // A frame longer than any may be; SETTINGS of a length that none has; a window of 2^31; DATA on no stream;
        // padding longer than its frame; a stream that depends on itself.
        vec![0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1],
        frame(SETTINGS, 0, 0, &[1, 2, 3]),
        frame(SETTINGS, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff]),
        frame(DATA, 0, 0, b"x"),
        frame(DATA, 8, 1, &[200, 1]),
        frame(2, 0, 1, &[0, 0, 0, 1, 9]),
        frame(8, 0, 0, &[0xff; 4]),
        frame(5, 0, 1, &[0; 8]),
        frame(HEADERS, END_HEADERS, 2, &frames::call(HELLO)),
        frame(HEADERS, END_HEADERS, 1, &[0xff; 100]),
        frame(PING, 0, 1, &[0; 8]),
        frame(7, 0, 0, &[0; 8]),
    ] {
        let mut stream = greeted(socket)?;
        push(&mut stream, &bytes);
        let _ = stream.read(&mut [0; 4096]);
    }
    Ok(())
}

/// Opens so many connections and holds them until it is told to let go; how many could be made.
///
/// # Errors
/// None could.
pub fn hold_connections(socket: &Path, number: usize, hold: impl FnOnce()) -> Result<usize> {
    let mut held = Vec::new();
    for _ in 0..number {
        match UnixStream::connect(socket) {
            Ok(stream) => held.push(stream),
            // Out of descriptors of our own, or a full backlog.
            Err(error) if held.is_empty() => return Err(error).context("not a single connection"),
            Err(_) => break,
        }
    }
    hold();
    Ok(held.len())
}
