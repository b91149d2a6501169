//! Any process, or all of them, may die at any instruction: running pods do not notice, and no half-done work stays.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::{LONG, Node, Pod, eventually, leaks};
use bulkhead_tests::{Dice, lab};

const STABLE: usize = 5;
const ROUNDS: u64 = 20;

#[test]
fn twenty_deaths_at_random_moments_under_churn_leave_running_pods_alone() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut node = lab.node("alpha").start()?;
    let mut dice = Dice::from_environment();
    println!("seed {} (set BULKHEAD_SEED to repeat)", dice.seed());

    for index in 0..STABLE {
        let pod = Pod::idle(&format!("stable-{index}"));
        node.write(&if index % 2 == 0 { pod.empty_dir("memory", "Memory", Some("1Mi"), "/memory") } else { pod })?;
    }
    for index in 0..STABLE {
        node.wait_running(&format!("stable-{index}"), 1)?;
    }
    let stable = of_stable_pods(&node)?;

    let mut churn = BTreeSet::new();
    for round in 0..ROUNDS {
        // Two pods come and one goes in every round, so that starts and ends are in flight whenever death comes.
        for half in 0..2 {
            let name = format!("churn-{round}-{half}");
            node.write(&Pod::idle(&name).empty_dir("memory", "Memory", Some("1Mi"), "/memory"))?;
            churn.insert(name);
        }
        if round > 0
            && let Some(name) = churn.pop_first()
        {
            node.remove(&name)?;
        }
        std::thread::sleep(Duration::from_millis(dice.below(1500)));
        let victim = strike(&mut node, round, &mut dice)?;
        node.wait_healthy().with_context(|| format!("after the death of {victim} in round {round}"))?;
        let now = of_stable_pods(&node)?;
        ensure!(now == stable, "round {round}, death of {victim}: {stable:#?} became {now:#?}");
    }

    for name in &churn {
        node.wait_running(name, 1)?;
    }
    eventually("there is exactly one sandbox for each pod, with one address and one cgroup", LONG, || {
        exact(&node, STABLE + churn.len())
    })?;
    for name in &churn {
        node.remove(name)?;
    }
    eventually("the churned pods are gone without a trace", LONG, || exact(&node, STABLE))?;
    ensure!(of_stable_pods(&node)? == stable);
    node.finish_after_deaths()
}

/// Kills one daemon, all daemons, the launcher, or everything; what must be started by hand is.
fn strike(node: &mut Node, round: u64, dice: &mut Dice) -> Result<String> {
    match round % 7 {
        which @ 0..=3 => {
            let daemon = DAEMONS[which as usize];
            node.kill_daemon(daemon)?;
            Ok(daemon.to_owned())
        }
        4 => {
            for daemon in DAEMONS {
                node.kill_daemon(daemon)?;
            }
            Ok("all four daemons".to_owned())
        }
        5 => {
            node.kill_launcher();
            std::thread::sleep(Duration::from_millis(dice.below(300)));
            node.launch()?;
            Ok("the launcher".to_owned())
        }
        _ => {
            node.kill_everything();
            node.launch()?;
            Ok("the whole agent".to_owned())
        }
    }
}

fn of_stable_pods(node: &Node) -> Result<Vec<Fingerprint>> {
    // A churned container may end between the list and the look at its process.
    let all = eventually("every listed container is still there", LONG, || node.fingerprint())?;
    Ok(all.into_iter().filter(|one| one.pod.starts_with("stable-")).collect())
}

/// Counts everything that a pod has one of.
fn exact(node: &Node, pods: usize) -> Result<()> {
    let (cri, containerd) = (node.cri()?, node.lab().containerd());
    let sandboxes = cri.sandboxes()?;
    ensure!(sandboxes.len() == pods && sandboxes.iter().all(|one| one.ready), "sandboxes: {sandboxes:#?}");
    // A start that was cut off by a death leaves one dead instance beside the running one; each pod keeps at most that.
    let containers = cri.containers()?;
    let running = containers.iter().filter(|one| one.running).count();
    ensure!(running == pods, "{running} containers run: {containers:#?}");
    // A container whose start died with the agent stays as the last dead one that garbage collection keeps.
    for dead in containers.iter().filter(|one| !one.running) {
        let siblings = containers.iter().filter(|one| one.sandbox == dead.sandbox).count();
        ensure!(siblings == 2, "{siblings} containers in the sandbox of {dead:#?}");
    }
    let addresses = containerd.addresses();
    ensure!(addresses.len() == pods, "addresses: {addresses:?}");
    ensure!(containerd.network_namespaces().len() == pods, "namespaces: {:?}", containerd.network_namespaces());
    let things = leaks::of_pods(node);
    let count = |prefix: &str| things.iter().filter(|thing| thing.starts_with(prefix)).count();
    ensure!(count("pod directory ") == pods, "{things:#?}");
    // Pod cgroups only, not those of containers inside them.
    let cgroups = things.iter().filter_map(|thing| thing.strip_prefix("cgroup "));
    let cgroups = cgroups.filter(|path| path.rsplit('/').next().is_some_and(|last| last.starts_with("pod"))).count();
    ensure!(cgroups == pods, "{cgroups} pod cgroups: {things:#?}");
    let known: BTreeSet<&str> = sandboxes.iter().map(|sandbox| sandbox.uid.as_str()).collect();
    for mount in things.iter().filter(|thing| thing.starts_with("mount ")) {
        ensure!(known.iter().any(|uid| mount.contains(uid)), "{mount} belongs to no pod");
    }
    Ok(())
}
