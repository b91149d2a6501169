use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::volnetd as api;
use proptest::prelude::*;

use super::*;
use crate::actual_state::{ActualVolume, Published};
use crate::desired_state::{DesiredPod, DesiredVolume};
use crate::selinux::Label;
use crate::spec::{CsiSource, Source, VolumeSpec};

fn uid(name: &str) -> PodUid {
    PodUid::parse(name).unwrap()
}

fn unique(handle: &str) -> UniqueName {
    UniqueName(format!("kubernetes.io/csi/d^{handle}"))
}

fn wanted(handle: &str, attachable: bool) -> DesiredVolume {
    let source = CsiSource {
        driver: "d".into(),
        handle: handle.into(),
        fs_type: String::new(),
        attributes: BTreeMap::new(),
        stage_secret: None,
        publish_secret: None,
        expand_secret: None,
        ephemeral: false,
        migrated: false,
    };
    let spec = VolumeSpec::inline(handle.into(), Source::Csi(source));
    DesiredVolume {
        spec: Arc::new(spec),
        names: BTreeSet::from(["v".to_owned()]),
        attachable,
        remount: false,
        label: Label::default(),
    }
}

fn found(staged: Presence, pods: &[(&str, Presence)]) -> ActualVolume {
    let published = |presence| Published {
        presence,
        host_path: if presence == Presence::Yes { "/h".into() } else { String::new() },
        spec_name: String::new(),
        target_path: String::new(),
        unreadable: false,
        relabel: false,
        found: false,
    };
    ActualVolume {
        device: Some(api::CsiDevice::default()),
        staged,
        attachable: Some(true),
        pods: pods.iter().map(|(pod, presence)| (uid(pod), published(*presence))).collect(),
        ..ActualVolume::new(String::new())
    }
}

/// Everything that a look has, to be changed by each case.
struct World {
    desired: DesiredState,
    actual: ActualState,
    busy: PendingOperations,
    ended: BTreeSet<PodUid>,
    back_offs: BackOffs,
    node: NodeVolumes,
    attacher: Attacher,
    may_unmount: bool,
    populating: Populating,
    now: Instant,
}

impl World {
    fn new() -> Self {
        World {
            desired: DesiredState::default(),
            actual: ActualState { epoch: 1, volumes: BTreeMap::new() },
            busy: PendingOperations::default(),
            ended: BTreeSet::new(),
            back_offs: BackOffs::default(),
            node: NodeVolumes::default(),
            attacher: Attacher::Controller,
            may_unmount: true,
            populating: Populating::default(),
            now: Instant::now(),
        }
    }

    fn want(&mut self, pod: &str, handle: &str, attachable: bool) {
        let entry = self.desired.pods.entry(uid(pod)).or_insert_with(|| DesiredPod {
            facts: Arc::default(),
            prepared: true,
            volumes: BTreeMap::new(),
            unresolved: BTreeMap::new(),
        });
        entry.volumes.insert(unique(handle), wanted(handle, attachable));
    }

    fn plan(&self) -> (Vec<Action>, Option<Instant>) {
        plan(&Look {
            desired: &self.desired,
            actual: &self.actual,
            busy: &self.busy,
            ended: &self.ended,
            back_offs: &self.back_offs,
            node: &self.node,
            attacher: &self.attacher,
            may_unmount: self.may_unmount,
            populating_until: self.populating.until(self.now),
            known: true,
            now: self.now,
        })
    }

    fn actions(&self) -> Vec<Action> {
        self.plan().0
    }
}

#[test]
fn a_node_that_attaches_waits_for_no_controller() {
    let mut world = World::new();
    world.want("a", "v", true);
    world.want("a", "w", false);
    assert_eq!(world.actions(), [mount("w", "a")], "the controller has not attached it");
    world.attacher = Attacher::Node(BTreeSet::new());
    // What the Node's status says is nobody's business then.
    world.node.in_use.insert(unique("v").0);
    world.node.attached.insert(unique("v").0);
    let attach = Action::Attach { volume: unique("v"), pod: uid("a") };
    assert_eq!(world.actions(), [attach, mount("w", "a")]);
    world.attacher = Attacher::Node(BTreeSet::from([unique("v")]));
    assert_eq!(world.actions(), [mount("v", "a"), mount("w", "a")]);
}

