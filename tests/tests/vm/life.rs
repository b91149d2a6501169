//! The node's own life: it starts, systemd is reloaded under it, it is restarted, killed and replaced, and its pods go.

use anyhow::{Result, ensure};
use bulkhead_testkit::systemd::SERVICES;
use bulkhead_testkit::vm::Vm;
use bulkhead_tests::joined::is_true;

use crate::node::{NAMESPACE, Node, PODS, TREE, World, burstable, get};
use crate::vsock;

/// Upstream's own unit, as its packages have it: the launcher is all that it starts.
pub const LAUNCHER: &str = "[Unit]\nDescription=kubelet\nAfter=containerd.service\n\n[Service]\n\
                            EnvironmentFile=/etc/default/kubelet\n\
                            ExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS --vsock-port=10240\nRestart=always\nRestartSec=10\n";

/// What the package does when it is installed, and then one command.
pub fn start(world: &mut World) -> Result<()> {
    world.cluster.create(&burstable())?;
    let vm = &mut world.vm;
    ensure!(vm.run("stat -fc %T /sys/fs/cgroup")? == "cgroup2fs", "the machine has unified cgroups");
    vm.run(
        "ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2\n\
         systemd-sysusers; systemd-tmpfiles --create --prefix=/run/kubelet --prefix=/run/kubelet.claims\n\
         systemctl start containerd reserved.slice\nctr -n k8s.io images import /root/images.tar >/dev/null\n\
         systemctl enable --now kubelet",
    )?;
    for pod in crate::node::wanted() {
        world.wait(pod, "it is ready", |pod| is_true(pod, "Ready"))?;
    }
    let version =
        world.vm.run(&format!("{} > /tmp/metrics; grep ^kubelet_cgroup_version /tmp/metrics", get("/metrics")))?;
    ensure!(version == "kubelet_cgroup_version 2", "{version}");
    Ok(())
}

/// Every limit in the tree, one a line.
pub fn all_limits(vm: &mut Vm) -> Result<String> {
    let limits = vm.run(&format!(
        "cd {TREE}; find . -name 'memory.m*' -o -name memory.low -o -name memory.high -o -name 'cpu.max' -o -name cpu.weight \
         -o -name pids.max -o -name 'cpuset.cpus' -o -name 'hugetlb.*.max' -o -name cgroup.subtree_control > /tmp/limits\n\
         sort /tmp/limits | xargs grep ."
    ))?;
    ensure!(limits.lines().count() > 50, "{limits}");
    Ok(limits)
}

fn same(what: &str, before: &str, after: &str) -> Result<()> {
    let changed: Vec<_> = before.lines().zip(after.lines()).filter(|(a, b)| a != b).collect();
    ensure!(before == after, "{what}: {changed:?}");
    Ok(())
}

/// systemd writes down again what it knows: nothing changes by that.
pub fn reload(world: &mut World) -> Result<()> {
    let vm = &mut world.vm;
    let before = all_limits(vm)?;
    vm.run("systemctl daemon-reload; systemctl set-property --runtime kubepods.slice IOWeight=200; systemctl daemon-reload")?;
    same("daemon-reload", &before, &all_limits(vm)?)?;
    vm.run("systemctl daemon-reexec")?;
    same("daemon-reexec", &before, &all_limits(vm)?)
}

/// Waits until the node says that it is well.
pub fn healthy(world: &mut World) -> Result<()> {
    world.vm.until("the node is well", PODS, "http 10248 /healthz").map(drop)
}

/// Neither the node agent's end nor its return has changed a container or a limit.
pub fn unchanged(world: &mut World, node: &Node, limits: &str, how: &str) -> Result<()> {
    let now = world.node()?;
    ensure!(now.running == node.running, "{how}: {:?} was {:?}", now.running, node.running);
    same(how, limits, &all_limits(&mut world.vm)?)
}

/// Each daemon is killed, and systemd starts it again.
pub fn kill(world: &mut World) -> Result<()> {
    let services = SERVICES.join(" ");
    world.vm.run(&format!("systemctl kill --kill-whom=main -s KILL {services}"))?;
    let again = format!(
        "systemctl show --value -p NRestarts {services} > /tmp/restarts; [ $(grep -c '^[1-9]' /tmp/restarts) = 4 ]\n\
         [ $(systemctl is-active {services} | grep -cx active) = 4 ]; http 10248 /healthz"
    );
    world.vm.until("each is back", PODS, &again)?;
    Ok(())
}

/// The launcher takes the units' place, on the same pods; with vsock by its flag.
pub fn launcher(world: &mut World) -> Result<()> {
    let vm = &mut world.vm;
    vm.run("systemctl disable --now kubelet")?;
    vsock::remove_units(vm)?;
    vsock::gone(vm)?;
    ensure!(
        vm.run("cat /sys/fs/cgroup/kubelet.slice/cgroup.events 2>/dev/null || echo populated 0")?
            .contains("populated 0")
    );
    vm.run("cp /root/launcher.service /etc/systemd/system/kubelet.service; systemctl daemon-reload; systemctl start kubelet")?;
    healthy(world)
}

/// A removed pod leaves neither cgroup nor unit, and what its level keeps is less.
pub fn removal(world: &mut World, pods: &[&str]) -> Result<()> {
    world.vm.run("rm /etc/kubernetes/manifests/*")?;
    world.cluster.delete("pods", NAMESPACE, "burstable", None)?;
    for pod in pods {
        world.gone(pod)?;
    }
    let vm = &mut world.vm;
    let left = format!("find {TREE} -name '*-pod*' > /tmp/left; ! grep . /tmp/left");
    vm.until("the pods' cgroups are gone", PODS, &left)?;
    let units = "systemctl list-units --all --plain --no-legend 'kubepods*-pod*' 'cri-containerd-*.scope' > /tmp/left; ! grep . /tmp/left";
    vm.until("systemd has forgotten them", PODS, units)?;
    vm.until(
        "their files are gone",
        PODS,
        "ls /run/systemd/transient > /tmp/left; ! grep -e -pod -e cri-containerd /tmp/left",
    )?;
    vm.until(
        "nothing is kept for pods that are gone",
        PODS,
        &format!("grep -x 0 {TREE}/memory.min; grep -x 0 {TREE}/kubepods-burstable.slice/memory.low"),
    )?;
    // The levels stay, as upstream's do.
    let units = vm.run("systemctl is-active kubepods.slice kubepods-burstable.slice kubepods-besteffort.slice")?;
    ensure!(units == "active\nactive\nactive", "{units}");
    ensure!(vm.run(&format!("find {TREE} -mindepth 1 -type d | wc -l"))? == "2");
    Ok(())
}
