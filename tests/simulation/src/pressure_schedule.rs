//! Workload and faults of family `eviction`: pods of all QoS classes and priorities that use more and less memory, disk and tasks, a node
//! with thresholds, and a kubelet-evictiond that dies, hangs, cannot reach kubelet-syncd and cannot read.

use std::fmt;

use bulkhead_config::kubelet::KubeletConfiguration;
use bulkhead_types::GoDuration;
use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::logs::LogPlan;
use crate::schedule::{CALM, CallFault, Deed, Peer, Program, Shape, Step, small};

/// The priority from which on a pod is critical (upstream SystemCriticalPriority).
pub const CRITICAL: i32 = 2_000_000_000;
/// Classes of the cluster's own, with their priorities.
pub const CLASSES: [(&str, i32); 2] = [("middle", 100), ("high", 1_000)];
/// MiB of the machine's memory, of its disk, and of the images' where that is another one; tasks that it can have.
pub const MEMORY: u64 = 16 << 10;
pub const DISK: u64 = 100 << 10;
pub const IMAGE_DISK: u64 = 60 << 10;
pub const TASKS: u64 = 4_000;
/// Images that nobody uses at the beginning, and MiB of each.
pub const OLD_IMAGES: [(&str, u64); 3] = [("old0", 2 << 10), ("old1", 5 << 10), ("old2", 8 << 10)];

/// What a pod asks for, beside what its containers do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asks {
    #[serde(default)]
    pub priority: i32,
    /// MiB of memory; 0: none, and the pod is BestEffort.
    #[serde(default)]
    pub memory: u64,
    /// Memory and CPU are limited to what is asked for: the pod is Guaranteed.
    #[serde(default)]
    pub is_limited: bool,
    /// MiB of disk that it asks for, and that it may have at most; 0: none.
    #[serde(default)]
    pub disk: u64,
    #[serde(default)]
    pub disk_limit: u64,
}

impl Asks {
    pub fn is_critical(&self) -> bool {
        self.priority >= CRITICAL
    }

    /// The class that stands for the priority.
    pub fn class(&self) -> &'static str {
        let own = CLASSES.iter().find(|(_, priority)| *priority == self.priority).map(|(name, _)| *name);
        if self.is_critical() { "system-cluster-critical" } else { own.unwrap_or_default() }
    }

    pub fn is_best_effort(&self) -> bool {
        self.memory == 0
    }
}

impl fmt::Display for Asks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Asks { priority, memory, is_limited, disk, disk_limit } = self;
        let class = match (memory, is_limited) {
            (0, _) => "BestEffort",
            (_, true) => "Guaranteed",
            (_, false) => "Burstable",
        };
        write!(f, "; {class}, priority {priority}, asks for {memory} MiB of memory and {disk} of disk")?;
        if *disk_limit > 0 {
            write!(f, " (at most {disk_limit})")?;
        }
        Ok(())
    }
}

/// What a signal is compared with; MiB, of `pid.available` tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    pub signal: Signal,
    pub hard: Option<u64>,
    /// With its grace period, seconds.
    pub soft: Option<(u64, u64)>,
    /// Beyond the threshold.
    pub reclaim: u64,
}

/// Signals that come up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Signal {
    Memory,
    Disk,
    Images,
    Tasks,
}

impl Signal {
    pub const ALL: [Signal; 4] = [Signal::Memory, Signal::Disk, Signal::Images, Signal::Tasks];

    pub fn name(self) -> &'static str {
        match self {
            Signal::Memory => "memory.available",
            Signal::Disk => "nodefs.available",
            Signal::Images => "imagefs.available",
            Signal::Tasks => "pid.available",
        }
    }

    fn amount(self, number: u64) -> String {
        if self == Signal::Tasks { number.to_string() } else { format!("{number}Mi") }
    }
}

/// How the node is set up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Images and writable layers lie on a disk of their own.
    pub separate_images: bool,
    pub bounds: Vec<Bound>,
    /// `evictionPressureTransitionPeriod`, seconds.
    pub transition: u64,
    /// `evictionMaxPodGracePeriod`, seconds.
    pub max_grace: u64,
    /// What containers write, and when their logs are rotated. None: they write nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<LogPlan>,
}

