//! A DRA driver: the calls for claims on a node, asked of the model and of the driver of upstream's end-to-end specs, which upstream's
//! helper for drivers answers for.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bulkhead_csi::registration::v1 as registration;
use bulkhead_dra::v1;
use bulkhead_dra::v1::dra_plugin_client::DraPluginClient;
use bulkhead_simulation::claims::Object;
use bulkhead_simulation::claims_schedule::{DeviceClaim, Dra};
use bulkhead_simulation::world::Shared;
use bulkhead_testkit::dra::upstream::UpstreamDriver;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{Cluster, Release};
use registration::registration_client::RegistrationClient;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::code;

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const NODE: &str = "dra";

/// What came of each claim, by its uid.
type Prepared = BTreeMap<String, v1::NodePrepareResourceResponse>;

#[test]
fn the_model_is_a_dra_driver() -> Result<()> {
    hold(&Subject::model()?)
}

#[test]
fn upstreams_helper_is_what_the_model_takes_it_for() -> Result<()> {
    if !UpstreamDriver::is_there() {
        return skip_this_test(Lack::ControlPlane);
    }
    let Some(lab) = crate::runtime::lab(Release::from_environment()?)? else { return Ok(()) };
    let cluster = lab.cluster_with_controllers()?;
    let node = lab.node(NODE).joins(&cluster)?.start()?;
    let driver = UpstreamDriver::start(&node, &cluster)?;
    hold(&Subject::upstream(cluster, driver)?)?;
    // The spec is cut short, so its pod is there still.
    node.abandon();
    Ok(())
}

fn hold(subject: &Subject) -> Result<()> {
    what_it_is(subject).context("what it is")?;
    everything_twice(subject).context("everything twice")?;
    a_claim_of_two_drivers(subject).context("a claim of two drivers")?;
    several_at_once(subject).context("several at once")?;
    what_cannot_be_prepared_is_refused_with_all_else(subject).context("what cannot be prepared")?;
    what_is_not_prepared_may_be_taken_back(subject).context("what is not prepared")?;
    two_may_ask(subject).context("two may ask")
}

enum Kind {
    /// None when it is dropped.
    Model {
        world: Shared,
        runtime: Option<Runtime>,
    },
    Upstream {
        cluster: Cluster,
        driver: UpstreamDriver,
    },
}

/// Who is asked.
struct Subject {
    kind: Kind,
    calls: Runtime,
    registration: Channel,
    service: Channel,
    claims: Cell<u32>,
    // Last: it goes when nobody listens there any more.
    _folder: tempfile::TempDir,
}

impl Subject {
    fn new(kind: Kind, folder: tempfile::TempDir, registration: &Path, service: &Path) -> Result<Self> {
        let calls = Builder::new_current_thread().enable_all().build().context("making a runtime")?;
        let entered = calls.enter();
        let [registration, service] = [registration, service].map(bulkhead_ipc::client::channel);
        drop(entered);
        Ok(Subject { kind, calls, registration, service, claims: Cell::new(0), _folder: folder })
    }

    fn model() -> Result<Self> {
        let folder = tempfile::tempdir().context("making a folder")?;
        let socket = folder.path().join("dra.sock");
        let listener = UnixListener::bind(&socket).context("listening")?;
        listener.set_nonblocking(true).context("making a listener")?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().context("making a runtime")?;
        let world = Shared::new(1);
        runtime.spawn(bulkhead_simulation::dra_driver::serve(world.clone(), Dra::One, listener));
        Self::new(Kind::Model { world, runtime: Some(runtime) }, folder, &socket, &socket)
    }

    fn upstream(cluster: Cluster, driver: UpstreamDriver) -> Result<Self> {
        let (registration, service) = (driver.registration(), driver.endpoint());
        let folder = tempfile::tempdir().context("making a folder")?;
        Self::new(Kind::Upstream { cluster, driver }, folder, &registration, &service)
    }

    fn name(&self) -> &str {
        match &self.kind {
            Kind::Model { .. } => Dra::One.name(),
            Kind::Upstream { driver, .. } => driver.name(),
        }
    }

    /// A claim that is allocated, of this kind, whose first driver is the one that is asked.
    fn claim(&self, kind: DeviceClaim) -> Result<v1::Claim> {
        self.claims.set(self.claims.get() + 1);
        let claim = self.named(&format!("claim-{}", self.claims.get()), kind)?;
        if let Kind::Upstream { cluster, .. } = &self.kind {
            let result = |(request, driver): (&str, Dra)| {
                let driver = if driver == Dra::One { self.name() } else { driver.name() };
                json!({"request": request, "driver": driver, "pool": NODE, "device": format!("device-{request}")})
            };
            let results: Vec<Value> = kind.requests().into_iter().map(result).collect();
            let status = json!({"status": {"allocation": {"devices": {"results": results}}}});
            let path = format!("{CLAIMS}/{}/status", claim.name);
            cluster.client().patch(&path, "merge-patch", &status)?.success().context("allocating a claim")?;
        }
        if let Kind::Model { world, .. } = &self.kind
            && let Some(object) = world.lock().claims.objects.get_mut(&claim.uid)
        {
            object.is_allocated = true;
        }
        Ok(claim)
    }

