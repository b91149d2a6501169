//! The image manager against a service that answers from a list, on a paused clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_cri::{Code, CriError, v1};
use bulkhead_types::PodUid;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::in_use::{ImageHold, ImagesInUse};
use super::pull_records::{self, Owner, Policy, PullRecords, Source};
use super::*;
use kubelet_model::events::EventType;

/// Answers each pull from a list (success when it has run out), after a second; knows the images of `present`.
#[derive(Default)]
struct Registry {
    present: Mutex<Vec<String>>,
    failures: Mutex<VecDeque<(Code, &'static str)>>,
    inspect_fails: bool,
    running: Mutex<(usize, usize)>,
    pulls: Mutex<Vec<v1::PullImageRequest>>,
    lists: Mutex<usize>,
    /// How long a list is on its way.
    list_takes: Duration,
}

impl ImageService for Arc<Registry> {
    async fn image_status(&self, request: v1::ImageStatusRequest) -> Result<v1::ImageStatusResponse, CriError> {
        if self.inspect_fails {
            return Err(error(Code::Unavailable, "no runtime"));
        }
        let name = request.image.unwrap().image;
        let there = self.present.lock().contains(&name);
        let image = there.then(|| v1::Image { id: format!("sha256:{name}"), size: 4711, ..Default::default() });
        Ok(v1::ImageStatusResponse { image, ..Default::default() })
    }

    async fn list_images(&self) -> Result<v1::ListImagesResponse, CriError> {
        *self.lists.lock() += 1;
        let image = |name: &String| v1::Image {
            id: format!("sha256:{name}"),
            repo_tags: vec![name.clone()],
            ..Default::default()
        };
        let images = self.present.lock().iter().map(image).collect();
        tokio::time::sleep(self.list_takes).await;
        Ok(v1::ListImagesResponse { images })
    }

    async fn pull_image(&self, request: v1::PullImageRequest) -> Result<v1::PullImageResponse, CriError> {
        {
            let mut running = self.running.lock();
            running.0 += 1;
            running.1 = running.1.max(running.0);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.running.lock().0 -= 1;
        let name = request.image.clone().unwrap().image;
        self.pulls.lock().push(request);
        if let Some((code, text)) = self.failures.lock().pop_front() {
            return Err(error(code, text));
        }
        self.present.lock().push(name.clone());
        Ok(v1::PullImageResponse { image_ref: format!("sha256:{name}") })
    }
}

fn error(code: Code, message: &str) -> CriError {
    CriError { code, method: "pull_image", message: message.into() }
}

/// Credentials that are there.
struct Fixed<'a>(&'a [Credential]);

impl Credentials for Fixed<'_> {
    async fn find(&self, _: &str) -> Vec<Credential> {
        self.0.to_vec()
    }
}

/// A manager, its registry and the events so far.
struct Bench {
    registry: Arc<Registry>,
    manager: ImageManager<Arc<Registry>>,
    events: Mutex<Vec<String>>,
    credentials: Vec<Credential>,
}

impl Bench {
    fn new(registry: Registry, limits: PullLimits) -> Self {
        let registry = Arc::new(registry);
        Bench {
            manager: ImageManager::new(registry.clone(), limits, ImagesInUse::new(|| 0)),
            registry,
            events: Mutex::default(),
            credentials: Vec::new(),
        }
    }

    async fn hold(&self, image: &str, policy: PullPolicy) -> Result<ImageHold, ImageError> {
        let (uid, annotations) = (PodUid::parse("u").unwrap(), BTreeMap::new());
        let request = ImageRequest { pod_uid: &uid, image, policy, annotations: &annotations, sandbox_config: None };
        let events = |_: EventType, _: &'static str, _: &str| {};
        let held = self.manager.hold_image(request, &Fixed(&self.credentials), &events).await;
        held.map(|(_, hold)| hold)
    }