/// Found by its folder, whose name stands for the spaces of the specification as well.
#[test]
fn a_disk_goes_when_its_last_pod_s_folder_has_gone() {
    let mut world = World::new();
    let place = api::DiskPlace { plugin: crate::spec::FC.into(), name: "A_B".into(), block: false };
    let disk = ActualVolume { device: None, disk: Some(place), ..found(Presence::Yes, &[("a", Presence::Yes)]) };
    world.actual.volumes.insert(unique("disk"), disk);
    world.ended.insert(uid("a"));
    world.actual.forget_folders(&uid("a"));
    assert_eq!(world.actions(), [], "it is bound in the pod's folder");
    world.actual.folder_gone(&uid("a"));
    assert_eq!(world.actions(), [Action::Unstage { volume: unique("disk") }]);
    let mut wanted = wanted("x", true);
    let source = crate::spec::FcSource { wwids: vec!["A B".into()], ..Default::default() };
    wanted.spec = Arc::new(VolumeSpec { source: Source::Fc(source), ..(*wanted.spec).clone() });
    world.want("b", "x", true);
    world.desired.pods.get_mut(&uid("b")).unwrap().volumes.insert(unique("x"), wanted);
    assert_eq!(world.actions(), [], "another pod is about to have it");
}

fn mount(handle: &str, pod: &str) -> Action {
    Action::Mount { volume: unique(handle), pod: uid(pod) }
}

fn unmount(handle: &str, pod: &str) -> Action {
    Action::Unmount { volume: unique(handle), pod: uid(pod) }
}

#[test]
fn an_attach_is_awaited_by_both_lists() {
    let mut world = World::new();
    world.want("a", "v", true);
    assert_eq!(world.actions(), []);
    world.node.attached.insert(unique("v").0);
    assert_eq!(world.actions(), [], "it is not reported in use yet");
    world.node.in_use.insert(unique("v").0);
    assert_eq!(world.actions(), [mount("v", "a")]);
    let mut free = World::new();
    free.want("a", "v", false);
    assert_eq!(free.actions(), [mount("v", "a")]);
    free.desired.pods.get_mut(&uid("a")).unwrap().prepared = false;
    assert_eq!(free.actions(), []);
}

#[test]
fn one_operation_at_a_time_for_each_volume() {
    let mut world = World::new();
    world.want("a", "v", false);
    world.want("b", "v", false);
    world.want("b", "w", false);
    assert_eq!(world.actions(), [mount("v", "a"), mount("w", "b")]);
    world.busy.begin(&unique("v"), None, None);
    assert_eq!(world.actions(), [mount("w", "b")]);
}

/// Upstream UnmountVolume: one pod's driver call that hangs holds up neither the others' nor what is done after them.
#[test]
fn a_volume_is_taken_back_from_several_pods_at_a_time() {
    let mut world = World::new();
    let pods = ["a", "b", "c"].map(|pod| (pod, Presence::Yes));
    world.actual.volumes.insert(unique("v"), found(Presence::Yes, &pods));
    world.ended.extend(["a", "b", "c"].map(uid));
    world.want("d", "v", false);
    assert_eq!(world.actions(), ["a", "b", "c"].map(|pod| unmount("v", pod)), "and the mount waits for them");
    world.busy.begin(&unique("v"), Some(&uid("a")), Some(&uid("a")));
    world.back_offs.failed((unique("v"), Some(uid("b"))), Kind::Unmount, world.now);
    let (actions, again) = world.plan();
    assert_eq!((actions, again), (vec![unmount("v", "c")], Some(world.now + Duration::from_millis(500))));
    // What has failed waits, and nothing for it.
    world.busy = PendingOperations::default();
    for pod in ["a", "c"] {
        world.back_offs.failed((unique("v"), Some(uid(pod))), Kind::Unmount, world.now);
    }
    assert_eq!(world.actions(), [mount("v", "d")]);
    world.busy.begin(&unique("v"), None, Some(&uid("d")));
    world.now += Duration::from_millis(500);
    assert_eq!(world.actions(), [], "a mount is alone");
}

