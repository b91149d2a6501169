use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

/// A container that ends so long after its signal.
struct Container {
    id: ContainerId,
    ends_after: Duration,
}

/// What happened, and when.
#[derive(Default)]
struct Seen {
    begin: Option<Instant>,
    /// Ends of containers, by id.
    ends: HashMap<ContainerId, Instant>,
    signals: Vec<Duration>,
    gone: Vec<(usize, Duration)>,
    /// Pods for which the runtime works: a container signalled a moment ago, or a sandbox that goes.
    busy: usize,
    busiest: usize,
    /// Pods whose events are our own doing.
    working: usize,
}

/// While it lives PLEG does not look.
struct Working(World);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.0.lock().working -= 1;
    }
}

/// The last: whether the pod has the machine's network.
#[derive(Clone, Default)]
struct World(Arc<Mutex<Seen>>, Arc<AtomicUsize>, bool);

impl World {
    fn now(&self) -> Duration {
        let mut seen = self.0.lock();
        let begin = *seen.begin.get_or_insert_with(Instant::now);
        begin.elapsed()
    }

    async fn busy_for(&self, time: Duration) {
        {
            let mut seen = self.0.lock();
            seen.busy += 1;
            seen.busiest = seen.busiest.max(seen.busy);
        }
        tokio::time::sleep(time).await;
        self.0.lock().busy -= 1;
    }
}

impl Pod for World {
    fn runs(&self, container: &ContainerId) -> bool {
        self.0.lock().ends.get(container).is_none_or(|end| Instant::now() < *end)
    }

    fn has_host_network(&self) -> bool {
        self.2
    }

