use std::collections::BTreeMap;

use futures_util::FutureExt as _;
use parking_lot::Mutex;

use super::*;
use crate::provider::Seen;

/// Pods by UID, and who has changed at which position.
struct Shelf {
    pods: Mutex<(BTreeMap<String, Seen>, Vec<String>)>,
    changed: watch::Sender<u64>,
}

impl Shelf {
    fn new() -> Arc<Self> {
        Arc::new(Shelf { pods: Mutex::default(), changed: watch::Sender::new(0) })
    }

    fn put(&self, uid: &str, phase: &str, over: bool) {
        let pod = json!({"metadata": {"name": format!("{uid}-pod"), "namespace": "n", "uid": uid}, "status": {"phase": phase}});
        self.change(uid, Some(Seen { pod: Some(pod), over }));
    }

    fn change(&self, uid: &str, seen: Option<Seen>) {
        let mut pods = self.pods.lock();
        match seen {
            Some(seen) => drop(pods.0.insert(uid.to_owned(), seen)),
            None => drop(pods.0.remove(uid)),
        }
        pods.1.push(uid.to_owned());
        self.changed.send_replace(pods.1.len() as u64);
    }
}

impl Providers for Shelf {
    fn uids(&self) -> Vec<String> {
        let pods = self.pods.lock();
        pods.0.iter().filter(|(_, seen)| seen.pod.is_some()).map(|(uid, _)| uid.clone()).rev().collect()
    }

    fn pod(&self, uid: &str) -> Seen {
        self.pods.lock().0.get(uid).cloned().unwrap_or(Seen { pod: None, over: true })
    }

    fn since(&self, position: Option<u64>) -> (u64, Vec<String>) {
        let pods = self.pods.lock();
        let from = usize::try_from(position.unwrap_or(0)).unwrap();
        (pods.1.len() as u64, pods.1[from..].to_vec())
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

/// Everything that there is to say now.
fn told(watcher: &mut Watcher) -> Vec<String> {
    let mut told = Vec::new();
    while let Some(event) = watcher.next().now_or_never() {
        let event = event.unwrap();
        let text = String::from_utf8_lossy(&event.pod).into_owned();
        let has = |word: &&&str| text.contains(**word);
        let words: Vec<&str> = ["a-pod", "b-pod", "Pending", "Running"].iter().filter(has).copied().collect();
        told.push(format!("{} {}", event.r#type().as_str_name(), words.join(" ")).trim().to_owned());
    }
    told
}

#[tokio::test]
async fn from_the_first_pod_to_the_last() {
    let shelf = Shelf::new();
    shelf.put("b", "Pending", false);
    shelf.put("a", "Running", false);
    let mut watcher = Watcher::new(shelf.clone());
    assert_eq!(told(&mut watcher), ["ADDED a-pod Running", "ADDED b-pod Pending", "INITIAL_SYNC_COMPLETE"]);
    // Nothing that a pod's bytes show.
    shelf.put("a", "Running", false);
    assert!(told(&mut watcher).is_empty());
    // The newest state alone.
    shelf.put("b", "Pending", false);
    shelf.put("b", "Running", false);
    assert_eq!(told(&mut watcher), ["MODIFIED b-pod Running"]);
    // No source wants it any more, and it still ends.
    shelf.change("b", Some(Seen::default()));
    assert!(told(&mut watcher).is_empty());
    shelf.change("b", None);
    shelf.change("b", None);
    assert_eq!(told(&mut watcher), ["DELETED b-pod"]);
    // One that has ended and stays wanted, and then begins anew.
    shelf.put("a", "Running", true);
    assert_eq!(told(&mut watcher), ["DELETED a-pod"]);
    shelf.put("a", "Running", true);
    assert!(told(&mut watcher).is_empty());
    assert_eq!(told(&mut Watcher::new(shelf.clone())), ["ADDED a-pod Running", "INITIAL_SYNC_COMPLETE"]);
    shelf.put("a", "Pending", false);
    assert_eq!(told(&mut watcher), ["ADDED a-pod Pending"]);
}

#[tokio::test]
async fn a_watcher_without_pods_waits() {
    let shelf = Shelf::new();
    let mut watcher = Watcher::new(shelf.clone());
    assert_eq!(told(&mut watcher), ["INITIAL_SYNC_COMPLETE"]);
    let (event, ()) = tokio::join!(watcher.next(), async { shelf.put("a", "Pending", false) });
    assert_eq!(event.unwrap().r#type(), EventType::Added);
}
