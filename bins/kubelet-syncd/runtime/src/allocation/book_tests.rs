use super::*;
use proptest::prelude::*;
use serde_json::json;

/// Keeps what was saved last.
#[derive(Debug, Default)]
struct Disk(Mutex<Vec<Vec<u8>>>);

impl AllocationStore for Disk {
    fn save(&self, json: &[u8]) -> std::io::Result<()> {
        self.0.lock().push(json.to_vec());
        Ok(())
    }
}

impl Disk {
    fn writes(&self) -> usize {
        self.0.lock().len()
    }

    /// A new process with what stands on disk.
    fn restart(self: &Arc<Self>) -> Allocations {
        let last = self.0.lock().last().cloned();
        let saved = last.map(|json| serde_json::from_slice(&json).unwrap()).unwrap_or_default();
        Allocations::new(saved, self.clone(), Gates::default())
    }
}

fn uid() -> PodUid {
    PodUid::parse("u1").unwrap()
}

/// Containers a, b, ... with these requests of CPU, in thousandths.
fn pod(cpu: &[i64]) -> Arc<Pod> {
    let container = |(i, milli): (usize, &i64)| {
        let name = char::from(b'a' + u8::try_from(i).unwrap()).to_string();
        json!({"name": name, "resources": {"requests": {"cpu": format!("{milli}m")}}})
    };
    let containers: Vec<_> = cpu.iter().enumerate().map(container).collect();
    Arc::new(serde_json::from_value(json!({"metadata": {"uid": "u1"}, "spec": {"containers": containers}})).unwrap())
}

fn own<'a>(pod: &'a Pod, name: &str) -> &'a ResourceRequirements {
    let containers = &pod.spec.as_ref().unwrap().containers;
    containers.iter().find(|c| c.name == name).unwrap().resources.as_ref().unwrap()
}

#[test]
fn starting_a_pod_costs_one_write() {
    let disk = Arc::new(Disk::default());
    let book = disk.restart();
    let pod = pod(&[100, 200]);
    book.allocate(&uid(), &pod);
    book.flush().unwrap();
    for name in ["a", "b", "a"] {
        book.set_actuated(&uid(), name, own(&pod, name), &pod).unwrap();
    }
    book.set_actuated_level(&uid(), &pod).unwrap();
    book.allocate(&uid(), &pod);
    book.flush().unwrap();
    assert_eq!(disk.writes(), 1);
    assert!(!book.is_in_progress(&uid(), &pod, |_| true));
}

#[test]
fn who_has_what_it_asks_for_waits_for_nothing_after_a_restart() {
    let disk = Arc::new(Disk::default());
    let (old, new) = (pod(&[100]), pod(&[150]));
    let mut pending = ResizeConditions::default();
    pending.set_pending(false, "no room", 2, Timestamp::UNIX_EPOCH);
    let told = |pod: &Pod| {
        let status = serde_json::from_value(json!({"conditions": pending.to_api()})).unwrap();
        Pod { status: Some(status), ..pod.clone() }
    };
    let book = disk.restart();
    book.allocate(&uid(), &old);
    book.flush().unwrap();
    let book = disk.restart();
    book.take_up(&uid(), &told(&new));
    assert!(book.conditions(&uid()).is_deferred(), "it still waits");
    book.allocate(&uid(), &new);
    book.flush().unwrap();
    // The API server was not told of the grant.
    let book = disk.restart();
    book.take_up(&uid(), &told(&new));
    assert!(book.conditions(&uid()).is_empty());
}

#[test]
fn a_resize_that_is_half_done_is_half_done_after_a_restart() {
    let disk = Arc::new(Disk::default());
    let book = disk.restart();
    let (old, new) = (pod(&[100, 200]), pod(&[150, 250]));
    book.allocate(&uid(), &old);
    for name in ["a", "b"] {
        book.set_actuated(&uid(), name, own(&old, name), &old).unwrap();
    }
    assert!(Arc::ptr_eq(&book.granted(&uid(), &old), &old));
    assert_eq!(book.granted(&uid(), &new).spec, old.spec, "not granted yet");
    book.allocate(&uid(), &new);
    book.flush().unwrap();
    book.set_actuated(&uid(), "a", own(&new, "a"), &new).unwrap();
    let book = disk.restart();
    assert!(book.is_in_progress(&uid(), &new, |_| true));
    assert!(!book.is_in_progress(&uid(), &new, |name| name == "a"), "what does not run need not be resized");
    assert_eq!(book.granted(&uid(), &new).spec, new.spec);
    let real = book.actuated(&uid()).unwrap();
    assert_eq!((&real.containers["a"], &real.containers["b"]), (own(&new, "a"), own(&old, "b")));
    book.set_actuated(&uid(), "b", own(&new, "b"), &new).unwrap();
    let book = disk.restart();
    assert!(!book.is_in_progress(&uid(), &new, |_| true));
}

