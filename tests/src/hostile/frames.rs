//! HTTP/2 by hand (RFC 9113): well-formed where the attack is elsewhere.

/// A client's preface and an empty SETTINGS.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Types and flags of frames.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// One frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Literal fields without indexing and without Huffman (RFC 7541, 6.2.2); lengths below 127 each.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len().min(126)).unwrap_or(0));
            block.extend(text.bytes().take(126));
        }
    }
    block
}

/// The headers of a gRPC call.
pub fn call(method: &str) -> Vec<u8> {
    call_to("localhost", method)
}

/// The same to another authority.
pub fn call_to(authority: &str, method: &str) -> Vec<u8> {
    block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}

/// More fields of no meaning, about `bytes` long.
pub fn padding(bytes: usize) -> Vec<u8> {
    let value = "x".repeat(100);
    let one = block(&[("x-padding", &value)]);
    one.iter().copied().cycle().take(bytes / one.len() * one.len()).collect()
}

/// A whole call on `stream` with an empty message.
pub fn empty_call(method: &str, stream: u32) -> Vec<u8> {
    with_empty_message(&call(method), stream)
}

/// The same with these headers.
pub fn with_empty_message(headers: &[u8], stream: u32) -> Vec<u8> {
    [frame(HEADERS, END_HEADERS, stream, headers), frame(DATA, END_STREAM, stream, &[0; 5])].concat()
}

/// A client of HTTP/2 that lets nothing be sent to it (an initial window of zero), and a GET.
pub fn without_window(path: &str) -> Vec<u8> {
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let fields = block(&[(":method", "GET"), (":scheme", "https"), (":path", path), (":authority", "node")]);
    let preface = PREFACE.get(..24).unwrap_or_default();
    [preface, &settings, &frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields)].concat()
}
