//! The health of devices as their drivers tell it, and what pods' statuses say of it (upstream `healthinfo.go`,
//! `UpdateAllocatedResourcesStatus`). Times are those of a clock that only goes on; in the file they are those of the day.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus, ResourceHealth, ResourceStatus};
use kubelet_model::v1::{Container, Pod};

use super::book::{ClaimBook, ClaimKey};
use super::claims;
use crate::checkpoint::dra::Device;
use crate::checkpoint::dra_health::{DeviceHealth, DriverHealth, Drivers};

/// How long a word counts for which its driver names no time.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a message that are shown.
const MAX_MESSAGE: usize = 1024;
/// Devices of a driver that count in one word of it; as many again are kept that it named before.
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

    fn of(text: &str) -> Self {
        match text {
            "Healthy" => Health::Healthy,
            "Unhealthy" => Health::Unhealthy,
            _ => Health::Unknown,
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
    /// When it was told that stands in the file.
    filed: Option<Instant>,
}

impl Known {
    fn says(&self) -> (Health, &str, Duration) {
        (self.health, self.message.as_str(), self.timeout)
    }

    fn counts(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.updated) <= self.timeout
    }
}

/// Pool and name.
pub type DeviceName = (String, String);

/// By driver.
#[derive(Debug, Clone, Default)]
pub struct HealthBook {
    drivers: BTreeMap<String, BTreeMap<DeviceName, Known>>,
    unsaved: bool,
}

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
    /// A driver has told of all its devices. Answers those of which something else is true now. One that it does not name any more goes
    /// when its time is over: what is not here reads as what upstream keeps as unknown.
    pub fn take(&mut self, driver: &str, reports: Vec<Report>, now: Instant) -> BTreeSet<DeviceName> {
        let known = self.drivers.entry(driver.to_owned()).or_default();
        let mut changed = BTreeSet::new();
        let mut told = BTreeSet::new();
        for report in reports.into_iter().take(MAX_DEVICES) {
            let name = (report.pool, report.device);
            let seconds = u64::try_from(report.timeout_seconds).ok().filter(|seconds| *seconds > 0);
            let timeout = seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
            let message = shortened(report.message);
            let mut new = Known { health: report.health, message, timeout, updated: now, filed: None };
            told.insert(name.clone());
            match known.get(&name) {
                Some(old) if old.says() == new.says() => {
                    new.filed = old.filed;
                    // What the file says is to count for some time yet when this process begins anew.
                    let is_old = |filed| now.saturating_duration_since(filed) > timeout / 2;
                    self.unsaved |= old.filed.is_none_or(is_old);
                }
                _ => {
                    changed.insert(name.clone());
                }
            }
            known.insert(name, new);
        }
        let mut untold: Vec<(Instant, DeviceName)> = Vec::new();
        let mut over = Vec::new();
        for (name, device) in known.iter().filter(|(name, _)| !told.contains(*name)) {
            if device.counts(now) {
                untold.push((device.updated, name.clone()));
            } else {
                over.push(name.clone());
            }
        }
        // The oldest word goes first.
        untold.sort();
        untold.truncate((known.len() - over.len()).saturating_sub(2 * MAX_DEVICES));
        for name in untold.into_iter().map(|(_, name)| name).chain(over) {
            if known.remove(&name).is_some_and(|device| device.health != Health::Unknown) {
                changed.insert(name);
            }
            self.unsaved = true;
        }
        self.unsaved |= !changed.is_empty();
        changed
    }

    /// The driver does not tell any more. Answers its devices.
    pub fn clear(&mut self, driver: &str) -> BTreeSet<DeviceName> {
        let Some(known) = self.drivers.remove(driver) else { return BTreeSet::new() };
        self.unsaved = true;
        known.into_keys().collect()
    }

    /// Whether [`HealthBook::file`] would say something that its last answer does not.
    pub fn is_unsaved(&self) -> bool {
        self.unsaved
    }

    /// What the file is to say. `now` and `day` are the same moment.
    pub fn file(&mut self, now: Instant, day: Timestamp) -> Drivers {
        self.unsaved = false;
        let entry = |((pool, name), known): (&DeviceName, &mut Known)| {
            known.filed = Some(known.updated);
            let health = DeviceHealth {
                pool_name: pool.clone(),
                device_name: name.clone(),
                health: known.health.as_str().to_owned(),
                last_updated: day.checked_sub(now.saturating_duration_since(known.updated)).unwrap_or(day),
                health_check_timeout: i64::try_from(known.timeout.as_nanos()).unwrap_or(i64::MAX),
                message: known.message.clone(),
            };
            (format!("{pool}/{name}"), health)
        };
        let of = |(driver, known): (&String, &mut BTreeMap<DeviceName, Known>)| {
            (driver.clone(), DriverHealth { devices: Some(known.iter_mut().map(entry).collect()) })
        };
        self.drivers.iter_mut().map(of).collect()
    }

    /// The file could not be written.
    pub fn not_saved(&mut self) {
        self.unsaved = true;
    }

    /// What the file of a life before this one says, of drivers that have not told anything since. What was told too long ago to count
    /// is left out; what was told in the future, before the clock was set back, counts from now on.
    pub fn restore(&mut self, drivers: Drivers, now: Instant, day: Timestamp) {
        for (driver, told) in drivers {
            if self.drivers.contains_key(&driver) {
                continue;
            }
            let known = told.devices.into_iter().flatten().take(MAX_DEVICES).filter_map(|(_, device)| {
                let timeout = u64::try_from(device.health_check_timeout).ok().filter(|nanos| *nanos > 0);
                let age = Duration::try_from(day.duration_since(device.last_updated)).unwrap_or_default();
                let updated = now.checked_sub(age)?;
                let known = Known {
                    health: Health::of(&device.health),
                    message: shortened(device.message),
                    timeout: timeout.map_or(DEFAULT_TIMEOUT, Duration::from_nanos),
                    updated,
                    filed: Some(updated),
                };
                known.counts(now).then_some(((device.pool_name, device.device_name), known))
            });
            let known: BTreeMap<DeviceName, Known> = known.collect();
            if !known.is_empty() {
                self.drivers.insert(driver, known);
            }
        }
    }

    fn of(&self, driver: &str, device: &Device, now: Instant) -> (Health, Option<&str>) {
        let name = (device.pool_name.clone(), device.device_name.clone());
        let known = self.drivers.get(driver).and_then(|devices| devices.get(&name));
        match known.filter(|known| known.counts(now)) {
            Some(known) => (known.health, Some(known.message.as_str()).filter(|message| !message.is_empty())),
            None => (Health::Unknown, None),
        }
    }
}

