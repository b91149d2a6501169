//! vsock, which the host of a virtual machine may look in by.

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::vm::Vm;
use serde_json::Value;

use crate::life::healthy;
use crate::node::{GUARANTEED, PODS, World};

/// First of the ports.
pub const PORT: u32 = 10240;
/// The daemons in the order of their ports.
const DAEMONS: [&str; 4] = ["kubelet-volnetd", "kubelet-syncd", "kubelet-evictiond", "kubelet-statusd"];
/// Something that may be read.
const READ: &str = "/kubelet.volnetd.v1.Cgroups/List";

/// Without the option nothing listens, and whoever asks is told so by the kernel.
pub fn nobody(world: &mut World) -> Result<()> {
    let listening = world.vm.run("modprobe vsock_loopback; modprobe vsock_diag; ss -H --listening --vsock")?;
    ensure!(listening.is_empty(), "{listening}");
    ensure!(world.vm.run(&format!("vsock_call 1 {PORT} {READ}"))? == "Unavailable");
    Ok(())
}

/// The administrator's socket units: what systemd/README.md shows for one daemon, for each.
fn units() -> Result<Vec<(String, String)>> {
    let guide = include_str!("../../../systemd/README.md");
    let unit =
        guide.split("```").find(|block| block.contains("ListenStream=vsock::")).context("no unit in the README")?;
    let (_, unit) = unit.split_once('\n').context("a unit of several lines")?;
    let example = |text: &str| unit.contains(text).then_some(()).with_context(|| format!("the example has no {text}"));
    example("10241")?;
    example("Service=kubelet-syncd.service")?;
    let of = |(port, daemon): (u32, &str)| {
        let unit = unit.replace("10241", &port.to_string()).replace("kubelet-syncd", daemon);
        (format!("{daemon}-vsock.socket"), unit)
    };
    Ok((PORT..).zip(DAEMONS).map(of).collect())
}

/// Turns it on under our units, which takes a restart of the node.
pub fn on(world: &mut World) -> Result<()> {
    for (name, content) in units()? {
        world.vm.run(&format!("cat > /etc/systemd/system/{name} <<'END'\n{content}END\nsystemctl enable {name}"))?;
    }
    world.vm.run("systemctl daemon-reload; systemctl restart kubelet")?;
    healthy(world)
}

/// Takes the units away again.
pub fn remove_units(vm: &mut Vm) -> Result<()> {
    let names: Vec<String> = units()?.into_iter().map(|(name, _)| name).collect();
    let names = names.join(" ");
    vm.run(&format!("cd /etc/systemd/system; systemctl disable {names}; rm {names}; systemctl daemon-reload"))?;
    Ok(())
}

/// Each process answers what reads, with what it says over its Unix socket, and refuses what writes.
pub fn answers(world: &mut World) -> Result<()> {
    let vm = &mut world.vm;
    let listening = vm.run("ss -H --listening --vsock")?;
    ensure!(listening.lines().count() == 4, "{listening}");
    let uids = |vm: &mut Vm, how: &str| -> Result<Vec<String>> {
        let said = vm.until(
            "it says its pods",
            PODS,
            &format!("kubelet-ctl pods -o json {how} 2> /tmp/why || cat /tmp/why; [ ! -s /tmp/why ]"),
        )?;
        let pods: Value = serde_json::from_str(&said)?;
        let mut uids: Vec<String> =
            pods.as_array().context("no list")?.iter().map(|pod| pod["uid"].to_string()).collect();
        uids.sort();
        Ok(uids)
    };
    let seen = uids(vm, &format!("--vsock 1:{PORT}"))?;
    ensure!(seen.len() == 3 && seen == uids(vm, "")?, "{seen:?}");
    let cgroups = format!("kubelet-ctl cgroups --vsock 1:{PORT} > /tmp/cgroups; grep -q {GUARANTEED} /tmp/cgroups");
    vm.until("it says their cgroups", PODS, &cgroups)?;
    let [volnetd, syncd, evictiond, statusd] = [0, 1, 2, 3].map(|place| PORT + place);
    calls(
        vm,
        &[
            (volnetd, READ, "Ok"),
            (volnetd, "/kubelet.volnetd.v1.Cgroups/SetQos", "PermissionDenied"),
            (volnetd, "/kubelet.volnetd.v1.Cgroups/RemovePod", "PermissionDenied"),
            (volnetd, "/kubelet.volnetd.v1.Volumes/PreparePod", "PermissionDenied"),
            (volnetd, "/kubelet.volnetd.v1.Watches/Watch", "PermissionDenied"),
            (syncd, "/kubelet.syncd.v1.Streams/Exec", "PermissionDenied"),
            (statusd, "/kubelet.common.v1.Logging/SetVerbosity", "Unimplemented"),
            (evictiond, "/kubelet.common.v1.Traces/Take", "Unimplemented"),
            (evictiond, "/kubelet.common.v1.Process/Hello", "Ok"),
            (statusd, "/kubelet.statusd.v1.Status/Get", "Ok"),
        ],
    )
}

/// All four answer.
pub fn reads(world: &mut World) -> Result<()> {
    let hello = "/kubelet.common.v1.Process/Hello";
    let all: Vec<(u32, &str, &str)> = (PORT..PORT + 4).map(|port| (port, hello, "Ok")).collect();
    calls(&mut world.vm, &all)
}

/// Port, method and the code of the answer.
fn calls(vm: &mut Vm, table: &[(u32, &str, &str)]) -> Result<()> {
    let script: String = table.iter().map(|(port, method, _)| format!("vsock_call 1 {port} {method}\n")).collect();
    let codes = vm.run(&script)?;
    for ((_, method, code), answer) in table.iter().zip(codes.lines()) {
        ensure!(answer == *code, "{method}: {answer}, not {code}");
    }
    ensure!(codes.lines().count() == table.len(), "{codes}");
    Ok(())
}

/// Waits until it answers nobody any more.
pub fn gone(vm: &mut Vm) -> Result<()> {
    vm.until("nothing listens any more", PODS, "ss -H --listening --vsock > /tmp/listening; ! grep . /tmp/listening")?;
    Ok(())
}
