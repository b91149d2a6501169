//! What is fed with anything: each target reads what strangers send, and has to keep a promise beside not to panic.

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use kubelet_statusd::logs::options::{self as log_options, Streams};
use kubelet_statusd::logs::stamp::Stamp;
use kubelet_statusd::logs::transcript::{Rules, Transcript};
use kubelet_statusd::routes::{self, Surface, Switches};
use kubelet_statusd::streaming::options as stream_options;
use kubelet_statusd::streaming::translate::{spdy, websocket};
use kubelet_volnetd::broker::client_pair;

/// A target: its name, inputs that are well formed, words to put into others, and what is done with an input.
pub struct Target {
    pub name: &'static str,
    pub seeds: &'static [&'static [u8]],
    pub words: &'static [&'static [u8]],
    pub run: fn(&[u8]),
}

pub const TARGETS: &[Target] = &[
    Target {
        name: "log-lines",
        seeds: &[
            b"2026-11-21T01:02:03.123456789Z stdout F hello\n2026-11-21T01:02:04Z stderr P part\n2026-11-21T01:02:04Z stderr F end\n",
            b"{\"log\":\"hello\\n\",\"stream\":\"stdout\",\"time\":\"2026-11-21T01:02:03.5Z\"}\n{\"log\":\"x\",\"stream\":\"stderr\",\"time\":\"2026-11-21T01:02:03Z\"}\n",
        ],
        words: &[b" stdout F ", b" stderr P ", b"P:x", b"\n", b"+14:00", b"9999-12-31T23:59:60Z", b"{\"log\":", b"\\ud800"],
        run: log_lines,
    },
    Target {
        name: "log-query",
        seeds: &[b"follow=true&sinceSeconds=10&timestamps=true&tailLines=5&limitBytes=100", b"sinceTime=2026-11-21T01:02:03Z&tail=all&stream=Stdout"],
        words: &[b"%", b"%00", b"%ff", b"&", b"=", b"-1", b"9223372036854775808", b"sinceTime=", b"previous=", b"All"],
        run: log_query,
    },
    Target {
        name: "stream-query",
        seeds: &[b"command=ls&command=-la&input=1&output=1&error=1&tty=1", b"port=80,443&port=8080&timeout=10&cmd=a+b%20c"],
        words: &[b"command=", b"port=", b"65536", b"%2C", b"timeout=", b"+", b"tty=1", b"&&", b";"],
        run: stream_query,
    },
    Target {
        name: "paths",
        seeds: &[b"/containerLogs/default/web/main?follow=1", b"/exec/default/web/uid/main", b"/logs/%2e%2e/shadow", b"/debug/flags/v"],
        words: &[b"..", b"%2e", b"%2f", b"//", b"/./", b"%00", b"/portForward/", b"/checkpoint/", b"?"],
        run: paths,
    },
    Target {
        name: "upgrade",
        seeds: &[
            b"GET\nconnection: Upgrade\nupgrade: websocket\nsec-websocket-version: 13\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\nsec-websocket-protocol: v5.channel.k8s.io, v4.channel.k8s.io",
            b"POST\nconnection: keep-alive, upgrade\nupgrade: SPDY/3.1\nx-stream-protocol-version: v4.channel.k8s.io",
        ],
        words: &[b"SPDY/3.1+portforward.k8s.io", b"base64url.bearer.authorization.k8s.io.", b",", b"\n", b": ", b"13", b"websocket"],
        run: upgrade,
    },
    Target {
        name: "spdy",
        seeds: &[
            b"\x80\x03\x00\x02\x00\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00\x01\x01\x00\x00\x03abc",
            b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01\x80\x03\x00\x03\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\x05",
        ],
        words: &[b"\x80\x03", b"\x00\x07", b"\xff\xff\xff", b"\x00\x00\x00\x00", b"\x01"],
        run: spdy_frames,
    },
    Target {
        name: "websocket",
        seeds: &[b"\x82\x83abcd\x01\x02\x03", b"\x02\x81abcd\x00\x80\x81abcd\x01\x89\x80abcd\x88\x82abcd\x03\xe8"],
        words: &[b"\xfe", b"\xff", b"\x7f\xff\xff", b"\x00\x00\x00\x00", b"\x88", b"\x8a"],
        run: websocket_frames,
    },
    Target {
        name: "client-pair",
        seeds: &[include_bytes!("client.der"), include_bytes!("client-key.der")],
        words: &[b"\x30\x82", b"\x02\x01", b"\xa3", b"\x06\x03\x55\x04\x03", b"\x18\x0f99991231235959Z", b"\x84\xff\xff\xff\xff", b"\x30\x80", b"system:nodes"],
        run: pairs_of_a_client,
    },
    Target {
        name: "metrics-scraper",
        seeds: &[b"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", b"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"],
        words: &[b";q=", b"q=-1", b"\"", b"\\", b",,", b"escaping=allow-utf-8", b"gzip;q=0", b"*/*"],
        run: scraper,
    },
];

