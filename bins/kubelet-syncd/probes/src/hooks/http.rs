//! A hook's request: where it goes, and the second try over plain HTTP where a server does not speak TLS.

use std::time::Duration;

use k8s_openapi::api::core::v1::HTTPGetAction;

use super::{Hook, metrics};
use kubelet_edges::dial::join_host_port;
use kubelet_edges::http_get::{Get, GetError, GetErrorKind, get};
use kubelet_model::events::{EventSink, EventType, PodEvent};
use kubelet_model::pod::spec;

/// What servers see (upstream's version is that whose kubelet this one takes the place of).
const USER_AGENT: &str = "kube-lifecycle/1.36";
/// Upstream has no limit of its own; this only keeps the timer in range.
const NO_LIMIT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Makes the request; any answer is good, also one whose body breaks off (upstream `runHTTPHandler`, which throws the body
/// away and what goes wrong with it as well).
///
/// # Errors
/// Why there is none, as Go's client words it.
pub(super) async fn request(events: &dyn EventSink, hook: &Hook, action: &HTTPGetAction) -> Result<(), String> {
    let request = plan(hook, action)?;
    let Err(error) = answered(&request).await else { return Ok(()) };
    if !request.https || error.kind != GetErrorKind::PlainAnswer {
        return Err(error.text);
    }
    let plain = without_tls(request);
    if answered(&plain).await.is_err() {
        return Err(error.text);
    }
    metrics::fell_back();
    if let Some(pod) = &hook.pod {
        let to = join_host_port(&plain.host, plain.port);
        let text = format!("request to HTTPS lifecycle hook {to} got HTTP response, retry with HTTP succeeded");
        events.emit(PodEvent::pod(pod, EventType::Warning, "LifecycleHTTPFallback", text));
    }
    Ok(())
}

/// Whether the head of an answer came.
async fn answered(request: &Get) -> Result<(), GetError> {
    match get(request, NO_LIMIT).await {
        Err(error) if error.kind != GetErrorKind::Body => Err(error),
        _ => Ok(()),
    }
}

/// The request that the action means.
fn plan(hook: &Hook, action: &HTTPGetAction) -> Result<Get, String> {
    let named = action.host.as_deref().filter(|host| !host.is_empty());
    let host = match (named, hook.ip) {
        (Some(host), _) => host.to_owned(),
        (None, Some(ip)) => ip.to_string(),
        (None, None) => return Err("failed to find networking container: the pod has no address".to_owned()),
    };
    let headers = action.http_headers.iter().flatten().map(|header| (header.name.clone(), header.value.clone()));
    Ok(Get {
        https: action.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
        host,
        port: spec::port_number(&action.port, &hook.ports)?,
        path: action.path.clone().unwrap_or_default(),
        headers: headers.collect(),
        user_agent: USER_AGENT.to_owned(),
        asker: hook.pod.as_ref().map_or(hook.id.as_str(), |pod| pod.uid.as_str()).to_owned(),
    })
}

/// Credentials were meant for a server that proves who it is.
fn without_tls(request: Get) -> Get {
    let keep = |(name, _): &(String, String)| !name.eq_ignore_ascii_case("authorization");
    Get { https: false, headers: request.headers.into_iter().filter(keep).collect(), ..request }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_types::ContainerId;
    use k8s_openapi::api::core::v1::LifecycleHandler;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use kubelet_model::events::NodeEvent;
    use kubelet_model::pod::spec::ContainerKind;

    struct Nobody;

    impl EventSink for Nobody {
        fn emit(&self, _: PodEvent) {}
        fn emit_node(&self, _: NodeEvent) {}
    }

    fn hook(ip: Option<&str>) -> Hook {
        let ports = serde_json::json!([{"name": "web", "containerPort": 8080}, {"containerPort": 9}]);
        Hook {
            pod: None,
            kind: ContainerKind::Regular,
            container: "a".to_owned(),
            id: ContainerId::parse("c").unwrap(),
            ports: serde_json::from_value(ports).unwrap(),
            ip: ip.map(|ip| ip.parse().unwrap()),
            handler: LifecycleHandler::default(),
        }
    }

    fn planned(ip: Option<&str>, action: serde_json::Value) -> Result<Get, String> {
        plan(&hook(ip), &serde_json::from_value(action).unwrap())
    }

    #[test]
    fn where_a_request_goes() {
        let get = planned(Some("10.0.0.7"), serde_json::json!({"port": "web", "path": "/a?b=c"})).unwrap();
        assert_eq!((get.https, get.host.as_str(), get.port, get.path.as_str()), (false, "10.0.0.7", 8080, "/a?b=c"));
        assert_eq!(get.user_agent, "kube-lifecycle/1.36");
        let get = planned(None, serde_json::json!({"port": 81, "host": "h", "scheme": "HTTPS"})).unwrap();
        assert_eq!((get.https, get.host.as_str(), get.port, get.path.as_str()), (true, "h", 81, ""));
        assert_eq!(planned(Some("fd00::1"), serde_json::json!({"port": "82", "host": ""})).unwrap().port, 82);
        assert!(planned(None, serde_json::json!({"port": 81})).unwrap_err().contains("networking container"));
        for (port, error) in [
            (serde_json::json!(0), "invalid port number: 0"),
            (serde_json::json!(65_536), "invalid port number: 65536"),
            (serde_json::json!("nope"), "strconv.Atoi: parsing \"nope\": invalid syntax"),
        ] {
            assert_eq!(planned(Some("10.0.0.7"), serde_json::json!({"port": port})).unwrap_err(), error);
        }
    }

    #[test]
    fn credentials_do_not_go_in_plain() {
        let headers = serde_json::json!([{"name": "aUthorization", "value": "s"}, {"name": "X", "value": "1"}]);
        let action = serde_json::json!({"port": 1, "scheme": "HTTPS", "httpHeaders": headers});
        let plain = without_tls(planned(Some("10.0.0.7"), action).unwrap());
        assert_eq!((plain.https, plain.headers), (false, vec![("X".to_owned(), "1".to_owned())]));
    }

    /// A server that says the same on each connection, whatever it is asked, and closes it.
    async fn asked(scheme: &str, says: &'static str) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 4096]).await;
                stream.write_all(says.as_bytes()).await.unwrap();
            }
        });
        let action = serde_json::json!({"port": port, "scheme": scheme});
        let result = request(&Nobody, &hook(Some("127.0.0.1")), &serde_json::from_value(action).unwrap()).await;
        server.abort();
        result
    }

    #[tokio::test]
    async fn the_head_of_an_answer_is_enough() {
        const WHOLE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        const BROKEN_OFF: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 100\r\n\r\nbroken";
        const NO_END: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbro";
        const NO_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-";
        for (says, good) in [(WHOLE, true), (BROKEN_OFF, true), (NO_END, true), (NO_HEAD, false), ("", false)] {
            // The second try over plain HTTP has the same rule.
            for scheme in ["HTTP", "HTTPS"] {
                let result = asked(scheme, says).await;
                assert_eq!(result.is_ok(), good, "{scheme} {says:?}: {result:?}");
            }
        }
    }
}
