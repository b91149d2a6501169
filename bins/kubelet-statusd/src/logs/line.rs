//! One line of a log file: CRI's format, or docker's JSON (upstream `cri-client/pkg/logs` parseCRILog,
//! parseDockerJSONLog).

use super::stamp::Stamp;

/// Which of the container's two streams a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"stdout" => Some(Stream::Stdout),
            b"stderr" => Some(Stream::Stderr),
            _ => None,
        }
    }
}

/// What stands before the text of a line in CRI's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub stamp: Stamp,
    pub stream: Stream,
    /// The line goes on in the next one: its newline is the runtime's, not the container's.
    pub partial: bool,
    /// Where the text begins.
    pub length: usize,
}

/// Reads the head of `<time> <stream> <tag>[:<tag>...] <text>`; `None` when the line is of no such form.
pub fn cri_head(line: &[u8]) -> Option<Head> {
    let mut rest = line;
    let stamp = Stamp::parse(word(&mut rest)?)?;
    let stream = Stream::parse(word(&mut rest)?)?;
    let tags = word(&mut rest)?;
    let partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
    Some(Head { stamp, stream, partial, length: line.len() - rest.len() })
}

/// What comes before the next space.
fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = memchr::memchr(b' ', rest)?;
    let (word, tail) = rest.split_at(end);
    *rest = tail.get(1..)?;
    Some(word)
}

/// A line in docker's format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Docker {
    pub stamp: Stamp,
    /// `Err`: a stream of another name.
    pub stream: Result<Stream, String>,
    /// Ends with a newline unless the line goes on in the next one.
    pub text: Vec<u8>,
}

/// Reads `{"log": ..., "stream": ..., "time": ...}`; what is missing is empty. `None` when it is no such object.
pub fn docker(line: &[u8]) -> Option<Docker> {
    // As Go's decoder: what is no UTF-8 becomes U+FFFD. (Docker itself writes none.)
    let line = String::from_utf8_lossy(line);
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).ok()?;
    let text = |key: &str| match object.get(key) {
        None | Some(serde_json::Value::Null) => Some(""),
        Some(value) => value.as_str(),
    };
    let stamp = match object.get("time") {
        None | Some(serde_json::Value::Null) => Stamp::default(),
        Some(value) => Stamp::parse(value.as_str()?.as_bytes())?,
    };
    let stream = text("stream")?;
    let stream = Stream::parse(stream.as_bytes()).ok_or_else(|| stream.chars().take(64).collect());
    Some(Docker { stamp, stream, text: text("log")?.as_bytes().to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn heads() {
        let time = "2016-10-20T18:39:20.57606443Z";
        for (rest, expected) in [
            (" stdout F text\n", Some((Stream::Stdout, false, "text\n"))),
            (" stderr F text\n", Some((Stream::Stderr, false, "text\n"))),
            (" stdout P text\n", Some((Stream::Stdout, true, "text\n"))),
            (" stdout P:TAG1:TAG2 text\n", Some((Stream::Stdout, true, "text\n"))),
            (" stdout F:P text\n", Some((Stream::Stdout, false, "text\n"))),
            (" stdout X text\n", Some((Stream::Stdout, false, "text\n"))),
            (" stdout  text\n", Some((Stream::Stdout, false, "text\n"))),
            (" stdout F  two\n", Some((Stream::Stdout, false, " two\n"))),
            (" stdout F \n", Some((Stream::Stdout, false, "\n"))),
            (" stdout F ", Some((Stream::Stdout, false, ""))),
            (" stdout F\n", None),
            (" stdout", None),
            (" stdin F text\n", None),
            ("stdout F text\n", None),
            ("", None),
        ] {
            let line = format!("{time}{rest}");
            let head = cri_head(line.as_bytes());
            let seen = head.map(|head| (head.stream, head.partial, &line[head.length..]));
            assert_eq!(seen, expected, "{line:?}");
        }
        assert!(cri_head(b"yesterday stdout F text\n").is_none());
    }

    #[test]
    fn objects() {
        let read = |line: &str| {
            docker(line.as_bytes()).map(|line| (line.stream, String::from_utf8(line.text).unwrap(), line.stamp))
        };
        let stamp = Stamp::parse(b"2016-10-20T18:39:20.57606443Z").unwrap();
        let line = r#"{"log":"a \u0000\n","stream":"stderr","time":"2016-10-20T18:39:20.57606443Z","attrs":{"x":1}}"#;
        assert_eq!(read(line), Some((Ok(Stream::Stderr), "a \0\n".into(), stamp)));
        assert_eq!(read("{}\n"), Some((Err(String::new()), String::new(), Stamp::default())));
        assert_eq!(
            read(r#"{"log":"x","log":"y","stream":"stdout","time":null}"#),
            Some((Ok(Stream::Stdout), "y".into(), Stamp::default()))
        );
        for bad in ["", "[]", "{", r#"{"log":1}"#, r#"{"time":"noon"}"#, r#"{"log":"x"} {}"#] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(line in any::<Vec<u8>>(), rest in any::<String>()) {
            let _ = (cri_head(&line), docker(&line));
            let like = format!("2016-10-20T18:39:20.57606443Z stdout {rest}");
            if let Some(head) = cri_head(like.as_bytes()) {
                prop_assert!(head.length <= like.len());
            }
            let _ = docker(format!("{{\"log\":{rest:?}}}").as_bytes());
        }
    }
}