/// However many pods of a silent volume end, others of the same driver are taken back and mounted; and each has its turn.
#[test]
fn one_volume_is_taken_back_from_some_pods_at_a_time() {
    let names: Vec<String> = (0..20).map(|n| format!("p{n:02}")).collect();
    let pods: Vec<(&str, Presence)> = names.iter().map(|name| (name.as_str(), Presence::Yes)).collect();
    let begun = |range: std::ops::Range<usize>| -> Vec<Action> {
        names[range].iter().map(|pod| unmount("silent", pod)).collect()
    };
    // Unmounts that run already and such that have failed: what is begun.
    let table = [
        (0..0, 0..0, begun(0..4)),
        (0..1, 0..0, begun(1..4)),
        (0..4, 0..0, Vec::new()),
        (2..4, 0..2, begun(4..6)),
        (0..0, 0..18, begun(18..20)),
    ];
    for (running, failed, expected) in table {
        let mut world = World::new();
        world.actual.volumes.insert(unique("silent"), found(Presence::Yes, &pods));
        world.actual.volumes.insert(unique("well"), found(Presence::Yes, &pods[..1]));
        world.ended.extend(names.iter().map(|name| uid(name)));
        for pod in &names[running.clone()] {
            world.busy.begin(&unique("silent"), Some(&uid(pod)), Some(&uid(pod)));
        }
        for pod in &names[failed.clone()] {
            world.back_offs.failed((unique("silent"), Some(uid(pod))), Kind::Unmount, world.now);
        }
        let all: Vec<Action> = expected.into_iter().chain([unmount("well", "p00")]).collect();
        assert_eq!(world.actions(), all, "{running:?} run, {failed:?} have failed");
    }
    // All have failed, the last ones first: they are first again, but for who has not been tried, and for the mount.
    let mut world = World::new();
    world.actual.volumes.insert(unique("silent"), found(Presence::Yes, &pods));
    world.ended.extend(names.iter().map(|name| uid(name)));
    for pod in names[1..].iter().rev() {
        world.back_offs.failed((unique("silent"), Some(uid(pod))), Kind::Unmount, world.now);
        world.now += Duration::from_secs(1);
    }
    let of = |pods: &[usize]| -> Vec<Action> { pods.iter().map(|n| unmount("silent", &names[*n])).collect() };
    assert_eq!(world.actions(), of(&[0, 19, 18, 17]));
    world.want("new", "silent", false);
    assert_eq!(world.actions(), of(&[0]));
    world.busy.begin(&unique("silent"), Some(&uid("p00")), Some(&uid("p00")));
    assert_eq!(world.actions(), []);
    world.busy.end(&unique("silent"), Some(&uid("p00")));
    world.back_offs.failed((unique("silent"), Some(uid("p00"))), Kind::Unmount, world.now);
    assert_eq!(world.actions(), [mount("silent", "new")]);
    world.back_offs.failed((unique("silent"), Some(uid("new"))), Kind::Mount, world.now);
    world.now += Duration::from_secs(1);
    assert_eq!(world.actions(), of(&[19, 18, 17, 16]));
}

#[test]
fn what_is_there_is_left_alone_and_what_is_uncertain_is_called_again() {
    let mut world = World::new();
    world.want("a", "v", false);
    world.actual.volumes.insert(unique("v"), found(Presence::Yes, &[("a", Presence::Yes)]));
    assert_eq!(world.actions(), []);
    world.actual.volumes.insert(unique("v"), found(Presence::Yes, &[("a", Presence::Uncertain)]));
    assert_eq!(world.actions(), [mount("v", "a")]);
    world.actual.volumes.insert(unique("v"), found(Presence::Yes, &[("a", Presence::Yes)]));
    world.desired.pods.get_mut(&uid("a")).unwrap().volumes.get_mut(&unique("v")).unwrap().remount = true;
    assert_eq!(world.actions(), [mount("v", "a")]);
}

