//! Authentication.

use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bulkhead_apiclient::CredentialFile;
use bulkhead_testkit::apiserver::StaticToken;
use bulkhead_testkit::apiserver::faults::{Action, Rule};
use bulkhead_testkit::apiserver::identity::{MASTERS, User};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_types::GoDuration;
use kubelet_statusd::server::tls::pair::self_signed;
use rcgen::{DnType, ExtendedKeyUsagePurpose};

use crate::https::world::{Ca, Plan, eventually, said, start, token};

const REFUSED: (u16, &str) = (401, "Unauthorized");

fn refused(answer: &(u16, String)) -> bool {
    (answer.0, answer.1.as_str()) == REFUSED
}

#[test]
fn certificates() {
    let world = start(Plan::default(), |_| {});
    let good = world.ca.client("admin");
    assert_eq!(world.get(&good, "/nothing").0, 404);
    let over_http2 = world.with(&good).over_http2().get("/healthz/ping").unwrap();
    assert_eq!(said(&over_http2), (200, "ok".to_owned()));
    let day = Duration::from_secs(86400);
    let now = SystemTime::now();
    let ca = &world.ca;
    let bad = [
        ("none", Credential::Nothing),
        ("a token that nobody looks at", token("t")),
        ("expired", ca.client_with("admin", |params| params.not_after = (now - Duration::from_secs(60)).into())),
        ("not yet", ca.client_with("admin", |params| params.not_before = (now + day).into())),
        ("another authority of the same name", Ca::new().client("admin")),
        (
            "for servers",
            ca.client_with("admin", |params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            }),
        ),
        (
            "no name",
            ca.client_with("admin", |params| {
                params.distinguished_name = rcgen::DistinguishedName::new();
                params.distinguished_name.push(DnType::OrganizationName, MASTERS);
            }),
        ),
    ];
    for (what, credential) in bad {
        for path in ["/pods", "/healthz", "/nothing", "/exec/n/p/c"] {
            let answer = world.with(&credential).get(path).unwrap();
            assert!(refused(&said(&answer)), "{what} {path}: {answer:?}");
            assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8");
        }
        assert!(refused(&said(&world.with(&credential).over_http2().get("/pods").unwrap())), "{what}");
    }
    assert!(world.metric("apiserver_client_certificate_expiration_seconds", &[]) >= 22.0);
    assert!(world.metric("kubelet_http_requests_total", &[("path", "pods")]) >= 14.0, "refusals are requests, too");
}

#[test]
fn authorities_change_while_it_runs() {
    let world = start(Plan::default(), |_| {});
    let (first, next) = (world.ca.client("admin"), Ca::new());
    let second = next.client("admin");
    assert_eq!((world.get(&first, "/x").0, world.get(&second, "/x").0), (404, 401));
    world.files.put(CredentialFile::ClientCa, format!("{}{}", world.ca.pem, next.pem));
    eventually("both are believed", || (world.get(&first, "/x").0, world.get(&second, "/x").0) == (404, 404));
    world.files.put(CredentialFile::ClientCa, &next.pem);
    eventually("only the new one is", || (world.get(&first, "/x").0, world.get(&second, "/x").0) == (401, 404));
    // What is broken changes nothing; what was put with it, and is read after it, shows that it has been read.
    let shown = || world.with(&Credential::Nothing).certificates().unwrap()[0].clone();
    let (before, pair) = (shown(), self_signed("renewed", &[]).unwrap());
    world.files.put_all([
        (CredentialFile::ClientCa, "nonsense".to_owned()),
        (CredentialFile::ServingCertificate, pair.certificates),
        (CredentialFile::ServingKey, pair.key),
    ]);
    eventually("the other pair is shown", || shown() != before);
    assert_eq!((world.get(&first, "/x").0, world.get(&second, "/x").0), (401, 404), "no authority can be read");
    let before = shown();
    world.files.put_all([
        (CredentialFile::ServingKey, "nonsense".to_owned()),
        (CredentialFile::ClientCa, format!("{}{}", world.ca.pem, next.pem)),
    ]);
    eventually("both are believed again", || (world.get(&first, "/x").0, world.get(&second, "/x").0) == (404, 404));
    assert_eq!(shown(), before, "the key cannot be read");
}

#[test]
fn anonymous_is_for_those_who_show_nothing() {
    let world = start(Plan::default(), |config| config.kubelet.authentication.anonymous.enabled = Some(true));
    assert_eq!(world.get(&Credential::Nothing, "/x").0, 404);
    assert_eq!(world.get(&token("looked at by nobody"), "/x").0, 404);
    let expired =
        world.ca.client_with("a", |params| params.not_after = (SystemTime::now() - Duration::from_secs(9)).into());
    assert!(refused(&world.get(&expired, "/x")), "who shows what is wrong is not nobody");
}

fn with_tokens() -> Plan {
    let mut plan = Plan { webhook: true, ..Plan::default() };
    plan.api.tokens = vec![StaticToken { token: "good".into(), user: User::new("admin", &[MASTERS]) }];
    plan
}

