//! What must hold of evictions and of what is told of pressure. That a pod is evicted is seen in kubelet-syncd's own state, where it is
//! written down before anything is done; what was known then is what was so a little earlier, and how much earlier depends on what
//! was wrong meanwhile.

use std::path::Path;
use std::time::Duration;

use bulkhead_ipc::syncd::WorkerState;
use bulkhead_simulation_kernel as kernel;
use serde_json::Value;

use crate::pressure::{Evicted, Used, condition_of, surely_seen};
use crate::pressure_schedule::{Asks, Bound, Signal};
use crate::world::{Told, World};

/// Names of conditions, as the Node has them.
const CONDITIONS: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];
/// Nothing was wrong for so long: then all that was known is young.
const QUIET: Duration = Duration::from_secs(60);
/// The last pod is waited for no longer than this after its kill (upstream podCleanupTimeout), but for what clocks differ by.
const CLEANUP: Duration = Duration::from_millis(29_900);
/// And its kill no shorter than this (upstream killPodNow).
const KILL: Duration = Duration::from_secs(10);
/// What a container had is free this soon after its end.
const FREED: Duration = Duration::from_millis(1);
/// Beginning with SIGTERM a container has at least so many seconds (upstream minimumGracePeriodInSeconds).
const SHORTEST_GRACE: u64 = 2;
/// What is to come is there after this time, where nothing is wrong.
const IN_TIME: Duration = Duration::from_secs(90);
/// A condition that the Node has is known to all for whom it matters after this time, where nothing is wrong.
const KNOWN: Duration = Duration::from_secs(30);
/// What began when a pod was evicted is over.
const UNDER_WAY: Duration = Duration::from_secs(10);

/// How long the end of a pod is waited for that is evicted with this grace period (seconds).
fn wait(grace: u64) -> Duration {
    Duration::from_secs(grace + grace / 2).max(KILL) + CLEANUP
}

/// How a pod stands in a ranking.
#[derive(Debug, Clone, Copy)]
struct Standing {
    exceeds: bool,
    priority: i32,
    excess: i64,
}

impl Standing {
    /// It goes before the other one, whatever (upstream `pkg/kubelet/eviction/helpers.go` rankMemoryPressure and its like).
    fn is_before(self, other: Standing) -> bool {
        let key = |one: Standing| (!one.exceeds, one.priority, -one.excess);
        key(self) < key(other)
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// `used`: of what is short.
fn standing(signal: Signal, asks: &Asks, used: u64) -> Standing {
    let request = match signal {
        Signal::Memory => asks.memory,
        Signal::Disk | Signal::Images => asks.disk,
        Signal::Tasks => 0,
    };
    // Of tasks there are no requests.
    let exceeds = signal == Signal::Tasks || used > request;
    Standing { exceeds, priority: asks.priority, excess: signed(used) - signed(request) }
}

/// What of a pod's use lies there.
fn part(signal: Signal, separate_images: bool, used: Used) -> [u64; 2] {
    match (signal, separate_images) {
        (Signal::Memory, _) => [used.memory, 0],
        (Signal::Tasks, _) => [used.tasks, 0],
        (_, false) => [used.layers, used.logs],
        (Signal::Disk, true) => [0, used.logs],
        (Signal::Images, true) => [used.layers, 0],
    }
}

/// Which file it is, to know whether it is another one than before. None: there is none.
fn mark(path: &Path) -> Option<(u64, i64, i64)> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(path).ok()?;
    Some((found.ino(), found.mtime(), found.mtime_nsec()))
}

impl World {
    /// After a turn of kubelet-syncd: what it has written down.
    pub fn look_at_evictions(&mut self, state: &Path) {
        for (place, name) in ["evictions.json", "pressure.json"].into_iter().enumerate() {
            let path = state.join(name);
            let mark = mark(&path);
            if mark.is_none() || self.pressure.read.get(place) == Some(&mark) {
                continue;
            }
            if let Some(read) = self.pressure.read.get_mut(place) {
                *read = mark;
            }
            let Some(content) = std::fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok())
            else {
                continue;
            };
            if place == 0 { self.note_evictions(&content) } else { self.note_admission(&content) }
        }
    }