#[test]
fn who_has_something_else_is_known_and_what_was_given_back_is_told_once() {
    let disk = Arc::new(Disk::default());
    let book = disk.restart();
    let (large, small) = (pod(&[300, 300]), pod(&[100, 400]));
    book.allocate(&uid(), &large);
    for name in ["a", "b"] {
        book.set_actuated(&uid(), name, own(&large, name), &large).unwrap();
    }
    assert!(book.deviating().is_empty() && !book.take_shrunk());
    book.allocate(&uid(), &small);
    book.flush().unwrap();
    let held = |book: &Allocations| book.deviating()[&uid()].held_beyond(&small, |_| true);
    assert_eq!(held(&book), [("cpu".to_owned(), bulkhead_types::Quantity::from_milli(200))].into());
    let book = disk.restart();
    assert_eq!(held(&book).len(), 1, "also after a restart");
    book.set_actuated(&uid(), "b", own(&small, "b"), &small).unwrap();
    assert!(!book.take_shrunk(), "b has grown");
    book.set_actuated(&uid(), "a", own(&small, "a"), &small).unwrap();
    assert!(book.take_shrunk() && !book.take_shrunk());
    assert!(book.deviating().is_empty());
    book.allocate(&uid(), &large);
    assert_eq!(book.deviating().len(), 1);
    book.release(&uid());
    assert!(book.deviating().is_empty(), "it is another pod's uid from now on");
}

#[test]
fn what_cannot_be_written_is_tried_again() {
    #[derive(Debug, Default)]
    struct Broken(Mutex<(bool, usize)>);
    impl AllocationStore for Broken {
        fn save(&self, _: &[u8]) -> std::io::Result<()> {
            let mut inner = self.0.lock();
            inner.1 += 1;
            if inner.0 { Ok(()) } else { Err(std::io::Error::other("full")) }
        }
    }
    let store = Arc::new(Broken::default());
    let book = Allocations::new(Saved::default(), store.clone(), Gates::default());
    book.allocate(&uid(), &pod(&[1]));
    assert!(book.flush().is_err() && book.flush().is_err());
    store.0.lock().0 = true;
    book.flush().unwrap();
    book.flush().unwrap();
    assert_eq!(store.0.lock().1, 3);
}

#[test]
fn what_the_exported_files_carry_is_noted_again_where_it_could_not_be_saved() {
    /// Refuses so many times; else keeps the last.
    #[derive(Debug, Default)]
    struct Refusing(Mutex<(usize, Saved)>);
    impl AllocationStore for Refusing {
        fn save(&self, json: &[u8]) -> std::io::Result<()> {
            let mut inner = self.0.lock();
            match inner.0.checked_sub(1) {
                Some(left) => {
                    inner.0 = left;
                    Err(std::io::Error::other("full"))
                }
                None => {
                    inner.1 = serde_json::from_slice(json).unwrap();
                    Ok(())
                }
            }
        }
    }
    let store = Arc::new(Refusing::default());
    let book = Allocations::new(Saved::default(), store.clone(), Gates::default());
    let saved = || {
        let saved = store.0.lock().1.clone();
        (saved.exported, saved.exported_actuated)
    };
    store.0.lock().0 = 1;
    assert!(book.exporting(1, 2).is_err());
    book.exporting(1, 2).unwrap();
    assert_eq!(saved(), (vec![1], vec![2]));
    book.exporting(3, 4).unwrap();
    store.0.lock().0 = 1;
    assert!(book.exported(3, 4).is_err());
    assert_eq!(saved(), (vec![1, 3], vec![2, 4]), "both are still known as ours");
    book.exported(3, 4).unwrap();
    assert_eq!(saved(), (vec![3], vec![4]));
}

