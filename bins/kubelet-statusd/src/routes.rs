//! Which path on which port is what. Pure; the table is upstream's (`pkg/kubelet/server/server.go`).

/// The HTTP servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// healthzBindAddress:healthzPort, without TLS and without asking who it is.
    Healthz,
    /// address:readOnlyPort, the same.
    ReadOnly,
    /// address:port: HTTPS, with authentication and authorisation.
    Main,
}

/// What the configuration turns on and off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switches {
    /// `enableDebuggingHandlers`.
    pub debugging: bool,
    /// `enableProfilingHandler`.
    pub profiling: bool,
    /// `enableDebugFlagsHandler`.
    pub debug_flags: bool,
    /// `enableSystemLogHandler`.
    pub system_log: bool,
    /// Gate ContainerCheckpoint.
    pub checkpoint: bool,
    /// Gate ComponentFlagz.
    pub flagz: bool,
    /// Gate ComponentStatusz.
    pub statusz: bool,
}

/// A pod as a path names it. Text of a stranger: looked up, never made into a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPath {
    pub namespace: String,
    pub pod: String,
    pub uid: Option<String>,
}

/// A container as a path names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPath {
    pub pod: PodPath,
    pub container: String,
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// All checks. `exclude`: those to leave out.
    Health {
        verbose: bool,
        exclude: Vec<String>,
    },
    /// One check by its name.
    HealthCheck(String),
    Metrics,
    ResourceMetrics,
    CadvisorMetrics,
    ProbeMetrics,
    /// `reset`: DELETE.
    SliMetrics {
        reset: bool,
    },
    Summary,
    Pods,
    RunningPods,
    Configz,
    ContainerLogs(ContainerPath),
    Exec(ContainerPath),
    Attach(ContainerPath),
    PortForward(PodPath),
    Run(ContainerPath),
    Checkpoint(ContainerPath),
    /// What follows `/logs/`.
    NodeLogs(String),
    /// What follows `/debug/pprof/`.
    Pprof(String),
    FlagsVerbosity,
    Flagz,
    Statusz,
    /// A handler that the configuration turns off, with upstream's words for it.
    Disabled(&'static str),
    NotFound,
    MethodNotAllowed,
}

/// Prefixes of upstream's debugging handlers.
const DEBUG: [&str; 8] =
    ["/run/", "/exec/", "/attach/", "/portForward/", "/containerLogs/", "/runningpods/", "/debug/pprof/", "/logs/"];

const DEBUG_DISABLED: &str = "Debug endpoints are disabled.\n";

/// Decides. `path` is that of the request line, with its escapes.
pub fn route(surface: Surface, switches: &Switches, method: &str, path: &str, query: Option<&str>) -> Route {
    let Some(path) = decode_path(path) else { return Route::NotFound };
    let query = query.unwrap_or_default();
    let read = |route: Route| if matches!(method, "GET" | "HEAD") { route } else { Route::MethodNotAllowed };
    match path.as_str() {
        "/healthz" => Route::Health {
            verbose: pairs(query).any(|(key, _)| key == "verbose"),
            exclude: pairs(query).filter(|(key, _)| key == "exclude").map(|(_, value)| value).collect(),
        },
        "/metrics" => read(Route::Metrics),
        "/metrics/resource" => read(Route::ResourceMetrics),
        path if path.starts_with("/healthz/") => match path.strip_prefix("/healthz/") {
            Some(check) if !check.is_empty() => Route::HealthCheck(check.to_owned()),
            _ => Route::NotFound,
        },
        _ if surface == Surface::Healthz => Route::NotFound,
        "/metrics/cadvisor" => read(Route::CadvisorMetrics),
        "/metrics/probes" => read(Route::ProbeMetrics),
        "/metrics/slis" if method == "DELETE" => Route::SliMetrics { reset: true },
        "/metrics/slis" => read(Route::SliMetrics { reset: false }),
        "/stats/summary" | "/stats/summary/" if method == "POST" => Route::Summary,
        "/stats/summary" | "/stats/summary/" => read(Route::Summary),
        "/pods" | "/pods/" => read(Route::Pods),
        _ if !(surface == Surface::Main && switches.debugging) => {
            if DEBUG.iter().any(|prefix| path.starts_with(prefix)) {
                Route::Disabled(DEBUG_DISABLED)
            } else {
                Route::NotFound
            }
        }
        path => debugging(switches, method, path),
    }
}