impl Plan {
    pub fn of(dice: &mut Dice) -> Self {
        let mut bounds = Vec::new();
        for signal in Signal::ALL {
            let some = match signal {
                Signal::Memory | Signal::Disk => 85,
                Signal::Images => 60,
                Signal::Tasks => 50,
            };
            if !dice.percent(some) {
                continue;
            }
            let hard = match signal {
                Signal::Memory => dice.one_of(1_024, &[512, 2_048]),
                Signal::Disk => dice.one_of(10_240, &[5_120]),
                Signal::Images => dice.one_of(8_192, &[4_096]),
                Signal::Tasks => dice.one_of(500, &[200]),
            };
            let is_soft = dice.percent(50);
            let soft = is_soft.then(|| (hard * 2, dice.one_of(10, &[2, 30, 45])));
            let hard = (!is_soft || dice.percent(70)).then_some(hard);
            let reclaim = if dice.percent(40) { hard.unwrap_or(400) / 2 } else { 0 };
            bounds.push(Bound { signal, hard, soft, reclaim });
        }
        let separate_images = dice.percent(40);
        let (transition, max_grace) = (dice.one_of(10, &[30, 60]), dice.one_of(0, &[5, 20]));
        Plan { separate_images, bounds, transition, max_grace, logs: None }
    }

    pub fn put_into(&self, config: &mut KubeletConfiguration) {
        let mut maps = [(); 4].map(|()| std::collections::BTreeMap::new());
        let [hard, soft, grace, reclaim] = &mut maps;
        for bound in &self.bounds {
            let name = bound.signal.name().to_owned();
            if let Some(number) = bound.hard {
                hard.insert(name.clone(), bound.signal.amount(number));
            }
            if let Some((number, seconds)) = bound.soft {
                soft.insert(name.clone(), bound.signal.amount(number));
                grace.insert(name.clone(), format!("{seconds}s"));
            }
            if bound.reclaim > 0 {
                reclaim.insert(name, bound.signal.amount(bound.reclaim));
            }
        }
        let [hard, soft, grace, reclaim] = maps;
        (config.eviction_hard, config.eviction_soft) = (hard, soft);
        (config.eviction_soft_grace_period, config.eviction_minimum_reclaim) = (grace, reclaim);
        config.eviction_pressure_transition_period = GoDuration::from_secs(i64::try_from(self.transition).unwrap_or(0));
        config.eviction_max_pod_grace_period = i32::try_from(self.max_grace).unwrap_or(0);
        config.image_minimum_gc_age = GoDuration::ZERO;
        if let Some(logs) = &self.logs {
            config.container_log_max_size = logs.max_size.to_string();
            config.container_log_max_files = i32::try_from(logs.max_files).ok();
            config.container_log_monitor_interval =
                Some(GoDuration::from_secs(i64::try_from(logs.interval).unwrap_or(i64::MAX)));
        }
    }
}

/// What happens in this family alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PressureDeed {
    /// From now on the first container of the pod uses so much while it runs: MiB of memory and of disk, and tasks.
    Use { pod: String, memory: u64, disk: u64, tasks: u64 },
    /// And what is no pod so much; `images`: of the images' disk.
    Elsewhere { memory: u64, disk: u64, images: u64, tasks: u64 },
    /// kubelet-evictiond is killed, and starts again after so many milliseconds.
    KillEvictiond { down: u64 },
    /// Connections between kubelet-evictiond and kubelet-syncd break.
    Break,
    /// Nothing of the machine can be read for so many milliseconds.
    Blind { lasts: u64 },
    /// kubelet-walker answers so much later for so many milliseconds.
    LateFigures { lasts: u64, by: u64 },
    /// The next call of this peer that gives a container's log another file goes wrong.
    Rotation { peer: Peer, fault: CallFault },
}

impl PressureDeed {
    pub fn kind(&self) -> &'static str {
        match self {
            PressureDeed::Use { .. } => "use",
            PressureDeed::Elsewhere { .. } => "elsewhere",
            PressureDeed::KillEvictiond { .. } => "kill-evictiond",
            PressureDeed::Break => "break",
            PressureDeed::Blind { .. } => "blind",
            PressureDeed::LateFigures { .. } => "late-figures",
            PressureDeed::Rotation { .. } => "rotation",
        }
    }

    pub fn is_workload(&self) -> bool {
        matches!(self, PressureDeed::Use { .. } | PressureDeed::Elsewhere { .. })
    }
}

impl fmt::Display for PressureDeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PressureDeed::Use { pod, memory, disk, tasks } => {
                write!(f, "{pod} is to use {memory} MiB of memory, {disk} of disk and {tasks} tasks")
            }
            PressureDeed::Elsewhere { memory, disk, images, tasks } => write!(
                f,
                "others than pods use {memory} MiB of memory, {disk} of disk, {images} of the images' disk and {tasks} tasks"
            ),
            PressureDeed::KillEvictiond { down } => write!(f, "kubelet-evictiond is killed for {down} ms"),
            PressureDeed::Break => write!(f, "connections between kubelet-evictiond and kubelet-syncd break"),
            PressureDeed::Blind { lasts } => write!(f, "nothing of the machine can be read for {lasts} ms"),
            PressureDeed::LateFigures { lasts, by } => {
                write!(f, "kubelet-walker answers {by} ms later for {lasts} ms")
            }
            PressureDeed::Rotation { peer, fault } => {
                let peer = crate::runtime::name_of(*peer);
                write!(f, "the next call for another file of a log goes wrong: {fault:?} of {peer}")
            }
        }
    }
}

