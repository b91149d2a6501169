//! Remote commands between a WebSocket client that is not ours and a runtime that does what runtimes do, and worse.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::super::options::StreamOptions;
use super::fake_runtime::{FakeRuntime, Seen};
use super::{Timing, remote_command, spdy};

const ALL: StreamOptions = StreamOptions { stdin: true, stdout: true, stderr: true, tty: false };
const OUTPUT: StreamOptions = StreamOptions { stdin: false, stderr: false, ..ALL };
const SUCCESS: &str = r#"{"metadata":{},"status":"Success"}"#;
/// What fits into a connection of these tests.
const WIRE: usize = 64 << 10;

type Client = WebSocketStream<DuplexStream>;

struct Command {
    client: Client,
    runtime: FakeRuntime,
    code: JoinHandle<&'static str>,
}

fn timing() -> Timing {
    Timing::new(Some(Duration::from_secs(4 * 3600)))
}

/// Both ends of what is between them, the client greeted.
async fn begin(options: StreamOptions, timing: Timing) -> Command {
    let (far_client, near_client) = tokio::io::duplex(WIRE);
    let (far_runtime, near_runtime) = tokio::io::duplex(WIRE);
    let code = tokio::spawn(async move {
        remote_command::serve(near_client, async { Ok::<_, String>(near_runtime) }, options, &timing).await
    });
    let mut client = Client::from_raw_socket(far_client, Role::Client, None).await;
    let greeting = message(&mut client).await.unwrap();
    assert_eq!(greeting.as_ref(), [super::streams::greeting(options)]);
    Command { client, runtime: FakeRuntime::new(far_runtime), code }
}

/// The next binary message; the code of a close.
async fn message(client: &mut Client) -> Result<Bytes, Option<u16>> {
    loop {
        match client.next().await {
            Some(Ok(Message::Binary(bytes))) => return Ok(bytes),
            Some(Ok(Message::Close(frame))) => return Err(frame.map(|frame| frame.code.into())),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return Err(None),
        }
    }
}

async fn send(client: &mut Client, channel: u8, bytes: &[u8]) {
    client.send(Message::binary([&[channel], bytes].concat())).await.unwrap();
}

/// All that the client gets to the end, by channel, and the close's code.
async fn rest(client: &mut Client) -> ([Vec<u8>; 4], Option<u16>) {
    let mut channels: [Vec<u8>; 4] = Default::default();
    loop {
        match message(client).await {
            Ok(bytes) => channels[usize::from(bytes[0])].extend(&bytes[1..]),
            Err(code) => return (channels, code),
        }
    }
}

/// Bytes in which no place is like another.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13).to_le_bytes()[0]).collect()
}

#[tokio::test]
async fn a_command_with_all_streams() {
    let Command { mut client, mut runtime, code } = begin(ALL, timing()).await;
    // Sent before the runtime took the streams: it would throw it away.
    send(&mut client, 0, b"early ").await;
    runtime.take(&["error", "stdin", "stdout", "stderr"]).await;
    // Channels that are the server's, or that there are not, and text for bytes.
    send(&mut client, 2, b"x").await;
    send(&mut client, 9, b"x").await;
    send(&mut client, 4, b"{}").await;
    client.send(Message::text("\0text")).await.unwrap();
    client.send(Message::binary(vec![])).await.unwrap();
    client.send(Message::binary(vec![255, 0])).await.unwrap();
    send(&mut client, 0, b"late").await;
    let id = runtime.id("stdin");
    assert_eq!(runtime.see().await, Seen::Data { id, bytes: b"early ".into(), fin: false });
    assert_eq!(runtime.see().await, Seen::Data { id, bytes: b"text".into(), fin: false });
    assert_eq!(runtime.see().await, Seen::Data { id, bytes: vec![], fin: true });
    runtime.say("stdout", b"out", true).await;
    runtime.say("stderr", b"err", false).await;
    runtime
        .end(
            r#"{"status":"Failure","message":"command terminated with non-zero exit code: exit status 42","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"42"}]}}"#,
        )
        .await;
    let ([_, out, err, status], close) = rest(&mut client).await;
    assert_eq!((out.as_slice(), err.as_slice(), close), (b"out".as_slice(), b"err".as_slice(), Some(1000)));
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["details"]["causes"][0]["message"], "42");
    assert_eq!(status["reason"], "NonZeroExitCode");
    // Nothing that the client sent late reached the runtime.
    assert_eq!(runtime.see_data().await, Seen::End);
    drop(client);
    assert_eq!(code.await.unwrap(), "200");
}