/// What only the main server with its debugging handlers has.
fn debugging(switches: &Switches, method: &str, path: &str) -> Route {
    let read = |route: Route| if matches!(method, "GET" | "HEAD") { route } else { Route::MethodNotAllowed };
    let stream = |route: Route| if matches!(method, "GET" | "POST") { route } else { Route::MethodNotAllowed };
    let create = |route: Route| if method == "POST" { route } else { Route::MethodNotAllowed };
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match segments.as_slice() {
        ["configz"] => Route::Configz,
        ["runningpods"] | ["runningpods", ""] => read(Route::RunningPods),
        ["flagz"] if switches.flagz => Route::Flagz,
        ["statusz"] if switches.statusz => Route::Statusz,
        ["containerLogs", rest @ ..] => match container(rest, false) {
            Some(place) => read(Route::ContainerLogs(place)),
            None => Route::NotFound,
        },
        ["exec", rest @ ..] => container(rest, true).map_or(Route::NotFound, |place| stream(Route::Exec(place))),
        ["attach", rest @ ..] => container(rest, true).map_or(Route::NotFound, |place| stream(Route::Attach(place))),
        ["run", rest @ ..] => container(rest, true).map_or(Route::NotFound, |place| create(Route::Run(place))),
        ["portForward", rest @ ..] => pod(rest).map_or(Route::NotFound, |place| stream(Route::PortForward(place))),
        ["checkpoint", rest @ ..] if switches.checkpoint => {
            container(rest, false).map_or(Route::NotFound, |place| create(Route::Checkpoint(place)))
        }
        ["debug", "flags", "v"] if !switches.debug_flags => Route::Disabled("flags endpoint is disabled.\n"),
        ["debug", "flags", "v"] => Route::FlagsVerbosity,
        ["debug", "pprof", ..] if !switches.profiling => Route::Disabled("profiling endpoint is disabled.\n"),
        ["debug", "pprof", rest @ ..] => read(Route::Pprof(rest.join("/"))),
        ["logs", ..] if !switches.system_log => Route::Disabled("logs endpoint is disabled.\n"),
        ["logs", rest @ ..] => read(Route::NodeLogs(rest.join("/"))),
        _ => Route::NotFound,
    }
}

/// `{namespace}/{pod}[/{uid}]`.
fn pod(segments: &[&str]) -> Option<PodPath> {
    let (namespace, pod, uid) = match segments {
        [namespace, pod] => (namespace, pod, None),
        [namespace, pod, uid] => (namespace, pod, Some((*uid).to_owned())),
        _ => return None,
    };
    let named = !namespace.is_empty() && !pod.is_empty() && uid.as_deref() != Some("");
    named.then(|| PodPath { namespace: (*namespace).to_owned(), pod: (*pod).to_owned(), uid })
}

/// `{namespace}/{pod}[/{uid}]/{container}`.
fn container(segments: &[&str], with_uid: bool) -> Option<ContainerPath> {
    let (container, before) = segments.split_last()?;
    if container.is_empty() || (before.len() == 3 && !with_uid) {
        return None;
    }
    Some(ContainerPath { pod: pod(before)?, container: (*container).to_owned() })
}

/// The `path` label of upstream's HTTP metrics.
pub fn path_label(path: &str) -> &'static str {
    match path {
        "/metrics/resource" => return "metrics/resource",
        "/metrics/cadvisor" => return "metrics/cadvisor",
        "/metrics/probes" => return "metrics/probes",
        _ => {}
    }
    const KNOWN: [&str; 17] = [
        "healthz",
        "pods",
        "stats",
        "run",
        "exec",
        "attach",
        "portForward",
        "containerLogs",
        "configz",
        "runningpods",
        "checkpoint",
        "logs",
        "debug",
        "pprof",
        "flagz",
        "statusz",
        "metrics",
    ];
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    KNOWN.into_iter().find(|known| *known == first).unwrap_or("other")
}

/// The `method` label of upstream's HTTP metrics.
pub fn method_label(method: &str) -> &'static str {
    const KNOWN: [&str; 8] = ["OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("other")
}

/// The `long_running` label: upstream's table has `portforward` in lower case, which never matches.
pub fn long_running(path_label: &str) -> &'static str {
    if matches!(path_label, "exec" | "attach" | "debug") { "true" } else { "false" }
}

/// Decoded pairs of a query, in order, repeats included. Bytes that are no UTF-8 become U+FFFD.
pub fn pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key), decode(value))
    })
}

/// A path without its escapes; `None` when one is broken, or what they say is no text.
fn decode_path(path: &str) -> Option<String> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, tail) = match (first, after) {
            (b'%', [high, low, tail @ ..]) => (hex(*high)? << 4 | hex(*low)?, tail),
            (b'%', _) => return None,
            _ => (*first, after),
        };
        out.push(byte);
        rest = tail;
    }
    String::from_utf8(out).ok()
}

fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let escape = match (first, after) {
            (b'%', [high, low, tail @ ..]) => hex(*high).zip(hex(*low)).map(|(high, low)| (high << 4 | low, tail)),
            (b'+', _) => Some((b' ', after)),
            _ => None,
        };
        let (byte, tail) = escape.unwrap_or((*first, after));
        out.push(byte);
        rest = tail;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ON: Switches = Switches {
        debugging: true,
        profiling: true,
        debug_flags: true,
        system_log: true,
        checkpoint: true,
        flagz: true,
        statusz: true,
    };

    fn place(uid: Option<&str>) -> ContainerPath {
        let pod = PodPath { namespace: "n".into(), pod: "p".into(), uid: uid.map(Into::into) };
        ContainerPath { pod, container: "c".into() }
    }

    #[test]
    fn table() {
        use Surface::{Healthz, Main, ReadOnly};
        let health = |verbose, exclude: &[&str]| Route::Health {
            verbose,
            exclude: exclude.iter().map(|e| (*e).to_owned()).collect(),
        };
        for (surface, method, path, query, expected) in [
            (Healthz, "GET", "/healthz", None, health(false, &[])),
            (Healthz, "POST", "/healthz", None, health(false, &[])),
            (Healthz, "GET", "/healthz", Some("verbose"), health(true, &[])),
            (Healthz, "GET", "/healthz", Some("verbose=1&exclude=a&exclude=b%2Fc"), health(true, &["a", "b/c"])),
            (Healthz, "GET", "/healthz/", None, Route::NotFound),
            (Healthz, "GET", "/healthz/ping", None, Route::HealthCheck("ping".into())),
            (Healthz, "GET", "/metrics", None, Route::Metrics),
            (Healthz, "HEAD", "/metrics", None, Route::Metrics),
            (Healthz, "POST", "/metrics", None, Route::MethodNotAllowed),
            (Healthz, "GET", "/stats/summary", None, Route::NotFound),
            (Healthz, "GET", "/run/x", None, Route::NotFound),
            (Healthz, "GET", "/", None, Route::NotFound),
            (Healthz, "GET", "/livez", None, Route::NotFound),
            (ReadOnly, "GET", "/run/x", None, Route::Disabled(DEBUG_DISABLED)),
            (ReadOnly, "GET", "/configz", None, Route::NotFound),
            (ReadOnly, "GET", "/stats/summary", None, Route::Summary),
            (ReadOnly, "POST", "/stats/summary", None, Route::Summary),
            (ReadOnly, "PUT", "/metrics/resource", None, Route::MethodNotAllowed),
            (ReadOnly, "GET", "/pods", None, Route::Pods),
            (Main, "GET", "/containerLogs/n/p/c", None, Route::ContainerLogs(place(None))),
            (Main, "GET", "/containerLogs/n/p/u/c", None, Route::NotFound),
            (Main, "GET", "/exec/n/p/c", None, Route::Exec(place(None))),
            (Main, "POST", "/exec/n/p/u/c", None, Route::Exec(place(Some("u")))),
            (Main, "PUT", "/exec/n/p/c", None, Route::MethodNotAllowed),
            (Main, "POST", "/attach/n/p/c", None, Route::Attach(place(None))),
            (Main, "POST", "/portForward/n/p", None, Route::PortForward(place(None).pod)),
            (Main, "GET", "/run/n/p/c", None, Route::MethodNotAllowed),
            (Main, "POST", "/run/n/p/c", None, Route::Run(place(None))),
            (Main, "POST", "/checkpoint/n/p/c", None, Route::Checkpoint(place(None))),
            (Main, "GET", "/logs/a/b", None, Route::NodeLogs("a/b".into())),
            (Main, "GET", "/logs/%2e%2e/b", None, Route::NodeLogs("../b".into())),
            (Main, "GET", "/%zz", None, Route::NotFound),
            (Main, "DELETE", "/metrics/slis", None, Route::SliMetrics { reset: true }),
        ] {
            assert_eq!(route(surface, &ON, method, path, query), expected, "{surface:?} {method} {path} {query:?}");
        }
        let off = Switches { debugging: false, ..ON };
        assert_eq!(route(Main, &off, "GET", "/exec/n/p/c", None), Route::Disabled(DEBUG_DISABLED));
        assert_eq!(route(Main, &off, "GET", "/configz", None), Route::NotFound);
        let off = Switches { system_log: false, profiling: false, debug_flags: false, ..ON };
        for (path, words) in [
            ("/logs/x", "logs endpoint is disabled.\n"),
            ("/debug/pprof/heap", "profiling endpoint is disabled.\n"),
            ("/debug/flags/v", "flags endpoint is disabled.\n"),
        ] {
            assert_eq!(route(Main, &off, "GET", path, None), Route::Disabled(words));
        }
        assert_eq!(path_label("/healthz/ping"), "healthz");
        assert_eq!(path_label("/metrics/resource"), "metrics/resource");
        assert_eq!(path_label("/x"), "other");
        assert_eq!(method_label("PATCH"), "other");
    }

    proptest! {
        #[test]
        fn nothing_panics(path in any::<String>(), query in any::<String>()) {
            let _ = route(Surface::Main, &ON, "GET", &path, Some(&query));
            let _ = route(Surface::ReadOnly, &ON, "GET", &path, Some(&query));
            let _ = path_label(&path);
        }
    }
}
