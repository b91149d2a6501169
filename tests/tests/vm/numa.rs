//! Eight CPUs on two NUMA nodes: what each policy of the resource managers gives to containers, as the files of their cgroups have it,
//! and whom it refuses. CPUs 0-3 are of node 0, 4-7 of node 1; 0 and 1 are a core, and so on.

use anyhow::{Context as _, Result, ensure};
use bulkhead_tests::joined::is_true;
use serde_json::{Value, json};

use crate::node::{IDLE, NAMESPACE, PODS, TREE, World, bound, pod};

/// Brings up the CPUs that the boot has left out.
const ONLINE: &str = "for cpu in 2 3 4 5 6 7; do echo 1 > /sys/devices/system/cpu/cpu$cpu/online; done\n\
     cd /sys/devices/system; cat cpu/online node/node0/cpulist node/node1/cpulist";
const LOCALITY: &str = "Resources cannot be allocated with Topology locality";

/// Upstream demands that the state files go before a policy changes. Of the first core the system has both CPUs, and of the first node
/// what is reserved of the memory.
fn configure(world: &mut World, changes: &Value) -> Result<()> {
    let mut config = crate::nfs::config()?;
    config["evictionHard"] = json!({"memory.available": "0%"});
    config["reservedSystemCPUs"] = json!("0-1");
    config["cpuManagerPolicy"] = json!("static");
    for (name, value) in changes.as_object().into_iter().flatten() {
        config[name] = value.clone();
    }
    world.vm.run(&format!(
        "systemctl stop kubelet; cd /var/lib/kubelet; rm -f cpu_manager_state memory_manager_state\n\
         cat > config.yaml <<'E'\n{config}\nE\nsystemctl start kubelet"
    ))?;
    crate::life::healthy(world)
}

/// A Guaranteed pod with so many CPUs and MiB.
fn sized(name: &str, cpus: u32, mebibytes: u32) -> Value {
    bound(pod(name, IDLE, &json!({"limits": {"cpu": cpus.to_string(), "memory": format!("{mebibytes}Mi")}})))
}

/// Creates pods and waits until their cgroups have these CPUs and memory nodes (nothing: whatever there is), by pod and container.
fn run(world: &mut World, pods: &[Value], wanted: &[(&str, &str, &str, &str)]) -> Result<()> {
    for pod in pods {
        world.cluster.create(pod)?;
    }
    let mut script = format!(
        "want() {{ d=$(find {TREE} -name \"cri-containerd-$1.scope\"); [ -d $d ]\n\
         now=\"$(cat $d/cpuset.cpus 2>/dev/null || true):$(cat $d/cpuset.mems 2>/dev/null || true)\"\n\
         echo \"$now instead of $2\"; [ \"$now\" = \"$2\" ]; }}\n"
    );
    for (pod, container, cpus, nodes) in wanted {
        let seen = world.wait(pod, "it is ready", |pod| is_true(pod, "Ready"))?;
        let all = seen["status"]["containerStatuses"].as_array().into_iter().flatten();
        let of_it = all.into_iter().find(|status| status["name"] == *container);
        let id = of_it.and_then(|status| status["containerID"].as_str()?.strip_prefix("containerd://"));
        let id = id.with_context(|| format!("no container {container}: {seen}"))?;
        script.push_str(&format!("want {id} {cpus}:{nodes}\n"));
    }
    world.vm.until("the containers' CPUs and memory nodes", PODS, &script).map(drop)
}

fn refused(world: &World, pods: &[(Value, &str, &str)]) -> Result<()> {
    for (pod, _, _) in pods {
        world.cluster.create(pod)?;
    }
    for (pod, reason, message) in pods {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let failed = world.wait(name, "it is refused", |pod| pod["status"]["phase"] == "Failed")?;
        let (why, said) = (&failed["status"]["reason"], &failed["status"]["message"]);
        ensure!(why == reason && *said == format!("Pod was rejected: {message}"), "{name}: {why} {said}");
    }
    Ok(())
}

fn delete(world: &World, pods: &[&str]) -> Result<()> {
    for pod in pods {
        world.cluster.delete("pods", NAMESPACE, pod, None)?;
    }
    pods.iter().try_for_each(|pod| world.gone(pod))
}

