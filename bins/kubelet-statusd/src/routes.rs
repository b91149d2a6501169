//! Which path on which port is what. Pure; the table is upstream's (`pkg/kubelet/server/server.go`).

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

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
    /// The same under another path (Go's mux): where it leads, with its query.
    Redirect(String),
    /// No server has anything there.
    Unknown,
    /// There is something near it.
    NotFound,
    /// With the methods that there are.
    MethodNotAllowed(&'static str),
    /// A path with a broken escape.
    Malformed,
}

/// Prefixes of upstream's debugging handlers.
const DEBUG: [&str; 8] =
    ["/run/", "/exec/", "/attach/", "/portForward/", "/containerLogs/", "/runningpods/", "/debug/pprof/", "/logs/"];

const DEBUG_DISABLED: &str = "Debug endpoints are disabled.\n";

/// Decides. `path` is that of the request line, with its escapes.
pub fn route(surface: Surface, switches: &Switches, method: &str, path: &str, query: Option<&str>) -> Route {
    let Some(path) = decode_path(path) else { return Route::Malformed };
    let cleaned = clean(&path);
    if cleaned != path && method != "CONNECT" {
        return redirect(&cleaned, query);
    }
    let query = query.unwrap_or_default();
    let read =
        |route: Route| if matches!(method, "GET" | "HEAD") { route } else { Route::MethodNotAllowed("GET, HEAD") };
    if path == "/healthz" {
        return Route::Health {
            verbose: pairs(query).any(|(key, _)| key == "verbose"),
            exclude: pairs(query).filter(|(key, _)| key == "exclude").map(|(_, value)| value).collect(),
        };
    }
    if let Some(check) = path.strip_prefix("/healthz/").filter(|check| !check.is_empty()) {
        return Route::HealthCheck(check.to_owned());
    }
    if surface == Surface::Healthz {
        return Route::Unknown;
    }
    let debugging = surface == Surface::Main && switches.debugging;
    let with_slash = format!("{path}/");
    if with_slash == "/stats/" || directories(switches, debugging).any(|directory| directory == with_slash) {
        return redirect(&with_slash, Some(query).filter(|query| !query.is_empty()));
    }
    match path.as_str() {
        "/metrics" => read(Route::Metrics),
        "/metrics/resource" => read(Route::ResourceMetrics),
        "/metrics/cadvisor" => read(Route::CadvisorMetrics),
        "/metrics/probes" => read(Route::ProbeMetrics),
        "/metrics/slis" if method == "DELETE" => Route::SliMetrics { reset: true },
        "/metrics/slis" => read(Route::SliMetrics { reset: false }),
        _ if !debugging && DEBUG.iter().any(|prefix| path.starts_with(prefix)) => Route::Disabled(DEBUG_DISABLED),
        _ => services(switches, debugging, method, &path),
    }
}

/// Paths that upstream registers with a slash at the end, and not without it.
fn directories(switches: &Switches, debugging: bool) -> impl Iterator<Item = &'static str> {
    let on =
        [("/runningpods/", true), ("/debug/pprof/", true), ("/logs/", true), ("/checkpoint/", switches.checkpoint)];
    let on = on.into_iter().filter(|(_, there)| *there).map(|(path, _)| path);
    let off = DEBUG.into_iter();
    on.filter(move |_| debugging).chain(off.filter(move |_| !debugging))
}