    /// A claim that is not allocated.
    fn named(&self, name: &str, kind: DeviceClaim) -> Result<v1::Claim> {
        let uid = match &self.kind {
            Kind::Model { world, .. } => {
                let mut world = world.lock();
                let uid = world.next_id("claim-");
                let object = Object {
                    name: name.to_owned(),
                    kind,
                    is_allocated: false,
                    is_gone: false,
                    reserved: BTreeSet::new(),
                };
                world.claims.objects.insert(uid.clone(), object);
                uid
            }
            Kind::Upstream { cluster, .. } => {
                let request = |(name, _): (&str, Dra)| json!({"name": name, "exactly": {"deviceClassName": "any"}});
                let requests: Vec<Value> = kind.requests().into_iter().map(request).collect();
                let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                    "metadata": {"name": name}, "spec": {"devices": {"requests": requests}}});
                let made = cluster.client().send_json("POST", CLAIMS, &claim)?.success().context("making a claim")?;
                made["metadata"]["uid"].as_str().context("a claim without a uid")?.to_owned()
            }
        };
        Ok(v1::Claim { namespace: "default".to_owned(), name: name.to_owned(), uid })
    }

    /// The claim's object goes.
    fn remove(&self, claim: &v1::Claim) -> Result<()> {
        match &self.kind {
            Kind::Model { world, .. } => {
                let mut world = world.lock();
                world.claims.objects.get_mut(&claim.uid).context("there is none")?.is_gone = true;
                Ok(())
            }
            Kind::Upstream { cluster, .. } => {
                let path = format!("{CLAIMS}/{}", claim.name);
                cluster.client().request("DELETE", &path, &[], b"")?.success().map(drop)
            }
        }
    }

    async fn call_prepare(&self, claims: &[&v1::Claim]) -> Result<Prepared, Status> {
        let request = v1::NodePrepareResourcesRequest { claims: claims.iter().copied().cloned().collect() };
        let answer = DraPluginClient::new(self.service.clone()).node_prepare_resources(request).await?;
        Ok(answer.into_inner().claims.into_iter().collect())
    }

    fn prepare(&self, claims: &[&v1::Claim]) -> Result<Prepared, Status> {
        self.calls.block_on(self.call_prepare(claims))
    }

    /// What it has given for one claim.
    fn devices(&self, claim: &v1::Claim) -> Result<Vec<v1::Device>> {
        let mut all = self.prepare(&[claim])?;
        let given = all.remove(&claim.uid).context("no answer for the claim")?;
        ensure!(given.error.is_empty() && all.is_empty(), "{given:?} {all:?}");
        Ok(given.devices)
    }

    /// Takes them back, and holds that each of them was answered for, and none was refused.
    fn unprepare(&self, claims: &[&v1::Claim]) -> Result<()> {
        let request = v1::NodeUnprepareResourcesRequest { claims: claims.iter().copied().cloned().collect() };
        let mut client = DraPluginClient::new(self.service.clone());
        let answer = self.calls.block_on(client.node_unprepare_resources(request))?.into_inner().claims;
        let asked: BTreeSet<&str> = claims.iter().map(|claim| claim.uid.as_str()).collect();
        ensure!(answer.keys().map(String::as_str).collect::<BTreeSet<_>>() == asked, "{answer:?}");
        ensure!(answer.values().all(|one| one.error.is_empty()), "{answer:?}");
        Ok(())
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        if let Kind::Model { runtime, .. } = &mut self.kind {
            runtime.take().into_iter().for_each(Runtime::shutdown_background);
        }
    }
}

/// Names of devices with what they are called in CDI, which no two devices of a claim share; and that all of it is well-formed.
fn names(devices: &[v1::Device]) -> Result<BTreeSet<(String, Vec<String>)>> {
    for device in devices {
        ensure!(!device.pool_name.is_empty() && !device.device_name.is_empty(), "{device:?}");
        ensure!(!device.cdi_device_ids.is_empty(), "{device:?}");
        for id in &device.cdi_device_ids {
            let (kind, name) = id.split_once('=').with_context(|| format!("{id} is no name of CDI"))?;
            ensure!(kind.contains('/') && !name.is_empty(), "{id} is no name of CDI");
        }
    }
    let names: BTreeSet<_> =
        devices.iter().map(|device| (device.device_name.clone(), device.cdi_device_ids.clone())).collect();
    ensure!(names.len() == devices.len(), "{devices:?}");
    Ok(names)
}

