//! ResourceClaims: what the cluster has allocated and for whom it is reserved, what the drivers have prepared, what the checkpoint says,
//! and what must hold of it. What is prepared outlives its driver, as a driver's own checkpoint does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead_ipc::volnetd as api;
use bulkhead_ipc::volnetd::StateKind;
use serde_json::{Value, json};

use crate::claims_schedule::{DeviceClaim, Dra, DraFault, request_of};
use crate::node::ROOT;
use crate::schedule::Shape;
use crate::world::{Container, World};

/// A watcher of `plugins_registry`.
pub type Watcher = tokio::sync::mpsc::UnboundedSender<Result<api::WatchEvent, tonic::Status>>;

/// Its socket below `plugins_registry`.
pub fn registration(driver: Dra) -> String {
    format!("{}-reg.sock", driver.name())
}

/// Where it says that it listens.
pub fn endpoint(driver: Dra) -> String {
    format!("{ROOT}/plugins/{}/dra.sock", driver.name())
}

/// A claim as the API server has it, or had it last.
#[derive(Debug, Clone)]
pub struct Object {
    pub name: String,
    pub kind: DeviceClaim,
    pub is_allocated: bool,
    pub is_gone: bool,
    /// Uids of pods that it was ever reserved for.
    pub reserved: BTreeSet<String>,
}

/// A device that a driver has made ready.
#[derive(Debug, Clone)]
pub struct Given {
    pub device: String,
    /// None: it stands for all of them.
    pub requests: Vec<String>,
    pub cdi: Vec<String>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Claims {
    /// There are drivers.
    pub on: bool,
    /// By uid.
    pub objects: BTreeMap<String, Object>,
    /// Which claim, by its uid, an entry of a pod stands for: by pod and entry.
    pub of_pod: BTreeMap<(String, DeviceClaim), String>,
    /// By driver and the claim's uid.
    pub prepared: BTreeMap<(Dra, String), Vec<Given>>,
    /// Sockets of drivers in `plugins_registry`, by what tells one from the one before it.
    sockets: BTreeMap<Dra, u64>,
    last_socket: u64,
    pub watchers: Vec<Watcher>,
    pub faults: Vec<(Dra, DraFault)>,
    /// Pods that somebody is to delete, by uid, and whether by force.
    pub going: Vec<(String, bool)>,
    /// Claims that are to be made anew once nobody has them.
    pub renewed: BTreeSet<DeviceClaim>,
    /// The cluster's controllers do nothing until then.
    pub idle_until: Duration,
}

/// An entry of the checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Noted {
    pub pods: BTreeSet<String>,
    pub drivers: BTreeSet<String>,
}

fn event(change: api::watch_event::Change, name: &str, identity: &str) -> api::WatchEvent {
    api::WatchEvent {
        change: change.into(),
        name: name.to_owned(),
        identity: identity.to_owned(),
        ..Default::default()
    }
}

impl Claims {
    fn announce(&mut self, events: &[api::WatchEvent]) {
        self.watchers.retain(|watcher| events.iter().all(|event| watcher.send(Ok(event.clone())).is_ok()));
    }

    /// A driver has begun to listen.
    pub fn socket_comes(&mut self, driver: Dra) {
        use api::watch_event::Change;
        self.last_socket += 1;
        let identity = self.last_socket;
        let name = registration(driver);
        let before = self.sockets.insert(driver, identity);
        let removed = before.map(|_| event(Change::Removed, &name, ""));
        let events: Vec<_> = removed.into_iter().chain([event(Change::Added, &name, &identity.to_string())]).collect();
        self.announce(&events);
    }

    /// It takes its socket with it.
    pub fn socket_goes(&mut self, driver: Dra) {
        if self.sockets.remove(&driver).is_some() {
            self.announce(&[event(api::watch_event::Change::Removed, &registration(driver), "")]);
        }
    }

    /// The driver of this registration or endpoint, if its socket is there.
    pub fn at(&self, plugin: &api::PluginSocket) -> Option<Dra> {
        self.sockets
            .keys()
            .copied()
            .find(|driver| plugin.registration == registration(*driver) || plugin.endpoint == endpoint(*driver))
    }

    /// A watch begins.
    pub fn watch(&mut self, watcher: Watcher) {
        use api::watch_event::Change;
        let there =
            self.sockets.iter().map(|(driver, id)| event(Change::Added, &registration(*driver), &id.to_string()));
        for event in [event(Change::Rescan, "", "")].into_iter().chain(there).chain([event(Change::Listed, "", "")]) {
            // Its other end is the caller's.
            let _ = watcher.send(Ok(event));
        }
        self.watchers.push(watcher);
    }

    /// A fault that is meant for the next call of this driver.
    pub fn take_fault(&mut self, driver: Dra) -> Option<DraFault> {
        let place = self.faults.iter().position(|(of, _)| *of == driver)?;
        Some(self.faults.remove(place).1)
    }

