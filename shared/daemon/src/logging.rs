//! Logs on standard error, in klog's text form or as JSON, so that what parses the kubelet's log goes on working.
//!
//! Text: `I1121 06:32:27.123456    1234 kubelet-syncd/pleg/evented.rs:120] "message" key="value"`. The place is the file in the
//! repository, so a line leads to its code. Fields of the open spans (request id, pod uid) follow the event's own.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};

use bulkhead_trace::TraceLayer;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::{FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormattedFields};
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::LookupSpan;

/// klog's verbosity in force.
static VERBOSITY: AtomicU32 = AtomicU32::new(0);

/// The most that there is to say, and so the most that a peer may ask for.
pub const VERBOSITY_MAX: u32 = 10;

/// A verbosity that means nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("verbosity {0} is above {VERBOSITY_MAX}, the most there is to say")]
pub struct TooVerbose(pub u32);

/// Text or JSON (`logging.format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// Starts logging for the process, and recording of traces where the configuration names it. `verbosity` is klog's: 0 to 3
/// info, from 4 on debug, from 6 on trace.
pub fn start(format: LogFormat, verbosity: u32, traces: Option<TraceLayer>) {
    VERBOSITY.store(verbosity, Ordering::Relaxed);
    use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .fmt_fields(PlainFields)
        .event_format(Klog { format, pid: std::process::id() });
    let subscriber = tracing_subscriber::registry().with(layer.with_filter(Written));
    // A second start in one process (tests) keeps the first. No layer for traces where there are none: beside `None` every place in
    // the code, of the libraries too, asks anew whether it is heard, each time.
    let _ = match traces {
        None => tracing::subscriber::set_global_default(subscriber),
        Some(traces) => {
            let ours = |metadata: &Metadata<'_>| metadata.target() == bulkhead_trace::TARGET;
            let ours = tracing_subscriber::filter::filter_fn(ours).with_max_level_hint(LevelFilter::INFO);
            tracing::subscriber::set_global_default(subscriber.with(traces.with_filter(ours)))
        }
    };
}

/// What is logged at the verbosity in force. The hint spares places that say more than that all but the comparison of a number; there
/// are hundreds of them on the way of a request through the libraries.
struct Written;

impl<S> Filter<S> for Written {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        is_written(VERBOSITY.load(Ordering::Relaxed), metadata.level(), metadata.target())
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match is_written(VERBOSITY.load(Ordering::Relaxed), metadata.level(), metadata.target()) {
            true => Interest::always(),
            false => Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(most(VERBOSITY.load(Ordering::Relaxed))))
    }
}

/// Changes how much is logged from now on; see [`start`]. Answers whether that is another number than before.
///
/// # Errors
/// Above [`VERBOSITY_MAX`]; nothing is changed.
pub fn set_verbosity(verbosity: u32) -> Result<bool, TooVerbose> {
    if verbosity > VERBOSITY_MAX {
        return Err(TooVerbose(verbosity));
    }
    let changed = VERBOSITY.swap(verbosity, Ordering::Relaxed) != verbosity;
    if changed {
        // Each place in the code remembers whether anybody wants to hear of it.
        tracing::callsite::rebuild_interest_cache();
    }
    Ok(changed)
}

/// The most that is ever written.
fn most(verbosity: u32) -> Level {
    match verbosity {
        0..=3 => Level::INFO,
        4 | 5 => Level::DEBUG,
        _ => Level::TRACE,
    }
}

fn is_written(verbosity: u32, level: &Level, target: &str) -> bool {
    let most = most(verbosity);
    // Other crates' debug lines are of no use to an operator below the highest verbosities. Their traces are never
    // written: they are many, and they print what passes through (handshakes, tickets).
    let limit = match target.starts_with("bulkhead_") || target.starts_with("kubelet") {
        true => most,
        false if verbosity >= 8 => Level::DEBUG,
        false => Level::WARN,
    };
    *level <= limit && !quotes_answers(target)
}

/// The API client's libraries warn with the whole text of an answer that they cannot decode, which may be a Secret or a
/// token. Their errors come back to us in any case, so none of their lines is written, at no verbosity.
fn quotes_answers(target: &str) -> bool {
    target.starts_with("kube_")
}

/// `key="value"` pairs, separated by blanks, for spans.
#[derive(Debug)]
struct PlainFields;

impl<'writer> FormatFields<'writer> for PlainFields {
    fn format_fields<R: tracing_subscriber::field::RecordFields>(
        &self,
        writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut visitor = Fields { message: String::new(), pairs: String::new(), json: false };
        fields.record(&mut visitor);
        let mut writer = writer;
        writer.write_str(&visitor.pairs)
    }
}

#[derive(Debug)]
struct Klog {
    format: LogFormat,
    pid: u32,
}