/// Its name, its kind, and where it listens.
fn what_it_is(subject: &Subject) -> Result<()> {
    let mut client = RegistrationClient::new(subject.registration.clone());
    let info = subject.calls.block_on(client.get_info(registration::InfoRequest {}))?.into_inner();
    ensure!(info.r#type == "DRAPlugin" && info.name == subject.name(), "{info:?}");
    ensure!(info.endpoint.ends_with(&format!("/plugins/{}/dra.sock", subject.name())), "{info:?}");
    ensure!(info.supported_versions.iter().any(|version| version == v1::SERVICE), "{info:?}");
    Ok(())
}

/// Each call may be repeated: what is prepared stays what it is, and what was taken back can be prepared again.
fn everything_twice(subject: &Subject) -> Result<()> {
    let claim = subject.claim(DeviceClaim::One)?;
    let first = subject.devices(&claim)?;
    let requests: BTreeSet<&str> = first.iter().flat_map(|one| &one.request_names).map(String::as_str).collect();
    ensure!(first.len() == 2 && requests == ["a", "b"].into(), "{first:?}");
    names(&first)?;
    ensure!(subject.devices(&claim)? == first, "it gives something else the second time");
    subject.unprepare(&[&claim])?;
    subject.unprepare(&[&claim])?;
    ensure!(subject.devices(&claim)?.len() == 2, "it does not prepare it again");
    subject.unprepare(&[&claim])
}

/// It answers for its own devices alone.
fn a_claim_of_two_drivers(subject: &Subject) -> Result<()> {
    let claim = subject.claim(DeviceClaim::Both)?;
    let given = subject.devices(&claim)?;
    ensure!(given.len() == 1 && given.iter().all(|one| one.request_names == ["a"]), "{given:?}");
    subject.unprepare(&[&claim])
}

/// Claims of one call are each answered for, those among them that are prepared already; none has what another one has.
fn several_at_once(subject: &Subject) -> Result<()> {
    let (first, second) = (subject.claim(DeviceClaim::One)?, subject.claim(DeviceClaim::One)?);
    let before = names(&subject.devices(&first)?)?;
    let both = subject.prepare(&[&first, &second])?;
    ensure!(both.len() == 2 && both.values().all(|one| one.error.is_empty()), "{both:?}");
    let of = |claim: &v1::Claim| names(&both.get(&claim.uid).context("no answer for a claim")?.devices);
    ensure!(of(&first)? == before, "{both:?}");
    let ids = |names: BTreeSet<(String, Vec<String>)>| names.into_iter().flat_map(|(_, ids)| ids).collect();
    let (one, other): (BTreeSet<String>, BTreeSet<String>) = (ids(of(&first)?), ids(of(&second)?));
    ensure!(one.is_disjoint(&other), "{both:?}");
    subject.unprepare(&[&first, &second])
}

/// It looks each claim up, also one that is prepared; the call fails as a whole, and none of the others is answered for.
fn what_cannot_be_prepared_is_refused_with_all_else(subject: &Subject) -> Result<()> {
    let good = subject.claim(DeviceClaim::One)?;
    let waits = subject.named("waits", DeviceClaim::One)?;
    let absent = v1::Claim { name: "absent".to_owned(), uid: "1b9d6bcd".to_owned(), ..good.clone() };
    let replaced = v1::Claim { uid: "before".to_owned(), ..good.clone() };
    let gone = subject.claim(DeviceClaim::One)?;
    subject.devices(&gone)?;
    subject.remove(&gone)?;
    for (what, claim) in
        [("not allocated", &waits), ("not there", &absent), ("replaced", &replaced), ("prepared and gone", &gone)]
    {
        let answer = subject.prepare(&[&good, claim]);
        ensure!(code(&answer) == Code::Unknown, "{what}: {answer:?}");
    }
    subject.unprepare(&[&gone])?;
    // Whatever became of it meanwhile.
    ensure!(subject.devices(&good)?.len() == 2, "what can be prepared is not");
    subject.unprepare(&[&good])
}

/// Nobody looks up a claim that is taken back: not whether it was ever prepared, nor whether its object is there.
fn what_is_not_prepared_may_be_taken_back(subject: &Subject) -> Result<()> {
    let claim = subject.claim(DeviceClaim::One)?;
    let absent = v1::Claim { name: "never".to_owned(), uid: "never".to_owned(), ..claim.clone() };
    let replaced = v1::Claim { uid: "another".to_owned(), ..claim.clone() };
    subject.devices(&claim)?;
    subject.unprepare(&[&absent, &replaced])?;
    subject.remove(&claim)?;
    subject.unprepare(&[&claim, &absent])
}

/// Two calls for one claim end with the same.
fn two_may_ask(subject: &Subject) -> Result<()> {
    let claim = subject.claim(DeviceClaim::One)?;
    let asked = [&claim];
    let (first, second) =
        subject.calls.block_on(async { tokio::join!(subject.call_prepare(&asked), subject.call_prepare(&asked)) });
    let (first, second) = (first?, second?);
    ensure!(first == second && first.get(&claim.uid).is_some_and(|one| one.devices.len() == 2), "{first:?} {second:?}");
    subject.unprepare(&[&claim])
}
