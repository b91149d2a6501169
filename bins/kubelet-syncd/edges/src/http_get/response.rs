//! Reading an answer: status line, the headers that matter, and as much of the body as is wanted. Everything that the
//! other side sends is bounded and nothing of it is trusted.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Status line and headers together.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// A line of the chunked encoding.
const LINE_BYTES_MAX: usize = 4 << 10;
/// Answers of the 1xx kind before the one that counts (Go's `max1xxResponses`).
const INTERIM_MAX: usize = 5;
const READ_BYTES: usize = 4 << 10;

/// Why an answer could not be read.
#[derive(Debug)]
pub enum Failure {
    /// The connection failed.
    Read(io::Error),
    /// What came is not right, in Go's words.
    Said(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        // TLS: the other side went away without saying so.
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Failure::Said("unexpected EOF".to_owned());
        }
        Failure::Read(error)
    }
}

fn broken(what: impl std::fmt::Display) -> Failure {
    Failure::Said(format!("net/http: HTTP/1.x transport connection broken: {what}"))
}

/// Where a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunked,
    /// With the connection.
    Close,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub status: u16,
    pub framing: Framing,
    pub location: Option<String>,
}

/// A connection from which an answer is read.
pub(super) struct Reader<S> {
    stream: S,
    buffer: Vec<u8>,
    /// What of the buffer has been used.
    used: usize,
}

impl<S: AsyncRead + Unpin> Reader<S> {
    pub(super) fn new(stream: S) -> Self {
        Reader { stream, buffer: Vec::new(), used: 0 }
    }

    /// False: the other side sends no more.
    async fn more(&mut self) -> Result<bool, Failure> {
        // What has been used is not kept for as long as the other side goes on.
        self.buffer.drain(..self.used);
        self.used = 0;
        self.buffer.reserve(READ_BYTES);
        Ok(self.stream.read_buf(&mut self.buffer).await? > 0)
    }

    fn rest(&self) -> &[u8] {
        self.buffer.get(self.used..).unwrap_or_default()
    }

    /// The head of the answer that counts.
    pub(super) async fn head(&mut self) -> Result<Head, Failure> {
        for _ in 0..=INTERIM_MAX {
            let mut search = HeadSearch::default();
            let end = loop {
                if let Some(end) = search.end(self.rest()) {
                    break end;
                }
                if self.rest().len() > HEAD_BYTES_MAX {
                    return Err(broken(format!("server response headers exceeded {HEAD_BYTES_MAX} bytes; aborted")));
                }
                let begun = !self.rest().is_empty();
                match self.more().await {
                    Ok(true) => {}
                    Ok(false) if begun => return Err(broken("unexpected EOF")),
                    Ok(false) => return Err(Failure::Said("EOF".to_owned())),
                    Err(failure) => return Err(failure),
                }
            };
            let head = parse(self.rest().get(..end).unwrap_or_default())?;
            self.used += end;
            if !(100..200).contains(&head.status) || head.status == 101 {
                return Ok(head);
            }
        }
        Err(broken("too many 1xx informational responses"))
    }

    /// At most `max` bytes of the body.
    pub(super) async fn body(&mut self, framing: Framing, max: usize) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        match framing {
            Framing::Chunked => self.chunks(&mut body, max).await?,
            Framing::Length(length) => {
                let wanted = usize::try_from(length).unwrap_or(usize::MAX);
                if !self.take(&mut body, wanted, max).await? {
                    return Err(Failure::Said("unexpected EOF".to_owned()));
                }
            }
            Framing::Close => {
                self.take(&mut body, usize::MAX, max).await?;
            }
        }
        Ok(body)
    }

    /// Takes `wanted` bytes, or as many as there is room for. False: the stream ended before that.
    async fn take(&mut self, body: &mut Vec<u8>, wanted: usize, max: usize) -> Result<bool, Failure> {
        let mut left = wanted.min(max.saturating_sub(body.len()));
        loop {
            let part = self.rest().get(..left.min(self.rest().len())).unwrap_or_default();
            body.extend_from_slice(part);
            let taken = part.len();
            self.used += taken;
            left -= taken;
            if left == 0 {
                return Ok(true);
            }
            if !self.more().await? {
                return Ok(false);
            }
        }
    }

    async fn line(&mut self) -> Result<Vec<u8>, Failure> {
        // So much of the rest has no line end. It is not looked at again with each byte that comes.
        let mut searched = 0;
        loop {
            let new = self.rest().get(searched..).unwrap_or_default();
            if let Some(end) = new.iter().position(|b| *b == b'\n').map(|at| searched + at) {
                let line = self.rest().get(..end).unwrap_or_default().to_vec();
                self.used += end + 1;
                return Ok(line.strip_suffix(b"\r").map(<[u8]>::to_vec).unwrap_or(line));
            }
            searched = self.rest().len();
            if searched > LINE_BYTES_MAX {
                return Err(Failure::Said("header line too long".to_owned()));
            }
            if !self.more().await? {
                return Err(Failure::Said("unexpected EOF".to_owned()));
            }
        }
    }

    async fn chunks(&mut self, body: &mut Vec<u8>, max: usize) -> Result<(), Failure> {
        while body.len() < max {
            let line = self.line().await?;
            let digits = line.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
            let size = std::str::from_utf8(digits).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
            let Some(size) = size.filter(|_| digits.iter().all(u8::is_ascii_hexdigit)) else {
                return Err(Failure::Said("invalid byte in chunk length".to_owned()));
            };
            if size == 0 {
                // Trailers say nothing that matters here.
                return Ok(());
            }
            if !self.take(body, size, max).await? {
                return Err(Failure::Said("unexpected EOF".to_owned()));
            }
            if body.len() < max && !self.line().await?.is_empty() {
                return Err(Failure::Said("malformed chunked encoding".to_owned()));
            }
        }
        Ok(())
    }
}

