//! ClusterTrustBundles: which trust anchors projected volumes show (upstream `pkg/kubelet/clustertrustbundle`).
//!
//! Nothing is watched before the first pod asks; then it is the version of the API that the server has. Anchors are
//! shown once each, in an order that is the same for this process's life and another one in the next, as upstream's:
//! nobody is to count on one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::watch::{Change, List, Scope, watch};
use bulkhead_apiclient::{ApiClient, Lane, random_fraction};
use bulkhead_types::PodUid;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::certificates::{v1alpha1, v1beta1};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResourceList, LabelSelector, ObjectMeta};
use kubelet_model::v1::Pod;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OnceCell, broadcast};

use super::server::{Got, object_error};
use kubelet_model::objects::ObjectError;
use kubelet_model::objects::certificates::{Anchors, TrustBundleWanted};
use kubelet_model::pem;

/// How long who asks first waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(5);
/// What upstream says where there is no API server, where it has no such API, or the gate is off.
pub const UNSUPPORTED: &str = "ClusterTrustBundle projection is not supported in static kubelet mode";

/// Of a label selector, as upstream writes it.
const SELECTOR_BYTES_MAX: usize = 100 << 10;

/// Versions of the API that have bundles; of all that the server has the first counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1beta1,
    V1alpha1,
}

impl Version {
    const ALL: [Version; 2] = [Version::V1beta1, Version::V1alpha1];

    const fn group_version(self) -> &'static str {
        match self {
            Version::V1beta1 => "certificates.k8s.io/v1beta1",
            Version::V1alpha1 => "certificates.k8s.io/v1alpha1",
        }
    }

    fn watch(self, client: &ApiClient) -> BoxStream<'static, Change<Named>> {
        match self {
            Version::V1beta1 => watch(client, Lane::Main, Scope::default())
                .map(|change| {
                    seen(change, |one: v1beta1::ClusterTrustBundle| {
                        Bundle::of(one.metadata, one.spec.signer_name, &one.spec.trust_bundle)
                    })
                })
                .boxed(),
            Version::V1alpha1 => watch(client, Lane::Main, Scope::default())
                .map(|change| {
                    seen(change, |one: v1alpha1::ClusterTrustBundle| {
                        Bundle::of(one.metadata, one.spec.signer_name, &one.spec.trust_bundle)
                    })
                })
                .boxed(),
        }
    }
}

