//! What the cluster's scheduler and controllers do about ResourceClaims (upstream `pkg/controller/resourceclaim`): claims of templates
//! come after their pods, whose status names them; claims are allocated and reserved for pods that want them; who has ended loses the
//! reservation, what nobody uses is deallocated, and what was made for a pod that has ended is deleted. One thing may come long before
//! the next, as it does where other controllers are busy.

use std::collections::BTreeSet;
use std::time::Duration;

use bulkhead_simulation_kernel as kernel;
use serde_json::{Value, json};

use crate::apiserver::Model;
use crate::claims::Object;
use crate::claims_schedule::DeviceClaim;

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// Which entry of its pod a claim was made for (upstream podResourceClaimAnnotation).
pub const OF_ENTRY: &str = "resource.kubernetes.io/pod-claim-name";

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"][key].as_str().unwrap_or_default()
}

/// As upstream's isPodDone, of a pod that has a node.
fn is_done(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn owner(claim: &Value) -> Option<&str> {
    claim["metadata"]["ownerReferences"][0]["uid"].as_str()
}

fn consumers(claim: &Value) -> Vec<Value> {
    claim["status"]["reservedFor"].as_array().cloned().unwrap_or_default()
}

impl Model {
    /// Claims that are there from the beginning.
    pub fn furnish_claims(&self) {
        for claim in DeviceClaim::SHARED {
            self.make_claim(claim, claim.name(), json!({}));
        }
    }

    /// `metadata`: what it has beside its name.
    fn make_claim(&self, kind: DeviceClaim, name: &str, mut metadata: Value) {
        metadata["name"] = json!(name);
        metadata["namespace"] = json!("default");
        let request = |(name, _)| json!({"name": name, "exactly": {"deviceClassName": "simulated"}});
        let requests: Value = kind.requests().into_iter().map(request).collect();
        let made = self.must(
            "POST",
            CLAIMS,
            &json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": metadata,
                "spec": {"devices": {"requests": requests}}}),
        );
        let object =
            Object { name: name.to_owned(), kind, is_allocated: false, is_gone: false, reserved: BTreeSet::new() };
        let mut world = self.world().lock();
        world.tell("controller", format!("there is a claim {name}"));
        world.claims.objects.insert(text(&made, "uid").to_owned(), object);
    }

    fn delete_claim(&self, claim: &Value) {
        let name = text(claim, "name");
        self.must("DELETE", &format!("{CLAIMS}/{name}"), &Value::Null);
        let mut world = self.world().lock();
        world.tell("controller", format!("deletes the claim {name}"));
        if let Some(object) = world.claims.objects.get_mut(text(claim, "uid")) {
            object.is_gone = true;
        }
    }

    /// Something that may come later. True: it comes now.
    fn comes_now(&self, later: &mut bool) -> bool {
        let now = self.world().lock().dice.percent(60);
        *later |= !now;
        now
    }

    /// One pass of all controllers. Answers when there is to be another one without any news.
    pub fn allocate(&self) -> Option<Duration> {
        let idle = self.world().lock().claims.idle_until;
        if idle > kernel::now() {
            return Some(idle);
        }
        let pods = self.items(PODS);
        let mut later = false;
        self.release(&pods);
        for pod in pods.iter().filter(|pod| !is_done(pod) && !pod["metadata"]["deletionTimestamp"].is_string()) {
            self.claims_of_template(pod, &mut later);
        }
        // Those that go may still wait for theirs.
        for pod in pods.iter().filter(|pod| !is_done(pod)) {
            self.reserve(text(pod, "name"), &mut later);
        }
        later.then(|| {
            let late = self.world().lock().dice.between(20, 3_000);
            kernel::now() + Duration::from_millis(late)
        })
    }

    /// Who has ended or is gone has no claim any more.
    fn release(&self, pods: &[Value]) {
        let users: BTreeSet<&str> = pods.iter().filter(|pod| !is_done(pod)).map(|pod| text(pod, "uid")).collect();
        for claim in self.items(CLAIMS) {
            let before = consumers(&claim);
            let uses = |one: &&Value| one["uid"].as_str().is_some_and(|uid| users.contains(uid));
            let now: Vec<Value> = before.iter().filter(uses).cloned().collect();
            let name = text(&claim, "name");
            if now.len() < before.len() {
                let mut status = json!({"reservedFor": now});
                let mut world = self.world().lock();
                world.tell("controller", format!("the claim {name} is reserved for {} pods", now.len()));
                if now.is_empty() {
                    status["allocation"] = Value::Null;
                    if let Some(object) = world.claims.objects.get_mut(text(&claim, "uid")) {
                        object.is_allocated = false;
                    }
                }
                drop(world);
                self.put_status(&format!("{CLAIMS}/{name}"), &status);
            }
            if !now.is_empty() {
                continue;
            }
            let kind = self.world().lock().claims.objects.get(text(&claim, "uid")).map(|object| object.kind);
            let Some(kind) = kind else { continue };
            if kind.is_own() && owner(&claim).is_some_and(|owner| !users.contains(owner)) {
                self.delete_claim(&claim);
            }
            if !kind.is_own() && self.world().lock().claims.renewed.remove(&kind) {
                self.delete_claim(&claim);
                self.make_claim(kind, name, json!({}));
            }
        }
    }

    /// Claims of the pod's templates come, and its status names them.
    fn claims_of_template(&self, pod: &Value, later: &mut bool) {
        let mut statuses = pod["status"]["resourceClaimStatuses"].as_array().cloned().unwrap_or_default();
        let before = statuses.len();
        for entry in pod["spec"]["resourceClaims"].as_array().into_iter().flatten() {
            let name = entry["name"].as_str().unwrap_or_default();
            let Some(kind) = DeviceClaim::named(name).filter(|kind| kind.is_own()) else { continue };
            if statuses.iter().any(|one| one["name"] == name) || !self.comes_now(later) {
                continue;
            }
            let object = self.world().lock().next_id(&format!("{}-{name}-", text(pod, "name")));
            let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": text(pod, "name"), "uid": text(pod, "uid"),
                "controller": true}]);
            let metadata = json!({"ownerReferences": owners, "annotations": {OF_ENTRY: name}});
            self.make_claim(kind, &object, metadata);
            statuses.push(json!({"name": name, "resourceClaimName": object}));
        }
        if statuses.len() > before {
            let path = format!("{PODS}/{}", text(pod, "name"));
            self.put_status(&path, &json!({"resourceClaimStatuses": statuses}));
        }
    }

    /// Claims that the pod names are allocated, and reserved for it.
    fn reserve(&self, pod: &str, later: &mut bool) {
        // As it is now.
        let Ok(pod) = self.request("GET", &format!("{PODS}/{pod}"), &Value::Null) else { return };
        for entry in pod["spec"]["resourceClaims"].as_array().into_iter().flatten() {
            let name = entry["name"].as_str().unwrap_or_default();
            let statuses = pod["status"]["resourceClaimStatuses"].as_array();
            let made = statuses.into_iter().flatten().find(|one| one["name"] == name);
            let named = entry["resourceClaimName"].as_str();
            let object = named.or_else(|| made.and_then(|made| made["resourceClaimName"].as_str()));
            let (Some(object), Some(kind)) = (object, DeviceClaim::named(name)) else { continue };
            let path = format!("{CLAIMS}/{object}");
            let Ok(claim) = self.request("GET", &path, &Value::Null) else { continue };
            let mut reserved = consumers(&claim);
            let is_reserved = reserved.iter().any(|one| one["uid"] == pod["metadata"]["uid"]);
            // One that is being deleted is given to nobody else.
            if is_reserved || self.world().lock().claims.renewed.contains(&kind) || !self.comes_now(later) {
                continue;
            }
            let is_allocated = claim["status"]["allocation"].is_object();
            let mut status = json!({});
            if !is_allocated {
                let result = |(request, driver): (&str, crate::claims_schedule::Dra)| {
                    json!({"request": request, "driver": driver.name(), "pool": "node",
                        "device": format!("{object}-{request}")})
                };
                let results: Value = kind.requests().into_iter().map(result).collect();
                status["allocation"] = json!({"devices": {"results": results}});
            }
            let uid = text(&claim, "uid").to_owned();
            // Mostly both at once, as the scheduler does it.
            let reserves = is_allocated || self.world().lock().dice.percent(70);
            if reserves {
                reserved.push(json!({"resource": "pods", "name": text(&pod, "name"), "uid": pod["metadata"]["uid"]}));
                status["reservedFor"] = json!(reserved);
            }
            *later |= !reserves;
            self.put_status(&path, &status);
            let mut world = self.world().lock();
            let what = if reserves { "is allocated and reserved for" } else { "is allocated for" };
            world.tell("controller", format!("the claim {object} {what} {}", text(&pod, "name")));
            let Some(found) = world.claims.objects.get_mut(&uid) else { continue };
            found.is_allocated = true;
            if reserves {
                found.reserved.insert(text(&pod, "uid").to_owned());
                world.claims.of_pod.insert((text(&pod, "uid").to_owned(), kind), uid);
            }
        }
    }

    fn put_status(&self, path: &str, status: &Value) {
        let kind = "application/merge-patch+json";
        let body = json!({"status": status}).to_string();
        if let Err(refusal) = self.ask("PATCH", &format!("{path}/status"), kind, body.as_bytes()) {
            self.world().lock().breaks("no-end", format!("the model refuses a patch of {path}: {refusal}"));
        }
    }
}
