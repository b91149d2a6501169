//! GETs of real local servers.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::*;

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(10);

/// What a server does with one connection.
#[derive(Debug, Clone)]
enum Answering {
    /// Reads the request and says this.
    Say(String),
    /// Says this, and holds the connection open.
    Hold(String),
    /// Closes without a word.
    Close,
    /// Closes with unread data, which the kernel tells the other side at once.
    Reset,
}

/// A server that does one thing after another, and the requests that it got.
struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await.unwrap_or(0) == 0 {
            break;
        }
        request.push(byte[0]);
    }
    String::from_utf8(request).unwrap()
}

async fn answer(mut stream: TcpStream, how: Answering, requests: &Mutex<Vec<String>>) {
    match how {
        Answering::Reset => stream.readable().await.unwrap(),
        how => {
            let request = read_request(&mut stream).await;
            requests.lock().push(request);
            match how {
                Answering::Say(text) => stream.write_all(text.as_bytes()).await.unwrap(),
                Answering::Hold(text) => {
                    stream.write_all(text.as_bytes()).await.unwrap();
                    let _ = stream.read(&mut [0]).await;
                }
                Answering::Close | Answering::Reset => {}
            }
        }
    }
}

async fn server(answers: impl IntoIterator<Item = Answering>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let mut answers: VecDeque<Answering> = answers.into_iter().collect();
    let log = requests.clone();
    tokio::spawn(async move {
        while let Some(how) = answers.pop_front() {
            let (stream, _) = listener.accept().await.unwrap();
            answer(stream, how, &log).await;
        }
    });
    Server { port, requests }
}

fn request(port: u16) -> Get {
    Get {
        https: false,
        host: "127.0.0.1".to_owned(),
        port,
        path: "/healthz?x=1".to_owned(),
        headers: vec![("X-A".to_owned(), "b".to_owned())],
        user_agent: "kube-probe/1.36".to_owned(),
        asker: "pod".to_owned(),
    }
}