/// Which version the server has; `None`: none. As upstream's `ensureManagerSet`, which asks until it is answered, and
/// then never again.
///
/// `resources`: discovery's answer about one version.
async fn served<F>(resources: impl Fn(&'static str) -> F) -> Got<Option<Version>>
where
    F: Future<Output = kube::Result<APIResourceList>>,
{
    for version in Version::ALL {
        match resources(version.group_version()).await {
            Ok(list) if list.resources.iter().any(|resource| resource.name == "clustertrustbundles") => {
                return Ok(Some(version));
            }
            Ok(_) => {}
            Err(error) => match object_error(&error) {
                ObjectError::NotFound(_) => {}
                ObjectError::Away(why) => return Err(ObjectError::Away(undetermined(&why))),
                ObjectError::Refused(why) => return Err(ObjectError::Refused(undetermined(&why))),
                other @ ObjectError::NoApiServer { .. } => return Err(other),
            },
        }
    }
    Ok(None)
}

fn undetermined(why: &str) -> String {
    let text = "failed to ensure informer manager for ClusterTrustBundles";
    format!("{text}: failed to determine which informer manager to choose: {why}")
}

/// A bundle with its name.
type Named = (String, Bundle);

/// A change with what pods see of the bundles in it.
fn seen<K>(change: Change<K>, of: impl Fn(K) -> Named) -> Change<Named> {
    match change {
        Change::Restarted(List { objects, undecodable }) => {
            Change::Restarted(List { objects: objects.into_iter().map(of).collect(), undecodable })
        }
        Change::Applied(bundle) => Change::Applied(of(bundle)),
        Change::Deleted(bundle) => Change::Deleted(bundle),
        Change::Failed(error) => Change::Failed(error),
    }
}

/// A bundle as far as pods see it.
#[derive(Debug, Clone, PartialEq)]
struct Bundle {
    signer: String,
    labels: BTreeMap<String, String>,
    anchors: Vec<Vec<u8>>,
}

impl Bundle {
    fn of(metadata: ObjectMeta, signer: Option<String>, anchors: &str) -> Named {
        let (name, labels) = (metadata.name.unwrap_or_default(), metadata.labels.unwrap_or_default());
        (name, Bundle { signer: signer.unwrap_or_default(), labels, anchors: pem::blocks(anchors) })
    }
}

#[derive(Debug, Default)]
struct State {
    /// None until they were listed.
    bundles: Option<BTreeMap<String, Bundle>>,
    /// Why they could not be listed.
    trouble: String,
    /// What the pods here name: a bundle's name, or a signer.
    users: HashMap<PodUid, BTreeSet<String>>,
}

/// All bundles, from the first question on.
#[derive(Debug)]
pub struct TrustBundles {
    client: ApiClient,
    state: Arc<Mutex<State>>,
    told: Arc<tokio::sync::watch::Sender<u64>>,
    changes: broadcast::Sender<PodUid>,
    /// What is watched; `None`: the server has no such API.
    version: OnceCell<Option<Version>>,
    seed: [u8; 8],
}

impl TrustBundles {
    pub fn new(client: &ApiClient, changes: broadcast::Sender<PodUid>) -> Self {
        let (state, told) = (Arc::default(), Arc::new(tokio::sync::watch::channel(0).0));
        let seed = random_fraction().to_bits().to_be_bytes();
        TrustBundles { client: client.clone(), state, told, changes, version: OnceCell::new(), seed }
    }

    /// The pod is wanted here, and is told of changes of what it names.
    pub fn register(&self, uid: &PodUid, pod: &Pod) {
        let names = named(pod);
        if !names.is_empty() {
            self.state.lock().users.insert(uid.clone(), names);
        }
    }

    pub fn unregister(&self, uid: &PodUid) {
        self.state.lock().users.remove(uid);
    }

    /// The anchors in PEM.
    pub async fn get(&self, wanted: &TrustBundleWanted) -> Got<String> {
        let begin = async {
            let client = self.client.client(Lane::Main);
            let resources = |version| {
                let client = client.clone();
                async move { client.list_api_group_resources(version).await }
            };
            let version = served(resources).await?;
            match version {
                Some(version) => {
                    tracing::info!(apiGroup = version.group_version(), "Started ClusterTrustBundle informer");
                    let changes = version.watch(&self.client);
                    tokio::spawn(follow(self.state.clone(), self.told.clone(), self.changes.clone(), changes));
                }
                None => tracing::info!(
                    "No version of the ClusterTrustBundle API was found, the ClusterTrustBundle informer won't be started"
                ),
            }
            Ok(version)
        };
        if self.version.get_or_try_init(|| begin).await?.is_none() {
            return Err(ObjectError::Refused(UNSUPPORTED.to_owned()));
        }
        let mut told = self.told.subscribe();
        let listed = told.wait_for(|_| self.state.lock().bundles.is_some());
        let _ = tokio::time::timeout(FIRST_LIST, listed).await;
        let state = self.state.lock();
        match &state.bundles {
            Some(bundles) => anchors(bundles, wanted, self.seed),
            None => {
                let why = if state.trouble.is_empty() { String::new() } else { format!(": {}", state.trouble) };
                Err(ObjectError::Away(format!("ClusterTrustBundle informer has not yet synced{why}")))
            }
        }
    }
}

/// Names of bundles and signers in a pod's volumes.
fn named(pod: &Pod) -> BTreeSet<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let sources = volumes.flat_map(|volume| volume.projected.iter()).flat_map(|one| one.sources.iter().flatten());
    let bundles = sources.filter_map(|source| source.cluster_trust_bundle.as_ref());
    bundles.flat_map(|bundle| bundle.name.iter().chain(&bundle.signer_name)).cloned().collect()
}

/// Follows the bundles for ever.
async fn follow(
    state: Arc<Mutex<State>>,
    told: Arc<tokio::sync::watch::Sender<u64>>,
    changes: broadcast::Sender<PodUid>,
    mut stream: BoxStream<'static, Change<Named>>,
) {
    while let Some(change) = stream.next().await {
        let touched = state.lock().take(change);
        for pod in touched {
            // Nobody listens: nobody is to be told.
            let _ = changes.send(pod);
        }
        told.send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl State {
    /// Takes what the watch tells; the pods that it concerns.
    fn take(&mut self, change: Change<Named>) -> Vec<PodUid> {
        let before = self.bundles.clone().unwrap_or_default();
        match change {
            Change::Restarted(all) => {
                let last = self.bundles.take().unwrap_or_default();
                self.bundles = Some(all.keyed(last, |one| one.name.clone(), |named| named));
            }
            Change::Applied((name, bundle)) => {
                self.bundles.get_or_insert_default().insert(name, bundle);
            }
            Change::Deleted(bundle) => {
                self.bundles.get_or_insert_default().remove(&bundle.name);
            }
            Change::Failed(error) => {
                tracing::debug!("cluster trust bundles could not be watched on the API server: {error}");
                self.trouble = error;
                return Vec::new();
            }
        }
        self.trouble.clear();
        let empty = BTreeMap::new();
        let now = self.bundles.as_ref().unwrap_or(&empty);
        let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        let mut touched = BTreeSet::new();
        for name in names.into_iter().filter(|name| before.get(*name) != now.get(*name)) {
            touched.insert(name.as_str());
            let both = [before.get(name), now.get(name)];
            touched.extend(both.into_iter().flatten().map(|bundle| bundle.signer.as_str()));
        }
        let concerns = |names: &BTreeSet<String>| names.iter().any(|name| touched.contains(name.as_str()));
        self.users.iter().filter(|(_, names)| concerns(names)).map(|(uid, _)| uid.clone()).collect()
    }
}

/// What a volume shows. Pure.
fn anchors(bundles: &BTreeMap<String, Bundle>, wanted: &TrustBundleWanted, seed: [u8; 8]) -> Got<String> {
    let found: Vec<&Bundle> = match &wanted.anchors {
        Anchors::Named(name) => match bundles.get(name) {
            Some(bundle) => vec![bundle],
            None if wanted.optional => Vec::new(),
            None => {
                let text = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io";
                return Err(ObjectError::Refused(format!("{text} {name:?} not found")));
            }
        },
        Anchors::OfSigner { signer, selector } => {
            let length = selector.as_ref().map_or(0, text_length);
            if length > SELECTOR_BYTES_MAX {
                let text = format!("label selector length ({length}) is larger than {SELECTOR_BYTES_MAX}");
                return Err(ObjectError::Refused(text));
            }
            let all = bundles.values().filter(|bundle| bundle.signer == *signer);
            let mut found = Vec::new();
            for bundle in all {
                if selects(selector.as_ref(), &bundle.labels)? {
                    found.push(bundle);
                }
            }
            if found.is_empty() && !wanted.optional {
                let text = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
                return Err(ObjectError::Refused(text.to_owned()));
            }
            found
        }
    };
    let each: BTreeSet<&Vec<u8>> = found.iter().flat_map(|bundle| &bundle.anchors).collect();
    let mut shuffled: Vec<([u8; 32], &Vec<u8>)> = each
        .into_iter()
        .map(|anchor| (Sha256::new().chain_update(seed).chain_update(anchor).finalize().into(), anchor))
        .collect();
    shuffled.sort_unstable();
    Ok(shuffled.into_iter().map(|(_, anchor)| pem::block("CERTIFICATE", anchor)).collect())
}

/// Bytes of a selector as `labels.Selector` of the API machinery writes it: `a=b,c in (d,e),!f`.
fn text_length(selector: &LabelSelector) -> usize {
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| key.len() + "=".len() + value.len());
    let others = selector.match_expressions.iter().flatten().map(|one| {
        let values = one.values.as_deref().unwrap_or_default();
        let listed = values.iter().map(String::len).sum::<usize>() + values.len().saturating_sub(1);
        one.key.len()
            + match one.operator.as_str() {
                "In" => " in ()".len() + listed,
                "NotIn" => " notin ()".len() + listed,
                "DoesNotExist" => "!".len(),
                _ => 0,
            }
    });
    let lengths: Vec<usize> = equal.chain(others).collect();
    lengths.iter().sum::<usize>() + lengths.len().saturating_sub(1)
}

/// Whether a selector takes an object with these labels (`LabelSelectorAsSelector` of the API machinery).
fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> Got<bool> {
    let Some(selector) = selector else { return Ok(false) };
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let mut all = equal;
    for one in selector.match_expressions.iter().flatten() {
        let (has, values) = (labels.get(&one.key), one.values.as_deref().unwrap_or_default());
        let listed = has.is_some_and(|value| values.contains(value));
        all &= match one.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => has.is_some(),
            "DoesNotExist" => has.is_none(),
            other => {
                let text = format!("while parsing label selector: {other:?} is not a valid label selector operator");
                return Err(ObjectError::Refused(text));
            }
        };
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use bulkhead_apiclient::ObjectRef;
    use serde_json::json;

    use super::*;

    fn bundle(name: &str, signer: &str, label: &str, anchors: &[u8]) -> Named {
        let text: String = anchors.iter().map(|anchor| pem::block("CERTIFICATE", &[*anchor])).collect();
        let metadata = serde_json::from_value(json!({"name": name, "labels": {"l": label}})).unwrap();
        Bundle::of(metadata, Some(signer.to_owned()), &format!("text\n{text}"))
    }

    fn of_signer(selector: serde_json::Value, optional: bool) -> TrustBundleWanted {
        let selector = serde_json::from_value(selector).unwrap();
        TrustBundleWanted { anchors: Anchors::OfSigner { signer: "s".into(), selector }, optional }
    }

    fn state() -> State {
        let mut state = State::default();
        let all = vec![bundle("a", "s", "x", &[1, 2, 2]), bundle("b", "s", "y", &[2, 3]), bundle("c", "", "x", &[4])];
        state.take(Change::Restarted(all.into()));
        state
    }

    fn shown(wanted: &TrustBundleWanted) -> Got<Vec<u8>> {
        let text = anchors(state().bundles.as_ref().unwrap(), wanted, [0; 8])?;
        let mut all: Vec<u8> = pem::blocks(&text).concat();
        all.sort_unstable();
        Ok(all)
    }

    #[test]
    fn which_anchors_are_shown() {
        let named = |name: &str, optional| TrustBundleWanted { anchors: Anchors::Named(name.into()), optional };
        assert_eq!(shown(&named("a", false)), Ok(vec![1, 2]));
        assert_eq!(shown(&named("none", true)), Ok(vec![]));
        let refused = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"none\" not found";
        assert_eq!(shown(&named("none", false)), Err(ObjectError::Refused(refused.into())));
        for (selector, expected) in [
            (json!({}), vec![1, 2, 3]),
            (json!({"matchLabels": {"l": "x"}}), vec![1, 2]),
            (json!({"matchExpressions": [{"key": "l", "operator": "In", "values": ["y", "z"]}]}), vec![2, 3]),
            (json!({"matchExpressions": [{"key": "l", "operator": "NotIn", "values": ["y"]}]}), vec![1, 2]),
            (json!({"matchExpressions": [{"key": "l", "operator": "Exists"}]}), vec![1, 2, 3]),
            (json!({"matchExpressions": [{"key": "l", "operator": "DoesNotExist"}]}), vec![]),
            (json!(null), vec![]),
        ] {
            assert_eq!(shown(&of_signer(selector.clone(), true)), Ok(expected), "{selector}");
        }
        let zero = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        assert_eq!(shown(&of_signer(json!(null), false)), Err(ObjectError::Refused(zero.into())));
        assert!(shown(&of_signer(json!({"matchExpressions": [{"key": "l", "operator": "?"}]}), true)).is_err());
    }

    #[test]
    fn a_selector_has_a_bound() {
        let length = |selector| text_length(&serde_json::from_value(selector).unwrap());
        for (selector, text) in [
            (json!({}), ""),
            (json!({"matchLabels": {"a": "b", "c": ""}}), "a=b,c="),
            (
                json!({"matchLabels": {"a": "b"}, "matchExpressions": [
                {"key": "i", "operator": "In", "values": ["x"]}, {"key": "n", "operator": "NotIn", "values": ["x", "yz"]},
                {"key": "e", "operator": "Exists"}, {"key": "d", "operator": "DoesNotExist"}]}),
                "a=b,i in (x),n notin (x,yz),e,!d",
            ),
        ] {
            assert_eq!(length(selector), text.len(), "{text}");
        }
        let of_length = |length: usize| json!({"matchLabels": {"l": "x".repeat(length - 2)}});
        assert_eq!(shown(&of_signer(of_length(102_400), true)), Ok(vec![]));
        let refused = "label selector length (102401) is larger than 102400";
        assert_eq!(shown(&of_signer(of_length(102_401), true)), Err(ObjectError::Refused(refused.into())));
    }

    /// Discovery's answer: a status and the name of a resource.
    fn answer((status, resource): (u16, &str)) -> kube::Result<APIResourceList> {
        let error = json!({"status": "Failure", "message": "no", "reason": "", "code": status});
        let list = json!({"groupVersion": "g/v", "resources": [
            {"name": "other", "singularName": "", "namespaced": false, "kind": "Other", "verbs": []},
            {"name": resource, "singularName": "", "namespaced": false, "kind": "A", "verbs": ["get"]}]});
        match status {
            200 => Ok(serde_json::from_value(list).unwrap()),
            _ => Err(kube::Error::Api(serde_json::from_value(error).unwrap())),
        }
    }

    async fn found(beta: (u16, &str), alpha: (u16, &str)) -> Got<Option<Version>> {
        let resources = |version| match version {
            "certificates.k8s.io/v1beta1" => answer(beta),
            "certificates.k8s.io/v1alpha1" => answer(alpha),
            other => panic!("{other} was asked for"),
        };
        served(|version| std::future::ready(resources(version))).await
    }

    #[tokio::test]
    async fn the_first_version_that_the_server_has_counts() {
        let (here, elsewhere, none) = ((200, "clustertrustbundles"), (200, "podcertificaterequests"), (404, ""));
        for (beta, alpha, expected) in [
            (here, here, Some(Version::V1beta1)),
            (elsewhere, here, Some(Version::V1alpha1)),
            (none, here, Some(Version::V1alpha1)),
            (none, elsewhere, None),
            (none, none, None),
        ] {
            assert_eq!(found(beta, alpha).await, Ok(expected), "{beta:?} {alpha:?}");
        }
        let text = "failed to ensure informer manager for ClusterTrustBundles: failed to determine which informer \
                    manager to choose: no";
        assert_eq!(found((503, ""), here).await, Err(ObjectError::Away(text.into())));
        assert_eq!(found(none, (403, "")).await, Err(ObjectError::Refused(text.into())));
    }

    #[test]
    fn the_order_is_stable_and_of_no_meaning() {
        let bundles = State::default().take_all((1..=20).collect());
        let wanted = TrustBundleWanted { anchors: Anchors::Named("a".into()), optional: false };
        let order = |seed: u8| anchors(&bundles, &wanted, [seed; 8]).unwrap();
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    impl State {
        fn take_all(mut self, anchors: Vec<u8>) -> BTreeMap<String, Bundle> {
            self.take(Change::Restarted(vec![bundle("a", "s", "x", &anchors)].into()));
            self.bundles.unwrap()
        }
    }

    #[test]
    fn who_is_told_of_a_change() {
        let mut state = state();
        let uid = |number: u8| PodUid::parse(&format!("11111111-2222-3333-4444-5555555555{number:02}")).unwrap();
        state.users.insert(uid(1), ["a".to_owned()].into());
        state.users.insert(uid(2), ["s".to_owned()].into());
        state.users.insert(uid(3), ["c".to_owned()].into());
        let mut told = |change| {
            let mut told = state.take(change);
            told.sort();
            told
        };
        assert_eq!(told(Change::Applied(bundle("a", "s", "x", &[9]))), [uid(1), uid(2)]);
        assert_eq!(told(Change::Applied(bundle("a", "s", "x", &[9]))), []);
        let object = |name: &str| ObjectRef { name: name.into(), ..ObjectRef::default() };
        assert_eq!(told(Change::Deleted(object("c"))), [uid(3)]);
        assert_eq!(told(Change::Failed("away".into())), []);
        // Bundle b exists and cannot be decoded: it has not changed.
        let (objects, undecodable) = (vec![bundle("a", "other", "x", &[9])], vec![object("b")]);
        assert_eq!(told(Change::Restarted(List { objects, undecodable })), [uid(1), uid(2)]);
        assert!(state.bundles.as_ref().unwrap().contains_key("b"));
        assert_eq!(state.take(Change::Restarted(vec![bundle("a", "other", "x", &[9])].into())), [uid(2)], "s had b");
    }
}
