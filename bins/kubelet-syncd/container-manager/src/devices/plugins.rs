//! Resources of plugins: their devices, whether the plugin is there, and what of it the node's status shows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a resource whose plugin has gone stays in the node's capacity (upstream `endpointStopGracePeriod`).
pub const STOP_GRACE: Duration = Duration::from_secs(5 * 60);

/// Resources of plugins that are there at a time, those among them whose grace is not over.
pub const RESOURCES_MAX: usize = 128;

/// A device as its plugin tells it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device {
    pub healthy: bool,
    /// NUMA nodes; empty: the plugin tells of none.
    pub nodes: Vec<i64>,
}

/// By id.
pub type Devices = BTreeMap<String, Device>;

/// Which of the optional calls a plugin has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PluginOptions {
    pub pre_start: bool,
    pub preferred_allocation: bool,
}

/// The plugin of a resource.
#[derive(Debug, Clone, Copy)]
struct Endpoint {
    /// Of this registration; one of a restart's is 0.
    generation: u64,
    options: PluginOptions,
    /// It has told its devices.
    listed: bool,
    stopped: Option<Instant>,
}

#[derive(Debug, Default)]
struct Resource {
    /// As told last, also after the plugin has gone: statuses of pods go on saying it.
    told: Devices,
    /// Devices that can be had.
    healthy: BTreeSet<String>,
    unhealthy: BTreeSet<String>,
    /// It has told its devices, in this life or one before, and its grace is not over since.
    known: bool,
    /// Generation of the plugin that has registered it last in this life.
    came: Option<u64>,
    /// It has been `known`, or its plugin has gone before it told any device: the node shows it.
    shown: bool,
    /// None: its grace is over.
    endpoint: Option<Endpoint>,
    /// When that was found.
    gone: Option<Instant>,
}

/// What the node's status says of resources of plugins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Those that have gone for good stay with zero, as upstream's do, until others need their places here.
    pub capacity: BTreeMap<String, u64>,
    pub allocatable: BTreeMap<String, u64>,
}

/// All resources that a plugin has registered.
#[derive(Debug, Default)]
pub struct Plugins {
    resources: BTreeMap<String, Resource>,
    generations: u64,
}

impl Plugins {
    /// A resource of the checkpoint: its plugin has not come back yet.
    pub fn expect(&mut self, resource: &str, now: Instant) {
        let endpoint = Endpoint { generation: 0, options: PluginOptions::default(), listed: false, stopped: Some(now) };
        let found = self.resources.entry(resource.to_owned()).or_default();
        (found.endpoint, found.gone, found.known, found.shown) = (Some(endpoint), None, true, true);
    }

    /// A plugin may have the resource: there are not too many others.
    pub fn has_place(&self, resource: &str) -> bool {
        let there = self.resources.values().filter(|found| found.endpoint.is_some()).count();
        there < RESOURCES_MAX || self.is_registered(resource)
    }

    /// Before a plugin registers a resource: of those whose grace is over, and of which nobody has anything (`is_held`), as many are
    /// dropped as it takes, the one that has gone longest first. Answers them.
    pub fn make_room(&mut self, resource: &str, is_held: impl Fn(&str) -> bool) -> Vec<String> {
        let known = self.resources.len() + usize::from(!self.resources.contains_key(resource));
        let excess = known.saturating_sub(RESOURCES_MAX);
        if excess == 0 {
            return Vec::new();
        }
        let others = self.resources.iter().filter(|(name, _)| name.as_str() != resource && !is_held(name));
        let mut gone: Vec<(Instant, String)> = others
            .filter(|(_, found)| found.endpoint.is_none())
            .filter_map(|(name, found)| Some((found.gone?, name.clone())))
            .collect();
        gone.sort();
        let dropped: Vec<String> = gone.into_iter().take(excess).map(|(_, name)| name).collect();
        self.resources.retain(|name, _| !dropped.contains(name));
        dropped
    }

    /// A plugin has registered a resource. Answers its generation: what one before it says does not count any more.
    pub fn connect(&mut self, resource: &str, options: PluginOptions) -> u64 {
        self.generations += 1;
        let generation = self.generations;
        let endpoint = Endpoint { generation, options, listed: false, stopped: None };
        let found = self.resources.entry(resource.to_owned()).or_default();
        (found.endpoint, found.gone, found.came) = (Some(endpoint), None, Some(generation));
        generation
    }

    /// Generation of the plugin that has registered the resource last in this life, whether it is still there or not.
    pub fn last(&self, resource: &str) -> Option<u64> {
        self.resources.get(resource)?.came
    }

    /// Whether the plugin of a generation has told its devices; None: it may do so yet. One that has gone before, or whose resource
    /// another one has by now, has not.
    pub fn has_told(&self, resource: &str, generation: u64) -> Option<bool> {
        let endpoint = self.resources.get(resource).and_then(|found| found.endpoint);
        match endpoint.filter(|endpoint| endpoint.generation == generation) {
            Some(Endpoint { listed: true, .. }) => Some(true),
            Some(Endpoint { stopped: None, .. }) => None,
            _ => Some(false),
        }
    }

    fn of_generation(&mut self, resource: &str, generation: u64) -> Option<&mut Resource> {
        let found = self.resources.get_mut(resource)?;
        let current = found.endpoint.is_some_and(|e| e.generation == generation && e.stopped.is_none());
        current.then_some(found)
    }

