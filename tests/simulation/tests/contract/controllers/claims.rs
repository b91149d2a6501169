//! The cluster's controllers as far as ResourceClaims go by them, asked of the model and of kube-controller-manager and kube-scheduler on
//! a real control plane. There the test itself is the node and the DRA drivers: it tells of devices, and of how pods end.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_simulation::allocator::OF_ENTRY;
use bulkhead_simulation::apiserver::NODE;
use bulkhead_simulation::claims_schedule::{DeviceClaim, Dra};
use bulkhead_testkit::cluster::controllers_are_there;
use bulkhead_testkit::image;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::wait::{LONG, eventually};
use serde_json::{Value, json};

use super::{PODS, Subject};

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const CLASSES: &str = "/apis/resource.k8s.io/v1/deviceclasses";

/// The class that claims ask for.
const CLASS: &str = "simulated";
/// Of each driver: more than are claimed.
const DEVICES: u32 = 32;

/// Who looks after claims.
#[derive(Debug)]
struct Controllers(Subject);

#[test]
fn the_model_looks_after_claims() -> Result<()> {
    hold(&Controllers(Subject::model()?))
}

#[test]
fn the_control_plane_looks_after_claims_as_the_model_does() -> Result<()> {
    if !controllers_are_there() {
        return skip_this_test(Lack::ControlPlane);
    }
    hold(&Controllers(Subject::real()?))
}

fn hold(controllers: &Controllers) -> Result<()> {
    controllers.furnish()?;
    a_template_s_claim_comes_after_its_pod(controllers).context("a claim of a template")?;
    a_claim_is_for_all_who_want_it_until_they_have_ended(controllers).context("a shared claim")?;
    who_is_being_deleted_keeps_his_claim(controllers).context("a pod that is being deleted")?;
    who_is_gone_has_no_claim(controllers).context("a pod that is gone")?;
    controllers.0.is_content()
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"][key].as_str().unwrap_or_default()
}

/// Uids of those whom a claim is reserved for.
fn reserved(claim: &Value) -> BTreeSet<&str> {
    let all = claim["status"]["reservedFor"].as_array().into_iter().flatten();
    all.filter_map(|one| one["uid"].as_str()).collect()
}