impl<S, N> FormatEvent<S, N> for Klog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let json = self.format == LogFormat::Json;
        let mut fields = Fields { message: String::new(), pairs: String::new(), json };
        event.record(&mut fields);
        if let Some(scope) = context.event_scope() {
            for span in scope.from_root() {
                let extensions = span.extensions();
                if let Some(formatted) = extensions.get::<FormattedFields<N>>().filter(|f| !f.is_empty()) {
                    if json {
                        fields.add("span", formatted.as_str());
                    } else {
                        fields.pairs.push_str(formatted.as_str());
                    }
                }
            }
        }
        let now = jiff::Zoned::now();
        let place = place(metadata.file().unwrap_or("?"));
        let line = metadata.line().unwrap_or(0);
        if json {
            let seconds = now.timestamp().as_microsecond() as f64 / 1000.0;
            write!(writer, "{{\"ts\":{seconds:.3},\"caller\":\"{place}:{line}\",\"msg\":{}", quoted(&fields.message))?;
            match *metadata.level() {
                // Only errors have none (component-base `logs/json`).
                Level::ERROR => {}
                Level::WARN | Level::INFO => writer.write_str(",\"v\":0")?,
                Level::DEBUG => writer.write_str(",\"v\":4")?,
                Level::TRACE => writer.write_str(",\"v\":6")?,
            }
            writeln!(writer, "{}}}", fields.pairs)
        } else {
            let letter = match *metadata.level() {
                Level::ERROR => 'E',
                Level::WARN => 'W',
                _ => 'I',
            };
            writeln!(
                writer,
                "{letter}{} {:>7} {place}:{line}] {}{}",
                now.strftime("%m%d %H:%M:%S%.6f"),
                self.pid,
                quoted(&fields.message),
                fields.pairs
            )
        }
    }
}

/// `bins/kubelet-syncd/pleg/src/evented.rs` -> `kubelet-syncd/pleg/evented.rs`.
fn place(file: &str) -> String {
    let ours = ["bins/", "shared/"].iter().find_map(|folder| file.strip_prefix(folder));
    let short = match (ours, file.rsplit_once("/src/")) {
        (Some(ours), _) => ours.replacen("/src/", "/", 1),
        (None, Some((before, after))) => format!("{}/{after}", before.rsplit('/').next().unwrap_or(before)),
        (None, None) => file.to_owned(),
    };
    short.replace(['"', '\\'], "_")
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_else(|_| "\"?\"".into())
}

/// A field's name in the log: a cause is `err` there, as klog has it in both forms.
fn key(name: &str) -> &str {
    match name {
        "error" => "err",
        name => name,
    }
}

/// Collects the message and the other fields.
struct Fields {
    message: String,
    pairs: String,
    json: bool,
}

impl Fields {
    fn add(&mut self, name: &str, value: &str) {
        let (name, value) = (key(name), quoted(value));
        // Writing to a String cannot fail.
        let _ = if self.json {
            write!(self.pairs, ",{}:{value}", quoted(name))
        } else {
            write!(self.pairs, " {name}={value}")
        };
    }

