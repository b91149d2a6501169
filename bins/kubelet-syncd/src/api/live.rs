//! What pods need, from a real API server: one watch of our Node, of the services and of the runtime classes, and the
//! stores of configMaps, secrets and tokens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::{ApiClient, Bare, Lane};
use bulkhead_config::{Feature, NodeConfig};
use bulkhead_types::{PodUid, go_arch};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Secret, ServiceAccount};
use kube::Api;
use kubelet_model::v1::Pod;
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, watch};

use super::claim_watches::ClaimWatches;
use super::node::NodeSeen;
use super::pod_certificates::{self, PodCertificates};
use super::runtime_classes::RuntimeClasses;
use super::server::{Got, ObjectServer, object_error};
use super::store::{Store, Strategy, Ttl};
use super::tokens::Tokens;
use super::trust_bundles::{self, TrustBundles};
use super::{node, references, runtime_classes, services};
use crate::storage_writes::StorageWrites;
use kubelet_model::events::EventSink;
use kubelet_model::objects::certificates::{CertificateWanted, Credential, TrustBundleWanted};
use kubelet_model::objects::{KnownServices, ObjectError, Objects, Token, TokenWanted};

/// Annotation of the Node: seconds for which configMaps and secrets may be kept.
const TTL_ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";
/// Where it says nothing.
const TTL_DEFAULT: Duration = Duration::from_secs(60);
/// Changes that wait for somebody who is busy; who falls behind looks at every pod.
const CHANGES_KEPT: usize = 1024;

/// The API server's objects, as pods here need them.
#[derive(Debug)]
pub struct ApiObjects {
    client: ApiClient,
    config_maps: Arc<Store<ConfigMap>>,
    secrets: Arc<Store<Secret>>,
    tokens: Arc<Tokens>,
    services: watch::Receiver<KnownServices>,
    classes: RuntimeClasses,
    claims: Arc<ClaimWatches>,
    node: watch::Receiver<Option<Arc<Node>>>,
    seen: watch::Receiver<NodeSeen>,
    changes: broadcast::Sender<PodUid>,
    /// Of the gate ClusterTrustBundleProjection.
    trust_bundles: Option<TrustBundles>,
    /// Of the gate PodCertificateRequest.
    certificates: Option<Arc<PodCertificates>>,
}

/// What certificates of pods need besides: who has their requests written, and who is told of them.
pub struct Certifying {
    pub writes: StorageWrites,
    pub events: Arc<dyn EventSink + Send + Sync>,
}

impl std::fmt::Debug for Certifying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certifying").finish_non_exhaustive()
    }
}

impl ApiObjects {
    /// Starts what is always watched. `initial` stands for our Node while the server says that it has none. Must be called within a
    /// tokio runtime.
    pub fn start(client: &ApiClient, config: &NodeConfig, initial: Node, certifying: &Certifying) -> Arc<Self> {
        let initial = Arc::new(initial);
        let (seen_sender, seen) = watch::channel(NodeSeen::default());
        let (node_sender, node) = watch::channel(None);
        let name = config.node_name.clone();
        tokio::spawn(node::follow(node::changes(client, &name), name, initial, seen_sender, node_sender));
        let (services_sender, services) = watch::channel(KnownServices::default());
        tokio::spawn(services::follow(services::changes(client), services_sender));
        let classes = RuntimeClasses::default();
        tokio::spawn(classes.clone().follow(runtime_classes::changes(client)));
        let changes = broadcast::Sender::new(CHANGES_KEPT);
        let strategy = Strategy::of(&config.kubelet.config_map_and_secret_change_detection_strategy);
        let sync = config.sync_frequency();
        let ttl: Ttl = {
            let seen = seen.clone();
            Arc::new(move || seen.borrow().node.as_deref().map_or(TTL_DEFAULT, ttl))
        };
        let server = Arc::new(client.clone());
        let gates = config.feature_gates();
        let trust_bundles = gates.enabled(Feature::ClusterTrustBundleProjection);
        let trust_bundles = trust_bundles.then(|| TrustBundles::new(client, changes.clone()));
        let certificates = gates.enabled(Feature::PodCertificateRequest).then(|| {
            PodCertificates::new(pod_certificates::Ports {
                client: client.clone(),
                node_name: config.node_name.to_string(),
                node: seen.clone(),
                writes: certifying.writes.clone(),
                events: certifying.events.clone(),
                changes: changes.clone(),
            })
        });
        Arc::new(ApiObjects {
            client: client.clone(),
            config_maps: Store::start(
                server.clone() as Arc<dyn ObjectServer<ConfigMap>>,
                strategy,
                ttl.clone(),
                sync,
                changes.clone(),
            ),
            secrets: Store::start(
                server.clone() as Arc<dyn ObjectServer<Secret>>,
                strategy,
                ttl,
                sync,
                changes.clone(),
            ),
            tokens: Tokens::start(server),
            services,
            classes,
            claims: ClaimWatches::new(client, changes.clone()),
            node,
            seen,
            changes,
            trust_bundles,
            certificates,
        })
    }

    /// Certificates of pods, where the node makes them.
    pub fn certificates(&self) -> Option<Arc<PodCertificates>> {
        self.certificates.clone()
    }

    /// Our Node exactly as the server has it.
    pub fn node_seen(&self) -> watch::Receiver<NodeSeen> {
        self.seen.clone()
    }