/// The same bytes in pieces: their lengths come from the bytes themselves, so that an input is repeatable.
fn pieces(input: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    let (mut rest, mut state) = (input, input.len() as u32 | 1);
    while !rest.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223).wrapping_add(u32::from(rest[0]));
        let length = (state >> 24) as usize % 7 + 1;
        let (piece, after) = rest.split_at(length.min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// What a client sees of a log does not depend on how the file was read, and is no longer than it asked for.
fn log_lines(input: &[u8]) {
    let (options, text) = input.split_first().unwrap_or((&0, &[]));
    let rules = Rules {
        since: (options & 1 != 0)
            .then(|| Stamp::parse(b"2026-11-21T01:02:03.5Z").map(|stamp| stamp.moment()))
            .flatten(),
        timestamps: options & 2 != 0,
        limit: (options & 4 != 0).then_some(u64::from(options >> 3)),
        lines: (options & 8 != 0).then_some(u64::from(options >> 5)),
        streams: if options & 16 != 0 { Streams::Stdout } else { Streams::All },
    };
    let read = |pieces: &[&[u8]]| {
        let (mut transcript, mut out) = (Transcript::new(rules), Vec::new());
        pieces.iter().for_each(|piece| transcript.feed(piece, &mut out));
        transcript.finish(&mut out);
        out
    };
    let whole = read(&[text]);
    assert_eq!(whole, read(&pieces(text)), "a log that is read in pieces is another one");
    // Of a file that is no log the answer says so, in full.
    let text = String::from_utf8_lossy(&whole);
    let is_log = !text.contains("unsupported log format") && !text.contains("unexpected stream type");
    assert!(!is_log || rules.limit.is_none_or(|limit| whole.len() as u64 <= limit), "more than the limit");
}

/// What is taken as options is what upstream's validation lets through.
fn log_query(input: &[u8]) {
    let query = String::from_utf8_lossy(input);
    for split in [false, true] {
        if let Ok(options) = log_options::parse(&query, split) {
            assert!(options.limit_bytes != Some(0), "a limit of nothing");
            assert!(split || options.streams == Streams::All, "one stream without its gate");
        }
    }
}

fn stream_query(input: &[u8]) {
    let query = String::from_utf8_lossy(input);
    if let Ok(options) = stream_options::streams(&query) {
        assert!(options.stdin || options.stdout || options.stderr, "no stream at all");
        assert!(!(options.tty && options.stderr), "a terminal with a stream for errors");
    }
    let _ = (stream_options::command(&query), stream_options::run_command(&query));
    let _ = stream_options::checkpoint_timeout(&query);
    if let Ok(ports) = stream_options::ports(&query, &HeaderMap::new()) {
        assert!(ports.iter().all(|port| (1..=65535).contains(port)), "{ports:?}");
    }
}

/// Nothing that is not `Main` leads into a pod.
fn paths(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (path, query) = text.split_once('?').map_or((&*text, None), |(path, query)| (path, Some(query)));
    let switches = Switches {
        debugging: true,
        profiling: true,
        debug_flags: true,
        system_log: true,
        checkpoint: true,
        flagz: true,
        statusz: true,
    };
    for surface in [Surface::Healthz, Surface::ReadOnly, Surface::Main] {
        for method in ["GET", "POST", "DELETE", "CONNECT"] {
            let route = routes::route(surface, &switches, method, path, query);
            use routes::Route::{Attach, Checkpoint, ContainerLogs, Exec, NodeLogs, PortForward, Run};
            let leads_in = matches!(
                route,
                Attach(_) | Checkpoint(_) | ContainerLogs(_) | Exec(_) | NodeLogs(_) | PortForward(_) | Run(_)
            );
            assert!(surface == Surface::Main || !leads_in, "{surface:?} {method} {path}");
        }
    }
    let _ = routes::path_label(path);
}

/// A handshake that is taken is one of version 13.
fn upgrade(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut lines = text.lines();
    let method = lines.next().and_then(|line| Method::from_bytes(line.as_bytes()).ok()).unwrap_or(Method::GET);
    let mut headers = HeaderMap::new();
    for line in lines.take(64) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value.trim())) {
            headers.append(name, value);
        }
    }
    let _ = (stream_options::is_upgrade(&headers), stream_options::is_websocket(&headers));
    let _ = (stream_options::wants_stream_close(&headers), stream_options::wants_tunnel(&headers));
    if websocket::check(&method, Version::HTTP_11, &headers).is_ok() {
        assert_eq!(method, Method::GET);
        assert!(headers.get_all("sec-websocket-version").iter().any(|version| version == "13"), "{headers:?}");
    }
}