    fn note_admission(&mut self, content: &Value) {
        // What another boot has left says nothing of this one.
        if content["boot_id"] != self.boot_id() {
            return;
        }
        self.pressure.admits_unwritten = false;
        let now = kernel::now();
        let now_admits = ["memory", "disk", "pid"].map(|key| content[key] == true);
        for (spell, is) in self.pressure.admits_by.iter_mut().zip(now_admits) {
            if spell.since.is_some() {
                spell.last_long = Some(now);
            }
            spell.since = is.then(|| spell.since.unwrap_or(now));
        }
        self.tell("kubelet-syncd", format!("admits by memory, disk, tasks {now_admits:?}"));
    }

    /// There was no room for a file of kubelet-syncd's: what it was to say holds all the same, until kubelet-syncd ends.
    pub(crate) fn could_not_write(&mut self, name: &str, content: &[u8]) {
        if !self.pressure.on {
            return;
        }
        let Ok(content) = serde_json::from_slice::<Value>(content) else { return };
        match name {
            ".evictions.json.tmp" => {
                let known: Vec<String> = self.pressure.evicted.keys().cloned().collect();
                self.note_evictions(&content);
                let new = self.pressure.evicted.keys().filter(|uid| !known.contains(*uid));
                self.pressure.unwritten.extend(new.cloned());
            }
            ".pressure.json.tmp" => {
                self.note_admission(&content);
                self.pressure.admits_unwritten = true;
            }
            _ => {}
        }
    }

    /// kubelet-syncd begins anew, and knows of no eviction that it could not write down and that nobody else was told of, and of no
    /// condition either; upstream writes none down.
    pub(crate) fn forget_unwritten(&mut self) {
        if std::mem::take(&mut self.pressure.admits_unwritten) {
            self.pressure.admits_by = [crate::pressure::Spell::default(); 3];
        }
        for uid in std::mem::take(&mut self.pressure.unwritten) {
            if self.objects.get(&uid).is_none_or(|object| object.phase != "Failed") {
                self.pressure.evicted.remove(&uid);
            }
        }
    }

    fn note_evictions(&mut self, content: &Value) {
        let Some(all) = content["evictions"].as_object() else { return };
        for (uid, one) in all {
            self.pressure.unwritten.remove(uid);
            if !self.pressure.evicted.contains_key(uid) {
                let for_threshold = one["threshold"] == true;
                let signal = one["signal"].as_str().unwrap_or_default();
                let grace = one["grace_period"].as_u64().unwrap_or(0);
                let message = one["message"].as_str().unwrap_or_default();
                let name = self.wanted_uid(uid).map_or_else(|| self.short(uid), |(name, _)| name);
                self.tell("kubelet-syncd", format!("evicts {name} for {signal} with {grace} s: {message}"));
                self.coverage.call(&format!("evict {signal}"));
                self.check_eviction(uid, &name, signal, for_threshold, grace);
                let ended = self.running(uid).next().is_none().then(kernel::now);
                let evicted = Evicted { at: kernel::now(), grace, ended };
                self.pressure.evicted.insert(uid.clone(), evicted);
            }
        }
    }

    /// Evicted pods of which the last container has ended.
    pub fn note_ends_of_evicted(&mut self) {
        let now = kernel::now();
        let waiting: Vec<String> =
            self.pressure.evicted.iter().filter(|(_, one)| one.ended.is_none()).map(|(uid, _)| uid.clone()).collect();
        for uid in waiting {
            if self.running(&uid).next().is_none()
                && let Some(one) = self.pressure.evicted.get_mut(&uid)
            {
                one.ended = Some(now);
            }
        }
    }

    /// A pod of the API server that is wanted, by its uid: its name, and what it asks for.
    fn wanted_uid(&self, uid: &str) -> Option<(String, Asks)> {
        let found = self.wanted.iter().find(|(_, wanted)| wanted.uid.as_deref() == Some(uid));
        found.map(|(name, wanted)| (name.clone(), wanted.shape.asks.unwrap_or_default()))
    }

