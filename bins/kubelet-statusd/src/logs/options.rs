//! What a request for logs asks for: v1.PodLogOptions from a query, as upstream decodes and validates it
//! (`pkg/kubelet/server/server.go` getContainerLogs, `pkg/apis/core/v1/validation` ValidatePodLogOptions).

use super::stamp::{Moment, Stamp};
use crate::routes;

/// Which of a container's two streams are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    All,
    Stdout,
    Stderr,
}

/// From when on lines are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    Always,
    /// So many seconds ago; at least 1.
    Seconds(i64),
    Time(Moment),
}

/// A request, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    pub follow: bool,
    pub previous: bool,
    pub since: Since,
    pub timestamps: bool,
    /// Lines of the file, from its end.
    pub tail_lines: Option<u64>,
    /// At least 1.
    pub limit_bytes: Option<u64>,
    pub streams: Streams,
}

/// Why a request is refused. The texts are upstream's bodies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadOptions {
    #[error("{{\"message\": \"Unable to decode query.\"}}")]
    Undecodable,
    #[error("{{\"message\": \"Invalid request.\"}}")]
    Invalid,
    #[error(
        "unable to return the given log stream: {stream:?}. Please enable PodLogsQuerySplitStreams feature gate in kubelet"
    )]
    SplitStreams { stream: &'static str },
}

/// The parameters as text; of a repeated one the first counts.
#[derive(Debug, Default)]
struct Given {
    tail: Option<String>,
    follow: Option<String>,
    previous: Option<String>,
    since_seconds: Option<String>,
    since_time: Option<String>,
    timestamps: Option<String>,
    tail_lines: Option<String>,
    limit_bytes: Option<String>,
    stream: Option<String>,
}

impl Given {
    fn read(query: &str) -> Self {
        let mut given = Given::default();
        for (name, value) in routes::pairs(query) {
            let slot = match name.as_str() {
                "tail" => &mut given.tail,
                "follow" => &mut given.follow,
                "previous" => &mut given.previous,
                "sinceSeconds" => &mut given.since_seconds,
                "sinceTime" => &mut given.since_time,
                "timestamps" => &mut given.timestamps,
                "tailLines" => &mut given.tail_lines,
                "limitBytes" => &mut given.limit_bytes,
                "stream" => &mut given.stream,
                // `container` and `insecureSkipTLSVerifyBackend` mean nothing here, whatever they say.
                _ => continue,
            };
            slot.get_or_insert(value);
        }
        // An old name: "all" asks for everything.
        match given.tail.take().as_deref() {
            None | Some("") => {}
            Some("all") => given.tail_lines = None,
            Some(count) => given.tail_lines = Some(count.to_owned()),
        }
        given
    }
}

/// Decodes and checks a query. `split_streams`: gate PodLogsQuerySplitStreams.
///
/// # Errors
/// What is not well-formed comes before what is not allowed, and both before what is not turned on.
pub fn parse(query: &str, split_streams: bool) -> Result<Options, BadOptions> {
    let given = Given::read(query);
    let since_seconds = whole(given.since_seconds.as_deref())?;
    let since_time = time(given.since_time.as_deref())?;
    let tail_lines = whole(given.tail_lines.as_deref())?;
    let limit_bytes = whole(given.limit_bytes.as_deref())?;

    let tail_lines = tail_lines.map(u64::try_from).transpose().map_err(|_| BadOptions::Invalid)?;
    let limit_bytes = limit_bytes.map(u64::try_from).transpose().map_err(|_| BadOptions::Invalid)?;
    let since = match (since_seconds, since_time) {
        (Some(_), Some(_)) => return Err(BadOptions::Invalid),
        (Some(seconds), None) if seconds < 1 => return Err(BadOptions::Invalid),
        (Some(seconds), None) => Since::Seconds(seconds),
        (None, Some(moment)) => Since::Time(moment),
        (None, None) => Since::Always,
    };
    let (streams, name) = match given.stream.as_deref() {
        None | Some("All") => (Streams::All, "All"),
        Some("Stdout") => (Streams::Stdout, "Stdout"),
        Some("Stderr") => (Streams::Stderr, "Stderr"),
        Some(_) => return Err(BadOptions::Invalid),
    };
    if limit_bytes == Some(0) || (streams != Streams::All && tail_lines.is_some()) {
        return Err(BadOptions::Invalid);
    }
    if streams != Streams::All && !split_streams {
        return Err(BadOptions::SplitStreams { stream: name });
    }
    Ok(Options {
        follow: flag(given.follow.as_deref()),
        previous: flag(given.previous.as_deref()),
        since,
        timestamps: flag(given.timestamps.as_deref()),
        tail_lines,
        limit_bytes,
        streams,
    })
}

/// Whatever is not "0" or "false" is true, the empty text too.
fn flag(value: Option<&str>) -> bool {
    value.is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
}

fn whole(value: Option<&str>) -> Result<Option<i64>, BadOptions> {
    value.map(str::parse).transpose().map_err(|_| BadOptions::Undecodable)
}

