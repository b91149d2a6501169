//! The cgroup tree: the daemons in their slice, the pods under upstream's names, and limits that systemd knows.

use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_testkit::eventually;
use bulkhead_testkit::systemd::SERVICES;
use bulkhead_testkit::vm::Vm;

use crate::node::{GUARANTEED, MIB, Node, PODS, TREE, World, expect, last, properties, weight};

/// Each daemon is alone in a cgroup of its unit's name in kubelet.slice, none of it is a pod's, and each has what the map of
/// privileges says.
pub fn daemons(world: &mut World) -> Result<()> {
    // One that was too slow for its watchdog is another process a moment later.
    eventually("each daemon is in its cgroup", Duration::from_secs(PODS.into()), || in_their_cgroups(&mut world.vm))?;
    // A process that is busy is asked again.
    world.vm.until("the map is as it is", PODS, "kubelet-ctl privileges")?;
    Ok(())
}

fn in_their_cgroups(vm: &mut Vm) -> Result<()> {
    let units = SERVICES.map(str::to_owned);
    let mut processes = Vec::new();
    for (unit, shown) in SERVICES.iter().zip(properties(vm, &units, "Slice,ControlGroup,MainPID,Delegate")?) {
        let expected = (format!("/kubelet.slice/{unit}"), "kubelet.slice", "no");
        let seen = (shown["ControlGroup"].clone(), shown["Slice"].as_str(), shown["Delegate"].as_str());
        ensure!(seen == expected, "{unit}: {shown:?}");
        processes.push(format!("/kubelet.slice/{unit}:{}", shown["MainPID"]));
    }
    let found = vm.run(
        "cd /sys/fs/cgroup; find ./kubelet.slice -name cgroup.procs | while read file; do\n\
         for pid in $(cat $file); do folder=${file%/cgroup.procs}; echo ${folder#.}:$pid; done; done",
    )?;
    let found: Vec<&str> = found.lines().collect();
    let is_there = |process: &String| found.contains(&process.as_str());
    ensure!(processes.iter().all(is_there), "{found:?}, not {processes:?}");
    // Beside a main process are workers alone, of the two that have some.
    let with_workers = ["/kubelet.slice/kubelet-volnetd.service:", "/kubelet.slice/kubelet-walker.service:"];
    let is_known = |line: &&str| {
        processes.iter().any(|process| process == line) || with_workers.iter().any(|unit| line.starts_with(unit))
    };
    ensure!(found.iter().all(is_known), "{found:?}, not {processes:?}");
    Ok(())
}

/// The tree has upstream's names, systemd knows each slice, and containers are scopes that it leaves to the runtime.
pub fn names(world: &mut World, node: &Node) -> Result<()> {
    let vm = &mut world.vm;
    ensure!(node.slices["guaranteed"] == GUARANTEED, "{:?}", node.slices);
    for name in ["burstable", "besteffort"] {
        let class = format!("kubepods-{name}.slice");
        let uid = node.slices[name].strip_prefix(&format!("{class}/kubepods-{name}-pod")).unwrap_or_default();
        let uid = uid.trim_end_matches(".slice");
        let of_uid = |byte: u8| byte.is_ascii_hexdigit() || byte == b'_';
        ensure!(matches!(uid.len(), 32 | 36) && uid.bytes().all(of_uid), "{:?}", node.slices);
    }
    let mut units: Vec<String> =
        ["kubepods.slice", "kubepods-burstable.slice", "kubepods-besteffort.slice"].map(str::to_owned).into();
    units.extend(node.slices.values().map(|slice| last(slice).to_owned()));
    let names =
        "LoadState,ActiveState,Description,MemoryAccounting,CPUAccounting,IOAccounting,TasksAccounting,Transient";
    for (unit, shown) in units.iter().zip(properties(vm, &units, names)?) {
        let expected = [
            ("LoadState", "loaded"),
            ("ActiveState", "active"),
            ("MemoryAccounting", "yes"),
            ("CPUAccounting", "yes"),
            ("IOAccounting", "yes"),
            ("TasksAccounting", "yes"),
            ("Transient", "yes"),
        ];
        ensure!(
            expected.iter().all(|(name, value)| shown.get(*name).is_some_and(|seen| seen == value)),
            "{unit}: {shown:?}"
        );
        ensure!(shown["Description"] == format!("libcontainer container {unit}"), "{shown:?}");
    }
    let scopes: Vec<String> = node.scopes.values().map(|scope| last(scope).to_owned()).collect();
    for (name, shown) in node.scopes.keys().zip(properties(vm, &scopes, "ActiveState,Delegate,Slice")?) {
        ensure!((shown["ActiveState"].as_str(), shown["Delegate"].as_str()) == ("active", "yes"), "{shown:?}");
        ensure!(shown["Slice"] == node.unit(name), "{shown:?}");
    }
    // A container may have cgroups of its own: the controllers that pods need are there.
    let folders: Vec<&str> = node.scopes.values().map(String::as_str).collect();
    let controllers =
        vm.run(&format!("cd {TREE}; for f in {}; do cat $f/cgroup.controllers; done", folders.join(" ")))?;
    for of_one in controllers.lines() {
        for controller in ["cpuset", "cpu", "memory", "pids"] {
            ensure!(of_one.split(' ').any(|c| c == controller), "{controllers}");
        }
    }
    ensure!(controllers.lines().count() == folders.len(), "{controllers}");
    Ok(())
}