    /// A plugin tells its devices. Answers those whose health is news: told before and different now, or not known before.
    /// None: another plugin has the resource by now.
    pub fn list(&mut self, resource: &str, generation: u64, devices: Devices) -> Option<Vec<String>> {
        let found = self.of_generation(resource, generation)?;
        if let Some(endpoint) = &mut found.endpoint {
            endpoint.listed = true;
        }
        (found.known, found.shown) = (true, true);
        let old = std::mem::replace(&mut found.told, devices);
        let is_news = |id: &str, device: &Device| old.get(id).is_none_or(|old| old.healthy != device.healthy);
        let news = found.told.iter().filter(|(id, device)| is_news(id, device)).map(|(id, _)| id.clone()).collect();
        let of =
            |healthy| found.told.iter().filter(move |(_, d)| d.healthy == healthy).map(|(id, _)| id.clone()).collect();
        (found.healthy, found.unhealthy) = (of(true), of(false));
        Some(news)
    }

    /// A plugin has gone: its devices cannot be had, and the node shows the resource though it never told any (upstream
    /// `markResourceUnhealthy`). False: another one has the resource by now.
    pub fn disconnect(&mut self, resource: &str, generation: u64, now: Instant) -> bool {
        let Some(found) = self.of_generation(resource, generation) else { return false };
        found.unhealthy.append(&mut found.healthy);
        found.shown = true;
        if let Some(endpoint) = &mut found.endpoint {
            endpoint.stopped = Some(now);
        }
        true
    }

    /// Forgets the devices of resources whose grace is over (upstream `GetCapacity`), and what was told of them once nobody has any
    /// (`is_held`). True: there was one, which the checkpoint has no more.
    pub fn forget(&mut self, now: Instant, is_held: impl Fn(&str) -> bool) -> bool {
        let mut any = false;
        for (name, resource) in &mut self.resources {
            let over = |stopped: Instant| now.saturating_duration_since(stopped) > STOP_GRACE;
            if resource.endpoint.is_some_and(|e| e.stopped.is_some_and(over)) {
                (resource.endpoint, resource.healthy, resource.unhealthy) = (None, BTreeSet::new(), BTreeSet::new());
                (resource.gone, resource.known, any) = (Some(now), false, true);
            }
            if resource.gone.is_some() && !is_held(name) {
                resource.told.clear();
            }
        }
        any
    }

    /// What the node's status says. Resources whose plugins are there and have not told their devices yet are not shown, those that are
    /// forgotten stay with zero.
    pub fn capacity(&self) -> Capacity {
        let mut shown = Capacity::default();
        for (name, resource) in self.resources.iter().filter(|(_, resource)| resource.shown) {
            let (healthy, unhealthy) = (resource.healthy.len() as u64, resource.unhealthy.len() as u64);
            shown.capacity.insert(name.clone(), healthy + unhealthy);
            shown.allocatable.insert(name.clone(), healthy);
        }
        shown
    }

    /// It is a plugin's, and its grace is not over.
    pub fn is_registered(&self, resource: &str) -> bool {
        self.resources.get(resource).is_some_and(|found| found.endpoint.is_some())
    }

    /// The plugin has gone or not told its devices yet, and may do so soon.
    pub fn is_coming_back(&self, resource: &str) -> bool {
        let endpoint = self.resources.get(resource).and_then(|found| found.endpoint);
        endpoint.is_some_and(|endpoint| endpoint.stopped.is_some() || !endpoint.listed)
    }

    /// Its plugin has gone, and its grace is not over.
    pub fn is_away(&self, resource: &str) -> bool {
        let endpoint = self.resources.get(resource).and_then(|found| found.endpoint);
        endpoint.is_some_and(|endpoint| endpoint.stopped.is_some())
    }

    /// Options of the plugin that serves a resource, with its generation; None: none does.
    pub fn serving(&self, resource: &str) -> Option<(u64, PluginOptions)> {
        let endpoint = self.resources.get(resource)?.endpoint.filter(|endpoint| endpoint.stopped.is_none())?;
        Some((endpoint.generation, endpoint.options))
    }

    /// The plugin that is to hear of each start of a container is not there.
    pub fn lacks_pre_start(&self, resource: &str) -> bool {
        let endpoint = self.resources.get(resource).and_then(|found| found.endpoint);
        endpoint.is_some_and(|endpoint| endpoint.stopped.is_some() && endpoint.options.pre_start)
    }

    pub fn healthy(&self, resource: &str) -> Option<&BTreeSet<String>> {
        self.resources.get(resource).filter(|found| found.known && found.endpoint.is_some()).map(|found| &found.healthy)
    }

    /// As told last.
    pub fn told(&self, resource: &str) -> Option<&Devices> {
        self.resources.get(resource).map(|found| &found.told)
    }

    /// Resource, id and what is told of every device that can be had.
    pub fn usable(&self) -> impl Iterator<Item = (&str, &str, &Device)> {
        self.resources.iter().flat_map(|(name, resource)| {
            let told = resource.told.iter().filter(|(id, _)| resource.healthy.contains(*id));
            told.map(move |(id, device)| (name.as_str(), id.as_str(), device))
        })
    }

    /// Resource to its devices that can be had, for the checkpoint.
    pub fn registered(&self) -> BTreeMap<String, Vec<String>> {
        let registered = self.resources.iter().filter(|(_, found)| found.known && found.endpoint.is_some());
        registered.map(|(name, found)| (name.clone(), found.healthy.iter().cloned().collect())).collect()
    }

    /// None has come, in this life or one before.
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }
}
