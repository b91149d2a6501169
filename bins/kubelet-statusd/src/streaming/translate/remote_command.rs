//! One remote command: a client's WebSocket in `v5.channel.k8s.io` on one side, the runtime's SPDY streams on the other.
//!
//! Four parts take turns in one task: two read, two write, and each reader hands a writer one piece at a time. So a side
//! that does not read holds up what goes to it and nothing else; answers to pings go past what is held up. What is kept of
//! a stream that stands still is a few buffers of at most 32 KiB.

use bytes::{Buf as _, Bytes, BytesMut};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::super::options::StreamOptions;
use super::channels::{Channels, Input, RESIZE, STATUS, STDIN};
use super::pipe::{Activity, ClientOutlet, Inlet, PONGS, with_signs_of_life};
use super::status::{self, Ending};
use super::streams::{Step, Streams, greeting};
use super::websocket::{self, close_code};
use super::{Timing, spdy};

/// Pings and answers that may wait for the runtime's writer; more are left out.
const CONTROLS: usize = 8;
/// The code that is counted for a client that left.
const CLIENT_LEFT: &str = "200";

/// What the client's writer is given.
enum ToClient {
    Output { channel: u8, bytes: Bytes },
    Last(Ending),
}

/// What the runtime's writer is given, besides input.
enum Control {
    /// A ping of ours, or the answer to one of theirs.
    Ping(u32),
    Refuse(u32),
}

/// A piece of the client's input. `end`: the client sends no more.
struct Piece {
    stream: u32,
    bytes: Bytes,
    end: bool,
}

/// Whether the command still reads.
#[derive(Default)]
struct InputState {
    ended: AtomicBool,
    told: Notify,
}

impl InputState {
    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.told.notify_one();
    }

    fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }
}

/// Why a client is no longer read.
enum Left {
    /// It closed, or its connection ended.
    Gone,
    /// It sent what no client may send.
    Broke(String),
}

/// Serves one command until both sides know how it ended, or one is gone. `connect` gives the SPDY connection once the
/// client knows that it is connected. The result is the code to count.
pub async fn serve<C, R, F>(client: C, connect: F, options: StreamOptions, timing: &Timing) -> &'static str
where
    C: AsyncRead + AsyncWrite,
    R: AsyncRead + AsyncWrite,
    F: Future<Output = Result<R, String>>,
{
    let (read, write) = tokio::io::split(client);
    let (mut inlet, mut outlet) = (Inlet::new(read), ClientOutlet::new(write));
    if let Err(error) = outlet.message(Some(greeting(options)), Bytes::new()).await {
        tracing::debug!(%error, "the client left before it was greeted");
        return CLIENT_LEFT;
    }
    let code = match connect.await {
        Ok(runtime) => translate(&mut inlet, &mut outlet, runtime, options, timing).await,
        Err(message) => {
            let ending = status::failure(&message);
            say_ending(&mut outlet, &ending, timing).await.map_or(CLIENT_LEFT, |()| ending.code)
        }
    };
    inlet.drain(timing.drain).await;
    code
}

async fn translate<C, R>(
    inlet: &mut Inlet<C>,
    outlet: &mut ClientOutlet<impl AsyncWrite + Unpin>,
    runtime: R,
    options: StreamOptions,
    timing: &Timing,
) -> &'static str
where
    C: AsyncRead + Unpin,
    R: AsyncRead + AsyncWrite,
{
    let (read, write) = tokio::io::split(runtime);
    let (streams, opening) = Streams::open(options);
    let (to_client, for_client) = mpsc::channel(1);
    let (to_runtime, for_runtime) = mpsc::channel(1);
    let (pongs, waiting_pongs) = mpsc::channel(PONGS);
    let (controls, waiting_controls) = mpsc::channel(CONTROLS);
    let (ready, is_ready) = oneshot::channel();
    let (activity, input) = (Activity::now(), InputState::default());
    let inputs = Inputs { stdin: streams.input(STDIN), resize: streams.input(RESIZE) };

    let left = {
        let runtime_reader = async {
            let ending = read_runtime(Inlet::new(read), streams, &to_client, &controls, &input, ready, timing).await;
            // Refused only when the writer has ended, which ends all.
            let _ = to_client.send(ToClient::Last(ending)).await;
            std::future::pending::<()>().await;
        };
        let client_reader = async {
            if is_ready.await.is_err() {
                std::future::pending::<()>().await;
            }
            read_client(inlet, &inputs, &to_runtime, &pongs, &input, &activity).await
        };
        tokio::select! {
            biased;
            written = write_client(outlet, for_client, waiting_pongs, &activity, timing) => match written {
                Ok(code) => return code,
                Err(error) => Left::Broke(error.to_string()),
            },
            () = runtime_reader => Left::Gone,
            left = client_reader => left,
            () = write_runtime(write, opening, for_runtime, waiting_controls, inputs.stdin, &input) => Left::Gone,
            () = pings(&controls, timing) => Left::Gone,
            () = activity.idle(timing.idle) => {
                let ending = status::failure("the stream was idle for too long");
                return if outlet.is_whole() && say_ending(outlet, &ending, timing).await.is_ok() { ending.code } else { CLIENT_LEFT };
            }
        }
    };
    let code = match left {
        Left::Gone => close_code::NORMAL,
        Left::Broke(why) => {
            tracing::debug!(why, "a client of a remote command is cut off");
            close_code::PROTOCOL_ERROR
        }
    };
    // It may be gone; then there is nobody to tell.
    let _ = timeout(timing.status, outlet.close(code)).await;
    CLIENT_LEFT
}

