//! Streams over WebSockets that the node itself translates (`v5.channel.k8s.io`) or takes apart (`SPDY/3.1+…`), with a
//! client that is not ours and the real runtime.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{IDLE, LONG, Lab, Node, Pod, eventually};
use bulkhead_tests::websocket::{Receiver, Sender, WebSocket};
use bulkhead_tests::{Dice, lab};
use serde_json::{Value, json};

const V5: &str = "v5.channel.k8s.io";
/// Both outputs and the input.
const ALL: &str = "input=1&output=1&error=1";
const POD: &str = "streams";

/// A node whose pod answers on two ports: an echo, and a file.
struct World {
    node: Node,
    https: Https,
    pod: String,
}

/// What a command said, and how it ended.
#[derive(Debug, Default)]
struct Said {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Value,
}

impl World {
    fn start(lab: &Lab, gates: &Value) -> Result<Self> {
        let node = lab.node("node").config("featureGates", gates.clone()).start()?;
        let script = format!(
            "mkdir /www; head -c 1000000 /dev/zero > /www/zeros; httpd -p 8080 -h /www; nc -ll -p 7007 -e cat & echo up; {IDLE}"
        );
        node.write(&Pod::busybox(POD, &script))?;
        node.wait_for_log(POD, "main", "up")?;
        let https = Https::new(SocketAddr::new(lab.netns().address().into(), 10250), &Credential::Nothing);
        Ok(World { pod: node.pod_name(POD), node, https })
    }

    fn path(&self, what: &str, query: &str) -> String {
        format!("/{what}/default/{}/main?{query}", self.pod)
    }

    fn shell(&self, script: &str, streams: &str) -> Result<WebSocket> {
        let script: String = script.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let path = self.path("exec", &format!("command=sh&command=-c&command={script}&{streams}"));
        let mut socket = WebSocket::open(&self.https, &path, &format!("v4.channel.k8s.io, {V5}"))?;
        ensure!(socket.protocol.as_deref() == Some(V5), "{:?}", socket.protocol);
        let greeting = socket.receiver.binary()?.context("closed before it began")?;
        ensure!(greeting.len() == 1, "{greeting:?}");
        Ok(socket)
    }

    fn port_forward(&self) -> Result<WebSocket> {
        let path = format!("/portForward/default/{}", self.pod);
        let socket = WebSocket::open(&self.https, &path, "SPDY/3.1+portforward.k8s.io")?;
        ensure!(socket.protocol.as_deref() == Some("SPDY/3.1+portforward.k8s.io"), "{:?}", socket.protocol);
        Ok(socket)
    }
}

/// All that comes, to the end.
fn rest(receiver: &mut Receiver) -> Result<Said> {
    let (mut said, mut status) = (Said::default(), Vec::new());
    while let Some(message) = receiver.binary()? {
        let (channel, bytes) = message.split_first().context("a message without a channel")?;
        match channel {
            1 => said.stdout.extend(bytes),
            2 => said.stderr.extend(bytes),
            3 => status.extend(bytes),
            other => anyhow::bail!("channel {other}"),
        }
    }
    said.status = serde_json::from_slice(&status).with_context(|| format!("{:?}", String::from_utf8_lossy(&status)))?;
    Ok(said)
}

fn input(sender: &mut Sender, bytes: &[u8]) -> Result<()> {
    sender.binary([&[0], bytes].concat())
}

/// Frames of SPDY as a client writes them; the headers' zlib stream holds stored blocks.
#[derive(Default)]
struct Spdy {
    out: Vec<u8>,
    begun: bool,
}

impl Spdy {
    fn open(&mut self, stream: u32, headers: &[(&str, &str)]) {
        let mut block = u32::try_from(headers.len()).expect("a short one").to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.extend(u32::try_from(text.len()).expect("a short one").to_be_bytes());
            block.extend(text.as_bytes());
        }
        let length = u16::try_from(block.len()).expect("a short one");
        let mut stored = vec![0];
        stored.extend([length.to_le_bytes(), (!length).to_le_bytes()].concat());
        stored.extend(block);
        stored.extend([0, 0, 0, 0xff, 0xff]);
        if !self.begun {
            self.begun = true;
            stored.splice(0..0, [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2]);
        }
        self.out.extend([0x80, 3, 0, 1]);
        self.out.extend(u32::try_from(stored.len() + 10).expect("a short one").to_be_bytes());
        self.out.extend(stream.to_be_bytes());
        self.out.extend([0; 6]);
        self.out.extend(stored);
    }

    fn data(&mut self, stream: u32, bytes: &[u8], fin: bool) {
        self.out.extend(stream.to_be_bytes());
        let length = u32::try_from(bytes.len()).expect("a short one");
        self.out.extend((length | u32::from(fin) << 24).to_be_bytes());
        self.out.extend(bytes);
    }
}