#[test]
fn an_older_copy_never_lands_after_a_newer_one() {
    /// Each save begins, and ends when it may.
    #[derive(Debug)]
    struct Gated {
        begun: std::sync::mpsc::Sender<()>,
        ends: Mutex<std::sync::mpsc::Receiver<()>>,
        last: Mutex<Saved>,
    }
    impl AllocationStore for Gated {
        fn save(&self, json: &[u8]) -> std::io::Result<()> {
            let saved: Saved = serde_json::from_slice(json)?;
            // What is the older one has to wait for its turn, so that it would come last.
            if saved.allocated.is_empty() {
                self.begun.send(()).unwrap();
                self.ends.lock().recv().unwrap();
            }
            *self.last.lock() = saved;
            Ok(())
        }
    }
    let ((begun, begins), (end, ends)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let store = Arc::new(Gated { begun, ends: Mutex::new(ends), last: Mutex::default() });
    let book = Allocations::new(Saved::default(), store.clone(), Gates::default());
    std::thread::scope(|scope| {
        scope.spawn(|| book.exporting(1, 2).unwrap());
        begins.recv().unwrap();
        book.allocate(&uid(), &pod(&[1]));
        let flushed = scope.spawn(|| book.flush().unwrap());
        assert!(book.saving.try_lock().is_none(), "whoever saves next waits");
        end.send(()).unwrap();
        flushed.join().unwrap();
    });
    let last = store.last.lock();
    assert_eq!((last.allocated.len(), last.exported.as_slice()), (1, &[1][..]));
}

#[test]
fn who_is_gone_is_forgotten_and_damage_is_dropped() {
    let disk = Arc::new(Disk::default());
    let entries =
        Entries::from([("../x".to_owned(), PodResources::default()), ("u1".to_owned(), PodResources::default())]);
    let saved = Saved { allocated: entries.clone(), actuated: entries, ..Saved::default() };
    let book = Allocations::new(saved, disk.clone(), Gates::default());
    assert_eq!(book.entries().0.len(), 1);
    book.start(&uid(), 2, Timestamp::UNIX_EPOCH);
    assert_eq!(book.snapshot(), [0, 0, 1]);
    book.retain(&HashSet::new());
    assert!(book.entries().0.is_empty() && book.actuated(&uid()).is_none() && book.shown(&uid()).is_empty());
}

#[derive(Debug, Clone)]
enum Step {
    /// Grants sizes to the two containers.
    Grant([i64; 2]),
    /// The runtime takes one container's size.
    Actuate(bool),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![[1..5i64, 1..5i64].prop_map(Step::Grant), any::<bool>().prop_map(Step::Actuate), Just(Step::Restart),]
}

proptest! {
    /// Whatever happens and whenever the process dies: the book says of each container what it was given last, and a
    /// resize is under way exactly as long as that is not what was granted last.
    #[test]
    fn actuated_follows_allocated(steps in prop::collection::vec(step(), 1..24)) {
        let disk = Arc::new(Disk::default());
        let mut book = disk.restart();
        let mut granted = pod(&[1, 1]);
        book.allocate(&uid(), &granted);
        book.flush().unwrap();
        let mut real = [1, 1];
        for name in ["a", "b"] {
            book.set_actuated(&uid(), name, own(&granted, name), &granted).unwrap();
        }
        let size = |pod: &Pod, i: usize| {
            let list = own(pod, ["a", "b"][i]).requests.clone().unwrap();
            list["cpu"].0.trim_end_matches('m').parse::<i64>().unwrap()
        };
        for step in steps {
            match step {
                Step::Grant(sizes) => {
                    granted = pod(&sizes);
                    book.allocate(&uid(), &granted);
                    book.flush().unwrap();
                }
                Step::Actuate(second) => {
                    let i = usize::from(second);
                    let name = ["a", "b"][i];
                    book.set_actuated(&uid(), name, own(&granted, name), &granted).unwrap();
                    real[i] = size(&granted, i);
                }
                Step::Restart => book = disk.restart(),
            }
            let known = book.actuated(&uid()).unwrap();
            for (i, name) in ["a", "b"].into_iter().enumerate() {
                let cpu = &known.containers[name].requests.as_ref().unwrap()["cpu"].0;
                prop_assert_eq!(cpu, &format!("{}m", real[i]));
            }
            let done = (0..2).all(|i| real[i] == size(&granted, i));
            prop_assert_eq!(book.is_in_progress(&uid(), &granted, |_| true), !done);
            prop_assert_eq!(book.deviating().contains_key(&uid()), !done);
            prop_assert_eq!(&book.granted(&uid(), &pod(&[9, 9])).spec, &granted.spec);
        }
    }
}

#[test]
fn checksums_are_those_that_upstreams_files_may_have() {
    let disk = Arc::new(Disk::default());
    let book = Allocations::new(Saved::default(), disk.clone(), Gates::default());
    let kept = || {
        let saved: Saved = serde_json::from_slice(disk.0.lock().last().unwrap()).unwrap();
        (saved.exported, saved.exported_actuated)
    };
    book.exporting(1, 11).unwrap();
    book.exported(1, 11).unwrap();
    // Writes that fail leave what was there, whatever was to follow.
    book.exporting(1, 12).unwrap();
    book.exporting(2, 13).unwrap();
    assert_eq!(kept(), (vec![1, 2], vec![11, 12, 13]));
    book.exporting(2, 11).unwrap();
    book.exported(2, 11).unwrap();
    assert_eq!(kept(), (vec![2], vec![11]), "12 and 13 are another's word from now on");
    (0..20).for_each(|one| book.exporting(2, 100 + one).unwrap());
    assert_eq!(kept().1, (112..120).collect::<Vec<_>>());
}
