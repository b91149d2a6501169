use std::collections::HashMap;

use bulkhead_apiclient::ObjectRef;
use bulkhead_apiclient::watch::Change;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::mpsc;

use super::*;

/// An API server that counts.
#[derive(Default)]
struct Fake {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    objects: HashMap<(String, String), ConfigMap>,
    version: u64,
    gets: Vec<(String, bool)>,
    watches_ever: usize,
    watches: HashMap<(String, String), Vec<mpsc::UnboundedSender<Change<ConfigMap>>>>,
    away: bool,
}

impl Fake {
    fn put(&self, name: &str, value: &str, immutable: bool) {
        let mut state = self.state.lock();
        state.version += 1;
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.resource_version = Some(state.version.to_string());
        object.data = Some([("k".to_owned(), value.to_owned())].into());
        object.immutable = immutable.then_some(true);
        let key = ("ns".to_owned(), name.to_owned());
        state.objects.insert(key.clone(), object.clone());
        for watch in state.watches.get(&key).into_iter().flatten() {
            let _ = watch.send(Change::Applied(object.clone()));
        }
    }

    fn delete(&self, name: &str) {
        let mut state = self.state.lock();
        let key = ("ns".to_owned(), name.to_owned());
        if state.objects.remove(&key).is_none() {
            return;
        }
        for watch in state.watches.get(&key).into_iter().flatten() {
            let object = ObjectRef { namespace: "ns".into(), name: name.into(), uid: String::new() };
            let _ = watch.send(Change::Deleted(object));
        }
    }

    fn away(&self, away: bool) {
        self.state.lock().away = away;
    }

    fn gets(&self) -> Vec<(String, bool)> {
        std::mem::take(&mut self.state.lock().gets)
    }

    /// Ever begun, open now.
    fn watches(&self) -> (usize, usize) {
        let state = self.state.lock();
        let open = state.watches.values().flatten().filter(|watch| !watch.is_closed()).count();
        (state.watches_ever, open)
    }
}

impl ObjectServer<ConfigMap> for Fake {
    fn get<'a>(&'a self, namespace: &'a str, name: &'a str, from_cache: bool) -> BoxFuture<'a, Got<ConfigMap>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let mut state = self.state.lock();
            state.gets.push((name.to_owned(), from_cache));
            if state.away {
                return Err(ObjectError::Away("away".into()));
            }
            let object = state.objects.get(&(namespace.to_owned(), name.to_owned())).cloned();
            object.ok_or_else(|| ObjectError::NotFound(format!("configmaps {name:?} not found")))
        })
    }

    fn watch(&self, namespace: &str, name: &str) -> BoxStream<'static, Change<ConfigMap>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.state.lock();
        let key = (namespace.to_owned(), name.to_owned());
        if !state.away {
            let objects: Vec<ConfigMap> = state.objects.get(&key).cloned().into_iter().collect();
            sender.send(Change::Restarted(objects.into())).unwrap();
        }
        state.watches_ever += 1;
        state.watches.entry(key).or_default().push(sender);
        tokio_stream::wrappers::UnboundedReceiverStream::new(receiver).boxed()
    }
}

const MINUTE: Duration = Duration::from_secs(60);

struct World {
    fake: Arc<Fake>,
    store: Arc<Store<ConfigMap>>,
    changes: broadcast::Receiver<PodUid>,
    ttl: Arc<Mutex<Duration>>,
}

fn world(strategy: Strategy) -> World {
    let fake = Arc::new(Fake::default());
    let (sender, changes) = broadcast::channel(1024);
    let ttl = Arc::new(Mutex::new(MINUTE));
    let read: Ttl = {
        let ttl = ttl.clone();
        Arc::new(move || *ttl.lock())
    };
    World { store: Store::start(fake.clone(), strategy, read, MINUTE, sender), fake, changes, ttl }
}

impl World {
    fn register(&self, pod: &str, names: &[(&str, bool)]) {
        let names = names.iter().map(|(name, follows)| ((*name).to_owned(), *follows)).collect();
        self.store.register(&uid(pod), "ns", names);
    }

    async fn value(&self, name: &str) -> Got<String> {
        self.store.get("ns", name).await.map(|map| map.data.as_ref().unwrap()["k"].clone())
    }

    async fn changed(&mut self) -> String {
        self.changes.recv().await.unwrap().to_string()
    }
}

fn uid(text: &str) -> PodUid {
    PodUid::parse(text).unwrap()
}