    /// What a claim's devices are called for a container that asks for a request; empty: for all. None: a driver has not prepared it.
    fn cdi(&self, uid: &str, request: &str) -> Option<BTreeSet<String>> {
        let kind = self.objects.get(uid)?.kind;
        let mut all = BTreeSet::new();
        for driver in kind.drivers() {
            let given = self.prepared.get(&(driver, uid.to_owned()))?;
            let stands = |one: &&Given| {
                request.is_empty() || one.requests.is_empty() || one.requests.iter().any(|name| name == request)
            };
            all.extend(given.iter().filter(stands).flat_map(|one| one.cdi.clone()));
        }
        Some(all)
    }
}

/// Puts a pod's claims into its manifest.
pub fn put_into(pod: &mut Value, shape: &Shape) {
    if shape.device_claims.is_empty() {
        return;
    }
    let entry = |claim: &DeviceClaim| match claim.is_own() {
        true => json!({"name": claim.name(), "resourceClaimTemplateName": claim.name()}),
        false => json!({"name": claim.name(), "resourceClaimName": claim.name()}),
    };
    pod["spec"]["resourceClaims"] = shape.device_claims.iter().map(entry).collect();
    for list in ["initContainers", "containers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            let Some(request) = container["name"].as_str().and_then(request_of) else { continue };
            let of = |claim: &DeviceClaim| match request {
                "" => json!({"name": claim.name()}),
                request => json!({"name": claim.name(), "request": request}),
            };
            let claims: Value = shape.device_claims.iter().map(of).collect();
            container["resources"] = json!({"claims": claims});
        }
    }
}

impl World {
    /// `dra_manager_state`: by the claim's uid.
    pub(crate) fn noted_claims(&self) -> BTreeMap<String, Noted> {
        let found = self.resources.files.get(&i32::from(StateKind::DraManager));
        let file: Value = found.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
        let data: Value = serde_json::from_str(file["Data"].as_str().unwrap_or_default()).unwrap_or_default();
        let keys = |value: &Value| value.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect();
        let entries = data["ClaimInfoStateList"].as_array().into_iter().flatten();
        let entry = |entry: &Value| {
            let noted = Noted { pods: keys(&entry["PodUIDs"]), drivers: keys(&entry["DriverState"]) };
            (entry["ClaimUID"].as_str().unwrap_or_default().to_owned(), noted)
        };
        entries.map(entry).collect()
    }

    fn name_of_claim(&self, uid: &str) -> String {
        let name = self.claims.objects.get(uid).map_or("?", |object| object.name.as_str());
        format!("{name} ({})", uid.chars().take(8).collect::<String>())
    }

    fn is_over(&self, uid: &str) -> bool {
        self.told.get(uid).is_some_and(|told| matches!(told.phase.as_str(), "Succeeded" | "Failed"))
    }

    /// Before a container starts: all claims of its pod are prepared, and it gets what their drivers have given.
    pub(crate) fn check_claims_first(&mut self, container: &Container, shape: &Shape) {
        if shape.device_claims.is_empty() {
            return;
        }
        let (uid, name) = (container.uid().to_owned(), container.name().to_owned());
        let pod = self.short(&uid);
        let has: BTreeSet<String> = container.config.cdi_devices.iter().map(|device| device.name.clone()).collect();
        let mut should = BTreeSet::new();
        for claim in &shape.device_claims {
            let of_pod = self.claims.of_pod.get(&(uid.clone(), *claim));
            let request = request_of(&name);
            let Some(cdi) = of_pod.and_then(|of| self.claims.cdi(of, request.unwrap_or_default())) else {
                let text = format!("{name} of {pod} starts before its claim {} is prepared", claim.name());
                return self.breaks("claims-first", text);
            };
            should.extend(cdi.into_iter().filter(|_| request.is_some()));
        }
        if has != should {
            self.breaks("devices-as-given", format!("{name} of {pod} starts with {has:?}, and is to have {should:?}"));
        }
    }

    /// Before a driver makes a claim ready.
    pub(crate) fn check_prepare(&mut self, driver: Dra, uid: &str) {
        let claim = self.name_of_claim(uid);
        let Some(noted) = self.noted_claims().remove(uid).filter(|noted| noted.drivers.contains(driver.name())) else {
            let text = format!("{} is asked to prepare {claim}, and the checkpoint has nothing of it", driver.short());
            return self.breaks("written-first", text);
        };
        let object = self.claims.objects.get(uid);
        let is_of_driver = object.is_some_and(|object| object.kind.drivers().any(|of| of == driver));
        let stranger =
            noted.pods.iter().find(|pod| object.is_none_or(|object| !object.reserved.contains(*pod))).cloned();
        if noted.pods.is_empty() || !is_of_driver || stranger.is_some() {
            let whom = stranger.map_or_else(|| "nobody".to_owned(), |pod| self.short(&pod));
            let text = format!(
                "{} is asked to prepare {claim} for {whom}: it is not reserved or allocated so",
                driver.short()
            );
            self.breaks("reserved-first", text);
        }
        let name = self.claims.objects.get(uid).map(|object| object.name.clone());
        let same = |other: &String| other != uid && self.claims.objects.get(other).map(|o| &o.name) == name.as_ref();
        let older = self.claims.prepared.keys().find(|(of, other)| *of == driver && same(other)).cloned();
        if let Some((_, older)) = older {
            let text = format!("{claim} is prepared while {} is, of the same name", self.name_of_claim(&older));
            self.breaks("one-claim-a-name", text);
        }
    }

