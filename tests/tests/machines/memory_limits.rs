//! The limits of volnetd's memory under a real systemd: what it writes to volumes of memory for pods counts for the one of its
//! unit (`MemoryMax=`) and not for the one of its work (`LimitDATA=`), and at that one volnetd ends and nobody else does.
//! (Decision 53; that RLIMIT_DATA alone refuses is a test of shared/sys/src/spawn.rs.)

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::systemd::{Machine, SERVICES};
use bulkhead_testkit::{Cluster, LONG, Pod, build, eventually};
use bulkhead_tests::history::condition;
use bulkhead_tests::joined::{is_ready, never_stirred};
use bulkhead_tests::systemd_machine;
use serde_json::{Value, json};

const NAMESPACE: &str = "default";
const VOLNETD: &str = "kubelet-volnetd.service";
const MIB: u64 = 1 << 20;
/// As large as an API server lets a secret be, to a few bytes (`MaxSecretSize`, 1 MiB).
const SECRET_BYTES: usize = (1 << 20) - 64;
/// Each pod mounts all of them.
const SECRETS: usize = 24;
/// More than volnetd's work takes, its stacks included, and less than the secrets of the first pods.
const DATA: u64 = 64 * MIB;

#[test]
fn secrets_count_for_the_unit_of_volnetd_and_at_its_limit_it_alone_ends() -> Result<()> {
    let Some(builder) = systemd_machine()? else { return Ok(()) };
    let machine = Machine::boot(builder)?;
    // Its hierarchies were not writable when its systemd looked for them first.
    machine.check(&["systemctl", "daemon-reexec"])?;
    let cluster = machine.cluster(Config::default())?;
    machine.install_programs(&build::bin_dir()?)?;
    machine.install_units(&build::workspace_root())?;
    // If the secrets counted for it, volnetd could not write them.
    machine.drop_in(VOLNETD, "10-small", &format!("[Service]\nLimitDATA={DATA}\n"))?;
    machine.join(&cluster, |_| {})?;
    machine.check(&["systemctl", "start", "kubelet"])?;
    machine.wait_healthy()?;

    for index in 0..SECRETS {
        cluster.create(&secret(index))?;
    }
    let mut names: Vec<String> = (0..4).map(|index| format!("heavy-{index}")).collect();
    let run = machine.unit(VOLNETD)?;
    for name in &names {
        cluster.create(&heavy(name, machine.hostname()))?;
    }
    for name in &names {
        cluster.wait_for("pods", NAMESPACE, name, "ready", is_ready)?;
    }
    let held = memory(&machine)?;
    let written = (names.len() * SECRETS * SECRET_BYTES) as u64;
    ensure!(written > DATA, "{written} bytes are no trial of {DATA}");
    ensure!(held > written, "{held} bytes are counted for volnetd, which wrote {written}");
    ensure!(machine.unit(VOLNETD)? == run, "volnetd was restarted for what its limit of data does not count");
    println!("{} MiB of secrets: {} MiB are counted for {VOLNETD}", written / MIB, held / MIB);

    let before = machine.fingerprint()?;
    let others = SERVICES.iter().filter(|unit| **unit != VOLNETD);
    let others = others.map(|unit| Ok((*unit, machine.unit(unit)?))).collect::<Result<Vec<_>>>()?;
    // Room for one pod more and for half of another one.
    let room = (SECRETS + SECRETS / 2) as u64 * MIB;
    machine.check(&["systemctl", "set-property", "--runtime", VOLNETD, &format!("MemoryMax={}", held + room)])?;
    for name in ["heavy-4", "heavy-5"] {
        cluster.create(&heavy(name, machine.hostname()))?;
        names.push(name.to_owned());
    }
    let after = machine.wait_another_run(VOLNETD, &run)?;
    ensure!(after.restarts > run.restarts, "{run:?} became {after:?}");
    let said = machine.journal(&["--unit", VOLNETD, "--output=cat"])?;
    ensure!(said.contains("Main process exited, code=killed, status=9/KILL"), "{said}");
    println!("at MemoryMax={} MiB: {} restarts", (held + room) / MIB, after.restarts);

    // With the machine's own limit again, the pods at which it ended start.
    machine.check(&["systemctl", "set-property", "--runtime", VOLNETD, "MemoryMax=50%"])?;
    for name in &names {
        cluster.wait_for("pods", NAMESPACE, name, "ready", is_ready)?;
    }
    machine.wait_healthy()?;
    for (unit, run) in others {
        let after = machine.unit(unit)?;
        ensure!(after == run, "{unit} went down with volnetd: {run:?} became {after:?}");
    }
    let now: BTreeSet<Fingerprint> = machine.fingerprint()?.into_iter().collect();
    for container in &before {
        ensure!(now.contains(container), "{container:?} is gone: {now:#?}");
    }
    for name in names.iter().take(4) {
        never_stirred(&cluster, name)?;
    }
    node_stayed_ready(&cluster, machine.hostname())?;
    for name in &names {
        cluster.delete("pods", NAMESPACE, name, Some(1))?;
    }
    for name in &names {
        cluster.wait_gone("pods", NAMESPACE, name)?;
    }
    machine.finish()
}

fn secret(index: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"data": "s".repeat(SECRET_BYTES)},
        "metadata": {"name": format!("large-{index}"), "namespace": NAMESPACE}})
}

fn heavy(name: &str, node: &str) -> Value {
    let mut pod = Pod::idle(name).spec("nodeName", json!(node));
    for index in 0..SECRETS {
        let source = json!({"secret": {"secretName": format!("large-{index}")}});
        let source = source.as_object().cloned().unwrap_or_default();
        pod = pod.volume(&format!("v{index}"), source, &format!("/v{index}"));
    }
    pod.value().clone()
}

/// Bytes that the kernel counts for volnetd's unit.
fn memory(machine: &Machine) -> Result<u64> {
    let said = machine.check(&["systemctl", "show", "--property=MemoryCurrent", "--value", VOLNETD])?;
    said.trim().parse().with_context(|| format!("systemd counts no memory: {said}"))
}

fn node_stayed_ready(cluster: &Cluster, node: &str) -> Result<()> {
    eventually("the node is ready", LONG, || {
        ensure!(condition(&cluster.get("nodes", "", node)?, "Ready")?["status"] == "True", "not now");
        Ok(())
    })?;
    let mut readiness = Vec::new();
    for version in cluster.history("nodes", "", node)? {
        let Ok(one) = condition(&version, "Ready") else { continue };
        readiness.push(one["status"].as_str().unwrap_or_default().to_owned());
    }
    let since = readiness.iter().skip_while(|status| *status != "True").collect::<Vec<&String>>();
    ensure!(since.iter().all(|status| *status == "True"), "the node was ready {readiness:?}");
    Ok(())
}
