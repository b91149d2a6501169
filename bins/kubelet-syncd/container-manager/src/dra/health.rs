//! The health of devices as their drivers tell it, and what pods' statuses say of it (upstream `healthinfo.go`,
//! `UpdateAllocatedResourcesStatus`). Kept in memory alone: a stream begins with all devices of its driver.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus, ResourceHealth, ResourceStatus};

use super::book::{ClaimBook, ClaimKey};
use super::claims;
use crate::checkpoint::dra::Device;

/// How long a word counts for which its driver names no time.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a message that are shown.
const MAX_MESSAGE: usize = 1024;
/// Devices of a driver that are kept.
const MAX_DEVICES: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    Healthy,
    Unhealthy,
    #[default]
    Unknown,
}

impl Health {
    const fn as_str(self) -> &'static str {
        match self {
            Health::Healthy => "Healthy",
            Health::Unhealthy => "Unhealthy",
            Health::Unknown => "Unknown",
        }
    }
}

/// What a driver tells of one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    pub pool: String,
    pub device: String,
    pub health: Health,
    /// Seconds; 0 or less: the default.
    pub timeout_seconds: i64,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    health: Health,
    message: String,
    timeout: Duration,
    updated: Instant,
}

/// Pool and name.
pub type DeviceName = (String, String);

/// By driver.
#[derive(Debug, Clone, Default)]
pub struct HealthBook(BTreeMap<String, BTreeMap<DeviceName, Known>>);

/// As upstream: the cut is marked.
fn shortened(message: String) -> String {
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    let end = message.floor_char_boundary_at(MAX_MESSAGE - 3);
    format!("{}...", message.get(..end).unwrap_or_default())
}

/// `str::floor_char_boundary`, which is newer than our oldest compiler.
trait Boundary {
    fn floor_char_boundary_at(&self, at: usize) -> usize;
}

impl Boundary for str {
    fn floor_char_boundary_at(&self, at: usize) -> usize {
        (0..=at.min(self.len())).rev().find(|at| self.is_char_boundary(*at)).unwrap_or_default()
    }
}

impl HealthBook {
    /// A driver has told of all its devices. Answers those of which something else is true now; one that it does not name any more is
    /// unknown when its time is over.
    pub fn take(&mut self, driver: &str, reports: Vec<Report>, now: Instant) -> BTreeSet<DeviceName> {
        let known = self.0.entry(driver.to_owned()).or_default();
        let mut changed = BTreeSet::new();
        let mut told = BTreeSet::new();
        for report in reports.into_iter().take(MAX_DEVICES) {
            let name = (report.pool, report.device);
            let seconds = u64::try_from(report.timeout_seconds).ok().filter(|seconds| *seconds > 0);
            let timeout = seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
            let new = Known { health: report.health, message: shortened(report.message), timeout, updated: now };
            told.insert(name.clone());
            let old = known.insert(name.clone(), new.clone());
            if old != Some(Known { updated: old.as_ref().map_or(now, |old| old.updated), ..new }) {
                changed.insert(name);
            }
        }
        for (name, device) in known.iter_mut().filter(|(name, _)| !told.contains(*name)) {
            if device.health != Health::Unknown && now.duration_since(device.updated) > device.timeout {
                (device.health, device.message, device.updated) = (Health::Unknown, String::new(), now);
                changed.insert(name.clone());
            }
        }
        while known.len() > 2 * MAX_DEVICES {
            known.pop_last();
        }
        changed
    }

    /// The driver does not tell any more. Answers its devices.
    pub fn clear(&mut self, driver: &str) -> BTreeSet<DeviceName> {
        self.0.remove(driver).unwrap_or_default().into_keys().collect()
    }