#[test]
fn only_what_ended_pods_have_is_taken_back() {
    let mut world = World::new();
    world.actual.volumes.insert(unique("v"), found(Presence::Yes, &[("a", Presence::Yes), ("b", Presence::Uncertain)]));
    assert_eq!(world.actions(), [], "nobody has said that these pods have ended");
    world.ended.insert(uid("b"));
    assert_eq!(world.actions(), [unmount("v", "b")]);
    world.may_unmount = false;
    assert_eq!(world.actions(), []);
}

#[test]
fn the_last_pod_takes_the_device_with_it() {
    let mut world = World::new();
    world.actual.volumes.insert(unique("v"), found(Presence::Yes, &[]));
    world.actual.volumes.insert(unique("w"), found(Presence::No, &[]));
    let unstage = Action::Unstage { volume: unique("v") };
    assert_eq!(world.actions(), [unstage, Action::Forget { volume: unique("w") }]);
    world.want("a", "v", true);
    world.want("a", "w", true);
    assert_eq!(world.actions(), []);
}

#[test]
fn waits_are_told() {
    let mut world = World::new();
    world.want("a", "v", false);
    world.back_offs.failed((unique("v"), Some(uid("a"))), Kind::Mount, world.now);
    let (actions, again) = world.plan();
    assert_eq!((actions, again), (Vec::new(), Some(world.now + Duration::from_millis(500))));
    world.now += Duration::from_millis(500);
    assert_eq!(world.actions(), [mount("v", "a")]);
}

/// A publication that has failed again and again does not hold up the pod's end.
#[test]
fn another_operation_does_not_wait() {
    let mut world = World::new();
    world.actual.volumes.insert(unique("v"), found(Presence::Yes, &[("a", Presence::Uncertain)]));
    world.want("a", "v", false);
    for _ in 0..5 {
        world.back_offs.failed((unique("v"), Some(uid("a"))), Kind::Mount, world.now);
    }
    assert_eq!(world.actions(), []);
    world.desired.pods.clear();
    world.ended.insert(uid("a"));
    assert_eq!(world.actions(), [Action::Unmount { volume: unique("v"), pod: uid("a") }]);
}

#[test]
fn in_use_is_what_is_wanted_and_what_is_there() {
    let mut world = World::new();
    world.want("a", "b", true);
    world.want("a", "not", false);
    world.actual.volumes.insert(unique("a"), found(Presence::Uncertain, &[]));
    let listed = in_use(&world.desired, &world.actual, &world.node, &world.busy);
    assert_eq!(listed, [unique("a").0, unique("b").0]);
}

/// The Node, with these in use; of what there is all is attached.
fn shows(names: &[&str]) -> NodeVolumes {
    NodeVolumes {
        known: true,
        in_use: names.iter().map(|name| unique(name).0).collect(),
        attached: ["v", "there"].iter().map(|name| unique(name).0).collect(),
        ..NodeVolumes::default()
    }
}

/// What was left out of the list is wanted again only once the Node was seen without it: until then nobody knows whether a write
/// without it is still to come.
#[test]
fn what_was_left_out_is_reported_anew_first() {
    let mut world = World::new();
    world.node = shows(&["v"]);
    world.node.report(&in_use(&world.desired, &world.actual, &world.node, &world.busy), true);
    world.want("a", "v", true);
    assert_eq!(in_use(&world.desired, &world.actual, &world.node, &world.busy), Vec::<String>::new());
    assert_eq!(world.actions(), [], "the Node is about to be written without it");
    world.node = world.node.followed_by(shows(&["v", "other"]));
    assert_eq!(world.actions(), [], "another change says nothing of it");
    world.node = world.node.followed_by(shows(&[]));
    assert_eq!(in_use(&world.desired, &world.actual, &world.node, &world.busy), [unique("v").0]);
    world.node = world.node.followed_by(shows(&["v"]));
    assert_eq!(world.actions(), [mount("v", "a")]);
    // What is there is named, whatever was left out before.
    world.node.withdrawn.insert(unique("v").0);
    world.actual.volumes.insert(unique("v"), found(Presence::Uncertain, &[]));
    assert_eq!(in_use(&world.desired, &world.actual, &world.node, &world.busy), [unique("v").0]);
}

