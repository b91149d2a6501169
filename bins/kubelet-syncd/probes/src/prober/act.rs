//! One probe as it is made: what is asked of whom, and what the answer comes to (upstream `pkg/probe/*` and
//! `pkg/kubelet/prober/prober.go`). The texts go into events.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::version::MINOR;
use bulkhead_cri::{CriClient, CriError, OUTPUT_BYTES_MAX, v1};
use bulkhead_types::{ContainerId, GoDuration, PodUid};

use tokio::time::Instant;

use super::grpc;
use super::leftover::Leftovers;
use super::spec::{Action, ProbeSpec};
use kubelet_edges::dial;
use kubelet_edges::http_get::{self, Get, GetErrorKind};

/// Tries of one probe, as long as they end in an error of the prober.
const TRIES: usize = 3;
/// Beyond its own time a command gets so long from the runtime to be ended and told of.
const EXEC_SLACK: Duration = Duration::from_secs(10);
/// How long the runtime may take to say that it is there.
const RUNTIME_ANSWERS: Duration = Duration::from_secs(5);

/// What one probe came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// A success that somebody should look at.
    Warning(String),
    Failure(String),
    /// It could not be found out. `state`: what upstream calls the result then.
    Error {
        state: &'static str,
        text: String,
    },
}

impl Outcome {
    fn unknown(text: impl Into<String>) -> Self {
        Outcome::Error { state: "unknown", text: text.into() }
    }
}

/// A probe that is to be made now.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub pod: PodUid,
    pub container: ContainerId,
    pub spec: Arc<ProbeSpec>,
    /// Where it goes if its probe names no host: the pod's address, or this machine's for a pod of the machine's network without one.
    pub ip: String,
}

/// How probes call themselves.
pub fn user_agent() -> String {
    format!("kube-probe/1.{MINOR}")
}

/// Makes it.
pub async fn probe(cri: &CriClient, leftovers: &Leftovers, attempt: &Attempt) -> Outcome {
    let mut outcome = once(cri, leftovers, attempt).await;
    for _ in 1..TRIES {
        if !matches!(outcome, Outcome::Error { .. }) {
            break;
        }
        outcome = once(cri, leftovers, attempt).await;
    }
    outcome
}

async fn once(cri: &CriClient, leftovers: &Leftovers, attempt: &Attempt) -> Outcome {
    let timeout = attempt.spec.timeout;
    let host = |host: &Option<String>| host.clone().unwrap_or_else(|| attempt.ip.clone());
    let asked = match &attempt.spec.action {
        Action::Exec { command } => match command.expanded() {
            Ok(command) => return exec(cri, leftovers, attempt, &command).await,
            Err(text) => return Outcome::unknown(text),
        },
        Action::Http { https, host: of, port, path, headers } => port.as_ref().map(|port| {
            Request::Http(Get {
                https: *https,
                host: host(of),
                port: *port,
                path: path.clone(),
                headers: headers.clone(),
                user_agent: user_agent(),
                asker: attempt.pod.to_string(),
            })
        }),
        Action::Tcp { host: of, port } => port.as_ref().map(|port| Request::Tcp(host(of), *port)),
        Action::Grpc { port, service } => port.as_ref().map(|port| Request::Grpc(*port, service)),
        Action::None => return Outcome::unknown(format!("missing probe handler for {}", attempt.container)),
    };
    match asked {
        Ok(Request::Http(get)) => http_outcome(http_get::get(&get, timeout).await),
        Ok(Request::Tcp(host, port)) => match dial::reach_host(&host, port, attempt.pod.as_str(), timeout).await {
            Ok(()) => Outcome::Success,
            Err(text) => Outcome::Failure(text),
        },
        Ok(Request::Grpc(port, service)) => match grpc::check(&attempt.ip, port, service, timeout).await {
            Ok(()) => Outcome::Success,
            Err(text) => Outcome::Failure(text),
        },
        Err(text) => Outcome::unknown(text.clone()),
    }
}

enum Request<'a> {
    Http(Get),
    Tcp(String, u16),
    Grpc(u16, &'a str),
}

fn http_outcome(result: Result<http_get::Answer, http_get::GetError>) -> Outcome {
    match result {
        Ok(answer) => match answer.status {
            200..300 => Outcome::Success,
            300..400 => {
                let body = String::from_utf8_lossy(&answer.body);
                Outcome::Warning(format!("Probe terminated redirects, Response body: {body}"))
            }
            status => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
        },
        Err(error) if error.kind == GetErrorKind::Body => Outcome::Error { state: "failure", text: error.text },
        Err(error) => Outcome::Failure(error.text),
    }
}