    /// What a pod asks for, whether it is still wanted or not. None: it is a static pod, or nothing was ever made of it.
    fn asks_of(&self, uid: &str) -> Option<Asks> {
        if let Some((_, asks)) = self.wanted_uid(uid) {
            return Some(asks);
        }
        let is_of_api = self.objects.get(uid).is_some_and(|object| !object.is_mirror);
        self.past
            .get(uid)
            .filter(|_| is_of_api)
            .and_then(|past| past.shape.as_ref())
            .map(|s| s.asks.unwrap_or_default())
    }

    /// What was known is at most so old.
    fn age_of_figures(&self, signal: Signal) -> Duration {
        let is_quiet = self.pressure.is_quiet_for(QUIET);
        Duration::from_secs(match (signal, is_quiet) {
            (Signal::Memory | Signal::Tasks, true) => 25,
            (Signal::Disk | Signal::Images, true) => 60,
            (_, false) => 150,
        })
    }

    fn check_eviction(&mut self, uid: &str, name: &str, signal: &str, for_threshold: bool, grace: u64) {
        let Some(asks) = self.asks_of(uid) else {
            if self.objects.get(uid).is_none_or(|object| object.is_mirror) {
                self.breaks("never-critical", format!("{name} is evicted, and none of the API server's pods"));
            }
            return;
        };
        if asks.is_critical() {
            return self.breaks("never-critical", format!("{name} is evicted, and critical"));
        }
        if !for_threshold {
            return self.check_limit(uid, name, &asks);
        }
        let found = match signal {
            "memory.available" | "allocatableMemory.available" => Signal::Memory,
            "nodefs.available" => Signal::Disk,
            "imagefs.available" => Signal::Images,
            "containerfs.available" if self.pressure.plan.separate_images => Signal::Images,
            "containerfs.available" => Signal::Disk,
            "pid.available" => Signal::Tasks,
            other => {
                return self
                    .breaks("evicted-rightly", format!("{name} is evicted for {other}, which has no threshold"));
            }
        };
        self.check_one_victim(name, found);
        self.check_threshold(uid, name, found, grace);
        self.check_rank(uid, name, found, &asks);
        self.check_images_first(name, found);
    }

    /// It has used more than its own limit allows.
    fn check_limit(&mut self, uid: &str, name: &str, asks: &Asks) {
        let then = kernel::now().saturating_sub(self.age_of_figures(Signal::Disk));
        let used = self.pressure.used.get(uid).map(|past| past.since(then).filter_map(|(_, used)| used));
        let used: Vec<Used> = used.into_iter().flatten().collect();
        let most = |of: fn(&Used) -> u64| used.iter().map(of).max().unwrap_or(0);
        let most = most(|used| used.layers) + most(|used| used.logs);
        if asks.disk_limit == 0 || most <= asks.disk_limit {
            self.breaks("evicted-rightly", format!("{name} is evicted for a limit of its own, and uses {most} MiB"));
        }
    }

    /// No other pod is on its way, and what is left was looked at after the last one had gone.
    fn check_one_victim(&mut self, name: &str, signal: Signal) {
        let now = kernel::now();
        let young = self.pressure.evicted.iter().filter(|(_, one)| one.at + wait(one.grace) > now);
        let Some((other, one)) = young.max_by_key(|(_, one)| one.at).map(|(uid, one)| (uid.clone(), one.clone()))
        else {
            return;
        };
        let other = self.wanted_uid(&other).map_or_else(|| self.short(&other), |(name, _)| name);
        let Some(ended) = one.ended else {
            return self
                .breaks("one-victim", format!("{name} is evicted while {other}, which was evicted before it, ends"));
        };
        let still = self.pressure.left.get(&signal);
        let still = still
            .is_some_and(|past| past.since(ended + FREED).any(|(_, left)| self.pressure.is_met(signal, left, true)));
        if !still {
            let signal = signal.name();
            self.breaks(
                "fresh-figures",
                format!("{name} is evicted for {signal}, which has been enough since {other} ended"),
            );
        }
    }