/// A mount goes on when its pod has gone, and nothing is there before kubelet-volnetd has taken it up.
#[test]
fn what_is_being_mounted_is_not_left_out() {
    let mut world = World::new();
    let list = |world: &World| in_use(&world.desired, &world.actual, &world.node, &world.busy);
    world.node = shows(&["v"]);
    world.want("a", "v", true);
    assert_eq!(world.actions(), [mount("v", "a")]);
    world.busy.begin(&unique("v"), None, None);
    world.busy.begin(&unique("nothing to attach"), None, None);
    world.desired.pods.clear();
    assert_eq!(list(&world), [unique("v").0]);
    world.node.report(&list(&world), true);
    world.busy = PendingOperations::default();
    assert_eq!(list(&world), Vec::<String>::new());
}

/// A life before may have left out what it had taken from the node, and its write may be under way still.
#[test]
fn what_a_life_before_may_have_left_out_is_reported_anew_first() {
    let mut world = World::new();
    let list = |world: &World| in_use(&world.desired, &world.actual, &world.node, &world.busy);
    let until = world.now + Duration::from_secs(30);
    world.node.inherit(&world.actual, until);
    world.node = world.node.followed_by(shows(&["v", "there"]));
    world.actual.volumes.insert(unique("there"), found(Presence::Uncertain, &[]));
    world.want("a", "v", true);
    world.want("b", "there", true);
    world.node.inherit(&world.actual, until);
    assert_eq!(list(&world), [unique("there").0]);
    assert_eq!(world.actions(), [mount("there", "b")], "what is there was left out by nobody");
    // A source that does not deliver does not hold it up for ever.
    world.node.lapse(world.now);
    let mut later = world.node.clone();
    later.report(&list(&world), false);
    later.lapse(until);
    assert!(later.withdrawn.is_empty() && !world.node.withdrawn.is_empty());
    world.node.report(&list(&world), true);
    world.node = world.node.followed_by(shows(&["there"]));
    world.node.inherit(&world.actual, until);
    assert_eq!(list(&world), [unique("there").0, unique("v").0]);
    world.node.report(&list(&world), true);
    world.node = world.node.followed_by(shows(&["v", "there"]));
    world.node.inherit(&world.actual, until);
    assert_eq!(world.actions(), [mount("v", "a"), mount("there", "b")]);
}

/// What was reported is left out only once the Node has shown it: the write with it may be under way, and one without it would follow,
/// which nobody could tell from the Node when it shows the first.
#[test]
fn what_was_reported_stays_until_it_is_shown() {
    let mut world = World::new();
    let list = |world: &World| in_use(&world.desired, &world.actual, &world.node, &world.busy);
    world.node = shows(&[]);
    world.want("a", "v", true);
    world.node.report(&list(&world), false);
    world.desired.pods.clear();
    assert_eq!(list(&world), Vec::<String>::new(), "an incomplete list is written by nobody");
    world.want("a", "v", true);
    world.node.report(&list(&world), true);
    world.desired.pods.clear();
    assert_eq!(list(&world), [unique("v").0]);
    world.node.report(&list(&world), false);
    assert_eq!(list(&world), [unique("v").0], "the write before it may be under way still");
    world.node.report(&list(&world), true);
    world.node = world.node.followed_by(shows(&[]));
    assert_eq!(list(&world), [unique("v").0], "another change of the Node says nothing of it");
    world.node = world.node.followed_by(shows(&["v"]));
    world.want("b", "v", true);
    assert_eq!(world.actions(), [mount("v", "b")]);
    world.desired.pods.clear();
    assert_eq!(list(&world), Vec::<String>::new());
}