    /// Before a driver takes a claim back.
    pub(crate) fn check_unprepare(&mut self, driver: Dra, uid: &str) {
        if !self.claims.prepared.contains_key(&(driver, uid.to_owned())) {
            return;
        }
        let users = self.claims.of_pod.iter().filter(|(_, claim)| claim.as_str() == uid).map(|((pod, _), _)| pod);
        let users: Vec<String> = users.cloned().collect();
        for pod in users {
            let running =
                self.running(&pod).find(|container| !container.is_ghost).map(|c| format!("{} runs", c.name()));
            let may_start = self.wanted_by(&pod).is_some()
                && !self.is_over(&pod)
                && self.newest_sandbox(&pod).is_some_and(|sandbox| sandbox.ready);
            let why = running.or_else(|| may_start.then(|| "its containers may start".to_owned()));
            if let Some(why) = why {
                let text = format!(
                    "{} is taken back by {}, and of {}: {why}",
                    self.name_of_claim(uid),
                    driver.short(),
                    self.short(&pod)
                );
                self.breaks("claim-in-use", text);
            }
        }
    }

    /// Before a pod's object goes that nobody removed by force.
    pub(crate) fn check_given_back(&mut self, uid: &str, name: &str) {
        if !self.claims.on {
            return;
        }
        let noted = self.noted_claims();
        let still = noted.iter().find(|(_, noted)| noted.pods.contains(uid)).map(|(claim, _)| claim.clone());
        let own =
            self.claims.of_pod.iter().filter(|((pod, kind), _)| pod == uid && kind.is_own()).map(|(_, claim)| claim);
        let is_prepared = |own: &&String| self.claims.prepared.keys().any(|(_, claim)| claim == *own);
        let prepared = { own }.find(is_prepared).cloned();
        if let Some(claim) = still.or(prepared) {
            let text = format!("{name} is deleted before its claim {} is given back", self.name_of_claim(&claim));
            self.breaks("deleted-last", text);
        }
    }

    /// At the end: what pods have that run is prepared and written down, and nothing else.
    pub(crate) fn check_claims_end(&mut self) {
        let (mut should, mut noted) = (BTreeSet::new(), BTreeMap::<String, BTreeSet<String>>::new());
        let mut wrong = Vec::new();
        for (name, wanted) in &self.wanted {
            let Some(uid) = wanted.uid.as_deref().filter(|uid| !self.is_over(uid)) else { continue };
            for kind in &wanted.shape.device_claims {
                let Some(claim) = self.claims.of_pod.get(&(uid.to_owned(), *kind)) else {
                    wrong.push(("claims-as-desired", format!("{name} has no claim for {}", kind.name())));
                    continue;
                };
                should.extend(kind.drivers().map(|driver| (driver, claim.clone())));
                noted.entry(claim.clone()).or_default().insert(uid.to_owned());
            }
        }
        let is: BTreeSet<(Dra, String)> = self.claims.prepared.keys().cloned().collect();
        let lacking = should.difference(&is).map(|(driver, claim)| (driver.short(), self.name_of_claim(claim)));
        wrong.extend(
            lacking.map(|(driver, claim)| ("claims-as-desired", format!("{claim} is not prepared by {driver}"))),
        );
        let left = is.difference(&should).map(|(driver, claim)| (driver.short(), self.name_of_claim(claim)));
        wrong.extend(left.map(|(driver, claim)| ("claims-gone", format!("{claim} is still prepared by {driver}"))));
        let file: BTreeMap<String, BTreeSet<String>> =
            self.noted_claims().into_iter().map(|(claim, noted)| (claim, noted.pods)).collect();
        let all: BTreeSet<&String> = noted.keys().chain(file.keys()).collect();
        for claim in all {
            let (should, is) =
                (noted.get(claim).cloned().unwrap_or_default(), file.get(claim).cloned().unwrap_or_default());
            let name = self.name_of_claim(claim);
            if let Some(pod) = should.difference(&is).next() {
                let text = format!("the checkpoint has nothing of {name} for {}", self.short(pod));
                wrong.push(("claims-as-desired", text));
            }
            if is != should && should.is_subset(&is) {
                wrong
                    .push(("claims-gone", format!("the checkpoint still has {name} for {:?}", is.difference(&should))));
            }
        }
        for (check, text) in wrong {
            self.breaks(check, text);
        }
    }
}