fn ok(body: &str) -> Answering {
    Answering::Say(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

fn redirect(status: u16, to: &str) -> Answering {
    Answering::Say(format!("HTTP/1.1 {status} Go\r\nLocation: {to}\r\nContent-Length: 2\r\n\r\nhi"))
}

#[tokio::test]
async fn an_answer_comes_back_and_a_large_one_is_cut() {
    let server =
        server([ok("fine"), ok(&"x".repeat(50_000)), Answering::Say("HTTP/1.0 503 No\r\n\r\nsorry".to_owned())]).await;
    let get_it = async || get(&request(server.port), LONG).await.unwrap();
    assert_eq!(get_it().await, Answer { status: 200, body: b"fine".to_vec(), redirect_refused: false });
    assert_eq!(get_it().await.body.len(), BODY_BYTES_MAX);
    assert_eq!(get_it().await, Answer { status: 503, body: b"sorry".to_vec(), redirect_refused: false });
    let expected = format!(
        "GET /healthz?x=1 HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nX-A: b\r\n\
         Connection: close\r\n\r\n",
        server.port
    );
    assert_eq!(server.requests.lock()[0], expected);
}

#[tokio::test]
async fn redirects_on_the_same_host_are_followed() {
    let second = server([ok("there")]).await;
    let to = format!("http://127.0.0.1:{}/there", second.port);
    let first = server([redirect(302, "other?y"), redirect(307, &to)]).await;
    let request = Get { headers: vec![("Host".to_owned(), "me".to_owned())], ..request(first.port) };
    assert_eq!(get(&request, LONG).await.unwrap().body, b"there");
    let line =
        |log: &Mutex<Vec<String>>, at: usize| log.lock()[at].lines().take(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(line(&first.requests, 1), ["GET /other?y HTTP/1.1", "Host: me"]);
    assert_eq!(
        line(&second.requests, 0),
        ["GET /there HTTP/1.1".to_owned(), format!("Host: 127.0.0.1:{}", second.port)]
    );
    let referer = format!("Referer: http://127.0.0.1:{}/other?y\r\n", first.port);
    assert!(second.requests.lock()[0].contains(&referer));
}

#[tokio::test]
async fn redirects_elsewhere_and_without_end_are_not() {
    let away = server([redirect(301, "http://example.com/"), redirect(304, "/x"), redirect(200, "/x")]).await;
    let request_away = request(away.port);
    let get_it = async || get(&request_away, LONG).await.unwrap();
    assert_eq!(get_it().await, Answer { status: 301, body: b"hi".to_vec(), redirect_refused: true });
    assert_eq!(get_it().await, Answer { status: 304, body: Vec::new(), redirect_refused: false });
    assert_eq!(get_it().await.status, 200);
    let loops = server(vec![redirect(303, "/again"); 20]).await;
    let error = get(&request(loops.port), LONG).await.unwrap_err();
    let words = format!("Get \"http://127.0.0.1:{}/again\": stopped after 10 redirects", loops.port);
    assert_eq!(error, GetError { kind: GetErrorKind::Other, text: words });
    assert_eq!(loops.requests.lock().len(), REQUESTS_MAX);
}

#[tokio::test]
async fn slow_servers() {
    let server = server([
        Answering::Hold(String::new()),
        Answering::Hold("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab".to_owned()),
    ])
    .await;
    let error = get(&request(server.port), SHORT).await.unwrap_err();
    let words = format!(
        "Get \"http://127.0.0.1:{}/healthz?x=1\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
        server.port
    );
    assert_eq!(error, GetError { kind: GetErrorKind::TimedOut, text: words });
    let error = get(&request(server.port), SHORT).await.unwrap_err();
    let words = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
    assert_eq!(error, GetError { kind: GetErrorKind::Body, text: words.to_owned() });
}

#[tokio::test]
async fn servers_that_break_off() {
    let server = server([
        Answering::Close,
        Answering::Reset,
        Answering::Say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab".to_owned()),
        Answering::Say("what\r\n".to_owned()),
    ])
    .await;
    let get_it = async || get(&request(server.port), LONG).await.unwrap_err();
    let at = format!("Get \"http://127.0.0.1:{}/healthz?x=1\": ", server.port);
    assert_eq!(get_it().await.text, format!("{at}EOF"));
    let reset = get_it().await.text;
    assert!(reset.starts_with(&format!("{at}read tcp 127.0.0.1:")), "{reset}");
    assert!(reset.ends_with(&format!("->127.0.0.1:{}: read: connection reset by peer", server.port)), "{reset}");
    assert_eq!(get_it().await, GetError { kind: GetErrorKind::Body, text: "unexpected EOF".to_owned() });
    let words = "net/http: HTTP/1.x transport connection broken: malformed HTTP response \"what\"";
    assert_eq!(get_it().await.text, format!("{at}{words}"));
    // Nobody listens any more.
    let refused = get_it().await;
    let words = format!("{at}dial tcp 127.0.0.1:{}: connect: connection refused", server.port);
    assert_eq!(refused, GetError { kind: GetErrorKind::Other, text: words });
}

/// A server with a certificate that nobody signed.
async fn tls_server(answers: Vec<Answering>) -> (Server, Arc<Mutex<Vec<Option<String>>>>) {
    let key = rcgen::generate_simple_self_signed(["whoever".to_owned()]).unwrap();
    let secret = rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], secret)
        .unwrap();
    tls_server_of(config, answers).await
}

async fn tls_server_of(
    config: rustls::ServerConfig,
    answers: Vec<Answering>,
) -> (Server, Arc<Mutex<Vec<Option<String>>>>) {
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (requests, names) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (log, seen) = (requests.clone(), names.clone());
    tokio::spawn(async move {
        for how in answers {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            seen.lock().push(stream.get_ref().1.server_name().map(str::to_owned));
            let request = read_request(&mut stream).await;
            log.lock().push(request);
            if let Answering::Say(text) = how {
                stream.write_all(text.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
            }
        }
    });
    (Server { port, requests }, names)
}

#[tokio::test]
async fn an_https_probe_accepts_any_certificate() {
    let (server, names) = tls_server(vec![ok("one"), ok("two")]).await;
    let plain = Get { https: true, ..request(server.port) };
    assert_eq!(get(&plain, LONG).await.unwrap().body, b"one");
    let named = Get { host: "localhost".to_owned(), ..plain };
    assert_eq!(get(&named, LONG).await.unwrap().body, b"two");
    assert_eq!(*names.lock(), [None, Some("localhost".to_owned())], "a name is sent along, an address is not");
    assert!(server.requests.lock()[0].starts_with("GET /healthz?x=1 HTTP/1.1\r\n"));
}

/// A key on P-521, which the library of this test has none of: it says what it signs with, and signs nothing.
#[derive(Debug)]
struct P521;

impl rustls::sign::SigningKey for P521 {
    fn choose_scheme(&self, offered: &[rustls::SignatureScheme]) -> Option<Box<dyn rustls::sign::Signer>> {
        let signer: Box<dyn rustls::sign::Signer> = Box::new(P521);
        offered.contains(&signer.scheme()).then_some(signer)
    }

    fn algorithm(&self) -> rustls::SignatureAlgorithm {
        rustls::SignatureAlgorithm::ECDSA
    }
}

impl rustls::sign::Signer for P521 {
    fn sign(&self, _: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        Ok(vec![0x30, 0])
    }

    fn scheme(&self) -> rustls::SignatureScheme {
        rustls::SignatureScheme::ECDSA_NISTP521_SHA512
    }
}

#[tokio::test]
async fn an_https_probe_of_a_server_with_a_key_on_p_521() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let certificate = rcgen::generate_simple_self_signed(["whoever".to_owned()]).unwrap().cert.der().clone();
        let key = rustls::sign::CertifiedKey::new(vec![certificate], Arc::new(P521));
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)));
        let (server, _) = tls_server_of(config, vec![ok("one")]).await;
        let answer = get(&Get { https: true, ..request(server.port) }, LONG).await.unwrap();
        assert_eq!(answer.body, b"one", "{version:?}");
    }
}

#[tokio::test]
async fn tls_to_servers_without_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for words in ["HTTP/1.0 400 Bad Request\r\n\r\n", "SSH-2.0-x\r\n", ""] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 2048]).await;
            stream.write_all(words.as_bytes()).await.unwrap();
        }
    });
    let request = Get { https: true, ..request(port) };
    let at = format!("Get \"https://127.0.0.1:{port}/healthz?x=1\": ");
    let words = format!("{at}http: server gave HTTP response to HTTPS client");
    assert_eq!(get(&request, LONG).await.unwrap_err(), GetError { kind: GetErrorKind::PlainAnswer, text: words });
    let words = format!("{at}tls: first record does not look like a TLS handshake");
    assert_eq!(get(&request, LONG).await.unwrap_err(), GetError { kind: GetErrorKind::Other, text: words });
    assert_eq!(get(&request, LONG).await.unwrap_err().text, format!("{at}EOF"));
}
