//! The device manager: takes devices for pods, says what plugins are to be asked for them, and keeps what they answered.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::DerefMut;
use std::time::Instant;

use bulkhead_types::Quantity;
use k8s_openapi::api::core::v1::{ResourceHealth, ResourceStatus};

use super::grants::{self, Grants};
use super::held::{Allocated, Choice, Held};
use super::hints;
use super::plugins::{Capacity, Devices, PluginOptions, Plugins};
use super::selection::Plan;
use crate::checkpoint::devices as file;
use crate::request::{ContainerRequest, Kind, PodRequest};
use crate::topology::{Hint, HintProvider, NumaMask, Refusal, ResourceHints};

/// Names of a pod's containers that run, by its uid.
pub type Running<'a> = Box<dyn Fn(&str) -> BTreeSet<String> + 'a>;

/// What a plugin is to be asked for a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub container: String,
    pub resource: String,
    /// Of the plugin that serves the resource now.
    pub generation: u64,
    pub call: Call,
}

/// In upstream's words: the plugin is not there any more.
pub fn stopped(resource: &str) -> String {
    format!("endpoint {resource} has been stopped")
}

/// In upstream's words: a plugin that is to hear of a container's start did not answer well.
pub fn pre_start_failed(why: &str) -> String {
    format!("device plugin PreStartContainer rpc failed with err: {why}")
}

/// The two calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    GetPreferredAllocation { available: Vec<String>, must_include: Vec<String>, size: usize },
    Allocate { devices: Vec<String> },
}

/// What a container wants of one resource.
struct Wanted<'a> {
    uid: &'a str,
    container: &'a str,
    resource: &'a str,
    /// Number of devices.
    required: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct DeviceManager {
    /// NUMA nodes.
    machine: Vec<u32>,
    plugins: Plugins,
    held: Held,
}

impl DeviceManager {
    /// `machine`: its NUMA nodes. `found`: the checkpoint; the plugins of its resources have not come back yet.
    pub fn new(machine: Vec<u32>, found: Option<&file::Devices>, now: Instant) -> Self {
        let mut manager = DeviceManager { machine, ..DeviceManager::default() };
        if let Some(found) = found {
            manager.held = Held::from_file(found.pod_device_entries.as_deref().unwrap_or_default());
            for resource in found.registered_devices.iter().flat_map(BTreeMap::keys) {
                manager.plugins.expect(resource, now);
            }
        }
        manager
    }

    /// The checkpoint's content.
    pub fn to_file(&self) -> file::Devices {
        let entries = self.held.to_file();
        file::Devices {
            // Go's list that nothing was put into is null.
            pod_device_entries: (!entries.is_empty()).then_some(entries),
            registered_devices: Some(self.plugins.registered()),
        }
    }

    /// See [`Plugins::make_room`].
    pub fn make_room(&mut self, resource: &str) -> Vec<String> {
        self.plugins.make_room(resource, |resource| self.held.has_resource(resource))
    }

    /// See [`Plugins::connect`].
    pub fn connect(&mut self, resource: &str, options: PluginOptions) -> u64 {
        self.plugins.connect(resource, options)
    }

    /// A plugin tells its devices. Answers the pods whose devices' health is news; None: another plugin has the resource by now.
    pub fn list(&mut self, resource: &str, generation: u64, devices: Devices) -> Option<BTreeSet<String>> {
        let news: BTreeSet<String> = self.plugins.list(resource, generation, devices)?.into_iter().collect();
        let concerned = |uid: &&String| {
            let of = |allocated: &Allocated| !allocated.devices.is_disjoint(&news);
            !news.is_empty() && self.held.of_pod(uid).any(|(_, held)| held.get(resource).is_some_and(of))
        };
        Some(self.held.uids().filter(concerned).cloned().collect())
    }

    /// See [`Plugins::disconnect`].
    pub fn disconnect(&mut self, resource: &str, generation: u64, now: Instant) -> bool {
        self.plugins.disconnect(resource, generation, now)
    }

