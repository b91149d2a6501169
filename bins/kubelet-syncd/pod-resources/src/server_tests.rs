use std::sync::Arc;

use hyper_util::rt::TokioIo;
use prometheus::Registry;
use prost::Message as _;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use super::*;
use crate::holds::{Allocatable, Claim, ClaimDevice, Container, Device, Holds, Memory, Pod};
use crate::v1::pod_resources_lister_client::PodResourcesListerClient as V1Client;
use crate::v1alpha1::pod_resources_lister_client::PodResourcesListerClient as V1alpha1Client;

/// A pod that runs and one that is over.
struct Two;

fn running() -> Pod {
    let gpu = Device { resource: "vendor.com/gpu".into(), id: "g0".into(), nodes: Some(vec![1]) };
    let nic = Device { resource: "vendor.com/nic".into(), id: "n0".into(), nodes: None };
    let device = ClaimDevice {
        driver: "d.example.com".into(),
        pool: "node".into(),
        device: "dev-1".into(),
        share_id: Some("s".into()),
        cdi: vec!["vendor.com/dev=1".into()],
    };
    let claim = Claim { namespace: "ns".into(), name: "c".into(), devices: vec![device] };
    let memory = Memory { kind: "memory".into(), bytes: 1 << 30, nodes: vec![0, 1] };
    let main = Holds { cpus: vec![2, 3], memory: vec![memory], devices: vec![gpu, nic], claims: vec![claim] };
    Pod {
        namespace: "ns".into(),
        name: "runs".into(),
        containers: vec![
            Container { name: "proxy".into(), sidecar: true, holds: Holds { cpus: vec![1], ..Holds::default() } },
            Container { name: "main".into(), sidecar: false, holds: main },
        ],
    }
}

fn over() -> Pod {
    let container = Container { name: "main".into(), ..Container::default() };
    Pod { namespace: "ns".into(), name: "over".into(), containers: vec![container] }
}

impl Providers for Two {
    fn pods(&self, which: Which) -> Vec<Pod> {
        match which {
            Which::Active => vec![running()],
            Which::All => vec![running(), over()],
        }
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        self.pods(Which::Active).into_iter().find(|pod| pod.namespace == namespace && pod.name == name)
    }

    fn allocatable(&self) -> Allocatable {
        let memory = Memory { kind: "hugepages-1Gi".into(), bytes: 2 << 30, nodes: vec![0] };
        let device = Device { resource: "vendor.com/gpu".into(), id: "g0".into(), nodes: Some(vec![1]) };
        Allocatable { cpus: vec![1, 2, 3], memory: vec![memory], devices: vec![device] }
    }
}

struct Served {
    channel: Channel,
    registry: Registry,
    _folder: tempfile::TempDir,
}

async fn serving(active_pods: bool) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubelet.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let registry = Registry::new();
    let lister = Lister::new(Arc::new(Two), EndpointMetrics::register(&registry).unwrap(), active_pods);
    tokio::spawn(serve(listener, lister, std::future::pending()));
    let connect = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connect).await.unwrap();
    Served { channel, registry, _folder: folder }
}

fn count(registry: &Registry, name: &str, version: &str) -> u64 {
    let name = format!("kubelet_pod_resources_endpoint_{name}");
    let family = registry.gather().into_iter().find(|family| family.name() == name);
    let series = family.iter().flat_map(|family| family.get_metric());
    let of = |one: &&prometheus::proto::Metric| one.get_label().iter().any(|label| label.value() == version);
    series.filter(of).map(|one| one.get_counter().get_value() as u64).sum()
}

