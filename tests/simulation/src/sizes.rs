//! CPU and memory that containers are given: what pods have asked for, what kubelet-syncd's checkpoint gives them, what the runtime's
//! containers and the pods' cgroups have, and what must hold of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use bulkhead_cri::v1;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::Quantity;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tonic::Status;

use crate::apiserver;
use crate::checks::DISTURBED;
use crate::schedule::Shape;
use crate::sizes_schedule::{Limits, Size, Sized, Sizes, Words, whole};
use crate::world::{Container, State, World};

/// Where kubelet-syncd keeps what pods were granted.
const CHECKPOINT: &str = "allocations.json";
/// What the node has to give: 2 CPUs, and 16 GiB without what is kept for evictions.
const OF_NODE: Size = Size { cpu: 2_000, memory: (16 << 10) - 100 };
/// What a container uses while it runs, bytes.
const USED: u64 = 1 << 20;
/// Microseconds.
const PERIOD: u64 = 100_000;

/// A pod whose containers have sizes.
#[derive(Debug, Clone, Default)]
struct Pod {
    name: String,
    shape: Shape,
    limits: Limits,
    /// What it has asked for so far.
    wishes: Vec<Sizes>,
    /// What the checkpoint gives it.
    given: Option<Sizes>,
    /// Which wish that was first.
    place: usize,
    /// What it was given in this life of kubelet-syncd, and before it at last.
    ever: Vec<Sizes>,
    /// What the life before has noted that its containers have, where that was something else: what they get of one resource after the
    /// other begins with it.
    had: Option<Sizes>,
    /// Its status as the API server has it.
    status: Value,
}

/// See the module.
#[derive(Debug, Default)]
pub struct PodSizes {
    /// Where kubelet-syncd's state is.
    state: Option<Arc<Mutex<PathBuf>>>,
    /// By uid.
    pods: BTreeMap<String, Pod>,
    /// The checkpoint as it was looked at last.
    checkpoint: Vec<u8>,
    /// What the pods' cgroups have, by uid.
    cgroups: BTreeMap<String, api::CgroupResources>,
}

/// What a new cgroup has.
fn unlimited() -> api::CgroupResources {
    api::CgroupResources {
        cpu_shares: Some(1024),
        cpu_quota_us: Some(-1),
        cpu_period_us: Some(PERIOD),
        memory_limit_bytes: Some(-1),
        ..api::CgroupResources::default()
    }
}

/// As upstream counts (`pkg/kubelet/cm/helpers_linux.go` MilliCPUToShares, MilliCPUToQuota).
fn shares(cpu: u64) -> i64 {
    i64::try_from((cpu * 1024 / 1000).max(2)).unwrap_or(i64::MAX)
}

fn quota(cpu: u64) -> i64 {
    i64::try_from((cpu * PERIOD / 1000).max(1_000)).unwrap_or(i64::MAX)
}

fn bytes(memory: u64) -> i64 {
    i64::try_from(memory << 20).unwrap_or(i64::MAX)
}

/// What the runtime has of one resource of a container: CPU (shares and quota) or memory (its limit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Real {
    cpu: (i64, i64),
    memory: i64,
}

impl Real {
    /// Of a size; a limit that is none is 0.
    fn of(size: Size, limits: Limits) -> Self {
        let factor = limits.factor();
        Real {
            cpu: (shares(size.cpu), factor.map_or(0, |factor| quota(size.cpu * factor))),
            memory: factor.map_or(0, |factor| bytes(size.memory * factor)),
        }
    }

    fn of_container(container: &Container) -> Self {
        let resources = container.config.linux.as_ref().and_then(|linux| linux.resources.clone()).unwrap_or_default();
        Real { cpu: (resources.cpu_shares, resources.cpu_quota.max(0)), memory: resources.memory_limit_in_bytes.max(0) }
    }
}

/// What is asked of the runtime, for people.
pub fn words(id: &str, resources: &v1::LinuxContainerResources) -> String {
    if !resources.cpuset_cpus.is_empty() {
        return format!("UpdateContainerResources {id} to CPUs {}", resources.cpuset_cpus);
    }
    let v1::LinuxContainerResources { cpu_shares, cpu_quota, memory_limit_in_bytes, .. } = resources;
    format!(
        "UpdateContainerResources {id} to {cpu_shares} shares, quota {cpu_quota} and {} MiB",
        memory_limit_in_bytes >> 20
    )
}