/// How the bytes arrive does not change what they say: the same data on the same streams, the same verdict.
fn spdy_frames(input: &[u8]) {
    let read = |pieces: &[&[u8]]| {
        let (mut decoder, mut buffer) = (spdy::Decoder::default(), BytesMut::new());
        let (mut data, mut others) = (std::collections::BTreeMap::<u32, Vec<u8>>::new(), Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                match decoder.next(&mut buffer) {
                    Ok(Some(spdy::Frame::Data { stream, bytes, fin })) => {
                        data.entry(stream).or_default().extend_from_slice(&bytes);
                        if fin {
                            others.push(format!("end of {stream}"));
                        }
                    }
                    Ok(Some(frame)) => others.push(format!("{frame:?}")),
                    Ok(None) => break,
                    Err(error) => return (data, others, Some(error)),
                }
            }
            assert!(buffer.len() <= 15, "{} bytes are kept", buffer.len());
        }
        (data, others, None)
    };
    assert_eq!(read(&[input]), read(&pieces(input)));
}

fn websocket_frames(input: &[u8]) {
    let read = |pieces: &[&[u8]]| {
        let (mut decoder, mut buffer) = (websocket::Decoder::default(), BytesMut::new());
        let (mut messages, mut message, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                match decoder.next(&mut buffer) {
                    Ok(Some(websocket::Frame::Message { text, bytes, end })) => {
                        message.extend_from_slice(&bytes);
                        if end {
                            messages.push((text, std::mem::take(&mut message)));
                        }
                    }
                    Ok(Some(frame)) => others.push(format!("{frame:?}")),
                    Ok(None) => break,
                    Err(error) => return (messages, message, others, Some(error)),
                }
            }
            assert!(buffer.len() <= 130, "{} bytes are kept", buffer.len());
        }
        (messages, message, others, None)
    };
    assert_eq!(read(&[input]), read(&pieces(input)));
}

fn scraper(input: &[u8]) {
    let mut headers = HeaderMap::new();
    for (index, line) in input.split(|byte| *byte == b'\n').take(8).enumerate() {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.append(if index % 2 == 0 { http::header::ACCEPT } else { http::header::ACCEPT_ENCODING }, value);
        }
    }
    let _ = kubelet_statusd::scrape::accept::negotiate(&headers);
}

/// A certificate, and a key, in the place of those that kubelet-statusd hands to kubelet-volnetd.
fn pairs_of_a_client(bytes: &[u8]) {
    use base64::Engine as _;
    let Ok(node) = bulkhead_types::NodeName::parse("node-a") else { return };
    let pem = |label: &str, der: &[u8]| {
        let body = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
    };
    let (certificate, key) = (include_bytes!("client.der"), include_bytes!("client-key.der"));
    for (certificate, key) in [(bytes, key.as_slice()), (certificate.as_slice(), bytes)] {
        let (certificate, key) = (pem("CERTIFICATE", certificate), pem("PRIVATE KEY", key));
        // 2027-01-15.
        let found = client_pair::check(certificate.as_bytes(), key.as_bytes(), &node, 1_800_000_000);
        let named = bytes.windows(18).any(|part| part == b"system:node:node-a");
        assert!(found.is_err() || named || bytes == include_bytes!("client-key.der"), "another node's, or no node's");
    }
}