    fn of(&self, driver: &str, device: &Device, now: Instant) -> (Health, Option<&str>) {
        let name = (device.pool_name.clone(), device.device_name.clone());
        let known = self.0.get(driver).and_then(|devices| devices.get(&name));
        match known.filter(|known| now.duration_since(known.updated) <= known.timeout) {
            Some(known) => (known.health, Some(known.message.as_str()).filter(|message| !message.is_empty())),
            None => (Health::Unknown, None),
        }
    }
}

/// Puts the health of the devices that each container has by its claims into a pod's status, beside what stands there already.
/// `messages`: the gate ResourceHealthStatusMessage.
pub fn show(pod: &Pod, status: &mut PodStatus, book: &ClaimBook, health: &HealthBook, messages: bool, now: Instant) {
    let Some(spec) = &pod.spec else { return };
    for shown in status.container_statuses.iter_mut().flatten() {
        let Some(container) = spec.containers.iter().find(|container| container.name == shown.name) else { continue };
        show_container(pod, container, shown, &|key: &ClaimKey, request: &str| {
            let devices = book.devices(key, request)?.into_iter();
            let mut ids = BTreeSet::new();
            let all = devices.map(|(driver, device)| {
                let (health, message) = health.of(driver, device, now);
                let first = device.cdi_device_ids.iter().flatten().next().cloned();
                let unnamed = || format!("{driver}/{}/{}", device.pool_name, device.device_name);
                ResourceHealth {
                    resource_id: first.unwrap_or_else(unnamed),
                    health: Some(health.as_str().to_owned()),
                    message: message.filter(|_| messages).map(str::to_owned),
                }
            });
            Some(all.filter(|one| ids.insert(one.resource_id.clone())).collect())
        });
    }
}

type DevicesOf<'a> = dyn Fn(&ClaimKey, &str) -> Option<Vec<ResourceHealth>> + 'a;

