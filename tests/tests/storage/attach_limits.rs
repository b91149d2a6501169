//! How many volumes of a driver the node can have: asked anew from time to time, and at once when the limit is reached.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::{Driver, objects};
use bulkhead_testkit::{LONG, eventually};
use bulkhead_tests::lab;
use bulkhead_tests::storage::{NODE, Scene, recorded};
use serde_json::{Value, json};

use crate::DRIVER;

const NAME: &str = "limited.test";

/// A driver that says 5, and whose object says how often it is to be asked.
fn limited(scene: &Scene, seconds: u32, attach: bool) -> Result<Driver> {
    let spec = json!({"nodeAllocatableUpdatePeriodSeconds": seconds, "attachRequired": attach});
    let driver = scene.driver(DRIVER, NAME, &spec)?.argument("--max-volumes", "5").start()?;
    driver.wait_registered()?;
    ensure!(count(scene)? == json!(5), "{}", count(scene)?);
    Ok(driver)
}

/// The driver's limit as the scheduler sees it.
fn count(scene: &Scene) -> Result<Value> {
    let node = scene.cluster.get("csinodes", "", NODE)?;
    let entry = node["spec"]["drivers"].as_array().into_iter().flatten().find(|one| one["name"] == NAME);
    Ok(entry.with_context(|| format!("the driver is away: {node}"))?["allocatable"]["count"].clone())
}

fn wait_count(scene: &Scene, wanted: i64, limit: Duration) -> Result<()> {
    eventually(&format!("the limit is {wanted}"), limit, || {
        let now = count(scene)?;
        ensure!(now == json!(wanted), "{now}");
        Ok(())
    })
}

#[test]
fn a_limit_that_changes_is_written_in_the_drivers_period() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let driver = limited(&scene, 10, false)?;
    driver.max_volumes(7)?;
    wait_count(&scene, 7, LONG)?;
    // The object's word is followed, with no new registration.
    let off = json!({"spec": {"nodeAllocatableUpdatePeriodSeconds": null}});
    scene.cluster.patch("csidrivers", "", NAME, &off)?;
    let asked = || Ok::<_, anyhow::Error>(driver.calls()?.iter().filter(|call| call.method == "NodeGetInfo").count());
    let before = asked()?;
    ensure!(before >= 2, "{before}");
    bulkhead_testkit::wait::holds_for("nobody asks any more", Duration::from_secs(12), || {
        // A turn that had begun may end.
        ensure!(asked()? <= before + 1);
        Ok(())
    })?;
    drop(driver);
    scene.finish()
}

/// A pod whose volume finds no place at the node. It is refused when it has waited as long as a pod waits for its volumes, two minutes:
/// whoever waits that long for something else asks for it besides.
pub(crate) struct Refused {
    driver: Driver,
    began: Instant,
}

impl Refused {
    pub(crate) fn begin(scene: &Scene) -> Result<Self> {
        let driver = limited(scene, 3600, true)?;
        objects::create_bound(&scene.cluster, "full", NAME, &Value::Null)?;
        let attachment = recorded::attachment("full", NAME, NODE);
        scene.cluster.create(&json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": attachment}, "spec": {"attacher": NAME, "nodeName": NODE,
                "source": {"persistentVolumeName": "full"}}}))?;
        let error = json!({"message": "rpc error: code = ResourceExhausted desc = no more", "errorCode": 8});
        let status = json!({"status": {"attached": false, "attachError": error}});
        scene.cluster.patch_status("volumeattachments", "", &attachment, &status)?;
        driver.max_volumes(1)?;
        let began = Instant::now();
        scene.pod("refused", &["full"])?;
        Ok(Refused { driver, began })
    }

    /// The pod is refused, and the limit was asked for at once.
    pub(crate) fn end(self, scene: &Scene) -> Result<()> {
        let failed = |pod: &Value| pod["status"]["phase"] == "Failed";
        let wait = || scene.cluster.wait_for("pods", "default", "refused", "it is refused", failed);
        // A pod waits for its volumes a little longer than the longest wait of a test.
        let pod = wait().or_else(|_| wait()).with_context(|| format!("{:#?}", scene.events("refused")))?;
        ensure!(self.began.elapsed() >= Duration::from_secs(120), "{:?}", self.began.elapsed());
        let text = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[full], unattached \
                    volumes=[full], failed to process volumes=[]: context deadline exceeded";
        let status = &pod["status"];
        ensure!(status["reason"] == "VolumeAttachmentLimitExceeded", "{status}");
        ensure!(status["message"] == format!("Pod was rejected: {text}"), "{status}");
        scene.wait_event("refused", &format!("VolumeAttachmentLimitExceeded {text}"))?;
        wait_count(scene, 1, Duration::from_secs(10))?;
        // It is over for good: its volume is wanted no more, which whoever looks for traces sees.
        scene.delete("refused")?;
        drop(self.driver);
        Ok(())
    }
}
