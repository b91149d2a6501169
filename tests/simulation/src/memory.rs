//! What the kernel has killed for want of memory: its log, which kubelet-evictiond reads as `/dev/kmsg`; how containers have ended; and
//! what must hold of what is told of both.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bulkhead_simulation_kernel as kernel;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::runtime;
use crate::world::{Shared, State, World};

/// The reason of an end, as runtimes call it.
pub const OUT_OF_MEMORY: &str = "OOMKilled";
/// The first process that is killed has the next number.
const FIRST_PID: u32 = 4_000;
/// The first record of a boot that comes up here: others have come before it.
const FIRST_RECORD: u64 = 400;

/// A process that the kernel has killed because the machine had no memory left.
#[derive(Debug, Clone)]
struct Kill {
    /// Of the record that names it.
    sequence: u64,
    message: String,
    /// Whoever was to tell of it is gone with what it knew.
    may_be_lost: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Memory {
    /// Somebody reads the log and tells of it.
    pub on: bool,
    /// There was a time at which the disk had no room: which kill was told last may not be written down.
    pub disk_was_full: bool,
    sequence: u64,
    pids: u32,
    /// All records of this boot.
    log: Vec<String>,
    /// The other end of what the reader has.
    reader: Option<OwnedFd>,
    kills: Vec<Kill>,
    /// By message and the event's name: how often it was counted.
    told: BTreeMap<String, BTreeMap<String, u64>>,
    /// By container: exit codes and reasons as the runtime has them, the last one at the end.
    ends: BTreeMap<String, Vec<(i32, String)>>,
}

impl Default for Memory {
    fn default() -> Self {
        Memory {
            on: false,
            disk_was_full: false,
            sequence: FIRST_RECORD,
            pids: FIRST_PID,
            log: Vec::new(),
            reader: None,
            kills: Vec::new(),
            told: BTreeMap::new(),
            ends: BTreeMap::new(),
        }
    }
}

fn send(reader: &OwnedFd, record: &str) {
    // Who does not read any more is dead, and the next one gets all of it.
    let _ = rustix::net::send(reader, record.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

impl Memory {
    /// The log as it is opened for another life of its reader, from its oldest record on.
    ///
    /// # Errors
    /// The kernel gives no descriptors.
    pub fn open(&mut self) -> std::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        for record in &self.log {
            send(&near, record);
        }
        self.reader = Some(near);
        Ok(far)
    }

    /// A record of the kernel's own. `level`: as syslog has it.
    fn record(&mut self, level: u8, text: &str) -> u64 {
        self.sequence += 1;
        let record = format!("{level},{},{},-;{text}\n", self.sequence, kernel::now().as_micros());
        if let Some(reader) = &self.reader {
            send(reader, &record);
        }
        self.log.push(record);
        self.sequence
    }

    /// The kernel writes down what it kills, with more than one process where a group goes as a whole. `group`: of the first one; None: it
    /// is no container's, and goes alone. `is_limit`: what has run out is the group's limit. `is_whole`: the group goes as a whole.
    fn report(&mut self, process: &str, group: Option<&str>, is_limit: bool, is_whole: bool) -> (u64, u32) {
        self.pids += 2;
        let pid = self.pids;
        self.record(4, &format!("{process} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"));
        let place = group.unwrap_or("/system.slice");
        let (constraint, scope, words) = match is_limit {
            true => ("CONSTRAINT_MEMCG", format!("oom_memcg={place}"), "Memory cgroup out of memory"),
            false => ("CONSTRAINT_NONE", "global_oom".to_owned(), "Out of memory"),
        };
        let head = format!("oom-kill:constraint={constraint},nodemask=(null),cpuset=/,mems_allowed=0");
        let sequence = self.record(6, &format!("{head},{scope},task_memcg={place},task={process},pid={pid},uid=0"));
        let killed = |process: &str, pid: u32| {
            format!("{words}: Killed process {pid} ({process}) total-vm:36096kB, anon-rss:26348kB, file-rss:0kB")
        };
        self.record(3, &killed(process, pid));
        if let Some(group) = group.filter(|_| is_whole) {
            self.record(6, &format!("Tasks in {group} are going to be killed due to memory.oom.group set"));
            self.record(3, &killed(process, pid));
            self.record(3, &killed("sh", pid + 1));
        }
        (sequence, pid)
    }

    /// Another boot: its log begins anew, and what was not told of the last one's is gone.
    pub fn reboot(&mut self) {
        self.reader = None;
        self.log.clear();
        self.sequence = FIRST_RECORD;
        for kill in &mut self.kills {
            kill.may_be_lost = true;
        }
    }

    /// kubelet-syncd is over, and counts as told what it has taken. `last`: the last one of this boot.
    pub fn syncd_ends(&mut self, last: Option<u64>) {
        let told = &self.told;
        for kill in &mut self.kills {
            kill.may_be_lost |= last.is_some_and(|last| kill.sequence <= last) && !told.contains_key(&kill.message);
        }
    }

    /// How a container has ended, as the runtime has it from now on.
    pub fn ends(&mut self, id: &str, code: i32, reason: &str) {
        self.ends.entry(id.to_owned()).or_default().push((code, reason.to_owned()));
    }
}

/// The kernel kills all of a container. `is_limit`: by its own limit. The runtime knows the reason so many milliseconds later than the
/// end: it hears of the one from the shim's reaper, of the other from the control group.
pub fn kill_container(world: &Shared, machine: &Handle, id: &str, is_limit: bool, late: u64) {
    {
        let mut world = world.lock();
        let Some(container) = world.containers.get(id) else { return };
        let group = format!("/kubepods/pod{}/{id}", container.uid());
        world.kill("run", Some(&group), is_limit);
    }
    runtime::ended(world, machine, id, 137, if late == 0 { OUT_OF_MEMORY } else { "" });
    if late > 0 {
        let (world, id) = (world.clone(), id.to_owned());
        machine.spawn(async move {
            tokio::time::sleep(Duration::from_millis(late)).await;
            world.lock().learns_of_memory(&id);
        });
    }
}

/// The kernel kills a process of a container that has reached its limit, and the runtime says so while the container runs. It ends so
/// many milliseconds later. None: it goes on, as that was not its first process.
pub fn kill_in_container(world: &Shared, machine: &Handle, id: &str, ends: Option<u64>) {
    world.lock().kill_in_container(id);
    let Some(after) = ends else { return };
    let (world, of_machine, id) = (world.clone(), machine.clone(), id.to_owned());
    machine.spawn(async move {
        tokio::time::sleep(Duration::from_millis(after)).await;
        runtime::ended(&world, &of_machine, &id, 137, OUT_OF_MEMORY);
    });
}

impl World {
    /// The kernel kills a process, of a container with that control group, or another one.
    pub fn kill(&mut self, process: &str, group: Option<&str>, is_limit: bool) {
        let (sequence, pid) = self.memory.report(process, group, is_limit, true);
        let message = format!("System OOM encountered, victim process: {process}, pid: {pid}");
        self.tell("kernel", format!("has killed {process} ({pid}) for want of memory"));
        if !is_limit {
            self.memory.kills.push(Kill { sequence, message, may_be_lost: false });
        }
    }

    /// The kernel kills a process of a container that has reached its limit. As with containerd (`internal/cri/server/events.go`
    /// handleEvent, of a TaskOOM) that is the reason of its end from then on, whatever it ends with.
    fn kill_in_container(&mut self, id: &str) {
        let running = self.containers.get_mut(id).filter(|container| container.state == State::Running);
        let Some(container) = running else { return };
        OUT_OF_MEMORY.clone_into(&mut container.reason);
        let group = format!("/kubepods/pod{}/{id}", container.uid());
        let (_, pid) = self.memory.report("run", Some(&group), true, false);
        self.tell("kernel", format!("has killed run ({pid}) of {id} for want of memory"));
    }

    /// The runtime finds out why a container has ended.
    pub fn learns_of_memory(&mut self, id: &str) {
        if self.runtime_is_away {
            return;
        }
        if let Some(container) = self.containers.get_mut(id).filter(|container| container.exit_code == 137) {
            OUT_OF_MEMORY.clone_into(&mut container.reason);
            self.memory.ends(id, 137, OUT_OF_MEMORY);
        }
    }

    /// An event as the API server has it.
    pub fn check_event(&mut self, event: &Value) {
        if event["reason"] != "SystemOOM" {
            return;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (message, name) = (text(&event["message"]), text(&event["metadata"]["name"]));
        if event["involvedObject"]["kind"] != "Node" || event["type"] != "Warning" {
            self.breaks("oom-told", format!("an event says {message:?}, and is no warning of the node's"));
        }
        if !self.memory.kills.iter().any(|kill| kill.message == message) {
            self.breaks("oom-told", format!("an event says {message:?}, and nothing of the kind was killed"));
        }
        let counts = self.memory.told.entry(message.clone()).or_default();
        if counts.is_empty() {
            let line = format!("has the event: {message}");
            self.tell("kube-apiserver", line);
        }
        let counts = self.memory.told.entry(message.clone()).or_default();
        counts.insert(name, event["count"].as_u64().unwrap_or(1));
        let times: u64 = counts.values().sum();
        if times > 1 && !self.memory.disk_was_full {
            self.breaks("oom-told", format!("{message:?} is told {times} times"));
        }
    }

    /// Once nothing has happened from outside for long.
    pub fn check_memory_end(&mut self) {
        let told = &self.memory.told;
        let untold = self.memory.kills.iter().find(|kill| !kill.may_be_lost && !told.contains_key(&kill.message));
        if let Some(message) = untold.map(|kill| kill.message.clone()).filter(|_| !self.memory.disk_was_full) {
            self.breaks("oom-told", format!("no event says {message:?}"));
        }
    }

    /// What a pod's status says of ends is what the runtime has said of them.
    pub fn check_ends(&mut self, pod: &Value) {
        let lists = ["initContainerStatuses", "containerStatuses"].into_iter();
        let statuses = lists.flat_map(|list| pod["status"][list].as_array().into_iter().flatten());
        let ends = statuses.flat_map(|one| [&one["state"]["terminated"], &one["lastState"]["terminated"]]);
        let wrong = ends.into_iter().find_map(|end| {
            let (_, id) = end["containerID"].as_str()?.split_once("://")?;
            let found = self.memory.ends.get(id)?;
            let (code, reason) = (end["exitCode"].as_i64().unwrap_or(0), end["reason"].as_str().unwrap_or_default());
            let is_so = found.iter().any(|(is, was)| i64::from(*is) == code && was == reason);
            (!is_so).then(|| format!("{id} is said to have ended with {code} ({reason}), and has with {found:?}"))
        });
        if let Some(wrong) = wrong {
            self.breaks("end-as-it-was", wrong);
        }
    }
}