/// A limit: folder, its unit, file and what is in it, property and what systemd says.
pub type Limit<'a> = (&'a str, &'a str, &'a str, String, &'a str, String);

/// What systemd was told is what is in the files.
pub fn agree(vm: &mut Vm, table: &[Limit<'_>]) -> Result<()> {
    let script: String = table
        .iter()
        .map(|(folder, unit, file, _, property, _)| {
            format!("echo \"$(cat {TREE}/{folder}/{file})|$(systemctl show --value -p {property} {unit})\"\n")
        })
        .collect();
    let seen = vm.run(&script)?;
    for ((folder, _, file, value, property, told), seen) in table.iter().zip(seen.lines()) {
        ensure!(seen == format!("{value}|{told}"), "{folder}: {file} and {property}: {seen}, not {value}|{told}");
    }
    ensure!(seen.lines().count() == table.len(), "{seen}");
    Ok(())
}

/// Of all levels, pods and containers. CPU: shares of the request as a weight.
pub fn limits(world: &mut World, node: &Node) -> Result<()> {
    let vm = &mut world.vm;
    let total: u64 = vm.run("awk '/MemTotal/ {print $2 * 1024}' /proc/meminfo")?.parse()?;
    let tasks: u64 = vm.run("sort -n /proc/sys/kernel/pid_max /proc/sys/kernel/threads-max | head -n 1")?.parse()?;
    let (memory, pids) = (total - 256 * MIB, tasks - 1000);
    let infinity = "infinity".to_owned();
    let (all, middle, low) = ("kubepods.slice", "kubepods-burstable.slice", "kubepods-besteffort.slice");
    let (guaranteed, guaranteed_unit) = (node.slices["guaranteed"].as_str(), node.unit("guaranteed"));
    let (burstable, burstable_unit) = (node.slices["burstable"].as_str(), node.unit("burstable"));
    let (besteffort, besteffort_unit) = (node.slices["besteffort"].as_str(), node.unit("besteffort"));
    let reserved = "../reserved.slice";
    let same = |value: u64| (value.to_string(), value.to_string());
    let row =
        |folder, unit, file, (value, told): (String, String), property| (folder, unit, file, value, property, told);
    let none = ("max".to_owned(), infinity.clone());
    let table: Vec<Limit<'_>> = vec![
        row(".", all, "memory.max", same(memory), "MemoryMax"),
        row(".", all, "cpu.weight", same(weight(1500)), "CPUWeight"),
        row(".", all, "pids.max", same(pids), "TasksMax"),
        row(".", all, "cpuset.cpus", ("0-1".into(), "0-1".into()), "AllowedCPUs"),
        row(reserved, "reserved.slice", "memory.max", same(256 * MIB), "MemoryMax"),
        row(reserved, "reserved.slice", "memory.min", same(256 * MIB), "MemoryMin"),
        row(reserved, "reserved.slice", "cpu.weight", same(weight(500)), "CPUWeight"),
        row(reserved, "reserved.slice", "pids.max", same(1000), "TasksMax"),
        row(middle, middle, "cpu.weight", same(weight(100)), "CPUWeight"),
        row(middle, middle, "memory.max", none.clone(), "MemoryMax"),
        row(low, low, "cpu.weight", same(1), "CPUWeight"),
        row(guaranteed, guaranteed_unit, "memory.max", same(64 * MIB), "MemoryMax"),
        row(guaranteed, guaranteed_unit, "cpu.weight", same(weight(250)), "CPUWeight"),
        row(guaranteed, guaranteed_unit, "cpu.max", ("25000 100000".into(), "250ms".into()), "CPUQuotaPerSecUSec"),
        row(guaranteed, guaranteed_unit, "pids.max", same(200), "TasksMax"),
        row(burstable, burstable_unit, "memory.max", same(80 * MIB), "MemoryMax"),
        row(burstable, burstable_unit, "cpu.weight", same(weight(100)), "CPUWeight"),
        row(burstable, burstable_unit, "cpu.max", ("max 100000".into(), infinity), "CPUQuotaPerSecUSec"),
        row(besteffort, besteffort_unit, "memory.max", none, "MemoryMax"),
        row(besteffort, besteffort_unit, "cpu.weight", same(1), "CPUWeight"),
        row(besteffort, besteffort_unit, "pids.max", same(200), "TasksMax"),
    ];
    agree(vm, &table)?;
    // Huge pages that a pod does not ask for are none; the levels do not limit them.
    let files = format!("{guaranteed}/hugetlb.2MB.max {guaranteed}/hugetlb.2MB.rsvd.max {middle}/hugetlb.2MB.max");
    let pages = vm.run(&format!("cd {TREE}; cat {files}"))?;
    ensure!(pages == "0\n0\nmax" || pages == format!("0\n0\n{}", 1u64 << 62), "{pages}");
    let own = |name: &str, file: &str, value: String| (format!("{}/{file}", node.scopes[name]), value);
    expect(
        vm,
        &[
            own("guaranteed", "memory.max", (64 * MIB).to_string()),
            own("guaranteed", "cpu.max", "25000 100000".to_owned()),
            own("burstable", "memory.max", (80 * MIB).to_string()),
            own("besteffort", "memory.max", "max".to_owned()),
            // All of a container ends when one of its processes takes too much.
            own("burstable", "memory.oom.group", "1".to_owned()),
        ],
    )
}