fn asks(dice: &mut Dice) -> Asks {
    let memory = if dice.percent(35) { 0 } else { dice.one_of(256, &[512, 1_024, 2_048]) };
    let priority = if dice.percent(15) { CRITICAL } else { dice.one_of(0, &[0, 100, 1_000]) };
    let disk = if dice.percent(50) { 0 } else { dice.one_of(1_024, &[4_096]) };
    let disk_limit = if dice.percent(15) { disk.max(2_048) * 2 } else { 0 };
    Asks { priority, memory, is_limited: memory > 0 && dice.percent(40), disk, disk_limit }
}

fn pressed(dice: &mut Dice) -> Shape {
    let mut made = small(dice);
    for container in &mut made.containers {
        container.behaviour.ends_after = None;
    }
    made.asks = Some(asks(dice));
    made
}

/// What a pod uses: mostly little, now and then so much that two such pods are too many.
fn usage(dice: &mut Dice, pod: &str) -> PressureDeed {
    let mut amount = |much: u64| match dice.below(5) {
        0 | 1 => dice.between(0, much / 20),
        2 => dice.between(much / 20, much / 5),
        _ => dice.between(much / 4, much / 2),
    };
    PressureDeed::Use { pod: pod.to_owned(), memory: amount(MEMORY), disk: amount(DISK), tasks: amount(TASKS) }
}

/// Pods come, use more and less, and some are replaced; all that is not the pods' grows and falls too.
pub(crate) fn workload(dice: &mut Dice, steps: &mut Vec<Step>) {
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    let mut push = |at: u64, deed: Deed| steps.push(Step { at, deed });
    if dice.percent(30) {
        push(dice.below(calm / 3), Deed::Write { pod: "p0".to_owned(), shape: pressed(dice) });
        let deed = PressureDeed::Use { pod: "p0".to_owned(), memory: 3_000, disk: 8_000, tasks: 300 };
        push(dice.between(calm / 4, calm / 2), Deed::Pressure { deed });
    }
    for number in 0..dice.between(2, 5) {
        let pod = format!("e{number}");
        let mut at = if dice.percent(40) { dice.below(2_000) } else { dice.below(calm / 2) };
        push(at, Deed::Create { pod: pod.clone(), shape: pressed(dice) });
        for _ in 0..dice.between(1, 5) {
            at += if dice.percent(30) { dice.between(1, 3_000) } else { dice.between(3_000, calm / 3) };
            if at >= calm {
                break;
            }
            let deed = match dice.below(10) {
                0 => Deed::Delete { pod: pod.clone(), grace: None },
                1 => Deed::Replace { pod: pod.clone(), shape: pressed(dice), force: false },
                2 => Deed::Create { pod: pod.clone(), shape: pressed(dice) },
                _ => Deed::Pressure { deed: usage(dice, &pod) },
            };
            push(at, deed);
        }
    }
    for _ in 0..dice.below(4) {
        let mut amount = |much: u64| if dice.percent(40) { dice.between(much / 2, much - much / 8) } else { 0 };
        let (memory, disk, images, tasks) = (amount(MEMORY), amount(DISK), amount(IMAGE_DISK), amount(TASKS));
        let deed = Deed::Pressure { deed: PressureDeed::Elsewhere { memory, disk, images, tasks } };
        push(dice.between(10_000, calm - 1), deed);
    }
}

/// Two in three runs have faults of this family.
pub(crate) fn faults(dice: &mut Dice, steps: &mut Vec<Step>) {
    if dice.percent(33) {
        return;
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    for _ in 0..dice.between(1, 5) {
        let some_time = dice.one_of(200, &[2_000, 15_000, 40_000]);
        let deed = match dice.below(8) {
            0..=2 => PressureDeed::KillEvictiond { down: dice.one_of(20, &[1_000, 5_000, 30_000]) },
            3 | 4 => PressureDeed::Break,
            5 => PressureDeed::Blind { lasts: some_time },
            6 => PressureDeed::LateFigures { lasts: some_time, by: dice.one_of(200, &[1_000, 4_000, 8_000]) },
            _ => {
                let deed = Deed::Stop { program: Program::Evictiond, lasts: some_time };
                steps.push(Step { at: dice.below(calm), deed });
                continue;
            }
        };
        steps.push(Step { at: dice.below(calm), deed: Deed::Pressure { deed } });
    }
}
