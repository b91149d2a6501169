//! The node's clock jumps, ahead and back, under the running daemons: pods do not notice, and new ones live as ever.
//!
//! The machine's clock is everybody's, so the daemons are given another one (libfaketime): their wall clock is the
//! machine's and what a file says, and their timers are left alone, as by the kernel when somebody sets the clock.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::{LONG, Lab, Node, Pod, build, eventually, machine};
use bulkhead_tests::joined::{
    NAMESPACE, NODE, condition, ends_on_sign, give_sign, idle, never_stirred, one_life, wait_ready,
};
use bulkhead_tests::lab;
use serde_json::{Value, json};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
/// Those of the daemons that read the time of day. kubelet-evictiond may open nothing outside of its fence.
const JUMPING: [&str; 3] = ["kubelet-syncd", "kubelet-statusd", "kubelet-volnetd"];

/// The daemons' clock: how far it is off the machine's.
struct Clock(PathBuf);

impl Clock {
    fn set(&self, seconds: i64) -> Result<()> {
        let draft = self.0.with_extension("draft");
        std::fs::write(&draft, format!("{seconds:+}\n"))?;
        std::fs::set_permissions(&draft, Permissions::from_mode(0o644))?;
        Ok(std::fs::rename(draft, &self.0)?)
    }
}

/// Puts a program of the same name before each daemon that starts it with the other clock.
fn programs(lab: &Lab) -> Result<Clock> {
    if !Path::new(LIBRARY).exists() {
        machine::install(&["libfaketime"], &|line| eprintln!("{line}"))?;
    }
    let real = match std::env::var_os("BULKHEAD_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => build::programs("dev")?,
    };
    let folder = lab.folder().join("programs");
    std::fs::create_dir(&folder)?;
    let clock = Clock(folder.join("clock"));
    clock.set(0)?;
    for program in build::PROGRAMS.into_iter().chain(build::HELPERS) {
        let path = folder.join(program);
        if JUMPING.contains(&program) {
            let script = format!(
                "#!/bin/sh\nexport LD_PRELOAD={LIBRARY} FAKETIME_TIMESTAMP_FILE={} FAKETIME_NO_CACHE=1 \
                 FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_DISABLE_SHM=1\nexec {} \"$@\"\n",
                clock.0.display(),
                real.join(program).display()
            );
            std::fs::write(&path, script)?;
            std::fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        } else {
            std::fs::copy(real.join(program), &path)?;
        }
    }
    build::use_programs(&folder)?;
    Ok(clock)
}

fn calm(node: &Node) -> Result<Vec<Fingerprint>> {
    let all = eventually("every listed container is still there", LONG, || node.fingerprint())?;
    Ok(all.into_iter().filter(|one| one.pod.starts_with("calm-")).collect())
}

#[test]
fn a_clock_that_jumps_disturbs_no_pod() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let clock = programs(&lab)?;
    let cluster = lab.stand_in(Config { bookmark_every: Duration::from_secs(1), ..Config::default() })?;
    let mut node = lab.node(NODE).joins(&cluster)?.start()?;
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let mut probed = idle(&node, "calm-probed");
    probed["spec"]["containers"][0]["readinessProbe"] = probe.clone();
    probed["spec"]["containers"][0]["livenessProbe"] = probe;
    let mut with_token = idle(&node, "calm-token");
    with_token["spec"]["volumes"] = json!([{"name": "token", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]}}]);
    with_token["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "token", "mountPath": "/token"}]);
    for pod in [&probed, &with_token, &idle(&node, "calm-idle")] {
        cluster.create(pod)?;
    }
    node.write(&Pod::idle("calm-static"))?;
    let names = ["calm-probed", "calm-token", "calm-idle", "calm-static-alpha"];
    for name in names {
        wait_ready(&cluster, name)?;
    }
    let before = calm(&node)?;
    ensure!(before.len() == names.len(), "{before:#?}");

    // As far back as the server's certificate is valid already.
    let steps = [("ahead", 2 * 3600), ("back", -3000), ("hence", 0)];
    for (name, seconds) in steps {
        cluster.create(&ends_on_sign(&node, &format!("again-{name}"), 1, "Always")?)?;
        wait_ready(&cluster, &format!("again-{name}"))?;
        clock.set(seconds)?;
        // A restart and its back-off, a whole life, and a start of the daemons in the new time.
        give_sign(&node, &format!("again-{name}"))?;
        let restarted = |pod: &Value| {
            let container = &pod["status"]["containerStatuses"][0];
            container["restartCount"] == 1 && container["ready"] == true
        };
        cluster.wait_for("pods", NAMESPACE, &format!("again-{name}"), "restarted", restarted)?;
        one_life(&cluster, &node, name)?;
        for daemon in JUMPING {
            node.kill_daemon(daemon)?;
        }
        node.wait_healthy()?;
        ensure!(condition(&cluster.get("nodes", "", NODE)?, "Ready") == "True");
        let now = calm(&node)?;
        ensure!(now == before, "{name}: {before:#?} became {now:#?}");
    }
    one_life(&cluster, &node, "then")?;
    for name in names {
        never_stirred(&cluster, name)?;
    }
    node.finish()
}
