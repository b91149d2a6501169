//! Garbage collection of images, on a real runtime whose images lie on a disk of their own: what goes when the disk is full or an
//! image was not used for long, what stays, and that images go before pods do.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::processes::signal;
use bulkhead_testkit::runtime_disk::{RuntimeDisk, image_names, import_sized};
use bulkhead_testkit::{LONG, Lab, Pod, Release, eventually, image};
use bulkhead_tests::joined::{Member, NAMESPACE, NODE, create, wait_phase, wait_ready};
use bulkhead_tests::{lab, lab_on};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const FIRST: &str = "bulkhead.test/first:1";
const SECOND: &str = "bulkhead.test/second:1";
const NEVER: &str = "bulkhead.test/never:1";
const USED: &str = "bulkhead.test/used:1";

/// A pod of an image that no registry has.
fn of_image(name: &str, image: &str) -> Pod {
    Pod::idle(name).container_field("image", json!(image)).container_field("imagePullPolicy", json!("Never"))
}

fn has(lab: &Lab, image: &str) -> Result<bool> {
    Ok(image_names(lab)?.iter().any(|name| name == image))
}

/// Of the node.
fn node_events(member: &Member, reason: &str) -> Result<Vec<String>> {
    let all = member.cluster.list("events", Some("default"))?;
    let of_node = all.iter().filter(|event| event["involvedObject"]["kind"] == "Node" && event["reason"] == reason);
    Ok(of_node.map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect())
}

/// One that is evicted and exits with 0 has Succeeded, without a reason: the condition tells.
fn is_disrupted(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "DisruptionTarget" && one["status"] == "True"))
}

