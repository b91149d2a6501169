//! The machine's own memory runs short: with cgroup v2 the root has no file that says what it uses, and no event at a threshold; what
//! is read is made of its statistics, and PSI wakes the reading.

use anyhow::{Context, Result, ensure};

use crate::node::{self, NAMESPACE, PODS, World};

/// Who takes the machine's memory is evicted for the soft threshold, which is the machine's alone; nobody else is.
pub fn of_the_machines_memory(world: &mut World) -> Result<()> {
    let triggers = "ls -l /proc/$(systemctl show --value -p MainPID kubelet-evictiond.service)/fd | grep -c 'pressure'";
    let triggers: u32 = world.vm.until("PSI wakes the eviction manager", PODS, triggers)?.trim().parse()?;
    ensure!(triggers == 2, "of the machine and of the pods, not {triggers}");
    let pressure = world.vm.run("kubelet-ctl pressure")?;
    ensure!(pressure.contains("Conditions: no pressure"), "{pressure}");
    let before = world.node()?;
    world.cluster.create(&node::taker())?;
    let gone = world.wait("taker", "it is evicted", |pod| pod["status"]["reason"] == "Evicted")?;
    let message = gone["status"]["message"].as_str().context("no message")?;
    ensure!(
        message.starts_with("The node was low on resource: memory. Threshold quantity: 1Gi, available: "),
        "{message}"
    );
    let ended = &gone["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(ended["exitCode"] == 3, "it ended upon SIGTERM, and not by the kernel: {}", gone["status"]);
    let shown =
        world.vm.until("the operator sees it", PODS, "kubelet-ctl pressure > /tmp/p; grep 'ago .* taker' /tmp/p")?;
    ensure!(shown.contains("memory.available"), "{shown}");
    let log = "journalctl -b --no-pager -o short-precise -u 'kubelet-evictiond' -u 'kubelet-syncd' | grep -i evict | tail -n 12";
    eprintln!("{}", world.vm.run(log)?);
    world.cluster.delete("pods", NAMESPACE, "taker", Some(0))?;
    world.gone("taker")?;
    world.vm.until(
        "the pressure is over",
        PODS,
        "kubelet-ctl pressure > /tmp/p; grep 'Conditions: no pressure' /tmp/p",
    )?;
    ensure!(world.node()?.running == before.running, "nobody else ended");
    Ok(())
}
