//! Whom the manager asks: the API server for claims, kubelet-volnetd for the state file.

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

/// The file `dra_manager_state`.
pub trait BookStore: std::fmt::Debug + Send + Sync {
    /// `None`: there is none.
    fn load(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, StateFileError>>;
    /// Replaces it as a whole.
    fn save(&self, content: Vec<u8>) -> BoxFuture<'_, Result<(), StateFileError>>;
}

impl BookStore for BrokerClient {
    fn load(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, StateFileError>> {
        state_files::read(self, StateKind::DraManager).boxed()
    }

    fn save(&self, content: Vec<u8>) -> BoxFuture<'_, Result<(), StateFileError>> {
        async move { Ok(self.put_state(StateKind::DraManager, memfd::sealed("claims", &content)?).await?) }.boxed()
    }
}
