//! The lifecycle event generator and the image manager against a real containerd.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bulkhead_cri::{CriClient, CriDeadlines, DirectConnector, v1};
use bulkhead_testkit::{Lab, Release, image};
use bulkhead_types::{ContainerId, PodUid, SandboxId};
use kubelet_images::in_use::ImagesInUse;
use kubelet_images::{Credentials, ImageErrorReason, ImageManager, ImageRequest, PullLimits, PullPolicy};
use kubelet_model::events::EventType;
use kubelet_model::pod::model::RunState;
use kubelet_pleg::{EventSource, Pleg, PlegOptions, PodLifecycleEvent, PodLifecycleEventKind};
use tokio::sync::mpsc;
use tokio::time::Instant;

use PodLifecycleEventKind::{ContainerDied, ContainerRemoved, ContainerStarted};

const LIMIT: Duration = Duration::from_secs(20);

/// A pod on the host's network, so that no CNI is needed, and its containers.
struct Pod<'a> {
    client: &'a CriClient,
    lab: &'a Lab,
    uid: PodUid,
    sandbox: String,
    config: v1::PodSandboxConfig,
}

impl<'a> Pod<'a> {
    async fn start(client: &'a CriClient, lab: &'a Lab, name: &str) -> Self {
        let uid = PodUid::parse(&format!("uid-{name}")).unwrap();
        let host = v1::NamespaceOption { network: v1::NamespaceMode::Node as i32, ..Default::default() };
        let logs = lab.folder().join("logs").join(name);
        std::fs::create_dir_all(&logs).unwrap();
        let config = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.into(),
                uid: uid.to_string(),
                namespace: "default".into(),
                attempt: 0,
            }),
            log_directory: logs.to_string_lossy().into_owned(),
            labels: labels(&uid, name, None),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: lab.cgroup(),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(host),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = v1::RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
        let sandbox = client.run_pod_sandbox(request).await.unwrap().pod_sandbox_id;
        Pod { client, lab, uid, sandbox, config }
    }

    async fn run(&self, name: &str, script: &str) -> String {
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: name.into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: image::BUSYBOX.into(), ..Default::default() }),
            command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            labels: labels(&self.uid, "", Some(name)),
            annotations: BTreeMap::from([("io.kubernetes.container.restartCount".to_owned(), "3".to_owned())]),
            log_path: format!("{name}.log"),
            linux: Some(v1::LinuxContainerConfig {
                security_context: Some(v1::LinuxContainerSecurityContext {
                    namespace_options: Some(v1::NamespaceOption {
                        network: v1::NamespaceMode::Node as i32,
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: self.sandbox.clone(),
            config: Some(config),
            sandbox_config: Some(self.config.clone()),
        };
        let id = self.client.create_container(request).await.unwrap().container_id;
        self.client.start_container(v1::StartContainerRequest { container_id: id.clone() }).await.unwrap();
        id
    }

    /// The runtime's own status of the container, once it says that it has ended.
    async fn ended(&self, id: &str) -> v1::ContainerStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: false };
            let status = self.client.container_status(request).await.unwrap().status.unwrap();
            if status.state == v1::ContainerState::ContainerExited as i32 {
                return status;
            }
            assert!(Instant::now() < deadline, "{status:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn remove_container(&self, id: &str) {
        // PLEG knows of the end some 40 ms before containerd's CRI side does, which refuses until then.
        let deadline = Instant::now() + LIMIT;
        while let Err(error) =
            self.client.remove_container(v1::RemoveContainerRequest { container_id: id.into() }).await
        {
            assert!(Instant::now() < deadline, "{error}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(&self) {
        let id = self.sandbox.clone();
        self.client.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() }).await.unwrap();
        self.client.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: id }).await.unwrap();
        let _ = self.lab;
    }
}

fn labels(uid: &PodUid, pod: &str, container: Option<&str>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        ("io.kubernetes.pod.uid".to_owned(), uid.to_string()),
        ("io.kubernetes.pod.name".to_owned(), pod.to_owned()),
        ("io.kubernetes.pod.namespace".to_owned(), "default".to_owned()),
    ]);
    if let Some(container) = container {
        labels.insert("io.kubernetes.container.name".to_owned(), container.to_owned());
    }
    labels
}

struct Events(mpsc::Receiver<PodLifecycleEvent>);

