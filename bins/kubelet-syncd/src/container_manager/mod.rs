//! What containers have for themselves: CPUs and memory of NUMA nodes, devices of plugins, claims of drivers (upstream
//! `pkg/kubelet/cm`, decisions 75 and 79). The sync loop asks here when a pod is admitted and tells which pods there are; whoever
//! starts containers asks what they have ([`kubelet_runtime::runtime::run_options`]).
//!
//! CPUs and memory are [`kubelet_container_manager`]'s to decide. What is given beside them is a [`ResourceManager`]'s, one of each
//! kind, put in by [`ContainerManager::with`].

pub mod devices;
pub mod dra;
pub mod metrics;
pub mod news;
pub mod resource_manager;
pub mod state_files;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use bulkhead_config::cpu_set::CpuSet;
use bulkhead_types::{ContainerId, PodUid};
use futures_util::future::{BoxFuture, join_all, try_join_all};
use k8s_openapi::api::core::v1::ContainerStatus;
use kubelet_container_manager::ContainerManager as Managers;
use kubelet_container_manager::devices::Capacity;
use kubelet_container_manager::manager::{Allocation, CpuUpdate, Running};
use kubelet_container_manager::memory::Block;
use kubelet_container_manager::topology::{HintProvider, Refusal};
use kubelet_model::pod::spec::{containers, init_containers};
use kubelet_model::v1::{Container, Pod};
use kubelet_pod_resources::holds::{Allocatable, Holds, Memory};
use kubelet_runtime::runtime::result::ActionError;
use kubelet_runtime::runtime::run_options::{self, RunContainerOptions, WithoutQuota};
use parking_lot::Mutex;
use tokio::sync::watch;

pub use devices::DevicePlugins;
pub use metrics::AdmissionMetrics;
pub use news::News;
pub use resource_manager::ResourceManager;
pub use state_files::{StateFileError, StateFiles};

/// The managers behind one door.
#[derive(Debug, Default)]
pub struct ContainerManager {
    /// CPUs and memory.
    managers: Mutex<Managers>,
    /// Asked before those, in this order.
    others: Vec<Arc<dyn ResourceManager>>,
    /// None: nothing is written (tests).
    files: Option<StateFiles>,
    metrics: Option<AdmissionMetrics>,
    /// Somebody has got or given back CPUs or memory.
    changes: watch::Sender<()>,
    news: Arc<News>,
}

impl ContainerManager {
    pub fn new(managers: Managers, files: StateFiles, metrics: AdmissionMetrics) -> Self {
        metrics.begin(&managers);
        let (files, metrics) = (Some(files), Some(metrics));
        ContainerManager { managers: Mutex::new(managers), files, metrics, ..ContainerManager::default() }
    }

    /// Whose news are told: all managers' in one.
    #[must_use]
    pub fn told_by(mut self, news: Arc<News>) -> Self {
        self.news = news;
        self
    }

    /// Puts in a manager of something else, behind those that are there.
    #[must_use]
    pub fn with(mut self, manager: Arc<dyn ResourceManager>) -> Self {
        self.others.push(manager);
        self
    }

    /// Pods that are to be looked at again.
    pub fn news(&self) -> &News {
        &self.news
    }

    /// What the node has of resources that this pod asks for, as far as somebody here knows better than the Node's status.
    pub fn allocatable_for(&self, pod: &Pod) -> BTreeMap<String, u64> {
        self.others.iter().flat_map(|manager| manager.allocatable_for(pod)).collect()
    }

    /// What the Node's status says of resources of plugins.
    pub fn shown(&self) -> Vec<watch::Receiver<Capacity>> {
        self.others.iter().filter_map(|manager| manager.shown()).collect()
    }

    /// Puts the health of what containers were given into their statuses.
    pub fn show_health(&self, uid: &str, statuses: &mut [ContainerStatus]) {
        for status in statuses {
            let health: Vec<_> = self.others.iter().flat_map(|manager| manager.health(uid, &status.name)).collect();
            if !health.is_empty() {
                status.allocated_resources_status = Some(health);
            }
        }
    }

