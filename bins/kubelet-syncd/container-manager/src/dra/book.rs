//! The claims that pods of this node use (upstream `claiminfo.go`): who uses each, what its drivers have given, and whether they were
//! asked to prepare it. It is written down before a driver is asked, so that whatever may be prepared is unprepared some day.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkpoint::dra::{ClaimState, Device, DriverState};

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimKey {
    pub namespace: String,
    pub name: String,
}

/// A claim as a driver is told of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AskedClaim {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl AskedClaim {
    pub fn key(&self) -> ClaimKey {
        ClaimKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

/// What each driver is asked in one call, by its name.
pub type Batches = BTreeMap<String, Vec<AskedClaim>>;

/// Why the book refuses; upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BookError {
    #[error(
        "old ResourceClaim with same name {name} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    OldClaim { name: String, uid: String },
    #[error("internal error: unable to get claim info for ResourceClaim {name} in namespace {namespace}")]
    Unknown { namespace: String, name: String },
}

/// What the end of a pod, or of its hold on claims, comes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ending {
    pub batches: Batches,
    /// Claims that nobody has any more once the drivers have done that.
    pub last: Vec<ClaimKey>,
    /// Claims that others still have.
    pub shared: Vec<ClaimKey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    state: ClaimState,
    /// All its drivers have answered, in the life of this process: what a file says was perhaps never finished.
    prepared: bool,
    /// Its drivers have been asked to take it back since: some of them may have done so.
    withdrawn: bool,
}

impl Entry {
    fn asked(&self) -> AskedClaim {
        AskedClaim {
            namespace: self.state.namespace.clone(),
            name: self.state.claim_name.clone(),
            uid: self.state.claim_uid.clone(),
        }
    }

    fn has_pod(&self, uid: &str) -> bool {
        self.state.pod_uids.as_ref().is_some_and(|uids| uids.contains_key(uid))
    }

    fn drivers(&self) -> impl Iterator<Item = (&String, &DriverState)> {
        self.state.driver_state.iter().flatten()
    }

    fn add_to(&self, batches: &mut Batches) {
        for (driver, _) in self.drivers() {
            batches.entry(driver.clone()).or_default().push(self.asked());
        }
    }
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimBook(BTreeMap<ClaimKey, Entry>);

fn key_of(state: &ClaimState) -> ClaimKey {
    ClaimKey { namespace: state.namespace.clone(), name: state.claim_name.clone() }
}

impl ClaimBook {
    /// As a file has it.
    pub fn of(states: Vec<ClaimState>) -> Self {
        let entry = |state: ClaimState| (key_of(&state), Entry { state, prepared: false, withdrawn: false });
        ClaimBook(states.into_iter().map(entry).collect())
    }

    /// For a file.
    pub fn states(&self) -> Vec<ClaimState> {
        self.0.values().map(|entry| entry.state.clone()).collect()
    }

    /// A pod is about to use these claims, each with the pod among its users. Answers which drivers have to prepare what: nothing of
    /// what is prepared already. Nothing changes when one is refused.
    ///
    /// # Errors
    /// There is an older claim of that name.
    pub fn begin(&mut self, claims: Vec<ClaimState>) -> Result<Batches, BookError> {
        let old = claims.iter().find_map(|claim| {
            let entry = self.0.get(&key_of(claim)).filter(|entry| entry.state.claim_uid != claim.claim_uid)?;
            Some(BookError::OldClaim { name: claim.claim_name.clone(), uid: entry.state.claim_uid.clone() })
        });
        if let Some(old) = old {
            return Err(old);
        }
        let mut batches = Batches::new();
        let mut seen = BTreeSet::new();
        for claim in claims {
            let key = key_of(&claim);
            let users = claim.pod_uids.clone().unwrap_or_default();
            let entry =
                self.0.entry(key.clone()).or_insert_with(|| Entry { state: claim, prepared: false, withdrawn: false });
            entry.state.pod_uids.get_or_insert_default().extend(users);
            if (!entry.prepared || entry.withdrawn) && seen.insert(key) {
                entry.add_to(&mut batches);
            }
        }
        Ok(batches)
    }

    /// What a driver has given for a claim, in place of what it gave before.
    ///
    /// # Errors
    /// There is no such claim.
    pub fn give(&mut self, key: &ClaimKey, driver: &str, devices: Vec<Device>) -> Result<(), BookError> {
        let Some(entry) = self.0.get_mut(key) else {
            return Err(BookError::Unknown { namespace: key.namespace.clone(), name: key.name.clone() });
        };
        let devices = Some(devices).filter(|devices| !devices.is_empty());
        entry.state.driver_state.get_or_insert_default().insert(driver.to_owned(), DriverState { devices });
        Ok(())
    }

