//! Claims through the manager: an API server, a file and drivers that do as they are told.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_dra::v1;
use bulkhead_dra::v1::dra_plugin_server::{DraPlugin, DraPluginServer};
use bulkhead_ipc::syncd::storage_write::Write;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kubelet_container_manager::dra::health::{Health, Report};
use kubelet_edges::dra::{Calls, Plugins, Service};
use kubelet_edges::fixtures::{Direct, Serving};
use kubelet_model::objects::ObjectError;
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

use super::manager::{DraManager, Settings};
use super::metrics::{ClaimsInUse, Durations};
use super::ports::{ClaimReader, FileStore, Stores};
use super::{lost, slices};
use crate::container_manager::StateFileError;
use crate::storage_writes::StorageWrites;

/// What a driver was asked, and what it says of claims by their names.
#[derive(Debug, Default)]
struct Told {
    calls: Vec<String>,
    errors: Vec<(String, &'static str)>,
}

#[derive(Debug, Clone, Default)]
struct Driver(Arc<Mutex<Told>>);

impl Driver {
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().calls)
    }

    fn says(&self, what: &str, error: &'static str) {
        self.0.lock().errors = vec![(what.to_owned(), error)];
    }

    fn asked(&self, method: &str, claims: &[v1::Claim]) -> Result<Vec<(String, String, String)>, Status> {
        let names: Vec<&str> = claims.iter().map(|claim| claim.name.as_str()).collect();
        let mut told = self.0.lock();
        told.calls.push(format!("{method} {}", names.join("+")));
        let error = |what: &str| told.errors.iter().find(|(of, _)| of == what).map(|(_, error)| (*error).to_owned());
        if let Some(error) = error(method) {
            return Err(Status::internal(error));
        }
        let of = |claim: &v1::Claim| {
            let uid = error(&format!("uid {}", claim.name)).unwrap_or_else(|| claim.uid.clone());
            (uid, claim.name.clone(), error(&claim.name).unwrap_or_default())
        };
        let skipped = |claim: &&v1::Claim| error(&format!("skip {}", claim.name)).is_none();
        Ok(claims.iter().filter(skipped).map(of).collect())
    }
}

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1::NodePrepareResourcesResponse>, Status> {
        let asked = self.asked("prepare", &request.get_ref().claims)?;
        let device = |name: &str, request: &str| v1::Device {
            request_names: vec![request.to_owned()],
            pool_name: "node".into(),
            device_name: format!("{name}-{request}"),
            cdi_device_ids: vec![format!("t/c={name}-{request}")],
            share_id: None,
        };
        let answer = |(uid, name, error): (String, String, String)| {
            let devices = vec![device(&name, "a"), device(&name, "b")];
            (uid, v1::NodePrepareResourceResponse { devices, error })
        };
        Ok(Response::new(v1::NodePrepareResourcesResponse { claims: asked.into_iter().map(answer).collect() }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1::NodeUnprepareResourcesResponse>, Status> {
        let asked = self.asked("unprepare", &request.get_ref().claims)?.into_iter();
        let claims = asked.map(|(uid, _, error)| (uid, v1::NodeUnprepareResourceResponse { error })).collect();
        Ok(Response::new(v1::NodeUnprepareResourcesResponse { claims }))
    }
}

/// A claim named `c` of driver `d`, reserved for the pods named.
#[derive(Debug, Clone, Default)]
struct Api(Arc<Mutex<Vec<Value>>>);

impl Api {
    fn put(&self, name: &str, uid: &str, drivers: &[&str], pods: &[&str]) {
        let reserved: Vec<_> = pods.iter().map(|pod| json!({"resource": "pods", "name": pod, "uid": pod})).collect();
        let result = |driver: &&str| json!({"request": "a", "driver": driver, "pool": "node", "device": "d"});
        let results: Vec<_> = drivers.iter().map(result).collect();
        let status = json!({"reservedFor": reserved, "allocation": {"devices": {"results": results}}});
        let metadata = json!({"name": name, "namespace": "ns", "uid": uid});
        let mut all = self.0.lock();
        all.retain(|claim| claim["metadata"]["name"] != name);
        all.push(json!({"metadata": metadata, "spec": {}, "status": status}));
    }
}

impl ClaimReader for Api {
    fn claim<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Result<ResourceClaim, ObjectError>> {
        let found = self.0.lock().iter().find(|claim| claim["metadata"]["name"] == name).cloned();
        let none = move || ObjectError::NotFound(format!("resourceclaims.resource.k8s.io {name:?} not found"));
        async move { found.map(|claim| serde_json::from_value(claim).unwrap()).ok_or_else(none) }.boxed()
    }
}

#[derive(Debug, Clone, Default)]
struct Disk {
    content: Arc<Mutex<Option<Vec<u8>>>>,
    fails: Arc<Mutex<bool>>,
    hangs: Arc<Mutex<bool>>,
    /// A write that hangs has begun.
    begun: Arc<tokio::sync::Notify>,
}

impl Disk {
    fn text(&self) -> String {
        String::from_utf8(self.content.lock().clone().unwrap_or_default()).unwrap()
    }
}

impl FileStore for Disk {
    fn load(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, StateFileError>> {
        async { Ok(self.content.lock().clone()) }.boxed()
    }

    fn save(&self, content: Vec<u8>) -> BoxFuture<'_, Result<(), StateFileError>> {
        async move {
            if *self.fails.lock() {
                return Err(std::io::Error::other("no space left").into());
            }
            let hangs = *self.hangs.lock();
            if hangs {
                self.begun.notify_one();
                std::future::pending::<()>().await;
            }
            *self.content.lock() = Some(content);
            Ok(())
        }
        .boxed()
    }
}

struct Lab {
    folder: tempfile::TempDir,
    api: Api,
    disk: Disk,
    health: Disk,
    registry: Registry,
    manager: Arc<DraManager>,
}

fn manager(api: &Api, disk: &Disk, health: &Disk, registry: &Registry) -> Arc<DraManager> {
    let durations = Durations::register(registry).unwrap();
    let plugins = Plugins::new(Calls {
        dial: Arc::new(Direct),
        timeout: Duration::from_secs(5),
        observer: Some(Arc::new(durations.clone())),
    });
    let settings = Settings { extended_resources: true, group_claims: true, health: true, health_messages: true };
    let stores = Stores { claims: Box::new(disk.clone()), health: Box::new(health.clone()) };
    DraManager::new(settings, plugins, Box::new(api.clone()), stores, durations, Arc::default())
}

impl Lab {
    fn new() -> Self {
        let (api, disk, health, registry) = (Api::default(), Disk::default(), Disk::default(), Registry::new());
        let manager = manager(&api, &disk, &health, &registry);
        registry.register(Box::new(ClaimsInUse::new(manager.clone()).unwrap())).unwrap();
        Lab { folder: tempfile::tempdir().unwrap(), api, disk, health, registry, manager }
    }

    /// What a process that begins anew makes of the files.
    fn next_life(&self) -> Arc<DraManager> {
        manager(&self.api, &self.disk, &self.health, &Registry::new())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.sock"))
    }

    async fn driver(&self, name: &str) -> (Driver, Serving) {
        let driver = Driver::default();
        let server = serve(&self.path(name), driver.clone());
        self.manager.register(name, &self.path(name).display().to_string(), Service::V1).unwrap();
        self.connected(name, true).await;
        (driver, server)
    }

    async fn connected(&self, name: &str, is: bool) {
        let mut changes = self.manager.plugins().changes();
        while self.manager.plugins().usable().get(name).copied().unwrap_or_default() != is {
            changes.changed().await.unwrap();
        }
    }
}

fn serve(path: &Path, driver: Driver) -> Serving {
    Serving::at(path, move |listener| async move {
        let incoming = stream::unfold(listener, |listener| async {
            Some((listener.accept().await.map(|(connection, _)| connection), listener))
        });
        let server = tonic::transport::Server::builder().add_service(DraPluginServer::new(driver));
        let _ = server.serve_with_incoming(incoming).await;
    })
}

/// With one container for each claim, which asks for its request `a`.
fn pod(uid: &str, claims: &[&str]) -> kubelet_model::v1::Pod {
    let claim = |name: &&str| json!({"name": name, "resourceClaimName": name});
    let container =
        |name: &&str| json!({"name": name, "image": "i", "resources": {"claims": [{"name": name, "request": "a"}]}});
    serde_json::from_value(json!({
        "metadata": {"name": uid, "namespace": "ns", "uid": uid},
        "spec": {"containers": claims.iter().map(container).collect::<Vec<_>>(),
                 "resourceClaims": claims.iter().map(claim).collect::<Vec<_>>()}}))
    .unwrap()
}

fn uid(text: &str) -> bulkhead_types::PodUid {
    bulkhead_types::PodUid::parse(text).unwrap()
}

#[tokio::test]
async fn a_claim_from_its_pod_to_its_containers_and_back() {
    let lab = Lab::new();
    let (one, _one) = lab.driver("one.test").await;
    let (two, _two) = lab.driver("two.test").await;
    lab.api.put("c", "uid-c", &["one.test", "two.test"], &["p1", "p2"]);
    lab.api.put("d", "uid-d", &["two.test"], &["p1"]);
    let first = pod("p1", &["c", "d"]);
    lab.manager.prepare(&first).await.unwrap();
    assert_eq!((one.calls(), two.calls()), (vec!["prepare c".to_owned()], vec!["prepare c+d".to_owned()]));
    let text = lab.disk.text();
    assert!(text.contains(r#"\"ClaimName\":\"c\""#) && text.contains("t/c=d-b"), "{text}");
    let containers = &first.spec.as_ref().unwrap().containers;
    // Both drivers have given one for the request.
    assert_eq!(lab.manager.cdi_devices(&first, &containers[0]).await.unwrap(), ["t/c=c-a"]);
    assert_eq!(lab.manager.cdi_devices(&first, &containers[1]).await.unwrap(), ["t/c=d-a"]);
    // Another pod of the same claim; and two at once.
    let second = pod("p2", &["c"]);
    lab.manager.prepare(&second).await.unwrap();
    assert!(one.calls().is_empty());
    let metrics = bulkhead_daemon::encode_metrics(&lab.registry);
    for line in [
        "dra_resource_claims_in_use{driver_name=\"<any>\"} 2",
        "dra_resource_claims_in_use{driver_name=\"one.test\"} 1",
        "dra_operations_duration_seconds_count{is_error=\"false\",operation_name=\"PrepareResources\"} 2",
        "dra_grpc_operations_duration_seconds_count{driver_name=\"two.test\",grpc_status_code=\"OK\",method_name=\"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources\"} 1",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line} in\n{metrics}");
    }
    lab.manager.unprepare(&first).await.unwrap();
    assert_eq!((one.calls(), two.calls()), (vec![], vec!["unprepare d".to_owned()]));
    // A disk that is full: the driver is not asked once more when it is tried again, and it is written then.
    *lab.disk.fails.lock() = true;
    let error = lab.manager.unprepare(&second).await.unwrap_err();
    assert_eq!(error, "unprepare dynamic resources: checkpoint ResourceClaim state: no space left");
    *lab.disk.fails.lock() = false;
    lab.manager.unprepare(&second).await.unwrap();
    assert_eq!(one.calls(), ["unprepare c"]);
    assert!(lab.disk.text().contains(r#"\"ClaimInfoStateList\":[]"#), "{}", lab.disk.text());
}

/// One driver takes its claim back, and another one cannot: nothing of it is the pod's any more, and it is not forgotten either.
#[tokio::test]
async fn who_takes_up_a_claim_that_is_half_returned_has_it_prepared() {
    let lab = Lab::new();
    let (one, _one) = lab.driver("one.test").await;
    let (two, _two) = lab.driver("two.test").await;
    lab.api.put("c", "uid-c", &["one.test"], &["p", "q"]);
    lab.api.put("d", "uid-d", &["two.test"], &["p"]);
    let p = pod("p", &["c", "d"]);
    lab.manager.prepare(&p).await.unwrap();
    two.says("unprepare", "no");
    lab.manager.unprepare(&p).await.unwrap_err();
    assert_eq!(one.calls(), ["prepare c", "unprepare c"]);
    lab.manager.prepare(&pod("q", &["c"])).await.unwrap();
    assert_eq!(one.calls(), ["prepare c"]);
    two.says("nothing", "");
    lab.manager.unprepare(&p).await.unwrap();
    assert!(one.calls().is_empty(), "q has it");
    assert_eq!(two.calls(), ["prepare d", "unprepare d", "unprepare d"]);
}

/// A pod's end may be begun anew while what it has given back is being written, as when its grace period is cut short.
#[tokio::test]
async fn a_write_that_nobody_waits_for_any_more_is_written_with_the_next_one() {
    let lab = Lab::new();
    let (driver, _server) = lab.driver("d.test").await;
    lab.api.put("c", "u", &["d.test"], &["p"]);
    let p = pod("p", &["c"]);
    lab.manager.prepare(&p).await.unwrap();
    *lab.disk.hangs.lock() = true;
    tokio::select! {
        done = lab.manager.unprepare(&p) => panic!("{done:?}"),
        () = lab.disk.begun.notified() => {}
    }
    *lab.disk.hangs.lock() = false;
    lab.manager.unprepare(&p).await.unwrap();
    assert_eq!(driver.calls(), ["prepare c", "unprepare c"], "the driver is not asked twice");
    assert!(lab.disk.text().contains(r#"\"ClaimInfoStateList\":[]"#), "{}", lab.disk.text());
}

#[tokio::test]
async fn two_pods_of_one_claim_at_once() {
    let lab = Lab::new();
    let (driver, _server) = lab.driver("d.test").await;
    lab.api.put("c", "u", &["d.test"], &["p1", "p2", "p3"]);
    let (p1, p2, p3) = (pod("p1", &["c"]), pod("p2", &["c"]), pod("p3", &["c"]));
    let (a, b, c) = tokio::join!(lab.manager.prepare(&p1), lab.manager.prepare(&p2), lab.manager.prepare(&p3));
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert_eq!(driver.calls(), ["prepare c"], "it is prepared once");
}

#[tokio::test]
async fn what_goes_wrong_is_said_in_upstreams_words() {
    let lab = Lab::new();
    lab.api.put("c", "u", &["d.test"], &["p"]);
    let p = pod("p", &["c"]);
    let why = || async { lab.manager.prepare(&p).await.unwrap_err() };
    assert_eq!(why().await, "DRA driver d.test is not registered");
    assert_eq!(lab.disk.text(), "", "the driver was never there: nothing is begun");
    let gone = lab.manager.prepare(&pod("p", &["none"])).await.unwrap_err();
    assert_eq!(gone, "fetch ResourceClaim none: resourceclaims.resource.k8s.io \"none\" not found");
    let other = lab.manager.prepare(&pod("x", &["c"])).await.unwrap_err();
    assert_eq!(other, "pod x (x) is not allowed to use ResourceClaim c (u)");
    let (driver, server) = lab.driver("d.test").await;
    for (what, error, said) in [
        ("prepare", "no", "NodePrepareResources: rpc error: code = Internal desc = no"),
        ("c", "broken", "NodePrepareResources failed for ResourceClaim c: broken"),
        ("skip c", "x", "NodePrepareResources skipped 1 ResourceClaims"),
        ("uid c", "other", "NodePrepareResources returned result for unknown claim UID other"),
    ] {
        driver.says(what, error);
        assert_eq!(why().await, said);
    }
    assert!(lab.disk.text().contains("ClaimUID"), "what may be prepared is written down: {}", lab.disk.text());
    driver.says("nothing", "");
    lab.manager.prepare(&p).await.unwrap();
    let devices = lab.manager.cdi_devices(&p, &p.spec.as_ref().unwrap().containers[0]).await.unwrap();
    assert_eq!(devices, ["t/c=c-a"]);
    // Deleted and made anew under its name while the pod before it still has it.
    lab.api.put("c", "u2", &["d.test"], &["q"]);
    let old = lab.manager.prepare(&pod("q", &["c"])).await.unwrap_err();
    assert!(old.starts_with("old ResourceClaim with same name c and different UID u still exists"), "{old}");
    let ended = || async { lab.manager.unprepare(&p).await.unwrap_err() };
    for (what, error, said) in [
        ("unprepare", "no", "NodeUnprepareResources: rpc error: code = Internal desc = no"),
        ("c", "busy", "NodeUnprepareResources failed for ResourceClaim c: busy"),
        ("skip c", "x", "NodeUnprepareResources skipped 1 ResourceClaims"),
    ] {
        driver.says(what, error);
        assert_eq!(ended().await, format!("unprepare dynamic resources: {said}"));
    }
    drop(server);
    lab.connected("d.test", false).await;
    assert!(ended().await.contains("code = Unavailable"), "{}", ended().await);
    lab.manager.deregister("d.test", &lab.path("d.test").display().to_string());
    assert_eq!(ended().await, "unprepare dynamic resources: DRA driver d.test is not registered");
}

#[tokio::test]
async fn after_a_restart_lost_pods_give_back_and_others_keep() {
    let lab = Lab::new();
    let (driver, server) = lab.driver("d.test").await;
    lab.api.put("kept", "k", &["d.test"], &["stays"]);
    lab.api.put("lost", "l", &["d.test"], &["gone"]);
    let stays = pod("stays", &["kept"]);
    lab.manager.prepare(&stays).await.unwrap();
    lab.manager.prepare(&pod("gone", &["lost"])).await.unwrap();
    driver.calls();
    drop(server);
    // Another life, whose driver comes later.
    let again = lab.next_life();
    let keeping = tokio::spawn(lost::keep(again.clone()));
    let devices = again.cdi_devices(&stays, &stays.spec.as_ref().unwrap().containers[0]).await.unwrap();
    assert_eq!(devices, ["t/c=kept-a"], "a container may start again at once");
    again.only(["stays".to_owned()].into());
    let mut lost = again.lost.subscribe();
    lost.wait_for(|lost| lost.contains("gone")).await.unwrap();
    // Whose status said what it said before the file was read is looked at.
    again.news.changed().await;
    assert_eq!(again.news.take(), [uid("stays"), uid("gone")].into());
    // A pod that waits for its driver is told of it.
    assert!(again.prepare(&stays).await.is_err());
    let path = lab.path("new");
    let _server = serve(&path, driver.clone());
    again.register("d.test", &path.display().to_string(), Service::V1).unwrap();
    again.news.changed().await;
    assert_eq!(again.news.take(), [uid("stays")].into());
    while again.lost.borrow().contains("gone") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(driver.calls(), ["unprepare lost"]);
    assert!(!lab.disk.text().contains("lost") && lab.disk.text().contains("kept"), "{}", lab.disk.text());
    again.prepare(&stays).await.unwrap();
    assert_eq!(driver.calls(), ["prepare kept"], "a new sandbox has it prepared again");
    keeping.abort();
}

#[tokio::test]
async fn a_damaged_file_is_not_overwritten() {
    let lab = Lab::new();
    *lab.disk.content.lock() = Some(br#"{"Data":"{}","Checksum":1}"#.to_vec());
    lab.api.put("c", "u", &["d.test"], &["p"]);
    let p = pod("p", &["c"]);
    assert_eq!(
        lab.manager.prepare(&p).await.unwrap_err(),
        "read the checkpoint dra_manager_state: checkpoint is corrupted"
    );
    let mut status = PodStatus::default();
    lab.manager.show_health(&p, &mut status);
    assert!(lab.disk.text().contains("\"Checksum\":1"));
}

#[tokio::test]
async fn the_health_of_devices_outlives_this_process() {
    let lab = Lab::new();
    let (_driver, _server) = lab.driver("d.test").await;
    lab.api.put("c", "u", &["d.test"], &["p"]);
    let mut p = pod("p", &["c"]);
    lab.manager.prepare(&p).await.unwrap();
    let report = |device: &str| Report {
        pool: "node".into(),
        device: device.into(),
        health: Health::Unhealthy,
        message: "hot".into(),
        ..Report::default()
    };
    let tell = |manager: &DraManager| {
        let changed = manager.health_book().take("d.test", vec![report("c-a")], std::time::Instant::now());
        manager.health_changed("d.test", &changed);
    };
    let shown = |manager: &DraManager, pod: &kubelet_model::v1::Pod| {
        let container = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0});
        let mut status: PodStatus = serde_json::from_value(json!({"containerStatuses": [container]})).unwrap();
        manager.show_health(pod, &mut status);
        status
    };
    let word = |status: &PodStatus| {
        serde_json::to_value(status).unwrap()["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"][0]["health"].clone()
    };
    tell(&lab.manager);
    lab.manager.health_told.notified().await;
    // A full disk, and then another one.
    *lab.health.fails.lock() = true;
    lab.manager.save_health().await;
    assert_eq!(lab.health.text(), "");
    *lab.health.fails.lock() = false;
    lab.manager.save_health().await;
    assert!(
        lab.health.text().starts_with(r#"{"d.test":{"Devices":{"node/c-a":{"PoolName":"node","#),
        "{}",
        lab.health.text()
    );
    p.status = Some(shown(&lab.manager, &p));
    assert_eq!(word(p.status.as_ref().unwrap()), "Unhealthy");

    let again = lab.next_life();
    assert_eq!(word(&shown(&again, &p)), "Unhealthy", "what was said stays until the files are read");
    p.status = None;
    let container = &p.spec.as_ref().unwrap().containers[0];
    again.cdi_devices(&p, container).await.unwrap();
    assert_eq!(word(&shown(&again, &p)), "Unhealthy", "before its driver says anything");

    *lab.health.content.lock() = Some(br#"{"d.test":{"Devi"#.to_vec());
    let again = lab.next_life();
    again.cdi_devices(&p, container).await.unwrap();
    assert_eq!(word(&shown(&again, &p)), "Unknown", "a damaged file counts as none");
    tell(&again);
    again.save_health().await;
    assert!(lab.health.text().contains("Unhealthy"), "and is replaced: {}", lab.health.text());
    again.health_book().clear("d.test");
    again.save_health().await;
    assert_eq!(lab.health.text(), "{}");
}

#[tokio::test(start_paused = true)]
async fn slices_go_at_the_start_and_when_a_driver_has_been_away_for_its_time() {
    let lab = Lab::new();
    let writes = StorageWrites::default();
    let plugins = lab.manager.plugins().clone();
    let keeping = tokio::spawn(slices::keep(plugins.clone(), writes.clone(), slices::GRACE));
    let next = |after: u64| {
        let writes = writes.clone();
        async move {
            let mut changed = writes.watch();
            loop {
                changed.borrow_and_update();
                if let Some(write) = writes.after(after) {
                    let Some(Write::ResourceSliceWipe(wipe)) = write.write else { panic!("something else") };
                    return (write.sequence, wipe.driver, wipe.called_off);
                }
                changed.changed().await.unwrap();
            }
        }
    };
    let (sequence, driver, _) = next(0).await;
    assert_eq!(driver, "", "all of them");
    let begun = tokio::time::Instant::now();
    // Nobody answers there.
    let endpoint = lab.path("away").display().to_string();
    plugins.add("away.test", &endpoint, Service::V1).unwrap();
    let (sequence, driver, _) = next(sequence).await;
    assert_eq!(driver, "away.test");
    let waited = begun.elapsed();
    assert!(waited >= slices::GRACE && waited < slices::GRACE + Duration::from_secs(2), "{waited:?}");
    // The API server was away all the time; meanwhile the driver is back.
    let _server = serve(&lab.path("away"), Driver::default());
    assert_eq!(next(sequence).await, (sequence + 1, "away.test".to_owned(), true));
    keeping.abort();
}
