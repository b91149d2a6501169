//! Which part of a file an answer has, by the request's conditions and ranges (Go's `net/http` serveContent; RFC 9110).
//! Pure.

use http::{HeaderMap, Method, header};
use jiff::Timestamp;

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    pub length: u64,
}

/// What is to be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// 200.
    Whole,
    /// 206.
    One(Range),
    /// 206, as multipart/byteranges.
    Several(Vec<Range>),
    /// 304.
    NotModified,
    /// 412.
    PreconditionFailed,
    /// 416 with this text; `sized`: the size is told.
    Unsatisfiable { text: &'static str, sized: bool },
}

/// Ranges in one request; more are answered by the whole file.
const RANGES_MAX: usize = 64;

/// Decides. `modified`: the file's time, to the second.
pub fn part(method: &Method, headers: &HeaderMap, size: u64, modified: Option<Timestamp>) -> Part {
    if let Some(decided) = preconditions(method, headers, modified) {
        return decided;
    }
    let Some(range) = text(headers, header::RANGE) else { return Part::Whole };
    if !if_range_holds(headers, modified) {
        return Part::Whole;
    }
    match parse(range, size) {
        Err(RangeError::NoOverlap) if size == 0 => Part::Whole,
        Err(RangeError::NoOverlap) => Part::Unsatisfiable { text: "invalid range: failed to overlap", sized: true },
        Err(RangeError::Invalid) => Part::Unsatisfiable { text: "invalid range", sized: false },
        // More than the file itself: an attack, or a mistake.
        Ok(ranges) if ranges.iter().map(|range| range.length).sum::<u64>() > size => Part::Whole,
        Ok(ranges) => match ranges.as_slice() {
            [] => Part::Whole,
            [one] => Part::One(*one),
            _ => Part::Several(ranges),
        },
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty())
}

/// No file has an entity tag here: `*` alone matches.
fn preconditions(method: &Method, headers: &HeaderMap, modified: Option<Timestamp>) -> Option<Part> {
    match text(headers, header::IF_MATCH) {
        Some(tags) if tags.trim() != "*" => return Some(Part::PreconditionFailed),
        Some(_) => {}
        None => {
            let since = text(headers, header::IF_UNMODIFIED_SINCE).and_then(date);
            if since.zip(modified).is_some_and(|(since, modified)| modified > since) {
                return Some(Part::PreconditionFailed);
            }
        }
    }
    let reads = matches!(*method, Method::GET | Method::HEAD);
    match text(headers, header::IF_NONE_MATCH) {
        Some(tags) if tags.trim() == "*" => Some(if reads { Part::NotModified } else { Part::PreconditionFailed }),
        Some(_) => None,
        None => not_modified_since(headers, modified).filter(|_| reads).map(|()| Part::NotModified),
    }
}

/// `If-Modified-Since` says that the client has it.
pub fn not_modified_since(headers: &HeaderMap, modified: Option<Timestamp>) -> Option<()> {
    let since = text(headers, header::IF_MODIFIED_SINCE).and_then(date)?;
    (modified? <= since).then_some(())
}