impl Controllers {
    /// The node, what its drivers have, and claims that are shared by name.
    fn furnish(&self) -> Result<()> {
        let Controllers(subject) = self;
        subject.create(
            "/api/v1/nodes",
            &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
                "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "100"},
                    "capacity": {"cpu": "8", "memory": "8Gi", "pods": "100"}}}),
        )?;
        if let Subject::Model { model, .. } = subject {
            model.furnish_claims();
            return Ok(());
        }
        let kind = |kind: &str| json!({"apiVersion": "resource.k8s.io/v1", "kind": kind});
        let with = |mut object: Value, name: &str, spec: Value| {
            object["metadata"] = json!({"name": name});
            object["spec"] = spec;
            object
        };
        subject.create(CLASSES, &with(kind("DeviceClass"), CLASS, json!({})))?;
        for driver in Dra::ALL {
            let devices: Vec<Value> = (0..DEVICES).map(|number| json!({"name": format!("d{number}")})).collect();
            let pool = json!({"name": "node", "generation": 1, "resourceSliceCount": 1});
            let spec = json!({"driver": driver.name(), "pool": pool, "nodeName": NODE, "devices": devices});
            subject.create(SLICES, &with(kind("ResourceSlice"), driver.name(), spec))?;
        }
        for claim in DeviceClaim::ALL {
            let request = |(name, driver): (&str, Dra)| {
                let selector = format!("device.driver == {:?}", driver.name());
                json!({"name": name, "exactly": {"deviceClassName": CLASS,
                    "selectors": [{"cel": {"expression": selector}}]}})
            };
            let spec = json!({"devices": {"requests": claim.requests().map(request)}});
            match claim.is_own() {
                true => {
                    let template = with(kind("ResourceClaimTemplate"), claim.name(), json!({"spec": spec}));
                    subject.create(TEMPLATES, &template)?
                }
                false => subject.create(CLAIMS, &with(kind("ResourceClaim"), claim.name(), spec))?,
            };
        }
        Ok(())
    }

    /// A pod that wants these. To the model's it is bound from the beginning, as nobody there binds it.
    fn pod(&self, name: &str, claims: &[DeviceClaim]) -> Result<Value> {
        let entry = |claim: &DeviceClaim| {
            let by = if claim.is_own() { "resourceClaimTemplateName" } else { "resourceClaimName" };
            json!({"name": claim.name(), by: claim.name()})
        };
        let entries: Vec<Value> = claims.iter().map(entry).collect();
        let mut spec = json!({"automountServiceAccountToken": false, "resourceClaims": entries,
            // Nobody says that the node is ready.
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": image::BUSYBOX}]});
        if let Subject::Model { .. } = self.0 {
            spec["nodeName"] = json!(NODE);
        }
        self.0.create(PODS, &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}))
    }

    fn eventually<T>(&self, what: &str, mut look: impl FnMut() -> Result<T>) -> Result<T> {
        eventually(what, LONG, || {
            if let Subject::Model { model, .. } = &self.0 {
                model.allocate();
            }
            look()
        })
    }

    fn get(&self, path: &str) -> Result<Value> {
        self.0.get(path)?.with_context(|| format!("there is no {path}"))
    }

    fn claim(&self, name: &str) -> Result<Value> {
        self.get(&format!("{CLAIMS}/{name}"))
    }

    /// The name of the claim that a pod's entry stands for, as a node finds it.
    fn name_of(&self, pod: &str, claim: DeviceClaim) -> Result<String> {
        if !claim.is_own() {
            return Ok(claim.name().to_owned());
        }
        let pod = self.get(&format!("{PODS}/{pod}"))?;
        let mut told = pod["status"]["resourceClaimStatuses"].as_array().into_iter().flatten();
        let told = told.find(|one| one["name"] == claim.name()).with_context(|| format!("{}", pod["status"]))?;
        Ok(told["resourceClaimName"].as_str().context("no name")?.to_owned())
    }

    /// Until a pod may have its claim: allocated, reserved for it, and the pod on the node. Answers the claim.
    fn wait_reserved(&self, pod: &Value, claim: DeviceClaim) -> Result<Value> {
        let (name, uid) = (text(pod, "name"), text(pod, "uid"));
        self.eventually(&format!("{} of {name} is reserved", claim.name()), || {
            let found = self.claim(&self.name_of(name, claim)?)?;
            ensure!(self.get(&format!("{PODS}/{name}"))?["spec"]["nodeName"] == NODE, "it has no node");
            let results = found["status"]["allocation"]["devices"]["results"].as_array().context("not allocated")?;
            let wanted = claim.requests().map(|(request, driver)| (request, driver.name()));
            let told: Vec<_> = results.iter().map(|one| (one["request"].as_str(), one["driver"].as_str())).collect();
            ensure!(told == wanted.map(|(request, driver)| (Some(request), Some(driver))), "{told:?}");
            ensure!(results.iter().all(|one| one["pool"] == "node" && one["device"].is_string()), "{results:?}");
            let own = json!({"resource": "pods", "name": name, "uid": uid});
            let mut all = found["status"]["reservedFor"].as_array().into_iter().flatten();
            ensure!(all.any(|one| *one == own), "{}", found["status"]);
            Ok(found)
        })
    }

    fn wait_gone(&self, claim: &str) -> Result<()> {
        self.eventually(&format!("the claim {claim} goes"), || match self.0.get(&format!("{CLAIMS}/{claim}"))? {
            None => Ok(()),
            Some(claim) => bail!("{claim}"),
        })
    }

    /// Until a claim is nobody's any more; it is there, and allocated to nobody.
    fn wait_free(&self, claim: &Value) -> Result<()> {
        self.eventually("a claim is free", || {
            let now = self.claim(text(claim, "name"))?;
            ensure!(reserved(&now).is_empty() && now["status"]["allocation"].is_null(), "{}", now["status"]);
            ensure!(text(&now, "uid") == text(claim, "uid"), "it is another one");
            Ok(())
        })
    }

    fn ends(&self, pod: &Value, phase: &str) -> Result<()> {
        self.0.patch(&format!("{PODS}/{}/status", text(pod, "name")), &json!({"status": {"phase": phase}}))
    }
}

