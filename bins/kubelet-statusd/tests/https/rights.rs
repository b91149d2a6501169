//! Authorisation by the API server.

use bulkhead_testkit::apiserver::identity::{MASTERS, User};
use bulkhead_testkit::apiserver::{Grant, StaticToken};
use bulkhead_testkit::cluster::client::Credential;

use crate::https::world::{Plan, World, said, start, token};

fn world(allow_get: bool) -> World {
    let mut plan = Plan { webhook: true, ..Plan::default() };
    let users = ["scraper", "reader", "runner", "fine", "nobody", "peter"];
    plan.api.tokens = users
        .iter()
        .map(|name| StaticToken { token: (*name).into(), user: User::new(name, &[]) })
        .chain([StaticToken { token: "admin".into(), user: User::new("admin", &[MASTERS]) }])
        .collect();
    plan.api.grants = vec![
        Grant::new("scraper", &["get"], &["nodes/metrics", "nodes/stats"]),
        Grant::new("reader", &["get"], &["nodes/proxy"]),
        Grant::new("runner", &["create"], &["nodes/proxy"]),
        Grant::new("fine", &["get"], &["nodes/pods", "nodes/healthz", "nodes/configz"]),
    ];
    start(plan, |config| config.flags.allow_streaming_with_get = allow_get)
}

fn forbidden(user: &str, verb: &str, subresources: &str) -> (u16, String) {
    (403, format!("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])\n"))
}

#[test]
fn each_path_has_its_sub_resource() {
    let world = world(false);
    assert_eq!(world.get(&token("scraper"), "/pods"), forbidden("scraper", "get", "pods proxy"));
    assert_eq!(world.get(&token("scraper"), "/nothing"), forbidden("scraper", "get", "proxy"));
    assert_eq!(world.get(&token("nobody"), "/metrics"), forbidden("nobody", "get", "metrics"));
    assert_eq!(world.get(&token("nobody"), "/stats/summary"), forbidden("nobody", "get", "stats"));
    assert_eq!(world.get(&token("nobody"), "/logs/"), forbidden("nobody", "get", "log"));
    assert_eq!(world.get(&token("nobody"), "/healthz"), forbidden("nobody", "get", "healthz proxy"));
    assert_eq!(world.get(&token("nobody"), "/configz"), forbidden("nobody", "get", "configz proxy"));
    assert_eq!(world.get(&token("nobody"), "/checkpoint/n/p/c"), forbidden("nobody", "get", "checkpoint"));
    assert_eq!(world.get(&token("runner"), "/metrics"), forbidden("runner", "get", "metrics"));
    for (user, path) in
        [("scraper", "/metrics/nothing"), ("fine", "/healthz/ping"), ("reader", "/healthz/ping"), ("reader", "/x")]
    {
        let (status, body) = world.get(&token(user), path);
        assert!(status == 200 || status == 404, "{user} {path}: {status} {body}");
    }
    let posted = said(&world.with(&token("scraper")).post("/stats/summary", b"").unwrap());
    assert_eq!(posted, forbidden("scraper", "create", "stats"));
    let head = world.with(&token("scraper")).request("HEAD", "/metrics", &[], b"").unwrap();
    assert_eq!(head.status, 403, "HEAD is no verb");
    let certificate = world.ca.client("peter");
    assert_eq!(world.get(&certificate, "/x"), forbidden("peter", "get", "proxy"));
    // Yes and no are both remembered.
    let asked = || world.metric("apiserver_delegated_authz_request_total", &[("code", "201")]);
    let before = asked();
    for _ in 0..3 {
        assert_eq!(world.get(&token("nobody"), "/metrics").0, 403);
        assert_ne!(world.get(&token("reader"), "/x").0, 403);
    }
    assert_eq!(asked(), before);
    // Rights of somebody else of the same name by another way are asked for anew, with all that is known of them.
    assert_eq!(world.get(&Credential::Nothing, "/x").0, 401);
}

#[test]
fn what_streams_needs_create() {
    let paths = ["/exec/n/p/c?command=id&output=1", "/attach/n/p/c", "/portForward/n/p", "/run/n/p/c", "//exec/n/p/c"];
    let strict = world(false);
    let upgrade = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ("sec-websocket-protocol", "v5.channel.k8s.io"),
    ];
    for path in paths {
        assert_eq!(strict.get(&token("reader"), path), forbidden("reader", "create", "proxy"), "{path}");
        let asked = strict.with(&token("reader")).request("GET", path, &upgrade, b"").unwrap();
        assert_eq!(said(&asked), forbidden("reader", "create", "proxy"), "{path}");
    }
    // Whoever is let through waits for a kubelet-syncd that is not there: all at the same time.
    std::thread::scope(|scope| {
        for (method, path) in paths.iter().flat_map(|path| [("GET", path), ("POST", path)]) {
            let client = strict.with(&token("runner"));
            scope.spawn(move || {
                let status = client.request(method, path, &[], b"").unwrap().status;
                assert!(status != 403 && status != 401, "{method} {path}: {status}");
            });
        }
    });
    assert_ne!(strict.get(&token("reader"), "/containerLogs/n/p/c").0, 403, "reading is still reading");
    let upstream = world(true);
    assert_ne!(upstream.get(&token("reader"), paths[0]).0, 403);
    assert_eq!(upstream.get(&token("runner"), paths[0]), forbidden("runner", "get", "proxy"));
}
