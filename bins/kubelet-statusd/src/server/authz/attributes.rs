//! What a request amounts to in the words of authorisation: a verb on a sub-resource of this node (upstream
//! `pkg/kubelet/server/auth.go`, and one rule of our own). Pure.

/// How what streams is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamRule {
    /// It runs something, or reaches into a pod: `create`, whatever the method. A WebSocket is opened by GET, and who
    /// may read may not run.
    Create,
    /// Upstream's: the method says it.
    Method,
}

/// What has to be allowed: one of the sub-resources, tried in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Empty for methods that have none.
    pub verb: &'static str,
    pub subresources: &'static [&'static str],
}

/// First segments of what streams.
const STREAMS: [&str; 4] = ["/exec", "/attach", "/portForward", "/run"];

/// `path`: without escapes, as it was asked for.
pub fn attributes(rule: StreamRule, method: &str, path: &str) -> Attributes {
    let verb = match method {
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    };
    let is = |of: &str| is_below(path, of);
    let streams = rule == StreamRule::Create && STREAMS.into_iter().any(|stream| is_below(single_slash(path), stream));
    let subresources: &[&str] = match () {
        () if is("/pods") || is("/runningpods") => &["pods", "proxy"],
        () if is("/healthz") => &["healthz", "proxy"],
        () if is("/configz") => &["configz", "proxy"],
        () if is("/stats") => &["stats"],
        () if is("/metrics") => &["metrics"],
        () if is("/logs") => &["log"],
        () if is("/checkpoint") => &["checkpoint"],
        () if is("/statusz") => &["statusz"],
        () if is("/flagz") => &["configz"],
        () => &["proxy"],
    };
    Attributes { verb: if streams { "create" } else { verb }, subresources }
}

fn is_below(path: &str, of: &str) -> bool {
    path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// However many slashes a path begins with: nothing that streams hides behind them.
fn single_slash(path: &str) -> &str {
    let slashes = path.bytes().take_while(|byte| *byte == b'/').count();
    &path[slashes.saturating_sub(1)..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_and_methods() {
        let table: &[(&str, &str, &str, &[&str])] = &[
            ("GET", "/stats/summary", "get", &["stats"]),
            ("POST", "/stats/summary", "create", &["stats"]),
            ("GET", "/metrics", "get", &["metrics"]),
            ("GET", "/metrics/cadvisor", "get", &["metrics"]),
            ("GET", "/metricsx", "get", &["proxy"]),
            ("GET", "/logs/", "get", &["log"]),
            ("GET", "/logs", "get", &["log"]),
            ("POST", "/checkpoint/n/p/c", "create", &["checkpoint"]),
            ("GET", "/statusz", "get", &["statusz"]),
            ("GET", "/flagz", "get", &["configz"]),
            ("GET", "/pods", "get", &["pods", "proxy"]),
            ("GET", "/pods/", "get", &["pods", "proxy"]),
            ("GET", "/podsx", "get", &["proxy"]),
            ("GET", "/runningpods/", "get", &["pods", "proxy"]),
            ("GET", "/runningpods", "get", &["pods", "proxy"]),
            ("GET", "/healthz/syncloop", "get", &["healthz", "proxy"]),
            ("GET", "/configz", "get", &["configz", "proxy"]),
            ("GET", "/containerLogs/n/p/c", "get", &["proxy"]),
            ("GET", "/debug/pprof/heap", "get", &["proxy"]),
            ("PUT", "/debug/flags/v", "update", &["proxy"]),
            ("PATCH", "/nothing", "patch", &["proxy"]),
            ("DELETE", "/metrics/slis", "delete", &["metrics"]),
            ("HEAD", "/pods", "", &["pods", "proxy"]),
            ("get", "/pods", "", &["pods", "proxy"]),
            ("GET", "/", "get", &["proxy"]),
            ("GET", "", "get", &["proxy"]),
        ];
        for (method, path, verb, subresources) in table {
            for rule in [StreamRule::Create, StreamRule::Method] {
                assert_eq!(attributes(rule, method, path), Attributes { verb, subresources }, "{method} {path}");
            }
        }
    }

    #[test]
    fn what_streams_needs_create_unless_upstreams_rule_is_asked_for() {
        for path in
            ["/exec/n/p/c", "/exec/n/p/u/c", "/attach/n/p/c", "/portForward/n/p", "/run/n/p/c", "/exec", "//exec/n/p/c"]
        {
            for (method, by_method) in [("GET", "get"), ("POST", "create"), ("PUT", "update"), ("OPTIONS", "")] {
                let verb = |rule| attributes(rule, method, path).verb;
                assert_eq!(
                    (verb(StreamRule::Create), verb(StreamRule::Method)),
                    ("create", by_method),
                    "{method} {path}"
                );
                assert_eq!(attributes(StreamRule::Create, method, path).subresources, ["proxy"]);
            }
        }
        assert_eq!(attributes(StreamRule::Create, "GET", "/executor").verb, "get");
    }

    proptest! {
        /// What the router takes for a stream is one here.
        #[test]
        fn no_way_around(path in "/{0,3}(exec|attach|portForward|run|pods|%65xec|\\.\\.){1,2}/{0,2}[a-z./%]{0,12}") {
            use crate::routes::{Route, Surface, Switches, route};
            let on = Switches {
                debugging: true, profiling: true, debug_flags: true, system_log: true, checkpoint: true, flagz: true,
                statusz: true,
            };
            let streams = |route: &Route| matches!(
                route, Route::Exec(_) | Route::Attach(_) | Route::PortForward(_) | Route::Run(_));
            for method in ["GET", "POST"] {
                let decoded = crate::routes::decode_path(&path);
                if streams(&route(Surface::Main, &on, method, &path, None)) {
                    let decoded = decoded.unwrap();
                    prop_assert_eq!(attributes(StreamRule::Create, method, &decoded).verb, "create");
                }
            }
        }
    }
}