    /// See [`Plugins::forget`].
    pub fn forget(&mut self, now: Instant) -> bool {
        self.plugins.forget(now, |resource| self.held.has_resource(resource))
    }

    /// See [`Plugins::capacity`].
    pub fn capacity(&self) -> Capacity {
        self.plugins.capacity()
    }

    pub fn plugins(&self) -> &Plugins {
        &self.plugins
    }

    /// A plugin has registered it, or somebody has something of it.
    fn is_ours(&self, resource: &str) -> bool {
        self.plugins.is_registered(resource) || self.held.has_resource(resource)
    }

    fn requests<'a>(&'a self, container: &'a ContainerRequest) -> impl Iterator<Item = (&'a String, usize)> {
        let ours = container.limits.iter().filter(|(resource, _)| self.is_ours(resource));
        ours.map(|(resource, amount)| (resource, number(*amount))).filter(|(_, number)| *number > 0)
    }

    /// The container has what it asks for, or runs without our knowing of it: nothing is taken from a pod that runs, whether or not
    /// its plugin is there.
    fn goes_on(&self, uid: &str, container: &str, resource: &str, running: &BTreeSet<String>) -> bool {
        let has = self.held.of(uid, container, resource).is_some_and(|allocated| allocated.response.is_some());
        if has { !running.is_empty() } else { running.contains(container) }
    }

    /// The pod needs something of a plugin that has gone, or has not come back yet, and may do so soon.
    pub fn waits_for(&self, pod: &PodRequest, running: &BTreeSet<String>) -> Option<String> {
        pod.containers.iter().find_map(|container| {
            self.requests(container)
                .find(|(resource, _)| {
                    self.plugins.is_coming_back(resource) && !self.goes_on(&pod.uid, &container.name, resource, running)
                })
                .map(|(resource, _)| resource.clone())
        })
    }

    /// What the node has of the resources of plugins that a pod asks for, as far as it is judged by that: devices that have been given
    /// count, whether or not their plugin is there (upstream `sanitizeNodeAllocatable`).
    pub fn allocatable_for(&self, pod: &PodRequest) -> BTreeMap<String, u64> {
        let mut asked: BTreeMap<&String, usize> = BTreeMap::new();
        for (resource, amount) in pod.containers.iter().flat_map(|container| &container.limits) {
            let sum = asked.entry(resource).or_default();
            *sum = sum.saturating_add(number(*amount));
        }
        let ours = asked.into_iter().filter(|(resource, _)| self.is_ours(resource));
        ours.map(|(resource, here)| {
            let healthy = self.plugins.healthy(resource).map_or(0, BTreeSet::len);
            let given = self.held.in_use(resource, None).len();
            (resource.clone(), healthy.max(given.saturating_add(here)) as u64)
        })
        .collect()
    }

    /// `but`: see [`Held::in_use`].
    fn available(&self, resource: &str, but: Option<(&str, &[&str])>) -> BTreeSet<String> {
        let in_use = self.held.in_use(resource, but);
        self.plugins.healthy(resource).map(|healthy| healthy.difference(&in_use).cloned().collect()).unwrap_or_default()
    }

    /// `open`: names of the container, and of those after it that are chosen again when this one's devices are others.
    fn plan(&self, uid: &str, open: &[&str], resource: &str, choice: &Choice) -> Result<Plan, String> {
        let none = Devices::new();
        let told = self.plugins.told(resource).unwrap_or(&none);
        let available = self.available(resource, Some((uid, open)));
        Plan::new(resource, choice.required, told, &available, &choice.reusable, choice.affinity)
    }

    /// Takes devices for a container; what it has already stays.
    fn choose(
        &mut self,
        wanted: &Wanted<'_>,
        reusable: BTreeSet<String>,
        affinity: Option<NumaMask>,
        running: &BTreeSet<String>,
    ) -> Result<(), String> {
        let Wanted { uid, container, resource, required } = *wanted;
        let has = self.held.of(uid, container, resource).filter(|allocated| allocated.response.is_some());
        let had: BTreeSet<String> = has.map(|allocated| allocated.devices.clone()).unwrap_or_default();
        if has.is_some() && had.len() != required {
            return Err(format!(
                "pod {uid:?} container {container:?} changed request for resource {resource:?} from {} to {required}",
                had.len()
            ));
        }
        let has = has.is_some();
        if self.goes_on(uid, container, resource, running) {
            return Ok(());
        }
        let Some(healthy) = self.plugins.healthy(resource) else {
            return Err(format!("cannot allocate unregistered device {resource}"));
        };
        if healthy.is_empty() {
            return Err(format!("no healthy devices present; cannot allocate unhealthy devices {resource}"));
        }
        if !healthy.is_superset(&had) {
            return Err(format!(
                "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            ));
        }
        if has {
            return Ok(());
        }
        let choice = Choice { affinity, reusable, required, asked: false };
        let devices = self.plan(uid, &[container], resource, &choice)?.devices(&BTreeSet::new());
        let allocated = Allocated { devices, by_node: BTreeMap::new(), response: None, choice: Some(choice) };
        self.held.insert(uid, container, resource, allocated);
        Ok(())
    }

    /// Names of a container and of those that start after it, of which the plugin has not answered for this resource. Nobody relies on
    /// what those have: it is as free for the first of them as it was for upstream, which chooses for one after the other has its
    /// answer.
    fn open_from<'a>(&self, uid: &str, order: &'a [ContainerRequest], first: &str, resource: &str) -> Vec<&'a str> {
        let is_open =
            |name: &&str| self.held.of(uid, name, resource).is_some_and(|allocated| allocated.choice.is_some());
        order
            .iter()
            .map(|container| container.name.as_str())
            .skip_while(|name| *name != first)
            .filter(is_open)
            .collect()
    }

    /// What a plugin is to be asked next for a pod; None: every plugin has answered. `order`: the pod's containers in the order in which
    /// they start.
    ///
    /// # Errors
    /// In upstream's words: nobody can be asked.
    pub fn next_question(&mut self, uid: &str, order: &[ContainerRequest]) -> Result<Option<Question>, String> {
        for container in order.iter().map(|container| &container.name) {
            let open = self.held.of_container(uid, container).into_iter().flatten();
            let open: Vec<_> = open.filter_map(|(name, a)| Some((name.clone(), a.choice.clone()?))).collect();
            let Some((resource, choice)) = open.into_iter().next() else { continue };
            let Some((generation, options)) = self.plugins.serving(&resource) else {
                return Err(stopped(&resource));
            };
            let question = |call| {
                Ok(Some(Question { container: container.clone(), resource: resource.clone(), generation, call }))
            };
            if options.preferred_allocation && !choice.asked {
                let open = self.open_from(uid, order, container, &resource);
                let plan = self.plan(uid, &open, &resource, &choice)?;
                if let Some((available, must_include)) = plan.question() {
                    return question(Call::GetPreferredAllocation { available, must_include, size: choice.required });
                }
            }
            let devices = self.held.of(uid, container, &resource).map(|a| a.devices.iter().cloned().collect());
            return question(Call::Allocate { devices: devices.unwrap_or_default() });
        }
        Ok(None)
    }

    /// The plugin prefers these devices. Those of containers that start later are chosen again.
    ///
    /// # Errors
    /// In upstream's words: there are not enough any more. What is open has to be dropped.
    pub fn preferred(
        &mut self,
        uid: &str,
        order: &[ContainerRequest],
        question: &Question,
        preferred: &BTreeSet<String>,
    ) -> Result<(), String> {
        let Question { container, resource, .. } = question;
        let Some(mut choice) = self.held.of(uid, container, resource).and_then(|a| a.choice.clone()) else {
            return Ok(());
        };
        // Somebody has answered since: the question is an earlier life's.
        if choice.asked {
            return Ok(());
        }
        choice.asked = true;
        let open = self.open_from(uid, order, container, resource);
        let devices = self.plan(uid, &open, resource, &choice)?.devices(preferred);
        let Some(allocated) = self.held.of_mut(uid, container, resource) else { return Ok(()) };
        allocated.choice = Some(choice);
        let before = std::mem::replace(&mut allocated.devices, devices);
        if before == allocated.devices { Ok(()) } else { self.choose_again(uid, order, container, resource) }
    }

    /// Chooses for the containers after this one as if they had not been chosen for: one after the other, each with what those before
    /// it leave now. As many devices are needed as before, so there are enough unless some have fallen ill meanwhile.
    fn choose_again(
        &mut self,
        uid: &str,
        order: &[ContainerRequest],
        after: &str,
        resource: &str,
    ) -> Result<(), String> {
        let (mut reusable, mut is_after) = (BTreeSet::new(), false);
        for container in order {
            let name = container.name.as_str();
            let choice = self.held.of(uid, name, resource).and_then(|allocated| allocated.choice.clone());
            if let Some(mut choice) = choice.filter(|_| is_after) {
                choice.reusable.clone_from(&reusable);
                let open = self.open_from(uid, order, name, resource);
                let devices = self.plan(uid, &open, resource, &choice)?.devices(&BTreeSet::new());
                let allocated = Allocated { devices, by_node: BTreeMap::new(), response: None, choice: Some(choice) };
                self.held.insert(uid, name, resource, allocated);
            }
            let has = self.held.of(uid, name, resource).map(|allocated| allocated.devices.clone());
            leave(&mut reusable, container.kind, has.unwrap_or_default());
            is_after |= name == after;
        }
        Ok(())
    }

    /// The plugin has given the devices. `response`: its ContainerAllocateResponse as it stands on the wire. An answer that comes when
    /// the container has others by now, because the pod went and came again under its uid, counts for nothing.
    pub fn allocated(&mut self, uid: &str, question: &Question, response: Vec<u8>) {
        let Question { container, resource, call, .. } = question;
        let none = Devices::new();
        let told = self.plugins.told(resource).unwrap_or(&none).clone();
        let Some(allocated) = self.held.of_mut(uid, container, resource) else { return };
        let is_of_these = |asked: &[String]| allocated.devices.iter().eq(asked);
        if allocated.choice.is_none() || !matches!(call, Call::Allocate { devices } if is_of_these(devices)) {
            return;
        }
        let mut by_node: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for id in &allocated.devices {
            let nodes = told.get(id).map(|device| device.nodes.as_slice()).unwrap_or_default();
            for node in if nodes.is_empty() { &[-1] } else { nodes } {
                by_node.entry(*node).or_default().push(id.clone());
            }
        }
        (allocated.by_node, allocated.response, allocated.choice) = (by_node, Some(response), None);
    }

    /// Takes back what no plugin has answered for.
    pub fn drop_open(&mut self, uid: &str) {
        self.held.retain(|pod, _, allocated| pod != uid || allocated.response.is_some());
    }

    /// The pod never ran: it gives everything back. Answers whether it had anything.
    pub fn take_back(&mut self, uid: &str) -> bool {
        self.held.retain(|pod, _, _| pod != uid)
    }

    /// Takes back what is of no container that counts (`is_active`: pod uid, container). Answers whether anything was.
    pub fn remove_stale(&mut self, is_active: &dyn Fn(&str, &str) -> bool) -> bool {
        self.held.retain(|uid, container, _| is_active(uid, container))
    }

    /// What a container gets for its devices.
    pub fn grants(&self, uid: &str, container: &str) -> Grants {
        self.held.of_container(uid, container).map(grants::grants).unwrap_or_default()
    }

    /// Something that the container asks for was never given to it: it ran before anybody knew of it, or is of a pod with resources of
    /// its own, for which upstream asks plugins as late as this.
    pub fn lacks(&self, pod: &PodRequest, container: &str) -> bool {
        let Some(container) = pod.container(container) else { return false };
        self.requests(container).any(|(resource, _)| self.held.of(&pod.uid, &container.name, resource).is_none())
    }

    /// Devices by resource that a plugin wants to hear of before a container starts, with the plugin's generation.
    ///
    /// # Errors
    /// In upstream's words: the resource has no plugin.
    pub fn pre_start(&self, pod: &PodRequest, container: &str) -> Result<Vec<(String, u64, Vec<String>)>, String> {
        let Some(container) = pod.container(container) else { return Ok(Vec::new()) };
        let mut calls = Vec::new();
        for (resource, _) in self.requests(container) {
            if !self.plugins.is_registered(resource) {
                return Err(format!("endpoint not found in cache for a registered resource: {resource}"));
            }
            if self.plugins.lacks_pre_start(resource) {
                return Err(pre_start_failed(&stopped(resource)));
            }
            let Some((generation, _)) = self.plugins.serving(resource).filter(|(_, o)| o.pre_start) else { continue };
            let (uid, name) = (&pod.uid, &container.name);
            let Some(held) = self.held.of(uid, name, resource) else {
                return Err(format!(
                    "no devices found allocated in local cache for pod {uid}, container {name}, resource {resource}"
                ));
            };
            calls.push((resource.clone(), generation, held.devices.iter().cloned().collect()));
        }
        Ok(calls)
    }

    /// `status.containerStatuses[].allocatedResourcesStatus`, by the resources' names. A device that its plugin does not tell of is
    /// healthy, as upstream says.
    pub fn health(&self, uid: &str, container: &str) -> Vec<ResourceStatus> {
        let of = |(resource, allocated): (&String, &Allocated)| {
            let told = self.plugins.told(resource);
            let health = |id: &String| ResourceHealth {
                resource_id: id.clone(),
                health: Some(match told.and_then(|told| told.get(id)) {
                    Some(device) if !device.healthy => "Unhealthy".to_owned(),
                    _ => "Healthy".to_owned(),
                }),
                ..ResourceHealth::default()
            };
            let resources = Some(allocated.devices.iter().map(health).collect());
            ResourceStatus { name: resource.clone(), resources }
        };
        let held = self.held.of_container(uid, container).into_iter().flatten();
        held.filter(|(_, allocated)| allocated.response.is_some()).map(of).collect()
    }

    pub fn held(&self) -> &Held {
        &self.held
    }
}

