//! Hostile and clumsy clients.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::https::Connection;
use kubelet_statusd::Limits;

use crate::https::world::{Plan, World, said, start};

fn limited(change: impl FnOnce(&mut Limits)) -> (World, Credential) {
    let mut limits = Limits::main(4096);
    change(&mut limits);
    let world = start(Plan { limits, ..Plan::default() }, |_| {});
    let admin = world.ca.client("admin");
    (world, admin)
}

fn open(world: &World, who: &Credential) -> Connection {
    world.with(who).connect().unwrap()
}

/// `bulkhead_connections_closed_total` of the HTTPS port, as a scrape has it.
fn closed(world: &World, reason: &str) -> f64 {
    let families = world.registry.gather();
    let family = families.iter().find(|family| family.name() == "bulkhead_connections_closed_total").unwrap();
    let has = |metric: &&prometheus::proto::Metric, name: &str, value: &str| {
        metric.get_label().iter().any(|label| label.name() == name && label.value() == value)
    };
    let all = family.get_metric().iter();
    let one = all.filter(|metric| has(metric, "port", "readwrite")).find(|metric| has(metric, "reason", reason));
    one.unwrap().get_counter().get_value()
}

/// What comes until the end; an end by force is one, too.
fn rest(connection: &mut Connection) -> String {
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match connection.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => panic!("still open after {answer:?}"),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn status_of(connection: &mut Connection, request: &[u8]) -> String {
    let _ = connection.write_all(request);
    let answer = rest(connection);
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn headers_bodies_and_nonsense() {
    let (world, admin) = limited(|limits| limits.idle_time = Duration::from_millis(500));
    let request = |extra: &str| format!("GET /x HTTP/1.1\r\nHost: n\r\n{extra}\r\n").into_bytes();
    let large = |bytes: usize| format!("X-Large: {}\r\n", "x".repeat(bytes));
    for (what, bytes, expected) in [
        ("large headers", request(&large(900 << 10)), "HTTP/1.1 404 Not Found"),
        ("too large headers", request(&large(1100 << 10)), "HTTP/1.1 431 Request Header Fields Too Large"),
        ("too many headers", request(&"A: b\r\n".repeat(5000)), "HTTP/1.1 431 Request Header Fields Too Large"),
        ("a body that is too large", request("Content-Length: 5000000000\r\n"), "HTTP/1.1 413 Payload Too Large"),
        ("no length", request("Content-Length: many\r\n"), "HTTP/1.1 400 Bad Request"),
        ("two lengths", request("Content-Length: 1\r\nContent-Length: 2\r\n"), "HTTP/1.1 400 Bad Request"),
        ("nonsense", b"\x00\x01\x02\r\n\r\n".to_vec(), "HTTP/1.1 400 Bad Request"),
        ("no version", b"GET /x\r\n\r\n".to_vec(), "HTTP/1.1 400 Bad Request"),
    ] {
        let status = status_of(&mut open(&world, &admin), &bytes);
        assert!(
            status.starts_with(expected.rsplit_once(' ').map_or(expected, |(start, _)| start)),
            "{what}: {status:?}"
        );
    }
    let unagreed = status_of(&mut open(&world, &admin), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(unagreed, "", "HTTP/2 that was not agreed on");
    // Whoever sends more than anybody wants still reads the answer.
    let mut pushing = open(&world, &admin);
    pushing.write_all(&request("Content-Length: 200000\r\nConnection: close\r\n")).unwrap();
    let _ = pushing.write_all(&vec![b'x'; 200_000]);
    assert!(rest(&mut pushing).starts_with("HTTP/1.1 404"), "the answer came");
    let posted = world.with(&admin).post("/stats/summary", &vec![0; 2 << 20]).unwrap();
    assert_eq!(posted.status, 413);
    let over_http2 = world.with(&admin).over_http2().request("GET", "/x", &[("x-large", &"x".repeat(100 << 10))], b"");
    assert_eq!(over_http2.unwrap().status, 404);
    let too_large = world.with(&admin).over_http2().request("GET", "/x", &[("x-large", &"x".repeat(3 << 20))], b"");
    assert!(too_large.is_err() || too_large.is_ok_and(|answer| answer.status == 431));
    assert_eq!(world.get(&admin, "/x").0, 404, "and others are served");
}

#[test]
fn time() {
    let (world, admin) = limited(|limits| {
        limits.handshake_time = Duration::from_millis(400);
        limits.head_time = Duration::from_millis(600);
        limits.idle_time = Duration::from_secs(3);
    });
    // No handshake.
    let mut silent = TcpStream::connect(world.address).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(silent.read(&mut [0; 1]).unwrap_or(0), 0);
    // Headers that do not end, also when something comes all the time.
    let mut slow = open(&world, &admin);
    slow.write_all(b"GET /x HTTP/1.1\r\nHost: n\r\n").unwrap();
    let begun = Instant::now();
    let closed = loop {
        if slow.write_all(b"A: b\r\n").is_err() {
            break true;
        }
        std::thread::sleep(Duration::from_millis(50));
        if begun.elapsed() > Duration::from_secs(20) {
            break false;
        }
    };
    assert!(closed, "a client that dawdles is left");
    // Between requests there is more time, and it begins anew with each.
    let mut patient = open(&world, &admin);
    for _ in 0..3 {
        patient.write_all(b"GET /healthz/ping HTTP/1.1\r\nHost: n\r\n\r\n").unwrap();
        let mut answer = vec![0; 4096];
        let read = patient.read(&mut answer).unwrap();
        assert!(String::from_utf8_lossy(&answer[..read]).starts_with("HTTP/1.1 200"), "kept open");
        std::thread::sleep(Duration::from_millis(1000));
    }
    assert_eq!(rest(&mut patient), "", "closed when nothing came");
    // The same over HTTP/2, where a connection's life is not seen from outside but by its end.
    let mut idle = world.with(&admin).over_http2().connect().unwrap();
    idle.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").unwrap();
    rest(&mut idle);
}

#[test]
fn many_idle_connections_keep_no_client_out() {
    let (world, admin) = limited(|limits| limits.connections = 64);
    let idle: Vec<Connection> = (0..64).map(|_| open(&world, &admin)).collect();
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(world.address).unwrap()).collect();
    for _ in 0..20 {
        assert_eq!(said(&world.with(&admin).get("/healthz/ping").unwrap()), (200, "ok".to_owned()));
    }
    drop((idle, silent));
}

/// Frames' types and flags (RFC 9113).
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WHOLE: u8 = 5;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// HTTP/2 whose client lets nothing be sent to it: an initial window of zero, and then one request.
fn without_window() -> Vec<u8> {
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    // GET https://n/
    let request = frame(HEADERS, WHOLE, 1, &[0x82, 0x87, 0x84, 0x41, 1, b'n']);
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", settings.as_slice(), request.as_slice()].concat()
}

/// The next frame: its type and what it carries.
fn next_frame(connection: &mut Connection) -> std::io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 9];
    connection.read_exact(&mut head)?;
    let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, head[0], head[1], head[2]])).unwrap()];
    connection.read_exact(&mut payload)?;
    Ok((head[3], payload))
}

