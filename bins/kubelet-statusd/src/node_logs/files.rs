//! The file server of `/logs/` (Go's `net/http` FileServer): files, ranges of them, directories as pages of links.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bulkhead_ipc::broker::BrokerClient;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use jiff::Timestamp;

use super::conditions::{self, Part, Range};
use super::listing::{self, Name};
use super::opened::{self, NotOpened, Opened};
use super::pieces::{self, Segment};
use super::sniff;
use crate::routes::encode_path;
use crate::server::answer::{self, Answer};

/// Names of one directory that are shown; more than a folder of logs has.
const NAMES_MAX: usize = 100_000;
const INDEX: &str = "index.html";

/// A request, as far as files depend on it.
#[derive(Debug)]
pub struct FileRequest<'a> {
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
    pub query: Option<&'a str>,
}

/// `path`: what follows `/logs/`, with its slash at the end.
pub async fn serve(broker: &BrokerClient, path: &str, asked: &FileRequest<'_>) -> Answer {
    let url = format!("/{}", path.trim_start_matches('/'));
    if url.ends_with("/index.html") {
        return moved("./", asked.query);
    }
    let Some(name) = opened::lexical(&url) else { return refused(NotOpened::Missing) };
    let base = name.rsplit('/').next().unwrap_or_default();
    match opened::open(broker, &name).await {
        Err(why) => refused(why),
        Ok(Opened::Directory { .. }) if !url.ends_with('/') => moved(&format!("{}/", relative(base)), asked.query),
        Ok(Opened::File { .. }) if url.ends_with('/') => moved(&format!("../{}", encode_path(base)), asked.query),
        Ok(Opened::File { file, size, modified }) => content(base, file, size, modified, asked).await,
        Ok(Opened::Directory { directory, modified }) => {
            let index = if name.is_empty() { INDEX.to_owned() } else { format!("{name}/{INDEX}") };
            match opened::open(broker, &index).await {
                Ok(Opened::File { file, size, modified }) => content(INDEX, file, size, modified, asked).await,
                _ => list(directory, modified, asked).await,
            }
        }
    }
}

fn refused(why: NotOpened) -> Answer {
    let (status, words) = why.answer();
    answer::text(status, words)
}

/// The node's own failure, in the words of Go's file server, with the cause behind them.
fn failed(words: &str, cause: &dyn std::fmt::Display) -> Answer {
    answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{words}: {cause}\n"))
}

/// A name as a relative link: one with a colon would be taken for a scheme.
fn relative(name: &str) -> String {
    let link = encode_path(name);
    if link.contains(':') { format!("./{link}") } else { link }
}

fn moved(to: &str, query: Option<&str>) -> Answer {
    let to = query.map_or_else(|| to.to_owned(), |query| format!("{to}?{query}"));
    let Ok(location) = HeaderValue::from_str(&to) else { return refused(NotOpened::Missing) };
    let mut answer = answer::empty(StatusCode::MOVED_PERMANENTLY);
    answer.headers_mut().insert(header::LOCATION, location);
    answer
}

fn set(answer: &mut Answer, name: HeaderName, value: &str) {
    // Made of numbers, dates and our own words.
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
}

fn dated(answer: &mut Answer, modified: Option<Timestamp>) {
    if let Some(modified) = modified {
        set(answer, header::LAST_MODIFIED, &conditions::http_date(modified));
    }
}

async fn list(directory: OwnedFd, modified: Option<Timestamp>, asked: &FileRequest<'_>) -> Answer {
    if conditions::not_modified_since(asked.headers, modified).is_some() {
        return answer::empty(StatusCode::NOT_MODIFIED);
    }
    let names = tokio::task::spawn_blocking(move || names(directory)).await;
    let names = match names {
        Ok(Ok(names)) => names,
        Ok(Err(errno)) => return failed("Error reading directory", &errno),
        Err(error) => return failed("Error reading directory", &error),
    };
    let mut answer = answer::typed(StatusCode::OK, "text/html; charset=utf-8", listing::page(names));
    dated(&mut answer, modified);
    answer
}

