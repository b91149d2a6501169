//! `/metrics`: the metrics of all processes in one valid text; `/metrics/probes` and `/metrics/slis`; and how any families
//! are answered in the format and encoding that the scraper asks for.

pub mod accept;
pub mod encode;
pub mod exposition;
pub mod join;
pub mod lines;
pub mod numbers;
mod protobuf;
pub mod slis;
pub mod sums;

use std::io::Write as _;
use std::sync::{Arc, LazyLock};

use bulkhead_types::Process;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;
use prometheus::{IntGaugeVec, Opts, Registry};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use crate::peers::Peers;
use crate::scrape::accept::{AcceptedFormat, Format, negotiate};
use crate::scrape::encode::{Dialect, Encoder};
use crate::scrape::exposition::{Family, Kind, Sample};
use crate::scrape::join::{Joined, Source, join};
use crate::scrape::lines::scan;
use crate::scrape::slis::HealthCounts;
use crate::scrape::sums::Sums;
use crate::server::answer::{self, Answer};

/// Scrapes that are answered at once; more wait. Each holds the texts of all processes.
const AT_ONCE: usize = 4;

/// The turns of scrapes.
#[derive(Debug)]
pub struct Slots(Semaphore);

impl Default for Slots {
    fn default() -> Self {
        Slots(Semaphore::new(AT_ONCE))
    }
}

impl Slots {
    /// A turn for one scrape. `None`: the process ends.
    pub async fn one(&self) -> Option<SemaphorePermit<'_>> {
        self.0.acquire().await.ok()
    }
}

/// Answers scrapes of what the processes count.
#[derive(Debug)]
pub struct Scrapes {
    peers: Arc<Peers>,
    registry: Registry,
    /// `bulkhead_process_up{process}`: 1 when the process gave its metrics for this scrape.
    up: IntGaugeVec,
    slots: Arc<Slots>,
    /// Held from the first question to the processes until their answers are added up: figures that overtake others would
    /// look as if a process had begun anew.
    sums: Mutex<Sums>,
    /// Outcomes of health checks, for `/metrics/slis`.
    pub health: HealthCounts,
}

/// When this process started, seconds since the epoch. It is read once.
static STARTED: LazyLock<Option<f64>> = LazyLock::new(bulkhead_daemon::process_start_time);

impl Scrapes {
    /// # Errors
    /// A family of the same name exists already.
    pub fn new(peers: Arc<Peers>, registry: Registry, slots: Arc<Slots>) -> Result<Self, prometheus::Error> {
        let up = IntGaugeVec::new(
            Opts::new(
                "bulkhead_process_up",
                "[ALPHA] 1 when the process of the node agent gave its metrics for this scrape.",
            ),
            &["process"],
        )?;
        registry.register(Box::new(up.clone()))?;
        Ok(Scrapes { peers, registry, up, slots, sums: Mutex::default(), health: HealthCounts::default() })
    }

    /// `/metrics`.
    pub async fn metrics(&self, request: Request<Incoming>) -> Answer {
        self.peers.begun().await;
        let Some(_slot) = self.slots.one().await else { return busy() };
        let mut sums = self.sums.lock().await;
        let (syncd, volnetd, evictiond) = tokio::join!(
            self.peers.metrics(Process::Syncd),
            self.peers.metrics(Process::Volnetd),
            self.peers.metrics(Process::Evictiond)
        );
        let mut sources = Vec::new();
        for (process, text) in
            [(Process::Syncd, &syncd), (Process::Volnetd, &volnetd), (Process::Evictiond, &evictiond)]
        {
            let source = text.as_deref().and_then(|text| source(process.name(), text));
            self.up.with_label_values(&[process.name()]).set(source.is_some().into());
            sources.extend(source);
        }
        self.up.with_label_values(&[Process::Statusd.name()]).set(1);
        // Our own last, so that they tell of this very scrape.
        let own = bulkhead_daemon::encode_metrics(&self.registry);
        sources.extend(source(Process::Statusd.name(), &own));
        let launcher = launcher();
        sources.extend(launcher.as_deref().and_then(|text| source("kubelet", text)));
        let joined = join(sources, &mut sums);
        drop(sums);
        let wanted = negotiate(request.headers());
        finished(wanted, write(joined, wanted.format))
    }

