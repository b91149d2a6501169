//! Whom the manager asks: the API server for claims, kubelet-volnetd for the state files.

use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::StateKind;
use bulkhead_sys::memfd;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kubelet_model::objects::ObjectError;

use crate::api::resource_claims::ResourceClaims;
use crate::container_manager::{StateFileError, state_files};

/// Claims by name.
pub trait ClaimReader: std::fmt::Debug + Send + Sync {
    /// The claim as the API server has it now.
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<ResourceClaim, ObjectError>>;
}

impl ClaimReader for ResourceClaims {
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<ResourceClaim, ObjectError>> {
        self.get(namespace, name)
    }
}

/// A state file: `dra_manager_state` or `dra_health_state`.
pub trait FileStore: std::fmt::Debug + Send + Sync {
    /// `None`: there is none.
    fn load(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, StateFileError>>;
    /// Replaces it as a whole.
    fn save(&self, content: Vec<u8>) -> BoxFuture<'_, Result<(), StateFileError>>;
}

/// Both files.
#[derive(Debug)]
pub struct Stores {
    /// Which claims are prepared.
    pub claims: Box<dyn FileStore>,
    /// What drivers have told of the health of their devices.
    pub health: Box<dyn FileStore>,
}

impl Stores {
    /// Those of the node, which are root's.
    pub fn behind(broker: &BrokerClient) -> Self {
        let store = |kind| Box::new(RootsFile { broker: broker.clone(), kind });
        Stores { claims: store(StateKind::DraManager), health: store(StateKind::DraHealth) }
    }
}

#[derive(Debug)]
struct RootsFile {
    broker: BrokerClient,
    kind: StateKind,
}

impl FileStore for RootsFile {
    fn load(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, StateFileError>> {
        state_files::read(&self.broker, self.kind).boxed()
    }

    fn save(&self, content: Vec<u8>) -> BoxFuture<'_, Result<(), StateFileError>> {
        async move { Ok(self.broker.put_state(self.kind, memfd::sealed("claims", &content)?).await?) }.boxed()
    }
}