    fn add_bare(&mut self, name: &str, value: fmt::Arguments<'_>) {
        let name = key(name);
        let _ = if self.json {
            write!(self.pairs, ",{}:{value}", quoted(name))
        } else {
            write!(self.pairs, " {name}={value}")
        };
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else if !value.is_empty() {
            self.add(field.name(), value);
        }
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add_bare(field.name(), format_args!("{value}"));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add_bare(field.name(), format_args!("{value}"));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add_bare(field.name(), format_args!("{value}"));
    }
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        // The whole chain: each error says what it was doing, the cause says why.
        self.add(field.name(), &bulkhead_types::chain(value));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            self.add(field.name(), &format!("{value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_leads_to_its_file() {
        assert_eq!(place("bins/kubelet-syncd/pleg/src/evented.rs"), "kubelet-syncd/pleg/evented.rs");
        assert_eq!(place("shared/ipc/src/client.rs"), "ipc/client.rs");
    }

    /// What is written meanwhile, line by line.
    fn lines(format: LogFormat, say: impl FnOnce()) -> Vec<String> {
        use tracing_subscriber::layer::SubscriberExt as _;
        let (sender, lines) = std::sync::mpsc::channel::<Vec<u8>>();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || Line { sender: sender.clone(), bytes: Vec::new() })
            .fmt_fields(PlainFields)
            .event_format(Klog { format, pid: 7 });
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), say);
        lines.try_iter().map(|line| String::from_utf8(line).unwrap().trim_end().to_owned()).collect()
    }

    /// One line on its way.
    struct Line {
        sender: std::sync::mpsc::Sender<Vec<u8>>,
        bytes: Vec<u8>,
    }

    impl std::io::Write for Line {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Drop for Line {
        fn drop(&mut self) {
            let _ = self.sender.send(std::mem::take(&mut self.bytes));
        }
    }

    fn say_everything() {
        let cause = std::io::Error::other("no \"disk\"");
        tracing::error!(error = %cause, pods = 2, "failed");
        tracing::warn!(error = &cause as &(dyn std::error::Error + 'static), "doubtful");
        tracing::info!(error = bulkhead_types::chain(&cause), held = true, empty = "", "said");
        tracing::debug!(error = ?cause.kind(), left = -1, "more");
        tracing::trace!("most");
        let _outer = tracing::info_span!("a", request = "r1").entered();
        let _inner = tracing::info_span!("b", pod_uid = "u1").entered();
        tracing::info!(pod_uid = "u2", "twice");
    }

    /// The rows of upstream's `logs/json/json_test.go` and `klog_test.go` that concern us: only errors have no `v`, the cause is
    /// `err`, and a key that comes twice is written twice.
    #[test]
    fn json_lines() {
        let expected = [
            r#""msg":"failed","err":"no \"disk\"","pods":2}"#,
            r#""msg":"doubtful","v":0,"err":"no \"disk\""}"#,
            r#""msg":"said","v":0,"err":"no \"disk\"","held":true}"#,
            r#""msg":"more","v":4,"err":"Other","left":-1}"#,
            r#""msg":"most","v":6}"#,
            r#""msg":"twice","v":0,"pod_uid":"u2","span":" request=\"r1\"","span":" pod_uid=\"u1\""}"#,
        ];
        let written = lines(LogFormat::Json, say_everything);
        assert_eq!(written.len(), expected.len(), "{written:#?}");
        for (line, expected) in written.iter().zip(expected) {
            assert!(line.ends_with(expected), "{line}\n{expected}");
            assert!(line.starts_with("{\"ts\":") && line.contains(",\"caller\":\"daemon/logging.rs:"), "{line}");
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(object["ts"].is_f64() && object["caller"].is_string(), "{line}");
        }
    }

    #[test]
    fn text_lines() {
        let expected = [
            r#"] "failed" err="no \"disk\"" pods=2"#,
            r#"] "doubtful" err="no \"disk\"""#,
            r#"] "said" err="no \"disk\"" held=true"#,
            r#"] "more" err="Other" left=-1"#,
            r#"] "most""#,
            r#"] "twice" pod_uid="u2" request="r1" pod_uid="u1""#,
        ];
        let written = lines(LogFormat::Text, say_everything);
        let letters: String = written.iter().filter_map(|line| line.chars().next()).collect();
        assert_eq!(letters, "EWIIII");
        for (line, expected) in written.iter().zip(expected) {
            assert!(line.ends_with(expected), "{line}\n{expected}");
            assert!(line.contains("       7 daemon/logging.rs:"), "{line}");
        }
    }

    #[test]
    fn more_verbosity_says_more_of_us_and_last_of_others() {
        let table = [
            (0, Level::INFO, "kubelet_syncd", true),
            (3, Level::DEBUG, "kubelet_syncd", false),
            (4, Level::DEBUG, "bulkhead_ipc", true),
            (5, Level::TRACE, "kubelet_syncd", false),
            (6, Level::TRACE, "kubelet_syncd", true),
            (6, Level::INFO, "h2", false),
            (0, Level::WARN, "h2", true),
            (7, Level::DEBUG, "h2", false),
            (8, Level::DEBUG, "h2", true),
            (VERBOSITY_MAX, Level::TRACE, "h2", false),
            (u32::MAX, Level::TRACE, "rustls::server::tls13", false),
            (VERBOSITY_MAX, Level::TRACE, "bulkhead_ipc", true),
            (10, Level::WARN, "kube_client::client", false),
            (10, Level::DEBUG, "kube_runtime::watcher", false),
        ];
        for (verbosity, level, target, expected) in table {
            assert_eq!(is_written(verbosity, &level, target), expected, "{verbosity} {level} {target}");
        }
    }

    #[test]
    fn what_is_not_written_is_known_by_its_level_alone() {
        use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
        let layer = tracing_subscriber::fmt::layer().with_writer(std::io::sink).with_filter(Written);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for (verbosity, most) in
                [(0, LevelFilter::INFO), (5, LevelFilter::DEBUG), (VERBOSITY_MAX, LevelFilter::TRACE)]
            {
                set_verbosity(verbosity).unwrap();
                assert_eq!(LevelFilter::current(), most, "{verbosity}");
                assert_eq!(tracing::enabled!(target: "h2", Level::DEBUG), verbosity >= 8, "{verbosity}");
            }
            // A verbosity that means nothing changes nothing.
            for wrong in [VERBOSITY_MAX + 1, u32::MAX] {
                assert_eq!(set_verbosity(wrong), Err(TooVerbose(wrong)));
            }
            assert_eq!(LevelFilter::current(), LevelFilter::TRACE);
        });
    }

    #[test]
    fn who_quotes_answers_is_not_heard() {
        assert!(quotes_answers("kube_client::client") && quotes_answers("kube_runtime::watcher"));
        assert!(!quotes_answers("kubelet_syncd::api::pods") && !quotes_answers("bulkhead_apiclient::watch"));
    }
}