    /// What the pod waits for before it is decided on; None: nothing.
    pub fn until_decidable(&self, pod: &Arc<Pod>) -> Option<BoxFuture<'static, ()>> {
        let waits: Vec<_> = self.others.iter().filter_map(|manager| manager.until_decidable(pod)).collect();
        (!waits.is_empty()).then(|| -> BoxFuture<'static, ()> {
            Box::pin(async {
                join_all(waits).await;
            })
        })
    }

    /// Gives the pod what it asks for; one that has it keeps it (upstream's topology manager as a handler of admission).
    ///
    /// # Errors
    /// It cannot be had. The pod has nothing then.
    pub fn admit(&self, pod: &Pod) -> Result<(), Refusal> {
        let mut providers: Vec<Box<dyn HintProvider + '_>> =
            self.others.iter().filter_map(|manager| manager.hint_provider()).collect();
        let mut providers: Vec<&mut dyn HintProvider> =
            providers.iter_mut().map(|provider| &mut **provider as &mut dyn HintProvider).collect();
        let began = Instant::now();
        let mut managers = self.managers.lock();
        let before = managers.cpu().map(|cpu| cpu.counts).unwrap_or_default();
        let outcome = managers.admit(pod, &mut providers);
        let outcome = outcome.map(|given| given.values().any(|own| !own.cpus.is_empty() || !own.memory.is_empty()));
        if let Some(metrics) = &self.metrics {
            // Whole milliseconds, as upstream observes them.
            let (containers, took) = (containers(pod).len() + init_containers(pod).len(), began.elapsed().as_millis());
            metrics.admitted(&managers, before, containers, outcome.as_ref().err(), took as f64);
        }
        drop(managers);
        if outcome? {
            self.changes.send_replace(());
        }
        Ok(())
    }

    /// What is left to do for a pod that has been given what it asks for; None: nothing.
    pub fn complete(&self, pod: &Arc<Pod>) -> Option<BoxFuture<'static, Result<(), Refusal>>> {
        let left: Vec<_> = self.others.iter().filter_map(|manager| manager.complete(pod)).collect();
        (!left.is_empty()).then(|| -> BoxFuture<'static, Result<(), Refusal>> {
            Box::pin(async { try_join_all(left).await.map(|_| ()) })
        })
    }

    /// The pod is not admitted after all, and never ran: it gives back what it was given.
    pub fn take_back(&self, uid: &PodUid) {
        self.managers.lock().remove_pod(uid.as_str());
        self.changes.send_replace(());
        self.others.iter().for_each(|manager| manager.take_back(uid));
    }

    /// Nothing of the pod is left: what the managers of other things remember of it goes.
    pub fn forget(&self, uid: &PodUid) {
        self.others.iter().for_each(|manager| manager.forget(uid));
    }

    /// Takes back what containers have of which `is_active` (pod uid, container name) says no. Not before every source of pods has
    /// delivered.
    pub fn remove_stale(&self, is_active: &dyn Fn(&str, &str) -> bool) {
        if self.managers.lock().remove_stale(is_active) {
            self.changes.send_replace(());
        }
        self.others.iter().for_each(|manager| manager.remove_stale(is_active));
    }

    /// Changes when somebody has got or given back CPUs or memory.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// CPUs and memory that a container has for itself.
    pub fn allocation(&self, uid: &PodUid, container: &str) -> Allocation {
        self.managers.lock().allocation(uid.as_str(), container)
    }

    /// All that a container has for itself.
    pub fn holds(&self, pod: &Pod, container: &Container) -> Holds {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut holds = self.cpus_and_memory(uid, &container.name);
        self.others.iter().for_each(|manager| manager.holds(pod, container, &mut holds));
        holds
    }

    /// CPUs and memory alone, of which it is known who has them when his pod is not.
    pub fn cpus_and_memory(&self, uid: &str, container: &str) -> Holds {
        let Allocation { cpus, memory } = self.managers.lock().allocation(uid, container);
        Holds { cpus: cpus.iter().collect(), memory: memory.into_iter().map(block).collect(), ..Holds::default() }
    }

    /// Pod uid and name of every container that has CPUs or memory for itself.
    pub fn holders(&self) -> BTreeSet<(String, String)> {
        self.managers.lock().holders()
    }

    /// CPUs that containers can have for themselves at all.
    pub fn allocatable_cpus(&self) -> CpuSet {
        self.managers.lock().allocatable_cpus()
    }

    /// The same of memory.
    pub fn allocatable_memory(&self) -> Vec<Block> {
        self.managers.lock().allocatable_memory()
    }

    /// The same of everything, taken or not.
    pub fn allocatable(&self) -> Allocatable {
        let mut all = Allocatable {
            cpus: self.allocatable_cpus().iter().collect(),
            memory: self.allocatable_memory().into_iter().map(block).collect(),
            ..Allocatable::default()
        };
        self.others.iter().for_each(|manager| manager.allocatable(&mut all));
        all
    }

    /// Containers are put on certain CPUs.
    pub fn sets_cpus(&self) -> bool {
        self.managers.lock().cpu().is_some()
    }

    /// A container has been started: it may have been made for CPUs that it is no longer to have.
    pub fn started(&self) {
        if self.sets_cpus() {
            self.changes.send_replace(());
        }
    }

    /// Containers of these that run on other CPUs than they are to. What the runtime was told of pods that are not `known` is forgotten.
    pub fn plan(&self, known: &BTreeSet<PodUid>, running: &[Running]) -> Vec<CpuUpdate> {
        let mut managers = self.managers.lock();
        managers.retain(|uid| known.contains(uid), running);
        managers.plan(running)
    }

    /// The runtime has changed a container's CPUs.
    pub fn updated(&self, update: CpuUpdate) {
        self.managers.lock().updated(update);
    }

    /// Writes the state files, if they are not as the managers are.
    ///
    /// # Errors
    /// kubelet-volnetd is away or could not write.
    pub async fn write_files(&self) -> Result<(), StateFileError> {
        match &self.files {
            Some(files) => files.write(&self.managers).await,
            None => Ok(()),
        }
    }

    /// Before a container is made of what they say.
    async fn rely_on_files(&self) -> Result<(), ActionError> {
        if !self.managers.lock().gives() {
            return Ok(());
        }
        self.write_files().await.map_err(|error| {
            let message = format!("writing the state of the CPU and memory managers: {error}");
            ActionError { transient: true, ..ActionError::new("CreateContainerError", message) }
        })
    }
}