/// After a start a pod that runs on may not have said yet that it wants what was found.
#[test]
fn what_was_found_stays_until_pods_have_said_what_they_want() {
    let unstage = |name: &str| Action::Unstage { volume: unique(name) };
    let mut world = World::new();
    let of_before = ActualVolume { found: true, ..found(Presence::Uncertain, &[]) };
    world.actual.volumes.insert(unique("v"), of_before);
    world.actual.volumes.insert(unique("w"), found(Presence::Yes, &[]));
    let until = world.now + Duration::from_secs(10);
    world.populating = Populating::begin(BTreeSet::from([uid("a"), uid("b")]), until);
    assert_eq!(world.actions(), [unstage("w")], "which is of this life");
    assert!(!world.populating.has_come(&uid("a")) && !world.populating.has_come(&uid("c")));
    assert_eq!(world.actions(), [unstage("w")]);
    world.now = until;
    assert_eq!(world.actions(), [unstage("v"), unstage("w")], "a pod that waits for something else is not waited for");
    world.now -= Duration::from_secs(1);
    assert_eq!(world.plan().1, Some(until));
    assert!(world.populating.has_come(&uid("b")));
    assert_eq!(world.actions(), [unstage("v"), unstage("w")]);
}

fn presence() -> impl Strategy<Value = Presence> {
    prop_oneof![Just(Presence::No), Just(Presence::Uncertain), Just(Presence::Yes)]
}

proptest! {
    /// Whatever the states: no volume of a pod that has not ended is taken back, nothing is unstaged that a pod has or wants, no
    /// volume gets two operations that exclude each other, and nothing is destroyed before all sources have delivered.
    #[test]
    fn nothing_is_taken_from_pods_that_may_run(
        wants in proptest::collection::vec((0..3_usize, 0..3_usize, any::<bool>()), 0..6),
        there in proptest::collection::vec((0..3_usize, presence(), proptest::collection::vec((0..3_usize, presence()), 0..3)), 0..4),
        ended in proptest::collection::btree_set(0..3_usize, 0..3),
        may_unmount: bool,
    ) {
        const PODS: [&str; 3] = ["a", "b", "c"];
        const VOLUMES: [&str; 3] = ["x", "y", "z"];
        let mut world = World::new();
        world.may_unmount = may_unmount;
        for (pod, volume, attachable) in wants {
            world.want(PODS[pod], VOLUMES[volume], attachable);
        }
        for (volume, staged, pods) in there {
            let pods: Vec<(&str, Presence)> = pods.into_iter().map(|(pod, presence)| (PODS[pod], presence)).collect();
            world.actual.volumes.insert(unique(VOLUMES[volume]), found(staged, &pods));
        }
        world.ended = ended.into_iter().map(|pod| uid(PODS[pod])).collect();
        let mut seen = PendingOperations::default();
        for action in world.actions() {
            let (volume, destroys) = match &action {
                Action::Attach { volume, pod } | Action::Mount { volume, pod } | Action::Expand { volume, pod } => {
                    prop_assert!(world.desired.volume(pod, volume).is_some());
                    (volume, false)
                }
                Action::Unmount { volume, pod } => {
                    prop_assert!(world.ended.contains(pod) && world.desired.volume(pod, volume).is_none());
                    (volume, true)
                }
                Action::Unstage { volume } | Action::Forget { volume } => {
                    prop_assert!(world.actual.volumes[volume].pods.is_empty() && !world.desired.wants(volume));
                    (volume, true)
                }
            };
            prop_assert!(!seen.excludes(volume, action.scope()), "two operations on {volume}");
            seen.begin(volume, action.scope(), None);
            prop_assert!(may_unmount || !destroys);
        }
    }
}