    /// `/metrics/probes`: series of probes, which only kubelet-syncd has.
    pub async fn probes(&self, request: Request<Incoming>) -> Answer {
        let Some(_slot) = self.slots.one().await else { return busy() };
        let Some(text) = self.peers.probe_metrics().await else {
            return answer::text(StatusCode::SERVICE_UNAVAILABLE, "kubelet-syncd does not answer\n");
        };
        let Some(source) = source(Process::Syncd.name(), &text) else {
            return answer::text(StatusCode::INTERNAL_SERVER_ERROR, "the series of probes are not in the format\n");
        };
        let families = source.blocks.into_iter().filter(|block| !block.lines.is_empty()).map(Joined::Text);
        let wanted = negotiate(request.headers());
        finished(wanted, write(families.collect(), wanted.format))
    }

    /// `/metrics/slis`; `reset`: DELETE.
    pub async fn slis(&self, reset: bool, request: Request<Incoming>) -> Answer {
        if reset {
            self.health.reset();
            return answer::text(StatusCode::OK, "metrics reset\n");
        }
        let mut families = self.health.families();
        families.extend(STARTED.map(start_time));
        answer(&families, request.headers())
    }
}

/// A process's text; `None` when it is not in the format.
fn source<'a>(process: &'static str, text: &'a str) -> Option<Source<'a>> {
    match scan(text) {
        Ok(blocks) => Some(Source { process, blocks }),
        Err(error) => {
            tracing::warn!(process, %error, "leaving out a process's metrics");
            None
        }
    }
}

/// Families, sorted by name, in the format and encoding that the request's headers ask for.
pub fn answer(families: &[Family], headers: &HeaderMap) -> Answer {
    let wanted = negotiate(headers);
    let content = match dialect(wanted.format) {
        Some(dialect) => {
            let mut encoder = Encoder::new(dialect);
            families.iter().for_each(|family| encoder.family(family));
            encoder.finish().into_bytes()
        }
        None => protobuf::encode(families),
    };
    finished(wanted, content)
}

/// A text of ours in the format 0.0.4, families sorted by name, in the format and encoding that the request's headers ask
/// for.
pub fn answer_text(text: String, headers: &HeaderMap) -> Answer {
    let wanted = negotiate(headers);
    if wanted.format == Format::Text {
        return finished(wanted, text.into_bytes());
    }
    match scan(&text) {
        Ok(blocks) => finished(wanted, write(blocks.into_iter().map(Joined::Text).collect(), wanted.format)),
        Err(error) => {
            tracing::error!(%error, "failed to encode metrics");
            answer::text(StatusCode::INTERNAL_SERVER_ERROR, "the series are not in the format\n")
        }
    }
}

fn start_time(seconds: f64) -> Family {
    let name = "process_start_time_seconds".to_owned();
    Family {
        help: "[ALPHA] Start time of the process since unix epoch in seconds.".to_owned(),
        kind: Kind::Gauge,
        samples: vec![Sample { name: name.clone(), labels: Vec::new(), value: seconds, timestamp: None }],
        name,
    }
}

/// The answer when there is no turn any more.
pub fn busy() -> Answer {
    answer::text(StatusCode::SERVICE_UNAVAILABLE, "the node agent is ending\n")
}

/// `None`: not a text.
const fn dialect(format: Format) -> Option<Dialect> {
    match format {
        Format::Text => Some(Dialect::Prometheus),
        Format::OpenMetrics001 | Format::OpenMetrics100 => Some(Dialect::OpenMetrics),
        Format::Protobuf => None,
    }
}