#[tokio::test]
async fn both_versions_tell_what_they_know() {
    let Served { channel, registry, _folder } = serving(true).await;
    let mut client = V1Client::new(channel.clone());
    let listed = client.list(v1::ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
    let names: Vec<&str> = listed.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names, ["runs"]);
    let [proxy, main] = &listed[0].containers[..] else { panic!("{listed:?}") };
    assert_eq!((proxy.name.as_str(), &proxy.cpu_ids[..]), ("proxy", &[1][..]));
    assert_eq!(main.cpu_ids, [2, 3]);
    assert_eq!(
        main.devices[0],
        v1::ContainerDevices {
            resource_name: "vendor.com/gpu".into(),
            device_ids: vec!["g0".into()],
            topology: Some(topology([1])),
        }
    );
    assert_eq!(main.devices[1].topology, None);
    assert_eq!((main.memory[0].size, &main.memory[0].topology), (1 << 30, &Some(topology([0, 1]))));
    let claimed = &main.dynamic_resources[0].claim_resources[0];
    assert_eq!((claimed.cdi_devices[0].name.as_str(), claimed.share_id.as_deref()), ("vendor.com/dev=1", Some("s")));

    let ask = |name: &str| v1::GetPodResourcesRequest { pod_name: name.into(), pod_namespace: "ns".into() };
    let got = client.get(ask("runs")).await.unwrap().into_inner().pod_resources.unwrap();
    assert_eq!(got, listed[0]);
    let refused = client.get(ask("over")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (tonic::Code::Unknown, "pod over in namespace ns not found"));
    let all = client.get_allocatable_resources(v1::AllocatableResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(
        (all.cpu_ids, all.devices.len(), all.memory[0].memory_type.as_str()),
        (vec![1, 2, 3], 1, "hugepages-1Gi")
    );

    let first = V1alpha1Client::new(channel).list(v1alpha1::ListPodResourcesRequest {}).await.unwrap().into_inner();
    let told: Vec<(&str, Vec<&str>)> = first
        .pod_resources
        .iter()
        .map(|pod| (pod.name.as_str(), pod.containers.iter().map(|one| one.name.as_str()).collect()))
        .collect();
    assert_eq!(told, [("runs", vec!["main"]), ("over", vec!["main"])], "every pod, no sidecar");
    assert_eq!(first.pod_resources[0].containers[0].devices.len(), 2);

    let counts = ["requests_total", "requests_list", "requests_get", "requests_get_allocatable", "errors_get"];
    assert_eq!(counts.map(|name| count(&registry, name, V1)), [4, 1, 2, 1, 1]);
    assert_eq!(counts.map(|name| count(&registry, name, V1ALPHA1)), [1, 0, 0, 0, 0]);
}

#[tokio::test]
async fn without_the_gate_every_pod_is_listed() {
    let Served { channel, _folder, .. } = serving(false).await;
    let listed = V1Client::new(channel).list(v1::ListPodResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(listed.pod_resources.len(), 2);
}

#[tokio::test]
async fn too_many_requests_are_refused_together_and_not_counted() {
    let Served { channel, registry, _folder } = serving(true).await;
    let asked = (0..300).map(|number| {
        let channel = channel.clone();
        async move {
            if number % 2 == 0 {
                V1Client::new(channel).list(v1::ListPodResourcesRequest {}).await.err()
            } else {
                V1alpha1Client::new(channel).list(v1alpha1::ListPodResourcesRequest {}).await.err()
            }
        }
    });
    let refused: Vec<Status> = futures_util::future::join_all(asked).await.into_iter().flatten().collect();
    assert!(!refused.is_empty(), "300 requests at once");
    for status in &refused {
        assert_eq!((status.code(), status.message()), (tonic::Code::ResourceExhausted, "rejected by rate limit"));
    }
    let answered = count(&registry, "requests_total", V1) + count(&registry, "requests_total", V1ALPHA1);
    assert_eq!(answered, 300 - refused.len() as u64);
}

/// What Go's generated code writes for the same answer: field numbers, packed numbers, no field that is empty.
#[test]
fn the_bytes_are_upstreams() {
    let container = v1::ContainerResources {
        name: "c".into(),
        cpu_ids: vec![0, 300],
        devices: vec![v1::ContainerDevices {
            resource_name: "r".into(),
            device_ids: vec!["d".into()],
            topology: Some(topology([0, 1])),
        }],
        ..v1::ContainerResources::default()
    };
    let pod = v1::PodResources { name: "p".into(), namespace: "n".into(), containers: vec![container] };
    let bytes = v1::ListPodResourcesResponse { pod_resources: vec![pod] }.encode_to_vec();
    #[rustfmt::skip]
    let expected = [
        0x0a, 0x20, 0x0a, 1, b'p', 0x12, 1, b'n', 0x1a, 0x18,
        0x0a, 1, b'c', 0x12, 0x0e, 0x0a, 1, b'r', 0x12, 1, b'd', 0x1a, 6, 0x0a, 0, 0x0a, 2, 0x08, 1,
        0x1a, 3, 0, 0xac, 0x02,
    ];
    assert_eq!(bytes, expected, "{bytes:02x?}");
}