impl Events {
    /// Waits for this event; says what came instead if it does not come.
    async fn wait(&mut self, uid: &PodUid, kind: PodLifecycleEventKind, id: &str) {
        let mut others = Vec::new();
        let found = tokio::time::timeout(LIMIT, async {
            while let Some(event) = self.0.recv().await {
                if event.uid == *uid && event.kind == kind && &*event.id == id {
                    return;
                }
                others.push(event);
            }
        });
        assert!(found.await.is_ok(), "{kind:?} of {id} did not come; came: {others:?}");
    }
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Once the runtime has set up its CRI, which it does after it has begun to answer.
async fn client(lab: &Lab) -> CriClient {
    let client = CriClient::new(Arc::new(DirectConnector(lab.containerd().socket())), CriDeadlines::default());
    let deadline = Instant::now() + LIMIT;
    while let Err(error) = client.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    client
}

#[tokio::test]
async fn events_of_containerd_reach_pleg_also_over_its_restart() {
    let lab = Lab::start().unwrap();
    let client = client(&lab).await;
    let before = Pod::start(&client, &lab, "before").await;
    let early = before.run("main", "sleep 1000").await;

    let registry = prometheus::Registry::new();
    let (pleg, task) = Pleg::new(client.clone(), PlegOptions::default(), &registry).unwrap();
    let mut events = Events(pleg.subscribe());
    assert_eq!(pleg.health().unwrap_err().to_string(), "pleg has yet to be successful");
    let task = tokio::spawn(task.run());
    tokio::time::timeout(LIMIT, pleg.first_relist()).await.unwrap();
    let cache = pleg.cache();
    let known = cache.get(&before.uid);
    assert_eq!((known.name.as_str(), known.sandboxes.len(), known.containers.len()), ("before", 1, 1));
    assert!(known.sandboxes[0].host_network);
    assert_eq!((known.containers[0].state, known.containers[0].restart_count), (RunState::Running, 3));
    assert!(pleg.health().is_ok());
    events.wait(&before.uid, ContainerStarted, &early).await;
    until("the event stream stands", || pleg.connected()).await;
    // The CRI's own stream is for all who listen from 2.0 on.
    let source = match lab.containerd().programs().release() {
        Release::Installed | Release::V1_7 => EventSource::Containerd,
        Release::V2_1 => EventSource::Cri,
    };
    assert_eq!(pleg.stats().source, Some(source));

    // A pod that appears, and a container that ends by itself.
    let pod = Pod::start(&client, &lab, "one").await;
    events.wait(&pod.uid, ContainerStarted, &pod.sandbox).await;
    let (before_ends, mut late) = (pleg.stats(), Vec::new());
    for (n, code) in [7, 0, 137, 143, 7].into_iter().enumerate() {
        let id = pod.run(&format!("short{n}"), &format!("sleep 0.2; exit {code}")).await;
        events.wait(&pod.uid, ContainerDied, &id).await;
        let now = SystemTime::now();
        let known = cache.get(&pod.uid);
        let ended = known.containers.iter().find(|c| c.id.as_str() == id).unwrap();
        assert_eq!((ended.state, ended.exit_code), (RunState::Exited, code));
        late.push(now.duration_since(ended.finished_at.unwrap()).unwrap());
        // What was known early is what the runtime says in the end.
        let last = pod.ended(&id).await;
        let finished_at = SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(last.finished_at).unwrap());
        assert_eq!((last.exit_code, last.reason.as_str()), (ended.exit_code, ended.reason.as_str()));
        assert_eq!(ended.finished_at, Some(finished_at));
        pod.remove_container(&id).await;
        events.wait(&pod.uid, ContainerRemoved, &id).await;
    }
    late.sort();
    println!("exit to event: {late:?}");
    // How late depends on what else the machine does; that no list was needed for it does not.
    let stats = pleg.stats();
    assert!(stats.runtime_events >= before_ends.runtime_events + 5 && stats.events_missed == 0, "{stats:?}");

    // Execs are nobody's business.
    until("the lists are over that follow the opening of the stream", || pleg.stats().relists >= 2).await;
    let moment = Instant::now();
    for _ in 0..3 {
        let request = v1::ExecSyncRequest { container_id: early.clone(), cmd: vec!["true".into()], timeout: 5 };
        assert_eq!(client.exec_sync(request).await.unwrap().exit_code, 0);
    }
    // What was told of them has been read when this is known.
    let later = pod.run("later", "exit 0").await;
    events.wait(&pod.uid, ContainerDied, &later).await;
    pod.remove_container(&later).await;
    events.wait(&pod.uid, ContainerRemoved, &later).await;
    assert!(!cache.is_since(&before.uid, moment), "somebody has looked at the pod of the commands");

    // Fresh on demand, of what was made by whoever says so.
    let making = pleg.making(&pod.uid);
    let main = pod.run("main", "sleep 3; exit 1").await;
    making.container(&ContainerId::parse(&main).unwrap(), &SandboxId::parse(&pod.sandbox).unwrap());
    let fresh = cache.get_newer_than(&pod.uid, Instant::now()).await.unwrap();
    assert_eq!(fresh.newest("main").unwrap().state, RunState::Running);
    let absent = PodUid::parse("no-such-pod").unwrap();
    assert!(cache.get_newer_than(&absent, Instant::now()).await.unwrap().containers.is_empty());

