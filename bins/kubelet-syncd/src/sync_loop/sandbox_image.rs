//! The image that containerd made its sandboxes of: their series in /metrics/cadvisor have it as upstream's do (cAdvisor
//! `container/containerd/handler.go`), whose handlers of other runtimes know none. Who shows them is `kubelet-evictiond`.

use std::collections::BTreeMap;

use bulkhead_cri::{CriClient, CriError, v1};
use tokio::sync::watch;

use super::runtime_health::RuntimeHealth;
use super::seldom::Question;

/// Longer than any reference of an image.
const NAME_BYTES_MAX: usize = 1024;

/// From the verbose part of CRI's PodSandboxStatus: its configuration would be no help, as containerd 2 does not tell it. Pure.
fn image(info: &BTreeMap<String, String>) -> Option<String> {
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    let name = info.get("image")?.as_str()?;
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX).then(|| name.to_owned())
}

/// Asked of the runtime, of its newest sandbox.
#[derive(Debug)]
pub struct SandboxImage {
    pub client: CriClient,
    pub health: watch::Receiver<RuntimeHealth>,
    pub version: watch::Receiver<Option<v1::VersionResponse>>,
}

impl Question for SandboxImage {
    const WHAT: &'static str = "image of sandboxes";

    async fn is_ready(&mut self) -> bool {
        let is_containerd = |version: &Option<v1::VersionResponse>| {
            version.as_ref().is_some_and(|version| version.runtime_name == "containerd")
        };
        self.version.wait_for(is_containerd).await.is_ok() && self.health.wait_for(|health| health.ready).await.is_ok()
    }

    async fn ask(&self) -> Result<Option<String>, CriError> {
        let sandboxes = self.client.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await?.items;
        let Some(newest) = sandboxes.into_iter().max_by_key(|sandbox| sandbox.created_at) else { return Ok(None) };
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: newest.id, verbose: true };
        Ok(image(&self.client.pod_sandbox_status(request).await?.info))
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