/// What upstream's router serves: a slash at the end makes no difference there, and HEAD is no GET.
fn services(switches: &Switches, debugging: bool, method: &str, path: &str) -> Route {
    let of = |methods: &'static str, route: Option<Route>| match route {
        Some(_) if !methods.split(", ").any(|known| known == method) => Route::MethodNotAllowed(methods),
        Some(route) => route,
        None => Route::NotFound,
    };
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    match segments.as_slice() {
        ["pods", rest @ ..] => of("GET", rest.is_empty().then_some(Route::Pods)),
        ["stats", rest @ ..] => of("GET, POST", (rest == ["summary"]).then_some(Route::Summary)),
        _ if !debugging => Route::Unknown,
        ["runningpods", rest @ ..] => of("GET", rest.is_empty().then_some(Route::RunningPods)),
        ["containerLogs", rest @ ..] => of("GET", container(rest, false).map(Route::ContainerLogs)),
        ["exec", rest @ ..] => of("GET, POST", container(rest, true).map(Route::Exec)),
        ["attach", rest @ ..] => of("GET, POST", container(rest, true).map(Route::Attach)),
        ["run", rest @ ..] => of("POST", container(rest, true).map(Route::Run)),
        ["portForward", rest @ ..] => of("GET, POST", pod(rest).map(Route::PortForward)),
        ["checkpoint", rest @ ..] if switches.checkpoint => of("POST", container(rest, false).map(Route::Checkpoint)),
        ["debug", "pprof", ..] if !switches.profiling => Route::Disabled("profiling endpoint is disabled.\n"),
        ["debug", "pprof", rest @ ..] => of("GET", Some(Route::Pprof(rest.join("/")))),
        ["logs", ..] if !switches.system_log => Route::Disabled("logs endpoint is disabled.\n"),
        ["logs", ..] => of("GET", path.strip_prefix("/logs/").map(|relative| Route::NodeLogs(relative.to_owned()))),
        _ => pages(switches, path),
    }
}

/// What upstream registers by its exact path, for every method.
fn pages(switches: &Switches, path: &str) -> Route {
    match path {
        "/configz" => Route::Configz,
        "/flagz" if switches.flagz => Route::Flagz,
        "/statusz" if switches.statusz => Route::Statusz,
        "/debug/flags/v" if !switches.debug_flags => Route::Disabled("flags endpoint is disabled.\n"),
        "/debug/flags/v" => Route::FlagsVerbosity,
        _ => Route::Unknown,
    }
}

/// The first segments of what upstream registers by its exact path: what /statusz lists.
pub fn listed_paths(switches: &Switches) -> Vec<String> {
    let on = [
        ("/configz", true),
        ("/debug", true),
        ("/flagz", switches.flagz),
        ("/healthz", true),
        ("/logs", !switches.system_log),
        ("/metrics", true),
    ];
    on.into_iter().filter(|(_, there)| *there).map(|(path, _)| path.to_owned()).collect()
}

/// Without empty, `.` and `..` segments; a slash at the end stays (Go's `net/http` cleanPath).
fn clean(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            name => segments.push(name),
        }
    }
    let slash = if path.ends_with('/') && !segments.is_empty() { "/" } else { "" };
    format!("/{}{slash}", segments.join("/"))
}

fn redirect(path: &str, query: Option<&str>) -> Route {
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    Route::Redirect(format!("{}{query}", encode_path(path)))
}

/// With the escapes that Go writes in a path.
pub fn encode_path(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
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

/// The `path` label of upstream's HTTP metrics (`pkg/kubelet/server/server.go` getMetricBucket).
pub fn path_label(path: &str) -> &'static str {
    const KNOWN: [&str; 20] = [
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
        "metrics/cadvisor",
        "metrics/probes",
        "metrics/resource",
    ];
    let root = root_path(path);
    KNOWN.into_iter().find(|known| *known == root).unwrap_or("other")
}

/// The first segment of a path, below `/metrics` the first two (upstream `getURLRootPath`).
fn root_path(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    let segments = if path.starts_with("metrics/") { 2 } else { 1 };
    let end = path.match_indices('/').nth(segments - 1).map_or(path.len(), |(at, _)| at);
    &path[..end]
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
    form_urlencoded::parse(query.as_bytes()).into_owned()
}