async fn exec(cri: &CriClient, leftovers: &Leftovers, attempt: &Attempt, command: &[String]) -> Outcome {
    let Attempt { pod, container, .. } = attempt;
    let timeout = attempt.spec.timeout;
    let request = v1::ExecSyncRequest {
        container_id: container.to_string(),
        cmd: command.to_vec(),
        timeout: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
    };
    let give_up = Instant::now() + timeout.saturating_add(EXEC_SLACK);
    let mut call = pin!(cri.exec_sync(request));
    let answer = match leftovers.follow(cri, (pod, container), timeout, call.as_mut()).await {
        Some(answer) => Some(answer),
        // A command whose children hold its output open is over all the same.
        None => tokio::time::timeout_at(give_up, call).await.ok(),
    };
    match answer {
        Some(result) => exec_outcome(command, timeout, result),
        // A runtime that stands still says nothing of its containers, and none is to be killed for it. Upstream gives it two
        // minutes more before it counts this as a failure.
        None if !answers(cri).await => Outcome::unknown("the container runtime does not answer"),
        None => Outcome::Failure(timed_out(command, timeout)),
    }
}

async fn answers(cri: &CriClient) -> bool {
    let version = tokio::time::timeout(RUNTIME_ANSWERS, cri.version(v1::VersionRequest::default()));
    version.await.is_ok_and(|answer| answer.is_ok())
}

fn timed_out(command: &[String], timeout: Duration) -> String {
    let seconds = GoDuration::from_secs(i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX));
    format!("command timed out: {:?} timed out after {seconds}", command.join(" "))
}

fn exec_outcome(command: &[String], timeout: Duration, result: Result<v1::ExecSyncResponse, CriError>) -> Outcome {
    match result {
        Ok(reply) if reply.exit_code == 0 => Outcome::Success,
        Ok(reply) => {
            let output: Vec<u8> = reply.stdout.iter().chain(&reply.stderr).take(OUTPUT_BYTES_MAX).copied().collect();
            Outcome::Failure(String::from_utf8_lossy(&output).into_owned())
        }
        Err(error) if error.is_deadline_exceeded() => Outcome::Failure(timed_out(command, timeout)),
        Err(error) => Outcome::unknown(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_cri::Code;

    #[test]
    fn what_commands_come_to() {
        let command = ["sh".to_owned(), "-c".to_owned(), "sleep 9".to_owned()];
        let of = |result| exec_outcome(&command, Duration::from_secs(90), result);
        let reply = |exit_code, stdout: &str, stderr: &str| {
            Ok(v1::ExecSyncResponse { exit_code, stdout: stdout.into(), stderr: stderr.into() })
        };
        assert_eq!(of(reply(0, "x", "")), Outcome::Success);
        assert_eq!(of(reply(1, "out", "err")), Outcome::Failure("outerr".to_owned()));
        let long = of(reply(1, &"x".repeat(20_000), ""));
        assert!(matches!(long, Outcome::Failure(text) if text.len() == OUTPUT_BYTES_MAX));
        let failed = |code| Err(CriError { code, method: "exec_sync", message: "no such task".to_owned() });
        let expected = "command timed out: \"sh -c sleep 9\" timed out after 1m30s";
        assert_eq!(of(failed(Code::DeadlineExceeded)), Outcome::Failure(expected.to_owned()));
        let text = "rpc error: code = NotFound desc = no such task".to_owned();
        assert_eq!(of(failed(Code::NotFound)), Outcome::Error { state: "unknown", text });
    }

    #[test]
    fn what_answers_come_to() {
        let answer = |status| Ok(http_get::Answer { status, body: b"b".to_vec(), redirect_refused: false });
        assert_eq!(http_outcome(answer(200)), Outcome::Success);
        let expected = "Probe terminated redirects, Response body: b".to_owned();
        assert_eq!(http_outcome(answer(302)), Outcome::Warning(expected));
        for status in [199, 400, 500] {
            let expected = format!("HTTP probe failed with statuscode: {status}");
            assert_eq!(http_outcome(answer(status)), Outcome::Failure(expected));
        }
        let failed = |kind| Err(http_get::GetError { kind, text: "t".to_owned() });
        assert_eq!(http_outcome(failed(GetErrorKind::Body)), Outcome::Error { state: "failure", text: "t".to_owned() });
        assert_eq!(http_outcome(failed(GetErrorKind::TimedOut)), Outcome::Failure("t".to_owned()));
    }
}