/// The time in which the store's own task gets its turn.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn get_asks_each_time_and_names_followers_once_in_a_period() {
    let mut world = world(Strategy::Get);
    world.fake.put("a", "1", false);
    world.register("p", &[("a", true)]);
    world.register("q", &[("a", false)]);
    assert_eq!(world.value("a").await.unwrap(), "1");
    world.fake.put("a", "2", false);
    assert_eq!(world.value("a").await.unwrap(), "2");
    assert_eq!(world.fake.gets(), [("a".to_owned(), false), ("a".to_owned(), false)]);
    assert_eq!(world.changed().await, "p");
    world.store.unregister(&uid("p"));
    tokio::time::sleep(MINUTE * 3).await;
    assert_eq!(world.changes.try_recv(), Err(TryRecvError::Empty));
}

#[tokio::test(start_paused = true)]
async fn cache_asks_once_for_everybody_until_it_is_old() {
    let mut world = world(Strategy::Cache);
    world.fake.put("a", "1", false);
    assert!(
        matches!(world.value("a").await, Err(ObjectError::Away(text)) if text == "object \"ns\"/\"a\" not registered")
    );
    world.register("p", &[("a", false)]);
    let (one, two) = tokio::join!(world.value("a"), world.value("a"));
    assert_eq!((one.unwrap().as_str(), two.unwrap().as_str()), ("1", "1"));
    assert_eq!(world.fake.gets(), [("a".to_owned(), false)]);
    world.fake.put("a", "2", false);
    assert_eq!(world.value("a").await.unwrap(), "1", "not a minute old");
    // A pod that is new here sees what was written before it was made.
    world.register("q", &[("a", false)]);
    assert_eq!(world.value("a").await.unwrap(), "2");
    assert_eq!(world.fake.gets(), [("a".to_owned(), false)]);
    assert_eq!(world.changed().await.len(), 1);
    assert_eq!(world.changed().await.len(), 1, "both are told");
    world.register("q", &[("a", false)]);
    tokio::time::advance(MINUTE).await;
    world.fake.put("a", "3", false);
    assert_eq!(world.value("a").await.unwrap(), "3");
    assert_eq!(world.fake.gets(), [("a".to_owned(), true)], "a look may be answered from the server's memory");
}

#[tokio::test(start_paused = true)]
async fn cache_survives_an_outage_and_believes_that_there_is_none() {
    let world = world(Strategy::Cache);
    world.register("p", &[("a", false), ("b", false)]);
    world.fake.put("a", "1", false);
    assert_eq!(world.value("a").await.unwrap(), "1");
    world.fake.away(true);
    tokio::time::advance(MINUTE * 2).await;
    assert_eq!(world.value("a").await.unwrap(), "1", "what is known goes on counting");
    assert_eq!(world.value("b").await, Err(ObjectError::Away("away".into())), "nothing is known");
    world.fake.away(false);
    world.fake.delete("a");
    assert!(matches!(world.value("a").await, Err(ObjectError::NotFound(_))));
    world.fake.put("a", "2", false);
    assert_eq!(world.value("a").await.unwrap(), "2", "absence is not cached");
    *world.ttl.lock() = Duration::ZERO;
    world.fake.gets();
    assert_eq!(world.value("a").await.unwrap(), "2");
    assert_eq!(world.fake.gets().len(), 1, "a Node that says 0 has each read asked");
}

#[tokio::test(start_paused = true)]
async fn cache_looks_at_what_volumes_hold() {
    let mut world = world(Strategy::Cache);
    *world.ttl.lock() = Duration::ZERO;
    for i in 0..400 {
        world.fake.put(&format!("m{i}"), "1", false);
    }
    let names: Vec<(String, bool)> = (0..400).map(|i| (format!("m{i}"), i < 200)).collect();
    let names: Vec<(&str, bool)> = names.iter().map(|(name, follows)| (name.as_str(), *follows)).collect();
    world.register("p", &names);
    for i in 0..400 {
        world.value(&format!("m{i}")).await.unwrap();
    }
    assert_eq!(world.fake.gets().len(), 400);
    tokio::time::sleep(MINUTE * 10 + Duration::from_secs(1)).await;
    let looks = world.fake.gets().len();
    assert!((200 * 8..=200 * 10).contains(&looks), "one look at each followed object a period: {looks}");
    assert_eq!(world.changes.try_recv(), Err(TryRecvError::Empty));
    world.fake.put("m7", "2", false);
    world.fake.put("m300", "2", false);
    assert_eq!(world.changed().await, "p");
    tokio::time::sleep(MINUTE * 2).await;
    assert_eq!(world.changes.try_recv(), Err(TryRecvError::Empty), "nobody follows m300");
}