fn if_range_holds(headers: &HeaderMap, modified: Option<Timestamp>) -> bool {
    match text(headers, header::IF_RANGE) {
        None => true,
        // A tag matches nothing.
        Some(value) if value.starts_with('"') || value.starts_with("W/") => false,
        Some(value) => date(value).is_some() && date(value) == modified,
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn http_date(at: Timestamp) -> String {
    at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

fn date(text: &str) -> Option<Timestamp> {
    let broken = jiff::fmt::strtime::parse("%a, %d %b %Y %H:%M:%S GMT", text.trim()).ok()?;
    broken.to_datetime().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|at| at.timestamp())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RangeError {
    Invalid,
    NoOverlap,
}

fn parse(text: &str, size: u64) -> Result<Vec<Range>, RangeError> {
    let list = text.strip_prefix("bytes=").ok_or(RangeError::Invalid)?;
    let mut ranges = Vec::new();
    let mut none_overlaps = false;
    for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (start, end) = part.split_once('-').ok_or(RangeError::Invalid)?;
        let (start, end) = (start.trim(), end.trim());
        if start.is_empty() {
            // The last bytes.
            let length = number(end)?.min(size);
            ranges.push(Range { start: size - length, length });
        } else {
            let start = number(start)?;
            if start >= size {
                none_overlaps = true;
                continue;
            }
            let end = if end.is_empty() { size - 1 } else { number(end)?.min(size - 1) };
            if start > end {
                return Err(RangeError::Invalid);
            }
            ranges.push(Range { start, length: end - start + 1 });
        }
        if ranges.len() > RANGES_MAX {
            return Ok(Vec::new());
        }
    }
    if none_overlaps && ranges.is_empty() {
        return Err(RangeError::NoOverlap);
    }
    Ok(ranges)
}

fn number(text: &str) -> Result<u64, RangeError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(RangeError::Invalid);
    }
    text.parse::<i64>().ok().and_then(|number| u64::try_from(number).ok()).ok_or(RangeError::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse::<header::HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn table() {
        let modified: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let (same, before) = ("Sat, 21 Nov 2026 10:00:00 GMT", "Sat, 21 Nov 2026 09:59:59 GMT");
        assert_eq!(http_date(modified), same);
        let one = |start, length| Part::One(Range { start, length });
        let bad = |text, sized| Part::Unsatisfiable { text, sized };
        for (given, expected) in [
            (&[][..], Part::Whole),
            (&[("range", "bytes=0-0")], one(0, 1)),
            (&[("range", "bytes=5-")], one(5, 95)),
            (&[("range", "bytes=-10")], one(90, 10)),
            (&[("range", "bytes=-1000")], one(0, 100)),
            (&[("range", "bytes=90-1000")], one(90, 10)),
            (&[("range", "bytes=100-")], bad("invalid range: failed to overlap", true)),
            (&[("range", "bytes=5-4")], bad("invalid range", false)),
            (&[("range", "bytes=a-")], bad("invalid range", false)),
            (&[("range", "bytes=--1")], bad("invalid range", false)),
            (&[("range", "lines=0-1")], bad("invalid range", false)),
            (&[("range", "bytes=")], Part::Whole),
            (
                &[("range", "bytes=0-1, 4-5")],
                Part::Several(vec![Range { start: 0, length: 2 }, Range { start: 4, length: 2 }]),
            ),
            (&[("range", "bytes=0-,0-")], Part::Whole),
            (&[("range", "bytes=0-0"), ("if-range", same)], one(0, 1)),
            (&[("range", "bytes=0-0"), ("if-range", before)], Part::Whole),
            (&[("range", "bytes=0-0"), ("if-range", "\"tag\"")], Part::Whole),
            (&[("if-modified-since", same)], Part::NotModified),
            (&[("if-modified-since", before)], Part::Whole),
            (&[("if-modified-since", "yesterday")], Part::Whole),
            (&[("if-unmodified-since", before)], Part::PreconditionFailed),
            (&[("if-unmodified-since", same)], Part::Whole),
            (&[("if-match", "\"x\"")], Part::PreconditionFailed),
            (&[("if-match", "*")], Part::Whole),
            (&[("if-none-match", "*")], Part::NotModified),
            (&[("if-none-match", "\"x\""), ("if-modified-since", same)], Part::Whole),
        ] {
            assert_eq!(part(&Method::GET, &headers(given), 100, Some(modified)), expected, "{given:?}");
        }
        assert_eq!(part(&Method::GET, &headers(&[("range", "bytes=0-")]), 0, None), Part::Whole);
    }

    proptest! {
        #[test]
        fn a_range_lies_within_the_file(range in "bytes=[0-9,\\- ]{0,40}", size in 0_u64..1000) {
            let ranges = match part(&Method::GET, &headers(&[("range", &range)]), size, None) {
                Part::One(one) => vec![one],
                Part::Several(several) => several,
                _ => Vec::new(),
            };
            for one in ranges {
                prop_assert!(one.start + one.length <= size, "{one:?}");
            }
        }
    }
}
