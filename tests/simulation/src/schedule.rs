//! What happens in one run: the workload and the faults, drawn from the seed before the run begins, so that a failing run can be
//! shrunk by leaving some of it out.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::claims_schedule::{ClaimsDeed, DeviceClaim, Dra};
use crate::dice::Dice;
use crate::disk_schedule::DiskDeed;
use crate::hooks_schedule::Hooks;
use crate::memory_schedule::MemoryDeed;
use crate::pressure_schedule::{Asks, Plan, PressureDeed};
use crate::probes_schedule::probes;
pub use crate::probes_schedule::{ProbeKind, ProbeShape};
use crate::resources_schedule::PluginFault;
use crate::sizes_schedule::{Sized, Sizes, Words};
use crate::versions_schedule::VersionDeed;
use crate::volumes_schedule::{Claim, DriverFault};

/// Nothing happens from outside after this time; the node has the rest of the run to come to what is wanted.
pub const CALM: Duration = Duration::from_secs(180);
/// How long the node has for that: the longest pause of the kubelet's own (a crash loop's five minutes) twice, and then some.
pub const SETTLING: Duration = Duration::from_secs(900);

/// From then on nothing runs that nobody wants: the longest grace period and the deadline of a call on top of it, and that for two more
/// attempts, where the first ones were lost.
pub const STOPPED_BY: Duration = Duration::from_secs(CALM.as_secs() + 3 * (60 + 120) + 60);

/// What a container does by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behaviour {
    /// It ends after so many milliseconds. None: it runs until it is stopped.
    pub ends_after: Option<u64>,
    pub exit_code: i32,
    /// It ends so many milliseconds after SIGTERM. None: it does not care.
    pub heeds_term: Option<u64>,
}

impl Behaviour {
    /// As words of a command, which the model of the runtime reads from the request.
    pub fn words(self) -> Vec<String> {
        let number = |n: Option<u64>| n.map_or_else(|| "never".to_owned(), |n| n.to_string());
        vec!["run".to_owned(), number(self.ends_after), self.exit_code.to_string(), number(self.heeds_term)]
    }

    /// What [`Behaviour::words`] made. None: something else.
    pub fn read(words: &[String]) -> Option<Self> {
        let [run, ends_after, exit_code, heeds_term] = words else { return None };
        (run == "run").then_some(())?;
        let exit_code = exit_code.parse().ok()?;
        Some(Behaviour { ends_after: ends_after.parse().ok(), exit_code, heeds_term: heeds_term.parse().ok() })
    }
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerShape {
    pub name: String,
    pub behaviour: Behaviour,
    /// An init container that goes on beside the others.
    pub sidecar: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeShape>,
    /// How many devices of the plugin it asks for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub devices: u64,
    /// How many CPUs it asks for, to have them for itself.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cpus: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ContainerShape {
    pub fn probe(&self, kind: ProbeKind) -> Option<&ProbeShape> {
        self.probes.iter().find(|probe| probe.kind == kind)
    }

    /// A probe may end it sooner or later, and again and again: it fails at some time, or may pass too late for its threshold.
    pub fn is_ended_by_probe(&self) -> bool {
        let late = |probe: &ProbeShape| probe.passes_after + 2_000 >= probe.period * 1000 * (probe.threshold - 1);
        let mut judging = self.probes.iter().filter(|probe| probe.kind != ProbeKind::Readiness);
        judging.any(|probe| probe.fails_after.is_some() || late(probe))
    }
}

/// A pod as a manifest has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// `Always`, `OnFailure` or `Never`.
    pub restart_policy: String,
    /// Seconds.
    pub grace: u64,
    pub init: Vec<ContainerShape>,
    pub containers: Vec<ContainerShape>,
    /// Claims whose volumes each of its containers mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Claim>,
    /// Claims of drivers' devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_claims: Vec<DeviceClaim>,
    /// Priority, and what it asks for of memory and disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asks: Option<Asks>,
    /// CPU and memory that its containers request, where they may be resized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sized: Option<Sized>,
    #[serde(default, skip_serializing_if = "Hooks::is_empty")]
    pub hooks: Hooks,
}

/// What becomes of the next call that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallFault {
    /// It is answered with an error and not done.
    Refused,
    /// It is done, and the answer does not come.
    AnswerLost,
    /// kubelet-syncd dies before it is done.
    DeathBefore,
    /// kubelet-syncd dies when it is done, before it has the answer.
    DeathAfter,
    /// It takes so many milliseconds longer.
    Late(u64),
}

