//! What a pod needs from the API server besides itself, as the rest of the process asks for it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use crate::v1::Pod;
use bulkhead_types::PodUid;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Secret, ServiceAccount};
use tokio::sync::{broadcast, watch};

use certificates::{CertificateWanted, Credential, TrustBundleWanted};

/// Why an object is not to be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The server says that there is none; its own words (`configmaps "x" not found`).
    #[error("{0}")]
    NotFound(String),
    /// The server refused; its own words.
    #[error("{0}")]
    Refused(String),
    /// The server could not be asked, or nothing has been delivered yet: asking again is the answer.
    #[error("{0}")]
    Away(String),
    /// A standalone node.
    #[error("couldn't get {kind} {namespace}/{name}, no kubeClient defined")]
    NoApiServer { kind: &'static str, namespace: String, name: String },
}

/// A service as far as variables need it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    /// Empty or `None` for a headless one.
    pub cluster_ip: String,
    pub ports: Vec<ServicePort>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServicePort {
    pub name: String,
    /// Empty means TCP.
    pub protocol: String,
    pub port: i32,
}

/// The services that are known, and whether they were ever listed (without an API server they never are).
#[derive(Debug, Clone, Copy, Default)]
pub struct Services<'a> {
    pub known: &'a [Service],
    pub synced: bool,
}

/// All services of the cluster as far as environment variables need them.
#[derive(Debug, Clone, Default)]
pub struct KnownServices {
    pub services: Arc<[Service]>,
    /// They were listed at least once. Always true on a standalone node.
    pub synced: bool,
}

/// A service-account token that is wanted (TokenRequest).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenWanted {
    pub namespace: String,
    pub service_account: String,
    /// No other account of that name will do; None: any will.
    pub service_account_uid: Option<String>,
    /// Empty: the API server's own audience.
    pub audiences: Vec<String>,
    pub expiration_seconds: i64,
    pub pod_name: String,
    pub pod_uid: String,
}

/// A token; `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub token: String,
    pub expires: jiff::Timestamp,
    /// From then on a newer one is to be had.
    pub renew: jiff::Timestamp,
}

impl Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("expires", &self.expires).finish_non_exhaustive()
    }
}

type Got<T> = Result<T, ObjectError>;

/// Everything that pods need. Answers come from caches as `configMapAndSecretChangeDetectionStrategy` says.
pub trait Objects: Send + Sync + Debug {
    /// The pod is wanted here: what it names will be asked for. A pod that is known already may have changed.
    fn register_pod(&self, pod: &Arc<Pod>);
    /// Nobody will ask for this pod again.
    fn unregister_pod(&self, uid: &PodUid);
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Got<Arc<ConfigMap>>>;
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Got<Arc<Secret>>>;
    fn service_account<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Got<Arc<ServiceAccount>>>;
    fn persistent_volume_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Got<Arc<PersistentVolumeClaim>>>;
    fn persistent_volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Got<Arc<PersistentVolume>>>;
    /// Renewed in time: a caller that keeps a volume asks again.
    fn token<'a>(&'a self, wanted: &'a TokenWanted) -> BoxFuture<'a, Got<Token>>;
    /// Trust anchors in PEM.
    fn trust_anchors<'a>(&'a self, _: &'a TrustBundleWanted) -> BoxFuture<'a, Got<String>> {
        let text = "ClusterTrustBundle projection is not supported in static kubelet mode";
        Box::pin(std::future::ready(Err(ObjectError::Refused(text.to_owned()))))
    }
    /// A key and its certificates; who keeps a volume asks again when it is told of a change.
    fn pod_certificate<'a>(&'a self, _: &'a CertificateWanted) -> BoxFuture<'a, Got<Credential>> {
        Box::pin(std::future::ready(Err(ObjectError::Refused("unimplemented".to_owned()))))
    }
    /// The CRI handler of a RuntimeClass. Empty name: the empty handler.
    fn runtime_handler(&self, class: &str) -> Got<String>;
    fn services(&self) -> KnownServices;
    /// Our Node as last seen, without its list of images. None until the API server has said whether it has one; while it
    /// has none, or there is no API server, a Node that is built from flags and the machine.
    fn node(&self) -> watch::Receiver<Option<Arc<Node>>>;
    /// Names a pod whenever an object that it refers to has changed. Who falls behind looks at every pod.
    fn changes(&self) -> broadcast::Receiver<PodUid>;
}

/// A standalone node: there is nothing to be had.
#[derive(Debug)]
pub struct NoObjects {
    node: watch::Sender<Option<Arc<Node>>>,
    changes: broadcast::Sender<PodUid>,
}

impl NoObjects {
    /// `labels`: what `--node-labels` and the machine say, for admission.
    pub fn new(name: &str, labels: BTreeMap<String, String>) -> Self {
        let mut node = Node::default();
        node.metadata.name = Some(name.to_owned());
        node.metadata.labels = Some(labels);
        Self::with_node(node)
    }

    /// `node`: what flags and the machine say.
    pub fn with_node(node: Node) -> Self {
        NoObjects { node: watch::Sender::new(Some(Arc::new(node))), changes: broadcast::Sender::new(1) }
    }
}

fn none<'a, T: Send + 'a>(kind: &'static str, namespace: &str, name: &str) -> BoxFuture<'a, Got<T>> {
    let error = ObjectError::NoApiServer { kind, namespace: namespace.to_owned(), name: name.to_owned() };
    Box::pin(std::future::ready(Err(error)))
}

impl Objects for NoObjects {
    fn register_pod(&self, _: &Arc<Pod>) {}

    fn unregister_pod(&self, _: &PodUid) {}

    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Got<Arc<ConfigMap>>> {
        none("configMap", namespace, name)
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Got<Arc<Secret>>> {
        none("secret", namespace, name)
    }

    fn service_account<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Got<Arc<ServiceAccount>>> {
        none("serviceAccount", namespace, name)
    }

    fn persistent_volume_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Got<Arc<PersistentVolumeClaim>>> {
        none("persistentVolumeClaim", namespace, name)
    }

    fn persistent_volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Got<Arc<PersistentVolume>>> {
        none("persistentVolume", "", name)
    }

    fn token<'a>(&'a self, wanted: &'a TokenWanted) -> BoxFuture<'a, Got<Token>> {
        none("serviceAccount token", &wanted.namespace, &wanted.service_account)
    }

    fn runtime_handler(&self, class: &str) -> Got<String> {
        if class.is_empty() {
            return Ok(String::new());
        }
        let name = class.to_owned();
        Err(ObjectError::NoApiServer { kind: "runtimeClass", namespace: String::new(), name })
    }

    fn services(&self) -> KnownServices {
        KnownServices { services: Arc::new([]), synced: true }
    }

    fn node(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.node.subscribe()
    }

    fn changes(&self) -> broadcast::Receiver<PodUid> {
        self.changes.subscribe()
    }
}
pub mod certificates;
pub mod named_objects;
