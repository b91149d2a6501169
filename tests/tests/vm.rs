//! A machine of its own for what the kernel of most test machines does not give: unified cgroup v2 under systemd, with
//! the systemd cgroup driver, and vsock. qemu without hardware's help, so it is one story on one boot.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::machine;
use bulkhead_testkit::vm::{self, Disk, Vm};
use serde_json::{Value, json};

/// Seconds inside the machine until pods have started or gone.
const PODS: u32 = 120;
/// Below the root of the tree.
const TREE: &str = "/sys/fs/cgroup/kubepods.slice";
const GUARANTEED_UID: &str = "11111111-2222-3333-4444-555555555555";
const GUARANTEED: &str = "kubepods-pod11111111_2222_3333_4444_555555555555.slice";
const MIB: u64 = 1 << 20;

#[test]
fn a_node_on_cgroup_v2_under_systemd() -> Result<()> {
    let say = |text: &str| eprintln!("{text}");
    if !machine::is_root() || !vm::ensure_installed(&say) {
        eprintln!("\n!!! SKIPPED: this test needs root, qemu, mmdebstrap and Debian's cloud kernel !!!\n");
        return Ok(());
    }
    // Two machines at once would be too slow for their own watchdogs.
    let _alone =
        if std::env::var_os("BULKHEAD_BESIDE").is_none() { Some(bulkhead_testkit::only_machine()?) } else { None };
    let folder = tempfile::tempdir()?;
    let manifests: Vec<(String, String)> =
        pods().into_iter().map(|(name, pod)| (path_of(&name), pod.to_string())).collect();
    let config = config().to_string();
    let mut files =
        vec![("/var/lib/kubelet/config.yaml", config.as_str()), ("/etc/systemd/system/kubelet.service", UNIT)];
    files.extend(manifests.iter().map(|(path, pod)| (path.as_str(), pod.as_str())));
    let disk = Disk::make(folder.path(), &[("vsock_call", Path::new(env!("CARGO_BIN_EXE_vsock_call")))], &files)?;
    let mut vm = Vm::boot(&disk, folder.path())?;
    let told = story(&mut vm);
    if told.is_err() {
        let journal = vm.script("journalctl -b --no-pager -o cat -u kubelet | tail -n 80");
        eprintln!("{}", journal.map(|ended| ended.stdout).unwrap_or_default());
    }
    told
}

/// The whole story, its chapters timed: which of them is slow is worth knowing on a machine this slow.
fn story(vm: &mut Vm) -> Result<()> {
    let begun = Instant::now();
    let told = |chapter: &str| eprintln!("{chapter}: done after {} s", begun.elapsed().as_secs());
    start(vm)?;
    told("pods run");
    let node = Node::of(vm)?;
    names(vm, &node)?;
    limits(vm, &node)?;
    memory_qos(vm, &node)?;
    told("names and limits");
    reload(vm)?;
    told("systemd reloaded");
    nobody_on_vsock(vm)?;
    statistics(vm, &node)?;
    told("statistics");
    out_of_memory(vm)?;
    told("out of memory");
    restarts(vm, &node)?;
    told("restarts");
    vsock(vm, &node)?;
    told("vsock");
    removal(vm)?;
    told("removal");
    Ok(())
}

/// Upstream's own unit, as its packages have it.
const UNIT: &str = "[Unit]\nDescription=kubelet\nAfter=containerd.service\n\n[Service]\n\
                    ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --v=2\nRestart=always\nRestartSec=10\n";

/// Nothing about cgroup v1: that upstream's default refuses it does not matter here.
fn config() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "systemd",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "staticPodPath": "/etc/kubernetes/manifests",
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "readOnlyPort": 10255,
        "podPidsLimit": 200,
        "kubeReserved": {"cpu": "500m", "memory": "256Mi", "pid": "1000"},
        "featureGates": {"MemoryQoS": true},
        "memoryReservationPolicy": "TieredReservation",
    })
}

fn path_of(name: &str) -> String {
    // The greedy one has its turn later.
    let folder = if name == "greedy" { "/root" } else { "/etc/kubernetes/manifests" };
    format!("{folder}/{name}.yaml")
}