/// How names of what claims give begin in a status.
const CLAIM: &str = "claim:";

/// Which devices a pod has is not known yet: its status says of claims what it said last.
pub fn keep(pod: &Pod, status: &mut PodStatus) {
    let said: Vec<_> = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten()).collect();
    for shown in status.container_statuses.iter_mut().flatten() {
        let last = said.iter().find(|last| last.name == shown.name);
        let mut kept: Vec<ResourceStatus> = last
            .iter()
            .flat_map(|last| last.allocated_resources_status.iter().flatten())
            .filter(|one| one.name.starts_with(CLAIM))
            .cloned()
            .collect();
        let all = shown.allocated_resources_status.get_or_insert_with(Vec::new);
        all.retain(|one| !one.name.starts_with(CLAIM));
        all.append(&mut kept);
        shown.allocated_resources_status = shown.allocated_resources_status.take().filter(|all| !all.is_empty());
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
            "" => format!("{CLAIM}{}", claim.name),
            request => format!("{CLAIM}{}/{request}", claim.name),
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
        assert_eq!(names(book.clear("d")), ["a"]);
        assert!(book.clear("d").is_empty());
        let long = report("c", Health::Unhealthy, &"\u{e9}".repeat(600));
        book.take("d", vec![long], start);
        let (_, message) = book.of("d", &device("c"), start);
        assert!(message.is_some_and(|m| m.len() <= 1024 && m.ends_with("\u{e9}...")), "{message:?}");
    }

    #[test]
    fn devices_that_are_not_named_any_more_push_out_none_that_is() {
        let (mut book, start) = (HealthBook::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let word = |prefix: &str, timeout_seconds| -> Vec<Report> {
            let one = |n| Report { timeout_seconds, ..report(&format!("{prefix}{n:04}"), Health::Healthy, "") };
            (0..MAX_DEVICES).map(one).collect()
        };
        // Under ever new names, which come before the one that stays.
        book.take("d", word("a", 30), start);
        book.take("d", word("b", 30), after(100));
        assert_eq!(book.drivers["d"].len(), MAX_DEVICES, "what does not count any more is not kept");
        book.file(after(100), Timestamp::UNIX_EPOCH);
        assert!(!book.is_unsaved());
        // Those whose word counts for long: the oldest goes.
        book.take("d", word("c", 3600), after(110));
        let changed = book.take("d", vec![report("z", Health::Unhealthy, "hot")], after(120));
        assert_eq!(changed.len(), 2);
        assert!(changed.contains(&("n".to_owned(), "b0000".to_owned())), "it is unknown from now on");
        assert_eq!(book.of("d", &device("b0000"), after(120)).0, Health::Unknown);
        assert_eq!(book.of("d", &device("b0001"), after(120)).0, Health::Healthy);
        assert_eq!(book.of("d", &device("z"), after(120)), (Health::Unhealthy, Some("hot")));
    }

    #[test]
    fn what_was_told_counts_in_the_next_life_too() {
        let (now, day) = (Instant::now(), Timestamp::from_second(1_800_000_000).unwrap());
        let later = |seconds| (now + Duration::from_secs(seconds), day + Duration::from_secs(seconds));
        let mut book = HealthBook::default();
        assert!(!book.is_unsaved());
        let long = Report { timeout_seconds: 300, ..report("b", Health::Healthy, "") };
        let both = || vec![report("a", Health::Unhealthy, "hot"), long.clone()];
        book.take("d", both(), now);
        assert!(book.is_unsaved());
        let (at, of_day) = later(10);
        let file = book.file(at, of_day);
        assert_eq!(file["d"].devices.as_ref().unwrap()["n/a"].last_updated, day);
        assert!(!book.is_unsaved());
        // The same again: written when what the file says is half over.
        book.take("d", both(), later(11).0);
        assert!(!book.is_unsaved());
        book.take("d", both(), later(16).0);
        assert!(book.is_unsaved());

        let next_life = |seconds| {
            let (mut book, (at, of_day)) = (HealthBook::default(), later(seconds));
            book.take("here", vec![report("a", Health::Healthy, "")], at);
            let mut file = file.clone();
            file.insert("here".to_owned(), file["d"].clone());
            book.restore(file, at, of_day);
            let of = |driver: &str, name: &str| book.of(driver, &device(name), at).0;
            (of("d", "a"), of("d", "b"), of("here", "a"))
        };
        use Health::{Healthy, Unhealthy, Unknown};
        assert_eq!(next_life(20), (Unhealthy, Healthy, Healthy));
        assert_eq!(next_life(40), (Unknown, Healthy, Healthy));
        assert_eq!(next_life(400), (Unknown, Unknown, Healthy));
        // The clock was set back by an hour meanwhile.
        let mut book = HealthBook::default();
        book.restore(file.clone(), now, day - Duration::from_secs(3600));
        assert_eq!(book.of("d", &device("a"), later(30).0).0, Unhealthy);
        assert_eq!(book.of("d", &device("a"), later(31).0).0, Unknown);
        assert_eq!(names(book.clear("d")), ["a", "b"]);
        assert!(book.is_unsaved() && book.file(now, day).is_empty());
    }

    #[test]
    fn what_a_status_said_stays_until_more_is_known() {
        let before = json!([{"name": "claim:gpu", "resources": [{"resourceID": "x", "health": "Healthy"}]},
            {"name": "example.com/fpga", "resources": [{"resourceID": "0", "health": "Healthy"}]}]);
        let status = |name: &str, said: &Value| {
            json!({"containerStatuses": [{"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResourcesStatus": said}]})
        };
        let pod: Pod = serde_json::from_value(json!({"status": status("a", &before)})).unwrap();
        let kept = |name: &str, now: Value| {
            let mut now: PodStatus = serde_json::from_value(status(name, &now)).unwrap();
            keep(&pod, &mut now);
            serde_json::to_value(&now.container_statuses.unwrap()[0].allocated_resources_status).unwrap()
        };
        assert_eq!(kept("a", Value::Null), json!([before[0]]));
        assert_eq!(kept("a", json!([before[1]])), json!([before[1], before[0]]));
        assert_eq!(kept("b", Value::Null), Value::Null);
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
