//! Which path on which port is what. Pure; the answers are upstream's (`pkg/kubelet/server/server.go`).

/// The two plain HTTP servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// healthzBindAddress:healthzPort.
    Healthz,
    /// address:readOnlyPort.
    ReadOnly,
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route<'a> {
    /// All checks. `exclude`: those to leave out.
    Health {
        verbose: bool,
        exclude: Vec<String>,
    },
    /// One check by its name.
    HealthCheck(&'a str),
    Metrics,
    ResourceMetrics,
    Summary {
        only_cpu_and_memory: bool,
    },
    /// A path of upstream's debugging handlers, which this port never serves.
    DebugDisabled,
    NotFound,
    MethodNotAllowed,
}

/// Prefixes of upstream's debugging handlers.
const DEBUG: [&str; 8] =
    ["/run/", "/exec/", "/attach/", "/portForward/", "/containerLogs/", "/runningpods/", "/debug/pprof/", "/logs/"];

/// Decides. Query strings are decoded as far as names of checks need it.
pub fn route<'a>(surface: Surface, method: &str, path: &'a str, query: Option<&str>) -> Route<'a> {
    let query = query.unwrap_or_default();
    let read = |route: Route<'a>, methods: &[&str]| {
        if methods.contains(&method) { route } else { Route::MethodNotAllowed }
    };
    match path {
        "/healthz" => Route::Health {
            verbose: pairs(query).any(|(key, _)| key == "verbose"),
            exclude: pairs(query).filter(|(key, _)| key == "exclude").map(|(_, value)| value).collect(),
        },
        "/metrics" => read(Route::Metrics, &["GET", "HEAD"]),
        "/metrics/resource" => read(Route::ResourceMetrics, &["GET", "HEAD"]),
        "/stats/summary" | "/stats/summary/" if surface == Surface::ReadOnly => {
            // Upstream: only when it is there exactly once and says "true".
            let values: Vec<String> =
                pairs(query).filter(|(key, _)| key == "only_cpu_and_memory").map(|(_, value)| value).collect();
            read(Route::Summary { only_cpu_and_memory: values == ["true"] }, &["GET", "HEAD", "POST"])
        }
        _ => match path.strip_prefix("/healthz/") {
            Some(check) if !check.is_empty() => Route::HealthCheck(check),
            _ if surface == Surface::ReadOnly && DEBUG.iter().any(|prefix| path.starts_with(prefix)) => {
                Route::DebugDisabled
            }
            _ => Route::NotFound,
        },
    }
}

/// The `path` label of upstream's HTTP metrics.
pub fn path_label(path: &str) -> &'static str {
    match path {
        "/metrics/resource" => return "metrics/resource",
        "/metrics/cadvisor" => return "metrics/cadvisor",
        "/metrics/probes" => return "metrics/probes",
        _ => {}
    }
    const KNOWN: [&str; 13] = [
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
        "logs",
        "debug",
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

fn pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key), decode(value))
    })
}

fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    let hex = |b: u8| (b as char).to_digit(16).and_then(|d| u8::try_from(d).ok());
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn table() {
        use Surface::{Healthz, ReadOnly};
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
            (Healthz, "GET", "/healthz/ping", None, Route::HealthCheck("ping")),
            (Healthz, "GET", "/metrics", None, Route::Metrics),
            (Healthz, "HEAD", "/metrics", None, Route::Metrics),
            (Healthz, "POST", "/metrics", None, Route::MethodNotAllowed),
            (Healthz, "GET", "/stats/summary", None, Route::NotFound),
            (Healthz, "GET", "/run/x", None, Route::NotFound),
            (Healthz, "GET", "/", None, Route::NotFound),
            (Healthz, "GET", "/livez", None, Route::NotFound),
            (ReadOnly, "GET", "/run/x", None, Route::DebugDisabled),
            (ReadOnly, "GET", "/stats/summary", None, Route::Summary { only_cpu_and_memory: false }),
            (
                ReadOnly,
                "POST",
                "/stats/summary",
                Some("only_cpu_and_memory=true"),
                Route::Summary { only_cpu_and_memory: true },
            ),
            (
                ReadOnly,
                "GET",
                "/stats/summary",
                Some("only_cpu_and_memory=true&only_cpu_and_memory=true"),
                Route::Summary { only_cpu_and_memory: false },
            ),
            (ReadOnly, "PUT", "/metrics/resource", None, Route::MethodNotAllowed),
        ] {
            assert_eq!(route(surface, method, path, query), expected, "{surface:?} {method} {path} {query:?}");
        }
        assert_eq!(path_label("/healthz/ping"), "healthz");
        assert_eq!(path_label("/metrics/resource"), "metrics/resource");
        assert_eq!(path_label("/x"), "other");
        assert_eq!(method_label("PATCH"), "other");
    }

    proptest! {
        #[test]
        fn nothing_panics(path in any::<String>(), query in any::<String>()) {
            let _ = route(Surface::ReadOnly, "GET", &path, Some(&query));
            let _ = path_label(&path);
        }
    }
}
