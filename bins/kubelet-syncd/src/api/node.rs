//! Our Node as the API server has it, and what follows from it here: the host's addresses that pods are told, and the
//! pods' address ranges that the runtime is told.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::watch::{Change, Scope, watch};
use bulkhead_apiclient::{ApiClient, Lane, Reachability};
use bulkhead_config::NodeConfig;
use bulkhead_cri::{CriClient, v1};
use bulkhead_daemon::addresses::{Prober, RESOLVE_DEADLINE};
use bulkhead_types::NodeName;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

use kubelet_model::node_facts::SharedFacts;

/// Pause before the runtime is told again after a failure; upstream tries with each node status.
const RETRY: Duration = Duration::from_secs(10);
/// How often the host is asked for its addresses while nobody else names them: while it has none, and after.
const ASK_SOON: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// So long pods wait for the watch of our Node while the API server answers. Upstream has no limit there; but whatever
/// keeps that one watch from beginning (a role that lost `nodes`, a proxy) is no reason to start no pod at all. Only a pod
/// that does not fit the labels known from the command line goes on waiting for it.
const LATE: Duration = Duration::from_secs(30);

/// What the watch has seen.
#[derive(Debug, Clone, Default)]
pub struct NodeSeen {
    /// It has delivered: an absent Node is known to be absent.
    pub synced: bool,
    /// Without its list of images, which nobody here reads.
    pub node: Option<Arc<Node>>,
    /// The whole of it as JSON, for who writes it; empty when there is none.
    pub json: Arc<[u8]>,
}

/// The Node of that name.
pub fn changes(client: &ApiClient, name: &NodeName) -> BoxStream<'static, Change<Node>> {
    let scope = Scope { field_selector: format!("metadata.name={name}"), ..Scope::default() };
    watch(client, Lane::Main, scope)
}

/// Waits until the Node is known, or is late. False: nobody follows it any more.
pub async fn known_or_late(
    mut node: watch::Receiver<NodeSeen>,
    mut reachability: watch::Receiver<Reachability>,
) -> bool {
    let late = async {
        // While the server does not answer, its pods are not to be had either, and the Node comes first when it is back.
        if reachability.wait_for(Reachability::is_reachable).await.is_err() {
            return std::future::pending().await;
        }
        tokio::time::sleep(LATE).await;
    };
    if !node.borrow().synced {
        tracing::info!("waiting for the Node to sync before listing its pods");
    }
    tokio::select! {
        biased;
        known = node.wait_for(|node| node.synced) => known.is_ok(),
        () = late => {
            tracing::warn!(
                seconds = LATE.as_secs(),
                "the API server answers, but has not said what it has of our Node: its pods are asked for without, and go \
                 by the labels of the command line"
            );
            true
        }
    }
}

/// Follows the Node for ever. `current` is `initial` while the server says that it has none.
pub async fn follow(
    mut changes: BoxStream<'static, Change<Node>>,
    name: NodeName,
    initial: Arc<Node>,
    seen: watch::Sender<NodeSeen>,
    current: watch::Sender<Option<Arc<Node>>>,
) {
    while let Some(change) = changes.next().await {
        let node = match change {
            // It is there; what was known of it, be it nothing, goes on counting.
            Change::Restarted(all) if all.undecodable.iter().any(|node| node.name == name.as_str()) => continue,
            Change::Restarted(all) => all.objects.into_iter().find(|node| is(node, &name)),
            Change::Applied(node) if is(&node, &name) => Some(node),
            Change::Deleted(node) if node.name == name.as_str() => None,
            Change::Applied(_) | Change::Deleted(_) => continue,
            Change::Failed(error) => {
                tracing::debug!("the Node could not be watched on the API server: {error}");
                continue;
            }
        };
        let now = of(node);
        let known = now.node.clone().unwrap_or_else(|| initial.clone());
        // The Node itself before the news that it is known: who waits for the news finds it.
        current.send_replace(Some(known));
        seen.send_if_modified(|seen| {
            let changed = seen.synced != now.synced || seen.json != now.json;
            *seen = now;
            changed
        });
    }
}

fn is(node: &Node, name: &NodeName) -> bool {
    node.metadata.name.as_deref() == Some(name.as_str())
}

fn of(node: Option<Node>) -> NodeSeen {
    let Some(mut node) = node else { return NodeSeen { synced: true, ..NodeSeen::default() } };
    let json: Arc<[u8]> = serde_json::to_vec(&node).unwrap_or_default().into();
    if let Some(status) = &mut node.status {
        status.images = None;
    }
    NodeSeen { synced: true, node: Some(Arc::new(node)), json }
}

