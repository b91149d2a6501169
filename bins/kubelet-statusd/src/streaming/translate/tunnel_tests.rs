//! Port-forwards between a WebSocket client that is not ours and a runtime of which nobody knows what it says.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{Timing, tunnel};

const WIRE: usize = 64 << 10;

async fn begin() -> (WebSocketStream<DuplexStream>, DuplexStream, tokio::task::JoinHandle<()>) {
    let (far_client, near_client) = tokio::io::duplex(WIRE);
    let (far_runtime, near_runtime) = tokio::io::duplex(WIRE);
    let served = tokio::spawn(async move {
        let timing = Timing { drain: Duration::from_millis(10), ..Timing::new(Some(Duration::from_secs(60))) };
        tunnel::serve(near_client, near_runtime, &timing).await;
    });
    (WebSocketStream::from_raw_socket(far_client, Role::Client, None).await, far_runtime, served)
}

#[tokio::test]
async fn bytes_both_ways_and_the_runtimes_end() {
    let (client, runtime, served) = begin().await;
    let bytes: Vec<u8> = (0..4u32 << 20).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13).to_le_bytes()[0]).collect();
    let (mut sink, mut stream) = client.split();
    let (mut read, mut write) = tokio::io::split(runtime);
    let sending = async {
        for part in bytes.chunks(70_001) {
            sink.send(Message::binary(part.to_vec())).await.unwrap();
            sink.send(Message::Ping(Bytes::from_static(b"p"))).await.unwrap();
        }
    };
    let receiving = async {
        let (mut got, mut pongs) = (Vec::<u8>::new(), 0);
        while got.len() < bytes.len() {
            match stream.next().await.unwrap().unwrap() {
                Message::Binary(part) => got.extend(part),
                Message::Pong(_) => pongs += 1,
                other => panic!("{other:?}"),
            }
        }
        (got, pongs)
    };
    let echo = async {
        let mut buffer = vec![0; 10_000];
        let mut left = bytes.len();
        while left > 0 {
            let count = read.read(&mut buffer).await.unwrap();
            write.write_all(&buffer[..count]).await.unwrap();
            left -= count;
        }
    };
    let ((), (got, pongs), ()) = tokio::join!(sending, receiving, echo);
    assert!(got == bytes && pongs > 0);
    // The runtime says its last word and ends.
    write.write_all(b"last").await.unwrap();
    write.shutdown().await.unwrap();
    let mut last = Vec::new();
    loop {
        match stream.next().await.unwrap().unwrap() {
            Message::Binary(part) => last.extend(part),
            Message::Close(frame) => {
                assert_eq!(u16::from(frame.unwrap().code), 1000);
                break;
            }
            _ => {}
        }
    }
    assert_eq!(last, b"last");
    served.await.unwrap();
}

#[tokio::test]
async fn the_clients_end() {
    // All that it sent before arrives.
    let (mut client, mut runtime, served) = begin().await;
    client.send(Message::binary(b"last".to_vec())).await.unwrap();
    client.close(None).await.unwrap();
    let mut got = Vec::new();
    runtime.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"last");
    assert!(matches!(client.next().await, Some(Ok(Message::Close(_)))));
    served.await.unwrap();
    // Text carries no bytes of SPDY.
    for (bytes, code) in [(b"\x81\x81\0\0\0\0a".as_slice(), 1003u16), (b"\x82\x01a", 1002)] {
        let (client, mut runtime, served) = begin().await;
        let mut socket = client.into_inner();
        socket.write_all(bytes).await.unwrap();
        let mut last = [0; 4];
        socket.read_exact(&mut last).await.unwrap();
        assert_eq!(last[2..], code.to_be_bytes());
        assert_eq!(runtime.read(&mut [0; 1]).await.unwrap(), 0);
        served.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn sides_that_stall() {
    // A client that does not read.
    let (_client, mut runtime, _served) = begin().await;
    let mut taken = 0;
    while let Ok(Ok(())) = timeout(Duration::from_secs(1), runtime.write_all(&[0; 8 << 10])).await {
        taken += 8 << 10;
        assert!(taken < 2 * WIRE + (128 << 10), "{taken} bytes are held for a client that reads none");
    }
    // A runtime that does not read: the client hears that this side lives.
    let (client, _runtime, _served) = begin().await;
    let (mut sink, mut stream) = client.split();
    let mut sent = 0;
    while timeout(Duration::from_secs(1), sink.send(Message::binary(vec![0; 8 << 10]))).await.is_ok() {
        sent += 8 << 10;
        assert!(sent < 2 * WIRE + (256 << 10), "{sent} bytes are held for a runtime that reads none");
    }
    assert!(matches!(stream.next().await, Some(Ok(Message::Pong(_)))));
}

#[tokio::test(start_paused = true)]
async fn an_idle_tunnel_is_closed() {
    let (mut client, mut runtime, _served) = begin().await;
    assert!(matches!(client.next().await, Some(Ok(Message::Close(_)))));
    assert_eq!(runtime.read(&mut [0; 1]).await.unwrap(), 0);
}
