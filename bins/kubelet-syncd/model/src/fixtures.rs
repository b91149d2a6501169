//! Small values for tests of these modules.

// For tests alone, which end where a value is not what it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::v1::Pod;
use bulkhead_types::{ContainerId, PodUid, SandboxId};
use futures_util::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Secret, ServiceAccount};
use tokio::sync::{broadcast, watch};

use crate::objects::Service;
use crate::objects::{KnownServices, ObjectError, Objects, Token, TokenWanted};
use crate::pod::hash::container_hash;
use crate::pod::model::{ContainerStatus, RunState, RuntimeResources, SandboxState, SandboxStatus};

pub const UID: &str = "11111111-2222-3333-4444-555555555555";

/// A static pod `p` in `ns` with that spec.
pub fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": UID,
                     "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": spec,
    }))
    .unwrap()
}

pub fn uid() -> PodUid {
    PodUid::parse(UID).unwrap()
}

pub fn sandbox_status(id: &str, attempt: u32, state: SandboxState) -> SandboxStatus {
    SandboxStatus {
        id: SandboxId::parse(id).unwrap(),
        attempt,
        state,
        created_at: SystemTime::UNIX_EPOCH,
        host_network: false,
        has_network: true,
        ips: vec!["10.88.0.5".parse().unwrap()],
    }
}

/// An instance of container `name` with image `i`, in sandbox `s0`, with id `<name>-id`.
pub fn container_status(name: &str, state: RunState, exit_code: i32) -> ContainerStatus {
    ContainerStatus {
        id: ContainerId::parse(&format!("{name}-id")).unwrap(),
        name: name.to_owned(),
        sandbox_id: SandboxId::parse("s0").unwrap(),
        state,
        created_at: SystemTime::UNIX_EPOCH,
        started_at: (state != RunState::Created).then_some(SystemTime::UNIX_EPOCH),
        finished_at: (state == RunState::Exited).then_some(SystemTime::UNIX_EPOCH),
        exit_code,
        reason: match (state, exit_code) {
            (RunState::Exited, 0) => "Completed".to_owned(),
            (RunState::Exited, _) => "Error".to_owned(),
            _ => String::new(),
        },
        message: String::new(),
        image: "i".to_owned(),
        image_ref: "sha256:i".to_owned(),
        restart_count: 0,
        hash: container_hash(name, "i"),
        log_path: String::new(),
        termination_message_path: String::new(),
        termination_message_policy: String::new(),
        resources: RuntimeResources::default(),
        termination_message_host_path: None,
        pod_termination_grace: None,
        pod_deletion_grace: None,
        user: None,
        stop_signal: 0,
        image_volumes: Vec::new(),
    }
}

/// An API server of which only what a test puts there is known.
#[derive(Debug, Default)]
pub struct FakeObjects(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    config_maps: HashMap<String, Arc<ConfigMap>>,
    secrets: HashMap<String, Arc<Secret>>,
    handlers: HashMap<String, String>,
    /// Names that are never answered.
    silent: BTreeSet<String>,
    /// The server cannot be asked.
    away: bool,
    /// The token that is given to everybody; none: refused.
    token: Option<String>,
    services: Vec<Service>,
    services_pending: bool,
    asked: Vec<String>,
}

impl FakeObjects {
    pub fn put_config_map(&self, name: &str, data: &[(&str, &str)]) {
        let data: BTreeMap<String, String> = data.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let map = ConfigMap { data: Some(data), ..Default::default() };
        self.0.lock().config_maps.insert(name.to_owned(), Arc::new(map));
    }

    pub fn put_secret(&self, name: &str, data: &[(&str, &[u8])]) {
        let data = data.iter().map(|(k, v)| ((*k).to_owned(), ByteString(v.to_vec()))).collect();
        self.0.lock().secrets.insert(name.to_owned(), Arc::new(Secret { data: Some(data), ..Default::default() }));
    }

    pub fn put_handler(&self, class: &str, handler: &str) {
        self.0.lock().handlers.insert(class.to_owned(), handler.to_owned());
    }

    pub fn put_token(&self, token: &str) {
        self.0.lock().token = Some(token.to_owned());
    }

    pub fn put_services(&self, services: &[Service]) {
        self.0.lock().services = services.to_vec();
    }

    pub fn services_pending(&self) {
        self.0.lock().services_pending = true;
    }

    pub fn silence(&self, name: &str) {
        self.0.lock().silent.insert(name.to_owned());
    }

    pub fn set_away(&self, away: bool) {
        self.0.lock().away = away;
    }

    /// What was asked for since the last time, in order.
    pub fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().asked)
    }

    fn answer<T: Send + 'static>(
        &self,
        kind: &str,
        name: &str,
        found: impl FnOnce(&Kept) -> Option<T>,
    ) -> BoxFuture<'static, Result<T, ObjectError>> {
        let mut kept = self.0.lock();
        kept.asked.push(format!("{kind} {name}"));
        if kept.silent.contains(name) {
            return Box::pin(std::future::pending());
        }
        let answer = match kept.away {
            true => Err(ObjectError::Away("no route".to_owned())),
            false => found(&kept).ok_or_else(|| ObjectError::NotFound(format!("{kind}s {name:?} not found"))),
        };
        Box::pin(std::future::ready(answer))
    }
}

impl Objects for FakeObjects {
    fn register_pod(&self, _: &Arc<Pod>) {}

    fn unregister_pod(&self, _: &PodUid) {}

    fn config_map<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Result<Arc<ConfigMap>, ObjectError>> {
        self.answer("configmap", name, |kept| kept.config_maps.get(name).cloned())
    }

    fn secret<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Result<Arc<Secret>, ObjectError>> {
        self.answer("secret", name, |kept| kept.secrets.get(name).cloned())
    }

    fn service_account<'a>(
        &'a self,
        _: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Arc<ServiceAccount>, ObjectError>> {
        self.answer("serviceaccount", name, |_| None)
    }

    fn persistent_volume_claim<'a>(
        &'a self,
        _: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Arc<PersistentVolumeClaim>, ObjectError>> {
        self.answer("persistentvolumeclaim", name, |_| None)
    }

    fn persistent_volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<PersistentVolume>, ObjectError>> {
        self.answer("persistentvolume", name, |_| None)
    }

    fn token<'a>(&'a self, wanted: &'a TokenWanted) -> BoxFuture<'a, Result<Token, ObjectError>> {
        self.answer("token", &wanted.service_account, |kept| {
            Some(Token { token: kept.token.clone()?, expires: jiff::Timestamp::MAX, renew: jiff::Timestamp::MAX })
        })
    }

    fn runtime_handler(&self, class: &str) -> Result<String, ObjectError> {
        let kept = self.0.lock();
        match kept.handlers.get(class) {
            _ if class.is_empty() => Ok(String::new()),
            _ if kept.away => Err(ObjectError::Away("no route".to_owned())),
            Some(handler) => Ok(handler.clone()),
            None => Err(ObjectError::NotFound(format!("runtimeclasses {class:?} not found"))),
        }
    }

    fn services(&self) -> KnownServices {
        let kept = self.0.lock();
        KnownServices { services: kept.services.clone().into(), synced: !kept.services_pending }
    }

    fn node(&self) -> watch::Receiver<Option<Arc<Node>>> {
        watch::Sender::new(None).subscribe()
    }

    fn changes(&self) -> broadcast::Receiver<PodUid> {
        broadcast::Sender::new(1).subscribe()
    }
}