/// As containerd (`internal/cri/opts/spec_linux_opts.go` WithResources): what is 0 stays as it is.
fn merge(have: &mut v1::LinuxContainerResources, asked: &v1::LinuxContainerResources) {
    let put = |have: &mut i64, asked: i64| {
        if asked != 0 {
            *have = asked;
        }
    };
    put(&mut have.cpu_period, asked.cpu_period);
    put(&mut have.cpu_quota, asked.cpu_quota);
    put(&mut have.cpu_shares, asked.cpu_shares);
    put(&mut have.memory_limit_in_bytes, asked.memory_limit_in_bytes);
    put(&mut have.memory_swap_limit_in_bytes, asked.memory_swap_limit_in_bytes);
    for (have, asked) in [(&mut have.cpuset_cpus, &asked.cpuset_cpus), (&mut have.cpuset_mems, &asked.cpuset_mems)] {
        if !asked.is_empty() {
            have.clone_from(asked);
        }
    }
    have.unified.extend(asked.unified.clone());
}

/// What a checkpoint gives each pod (`allocated`), or says that it has (`actuated`).
fn parse(checkpoint: &[u8], list: &str) -> Option<BTreeMap<String, Sizes>> {
    let content: Value = serde_json::from_slice(checkpoint).ok()?;
    let pods = content[list].as_object()?;
    let amount = |list: &Value, name: &str| list[name].as_str().and_then(|text| Quantity::parse(text).ok());
    let number = |amount: i64| u64::try_from(amount).unwrap_or(0);
    let sizes = |pod: &Value| -> Sizes {
        let containers = pod["ContainerResources"].as_object().into_iter().flatten();
        let sizes = containers.filter_map(|(name, resources)| {
            let requests = &resources["requests"];
            let cpu = amount(requests, "cpu").map_or(0, |cpu| number(cpu.milli_value()));
            let memory = amount(requests, "memory").map_or(0, |memory| number(memory.value()) >> 20);
            (cpu + memory > 0).then(|| (name.clone(), Size { cpu, memory }))
        });
        sizes.collect()
    };
    Some(pods.iter().map(|(uid, pod)| (uid.clone(), sizes(pod))).collect())
}

