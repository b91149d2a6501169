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
    let gpu = Device { resource: "vendor.com/gpu".into(), id: "g0".into(), nodes: Some(vec![0, 1]) };
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
        let device = Device { resource: "vendor.com/gpu".into(), id: "g0".into(), nodes: Some(vec![0, 1]) };
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
    // A device that is near to two nodes is told twice.
    let near = |device: &v1::ContainerDevices| {
        let nodes = device.topology.iter().flat_map(|topology| &topology.nodes).map(|node| node.id).collect::<Vec<_>>();
        (device.resource_name.clone(), device.device_ids.concat(), nodes)
    };
    let gpu = |node: i64| ("vendor.com/gpu".to_owned(), "g0".to_owned(), vec![node]);
    let nic = ("vendor.com/nic".to_owned(), "n0".to_owned(), vec![]);
    assert_eq!(main.devices.iter().map(near).collect::<Vec<_>>(), [gpu(0), gpu(1), nic]);
    assert_eq!(main.devices[2].topology, None);
    assert_eq!((main.memory[0].size, &main.memory[0].topology), (1 << 30, &Some(topology([0, 1]))));
    let claimed = &main.dynamic_resources[0].claim_resources[0];
    assert_eq!((claimed.cdi_devices[0].name.as_str(), claimed.share_id.as_deref()), ("vendor.com/dev=1", Some("s")));

    let ask = |name: &str| v1::GetPodResourcesRequest { pod_name: name.into(), pod_namespace: "ns".into() };
    let got = client.get(ask("runs")).await.unwrap().into_inner().pod_resources.unwrap();
    assert_eq!(got, listed[0]);
    let refused = client.get(ask("over")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (tonic::Code::Unknown, "pod over in namespace ns not found"));
    let all = client.get_allocatable_resources(v1::AllocatableResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(all.devices.iter().map(near).collect::<Vec<_>>(), [gpu(0), gpu(1)]);
    assert_eq!((all.cpu_ids, all.memory[0].memory_type.as_str()), (vec![1, 2, 3], "hugepages-1Gi"));

    let first = V1alpha1Client::new(channel).list(v1alpha1::ListPodResourcesRequest {}).await.unwrap().into_inner();
    let told: Vec<(&str, Vec<&str>)> = first
        .pod_resources
        .iter()
        .map(|pod| (pod.name.as_str(), pod.containers.iter().map(|one| one.name.as_str()).collect()))
        .collect();
    assert_eq!(told, [("runs", vec!["main"]), ("over", vec!["main"])], "every pod, no sidecar");
    let ids = first.pod_resources[0].containers[0].devices.iter().map(|device| device.device_ids.concat());
    assert_eq!(ids.collect::<Vec<_>>(), ["g0", "g0", "n0"], "as often as in v1");

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

/// A client of HTTP/2 that has a table of fields as Go's library has (RFC 7541, 2.3.2 and 4), and no Huffman code.
#[derive(Default)]
struct Raw {
    /// The newest first.
    table: std::collections::VecDeque<(String, String)>,
}

impl Raw {
    fn field(&mut self, name: &str, value: &str, block: &mut Vec<u8>) {
        let text = |text: &str, block: &mut Vec<u8>| {
            assert!(text.len() < 127);
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.bytes());
        };
        let known = ["", ":authority", ":method", "", ":path", "", ":scheme"];
        if let Some(at) = self.table.iter().position(|(n, v)| (n.as_str(), v.as_str()) == (name, value)) {
            let index = 62 + at;
            assert!(index < 127 + 128);
            match u8::try_from(index).ok().filter(|index| *index < 127) {
                Some(index) => block.push(0x80 | index),
                None => block.extend([0xff, u8::try_from(index - 127).unwrap()]),
            }
            return;
        }
        match known.iter().position(|known| *known == name) {
            Some(index) => block.push(0x40 | u8::try_from(index).unwrap()),
            None => {
                block.push(0x40);
                text(name, block);
            }
        }
        text(value, block);
        self.table.push_front((name.to_owned(), value.to_owned()));
        let size = |table: &std::collections::VecDeque<(String, String)>| {
            table.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>()
        };
        while size(&self.table) > 4096 {
            self.table.pop_back();
        }
    }

    /// A call of `List` without a message's content.
    fn call(&mut self, stream: u32, authority: &str) -> Vec<u8> {
        let (mut block, extra) = (Vec::new(), format!("{stream:080}"));
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/v1.PodResourcesLister/List"),
            (":authority", authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            // Another one each time: the table overflows.
            ("extra", &extra),
        ] {
            self.field(name, value, &mut block);
        }
        [frame(1, 4, stream, &block), frame(0, 1, stream, &[0; 5])].concat()
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The type of the first frame of a stream: HEADERS, or RST_STREAM.
async fn answer(client: &mut UnixStream, stream: u32) -> u8 {
    use tokio::io::AsyncReadExt as _;
    loop {
        let mut head = [0; 9];
        client.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        client.read_exact(&mut payload).await.unwrap();
        assert_ne!(head[3], 7, "GOAWAY: {}", String::from_utf8_lossy(&payload));
        if head[5..9] == stream.to_be_bytes() {
            return head[3];
        }
    }
}

/// Programs of Go that dial a path themselves send it as the authority: with each slash escaped, or, of older libraries, as it is.
#[tokio::test]
async fn a_client_that_names_the_socket_as_its_authority_is_answered() {
    use tokio::io::AsyncWriteExt as _;
    let Served { _folder, .. } = serving(true).await;
    let path = _folder.path().join("kubelet.sock");
    let plain = path.display().to_string();
    for authority in [plain.replace('/', "%2F"), plain, "localhost".to_owned(), String::new()] {
        let (mut client, mut raw) = (UnixStream::connect(&path).await.unwrap(), Raw::default());
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        client.write_all(&frame(4, 0, 0, &[])).await.unwrap();
        for stream in (1..400).step_by(2) {
            client.write_all(&raw.call(stream, &authority)).await.unwrap();
            assert_eq!(answer(&mut client, stream).await, 1, "{authority:?}, stream {stream}");
        }
    }
}