fn names(directory: OwnedFd) -> rustix::io::Result<Vec<Name>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
        if names.len() >= NAMES_MAX {
            return Err(rustix::io::Errno::TOOBIG);
        }
        names.push(Name { name, is_dir: entry.file_type() == rustix::fs::FileType::Directory });
    }
    Ok(names)
}

async fn content(name: &str, file: File, size: u64, modified: Option<Timestamp>, asked: &FileRequest<'_>) -> Answer {
    let file = Arc::new(file);
    let content_type = match sniff::by_name(name) {
        Some(content_type) => content_type,
        None => match pieces::read(file.clone(), 0, sniff::SNIFFED_BYTES).await {
            Ok(begin) => sniff::by_content(&begin),
            Err(error) => return failed("seeker can't seek", &error),
        },
    };
    let whole = Range { start: 0, length: size };
    let part = conditions::part(asked.method, asked.headers, size, modified);
    let mut answer = match part {
        Part::NotModified => answer::empty(StatusCode::NOT_MODIFIED),
        Part::PreconditionFailed => answer::empty(StatusCode::PRECONDITION_FAILED),
        Part::Unsatisfiable { text, sized } => {
            let mut answer = answer::text(StatusCode::RANGE_NOT_SATISFIABLE, format!("{text}\n"));
            if sized {
                set(&mut answer, header::CONTENT_RANGE, &format!("bytes */{size}"));
            }
            return answer;
        }
        Part::Whole => of_file(file, StatusCode::OK, content_type, vec![Segment::Part(whole)]),
        Part::One(range) => {
            let mut answer = of_file(file, StatusCode::PARTIAL_CONTENT, content_type, vec![Segment::Part(range)]);
            set(&mut answer, header::CONTENT_RANGE, &told(range, size));
            answer
        }
        Part::Several(ranges) => several(file, content_type, &ranges, size),
    };
    dated(&mut answer, modified);
    answer
}

fn told(range: Range, size: u64) -> String {
    format!("bytes {}-{}/{size}", range.start, range.start + range.length - 1)
}

fn of_file(file: Arc<File>, status: StatusCode, content_type: &str, segments: Vec<Segment>) -> Answer {
    let length: u64 = segments.iter().map(Segment::length).sum();
    let mut answer = answer::stream(pieces::body(file, segments));
    *answer.status_mut() = status;
    set(&mut answer, header::CONTENT_TYPE, content_type);
    set(&mut answer, header::CONTENT_LENGTH, &length.to_string());
    answer.headers_mut().insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    answer
}