fn is_over(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

impl apiserver::Model {
    /// Somebody asks for other sizes of a pod's containers, by its subresource `resize`. Those that are not there get none.
    pub fn resize(&self, pod: &str, sizes: &Sizes) {
        let path = format!("/api/v1/namespaces/default/pods/{pod}");
        let there = self.request("GET", &path, &Value::Null).ok();
        let there = there.filter(|there| !there["metadata"]["deletionTimestamp"].is_string());
        // One that the node has not written about yet is refused where it asks for more than there is, and rightly.
        let there = there.filter(|there| there["status"]["startTime"].is_string());
        let Some(uid) = there.as_ref().and_then(|there| there["metadata"]["uid"].as_str()) else { return };
        let wish = self.world().lock().sizes.wish(uid, sizes);
        let Some((limits, shape, wish)) = wish else { return };
        let list = |containers: &[crate::schedule::ContainerShape]| -> Vec<Value> {
            let those = containers.iter().filter_map(|container| {
                let size = sizes.get(&container.name).filter(|_| wish.contains_key(&container.name))?;
                Some(json!({"name": container.name, "resources": limits.resources(*size)}))
            });
            those.collect()
        };
        let patch = json!({"spec": {"containers": list(&shape.containers), "initContainers": list(&shape.init)}});
        self.patch(&format!("{path}/resize"), &patch);
        self.world().lock().sizes.is_wished(uid, wish);
    }
}

impl PodSizes {
    /// A pod is there that has sizes.
    pub fn comes(&mut self, uid: &str, name: &str, shape: &Shape) {
        let Some(Sized { limits, sizes, .. }) = shape.sized.clone() else { return };
        let pod = Pod { name: name.to_owned(), shape: shape.clone(), limits, wishes: vec![sizes], ..Pod::default() };
        self.pods.insert(uid.to_owned(), pod);
    }

    /// What a pod would ask for then.
    fn wish(&self, uid: &str, sizes: &Sizes) -> Option<(Limits, Shape, Sizes)> {
        let pod = self.pods.get(uid)?;
        let mut wish = pod.wishes.last()?.clone();
        for (name, size) in sizes {
            wish.entry(name.clone()).and_modify(|old| *old = *size);
        }
        Some((pod.limits, pod.shape.clone(), wish))
    }

    fn is_wished(&mut self, uid: &str, wish: Sizes) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.wishes.push(wish);
        }
    }

    /// Another life of kubelet-syncd begins, with what is on the disk.
    pub fn life_begins(&mut self, state: &Arc<Mutex<PathBuf>>) {
        self.state = Some(state.clone());
        self.checkpoint.clear();
        let read = self.read();
        let list = |list| read.as_deref().and_then(|content| parse(content, list)).unwrap_or_default();
        let (given, had) = (list("allocated"), list("actuated"));
        self.checkpoint = read.unwrap_or_default();
        for (uid, pod) in &mut self.pods {
            pod.given = given.get(uid).cloned();
            pod.place = pod.wishes.iter().position(|wish| pod.given.as_ref() == Some(wish)).unwrap_or(0);
            pod.ever = pod.given.clone().into_iter().collect();
            pod.had = had.get(uid).cloned();
        }
    }

    /// Whether a life of kubelet-syncd that found no grant of the pod, as the disk was full when it was made, goes by what the pod asks
    /// for by then, which no node of this size has.
    pub fn is_judged_by_wish(&self, uid: &str) -> bool {
        let Some(pod) = self.pods.get(uid).filter(|pod| pod.given.is_none()) else { return false };
        let asked = pod.wishes.last().map_or_else(Size::default, |wish| whole(&pod.shape, wish));
        asked.cpu > OF_NODE.cpu || asked.memory > OF_NODE.memory
    }

    /// The checkpoint, where it is another one than at the last look.
    fn read(&self) -> Option<Vec<u8>> {
        if self.pods.is_empty() {
            return None;
        }
        let folder = self.state.as_ref()?.lock().clone();
        std::fs::read(folder.join(CHECKPOINT)).ok().filter(|content| *content != self.checkpoint)
    }

    /// The cgroup of a pod has what it is given, beside what it had; what it has then.
    pub fn cgroup_gets(&mut self, uid: &str, asked: &api::CgroupResources) -> api::CgroupResources {
        let have = self.cgroups.entry(uid.to_owned()).or_insert_with(unlimited);
        have.cpu_shares = asked.cpu_shares.or(have.cpu_shares);
        have.cpu_quota_us = asked.cpu_quota_us.or(have.cpu_quota_us);
        have.cpu_period_us = asked.cpu_period_us.or(have.cpu_period_us);
        have.memory_limit_bytes = asked.memory_limit_bytes.or(have.memory_limit_bytes);
        have.clone()
    }

    pub fn cgroup_goes(&mut self, uid: &str) {
        self.cgroups.remove(uid);
    }

    /// The API server has another version of a pod.
    pub fn is_told(&mut self, uid: &str, pod: &Value) {
        if let Some(found) = self.pods.get_mut(uid) {
            found.status = pod["status"].clone();
        }
    }
}

impl World {
    /// What containers of a pod use of memory, bytes.
    pub fn memory_used(&self, uid: &str) -> u64 {
        self.running(uid).count() as u64 * USED
    }