/// Which part of the node's world a schedule is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// Pods of manifests; the node is standalone.
    #[default]
    Pods,
    /// Pods of the API server, beside some of manifests, with the real kubelet-statusd.
    Api,
    /// Pods of manifests whose containers have probes.
    Probes,
    /// Many small pods of manifests that come and go at the same moments: more than are started (eight on two processors) or taken
    /// down (four) at a time.
    Many,
    /// Pods of the API server whose containers mount volumes of claims, which a CSI driver serves.
    Volumes,
    /// Pods of manifests whose containers have devices of a plugin and CPUs for themselves.
    Resources,
    /// Pods of the API server, beside some of manifests, on a node that runs short of memory, disk and tasks; with the real
    /// kubelet-evictiond.
    Eviction,
    /// Pods of the API server with ResourceClaims, whose devices two DRA drivers prepare.
    Claims,
}

impl Family {
    pub const ALL: [Family; 8] = [
        Family::Pods,
        Family::Api,
        Family::Probes,
        Family::Many,
        Family::Volumes,
        Family::Resources,
        Family::Eviction,
        Family::Claims,
    ];

    /// Whether the node has an API server.
    pub fn has_api(self) -> bool {
        matches!(self, Family::Api | Family::Volumes | Family::Eviction | Family::Claims)
    }

    /// What `--only` takes.
    pub fn name(self) -> &'static str {
        match self {
            Family::Pods => "pods",
            Family::Api => "api",
            Family::Probes => "probes",
            Family::Many => "many",
            Family::Volumes => "volumes",
            Family::Resources => "resources",
            Family::Eviction => "eviction",
            Family::Claims => "claims",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Family::ALL.into_iter().find(|family| family.name() == name)
    }
}

/// How the API server treats what the node asks of it about pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApiFault {
    /// The next so many requests that write a pod are answered with this code.
    Answer { code: u16, times: u32 },
    /// The optimistic lock of the next so many fails.
    Conflict { times: u32 },
    /// The next one is done, and the connection breaks before the answer.
    AnswerLost,
    /// The next one is done, and kubelet-statusd dies before it has the answer.
    DeathAfter,
    /// The connection of the next one breaks before anything is done.
    Dropped,
    /// The next one is done so many milliseconds later.
    Late { by: u64 },
    /// The next watch or list of pods is answered with this code.
    NoList { code: u16 },
}

/// Whose call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    Runtime,
    Volnetd,
}

/// A process that may be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    Syncd,
    Statusd,
    Volnetd,
    Runtime,
    Driver,
    Plugin,
    Evictiond,
    Dra(Dra),
}

impl Program {
    /// Those that a start of the machine brings up, in this order.
    pub const ALL: [Program; 9] = [
        Program::Syncd,
        Program::Statusd,
        Program::Volnetd,
        Program::Runtime,
        Program::Driver,
        Program::Plugin,
        Program::Evictiond,
        Program::Dra(Dra::One),
        Program::Dra(Dra::Two),
    ];

    /// As the story calls it.
    pub fn name(self) -> &'static str {
        match self {
            Program::Syncd => "kubelet-syncd",
            Program::Statusd => "kubelet-statusd",
            Program::Volnetd => "kubelet-volnetd",
            Program::Runtime => "runtime",
            Program::Driver => "driver",
            Program::Plugin => "plugin",
            Program::Evictiond => "kubelet-evictiond",
            Program::Dra(driver) => driver.short(),
        }
    }
}

