//! The cluster's services, as far as environment variables need them: one watch, and of each service only its address
//! and ports.

use std::sync::Arc;

use bulkhead_apiclient::watch::{Change, Scope, watch_with};
use bulkhead_apiclient::{ApiClient, Lane, ObjectRef};
use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1 as k8s;
use tokio::sync::watch;

use kubelet_model::objects::KnownServices;
use kubelet_model::objects::{Service, ServicePort};

/// Changes that are taken in before others see the result.
const BATCH: usize = 256;

/// Every service but headless ones, which have no variables (upstream filters alike).
pub fn changes(client: &ApiClient) -> BoxStream<'static, Change<k8s::Service>> {
    let scope = Scope { field_selector: "spec.clusterIP!=None".to_owned(), ..Scope::default() };
    watch_with(client, Lane::Main, scope, |service: &mut k8s::Service| {
        service.metadata.annotations = None;
        service.metadata.labels = None;
        service.status = None;
    })
}

fn compact(service: &k8s::Service) -> Service {
    let spec = service.spec.as_ref();
    let port = |port: &k8s::ServicePort| ServicePort {
        name: port.name.clone().unwrap_or_default(),
        protocol: port.protocol.clone().unwrap_or_default(),
        port: port.port,
    };
    Service {
        namespace: service.metadata.namespace.clone().unwrap_or_default(),
        name: service.metadata.name.clone().unwrap_or_default(),
        cluster_ip: spec.and_then(|s| s.cluster_ip.clone()).unwrap_or_default(),
        ports: spec.into_iter().flat_map(|s| s.ports.iter().flatten()).map(port).collect(),
    }
}

/// Sorted by namespace and name.
type Sorted = Vec<Service>;

fn place(known: &Sorted, namespace: &str, name: &str) -> Result<usize, usize> {
    known.binary_search_by(|s| (&*s.namespace, &*s.name).cmp(&(namespace, name)))
}

/// Takes one change in; false when it changes nothing. Pure.
fn take(known: &mut Sorted, change: Change<k8s::Service>) -> bool {
    match change {
        Change::Restarted(all) => {
            let last = |one: &ObjectRef| place(known, &one.namespace, &one.name).ok().map(|at| known[at].clone());
            let mut new: Sorted = all.objects.iter().map(compact).collect();
            new.extend(all.undecodable.iter().filter_map(last));
            new.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
            let changed = *known != new;
            *known = new;
            changed
        }
        Change::Applied(service) => {
            let service = compact(&service);
            match place(known, &service.namespace, &service.name) {
                Ok(at) if known[at] == service => return false,
                Ok(at) => known[at] = service,
                Err(at) => known.insert(at, service),
            }
            true
        }
        Change::Deleted(service) => {
            let found = place(known, &service.namespace, &service.name);
            found.map(|at| known.remove(at)).is_ok()
        }
        Change::Failed(error) => {
            tracing::debug!("services could not be watched on the API server: {error}");
            false
        }
    }
}

/// Follows the services for ever.
pub async fn follow(mut changes: BoxStream<'static, Change<k8s::Service>>, services: watch::Sender<KnownServices>) {
    while let Some(change) = changes.next().await {
        let before = services.borrow().clone();
        let mut known = before.services.to_vec();
        let mut synced = before.synced;
        let (mut changed, mut next) = (false, Some(change));
        // What has arrived together becomes one new list.
        for _ in 0..BATCH {
            let Some(change) = next.take() else { break };
            synced |= matches!(change, Change::Restarted(_));
            changed |= take(&mut known, change);
            next = changes.next().now_or_never().flatten();
        }
        if let Some(rest) = next {
            synced |= matches!(rest, Change::Restarted(_));
            changed |= take(&mut known, rest);
        }
        if changed || synced != before.synced {
            let list: Arc<[Service]> = if changed { known.into() } else { before.services };
            services.send_replace(KnownServices { services: list, synced });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_apiclient::watch::List;
    use serde_json::json;

    fn service(namespace: &str, name: &str, ip: &str) -> k8s::Service {
        serde_json::from_value(json!({"metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": ip, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}}))
        .unwrap()
    }

    #[tokio::test]
    async fn a_list_then_changes() {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let (services, mut known) = watch::channel(KnownServices::default());
        tokio::spawn(follow(tokio_stream::wrappers::UnboundedReceiverStream::new(receiver).boxed(), services));
        let shown = |known: &KnownServices| {
            known.services.iter().map(|s| format!("{}/{}={}", s.namespace, s.name, s.cluster_ip)).collect::<Vec<_>>()
        };
        assert!(!known.borrow().synced);
        sender.send(Change::Failed("away".into())).unwrap();
        sender.send(Change::Restarted(vec![service("b", "x", "2"), service("a", "y", "1")].into())).unwrap();
        assert_eq!(shown(&known.wait_for(|k| k.synced).await.unwrap()), ["a/y=1", "b/x=2"]);
        sender.send(Change::Applied(service("a", "z", "3"))).unwrap();
        sender.send(Change::Applied(service("a", "y", "4"))).unwrap();
        let gone = ObjectRef { namespace: "b".into(), name: "x".into(), uid: String::new() };
        sender.send(Change::Deleted(gone)).unwrap();
        let last = known.wait_for(|k| !k.services.iter().any(|s| s.namespace == "b")).await.unwrap().clone();
        assert_eq!(shown(&last), ["a/y=4", "a/z=3"]);
        assert_eq!(last.services[0].ports[0].port, 80);
        // Two that cannot be decoded: of one there is a copy.
        let object = |name: &str| ObjectRef { namespace: "a".into(), name: name.into(), uid: String::new() };
        let undecodable = vec![object("z"), object("none")];
        sender.send(Change::Restarted(List { objects: vec![service("a", "a", "5")], undecodable })).unwrap();
        let kept = known.wait_for(|k| k.services[0].name == "a").await.unwrap().clone();
        assert_eq!(shown(&kept), ["a/a=5", "a/z=3"]);
        sender.send(Change::Restarted(vec![].into())).unwrap();
        assert!(known.wait_for(|k| k.services.is_empty()).await.unwrap().synced);
    }
}