/// Devices that a limit comes to.
fn number(limit: Quantity) -> usize {
    usize::try_from(limit.value()).unwrap_or(0)
}

/// What containers leave to those after them, once one more has its devices: an init container ends before the next one starts, the
/// others keep what they have.
fn leave(reusable: &mut BTreeSet<String>, kind: Kind, has: BTreeSet<String>) {
    match kind {
        Kind::Init => reusable.extend(has),
        Kind::Sidecar | Kind::App => reusable.retain(|id| !has.contains(id)),
    }
}

/// The manager's part in the admission of one pod. `M`: the manager, however it is held.
pub struct Admission<'a, M> {
    manager: M,
    running: Running<'a>,
    /// What init containers leave to those after them, by resource.
    reusable: BTreeMap<String, BTreeSet<String>>,
}

impl<M> std::fmt::Debug for Admission<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").field("reusable", &self.reusable).finish_non_exhaustive()
    }
}

impl<'a, M: DerefMut<Target = DeviceManager>> Admission<'a, M> {
    pub fn new(manager: M, running: Running<'a>) -> Self {
        Admission { manager, running, reusable: BTreeMap::new() }
    }

    fn reusable(&self, resource: &str) -> BTreeSet<String> {
        self.reusable.get(resource).cloned().unwrap_or_default()
    }