    /// All drivers of these claims have answered.
    pub fn set_prepared<'a>(&mut self, keys: impl IntoIterator<Item = &'a ClaimKey>) {
        for key in keys {
            if let Some(entry) = self.0.get_mut(key) {
                entry.prepared = true;
                entry.withdrawn = false;
            }
        }
    }

    /// Names of what the runtime is to make available for a request of a claim; an empty one means all of its requests.
    ///
    /// # Errors
    /// There is no such claim.
    pub fn cdi_devices(&self, key: &ClaimKey, request: &str) -> Result<Vec<String>, BookError> {
        let Some(entry) = self.0.get(key) else {
            return Err(BookError::Unknown { namespace: key.namespace.clone(), name: key.name.clone() });
        };
        let devices = entry.drivers().flat_map(|(_, driver)| driver.devices.iter().flatten());
        let asked = devices.filter(|device| is_for(device, request));
        Ok(asked.flat_map(|device| device.cdi_device_ids.iter().flatten()).cloned().collect())
    }

    /// The devices that stand for a request of a claim, each with its driver; `None`: there is no such claim.
    pub fn devices(&self, key: &ClaimKey, request: &str) -> Option<Vec<(&str, &Device)>> {
        let entry = self.0.get(key)?;
        let all = entry.drivers().flat_map(|(driver, state)| {
            let devices = state.devices.iter().flatten();
            devices.map(move |device| (driver.as_str(), device))
        });
        Some(all.filter(|(_, device)| is_for(device, request)).collect())
    }

    /// The claims that a pod has hold of.
    pub fn of_pod(&self, uid: &str) -> Vec<ClaimKey> {
        self.0.iter().filter(|(_, entry)| entry.has_pod(uid)).map(|(key, _)| key.clone()).collect()
    }

    /// Pods that have hold of a claim.
    pub fn pods(&self) -> BTreeSet<&str> {
        self.0.values().flat_map(|entry| entry.state.pod_uids.iter().flatten()).map(|(uid, _)| uid.as_str()).collect()
    }

    /// Pods that have one of these devices of a driver: pool and name.
    pub fn pods_of_devices(&self, driver: &str, devices: &BTreeSet<(String, String)>) -> BTreeSet<String> {
        let has = |entry: &&Entry| {
            let state = entry.state.driver_state.as_ref().and_then(|all| all.get(driver));
            let mut given = state.into_iter().flat_map(|state| state.devices.iter().flatten());
            given.any(|device| devices.contains(&(device.pool_name.clone(), device.device_name.clone())))
        };
        let entries = self.0.values().filter(has);
        entries.flat_map(|entry| entry.state.pod_uids.iter().flatten()).map(|(uid, _)| uid.clone()).collect()
    }

    /// What has to be done for a pod that has ended. The book changes with [`ClaimBook::end`].
    pub fn ending(&self, uid: &str) -> Ending {
        let mut ending = Ending::default();
        for (key, entry) in self.0.iter().filter(|(_, entry)| entry.has_pod(uid)) {
            if entry.state.pod_uids.as_ref().is_some_and(|uids| uids.len() > 1) {
                ending.shared.push(key.clone());
            } else {
                entry.add_to(&mut ending.batches);
                ending.last.push(key.clone());
            }
        }
        ending
    }

    /// Before drivers are asked for that: until all of them have answered nobody knows who has taken what back, and a pod that begins to
    /// use such a claim meanwhile has it prepared again.
    pub fn withdraw(&mut self, ending: &Ending) {
        for key in &ending.last {
            if let Some(entry) = self.0.get_mut(key) {
                entry.withdrawn = true;
            }
        }
    }

    /// The pod has let go of its claims, and what is nobody's any more is unprepared. A claim that somebody else has begun to use
    /// since [`ClaimBook::ending`] stays, and is to be prepared again.
    pub fn end(&mut self, uid: &str, ending: &Ending) {
        for key in ending.shared.iter().chain(&ending.last) {
            if let Some(entry) = self.0.get_mut(key)
                && let Some(uids) = &mut entry.state.pod_uids
            {
                uids.remove(uid);
            }
        }
        for key in &ending.last {
            match self.0.get_mut(key) {
                Some(entry) if entry.state.pod_uids.as_ref().is_some_and(|uids| !uids.is_empty()) => {
                    entry.prepared = false;
                }
                _ => {
                    self.0.remove(key);
                }
            }
        }
    }