/// One thing that happens from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deed {
    /// A manifest appears, or is replaced.
    Write {
        pod: String,
        shape: Shape,
    },
    /// A manifest goes.
    Remove {
        pod: String,
    },
    /// Somebody creates a pod on the API server; once its name is free, where a pod of that name is being deleted.
    Create {
        pod: String,
        shape: Shape,
    },
    /// Somebody changes an annotation of it, or the image of its first container where that is to run always.
    Edit {
        pod: String,
        image: bool,
    },
    /// Somebody deletes it, with this grace period (seconds) or its own.
    Delete {
        pod: String,
        grace: Option<u64>,
    },
    /// It is deleted, and another one of its name follows: in the same moment where it is deleted by force, else once it is gone.
    Replace {
        pod: String,
        shape: Shape,
        force: bool,
    },
    /// Somebody writes a condition of his own into its status.
    Meddle {
        pod: String,
    },
    /// Somebody asks for other sizes of some of its containers.
    Resize {
        pod: String,
        sizes: Sizes,
    },
    /// kubelet-syncd is killed, and starts again after so many milliseconds.
    KillSyncd {
        down: u64,
    },
    /// The runtime is away for so many milliseconds. Its containers run on, what happens meanwhile is told by no event.
    RestartRuntime {
        down: u64,
    },
    /// kubelet-volnetd is away for so many milliseconds, and another epoch afterwards.
    RestartVolnetd {
        down: u64,
    },
    /// kubelet-statusd is killed, and starts again after so many milliseconds.
    KillStatusd {
        down: u64,
    },
    /// kube-apiserver is away for so many milliseconds.
    RestartApi {
        down: u64,
    },
    /// The CSI driver is killed, and starts again after so many milliseconds. What it has mounted stays.
    KillDriver {
        down: u64,
    },
    /// The next change that is asked of the CSI driver.
    Driver {
        fault: DriverFault,
    },
    /// The device plugin is killed, and starts again after so many milliseconds.
    KillPlugin {
        down: u64,
    },
    /// The next call of the device plugin that is about devices of a container.
    Plugin {
        fault: PluginFault,
    },
    /// One of the devices, by a number that picks it, is not healthy for so many milliseconds.
    Sicken {
        pick: u64,
        lasts: u64,
    },
    /// Somebody writes the manifest of a pod that asks for all devices and CPUs that nobody has.
    Claim,
    /// A process is stopped (SIGSTOP) and goes on after so many milliseconds, as one that the machine does not run.
    Stop {
        program: Program,
        lasts: u64,
    },
    Api {
        fault: ApiFault,
    },
    /// All watches end; clients may come again.
    CloseWatches,
    /// The API server forgets its history and ends all watches: who comes again with a version is told that it is too old.
    ForgetHistory,
    /// Watches deliver nothing for so many milliseconds. `bookmarks`: but go on to say that all is well.
    SilentWatches {
        lasts: u64,
        bookmarks: bool,
    },
    /// The API server takes requests and answers none for so many milliseconds.
    SilentApi {
        lasts: u64,
    },
    /// The next call that changes something, of that peer.
    Call {
        peer: Peer,
        fault: CallFault,
    },
    /// One of the running containers ends, by a number that picks it.
    Exit {
        pick: u64,
        code: i32,
        out_of_memory: bool,
    },
    /// The sandbox of one of the running pods dies, with all in it.
    SandboxDies {
        pick: u64,
    },
    /// The runtime's events are lost for so many milliseconds.
    LoseEvents {
        lasts: u64,
    },
    /// They come twice.
    DoubleEvents {
        lasts: u64,
    },
    /// They come so much later.
    LateEvents {
        lasts: u64,
        by: u64,
    },
    /// All answers of the runtime take so much longer.
    SlowRuntime {
        lasts: u64,
        by: u64,
    },
    /// The machine's clock is set by so many milliseconds.
    StepClock {
        by: i64,
    },
    /// What comes up in family `eviction` alone.
    Pressure {
        deed: PressureDeed,
    },
    /// The disk of the state files.
    Disk {
        deed: DiskDeed,
    },
    /// What the kernel kills for want of memory.
    Memory {
        deed: MemoryDeed,
    },
    /// A process is replaced by another version.
    Version {
        deed: VersionDeed,
    },
    /// What comes up in family `claims` alone.
    Claims {
        deed: ClaimsDeed,
    },
}