#[test]
fn tokens() {
    let world = start(with_tokens(), |_| {});
    let reviews = || {
        let records = world.api.as_ref().unwrap().log().after(0);
        records.iter().filter(|record| record.what().contains("tokenreviews")).count()
    };
    for _ in 0..3 {
        assert_eq!(world.get(&token("good"), "/x").0, 404);
        assert!(refused(&world.get(&token("bad"), "/x")));
    }
    // The stand-in, as the real server, says why it refuses: that is an error, and errors are asked about again.
    assert_eq!(reviews(), 4, "one for the good token, one each for the bad");
    let cache = |status: &str| world.metric("authentication_token_cache_request_total", &[("status", status)]);
    assert_eq!((cache("hit"), cache("miss")), (2.0, 4.0));
    assert_eq!(world.metric("apiserver_delegated_authn_request_total", &[("code", "201")]), 4.0);
    assert_eq!(world.get(&world.ca.client("nobody-s"), "/x").0, 403, "a certificate is still a certificate");

    // A good certificate wins; a bad one does not keep a good token from counting.
    let expired =
        world.ca.client_with("a", |params| params.not_after = (SystemTime::now() - Duration::from_secs(9)).into());
    let bearer = |credential: &Credential, value: &str| {
        said(&world.with(credential).request("GET", "/x", &[("authorization", value)], b"").unwrap()).0
    };
    assert_eq!(bearer(&expired, "Bearer good"), 404);
    assert_eq!(bearer(&expired, "Bearer bad"), 401);
    assert_eq!(bearer(&Credential::Nothing, "bearer good more"), 404);
    for odd in ["Bearer", "Bearer  good", "Basic good", "good"] {
        assert_eq!(bearer(&Credential::Nothing, odd), 401, "{odd}");
    }

    let protocol = |value: &str| {
        let headers = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-protocol", value)];
        said(&world.with(&Credential::Nothing).request("GET", "/x", &headers, b"").unwrap()).0
    };
    let encoded = format!("base64url.bearer.authorization.k8s.io.{}", URL_SAFE_NO_PAD.encode("good"));
    assert_eq!(protocol(&format!("{encoded}, v4.channel.k8s.io")), 404);
    assert_eq!(protocol(&encoded), 401, "nothing would be left to agree on");
    assert_eq!(protocol(&format!("{encoded}x!, v4.channel.k8s.io")), 401);
}

#[test]
fn without_the_api_server_no_new_token_is_accepted_and_cached_ones_are() {
    let world = start(with_tokens(), |_| {});
    assert_eq!(world.get(&token("good"), "/x").0, 404);
    world.api.as_ref().unwrap().stop();
    assert_eq!(world.get(&token("good"), "/x").0, 404, "both answers are remembered");
    assert!(refused(&world.get(&token("new"), "/x")));
    let asked = world.metric("apiserver_delegated_authn_request_total", &[("code", "<error>")]);
    assert_eq!(asked, 1.0, "who refuses a connection is not asked again");
    let (status, body) = world.get(&token("good"), "/pods");
    assert_eq!(status, 500);
    assert_eq!(body, "Authorization error (user=admin, verb=get, resource=nodes, subresource=pods)");
}

#[test]
fn one_question_for_many_requests_with_one_token() {
    let world = start(with_tokens(), |_| {});
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(world.get(&token("good"), "/x").0, 404));
        }
    });
    assert_eq!(world.metric("authentication_token_cache_fetch_total", &[("status", "ok")]), 1.0);
}

#[test]
fn without_a_gate_no_request_is_accepted() {
    let world = start(Plan { gate: false, ..Plan::default() }, |_| {});
    for who in [world.ca.client("admin"), Credential::Nothing] {
        for path in ["/pods", "/healthz/ping", "/metrics"] {
            assert!(refused(&world.get(&who, path)), "{path}");
        }
    }
}

/// One connection's worth of requests over HTTP/2, each with a token of its own that nobody knows.
fn strange_tokens(round: usize) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for stream in 0_u8..32 {
        let token = format!("Bearer stranger-{round:06}-{stream:02}");
        // GET https://n/, and `authorization` by its number.
        let mut block = vec![0x82, 0x87, 0x84, 0x41, 1, b'n', 0x0f, 8, u8::try_from(token.len()).unwrap()];
        block.extend(token.bytes());
        bytes.extend([0, 0, u8::try_from(block.len()).unwrap(), 1, 5, 0, 0, 0, 2 * stream + 1]);
        bytes.extend(block);
    }
    bytes
}

/// Ends a flood, also when a check has failed: a scope waits for its threads, and the failure would not be told.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_flood_of_tokens_keeps_no_authenticated_user_out() {
    let mut plan = with_tokens();
    plan.api.tokens.push(StaticToken { token: "unheard".into(), user: User::new("admin", &[MASTERS]) });
    let world = start(plan, |config| {
        // Each use is asked about.
        config.kubelet.authentication.webhook.cache_ttl = GoDuration::from_millis(1);
    });
    assert_eq!(world.get(&token("good"), "/x").0, 404);
    let faults = world.api.as_ref().unwrap().faults();
    let slow = faults.add(Rule::new(Action::Delay(Duration::from_secs(1))).resource("tokenreviews"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stops = Stops(&stop);
        let flooding = scope.spawn(|| {
            let mut held = VecDeque::new();
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let mut connection = world.with(&Credential::Nothing).over_http2().connect().unwrap();
                connection.write_all(&strange_tokens(round)).unwrap();
                held.push_back(connection);
                if held.len() > 40 {
                    held.pop_front();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let asked = || world.metric("authentication_token_cache_active_fetch_count", &[("status", "in_flight")]);
        eventually("the API server is asked about many", || asked() >= 20.0);
        for _ in 0..4 {
            assert_eq!(world.get(&token("good"), "/x").0, 404, "somebody known");
        }
        // Now and then a slot is free between two of the flood's.
        eventually("a stranger is told to come again", || {
            let answer = world.with(&token("stranger")).get("/x").unwrap();
            if answer.status == 401 {
                return false;
            }
            assert_eq!(said(&answer), (429, "Too many requests, please try again later.\n".to_owned()));
            assert_eq!(answer.headers["retry-after"], "1");
            true
        });
        drop(stops);
        flooding.join().unwrap();
        faults.remove(slow);
    });
    eventually("and is let in then", || world.get(&token("unheard"), "/x").0 == 404);
}