    fn hint(
        &self,
        resource: &str,
        requested: usize,
        has: &BTreeSet<String>,
        reusable: &BTreeSet<String>,
    ) -> Option<Vec<Hint>> {
        let manager = &self.manager;
        let told = manager.plugins.told(resource).filter(|told| hints::has_topology(told))?;
        if !has.is_empty() {
            let again = || hints::hints(&manager.machine, told, has, &BTreeSet::new(), requested);
            return Some(if has.len() == requested { again() } else { Vec::new() });
        }
        let available = manager.available(resource, None);
        if available.union(reusable).count() < requested {
            return Some(Vec::new());
        }
        Some(hints::hints(&manager.machine, told, &available, reusable, requested))
    }

    fn has(&self, uid: &str, container: &str, resource: &str) -> BTreeSet<String> {
        let held = self.manager.held.of(uid, container, resource).filter(|held| held.response.is_some());
        held.map(|held| held.devices.clone()).unwrap_or_default()
    }

    /// Takes devices for one container.
    ///
    /// # Errors
    /// In upstream's words.
    pub fn take(&mut self, uid: &str, container: &ContainerRequest, affinity: Option<NumaMask>) -> Result<(), String> {
        let running = (self.running)(uid);
        let requests: Vec<(String, usize)> =
            self.manager.requests(container).map(|(resource, number)| (resource.clone(), number)).collect();
        for (resource, number) in requests {
            let reusable = self.reusable(&resource);
            let wanted = Wanted { uid, container: &container.name, resource: &resource, required: number };
            self.manager.choose(&wanted, reusable, affinity, &running)?;
            let taken = self.manager.held.of(uid, &container.name, &resource).map(|held| held.devices.clone());
            leave(self.reusable.entry(resource).or_default(), container.kind, taken.unwrap_or_default());
        }
        Ok(())
    }
}