    fn held_back(&self, waits: bool) {
        if waits {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn working(&self) -> Box<dyn Send> {
        self.0.lock().working += 1;
        Box::new(Working(self.clone()))
    }
}

/// Time that a runtime takes to clear away a container, or a sandbox.
const CLEARS: Duration = Duration::from_millis(50);

async fn end(world: &World, slots: &TakeDowns, which: usize, ends_after: &[Duration], hurried: bool) {
    let containers: Vec<Container> = (0_u8..)
        .zip(ends_after)
        .map(|(index, ends_after)| Container {
            id: ContainerId::parse(&format!("{which:032x}{index:032x}")).unwrap(),
            ends_after: *ends_after,
        })
        .collect();
    let take_down = TakeDown::new(slots.clone(), containers.len(), hurried, Box::new(world.clone()));
    let stops = containers.iter().map(|container| {
        take_down.stop(&container.id, async {
            let signalled = world.now();
            world.0.lock().signals.push(signalled);
            world.0.lock().ends.insert(container.id.clone(), Instant::now() + container.ends_after);
            let busy = container.ends_after.min(RUNS_ON - TICK * 2);
            world.busy_for(busy).await;
            tokio::time::sleep(container.ends_after - busy + CLEARS).await;
        })
    });
    futures_util::future::join_all(stops).await;
    take_down.stop_sandbox(world.busy_for(CLEARS)).await;
    drop(take_down);
    let now = world.now();
    world.0.lock().gone.push((which, now));
}

async fn end_all(slots: &TakeDowns, pods: &[Vec<Duration>], hurried: bool) -> World {
    let world = World::default();
    world.now();
    let ends = pods.iter().enumerate().map(|(which, pod)| end(&world, slots, which, pod, hurried));
    futures_util::future::join_all(ends).await;
    world
}

/// To which times are exact.
const TICK: Duration = Duration::from_millis(2);
const AT_ONCE: Duration = Duration::from_millis(50);

/// So many slots, after quiet as in a crowd.
fn always(slots: usize) -> TakeDowns {
    TakeDowns::new(Slots { first: slots, most: slots })
}

#[test]
fn so_many_for_each_processor() {
    let slots = [0, 1, 2, 3, 4, 64].map(Slots::of).map(|slots| (slots.first, slots.most));
    assert_eq!(slots, [(1, 3), (1, 3), (1, 6), (3, 9), (4, 12), (4, 12)]);
}

#[tokio::test(start_paused = true)]
async fn the_first_of_a_crowd_share_the_runtime_with_few() {
    let (slots, kept) = (TakeDowns::new(Slots::of(2)), Slots::of(2).first);
    for _ in 0..2 {
        let world = end_all(&slots, &vec![vec![AT_ONCE]; 40], false).await;
        let seen = world.0.lock();
        let order: Vec<usize> = seen.gone.iter().map(|(which, _)| *which).collect();
        assert_eq!(order, (0..40).collect::<Vec<_>>());
        let first = seen.gone.first().unwrap().1;
        let signalled_before = seen.signals.iter().filter(|signal| **signal < first).count();
        assert_eq!((signalled_before, seen.busiest, slots.free()), (kept, 6, kept));
    }
}

#[tokio::test(start_paused = true)]
async fn pods_go_one_after_the_other_in_order_of_arrival() {
    let slots = always(2);
    let world = end_all(&slots, &vec![vec![AT_ONCE]; 20], false).await;
    let seen = world.0.lock();
    let order: Vec<usize> = seen.gone.iter().map(|(which, _)| *which).collect();
    assert_eq!(order, (0..20).collect::<Vec<_>>());
    let first = seen.gone.first().unwrap().1;
    let signalled_by_then = seen.signals.iter().filter(|signal| **signal <= first).count();
    assert!(signalled_by_then <= 4, "{signalled_by_then} of 20 had been signalled when the first was gone");
    assert_eq!((seen.busiest, slots.free()), (2, 2));
    assert_eq!(world.1.load(Ordering::Relaxed), 18, "the others were told to wait");
}

#[tokio::test(start_paused = true)]
async fn a_container_that_uses_its_grace_period_holds_nobody_up() {
    let slots = always(1);
    let pods = vec![vec![Duration::from_secs(30)], vec![AT_ONCE], vec![Duration::from_secs(30)], vec![AT_ONCE]];
    let world = end_all(&slots, &pods, false).await;
    let order: Vec<usize> = world.0.lock().gone.iter().map(|(which, _)| *which).collect();
    assert_eq!(order, [1, 3, 0, 2]);
    assert!(world.0.lock().signals.iter().all(|signal| *signal < Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_looked_at_while_it_uses_its_grace_period_and_not_while_the_runtime_clears_it_away() {
    let (slots, world) = (always(1), World::default());
    let id = ContainerId::parse(&"a".repeat(64)).unwrap();
    let take_down = TakeDown::new(slots, 1, false, Box::new(world.clone()));
    let stop = async {
        tokio::time::sleep(RUNS_ON / 2).await;
        let at_first = world.0.lock().working;
        tokio::time::sleep(RUNS_ON).await;
        (at_first, world.0.lock().working)
    };
    assert_eq!(take_down.stop(&id, stop).await, (1, 0));
    assert_eq!(take_down.stop_sandbox(async { world.0.lock().working }).await, 1);
    drop(take_down);
    assert_eq!(world.0.lock().working, 0);
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_stands_while_a_signal_is_held_back() {
    let (slots, world) = (always(1), World::default());
    let held = HOLD - Duration::from_secs(1);
    let id = ContainerId::parse(&"f".repeat(64)).unwrap();
    // It has ended, and the runtime takes long to clear it away.
    world.0.lock().ends.insert(id.clone(), Instant::now());
    let first = TakeDown::new(slots.clone(), 1, false, Box::new(world.clone()));
    let others = async {
        first.stop(&id, tokio::time::sleep(held)).await;
        first.stop_sandbox(std::future::ready(())).await;
    };
    let second = TakeDown::new(slots, 2, false, Box::new(world.clone()));
    let clock = second.held_back().clock();
    let waits = async {
        let begun = Instant::now();
        clock.within(Duration::from_secs(5), std::future::pending()).await;
        begun.elapsed()
    };
    let spent_at_signal = async { clock.spent() };
    let own = ContainerId::parse(&"a".repeat(64)).unwrap();
    let ((), spent, waited) = tokio::join!(others, second.stop(&own, spent_at_signal), waits);
    assert!(spent <= TICK, "{spent:?}");
    let expected = held + Duration::from_secs(5);
    assert!(waited >= expected && waited <= expected + TICK * 2, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_was_signalled_is_finished_before_others_are_signalled() {
    let slots = always(1);
    // The first ends while the third has the slot, and others still wait for their signal.
    let mut pods = vec![vec![RUNS_ON + AT_ONCE / 2]];
    pods.extend(vec![vec![Duration::from_millis(200)]; 6]);
    let world = end_all(&slots, &pods, false).await;
    let order: Vec<usize> = world.0.lock().gone.iter().map(|(which, _)| *which).collect();
    assert_eq!(order[..2], [1, 0], "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_held_back_in_a_hurry() {
    let slots = always(1);
    let world = end_all(&slots, &vec![vec![Duration::from_secs(1); 2]; 30], true).await;
    assert!(world.0.lock().signals.iter().all(Duration::is_zero));
    assert_eq!((world.0.lock().signals.len(), slots.free()), (60, 1));
}

#[tokio::test(start_paused = true)]
async fn a_hung_call_holds_a_slot_for_a_bounded_time() {
    let slots = always(1);
    // The runtime hangs on a container that has ended.
    let world = World::default();
    world.now();
    let hung = async {
        let id = ContainerId::parse(&"f".repeat(64)).unwrap();
        world.0.lock().ends.insert(id.clone(), Instant::now());
        let take_down = TakeDown::new(slots.clone(), 1, false, Box::new(world.clone()));
        take_down.stop(&id, tokio::time::sleep(Duration::from_secs(100))).await;
        world.now()
    };
    let other = async {
        tokio::task::yield_now().await;
        end(&world, &slots, 1, &[AT_ONCE], false).await;
    };
    let (hung, ()) = tokio::join!(hung, other);
    assert!(hung >= Duration::from_secs(100));
    let signals = world.0.lock().signals.clone();
    let until = RUNS_ON + HOLD;
    assert!(signals.len() == 1 && signals[0] >= until && signals[0] <= until + TICK, "{signals:?}");
    let gone = world.0.lock().gone[0].1;
    assert!(gone > until && gone < until + Duration::from_secs(1), "{gone:?}");
    assert_eq!(slots.free(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_of_the_hosts_network_waits_for_no_slot() {
    let slots = always(1);
    let _held = slots.take();
    for (host_network, passes) in [(true, true), (false, false)] {
        let world = World(Arc::default(), Arc::default(), host_network);
        let take_down = TakeDown::new(slots.clone(), 0, false, Box::new(world));
        let stop = take_down.stop_sandbox(std::future::ready(()));
        assert_eq!(tokio::time::timeout(Duration::from_millis(100), stop).await.is_ok(), passes);
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_were_held_back_for_long_enough_are_signalled_one_after_the_other() {
    let slots = always(2);
    let stuck = async {
        let held = [slots.take(), slots.take()];
        tokio::time::sleep(Duration::from_secs(100)).await;
        drop(held);
    };
    let pods = vec![vec![Duration::from_secs(30); 2]; 40];
    let ((), world) = tokio::join!(stuck, end_all(&slots, &pods, false));
    let mut signals = world.0.lock().signals.clone();
    signals.sort();
    assert_eq!(signals.len(), 80);
    for (number, of_pod) in (0_u32..).zip(signals.chunks(2)) {
        let expected = HELD_MAX + RUNS_ON / 2 * number;
        assert!(
            of_pod.iter().all(|at| *at >= expected && *at <= expected + TICK * (number + 1)),
            "{number}: {of_pod:?}"
        );
    }
    assert_eq!((world.0.lock().gone.len(), slots.free()), (40, 2));
}

#[tokio::test(start_paused = true)]
async fn who_is_cancelled_leaves_the_line() {
    let slots = always(1);
    let world = World::default();
    let first = end(&world, &slots, 0, &[AT_ONCE], false);
    tokio::pin!(first);
    assert!(futures_util::poll!(&mut first).is_pending());
    {
        let second = end(&world, &slots, 1, &[AT_ONCE], false);
        tokio::pin!(second);
        assert!(futures_util::poll!(&mut second).is_pending());
    }
    let third = end(&world, &slots, 2, &[AT_ONCE], false);
    tokio::join!(first, third);
    assert_eq!(world.0.lock().signals.len(), 2);
    assert_eq!(slots.free(), 1);
}

#[tokio::test(start_paused = true)]
async fn calls_that_hang_leave_slots_for_others() {
    let slots = TakeDowns::new(Slots { first: 2, most: 6 });
    let world = World::default();
    world.now();
    let hung = (0..2).map(|_| slots.stop_sandbox(tokio::time::sleep(Duration::from_secs(100))));
    let others = async {
        tokio::task::yield_now().await;
        let ends = (0..10).map(|which| end(&world, &slots, which, &[AT_ONCE], false));
        futures_util::future::join_all(ends).await;
        world.now()
    };
    let (_, others) = tokio::join!(futures_util::future::join_all(hung), others);
    assert!(others > STALLS && others < STALLS + Duration::from_secs(1), "{others:?}");
    assert_eq!(slots.free(), 2);
}

#[tokio::test(start_paused = true)]
async fn pods_as_many_as_a_node_has_are_signalled_within_the_bound_though_all_use_their_grace_periods() {
    let slots = TakeDowns::new(Slots::of(2));
    let world = end_all(&slots, &vec![vec![Duration::from_secs(30)]; 110], false).await;
    let last = *world.0.lock().signals.iter().max().unwrap();
    assert!(last < Duration::from_secs(7) && last < HELD_MAX, "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn it_is_quiet_when_all_are_down_and_while_they_use_their_grace_periods() {
    let slots = always(2);
    slots.quiet().await;
    let world = World::default();
    world.now();
    let crowd = async {
        let ends = (0..10).map(|which| end(&world, &slots, which, &[AT_ONCE], false));
        futures_util::future::join_all(ends).await;
    };
    let quiet = async {
        tokio::task::yield_now().await;
        slots.quiet().await;
        world.0.lock().gone.len()
    };
    let grace = [Duration::from_secs(30)];
    let slow = end(&world, &slots, 10, &grace, false);
    let (gone, (), ()) = tokio::join!(quiet, crowd, slow);
    assert_eq!(gone, 10, "all but the one that uses its grace period");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// All pods end, no slot is lost, no signal is late, and the runtime never works for more pods than there are slots; twice as
    /// many where signals were held back for long enough.
    #[test]
    fn all_end_in_bounds(
        first in 1..4_usize,
        more in 0..3_usize,
        pods in proptest::collection::vec(proptest::collection::vec(0..4_000_u64, 0..4), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let pods: Vec<Vec<Duration>> =
            pods.iter().map(|pod| pod.iter().map(|after| Duration::from_millis(*after)).collect()).collect();
        let slots = first + more;
        let take_downs = TakeDowns::new(Slots { first, most: slots });
        let world = runtime.block_on(end_all(&take_downs, &pods, false));
        let seen = world.0.lock();
        prop_assert_eq!(seen.gone.len(), pods.len());
        prop_assert_eq!(seen.signals.len(), pods.iter().map(Vec::len).sum::<usize>());
        let every = RUNS_ON / u32::try_from(slots).unwrap() + TICK;
        let latest = HELD_MAX + every * u32::try_from(pods.len()).unwrap();
        prop_assert!(seen.signals.iter().all(|signal| *signal <= latest));
        prop_assert_eq!(take_downs.free(), first);
        let largest = pods.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let beside = usize::from(seen.signals.iter().any(|signal| *signal >= HELD_MAX));
        let most = slots * largest * (1 + beside);
        prop_assert!(seen.busiest <= most, "{} for {} slots", seen.busiest, slots);
    }
}