impl Deed {
    /// Its name, for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            Deed::Write { .. } => "write",
            Deed::Remove { .. } => "remove",
            Deed::Create { .. } => "create",
            Deed::Edit { .. } => "edit",
            Deed::Delete { grace: Some(0), .. } => "delete-by-force",
            Deed::Delete { .. } => "delete",
            Deed::Replace { .. } => "replace",
            Deed::Meddle { .. } => "meddle",
            Deed::Resize { .. } => "resize",
            Deed::KillStatusd { .. } => "kill-statusd",
            Deed::RestartApi { .. } => "restart-api",
            Deed::KillDriver { .. } => "kill-driver",
            Deed::Driver { .. } => "driver-fault",
            Deed::KillPlugin { .. } => "kill-plugin",
            Deed::Plugin { .. } => "plugin-fault",
            Deed::Sicken { .. } => "sicken",
            Deed::Claim => "claim",
            Deed::Stop { .. } => "stop",
            Deed::Api { .. } => "api-fault",
            Deed::CloseWatches => "close-watches",
            Deed::ForgetHistory => "forget-history",
            Deed::SilentWatches { .. } => "silent-watches",
            Deed::SilentApi { .. } => "silent-api",
            Deed::KillSyncd { .. } => "kill-syncd",
            Deed::RestartRuntime { .. } => "restart-runtime",
            Deed::RestartVolnetd { .. } => "restart-volnetd",
            Deed::Call { .. } => "call",
            Deed::Exit { .. } => "exit",
            Deed::SandboxDies { .. } => "sandbox-dies",
            Deed::LoseEvents { .. } => "lose-events",
            Deed::DoubleEvents { .. } => "double-events",
            Deed::LateEvents { .. } => "late-events",
            Deed::SlowRuntime { .. } => "slow-runtime",
            Deed::StepClock { .. } => "step-clock",
            Deed::Pressure { deed } => deed.kind(),
            Deed::Disk { deed } => deed.kind(),
            Deed::Memory { deed } => deed.kind(),
            Deed::Version { deed } => deed.kind(),
            Deed::Claims { deed } => deed.kind(),
        }
    }

    /// It is part of the workload, and no fault.
    pub fn is_workload(&self) -> bool {
        if let Deed::Pressure { deed } = self {
            return deed.is_workload();
        }
        if let Deed::Claims { deed } = self {
            return deed.is_workload();
        }
        matches!(
            self,
            Deed::Write { .. }
                | Deed::Remove { .. }
                | Deed::Create { .. }
                | Deed::Edit { .. }
                | Deed::Delete { .. }
                | Deed::Replace { .. }
                | Deed::Meddle { .. }
                | Deed::Resize { .. }
                | Deed::Claim
        )
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Deed::Write { pod, shape } => write!(f, "somebody writes the manifest of {pod}: {shape}"),
            Deed::Remove { pod } => write!(f, "somebody removes the manifest of {pod}"),
            Deed::Create { pod, shape } => write!(f, "somebody creates {pod}: {shape}"),
            Deed::Edit { pod, image: true } => write!(f, "somebody gives {pod} another image"),
            Deed::Edit { pod, image: false } => write!(f, "somebody annotates {pod}"),
            Deed::Delete { pod, grace: Some(0) } => write!(f, "somebody deletes {pod} by force"),
            Deed::Delete { pod, grace: Some(grace) } => write!(f, "somebody deletes {pod} with {grace} s"),
            Deed::Delete { pod, grace: None } => write!(f, "somebody deletes {pod}"),
            Deed::Replace { pod, shape, force: true } => {
                write!(f, "somebody replaces {pod} by force with another of its name: {shape}")
            }
            Deed::Replace { pod, shape, force: false } => {
                write!(f, "somebody deletes {pod}, and another of its name is to follow: {shape}")
            }
            Deed::Meddle { pod } => write!(f, "somebody writes a condition of {pod}"),
            Deed::Resize { pod, sizes } => write!(f, "somebody asks of {pod} for{}", Words(sizes)),
            Deed::KillStatusd { down } => write!(f, "kubelet-statusd is killed for {down} ms"),
            Deed::RestartApi { down } => write!(f, "kube-apiserver restarts, away for {down} ms"),
            Deed::KillDriver { down } => write!(f, "the driver is killed for {down} ms"),
            Deed::Driver { fault } => write!(f, "the next change asked of the driver: {fault:?}"),
            Deed::KillPlugin { down } => write!(f, "the device plugin is killed for {down} ms"),
            Deed::Plugin { fault } => write!(f, "the next call of the device plugin: {fault:?}"),
            Deed::Sicken { lasts, .. } => write!(f, "a device is not healthy for {lasts} ms"),
            Deed::Claim => write!(f, "somebody wants all that is free"),
            Deed::Stop { program, lasts } => write!(f, "{} is stopped, and goes on after {lasts} ms", program.name()),
            Deed::Api { fault } => write!(f, "of what the node asks of kube-apiserver: {fault:?}"),
            Deed::CloseWatches => write!(f, "all watches end"),
            Deed::ForgetHistory => write!(f, "kube-apiserver forgets its history, and all watches end"),
            Deed::SilentWatches { lasts, bookmarks } => {
                let but = if *bookmarks { " but bookmarks" } else { "" };
                write!(f, "watches deliver nothing{but} for {lasts} ms")
            }
            Deed::SilentApi { lasts } => write!(f, "kube-apiserver answers nothing for {lasts} ms"),
            Deed::KillSyncd { down } => write!(f, "kubelet-syncd is killed for {down} ms"),
            Deed::RestartRuntime { down } => write!(f, "the runtime restarts, away for {down} ms"),
            Deed::RestartVolnetd { down } => write!(f, "kubelet-volnetd restarts, away for {down} ms"),
            Deed::Call { peer, fault } => write!(f, "the next change asked of {peer:?} is to be {fault:?}"),
            Deed::Exit { code, out_of_memory: true, .. } => {
                write!(f, "a container is killed for want of memory ({code})")
            }
            Deed::Exit { code, .. } => write!(f, "a container ends by itself with {code}"),
            Deed::SandboxDies { .. } => write!(f, "a sandbox dies"),
            Deed::LoseEvents { lasts } => write!(f, "the runtime's events are lost for {lasts} ms"),
            Deed::DoubleEvents { lasts } => write!(f, "the runtime's events come twice for {lasts} ms"),
            Deed::LateEvents { lasts, by } => write!(f, "the runtime's events come {by} ms late for {lasts} ms"),
            Deed::SlowRuntime { lasts, by } => write!(f, "the runtime answers {by} ms later for {lasts} ms"),
            Deed::StepClock { by } => write!(f, "the machine's clock is set by {by} ms"),
            Deed::Pressure { deed } => deed.fmt(f),
            Deed::Disk { deed } => deed.fmt(f),
            Deed::Memory { deed } => deed.fmt(f),
            Deed::Version { deed } => deed.fmt(f),
            Deed::Claims { deed } => deed.fmt(f),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "restartPolicy {}, grace period {} s", self.restart_policy, self.grace)?;
        for claim in &self.claims {
            write!(f, "; claim {}", claim.name())?;
        }
        for claim in &self.device_claims {
            write!(f, "; claim of devices {}", claim.name())?;
        }
        if let Some(asks) = &self.asks {
            asks.fmt(f)?;
        }
        if let Some(sized) = &self.sized {
            write!(f, "; {sized}")?;
        }
        let init = self.init.iter().map(|c| (if c.sidecar { "sidecar" } else { "init container" }, c));
        for (kind, container) in init.chain(self.containers.iter().map(|c| ("container", c))) {
            let Behaviour { ends_after, exit_code, heeds_term } = container.behaviour;
            write!(f, "; {kind} {}", container.name)?;
            match ends_after {
                Some(after) => write!(f, " ends after {after} ms with {exit_code}")?,
                None => write!(f, " runs on")?,
            }
            match heeds_term {
                Some(0) => {}
                Some(after) => write!(f, ", heeds SIGTERM after {after} ms")?,
                None => write!(f, ", heeds no SIGTERM")?,
            }
            for (number, what) in [(container.devices, "devices"), (container.cpus, "CPUs")] {
                if number > 0 {
                    write!(f, ", has {number} {what}")?;
                }
            }
            for hook in self.hooks.get(&container.name).into_iter().flatten() {
                write!(f, ", {hook}")?;
            }
            for probe in &container.probes {
                let ProbeShape { kind, passes_after, fails_after, period, threshold } = probe;
                write!(f, ", {} probe each {period} s passes after {passes_after} ms", kind.name())?;
                if let Some(after) = fails_after {
                    write!(f, " until {after} ms")?;
                }
                write!(f, " (threshold {threshold})")?;
            }
        }
        Ok(())
    }
}

