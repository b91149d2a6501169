//! Claims of DRA drivers on a runtime that knows CDI: prepared before a pod begins, given to the containers that ask for them, taken
//! back when it ends, over restarts and drivers that are away.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cluster::{Storage, controllers_are_there};
use bulkhead_testkit::dra::DraDriver;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::wait::holds_for;
use bulkhead_testkit::{IDLE, LONG, Lab, Release, eventually};
use bulkhead_tests::joined::claims::{self, GROUP};
use bulkhead_tests::joined::{Member, NAMESPACE, NODE, wait_node};
use bulkhead_tests::lab_on;
use serde_json::{Value, json};

use crate::DRA_DRIVER;

fn slice(name: &str, node: &str, driver: &str) -> Value {
    json!({"apiVersion": GROUP, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": {"driver": driver, "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d"}]}})
}

/// Creates a claim for the requests `a` and `b` and allocates it from drivers, as a scheduler does.
fn claim(member: &Member, name: &str, drivers: &[&str]) -> Result<()> {
    claims::allocated(&member.cluster, NODE, name, &["a", "b"], drivers)
}

/// See [`claims::schedule`].
fn schedule(member: &Member, name: &str, names: &[&str], extended: Option<(&str, Value)>, spec: &Value) -> Result<()> {
    claims::schedule(&member.cluster, &member.node, name, names, extended, spec)
}

/// A pod whose container `main` has one request of each claim.
fn simple(member: &Member, name: &str, claims: &[&str]) -> Result<()> {
    let wanted: Vec<Value> = claims.iter().map(|claim| json!({"name": claim, "request": "a"})).collect();
    let spec = json!({"containers": [{"name": "main", "resources": {"claims": wanted}}]});
    schedule(member, name, claims, None, &spec)
}

/// What a container has of drivers.
fn devices(member: &Member, pod: &str, container: &str) -> Result<Vec<String>> {
    let said = member.exec(pod, container, &["env"])?;
    let mut found: Vec<String> = said.lines().filter(|line| line.starts_with("DRA_")).map(str::to_owned).collect();
    found.sort();
    Ok(found)
}

fn state_file(member: &Member) -> Result<String> {
    let path = member.node.root_dir().join("dra_manager_state");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let file: Value = serde_json::from_str(&text)?;
    file["Data"].as_str().map(str::to_owned).context("no data")
}

fn delete(member: &Member, name: &str) -> Result<()> {
    member.cluster.delete("pods", NAMESPACE, name, None)
}

fn start(lab: &Lab, objects: &[Value]) -> Result<Member> {
    Member::start(lab, objects, |node| node.config("syncFrequency", json!("20s")))
}

#[test]
fn pods_get_the_devices_of_their_claims_and_give_them_back() -> Result<()> {
    let Some(lab) = lab_on(Release::V2_1)? else { return Ok(()) };
    let slices = [slice("stale", NODE, "gone.test"), slice("elsewhere", "beta", "gone.test")];
    let mut member = start(&lab, &slices)?;
    let one = DraDriver::start(DRA_DRIVER, &lab, &member.node, "one.test", "v1.DRAPlugin")?;
    let mut old = DraDriver::start(DRA_DRIVER, &lab, &member.node, "old.test", "v1beta1.DRAPlugin")?;
    // No driver has registered when a node starts: nothing may be placed for what it had before.
    member.cluster.wait_gone("resourceslices", "", "stale")?;
    ensure!(member.cluster.find("resourceslices", "", "elsewhere")?.is_some());

    // === What each container gets ===
    claim(&member, "own", &["one.test"])?;
    claim(&member, "shared", &["one.test", "old.test"])?;
    claim(&member, "extended", &["one.test"])?;
    one.health(&json!({"own-a": "Healthy", "own-b": "Healthy"}))?;
    let spec = json!({
        "initContainers": [{"name": "side", "restartPolicy": "Always", "resources": {"claims": [{"name": "own", "request": "b"}]}}],
        "containers": [
            {"name": "main", "resources": {"claims": [{"name": "own", "request": "a"}, {"name": "shared"}]}},
            {"name": "extends", "resources": {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}},
            {"name": "plain"}]});
    let mapping = json!([{"containerName": "extends", "resourceName": "example.com/gpu", "requestName": "b"}]);
    schedule(&member, "first", &["own", "shared"], Some(("extended", mapping)), &spec)?;
    simple(&member, "second", &["shared"])?;
    member.wait_ready("first")?;
    member.wait_ready("second")?;
    let all = |pod: &str, container: &str| devices(&member, pod, container);
    ensure!(all("first", "side")? == ["DRA_ONE_TEST_OWN_B=yes"], "{:?}", all("first", "side")?);
    let main = all("first", "main")?;
    ensure!(main.contains(&"DRA_ONE_TEST_OWN_A=yes".to_owned()) && main.len() == 5, "{main:?}");
    ensure!(all("first", "extends")? == ["DRA_ONE_TEST_EXTENDED_B=yes"], "{:?}", all("first", "extends")?);
    ensure!(all("first", "plain")?.is_empty() && all("second", "main")?.len() == 2);
    let prepared: Vec<String> = one.claims_of("NodePrepareResources")?.concat();
    ensure!(prepared.iter().filter(|name| *name == "shared").count() == 1, "once for both pods: {prepared:?}");
    ensure!(one.prepared() == ["extended", "own", "shared"] && old.prepared() == ["shared"]);
    let state = state_file(&member)?;
    let share = r#""PoolName":"node","DeviceName":"own-a","ShareID":"share-of-own","RequestNames":["a"],"CDIDeviceIDs":["one.test/claim=own-a"]"#;
    ensure!(state.contains(share), "{state}");

    // === Health ===
    let health = |word: &str, message: Value| {
        let resource = json!({"resourceID": "one.test/claim=own-a", "health": word});
        let wanted = match message {
            Value::Null => resource,
            message => json!({"resourceID": "one.test/claim=own-a", "health": word, "message": message}),
        };
        member.wait("first", word, |pod| {
            let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
            let main = statuses.iter().find(|one| one["name"] == "main").cloned().unwrap_or_default();
            let shown = main["allocatedResourcesStatus"].as_array().cloned().unwrap_or_default();
            shown.iter().any(|one| one["name"] == "claim:own/a" && one["resources"] == json!([wanted]))
        })
    };
    health("Healthy", Value::Null)?;
    one.health(&json!({"own-a": "too hot", "own-b": "Healthy"}))?;
    health("Unhealthy", json!("too hot"))?;

    // === A restart of syncd changes nothing, and a container that begins again has its devices ===
    let before = one.calls_of("NodePrepareResources")?.len();
    member.decide_anew("first")?;
    // It ends by that; what runs in it may end with it.
    let _ = member.try_exec("first", "main", &["kill", "1"]);
    member.wait("first", "main has begun again", |pod| {
        let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        let main = statuses.clone().find(|one| one["name"] == "main");
        main.is_some_and(|one| one["restartCount"] == 1 && one["state"]["running"].is_object())
    })?;
    one.wait_registered(2)?;
    ensure!(one.calls_of("NodePrepareResources")?.len() == before, "nothing is prepared twice");
    ensure!(devices(&member, "first", "main")?.len() == 5);
    let file = std::fs::read_to_string(member.node.root_dir().join("dra_health_state"))?;
    ensure!(file.contains(r#""node/own-a":{"PoolName":"node","DeviceName":"own-a","Health":"Unhealthy""#), "{file}");
    let history = member.cluster.history("pods", NAMESPACE, "first")?;
    let mut since = history.iter().map(Value::to_string).skip_while(|pod| !pod.contains("too hot"));
    let forgot = since.find(|pod| !pod.contains("too hot"));
    ensure!(forgot.is_none(), "it is not forgotten for a moment: {forgot:?}");

    // === The end: a driver that is away holds up the end of its pod ===
    old.kill();
    delete(&member, "first")?;
    delete(&member, "second")?;
    eventually("what nobody else has is given back", LONG, || {
        ensure!(one.prepared().iter().all(|name| name == "shared"), "{:?}", one.prepared());
        Ok(())
    })?;
    holds_for("a pod whose claim is not given back is not gone", Duration::from_secs(2), || {
        let both = ["first", "second"].map(|name| member.cluster.find("pods", NAMESPACE, name));
        ensure!(both.into_iter().filter_map(Result::ok).flatten().count() >= 1, "both are gone");
        Ok(())
    })?;
    old.again()?;
    member.cluster.wait_gone("pods", NAMESPACE, "first")?;
    member.cluster.wait_gone("pods", NAMESPACE, "second")?;
    ensure!(one.prepared().is_empty() && old.prepared().is_empty(), "{:?} {:?}", one.prepared(), old.prepared());
    let state = state_file(&member)?;
    ensure!(state.ends_with(r#""ClaimInfoStateList":[]}"#), "{state}");

    // === What cannot be prepared ===
    claim(&member, "broken", &["one.test"])?;
    claim(&member, "nobody", &["none.test"])?;
    one.faults(&[json!({"call": "NodePrepareResources", "act": "claim", "claim": "broken", "message": "no power"})])?;
    simple(&member, "fails", &["broken"])?;
    simple(&member, "waits", &["nobody"])?;
    let failed = "Failed to prepare dynamic resources: prepare dynamic resources: ";
    member.wait_event("fails", "FailedPrepareDynamicResources", |text| {
        text == format!("{failed}NodePrepareResources failed for ResourceClaim broken: no power")
    })?;
    member.wait_event("waits", "FailedPrepareDynamicResources", |text| {
        text == format!("{failed}DRA driver none.test is not registered")
    })?;
    one.faults(&[])?;
    member.wait_ready("fails")?;
    let none = DraDriver::start(DRA_DRIVER, &lab, &member.node, "none.test", "v1.DRAPlugin")?;
    member.wait_ready("waits")?;
    // A driver that hangs holds up nobody's end.
    claim(&member, "hangs", &["one.test"])?;
    one.faults(&[json!({"call": "NodePrepareResources", "act": "hang"})])?;
    simple(&member, "hangs", &["hangs"])?;
    eventually("the driver is asked", LONG, || {
        ensure!(one.claims_of("NodePrepareResources")?.contains(&vec!["hangs".to_owned()]));
        Ok(())
    })?;
    for name in ["hangs", "fails", "waits"] {
        delete(&member, name)?;
    }
    for name in ["hangs", "fails", "waits"] {
        member.cluster.wait_gone("pods", NAMESPACE, name)?;
    }
    drop((one, old, none));
    member.node.finish()
}

/// From a template to a running pod and back, by the scheduler and the controllers that a cluster has.
#[test]
fn a_scheduler_allocates_what_a_driver_prepares() -> Result<()> {
    let Some(lab) = lab_on(Release::V2_1)? else { return Ok(()) };
    if !controllers_are_there() {
        return skip_this_test(Lack::ControlPlane);
    }
    let cluster = lab.cluster_on(Storage::default())?;
    cluster.start_controllers()?;
    cluster.create(&slice("stale", NODE, "gone.test"))?;
    let node = lab.node(NODE).joins(&cluster)?.start()?;
    let member = Member { cluster, node };
    let cluster = &member.cluster;
    wait_node(cluster, "True")?;
    // From now on slices are the drivers'.
    cluster.wait_gone("resourceslices", "", "stale")?;
    let one = DraDriver::start(DRA_DRIVER, &lab, &member.node, "one.test", "v1.DRAPlugin")?;

    // What the driver and an administrator create: two devices, a class of such, and a template that takes both.
    let meta = |name: &str| json!({"name": name, "namespace": NAMESPACE});
    let devices_of_one = json!([{"name": "first"}, {"name": "second"}]);
    cluster.create(&json!({"apiVersion": GROUP, "kind": "ResourceSlice", "metadata": {"name": "of-one"}, "spec": {
            "driver": "one.test", "nodeName": NODE, "devices": devices_of_one,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}}}))?;
    let selector = json!({"cel": {"expression": "device.driver == 'one.test'"}});
    let class = json!({"apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": "ones"},
        "spec": {"selectors": [selector]}});
    let templates = format!("/apis/{GROUP}/namespaces/{NAMESPACE}/resourceclaimtemplates");
    let classes = format!("/apis/{GROUP}/deviceclasses");
    cluster.client().send_json("POST", &classes, &class)?.success()?;
    let request = |name: &str| json!({"name": name, "exactly": {"deviceClassName": "ones"}});
    let template = json!({"apiVersion": GROUP, "kind": "ResourceClaimTemplate", "metadata": meta("both"),
        "spec": {"spec": {"devices": {"requests": [request("a"), request("b")]}}}});
    cluster.client().send_json("POST", &templates, &template)?.success()?;

    let container = |name: &str, request: &str| {
        json!({"name": name, "image": member.node.image(), "command": ["sh", "-c", IDLE],
            "resources": {"claims": [{"name": "own", "request": request}]}})
    };
    let spec = json!({"terminationGracePeriodSeconds": 1,
        "resourceClaims": [{"name": "own", "resourceClaimTemplateName": "both"}],
        "containers": [container("main", "a"), container("other", "b")]});
    let pod =
        |name: &str| cluster.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta(name), "spec": spec}));
    pod("early")?;
    let early = member.wait_ready("early")?;
    ensure!(early["spec"]["nodeName"] == NODE, "{early:#}");
    let name = early["status"]["resourceClaimStatuses"][0]["resourceClaimName"].as_str().context("no claim")?;
    let allocated = cluster.get("resourceclaims", NAMESPACE, name)?;
    let results = allocated["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default();
    let mut taken: Vec<&str> = results.iter().filter_map(|one| one["device"].as_str()).collect();
    taken.sort_unstable();
    ensure!(taken == ["first", "second"] && results.iter().all(|one| one["driver"] == "one.test"), "{allocated:#}");
    ensure!(allocated["status"]["reservedFor"][0]["uid"] == early["metadata"]["uid"], "{allocated:#}");
    ensure!(one.prepared() == [name], "{:?}", one.prepared());
    let variable = |request: &str| format!("DRA_ONE_TEST_{}_{request}=yes", name.to_uppercase().replace('-', "_"));
    for (container, request) in [("main", "A"), ("other", "B")] {
        let has = devices(&member, "early", container)?;
        ensure!(has == [variable(request)], "{container}: {has:?}");
    }

    // Nothing is left for another one, until the first has given back what it had.
    pod("late")?;
    member.wait("late", "it cannot be placed", |pod| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.filter(|one| one["type"] == "PodScheduled").any(|one| one["reason"] == "Unschedulable")
    })?;
    ensure!(one.claims_of("NodePrepareResources")?.concat() == [name], "{:?}", one.calls()?);
    delete(&member, "early")?;
    cluster.wait_gone("pods", NAMESPACE, "early")?;
    ensure!(one.claims_of("NodeUnprepareResources")?.concat() == [name], "{:?}", one.calls()?);
    cluster.wait_gone("resourceclaims", NAMESPACE, name)?;
    let late = member.wait_ready("late")?;
    let next = late["status"]["resourceClaimStatuses"][0]["resourceClaimName"].as_str().context("no claim")?;
    ensure!(next != name && one.prepared() == [next], "{:?}", one.prepared());
    delete(&member, "late")?;
    cluster.wait_gone("pods", NAMESPACE, "late")?;
    cluster.wait_gone("resourceclaims", NAMESPACE, next)?;
    ensure!(one.prepared().is_empty() && state_file(&member)?.ends_with(r#""ClaimInfoStateList":[]}"#));
    drop(one);
    member.node.finish()
}