/// It is the pod's, has a name of its own that the pod's status tells, and goes when the pod has ended, though the pod's object is there.
fn a_template_s_claim_comes_after_its_pod(controllers: &Controllers) -> Result<()> {
    let pod = controllers.pod("own", &[DeviceClaim::Own, DeviceClaim::One, DeviceClaim::OwnBoth])?;
    for claim in [DeviceClaim::Own, DeviceClaim::OwnBoth] {
        let made = controllers.wait_reserved(&pod, claim)?;
        let of_pod = json!([{"apiVersion": "v1", "kind": "Pod", "name": "own", "uid": pod["metadata"]["uid"],
            "controller": true}]);
        ensure!(made["metadata"]["ownerReferences"] == of_pod, "{}", made["metadata"]);
        ensure!(made["metadata"]["annotations"][OF_ENTRY] == claim.name(), "{}", made["metadata"]);
        ensure!(text(&made, "name").starts_with(&format!("own-{}-", claim.name())), "{}", made["metadata"]);
        ensure!(reserved(&made) == [text(&pod, "uid")].into(), "{}", made["status"]);
    }
    let shared = controllers.wait_reserved(&pod, DeviceClaim::One)?;
    let owners = shared["metadata"]["ownerReferences"].as_array();
    ensure!(owners.is_none_or(Vec::is_empty), "{}", shared["metadata"]);
    // The pod's status tells of those alone that were made for it.
    let status = controllers.get(&format!("{PODS}/own"))?["status"].clone();
    let told = status["resourceClaimStatuses"].as_array().into_iter().flatten();
    let told: BTreeSet<&str> = told.filter_map(|one| one["name"].as_str()).collect();
    ensure!(told == [DeviceClaim::Own.name(), DeviceClaim::OwnBoth.name()].into(), "{status}");

    let names = [DeviceClaim::Own, DeviceClaim::OwnBoth].map(|claim| controllers.name_of("own", claim));
    controllers.ends(&pod, "Failed")?;
    for name in names {
        controllers.wait_gone(&name?)?;
    }
    // What the pod's status tells from then on is open: the real controller may see the claim's end before the pod's, and make another one.
    controllers.wait_free(&shared)
}

/// Allocated once; who has ended leaves it to the others.
fn a_claim_is_for_all_who_want_it_until_they_have_ended(controllers: &Controllers) -> Result<()> {
    let first = controllers.pod("first", &[DeviceClaim::Both])?;
    let before = controllers.wait_reserved(&first, DeviceClaim::Both)?;
    let second = controllers.pod("second", &[DeviceClaim::Both])?;
    let both = controllers.wait_reserved(&second, DeviceClaim::Both)?;
    ensure!(reserved(&both) == [text(&first, "uid"), text(&second, "uid")].into(), "{}", both["status"]);
    controllers.ends(&first, "Succeeded")?;
    let left = controllers.eventually("it is the other's alone", || {
        let now = controllers.claim(DeviceClaim::Both.name())?;
        ensure!(reserved(&now) == [text(&second, "uid")].into(), "{}", now["status"]);
        Ok(now)
    })?;
    for claim in [&both, &left] {
        ensure!(claim["status"]["allocation"] == before["status"]["allocation"], "{}", claim["status"]);
    }
    controllers.ends(&second, "Succeeded")?;
    controllers.wait_free(&before)
}

/// Until it has ended.
fn who_is_being_deleted_keeps_his_claim(controllers: &Controllers) -> Result<()> {
    let claims = [DeviceClaim::Two, DeviceClaim::Own];
    let pod = controllers.pod("goes", &claims)?;
    let before =
        claims.map(|claim| controllers.wait_reserved(&pod, claim)).into_iter().collect::<Result<Vec<Value>>>()?;
    controllers.0.delete_pod_within("goes", 600)?;
    // By the time at which another one has its own the controllers have seen that it is deleted.
    let other = controllers.pod("other", &[DeviceClaim::OwnBoth])?;
    controllers.wait_reserved(&other, DeviceClaim::OwnBoth)?;
    for claim in &before {
        let now = controllers.claim(text(claim, "name"))?;
        ensure!(now["status"] == claim["status"] && now["metadata"]["deletionTimestamp"].is_null(), "{now}");
    }
    ensure!(controllers.get(&format!("{PODS}/goes"))?["metadata"]["deletionTimestamp"].is_string());
    controllers.ends(&pod, "Failed")?;
    let [shared, own] = before.as_slice() else { bail!("{before:?}") };
    controllers.wait_gone(text(own, "name"))?;
    controllers.wait_free(shared)
}

/// Whatever it did when it went.
fn who_is_gone_has_no_claim(controllers: &Controllers) -> Result<()> {
    let pod = controllers.pod("gone", &[DeviceClaim::One, DeviceClaim::Own])?;
    let shared = controllers.wait_reserved(&pod, DeviceClaim::One)?;
    let own = controllers.wait_reserved(&pod, DeviceClaim::Own)?;
    controllers.0.delete_pod("gone")?;
    controllers.wait_gone(text(&own, "name"))?;
    controllers.wait_free(&shared)
}
