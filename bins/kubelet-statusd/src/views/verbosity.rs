//! `/debug/flags/v`: how much all four processes log, from now on (upstream `apiserver/pkg/server/routes/flags.go` and
//! `component-base/logs` GlogSetter). Who starts again logs as the configuration says.

use std::time::Duration;

use bulkhead_daemon::logging::VERBOSITY_MAX;
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::common::SetVerbosityRequest;
use bulkhead_ipc::common::logging_client::LoggingClient;
use bulkhead_ipc::context::CallContext;
use bulkhead_types::Process;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;

use crate::peers::Peers;
use crate::server::answer::{self, Answer};

/// A number has ten digits at most.
const BODY_MAX: usize = 256;
const DEADLINE: Duration = Duration::from_secs(1);

/// Answers one request.
pub async fn serve(peers: &Peers, request: Request<Incoming>) -> Answer {
    if request.method() != Method::PUT {
        return plain(StatusCode::NOT_ACCEPTABLE, "unsupported http method");
    }
    let body = match Limited::new(request.into_body(), BODY_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return plain(StatusCode::BAD_REQUEST, &format!("error reading request body: {error}")),
    };
    let said = String::from_utf8_lossy(&body);
    match parse(&said) {
        Ok(verbosity) => {
            set(peers, verbosity).await;
            plain(StatusCode::OK, &format!("successfully set klog.logging.verbosity to {said}"))
        }
        Err(why) => plain(StatusCode::BAD_REQUEST, &why),
    }
}

fn plain(status: StatusCode, text: &str) -> Answer {
    let mut answer = answer::typed(status, "text/plain", format!("{text}\n"));
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// Go's ParseUint(text, 10, 32), then ParseInt: the errors are theirs.
fn parse(text: &str) -> Result<u32, String> {
    let failed = |function: &str, why: &str| format!("strconv.{function}: parsing {text:?}: {why}");
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(failed("ParseUint", "invalid syntax"));
    }
    let number: u32 = text.parse().map_err(|_| failed("ParseUint", "value out of range"))?;
    match i32::try_from(number) {
        Ok(_) => Ok(number),
        Err(_) => {
            Err(format!("failed set klog.logging.verbosity {text}: {}", failed("ParseInt", "value out of range")))
        }
    }
}

/// A process that is away starts again with what is configured: it is not waited for.
async fn set(peers: &Peers, verbosity: u32) {
    // Upstream takes any number; from 10 on they all mean the same, and no process is asked for more.
    let verbosity = verbosity.min(VERBOSITY_MAX);
    match bulkhead_daemon::logging::set_verbosity(verbosity) {
        Ok(_) => tracing::info!(verbosity, "log verbosity is changed"),
        Err(error) => tracing::warn!("failed to change log verbosity: {error}"),
    }
    let tell = async |process: Process| {
        let Some(link) = peers.link(process) else { return };
        let mut client = LoggingClient::new(link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let call = client.set_verbosity(CallContext::new().request(SetVerbosityRequest { verbosity }, DEADLINE));
        match tokio::time::timeout(DEADLINE, call).await {
            Ok(Ok(_)) => {}
            Ok(Err(status)) => {
                tracing::warn!(process = process.name(), "failed to change log verbosity: {}", status.message())
            }
            Err(_) => tracing::warn!(process = process.name(), "failed to change log verbosity: no answer"),
        }
    };
    tokio::join!(tell(Process::Syncd), tell(Process::Volnetd), tell(Process::Evictiond));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_verbosity() {
        for (text, expected) in [
            ("4", Ok(4)),
            ("0", Ok(0)),
            ("2147483647", Ok(2_147_483_647)),
            ("", Err("strconv.ParseUint: parsing \"\": invalid syntax")),
            ("-1", Err("strconv.ParseUint: parsing \"-1\": invalid syntax")),
            ("4\n", Err("strconv.ParseUint: parsing \"4\\n\": invalid syntax")),
            ("four", Err("strconv.ParseUint: parsing \"four\": invalid syntax")),
            ("99999999999", Err("strconv.ParseUint: parsing \"99999999999\": value out of range")),
            (
                "3000000000",
                Err(
                    "failed set klog.logging.verbosity 3000000000: strconv.ParseInt: parsing \"3000000000\": value out of range",
                ),
            ),
        ] {
            assert_eq!(parse(text), expected.map_err(str::to_owned), "{text:?}");
        }
    }
}
