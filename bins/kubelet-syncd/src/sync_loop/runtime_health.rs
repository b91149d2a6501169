//! Whether the runtime and its network are ready, what its handlers can do, and who it is: asked until it is, and then slowly.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_cri::{CriClient, v1};
use bulkhead_types::BackOff;
use tokio::sync::watch;
use tokio::time::Instant;

use kubelet_model::node_facts::{HandlerFeatures, SharedFacts};

/// Pause between questions while all is well (upstream: 5 s; nothing here waits for the answer).
const PAUSE: Duration = Duration::from_secs(10);
/// Pause while something is wrong: doubles from the first to the last.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// An answer counts for so long (upstream maxWaitForContainerRuntime).
const VALID: Duration = Duration::from_secs(30);
/// The version is asked for again after so long: a restart of the runtime between two questions is not noticed. Upstream asks for each
/// status of the node (`pkg/kubelet/nodestatus/setters.go`, VersionInfo).
const VERSION_PERIOD: Duration = Duration::from_secs(60);

/// What the runtime said last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeHealth {
    /// It has answered at least once.
    pub known: bool,
    pub ready: bool,
    /// It does not answer any more.
    pub silent: bool,
    /// `<reason>: <message>` while not ready.
    pub reason: String,
    pub network_ready: bool,
    pub network_reason: String,
    /// All handlers, by name; the default one has none.
    pub handlers: Vec<Handler>,
    /// None: the runtime says nothing of its features.
    pub supplemental_groups_policy: Option<bool>,
}

/// A handler of the runtime and what it can do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Handler {
    pub name: String,
    pub recursive_read_only_mounts: bool,
    pub user_namespaces: bool,
}

impl Handler {
    fn of(handler: &v1::RuntimeHandler) -> Handler {
        let features = handler.features.as_ref();
        Handler {
            name: handler.name.clone(),
            recursive_read_only_mounts: features.is_some_and(|f| f.recursive_read_only_mounts),
            user_namespaces: features.is_some_and(|f| f.user_namespaces),
        }
    }
}

impl RuntimeHealth {
    /// The handlers as the builders of requests look them up.
    pub fn handler_features(&self) -> BTreeMap<String, HandlerFeatures> {
        let features = |handler: &Handler| HandlerFeatures {
            recursive_read_only_mounts: handler.recursive_read_only_mounts,
            user_namespaces: handler.user_namespaces,
        };
        self.handlers.iter().map(|handler| (handler.name.clone(), features(handler))).collect()
    }

    /// Reads the conditions as upstream does (`pkg/kubelet/kubelet.go`, updateRuntimeUp). Pure.
    pub fn of(status: &v1::StatusResponse) -> RuntimeHealth {
        let conditions = status.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        let find = |kind: &str| {
            conditions.iter().find(|c| c.r#type == kind).map_or_else(
                || (false, format!("{kind} is not reported by the runtime")),
                |c| {
                    let reason = if c.status {
                        String::new()
                    } else {
                        format!("{kind}=false reason:{} message:{}", c.reason, c.message)
                    };
                    (c.status, reason)
                },
            )
        };
        let (ready, reason) = find("RuntimeReady");
        let (network_ready, network_reason) = find("NetworkReady");
        let mut handlers: Vec<Handler> = status.runtime_handlers.iter().map(Handler::of).collect();
        handlers.sort_by(|a, b| a.name.cmp(&b.name));
        RuntimeHealth {
            known: true,
            silent: false,
            ready,
            reason,
            network_ready,
            network_reason,
            handlers,
            supplemental_groups_policy: status.features.as_ref().map(|f| f.supplemental_groups_policy),
        }
    }
}

/// Keeps the facts of the runtime's handlers as the runtime tells them: another version of it may do more or less.
pub async fn keep_handlers(mut health: watch::Receiver<RuntimeHealth>, facts: SharedFacts) {
    while health.changed().await.is_ok() {
        let features = {
            let health = health.borrow_and_update();
            health.known.then(|| health.handler_features())
        };
        if let Some(features) = features {
            facts.set_handlers(features);
        }
    }
}

/// What the runtime tells, for those who follow it.
#[derive(Debug)]
pub struct Told {
    pub health: watch::Sender<RuntimeHealth>,
    /// When it answered last.
    pub answered: watch::Sender<Option<Instant>>,
    /// Who it is. None: it has not said yet.
    pub version: watch::Sender<Option<v1::VersionResponse>>,
}

/// When the runtime is to be asked for its version: at first, when it answers after a failure, for another one may have been
/// installed, and now and then.
#[derive(Debug, Default)]
struct VersionAge {
    asked: Option<Instant>,
}

impl VersionAge {
    fn is_due(&self, now: Instant) -> bool {
        self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= VERSION_PERIOD)
    }
}