#[tokio::test(start_paused = true)]
async fn watch_has_one_for_each_object_however_many_pods_name_it() {
    let mut world = world(Strategy::Watch);
    let names: Vec<String> = (0..400).map(|i| format!("m{i}")).collect();
    for name in &names {
        world.fake.put(name, "1", false);
    }
    let all: Vec<(&str, bool)> = names.iter().map(|name| (name.as_str(), true)).collect();
    for pod in ["p", "q", "r"] {
        world.register(pod, &all);
    }
    for name in &names {
        assert_eq!(world.value(name).await.unwrap(), "1");
    }
    assert_eq!((world.fake.watches(), world.fake.gets().len()), ((400, 400), 0));
    settle().await;
    assert_eq!(world.changes.try_recv(), Err(TryRecvError::Empty), "the first sight is no change");

    world.fake.put("m3", "2", false);
    let mut told = [world.changed().await, world.changed().await, world.changed().await];
    told.sort();
    assert_eq!(told, ["p", "q", "r"]);
    assert_eq!(world.value("m3").await.unwrap(), "2");
    let (one, two) = (world.store.get("ns", "m3").await.unwrap(), world.store.get("ns", "m3").await.unwrap());
    assert!(Arc::ptr_eq(&one, &two), "one copy");

    world.fake.delete("m3");
    world.changed().await;
    assert_eq!(world.value("m3").await, Err(ObjectError::NotFound("configmap \"m3\" not found".into())));

    world.register("p", &[("m0", true)]);
    world.store.unregister(&uid("q"));
    settle().await;
    assert_eq!(world.fake.watches(), (400, 400), "one pod still names them all");
    world.store.unregister(&uid("r"));
    settle().await;
    assert_eq!(world.fake.watches(), (400, 1));
    drop(world.store);
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn immutable_objects_are_not_watched() {
    let world = world(Strategy::Watch);
    world.fake.put("i", "1", true);
    world.register("p", &[("i", true)]);
    assert_eq!(world.value("i").await.unwrap(), "1");
    settle().await;
    assert_eq!(world.fake.watches(), (1, 0));
    tokio::time::sleep(MINUTE * 30).await;
    assert_eq!(world.value("i").await.unwrap(), "1");
    assert_eq!(world.fake.watches(), (1, 0));

    world.fake.put("later", "1", false);
    world.register("q", &[("later", true)]);
    assert_eq!(world.value("later").await.unwrap(), "1");
    world.fake.put("later", "2", true);
    settle().await;
    assert_eq!((world.value("later").await.unwrap().as_str(), world.fake.watches()), ("2", (2, 0)));
}

#[tokio::test(start_paused = true)]
async fn idle_watches_end_and_begin_again_but_those_of_volumes_stay() {
    let mut world = world(Strategy::Watch);
    for name in ["env", "volume"] {
        world.fake.put(name, "1", false);
    }
    world.register("p", &[("env", false), ("volume", true)]);
    assert_eq!(world.value("env").await.unwrap(), "1");
    assert_eq!(world.value("volume").await.unwrap(), "1");
    tokio::time::sleep(MINUTE * 4).await;
    assert_eq!(world.fake.watches(), (2, 2));
    tokio::time::sleep(MINUTE * 2).await;
    assert_eq!(world.fake.watches(), (2, 1));
    world.fake.put("env", "2", false);
    assert_eq!(world.value("env").await.unwrap(), "2", "read anew, not from what was known");
    assert_eq!(world.changed().await, "p", "it has changed meanwhile");
    assert_eq!(world.fake.watches(), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn a_get_that_failed_is_followed_by_a_change() {
    let mut world = world(Strategy::Watch);
    world.fake.away(true);
    world.register("p", &[("a", false)]);
    let text = "failed to sync configmap cache: timed out waiting for the condition";
    assert_eq!(world.value("a").await, Err(ObjectError::Away(text.into())));
    world.fake.away(false);
    world.fake.put("a", "1", false);
    assert_eq!(world.changed().await, "p");
    assert_eq!(world.value("a").await.unwrap(), "1");
}