/// The type of a SPDY/3.1 control frame that takes a stream.
const SYN_REPLY: [u8; 2] = [0, 2];

/// What comes on each stream that was taken, until `enough` says so and the last frame is whole.
fn spdy_data(
    receiver: &mut Receiver,
    mut enough: impl FnMut(&std::collections::BTreeMap<u32, (Vec<u8>, bool)>) -> bool,
) -> Result<std::collections::BTreeMap<u32, (Vec<u8>, bool)>> {
    let (mut buffer, mut streams) = (Vec::new(), std::collections::BTreeMap::<u32, (Vec<u8>, bool)>::new());
    while !buffer.is_empty() || !enough(&streams) {
        buffer.extend(receiver.binary()?.context("the tunnel ended")?);
        while let Some(head) = buffer.first_chunk::<8>().copied() {
            let length = usize::try_from(u32::from_be_bytes([0, head[5], head[6], head[7]]))?;
            if buffer.len() < 8 + length {
                break;
            }
            let frame: Vec<u8> = buffer.drain(..8 + length).collect();
            if head[0] & 0x80 == 0 {
                let stream = streams.entry(u32::from_be_bytes([head[0], head[1], head[2], head[3]])).or_default();
                stream.0.extend(&frame[8..]);
                stream.1 |= head[4] & 1 != 0;
            } else if head[2..4] == SYN_REPLY {
                let id = frame.get(8..12).and_then(|id| id.first_chunk::<4>()).context("a reply without a stream")?;
                streams.entry(u32::from_be_bytes(*id)).or_default();
            }
        }
    }
    Ok(streams)
}

fn commands(world: &World) -> Result<()> {
    // Outputs apart, the exit code, the status' form.
    let said = rest(&mut world.shell("echo out; echo err >&2; exit 7", ALL)?.receiver)?;
    ensure!((said.stdout.as_slice(), said.stderr.as_slice()) == (b"out\n", b"err\n"), "{said:?}");
    ensure!(
        said.status
            == json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": "command terminated with non-zero exit code: command terminated with exit code 7",
                "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
            }),
        "{}",
        said.status
    );
    let success = json!({"metadata": {}, "status": "Success"});
    let said = rest(&mut world.shell("echo only; echo lost >&2", "output=1")?.receiver)?;
    ensure!(said.stdout == b"only\n" && said.stderr.is_empty() && said.status == success, "{said:?}");

    // Input that ends, while the connection stays.
    let mut socket = world.shell("cat; echo ended", ALL)?;
    input(&mut socket.sender, b"first ")?;
    socket.sender.ping(b"?")?;
    input(&mut socket.sender, b"second ")?;
    socket.sender.binary(vec![255, 0])?;
    let said = rest(&mut socket.receiver)?;
    ensure!(said.stdout == b"first second ended\n" && said.status == success, "{said:?}");

    // A terminal, and its size.
    let mut socket = world.shell(
        "until [ \"$(stty size)\" = '33 101' ]; do sleep 0.05; done; read line; echo \"read $line\"",
        "input=1&output=1&tty=1",
    )?;
    socket.sender.binary(b"\x04{\"Width\":101,\"Height\":33}".to_vec())?;
    input(&mut socket.sender, b"typed\n")?;
    let said = rest(&mut socket.receiver)?;
    ensure!(String::from_utf8_lossy(&said.stdout).contains("read typed\r\n"), "{said:?}");

    // A command that there is not, and one that is killed.
    let path = world.path("exec", "command=/nowhere&output=1");
    let said = rest(&mut WebSocket::open(&world.https, &path, V5)?.receiver)?;
    let message = said.status["message"].as_str().unwrap_or_default();
    ensure!(said.status["reason"] == "InternalError" && said.status["code"] == 500, "{said:?}");
    ensure!(message.contains("error executing command in container") && message.contains("/nowhere"), "{message}");
    let said = rest(&mut world.shell("kill -9 $$", ALL)?.receiver)?;
    ensure!(said.status["details"]["causes"][0]["message"] == "137", "{said:?}");

    // The container's own process, which says something when it is told something.
    let mut socket = WebSocket::open(&world.https, &world.path("attach", "output=1"), V5)?;
    ensure!(socket.receiver.binary()?.as_deref() == Some(&[1]), "no greeting");
    world
        .node
        .cri()?
        .exec(&world.node.wait_running(POD, 1)?.main().id, &["sh", "-c", "echo attached > /proc/1/fd/1"])?;
    ensure!(socket.receiver.binary()?.as_deref() == Some(b"\x01attached\n".as_slice()));
    socket.sender.close()?;
    ensure!(socket.receiver.binary()?.is_none());
    Ok(())
}

