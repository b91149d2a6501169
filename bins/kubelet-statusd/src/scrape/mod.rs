//! `/metrics`: the metrics of all processes in one valid text; `/metrics/probes` and `/metrics/slis`.

use std::sync::Arc;

use bulkhead_types::Process;
use http::{Request, StatusCode};
use hyper::body::Incoming;

use crate::app::App;
use crate::exposition::{self, Family, Source};
use crate::server::answer::{self, Answer};

const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `/metrics`.
pub async fn metrics(app: &Arc<App>, _request: Request<Incoming>) -> Answer {
    text(&merged(app).await)
}

/// `/metrics/probes`.
pub async fn probes(_app: &Arc<App>, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "probes\n")
}

/// `/metrics/slis`; `reset`: DELETE.
pub async fn slis(_app: &Arc<App>, _reset: bool, _request: Request<Incoming>) -> Answer {
    answer::text(StatusCode::NOT_IMPLEMENTED, "slis\n")
}

/// An answer of families in the text format.
pub fn text(families: &[Family]) -> Answer {
    answer::typed(StatusCode::OK, EXPOSITION, exposition::render(families))
}

/// The metrics of all processes.
async fn merged(app: &App) -> Vec<Family> {
    let (syncd, volnetd, evictiond) = tokio::join!(
        app.peers.metrics(Process::Syncd),
        app.peers.metrics(Process::Volnetd),
        app.peers.metrics(Process::Evictiond)
    );
    let mut sources = Vec::new();
    for (process, text) in [(Process::Syncd, syncd), (Process::Volnetd, volnetd), (Process::Evictiond, evictiond)] {
        let families = text.map(|text| exposition::parse(&text));
        let up = matches!(families, Some(Ok(_)));
        app.own.up.with_label_values(&[process.name()]).set(up.into());
        match families {
            Some(Ok(families)) => sources.push(Source { process: process.name(), families }),
            Some(Err(error)) => tracing::warn!(process = process.name(), %error, "metrics are left out"),
            None => tracing::debug!(process = process.name(), "no metrics in time"),
        }
    }
    app.own.up.with_label_values(&[Process::Statusd.name()]).set(1);
    // Our own last, so that they tell of this very scrape.
    match exposition::parse(&bulkhead_daemon::encode_metrics(&app.registry)) {
        Ok(families) => sources.push(Source { process: Process::Statusd.name(), families }),
        Err(error) => tracing::error!(%error, "our own metrics are left out"),
    }
    sources.extend(launcher());
    exposition::merge(sources)
}

/// The launcher has no socket: what the kernel shows of the parent process, if that is it.
fn launcher() -> Option<Source> {
    let parent = rustix::process::getppid()?.as_raw_nonzero().get();
    let comm = std::fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
    if comm.trim_end() != "kubelet" {
        return None;
    }
    let families = exposition::parse(&bulkhead_daemon::process_metrics_of(Some(parent.unsigned_abs()))).ok()?;
    Some(Source { process: "kubelet", families })
}