/// Holds one such connection, whose answer has begun and cannot go on.
fn hold(world: &World) -> Connection {
    hold_as(world, &Credential::Nothing)
}

fn hold_as(world: &World, who: &Credential) -> Connection {
    let mut held = world.with(who).over_http2().connect().unwrap();
    held.write_all(&without_window()).unwrap();
    while next_frame(&mut held).unwrap().0 != HEADERS {}
    held
}

#[test]
fn strangers_that_do_not_read_keep_no_client_out() {
    let (world, admin) = limited(|limits| limits.connections = 64);
    let mut known = open(&world, &admin);
    let ask = |known: &mut Connection| {
        known.write_all(b"GET /healthz/ping HTTP/1.1\r\nHost: n\r\n\r\n").unwrap();
        let mut answer = vec![0; 4096];
        let read = known.read(&mut answer).unwrap();
        assert!(String::from_utf8_lossy(&answer[..read]).starts_with("HTTP/1.1 200"));
    };
    ask(&mut known);
    let mut held = Vec::new();
    for _ in 0..30 {
        held.extend((0..10).map(|_| hold(&world)));
        assert_eq!(said(&world.with(&admin).get("/healthz/ping").unwrap()), (200, "ok".to_owned()));
    }
    ask(&mut known);
    let first = rest(&mut held[0]);
    assert_eq!(first, "", "it had to make room");
    assert_eq!(held.len(), 300);
    assert!(closed(&world, "made_room") > 0.0);
    assert_eq!((closed(&world, "stalled"), closed(&world, "refused")), (0.0, 0.0));
}

#[test]
fn where_every_connection_is_at_work_for_somebody_known_others_are_refused_and_counted() {
    let (world, admin) = limited(|limits| limits.connections = 8);
    let held: Vec<Connection> = (0..8).map(|_| hold_as(&world, &admin)).collect();
    assert!(world.with(&admin).get("/healthz/ping").is_err());
    assert_eq!((closed(&world, "refused"), closed(&world, "made_room")), (1.0, 0.0));
    drop(held);
    let again = bulkhead_testkit::eventually("there is room again", bulkhead_testkit::SHORT, || {
        world.with(&admin).get("/healthz/ping")
    });
    assert_eq!(said(&again.unwrap()), (200, "ok".to_owned()));
}

#[test]
fn a_stranger_that_takes_nothing_is_left_and_somebody_known_is_not() {
    let (world, admin) = limited(|limits| limits.stall_time = Duration::from_millis(600));
    let mut paging = world.with(&admin).over_http2().connect().unwrap();
    paging.write_all(&without_window()).unwrap();
    let mut stalled = hold(&world);
    rest(&mut stalled);
    // Requests without end over HTTP/1.1, whose answers nobody reads.
    let mut pushing = open(&world, &Credential::Nothing);
    let requests = b"GET /x HTTP/1.1\r\nHost: n\r\n\r\n".repeat(1000);
    while pushing.write_all(&requests).is_ok() {}
    // A window for the answer, and it comes.
    paging.write_all(&frame(8, 0, 1, &[0, 0, 0x10, 0])).unwrap();
    loop {
        let (kind, payload) = next_frame(&mut paging).unwrap();
        if kind == 0 {
            assert_eq!(payload, b"404 page not found\n");
            break;
        }
    }
    assert_eq!((closed(&world, "stalled"), closed(&world, "made_room")), (2.0, 0.0));
}

#[test]
fn few_streams_before_somebody_is_known() {
    let (world, admin) = limited(|_| {});
    let streams = |who: &Credential| {
        let mut connection = world.with(who).over_http2().connect().unwrap();
        connection.write_all(&without_window()).unwrap();
        let (kind, payload) = next_frame(&mut connection).unwrap();
        assert_eq!(kind, SETTINGS);
        let most = payload.chunks(6).find(|setting| setting[..2] == [0, 3]).unwrap();
        u32::from_be_bytes(most[2..].try_into().unwrap())
    };
    assert_eq!(streams(&admin), 250);
    assert_eq!(streams(&Credential::Nothing), 32);
    assert_eq!(streams(&crate::https::world::Ca::new().client("admin")), 32, "anybody can have a certificate");
}