fn evicted(member: &Member) -> Result<Vec<String>> {
    let pods = member.cluster.list("pods", Some(NAMESPACE))?;
    let evicted = pods.iter().filter(|pod| is_disrupted(pod));
    Ok(evicted.map(|pod| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect())
}

/// Runs a pod of the image and takes it away again.
fn use_once(member: &Member, name: &str, image: &str) -> Result<()> {
    create(&member.cluster, of_image(name, image))?;
    wait_ready(&member.cluster, name)?;
    member.cluster.delete("pods", NAMESPACE, name, Some(0))?;
    eventually(&format!("nothing is left of {name}"), LONG, || {
        let cri = member.node.cri()?;
        ensure!(!cri.containers()?.iter().any(|one| one.pod == name), "its container is there");
        Ok(())
    })
}

fn collected(member: &Member, reason: &str, expected: usize) -> Result<()> {
    let metrics = member.node.agent()?.metrics("kubelet-syncd")?;
    let series = format!("kubelet_image_garbage_collected_total{{reason=\"{reason}\"}}");
    let count = metrics.lines().find_map(|line| line.strip_prefix(&series)).unwrap_or("0").trim();
    ensure!(count == expected.to_string(), "{series} is {count}, and not {expected}");
    Ok(())
}

/// The names that the Node's status lists.
fn listed(member: &Member) -> Result<Vec<String>> {
    let node = member.cluster.get("nodes", "", NODE)?;
    let images = node["status"]["images"].as_array().cloned().unwrap_or_default();
    let names = images.iter().flat_map(|image| image["names"].as_array().cloned().unwrap_or_default());
    Ok(names.filter_map(|name| name.as_str().map(str::to_owned)).collect())
}

/// What `kubelet-ctl images` says of an image: what becomes of it, and why.
fn fate(member: &Member, name: &str) -> Result<(String, String)> {
    let shown: Value = serde_json::from_str(&member.node.ctl(&["images", "-o", "json"])?)?;
    let images = shown["images"].as_array().context("no images")?;
    let named = |image: &&Value| image["names"].as_array().is_some_and(|names| names.iter().any(|one| one == name));
    let image = images.iter().find(named).with_context(|| format!("{name} is not in {shown:#}"))?;
    let text = |field: &str| image[field].as_str().unwrap_or_default().to_owned();
    Ok((text("fate"), text("why")))
}

/// In which order they were used is known after the deaths of both processes that know it.
#[test]
fn a_full_disk_takes_the_images_that_nobody_has_used_for_longest() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let disk = RuntimeDisk::lay(&lab, 500)?;
    for (name, megabytes) in [(FIRST, 40), (SECOND, 40), (NEVER, 40), (USED, 20)] {
        import_sized(&lab, name, megabytes)?;
    }
    let mut member = Member::start(&lab, &[], |node| {
        node.config("imageMinimumGCAge", json!("1s"))
            .config("imageGCHighThresholdPercent", json!(85))
            .config("imageGCLowThresholdPercent", json!(73))
    })?;
    create(&member.cluster, of_image("user", USED))?;
    wait_ready(&member.cluster, "user")?;
    use_once(&member, "one", FIRST)?;
    use_once(&member, "two", SECOND)?;
    // A new life looks at once: what it sees is on its disk.
    member.node.kill_daemon("kubelet-evictiond")?;
    member.node.wait_healthy()?;
    let kept = member.node.root_dir().join("bulkhead/evictiond/images.json");
    eventually("both uses are written down", LONG, || {
        let kept = std::fs::read_to_string(&kept)?;
        let of = |text: &str| kept.matches(text).count();
        let used = of("\"last_used_ms\":").saturating_sub(of("\"last_used_ms\":null"));
        ensure!(used == 3, "{used}: {kept}");
        Ok(())
    })?;
    eventually("the operator sees it", LONG, || {
        let (fate_of_used, why) = fate(&member, USED)?;
        ensure!(fate_of_used == "stays" && why == "used by default/user (main)", "{fate_of_used} {why}");
        let (first, why) = fate(&member, FIRST)?;
        ensure!(first == "stays" && why.starts_with("unused for "), "{first} {why}");
        let (never, why) = fate(&member, NEVER)?;
        ensure!(never == "stays" && why.starts_with("never seen used"), "{never} {why}");
        Ok(())
    })?;
    let shown = member.node.ctl(&["images"])?;
    ensure!(shown.contains("Image file system: ") && shown.contains("from 85% on, down to 73%"), "{shown}");
    member.node.kill_daemon("kubelet-syncd")?;
    member.node.kill_daemon("kubelet-evictiond")?;
    member.node.wait_healthy()?;

    let runs = member.node.fingerprint()?;
    // 86 percent: about 60 MiB are to go, which are two of the three.
    disk.fill_to(86.5)?;
    eventually("two of them go", LONG, || {
        ensure!(!has(&lab, NEVER)? && !has(&lab, FIRST)?, "{:?}", image_names(&lab)?);
        Ok(())
    })?;
    ensure!(has(&lab, SECOND)? && has(&lab, USED)? && has(&lab, image::PAUSE)?, "{:?}", image_names(&lab)?);
    eventually("it is counted, and the Node's status follows", LONG, || {
        let names = listed(&member)?;
        ensure!(!names.iter().any(|name| name == NEVER || name == FIRST), "{names:?}");
        ensure!(names.iter().any(|name| name == SECOND), "{names:?}");
        Ok(())
    })?;
    ensure!(node_events(&member, "FreeDiskSpaceFailed")?.is_empty());

    // More than what is left can give.
    disk.fill_to(96.5)?;
    eventually("the last one goes, and that it is not enough is told", LONG, || {
        ensure!(!has(&lab, SECOND)?, "{:?}", image_names(&lab)?);
        let told = node_events(&member, "FreeDiskSpaceFailed")?;
        let message = told.first().context("no event")?;
        ensure!(
            message.starts_with("Insufficient free disk space on the node's image filesystem (97% of ")
                && message.contains(" MiB used). Failed to free sufficient space by deleting unused images (freed 4"),
            "{message}"
        );
        Ok(())
    })?;
    ensure!(has(&lab, USED)? && has(&lab, image::PAUSE)?, "{:?}", image_names(&lab)?);
    ensure!(node_events(&member, "ImageGCFailed")?.is_empty(), "it is the first failure");
    ensure!(member.node.fingerprint()? == runs && evicted(&member)?.is_empty(), "no pod has noticed");
    disk.free()?;
    // The image of sandboxes is there: pods start.
    create(&member.cluster, of_image("after", USED))?;
    wait_ready(&member.cluster, "after")?;
    member.node.finish()
}