impl<M: DerefMut<Target = DeviceManager>> HintProvider for Admission<'_, M> {
    fn hints(&self, pod: &PodRequest, container: &ContainerRequest) -> ResourceHints {
        let hint = |(resource, number): (&String, usize)| {
            let has = self.has(&pod.uid, &container.name, resource);
            (resource.clone(), self.hint(resource, number, &has, &self.reusable(resource)))
        };
        self.manager.requests(container).map(hint).collect()
    }

    fn pod_hints(&self, pod: &PodRequest) -> ResourceHints {
        let hint = |(resource, number): (&String, &usize)| {
            let has = pod.containers.iter().flat_map(|c| self.has(&pod.uid, &c.name, resource)).collect();
            (resource.clone(), self.hint(resource, *number, &has, &BTreeSet::new()))
        };
        at_a_time(pod, |container| self.manager.requests(container).map(|(r, n)| (r.clone(), n)).collect())
            .iter()
            .map(hint)
            .collect()
    }

    fn allocate(&mut self, pod: &PodRequest, container: &ContainerRequest, best: Hint) -> Result<(), Refusal> {
        self.take(&pod.uid, container, best.affinity).map_err(Refusal::unexpected)
    }

    /// As upstream: plugins of such a pod are asked when its containers are made.
    fn allocate_pod(&mut self, _: &PodRequest, _: Hint) -> Result<(), Refusal> {
        Ok(())
    }
}

/// The most of each resource that a pod's containers have at a time.
fn at_a_time(
    pod: &PodRequest,
    requests: impl Fn(&ContainerRequest) -> BTreeMap<String, usize>,
) -> BTreeMap<String, usize> {
    let mut all: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for container in &pod.containers {
        for (resource, number) in requests(container) {
            let (standing, most) = all.entry(resource).or_default();
            if container.kind == Kind::Init {
                *most = (*most).max(standing.saturating_add(number));
            } else {
                *standing = standing.saturating_add(number);
                *most = (*most).max(*standing);
            }
        }
    }
    all.into_iter().map(|(resource, (_, most))| (resource, most)).collect()
}