#[tokio::test]
async fn a_terminal_has_sizes_and_one_output() {
    let options = StreamOptions { tty: true, ..ALL };
    let Command { mut client, mut runtime, .. } = begin(options, timing()).await;
    runtime.take(&["error", "stdin", "stdout", "resize"]).await;
    send(&mut client, 4, br#"{"Width":80,"Height":24}"#).await;
    let bytes = br#"{"Width":80,"Height":24}"#.to_vec();
    assert_eq!(runtime.see().await, Seen::Data { id: runtime.id("resize"), bytes, fin: false });
    runtime.end(SUCCESS).await;
    let ([.., status], close) = rest(&mut client).await;
    assert_eq!((status.as_slice(), close), (SUCCESS.as_bytes(), Some(1000)));
}

/// What runtimes do wrong, and what the client hears of it.
#[tokio::test(start_paused = true)]
async fn faults_of_the_runtime() {
    let go_away = b"\x80\x03\0\x07\0\0\0\x08\0\0\0\0\0\0\0\0";
    for (fault, words) in [
        (b"".as_slice(), "ended the stream without saying how the command ended"),
        (go_away, "ended the stream without saying how the command ended"),
        // Half a frame.
        (b"\0\0\0\x03\0\0\0\x09abc", "ended the stream without saying"),
        (b"\x80\x02\0\x06\0\0\0\x04\0\0\0\x02", "SPDY frame of version 2"),
        (b"GET / HTTP/1.1\r\n", "ended the stream without saying"),
        (b"\0\0\0\0\0\0\0\0", "SPDY data for stream 0"),
    ] {
        let Command { mut client, mut runtime, code } = begin(OUTPUT, timing()).await;
        runtime.take(&["error", "stdout"]).await;
        runtime.say("stdout", b"before", false).await;
        runtime.raw(fault).await;
        drop(runtime);
        let ([_, out, _, status], close) = rest(&mut client).await;
        let status = String::from_utf8(status).unwrap();
        assert!(status.contains(words), "{fault:?}: {status}");
        assert!(status.contains(r#""reason":"InternalError""#) && close == Some(1000));
        assert!(out.starts_with(b"before"), "what came before is told");
        drop(client);
        assert_eq!(code.await.unwrap(), "500");
    }
    // It breaks off the streams and says nothing.
    let Command { mut client, mut runtime, .. } = begin(OUTPUT, timing()).await;
    runtime.take(&["error", "stdout"]).await;
    runtime.reset("stdout").await;
    runtime.reset("error").await;
    assert!(String::from_utf8(rest(&mut client).await.0[3].clone()).unwrap().contains("without saying"));
    // It takes nothing, for ever.
    let begun = Instant::now();
    let Command { mut client, runtime: _silent, .. } = begin(OUTPUT, timing()).await;
    assert!(String::from_utf8(rest(&mut client).await.0[3].clone()).unwrap().contains("did not answer in time"));
    assert_eq!(begun.elapsed().as_secs(), 30);
}

#[tokio::test]
async fn no_runtime_at_all() {
    let (far, near) = tokio::io::duplex(WIRE);
    let code = tokio::spawn(async move {
        let connect = async { Err::<DuplexStream, _>("unable to upgrade connection: gone".to_owned()) };
        remote_command::serve(near, connect, OUTPUT, &timing()).await
    });
    let mut client = Client::from_raw_socket(far, Role::Client, None).await;
    let ([.., status], close) = rest(&mut client).await;
    assert_eq!(
        String::from_utf8(status).unwrap(),
        r#"{"metadata":{},"status":"Failure","message":"Internal error occurred: unable to upgrade connection: gone","reason":"InternalError","details":{"causes":[{"message":"unable to upgrade connection: gone"}]},"code":500}"#
    );
    assert_eq!(close, Some(1000));
    drop(client);
    assert_eq!(code.await.unwrap(), "500");
}

/// 16 MiB each way at once, through connections that hold 64 KiB; one frame of the runtime is as long as a frame can be.
#[tokio::test]
async fn no_byte_is_lost() {
    let Command { client, mut runtime, code } = begin(ALL, timing()).await;
    runtime.take(&["error", "stdin", "stdout", "stderr"]).await;
    let (sent, said) = (pattern(16 << 20), pattern(spdy::MAX_PAYLOAD));
    let (mut sink, mut stream) = client.split();
    let sending = async {
        // In messages of all sizes, one of 4 MiB.
        let (first, rest) = sent.split_at(4 << 20);
        sink.send(Message::binary([&[0], first].concat())).await.unwrap();
        for (part, size) in rest.chunks(30_011).zip(0u64..) {
            sink.send(Message::binary([&[0], part].concat())).await.unwrap();
            if size % 100 == 0 {
                sink.send(Message::Ping(Bytes::from_static(b"alive?"))).await.unwrap();
            }
        }
        sink.send(Message::binary(vec![255, 0])).await.unwrap();
        sink
    };
    let receiving = async {
        let (mut out, mut pongs, mut last) = (Vec::<u8>::new(), 0, Vec::new());
        while let Some(Ok(message)) = stream.next().await {
            match message {
                Message::Binary(bytes) if bytes[0] == 1 => out.extend(&bytes[1..]),
                Message::Binary(bytes) => last = bytes[1..].to_vec(),
                Message::Pong(_) => pongs += 1,
                _ => break,
            }
        }
        (out, pongs, last)
    };
    let (runtime_read, mut runtime_write) = tokio::io::split(runtime.io);
    let speaking = async {
        runtime_write.write_all(&spdy::data_head(5, said.len(), true)).await.unwrap();
        runtime_write.write_all(&said).await.unwrap();
        runtime_write
    };
    let hearing = async {
        let (mut read, mut heard) = (runtime_read, Vec::new());
        loop {
            let mut head = [0; 8];
            read.read_exact(&mut head).await.unwrap();
            let mut bytes = vec![0; usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7])];
            read.read_exact(&mut bytes).await.unwrap();
            if head[..4] == [0, 0, 0, 3] {
                heard.extend(bytes);
                if head[4] == 1 {
                    return (heard, read);
                }
            }
        }
    };
    let ends = async {
        let (mut runtime_write, (heard, read)) = tokio::join!(speaking, hearing);
        assert!(heard == sent, "{} of {} bytes", heard.len(), sent.len());
        // stderr ends, then the status, then all.
        let mut end = bytes::BytesMut::new();
        spdy::put_reset(&mut end, 7, spdy::CANCEL);
        end.extend_from_slice(&spdy::data_head(1, SUCCESS.len(), true));
        end.extend_from_slice(SUCCESS.as_bytes());
        runtime_write.write_all(&end).await.unwrap();
        read
    };
    let (_sink, (out, pongs, last), _read) = tokio::join!(sending, receiving, ends);
    assert!(out == said, "{} of {} bytes", out.len(), said.len());
    assert_eq!(last, SUCCESS.as_bytes());
    assert!(pongs > 0);
    assert_eq!(code.await.unwrap(), "200");
}

/// A client that does not read holds up the runtime soon, and gets every byte in the end; what it sends goes on.
#[tokio::test(start_paused = true)]
async fn a_client_that_stalls() {
    let Command { mut client, mut runtime, .. } = begin(ALL, timing()).await;
    runtime.take(&["error", "stdin", "stdout", "stderr"]).await;
    let said = pattern(1 << 20);
    let mut taken = 0;
    for part in said.chunks(8 << 10) {
        if timeout(Duration::from_secs(1), runtime.say("stdout", part, false)).await.is_err() {
            break;
        }
        taken += part.len();
    }
    assert!(taken < 2 * WIRE + (128 << 10), "{taken} bytes are held for a client that reads none");
    send(&mut client, 0, b"still here").await;
    let Seen::Data { bytes, .. } = runtime.see_data().await else { panic!("no input") };
    assert_eq!(bytes, b"still here");
    let mut seen = 0;
    while seen < taken {
        let bytes = message(&mut client).await.unwrap();
        assert_eq!(&bytes[1..], &said[seen..seen + bytes.len() - 1]);
        seen += bytes.len() - 1;
    }
}

/// A command that does not read its input is held up in that alone: output goes on, and the client hears that we live.
#[tokio::test(start_paused = true)]
async fn a_command_that_does_not_read() {
    let Command { client, mut runtime, .. } = begin(ALL, timing()).await;
    runtime.take(&["error", "stdin", "stdout", "stderr"]).await;
    let (mut sink, mut stream) = client.split();
    let mut sent = 0;
    while timeout(Duration::from_secs(1), sink.send(Message::binary(vec![0; 8 << 10]))).await.is_ok() {
        sent += 8 << 10;
        assert!(sent < 2 * WIRE + (256 << 10), "{sent} bytes are held for a command that reads none");
    }
    runtime.say("stdout", b"all the same", false).await;
    let mut pongs = 0;
    let begun = Instant::now();
    let mut output = false;
    while begun.elapsed() < Duration::from_secs(60) {
        match timeout(Duration::from_secs(1), stream.next()).await {
            Ok(Some(Ok(Message::Pong(_)))) => pongs += 1,
            Ok(Some(Ok(Message::Binary(bytes)))) => output = bytes.as_ref() == b"\x01all the same",
            Ok(other) => panic!("{other:?}"),
            Err(_) => {}
        }
    }
    assert!(output && pongs >= 10, "{output} {pongs}");
    // It ends without having read.
    runtime.end(SUCCESS).await;
    let last = loop {
        match stream.next().await {
            Some(Ok(Message::Pong(_))) => {}
            other => break other,
        }
    };
    assert_eq!(last.unwrap().unwrap().into_data().as_ref(), [&[3], SUCCESS.as_bytes()].concat());
}

#[tokio::test]
async fn input_that_the_command_no_longer_wants() {
    let Command { mut client, mut runtime, .. } = begin(ALL, timing()).await;
    runtime.take(&["error", "stdin", "stdout", "stderr"]).await;
    let id = runtime.id("stdin");
    runtime.say("stdin", b"", true).await;
    assert_eq!(runtime.see_data().await, Seen::Data { id, bytes: vec![], fin: true });
    for _ in 0..100 {
        send(&mut client, 0, &[0; 4096]).await;
    }
    client.send(Message::binary(vec![255, 0])).await.unwrap();
    runtime.say("stdout", b"done", true).await;
    runtime.end(SUCCESS).await;
    let ([_, out, _, status], close) = rest(&mut client).await;
    assert_eq!((out.as_slice(), status.as_slice(), close), (b"done".as_slice(), SUCCESS.as_bytes(), Some(1000)));
    assert_eq!(runtime.see_data().await, Seen::End);
}

#[tokio::test]
async fn clients_that_leave() {
    // With a word, and without.
    for close in [true, false] {
        let Command { mut client, mut runtime, code } = begin(ALL, timing()).await;
        runtime.take(&["error", "stdin", "stdout", "stderr"]).await;
        if close {
            client.close(None).await.unwrap();
            assert_eq!(message(&mut client).await, Err(Some(1000)));
        }
        drop(client);
        assert_eq!(runtime.see_data().await, Seen::End);
        assert_eq!(code.await.unwrap(), "200");
    }
    // With what no client may send.
    for bytes in [b"\x82\x03abc".as_slice(), b"\x82\x81\0\0\0\0\xff", b"\x82\x82\0\0\0\0\xff\x09", b"\xff\xff\xff\xff"]
    {
        let Command { client, mut runtime, .. } = begin(ALL, timing()).await;
        runtime.take(&["error", "stdin", "stdout", "stderr"]).await;
        let mut socket = client.into_inner();
        socket.write_all(bytes).await.unwrap();
        let mut last = [0; 4];
        socket.read_exact(&mut last).await.unwrap();
        assert_eq!(last, [0x88, 2, 0x03, 0xea], "{bytes:?}");
        assert_eq!(runtime.see_data().await, Seen::End);
    }
}

#[tokio::test(start_paused = true)]
async fn pings_and_idle_streams() {
    let timing = Timing::new(Some(Duration::from_secs(60)));
    let Command { mut client, mut runtime, code } = begin(ALL, timing).await;
    runtime.take(&["error", "stdin", "stdout", "stderr"]).await;
    runtime.raw(b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x08").await;
    // A stream of the runtime's is refused.
    runtime.raw(b"\x80\x03\0\x01\0\0\0\x0a\0\0\0\x02\0\0\0\0\0\0").await;
    assert_eq!(runtime.see().await, Seen::Ping(8));
    assert_eq!(runtime.see().await, Seen::Reset(2));
    let begun = Instant::now();
    for id in [1, 3, 5] {
        assert_eq!(runtime.see().await, Seen::Ping(id));
    }
    assert_eq!(begun.elapsed().as_secs(), 15);
    client.send(Message::Ping(Bytes::from_static(b"?"))).await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::Pong(Bytes::from_static(b"?")));
    // Input is no idleness; pings are.
    sleep(Duration::from_secs(30)).await;
    send(&mut client, 0, b"x").await;
    sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    let pinging = async {
        loop {
            if client.send(Message::Ping(Bytes::new())).await.is_err() {
                std::future::pending::<()>().await;
            }
            if let Ok(last) = timeout(Duration::from_secs(5), message(&mut client)).await {
                return last;
            }
        }
    };
    let last = pinging.await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 59);
    assert!(String::from_utf8_lossy(&last).contains("idle for too long"), "{last:?}");
    assert_eq!(message(&mut client).await, Err(Some(1000)));
    drop(client);
    assert_eq!(code.await.unwrap(), "500");
}