    /// How many claims are prepared: by driver, and of all (`dra_resource_claims_in_use`).
    pub fn in_use(&self) -> (BTreeMap<&str, usize>, usize) {
        let mut counts = BTreeMap::new();
        let prepared = self.0.values().filter(|entry| entry.prepared);
        let mut all = 0;
        for entry in prepared {
            all += 1;
            for (driver, _) in entry.drivers() {
                *counts.entry(driver.as_str()).or_default() += 1;
            }
        }
        (counts, all)
    }
}

fn is_for(device: &Device, request: &str) -> bool {
    let names = device.request_names.as_deref().unwrap_or_default();
    request.is_empty() || names.is_empty() || names.iter().any(|name| name == request)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::checkpoint::dra::Member;

    fn users<const N: usize>(uids: [&str; N]) -> Option<BTreeMap<String, Member>> {
        Some(uids.map(|uid| (uid.to_owned(), Member {})).into())
    }

    fn claim(name: &str, pod: &str, drivers: &[&str]) -> ClaimState {
        ClaimState {
            claim_uid: format!("uid-of-{name}"),
            claim_name: name.into(),
            namespace: "ns".into(),
            pod_uids: users([pod]),
            driver_state: Some(drivers.iter().map(|d| ((*d).to_owned(), DriverState::default())).collect()),
        }
    }

    fn key(name: &str) -> ClaimKey {
        ClaimKey { namespace: "ns".into(), name: name.into() }
    }

    fn device(name: &str, requests: &[&str], ids: &[&str]) -> Device {
        Device {
            pool_name: "node".into(),
            device_name: name.into(),
            request_names: Some(requests.iter().map(ToString::to_string).collect()),
            cdi_device_ids: Some(ids.iter().map(ToString::to_string).collect()),
            share_id: None,
        }
    }

    fn asked(batches: &Batches) -> Vec<String> {
        let names = |all: &Vec<AskedClaim>| all.iter().map(|one| one.name.clone()).collect::<Vec<_>>().join("+");
        batches.iter().map(|(driver, all)| format!("{driver}: {}", names(all))).collect()
    }

    #[test]
    fn a_shared_claim_is_prepared_once_and_unprepared_last() {
        let mut book = ClaimBook::default();
        let batches = book.begin(vec![claim("c", "p1", &["a", "b"]), claim("d", "p1", &["b"])]).unwrap();
        assert_eq!(asked(&batches), ["a: c", "b: c+d"]);
        book.give(&key("c"), "a", vec![device("d0", &["r1"], &["v/c=0"]), device("d1", &["r2"], &["v/c=1", "v/c=2"])])
            .unwrap();
        // Asked again after a failure elsewhere, it answers the same once more: that is no second device.
        book.give(&key("c"), "a", vec![device("d0", &["r1"], &["v/c=0"]), device("d1", &["r2"], &["v/c=1", "v/c=2"])])
            .unwrap();
        book.give(&key("c"), "b", vec![device("e", &[], &["w/c=0"])]).unwrap();
        let again = book.begin(vec![claim("c", "p2", &["a", "b"])]).unwrap();
        assert_eq!(asked(&again), ["a: c", "b: c"], "not all have answered yet");
        book.set_prepared([&key("c"), &key("d")]);
        assert_eq!(book.begin(vec![claim("c", "p3", &["a", "b"])]).unwrap(), Batches::new());
        assert_eq!(book.cdi_devices(&key("c"), "").unwrap(), ["v/c=0", "v/c=1", "v/c=2", "w/c=0"]);
        assert_eq!(book.cdi_devices(&key("c"), "r2").unwrap(), ["v/c=1", "v/c=2", "w/c=0"]);
        assert!(book.cdi_devices(&key("none"), "").is_err());
        assert_eq!(book.in_use(), (BTreeMap::from([("a", 1), ("b", 2)]), 2));
        let of = BTreeSet::from([("node".to_owned(), "d1".to_owned())]);
        assert_eq!(book.pods_of_devices("a", &of), ["p1", "p2", "p3"].map(str::to_owned).into());
        assert!(book.pods_of_devices("b", &of).is_empty());
        for uid in ["p1", "p2"] {
            let ending = book.ending(uid);
            assert_eq!(asked(&ending.batches), if uid == "p1" { vec!["b: d".to_owned()] } else { vec![] });
            book.end(uid, &ending);
        }
        assert_eq!(book.ending("p2"), Ending::default(), "once is enough");
        let ending = book.ending("p3");
        assert_eq!(asked(&ending.batches), ["a: c", "b: c"]);
        book.end("p3", &ending);
        assert_eq!(book, ClaimBook::default());
    }

    #[test]
    fn another_claim_of_the_same_name() {
        let mut book = ClaimBook::of(vec![claim("c", "p1", &["a"])]);
        let mut other = claim("c", "p2", &["a"]);
        other.claim_uid = "other".into();
        let before = book.clone();
        let error = book.begin(vec![claim("d", "p2", &["a"]), other]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "old ResourceClaim with same name c and different UID uid-of-c still exists (previous pod force-deleted?!)"
        );
        assert_eq!(book, before, "nothing of the pod is in it");
    }

    #[test]
    fn what_a_file_has_is_known_and_prepared_again() {
        let mut book = ClaimBook::of(vec![claim("c", "p1", &["a"])]);
        book.give(&key("c"), "a", vec![device("d", &[], &["v/c=0"])]).unwrap();
        let mut book = ClaimBook::of(book.states());
        assert_eq!(book.cdi_devices(&key("c"), "r").unwrap(), ["v/c=0"], "a container may start again");
        assert_eq!(book.in_use().1, 0);
        assert_eq!(asked(&book.begin(vec![claim("c", "p1", &["a"])]).unwrap()), ["a: c"]);
    }

    #[test]
    fn a_claim_that_is_taken_up_again_while_it_is_unprepared() {
        let mut book = ClaimBook::of(vec![claim("c", "p1", &["a"])]);
        book.set_prepared([&key("c")]);
        let ending = book.ending("p1");
        assert_eq!(book.begin(vec![claim("c", "p2", &["a"])]).unwrap(), Batches::new());
        book.end("p1", &ending);
        assert_eq!(book.pods(), BTreeSet::from(["p2"]));
        assert_eq!(asked(&book.begin(vec![claim("c", "p2", &["a"])]).unwrap()), ["a: c"]);
    }

    #[test]
    fn a_claim_whose_return_has_failed_is_prepared_again_for_who_comes() {
        let mut book = ClaimBook::of(vec![claim("c", "p1", &["a"]), claim("d", "p1", &["b"])]);
        let _ = book.begin(vec![claim("e", "p1", &["a"]), claim("e", "p2", &["a"])]).unwrap();
        book.set_prepared([&key("c"), &key("d"), &key("e")]);
        let ending = book.ending("p1");
        book.withdraw(&ending);
        // Driver b does not answer; a has taken c back, and is not asked for e, which p2 has.
        assert_eq!(book.in_use().1, 3, "they count until it is done");
        assert_eq!(asked(&book.begin(vec![claim("c", "p2", &["a"]), claim("e", "p2", &["a"])]).unwrap()), ["a: c"]);
        book.set_prepared([&key("c")]);
        assert_eq!(book.begin(vec![claim("c", "p3", &["a"])]).unwrap(), Batches::new(), "once is enough");
        let again = book.ending("p1");
        assert_eq!((asked(&again.batches), again.shared), (vec!["b: d".to_owned()], vec![key("c"), key("e")]));
    }

    proptest! {
        /// Whatever pods do, a claim is in the book exactly as long as a pod has hold of it, and is unprepared with the last.
        #[test]
        fn nothing_leaks(steps in prop::collection::vec((any::<bool>(), 0..4_usize, prop::collection::btree_set(0..3_usize, 1..3)), 0..40)) {
            let mut book = ClaimBook::default();
            let mut holds: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for (begins, pod, claims) in steps {
                let pod = format!("p{pod}");
                if begins {
                    let names: BTreeSet<String> = claims.iter().map(|n| format!("c{n}")).collect();
                    let all = names.iter().map(|name| claim(name, &pod, &["a"])).collect();
                    let batches = book.begin(all).unwrap();
                    let keys: Vec<ClaimKey> = batches.values().flatten().map(AskedClaim::key).collect();
                    for key in &keys {
                        prop_assert!(!holds.values().any(|names| names.contains(&key.name)), "prepared twice");
                    }
                    book.set_prepared(&keys);
                    holds.entry(pod).or_default().extend(names);
                } else {
                    let ending = book.ending(&pod);
                    let had = holds.remove(&pod).unwrap_or_default();
                    let last: BTreeSet<String> = ending.last.iter().map(|key| key.name.clone()).collect();
                    let want = had.into_iter().filter(|name| !holds.values().any(|names| names.contains(name))).collect();
                    prop_assert_eq!(last, want);
                    book.end(&pod, &ending);
                }
                let known: BTreeSet<String> = book.states().into_iter().map(|state| state.claim_name).collect();
                prop_assert_eq!(known, holds.values().flatten().cloned().collect::<BTreeSet<_>>());
            }
        }
    }
}
