//! Parsers of what strangers send: clients of the HTTP server, pods, the API server, a daemon that was taken over.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use k8s_openapi::api::core::v1::FileKeySelector;
use kubelet_edges::http_get;
use kubelet_evictiond::oom::kill::Detector;
use kubelet_evictiond::oom::owner::Owners;
use kubelet_evictiond::oom::record::{self, Record};
use kubelet_model::pod::image_reference::{self, ImageName};
use kubelet_runtime::runtime::env_files::{self, EnvFile};
use kubelet_statusd::logs::options::{self as log_options, Streams};
use kubelet_statusd::logs::stamp::Stamp;
use kubelet_statusd::logs::transcript::{Rules, Transcript};
use kubelet_statusd::routes::{self, Surface, Switches};
use kubelet_statusd::streaming::options as stream_options;
use kubelet_statusd::streaming::translate::{spdy, websocket};
use kubelet_volnetd::broker::client_pair;
use kubelet_volnetd::volumes::content::Content;
use prost::Message as _;
use tokio::io::AsyncWriteExt as _;

use super::Target;

/// Every parser, by name.
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
    Target {
        name: "probe-answer",
        seeds: &[
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\n\r\n",
            b"HTTP/1.0 302 Found\nLocation: /next\n\nuntil the end",
        ],
        words: &[b"HTTP/1.1 ", b"\r\n\r\n", b"Content-Length: ", b"Transfer-Encoding: chunked", b"ffffffffffffffff", b"18446744073709551615"],
        run: probe_answer,
    },
    Target {
        name: "image-name",
        seeds: &[
            b"registry.example:5000/team/app:v1.2@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            b"busybox",
        ],
        words: &[b"docker.io/", b"localhost/", b"[::1]:5000/", b"@sha256:", b":latest", b"__", b"..", b"//"],
        run: image_name,
    },
    Target {
        name: "kernel-log",
        seeds: &[
            b"6,1,9,-;sh invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n6,2,9,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/k/p,task_memcg=/k/p/c,task=sh,pid=7,uid=0\n3,3,9,-;Memory cgroup out of memory: Killed process 7 (sh) total-vm:1kB, anon-rss:1kB\n",
            b"6,1,9,-;sh invoked oom-killer: x\n6,2,9,-;Task in /k/p/c killed as a result of limit of /k/p\n3,3,9,-;Killed process 7 (sh) total-vm:1kB\n",
        ],
        words: &[b",task=", b",pid=1", b",uid=2", b",oom_memcg=/", b",task_memcg=/k/q/d", b",global_oom", b",mems_allowed=0", b"\\x0a", b") total-vm:", b" killed as a result of limit of /"],
        run: kernel_log,
    },
    Target {
        name: "mountinfo",
        seeds: &[
            b"36 35 98:0 /root /point\\040with\\011space rw,noatime shared:1 master:2 - ext3 /dev/sda1 rw,errors=continue\n",
            b"41 36 0:44 / /mnt rw - tmpfs  rw\n",
        ],
        words: &[b"\\040", b"\\134", b"\\777", b" - ", b"shared:", b"18446744073709551616", b"\xff"],
        run: mounts,
    },
    Target {
        name: "env-file",
        seeds: &[b"# comment\nNAME='value'\nOTHER='two\nlines' # end\nkey='wanted'\n", b"key= 'empty'\n"],
        words: &[b"='", b"'\n", b"key=", b"\r\n", b"#", b" ="],
        run: env_file,
    },
    Target {
        name: "volume-content",
        seeds: &[b"\x0a\x0f\x0a\x05a/b/c\x12\x04data\x18\xa4\x03\x10\x07", b"\x0a\x08\x0a\x03key\x12\x01v\x0a\x03\x0a\x01k"],
        words: &[b"..", b"/", b"..data", b"\x0a\x02", b"\x18\xff\xff\xff\xff\x0f", b"\x20\x01"],
        run: volume_content,
    },
    Target {
        name: "quantity",
        seeds: &[b"1.5Gi", b"100m", b"-12e3", b"0.000000001"],
        words: &[b"Ki", b"Ei", b"e99", b"E-9", b"9223372036854775807", b"+", b"."],
        run: quantity,
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

/// A process's name stands in the log; and whatever a container calls its groups and processes, their end is its own.
fn kernel_log(input: &[u8]) {
    let mut detector = Detector::default();
    for line in input.split(|byte| *byte == b'\n') {
        if let Some(kill) = record::parse(line).and_then(|record| detector.feed(record)) {
            assert!(String::from_utf8_lossy(input).contains(&kill.process), "{kill:?}");
        }
    }
    // As the kernel writes names into its log.
    let escaped = |bytes: &[u8]| -> String {
        let one = |byte: &u8| match byte {
            b'\\' => "\\x5c".to_owned(),
            b' '..=b'~' => char::from(*byte).to_string(),
            other => format!("\\x{other:02x}"),
        };
        bytes.iter().filter(|byte| **byte != 0).map(one).collect()
    };
    let mut parts = input.splitn(3, |byte| *byte == b'\n');
    let mut part = || parts.next().unwrap_or_default();
    let (name, cpuset, groups) = (part(), part(), part());
    let cpuset: Vec<u8> = cpuset.iter().copied().filter(|byte| *byte != b'/').collect();
    let names = groups.split(|byte| matches!(byte, b'/' | b'\n')).filter(|name| !name.is_empty());
    let below: String = names.map(|name| format!("/{}", escaped(name))).collect();
    let text = format!(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={},mems_allowed=0,oom_memcg=/k/pod/c,task_memcg=/k/pod/c{below},task={},pid=7,uid=0",
        escaped(&cpuset),
        escaped(&name[..name.len().min(15)])
    );
    let kill = Detector::default().feed(Record { sequence: 1, by_kernel: true, text: &text });
    let owners = Owners { pods: vec!["/k".to_owned()], system: Vec::new() };
    let owner = kill.as_ref().and_then(|kill| owners.of(&kill.scope));
    assert_eq!(owner.as_deref(), Some("/k/pod/c"), "{text}: {kill:?}");
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

/// What a pod answers to a probe: however it arrives it is the same answer, and no more of it is kept than is allowed.
fn probe_answer(input: &[u8]) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
    let whole = runtime.block_on(http_get::read_answer(input, &mut false));
    let pieces = runtime.block_on(async {
        let (mut pod, probe) = tokio::io::duplex(3);
        let mut in_body = false;
        let send = async move {
            // A reader that has enough does not wait for the rest.
            let _ = pod.write_all(input).await;
        };
        tokio::join!(send, http_get::read_answer(probe, &mut in_body)).1
    });
    if let Ok((answer, _)) = &whole {
        assert!(answer.body.len() <= http_get::BODY_BYTES_MAX);
        assert!(answer.status <= 999, "{}", answer.status);
    }
    assert_eq!(format!("{whole:?}"), format!("{pieces:?}"), "an answer in pieces is another one");
}

/// A name that is taken is one still, and the same one, with its default tag written out.
fn image_name(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Ok(name) = ImageName::parse(&text) else {
        assert!(image_reference::with_default_tag(&text).is_err());
        return;
    };
    let Ok(tagged) = image_reference::with_default_tag(&text) else { panic!("{text:?} is a name and has no tag") };
    assert_eq!(ImageName::parse(&tagged).ok(), Some(name), "{text:?} became {tagged:?}");
    assert!(tagged.bytes().all(|byte| byte.is_ascii_graphic()), "{tagged:?}");
}

/// Each line is a mount or none, whatever the lines before it are.
fn mounts(input: &[u8]) {
    let points = |text: &[u8]| -> Vec<(u64, PathBuf)> {
        bulkhead_sys::mountinfo::parse(text).map(|mount| (mount.id, mount.mount_point.into_owned())).collect()
    };
    let by_line: Vec<_> = input.split(|byte| *byte == b'\n').flat_map(points).collect();
    assert_eq!(points(input), by_line);
}

/// A variable's value comes from the file, and is none where it has no character.
fn env_file(input: &[u8]) {
    let selector = FileKeySelector {
        key: "key".to_owned(),
        optional: Some(true),
        path: "file".to_owned(),
        volume_name: "volume".to_owned(),
    };
    let file = EnvFile::read(PathBuf::from("/file"), input, &[selector.key.clone()].into());
    let files = BTreeMap::from([(("volume".to_owned(), "file".to_owned()), Ok(file))]);
    if let Ok(Some(value)) = env_files::value(&files, &selector) {
        assert!(!value.is_empty() && value.len() <= input.len() && !value.contains(&b'\''), "{}", value.escape_ascii());
    }
}

/// Files that kubelet-volnetd would write as root for kubelet-syncd: none lies outside the volume, or over its own links.
fn volume_content(input: &[u8]) {
    let Ok(wire) = bulkhead_ipc::volnetd::VolumeContent::decode(input) else { return };
    let Ok(content) = Content::from_wire(wire) else { return };
    for (path, file) in &content.files {
        let inside = path.as_str().split('/').all(|part| !matches!(part, "" | "." | "..") && !part.contains('\0'));
        assert!(inside && !path.first().starts_with(".."), "{:?}", path.as_str());
        assert_eq!(file.mode & !0o777, 0);
    }
    assert!(content.visible().len() <= content.files.len());
}

/// A quantity that is taken is written so that it is read as the same one.
fn quantity(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(quantity) = bulkhead_types::Quantity::parse(&text) {
        let again = bulkhead_types::Quantity::parse(&quantity.to_string());
        assert_eq!(again.as_ref(), Ok(&quantity), "{text:?} became {:?}", quantity.to_string());
    }
}
