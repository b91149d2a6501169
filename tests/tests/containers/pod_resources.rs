//! The pod resources API on a node with static CPU and memory policies: what a monitoring agent is told, in both versions, while our
//! processes live and die; and what an operator sees of the same.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{LONG, Node, Pod, eventually};
use bulkhead_tests::hostile::frames;
use bulkhead_tests::lab;
use bulkhead_tests::pod_resources::{Agent, answer_to_a_path};
use kubelet_pod_resources::v1;
use serde_json::{Value, json};
use tonic::Code;

/// Of one CPU and 64 MiB for itself, with a sidecar and an init container.
fn pinned() -> Pod {
    let resources = json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}});
    let small = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "10m", "memory": "16Mi"}});
    let image = Pod::idle("x").value()["spec"]["containers"][0]["image"].clone();
    let side = json!({"name": "side", "image": image, "restartPolicy": "Always", "resources": small,
        "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"]});
    let init = json!({"name": "init", "image": image, "resources": small, "command": ["true"]});
    Pod::idle("pinned").container_field("resources", resources).spec("initContainers", json!([init, side]))
}

/// Names, and container by container the CPUs and bytes of memory.
type Told = BTreeMap<String, Vec<(String, Vec<i64>, Vec<u64>)>>;

fn told(pods: Vec<v1::PodResources>) -> Told {
    let container = |one: v1::ContainerResources| {
        (one.name, one.cpu_ids, one.memory.iter().map(|memory| memory.size).collect::<Vec<u64>>())
    };
    pods.into_iter().map(|pod| (pod.name, pod.containers.into_iter().map(container).collect())).collect()
}

fn resources(node: &Node) -> Result<Value> {
    Ok(serde_json::from_str(&node.ctl(&["resources", "-o", "json"])?)?)
}

