//! What volnetd is asked for, and that a fault there or at the API server is kept apart from something missing.

use bulkhead_ipc::volnetd::ContentPlugin;
use parking_lot::Mutex;

use super::*;
use kubelet_model::fixtures::{FakeObjects, uid};
use kubelet_model::node_facts::HostFacts;
use kubelet_model::objects::named_objects::fetch;
use kubelet_runtime::runtime::container_config::VolumeRoot;

/// Writes down what it is asked, and fails as told.
#[derive(Default)]
struct Verbs {
    asked: Mutex<Vec<String>>,
    fails: Mutex<Option<(&'static str, tonic::Code)>>,
    /// Files on their way: now, and most at a time.
    busy: Mutex<(usize, usize)>,
}

impl Verbs {
    fn take(&self) -> Vec<String> {
        let mut asked = std::mem::take(&mut *self.asked.lock());
        asked.sort();
        asked
    }

    fn fail(&self, verb: &'static str, code: tonic::Code) {
        *self.fails.lock() = Some((verb, code));
    }

    fn well(&self) {
        *self.fails.lock() = None;
    }

    fn call(&self, verb: &'static str, what: String) -> Result<(), VolnetdError> {
        self.asked.lock().push(format!("{verb} {what}"));
        match *self.fails.lock() {
            Some((failing, tonic::Code::Unavailable)) if failing == verb => {
                Err(VolnetdError::Away { verb, source: tonic::Status::unavailable("restarts") })
            }
            Some((failing, code)) if failing == verb => {
                Err(VolnetdError::Refused { verb, source: tonic::Status::new(code, "no room") })
            }
            _ => Ok(()),
        }
    }
}

fn at(volume: &str) -> api::SetUpVolumeReply {
    api::SetUpVolumeReply { host_path: format!("/pods/{volume}"), ..Default::default() }
}

impl VolumeVerbs for Verbs {
    async fn set_up_empty_dir(
        &self,
        _: &CallContext,
        r: api::SetUpEmptyDirRequest,
    ) -> Result<api::SetUpVolumeReply, VolnetdError> {
        self.call("empty", format!("{} group {:?} {}", r.volume, r.fs_group, r.fs_group_on_root_mismatch))?;
        Ok(at(&r.volume))
    }

    async fn check_host_path(
        &self,
        _: &CallContext,
        r: api::CheckHostPathRequest,
    ) -> Result<api::SetUpVolumeReply, VolnetdError> {
        self.call("host", r.path.clone())?;
        Ok(api::SetUpVolumeReply { host_path: r.path, ..Default::default() })
    }

    async fn set_up_content(
        &self,
        _: &CallContext,
        r: api::SetUpContentRequest,
    ) -> Result<api::SetUpVolumeReply, VolnetdError> {
        let plugin = ContentPlugin::try_from(r.plugin).unwrap().as_str_name();
        self.call("content", format!("{} {plugin} {} {:?}", r.volume, r.size_limit_bytes, r.mount_points))?;
        Ok(at(&r.volume))
    }

