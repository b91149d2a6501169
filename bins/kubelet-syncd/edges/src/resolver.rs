//! The addresses of names that pods and volumes say, by the machine's resolver.
//!
//! A resolver whose name server does not answer keeps its thread for as long as it likes, whatever the patience of who asked. So lookups
//! have threads of their own, and not those of the pool in which the rest of the process waits for its files; few at a time, fewer of one
//! pod, and one for each name, whoever asks for it. Nothing is queued: who finds no place waits for one, in its own time.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::{Arc, LazyLock};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

/// Lookups at a time, each on a thread.
const LOOKUPS_MAX: usize = 8;
/// Of these begun by one asker.
const LOOKUPS_OF_ONE: usize = 2;

/// What the process has; the number of its threads is what counts.
static OF_THE_MACHINE: LazyLock<Resolver> = LazyLock::new(|| Resolver::new(by_the_machine));

/// The addresses that `name` stands for, in the resolver's order. No time limit: drop the future. `asker`: for whom, a pod's uid; two
/// lookups that it has begun are under way at a time, and eight of all askers.
///
/// # Errors
/// The resolver's own words.
pub async fn lookup(name: &str, asker: &str) -> Result<Vec<IpAddr>, String> {
    OF_THE_MACHINE.lookup(name, asker).await
}

/// What [`lookup`] asks.
pub(crate) fn of_the_machine() -> &'static Resolver {
    &OF_THE_MACHINE
}

fn by_the_machine(name: &str) -> io::Result<Vec<IpAddr>> {
    // Any port: this form of the call wants one.
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

type Answer = Result<Vec<IpAddr>, String>;
type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

#[derive(Debug)]
struct UnderWay {
    asker: String,
    answer: watch::Receiver<Option<Answer>>,
}

struct Inner {
    lookup: Box<Lookup>,
    /// By name; one is here until its thread has come back, also when nobody waits for it any more.
    under_way: Mutex<HashMap<String, UnderWay>>,
    /// Told when one is not any more.
    ended: watch::Sender<()>,
}

/// See the module. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<Inner>);

/// A lookup's place among those that are under way, until this is dropped.
struct Place {
    resolver: Resolver,
    name: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.resolver.under_way().remove(&self.name);
        self.resolver.0.ended.send_replace(());
    }
}

impl Resolver {
    pub(crate) fn new(lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Self {
        let (lookup, ended) = (Box::new(lookup), watch::Sender::new(()));
        Resolver(Arc::new(Inner { lookup, under_way: Mutex::default(), ended }))
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<String, UnderWay>> {
        // Plain data, valid at every step.
        self.0.under_way.lock()
    }

    /// See [`lookup`].
    pub(crate) async fn lookup(&self, name: &str, asker: &str) -> Answer {
        let mut ended = self.0.ended.subscribe();
        let mut answer = loop {
            if let Some(answer) = self.join(name, asker)? {
                break answer;
            }
            // The sender lives in self.
            let _ = ended.changed().await;
        };
        let answer = answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
        answer.unwrap_or_else(|| Err("the lookup broke off".to_owned()))
    }

    /// The answer of the name's lookup, which is begun if it is not under way. None: there is no place for it.
    fn join(&self, name: &str, asker: &str) -> Result<Option<watch::Receiver<Option<Answer>>>, String> {
        let mut under_way = self.under_way();
        if let Some(same) = under_way.get(name) {
            return Ok(Some(same.answer.clone()));
        }
        let of_asker = under_way.values().filter(|one| one.asker == asker).count();
        if under_way.len() >= LOOKUPS_MAX || of_asker >= LOOKUPS_OF_ONE {
            return Ok(None);
        }
        let (told, answer) = watch::channel(None);
        under_way.insert(name.to_owned(), UnderWay { asker: asker.to_owned(), answer: answer.clone() });
        drop(under_way);
        let place = Place { resolver: self.clone(), name: name.to_owned() };
        let thread = std::thread::Builder::new().name("lookup".to_owned()).spawn(move || {
            let answer = (place.resolver.0.lookup)(&place.name).map_err(|error| error.to_string());
            // Who comes from now on asks anew.
            drop(place);
            told.send_replace(Some(answer));
        });
        thread.map_err(|error| error.to_string())?;
        Ok(Some(answer))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::join_all;
    use tokio::time::timeout;

    use super::*;
    use crate::name_server::{FOUND, NameServer};

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_name_without_an_answer_takes_one_thread_whoever_asks_and_however_often() {
        let server = NameServer::default();
        let resolver = server.resolver();
        for _ in 0..3 {
            let askers: Vec<String> = (0..20).map(|number| format!("pod-{number}")).collect();
            let asked = askers.iter().map(|asker| timeout(SHORT, resolver.lookup("silent", asker)));
            assert!(join_all(asked).await.iter().all(Result::is_err));
        }
        assert_eq!(server.asked(), ["silent"]);
        let both = join_all([resolver.lookup("silent", "a"), resolver.lookup("silent", "b")]);
        server.answer();
        assert_eq!(timeout(LONG, both).await.unwrap(), [Ok(vec![FOUND]), Ok(vec![FOUND])]);
        assert_eq!(server.asked(), ["silent"], "its answer is everybody's");
        assert_eq!(resolver.lookup("silent", "a").await, Ok(vec![FOUND]));
        assert_eq!(server.asked(), ["silent", "silent"], "and it is not kept");
    }

    #[tokio::test]
    async fn one_asker_leaves_places_for_others_and_all_together_are_bounded() {
        let server = NameServer::default();
        let resolver = server.resolver();
        let names: Vec<String> = (0..9).map(|number| format!("silent{number}")).collect();
        let of_one = names.iter().map(|name| timeout(SHORT, resolver.lookup(name, "a")));
        assert!(join_all(of_one).await.iter().all(Result::is_err));
        assert_eq!(server.asked(), ["silent0", "silent1"]);
        assert!(timeout(SHORT, resolver.lookup("known", "a")).await.is_err(), "what it began goes on");
        assert_eq!(timeout(LONG, resolver.lookup("known", "b")).await.unwrap(), Ok(vec![FOUND]));
        let of_many = names.iter().map(|name| timeout(SHORT, resolver.lookup(name, name)));
        assert!(join_all(of_many).await.iter().all(Result::is_err));
        assert_eq!(server.asked().len(), LOOKUPS_MAX + 1, "the known one has come back: {:?}", server.asked());
        // One without a place gets the next.
        let waiting = resolver.lookup("known", "b");
        tokio::pin!(waiting);
        assert!(timeout(SHORT, &mut waiting).await.is_err());
        server.answer();
        assert_eq!(timeout(LONG, waiting).await.unwrap(), Ok(vec![FOUND]));
    }

    #[tokio::test]
    async fn failures_are_the_resolvers() {
        let resolver = NameServer::default().resolver();
        assert_eq!(resolver.lookup("none", "a").await, Err("no such name".to_owned()));
        assert!(resolver.under_way().is_empty());
        assert!(!lookup("localhost", "a").await.unwrap().is_empty());
        assert!(lookup("no\0name", "a").await.is_err());
    }
}