    /// Whether it was met for so long at some time from `then` on; with what was not seen, or is too short to be seen, as if it were.
    fn was_met(&self, signal: Signal, below: u64, for_seconds: u64, then: Duration) -> bool {
        let (grace, gap) = (Duration::from_secs(for_seconds), surely_seen(signal));
        let gap = if self.pressure.is_quiet_for(QUIET) { gap } else { Duration::from_secs(150) };
        let Some(past) = self.pressure.left.get(&signal) else { return false };
        let all: Vec<(Duration, u64)> = past.since(then.saturating_sub(grace)).collect();
        let ends = all.iter().skip(1).map(|(at, _)| *at).chain([kernel::now()]);
        let (mut began, mut broken): (Option<Duration>, Option<Duration>) = (None, None);
        for ((at, left), end) in all.iter().zip(ends) {
            if *left >= below {
                let since = *broken.get_or_insert(*at);
                if end - since >= gap {
                    began = None;
                }
                continue;
            }
            broken = None;
            let since = *began.get_or_insert(*at);
            if end >= then && end - since + Duration::from_secs(1) >= grace {
                return true;
            }
        }
        false
    }

    fn check_threshold(&mut self, uid: &str, name: &str, signal: Signal, grace: u64) {
        let then = kernel::now().saturating_sub(self.age_of_figures(signal));
        let bound = self.pressure.plan.bounds.iter().find(|bound| bound.signal == signal).copied();
        // Where all is on one disk the images' threshold is one of that disk.
        let Some(Bound { hard, soft, reclaim, .. }) = bound else {
            return self
                .breaks("evicted-rightly", format!("{name} is evicted for {}, which has no threshold", signal.name()));
        };
        // One that was met stays so until the minimum reclaim is reached.
        let is_hard = hard.is_some_and(|hard| self.was_met(signal, hard + reclaim, 0, then));
        let is_soft = soft.is_some_and(|(soft, seconds)| self.was_met(signal, soft + reclaim, seconds, then));
        if !is_hard && !is_soft {
            return self.breaks("evicted-rightly", format!("{name} is evicted, and {} was enough", signal.name()));
        }
        let own = self.past.get(uid).and_then(|past| past.shape.as_ref()).map(|shape| shape.grace);
        let of_soft = own.map_or(self.pressure.plan.max_grace, |own| own.min(self.pressure.plan.max_grace));
        let longest = if is_soft { of_soft.max(1) } else { 1 };
        if grace > longest {
            self.breaks("short-grace", format!("{name} is evicted with {grace} s, at most {longest} s are allowed"));
        }
    }

    /// Nobody goes first who, by all that was known of both, goes after another one.
    fn check_rank(&mut self, uid: &str, name: &str, signal: Signal, asks: &Asks) {
        let then = kernel::now().saturating_sub(self.age_of_figures(signal));
        if self.pressure.was_hard_to_read_since(then) {
            return;
        }
        let separate = self.pressure.plan.separate_images;
        let parts = |uid: &str| -> Option<Vec<[u64; 2]>> {
            let past = self.pressure.used.get(uid).filter(|past| past.knows(then))?;
            past.since(then).map(|(_, used)| used.map(|used| part(signal, separate, used))).collect()
        };
        // Of a pod of which nothing ran nothing is known: it goes first.
        let Some(own) = parts(uid) else { return };
        let sum = |all: &[[u64; 2]], pick: fn(u64, u64) -> u64| {
            let first = all.first().copied().unwrap_or_default();
            let [one, other] = all.iter().fold(first, |[a, b], [c, d]| [pick(a, *c), pick(b, *d)]);
            one + other
        };
        // Where something was wrong a part of what is used may not have been known.
        let is_quiet = self.pressure.is_quiet_for(QUIET);
        let own = standing(signal, asks, sum(&own, u64::max));
        let better = self.wanted.iter().find_map(|(other, wanted)| {
            let candidate = wanted.uid.as_deref().filter(|other| *other != uid && !self.pressure.is_off(other))?;
            let asks = wanted.shape.asks.filter(|asks| !asks.is_critical())?;
            let used = parts(candidate)?;
            let used = if is_quiet { sum(&used, u64::min) } else { 0 };
            let theirs = standing(signal, &asks, used);
            theirs.is_before(own).then(|| format!("{other} ({theirs:?})"))
        });
        if let Some(better) = better {
            let signal = signal.name();
            self.breaks(
                "ranked-first",
                format!("{name} ({own:?}) is evicted for {signal}, and {better} goes before it"),
            );
        }
    }