fn several(file: Arc<File>, content_type: &str, ranges: &[Range], size: u64) -> Answer {
    let mut random = [0_u8; 15];
    if let Err(error) = getrandom::fill(&mut random) {
        return failed("500 Internal Server Error", &error);
    }
    let boundary: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut segments = Vec::new();
    for (i, range) in ranges.iter().enumerate() {
        let before = if i == 0 { "" } else { "\r\n" };
        let told = told(*range, size);
        segments.push(Segment::Text(format!(
            "{before}--{boundary}\r\nContent-Range: {told}\r\nContent-Type: {content_type}\r\n\r\n"
        )));
        segments.push(Segment::Part(*range));
    }
    segments.push(Segment::Text(format!("\r\n--{boundary}--\r\n")));
    let kind = format!("multipart/byteranges; boundary={boundary}");
    of_file(file, StatusCode::PARTIAL_CONTENT, &kind, segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    async fn got(path: &std::path::Path, pairs: &[(&'static str, &str)]) -> (u16, HeaderMap, Vec<u8>) {
        let file = File::open(path).unwrap();
        let size = file.metadata().unwrap().len();
        let modified = "2026-11-21T10:00:00Z".parse().ok();
        let headers = pairs.iter().map(|(k, v)| (HeaderName::from_static(k), v.parse().unwrap())).collect();
        let asked = FileRequest { method: &Method::GET, headers: &headers, query: None };
        let name = path.file_name().unwrap().to_str().unwrap();
        let answer = content(name, file, size, modified, &asked).await;
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        (parts.status.as_u16(), parts.headers, body)
    }

    #[tokio::test]
    async fn a_file_in_parts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("syslog");
        std::fs::write(&path, "0123456789").unwrap();
        let (status, headers, body) = got(&path, &[]).await;
        assert_eq!((status, body.as_slice()), (200, &b"0123456789"[..]));
        assert_eq!(headers["content-type"], "text/plain; charset=utf-8");
        assert_eq!(
            (&headers["content-length"], &headers["accept-ranges"]),
            (&"10".parse().unwrap(), &"bytes".parse().unwrap())
        );
        assert_eq!(headers["last-modified"], "Sat, 21 Nov 2026 10:00:00 GMT");

        let (status, headers, body) = got(&path, &[("range", "bytes=2-4")]).await;
        assert_eq!((status, body.as_slice()), (206, &b"234"[..]));
        assert_eq!(
            (&headers["content-range"], &headers["content-length"]),
            (&"bytes 2-4/10".parse().unwrap(), &"3".parse().unwrap())
        );

        let (status, headers, body) = got(&path, &[("range", "bytes=0-1,-1")]).await;
        let boundary =
            headers["content-type"].to_str().unwrap().strip_prefix("multipart/byteranges; boundary=").unwrap();
        let text = String::from_utf8(body.clone()).unwrap();
        let kind = "Content-Type: text/plain; charset=utf-8";
        assert_eq!(
            text,
            format!(
                "--{boundary}\r\nContent-Range: bytes 0-1/10\r\n{kind}\r\n\r\n01\r\n--{boundary}\r\nContent-Range: bytes \
                 9-9/10\r\n{kind}\r\n\r\n9\r\n--{boundary}--\r\n"
            )
        );
        assert_eq!((status, headers["content-length"].to_str().unwrap()), (206, body.len().to_string().as_str()));

        let (status, headers, body) = got(&path, &[("range", "bytes=10-")]).await;
        assert_eq!((status, body.as_slice()), (416, &b"invalid range: failed to overlap\n"[..]));
        assert_eq!(headers["content-range"], "bytes */10");
        let (status, headers, body) = got(&path, &[("if-modified-since", "Sat, 21 Nov 2026 10:00:00 GMT")]).await;
        assert_eq!((status, body.len(), headers.contains_key("content-type")), (304, 0, false));
        assert_eq!(got(&path, &[("if-match", "\"x\"")]).await.0, 412);
    }

    #[tokio::test]
    async fn a_directory_is_a_page() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pods")).unwrap();
        std::fs::write(dir.path().join("a"), "").unwrap();
        let open = || rustix::fs::open(dir.path(), rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        let modified = "2026-11-21T10:00:00Z".parse().ok();
        let headers = HeaderMap::new();
        let asked = FileRequest { method: &Method::GET, headers: &headers, query: None };
        let answer = list(open(), modified, &asked).await;
        assert_eq!(answer.headers()["content-type"], "text/html; charset=utf-8");
        let page = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(page.ends_with(b"<a href=\"a\">a</a>\n<a href=\"pods/\">pods/</a>\n</pre>\n"));
        let since = [(header::IF_MODIFIED_SINCE, HeaderValue::from_static("Sat, 21 Nov 2026 10:00:00 GMT"))];
        let headers = since.into_iter().collect();
        let asked = FileRequest { headers: &headers, ..asked };
        assert_eq!(list(open(), modified, &asked).await.status(), 304);
    }

    #[test]
    fn links_stay_links() {
        assert_eq!((relative("a b"), relative("x:y")), ("a%20b".to_owned(), "./x:y".to_owned()));
        assert_eq!(moved("x/", Some("a=b")).headers()["location"], "x/?a=b");
    }
}