/// An empty text and "null" are Go's zero time: given, and before everything.
fn time(value: Option<&str>) -> Result<Option<Moment>, BadOptions> {
    let moment = |text: &str| match text {
        "" | "null" => Some(Stamp::default().moment()),
        _ => Stamp::parse(text.as_bytes()).map(|stamp| stamp.moment()),
    };
    value.map(|text| moment(text).ok_or(BadOptions::Undecodable)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: Options = Options {
        follow: false,
        previous: false,
        since: Since::Always,
        timestamps: false,
        tail_lines: None,
        limit_bytes: None,
        streams: Streams::All,
    };

    #[test]
    fn table() {
        use BadOptions::{Invalid, SplitStreams, Undecodable};
        let time = Stamp::parse(b"2026-01-02T03:04:05Z").unwrap().moment();
        for (query, expected) in [
            ("", Ok(PLAIN)),
            (
                "follow=true&previous=1&timestamps",
                Ok(Options { follow: true, previous: true, timestamps: true, ..PLAIN }),
            ),
            ("follow=false&previous=0&timestamps=FALSE", Ok(PLAIN)),
            ("follow=no&follow=false", Ok(Options { follow: true, ..PLAIN })),
            ("Follow=true&unknown=%zz&container=other&insecureSkipTLSVerifyBackend=x", Ok(PLAIN)),
            ("sinceSeconds=10", Ok(Options { since: Since::Seconds(10), ..PLAIN })),
            ("sinceSeconds=%2B10", Ok(Options { since: Since::Seconds(10), ..PLAIN })),
            ("sinceSeconds=0", Err(Invalid)),
            ("sinceSeconds=-1", Err(Invalid)),
            ("sinceSeconds=", Err(Undecodable)),
            ("sinceSeconds=1.5", Err(Undecodable)),
            ("sinceSeconds=9223372036854775808", Err(Undecodable)),
            ("sinceTime=2026-01-02T03:04:05Z", Ok(Options { since: Since::Time(time), ..PLAIN })),
            ("sinceTime=2026-01-02T04%3A04%3A05%2B01%3A00", Ok(Options { since: Since::Time(time), ..PLAIN })),
            ("sinceTime=yesterday", Err(Undecodable)),
            ("sinceTime=", Ok(Options { since: Since::Time((-62_135_596_800, 0)), ..PLAIN })),
            ("sinceTime=2026-01-02T03:04:05Z&sinceSeconds=1", Err(Invalid)),
            ("sinceTime=x&sinceSeconds=0", Err(Undecodable)),
            ("tailLines=0", Ok(Options { tail_lines: Some(0), ..PLAIN })),
            ("tailLines=-1", Err(Invalid)),
            ("tailLines=x", Err(Undecodable)),
            ("tailLines=3&tail=7", Ok(Options { tail_lines: Some(7), ..PLAIN })),
            ("tailLines=x&tail=7", Ok(Options { tail_lines: Some(7), ..PLAIN })),
            ("tailLines=3&tail=", Ok(Options { tail_lines: Some(3), ..PLAIN })),
            ("tailLines=-3&tail=all", Ok(PLAIN)),
            ("tail=some", Err(Undecodable)),
            ("limitBytes=1", Ok(Options { limit_bytes: Some(1), ..PLAIN })),
            ("limitBytes=0", Err(Invalid)),
            ("limitBytes=-5", Err(Invalid)),
            ("limitBytes=0x10", Err(Undecodable)),
            ("stream=All&tailLines=1", Ok(Options { tail_lines: Some(1), ..PLAIN })),
            ("stream=Stdout", Err(SplitStreams { stream: "Stdout" })),
            ("stream=Stderr&tailLines=1", Err(Invalid)),
            ("stream=stdout", Err(Invalid)),
            ("stream=", Err(Invalid)),
        ] {
            assert_eq!(parse(query, false), expected, "{query}");
        }
        assert_eq!(parse("stream=Stdout", true), Ok(Options { streams: Streams::Stdout, ..PLAIN }));
        assert_eq!(parse("stream=Stderr&limitBytes=3", true).map(|options| options.streams), Ok(Streams::Stderr));
        assert_eq!(parse("stream=Stderr&tailLines=1", true), Err(Invalid));
        assert_eq!(
            parse("stream=Stderr", false).unwrap_err().to_string(),
            "unable to return the given log stream: \"Stderr\". Please enable PodLogsQuerySplitStreams feature gate in kubelet"
        );
        assert_eq!(Undecodable.to_string(), r#"{"message": "Unable to decode query."}"#);
        assert_eq!(Invalid.to_string(), r#"{"message": "Invalid request."}"#);
    }

    proptest! {
        #[test]
        fn what_passes_is_in_range(query in "((follow|previous|since(Seconds|Time)|timestamps|tail(Lines)?|limitBytes|stream)=[A-Za-z0-9:%.+-]{0,12}&?){0,6}", split in any::<bool>()) {
            if let Ok(options) = parse(&query, split) {
                prop_assert!(options.limit_bytes != Some(0));
                prop_assert!(!matches!(options.since, Since::Seconds(..=0)));
                prop_assert!(split || options.streams == Streams::All);
            }
        }

        #[test]
        fn nothing_panics(query in any::<String>()) {
            let _ = parse(&query, true);
        }
    }
}
