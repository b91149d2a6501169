//! A machine of its own for what the kernel of most test machines does not give: unified cgroup v2 under systemd, with
//! the systemd cgroup driver, and vsock. qemu without hardware's help, so it is one story on one boot: a member of a
//! cluster outside, run by our units, and at the end by the launcher alone.

mod eviction;
mod fc;
mod iscsi;
mod life;
mod memory;
mod metadata;
mod nfs;
mod node;
mod numa;
mod numbers;
mod resize;
mod scarcity;
mod tree;
mod vsock;

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::vm::{self, Disk, Shape, Vm};
use bulkhead_testkit::{Claim, Cluster, machine};

use node::{World, config, kubeconfig, manifests, wanted};

/// Whether this machine can run another one; else why the test is skipped.
fn lack() -> Option<Lack> {
    let say = |text: &str| eprintln!("{text}");
    if !machine::is_root() {
        Some(Lack::Root)
    } else if cfg!(not(target_arch = "x86_64")) {
        Some(Lack::Architecture)
    } else {
        (!vm::ensure_installed(&say)).then_some(Lack::Program("qemu, mmdebstrap or Debian's cloud kernel"))
    }
}

/// Two of them at once would be too slow for their own watchdogs; `$BULKHEAD_BESIDE` does not mind.
fn alone() -> Result<Option<Claim>> {
    std::env::var_os("BULKHEAD_BESIDE").is_none().then(bulkhead_testkit::only_virtual_machine).transpose()
}

#[test]
fn a_node_on_cgroup_v2_under_systemd() -> Result<()> {
    if let Some(lack) = lack() {
        return skip_this_test(lack);
    }
    let _alone = alone()?;
    let folder = tempfile::tempdir()?;
    let cluster = Cluster::start(&folder.path().join("cluster"), Config::default())?;
    let mut config = config();
    config["enforceNodeAllocatable"] = serde_json::json!(["pods", "kube-reserved"]);
    config["kubeReservedCgroup"] = serde_json::json!("/reserved.slice");
    let (config, kubeconfig, static_pods) = (config.to_string(), kubeconfig(&cluster)?.to_string(), manifests());
    let mut files = vec![
        ("/var/lib/kubelet/config.yaml", config.as_str()),
        ("/etc/kubernetes/kubelet.conf", kubeconfig.as_str()),
        ("/etc/default/kubelet", node::DEFAULTS),
        ("/root/launcher.service", life::LAUNCHER),
    ];
    files.extend(static_pods.iter().map(|(path, pod)| (path.as_str(), pod.as_str())));
    let disk = Disk::make(folder.path(), &[("vsock_call", Path::new(env!("CARGO_BIN_EXE_vsock_call")))], &files)?;
    let vm = Vm::boot(&disk, folder.path(), cluster.address(), Shape::Plain)?;
    let mut world = World { vm, cluster };
    let told = story(&mut world);
    if told.is_err() {
        let journal = world.vm.script("journalctl -b --no-pager -o short-monotonic -u 'kubelet*' | tail -n 120");
        eprintln!("{}", journal.map(|ended| ended.stdout).unwrap_or_default());
    }
    told
}

/// The whole story, its chapters timed: which of them is slow is worth knowing on a machine this slow.
fn story(world: &mut World) -> Result<()> {
    let begun = Instant::now();
    let told = |chapter: &str, world: &World| {
        let (elapsed, worked) = (begun.elapsed().as_secs(), world.vm.cpu_seconds());
        eprintln!("{chapter}: done after {elapsed} s, the machine has worked for {worked} s");
    };
    life::start(world)?;
    told("pods run", world);
    let node = world.node()?;
    tree::daemons(world)?;
    vsock::nobody(world)?;
    told("daemons in their slice", world);
    tree::names(world, &node)?;
    tree::limits(world, &node)?;
    memory::kept(world, &node)?;
    told("names and limits", world);
    memory::throttled(world, &node)?;
    told("throttled", world);
    resize::in_place(world, &node)?;
    told("resized", world);
    life::reload(world)?;
    told("systemd reloaded", world);
    // The one is killed while the others are measured.
    world.cluster.create(&node::greedy())?;
    numbers::statistics(world, &node)?;
    told("statistics", world);
    memory::killed(world)?;
    told("out of memory", world);
    eviction::of_the_machines_memory(world)?;
    told("evicted", world);
    memory::machine_ran_out(world)?;
    told("the machine out of memory", world);
    let limits = life::all_limits(&mut world.vm)?;
    metadata::serve(world)?;
    metadata::closed(world)?;
    metadata::resolve_there(world)?;
    vsock::on(world)?;
    life::unchanged(world, &node, &limits, "a restart with vsock on")?;
    metadata::opened(world)?;
    vsock::answers(world)?;
    told("restarted with vsock", world);
    life::kill(world)?;
    life::unchanged(world, &node, &limits, "SIGKILL of all four")?;
    memory::told_of_the_machine(world, 1)?;
    vsock::reads(world)?;
    told("killed", world);
    life::launcher(world)?;
    life::unchanged(world, &node, &limits, "the launcher instead of the units")?;
    memory::told_of_the_machine(world, 1)?;
    vsock::answers(world)?;
    told("launcher", world);
    life::removal(world, &wanted())?;
    told("removal", world);
    Ok(())
}