/// Addresses of a host: the first internal one (an external one where there is none), and the first of the other family
/// (upstream `pkg/util/node`, GetNodeHostIPs). Empty: the Node names none.
pub fn host_ips(node: &Node) -> Vec<IpAddr> {
    let addresses = || node.status.iter().flat_map(|s| s.addresses.iter().flatten());
    let of_type = |wanted: &'static str| {
        addresses().filter(move |a| a.type_ == wanted).filter_map(|a| bulkhead_types::ip::parse_sloppy(&a.address))
    };
    let all: Vec<IpAddr> = of_type("InternalIP").chain(of_type("ExternalIP")).collect();
    let Some(first) = all.first().copied() else { return Vec::new() };
    let other = all.iter().copied().find(|ip| ip.is_ipv6() != first.is_ipv6());
    [Some(first), other].into_iter().flatten().collect()
}

/// The ranges of pod addresses as the runtime is told them; empty while none are assigned.
pub fn pod_cidrs(node: &Node) -> String {
    let spec = node.spec.as_ref();
    let all = spec.and_then(|s| s.pod_cidrs.clone()).filter(|cidrs| !cidrs.is_empty());
    all.map_or_else(|| spec.and_then(|s| s.pod_cidr.clone()).unwrap_or_default(), |cidrs| cidrs.join(","))
}

/// Whether the host is asked for its addresses while the Node names none. Where a cloud names them and `--node-ip` does not,
/// nobody guesses (upstream `nodestatus.NodeAddress`, by which `initialNode` has a Hostname alone): pods that are told the
/// host's address wait for the cloud's word.
pub fn is_host_asked(config: &NodeConfig) -> bool {
    config.flags.cloud_provider != "external" || !config.node_ips.is_empty()
}

/// Keeps the node's addresses as the API server has them. While it names none, and where there is no API server, the host is
/// asked again and again where it may be ([`is_host_asked`]): upstream asks it at each use, and a cable that is put in late is
/// noticed without a restart.
pub async fn keep_addresses(
    mut seen: watch::Receiver<NodeSeen>,
    config: Arc<NodeConfig>,
    mut detection: Prober,
    facts: SharedFacts,
) {
    let (mut followed, may_ask) = (true, is_host_asked(&config));
    loop {
        let mut ips = seen.borrow_and_update().node.as_deref().map(host_ips).unwrap_or_default();
        let asks = ips.is_empty() && may_ask;
        if asks {
            ips = detection.host_ips(&config.node_ips, config.node_name.as_str(), RESOLVE_DEADLINE).await;
        }
        // That there is no route at this moment takes no address away from pods that run.
        if !ips.is_empty() && facts.set_host_ips(ips.clone()) {
            tracing::info!(addresses = ?ips, "Node addresses changed");
        }
        let again = if ips.is_empty() { ASK_SOON } else { ASK_AGAIN };
        if !asks && !followed {
            return;
        }
        tokio::select! {
            changed = seen.changed(), if followed => followed = changed.is_ok(),
            () = tokio::time::sleep(again), if asks => {}
        }
    }
}