/// A path without its escapes; `None` when one is broken, or what they say is no text.
pub fn decode_path(path: &str) -> Option<String> {
    let is_whole = |escape: &str| escape.len() >= 2 && escape.bytes().take(2).all(|digit| digit.is_ascii_hexdigit());
    if !path.split('%').skip(1).all(is_whole) {
        return None;
    }
    percent_decode_str(path).decode_utf8().ok().map(Cow::into_owned)
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
            (Healthz, "GET", "/healthz/", None, Route::Unknown),
            (Healthz, "GET", "/healthz/ping", None, Route::HealthCheck("ping".into())),
            (Healthz, "GET", "/metrics", None, Route::Unknown),
            (Healthz, "GET", "/metrics/resource", None, Route::Unknown),
            (ReadOnly, "GET", "/metrics", None, Route::Metrics),
            (ReadOnly, "HEAD", "/metrics", None, Route::Metrics),
            (ReadOnly, "POST", "/metrics", None, Route::MethodNotAllowed("GET, HEAD")),
            (Healthz, "GET", "/stats/summary", None, Route::Unknown),
            (Healthz, "GET", "/run/x", None, Route::Unknown),
            (Healthz, "GET", "/", None, Route::Unknown),
            (Healthz, "GET", "/livez", None, Route::Unknown),
            (ReadOnly, "GET", "/run/x", None, Route::Disabled(DEBUG_DISABLED)),
            (ReadOnly, "GET", "/configz", None, Route::Unknown),
            (ReadOnly, "GET", "/stats/summary", None, Route::Summary),
            (ReadOnly, "POST", "/stats/summary", None, Route::Summary),
            (ReadOnly, "PUT", "/metrics/resource", None, Route::MethodNotAllowed("GET, HEAD")),
            (ReadOnly, "GET", "/pods", None, Route::Pods),
            (Main, "GET", "/containerLogs/n/p/c", None, Route::ContainerLogs(place(None))),
            (Main, "GET", "/containerLogs/n/p/u/c", None, Route::NotFound),
            (Main, "GET", "/exec/n/p/c", None, Route::Exec(place(None))),
            (Main, "POST", "/exec/n/p/u/c", None, Route::Exec(place(Some("u")))),
            (Main, "PUT", "/exec/n/p/c", None, Route::MethodNotAllowed("GET, POST")),
            (Main, "POST", "/attach/n/p/c", None, Route::Attach(place(None))),
            (Main, "POST", "/portForward/n/p", None, Route::PortForward(place(None).pod)),
            (Main, "GET", "/run/n/p/c", None, Route::MethodNotAllowed("POST")),
            (Main, "POST", "/run/n/p/c", None, Route::Run(place(None))),
            (Main, "POST", "/checkpoint/n/p/c", None, Route::Checkpoint(place(None))),
            (Main, "GET", "/logs/a/b", None, Route::NodeLogs("a/b".into())),
            (Main, "GET", "/logs/a/b/", None, Route::NodeLogs("a/b/".into())),
            (Main, "GET", "/logs/", None, Route::NodeLogs(String::new())),
            (Main, "GET", "/logs", None, Route::Redirect("/logs/".into())),
            (Main, "HEAD", "/logs/a", None, Route::MethodNotAllowed("GET")),
            (Main, "GET", "/logs/%2e%2e/b", None, Route::Redirect("/b".into())),
            (Main, "GET", "/logs/..%2f..%2Fetc/passwd", Some("a=b"), Route::Redirect("/etc/passwd?a=b".into())),
            (Main, "GET", "/stats/../exec/n/p/c", None, Route::Redirect("/exec/n/p/c".into())),
            (Main, "GET", "//evil.example/%0d", None, Route::Redirect("/evil.example/%0D".into())),
            (Main, "GET", "/logs/a%00b", None, Route::NodeLogs("a\0b".into())),
            (Main, "GET", "/%zz", None, Route::Malformed),
            (Main, "GET", "/nothing", None, Route::Unknown),
            (Main, "GET", "/", None, Route::Unknown),
            (Main, "GET", "/stats", None, Route::Redirect("/stats/".into())),
            (Main, "GET", "/stats/", None, Route::NotFound),
            (Main, "GET", "/stats/other", None, Route::NotFound),
            (Main, "PUT", "/stats/summary/", None, Route::MethodNotAllowed("GET, POST")),
            (Main, "GET", "/pods/", None, Route::Pods),
            (Main, "HEAD", "/pods", None, Route::MethodNotAllowed("GET")),
            (Main, "GET", "/pods/x", None, Route::NotFound),
            (Main, "GET", "/runningpods/", None, Route::RunningPods),
            (Main, "GET", "/runningpods", Some("x"), Route::Redirect("/runningpods/?x".into())),
            (Main, "GET", "/exec/n/p/c/", None, Route::Exec(place(None))),
            (Main, "GET", "/exec", None, Route::NotFound),
            (Main, "GET", "/configz/", None, Route::Unknown),
            (Main, "POST", "/configz", None, Route::Configz),
            (Main, "GET", "/debug/pprof/", None, Route::Pprof(String::new())),
            (Main, "GET", "/debug/pprof/heap", None, Route::Pprof("heap".into())),
            (Main, "GET", "/debug/flags/v", None, Route::FlagsVerbosity),
            (Main, "GET", "/debug/flags/", None, Route::Unknown),
            (ReadOnly, "GET", "/logs", None, Route::Redirect("/logs/".into())),
            (ReadOnly, "GET", "/logs/x", None, Route::Disabled(DEBUG_DISABLED)),
            (ReadOnly, "GET", "/checkpoint/n/p/c", None, Route::Unknown),
            (Main, "DELETE", "/metrics/slis", None, Route::SliMetrics { reset: true }),
        ] {
            assert_eq!(route(surface, &ON, method, path, query), expected, "{surface:?} {method} {path} {query:?}");
        }
        let off = Switches { debugging: false, ..ON };
        assert_eq!(route(Main, &off, "GET", "/exec/n/p/c", None), Route::Disabled(DEBUG_DISABLED));
        assert_eq!(route(Main, &off, "GET", "/configz", None), Route::Unknown);
        assert_eq!(route(Main, &off, "GET", "/exec", None), Route::Redirect("/exec/".into()));
        let off = Switches { system_log: false, profiling: false, debug_flags: false, ..ON };
        for (path, words) in [
            ("/logs/x", "logs endpoint is disabled.\n"),
            ("/debug/pprof/heap", "profiling endpoint is disabled.\n"),
            ("/debug/flags/v", "flags endpoint is disabled.\n"),
        ] {
            assert_eq!(route(Main, &off, "GET", path, None), Route::Disabled(words));
        }
        assert_eq!(listed_paths(&ON), ["/configz", "/debug", "/flagz", "/healthz", "/metrics"]);
        assert!(listed_paths(&off).contains(&"/logs".to_owned()));
        assert_eq!(method_label("PATCH"), "other");
    }

    #[test]
    fn paths_are_counted_by_their_roots() {
        for (path, label) in [
            ("/healthz/ping", "healthz"),
            ("/exec/n/p/c", "exec"),
            ("/metrics", "metrics"),
            ("/metrics/resource", "metrics/resource"),
            ("/metrics/cadvisor/x", "metrics/cadvisor"),
            ("/metrics/probes", "metrics/probes"),
            // Upstream has registered no bucket for these.
            ("/metrics/slis", "other"),
            ("/metrics/", "other"),
            ("/metricsx", "other"),
            ("//pods", "other"),
            ("/x", "other"),
            ("/", "other"),
            ("", "other"),
        ] {
            assert_eq!(path_label(path), label, "{path}");
        }
    }

    proptest! {
        #[test]
        fn what_is_served_has_no_way_up(path in "(/|\\.|%2e|%2F|a|logs){0,12}") {
            if let Route::NodeLogs(relative) = route(Surface::Main, &ON, "GET", &format!("/logs/{path}"), None) {
                prop_assert!(relative.split('/').all(|segment| segment != ".." && segment != "."), "{relative}");
            }
        }

        #[test]
        fn nothing_panics(path in any::<String>(), query in any::<String>()) {
            let _ = route(Surface::Main, &ON, "GET", &path, Some(&query));
            let _ = route(Surface::ReadOnly, &ON, "GET", &path, Some(&query));
            let _ = path_label(&path);
        }
    }
}
