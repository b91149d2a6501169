//! Does the machine with systemd itself work, with no node in it?

use std::path::Path;

use anyhow::{Result, ensure};
use bulkhead_testkit::systemd::Machine;
use bulkhead_tests::systemd_machine;

#[test]
fn systemd_and_containerd_run_in_a_machine_of_their_own() -> Result<()> {
    let Some(builder) = systemd_machine()? else { return Ok(()) };
    let mut machine = Machine::boot(builder)?;
    ensure!(machine.check(&["cat", "/proc/1/comm"])?.trim() == "systemd");
    ensure!(machine.check(&["hostname"])?.trim() == machine.hostname());
    let ended = machine.run(&["sh", "-c", "echo out; echo err >&2; exit 3"])?;
    ensure!((ended.status.code(), &*ended.stdout, &*ended.stderr) == (Some(3), b"out\n", b"err\n"), "{ended:?}");

    // The cgroups are its own: what it makes is below the machine's, and it may set limits.
    machine.check(&["systemd-run", "--wait", "--quiet", "--property=MemoryMax=64M", "--unit=limited", "true"])?;
    let memory = Path::new("/sys/fs/cgroup/memory").join(machine.cgroup().trim_start_matches('/'));
    if memory.exists() {
        machine.check(&["mkdir", "/sys/fs/cgroup/memory/made-inside"])?;
        ensure!(memory.join("made-inside").is_dir());
    }
    machine.check(&["ctr", "version"])?;
    let images = machine.check(&["ctr", "--namespace", "k8s.io", "images", "ls", "--quiet"])?;
    ensure!(images.contains("bulkhead.test/pause:1"), "{images}");
    // Reached from outside, and the outside from inside.
    ensure!(machine.check(&["ip", "route", "get", "192.0.2.1"])?.contains(&machine.netns().gateway().to_string()));
    let said = machine.journal(&["--unit=containerd", "--lines=50"])?;
    ensure!(said.contains("containerd successfully booted"), "{said}");

    machine.reboot()?;
    machine.check(&["systemctl", "is-active", "containerd"])?;
    ensure!(machine.journal(&["--list-boots"])?.lines().count() == 2, "the journal of the boot before is there");
    machine.finish()
}