    async fn get<K>(api: Api<Bare<K>>, name: &str) -> Got<Arc<K>>
    where
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        api.get(name).await.map(|Bare(object)| Arc::new(object)).map_err(|error| object_error(&error))
    }
}

fn refused<'a, T: Send + 'a>(text: &str) -> BoxFuture<'a, Got<T>> {
    std::future::ready(Err(ObjectError::Refused(text.to_owned()))).boxed()
}

fn ttl(node: &Node) -> Duration {
    let text = node.metadata.annotations.as_ref().and_then(|a| a.get(TTL_ANNOTATION));
    text.and_then(|text| text.parse::<u32>().ok()).map_or(TTL_DEFAULT, |seconds| Duration::from_secs(seconds.into()))
}

/// The Node as flags and the machine describe it, for as long as the API server has none: names, labels, and what pods
/// may use.
pub fn initial_node(
    config: &NodeConfig,
    capacity: &BTreeMap<String, String>,
    allocatable: &BTreeMap<String, String>,
) -> Node {
    let list = |amounts: &BTreeMap<String, String>| {
        use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
        Some(amounts.iter().map(|(name, amount)| (name.clone(), Quantity(amount.clone()))).collect())
    };
    let mut node = Node::default();
    node.metadata.name = Some(config.node_name.to_string());
    node.metadata.labels = Some(config.initial_labels(go_arch()));
    let status = node.status.get_or_insert_default();
    status.capacity = list(capacity);
    status.allocatable = list(allocatable);
    node
}

impl Objects for ApiObjects {
    fn register_pod(&self, pod: &Arc<Pod>) {
        let Some(uid) = pod.metadata.uid.as_deref().and_then(|uid| PodUid::parse(uid).ok()) else { return };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        self.config_maps.register(&uid, namespace, references::config_maps(pod));
        self.secrets.register(&uid, namespace, references::secrets(pod));
        self.claims.register(&uid, pod);
        if let Some(bundles) = &self.trust_bundles {
            bundles.register(&uid, pod);
        }
        if let Some(certificates) = &self.certificates {
            certificates.register(&uid, pod);
        }
    }

    fn unregister_pod(&self, uid: &PodUid) {
        self.config_maps.unregister(uid);
        self.secrets.unregister(uid);
        self.tokens.forget_pod(uid);
        self.claims.unregister(uid);
        if let Some(bundles) = &self.trust_bundles {
            bundles.unregister(uid);
        }
        if let Some(certificates) = &self.certificates {
            certificates.unregister(uid);
        }
    }

    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Got<Arc<ConfigMap>>> {
        self.config_maps.get(namespace, name).boxed()
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Got<Arc<Secret>>> {
        self.secrets.get(namespace, name).boxed()
    }

    fn service_account<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Got<Arc<ServiceAccount>>> {
        Self::get(Api::namespaced(self.client.client(Lane::Main), namespace), name).boxed()
    }

    fn persistent_volume_claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Got<Arc<PersistentVolumeClaim>>> {
        Self::get(Api::namespaced(self.client.client(Lane::Main), namespace), name).boxed()
    }

    fn persistent_volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Got<Arc<PersistentVolume>>> {
        Self::get(Api::all(self.client.client(Lane::Main)), name).boxed()
    }

    fn token<'a>(&'a self, wanted: &'a TokenWanted) -> BoxFuture<'a, Got<Token>> {
        self.tokens.get(wanted).boxed()
    }

    fn trust_anchors<'a>(&'a self, wanted: &'a TrustBundleWanted) -> BoxFuture<'a, Got<String>> {
        match &self.trust_bundles {
            Some(bundles) => bundles.get(wanted).boxed(),
            None => refused(trust_bundles::UNSUPPORTED),
        }
    }

    fn pod_certificate<'a>(&'a self, wanted: &'a CertificateWanted) -> BoxFuture<'a, Got<Credential>> {
        match &self.certificates {
            Some(certificates) => certificates.get(wanted).boxed(),
            None => refused("unimplemented"),
        }
    }

    fn runtime_handler(&self, class: &str) -> Got<String> {
        self.classes.handler(class)
    }

    fn services(&self) -> KnownServices {
        self.services.borrow().clone()
    }

    fn node(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.node.clone()
    }

    fn changes(&self) -> broadcast::Receiver<PodUid> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_there_yet_has_its_overridden_name() {
        let mut config = NodeConfig::for_tests(std::path::Path::new("/nowhere"));
        config.node_name = bulkhead_types::NodeName::parse("other").unwrap();
        let node = initial_node(&config, &BTreeMap::new(), &BTreeMap::new());
        assert_eq!(node.metadata.name.as_deref(), Some("other"));
        assert_eq!(node.metadata.labels.unwrap()["kubernetes.io/hostname"], "other");
    }

    #[test]
    fn how_long_objects_may_be_kept() {
        let node = |annotations: serde_json::Value| -> Node {
            serde_json::from_value(serde_json::json!({"metadata": {"annotations": annotations}})).unwrap()
        };
        let cases = [
            (serde_json::json!({}), 60),
            (serde_json::json!({TTL_ANNOTATION: "0"}), 0),
            (serde_json::json!({TTL_ANNOTATION: "300"}), 300),
            (serde_json::json!({TTL_ANNOTATION: "-5"}), 60),
            (serde_json::json!({TTL_ANNOTATION: "soon"}), 60),
        ];
        for (annotations, expected) in cases {
            assert_eq!(ttl(&node(annotations)).as_secs(), expected);
        }
    }
}