fn pods() -> Vec<(String, Value)> {
    let pod = |name: &str, uid: Option<&str>, own_network: bool, command: &str, resources: Value| {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "hostNetwork": !own_network,
                "restartPolicy": if name == "greedy" { "OnFailure" } else { "Always" },
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main",
                    "image": "bulkhead.test/busybox:1",
                    "imagePullPolicy": "Never",
                    "command": ["sh", "-c", command],
                    "resources": resources,
                }],
            },
        });
        if let Some(uid) = uid {
            pod["metadata"]["uid"] = json!(uid);
        }
        (name.to_owned(), pod)
    };
    let idle = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";
    let all = json!({"cpu": "250m", "memory": "64Mi"});
    vec![
        pod("guaranteed", Some(GUARANTEED_UID), false, idle, json!({"limits": all})),
        pod(
            "burstable",
            None,
            true,
            idle,
            json!({"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"memory": "96Mi"}}),
        ),
        pod("besteffort", None, false, idle, json!({})),
        // Two processes, of which the second takes more than there is: all of the container goes.
        pod("greedy", None, false, "sleep 1000 & tail /dev/zero", json!({"limits": {"memory": "24Mi"}})),
    ]
}

/// Where the pods' cgroups and containers are, and what must not change by itself.
struct Node {
    /// By pod name: its slice below [`TREE`].
    slices: BTreeMap<String, String>,
    /// By pod name: its container's scope below [`TREE`].
    scopes: BTreeMap<String, String>,
    /// Ids, start times and restart counts of the running containers.
    running: BTreeMap<String, Value>,
}

impl Node {
    fn of(vm: &mut Vm) -> Result<Self> {
        let (mut slices, mut scopes, mut running) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (name, status) in statuses(vm)? {
            if status["state"]["running"].is_null() {
                continue;
            }
            let id = status["containerID"].as_str().and_then(|id| id.strip_prefix("containerd://")).context("an id")?;
            let found = vm.run(&format!("cd {TREE}; find . -name 'cri-containerd-{id}.scope'"))?;
            let scope = found.trim_start_matches("./").to_owned();
            let (slice, _) = scope.rsplit_once('/').with_context(|| format!("no scope of {name}: {found:?}"))?;
            slices.insert(name.clone(), slice.to_owned());
            scopes.insert(name.clone(), scope);
            running.insert(name, json!([id, status["state"], status["restartCount"]]));
        }
        Ok(Node { slices, scopes, running })
    }
}

/// Status of each pod's container, by the name that the manifest gives the pod.
fn statuses(vm: &mut Vm) -> Result<BTreeMap<String, Value>> {
    let pods: Value = serde_json::from_str(&vm.run(&get("/pods"))?)?;
    let of = |pod: &Value| {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().trim_end_matches("-vm").to_owned();
        (name, pod["status"]["containerStatuses"][0].clone())
    };
    Ok(pods["items"].as_array().context("no list")?.iter().map(of).collect())
}

/// A script that prints a page of the read-only port.
fn get(path: &str) -> String {
    format!("http 10255 '{path}'")
}

/// A script that is content when the three pods run.
fn all_run() -> String {
    format!("{} > /tmp/pods; cat /tmp/pods; [ $(grep -o '\"running\":{{' /tmp/pods | wc -l) = 3 ]", get("/pods"))
}

fn start(vm: &mut Vm) -> Result<()> {
    ensure!(vm.run("stat -fc %T /sys/fs/cgroup")? == "cgroup2fs", "the machine has unified cgroups");
    vm.run(
        "ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2\n\
         mount --make-rshared /\nsystemctl start containerd\nctr -n k8s.io images import /root/images.tar >/dev/null\n\
         systemctl start kubelet",
    )?;
    vm.until("the pods run", PODS, &all_run())?;
    let version = vm.run(&format!("{} | grep ^kubelet_cgroup_version", get("/metrics")))?;
    ensure!(version == "kubelet_cgroup_version 2", "{version}");
    Ok(())
}

/// The tree has upstream's names, systemd knows each slice, and containers are scopes that it leaves to the runtime.
fn names(vm: &mut Vm, node: &Node) -> Result<()> {
    ensure!(node.slices["guaranteed"] == GUARANTEED, "{:?}", node.slices);
    for name in ["burstable", "besteffort"] {
        let class = format!("kubepods-{name}.slice");
        let uid = node.slices[name].strip_prefix(&format!("{class}/kubepods-{name}-pod")).unwrap_or_default();
        let uid = uid.trim_end_matches(".slice");
        ensure!(uid.len() == 32 && uid.bytes().all(|b| b.is_ascii_hexdigit()), "{:?}", node.slices);
    }
    let mut units = vec![
        "kubepods.slice".to_owned(),
        "kubepods-burstable.slice".to_owned(),
        "kubepods-besteffort.slice".to_owned(),
    ];
    units.extend(node.slices.values().filter_map(|slice| slice.rsplit('/').next()).map(str::to_owned));
    for unit in &units {
        let shown = properties(
            vm,
            unit,
            "LoadState,ActiveState,Description,MemoryAccounting,CPUAccounting,IOAccounting,TasksAccounting,Transient",
        )?;
        let expected: BTreeMap<String, String> = [
            ("LoadState", "loaded"),
            ("ActiveState", "active"),
            ("MemoryAccounting", "yes"),
            ("CPUAccounting", "yes"),
            ("IOAccounting", "yes"),
            ("TasksAccounting", "yes"),
            ("Transient", "yes"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        ensure!(expected.iter().all(|(name, value)| shown.get(name) == Some(value)), "{unit}: {shown:?}");
        ensure!(shown["Description"] == format!("libcontainer container {unit}"), "{shown:?}");
    }
    for (name, scope) in &node.scopes {
        let unit = scope.rsplit('/').next().unwrap_or_default();
        let slice = node.slices[name].rsplit('/').next().unwrap_or_default();
        let shown = properties(vm, unit, "ActiveState,Delegate,Slice")?;
        ensure!((shown["ActiveState"].as_str(), shown["Delegate"].as_str()) == ("active", "yes"), "{shown:?}");
        ensure!(shown["Slice"] == slice, "{shown:?}");
        // A container may have cgroups of its own: the controllers that pods need are there.
        let controllers = file(vm, &format!("{scope}/cgroup.controllers"))?;
        for controller in ["cpuset", "cpu", "memory", "pids"] {
            ensure!(controllers.split(' ').any(|c| c == controller), "{name}: {controllers}");
        }
    }
    Ok(())
}

fn properties(vm: &mut Vm, unit: &str, names: &str) -> Result<BTreeMap<String, String>> {
    let shown = vm.run(&format!("systemctl show '{unit}' -p {names}"))?;
    Ok(shown.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
}

fn file(vm: &mut Vm, path: &str) -> Result<String> {
    vm.run(&format!("cat {TREE}/{path}"))
}

/// What systemd was told is what is in the files. CPU: shares of the request as a weight.
fn limits(vm: &mut Vm, node: &Node) -> Result<()> {
    let total: u64 = vm.run("awk '/MemTotal/ {print $2 * 1024}' /proc/meminfo")?.parse()?;
    let tasks: u64 = vm.run("sort -n /proc/sys/kernel/pid_max /proc/sys/kernel/threads-max | head -n 1")?.parse()?;
    let (memory, pids) = (total - 256 * MIB, tasks - 1000);
    let weight = |milli: u64| 1 + ((milli * 1024 / 1000).max(2) - 2) * 9999 / 262_142;
    let infinity = "infinity".to_owned();
    let pod =
        |name: &str| (node.slices[name].clone(), node.slices[name].rsplit('/').next().unwrap_or_default().to_owned());
    let (guaranteed, guaranteed_unit) = pod("guaranteed");
    let (burstable, burstable_unit) = pod("burstable");
    let (besteffort, besteffort_unit) = pod("besteffort");
    // Folder, unit; file and what is in it, property and what systemd says.
    let table: Vec<(&str, &str, &str, String, &str, String)> = vec![
        (".", "kubepods.slice", "memory.max", memory.to_string(), "MemoryMax", memory.to_string()),
        (".", "kubepods.slice", "cpu.weight", weight(1500).to_string(), "CPUWeight", weight(1500).to_string()),
        (".", "kubepods.slice", "pids.max", pids.to_string(), "TasksMax", pids.to_string()),
        (".", "kubepods.slice", "cpuset.cpus", "0-1".into(), "AllowedCPUs", "0-1".into()),
        (
            "kubepods-burstable.slice",
            "kubepods-burstable.slice",
            "cpu.weight",
            weight(100).to_string(),
            "CPUWeight",
            weight(100).to_string(),
        ),
        (
            "kubepods-burstable.slice",
            "kubepods-burstable.slice",
            "memory.max",
            "max".into(),
            "MemoryMax",
            infinity.clone(),
        ),
        ("kubepods-besteffort.slice", "kubepods-besteffort.slice", "cpu.weight", "1".into(), "CPUWeight", "1".into()),
        (&guaranteed, &guaranteed_unit, "memory.max", (64 * MIB).to_string(), "MemoryMax", (64 * MIB).to_string()),
        (&guaranteed, &guaranteed_unit, "cpu.weight", weight(250).to_string(), "CPUWeight", weight(250).to_string()),
        (&guaranteed, &guaranteed_unit, "cpu.max", "25000 100000".into(), "CPUQuotaPerSecUSec", "250ms".into()),
        (&guaranteed, &guaranteed_unit, "pids.max", "200".into(), "TasksMax", "200".into()),
        (&burstable, &burstable_unit, "memory.max", (96 * MIB).to_string(), "MemoryMax", (96 * MIB).to_string()),
        (&burstable, &burstable_unit, "cpu.weight", weight(100).to_string(), "CPUWeight", weight(100).to_string()),
        (&burstable, &burstable_unit, "cpu.max", "max 100000".into(), "CPUQuotaPerSecUSec", infinity.clone()),
        (&besteffort, &besteffort_unit, "memory.max", "max".into(), "MemoryMax", infinity.clone()),
        (&besteffort, &besteffort_unit, "cpu.weight", "1".into(), "CPUWeight", "1".into()),
        (&besteffort, &besteffort_unit, "pids.max", "200".into(), "TasksMax", "200".into()),
    ];
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
    // Huge pages that a pod does not ask for are none; the levels do not limit them.
    for (folder, expected) in [(guaranteed.as_str(), "0"), ("kubepods-burstable.slice", "max")] {
        let limit = file(vm, &format!("{folder}/hugetlb.2MB.max"))?;
        ensure!(limit == expected || limit == (1u64 << 62).to_string() && expected == "max", "{folder}: {limit}");
    }
    let own = |name: &str, file: &str| format!("{}/{file}", node.scopes[name]);
    for (name, wanted, value) in [
        ("guaranteed", "memory.max", (64 * MIB).to_string()),
        ("guaranteed", "cpu.max", "25000 100000".to_owned()),
        ("burstable", "memory.max", (96 * MIB).to_string()),
        ("besteffort", "memory.max", "max".to_owned()),
        // All of a container ends when one of its processes takes too much.
        ("burstable", "memory.oom.group", "1".to_owned()),
    ] {
        let seen = file(vm, &own(name, wanted))?;
        ensure!(seen == value, "{name}: {wanted} is {seen}, not {value}");
    }
    Ok(())
}

/// Gate MemoryQoS with TieredReservation: requests are kept, what lies between request and limit is throttled.
fn memory_qos(vm: &mut Vm, node: &Node) -> Result<()> {
    let high = (32 * MIB + (64 * MIB) * 9 / 10) / 4096 * 4096;
    let pod = |name: &str| node.slices[name].clone();
    let own = |name: &str| node.scopes[name].clone();
    for (folder, wanted, value) in [
        (".".to_owned(), "memory.min", 64 * MIB + 32 * MIB),
        ("kubepods-burstable.slice".to_owned(), "memory.low", 32 * MIB),
        (pod("guaranteed"), "memory.min", 64 * MIB),
        (pod("burstable"), "memory.low", 32 * MIB),
        (own("guaranteed"), "memory.min", 64 * MIB),
        (own("burstable"), "memory.low", 32 * MIB),
        (own("burstable"), "memory.high", high),
    ] {
        let seen = file(vm, &format!("{folder}/{wanted}"))?;
        ensure!(seen == value.to_string(), "{folder}: {wanted} is {seen}, not {value}");
    }
    ensure!(file(vm, &format!("{}/memory.high", own("guaranteed")))? == "max", "request and limit are one");
    Ok(())
}

/// Every limit in the tree, one a line.
const ALL_LIMITS: &str = "cd /sys/fs/cgroup/kubepods.slice; find . -name 'memory.m*' -o -name memory.low -o -name memory.high \
                          -o -name 'cpu.max' -o -name cpu.weight -o -name pids.max -o -name 'cpuset.cpus' -o -name 'hugetlb.*.max' \
                          -o -name cgroup.subtree_control | sort | xargs grep .";

/// systemd writes down again what it knows: nothing changes by that.
fn reload(vm: &mut Vm) -> Result<()> {
    let before = vm.run(ALL_LIMITS)?;
    ensure!(before.lines().count() > 50, "{before}");
    vm.run("systemctl daemon-reload; systemctl set-property --runtime kubepods.slice IOWeight=200; systemctl daemon-reload")?;
    let after = vm.run(ALL_LIMITS)?;
    let changed: Vec<_> = before.lines().zip(after.lines()).filter(|(a, b)| a != b).collect();
    ensure!(before == after, "{changed:?}");
    vm.run("systemctl daemon-reexec")?;
    ensure!(vm.run(ALL_LIMITS)? == before, "the same after systemd has started anew");
    Ok(())
}

/// What is measured on v2 reaches every page, pressure included.
fn statistics(vm: &mut Vm, node: &Node) -> Result<()> {
    let summary = r#"[ $(grep -o '"name":"main"' /tmp/summary | wc -l) = 3 ]"#;
    let summary = format!("{} > /tmp/summary; {summary}; cat /tmp/summary", get("/stats/summary"));
    let summary: Value = serde_json::from_str(&vm.until("pods are measured", 60, &summary)?)?;
    let positive = |value: &Value| value.as_u64().is_some_and(|number| number > 0);
    let whole = &summary["node"];
    for value in ["cpu", "memory", "fs", "runtime"].map(|part| &whole[part]) {
        ensure!(value.is_object(), "{whole}");
    }
    ensure!(
        positive(&whole["cpu"]["usageCoreNanoSeconds"]) && positive(&whole["memory"]["workingSetBytes"]),
        "{whole}"
    );
    let pods = summary["pods"].as_array().context("pods")?;
    for name in node.running.keys() {
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == format!("{name}-vm").as_str());
        let pod = pod.with_context(|| format!("no {name} in {summary}"))?;
        let container = &pod["containers"][0];
        for part in [pod, container] {
            ensure!(
                positive(&part["cpu"]["usageCoreNanoSeconds"]) && positive(&part["memory"]["workingSetBytes"]),
                "{part}"
            );
            ensure!(part["cpu"]["psi"]["some"].is_object() && part["io"]["psi"].is_object(), "{part}");
        }
        ensure!(positive(&pod["process_stats"]["process_count"]), "{pod}");
    }
    let cadvisor = vm.run(&get("/metrics/cadvisor"))?;
    let resource = vm.run(&get("/metrics/resource"))?;
    for (name, scope) in &node.scopes {
        let of = |text: &str, family: &str, labels: &[String]| {
            let line = text.lines().find(|line| {
                line.strip_prefix(family).is_some_and(|rest| rest.starts_with('{'))
                    && labels.iter().all(|label| line.contains(label))
            });
            let value = line.and_then(|line| line.rsplit('}').next()?.split_whitespace().next()?.parse::<f64>().ok());
            value.with_context(|| format!("{family} has no {labels:?}"))
        };
        let id = [format!("id=\"/kubepods.slice/{scope}\""), "container=\"main\"".to_owned()];
        ensure!(of(&cadvisor, "container_memory_working_set_bytes", &id)? > 0.0);
        ensure!(of(&cadvisor, "container_cpu_usage_seconds_total", &id)? > 0.0);
        of(&cadvisor, "container_pressure_memory_waiting_seconds_total", &id)?;
        if name != "besteffort" {
            ensure!(of(&cadvisor, "container_spec_memory_limit_bytes", &id)? > 0.0);
        }
        let pod = [format!("pod=\"{name}-vm\"")];
        ensure!(of(&resource, "pod_memory_working_set_bytes", &pod)? > 0.0);
        ensure!(of(&resource, "container_cpu_usage_seconds_total", &pod)? > 0.0);
    }
    Ok(())
}

/// Killed for memory: the whole container, and so it is said. containerd 1.6 may miss the kernel's word when the cgroup goes
/// with its last process; the pod is run again until it has not.
fn out_of_memory(vm: &mut Vm) -> Result<()> {
    vm.run("cp /root/greedy.yaml /etc/kubernetes/manifests/")?;
    let killed = format!("{} > /tmp/pods; cat /tmp/pods; grep -o OOMKilled /tmp/pods", get("/pods"));
    vm.until("a container is killed for memory", PODS, &killed)?;
    let status = statuses(vm)?.remove("greedy").context("no greedy")?;
    let ended = [&status["state"]["terminated"], &status["lastState"]["terminated"]];
    let ended = ended.into_iter().find(|ended| ended["reason"] == "OOMKilled").with_context(|| status.to_string())?;
    ensure!(ended["exitCode"] == 137, "{status}");
    vm.run("rm /etc/kubernetes/manifests/greedy.yaml")?;
    let gone = format!("[ $(find {TREE} -name 'kubepods-*-pod*.slice' -o -name 'kubepods-pod*.slice' | wc -l) = 3 ]");
    vm.until("the greedy pod is gone", PODS, &gone)?;
    Ok(())
}

/// Neither the node agent's end nor its return changes a container or a limit.
fn restarts(vm: &mut Vm, node: &Node) -> Result<()> {
    let before = vm.run(ALL_LIMITS)?;
    for how in ["systemctl restart kubelet", "systemctl kill -s KILL kubelet; systemctl restart kubelet"] {
        vm.run(how)?;
        vm.until("the node is well again", PODS, "http 10248 /healthz")?;
        vm.until("the pods are known again", PODS, &all_run())?;
        let now = Node::of(vm)?;
        ensure!(now.running == node.running, "{how}: {:?} was {:?}", now.running, node.running);
        let after = vm.run(ALL_LIMITS)?;
        let changed: Vec<_> = before.lines().zip(after.lines()).filter(|(a, b)| a != b).collect();
        ensure!(before == after, "{how}: {changed:?}");
    }
    Ok(())
}

/// First of the ports on vsock.
const PORT: u32 = 10240;

/// Without the option nothing listens, and whoever asks is told so by the kernel.
fn nobody_on_vsock(vm: &mut Vm) -> Result<()> {
    let listening = vm.run("modprobe vsock_loopback; modprobe vsock_diag; ss -H --listening --vsock")?;
    ensure!(listening.is_empty(), "{listening}");
    ensure!(vm.run(&format!("vsock_call 1 {PORT} {READ}"))? == "Unavailable");
    Ok(())
}

const READ: &str = "/kubelet.volnetd.v1.Cgroups/List";

/// With it each process answers what reads, refuses what writes, and no pod notices that it was turned on.
fn vsock(vm: &mut Vm, node: &Node) -> Result<()> {
    vm.run(&format!(
        "mkdir -p /etc/systemd/system/kubelet.service.d\n\
         printf '[Service]\\nExecStart=\\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --vsock-port={PORT}\\n' \
         > /etc/systemd/system/kubelet.service.d/vsock.conf\nsystemctl daemon-reload; systemctl restart kubelet"
    ))?;
    vm.until("the node is well again", PODS, "http 10248 /healthz")?;
    let listening = vm.run("ss -H --listening --vsock")?;
    ensure!(listening.lines().count() == 4, "{listening}");
    // The same pods as over the Unix sockets.
    let uids = |vm: &mut Vm, how: &str| -> Result<Vec<String>> {
        let pods: Value = serde_json::from_str(&vm.run(&format!("kubelet-ctl pods -o json {how}"))?)?;
        let mut uids: Vec<String> =
            pods.as_array().context("no list")?.iter().map(|pod| pod["uid"].to_string()).collect();
        uids.sort();
        Ok(uids)
    };
    let all = format!("kubelet-ctl pods --vsock 1:{PORT} | grep -c -e -vm");
    vm.until("the pods are known again", PODS, &format!("[ $({all}) = 3 ]"))?;
    let seen = uids(vm, &format!("--vsock 1:{PORT}"))?;
    ensure!(seen.len() == 3 && seen == uids(vm, "")?, "{seen:?}");
    vm.run(&format!("kubelet-ctl cgroups --vsock 1:{PORT} | grep -q {GUARANTEED}"))?;
    let [volnetd, syncd, evictiond, statusd] = [0, 1, 2, 3].map(|place| PORT + place);
    for (port, method, code) in [
        (volnetd, "/kubelet.volnetd.v1.Cgroups/SetQos", "PermissionDenied"),
        (volnetd, "/kubelet.volnetd.v1.Cgroups/RemovePod", "PermissionDenied"),
        (volnetd, "/kubelet.volnetd.v1.Volumes/PreparePod", "PermissionDenied"),
        (volnetd, "/kubelet.volnetd.v1.Watches/Watch", "PermissionDenied"),
        (syncd, "/kubelet.syncd.v1.Streams/Exec", "PermissionDenied"),
        (statusd, "/kubelet.common.v1.Logging/SetVerbosity", "Unimplemented"),
        (evictiond, "/kubelet.common.v1.Traces/Take", "Unimplemented"),
        (evictiond, "/kubelet.common.v1.Process/Hello", "Ok"),
        (statusd, "/kubelet.statusd.v1.Status/Get", "Ok"),
    ] {
        let answer = vm.run(&format!("vsock_call 1 {port} {method}"))?;
        ensure!(answer == code, "{method}: {answer}, not {code}");
    }
    ensure!(Node::of(vm)?.running == node.running, "no pod has noticed");
    vm.run("rm -r /etc/systemd/system/kubelet.service.d; systemctl daemon-reload; systemctl restart kubelet")?;
    vm.until("the node is well again", PODS, "http 10248 /healthz")?;
    ensure!(vm.run("ss -H --listening --vsock")?.is_empty(), "nothing listens any more");
    Ok(())
}

/// A removed pod leaves neither cgroup nor unit, and what its level keeps is less.
fn removal(vm: &mut Vm) -> Result<()> {
    vm.run("rm /etc/kubernetes/manifests/*")?;
    let left = format!("! find {TREE} -name '*-pod*' | grep .");
    vm.until("the pods' cgroups are gone", PODS, &left)?;
    let units = "! systemctl list-units --all --plain --no-legend 'kubepods*-pod*' 'cri-containerd-*.scope' | grep .";
    vm.until("systemd has forgotten them", 30, units)?;
    vm.run("! ls /run/systemd/transient | grep -e -pod -e cri-containerd")?;
    vm.until(
        "nothing is kept for pods that are gone",
        90,
        &format!("grep -x 0 {TREE}/memory.min; grep -x 0 {TREE}/kubepods-burstable.slice/memory.low"),
    )?;
    // The levels stay, as upstream's do.
    let units = vm.run("systemctl is-active kubepods.slice kubepods-burstable.slice kubepods-besteffort.slice")?;
    ensure!(units == "active\nactive\nactive", "{units}");
    ensure!(vm.run(&format!("find {TREE} -mindepth 1 -type d | wc -l"))? == "2");
    Ok(())
}
