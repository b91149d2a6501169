//! ResourceClaims, read by name as nodes may, and live: a claim is looked at once for each pod that begins to use it.

use bulkhead_apiclient::{ApiClient, Bare, Lane};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;

use super::server::{Got, object_error};
use kubelet_model::objects::ObjectError;

/// The API server as claims need it; without one there is nothing to be had.
#[derive(Debug)]
pub struct ResourceClaims(pub Option<ApiClient>);

impl ResourceClaims {
    /// The claim of this name.
    pub fn get<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Got<ResourceClaim>> {
        async move {
            let Some(client) = &self.0 else {
                return Err(ObjectError::NoApiServer {
                    kind: "resourceClaim",
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                });
            };
            let api: Api<Bare<ResourceClaim>> = Api::namespaced(client.client(Lane::Main), namespace);
            api.get(name).await.map(|Bare(claim)| claim).map_err(|error| object_error(&error))
        }
        .boxed()
    }
}