/// Tells the runtime the ranges of pod addresses: the configured one, then whatever the Node has.
pub async fn keep_pod_cidrs(configured: String, mut seen: watch::Receiver<NodeSeen>, cri: CriClient) {
    let (mut told, mut wanted) = (String::new(), configured);
    loop {
        let cidrs = seen.borrow_and_update().node.as_deref().map(pod_cidrs).unwrap_or_default();
        if !cidrs.is_empty() {
            wanted = cidrs;
        }
        if wanted != told {
            let network_config = Some(v1::NetworkConfig { pod_cidr: wanted.clone() });
            let config = Some(v1::RuntimeConfig { network_config });
            match cri.update_runtime_config(v1::UpdateRuntimeConfigRequest { runtime_config: config }).await {
                Ok(_) => {
                    tracing::info!(originalPodCIDR = told, newPodCIDR = wanted, "Updating Pod CIDR");
                    told.clone_from(&wanted);
                }
                Err(error) => tracing::warn!(%error, "failed to update pod CIDR"),
            }
        }
        let retry = wanted != told;
        tokio::select! {
            Ok(()) = seen.changed() => {}
            () = tokio::time::sleep(RETRY), if retry => {}
            // Without an API server nothing will change.
            else => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_apiclient::ObjectRef;
    use bulkhead_apiclient::watch::List;
    use serde_json::json;

    fn node(value: serde_json::Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn addresses() {
        let with = |addresses: &[(&str, &str)]| {
            let list: Vec<_> = addresses.iter().map(|(t, a)| json!({"type": t, "address": a})).collect();
            let ips = host_ips(&node(json!({"metadata": {}, "status": {"addresses": list}})));
            ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let cases: [(&[(&str, &str)], &str); 6] = [
            (&[], ""),
            (&[("Hostname", "10.0.0.1"), ("InternalIP", "x")], ""),
            (&[("Hostname", "n"), ("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2")], "10.0.0.1"),
            (&[("InternalIP", "fd00::1"), ("InternalIP", "10.0.0.2")], "fd00::1 10.0.0.2"),
            (&[("ExternalIP", "1.2.3.4"), ("InternalIP", "10.0.0.1")], "10.0.0.1"),
            (&[("ExternalIP", "2001:db8::1"), ("InternalIP", "10.0.0.1")], "10.0.0.1 2001:db8::1"),
        ];
        for (addresses, expected) in cases {
            assert_eq!(with(addresses), expected, "{addresses:?}");
        }
    }

    #[test]
    fn ranges() {
        assert_eq!(pod_cidrs(&node(json!({"metadata": {}}))), "");
        assert_eq!(pod_cidrs(&node(json!({"metadata": {}, "spec": {"podCIDR": "10.1.0.0/24"}}))), "10.1.0.0/24");
        let both =
            json!({"metadata": {}, "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd01::/64"]}});
        assert_eq!(pod_cidrs(&node(both)), "10.1.0.0/24,fd01::/64");
    }

    #[tokio::test]
    async fn an_absent_node_is_known_and_stood_in_for() {
        let named = |labels: serde_json::Value| node(json!({"metadata": {"name": "n", "labels": labels}}));
        let initial = Arc::new(named(json!({"from": "flags"})));
        let other = node(json!({"metadata": {"name": "other"}}));
        let (seen_sender, mut seen) = watch::channel(NodeSeen::default());
        let (current_sender, current) = watch::channel(None);
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let stream = tokio_stream::wrappers::UnboundedReceiverStream::new(receiver).boxed();
        let name = NodeName::parse("n").unwrap();
        tokio::spawn(follow(stream, name, initial.clone(), seen_sender, current_sender));
        let label_of = |node: &Option<Arc<Node>>| {
            node.as_ref().map_or_else(String::new, |node| node.metadata.labels.clone().unwrap()["from"].clone())
        };
        let label = || label_of(&current.borrow());

        sender.send(Change::Failed("away".into())).unwrap();
        sender.send(Change::Restarted(vec![other].into())).unwrap();
        seen.wait_for(|seen| seen.synced).await.unwrap();
        assert!(seen.borrow().node.is_none() && seen.borrow().json.is_empty());
        assert_eq!(label(), "flags");

        let mut real = named(json!({"from": "server"}));
        real.status = serde_json::from_value(json!({"images": [{"names": ["i"]}]})).unwrap();
        sender.send(Change::Applied(real)).unwrap();
        let now = seen.wait_for(|seen| seen.node.is_some()).await.unwrap().clone();
        assert_eq!(label(), "server");
        assert!(now.node.unwrap().status.as_ref().unwrap().images.is_none());
        assert!(String::from_utf8(now.json.to_vec()).unwrap().contains("images"));
        // It cannot be decoded any more: that is no word on whether it is there.
        let object = ObjectRef { name: "n".into(), ..ObjectRef::default() };
        sender.send(Change::Restarted(List { objects: Vec::new(), undecodable: vec![object.clone()] })).unwrap();
        sender.send(Change::Applied(named(json!({"from": "later"})))).unwrap();
        current.clone().wait_for(|node| label_of(node) == "later").await.unwrap();
        assert!(seen.borrow_and_update().node.is_some());
        sender.send(Change::Deleted(object)).unwrap();
        seen.wait_for(|seen| seen.node.is_none()).await.unwrap();
        assert_eq!(label(), "flags");
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_of_the_host_are_used_until_the_node_has_some() {
        use kubelet_model::node_facts::{HostFacts, NodeFacts};
        let mut config = NodeConfig::for_tests(std::path::Path::new("/nowhere"));
        // A name that is an address needs no resolver.
        config.node_name = NodeName::parse("192.0.2.9").unwrap();
        let ip = |text: &str| vec![text.parse::<IpAddr>().unwrap()];
        let start = |seen| {
            let facts = SharedFacts::new(NodeFacts::new(HostFacts::default()));
            tokio::spawn(keep_addresses(seen, Arc::new(config.clone()), Prober::default(), facts.clone()));
            facts
        };
        // Without an API server nobody ever tells.
        let (_, nothing) = watch::channel(NodeSeen::default());
        let facts = start(nothing);
        facts.watch().wait_for(|facts| facts.host_ips == ip("192.0.2.9")).await.unwrap();
        facts.set_host_ips(ip("10.0.0.1"));
        facts.watch().wait_for(|facts| facts.host_ips == ip("192.0.2.9")).await.unwrap();

        let (sender, seen) = watch::channel(NodeSeen::default());
        let facts = start(seen);
        facts.watch().wait_for(|facts| facts.host_ips == ip("192.0.2.9")).await.unwrap();
        let named =
            node(json!({"metadata": {}, "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.2"}]}}));
        sender.send_replace(NodeSeen { synced: true, node: Some(Arc::new(named)), ..NodeSeen::default() });
        facts.watch().wait_for(|facts| facts.host_ips == ip("10.0.0.2")).await.unwrap();
        sender.send_replace(NodeSeen { synced: true, ..NodeSeen::default() });
        facts.watch().wait_for(|facts| facts.host_ips == ip("192.0.2.9")).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn where_a_cloud_names_the_addresses_nobody_guesses() {
        use kubelet_model::node_facts::{HostFacts, NodeFacts};
        let mut config = NodeConfig::for_tests(std::path::Path::new("/nowhere"));
        config.node_name = NodeName::parse("192.0.2.9").unwrap();
        assert!(is_host_asked(&config));
        config.flags.cloud_provider = "external".into();
        assert!(!is_host_asked(&config));
        let with_ip = NodeConfig { node_ips: vec!["0.0.0.0".parse().unwrap()], ..config.clone() };
        assert!(is_host_asked(&with_ip), "--node-ip speaks for itself");

        let (sender, seen) = watch::channel(NodeSeen::default());
        let facts = SharedFacts::new(NodeFacts::new(HostFacts::default()));
        let kept = tokio::spawn(keep_addresses(seen, Arc::new(config), Prober::default(), facts.clone()));
        let told = |addresses: serde_json::Value| {
            let node = node(json!({"metadata": {}, "status": {"addresses": addresses}}));
            sender.send_replace(NodeSeen { synced: true, node: Some(Arc::new(node)), ..NodeSeen::default() });
        };
        told(json!([{"type": "Hostname", "address": "192.0.2.9"}]));
        tokio::time::sleep(10 * ASK_AGAIN).await;
        assert!(facts.get().host_ips.is_empty());
        told(json!([{"type": "InternalIP", "address": "10.0.0.2"}]));
        let cloud: IpAddr = "10.0.0.2".parse().unwrap();
        facts.watch().wait_for(|facts| facts.host_ips == [cloud]).await.unwrap();
        // Taken away again, it stays with pods that run; and with the end of the news that of the task comes.
        told(json!([]));
        drop(sender);
        kept.await.unwrap();
        assert_eq!(facts.get().host_ips, [cloud]);
    }

    #[tokio::test(start_paused = true)]
    async fn pods_wait_for_the_node_as_long_as_that_makes_sense() {
        use tokio::time::Instant;
        let (seen, node) = watch::channel(NodeSeen::default());
        let (server, reachability) = watch::channel(Reachability::Unknown);
        let waiting = tokio::spawn(known_or_late(node.clone(), reachability.clone()));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!waiting.is_finished(), "the server's silence is not the Node's");
        let began = Instant::now();
        server.send_replace(Reachability::Reachable { since: began });
        assert!(waiting.await.unwrap());
        assert_eq!(began.elapsed(), LATE);

        let began = Instant::now();
        let waiting = tokio::spawn(known_or_late(node.clone(), reachability.clone()));
        seen.send_replace(NodeSeen { synced: true, ..NodeSeen::default() });
        assert!(waiting.await.unwrap());
        assert_eq!(began.elapsed(), Duration::ZERO);

        let (gone, node) = watch::channel(NodeSeen::default());
        drop(gone);
        assert!(!known_or_late(node, reachability).await);
    }
}