#[test]
fn images_go_before_pods_do() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let disk = RuntimeDisk::lay(&lab, 400)?;
    for (name, megabytes) in [(FIRST, 30), (SECOND, 30), (USED, 10)] {
        import_sized(&lab, name, megabytes)?;
    }
    let mut member = Member::start(&lab, &[], |node| {
        node.config("imageMinimumGCAge", json!("1s"))
            .config("imageGCHighThresholdPercent", json!(100))
            .config("imageGCLowThresholdPercent", json!(99))
            .config("evictionHard", json!({"imagefs.available": "100Mi"}))
            .config("evictionPressureTransitionPeriod", json!("5s"))
    })?;
    create(&member.cluster, of_image("user", USED))?;
    wait_ready(&member.cluster, "user")?;
    // A dead container keeps its image until it is gone itself.
    create(
        &member.cluster,
        of_image("ended", SECOND).restart_policy("Never").container_field("command", json!(["true"])),
    )?;
    wait_phase(&member.cluster, "ended", "Succeeded")?;
    eventually("images have been seen", LONG, || {
        let (_, why) = fate(&member, FIRST)?;
        ensure!(why == "never seen used; images go under disk pressure alone", "{why}");
        Ok(())
    })?;
    let runs = member.node.fingerprint()?;
    let (capacity, _) = disk.usage()?;
    #[allow(clippy::cast_precision_loss)]
    let percent = 100.0 - (75 << 20) as f64 / capacity as f64 * 100.0;
    disk.fill_to(percent)?;
    eventually("one image is gone", LONG, || {
        ensure!(!has(&lab, FIRST)?, "{:?}", image_names(&lab)?);
        Ok(())
    })?;
    // In the middle of it, perhaps.
    member.node.kill_daemon("kubelet-evictiond")?;
    member.node.kill_daemon("kubelet-syncd")?;
    member.node.wait_healthy()?;
    eventually("the pressure is over", LONG, || {
        let node = member.cluster.get("nodes", "", NODE)?;
        let conditions = node["status"]["conditions"].as_array().context("no conditions")?;
        let pressure = conditions.iter().find(|one| one["type"] == "DiskPressure").context("no DiskPressure")?;
        ensure!(pressure["status"] == "False" && disk.usage()?.1 > 100 << 20, "{pressure}");
        let told = node_events(&member, "EvictionThresholdMet")?;
        ensure!(told.iter().any(|message| message == "Attempting to reclaim ephemeral-storage"), "{told:?}");
        Ok(())
    })?;
    ensure!(evicted(&member)?.is_empty(), "{:?}", evicted(&member)?);
    ensure!(has(&lab, USED)? && has(&lab, image::PAUSE)?, "{:?}", image_names(&lab)?);
    let now = member.node.fingerprint()?;
    ensure!(runs.iter().all(|one| now.contains(one)), "{runs:?}, {now:?}");

    // Where images are not enough, that of the dead container included if it is still there, a pod goes.
    let (capacity, _) = disk.usage()?;
    #[allow(clippy::cast_precision_loss)]
    let percent = 100.0 - (20 << 20) as f64 / capacity as f64 * 100.0;
    disk.fill_to(percent)?;
    let gone = wait_phase(&member.cluster, "user", "Succeeded")?;
    ensure!(gone["status"]["reason"].is_null() && is_disrupted(&gone), "{:#}", gone["status"]);
    ensure!(node_events(&member, "FreeDiskSpaceFailed")?.is_empty(), "garbage collection is off");
    disk.free()?;
    member.node.finish()
}

#[test]
fn images_that_are_unused_for_too_long_go() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    for (name, megabytes) in [(FIRST, 1), (NEVER, 1), (USED, 1)] {
        import_sized(&lab, name, megabytes)?;
    }
    let member = Member::start(&lab, &[], |node| {
        node.config("imageMinimumGCAge", json!("1s")).config("imageMaximumGCAge", json!("6s"))
    })?;
    create(&member.cluster, of_image("user", USED))?;
    wait_ready(&member.cluster, "user")?;
    use_once(&member, "one", FIRST)?;
    ensure!(has(&lab, FIRST)?, "it was used a moment ago");
    eventually("both unused images go", LONG, || {
        ensure!(!has(&lab, FIRST)? && !has(&lab, NEVER)?, "{:?}", image_names(&lab)?);
        Ok(())
    })?;
    ensure!(has(&lab, USED)? && has(&lab, image::PAUSE)?, "{:?}", image_names(&lab)?);
    // The lab's own busybox images are used by nobody either.
    eventually("they are counted", LONG, || {
        let names = image_names(&lab)?;
        ensure!(names.iter().all(|name| name == USED || name == image::PAUSE), "{names:?}");
        collected(&member, "age", 4)
    })?;
    ensure!(wait_ready(&member.cluster, "user")?["status"]["containerStatuses"][0]["restartCount"] == 0);
    member.node.finish()
}