    /// What nobody uses goes before a pod does.
    fn check_images_first(&mut self, name: &str, signal: Signal) {
        let reclaims = match signal {
            Signal::Memory | Signal::Tasks => false,
            Signal::Disk => !self.pressure.plan.separate_images,
            Signal::Images => true,
        };
        let then = kernel::now().saturating_sub(QUIET);
        let old = self.pressure.unused.iter().find(|(_, since)| **since < then).map(|(image, _)| image.clone());
        if let Some(image) = old.filter(|_| reclaims && self.pressure.is_quiet_for(QUIET)) {
            self.breaks("images-first", format!("{name} is evicted for a disk, and nobody uses image {image}"));
        }
    }

    /// Before a container is stopped. `grace`: seconds.
    pub fn check_grace(&mut self, uid: &str, grace: u64) {
        let Some(evicted) = self.pressure.evicted.get(uid).filter(|_| self.is_waited_for) else { return };
        let longest = evicted.grace.max(SHORTEST_GRACE);
        // What was under way before may go on.
        if grace > longest && evicted.at + UNDER_WAY < self.asked_for_at {
            let pod = self.short(uid);
            self.breaks("short-grace", format!("{pod} was evicted with {longest} s, and is stopped with {grace} s"));
        }
    }

    /// Before a sandbox is made: nothing begins of a pod that is evicted, nor of one that is not to be admitted.
    pub fn check_sandbox(&mut self, uid: &str) {
        if !self.pressure.on || !self.is_waited_for {
            return;
        }
        if self.pressure.evicted.get(uid).is_some_and(|evicted| evicted.at + UNDER_WAY < self.asked_for_at) {
            let pod = self.wanted_uid(uid).map_or_else(|| self.short(uid), |(name, _)| name);
            return self.breaks("stays-evicted", format!("a sandbox is made for {pod}, which was evicted"));
        }
        self.check_admission(uid);
    }

    /// The pod is admitted: a node under pressure takes nothing that suffers first.
    pub(crate) fn check_admission(&mut self, uid: &str) {
        let is_first = self.past.get(uid).is_none_or(|past| past.shape.is_none());
        let Some((name, asks)) = self.wanted_uid(uid).filter(|(_, asks)| is_first && !asks.is_critical()) else {
            return;
        };
        let came = self.wanted.get(&name).map(|wanted| wanted.since).unwrap_or_default();
        // By the time at which it came it could not be admitted.
        let by = |condition: usize| {
            let spell = self.pressure.admits_by.get(condition).copied().unwrap_or_default();
            let told = self.pressure.told_since.get(condition).copied().flatten();
            // What the Node says kubelet-syncd was told, too, unless it was told since that it is over.
            let is_over =
                spell.since.is_none() && spell.last_long.is_some_and(|last| told.is_some_and(|told| told < last));
            let is_known = told.is_some_and(|since| since + KNOWN < came) && self.pressure.is_quiet_for(KNOWN);
            (is_known && !is_over) || spell.since.is_some_and(|since| since < came)
        };
        let is_pressed = by(1) || by(2) || (by(0) && asks.is_best_effort());
        if is_pressed {
            self.breaks("pressure-admits", format!("{name} is begun, and came when the node was under pressure"));
        }
    }

    /// This life of kubelet-syncd had no reason to look at its conditions for this pod: the runtime had something of it when that life
    /// began, or it has made something of it itself. What was asked for by a life that is over, and made later, nobody knew of.
    fn was_admitted(&self, uid: &str) -> bool {
        self.sandboxes_of(uid).any(|sandbox| sandbox.life < self.life || !sandbox.is_ghost)
    }