/// Streams that the client's input goes to, if somebody asked for them.
struct Inputs {
    stdin: Option<u32>,
    resize: Option<u32>,
}

async fn read_client(
    inlet: &mut Inlet<impl AsyncRead + Unpin>,
    inputs: &Inputs,
    to_runtime: &mpsc::Sender<Piece>,
    pongs: &mpsc::Sender<Bytes>,
    input: &InputState,
    activity: &Activity,
) -> Left {
    let (mut decoder, mut channels) = (websocket::Decoder::default(), Channels::default());
    let mut stdin_closed = false;
    loop {
        let frame = match decoder.next(&mut inlet.buffer) {
            Ok(Some(frame)) => frame,
            Ok(None) => match inlet.more().await {
                Ok(1..) => continue,
                Ok(0) | Err(_) => return Left::Gone,
            },
            Err(error) => return Left::Broke(error.to_string()),
        };
        let said = match frame {
            // Text is taken for bytes, as upstream's library does.
            websocket::Frame::Message { bytes, end, .. } => {
                activity.seen();
                channels.take(bytes, end)
            }
            websocket::Frame::Ping(content) => {
                // Where many wait, the client gets one of them.
                let _ = pongs.try_send(content);
                continue;
            }
            websocket::Frame::Pong => continue,
            websocket::Frame::Close => return Left::Gone,
        };
        let piece = match said {
            Ok(Some(Input::Data { channel: STDIN, bytes })) if !stdin_closed => {
                inputs.stdin.map(|stream| Piece { stream, bytes, end: false })
            }
            Ok(Some(Input::Data { channel: RESIZE, bytes })) => {
                inputs.resize.map(|stream| Piece { stream, bytes, end: false })
            }
            Ok(Some(Input::Closed(STDIN))) if !stdin_closed => {
                stdin_closed = true;
                inputs.stdin.map(|stream| Piece { stream, bytes: Bytes::new(), end: true })
            }
            // Channels that nobody asked for, or that are the server's.
            Ok(_) => None,
            Err(error) => return Left::Broke(error.to_string()),
        };
        let Some(piece) = piece else { continue };
        if Some(piece.stream) == inputs.stdin && !input.is_open() {
            continue;
        }
        // The writer takes pieces until all ends, also when the runtime is gone.
        let _ = with_signs_of_life(to_runtime.send(piece), pongs).await;
    }
}

/// Ends with the last message.
async fn write_client(
    outlet: &mut ClientOutlet<impl AsyncWrite + Unpin>,
    mut messages: mpsc::Receiver<ToClient>,
    mut pongs: mpsc::Receiver<Bytes>,
    activity: &Activity,
    timing: &Timing,
) -> io::Result<&'static str> {
    loop {
        tokio::select! {
            biased;
            Some(content) = pongs.recv() => outlet.pong(&content).await?,
            Some(message) = messages.recv() => match message {
                ToClient::Output { channel, bytes } => {
                    outlet.message(Some(channel), bytes).await?;
                    activity.seen();
                }
                ToClient::Last(ending) => return say_ending(outlet, &ending, timing).await.map(|()| ending.code),
            },
        }
    }
}