    /// What one container uses.
    pub fn stats_of(&self, id: &str) -> Option<v1::ContainerStats> {
        let container = self.containers.get(id)?;
        let used = if container.state == State::Running { USED } else { 0 };
        let value = || Some(v1::UInt64Value { value: used });
        Some(v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes { id: id.to_owned(), ..v1::ContainerAttributes::default() }),
            memory: Some(v1::MemoryUsage {
                timestamp: World::wall(),
                usage_bytes: value(),
                working_set_bytes: value(),
                ..v1::MemoryUsage::default()
            }),
            ..v1::ContainerStats::default()
        })
    }

    /// A container is given other resources.
    ///
    /// # Errors
    /// It is not known.
    pub fn update_container(&mut self, id: &str, asked: &v1::LinuxContainerResources) -> Result<(), Status> {
        if !asked.cpuset_cpus.is_empty() {
            self.move_container(id, &asked.cpuset_cpus)?;
        }
        let Some(container) = self.containers.get(id).cloned() else {
            return Err(Status::not_found(format!("container {id}: not found")));
        };
        if let Some(found) = self.containers.get_mut(id) {
            merge(found.config.linux.get_or_insert_default().resources.get_or_insert_default(), asked);
        }
        if self.sizes.pods.contains_key(container.uid()) {
            self.count_change(container.uid());
            self.check_update(&container);
        }
        Ok(())
    }

    /// A container has been updated. `before`: as it was.
    fn check_update(&mut self, before: &Container) {
        let Some(now) = self.containers.get(&before.id).cloned() else { return };
        if !self.is_waited_for || now.state != State::Running {
            return;
        }
        let (old, new) = (Real::of_container(before), Real::of_container(&now));
        let (name, pod) = (now.name().to_owned(), self.short(now.uid()));
        let mut given = self.given_ever(&now);
        given.extend(self.had(&now));
        let cpu = old.cpu == new.cpu || given.iter().any(|given| given.cpu == new.cpu);
        let memory = old.memory == new.memory || given.iter().any(|given| given.memory == new.memory);
        if !(cpu && memory) {
            self.breaks("sized-as-given", format!("{name} of {pod} is given {new:?}, and the checkpoint {given:?}"));
        }
        let restarts = self.sizes.pods.get(now.uid()).and_then(|pod| pod.shape.sized.as_ref());
        if old.memory != new.memory && restarts.is_some_and(|sized| sized.restart.contains(&name)) {
            let text = format!("{name} of {pod} is given other memory while it runs, and is to restart for that");
            self.breaks("restarts-for-it", text);
        }
        self.check_room_in_cgroup(now.uid());
    }

    /// What the checkpoint has given a container in this life of kubelet-syncd, and at the end of the one before.
    fn given_ever(&self, container: &Container) -> Vec<Real> {
        let Some(pod) = self.sizes.pods.get(container.uid()) else { return Vec::new() };
        let of = |sizes: &Sizes| sizes.get(container.name()).copied();
        pod.ever.iter().map(|sizes| of(sizes).map_or_else(nothing, |size| Real::of(size, pod.limits))).collect()
    }

    /// What it had as the life before has noted it.
    fn had(&self, container: &Container) -> Option<Real> {
        let pod = self.sizes.pods.get(container.uid())?;
        Some(Real::of(*pod.had.as_ref()?.get(container.name())?, pod.limits))
    }

    /// Before a container starts: it has what the checkpoint gives it.
    pub(crate) fn check_size(&mut self, container: &Container) {
        if !self.sizes.pods.contains_key(container.uid()) {
            return;
        }
        let (real, given) = (Real::of_container(container), self.given_ever(container));
        if !given.contains(&real) {
            let (name, pod) = (container.name(), self.short(container.uid()));
            let text = format!("{name} of {pod} starts with {real:?}, and the checkpoint gives it {given:?}");
            self.breaks("sized-as-given", text);
        }
    }

    /// It may be stopped: it is to restart for other memory, and was given some. (Requests count, which the runtime is not told of.)
    pub fn may_be_stopped_to_resize(&self, container: &Container) -> bool {
        let Some(pod) = self.sizes.pods.get(container.uid()) else { return false };
        let restarts = pod.shape.sized.as_ref().is_some_and(|sized| sized.restart.contains(container.name()));
        let memory = |sizes: &Sizes| sizes.get(container.name()).map_or(0, |size| size.memory);
        let all: BTreeSet<u64> = pod.ever.iter().chain(&pod.had).map(memory).collect();
        restarts && all.len() > 1
    }

    /// Another one for other resources of a container's.
    pub fn size_mark(&self, container: &Container) -> String {
        let given = self.sizes.pods.get(container.uid()).map_or(0, |pod| pod.ever.len());
        format!("{given} {:?}", Real::of_container(container))
    }

    /// The cgroup of a pod holds what its containers may have together.
    pub(crate) fn check_room_in_cgroup(&mut self, uid: &str) {
        let Some(limit) = self.sizes.cgroups.get(uid).and_then(|cgroup| cgroup.memory_limit_bytes) else { return };
        // Who restarts for other memory does so also where the cgroup's part did not work; the next sync makes that good.
        let is_disturbed = self.is_disturbed(bulkhead_simulation_kernel::now().saturating_sub(DISTURBED));
        if !self.sizes.pods.contains_key(uid) || limit < 0 || is_disturbed {
            return;
        }
        let all: i64 = self.running(uid).map(|container| Real::of_container(container).memory).sum();
        if all > limit {
            let text = format!("containers of {} may have {all} bytes, and its cgroup {limit}", self.short(uid));
            self.breaks("room-in-cgroup", text);
        }
    }

    /// After a turn of kubelet-syncd: what it has written down of what pods are given.
    pub fn look_at_sizes(&mut self) {
        let Some(content) = self.sizes.read() else { return };
        let Some(given) = parse(&content, "allocated") else { return };
        self.sizes.checkpoint = content;
        let mut wrong = Vec::new();
        let mut is_more = false;
        for (uid, pod) in &mut self.sizes.pods {
            let given = given.get(uid).cloned();
            if given == pod.given {
                continue;
            }
            let Some(given) = given else {
                pod.given = None;
                let is_wanted = self.wanted.values().any(|wanted| wanted.uid.as_deref() == Some(uid));
                let phase = self.objects.get(uid).map_or("", |object| object.phase.as_str());
                if is_wanted && !is_over(phase) {
                    wrong.push(format!("the checkpoint gives {} nothing any more", pod.name));
                }
                continue;
            };
            let later = pod.wishes.iter().enumerate().skip(pod.place);
            match later.into_iter().find(|(_, wish)| **wish == given) {
                Some((place, _)) => {
                    // Of several in one turn the last is seen; a sync may have begun with one before.
                    let between = pod.wishes.iter().take(place).skip(pod.place + 1);
                    pod.ever.extend(between.cloned());
                    pod.place = place;
                }
                None => {
                    wrong.push(format!("the checkpoint gives {}{}, which is no wish of its", pod.name, Words(&given)))
                }
            }
            is_more = true;
            pod.ever.push(given.clone());
            pod.given = Some(given);
        }
        if let Some(wrong) = wrong.first() {
            self.breaks("given-as-asked", wrong);
        }
        if is_more {
            self.check_room_of_node();
        }
    }

    /// Pods that run have no more than there is, all together.
    fn check_room_of_node(&mut self) {
        let wanted = |uid: &str| self.wanted.values().any(|wanted| wanted.uid.as_deref() == Some(uid));
        let those = self.sizes.pods.iter().filter(|(uid, _)| wanted(uid) && self.running(uid).next().is_some());
        let sum =
            those.filter_map(|(_, pod)| Some(whole(&pod.shape, pod.given.as_ref()?))).fold(Size::default(), Size::plus);
        if sum.cpu > OF_NODE.cpu || sum.memory > OF_NODE.memory {
            let text = format!("pods that run are given {sum:?}, and the node has {OF_NODE:?}");
            self.breaks("room-of-node", text);
        }
    }

    /// Once nothing has happened from outside for long. `restless`: pods that crash for ever.
    pub(crate) fn check_sizes_end(&mut self, restless: &[String]) {
        let lives = |uid: &String| {
            let told = self.told.get(uid).is_none_or(|told| !is_over(&told.phase));
            told && self.wanted.values().any(|wanted| wanted.uid.as_ref() == Some(uid))
        };
        let living: Vec<(String, Pod)> =
            self.sizes.pods.iter().filter(|(uid, _)| lives(uid)).map(|(uid, pod)| (uid.clone(), pod.clone())).collect();
        let mut wrong = Vec::new();
        for (uid, pod) in &living {
            let (Some(given), Some(asked)) = (&pod.given, pod.wishes.last()) else {
                wrong.push(format!("the checkpoint gives {} nothing", pod.name));
                continue;
            };
            let others = living.iter().filter(|(other, _)| other != uid);
            let others =
                others.map(|(_, pod)| pod.given.as_ref().map_or_else(Size::default, |given| whole(&pod.shape, given)));
            let sum = others.fold(whole(&pod.shape, asked), Size::plus);
            let fits = sum.cpu <= OF_NODE.cpu && sum.memory <= OF_NODE.memory;
            if fits && given != asked {
                let text =
                    format!("{} asks for{}, there is room, and it is given{}", pod.name, Words(asked), Words(given));
                wrong.push(text);
            }
            for container in self.running(uid) {
                let expected = given.get(container.name()).map_or_else(nothing, |size| Real::of(*size, pod.limits));
                let real = Real::of_container(container);
                if real != expected {
                    wrong.push(format!("{} of {} has {real:?}, not {expected:?}", container.name(), pod.name));
                }
            }
            if !restless.contains(uid) {
                wrong.extend(self.cgroup_is_wrong(uid, pod, given));
                wrong.extend(self.status_is_wrong(uid, pod, given, given == asked));
            }
        }
        if let Some(wrong) = wrong.first() {
            self.breaks("sized-as-asked", format!("at the end {wrong}"));
        }
    }

    fn cgroup_is_wrong(&self, uid: &str, pod: &Pod, given: &Sizes) -> Option<String> {
        let cgroup = self.sizes.cgroups.get(uid)?;
        let whole = whole(&pod.shape, given);
        // It is limited where all of its containers are.
        let all =
            pod.shape.init.iter().chain(&pod.shape.containers).all(|container| given.contains_key(&container.name));
        let limits = if all { pod.limits } else { Limits::None };
        let factor = limits.factor();
        let expected = (
            shares(whole.cpu),
            factor.map_or(-1, |factor| quota(whole.cpu * factor)),
            factor.map_or(-1, |factor| bytes(whole.memory * factor)),
        );
        let has = (
            cgroup.cpu_shares.and_then(|shares| i64::try_from(shares).ok()).unwrap_or(0),
            cgroup.cpu_quota_us.unwrap_or(-1),
            cgroup.memory_limit_bytes.unwrap_or(-1),
        );
        (has != expected).then(|| format!("the cgroup of {} has {has:?}, not {expected:?}", pod.name))
    }

    /// What the API server has of it.
    fn status_is_wrong(&self, uid: &str, pod: &Pod, given: &Sizes, is_as_asked: bool) -> Option<String> {
        let conditions = pod.status["conditions"].as_array();
        let reason = |kind: &str| {
            let found = conditions.into_iter().flatten().find(|condition| condition["type"] == kind);
            found.map(|found| found["reason"].as_str().unwrap_or_default().to_owned())
        };
        let (pending, under_way) = (reason("PodResizePending"), reason("PodResizeInProgress"));
        let expected = (!is_as_asked).then(|| "Deferred".to_owned());
        if pending != expected {
            return Some(format!("PodResizePending of {} is {pending:?}, not {expected:?}", pod.name));
        }
        if under_way.is_some() {
            return Some(format!("PodResizeInProgress of {} is {under_way:?}", pod.name));
        }
        let amounts = |list: &Value| {
            let amount = |name: &str| list[name].as_str().and_then(|text| Quantity::parse(text).ok());
            (amount("cpu").map_or(0, Quantity::milli_value), amount("memory").map_or(0, |memory| memory.value() >> 20))
        };
        let lists = ["initContainerStatuses", "containerStatuses"].into_iter();
        let statuses = lists.flat_map(|list| pod.status[list].as_array().into_iter().flatten());
        for status in statuses.filter(|status| status["state"]["running"].is_object()) {
            let name = status["name"].as_str().unwrap_or_default();
            let Some(size) = given.get(name) else { continue };
            let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            let of = |size: Size| (number(size.cpu), number(size.memory));
            let limit = pod.limits.factor().map_or((0, 0), |factor| of(size.times(factor)));
            for (what, told, is) in [
                ("allocatedResources", &status["allocatedResources"], of(*size)),
                ("requests", &status["resources"]["requests"], of(*size)),
                ("limits", &status["resources"]["limits"], limit),
            ] {
                if amounts(told) != is {
                    return Some(format!(
                        "{what} of {name} of {} are told as {told}, and it has {is:?}",
                        self.short(uid)
                    ));
                }
            }
        }
        None
    }
}

/// What a container has that asks for nothing.
fn nothing() -> Real {
    Real { cpu: (shares(0), 0), memory: 0 }
}