/// The start of a container is held up after its image was found, by files that nobody makes.
#[test]
fn a_start_that_is_under_way_keeps_its_image() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let disk = RuntimeDisk::lay(&lab, 400)?;
    for (name, megabytes) in [(FIRST, 20), (NEVER, 40)] {
        import_sized(&lab, name, megabytes)?;
    }
    let member = Member::start(&lab, &[], |node| {
        node.config("imageMinimumGCAge", json!("1s"))
            .config("imageGCHighThresholdPercent", json!(85))
            .config("imageGCLowThresholdPercent", json!(40))
    })?;
    let waits = "while [ ! -e /sign ]; do sleep 0.1; done";
    let init = json!([{"name": "init", "image": member.node.image(), "command": ["sh", "-c", waits]}]);
    create(&member.cluster, of_image("starting", FIRST).spec("initContainers", init))?;
    member.wait("starting", "its init container runs", |pod| {
        pod["status"]["initContainerStatuses"][0]["state"]["running"].is_object()
    })?;
    let volnetd = member.node.pids()["kubelet-volnetd"];
    let cri = member.node.cri()?;
    let containers = cri.containers()?;
    let init = containers.iter().find(|one| one.name == "init" && one.running).context("no init container")?;
    signal(volnetd, Signal::SIGSTOP);
    // It ends before it can answer, perhaps.
    let _ = cri.exec(&init.id, &["touch", "/sign"]);
    member.wait_event("starting", "Pulled", |message| message.contains(FIRST))?;
    disk.fill_to(90.5)?;
    eventually("the other image goes", LONG, || {
        ensure!(!has(&lab, NEVER)?, "{:?}", image_names(&lab)?);
        let (fate, why) = fate(&member, FIRST)?;
        ensure!(fate == "stays" && why == "used by a start or a pull", "{fate} {why}");
        Ok(())
    })?;
    signal(volnetd, Signal::SIGCONT);
    wait_ready(&member.cluster, "starting")?;
    disk.free()?;
    member.node.finish()
}

#[test]
fn an_image_volume_keeps_its_image() -> Result<()> {
    let Some(lab) = lab_on(Release::V2_1)? else { return Ok(()) };
    for (name, megabytes) in [(FIRST, 1), (NEVER, 1), (USED, 1)] {
        import_sized(&lab, name, megabytes)?;
    }
    let mut member = Member::start(&lab, &[], |node| {
        node.config("imageMinimumGCAge", json!("1s")).config("imageMaximumGCAge", json!("6s"))
    })?;
    let volumes = json!([{"name": "v", "image": {"reference": NEVER, "pullPolicy": "Never"}}]);
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let pod = of_image("mounts", USED).spec("volumes", volumes).container_field("volumeMounts", mounts);
    create(&member.cluster, pod)?;
    wait_ready(&member.cluster, "mounts")?;
    eventually("what nobody uses goes", LONG, || {
        ensure!(!has(&lab, FIRST)?, "{:?}", image_names(&lab)?);
        let (fate, why) = fate(&member, NEVER)?;
        ensure!(fate == "stays" && why == "used by a volume of default/mounts (main)", "{fate} {why}");
        Ok(())
    })?;
    // Nothing but the runtime knows of it.
    member.node.kill_daemon("kubelet-syncd")?;
    member.node.wait_healthy()?;
    ensure!(has(&lab, NEVER)? && has(&lab, USED)? && has(&lab, image::PAUSE)?, "{:?}", image_names(&lab)?);
    member.cluster.delete("pods", NAMESPACE, "mounts", Some(0))?;
    eventually("it goes when the pod has gone", LONG, || {
        ensure!(!has(&lab, NEVER)? && !has(&lab, USED)?, "{:?}", image_names(&lab)?);
        Ok(())
    })?;
    ensure!(has(&lab, image::PAUSE)?, "the runtime pins the image of its sandboxes");
    member.node.finish()
}