fn privileges_hold(node: &Node) -> Result<()> {
    let output = node.ctl_command(&["privileges"])?.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// Which file it is: numbers of inodes are used again at once.
fn identity(file: &std::fs::Metadata) -> (u64, i64, i64) {
    (file.ino(), file.ctime(), file.ctime_nsec())
}

#[test]
fn agents_are_told_who_has_which_cpus_and_memory() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    if std::thread::available_parallelism()?.get() < 2 {
        return skip_this_test(Lack::Cpus);
    }
    // 100 MiB of memory beside the 100 MiB of the eviction threshold.
    let node = lab
        .node("alpha")
        .config("cpuManagerPolicy", json!("static"))
        .config("memoryManagerPolicy", json!("Static"))
        .config("kubeReserved", json!({"cpu": "100m", "memory": "100Mi"}))
        .config("evictionHard", json!({"memory.available": "100Mi"}))
        .config("reservedMemory", json!([{"numaNode": 0, "limits": {"memory": "200Mi"}}]))
        .start()?;
    node.write(&pinned())?;
    node.write(&Pod::idle("shares"))?;
    node.wait_running("pinned", 2)?;
    node.wait_running("shares", 1)?;

    // As upstream's: root's alone by its folder.
    let socket = node.root_dir().join("pod-resources/kubelet.sock");
    let (file, folder) = (std::fs::metadata(&socket)?, std::fs::metadata(socket.parent().context("no folder")?)?);
    ensure!((file.uid(), file.gid(), file.mode() & 0o7777) == (0, 0, 0o755), "{:o}", file.mode());
    ensure!((folder.uid(), folder.mode() & 0o7777) == (0, 0o750), "{:o}", folder.mode());

    ensure!(!node.root_dir().join("pods-api").exists(), "the gate PodsAPI is off");
    let agent = Agent::new(&socket)?;
    let (pinned, shares) = (node.pod_name("pinned"), node.pod_name("shares"));
    let listed = told(agent.list()?);
    ensure!(listed.len() == 2, "{listed:?}");
    let [(side, none, small), (main, cpus, memory)] = &listed[&pinned][..] else { anyhow::bail!("{listed:?}") };
    ensure!((side.as_str(), none.len(), small.as_slice()) == ("side", 0, &[16 << 20][..]), "{listed:?}");
    ensure!((main.as_str(), cpus.len(), memory.as_slice()) == ("main", 1, &[64 << 20][..]), "{listed:?}");
    ensure!(listed[&shares] == [("main".to_owned(), vec![], vec![])], "{listed:?}");
    ensure!(told(vec![agent.get(&pinned)?])[&pinned] == listed[&pinned]);
    let missing = agent.get("nobody").err().context("there is no such pod")?;
    ensure!(missing.code() == Code::Unknown, "{missing:?}");
    ensure!(missing.message() == "pod nobody in namespace default not found", "{missing:?}");
    let all = agent.allocatable()?;
    ensure!(!all.cpu_ids.contains(&0) && all.cpu_ids.contains(&cpus[0]), "CPU 0 is reserved: {all:?}");
    ensure!(all.memory.iter().any(|block| block.memory_type == "memory" && block.size > 64 << 20), "{all:?}");
    let first = agent.list_v1alpha1()?;
    let names: Vec<&str> = first.iter().flat_map(|pod| &pod.containers).map(|one| one.name.as_str()).collect();
    ensure!(first.len() == 2 && names == ["main", "main"], "{first:?}");
    ensure!(agent.at_once(300)? > 0, "300 requests at once are too many");

    // Who names the socket's path as his authority is answered, here and where device plugins register.
    for (socket, method) in
        [("pod-resources", "/v1.PodResourcesLister/List"), ("device-plugins", "/v1beta1.Registration/Register")]
    {
        let answered = answer_to_a_path(&node.root_dir().join(socket).join("kubelet.sock"), method)?;
        ensure!(answered == frames::HEADERS, "{method}: {answered}");
    }

    // The same by the operator's window.
    let shown = resources(&node)?;
    let holder = shown["holders"].as_array().into_iter().flatten().find(|one| one["container"] == "main");
    ensure!(holder.is_some_and(|one| one["pod"] == pinned.as_str() && one["cpus"] == json!(cpus)), "{shown:#}");
    let map = node.ctl(&["resources"])?;
    ensure!(map.contains("CPU manager static, memory manager Static") && map.contains("0:r"), "{map}");
    privileges_hold(&node)?;

    // kubelet-syncd dies: who asks meanwhile waits in the queue of the same socket, and is told the same.
    node.kill_daemon("kubelet-syncd")?;
    let again = eventually("the agent is answered", LONG, || {
        let listed = told(Agent::new(&socket)?.list()?);
        ensure!(listed.len() == 2, "the sources have not delivered: {listed:?}");
        Ok(listed)
    })?;
    ensure!(again == listed, "{again:?}");
    ensure!(identity(&std::fs::metadata(&socket)?) == identity(&file), "another socket");

    // kubelet-volnetd dies: nothing is bound anew while somebody answers.
    node.kill_daemon("kubelet-volnetd")?;
    eventually("kubelet-volnetd is back", LONG, || node.ctl(&["volumes"]).map(drop))?;
    ensure!(told(Agent::new(&socket)?.list()?) == listed);
    ensure!(identity(&std::fs::metadata(&socket)?) == identity(&file), "another socket");
    eventually("all processes are as in the map", LONG, || privileges_hold(&node))?;
    // Its successor has no copy, so the next death leads to another socket. That of device plugins it may not bind any more.
    let plugins = node.root_dir().join("device-plugins");
    std::fs::remove_file(plugins.join("kubelet.sock"))?;
    std::fs::set_permissions(&plugins, std::fs::Permissions::from_mode(0o777))?;
    node.kill_daemon("kubelet-syncd")?;
    eventually("a new socket answers", LONG, || {
        ensure!(identity(&std::fs::metadata(&socket)?) != identity(&file), "the old one");
        ensure!(told(Agent::new(&socket)?.list()?) == listed);
        Ok(())
    })?;

    eventually("device plugins cannot register", LONG, || {
        let error = node.agent()?.node()?.device_registration_error;
        ensure!(error.contains("may be written by others than root"), "{error:?}");
        Ok(())
    })?;

    node.remove("pinned")?;
    let agent = Agent::new(&socket)?;
    eventually("its CPU is nobody's", LONG, || {
        let listed = told(agent.list()?);
        ensure!(!listed.contains_key(&pinned), "{listed:?}");
        let shown = resources(&node)?;
        ensure!(shown["holders"] == json!([]), "{shown:#}");
        Ok(())
    })?;
    ensure!(agent.get(&pinned).is_err_and(|status| status.code() == Code::Unknown));
    node.finish_after_deaths()
}
