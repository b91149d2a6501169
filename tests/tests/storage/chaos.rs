//! Daemons die at each step of a volume's end, and at random moments of many lives: nothing is left, and nothing is lost.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::hostpath::{self, Hostpath};
use bulkhead_testkit::csi::{Driver, Fault, objects};
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{LONG, cluster, eventually};
use bulkhead_tests::storage::{NODE, Scene};
use bulkhead_tests::{Dice, lab};
use serde_json::{Value, json};

use crate::DRIVER;

const NAME: &str = "chaos.test";
const LIVES: u64 = 20;
/// Claims of the hostpath driver, which lives share one after the other.
const SHARED: u64 = 4;
/// Within it a pod may be anywhere between its begin and its end.
const MOMENT: u64 = 1500;

fn own_driver(scene: &Scene) -> Result<Driver> {
    let driver = scene.driver(DRIVER, NAME, &Value::Null)?.start()?;
    driver.wait_registered()?;
    Ok(driver)
}

#[test]
fn a_daemon_that_dies_at_any_step_of_a_volumes_end_leaves_nothing() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    if !Scene::is_ours() {
        return Ok(());
    }
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let driver = own_driver(&scene)?;
    for daemon in DAEMONS {
        for method in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
            // A file system, whose steps the death comes into; a block device beside it, whose steps it may come into.
            let (disk, raw) =
                (format!("{daemon}-{method}").to_lowercase(), format!("{daemon}-{method}-raw").to_lowercase());
            scene.volume(&disk, NAME)?;
            scene.block_volume(&raw, NAME)?;
            scene.pod_with(&disk, bulkhead_testkit::IDLE, &[&disk], &[&raw])?;
            scene.wait_ready(&disk)?;
            driver.faults(&[Fault::hangs(method).of_volume(&disk)])?;
            scene.cluster.delete("pods", "default", &disk, Some(1))?;
            driver.wait_call(method, &disk, |_| true)?;
            scene.node.kill_daemon(daemon)?;
            driver.heal()?;
            eventually("the node is well again", LONG, || scene.node.is_healthy())?;
            let context = || format!("{daemon} died in {method}");
            scene.cluster.wait_gone("pods", "default", &disk).with_context(context)?;
            scene.wait_no_traces().with_context(context)?;
            for volume in [&disk, &raw] {
                let ended = driver.calls_of("NodeUnstageVolume", volume)?;
                ensure!(ended.iter().any(|call| call.is_ok()), "{}: {volume}: {ended:#?}", context());
            }
        }
    }
    drop(driver);
    scene.finish_after_deaths()
}

struct World {
    scene: Scene,
    hostpath: Hostpath,
    driver: Driver,
    dice: Dice,
}

fn world() -> Result<Option<World>> {
    let Some(lab) = lab()? else { return Ok(None) };
    if !(Hostpath::is_there() && cluster::controllers_are_there() && Scene::is_ours()) {
        skip_this_test(Lack::ControlPlane)?;
        return Ok(None);
    }
    let cluster = lab.cluster_with_controllers()?;
    let scene = Scene::start(lab, cluster)?;
    let hostpath = Hostpath::start(&scene.node, &scene.cluster)?;
    let driver = own_driver(&scene)?;
    let both = |node: &Value| node["spec"]["drivers"].as_array().is_some_and(|all| all.len() == 2);
    scene.cluster.wait_for("csinodes", "", NODE, "both drivers are in it", both).with_context(|| hostpath.logs())?;
    Ok(Some(World { scene, hostpath, driver, dice: Dice::from_environment() }))
}

