//! A cloud's metadata service: out of kubelet-statusd's reach, unless it is the machine's resolver too.

use anyhow::Result;

use crate::node::{PODS, World};

/// Somebody answers there, on this machine's own loopback interface.
pub fn serve(world: &mut World) -> Result<()> {
    let vm = &mut world.vm;
    vm.run("ip addr add 169.254.169.254/32 dev lo")?;
    vm.run("systemd-run --unit=metadata systemd-socket-activate --inetd --accept -l 169.254.169.254:8099 cat")?;
    vm.until("the service answers", PODS, &reach("/sys/fs/cgroup/system.slice/metadata.service")).map(drop)
}

/// Whoever is in kubelet-statusd's cgroup does not get there.
pub fn closed(world: &mut World) -> Result<()> {
    let reach = reach("/sys/fs/cgroup/kubelet.slice/kubelet-statusd.service");
    world.vm.run(&format!("! {reach}")).map(drop)
}

/// The resolver of the machine is there; it counts from the next start of the node on.
pub fn resolve_there(world: &mut World) -> Result<()> {
    world.vm.run("cp /etc/resolv.conf /root/resolv.conf; echo nameserver 169.254.169.254 > /etc/resolv.conf").map(drop)
}

/// And does now. The resolver is put back.
pub fn opened(world: &mut World) -> Result<()> {
    let vm = &mut world.vm;
    vm.run(&reach("/sys/fs/cgroup/kubelet.slice/kubelet-statusd.service"))?;
    vm.run("cat /root/resolv.conf > /etc/resolv.conf; systemctl stop metadata; ip addr del 169.254.169.254/32 dev lo")?;
    Ok(())
}

/// Connects from this cgroup.
fn reach(cgroup: &str) -> String {
    let connect = "exec timeout 5 bash -c \"exec 3<>/dev/tcp/169.254.169.254/8099\"";
    format!("bash -c 'echo $$ > {cgroup}/cgroup.procs && {connect}'")
}