fn show_container(pod: &Pod, container: &Container, shown: &mut ContainerStatus, devices: &DevicesOf<'_>) {
    let resources = container.resources.as_ref();
    let wanted = resources.and_then(|resources| resources.claims.as_ref()).into_iter().flatten();
    let mut wanted = wanted.peekable();
    if wanted.peek().is_none() {
        return;
    }
    let entries = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let mut all = shown.allocated_resources_status.take().unwrap_or_default();
    for claim in wanted {
        let entry = entries.clone().find(|entry| entry.name == claim.name);
        let Some(named) = entry.and_then(|entry| claims::named(pod, entry).ok().flatten()) else { continue };
        let request = claim.request.as_deref().unwrap_or_default();
        // A request's alternatives are named behind a slash.
        let base = request.split('/').next().unwrap_or_default();
        let Some(found) = devices(&ClaimKey { namespace: namespace.clone(), name: named.object }, base) else {
            continue;
        };
        let name = match request {
            "" => format!("claim:{}", claim.name),
            request => format!("claim:{}/{request}", claim.name),
        };
        match all.iter_mut().find(|one| one.name == name) {
            Some(one) => one.resources = Some(found),
            None => all.push(ResourceStatus { name, resources: Some(found) }),
        }
    }
    all.retain(|one| one.resources.as_ref().is_some_and(|resources| !resources.is_empty()));
    shown.allocated_resources_status = Some(all).filter(|all| !all.is_empty());
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::checkpoint::dra::{ClaimState, DriverState};

    fn report(device: &str, health: Health, message: &str) -> Report {
        Report { pool: "n".into(), device: device.into(), health, message: message.into(), ..Report::default() }
    }

    fn names(of: BTreeSet<DeviceName>) -> Vec<String> {
        of.into_iter().map(|(_, device)| device).collect()
    }

    fn device(name: &str) -> Device {
        Device { pool_name: "n".into(), device_name: name.into(), ..Device::default() }
    }

    #[test]
    fn what_a_driver_tells_counts_for_its_time() {
        let (mut book, start) = (HealthBook::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let both = || vec![report("a", Health::Healthy, ""), report("b", Health::Unhealthy, "hot")];
        assert_eq!(names(book.take("d", both(), start)), ["a", "b"]);
        assert!(book.take("d", both(), after(1)).is_empty());
        assert_eq!(book.of("d", &device("b"), after(2)), (Health::Unhealthy, Some("hot")));
        assert_eq!(book.of("d", &device("b"), after(32)), (Health::Unknown, None));
        assert_eq!(book.of("e", &device("b"), after(2)).0, Health::Unknown);
        // One that is not named any more.
        assert!(book.take("d", vec![report("a", Health::Healthy, "")], after(20)).is_empty());
        assert_eq!(names(book.take("d", vec![report("a", Health::Healthy, "")], after(40))), ["b"]);
        let longer = Report { timeout_seconds: 300, ..report("a", Health::Healthy, "") };
        assert_eq!(names(book.take("d", vec![longer], after(41))), ["a"]);
        assert_eq!(book.of("d", &device("a"), after(300)).0, Health::Healthy);
        assert_eq!(names(book.clear("d")), ["a", "b"]);
        assert!(book.clear("d").is_empty());
        let long = report("c", Health::Unhealthy, &"\u{e9}".repeat(600));
        book.take("d", vec![long], start);
        let (_, message) = book.of("d", &device("c"), start);
        assert!(message.is_some_and(|m| m.len() <= 1024 && m.ends_with("\u{e9}...")), "{message:?}");
    }

    #[test]
    fn what_a_status_says() {
        let spec = json!({"containers": [
                {"name": "a", "resources": {"claims": [{"name": "gpu", "request": "r/first"}, {"name": "gpu"}, {"name": "none"}]}},
                {"name": "b"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}, {"name": "none", "resourceClaimTemplateName": "t"}]});
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec})).unwrap();
        let given = |name: &str, request: &str, cdi: Option<&str>| Device {
            request_names: Some(vec![request.to_owned()]),
            cdi_device_ids: cdi.map(|id| vec![id.to_owned()]),
            ..device(name)
        };
        let devices = vec![given("x", "r", Some("v/c=x")), given("y", "q", None), given("z", "q", Some("v/c=x"))];
        let book = ClaimBook::of(vec![ClaimState {
            claim_name: "c".into(),
            namespace: "ns".into(),
            driver_state: Some([("d".to_owned(), DriverState { devices: Some(devices) })].into()),
            ..ClaimState::default()
        }]);
        let (mut health, now) = (HealthBook::default(), Instant::now());
        health.take("d", vec![report("x", Health::Unhealthy, "hot"), report("y", Health::Healthy, "")], now);
        let shown = |messages: bool, before: &Value| {
            let container = |name: &str| {
                json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResourcesStatus": before})
            };
            let mut status: PodStatus =
                serde_json::from_value(json!({"containerStatuses": [container("a"), container("b")]})).unwrap();
            show(&pod, &mut status, &book, &health, messages, now);
            let of = |one: &ContainerStatus| serde_json::to_value(&one.allocated_resources_status).unwrap();
            status.container_statuses.unwrap().iter().map(of).collect::<Vec<_>>()
        };
        let x = json!({"resourceID": "v/c=x", "health": "Unhealthy", "message": "hot"});
        let y = json!({"resourceID": "d/n/y", "health": "Healthy"});
        let all = json!([{"name": "claim:gpu/r/first", "resources": [x]}, {"name": "claim:gpu", "resources": [x, y]}]);
        assert_eq!(shown(true, &Value::Null), [all, Value::Null]);
        let before = json!([{"name": "example.com/fpga", "resources": [{"resourceID": "0", "health": "Healthy"}]}]);
        let beside = shown(false, &before);
        assert_eq!(beside[0][0], before[0], "what device plugins say stays");
        assert_eq!(beside[0][1]["resources"][0], json!({"resourceID": "v/c=x", "health": "Unhealthy"}));
        assert_eq!(beside[1], before);
    }
}