    /// The node's conditions keep it out, as kubelet-syncd has them now: it was nowhere when they were looked at.
    pub(crate) fn is_kept_out(&self, uid: &str) -> bool {
        if self.was_admitted(uid) {
            return false;
        }
        let by = |condition: usize| self.pressure.admits_by.get(condition).is_some_and(|spell| spell.since.is_some());
        let asks = self.wanted_uid(uid).map(|(_, asks)| asks).filter(|asks| !asks.is_critical());
        asks.is_some_and(|asks| by(1) || by(2) || (by(0) && asks.is_best_effort()))
    }

    /// A word of a refusal that nobody has written goes with the life that gave it: the next one decides anew, as under upstream.
    fn forget_refusal(&mut self, uid: &str, told: &Told) {
        let is_admitted = told.worker == i32::from(WorkerState::Sync);
        let is_written = self.objects.get(uid).is_none_or(|object| object.phase == "Failed");
        if is_admitted && !is_written && self.pressure.refused.get(uid).is_some_and(|life| *life < self.life) {
            self.pressure.refused.remove(uid);
        }
    }

    /// What is told of a pod: whether it was turned away for the node's conditions, and rightly.
    pub(crate) fn check_turned_away(&mut self, uid: &str, name: &str, told: &Told) {
        let Some(rest) = told.message.strip_prefix("Pod was rejected: The node had condition: [") else {
            return self.forget_refusal(uid, told);
        };
        let is_known = self.pressure.refused.contains_key(uid);
        if told.phase != "Failed" || told.reason != "Evicted" || is_known {
            return;
        }
        self.pressure.refused.insert(uid.to_owned(), self.life);
        self.tell("kubelet-syncd", format!("refuses {name}: {}", told.message));
        let now = kernel::now();
        let named: Vec<usize> =
            (0..3).filter(|one| CONDITIONS.get(*one).is_some_and(|name| rest.contains(name))).collect();
        let Some(asks) = self.asks_of(uid) else {
            if self.objects.get(uid).is_none_or(|object| object.is_mirror) {
                self.breaks("pressure-admits", format!("{name} is refused, and none of the API server's pods"));
            }
            return;
        };
        // Its word may be of a life that is over, by the status that was written.
        let is_new = self.objects.get(uid).is_some_and(|object| object.phase != "Failed");
        if is_new && self.was_admitted(uid) {
            return self.breaks("pressure-admits", format!("{name} is refused for {named:?}, and ran before"));
        }
        if asks.is_critical() || (named == [0] && !asks.is_best_effort()) {
            let text = format!("{name} is refused for {:?}, which it does not suffer from", named);
            return self.breaks("pressure-admits", text);
        }
        let was = |one: &usize| {
            let spell = self.pressure.admits_by.get(*one).copied().unwrap_or_default();
            // The word of it may be on its way.
            spell.since.is_some() || spell.last_long.is_some_and(|last| last + IN_TIME > now)
        };
        if !named.iter().all(was) {
            self.breaks("pressure-admits", format!("{name} is refused for {named:?}, which is not so"));
        }
    }

    /// A version of the Node that the server has stored.
    pub(crate) fn check_conditions(&mut self, node: &Value) {
        if !self.pressure.on {
            return;
        }
        let now = kernel::now();
        for (place, name) in CONDITIONS.into_iter().enumerate() {
            let list = node["status"]["conditions"].as_array().into_iter().flatten();
            let is = list.into_iter().any(|one| one["type"] == name && one["status"] == "True");
            let was = self.pressure.told.get(place).copied().unwrap_or_default();
            if is == was {
                continue;
            }
            if let Some(told) = self.pressure.told.get_mut(place) {
                *told = is;
            }
            if let Some(since) = self.pressure.told_since.get_mut(place) {
                *since = is.then_some(now);
            }
            self.tell("kube-apiserver", format!("has {name} {is}"));
            self.coverage.call(&format!("{name} {is}"));
            let spell = self.pressure.met.get(place).copied().unwrap_or_default();
            let last = if spell.since.is_some() { Some(now) } else { spell.last_long };
            let transition = Duration::from_secs(self.pressure.plan.transition);
            // What was seen last before a death is written down every ten seconds.
            let slack = Duration::from_secs(if self.pressure.is_quiet_for(IN_TIME) { 2 } else { 25 });
            let long = spell
                .since
                .is_none_or(|since| since + IN_TIME < now || spell.last_long.is_some_and(|last| last > since));
            if !is && long && last.is_some_and(|last| last + transition > now + slack) {
                let text = format!(
                    "{name} is told to be over, and was so {:?} ago",
                    last.map(|last| now.saturating_sub(last))
                );
                self.breaks("condition-stays", text);
            }
            let ever = spell.since.is_some() || self.was_ever_met(place);
            if is && !ever {
                self.breaks("condition-told", format!("{name} is told, and no threshold of it was met"));
            }
        }
    }

