//! Doing what one handler asks for. The texts of failures are upstream's; a failed postStart shows them in the
//! container's status (upstream `pkg/kubelet/lifecycle/handlers.go`).

use std::time::Duration;

use bulkhead_cri::OUTPUT_BYTES_MAX;
use k8s_openapi::api::core::v1::{ExecAction, LifecycleHandler, SleepAction};

use super::metrics::Sleeping;
use super::{Hook, http};
use kubelet_edges::runtime_service::RuntimeService;
use kubelet_model::events::EventSink;
use kubelet_model::validation::field::quote;

/// A hook that did not succeed; the text is upstream's, for the status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HookFailed(pub String);

/// Runs the hook to its end; there is no limit here. Dropping the future ends a command in the container. `elapsed`: for
/// how long it has been running already, when another life of this process began it; a sleep is shorter by that.
///
/// # Errors
/// What failed, as upstream words it.
pub async fn run(
    api: &impl RuntimeService,
    events: &dyn EventSink,
    hook: &Hook,
    elapsed: Duration,
) -> Result<(), HookFailed> {
    match &hook.handler {
        LifecycleHandler { exec: Some(exec), .. } => command(api, hook, exec).await,
        LifecycleHandler { http_get: Some(get), .. } => http::request(events, hook, get).await.map_err(|error| {
            let path = get.path.as_deref().unwrap_or_default();
            let (container, pod) = (quote(&hook.container), quote(&hook.pod_text()));
            HookFailed(format!(
                "HTTP lifecycle hook ({path}) for Container {container} in Pod {pod} failed - error: {error}"
            ))
        }),
        LifecycleHandler { sleep: Some(sleep), .. } => {
            let mut sleeping = Sleeping::default();
            tokio::time::sleep(length(sleep).saturating_sub(elapsed)).await;
            sleeping.is_over();
            Ok(())
        }
        handler => Err(HookFailed(format!("Cannot run handler: invalid handler: {}", shown(handler)))),
    }
}

/// Negative is none, as for Go's timer.
fn length(sleep: &SleepAction) -> Duration {
    Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))
}

async fn command(api: &impl RuntimeService, hook: &Hook, exec: &ExecAction) -> Result<(), HookFailed> {
    let words = exec.command.as_deref().unwrap_or_default();
    let (error, output) = match api.exec_sync(&hook.id, words).await {
        Ok(done) if done.exit_code == 0 => return Ok(()),
        Ok(done) => {
            let stderr = cut(&done.stderr);
            let error = format!("command '{}' exited with {}: {stderr}", words.join(" "), done.exit_code);
            (error, [done.stdout, done.stderr].concat())
        }
        Err(error) => (error.to_string(), Vec::new()),
    };
    let output = cut(&output);
    Err(HookFailed(format!(
        "Exec lifecycle hook ([{}]) for Container {} in Pod {} failed - error: {error}, message: {}",
        words.join(" "),
        quote(&hook.container),
        quote(&hook.pod_text()),
        quote(&output)
    )))
}

fn cut(output: &[u8]) -> String {
    String::from_utf8_lossy(&output[..output.len().min(OUTPUT_BYTES_MAX)]).into_owned()
}

/// Go's `%v` of a handler without anything that can be run.
fn shown(handler: &LifecycleHandler) -> String {
    let tcp = handler.tcp_socket.as_ref().map_or("nil".to_owned(), |tcp| {
        format!("&TCPSocketAction{{Host:{},}}", tcp.host.as_deref().unwrap_or_default())
    });
    format!("&LifecycleHandler{{Exec:nil,HTTPGet:nil,TCPSocket:{tcp},Sleep:nil,}}")
}