fn refusals(world: &World) -> Result<()> {
    let path = world.path("exec", "command=true&output=1");
    let good = [
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", V5),
    ];
    for (method, name, value, status) in [
        ("POST", "", "", 405),
        ("GET", "sec-websocket-version", "8", 400),
        ("GET", "sec-websocket-key", "short", 400),
        ("GET", "sec-websocket-key", "", 400),
    ] {
        let headers = good.map(|(one, old)| (one, if one == name { value } else { old }));
        let answer = world.https.upgrade(method, &path, "websocket", &headers)?.refused()?;
        ensure!(answer.status == status, "{method} {name}: {value}: {} instead of {status}", answer.status);
    }
    Ok(())
}

/// More than fits anywhere, both ways at once.
fn bulk(world: &World) -> Result<()> {
    let mut dice = Dice::from_environment();
    let sent: Vec<u8> = (0..(16u32 << 20) + 13).map(|_| dice.below(256).to_le_bytes()[0]).collect();
    let WebSocket { mut receiver, mut sender, .. } = world.shell("cat", ALL)?;
    let said = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            for part in sent.chunks(32 << 10) {
                input(&mut sender, part)?;
            }
            sender.binary(vec![255, 0])
        });
        let said = rest(&mut receiver);
        sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        said
    })?;
    ensure!(said.stdout == sent, "{} bytes of {}, seed {}", said.stdout.len(), sent.len(), dice.seed());
    ensure!(said.status["status"] == "Success", "{said:?}");
    Ok(())
}

/// A client that does not read stops its own command, costs little, and gets all in the end.
fn stalled_client(world: &World) -> Result<()> {
    const PARTS: usize = 512;
    let agent = world.node.pids();
    let statusd = agent.get("kubelet-statusd").context("no kubelet-statusd")?;
    let resident = || -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{statusd}/status"))?;
        let line = text.lines().find(|line| line.starts_with("RssAnon:")).context("no RssAnon")?;
        Ok(line.split_whitespace().nth(1).context("no number")?.parse()?)
    };
    let container = world.node.wait_running(POD, 1)?.main().id.clone();
    let cri = world.node.cri()?;
    let before = resident()?;
    let script =
        format!("i=0; while [ $i -lt {PARTS} ]; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > /tmp/parts; done");
    let mut socket = world.shell(&script, ALL)?;
    let mut last = String::new();
    eventually("the command is held up", LONG, || {
        let (_, now) = cri.exec(&container, &["cat", "/tmp/parts"])?;
        std::thread::sleep(Duration::from_millis(300));
        let before = std::mem::replace(&mut last, now);
        ensure!(before == last && !last.is_empty(), "{before} {last}");
        Ok(())
    })?;
    ensure!(last.trim().parse::<usize>()? < PARTS, "{last} parts went to a client that reads none");
    let grown = resident()?.saturating_sub(before);
    ensure!(grown < 4 << 10, "a client that reads nothing costs {grown} KiB");
    // Others go on.
    let said = rest(&mut world.shell("echo beside", ALL)?.receiver)?;
    ensure!(said.stdout == b"beside\n", "{said:?}");
    let said = rest(&mut socket.receiver)?;
    ensure!(
        said.stdout.len() == PARTS << 16 && said.stdout.iter().all(|byte| *byte == 0),
        "{} bytes",
        said.stdout.len()
    );
    Ok(())
}