    async fn ensure(&self, image: &str, policy: PullPolicy) -> Result<ImageRef, ImageError> {
        let uid = PodUid::parse("u").unwrap();
        let request = ImageRequest {
            pod_uid: &uid,
            image,
            policy,
            annotations: &BTreeMap::from([("note".to_owned(), "n".to_owned())]),
            sandbox_config: None,
        };
        let events = |kind: EventType, reason: &'static str, message: &str| {
            self.events.lock().push(format!("{kind:?} {reason} {message}"));
        };
        self.manager.ensure_image_exists(request, &Fixed(&self.credentials), &events).await
    }

    fn events(&self) -> Vec<String> {
        std::mem::take(&mut self.events.lock())
    }
}

#[tokio::test(start_paused = true)]
async fn present_images_are_used_as_they_are() {
    let bench = Bench::new(
        Registry { present: Mutex::new(vec!["busybox:1".into(), "app:latest".into()]), ..Default::default() },
        PullLimits::default(),
    );
    for policy in [PullPolicy::IfNotPresent, PullPolicy::Never] {
        assert_eq!(bench.ensure("busybox:1", policy).await.unwrap().id, "sha256:busybox:1");
        assert_eq!(bench.events(), ["Normal Pulled Container image \"busybox:1\" already present on machine"]);
    }
    let image = bench.ensure("app", PullPolicy::IfNotPresent).await.unwrap();
    assert_eq!((image.id.as_str(), image.name.as_str()), ("sha256:app:latest", "app:latest"));
    assert!(bench.registry.pulls.lock().is_empty());
    bench.ensure("busybox:1", PullPolicy::Always).await.unwrap();
    assert_eq!(bench.registry.pulls.lock().len(), 1);
}

/// Garbage collection takes nothing from a start, nor from a pull, and a start that comes while its image goes pulls it again.
#[tokio::test(start_paused = true)]
async fn starts_and_removals_see_each_other() {
    let present = || Mutex::new(vec!["busybox:1".to_owned()]);
    let bench = Bench::new(Registry { present: present(), ..Default::default() }, PullLimits::default());
    let in_use = bench.manager.in_use();
    let removal = |name: &'static str| in_use.remove("sha256:busybox:1", [name].into_iter());
    let full = "docker.io/library/busybox:1";
    let hold = bench.hold("busybox:1", PullPolicy::Never).await.unwrap();
    assert!(removal(full).is_none(), "a start holds it");
    drop(hold);

    let pull = bench.hold("busybox:1", PullPolicy::Always);
    tokio::pin!(pull);
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut pull).await.is_err());
    assert!(removal(full).is_none(), "it is being pulled");
    drop(pull.await.unwrap());

    let removal = removal(full).unwrap();
    let start = bench.hold("busybox:1", PullPolicy::IfNotPresent);
    tokio::pin!(start);
    assert!(tokio::time::timeout(Duration::from_secs(60), &mut start).await.is_err(), "it waits");
    bench.registry.present.lock().clear();
    let pulls = bench.registry.pulls.lock().len();
    drop(removal);
    assert!(start.await.is_ok());
    assert_eq!(bench.registry.pulls.lock().len(), pulls + 1, "and pulls it anew");
}

