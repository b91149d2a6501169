//! The image that containerd made its sandboxes of: their series in /metrics/cadvisor have it as upstream's do (cAdvisor
//! `container/containerd/handler.go`), whose handlers of other runtimes know none. Who shows them is `kubelet-evictiond`.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_cri::{CriClient, CriError, v1};
use tokio::sync::watch;

use super::runtime_health::RuntimeHealth;

/// Pause after an answer, and while there is none.
const PAUSE: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_secs(10);
/// Longer than any reference of an image.
const NAME_BYTES_MAX: usize = 1024;

/// From the verbose part of CRI's PodSandboxStatus: its configuration would be no help, as containerd 2 does not tell it. Pure.
fn image(info: &BTreeMap<String, String>) -> Option<String> {
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    let name = info.get("image")?.as_str()?;
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX).then(|| name.to_owned())
}

/// Of the newest sandbox.
async fn ask(client: &CriClient) -> Result<Option<String>, CriError> {
    let sandboxes = client.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await?.items;
    let Some(newest) = sandboxes.into_iter().max_by_key(|sandbox| sandbox.created_at) else { return Ok(None) };
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: newest.id, verbose: true };
    Ok(image(&client.pod_sandbox_status(request).await?.info))
}

/// Asks for ever.
pub async fn follow(
    client: CriClient,
    mut health: watch::Receiver<RuntimeHealth>,
    mut version: watch::Receiver<Option<v1::VersionResponse>>,
    answer: watch::Sender<String>,
) {
    let is_containerd = |version: &Option<v1::VersionResponse>| {
        version.as_ref().is_some_and(|version| version.runtime_name == "containerd")
    };
    loop {
        if version.wait_for(is_containerd).await.is_err() || health.wait_for(|health| health.ready).await.is_err() {
            return;
        }
        let pause = match ask(&client).await {
            Ok(Some(name)) => {
                answer.send_if_modified(|known| {
                    let changed = *known != name;
                    *known = name;
                    changed
                });
                PAUSE
            }
            Ok(None) => RETRY,
            Err(error) => {
                tracing::debug!(%error, "image of sandboxes is not known yet");
                RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sandbox_was_made_of() {
        let of = |info: &str| image(&[("info".to_owned(), info.to_owned())].into());
        assert_eq!(of(r#"{"pid":7,"image":"bulkhead.test/pause:1"}"#).as_deref(), Some("bulkhead.test/pause:1"));
        let long = format!(r#"{{"image":"{}"}}"#, "x".repeat(NAME_BYTES_MAX + 1));
        for none in ["{}", "no json", r#"{"image":7}"#, r#"{"image":""}"#, &long] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(image(&BTreeMap::new()), None);
    }
}