fn port_forwards(world: &World) -> Result<()> {
    let WebSocket { mut receiver, mut sender, .. } = world.port_forward()?;
    let mut spdy = Spdy::default();
    for (error, port) in [(1, "8080"), (5, "7007"), (9, "1")] {
        let id = error.to_string();
        spdy.open(error, &[("streamtype", "error"), ("port", port), ("requestid", &id)]);
        spdy.open(error + 2, &[("streamtype", "data"), ("port", port), ("requestid", &id)]);
    }
    sender.binary(std::mem::take(&mut spdy.out))?;
    // Data for a stream is dropped until it was taken. The third pair is for a port where nobody listens, and says so.
    let refused = spdy_data(&mut receiver, |streams| {
        [3, 7].iter().all(|taken| streams.contains_key(taken))
            && streams.get(&9).is_some_and(|error| !error.0.is_empty())
    })?;
    let words = String::from_utf8_lossy(&refused[&9].0).into_owned();
    ensure!(words.contains("error forwarding port 1 to pod"), "{words}");
    let echoed: Vec<u8> = (0..4u32 << 20).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13).to_le_bytes()[0]).collect();
    spdy.data(3, b"GET /zeros HTTP/1.0\r\n\r\n", false);
    for part in echoed.chunks(32 << 10) {
        spdy.data(7, part, false);
    }
    let frames = std::mem::take(&mut spdy.out);
    let streams = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            // Cut without regard to frames.
            for part in frames.chunks(50_021) {
                sender.binary(part.to_vec())?;
            }
            Ok::<_, anyhow::Error>(())
        });
        let length = |streams: &std::collections::BTreeMap<u32, (Vec<u8>, bool)>, id| {
            streams.get(&id).map_or(0, |stream: &(Vec<u8>, bool)| stream.0.len())
        };
        let streams = spdy_data(&mut receiver, |all| length(all, 3) > 1_000_000 && length(all, 7) >= echoed.len());
        sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        streams
    })?;
    ensure!(streams[&3].0.starts_with(b"HTTP/1.") && streams[&3].0.ends_with(&[0; 1_000_000]), "the file");
    ensure!(streams[&7].0 == echoed, "{} bytes of {}", streams[&7].0.len(), echoed.len());
    sender.close()?;
    while receiver.binary()?.is_some() {}
    Ok(())
}

fn counts(world: &World) -> Result<()> {
    let text = String::from_utf8(world.https.get("/metrics")?.body.to_vec())?;
    for line in [
        "kubelet_websocket_streaming_requests_total{subresource=\"attach\"} 1",
        "kubelet_websocket_streaming_requests_total{subresource=\"portforward\"} 1",
        "apiserver_stream_translator_requests_total{code=\"400\"} 4",
        "apiserver_stream_translator_requests_total{code=\"500\"} 1",
        "apiserver_stream_tunnel_requests_total{code=\"101\"} 1",
    ] {
        ensure!(text.lines().any(|shown| shown == line), "no {line}");
    }
    Ok(())
}

#[test]
fn commands_and_port_forwards() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = World::start(&lab, &json!({}))?;
    commands(&world).context("commands")?;
    refusals(&world).context("refusals")?;
    bulk(&world).context("bulk")?;
    stalled_client(&world).context("stalled client")?;
    port_forwards(&world).context("port-forwards")?;
    counts(&world).context("counts")?;
    world.node.finish()
}

/// With the gate off, what the client offers is the runtime's to take or to refuse.
#[test]
fn without_the_gate_the_runtime_answers() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = World::start(&lab, &json!({"ExtendWebSocketsToKubelet": false}))?;
    let path = world.path("exec", "command=echo&command=hello&output=1");
    let refused = WebSocket::open(&world.https, &path, V5).err().context("the runtime took version 5")?;
    ensure!(refused.to_string().starts_with("403"), "{refused}");
    let mut socket = WebSocket::open(&world.https, &path, &format!("{V5}, v4.channel.k8s.io"))?;
    ensure!(socket.protocol.as_deref() == Some("v4.channel.k8s.io"), "{:?}", socket.protocol);
    let said = rest(&mut socket.receiver)?;
    ensure!(said.stdout == b"hello\n" && said.status["status"] == "Success", "{said:?}");
    world.node.finish()
}