/// What nobody knows the volume of goes when no pod wants it, and while no pod may have it.
#[test]
fn unknown_volumes_are_taken_back_once_nobody_can_have_them() {
    let folder = crate::names::folder("a");
    let by_folder = UniqueName(format!("kubernetes.io/csi/d/{folder}"));
    let nameless = ActualVolume {
        device: Some(api::CsiDevice { driver: "d".into(), ..api::CsiDevice::default() }),
        staging_path: format!("/s/d/{folder}/globalmount"),
        ..found(Presence::Uncertain, &[])
    };
    let unstage = || Action::Unstage { volume: by_folder.clone() };
    let mut world = World::new();
    world.actual.volumes.insert(by_folder.clone(), nameless);
    assert_eq!(world.plan().0, [unstage()]);
    world.want("p", "a", false);
    let (actions, _) = world.plan();
    assert!(!actions.contains(&unstage()), "a pod wants it: {actions:?}");
    world.desired.pods.clear();
    // The volume that some pod has and nobody knows may be this one; a readable one that no pod is known to have, too.
    let mut unknown = found(Presence::No, &[("q", Presence::Uncertain)]);
    unknown.pods.values_mut().for_each(|published| published.unreadable = true);
    world.actual.volumes.insert(UniqueName("kubernetes.io/csi/q-pv".into()), unknown);
    world.actual.volumes.insert(unique("b"), found(Presence::Yes, &[]));
    let known = api::CsiDevice { spec_name: "pv-c".into(), ..api::CsiDevice::default() };
    let seen = ActualVolume { device: Some(known), ..found(Presence::Yes, &[]) };
    world.actual.volumes.insert(unique("c"), seen);
    assert_eq!(world.plan().0, [Action::Unstage { volume: unique("c") }]);
    world.ended.insert(uid("q"));
    let (actions, _) = world.plan();
    let unmount = Action::Unmount { volume: UniqueName("kubernetes.io/csi/q-pv".into()), pod: uid("q") };
    assert!(actions.contains(&unmount), "{actions:?}");
    world.actual.volumes.remove(&UniqueName("kubernetes.io/csi/q-pv".into()));
    assert_eq!(world.plan().0.len(), 3);
}

#[test]
fn a_volume_with_another_label_goes_before_it_comes() {
    let mut world = World::new();
    world.want("b", "v", false);
    let label = |world: &mut World, label: &str| {
        let volume = world.desired.pods.get_mut(&uid("b")).unwrap().volumes.get_mut(&unique("v")).unwrap();
        volume.label.mount = label.to_owned();
    };
    let labelled = |pods: &[(&str, Presence)]| ActualVolume { label: "one".into(), ..found(Presence::Yes, pods) };
    label(&mut world, "two");
    world.actual.volumes.insert(unique("v"), labelled(&[("a", Presence::Yes)]));
    assert_eq!(labelled_otherwise(&world.desired, &world.actual), [(unique("v"), uid("b"))]);
    assert_eq!(world.actions(), [], "another pod has it, and has not ended");
    world.ended.insert(uid("a"));
    assert_eq!(world.actions(), [unmount("v", "a")]);
    world.actual.volumes.insert(unique("v"), labelled(&[]));
    assert_eq!(world.actions(), [Action::Unstage { volume: unique("v") }], "staged, it still has the label");
    world.actual.volumes.insert(unique("v"), ActualVolume { staged: Presence::No, ..labelled(&[]) });
    assert_eq!(world.actions(), [mount("v", "b")], "nothing of it is there");
    assert_eq!(labelled_otherwise(&world.desired, &world.actual), []);
    // The same label needs no other stage, and what a pod has it keeps, whatever it would want now.
    label(&mut world, "one");
    world.actual.volumes.insert(unique("v"), labelled(&[]));
    assert_eq!(world.actions(), [mount("v", "b")]);
    label(&mut world, "two");
    world.actual.volumes.insert(unique("v"), labelled(&[("b", Presence::Uncertain)]));
    assert_eq!(world.actions(), [mount("v", "b")]);
}

#[test]
fn each_action_is_measured_under_upstreams_name() {
    let (volume, pod) = (|| unique("h"), || uid("a"));
    for (action, expected) in [
        (Action::Attach { volume: volume(), pod: pod() }, ["volume_attach"; 2]),
        (Action::Mount { volume: volume(), pod: pod() }, ["volume_mount", "map_volume"]),
        (Action::Unmount { volume: volume(), pod: pod() }, ["volume_unmount", "unmap_volume"]),
        (Action::Expand { volume: volume(), pod: pod() }, ["volume_fs_resize"; 2]),
        (Action::Unstage { volume: volume() }, ["unmount_device", "unmap_device"]),
        (Action::Forget { volume: volume() }, [""; 2]),
    ] {
        assert_eq!([false, true].map(|block| action.operation(block).map_or("", Operation::name)), expected);
    }
}
