//! What a peer needs to read our headers, for tests: the dictionary that SPDY/3 begins its compression with, and a
//! decompressor that is not ours.

use flate2::{Decompress, FlushDecompress};

const WORDS: [&str; 65] = [
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];

const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
    404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug \
    Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch\
    charset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// Each word with its length in 32 bits, then codes and phrases without.
fn dictionary() -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in WORDS {
        bytes.extend(u32::try_from(word.len()).unwrap().to_be_bytes());
        bytes.extend(word.as_bytes());
    }
    bytes.extend(TAIL.as_bytes());
    bytes
}

/// A block's content; `None` when the block is not taken whole, as a strict peer demands.
pub(crate) fn inflate(context: &mut Decompress, block: &[u8]) -> Option<Vec<u8>> {
    let mut plain = vec![0; 1 << 18];
    let (read_before, written_before) = (context.total_in(), context.total_out());
    if let Err(error) = context.decompress(block, &mut plain, FlushDecompress::Sync) {
        error.needs_dictionary()?;
        context.set_dictionary(&dictionary()).ok()?;
        let read = usize::try_from(context.total_in() - read_before).ok()?;
        context.decompress(&block[read..], &mut plain, FlushDecompress::Sync).ok()?;
    }
    (context.total_in() - read_before == block.len() as u64).then_some(())?;
    plain.truncate(usize::try_from(context.total_out() - written_before).ok()?);
    Some(plain)
}

/// Names and values of a block.
pub(crate) fn headers(context: &mut Decompress, block: &[u8]) -> Option<Vec<(String, String)>> {
    let plain = inflate(context, block)?;
    let mut rest = plain.as_slice();
    let count = take_length(&mut rest)?;
    let mut headers = Vec::new();
    for _ in 0..count {
        headers.push((take_text(&mut rest)?, take_text(&mut rest)?));
    }
    rest.is_empty().then_some(headers)
}

fn take_length(rest: &mut &[u8]) -> Option<usize> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    usize::try_from(u32::from_be_bytes(*length)).ok()
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    let length = take_length(rest)?;
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after;
    String::from_utf8(text.to_vec()).ok()
}
