//! How long pods wait for a plugin that comes back, and what becomes of one that does not.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use bulkhead_device_plugin::HEALTHY;
use bulkhead_device_plugin::v1beta1::{Device as Offered, ListAndWatchResponse};
use bulkhead_ipc::broker::BrokerRequest;
use bulkhead_ipc::volnetd::StateKind;
use bulkhead_sys::memfd;
use futures_util::FutureExt as _;
use kubelet_container_manager::devices::PluginOptions;
use kubelet_container_manager::devices::plugins::STOP_GRACE;
use kubelet_container_manager::topology::Hint;
use kubelet_edges::device_plugin::DIAL;
use kubelet_edges::fixtures::{self, Direct};
use prometheus::Registry;
use serde_json::json;

use super::*;

const R: &str = "example.com/r";

/// In memory; the second: it cannot be read, nor written.
#[derive(Debug, Default, Clone)]
struct Kept(Arc<Mutex<BTreeMap<String, String>>>, Arc<AtomicBool>);

impl EndpointStore for Kept {
    fn load(&self) -> std::io::Result<BTreeMap<String, String>> {
        if self.1.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        Ok(self.0.lock().clone())
    }

    fn save(&self, endpoints: &BTreeMap<String, String>) -> std::io::Result<()> {
        if self.1.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.0.lock().clone_from(endpoints);
        Ok(())
    }
}

#[test]
fn what_could_not_be_written_of_plugins_is_written_later() {
    let (store, mut kept) = (Kept::default(), Endpoints::default());
    assert!(kept.read(&store));
    kept.of.insert(R.to_owned(), "/plugin".to_owned());
    store.1.store(true, Ordering::Relaxed);
    kept.save(&store);
    assert!(kept.is_behind && !kept.catch_up(&store) && store.0.lock().is_empty());
    store.1.store(false, Ordering::Relaxed);
    assert!(kept.catch_up(&store) && !kept.is_behind);
    assert_eq!(*store.0.lock(), kept.of);
    store.0.lock().clear();
    assert!(kept.catch_up(&store) && store.0.lock().is_empty(), "once is enough");
}

/// After a start with a checkpoint that names the resource.
fn started(waits: bool) -> Arc<DevicePlugins> {
    started_with(waits, &Kept::default())
}

fn kept(endpoints: &[(&str, &str)]) -> Kept {
    let kept = Kept::default();
    let all = endpoints.iter().map(|(resource, of)| ((*resource).to_owned(), (*of).to_owned())).collect();
    kept.save(&all).unwrap();
    kept
}

fn started_with(waits: bool, kept: &Kept) -> Arc<DevicePlugins> {
    started_by(BrokerClient::new(Path::new("/nowhere")), waits, kept)
}

fn started_by(broker: BrokerClient, waits: bool, kept: &Kept) -> Arc<DevicePlugins> {
    let registered = BTreeMap::from([(R.to_owned(), vec!["a".to_owned()])]);
    let found = file::Devices { pod_device_entries: None, registered_devices: Some(registered) };
    let devices = DevicePlugins::new(Parts {
        dial: Arc::new(Direct),
        folder: PathBuf::new(),
        broker,
        cache: Arc::default(),
        metrics: DeviceMetrics::register(&Registry::new()).unwrap(),
        store: Box::new(kept.clone()),
        news: Arc::default(),
        gates: Gates::default(),
        waits,
        health: true,
        timeout: Duration::from_secs(5),
        machine: vec![0],
        found: Some(file::write(&found).unwrap()),
    });
    devices.kept.lock().read(&*devices.store);
    devices
}