fn block(block: Block) -> Memory {
    Memory { kind: block.kind, bytes: block.size, nodes: block.nodes }
}

impl run_options::ContainerManager for ContainerManager {
    fn prepare_dynamic_resources<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            for manager in &self.others {
                manager.prepare_dynamic_resources(pod).await?;
            }
            Ok(())
        })
    }

    fn run_options<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a Container,
    ) -> BoxFuture<'a, Result<RunContainerOptions, ActionError>> {
        Box::pin(async move {
            let mut options = RunContainerOptions::default();
            for manager in &self.others {
                options.append(manager.run_options(pod, container).await?);
            }
            self.rely_on_files().await?;
            let (managers, uid) = (self.managers.lock(), pod.metadata.uid.as_deref().unwrap_or_default());
            options.cpuset_cpus = managers.cpuset_of(uid, &container.name).to_string();
            options.cpuset_mems = managers.memory_nodes_of(uid, &container.name);
            options.without_quota = managers.without_quota(pod).0.contains(&container.name);
            Ok(options)
        })
    }

    fn without_quota(&self, pod: &Pod) -> WithoutQuota {
        let (containers, pod) = self.managers.lock().without_quota(pod);
        WithoutQuota { containers, pod }
    }

    fn created(&self, pod: &Pod, container: &Container, id: &ContainerId, options: &RunContainerOptions) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let made = Running { uid, name: container.name.clone(), id: id.to_string() };
        let cpus = CpuSet::parse(&options.cpuset_cpus).unwrap_or_default();
        self.managers.lock().created(pod, &made, cpus);
        // What init containers before it had may be free now.
        if self.managers.lock().gives() {
            self.changes.send_replace(());
        }
        self.others.iter().for_each(|manager| manager.created(pod, container, id));
    }
}

#[cfg(test)]
mod tests;
