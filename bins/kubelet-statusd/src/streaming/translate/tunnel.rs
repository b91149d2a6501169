//! One port-forward: the bytes of a client's SPDY connection, which it sends in binary WebSocket messages, and the runtime's
//! SPDY connection. Nobody looks into them here.

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Timing;
use super::pipe::{Activity, ClientOutlet, Inlet, PONGS, with_signs_of_life};
use super::websocket::{self, Frame, close_code};

/// Carries bytes both ways until one side ends.
pub async fn serve<C, R>(client: C, runtime: R, timing: &Timing)
where
    C: AsyncRead + AsyncWrite,
    R: AsyncRead + AsyncWrite,
{
    let (read, write) = tokio::io::split(client);
    let (mut client_inlet, mut client_outlet) = (Inlet::new(read), ClientOutlet::new(write));
    let (read, mut runtime_write) = tokio::io::split(runtime);
    let mut runtime_inlet = Inlet::new(read);
    let (pongs, waiting_pongs) = mpsc::channel(PONGS);
    let (to_client, for_client) = mpsc::channel(1);
    let activity = Activity::now();
    let code = tokio::select! {
        biased;
        // Ends when the runtime's reader did and all of it was written.
        () = write_client(&mut client_outlet, for_client, waiting_pongs, &activity) => close_code::NORMAL,
        code = read_client(&mut client_inlet, &mut runtime_write, &pongs, &activity) => code,
        () = read_runtime(&mut runtime_inlet, to_client) => close_code::NORMAL,
        () = activity.idle(timing.idle) => close_code::NORMAL,
    };
    let runtime_ends = async {
        // What was written has to arrive, whatever the runtime still has to say.
        let _ = timeout(timing.drain, runtime_write.shutdown()).await;
        runtime_inlet.drain(timing.drain).await;
    };
    let client_ends = async {
        // It may be gone; then there is nobody to tell.
        let _ = timeout(timing.status, client_outlet.close(code)).await;
        client_inlet.drain(timing.drain).await;
    };
    tokio::join!(runtime_ends, client_ends);
}

/// Ends with the client, or with a runtime that takes nothing more.
async fn read_client(
    inlet: &mut Inlet<impl AsyncRead + Unpin>,
    runtime: &mut (impl AsyncWrite + Unpin),
    pongs: &mpsc::Sender<Bytes>,
    activity: &Activity,
) -> u16 {
    let mut decoder = websocket::Decoder::default();
    loop {
        match decoder.next(&mut inlet.buffer) {
            Ok(Some(Frame::Message { text: true, .. })) => return close_code::UNSUPPORTED,
            Ok(Some(Frame::Message { bytes, .. })) => {
                activity.seen();
                let writing = async {
                    runtime.write_all(&bytes).await?;
                    runtime.flush().await
                };
                if with_signs_of_life(writing, pongs).await.is_err() {
                    // What the runtime said before it ended is still to be told.
                    return std::future::pending().await;
                }
            }
            // Where many wait, the client gets one of them.
            Ok(Some(Frame::Ping(content))) => drop(pongs.try_send(content)),
            Ok(Some(Frame::Pong)) => {}
            Ok(Some(Frame::Close)) => return close_code::NORMAL,
            Ok(None) => {
                if !matches!(inlet.more().await, Ok(1..)) {
                    return close_code::NORMAL;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a client of a port-forward is cut off");
                return close_code::PROTOCOL_ERROR;
            }
        }
    }
}

/// Never ends; when there is nothing more, the sender is gone.
async fn read_runtime(inlet: &mut Inlet<impl AsyncRead + Unpin>, to_client: mpsc::Sender<Bytes>) {
    while matches!(inlet.more().await, Ok(1..)) {
        // Refused only when the writer has ended, which ends all.
        let _ = to_client.send(inlet.buffer.split().freeze()).await;
    }
    drop(to_client);
    std::future::pending().await
}

/// Ends when all was written, or the client is gone.
async fn write_client(
    outlet: &mut ClientOutlet<impl AsyncWrite + Unpin>,
    mut messages: mpsc::Receiver<Bytes>,
    mut pongs: mpsc::Receiver<Bytes>,
    activity: &Activity,
) {
    loop {
        let written = tokio::select! {
            biased;
            Some(content) = pongs.recv() => outlet.pong(&content).await,
            message = messages.recv() => match message {
                Some(bytes) => {
                    activity.seen();
                    outlet.message(None, bytes).await
                }
                None => return,
            },
        };
        if written.is_err() {
            return;
        }
    }
}