fn write(families: Vec<Joined<'_>>, format: Format) -> Vec<u8> {
    let Some(dialect) = dialect(format) else {
        let families: Vec<Family> = families.into_iter().map(Joined::into_family).collect();
        return protobuf::encode(&families);
    };
    let mut encoder = Encoder::new(dialect);
    families.iter().for_each(|family| encoder.joined(family));
    encoder.finish().into_bytes()
}

fn finished(wanted: AcceptedFormat, content: Vec<u8>) -> Answer {
    let (content, encoding) = match wanted.gzip.then(|| compressed(&content)).flatten() {
        Some(compressed) => (compressed, Some(HeaderValue::from_static("gzip"))),
        None => (content, None),
    };
    let mut answer = answer::typed(StatusCode::OK, "text/plain", content);
    let headers = answer.headers_mut();
    if let Ok(kind) = HeaderValue::from_str(&wanted.content_type()) {
        headers.insert(header::CONTENT_TYPE, kind);
    }
    if let Some(encoding) = encoding {
        headers.insert(header::CONTENT_ENCODING, encoding);
    }
    // As upstream's: what the series were counted since, for scrapers that want to know.
    if let Some(Ok(started)) = STARTED.map(|started| HeaderValue::from_str(&format!("{:.0}", started.floor()))) {
        headers.insert("process-start-time-unix", started);
    }
    answer
}

/// `None` only if memory could not be written.
fn compressed(content: &[u8]) -> Option<Vec<u8>> {
    // Text of this kind shrinks to a twentieth at the fastest level already.
    let room = Vec::with_capacity(content.len() / 8);
    let mut encoder = flate2::write::GzEncoder::new(room, flate2::Compression::fast());
    encoder.write_all(content).ok()?;
    encoder.finish().ok()
}

/// The launcher has no socket: what the kernel shows of the parent process, if that is it.
fn launcher() -> Option<String> {
    let parent = rustix::process::getppid()?.as_raw_nonzero().get();
    let comm = std::fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
    (comm.trim_end() == "kubelet").then(|| bulkhead_daemon::process_metrics_of(Some(parent.unsigned_abs())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use std::io::Read as _;

    async fn answered(headers: &[(&'static str, &'static str)]) -> (HeaderMap, Vec<u8>) {
        let mut asked = HeaderMap::new();
        for (name, value) in headers {
            asked.insert(*name, HeaderValue::from_static(value));
        }
        let answer = answer(&[start_time(1_800_000_000.5)], &asked);
        assert_eq!(answer.status(), StatusCode::OK);
        let headers = answer.headers().clone();
        (headers, answer.into_body().collect().await.unwrap().to_bytes().to_vec())
    }

    #[tokio::test]
    async fn families_as_they_are_asked_for() {
        let (headers, text) = answered(&[]).await;
        assert_eq!(headers["content-type"], "text/plain; version=0.0.4; charset=utf-8; escaping=underscores");
        assert!(!headers.contains_key("content-encoding"));
        let started = headers["process-start-time-unix"].to_str().unwrap();
        assert!(started.parse::<u64>().unwrap() > 1_700_000_000, "{started}");
        let expected = "# HELP process_start_time_seconds [ALPHA] Start time of the process since unix epoch in seconds.\n\
                        # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1800000000.5\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);

        let (headers, packed) = answered(&[("accept-encoding", "gzip")]).await;
        assert_eq!(headers["content-encoding"], "gzip");
        let mut unpacked = String::new();
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_string(&mut unpacked).unwrap();
        assert_eq!(unpacked, expected);

        let (headers, open) = answered(&[("accept", "application/openmetrics-text;version=1.0.0")]).await;
        assert!(headers["content-type"].to_str().unwrap().starts_with("application/openmetrics-text; version=1.0.0; "));
        assert_eq!(String::from_utf8(open).unwrap(), format!("{expected}# EOF\n"));

        let accept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let (_, message) = answered(&[("accept", accept)]).await;
        assert_eq!(usize::from(message[0]) + 1, message.len());
    }
}
