//! The requests about the node that go to the API server, each with a deadline, and what their refusals mean.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::{ApiClient, Bare, Lane};
use bulkhead_config::NodeConfig;
use bulkhead_daemon::progress::Heartbeat;
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::Value;

/// Leases of nodes.
const LEASES: &str = "kube-node-lease";

/// The two ways to the API server: with the limits that all share, and without for what must not wait.
#[derive(Clone)]
pub struct Server {
    name: Arc<str>,
    main: kube::Client,
    heartbeat: kube::Client,
    reconnect: Arc<dyn Fn() + Send + Sync>,
    deadline: Duration,
    /// The watchdog's registration of the loop whose requests these are.
    watchdog: Option<Heartbeat>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What came of a write that somebody waits for, where its requests did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    Done,
    /// It will not be written as it is wanted; the server's words.
    Refused(String),
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("{what} was not answered within {after:?}")]
    Silent { what: &'static str, after: Duration },
    #[error("{what}: {source}")]
    Refused { what: &'static str, source: kube::Error },
}

impl RequestError {
    fn status(&self) -> Option<&kube::core::Status> {
        match self {
            RequestError::Refused { source: kube::Error::Api(status), .. } => Some(status),
            _ => None,
        }
    }

    fn is_code(&self, code: u16) -> bool {
        self.status().is_some_and(|status| status.code == code)
    }

    pub fn is_not_found(&self) -> bool {
        self.is_code(404)
    }

    /// There is an object of this name.
    pub fn already_exists(&self) -> bool {
        self.status().is_some_and(|status| status.reason == "AlreadyExists")
    }

    pub fn is_forbidden(&self) -> bool {
        self.is_code(403)
    }

    /// Somebody else has written since.
    pub fn is_conflict(&self) -> bool {
        self.is_code(409) && !self.already_exists()
    }

    /// What was sent is not allowed to stand, whoever sends it.
    pub fn is_invalid(&self) -> bool {
        self.is_code(422)
    }

    /// Too many requests: to ask again at once is no help.
    pub fn is_overload(&self) -> bool {
        self.is_code(429)
    }
}

impl Server {
    pub fn new(config: &NodeConfig, api: &ApiClient) -> Self {
        let for_reconnect = api.clone();
        Server::with_clients(
            config,
            api.client(Lane::Main),
            api.client(Lane::Heartbeat),
            Arc::new(move || for_reconnect.reconnect(Lane::Heartbeat)),
        )
    }

    /// The same over any two clients.
    pub fn with_clients(
        config: &NodeConfig,
        main: kube::Client,
        heartbeat: kube::Client,
        reconnect: Arc<dyn Fn() + Send + Sync>,
    ) -> Self {
        // As upstream: a heartbeat that takes longer than its period is worth nothing.
        let lease = Duration::from_secs(u64::try_from(config.kubelet.node_lease_duration_seconds).unwrap_or(40));
        let period = config.kubelet.node_status_update_frequency.to_std();
        let deadline = period.min(lease).max(Duration::from_secs(1));
        Server { name: config.node_name.as_str().into(), main, heartbeat, reconnect, deadline, watchdog: None }
    }

    /// The same for one loop that the watchdog asks: each request is over by its deadline, or the loop is stuck.
    #[must_use]
    pub fn with_heartbeat(&self, heartbeat: Heartbeat) -> Self {
        Server { watchdog: Some(heartbeat), ..self.clone() }
    }

    /// Waits for what may never come; see [`Heartbeat::rests`].
    pub async fn rests<T>(&self, work: impl Future<Output = T>) -> T {
        match &self.watchdog {
            Some(heartbeat) => heartbeat.rests(work).await,
            None => work.await,
        }
    }

    /// A pause between requests.
    pub async fn pause(&self, pause: Duration) {
        self.rests(tokio::time::sleep(pause)).await;
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Heartbeats fail one after the other: their connections may be dead without knowing it.
    pub fn reconnect(&self) {
        (self.reconnect)();
    }

    async fn within<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, RequestError> {
        let call = tokio::time::timeout(self.deadline, call);
        let answer = match &self.watchdog {
            Some(heartbeat) => heartbeat.within(self.deadline, call).await,
            None => call.await,
        };
        match answer {
            Ok(answer) => answer.map_err(|source| RequestError::Refused { what, source }),
            Err(_) => Err(RequestError::Silent { what, after: self.deadline }),
        }
    }

    /// The same for a request that is answered with an object.
    async fn answered<K>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<Bare<K>, kube::Error>>,
    ) -> Result<K, RequestError> {
        self.within(what, call).await.map(|Bare(object)| object)
    }

    /// # Errors
    /// See [`RequestError`], as for all the others.
    pub async fn create_node(&self, node: &Node) -> Result<Node, RequestError> {
        let nodes: Api<Bare<Node>> = Api::all(self.main.clone());
        self.answered("creating the Node", nodes.create(&PostParams::default(), &Bare(node.clone()))).await
    }

    pub async fn get_node(&self) -> Result<Node, RequestError> {
        let nodes: Api<Bare<Node>> = Api::all(self.heartbeat.clone());
        self.answered("reading the Node", nodes.get(&self.name)).await
    }

    pub async fn patch_node_status(&self, patch: &Value) -> Result<Node, RequestError> {
        let nodes: Api<Bare<Node>> = Api::all(self.heartbeat.clone());
        let params = PatchParams::default();
        self.answered("patching the Node's status", nodes.patch_status(&self.name, &params, &Patch::Strategic(patch)))
            .await
    }

    fn leases(&self) -> Api<Bare<Lease>> {
        Api::namespaced(self.heartbeat.clone(), LEASES)
    }

    pub async fn get_lease(&self) -> Result<Lease, RequestError> {
        self.answered("reading the lease", self.leases().get(&self.name)).await
    }

    pub async fn create_lease(&self, lease: &Lease) -> Result<Lease, RequestError> {
        let lease = Bare(lease.clone());
        self.answered("creating the lease", self.leases().create(&PostParams::default(), &lease)).await
    }

    pub async fn replace_lease(&self, lease: &Lease) -> Result<Lease, RequestError> {
        let lease = Bare(lease.clone());
        self.answered("renewing the lease", self.leases().replace(&self.name, &PostParams::default(), &lease)).await
    }

    fn csi_nodes(&self) -> Api<Bare<CSINode>> {
        Api::all(self.main.clone())
    }

    pub async fn get_csi_node(&self) -> Result<CSINode, RequestError> {
        self.answered("reading the CSINode", self.csi_nodes().get(&self.name)).await
    }

    pub async fn create_csi_node(&self, node: &CSINode) -> Result<CSINode, RequestError> {
        let node = Bare(node.clone());
        self.answered("creating the CSINode", self.csi_nodes().create(&PostParams::default(), &node)).await
    }

    pub async fn patch_csi_node(&self, patch: &Value) -> Result<CSINode, RequestError> {
        let params = PatchParams::default();
        self.answered("patching the CSINode", self.csi_nodes().patch(&self.name, &params, &Patch::Merge(patch))).await
    }

    fn claims(&self, namespace: &str) -> Api<Bare<PersistentVolumeClaim>> {
        Api::namespaced(self.main.clone(), namespace)
    }

    pub async fn get_claim(&self, namespace: &str, name: &str) -> Result<PersistentVolumeClaim, RequestError> {
        self.answered("reading the claim", self.claims(namespace).get(name)).await
    }

    pub async fn patch_claim_status(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<PersistentVolumeClaim, RequestError> {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        self.answered("patching the claim's status", self.claims(namespace).patch_status(name, &params, &patch)).await
    }

    pub async fn create_pod_certificate_request(
        &self,
        request: &PodCertificateRequest,
    ) -> Result<PodCertificateRequest, RequestError> {
        let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
        let (api, request) = (Api::namespaced(self.main.clone(), namespace), Bare(request.clone()));
        self.answered("creating the PodCertificateRequest", api.create(&PostParams::default(), &request)).await
    }

    /// Deletes the ResourceSlices of this node; `driver`: of one driver alone, where it is not empty.
    pub async fn delete_resource_slices(&self, driver: &str) -> Result<(), RequestError> {
        let slices: Api<Bare<ResourceSlice>> = Api::all(self.main.clone());
        let selector = match driver {
            "" => format!("spec.nodeName={}", self.name),
            driver => format!("spec.driver={driver},spec.nodeName={}", self.name),
        };
        let (params, of_driver) = (DeleteParams::default(), ListParams::default().fields(&selector));
        self.within("deleting ResourceSlices", slices.delete_collection(&params, &of_driver)).await.map(|_| ())
    }

    /// Deletes the CSINode of this uid, and no other.
    pub async fn delete_csi_node(&self, uid: Option<String>) -> Result<(), RequestError> {
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        self.within("deleting the CSINode", self.csi_nodes().delete(&self.name, &params)).await.map(|_| ())
    }
}