/// Each policy once.
pub fn policies(world: &mut World, told: &dyn Fn(&str)) -> Result<()> {
    let online = world.vm.run(ONLINE)?;
    ensure!(online == "0-7\n0-3\n4-7", "{online}");
    none(world)?;
    told("NUMA: policy none");
    best_effort(world)?;
    told("NUMA: best-effort");
    restricted(world)?;
    told("NUMA: restricted");
    single_numa_node(world)?;
    told("NUMA: single-numa-node");
    Ok(())
}

/// Everybody may use everything: nothing is set.
fn none(world: &mut World) -> Result<()> {
    run(world, &[sized("free", 1, 32)], &[("free", "main", "", "")])?;
    delete(world, &["free"])
}

/// The best place that there is, and any other; what does not fit on one node is spread over both evenly.
fn best_effort(world: &mut World) -> Result<()> {
    configure(
        world,
        &json!({"cpuManagerPolicyOptions": {"distribute-cpus-across-numa": "true"}, "topologyManagerPolicy": "best-effort"}),
    )?;
    let wait =
        || world.cluster.wait_for("nodes", "", "vm", "it has 8 CPUs", |node| node["status"]["capacity"]["cpu"] == "8");
    wait().or_else(|_| wait())?;
    run(world, &[sized("first", 3, 32)], &[("first", "main", "4-6", "")])?;
    let shared = bound(pod("shared", IDLE, &json!({})));
    let wanted = [("second", "main", "2-3,7", ""), ("shared", "main", "0-1", ""), ("first", "main", "4-6", "")];
    run(world, &[sized("second", 3, 32), shared], &wanted)?;
    delete(world, &["first", "second"])?;
    run(world, &[sized("five", 5, 32)], &[("five", "main", "2-6", ""), ("shared", "main", "0-1,7", "")])?;
    delete(world, &["five", "shared"])
}

/// The fewest nodes that could do, or nothing; memory is of those nodes.
fn restricted(world: &mut World) -> Result<()> {
    configure(world, &with_memory("restricted"))?;
    run(world, &[sized("first", 3, 32)], &[("first", "main", "4-6", "1")])?;
    refused(world, &[(sized("second", 3, 32), "TopologyAffinityError", LOCALITY)])?;
    delete(world, &["first", "second"])?;
    // Neither its CPUs nor its memory could be of one node alone.
    run(world, &[sized("five", 5, 1100)], &[("five", "main", "2,4-7", "0-1")])?;
    delete(world, &["five"])
}

fn with_memory(policy: &str) -> Value {
    json!({
        "topologyManagerPolicy": policy,
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "256Mi"}}],
    })
}

/// One node or nothing, whole cores or nothing, and pods with CPUs and memory of their own.
fn single_numa_node(world: &mut World) -> Result<()> {
    let mut changes = with_memory("single-numa-node");
    changes["cpuManagerPolicyOptions"] = json!({"full-pcpus-only": "true"});
    changes["topologyManagerScope"] = json!("pod");
    changes["featureGates"] = json!({"MemoryQoS": true, "PodLevelResourceManagers": true});
    configure(world, &changes)?;
    let half = "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2";
    refused(
        world,
        &[
            (sized("odd", 1, 32), "SMTAlignmentError", half),
            (sized("six", 6, 32), "TopologyAffinityError", LOCALITY),
            (
                whole("greedy", 2),
                "TopologyAffinityError",
                "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
            ),
        ],
    )?;
    let wanted = [
        ("whole", "main", "4-5", "1"),
        ("whole", "second", "6-7", "1"),
        ("whole", "third", "6-7", "1"),
        ("pair", "main", "2-3", "0"),
    ];
    run(world, &[whole("whole", 4)], &wanted[..3])?;
    run(world, &[sized("pair", 2, 32)], &wanted)?;
    delete(world, &["odd", "six", "greedy", "whole", "pair"])
}

/// A pod with so many CPUs of its own, of whose three containers one has two for itself.
fn whole(name: &str, cpus: u32) -> Value {
    let mut pod = sized(name, 2, 32);
    let own = json!({"cpu": cpus.to_string(), "memory": "128Mi"});
    pod["spec"]["resources"] = json!({"requests": own, "limits": own});
    for other in ["second", "third"] {
        let mut container = pod["spec"]["containers"][0].clone();
        (container["name"], container["resources"]) = (json!(other), json!({}));
        if let Some(containers) = pod["spec"]["containers"].as_array_mut() {
            containers.push(container);
        }
    }
    pod
}