/// A deed and when it is done, milliseconds from the beginning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub at: u64,
    pub deed: Deed,
}

/// Everything that a run is drawn from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    pub seed: u64,
    /// Kept schedules from before there were two have none.
    #[serde(default)]
    pub family: Family,
    /// Thresholds and disks of family `eviction`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// By how much one of its faults lasts longer than others do, and the run with it, milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub longer: u64,
    pub steps: Vec<Step>,
}

impl Schedule {
    /// The schedule of a seed. Without a wish for a family all take turns.
    pub fn of(seed: u64, only: Option<Family>) -> Self {
        let family = only.unwrap_or(match seed % 8 {
            1 => Family::Pods,
            3 => Family::Probes,
            4 => Family::Resources,
            5 => Family::Volumes,
            6 => Family::Eviction,
            7 => Family::Many,
            2 => Family::Claims,
            _ => Family::Api,
        });
        let mut dice = Dice::of(seed, "schedule");
        let (mut steps, mut plan) = (Vec::new(), None);
        match family {
            Family::Pods => {
                workload(&mut dice, &mut steps);
                faults(&mut dice, &mut steps);
                stops(&mut Dice::of(seed, "stopped"), &mut steps, family);
            }
            Family::Probes => {
                workload(&mut dice, &mut steps);
                faults(&mut dice, &mut steps);
                probes(&mut dice, &mut steps);
            }
            Family::Many => {
                crowd(&mut dice, &mut steps);
                faults(&mut dice, &mut steps);
            }
            Family::Api => {
                api_workload(&mut dice, &mut steps);
                faults(&mut dice, &mut steps);
                api_faults(&mut dice, &mut steps);
                stops(&mut Dice::of(seed, "stopped"), &mut steps, family);
            }
            Family::Volumes => {
                crate::volumes_schedule::workload(&mut dice, &mut steps);
                faults(&mut dice, &mut steps);
                api_faults(&mut dice, &mut steps);
                stops(&mut Dice::of(seed, "stopped"), &mut steps, family);
                // What a clock that is set back does to restarts is the other families'.
                steps.retain(|step| !matches!(step.deed, Deed::StepClock { .. }));
                crate::volumes_schedule::faults(&mut dice, &mut steps);
            }
            Family::Resources => {
                crate::resources_schedule::workload(&mut dice, &mut steps);
                faults(&mut dice, &mut steps);
                stops(&mut Dice::of(seed, "stopped"), &mut steps, family);
                steps.retain(|step| !matches!(step.deed, Deed::StepClock { .. }));
                crate::resources_schedule::faults(&mut dice, &mut steps);
            }
            Family::Eviction => {
                plan = Some(Plan::of(&mut dice));
                crate::pressure_schedule::workload(&mut dice, &mut steps);
                if dice.percent(60) {
                    faults(&mut dice, &mut steps);
                }
                if dice.percent(50) {
                    api_faults(&mut dice, &mut steps);
                }
                stops(&mut Dice::of(seed, "stopped"), &mut steps, family);
                steps.retain(|step| !matches!(step.deed, Deed::StepClock { .. }));
                crate::pressure_schedule::faults(&mut dice, &mut steps);
                let logs = crate::logs::workload(&mut Dice::of(seed, "logs"), &mut steps);
                plan = plan.map(|plan| Plan { logs, ..plan });
            }
            Family::Claims => {
                crate::claims_schedule::workload(&mut dice, &mut steps);
                faults(&mut dice, &mut steps);
                api_faults(&mut dice, &mut steps);
                stops(&mut Dice::of(seed, "stopped"), &mut steps, family);
                steps.retain(|step| !matches!(step.deed, Deed::StepClock { .. }));
                crate::claims_schedule::faults(&mut dice, &mut steps);
            }
        }
        crate::disk_schedule::faults(&mut Dice::of(seed, "disk"), &mut steps, family);
        crate::versions_schedule::faults(&mut Dice::of(seed, "versions"), &mut steps, family);
        crate::memory_schedule::faults(&mut Dice::of(seed, "memory"), &mut steps, family);
        if family == Family::Api {
            crate::sizes_schedule::workload(&mut Dice::of(seed, "sizes"), &mut steps);
        }
        crate::hooks_schedule::workload(&mut Dice::of(seed, "hooks"), &mut steps, family);
        crate::drain_schedule::drain(&mut Dice::of(seed, "drain"), &mut steps, family);
        let longer = crate::hours_schedule::stretch(&mut Dice::of(seed, "hours"), &mut steps);
        steps.sort_by_key(|step| step.at);
        Schedule { seed, family, plan, longer, steps }
    }