    // containerd dies and comes back; meanwhile a container ends.
    lab.containerd().kill();
    let unknown = cache.get_newer_than(&pod.uid, Instant::now()).await;
    assert!(unknown.is_err(), "not known is not gone: {unknown:?}");
    assert_eq!(cache.get(&pod.uid).newest("main").unwrap().state, RunState::Running);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!pleg.connected());
    let spawning = {
        let lab = lab.clone();
        tokio::task::spawn_blocking(move || lab.containerd().spawn().unwrap())
    };
    events.wait(&pod.uid, ContainerDied, &main).await;
    spawning.await.unwrap();
    until("the event stream stands again", || pleg.connected()).await;
    let second = pod.run("second", "sleep 0.2").await;
    events.wait(&pod.uid, ContainerStarted, &second).await;
    events.wait(&pod.uid, ContainerDied, &second).await;
    assert_eq!(cache.get(&before.uid).containers[0].state, RunState::Running);

    // The end.
    pod.end().await;
    events.wait(&pod.uid, ContainerDied, &pod.sandbox).await;
    events.wait(&pod.uid, ContainerRemoved, &pod.sandbox).await;
    before.end().await;
    events.wait(&before.uid, ContainerRemoved, &before.sandbox).await;
    until("the cache is empty", || cache.snapshot().is_empty()).await;
    let stats = pleg.stats();
    println!("{stats:?}");
    assert_eq!((stats.events_missed, stats.events_discarded), (0, 0));
    assert!(stats.connection_errors >= 1);
    let names: Vec<String> = registry.gather().iter().map(|family| family.name().to_owned()).collect();
    for name in ["kubelet_pleg_last_seen_seconds", "kubelet_evented_pleg_connection_success_count"] {
        assert!(names.iter().any(|n| n == name), "{name} is not among {names:?}");
    }

    task.abort();
    let _ = task.await;
    assert!(cache.get_newer_than(&pod.uid, Instant::now() + LIMIT).await.is_err(), "nobody waits for ever");
}

#[tokio::test]
async fn without_events_it_relists() {
    let lab = Lab::start().unwrap();
    let client = client(&lab).await;
    let options = PlegOptions { events: false, relist_interval: Duration::from_millis(200), ..Default::default() };
    let (pleg, task) = Pleg::new(client.clone(), options, &prometheus::Registry::new()).unwrap();
    let mut events = Events(pleg.subscribe());
    let task = tokio::spawn(task.run());
    pleg.first_relist().await;
    let pod = Pod::start(&client, &lab, "relisted").await;
    events.wait(&pod.uid, ContainerStarted, &pod.sandbox).await;
    let id = pod.run("main", "sleep 0.5; exit 2").await;
    events.wait(&pod.uid, ContainerDied, &id).await;
    assert_eq!(pleg.cache().get(&pod.uid).newest("main").unwrap().exit_code, 2);
    pod.end().await;
    events.wait(&pod.uid, ContainerRemoved, &pod.sandbox).await;
    let stats = pleg.stats();
    assert_eq!((stats.source, stats.runtime_events, stats.events_missed), (None, 0, 0));
    assert!(stats.relists > 3);
    task.abort();
}

/// No credentials for any image.
struct Nobody;

impl Credentials for Nobody {
    async fn find(&self, _: &str) -> Vec<kubelet_images::Credential> {
        Vec::new()
    }
}

#[tokio::test]
async fn images_by_policy() {
    let lab = Lab::start().unwrap();
    let manager = ImageManager::new(client(&lab).await, PullLimits::default(), ImagesInUse::new(|| 0));
    let uid = PodUid::parse("u").unwrap();
    let annotations = BTreeMap::new();
    let said = parking_lot::Mutex::new(Vec::new());
    let events = |kind: EventType, reason: &'static str, message: &str| {
        said.lock().push(format!("{kind:?} {reason} {message}"));
    };
    let request =
        |image, policy| ImageRequest { pod_uid: &uid, image, policy, annotations: &annotations, sandbox_config: None };
    let there =
        manager.ensure_image_exists(request(image::BUSYBOX, PullPolicy::IfNotPresent), &Nobody, &events).await.unwrap();
    assert!(there.id.starts_with("sha256:"), "{there:?}");
    let never = manager.ensure_image_exists(request("none.invalid/x:1", PullPolicy::Never), &Nobody, &events).await;
    assert_eq!(never.unwrap_err().reason, ImageErrorReason::ErrImageNeverPull);
    let nowhere = request("127.0.0.1:1/none:1", PullPolicy::IfNotPresent);
    let failed = manager.ensure_image_exists(nowhere, &Nobody, &events).await.unwrap_err();
    assert_eq!(failed.reason, ImageErrorReason::ErrImagePull);
    assert!(failed.message.starts_with("failed to pull and unpack image \"127.0.0.1:1/none:1\":"), "{failed:?}");
    let waiting = manager.ensure_image_exists(nowhere, &Nobody, &events).await.unwrap_err();
    assert_eq!(waiting.reason, ImageErrorReason::ImagePullBackOff);
    let reasons: Vec<String> = said.lock().iter().map(|s| s.split(' ').nth(1).unwrap().to_owned()).collect();
    assert_eq!(reasons, ["Pulled", "ErrImageNeverPull", "Pulling", "Failed", "BackOff"]);
}
