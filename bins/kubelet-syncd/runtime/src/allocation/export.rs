//! Upstream's files `allocated_pods_state` and `actuated_pods_state` in the root directory: written at the start, after
//! each change and at the end, and read once at the start when somebody else has written them since.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{State, StateKind};
use bulkhead_sys::memfd;
use tokio_util::sync::CancellationToken;

use super::book::{Allocations, Saved};
use super::checkpoint::{self, Entries};

/// Changes are gathered for so long. Nothing of ours relies on these files.
const SETTLE: Duration = Duration::from_secs(2);
/// After a write that failed.
const AGAIN: Duration = Duration::from_secs(30);
/// What volnetd takes of one file.
const BYTES_MAX: u64 = 16 << 20;

/// What to go on from: our own book, unless one of upstream's files is one that we never wrote. A kubelet that has carried out a
/// resize which was granted before has written the second alone. Pure.
///
/// `allocated`, `actuated`: what stands in upstream's files, with the checksums.
pub fn newest(own: Option<Saved>, allocated: Option<(Entries, u64)>, actuated: Option<(Entries, u64)>) -> Saved {
    let is_ours = |known: &[u64], file: &Option<(Entries, u64)>| {
        known.is_empty() || file.as_ref().is_none_or(|(_, checksum)| known.contains(checksum))
    };
    match (own, allocated) {
        (Some(own), Some((_, checksum)))
            if own.exported.contains(&checksum) && is_ours(&own.exported_actuated, &actuated) =>
        {
            own
        }
        (own, Some((allocated, checksum))) if own.is_none() || !allocated.is_empty() => {
            let (actuated, known) = actuated.map(|(actuated, checksum)| (actuated, vec![checksum])).unwrap_or_default();
            Saved { allocated, actuated, exported: vec![checksum], exported_actuated: known }
        }
        (own, _) => own.unwrap_or_default(),
    }
}

/// Reads upstream's files and decides. A file that is damaged or cannot be had counts as absent.
pub async fn load(own: Option<Saved>, broker: &BrokerClient) -> Saved {
    let read = async |kind: StateKind| {
        let fd = broker.open(Kind::State(State { kind: kind.into() })).await;
        match fd {
            Ok(fd) => entries(fd).unwrap_or_else(|error| {
                let name = kind.as_str_name();
                tracing::warn!(name, error = &*error, "a checkpoint of another kubelet is not used");
                None
            }),
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "there is no checkpoint of another kubelet");
                None
            }
        }
    };
    let (allocated, actuated) = (read(StateKind::AllocatedPods).await, read(StateKind::ActuatedPods).await);
    newest(own, allocated, actuated)
}

fn entries(fd: OwnedFd) -> Result<Option<(Entries, u64)>, Box<dyn std::error::Error>> {
    let mut bytes = Vec::new();
    File::from(fd).take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(checkpoint::read(&bytes)?))
}

/// Keeps the files up to date until `end`, and leaves them so: upstream's kubelet may be started next.
pub async fn keep(book: Arc<Allocations>, broker: BrokerClient, end: CancellationToken) {
    follow(&book, || put(book.clone(), &broker), &end).await;
}

async fn follow<F>(book: &Allocations, put: impl Fn() -> F, end: &CancellationToken)
where
    F: Future<Output = Result<(), PutError>>,
{
    // At once: the life before may have been killed before its last change was written.
    let mut pause = Some(Duration::ZERO);
    let mut ends = false;
    while !ends {
        let due = async {
            if let Some(pause) = pause {
                return tokio::time::sleep(pause).await;
            }
            book.changed.notified().await;
            tokio::time::sleep(SETTLE).await;
        };
        ends = end.run_until_cancelled(due).await.is_none();
        pause = put().await.err().map(|error| {
            tracing::debug!(error = &*error, "upstream's checkpoints of resources wait");
            AGAIN
        });
    }
}

type PutError = Box<dyn std::error::Error + Send + Sync>;

