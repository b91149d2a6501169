//! How long pods wait for a plugin that comes back, and what becomes of one that does not.

use std::path::Path;

use bulkhead_device_plugin::v1beta1::Device as Offered;
use futures_util::FutureExt as _;
use kubelet_container_manager::devices::plugins::STOP_GRACE;
use kubelet_container_manager::topology::Hint;
use kubelet_edges::fixtures::Direct;
use prometheus::Registry;
use serde_json::json;

use super::*;

const R: &str = "example.com/r";

#[derive(Debug)]
struct Nothing;

impl EndpointStore for Nothing {
    fn load(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn save(&self, _: &BTreeMap<String, String>) {}
}

/// After a start with a checkpoint that names the resource.
fn started(waits: bool) -> Arc<Devices> {
    let registered = BTreeMap::from([(R.to_owned(), vec!["a".to_owned()])]);
    let found = file::Devices { pod_device_entries: None, registered_devices: Some(registered) };
    Devices::new(Parts {
        dial: Arc::new(Direct),
        folder: PathBuf::new(),
        broker: BrokerClient::new(Path::new("/nowhere")),
        cache: Arc::default(),
        metrics: DeviceMetrics::register(&Registry::new()).unwrap(),
        store: Box::new(Nothing),
        news: Arc::default(),
        gates: Gates::default(),
        waits,
        health: true,
        timeout: Duration::from_secs(5),
        machine: vec![0],
        found: Some(file::write(&found).unwrap()),
    })
}

fn pod(uid: &str) -> Arc<Pod> {
    let containers = json!([{"name": "main", "resources": {"limits": {R: "1"}}}]);
    Arc::new(serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": {"containers": containers}})).unwrap())
}

/// What the decision on the pod says once nothing is waited for.
fn decide(devices: &Devices, pod: &Pod) -> Result<(), Refusal> {
    let request = devices.request(pod);
    let mut provider = devices.hint_provider().unwrap();
    provider.allocate(&request, &request.containers[0], Hint { affinity: None, preferred: false })
}

fn refused(devices: &Devices, pod: &Pod) {
    let refusal = decide(devices, pod).unwrap_err();
    let words = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices example.com/r, \
                 which is unexpected";
    assert_eq!((refusal.reason, refusal.message.as_str()), ("UnexpectedAdmissionError", words));
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_until_the_plugin_has_told_its_devices() {
    let (devices, pod, began) = (started(true), pod("u"), Instant::now());
    let wait = devices.until_decidable(&pod).unwrap();
    let comes_back = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        let generation = lock(&devices.manager).connect(R, PluginOptions::default());
        devices.changed.send_replace(());
        tokio::time::sleep(Duration::from_secs(5)).await;
        let offered = Offered { id: "a".to_owned(), health: HEALTHY.to_owned(), topology: None };
        assert!(devices.told(R, generation, ListAndWatchResponse { devices: vec![offered] }));
    };
    tokio::join!(wait, comes_back);
    assert_eq!(began.elapsed().as_secs(), 25);
    assert!(devices.until_decidable(&pod).is_none());
    assert_eq!(decide(&devices, &pod), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_wait_has_an_end() {
    let (devices, pod, began) = (started(true), pod("u"), Instant::now());
    // Somebody asks again meanwhile: it is the same wait.
    let first = devices.until_decidable(&pod).unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(10), first).await.is_err());
    devices.until_decidable(&pod).unwrap().await;
    assert_eq!(began.elapsed().as_secs(), COMING_BACK.as_secs());
    assert!(devices.until_decidable(&pod).is_none(), "it has waited");
    refused(&devices, &pod);
    // Another pod has a wait of its own, and so has a pod that comes again.
    assert!(devices.until_decidable(&super::tests::pod("v")).is_some());
    devices.take_back(&PodUid::parse("u").unwrap());
    assert!(devices.until_decidable(&pod).is_some());
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_where_it_is_turned_off() {
    let (devices, pod) = (started(false), pod("u"));
    assert!(devices.until_decidable(&pod).is_none());
    refused(&devices, &pod);
}

#[tokio::test(start_paused = true)]
async fn the_checkpoint_is_written_once_more_for_a_plugin_that_does_not_come_back() {
    let (devices, began) = (started(true), std::time::Instant::now());
    let named = || lock(&devices.manager).to_file().registered_devices.unwrap().contains_key(R);
    let is_dirty = || devices.dirty.notified().now_or_never().is_some();
    let none = BTreeMap::from([(R.to_owned(), 0)]);
    let shown = Capacity { capacity: none.clone(), allocatable: none };
    assert_eq!(devices.look(began), shown);
    assert!(named() && !is_dirty());
    // Its grace began with the start, a moment ago at most.
    let over = began + STOP_GRACE + Duration::from_secs(1);
    assert_eq!(devices.look(over), shown);
    assert!(!named() && is_dirty());
    devices.look(over);
    assert!(!is_dirty(), "once");
    assert!(devices.until_decidable(&pod("u")).is_none(), "nobody waits for it any more");
}