/// Asks for ever.
pub async fn follow(client: CriClient, told: Told) {
    let Told { health, answered, version } = told;
    let mut retry = BackOff::new(RETRY_MIN, RETRY_MAX);
    let (mut age, mut has_failed) = (VersionAge::default(), false);
    loop {
        let pause = match client.status(v1::StatusRequest { verbose: false }).await {
            Ok(status) => {
                let now = RuntimeHealth::of(&status);
                answered.send_replace(Some(Instant::now()));
                let is_well = now.ready && now.network_ready;
                publish(&health, now);
                if age.is_due(Instant::now()) {
                    age.asked = ask_version(&client, &version).await.then(Instant::now);
                }
                if is_well && age.asked.is_some() {
                    retry.reset();
                    PAUSE
                } else {
                    retry.pause()
                }
            }
            Err(error) => {
                age = VersionAge::default();
                if answered.borrow().is_none() && !has_failed {
                    has_failed = true;
                    tracing::warn!(%error, "container runtime does not answer yet, waiting for it");
                }
                // A restart of the runtime takes less: pods need not hear of it.
                if answered.borrow().is_none_or(|at| at.elapsed() > VALID) {
                    let reason = format!("container runtime status check may not have completed yet: {error}");
                    let was = health.borrow().clone();
                    publish(&health, RuntimeHealth { ready: false, silent: true, reason, ..was });
                }
                retry.pause()
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Whether it has said who it is.
async fn ask_version(client: &CriClient, known: &watch::Sender<Option<v1::VersionResponse>>) -> bool {
    let now = match client.version(v1::VersionRequest { version: String::new() }).await {
        Ok(now) => now,
        Err(error) => {
            tracing::debug!(%error, "failed to get the runtime's version");
            return false;
        }
    };
    known.send_if_modified(|known| {
        if known.as_ref() == Some(&now) {
            return false;
        }
        let (name, version, api) = (&now.runtime_name, &now.runtime_version, &now.runtime_api_version);
        tracing::info!(containerRuntime = name, version, apiVersion = api, "Container runtime initialized");
        *known = Some(now);
        true
    });
    true
}

fn publish(health: &watch::Sender<RuntimeHealth>, now: RuntimeHealth) {
    health.send_if_modified(|old| {
        if *old == now {
            return false;
        }
        match now.ready {
            true if !old.ready => tracing::info!("Container runtime is ready"),
            false if old.ready || !old.known => {
                tracing::info!(runtimeReady = now.reason, "Container runtime not ready");
            }
            _ => {}
        }
        match now.network_ready {
            true if !old.network_ready => tracing::info!("Container runtime network is ready"),
            false if old.network_ready || !old.known => {
                tracing::info!(networkReady = now.network_reason, "Container runtime network not ready");
            }
            _ => {}
        }
        *old = now;
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_version_is_asked_for_again_each_minute() {
        let (mut age, began) = (VersionAge::default(), Instant::now());
        assert!(age.is_due(began), "never asked");
        age.asked = Some(began);
        assert!(!age.is_due(began) && !age.is_due(began + VERSION_PERIOD / 2) && age.is_due(began + VERSION_PERIOD));
    }

    #[test]
    fn conditions() {
        let condition = |kind: &str, status| v1::RuntimeCondition {
            r#type: kind.into(),
            status,
            reason: "R".into(),
            message: "m".into(),
        };
        let of = |conditions| {
            let status = Some(v1::RuntimeStatus { conditions });
            RuntimeHealth::of(&v1::StatusResponse { status, ..Default::default() })
        };
        let good = of(vec![condition("RuntimeReady", true), condition("NetworkReady", true)]);
        assert!(good.ready && good.network_ready && good.reason.is_empty());
        let bad = of(vec![condition("RuntimeReady", true), condition("NetworkReady", false)]);
        assert!(bad.ready && !bad.network_ready);
        assert_eq!(bad.network_reason, "NetworkReady=false reason:R message:m");
        assert!(!of(vec![]).ready);
    }

    #[test]
    fn handlers() {
        let handler = |name: &str, user_namespaces| v1::RuntimeHandler {
            name: name.into(),
            features: Some(v1::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces }),
        };
        let status = v1::StatusResponse {
            runtime_handlers: vec![
                handler("runc", true),
                handler("", false),
                v1::RuntimeHandler { name: "gvisor".into(), features: None },
            ],
            features: Some(v1::RuntimeFeatures { supplemental_groups_policy: true, ..Default::default() }),
            ..Default::default()
        };
        let health = RuntimeHealth::of(&status);
        let names: Vec<&str> = health.handlers.iter().map(|h| h.name.as_str()).collect();
        assert_eq!(names, ["", "gvisor", "runc"]);
        let features = health.handler_features();
        assert!(features[""].recursive_read_only_mounts && !features[""].user_namespaces);
        assert_eq!(health.supplemental_groups_policy, Some(true));
        assert_eq!(RuntimeHealth::of(&v1::StatusResponse::default()).supplemental_groups_policy, None);
        assert!(!health.handlers[1].recursive_read_only_mounts && health.handlers[2].user_namespaces);
    }
}
