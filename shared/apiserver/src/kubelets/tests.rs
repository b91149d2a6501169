//! What a node is asked for a path of the API.

use serde_json::json;

use super::*;

fn path(path: &str, query: &str) -> Result<String, String> {
    let pod = json!({"spec": {
        "initContainers": [{"name": "first"}], "containers": [{"name": "main"}, {"name": "other"}],
    }});
    let request = ApiRequest::parse("GET", &format!("/api/v1/namespaces/n/pods/p/{path}"), query).unwrap();
    if let Some(refusal) = options::refusal(&request).filter(|_| path == "log") {
        return Err(refusal.message);
    }
    options::path(&pod, &request).map_err(|refusal| refusal.message)
}

#[test]
fn what_the_node_is_asked() {
    for (sub, query, expected) in [
        ("log", "container=main", "/containerLogs/n/p/main"),
        (
            "log",
            "container=first&follow=true&tailLines=0&timestamps=1&previous=false&limitBytes=5&pretty=true",
            "/containerLogs/n/p/first?follow=true&limitBytes=5&tailLines=0&timestamps=true",
        ),
        (
            "log",
            "container=main&sinceTime=2026-11-21T10:00:00.5%2B02:00",
            "/containerLogs/n/p/main?sinceTime=2026-11-21T08%3A00%3A00Z",
        ),
        (
            "exec",
            "command=sh&command=-c&command=echo+%22a%22&container=main&stdin=true&stdout=true&stderr=true",
            "/exec/n/p/main?command=sh&command=-c&command=echo+%22a%22&error=1&input=1&output=1",
        ),
        ("attach", "container=other&stdout=true&tty=true", "/attach/n/p/other?output=1&tty=1"),
        ("portforward", "", "/portForward/n/p"),
        ("portforward", "ports=80&ports=81", "/portForward/n/p?port=80%2C81"),
    ] {
        assert_eq!(path(sub, query).as_deref(), Ok(expected));
    }
    for (sub, query, refusal) in [
        ("log", "", "a container name must be specified for pod p, choose one of: [first main other]"),
        ("exec", "container=x", "container x is not valid for pod p"),
        ("log", "container=main&tailLines=x", "strconv.ParseInt: parsing \"x\": invalid syntax"),
        (
            "log",
            "container=main&sinceSeconds=0",
            "PodLogOptions \"p\" is invalid: sinceSeconds: Invalid value: 0: must be greater than 0",
        ),
    ] {
        assert_eq!(path(sub, query), Err(refusal.to_owned()));
    }
    assert_eq!(options::proxied("/api/v1/nodes/a/proxy/logs/x/"), ("/api/v1/nodes/a/proxy", "/logs/x/"));
    assert_eq!(options::proxied("/api/v1/nodes/a/proxy"), ("/api/v1/nodes/a/proxy", ""));
}