async fn put(book: Arc<Allocations>, broker: &BrokerClient) -> Result<(), PutError> {
    let (allocated, actuated) = book.entries();
    let (actuated, actuated_checksum) = checkpoint::write(actuated)?;
    let (allocated, checksum) = checkpoint::write(allocated)?;
    // Known as ours before they stand there.
    note(&book, move |book| book.exporting(checksum, actuated_checksum)).await?;
    broker.put_state(StateKind::ActuatedPods, memfd::sealed("actuated", &actuated)?).await?;
    broker.put_state(StateKind::AllocatedPods, memfd::sealed("allocated", &allocated)?).await?;
    Ok(note(&book, move |book| book.exported(checksum, actuated_checksum)).await?)
}

/// Notes something in the book on a thread of its own: the disk may be slow, and everything else of this process has one thread.
async fn note(
    book: &Arc<Allocations>,
    note: impl FnOnce(&Allocations) -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let book = book.clone();
    tokio::task::spawn_blocking(move || note(&book)).await?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::{AllocationStore, Gates, PodResources};
    use bulkhead_types::PodUid;
    use futures_util::FutureExt as _;
    use kubelet_model::v1::Pod;
    use parking_lot::Mutex;
    use serde_json::json;
    use std::sync::mpsc;

    fn entries(uid: &str) -> Entries {
        Entries::from([(uid.to_owned(), PodResources::default())])
    }

    #[test]
    fn a_file_that_is_not_ours_is_newer_than_our_book() {
        let own =
            Saved { allocated: entries("ours"), actuated: Entries::new(), exported: vec![1, 2], ..Saved::default() };
        let theirs = || (entries("theirs"), 3);
        let who = |saved: Saved| saved.allocated.into_keys().next();
        assert_eq!(who(newest(Some(own.clone()), Some((entries("x"), 2)), None)).as_deref(), Some("ours"));
        assert_eq!(who(newest(Some(own.clone()), Some((entries("x"), 1)), None)).as_deref(), Some("ours"));
        assert_eq!(who(newest(Some(own.clone()), None, None)).as_deref(), Some("ours"));
        assert_eq!(who(newest(Some(own.clone()), Some((Entries::new(), 9)), None)).as_deref(), Some("ours"));
        let taken = newest(Some(own), Some(theirs()), Some((entries("theirs"), 7)));
        assert_eq!(
            (taken.exported.clone(), taken.exported_actuated.clone(), taken.actuated.len()),
            (vec![3], vec![7], 1)
        );
        assert_eq!(who(taken).as_deref(), Some("theirs"));
        assert_eq!(who(newest(None, Some(theirs()), None)).as_deref(), Some("theirs"));
        assert_eq!(newest(None, None, None), Saved::default());
    }

    #[test]
    fn a_resize_that_another_kubelet_has_carried_out_is_not_carried_out_again() {
        let own = |known: &[u64]| {
            let (exported, exported_actuated) = (vec![2], known.to_vec());
            Saved { allocated: entries("pod"), actuated: entries("pod"), exported, exported_actuated }
        };
        for (known, actuated, ours) in [
            (&[5, 6][..], Some(6), true),
            (&[5, 6], Some(5), true),
            (&[5, 6], Some(7), false),
            (&[5, 6], None, true),
            // An earlier version wrote it.
            (&[], Some(7), true),
        ] {
            let actuated = actuated.map(|checksum| (Entries::new(), checksum));
            let taken = newest(Some(own(known)), Some((entries("pod"), 2)), actuated.clone());
            let theirs = Saved { actuated: Entries::new(), exported_actuated: vec![7], ..own(known) };
            assert_eq!(taken, if ours { own(known) } else { theirs }, "{known:?} {actuated:?}");
        }
    }
    #[derive(Debug)]
    struct Nowhere;

    impl AllocationStore for Nowhere {
        fn save(&self, _: &[u8]) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Upstream's kubelet restarts a container that it does not find there, where the resizePolicy says RestartContainer.
    #[tokio::test(start_paused = true)]
    async fn each_container_that_was_made_is_in_the_file_though_nothing_follows() {
        let book = Arc::new(Allocations::new(Saved::default(), Arc::new(Nowhere), Gates::default()));
        let uid = PodUid::parse("u").unwrap();
        let resources = json!({"requests": {"cpu": "1"}});
        let containers = ["a", "b", "c"].map(|name| json!({"name": name, "resources": resources}));
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap();
        // What the file has, and how often it was written.
        let file: Arc<Mutex<(Vec<String>, usize)>> = Arc::default();
        let end = CancellationToken::new();
        let kept = {
            let (book, file, end) = (book.clone(), file.clone(), end.clone());
            tokio::spawn(async move {
                let put = async || {
                    let (_, mut actuated) = book.entries();
                    let made = actuated.remove("u").map(|pod| pod.containers.into_keys().collect());
                    let mut file = file.lock();
                    *file = (made.unwrap_or_default(), file.1 + 1);
                    Ok(())
                };
                follow(&book, put, &end).await;
            })
        };
        let later = || tokio::time::sleep(SETTLE * 2);
        let make = |name: &str| {
            let container = pod.spec.as_ref().unwrap().containers.iter().find(|c| c.name == name).unwrap();
            book.set_actuated(&uid, name, container.resources.as_ref().unwrap(), &pod).unwrap();
        };
        later().await;
        assert_eq!(*file.lock(), (vec![], 1), "written at the start");
        book.allocate(&uid, &pod);
        book.flush().unwrap();
        later().await;
        assert_eq!(*file.lock(), (vec![], 2), "admitted, its image is pulled");
        make("a");
        later().await;
        assert_eq!(*file.lock(), (vec!["a".to_owned()], 3));
        make("a");
        later().await;
        assert_eq!(file.lock().1, 3, "it was made again as it was");
        make("b");
        later().await;
        assert_eq!(*file.lock(), (vec!["a".to_owned(), "b".to_owned()], 4), "each of them");
        book.set_actuated_level(&uid, &with_level(&pod)).unwrap();
        later().await;
        assert_eq!(file.lock().1, 5, "the pod as a whole");
        make("c");
        end.cancel();
        kept.await.unwrap();
        assert_eq!(*file.lock(), (["a", "b", "c"].map(str::to_owned).to_vec(), 6), "written at the end");
    }

    /// Takes what is saved when it is told to.
    #[derive(Debug)]
    struct Slow(Mutex<mpsc::Receiver<()>>);

    impl AllocationStore for Slow {
        fn save(&self, _: &[u8]) -> io::Result<()> {
            self.0.lock().recv().map_err(io::Error::other)
        }
    }

    #[tokio::test]
    async fn a_slow_disk_holds_nobody_up_while_it_is_noted_what_the_files_carry() {
        let (told, waits) = mpsc::channel();
        let store = Arc::new(Slow(Mutex::new(waits)));
        let book = Arc::new(Allocations::new(Saved::default(), store, Gates::default()));
        let mut noted = Box::pin(note(&book, |book| book.exporting(1, 2)));
        assert!((&mut noted).now_or_never().is_none());
        // The sync loop goes on meanwhile.
        book.allocate(&PodUid::parse("u").unwrap(), &Pod::default());
        told.send(()).unwrap();
        noted.await.unwrap();
    }

    fn with_level(pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        pod.spec.get_or_insert_default().resources =
            Some(serde_json::from_value(json!({"requests": {"cpu": "3"}})).unwrap());
        pod
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_failed_is_tried_again_and_does_not_hold_up_the_end() {
        let book = Allocations::new(Saved::default(), Arc::new(Nowhere), Gates::default());
        let (tries, end) = (Mutex::new(0), CancellationToken::new());
        let put = async || {
            let mut tries = tries.lock();
            *tries += 1;
            if *tries == 2 {
                end.cancel();
            }
            Err("away".into())
        };
        let began = tokio::time::Instant::now();
        follow(&book, put, &end).await;
        assert_eq!((*tries.lock(), began.elapsed()), (3, AGAIN));
    }
}
