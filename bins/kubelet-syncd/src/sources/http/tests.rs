use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use bulkhead_types::NodeName;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;

use super::*;
use crate::sources::Absence;
use crate::sources::uids::Forgetful;
use bulkhead_types::PodUid;
use kubelet_model::validation::field::text;

const POD: &str =
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
const LIST: &str = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec: {containers: [{name: c, image: i}]}\n\
                    - metadata: {name: b}\n  spec: {containers: [{name: c, image: i}]}\n";

type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>);

/// A server that answers by a function of the request; also hands out each request's head.
async fn serve(
    answer: impl Fn(usize, &str) -> Answer + Send + Sync + Clone + 'static,
) -> (String, mpsc::UnboundedReceiver<http::request::Parts>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (seen, requests) = mpsc::unbounded_channel();
    let count = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (answer, seen, count) = (answer.clone(), seen.clone(), count.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (parts, _) = request.into_parts();
                let path = parts.uri.path_and_query().unwrap().to_string();
                let (status, headers, body) = answer(count.fetch_add(1, Ordering::SeqCst), &path);
                let _ = seen.send(parts);
                let mut response = Response::builder().status(status);
                for (name, value) in headers {
                    response = response.header(name, value);
                }
                let response = response.body(Full::new(Bytes::from(body))).unwrap();
                async move { Ok::<_, Infallible>(response) }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (url, requests)
}

fn source(url: &str) -> Source {
    let uids = Arc::new(Mutex::new(Uids::new(Box::new(Forgetful), Vec::new())));
    Source::new(url.to_owned(), NodeName::parse("Node-A".to_lowercase().as_str()).unwrap().into(), uids)
}

fn names(set: &Option<Vec<Pod>>) -> Option<Vec<&str>> {
    set.as_ref().map(|pods| pods.iter().map(|p| text(&p.metadata.name)).collect())
}

fn ok(body: &str) -> Result<Fetched, PollError> {
    Ok(Fetched { status: http::StatusCode::OK, body: body.as_bytes().to_vec() })
}

#[test]
fn bodies_become_sets() {
    let mut source = source("http://u:pw@x/pods");
    let (set, result) = source.take(ok(POD));
    assert_eq!(names(&set), Some(vec!["a-node-a"]));
    assert!(result.is_ok());
    assert_eq!(set.unwrap()[0].spec.as_ref().unwrap().tolerations, None);
    let (set, result) = source.take(ok(POD));
    assert!(set.is_none() && result.is_ok(), "the same body says nothing new");
    assert_eq!(names(&source.take(ok(LIST)).0), Some(vec!["a-node-a", "b-node-a"]));

    let gone = Ok(Fetched { status: http::StatusCode::NOT_FOUND, body: POD.as_bytes().to_vec() });
    let (set, result) = source.take(gone);
    assert!(set.is_none());
    assert_eq!(result.unwrap_err().to_string(), "http://u:xxxxx@x/pods: 404 Not Found");
    for bad in [
        "nonsense: [",
        r#"{"apiVersion":"v1","kind":"List","items":[]}"#,
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":1}}"#,
        &LIST.replace("name: b", "name: B"),
        &POD.replace("\"spec\"", "\"specs\""),
    ] {
        let (set, result) = source.take(ok(bad));
        assert!(set.is_none() && result.is_err(), "{bad}");
        assert_eq!(source.standing_error(result.err()).len(), 1);
        let (_, again) = source.take(ok(bad));
        assert!(again.is_ok());
        assert_eq!(source.standing_error(again.err()).len(), 1, "still refused");
    }
    let (set, result) = source.take(ok(""));
    assert_eq!(names(&set), Some(vec![]));
    assert!(matches!(result, Err(PollError::Empty { .. })));
    assert_eq!(names(&source.take(ok(POD)).0), Some(vec!["a-node-a"]));
    assert_eq!(names(&source.take(ok("")).0), Some(vec![]));
    assert_eq!(names(&source.take(ok(POD)).0), Some(vec!["a-node-a"]), "the same body as before the empty one");
    let empty_list = r#"{"apiVersion":"v1","kind":"PodList","items":[]}"#;
    assert_eq!(names(&source.take(ok(empty_list)).0), Some(vec![]));
}

#[tokio::test]
async fn requests_are_like_gos() {
    let (url, mut requests) = serve(|_, _| (200, vec![], POD.as_bytes().to_vec())).await;
    let headers = [("X-A", "1"), ("X-A", "2"), ("Host", "elsewhere")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let with_user = url.replace("http://", "http://me:p%40ss@");
    let fetched = Client::new(&headers).get(&format!("{with_user}/m?x=1#frag")).await.unwrap();
    assert_eq!((fetched.status.as_u16(), fetched.body.as_slice()), (200, POD.as_bytes()));
    let request = requests.recv().await.unwrap();
    assert_eq!(request.method, "GET");
    assert_eq!(request.uri.to_string(), "/m?x=1");
    assert_eq!(request.headers["user-agent"], "Go-http-client/1.1");
    assert_eq!(format!("http://{}", request.headers["host"].to_str().unwrap()), url);
    assert_eq!(request.headers["authorization"], "Basic bWU6cEBzcw==");
    let values: Vec<_> = request.headers.get_all("x-a").iter().collect();
    assert_eq!(values, ["1", "2"]);

    let agent = [("user-agent".to_owned(), "mine".to_owned())];
    Client::new(&agent).get(&url).await.unwrap();
    assert_eq!(requests.recv().await.unwrap().headers["user-agent"], "mine");
}

#[tokio::test]
async fn redirects_limits_and_failures() {
    let (other, mut other_requests) = serve(|_, _| (200, vec![], b"there".to_vec())).await;
    let elsewhere = other.replace("127.0.0.1", "localhost");
    let (url, mut requests) = serve(move |_, path| match path {
        "/relative/a" => (302, vec![("location", "../final".to_owned())], vec![]),
        "/away" => (307, vec![("location", format!("{elsewhere}/x"))], vec![]),
        "/loop" => (301, vec![("location", "/loop".to_owned())], vec![]),
        "/nowhere" => (302, vec![], vec![]),
        "/big" => (200, vec![], vec![b' '; decode::MANIFEST_MAX_BYTES + 1]),
        _ => (200, vec![], b"final".to_vec()),
    })
    .await;
    let client = Client::new(&[("Authorization".to_owned(), "secret".to_owned())]);
    assert_eq!(client.get(&format!("{url}/relative/a")).await.unwrap().body, b"final");
    let (first, second) = (requests.recv().await.unwrap(), requests.recv().await.unwrap());
    assert!(!first.headers.contains_key("referer"));
    assert_eq!(second.headers["referer"], format!("{url}/relative/a"));
    assert_eq!(second.headers["authorization"], "secret");

    assert_eq!(client.get(&format!("{url}/away")).await.unwrap().body, b"there");
    let away = other_requests.recv().await.unwrap();
    assert!(!away.headers.contains_key("authorization"), "a secret for one host stays with it");

    let error = |url: String| async move { Client::new(&[]).get(&url).await.unwrap_err() };
    assert!(matches!(error(format!("{url}/loop")).await, FetchError::TooManyRedirects { .. }));
    assert!(matches!(error(format!("{url}/nowhere")).await, FetchError::NoLocation { .. }));
    assert!(matches!(error(format!("{url}/big")).await, FetchError::Body { .. }));
    assert!(matches!(error("ftp://x/".to_owned()).await, FetchError::NotHttp(_)));
    assert!(matches!(error("http://".to_owned()).await, FetchError::Url { .. } | FetchError::NotHttp(_)));
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    assert!(matches!(error(format!("http://127.0.0.1:{port}")).await, FetchError::Request { .. }));
    let bad_header = Client::new(&[("a b".to_owned(), String::new())]);
    assert!(matches!(bad_header.get(&url).await, Err(FetchError::Header(_))));
    // TLS is spoken to an https URL: a plain server cannot answer that.
    assert!(matches!(error(url.replace("http://", "https://")).await, FetchError::Request { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_given_up_after_ten_seconds() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let started = tokio::time::Instant::now();
    let error = Client::new(&[]).get(&url).await.unwrap_err();
    assert!(matches!(error, FetchError::Timeout { .. }), "{error}");
    assert_eq!(started.elapsed().as_secs(), 10);
}

struct Ear(mpsc::UnboundedSender<(Option<Vec<Pod>>, Vec<String>)>);

impl SetSink for Ear {
    async fn set(&mut self, pods: Vec<Pod>) -> bool {
        self.0.send((Some(pods), vec![])).is_ok()
    }

    async fn again(&mut self, uid: PodUid, _: Absence) -> bool {
        panic!("{uid}: nothing is ever away for a moment")
    }

    fn errors(&mut self, errors: Vec<String>) {
        let _ = self.0.send((None, errors));
    }
}

#[tokio::test]
async fn polling() {
    let (url, _requests) = serve(|count, _| match count {
        0 => (500, vec![], vec![]),
        1 | 2 => (200, vec![], POD.as_bytes().to_vec()),
        3 => (503, vec![], vec![]),
        _ => (200, vec![], vec![]),
    })
    .await;
    let uids = Arc::new(Mutex::new(Uids::new(Box::new(Forgetful), Vec::new())));
    let (tx, mut heard) = mpsc::unbounded_channel();
    let config = HttpConfig { url, headers: vec![], check_every: Duration::from_millis(10) };
    let node = NodeName::parse("node-a").unwrap().into();
    let task = tokio::spawn(run(config, node, uids, Ear(tx)));
    let mut sets = Vec::new();
    let mut errors = Vec::new();
    while sets.len() < 2 {
        let (set, error) = heard.recv().await.unwrap();
        match set {
            Some(set) => sets.push(set.len()),
            None => errors.push(error.len()),
        }
    }
    task.abort();
    assert_eq!(sets, [1, 0], "one pod, kept through the 503; then the empty body");
    assert_eq!(errors[..4], [1, 0, 0, 1]);
}

#[test]
fn the_failure_log_counts() {
    let mut log = FailureLog::default();
    let failed = || Err(PollError::Empty { url: String::new() });
    for expected in 1..=5 {
        log.note(&failed());
        assert_eq!(log.failures, expected);
    }
    log.note(&Ok(()));
    assert_eq!(log.failures, 0);
}