    fn was_ever_met(&self, condition: usize) -> bool {
        let of = self.pressure.left.iter().filter(|(signal, _)| condition_of(**signal) == condition);
        of.into_iter()
            .any(|(signal, past)| past.since(Duration::ZERO).any(|(_, left)| self.pressure.is_met(*signal, left, true)))
    }

    /// From time to time: what is to come under pressure does.
    pub fn check_pressure(&mut self) {
        let now = kernel::now();
        if !self.pressure.on || !self.pressure.is_quiet_for(IN_TIME + IN_TIME) {
            return;
        }
        let long = |since: Option<Duration>| since.is_some_and(|since| since + IN_TIME < now);
        for (place, name) in CONDITIONS.into_iter().enumerate() {
            let is_met = self.pressure.met.get(place).is_some_and(|spell| long(spell.since));
            if is_met && self.pressure.told.get(place) == Some(&false) {
                self.breaks(
                    "condition-told",
                    format!("{name} is not told, and a threshold of it has been met for long"),
                );
            }
        }
        let pressed = self.pressure.hard_met.iter().find(|(_, spell)| long(spell.since)).map(|(signal, _)| *signal);
        let Some(signal) = pressed else { return };
        let then = now.saturating_sub(IN_TIME);
        if self.pressure.evicted.values().any(|one| one.at > then) {
            return;
        }
        let ran = |uid: &str| {
            let past = self.pressure.used.get(uid);
            past.is_some_and(|past| past.knows(then) && past.since(then).all(|(_, used)| used.is_some()))
        };
        let left = self.wanted.iter().find(|(_, wanted)| {
            let may_go = wanted.shape.asks.is_some_and(|asks| !asks.is_critical());
            may_go && wanted.uid.as_deref().is_some_and(|uid| !self.pressure.is_off(uid) && ran(uid))
        });
        if let Some((name, _)) = left.map(|(name, wanted)| (name.clone(), wanted.version)) {
            let signal = signal.name();
            self.breaks("pressure-acts", format!("{signal} has been short for long, and {name} is not evicted"));
        }
    }

    /// Once nothing has happened from outside for long.
    pub(crate) fn check_pressure_end(&mut self) {
        for (place, name) in CONDITIONS.into_iter().enumerate() {
            if self.pressure.told.get(place) == Some(&true) {
                self.breaks("condition-told", format!("{name} is still told at the end"));
            }
        }
        let off: Vec<String> = self.pressure.evicted.keys().chain(self.pressure.refused.keys()).cloned().collect();
        for uid in off {
            let Some(object) = self.objects.get(&uid).filter(|object| !object.is_gone).cloned() else { continue };
            let name = &object.name;
            let running = self.running(&uid).next().map(|c| c.name().to_owned());
            if let Some(running) = running {
                self.breaks("stays-evicted", format!("{running} of {name} runs at the end, and the pod was evicted"));
            }
            // One that had ended by itself when it was evicted keeps its phase, and one whose containers exit with 0 succeeds.
            let is_failed = object.phase == "Failed" && object.reason == "Evicted";
            if !is_failed && object.phase != "Succeeded" {
                let (phase, reason) = (&object.phase, &object.reason);
                self.breaks("stays-evicted", format!("{name} was evicted, and is {phase:?} because of {reason:?}"));
            }
            if !object.running.is_empty() {
                self.breaks("stays-evicted", format!("{name} was evicted, and {:?} is said to run", object.running));
            }
        }
    }
}
