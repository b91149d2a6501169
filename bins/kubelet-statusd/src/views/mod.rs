//! What the node shows of itself: `/pods`, `/runningpods/`, `/configz`, and the pages and switches for debugging.

mod configz;
mod go_json;
mod pods;
mod pprof;
mod verbosity;
mod zpages;

use bulkhead_config::NodeConfig;
use http::{Request, StatusCode, header};
use hyper::body::Incoming;
use jiff::Timestamp;

pub use self::pods::PodLists;
use crate::peers::Peers;
use crate::routes::{self, Switches};
use crate::server::answer::{self, Answer};

/// `/configz`. Without kubelet-syncd, which knows what the runtime has told, as it is configured.
pub async fn configz(config: &NodeConfig, peers: &Peers) -> Answer {
    let driver = peers.node().await.map(|node| node.cgroup_driver).unwrap_or_default();
    match configz::document(&configz::in_force(config, &driver)) {
        Ok(document) => answer::json(document),
        Err(error) => answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// `/debug/flags/v`.
pub async fn flags_v(peers: &Peers, request: Request<Incoming>) -> Answer {
    verbosity::serve(peers, request).await
}

/// `/flagz`.
pub fn flagz(config: &NodeConfig, request: &Request<Incoming>) -> Answer {
    let flags = bulkhead_config::flags::effective(&config.flags, &config.kubelet);
    page(&zpages::Page::Flagz(flags), request)
}

/// `/statusz`.
pub fn statusz(config: &NodeConfig, switches: &Switches, request: &Request<Incoming>) -> Answer {
    let started = bulkhead_daemon::process_start_time().and_then(|at| Timestamp::from_second(at as i64).ok());
    let now = Timestamp::now();
    let status = zpages::Status {
        started: started.unwrap_or(now),
        now,
        binary_version: config.version.trim_start_matches('v').to_owned(),
        emulation_version: format!("1.{}", bulkhead_config::version::MINOR),
        paths: routes::listed_paths(switches),
    };
    page(&zpages::Page::Statusz(status), request)
}

fn page(page: &zpages::Page, request: &Request<Incoming>) -> Answer {
    let text = |name: header::HeaderName| request.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    // As upstream: whoever looks at it with these gets lines.
    let reader = ["curl", "Wget", "Mozilla/5.0"].iter().any(|agent| text(header::USER_AGENT).starts_with(agent));
    let asked = routes::pairs(request.uri().query().unwrap_or_default())
        .find(|(key, _)| key == "pretty")
        .map(|(_, value)| !matches!(value.as_str(), "false" | "0"));
    page.answer(text(header::ACCEPT), asked.unwrap_or(reader))
}

/// `profile`: what follows `/debug/pprof/`.
pub fn pprof(profile: &str) -> Answer {
    pprof::answer(profile, &pprof::command_line())
}