/// Looks for the end of a head in what has come, and at each byte once: the other side may send one at a time.
#[derive(Debug, Default)]
struct HeadSearch {
    /// Where the line begins that has not ended.
    line: usize,
    searched: usize,
}

impl HeadSearch {
    /// Where the body begins. `bytes`: all that has come of the head, and more each time.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(new) = bytes.get(self.searched..).unwrap_or_default().iter().position(|b| *b == b'\n') {
            let at = self.searched + new;
            let text = bytes.get(self.line..at).unwrap_or_default();
            // What begins otherwise is no answer at all: it need not end like one.
            let is_end = if self.line > 0 { text.is_empty() || text == b"\r" } else { !bytes.starts_with(b"HTTP/") };
            if is_end {
                return Some(at + 1);
            }
            self.line = at + 1;
            self.searched = at + 1;
        }
        self.searched = bytes.len();
        None
    }
}

fn parse(head: &[u8]) -> Result<Head, Failure> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    let malformed = || broken(format!("malformed HTTP response {first:?}"));
    let (version, rest) = first.split_once(' ').ok_or_else(malformed)?;
    let code = rest.trim_start_matches(' ').split(' ').next().unwrap_or_default();
    let status: u16 = code
        .parse()
        .ok()
        .filter(|_| code.len() == 3)
        .ok_or_else(|| broken(format!("malformed HTTP status code {code:?}")))?;
    if !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        return Err(broken(format!("malformed HTTP version {version:?}")));
    }
    let (mut length, mut chunked, mut location) = (None, false, None);
    for line in lines.filter(|line| !line.is_empty()) {
        if line.starts_with([' ', '\t']) {
            // The rest of the line before it, in an old form that none of ours has.
            continue;
        }
        let Some((name, value)) = line.split_once(':') else {
            return Err(broken(format!("malformed MIME header line: {line}")));
        };
        let value = value.trim_matches([' ', '\t']);
        if name.eq_ignore_ascii_case("content-length") {
            let number = value.parse::<u64>().ok().filter(|_| value.bytes().all(|b| b.is_ascii_digit()));
            length = Some(number.ok_or_else(|| broken(format!("bad Content-Length {value:?}")))?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case("chunked") {
                return Err(broken(format!("unsupported transfer encoding: {value:?}")));
            }
            chunked = version == "HTTP/1.1";
        } else if name.eq_ignore_ascii_case("location") && location.is_none() && !value.is_empty() {
            location = Some(value.to_owned());
        }
    }
    let framing = match (status, chunked, length) {
        (100..200 | 204 | 304, ..) => Framing::Length(0),
        (_, true, _) => Framing::Chunked,
        (_, false, Some(length)) => Framing::Length(length),
        (_, false, None) => Framing::Close,
    };
    Ok(Head { status, framing, location })
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn read(bytes: &[u8], max: usize) -> Result<(u16, String), String> {
        let failed = |failure: Failure| match failure {
            Failure::Read(error) => error.to_string(),
            Failure::Said(text) => text,
        };
        let mut reader = Reader::new(bytes);
        let head = reader.head().await.map_err(failed)?;
        let body = reader.body(head.framing, max).await.map_err(failed)?;
        Ok((head.status, String::from_utf8(body).unwrap()))
    }

    #[tokio::test]
    async fn answers_of_all_framings() {
        for (bytes, body) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokmore", "ok"),
            ("HTTP/1.0 200\n\nuntil the end", "until the end"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2;x=y\r\nok\r\n1\r\n!\r\n0\r\n\r\n", "ok!"),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""),
        ] {
            assert_eq!(read(bytes.as_bytes(), 100).await, Ok((200, body.to_owned())), "{bytes:?}");
        }
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n";
        assert_eq!(read(chunks.as_bytes(), 4).await, Ok((200, "abcd".to_owned())));
        assert_eq!(read(b"HTTP/1.1 204 No Content\r\n\r\n", 4).await, Ok((204, String::new())));
    }

    #[tokio::test]
    async fn what_is_no_answer() {
        for (bytes, words) in [
            ("", "EOF"),
            ("HTTP/1.1 200 OK\r\nA", "net/http: HTTP/1.x transport connection broken: unexpected EOF"),
            ("220 mail\r\n", "net/http: HTTP/1.x transport connection broken: malformed HTTP status code \"mail\""),
            ("hello\r\n", "net/http: HTTP/1.x transport connection broken: malformed HTTP response \"hello\""),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", "unexpected EOF"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "invalid byte in chunk length"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
                "net/http: HTTP/1.x transport connection broken: bad Content-Length \"-5\"",
            ),
        ] {
            assert_eq!(read(bytes.as_bytes(), 100).await, Err(words.to_owned()), "{bytes:?}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(HEAD_BYTES_MAX + READ_BYTES));
        assert!(read(long.as_bytes(), 100).await.unwrap_err().contains("headers exceeded"));
    }

    #[tokio::test]
    async fn an_answer_that_comes_byte_by_byte() {
        let padding = "x".repeat(HEAD_BYTES_MAX - 100);
        let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA: {padding}\r\n\r\n");
        let answer = format!("{head}2;{}\r\nok\r\n0\r\n\r\n", "y".repeat(LINE_BYTES_MAX - 10));
        let (mut theirs, ours) = tokio::io::duplex(1);
        tokio::spawn(async move {
            for byte in answer.as_bytes().chunks(1) {
                if theirs.write_all(byte).await.is_err() {
                    return;
                }
            }
        });
        let mut reader = Reader::new(ours);
        let head = reader.head().await.unwrap();
        assert_eq!((head.status, head.framing), (200, Framing::Chunked));
        assert_eq!(reader.body(head.framing, 100).await.unwrap(), b"ok");
    }

    #[test]
    fn no_byte_of_a_head_is_looked_at_twice() {
        let mut search = HeadSearch::default();
        let mut bytes = b"HTTP/1.1 200 OK\r\nA: b".to_vec();
        assert_eq!(search.end(&bytes), None);
        // An end where it has looked already is not seen.
        bytes[18..].copy_from_slice(b"\n\n\n");
        assert_eq!(search.end(&bytes), None);
        bytes.extend_from_slice(b"\r\n\r\nbody");
        assert_eq!(search.end(&bytes), Some(bytes.len() - 4));
    }

    #[tokio::test]
    async fn what_has_been_read_is_not_kept() {
        let chunk = format!("1;{}\r\nx\r\n", "y".repeat(LINE_BYTES_MAX - 10));
        let answer = chunk.repeat(100);
        let mut reader = Reader::new(answer.as_bytes());
        let mut body = Vec::new();
        reader.chunks(&mut body, 100).await.unwrap();
        assert_eq!(body.len(), 100);
        assert!(reader.buffer.capacity() < 4 * (LINE_BYTES_MAX + READ_BYTES), "{}", reader.buffer.capacity());
    }

    proptest::proptest! {
        #[test]
        fn a_head_ends_where_it_does_however_it_comes(text in "HTTP/[a\r\n]{0,40}|[a\r\n]{0,9}", at in 0_usize..50) {
            let bytes = text.as_bytes();
            let whole = HeadSearch::default().end(bytes);
            let mut search = HeadSearch::default();
            let first = search.end(&bytes[..at.min(bytes.len())]);
            proptest::prop_assert_eq!(first.or_else(|| search.end(bytes)), whole);
        }

        #[test]
        fn nothing_that_is_sent_breaks_it(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300), max in 0_usize..50) {
            let whole = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".as_slice(), &bytes].concat();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            for input in [&bytes, &whole] {
                runtime.block_on(async {
                    let mut reader = Reader::new(input.as_slice());
                    if let Ok(head) = reader.head().await
                        && let Ok(body) = reader.body(head.framing, max).await
                    {
                        assert!(body.len() <= max);
                    }
                });
            }
        }
    }
}