impl World {
    /// A pod with a claim that is attached, a file system and a block device of its own, and an inline volume.
    fn begin(&self, life: u64) -> Result<String> {
        let (name, shared) = (format!("life-{life}"), format!("shared-{}", life % SHARED));
        let (disk, raw) = (format!("{name}-disk"), format!("{name}-raw"));
        self.scene.volume(&disk, NAME)?;
        self.scene.block_volume(&raw, NAME)?;
        let mut volumes: Vec<Value> = [&shared, &disk, &raw].map(|claim| objects::of_claim(claim)).to_vec();
        volumes.push(json!({"name": "inline", "csi": {"driver": NAME}}));
        let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
        self.scene.create(
            &name,
            &json!({"volumes": volumes, "containers": [{
                "name": "main", "image": bulkhead_testkit::image::BUSYBOX,
                "command": ["sh", "-c", bulkhead_testkit::IDLE],
                "volumeMounts": [mount(&shared), mount(&disk), mount("inline")],
                "volumeDevices": [{"name": raw, "devicePath": "/dev/raw"}]}]}),
        )?;
        Ok(name)
    }

    /// Kills one daemon, all of them, or everything.
    fn strike(&mut self) -> Result<String> {
        let node = &mut self.scene.node;
        let victim = match self.dice.below(6) {
            which @ 0..4 => {
                let daemon = DAEMONS[usize::try_from(which)?];
                node.kill_daemon(daemon)?;
                daemon.to_owned()
            }
            4 => {
                DAEMONS.iter().try_for_each(|daemon| node.kill_daemon(daemon))?;
                "all four daemons".to_owned()
            }
            _ => {
                node.kill_everything();
                node.launch()?;
                "everything".to_owned()
            }
        };
        node.wait_healthy().with_context(|| format!("after the death of {victim}"))?;
        Ok(victim)
    }

    fn wait_a_moment(&mut self) {
        std::thread::sleep(Duration::from_millis(self.dice.below(MOMENT)));
    }
}

#[test]
fn twenty_lives_of_pods_with_claims_under_random_deaths_leave_nothing() -> Result<()> {
    let Some(mut world) = world()? else { return Ok(()) };
    println!("seed {} (set BULKHEAD_SEED to repeat)", world.dice.seed());
    for number in 0..SHARED {
        let claim = format!("shared-{number}");
        world.scene.cluster.create(&objects::claim(&claim, hostpath::CLASS, "8Mi", &Value::Null))?;
        let bound = |claim: &Value| claim["status"]["phase"] == "Bound";
        let bound = world.scene.cluster.wait_for("persistentvolumeclaims", "default", &claim, "it is bound", bound);
        bound.with_context(|| world.hostpath.logs())?;
    }
    let mut struck = Vec::new();
    let mut lives = std::collections::VecDeque::new();
    for life in 0..LIVES {
        lives.push_back(world.begin(life)?);
        world.wait_a_moment();
        struck.push(world.strike()?);
        if lives.len() > 2
            && let Some(oldest) = lives.pop_front()
        {
            world.scene.cluster.delete("pods", "default", &oldest, Some(1))?;
            world.wait_a_moment();
            struck.push(world.strike()?);
        }
    }
    eprintln!("killed: {struck:?}");
    // Those that are wanted still are there in the end, whatever died meanwhile.
    for name in &lives {
        world
            .scene
            .wait_ready(name)
            .or_else(|_| world.scene.wait_ready(name))
            .with_context(|| world.hostpath.logs())?;
        world.scene.cluster.delete("pods", "default", name, Some(1))?;
    }
    eventually("all pods are gone", LONG, || {
        let left = world.scene.cluster.list("pods", Some("default"))?;
        ensure!(left.is_empty(), "{} pods: {:#}", left.len(), left[0]);
        Ok(())
    })?;
    world.scene.wait_no_traces()?;
    eventually("nothing is attached", LONG, || {
        let left = world.scene.cluster.list("volumeattachments", None)?;
        ensure!(left.is_empty(), "{left:#?}");
        let attached = world.scene.volumes("volumesAttached")?;
        ensure!(attached.is_empty(), "{attached:?}");
        Ok(())
    })
    .with_context(|| world.hostpath.logs())?;
    let World { scene, hostpath, driver, .. } = world;
    drop((hostpath, driver));
    scene.finish_after_deaths()
}