#[tokio::test(start_paused = true)]
async fn never_means_never() {
    let bench = Bench::new(Registry::default(), PullLimits::default());
    let error = bench.ensure("registry.invalid/never:1", PullPolicy::Never).await.unwrap_err();
    assert_eq!(error.reason, ImageErrorReason::ErrImageNeverPull);
    assert_eq!(error.message, "Container image \"registry.invalid/never:1\" is not present with pull policy of Never");
    assert_eq!(bench.events(), [format!("Warning ErrImageNeverPull {}", error.message)]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_pull_and_its_back_off_word_for_word() {
    let failures = VecDeque::from([(Code::Unknown, "failed to pull and unpack"), (Code::NotFound, "no such tag")]);
    let registry = Registry { failures: Mutex::new(failures), ..Default::default() };
    let bench = Bench::new(registry, PullLimits::default());
    let image = "registry.invalid/none:1";

    let error = bench.ensure(image, PullPolicy::IfNotPresent).await.unwrap_err();
    assert_eq!((error.reason.as_str(), error.message.as_str()), ("ErrImagePull", "failed to pull and unpack"));
    assert_eq!(
        bench.events(),
        [
            "Normal Pulling Pulling image \"registry.invalid/none:1\"",
            "Warning Failed Failed to pull image \"registry.invalid/none:1\": failed to pull and unpack"
        ]
    );

    let error = bench.ensure(image, PullPolicy::IfNotPresent).await.unwrap_err();
    assert_eq!(error.reason.as_str(), "ImagePullBackOff");
    assert_eq!(
        error.message,
        "Back-off pulling image \"registry.invalid/none:1\": ErrImagePull: failed to pull and unpack"
    );
    assert_eq!(bench.events(), ["Normal BackOff Back-off pulling image \"registry.invalid/none:1\""]);
    assert!(bench.ensure("registry.invalid/other:1", PullPolicy::Always).await.is_err(), "its own failure");
    bench.events();

    tokio::time::sleep_until(error.retry_at.unwrap()).await;
    assert!(bench.ensure(image, PullPolicy::IfNotPresent).await.is_ok());
    assert_eq!(
        bench.events(),
        [
            "Normal Pulling Pulling image \"registry.invalid/none:1\"",
            "Normal Pulled Successfully pulled image \"registry.invalid/none:1\" in 1s (1s including waiting). \
         Image size: 4711 bytes."
        ]
    );
    let pull = bench.registry.pulls.lock().last().cloned().unwrap();
    assert_eq!(pull.image.unwrap().annotations, BTreeMap::from([("note".to_owned(), "n".to_owned())]));
}

#[tokio::test(start_paused = true)]
async fn other_reasons() {
    let bench = Bench::new(Registry::default(), PullLimits::default());
    let error = bench.ensure("Bad Name", PullPolicy::IfNotPresent).await.unwrap_err();
    assert_eq!(error.reason.as_str(), "InvalidImageName");
    assert!(error.message.starts_with("Failed to apply default image tag \"Bad Name\": couldn't parse image name"));
    assert_eq!(bench.events(), [format!("Warning InspectFailed {}", error.message)]);

    let bench = Bench::new(Registry { inspect_fails: true, ..Default::default() }, PullLimits::default());
    let error = bench.ensure("a:1", PullPolicy::IfNotPresent).await.unwrap_err();
    assert_eq!(error.reason.as_str(), "ImageInspectError");
    assert_eq!(error.message, "Failed to inspect image \"\": rpc error: code = Unavailable desc = no runtime");

    let failures = [
        (Code::Unknown, "RegistryUnavailable: 503"),
        (Code::Unknown, "SignatureValidationFailed"),
        (Code::Internal, "RegistryUnavailable"),
    ];
    let registry = Registry { failures: Mutex::new(failures.into()), ..Default::default() };
    let bench = Bench::new(registry, PullLimits::default());
    let mut said = Vec::new();
    for image in ["a:1", "b:1", "c:1"] {
        let error = bench.ensure(image, PullPolicy::Always).await.unwrap_err();
        said.push(error.to_string());
    }
    assert_eq!(
        said,
        [
            "RegistryUnavailable: image pull failed for a:1 because the registry is unavailable: 503",
            "SignatureValidationFailed: image pull failed for b:1 because the signature validation failed",
            "ErrImagePull: rpc error: code = Internal desc = RegistryUnavailable",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn credentials_are_tried_in_order() {
    let failures = VecDeque::from([(Code::Unknown, "denied"), (Code::Unknown, "denied"), (Code::Unknown, "late")]);
    let registry = Registry { failures: Mutex::new(failures), ..Default::default() };
    let mut bench = Bench::new(registry, PullLimits::default());
    let auth =
        |user: &str| Credential { auth: v1::AuthConfig { username: user.into(), ..Default::default() }, source: None };
    bench.credentials = vec![auth("a"), auth("b"), auth("c")];
    let error = bench.ensure("x:1", PullPolicy::Always).await.unwrap_err();
    assert_eq!(error.message, "[denied, late]");
    bench.ensure("y:1", PullPolicy::Always).await.unwrap();
    let users: Vec<_> = bench.registry.pulls.lock().iter().map(|p| p.auth.clone().unwrap().username).collect();
    assert_eq!(users, ["a", "b", "c", "a"]);
}

/// As two secrets that hold the same: one attempt, and either is known by the record of the pull.
#[tokio::test(start_paused = true)]
async fn a_credential_of_two_secrets_is_tried_once_and_either_secret_counts() {
    let mut node = Checked::new(Policy::NeverVerifyPreloadedImages, &[]);
    assert_eq!(node.pod(Some(("b", "p")), PullPolicy::Always).await, Ok(true));
    // Neither its hash nor its name is noted, those of the second are.
    let both = [("a", "q"), ("b", "p")].map(|(name, hash)| secret_credential(name, "same", hash));
    node.bench.credentials = both.into();
    node.bench.ensure("r.test/app:1", PullPolicy::Never).await.unwrap();
    node.bench.registry.failures.lock().push_back((Code::Unknown, "denied"));
    let before = node.bench.registry.pulls.lock().len();
    let error = node.bench.ensure("r.test/other:1", PullPolicy::Always).await.unwrap_err();
    assert_eq!((&*error.message, node.bench.registry.pulls.lock().len() - before), ("denied", 1));
}

#[tokio::test(start_paused = true)]
async fn one_at_a_time_a_few_or_all() {
    let no_rate = PullLimits { per_second: 0, ..PullLimits::default() };
    for (limits, most) in [
        (no_rate, 1),
        (PullLimits { serialize: false, parallel_max: Some(3), ..no_rate }, 3),
        (PullLimits { serialize: false, ..no_rate }, 8),
    ] {
        let bench = Bench::new(Registry::default(), limits);
        let names: Vec<String> = (0..8).map(|n| format!("image:{n}")).collect();
        let pulls = names.iter().map(|name| bench.ensure(name, PullPolicy::IfNotPresent));
        let results = futures_util::future::join_all(pulls).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(bench.registry.running.lock().1, most, "{limits:?}");
        if most == 1 {
            let last = bench.events().pop().unwrap();
            assert!(last.contains("in 1s (8s including waiting)"), "{last}");
        }
    }
}

/// Credentials that nobody ever says.
struct Silent;

impl Credentials for Silent {
    async fn find(&self, _: &str) -> Vec<Credential> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_waits_for_credentials_holds_up_no_other() {
    let bench = Bench::new(Registry::default(), PullLimits::default());
    let (uid, annotations) = (PodUid::parse("u").unwrap(), BTreeMap::new());
    let request = ImageRequest {
        pod_uid: &uid,
        image: "private:1",
        policy: PullPolicy::Always,
        annotations: &annotations,
        sandbox_config: None,
    };
    let events = |_: EventType, _: &'static str, _: &str| {};
    let hangs = bench.manager.ensure_image_exists(request, &Silent, &events);
    tokio::select! {
        biased;
        _ = hangs => unreachable!(),
        other = bench.ensure("public:1", PullPolicy::Always) => assert!(other.is_ok()),
    }
}

/// Records on a disk that may be full.
#[derive(Default)]
struct Disk {
    kept: Mutex<Vec<u8>>,
    full: Mutex<bool>,
    writes: Mutex<usize>,
    /// How long a write takes.
    takes: Duration,
}

impl RecordStore for Disk {
    fn save(&self, records: &PullRecords) -> Result<(), RecordStoreError> {
        std::thread::sleep(self.takes);
        if *self.full.lock() {
            return Err(RecordStoreError(std::io::Error::other("no space")));
        }
        *self.kept.lock() = serde_json::to_vec(records).unwrap();
        *self.writes.lock() += 1;
        Ok(())
    }
}

/// A credential as it stands in a secret of that name.
fn secret_credential(name: &str, password: &str, hash: &str) -> Credential {
    let owner = Owner { namespace: "ns".into(), name: name.into(), uid: name.into() };
    Credential {
        auth: v1::AuthConfig { password: password.into(), ..Default::default() },
        source: Some(Source::Secret(pull_records::Secret { owner, hash: hash.into() })),
    }
}

/// Manager, registry and disk of a node that checks whose images are whose; `restart` makes its next process.
struct Checked {
    bench: Bench,
    policy: Policy,
    disk: Arc<Disk>,
}

impl Checked {
    fn new(policy: Policy, present: &[&str]) -> Self {
        let present = Mutex::new(present.iter().map(|name| (*name).to_owned()).collect());
        let registry = Arc::new(Registry { present, ..Registry::default() });
        Checked::of(policy, registry, Arc::default(), PullRecords::default())
    }

    fn of(policy: Policy, registry: Arc<Registry>, disk: Arc<Disk>, records: PullRecords) -> Self {
        let manager = ImageManager::new(
            registry.clone(),
            PullLimits { per_second: 0, ..PullLimits::default() },
            ImagesInUse::new(|| 0),
        );
        let manager = manager.with_records(policy.clone(), records, disk.clone());
        Checked { bench: Bench { manager, registry, events: Mutex::default(), credentials: Vec::new() }, policy, disk }
    }

    fn restart(self) -> Self {
        let records = serde_json::from_slice(&self.disk.kept.lock()).unwrap();
        Checked::of(self.policy, self.bench.registry, self.disk, records)
    }

    /// A pod with this secret (none: nobody's credentials); whether it had to pull.
    async fn pod(&mut self, secret: Option<(&str, &str)>, policy: PullPolicy) -> Result<bool, ImageErrorReason> {
        let credential = |(name, password)| secret_credential(name, password, password);
        self.bench.credentials = secret.into_iter().map(credential).collect();
        let before = self.bench.registry.pulls.lock().len();
        self.bench.ensure("r.test/app:1", policy).await.map_err(|error| error.reason)?;
        Ok(self.bench.registry.pulls.lock().len() > before)
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_is_theirs_who_could_pull_it() {
    use PullPolicy::{IfNotPresent, Never};
    let mut node = Checked::new(Policy::NeverVerifyPreloadedImages, &["busybox:1"]);
    // What came with the node is everybody's.
    node.bench.ensure("busybox:1", Never).await.unwrap();
    assert_eq!(
        node.bench.events(),
        ["Normal Pulled Container image \"busybox:1\" already present on machine and can be accessed by the pod"]
    );
    assert_eq!(node.pod(Some(("a", "p")), IfNotPresent).await, Ok(true));
    node = node.restart();
    assert_eq!(node.pod(Some(("a", "p")), IfNotPresent).await, Ok(false));
    assert_eq!(node.pod(Some(("copy of a", "p")), Never).await, Ok(false));
    // Others have to pull it, and where they may not it is as good as not there.
    node.bench.events();
    assert_eq!(node.pod(None, Never).await, Err(ImageErrorReason::ErrImageNeverPull));
    assert_eq!(
        node.bench.events(),
        ["Warning ErrImageNeverPull Container image \"r.test/app:1\" is not present with pull policy of Never"]
    );
    node.bench.registry.failures.lock().push_back((Code::Unknown, "denied"));
    assert_eq!(node.pod(Some(("b", "guess")), IfNotPresent).await, Err(ImageErrorReason::ErrImagePull));
    tokio::time::advance(Duration::from_secs(300)).await;
    assert_eq!(node.pod(Some(("b", "q")), IfNotPresent).await, Ok(true));
    assert_eq!(node.pod(Some(("b", "q")), IfNotPresent).await, Ok(false));
    assert_eq!(node.pod(Some(("a", "p")), IfNotPresent).await, Ok(false));
    assert_eq!(*node.bench.registry.lists.lock(), 2, "once for each process");
    // Pulled with no secret of anybody's, it is everybody's.
    assert_eq!(node.pod(None, PullPolicy::Always).await, Ok(true));
    assert_eq!(node.pod(None, Never).await, Ok(false));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_pull_gives_no_pod_the_image() {
    let mut node = Checked::new(Policy::NeverVerifyPreloadedImages, &[]);
    let cut =
        tokio::time::timeout(Duration::from_millis(10), node.pod(Some(("a", "p")), PullPolicy::IfNotPresent)).await;
    assert!(cut.is_err());
    // The runtime went on with it.
    node.bench.registry.present.lock().push("r.test/app:1".to_owned());
    for round in 0..2 {
        assert_eq!(node.pod(None, PullPolicy::Never).await, Err(ImageErrorReason::ErrImageNeverPull), "{round}");
        node = node.restart();
    }
    assert_eq!(node.pod(Some(("a", "p")), PullPolicy::IfNotPresent).await, Ok(true));
    assert_eq!(node.pod(Some(("a", "p")), PullPolicy::Never).await, Ok(false));
}

/// A list of images that the runtime made before a pull ended comes after it.
#[tokio::test(start_paused = true)]
async fn a_slow_list_gives_no_pod_the_image() {
    let present = Mutex::new(vec!["busybox:1".to_owned()]);
    let registry = Arc::new(Registry { present, list_takes: Duration::from_secs(5), ..Registry::default() });
    let policy = Policy::NeverVerifyPreloadedImages;
    let mut node = Checked::of(policy, registry, Arc::default(), PullRecords::default());
    let secret = Source::Secret(pull_records::Secret {
        owner: Owner { namespace: "ns".into(), name: "a".into(), uid: "a".into() },
        hash: "p".into(),
    });
    node.bench.credentials = vec![Credential { auth: v1::AuthConfig::default(), source: Some(secret) }];
    let (looked, pulled) = tokio::join!(
        node.bench.ensure("busybox:1", PullPolicy::Never),
        node.bench.ensure("r.test/app:1", PullPolicy::Always),
    );
    assert!(looked.is_ok() && pulled.is_ok());
    for round in 0..2 {
        assert_eq!(node.pod(None, PullPolicy::Never).await, Err(ImageErrorReason::ErrImageNeverPull), "{round}");
        node = node.restart();
    }
}

/// The runtime has not got far yet with a pull that was cut off when it is asked what it has.
#[tokio::test(start_paused = true)]
async fn an_image_that_comes_after_its_pull_was_cut_off_is_no_pods() {
    let mut node = Checked::new(Policy::NeverVerifyPreloadedImages, &["busybox:1"]);
    let cut =
        tokio::time::timeout(Duration::from_millis(10), node.pod(Some(("a", "p")), PullPolicy::IfNotPresent)).await;
    assert!(cut.is_err());
    for _ in 0..3 {
        node.bench.ensure("busybox:1", PullPolicy::Never).await.unwrap();
    }
    assert_eq!(*node.bench.registry.lists.lock(), 1, "a pull that has left no image causes no further list");
    node = node.restart();
    node.bench.ensure("busybox:1", PullPolicy::Never).await.unwrap();
    node.bench.registry.present.lock().push("r.test/app:1".to_owned());
    assert_eq!(node.pod(None, PullPolicy::Never).await, Err(ImageErrorReason::ErrImageNeverPull));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_pulled_that_cannot_be_noted() {
    let mut node = Checked::new(Policy::AlwaysVerify, &[]);
    *node.disk.full.lock() = true;
    let error = node.bench.ensure("r.test/app:1", PullPolicy::Always).await.unwrap_err();
    assert_eq!(
        error.message,
        "Failed to record image pull intent for container image \"r.test/app:1\": failed to record image pull intent"
    );
    assert!(node.bench.registry.pulls.lock().is_empty());
    *node.disk.full.lock() = false;
    assert_eq!(node.pod(None, PullPolicy::IfNotPresent).await, Ok(true));
    let mut off = Checked::new(Policy::Off, &[]);
    *off.disk.full.lock() = true;
    assert_eq!(off.pod(Some(("a", "p")), PullPolicy::IfNotPresent).await, Ok(true));
    assert_eq!(off.pod(None, PullPolicy::Never).await, Ok(false), "without the gate nothing is noted or asked");
}

/// Two writes for each pull by itself; of pulls that come and end together the first has its own, and the others share one.
#[tokio::test(start_paused = true)]
async fn pulls_that_come_together_are_noted_together() {
    let limits = PullLimits { serialize: false, per_second: 0, ..PullLimits::default() };
    let disk = Arc::new(Disk { takes: Duration::from_millis(20), ..Disk::default() });
    let registry = Arc::<Registry>::default();
    let manager = ImageManager::new(registry.clone(), limits, ImagesInUse::new(|| 0));
    let policy = Policy::NeverVerifyPreloadedImages;
    let manager = manager.with_records(policy, PullRecords::default(), disk.clone());
    let bench = Bench { manager, registry, events: Mutex::default(), credentials: Vec::new() };
    bench.ensure("r.test/alone:1", PullPolicy::Always).await.unwrap();
    assert_eq!(*disk.writes.lock(), 2);
    let names: Vec<String> = (0..8).map(|n| format!("r.test/app:{n}")).collect();
    let pulls = names.iter().map(|name| bench.ensure(name, PullPolicy::Always));
    assert!(futures_util::future::join_all(pulls).await.iter().all(Result::is_ok));
    assert!(*disk.writes.lock() < 2 + 8, "{}", disk.writes.lock());
    let kept: PullRecords = serde_json::from_slice(&disk.kept.lock()).unwrap();
    assert_eq!(kept.counts(), (0, 9));
}

#[tokio::test(start_paused = true)]
async fn too_many_pulls_a_second_fail() {
    let limits = PullLimits { serialize: false, per_second: 1, burst: 2, ..PullLimits::default() };
    let bench = Bench::new(Registry::default(), limits);
    let pulls = ["a:1", "b:1", "c:1"].map(|name| bench.ensure(name, PullPolicy::IfNotPresent));
    let results = futures_util::future::join_all(pulls).await;
    assert!(results[0].is_ok() && results[1].is_ok());
    let error = results[2].as_ref().unwrap_err();
    assert_eq!((error.reason.as_str(), error.message.as_str()), ("ErrImagePull", "pull QPS exceeded"));
}

#[tokio::test(start_paused = true)]
async fn all_credentials_of_a_pull_count_once() {
    let limits = PullLimits { per_second: 1, burst: 1, ..PullLimits::default() };
    let failures = Mutex::new(VecDeque::from([(Code::Unknown, "denied"), (Code::Unknown, "denied")]));
    let mut bench = Bench::new(Registry { failures, ..Default::default() }, limits);
    let auth =
        |user: &str| Credential { auth: v1::AuthConfig { username: user.into(), ..Default::default() }, source: None };
    bench.credentials = ["a", "b", "c"].map(auth).into();
    assert!(bench.ensure("x:1", PullPolicy::Always).await.is_ok());
    assert_eq!(bench.registry.pulls.lock().len(), 3);
}

#[test]
fn default_policy() {
    let of = PullPolicy::of;
    assert_eq!(of(None, "busybox"), PullPolicy::Always);
    assert_eq!(of(Some(""), "busybox:latest"), PullPolicy::Always);
    assert_eq!(of(None, "busybox:1"), PullPolicy::IfNotPresent);
    assert_eq!(of(Some("Never"), "busybox"), PullPolicy::Never);
}

proptest! {
    #[test]
    fn any_name_gives_an_answer(image in ".{0,60}") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let bench = Bench::new(Registry::default(), PullLimits::default());
            let result = bench.ensure(&image, PullPolicy::Never).await;
            let reason = result.unwrap_err().reason;
            assert!(matches!(reason, ImageErrorReason::ErrImageNeverPull | ImageErrorReason::InvalidImageName));
        });
    }
}
