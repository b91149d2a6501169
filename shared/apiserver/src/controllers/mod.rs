//! What a real cluster's controllers do that a node depends on: namespaces with their account and certificate, pods
//! bound to nodes, signing requests approved and signed, taints and addresses of nodes, clearing up.

mod cleaning;
mod namespaces;
mod nodes;
mod scheduling;
mod signing;

use std::sync::Arc;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

pub use self::signing::Approval;
use super::Shared;
use super::identity::{MASTERS, User};
use super::registry::{self, Context};
use super::resources::named;
use super::storage::{ChangeKind, Store};

/// Objects of a cluster that just began.
pub(super) fn furnish(shared: &Shared) -> Result<()> {
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        create(shared, "namespaces", "", json!({"metadata": {"name": name}}))?;
    }
    for (name, value) in [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)] {
        create(shared, "priorityclasses", "", json!({"metadata": {"name": name}, "value": value}))?;
    }
    namespaces::furnish_all(shared);
    let service = json!({
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
    });
    create(shared, "services", "default", service)
}

/// Creates an object as the cluster itself.
fn create(shared: &Shared, plural: &str, namespace: &str, mut object: Value) -> Result<()> {
    let resource = named(plural);
    object["kind"] = json!(resource.kind);
    object["apiVersion"] = json!(resource.api_version());
    let user = User::new("system:kube-controller-manager", &[MASTERS]);
    let context = Context { user: &user, now: shared.clock.now(), dry_run: false, taint_new_nodes: false };
    registry::create(&mut shared.store(), context, resource, namespace, object)
        .map(drop)
        .with_context(|| format!("creating {} in {namespace:?}", resource.plural))
}

/// What has changed since the last look, as far as a controller cares: most changes concern none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct News {
    namespaces: bool,
    nodes: bool,
    nodes_gone: bool,
    /// New pods, or pods without a node.
    pods_waiting: bool,
    pods_gone: bool,
    requests: bool,
}

impl News {
    const EVERYTHING: Self =
        Self { namespaces: true, nodes: true, nodes_gone: true, pods_waiting: true, pods_gone: true, requests: true };

    /// What is new after version `after`.
    fn since(store: &Store, after: u64) -> Self {
        let of = |plural: &str| store.changes_after(named(plural), after);
        let (Ok(mut namespaces), Ok(nodes), Ok(pods), Ok(mut requests)) =
            (of("namespaces"), of("nodes"), of("pods"), of("certificatesigningrequests"))
        else {
            // More happened than is remembered.
            return Self::EVERYTHING;
        };
        let mut news = Self {
            namespaces: namespaces.next().is_some(),
            nodes: false,
            nodes_gone: false,
            pods_waiting: false,
            pods_gone: false,
            requests: requests.next().is_some(),
        };
        for change in nodes {
            news.nodes = true;
            news.nodes_gone |= change.kind == ChangeKind::Deleted;
        }
        for change in pods {
            news.pods_gone |= change.kind == ChangeKind::Deleted;
            news.pods_waiting |= change.kind == ChangeKind::Added
                || change.object.value["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
        }
        news
    }
}

/// Looks again whenever one of the resources that they care about has changed.
pub(super) async fn run(shared: Arc<Shared>) {
    let watched = ["namespaces", "nodes", "pods", "certificatesigningrequests"].map(named);
    let mut changes = {
        let store = shared.store();
        watched.map(|resource| store.subscribe(resource))
    };
    let (mut seen, mut news) = (0, News::EVERYTHING);
    loop {
        for change in &mut changes {
            change.borrow_and_update();
        }
        {
            let store = shared.store();
            if seen > 0 {
                news = News::since(&store, seen);
            }
            seen = store.version();
        }
        if news.namespaces {
            namespaces::furnish_all(&shared);
        }
        if news.namespaces || news.pods_gone {
            cleaning::clean_namespaces(&shared);
        }
        if news.nodes_gone || news.pods_waiting {
            cleaning::clean_orphans(&shared);
        }
        if news.nodes {
            nodes::settle(&shared);
        }
        if news.requests {
            signing::sign_all(&shared);
        }
        if shared.config.scheduler && (news.nodes || news.pods_waiting) {
            scheduling::bind_all(&shared);
        }
        let [first, second, third, fourth] = &mut changes;
        tokio::select! {
            _ = first.changed() => {}
            _ = second.changed() => {}
            _ = third.changed() => {}
            _ = fourth.changed() => {}
        }
        // One look after a burst, not one for each change.
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}
