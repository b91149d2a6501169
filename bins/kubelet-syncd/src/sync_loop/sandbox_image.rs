//! The image that containerd made its sandboxes of: their series in /metrics/cadvisor have it as upstream's do (cAdvisor
//! `container/containerd/handler.go`), whose handlers of other runtimes know none. Who shows them is `kubelet-evictiond`.

use std::collections::BTreeMap;

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_types::SandboxId;
use tokio::sync::{mpsc, watch};

use super::runtime_health::RuntimeHealth;
use super::runtime_settings::Question;
use kubelet_pleg::{Pleg, PodLifecycleEvent};

/// Longer than any reference of an image.
const NAME_BYTES_MAX: usize = 1024;

/// From the verbose part of CRI's PodSandboxStatus: its configuration would be no help, as containerd 2 does not tell it. Pure.
fn image(info: &BTreeMap<String, String>) -> Option<String> {
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    let name = info.get("image")?.as_str()?;
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX).then(|| name.to_owned())
}

/// The sandboxes of a runtime.
pub trait Sandboxes: Send + Sync {
    fn newest(&self) -> Option<SandboxId>;

    /// Of each sandbox that comes from now on.
    fn events(&self) -> mpsc::Receiver<PodLifecycleEvent>;

    /// The verbose part of its status.
    fn info(&self, id: SandboxId) -> impl Future<Output = Result<BTreeMap<String, String>, CriError>> + Send;
}

/// Those that PLEG knows.
#[derive(Debug)]
pub struct Known {
    pub client: CriClient,
    pub pleg: Pleg,
}

impl Sandboxes for Known {
    fn newest(&self) -> Option<SandboxId> {
        let pods = self.pleg.cache().snapshot();
        let all = pods.iter().flat_map(|(_, pod)| &pod.sandboxes);
        all.max_by_key(|sandbox| sandbox.created_at).map(|sandbox| sandbox.id.clone())
    }

    fn events(&self) -> mpsc::Receiver<PodLifecycleEvent> {
        self.pleg.subscribe()
    }

    async fn info(&self, id: SandboxId) -> Result<BTreeMap<String, String>, CriError> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_string(), verbose: true };
        Ok(self.client.pod_sandbox_status(request).await?.info)
    }
}

/// Asked of the runtime, of its newest sandbox, as soon as it has one.
#[derive(Debug)]
pub struct SandboxImage<S> {
    pub sandboxes: S,
    pub health: watch::Receiver<RuntimeHealth>,
    pub version: watch::Receiver<Option<v1::VersionResponse>>,
}

impl<S: Sandboxes> Question for SandboxImage<S> {
    const WHAT: &'static str = "image of sandboxes";

    async fn is_ready(&mut self) -> bool {
        let is_containerd = |version: &Option<v1::VersionResponse>| {
            version.as_ref().is_some_and(|version| version.runtime_name == "containerd")
        };
        let answers = self.version.wait_for(is_containerd).await.is_ok()
            && self.health.wait_for(|health| health.ready).await.is_ok();
        if !answers {
            return false;
        }
        // Not kept over the pauses, in which nobody would read them.
        let mut events = self.sandboxes.events();
        while self.sandboxes.newest().is_none() {
            if events.recv().await.is_none() {
                return false;
            }
        }
        true
    }

    async fn ask(&self) -> Result<Option<String>, CriError> {
        let Some(newest) = self.sandboxes.newest() else { return Ok(None) };
        Ok(image(&self.sandboxes.info(newest).await?))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sync_loop::runtime_settings;
    use bulkhead_types::PodUid;
    use kubelet_pleg::PodLifecycleEventKind;
    use parking_lot::Mutex;
    use tokio::time::Instant;

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

    /// The second of each question, of a runtime whose sandbox was made of nothing that it tells before the third.
    struct Fake<'a> {
        sandbox: &'a Mutex<Option<SandboxId>>,
        told: &'a Mutex<Option<mpsc::Sender<PodLifecycleEvent>>>,
        began: Instant,
        asked: &'a Mutex<Vec<u64>>,
    }

    impl Sandboxes for Fake<'_> {
        fn newest(&self) -> Option<SandboxId> {
            self.sandbox.lock().clone()
        }

        fn events(&self) -> mpsc::Receiver<PodLifecycleEvent> {
            let (sender, receiver) = mpsc::channel(1);
            *self.told.lock() = Some(sender);
            receiver
        }

        async fn info(&self, _: SandboxId) -> Result<BTreeMap<String, String>, CriError> {
            let mut asked = self.asked.lock();
            asked.push(self.began.elapsed().as_secs());
            let info = if asked.len() < 3 { "{}" } else { r#"{"image":"pause:1"}"# };
            Ok([("info".to_owned(), info.to_owned())].into())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_sandbox_is_asked_about_at_once() {
        let (sandbox, told, asked) = (Mutex::default(), Mutex::default(), Mutex::default());
        let began = Instant::now();
        let sandboxes = Fake { sandbox: &sandbox, told: &told, began, asked: &asked };
        let (_health, health) = watch::channel(RuntimeHealth { ready: true, ..RuntimeHealth::default() });
        let version = v1::VersionResponse { runtime_name: "containerd".to_owned(), ..Default::default() };
        let (_version, version) = watch::channel(Some(version));
        let (answer, mut seen) = watch::channel(String::new());
        let runtime = async {
            let event = || PodLifecycleEvent {
                uid: PodUid::parse("u").unwrap(),
                kind: PodLifecycleEventKind::ContainerStarted,
                id: "s".into(),
            };
            tokio::time::sleep(Duration::from_secs(3600)).await;
            let events = told.lock().clone().unwrap();
            // Of a pod whose sandbox has gone again.
            events.send(event()).await.unwrap();
            tokio::time::sleep(Duration::from_secs(3600)).await;
            *sandbox.lock() = Some(SandboxId::parse("s").unwrap());
            events.send(event()).await.unwrap();
            seen.wait_for(|image| image == "pause:1").await.unwrap();
        };
        tokio::select! {
            () = runtime_settings::follow(SandboxImage { sandboxes, health, version }, answer) => panic!("it has ended"),
            () = runtime => {}
        }
        // A long pause comes of answers without an image alone.
        assert_eq!(*asked.lock(), [7200, 7210, 7230]);
    }
}