    /// The same without the steps at these places.
    #[must_use]
    pub fn without(&self, dropped: &[usize]) -> Self {
        let kept = self.steps.iter().enumerate().filter(|(place, _)| !dropped.contains(place));
        let steps = kept.map(|(_, step)| step.clone()).collect();
        Schedule { plan: self.plan.clone(), steps, ..*self }
    }

    /// When nothing happens from outside any more: [`CALM`], and by how much this one is longer.
    pub fn calm(&self) -> Duration {
        CALM + Duration::from_millis(self.longer)
    }
}

/// Most pods come at once or early; some are changed, some go, some come again.
fn workload(dice: &mut Dice, steps: &mut Vec<Step>) {
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    for number in 0..dice.between(1, 4) {
        let pod = format!("p{number}");
        let mut at = if dice.percent(30) { 0 } else { dice.below(calm / 3) };
        steps.push(Step { at, deed: Deed::Write { pod: pod.clone(), shape: shape(dice) } });
        let mut there = true;
        for _ in 0..dice.below(4) {
            at += if dice.percent(30) { dice.between(1, 200) } else { dice.between(200, calm / 3) };
            if at >= calm {
                break;
            }
            let deed = match (there, dice.percent(50)) {
                (true, true) => Deed::Remove { pod: pod.clone() },
                _ => Deed::Write { pod: pod.clone(), shape: shape(dice) },
            };
            there = !matches!(deed, Deed::Remove { .. });
            steps.push(Step { at, deed });
        }
    }
}

