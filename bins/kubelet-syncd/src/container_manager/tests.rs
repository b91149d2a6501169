use std::sync::atomic::{AtomicU32, Ordering};

use kubelet_container_manager::manager::{Found, Settings};
use kubelet_container_manager::request::{ContainerRequest, PodRequest};
use kubelet_container_manager::topology::{Hint, Machine, ResourceHints};
use kubelet_runtime::runtime::run_options::ContainerManager as _;
use serde_json::json;

use super::*;

/// Has a number of things, and gives one to each container.
#[derive(Debug, Default)]
struct Things {
    left: AtomicU32,
    taken_back: AtomicU32,
}

struct Part<'a>(&'a Things);

impl HintProvider for Part<'_> {
    fn hints(&self, _: &PodRequest, _: &ContainerRequest) -> ResourceHints {
        ResourceHints::new()
    }

    fn pod_hints(&self, _: &PodRequest) -> ResourceHints {
        ResourceHints::new()
    }

    fn allocate(&mut self, _: &PodRequest, _: &ContainerRequest, _: Hint) -> Result<(), Refusal> {
        let less = self.0.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        less.map(|_| ()).map_err(|_| Refusal::unexpected("there is none left"))
    }

    fn allocate_pod(&mut self, _: &PodRequest, _: Hint) -> Result<(), Refusal> {
        Ok(())
    }
}

impl ResourceManager for Things {
    fn until_decidable(&self, pod: &Arc<Pod>) -> Option<BoxFuture<'static, ()>> {
        let waits = pod.metadata.name.as_deref() == Some("early");
        waits.then(|| -> BoxFuture<'static, ()> { Box::pin(async {}) })
    }

    fn hint_provider(&self) -> Option<Box<dyn HintProvider + '_>> {
        Some(Box::new(Part(self)))
    }

    fn complete(&self, pod: &Arc<Pod>) -> Option<BoxFuture<'static, Result<(), Refusal>>> {
        let fails = pod.metadata.name.as_deref() == Some("late");
        fails.then(|| -> BoxFuture<'static, Result<(), Refusal>> {
            Box::pin(async { Err(Refusal::unexpected("its plugin is gone")) })
        })
    }

    fn take_back(&self, _: &PodUid) {
        self.taken_back.fetch_add(1, Ordering::Relaxed);
    }

    fn run_options<'a>(
        &'a self,
        _: &'a Pod,
        _: &'a Container,
    ) -> BoxFuture<'a, Result<RunContainerOptions, ActionError>> {
        let cdi_devices = vec!["vendor.com/thing=1".to_owned()];
        Box::pin(async { Ok(RunContainerOptions { cdi_devices, ..RunContainerOptions::default() }) })
    }
}

fn pod(name: &str, cpus: &str) -> Arc<Pod> {
    let amounts = json!({"cpu": cpus, "memory": "1Mi"});
    let containers = json!([{"name": "main", "resources": {"requests": amounts, "limits": amounts}}]);
    let pod = json!({"metadata": {"name": name, "uid": name}, "spec": {"containers": containers}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn uid(name: &str) -> PodUid {
    PodUid::parse(name).unwrap()
}

/// Four CPUs, the first for the system.
fn manager(things: &Arc<Things>) -> ContainerManager {
    let mut settings = Settings { cpu_policy: "static".to_owned(), ..Settings::default() };
    settings.cpu_reservation.amount = Some(bulkhead_types::Quantity::from_i64(1));
    let core =
        |cpu| kubelet_container_manager::topology::machine::Core { socket: 0, threads: vec![cpu], uncore_cache: None };
    let node =
        kubelet_container_manager::topology::machine::Node { cores: (0..4).map(core).collect(), ..Default::default() };
    let machine = Machine { nodes: vec![node] };
    let managers = Managers::start(&settings, &machine, &Found::default(), &std::collections::BTreeMap::new()).unwrap();
    ContainerManager { managers: Mutex::new(managers), ..ContainerManager::default() }.with(things.clone())
}

#[tokio::test]
async fn what_a_pod_is_given_comes_of_all_managers() {
    let things = Arc::new(Things { left: AtomicU32::new(3), ..Things::default() });
    let manager = manager(&things);
    assert_eq!(manager.allocatable_cpus().to_string(), "1-3");
    manager.admit(&pod("a", "2")).unwrap();
    assert_eq!(manager.allocation(&uid("a"), "main").cpus.to_string(), "1-2");
    let refused = manager.admit(&pod("b", "2")).unwrap_err();
    assert_eq!(
        (refused.reason, refused.message.as_str()),
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to not enough cpus available to satisfy request: requested=2, available=1, which is unexpected"
        )
    );
    let a = pod("a", "2");
    let container = &a.spec.as_ref().unwrap().containers[0];
    let options = manager.run_options(&a, container).await.unwrap();
    assert_eq!((options.cpuset_cpus.as_str(), options.cdi_devices.len()), ("1-2", 1));
    manager.remove_stale(&|uid, _| uid == "a");
    assert_eq!(manager.allocation(&uid("a"), "main").cpus.len(), 2);
    manager.take_back(&uid("a"));
    assert!(manager.allocation(&uid("a"), "main").cpus.is_empty());
    assert_eq!(things.taken_back.load(Ordering::Relaxed), 1);
    // The third was the last that there was.
    manager.admit(&pod("c", "2")).unwrap();
    let refused = manager.admit(&pod("d", "1")).unwrap_err();
    assert_eq!(refused.message, "Allocate failed due to there is none left, which is unexpected");
    assert!(manager.allocation(&uid("d"), "main").cpus.is_empty());
}

#[tokio::test]
async fn what_takes_time_is_waited_for() {
    let manager = manager(&Arc::new(Things::default()));
    assert!(manager.until_decidable(&pod("a", "1")).is_none() && manager.complete(&pod("a", "1")).is_none());
    manager.until_decidable(&pod("early", "1")).unwrap().await;
    let refused = manager.complete(&pod("late", "1")).unwrap().await.unwrap_err();
    assert_eq!(refused.reason, "UnexpectedAdmissionError");
}