/// The status, and the end.
async fn say_ending(
    outlet: &mut ClientOutlet<impl AsyncWrite + Unpin>,
    ending: &Ending,
    timing: &Timing,
) -> io::Result<()> {
    let said = async {
        outlet.message(Some(STATUS), Bytes::copy_from_slice(&ending.status)).await?;
        outlet.close(close_code::NORMAL).await
    };
    timeout(timing.status, said).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Ends with how the command ended.
async fn read_runtime(
    mut inlet: Inlet<impl AsyncRead + Unpin>,
    mut streams: Streams,
    to_client: &mpsc::Sender<ToClient>,
    controls: &mpsc::Sender<Control>,
    input: &InputState,
    ready: oneshot::Sender<()>,
    timing: &Timing,
) -> Ending {
    let (mut decoder, mut ready) = (spdy::Decoder::default(), Some(ready));
    let opened_until = Instant::now() + timing.open;
    loop {
        match decoder.next(&mut inlet.buffer) {
            Ok(Some(frame)) => match streams.take(frame) {
                Step::Output { channel, bytes } => {
                    // Refused only when the writer has ended, which ends all.
                    let _ = to_client.send(ToClient::Output { channel, bytes }).await;
                }
                Step::Ready => {
                    let _ = ready.take().map(|ready| ready.send(()));
                }
                Step::InputEnded => input.end(),
                // Where many wait, the runtime gets some of them.
                Step::Pinged(id) => drop(controls.try_send(Control::Ping(id))),
                Step::Refuse(stream) => drop(controls.try_send(Control::Refuse(stream))),
                Step::Nothing => {}
            },
            Ok(None) => {
                let more = if streams.is_ready() {
                    inlet.more().await
                } else {
                    match timeout_at(opened_until, inlet.more()).await {
                        Ok(more) => more,
                        Err(_) => {
                            return status::failure(
                                "unable to create streams: the container runtime did not answer in time",
                            );
                        }
                    }
                };
                if !matches!(more, Ok(1..)) {
                    return streams.lost();
                }
            }
            Err(error) => return status::failure(&error.to_string()),
        }
        if let Some(ending) = streams.ending() {
            return ending;
        }
    }
}

/// Never ends: a runtime that takes nothing more may still have something to say.
async fn write_runtime(
    write: impl AsyncWrite + Unpin,
    opening: BytesMut,
    mut pieces: mpsc::Receiver<Piece>,
    mut controls: mpsc::Receiver<Control>,
    stdin: Option<u32>,
    input: &InputState,
) {
    let error = match feed_runtime(write, opening, &mut pieces, &mut controls, stdin, input).await {
        Ok(never) => match never {},
        Err(error) => error,
    };
    tracing::debug!(%error, "the container runtime takes nothing more");
    loop {
        tokio::select! {
            Some(_) = pieces.recv() => {}
            Some(_) = controls.recv() => {}
            else => return std::future::pending().await,
        }
    }
}

async fn feed_runtime(
    mut write: impl AsyncWrite + Unpin,
    opening: BytesMut,
    pieces: &mut mpsc::Receiver<Piece>,
    controls: &mut mpsc::Receiver<Control>,
    stdin: Option<u32>,
    input: &InputState,
) -> io::Result<std::convert::Infallible> {
    write.write_all(&opening).await?;
    drop(opening);
    write.flush().await?;
    let mut stdin_ended = false;
    loop {
        let mut out = BytesMut::new();
        let piece = tokio::select! {
            biased;
            Some(control) = controls.recv() => match control {
                Control::Ping(id) => {
                    spdy::put_ping(&mut out, id);
                    None
                }
                Control::Refuse(stream) => {
                    spdy::put_reset(&mut out, stream, spdy::REFUSED_STREAM);
                    None
                }
            },
            // The runtime waits for this side to end the stream, too.
            () = input.told.notified() => stdin.map(|stream| Piece { stream, bytes: Bytes::new(), end: true }),
            Some(piece) = pieces.recv() => Some(piece),
        };
        let mut bytes = Bytes::new();
        if let Some(piece) = piece {
            if Some(piece.stream) == stdin {
                if stdin_ended {
                    continue;
                }
                stdin_ended = piece.end;
            }
            out.extend_from_slice(&spdy::data_head(piece.stream, piece.bytes.len(), piece.end));
            bytes = piece.bytes;
        }
        write.write_all_buf(&mut out.chain(bytes)).await?;
        write.flush().await?;
    }
}

/// Keeps the runtime from taking the connection for idle: that is judged on the client's side.
async fn pings(controls: &mpsc::Sender<Control>, timing: &Timing) {
    for id in (1..=u32::MAX >> 1).step_by(2).cycle() {
        sleep(timing.ping).await;
        // Where many wait, one more tells nothing.
        let _ = controls.try_send(Control::Ping(id));
    }
}