/// Many pods come together, and most of them go together, as those of a node that is drained; whoever controls them lets others follow.
fn crowd(dice: &mut Dice, steps: &mut Vec<Step>) {
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    let come = if dice.percent(30) { 0 } else { dice.below(calm / 6) };
    // At the same moment they wait for each other's starts, which take tens of milliseconds each; spread over 2 s hardly ever.
    let within = if dice.percent(70) { 50 } else { 2_000 };
    let go = dice.between(calm / 3, calm - 5_000);
    for number in 0..dice.between(12, 24) {
        let pod = format!("m{number}");
        steps.push(Step { at: come + dice.below(within), deed: Deed::Write { pod: pod.clone(), shape: small(dice) } });
        if !dice.percent(80) {
            continue;
        }
        steps.push(Step { at: go + dice.below(50), deed: Deed::Remove { pod } });
        if dice.percent(30) {
            let deed = Deed::Write { pod: format!("n{number}"), shape: small(dice) };
            steps.push(Step { at: go + dice.below(4_000), deed });
        }
    }
}

/// A pod of one container that runs on, often with a sidecar: what differs is how long they take to end.
pub(crate) fn small(dice: &mut Dice) -> Shape {
    let mut init = Vec::new();
    if dice.percent(40) {
        let mut sidecar = container(dice, "i0".to_owned(), false);
        sidecar.sidecar = true;
        init.push(sidecar);
    }
    let containers = vec![container(dice, "c0".to_owned(), false)];
    Shape {
        restart_policy: "Always".to_owned(),
        grace: dice.one_of(30, &[1, 2, 5, 10]),
        init,
        containers,
        ..Shape::default()
    }
}

/// Pods of the API server live as those of manifests, and end in more ways.
fn api_workload(dice: &mut Dice, steps: &mut Vec<Step>) {
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    if dice.percent(25) {
        let shape = shape(dice);
        steps.push(Step { at: dice.below(calm / 3), deed: Deed::Write { pod: "p0".to_owned(), shape } });
        if dice.percent(50) {
            let at = dice.between(calm / 3, calm - 1);
            let edited = Deed::Write { pod: "p0".to_owned(), shape: self::shape(dice) };
            let deed = if dice.percent(50) { edited } else { Deed::Remove { pod: "p0".to_owned() } };
            steps.push(Step { at, deed });
        }
    }
    for number in 0..dice.between(1, 3) {
        let pod = format!("a{number}");
        let mut at = if dice.percent(20) { 0 } else { dice.below(calm / 3) };
        steps.push(Step { at, deed: Deed::Create { pod: pod.clone(), shape: shape(dice) } });
        for _ in 0..dice.below(5) {
            at += if dice.percent(30) { dice.between(1, 200) } else { dice.between(200, calm / 3) };
            if at >= calm {
                break;
            }
            let deed = match dice.below(10) {
                0 => Deed::Edit { pod: pod.clone(), image: true },
                1 => Deed::Edit { pod: pod.clone(), image: false },
                2 => Deed::Meddle { pod: pod.clone() },
                3 | 4 => Deed::Delete { pod: pod.clone(), grace: None },
                5 => Deed::Delete { pod: pod.clone(), grace: Some(dice.one_of(0, &[0, 1, 5, 60])) },
                6 => Deed::Create { pod: pod.clone(), shape: shape(dice) },
                _ => Deed::Replace { pod: pod.clone(), shape: shape(dice), force: dice.percent(40) },
            };
            steps.push(Step { at, deed });
        }
    }
}

fn container(dice: &mut Dice, name: String, ends: bool) -> ContainerShape {
    let short = dice.percent(50);
    let ends_after = ends.then(|| if short { dice.between(1, 50) } else { dice.between(50, 30_000) });
    let exit_code = if dice.percent(75) { 0 } else { dice.one_of(1, &[2, 137]) };
    let heeds_term = match dice.below(10) {
        0 => None,
        1..=3 => Some(dice.between(1, 40_000)),
        _ => Some(dice.below(200)),
    };
    ContainerShape {
        name,
        behaviour: Behaviour { ends_after, exit_code, heeds_term },
        sidecar: false,
        probes: Vec::new(),
        devices: 0,
        cpus: 0,
    }
}

pub(crate) fn shape(dice: &mut Dice) -> Shape {
    let restart_policy = dice.one_of("Always", &["Always", "OnFailure", "Never"]).to_owned();
    let mut init = Vec::new();
    for number in 0..dice.below(3) {
        let sidecar = dice.percent(30);
        let mut made = container(dice, format!("i{number}"), !sidecar);
        made.sidecar = sidecar;
        // Most of them get there.
        if !sidecar && dice.percent(80) {
            made.behaviour.exit_code = 0;
        }
        init.push(made);
    }
    let runs_on = if restart_policy == "Always" { 80 } else { 30 };
    let containers = (0..dice.between(1, 3)).map(|number| {
        let ends = !dice.percent(runs_on);
        container(dice, format!("c{number}"), ends)
    });
    let containers = containers.collect();
    let grace = dice.one_of(30, &[0, 1, 2, 10, 60]);
    Shape { restart_policy, grace, init, containers, ..Shape::default() }
}