    async fn put_content(&self, r: api::PutContent, content: &[u8]) -> Result<(), VolnetdError> {
        {
            let mut busy = self.busy.lock();
            busy.0 += 1;
            busy.1 = busy.1.max(busy.0);
        }
        tokio::task::yield_now().await;
        self.busy.lock().0 -= 1;
        let content = <api::VolumeContent as prost::Message>::decode(content).unwrap();
        let files: Vec<String> =
            content.files.iter().map(|f| format!("{}={}", f.path, String::from_utf8_lossy(&f.data))).collect();
        self.call("put", format!("{} {} group {:?}", r.volume, files.join(" "), content.fs_group))
    }
}

fn pod() -> Pod {
    let mount = |name: &str| serde_json::json!({"name": name, "mountPath": format!("/{name}")});
    let mut mounts: Vec<_> = ["empty", "host", "config", "secret", "labels"].map(mount).to_vec();
    mounts.push(serde_json::json!({"name": "empty", "mountPath": "/config/inner"}));
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": kubelet_model::fixtures::UID, "labels": {"a": "1"}},
        "spec": {
            "securityContext": {"fsGroup": 7},
            "containers": [{"name": "c", "volumeMounts": mounts}],
            "volumes": [
                {"name": "empty", "emptyDir": {}},
                {"name": "host", "hostPath": {"path": "/h"}},
                {"name": "config", "configMap": {"name": "cm", "defaultMode": 420}},
                {"name": "secret", "secret": {"secretName": "sec", "defaultMode": 420}},
                {"name": "labels", "downwardAPI": {"defaultMode": 420, "items": [
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            ],
        },
    }))
    .unwrap()
}

fn objects() -> FakeObjects {
    let objects = FakeObjects::default();
    objects.put_config_map("cm", &[("k", "v")]);
    objects.put_secret("sec", &[("s", b"x")]);
    objects
}

struct World {
    verbs: Verbs,
    objects: FakeObjects,
    facts: NodeFacts,
    places: Semaphore,
}

fn world() -> World {
    let (facts, places) = (NodeFacts::new(HostFacts::default()), Semaphore::new(FILES_ON_THEIR_WAY));
    World { verbs: Verbs::default(), objects: objects(), facts, places }
}

impl World {
    async fn with<T>(&self, pod: &Pod, what: impl AsyncFnOnce(Maker<'_, Verbs>, Vec<VolumePlan>) -> T) -> T {
        let plans = super::super::plan(pod, 1 << 20);
        let named = fetch(&self.objects, "ns", wanted(&plans)).await;
        let (context, uid) = (CallContext::new(), uid());
        let (verbs, facts, places) = (&self.verbs, &self.facts, &self.places);
        let maker = Maker { verbs, context: &context, uid: &uid, pod, facts, objects: &named, places };
        what(maker, plans).await
    }

    async fn set_up(&self, pod: &Pod) -> Outcomes {
        self.with(pod, async |maker, plans| maker.set_up(plans).await).await
    }

    async fn refresh(&self, pod: &Pod, known: &mut ContentHashes) -> Vec<VolumeError> {
        self.with(pod, async |maker, plans| maker.refresh(&plans, known, false).await).await
    }

    async fn look(&self, pod: &Pod, known: &mut ContentHashes) -> Vec<VolumeError> {
        self.with(pod, async |maker, plans| maker.refresh(&plans, known, true).await).await
    }
}

fn errors(outcomes: &Outcomes) -> Vec<(String, bool)> {
    let failed = outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().err());
    failed.map(|error| (error.event_message(), error.is_transient())).collect()
}

#[tokio::test]
async fn everything_once_and_afterwards_only_what_has_changed() {
    let w = world();
    let mut pod = pod();
    let outcomes = w.set_up(&pod).await;
    let expected = [
        "content config CONTENT_PLUGIN_CONFIG_MAP 0 [\"inner\"]",
        "content labels CONTENT_PLUGIN_DOWNWARD_API 1048576 []",
        "content secret CONTENT_PLUGIN_SECRET 1048576 []",
        "empty empty group Some(7) false",
        "host /h",
        "put config k=v group Some(7)",
        "put labels labels=a=\"1\" group Some(7)",
        "put secret s=x group Some(7)",
    ];
    assert_eq!(w.verbs.take(), expected);
    let mounted = mounted(&outcomes);
    let of = |name: &str| (mounted[name].read_only, mounted[name].managed, mounted[name].root.clone());
    assert_eq!(of("empty"), (false, true, VolumeRoot::Plugin("kubernetes.io/empty-dir")));
    assert_eq!(of("host"), (false, false, VolumeRoot::HostPath));
    assert_eq!(of("secret"), (true, true, VolumeRoot::Plugin("kubernetes.io/secret")));
    let mut known = hashes(&outcomes);
    assert_eq!(known.len(), 3);

    assert!(w.refresh(&pod, &mut known).await.is_empty());
    assert!(w.verbs.take().is_empty());
    pod.metadata.labels.as_mut().unwrap().insert("b".into(), "2".into());
    w.objects.put_config_map("cm", &[("k", "new")]);
    assert!(w.refresh(&pod, &mut known).await.is_empty());
    let expected = ["put config k=new group Some(7)", "put labels labels=a=\"1\"\nb=\"2\" group Some(7)"];
    assert_eq!(w.verbs.take(), expected);
    assert!(w.refresh(&pod, &mut known).await.is_empty());
    assert!(w.verbs.take().is_empty());
}

/// The files of all volumes of all pods at once would be gigabytes, and more connections than volnetd's broker has a backlog for.
#[tokio::test]
async fn few_files_are_on_their_way_at_a_time() {
    let w = world();
    let names: Vec<String> = (0..5 * FILES_ON_THEIR_WAY).map(|index| format!("v{index}")).collect();
    let mut pod = pod();
    let spec = pod.spec.as_mut().unwrap();
    spec.volumes = serde_json::from_value(
        names
            .iter()
            .map(|name| serde_json::json!({"name": name, "configMap": {"name": "cm", "defaultMode": 420}}))
            .collect(),
    )
    .unwrap();
    let mount = |name: &String| serde_json::json!({"name": name, "mountPath": format!("/{name}")});
    spec.containers[0].volume_mounts = serde_json::from_value(names.iter().map(mount).collect()).unwrap();
    let outcomes = w.set_up(&pod).await;
    assert!(errors(&outcomes).is_empty());
    assert_eq!(w.verbs.busy.lock().1, FILES_ON_THEIR_WAY);

    w.objects.put_config_map("cm", &[("k", "new")]);
    *w.verbs.busy.lock() = (0, 0);
    let mut known = hashes(&outcomes);
    assert!(w.refresh(&pod, &mut known).await.is_empty());
    assert_eq!(w.verbs.busy.lock().1, FILES_ON_THEIR_WAY);
    assert_eq!(
        w.verbs.take().iter().filter(|call| call.starts_with("put") && call.contains("k=new")).count(),
        names.len()
    );
}

#[tokio::test]
async fn what_is_missing_stops_only_its_own_volume() {
    let w = World { objects: FakeObjects::default(), ..world() };
    w.objects.put_secret("sec", &[("s", b"x")]);
    let outcomes = w.set_up(&pod()).await;
    let text = "MountVolume.SetUp failed for volume \"config\" : configmap \"cm\" not found";
    assert_eq!(errors(&outcomes), [(text.to_owned(), false)]);
    // Nothing is made that cannot be filled.
    assert!(w.verbs.take().iter().all(|call| !call.contains("config")));
    w.objects.put_config_map("cm", &[]);
    assert!(errors(&w.set_up(&pod()).await).is_empty());
    assert!(w.verbs.take().contains(&"put config  group Some(7)".to_owned()));
}

#[tokio::test]
async fn volumes_wait_for_a_process_that_is_away_without_an_event() {
    let w = world();
    w.objects.set_away(true);
    let away: Vec<bool> = errors(&w.set_up(&pod()).await).into_iter().map(|(_, transient)| transient).collect();
    assert_eq!(away, [true, true]);
    w.objects.set_away(false);
    w.verbs.fail("put", tonic::Code::Unavailable);
    assert!(errors(&w.set_up(&pod()).await).iter().all(|(_, transient)| *transient));
    w.verbs.fail("content", tonic::Code::ResourceExhausted);
    let refused = errors(&w.set_up(&pod()).await);
    let text = "MountVolume.SetUp failed for volume \"config\" : no room";
    assert_eq!(refused[0], (text.to_owned(), false));
}

#[tokio::test]
async fn a_running_pod_keeps_its_files_until_new_ones_are_there() {
    let w = world();
    let outcomes = w.set_up(&pod()).await;
    let mut known = hashes(&outcomes);
    let before = known.clone();
    w.verbs.take();
    w.objects.put_config_map("cm", &[("k", "new")]);

    w.objects.set_away(true);
    let failed = w.refresh(&pod(), &mut known).await;
    assert!(failed.len() == 2 && failed.iter().all(VolumeError::is_transient));
    assert!(w.verbs.take().is_empty());
    w.objects.set_away(false);

    w.verbs.fail("put", tonic::Code::Unavailable);
    assert!(w.refresh(&pod(), &mut known).await.iter().all(VolumeError::is_transient));
    assert_eq!(known, before, "what was not put is not known");
    w.verbs.take();
    w.verbs.well();
    assert!(w.refresh(&pod(), &mut known).await.is_empty());
    assert_eq!(w.verbs.take(), ["put config k=new group Some(7)"]);
}

#[tokio::test]
async fn a_volume_that_has_gone_is_told_from_one_that_cannot_be_written() {
    let w = world();
    let mut known = hashes(&w.set_up(&pod()).await);
    w.verbs.take();
    assert!(w.look(&pod(), &mut known).await.is_empty());
    assert_eq!(w.verbs.take().len(), 3, "all with files are asked for, also where nothing has changed");
    for (code, gone) in [(tonic::Code::NotFound, true), (tonic::Code::ResourceExhausted, false)] {
        w.verbs.fail("put", code);
        let errors = w.look(&pod(), &mut known).await;
        assert!(errors.len() == 3 && errors.iter().all(|error| error.is_not_set_up() == gone), "{code}");
    }
    w.objects.put_config_map("cm", &[("k", "new")]);
    w.verbs.fail("put", tonic::Code::NotFound);
    assert!(w.refresh(&pod(), &mut known).await.iter().all(VolumeError::is_not_set_up));
    w.verbs.fail("put", tonic::Code::Unavailable);
    assert!(!w.refresh(&pod(), &mut known).await.iter().any(VolumeError::is_not_set_up));
}