fn pod(uid: &str) -> Arc<Pod> {
    let containers = json!([{"name": "main", "resources": {"limits": {R: "1"}}}]);
    Arc::new(serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": {"containers": containers}})).unwrap())
}

/// What the decision on the pod says once nothing is waited for.
fn decide(devices: &DevicePlugins, pod: &Pod) -> Result<(), Refusal> {
    let request = devices.request(pod);
    let mut provider = devices.hint_provider().unwrap();
    provider.allocate(&request, &request.containers[0], Hint { affinity: None, preferred: false })
}

fn refused(devices: &DevicePlugins, pod: &Pod) {
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
        let generation = devices.manager.lock().connect(R, PluginOptions::default());
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
    // One that went another way while it waited leaves nothing.
    for uid in ["u", "v"] {
        devices.forget(&PodUid::parse(uid).unwrap());
    }
    assert!(devices.deadlines.lock().is_empty());
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
    let named = || devices.manager.lock().to_file().registered_devices.unwrap().contains_key(R);
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

#[tokio::test(start_paused = true)]
async fn a_plugin_that_has_ended_is_forgotten() {
    let temp = tempfile::tempdir().unwrap();
    let (none, dead) = (temp.path().join("none.sock"), temp.path().join("dead.sock"));
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    for endpoint in [none, dead] {
        let endpoint = endpoint.display().to_string();
        let kept = kept(&[(R, &endpoint), ("x/other", "/o.sock")]);
        let devices = started_with(true, &kept);
        let began = Instant::now();
        devices.bring_back(R, &endpoint).await;
        assert!(began.elapsed() <= DIAL, "{endpoint}: it may be binding, and is waited for once");
        assert_eq!(kept.load().unwrap(), BTreeMap::from([("x/other".to_owned(), "/o.sock".to_owned())]), "{endpoint}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_whose_place_another_has_is_not_looked_for() {
    let began = Instant::now();
    // Its socket is another resource's by now.
    started_with(true, &kept(&[("x/other", "/r.sock")])).bring_back(R, "/r.sock").await;
    // Somebody has registered the resource.
    let of_now = kept(&[(R, "/r.sock")]);
    let devices = started_with(true, &of_now);
    devices.manager.lock().connect(R, PluginOptions::default());
    devices.bring_back(R, "/r.sock").await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(of_now.load().unwrap(), kept(&[(R, "/r.sock")]).load().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_state_that_cannot_be_read_for_a_moment_ends_no_search() {
    let kept = kept(&[(R, "/r.sock"), ("x/other", "/o.sock")]);
    let devices = started_with(true, &kept);
    kept.save(&BTreeMap::new()).unwrap();
    assert!(!devices.is_over(R, "/r.sock", None));
    // And what is written next is whole.
    devices.forget_endpoint(R);
    assert_eq!(kept.load().unwrap(), BTreeMap::from([("x/other".to_owned(), "/o.sock".to_owned())]));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_over_a_state_that_was_not_read() {
    let kept = kept(&[(R, "/r.sock"), ("x/other", "/o.sock")]);
    kept.1.store(true, Ordering::Relaxed);
    let devices = started_with(true, &kept);
    devices.kept.lock().of.insert("x/new".to_owned(), "/o.sock".to_owned());
    devices.kept.lock().save(&*devices.store);
    kept.1.store(false, Ordering::Relaxed);
    assert_eq!(kept.load().unwrap().len(), 2);
    assert!(devices.kept.lock().read(&*devices.store));
    // A socket is that of one plugin, and what has registered counts more.
    let both = [(R, "/r.sock"), ("x/new", "/o.sock")].map(|(resource, of)| (resource.to_owned(), of.to_owned()));
    assert_eq!(kept.load().unwrap(), BTreeMap::from(both));
}

#[tokio::test(start_paused = true)]
async fn a_state_that_cannot_be_read_is_asked_again_after_longer_and_longer() {
    let kept = kept(&[(R, "/r.sock")]);
    kept.1.store(true, Ordering::Relaxed);
    let (devices, began) = (started_with(true, &kept), Instant::now());
    let mends = async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        kept.1.store(false, Ordering::Relaxed);
    };
    let (found, ()) = tokio::join!(devices.of_earlier_start(), mends);
    assert_eq!(found, kept.load().unwrap());
    // It was asked at 31.5, 61.5 and 91.5 s.
    assert_eq!(began.elapsed().as_secs(), 121);
}

/// With a clock that is not stopped: what is written goes through a socket.
#[tokio::test]
async fn a_state_that_cannot_be_read_hides_no_plugin() {
    let temp = tempfile::tempdir().unwrap();
    let (put, mut written) = watch::channel(None::<Vec<u8>>);
    let put = Arc::new(put);
    let broker = fixtures::broker_at(&temp.path().join("broker.sock"), move |request| {
        if let BrokerRequest::PutState(StateKind::DeviceManager, fd) = request {
            put.send_replace(memfd::read_sealed(&fd, 1 << 20).ok());
        }
        Ok(None)
    });

    let kept = kept(&[("x/other", "/o.sock")]);
    kept.1.store(true, Ordering::Relaxed);
    let devices = started_by(broker, true, &kept);
    let mut shown = devices.shown.subscribe();
    let running = tokio::spawn(devices.clone().run());
    let generation = devices.manager.lock().connect("x/new", PluginOptions::default());
    let offered = Offered { id: "n".to_owned(), health: HEALTHY.to_owned(), topology: None };
    assert!(devices.told("x/new", generation, ListAndWatchResponse { devices: vec![offered] }));
    shown.wait_for(|shown| shown.capacity.get("x/new") == Some(&1)).await.unwrap();
    let names = |bytes: &[u8]| file::read(bytes).unwrap().registered_devices.unwrap().contains_key("x/new");
    written.wait_for(|bytes| bytes.as_deref().is_some_and(names)).await.unwrap();
    running.abort();
    kept.1.store(false, Ordering::Relaxed);
    assert_eq!(kept.load().unwrap(), BTreeMap::from([("x/other".to_owned(), "/o.sock".to_owned())]));
}

#[tokio::test(start_paused = true)]
async fn nobody_looks_for_a_plugin_whose_resource_made_room() {
    let kept = kept(&[(R, "/r.sock"), ("x/other", "/o.sock")]);
    let devices = started_with(true, &kept);
    devices.look(std::time::Instant::now() + STOP_GRACE + Duration::from_secs(1));
    assert!(!devices.is_over(R, "/r.sock", None));
    devices.save_endpoints("x/new", &[R.to_owned()]);
    assert_eq!(kept.load().unwrap(), BTreeMap::from([("x/other".to_owned(), "/o.sock".to_owned())]));
    assert!(devices.is_over(R, "/r.sock", None));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_is_back_when_it_has_told_its_devices() {
    let devices = started(true);
    let told = |generation| {
        let offered = Offered { id: "a".to_owned(), health: HEALTHY.to_owned(), topology: None };
        devices.told(R, generation, ListAndWatchResponse { devices: vec![offered] })
    };
    let first = devices.manager.lock().connect(R, PluginOptions::default());
    let (back, ()) = tokio::join!(devices.has_told(R, first), async { devices.disconnect(R, first) });
    assert!(!back, "it has said what it can, and no more");
    let second = devices.manager.lock().connect(R, PluginOptions::default());
    let (back, news) = tokio::join!(devices.has_told(R, second), async { told(second) });
    assert!(back && news);
}