fn call_fault(dice: &mut Dice) -> CallFault {
    match dice.below(6) {
        0 => CallFault::Refused,
        1 => CallFault::AnswerLost,
        2 => CallFault::DeathBefore,
        3 | 4 => CallFault::DeathAfter,
        _ => CallFault::Late(dice.one_of(50, &[500, 5_000, 60_000, 300_000])),
    }
}

/// A third of all runs is calm, so that what has nothing to do with faults is found without them.
fn faults(dice: &mut Dice, steps: &mut Vec<Step>) {
    if dice.percent(20) {
        return;
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    let some_time = |dice: &mut Dice| dice.one_of(20, &[200, 1_000, 5_000, 30_000]);
    for _ in 0..dice.between(1, 8) {
        let deed = match dice.below(16) {
            0..=2 => Deed::KillSyncd { down: some_time(dice) },
            3 => Deed::RestartRuntime { down: some_time(dice) },
            4 => Deed::RestartVolnetd { down: some_time(dice) },
            5..=7 => Deed::Call { peer: Peer::Runtime, fault: call_fault(dice) },
            8 => Deed::Call { peer: Peer::Volnetd, fault: call_fault(dice) },
            9 | 10 => {
                Deed::Exit { pick: dice.draw(), code: dice.one_of(0, &[1, 137]), out_of_memory: dice.percent(20) }
            }
            11 => Deed::SandboxDies { pick: dice.draw() },
            12 => Deed::LoseEvents { lasts: some_time(dice) },
            13 => match dice.percent(50) {
                true => Deed::DoubleEvents { lasts: some_time(dice) },
                false => Deed::LateEvents { lasts: some_time(dice), by: some_time(dice) },
            },
            14 => Deed::SlowRuntime { lasts: some_time(dice), by: dice.one_of(20, &[200, 2_000]) },
            _ => {
                let by: i64 = dice.one_of(1_000, &[60_000, 3_600_000]);
                Deed::StepClock { by: if dice.percent(50) { by } else { -by } }
            }
        };
        steps.push(Step { at: dice.below(calm), deed });
    }
}

/// Of the runs that are not calm one in four has processes that are stopped. (Not with probes: an answer and its deadline may be there
/// in the same moment then, and which of them counts is nobody's fault.)
fn stops(dice: &mut Dice, steps: &mut Vec<Step>, family: Family) {
    if !dice.percent(25) || steps.iter().all(|step| step.deed.is_workload()) {
        return;
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    for _ in 0..dice.between(1, 3) {
        let program = match (dice.below(4), family) {
            (0, _) => Program::Volnetd,
            (1, _) => Program::Runtime,
            (2, Family::Api | Family::Volumes | Family::Eviction | Family::Claims) => Program::Statusd,
            _ => Program::Syncd,
        };
        let lasts = dice.one_of(200, &[2_000, 15_000, 40_000]);
        steps.push(Step { at: dice.below(calm), deed: Deed::Stop { program, lasts } });
    }
}

fn api_fault(dice: &mut Dice) -> ApiFault {
    let times = u32::try_from(dice.between(1, 4)).unwrap_or(1);
    match dice.below(9) {
        0 => ApiFault::Answer { code: dice.one_of(500, &[429, 503, 504, 403]), times },
        1 => ApiFault::Conflict { times },
        2 | 3 => ApiFault::AnswerLost,
        4 | 5 => ApiFault::DeathAfter,
        6 => ApiFault::Dropped,
        7 => ApiFault::Late { by: dice.one_of(50, &[1_000, 8_000, 40_000]) },
        _ => ApiFault::NoList { code: dice.one_of(500, &[429, 403, 410]) },
    }
}

/// As [`faults`], of the API server and of kubelet-statusd.
fn api_faults(dice: &mut Dice, steps: &mut Vec<Step>) {
    if dice.percent(20) {
        return;
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    let some_time = |dice: &mut Dice| dice.one_of(20, &[200, 1_000, 5_000, 30_000]);
    for _ in 0..dice.between(1, 6) {
        let deed = match dice.below(14) {
            0..=2 => Deed::KillStatusd { down: some_time(dice) },
            3 => Deed::RestartApi { down: some_time(dice) },
            4 => Deed::CloseWatches,
            5 => Deed::ForgetHistory,
            6 | 7 => Deed::SilentWatches { lasts: some_time(dice), bookmarks: dice.percent(30) },
            8 => Deed::SilentApi { lasts: some_time(dice) },
            _ => Deed::Api { fault: api_fault(dice) },
        };
        steps.push(Step { at: dice.below(calm), deed });
    }
}
