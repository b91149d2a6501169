//! What all processes of root's share is used up: here alone the limit is no other test's. (Decision 52.)

use anyhow::{Result, ensure};

use crate::life::healthy;
use crate::node::{PODS, World};

const LIMIT: &str = "/proc/sys/fs/inotify/max_user_instances";
/// What `kubelet-ctl health` says of it.
const SAID: &str = "Degraded:  kubelet-volnetd: no inotify instance";

/// No process of root's gets another inotify instance. volnetd keeps its own over its death; once its unit has been stopped it
/// has none, starts all the same, says so, and has one again as soon as the kernel gives it.
pub fn no_inotify_instance(world: &mut World) -> Result<()> {
    let before = world.vm.run(&format!("cat {LIMIT}; echo 1 > {LIMIT}"))?;
    let outcome = without_instances(world);
    world.vm.run(&format!("echo {before} > {LIMIT}"))?;
    outcome?;
    let recovered = format!("kubelet-ctl health > /tmp/health; ! grep '{SAID}' /tmp/health");
    world.vm.until("files are watched again", PODS, &recovered).map(drop)
}

fn without_instances(world: &mut World) -> Result<()> {
    // The kernel's own refusal, to a program that goes on without.
    let refused = world.vm.script("timeout 1 tail -f /etc/hostname 2>&1 >/dev/null")?;
    ensure!(refused.stdout.contains("inotify cannot be used"), "{refused:?}");
    let restarts = "systemctl show --value -p NRestarts kubelet-volnetd.service";
    let told: u32 = world.vm.run(restarts)?.parse()?;
    world.vm.run("systemctl kill --kill-whom=main -s KILL kubelet-volnetd.service")?;
    world.vm.until("volnetd is back", PODS, &format!("[ $({restarts}) -gt {told} ]; http 10248 /healthz"))?;
    world.vm.until("nothing is degraded", PODS, "kubelet-ctl health > /tmp/health; ! grep Degraded /tmp/health")?;
    world.vm.run("systemctl stop kubelet; systemctl start kubelet")?;
    healthy(world)?;
    world.vm.until(
        "volnetd says that it watches nothing",
        PODS,
        &format!("kubelet-ctl health > /tmp/health; grep '{SAID}' /tmp/health"),
    )?;
    let shown = world.vm.run("systemctl status kubelet-volnetd.service | cat")?;
    ensure!(shown.contains("no inotify instance"), "{shown}");
    Ok(())
}
