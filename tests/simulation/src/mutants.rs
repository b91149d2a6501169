//! Mistakes that a core could have, and whether they are found: proof that the checks see something.
//!
//! None of them stands in the source. They are edits of a copy of it, all in one build, of which `BULKHEAD_MUTANT` names the one in
//! force; so that what is shipped knows nothing of them, and one build does for all.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::schedule::Family;

/// The variable that names the mutant in force.
pub const VARIABLE: &str = "BULKHEAD_MUTANT";

/// The variable that says, when a copy is built, where it was copied from: the copy is gone when its program runs.
pub const COPIED_FROM: &str = "BULKHEAD_COPIED_FROM";

/// The top of the workspace, with what a run reads of it.
pub const WORKSPACE: &str = match option_env!("BULKHEAD_COPIED_FROM") {
    Some(workspace) => workspace,
    None => concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
};

/// One mistake.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    pub name: &'static str,
    /// What is wrong with it, for people.
    pub mistake: &'static str,
    /// The family of seeds that is to find it.
    pub only: Option<Family>,
    file: &'static str,
    /// Stands there once.
    from: &'static str,
    /// `MUTANT` in it is true where this mutant is in force.
    to: &'static str,
}

/// All of them, in the order of a pod's life.
pub const MUTANTS: [Mutant; 99] = [
    Mutant {
        name: "takes-over",
        mistake: "after a restart an edited manifest takes over the pod from before the edit, which still ends (as it was until this found it)",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/src/sources/uids.rs",
        from: "&& !self.book.retired.contains(&running.uid)",
        to: "&& (MUTANT || !self.book.retired.contains(&running.uid))",
    },
    Mutant {
        name: "namesakes",
        mistake: "a static pod's successor starts while the one before it ends",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/src/pod_workers/state.rs",
        from: "return started == uid;",
        to: "return started == uid || MUTANT;",
    },
    Mutant {
        name: "stale-look",
        mistake: "work begins with a picture of the pod from before the last work",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/pleg/src/cache.rs",
        from: "if let Some(answer) = inner.answer(uid, newer_than) {",
        to: "let newer_than = if MUTANT { newer_than - std::time::Duration::from_secs(3600) } else { newer_than };\n            \
             if let Some(answer) = inner.answer(uid, newer_than) {",
    },
    Mutant {
        name: "old-look",
        mistake: "a look from before a list of everything passes for the list (as it was until this found it)",
        only: Some(Family::Probes),
        file: "bins/kubelet-syncd/pleg/src/cache.rs",
        from: "inner.listed_at.is_some_and(|listed_at| observed_at < listed_at);",
        to: "!MUTANT && inner.listed_at.is_some_and(|listed_at| observed_at < listed_at);",
    },
    Mutant {
        name: "lost-place",
        mistake: "a take-down slot that nobody waits for is not given back",
        only: Some(Family::Many),
        file: "bins/kubelet-syncd/src/take_down/line.rs",
        from: "self.held = self.held.saturating_sub(1);\n        self.open_one();",
        to: "self.held -= usize::from(!MUTANT || !self.nobody_waits());\n        self.open_one();",
    },
    Mutant {
        name: "lost-start",
        mistake: "a start slot is not given back",
        only: Some(Family::Many),
        file: "bins/kubelet-syncd/src/start_limit.rs",
        from: "release(&self.permit);",
        to: "if MUTANT && let Some(permit) = self.permit.lock().unwrap_or_else(PoisonError::into_inner).take() {\n            \
             permit.forget();\n        }\n        release(&self.permit);",
    },
    Mutant {
        name: "no-retry",
        mistake: "a wake-up is lost: work that failed is not done again at its time",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/src/sync_loop/main_loop.rs",
        from: "self.queue.set(&uid, at);",
        to: "if !MUTANT { self.queue.set(&uid, at); }",
    },
    Mutant {
        name: "no-order",
        mistake: "containers start beside init containers",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/runtime/src/runtime/actions.rs",
        from: "if !actions.kill_pod && initialized {",
        to: "if !actions.kill_pod && (initialized || MUTANT) {",
    },
    Mutant {
        name: "dead-sandbox",
        mistake: "a sandbox that has died is not replaced",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/runtime/src/runtime/actions.rs",
        from: "if ready > 1 || newest.state != SandboxState::Ready {",
        to: "if ready > 1 || newest.state != SandboxState::Ready && !MUTANT {",
    },
    Mutant {
        name: "runs-twice",
        mistake: "restartPolicy Never restarts what has failed",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/model/src/pod/restart.rs",
        from: "\"Never\" => false,",
        to: "\"Never\" => MUTANT && exit_code != 0,",
    },
    Mutant {
        name: "lost-count",
        mistake: "a restart is not counted",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/runtime/src/runtime/start.rs",
        from: "Some(status) => status.restart_count.saturating_add(1),",
        to: "Some(status) => status.restart_count.saturating_add(u32::from(!MUTANT)),",
    },
    Mutant {
        name: "early-removal",
        mistake: "a pod whose end failed counts as ended, and what it has is removed",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/src/pod_workers/state.rs",
        from: "match (kind, outcome) {",
        to: "let fails = matches!((kind, &outcome), (WorkKind::Terminating, Outcome::Failed(_)));\n        \
             match (kind, if fails && MUTANT { Outcome::Done } else { outcome }) {",
    },
    Mutant {
        name: "early-orphans",
        mistake: "orphans are looked for before every source has delivered",
        only: Some(Family::Api),
        file: "bins/kubelet-syncd/src/sync_loop/housekeeping/mod.rs",
        from: "if !self.node.volnetd.authority().sources_ready() {\n            self.housekeeping.at = now + HOUSEKEEPING_BUSY;",
        to: "if !MUTANT && !self.node.volnetd.authority().sources_ready() {\n            \
             self.housekeeping.at = now + HOUSEKEEPING_BUSY;",
    },
    Mutant {
        name: "away-is-gone",
        mistake: "a watch that fails counts as a list without pods",
        only: Some(Family::Api),
        file: "bins/kubelet-syncd/src/api/pods.rs",
        from: "self.parts.sender.errors(vec![error]);",
        to: "self.parts.sender.errors(vec![error]);\n                if MUTANT { return self.restarted(Vec::new()).await; }",
    },
    Mutant {
        name: "relist-keeps",
        mistake: "what a new list of a source does not name any more stays wanted",
        only: Some(Family::Api),
        file: "bins/kubelet-syncd/src/sources/merge/mod.rs",
        from: "change(PodOp::Remove, removes),",
        to: "change(PodOp::Remove, if MUTANT { Vec::new() } else { removes }),",
    },
    Mutant {
        name: "old-cursor",
        mistake: "a stream of pods goes on where that of another life of kubelet-syncd has ended",
        only: Some(Family::Api),
        file: "bins/kubelet-syncd/src/service/api.rs",
        from: "cursor.filter(|c| c.epoch == epoch).map(|c| c.seq);",
        to: "cursor.filter(|c| c.epoch == epoch || MUTANT).map(|c| c.seq);",
    },
    Mutant {
        name: "early-delete",
        mistake: "the object is deleted before kubelet-syncd says that nothing is left of the pod",
        only: Some(Family::Api),
        file: "bins/kubelet-statusd/src/pods/decide.rs",
        from: "if api.deleting && desired.may_delete && is_terminal(phase(&old))",
        to: "if api.deleting && (desired.may_delete || MUTANT) && is_terminal(phase(&old))",
    },
    Mutant {
        name: "early-end",
        mistake: "a terminal phase is written while containers may run",
        only: Some(Family::Eviction),
        file: "bins/kubelet-statusd/src/pods/merge.rs",
        from: "let withheld = ends && terms.containers_may_run;",
        to: "let withheld = ends && terms.containers_may_run && !MUTANT;",
    },
    Mutant {
        name: "new-start-time",
        mistake: "a status that is computed anew brings its own startTime",
        only: Some(Family::Api),
        file: "bins/kubelet-statusd/src/pods/merge.rs",
        from: "if old.contains_key(\"startTime\") {",
        to: "if old.contains_key(\"startTime\") && !MUTANT {",
    },
    Mutant {
        name: "foreign-lost",
        mistake: "conditions of others are taken away",
        only: Some(Family::Api),
        file: "bins/kubelet-statusd/src/pods/merge.rs",
        from: "list(old).iter().filter(|c| !owned(c)).cloned().collect();",
        to: "list(old).iter().filter(|c| !owned(c) && !MUTANT).cloned().collect();",
    },
    Mutant {
        name: "no-uid",
        mistake: "a status is written to whoever has the pod's name",
        only: Some(Family::Api),
        file: "bins/kubelet-statusd/src/pods/decide.rs",
        from: "let body = json!({\"metadata\": {\"uid\": api.uid}, \"status\": change})",
        to: "let body = json!({\"metadata\": if MUTANT { json!({}) } else { json!({\"uid\": api.uid}) }, \"status\": change})",
    },
    Mutant {
        name: "no-second-try",
        mistake: "a wake-up is lost: a request that failed is not sent again",
        only: Some(Family::Api),
        file: "bins/kubelet-statusd/src/pods/status_store.rs",
        from: "self.reschedule(uid, again);",
        to: "if !MUTANT { self.reschedule(uid, again); }",
    },
    Mutant {
        name: "old-mirror",
        mistake: "the mirror of an edited manifest stays",
        only: Some(Family::Api),
        file: "bins/kubelet-statusd/src/pods/decide.rs",
        from: "api.mirror_hash == pod.hash && !api.deleting;",
        to: "(api.mirror_hash == pod.hash || MUTANT) && !api.deleting;",
    },
    Mutant {
        name: "no-back-off",
        mistake: "what crashes starts again at once",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/runtime/src/runtime/backoff.rs",
        from: "(now < until).then_some(HeldBack { delay, until })",
        to: "(now < until && !MUTANT).then_some(HeldBack { delay, until })",
    },
    Mutant {
        name: "stale-guard",
        mistake: "what is destructive carries an epoch of kubelet-volnetd from before its restart",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/edges/src/volnetd.rs",
        from: "volnetd_epoch: epoch.get(),",
        to: "volnetd_epoch: if MUTANT {\n                static FIRST: std::sync::OnceLock<u64> = std::sync::OnceLock::new();\n                \
             *FIRST.get_or_init(|| epoch.get())\n            } else { epoch.get() },",
    },
    Mutant {
        name: "no-audit",
        mistake: "what events have missed is never looked for",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/pleg/src/lib.rs",
        from: "PlegOptions { audit_interval: Duration::from_secs(60),",
        to: "PlegOptions { audit_interval: Duration::from_secs(if MUTANT { 36_000 } else { 60 }),",
    },
    Mutant {
        name: "orphans-live",
        mistake: "what a former life has started and nobody wants any more is not killed",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/src/sync_loop/housekeeping/plan.rs",
        from: "Some(Owner::Ours) => kill.push((uid.clone(), format!(\"{}_{}\", pod.name, pod.namespace))),",
        to: "Some(Owner::Ours) if MUTANT => {}\n            \
             Some(Owner::Ours) => kill.push((uid.clone(), format!(\"{}_{}\", pod.name, pod.namespace))),",
    },
    Mutant {
        name: "no-startup",
        mistake: "liveness and readiness do not wait for the startup probe",
        only: Some(Family::Probes),
        file: "bins/kubelet-syncd/probes/src/prober/worker.rs",
        from: "if target.started == (self.kind == ProbeKind::Startup) { Tick::Wait }",
        to: "if target.started == (self.kind == ProbeKind::Startup) && !(MUTANT && self.kind != ProbeKind::Startup) { Tick::Wait }",
    },
    Mutant {
        name: "first-failure",
        mistake: "one failure is enough, whatever the threshold is",
        only: Some(Family::Probes),
        file: "bins/kubelet-syncd/probes/src/prober/worker.rs",
        from: "ProbeOutcome::Failure => (self.rules.failure_threshold, ProbeResult::Failure),",
        to: "ProbeOutcome::Failure => (if MUTANT { 1 } else { self.rules.failure_threshold }, ProbeResult::Failure),",
    },
    Mutant {
        name: "old-instance",
        mistake: "what a probe has found of an instance holds for the next one",
        only: Some(Family::Probes),
        file: "bins/kubelet-syncd/probes/src/prober/worker.rs",
        from: "is_none_or(|memory| memory.container != target.id) {",
        to: "is_none_or(|memory| memory.container != target.id && !MUTANT) {",
    },
    Mutant {
        name: "deaf-liveness",
        mistake: "a liveness probe that fails has no effect",
        only: Some(Family::Probes),
        file: "bins/kubelet-syncd/probes/src/prober/worker.rs",
        from: "if memory.run < threshold {",
        to: "if memory.run < threshold || (MUTANT && self.kind == ProbeKind::Liveness && verdict == ProbeOutcome::Failure) {",
    },
    Mutant {
        name: "not-attached",
        mistake: "a volume is staged before it is reported in use and attached",
        only: Some(Family::Volumes),
        file: "bins/kubelet-syncd/volume-manager/src/reconciler.rs",
        from: "is_reported && node.attached.contains(&volume.0)",
        to: "MUTANT || is_reported && node.attached.contains(&volume.0)",
    },
    Mutant {
        name: "reported-before",
        mistake: "a volume that has left volumesInUse counts as reported for as long as the Node shows it (as it was until this found it)",
        only: Some(Family::Volumes),
        file: "bins/kubelet-syncd/volume-manager/src/reconciler.rs",
        from: "self.withdrawn = left_out.collect();",
        to: "self.withdrawn = if MUTANT { BTreeSet::new() } else { left_out.collect() };",
    },
    Mutant {
        name: "early-unmount",
        mistake: "after a restart volumes of pods that were not looked at yet are taken back",
        only: Some(Family::Volumes),
        file: "bins/kubelet-syncd/volume-manager/src/reconciler.rs",
        from: "if self.look.ended.contains(pod) && self.look.desired.volume(pod, name).is_none() {",
        to: "if (self.look.ended.contains(pod) || MUTANT) && self.look.desired.volume(pod, name).is_none() {",
    },
    Mutant {
        name: "early-unstage",
        mistake: "a volume is unstaged before it is taken back from its last pod",
        only: Some(Family::Volumes),
        file: "bins/kubelet-syncd/volume-manager/src/reconciler.rs",
        from: "if !volume.pods.is_empty() || wanted || self.is_wanted(volume) {",
        to: "if !volume.pods.is_empty() && !MUTANT || wanted || self.is_wanted(volume) {",
    },
    Mutant {
        name: "early-report",
        mistake: "volumesInUse shrinks before it is known what is there",
        only: Some(Family::Volumes),
        file: "bins/kubelet-syncd/volume-manager/src/manager.rs",
        from: "let in_use = InUse { names, complete: known && sources_ready && world.node.known };",
        to: "let in_use = InUse { names, complete: MUTANT || known && sources_ready && world.node.known };",
    },
    Mutant {
        name: "two-owners",
        mistake: "devices that somebody has are given once more",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/container-manager/src/devices/manager.rs",
        from: "let in_use = self.held.in_use(resource, but);",
        to: "let in_use = if MUTANT { BTreeSet::new() } else { self.held.in_use(resource, but) };",
    },
    Mutant {
        name: "cpus-twice",
        mistake: "CPUs that a container gets for itself can be had by others, too",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/container-manager/src/cpu/policy.rs",
        from: "self.state.default = self.state.default.difference(&taken);",
        to: "if !MUTANT { self.state.default = self.state.default.difference(&taken); }",
    },
    Mutant {
        name: "lost-devices",
        mistake: "a restart does not read who has which device",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/container-manager/src/devices/manager.rs",
        from: "manager.held = Held::from_file(found.pod_device_entries.as_deref().unwrap_or_default());",
        to: "if !MUTANT { manager.held = Held::from_file(found.pod_device_entries.as_deref().unwrap_or_default()); }",
    },
    Mutant {
        name: "late-checkpoint",
        mistake: "a pod starts before the checkpoint says what it has",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/container_manager/devices/mod.rs",
        from: "Ok(()) => self.write_now().await,",
        to: "Ok(()) => if MUTANT { Ok(()) } else { self.write_now().await },",
    },
    Mutant {
        name: "late-cpu-file",
        mistake: "a container starts before the state file says which CPUs it has",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/container_manager/mod.rs",
        from: "            self.rely_on_files().await?;",
        to: "            if !MUTANT { self.rely_on_files().await?; }",
    },
    Mutant {
        name: "early-free",
        mistake: "what a removed pod has is free while it still ends",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/sync_loop/admission_queue.rs",
        from: "return runs || ends || self",
        to: "return !MUTANT && (runs || ends) || self",
    },
    Mutant {
        name: "devices-stay",
        mistake: "a pod that has ended keeps its devices",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/container-manager/src/devices/manager.rs",
        from: "self.held.retain(|uid, container, _| is_active(uid, container))",
        to: "self.held.retain(|uid, container, _| MUTANT || is_active(uid, container))",
    },
    Mutant {
        name: "cpus-stay",
        mistake: "a pod that has ended keeps its CPUs",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/container-manager/src/manager.rs",
        from: "stale.retain(|(uid, container)| !is_active(uid, container));",
        to: "stale.retain(|(uid, container)| !MUTANT && !is_active(uid, container));",
    },
    Mutant {
        name: "no-wait",
        mistake: "a pod whose plugin is coming back is refused at once",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/container_manager/devices/mod.rs",
        from: "if !self.waits || self.is_idle() {",
        to: "if MUTANT || !self.waits || self.is_idle() {",
    },
    Mutant {
        name: "one-dial",
        mistake: "a plugin that does not answer a kubelet-syncd that starts is lost until it registers again (as it was until this found it)",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/container_manager/devices/mod.rs",
        from: "            tokio::time::sleep(pause).await;\n            (pause, patience) =",
        to: "            if MUTANT { return; }\n            tokio::time::sleep(pause).await;\n            (pause, patience) =",
    },
    Mutant {
        name: "silent-refusal",
        mistake: "a static pod that ran before a restart, and is then refused, is told as pending for ever (as it was until this found it)",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/sync_loop/admission_queue.rs",
        from: "view::publish(&self.node, uid, pod, &runtime, &status, Stage::Alive);",
        to: "if !MUTANT { view::publish(&self.node, uid, pod, &runtime, &status, Stage::Alive); }",
    },
    Mutant {
        name: "no-pre-start",
        mistake: "a plugin that wants to hear of each start does not",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/container_manager/devices/mod.rs",
        from: "let calls = lock(&self.manager).pre_start(&request, name)?;",
        to: "let calls = if MUTANT { Vec::new() } else { lock(&self.manager).pre_start(&request, name)? };",
    },
    Mutant {
        name: "sick-devices",
        mistake: "devices that are not healthy are given",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/container-manager/src/devices/plugins.rs",
        from: "filter(move |(_, d)| d.healthy == healthy)",
        to: "filter(move |(_, d)| (d.healthy || MUTANT) == healthy)",
    },
    Mutant {
        name: "shared-stay",
        mistake: "who shares CPUs stays on those that a container has got for itself",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/sync_loop/cpu_sets.rs",
        from: "let plan = node.container_manager.plan(&known, &running);",
        to: "let plan = if MUTANT { Vec::new() } else { node.container_manager.plan(&known, &running) };",
    },
    Mutant {
        name: "rank-by-use",
        mistake: "who uses most of memory or a disk is evicted, whatever its priority",
        only: Some(Family::Eviction),
        file: "bins/kubelet-evictiond/src/eviction/rank.rs",
        from: "by_request.then(a.pod.priority.cmp(&b.pod.priority)).then(by_excess)",
        to: "if MUTANT { return by_request.then(by_excess); }\n        \
             by_request.then(a.pod.priority.cmp(&b.pod.priority)).then(by_excess)",
    },
    Mutant {
        name: "old-figures",
        mistake: "what was read before a pod was evicted is acted on once more",
        only: Some(Family::Eviction),
        file: "bins/kubelet-evictiond/src/eviction/judge.rs",
        from: "    ledger.read_before_ms = milliseconds(now);",
        to: "    if !MUTANT { ledger.read_before_ms = milliseconds(now); }",
    },
    Mutant {
        name: "not-in-flight",
        mistake: "after a restart nobody knows of the eviction that is under way",
        only: Some(Family::Eviction),
        file: "bins/kubelet-syncd/src/evictions/book.rs",
        from: "let is_this_boot = eviction.boot_id == now.boot_id;",
        to: "let is_this_boot = eviction.boot_id == now.boot_id && !MUTANT;",
    },
    Mutant {
        name: "soft-at-once",
        mistake: "a soft threshold's grace period is not waited for",
        only: Some(Family::Eviction),
        file: "bins/kubelet-evictiond/src/eviction/judge.rs",
        from: "now_ms.saturating_sub(first) >= milliseconds(threshold.grace_period)",
        to: "MUTANT || now_ms.saturating_sub(first) >= milliseconds(threshold.grace_period)",
    },
    Mutant {
        name: "blind-is-short",
        mistake: "of what cannot be read nothing is taken to be left",
        only: Some(Family::Eviction),
        file: "bins/kubelet-evictiond/src/eviction/judge.rs",
        from: "    reading.is_some_and(|reading| reading.available < required(",
        to: "    MUTANT && reading.is_none() || reading.is_some_and(|reading| reading.available < required(",
    },
    Mutant {
        name: "critical-goes",
        mistake: "a priority makes no pod critical",
        only: Some(Family::Eviction),
        file: "bins/kubelet-syncd/model/src/pod/spec.rs",
        from: "is_some_and(|p| p >= 2_000_000_000)",
        to: "is_some_and(|p| p >= 2_000_000_000 && !MUTANT)",
    },
    Mutant {
        name: "long-grace",
        mistake: "an evicted pod has its own grace period where that is longer",
        only: Some(Family::Eviction),
        file: "bins/kubelet-evictiond/src/eviction/manager.rs",
        from: "pod.grace_period_seconds.map_or(longest, |own| own.min(longest)).max(0)",
        to: "pod.grace_period_seconds.map_or(longest, |own| if MUTANT { own } else { own.min(longest) }).max(0)",
    },
    Mutant {
        name: "blinks",
        mistake: "a condition is over as soon as its threshold is not met",
        only: Some(Family::Eviction),
        file: "bins/kubelet-evictiond/src/eviction/judge.rs",
        from: "now_ms.saturating_sub(*at) < transition || *at == now_ms",
        to: "!MUTANT && now_ms.saturating_sub(*at) < transition || *at == now_ms",
    },
    Mutant {
        name: "pods-first",
        mistake: "a pod is evicted for a disk before images that nobody uses go",
        only: Some(Family::Eviction),
        file: "bins/kubelet-evictiond/src/eviction/manager.rs",
        from: "if reclaims.images { self.delete_unused_images().await }",
        to: "if reclaims.images && !MUTANT { self.delete_unused_images().await }",
    },
    Mutant {
        name: "used-images",
        mistake: "an image is removed of which a container is made",
        only: Some(Family::Eviction),
        file: "bins/kubelet-syncd/src/sync_loop/image_uses.rs",
        from: "for reference in std::iter::once(&image.id).chain(names(image)) {",
        to: "for reference in std::iter::once(&image.id).chain(names(image)).filter(|_| !MUTANT) {",
    },
    Mutant {
        name: "admits-all",
        mistake: "pressure keeps no pod out",
        only: Some(Family::Eviction),
        file: "bins/kubelet-syncd/src/admission/pressure.rs",
        from: "if pressure == Pressure::default() || is_critical(pod) {",
        to: "if MUTANT || pressure == Pressure::default() || is_critical(pod) {",
    },
    Mutant {
        name: "forgets-evicted",
        mistake: "a restarted kubelet-syncd runs a pod on whose eviction it had begun",
        only: Some(Family::Eviction),
        file: "bins/kubelet-syncd/src/sync_loop/evictions.rs",
        from: "let Some(eviction) = self.evictions.book.get(uid).cloned() else { return false };",
        to: "let Some(eviction) = self.evictions.book.get(uid).filter(|_| !MUTANT).cloned() else { return false };",
    },
    Mutant {
        name: "judged-again",
        mistake: "after a restart a static pod that has ended is judged by admission again (as it was until this found it)",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/sync_loop/admission_queue.rs",
        from: "Course::Open => return false,",
        to: "_ if MUTANT => return false,\n            Course::Open => return false,",
    },
    Mutant {
        name: "pending-collected",
        mistake: "garbage collection takes the dead containers of a pod that waits for its admission (as it was until this found it)",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/sync_loop/housekeeping/mod.rs",
        from: "let spared = self.admission_queue.pending();",
        to: "let spared = if MUTANT { HashSet::new() } else { self.admission_queue.pending() };",
    },
    Mutant {
        name: "mount-forgotten",
        mistake: "a volume leaves volumesInUse while its mount is on its way (as it was until this found it)",
        only: Some(Family::Volumes),
        file: "bins/kubelet-syncd/volume-manager/src/reconciler.rs",
        from: "let busy = busy.keys().filter(|name| node.in_use.contains(&name.0));",
        to: "let busy = busy.keys().filter(|name| node.in_use.contains(&name.0) && !MUTANT);",
    },
    Mutant {
        name: "hidden-end",
        mistake: "an instance that was made and never started hides the end before it (as it was until this found it)",
        only: Some(Family::Volumes),
        file: "bins/kubelet-syncd/runtime/src/status/containers.rs",
        from: "ends.find(|state| state.terminated.is_some())",
        to: "ends.find(|state| MUTANT || state.terminated.is_some())",
    },
    Mutant {
        name: "unsynced-file",
        mistake: "a state file takes its name before its content is on the disk",
        only: Some(Family::Pods),
        file: "shared/daemon/src/state_dir.rs",
        from: "file.sync_all()",
        to: "if MUTANT { Ok(()) } else { file.sync_all() }",
    },
    Mutant {
        name: "unsynced-folder",
        mistake: "that a state file has its name is not on the disk when others rely on it",
        only: Some(Family::Api),
        file: "shared/daemon/src/state_dir.rs",
        from: "self.dir.sync_all().map_err(failed)",
        to: "if MUTANT { Ok(()) } else { self.dir.sync_all().map_err(failed) }",
    },
    Mutant {
        name: "full-is-done",
        mistake: "a state file that could not be written takes the place of the one before",
        only: Some(Family::Resources),
        file: "shared/daemon/src/state_dir.rs",
        from: "file.write_all(content)",
        to: "file.write_all(content).or_else(|error| if MUTANT { Ok(()) } else { Err(error) })",
    },
    Mutant {
        name: "reads-temporary",
        mistake: "what a process was writing when it ended is read for the state file",
        only: Some(Family::Resources),
        file: "shared/daemon/src/state_dir.rs",
        from: "let file = match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {",
        to: "let temporary = format!(\".{name}.tmp\");\n        \
             let is_there = || rustix::fs::openat(&self.dir, &temporary, flags, Mode::empty()).is_ok();\n        \
             let name = if MUTANT && is_there() { temporary.as_str() } else { name };\n        \
             let file = match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {",
    },
    Mutant {
        name: "pressure-waits",
        mistake: "a node whose disk is full admits pods as if it had room (as it was until this found it)",
        only: Some(Family::Eviction),
        file: "bins/kubelet-syncd/src/evictions/pressure.rs",
        from: "Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {",
        to: "Err(error) if !MUTANT && error.kind() == std::io::ErrorKind::StorageFull => {",
    },
    Mutant {
        name: "other-boot",
        mistake: "after a reboot pods are judged by the pressure of the boot before",
        only: Some(Family::Eviction),
        file: "bins/kubelet-syncd/src/evictions/pressure.rs",
        from: "saved.filter(|saved| saved.boot_id == boot_id)",
        to: "saved.filter(|saved| MUTANT || saved.boot_id == boot_id)",
    },
    Mutant {
        name: "shared-taken",
        mistake: "a claim is taken back at the end of each of the pods that share it",
        only: Some(Family::Claims),
        file: "bins/kubelet-syncd/container-manager/src/dra/book.rs",
        from: "is_some_and(|uids| uids.len() > 1) {",
        to: "is_some_and(|uids| uids.len() > 1 && !MUTANT) {",
    },
    Mutant {
        name: "asked-first",
        mistake: "a driver is asked before the checkpoint knows of it",
        only: Some(Family::Claims),
        file: "bins/kubelet-syncd/src/container_manager/dra/manager.rs",
        from: "self.save().await.map_err(|error| format!(\"checkpoint ResourceClaim cache: {error}\"))?;",
        to: "if !MUTANT {\n            self.save().await.map_err(|error| format!(\"checkpoint ResourceClaim cache: {error}\"))?;\n        }",
    },
    Mutant {
        name: "other-claim",
        mistake: "a claim that was made anew under its name passes for the one before it",
        only: Some(Family::Claims),
        file: "bins/kubelet-syncd/container-manager/src/dra/book.rs",
        from: ".filter(|entry| entry.state.claim_uid != claim.claim_uid)?;",
        to: ".filter(|entry| entry.state.claim_uid != claim.claim_uid && !MUTANT)?;",
    },
    Mutant {
        name: "not-reserved",
        mistake: "a claim is prepared for a pod that it is not reserved for",
        only: Some(Family::Claims),
        file: "bins/kubelet-syncd/container-manager/src/dra/claims.rs",
        from: "if !reserved_for(&pod_uid, group, claim) {",
        to: "if !MUTANT && !reserved_for(&pod_uid, group, claim) {",
    },
    Mutant {
        name: "trusts-file",
        mistake: "after a restart all that the checkpoint names counts as prepared",
        only: Some(Family::Claims),
        file: "bins/kubelet-syncd/container-manager/src/dra/book.rs",
        from: "(key_of(&state), Entry { state, prepared: false });",
        to: "(key_of(&state), Entry { state, prepared: MUTANT });",
    },
    Mutant {
        name: "early-return",
        mistake: "claims are given back before the containers have stopped",
        only: Some(Family::Claims),
        file: "bins/kubelet-syncd/src/sync_loop/work.rs",
        from: "self.kill(Some(pod), &runtime, (work.grace, work.hurried)).await?;",
        to: "if MUTANT {\n            self.unprepare(pod).await?;\n        }\n        self.kill(Some(pod), &runtime, (work.grace, work.hurried)).await?;",
    },
    Mutant {
        name: "lost-claims",
        mistake: "claims of pods that nobody knows any more are never given back",
        only: Some(Family::Claims),
        file: "bins/kubelet-syncd/src/container_manager/dra/lost.rs",
        from: "let left = sweep(&manager, gone.into_iter()).await;",
        to: "let left = sweep(&manager, gone.into_iter().filter(|_| !MUTANT)).await;",
    },
    Mutant {
        name: "write-dropped",
        mistake: "a checkpoint whose write nobody waits for any more counts as written (as it was until this found it)",
        only: Some(Family::Claims),
        file: "bins/kubelet-syncd/src/container_manager/dra/manager.rs",
        from: "        let states = self.book().states();",
        to: "        if MUTANT {\n            self.saved.store(changes, Ordering::Relaxed);\n        }\n        let states = self.book().states();",
    },
    Mutant {
        name: "older-write",
        mistake: "a state file whose write its caller has given up is written all the same, after the next one (as it was until this found it)",
        only: Some(Family::Claims),
        file: "shared/ipc/src/broker.rs",
        from: "() = hangs_up(socket) =>",
        to: "() = hangs_up(socket), if !MUTANT =>",
    },
    Mutant {
        name: "runs-no-more",
        mistake: "after a restart under pressure a pod that runs is judged by it once more",
        only: Some(Family::Eviction),
        file: "bins/kubelet-syncd/src/sync_loop/admission_queue.rs",
        from: "let runs = !self.node.cache.get(uid).sandboxes.is_empty();",
        to: "let runs = !MUTANT && !self.node.cache.get(uid).sandboxes.is_empty();",
    },
    Mutant {
        name: "not-taken-back",
        mistake: "a log for which the runtime has refused a new file does not get its name back",
        only: Some(Family::Eviction),
        file: "bins/kubelet-syncd/src/logs/rotate.rs",
        from: "    match log.rename_back(&stamp).await {",
        to: "    if MUTANT { return Err(LogError::Reopen(error)); }\n    match log.rename_back(&stamp).await {",
    },
    Mutant {
        name: "never-opened",
        mistake: "a log is rotated, and the runtime not asked for another file",
        only: Some(Family::Eviction),
        file: "bins/kubelet-syncd/src/logs/rotate.rs",
        from: "    let Err(mut error) = reopen(log).await else { return Ok(stamp) };",
        to: "    if MUTANT { return Ok(stamp); }\n    let Err(mut error) = reopen(log).await else { return Ok(stamp) };",
    },
    Mutant {
        name: "asks-twice",
        mistake: "a runtime that made a new file, and whose answer was lost, is asked for another one in its place",
        only: Some(Family::Eviction),
        file: "bins/kubelet-syncd/src/logs/rotate.rs",
        from: "            Ok(true) => return Ok(stamp),\n            Ok(false) => match",
        to: "            Ok(true) if !MUTANT => return Ok(stamp),\n            Ok(_) => match",
    },
    Mutant {
        name: "logs-pile-up",
        mistake: "the oldest rotated logs stay",
        only: Some(Family::Eviction),
        file: "bins/kubelet-evictiond/src/logs/plan.rs",
        from: "    for _ in 0..excess {",
        to: "    for _ in 0..if MUTANT { 0 } else { excess } {",
    },
    Mutant {
        name: "asks-at-once",
        mistake: "what kubelet-volnetd of the version before cannot list is asked for again without a pause",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/volume-manager/src/manager.rs",
        from: "let _ = tokio::time::timeout(LIST_AGAIN, epoch.changed()).await;",
        to: "if !MUTANT {\n                            let _ = tokio::time::timeout(LIST_AGAIN, epoch.changed()).await;\n                        }",
    },
    Mutant {
        name: "killed-is-error",
        mistake: "of a container that was killed for want of memory it is not told why it ended",
        only: Some(Family::Api),
        file: "bins/kubelet-syncd/runtime/src/status/containers.rs",
        from: "reason: some(instance.reason.clone()),",
        to: "reason: some(if MUTANT && instance.exit_code == 137 { \"Error\".to_owned() } else { instance.reason.clone() }),",
    },
    Mutant {
        name: "same-pause",
        mistake: "pauses between restarts do not grow",
        only: Some(Family::Pods),
        file: "bins/kubelet-syncd/runtime/src/runtime/backoff.rs",
        from: "entry.delay_ms.saturating_mul(2).min(max),",
        to: "entry.delay_ms.saturating_mul(if MUTANT { 1 } else { 2 }).min(max),",
    },
    Mutant {
        name: "kill-untold",
        mistake: "a kill of which kubelet-syncd could not be told counts as told",
        only: Some(Family::Eviction),
        file: "bins/kubelet-evictiond/src/oom/watch.rs",
        from: "OOM: not told yet: {}\", status.message());\n                    return false;",
        to: "OOM: not told yet: {}\", status.message());\n                    if !MUTANT {\n                        return false;\n                    }",
    },
    Mutant {
        name: "kill-unread",
        mistake: "a start reads the kernel's log from its end on (as upstream's may)",
        only: Some(Family::Eviction),
        file: "bins/kubelet-evictiond/src/oom/watch.rs",
        from: "    watch.parts.log.rewind()?;",
        to: "    watch.parts.log.rewind()?;\n    while MUTANT && watch.parts.log.read(&mut watch.buffer)? != Read::Nothing {}",
    },
    Mutant {
        name: "kill-by-each",
        mistake: "each process of a group that ends as a whole counts as a kill of its own",
        only: Some(Family::Eviction),
        file: "bins/kubelet-evictiond/src/oom/kill.rs",
        from: "        let begun = self.begun.take()?;",
        to: "        let begun = if MUTANT { self.begun.take().unwrap_or_default() } else { self.begun.take()? };",
    },
    Mutant {
        name: "newest-goes",
        mistake: "the newest rotated log goes where the oldest one is to",
        only: Some(Family::Eviction),
        file: "bins/kubelet-evictiond/src/logs/plan.rs",
        from: "let Some((stamp, forms)) = kept.pop_first() else { break };",
        to: "let Some((stamp, forms)) = (if MUTANT { kept.pop_last() } else { kept.pop_first() }) else { break };",
    },
    Mutant {
        name: "forgotten-request",
        mistake: "a pod that is forgotten and comes again does not wait for its request of before (as it was until this found it)",
        only: Some(Family::Api),
        file: "bins/kubelet-statusd/src/pods/status_store.rs",
        from: "let Some(entry) = self.pods.remove(uid) else { return };",
        to: "let Some(entry) = self.pods.remove(uid) else { return };\n        if MUTANT {\n            self.under_way.remove(uid);\n        }",
    },
    Mutant {
        name: "left-by-refused",
        mistake: "what is left of a pod that ran, and was refused after a restart, stays when its source removes it (as it was until this found it)",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/sync_loop/housekeeping/mod.rs",
        from: "self.housekeeping.left.insert(uid.clone());",
        to: "if !MUTANT { self.housekeeping.left.insert(uid.clone()); }",
    },
    Mutant {
        name: "given-away",
        mistake: "devices of a removed pod are given to others while its plugin still allocates them (as it was until this found it)",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/sync_loop/resource_waits.rs",
        from: "self.completing.values()",
        to: "self.completing.values().filter(|_| !MUTANT)",
    },
    Mutant {
        name: "forgotten-return",
        mistake: "a pod that waits for the devices of a removed one is not looked at when they come back",
        only: Some(Family::Resources),
        file: "bins/kubelet-syncd/src/sync_loop/admission_queue.rs",
        from: "return self.decide_on_those_that_wait_for_returns();",
        to: "if MUTANT { return; }\n                return self.decide_on_those_that_wait_for_returns();",
    },
    Mutant {
        name: "clock-holds",
        mistake: "a clock that was set back holds a container in CrashLoopBackOff until it is where it was (as it was until this found it)",
        only: Some(Family::Many),
        file: "bins/kubelet-syncd/runtime/src/runtime/backoff.rs",
        from: "let since = match finished {",
        to: "let since = match finished {\n            _ if MUTANT => finished.min(now),",
    },
    Mutant {
        name: "newest-first",
        mistake: "of the init containers of a former sandbox the newest goes first (as it was until this found it)",
        only: Some(Family::Api),
        file: "bins/kubelet-syncd/runtime/src/runtime/sync.rs",
        from: "for instance in instances.skip(keep).collect::<Vec<_>>().into_iter().rev() {",
        to: "let mut instances: Vec<_> = instances.skip(keep).collect();\n            if !MUTANT {\n                \
             instances.reverse();\n            }\n            for instance in instances {",
    },
];

/// Kept schedules, by name, that find mutants of other names.
pub const FOUND_IN: [(&str, &[&str]); 13] = [
    ("full-and-pressed", &["blinks", "admits-all", "pressure-waits"]),
    ("kill-untold", &["kill-unread", "kill-by-each"]),
    (
        "killed-while-one-is-evicted",
        &["not-in-flight", "forgets-evicted", "runs-no-more", "soft-at-once", "long-grace"],
    ),
    ("made-and-never-started", &["hidden-end"]),
    ("memory-by-priority", &["rank-by-use", "critical-goes"]),
    ("older-write-last", &["older-write", "not-reserved"]),
    ("purged-newest-first", &["newest-first"]),
    ("refused-after-a-restart", &["left-by-refused", "cpus-twice"]),
    ("removed-while-allocating", &["shared-stay", "given-away"]),
    ("rotated-logs", &["not-taken-back", "never-opened", "asks-twice", "logs-pile-up", "newest-goes"]),
    ("two-patches", &["no-second-try"]),
    ("volume-reported-before", &["early-unmount", "early-unstage"]),
    ("watches-that-fail", &["relist-keeps", "away-is-gone", "foreign-lost", "killed-is-error", "early-delete"]),
];

impl Mutant {
    /// The kept schedule of this name is there for it.
    pub fn is_found_in(&self, kept: &str) -> bool {
        let others = || FOUND_IN.iter().any(|(name, mutants)| *name == kept && mutants.contains(&self.name));
        self.name == kept || others()
    }

    fn condition(&self) -> String {
        format!("std::env::var_os({VARIABLE:?}).is_some_and(|name| name == {:?})", self.name)
    }

    /// The file's text with this mistake in it, which is off unless it is named.
    ///
    /// # Errors
    /// The place is not there once: the source has changed, and this table has to follow.
    pub fn edit(&self, text: &str) -> Result<String> {
        let places = text.matches(self.from).count();
        ensure!(places == 1, "mutant {}: {:?} is in {} {places} times", self.name, self.from, self.file);
        Ok(text.replace(self.from, &self.to.replace("MUTANT", &self.condition())))
    }

    /// The file that it is in, from the top of the workspace.
    pub fn file(&self) -> &'static str {
        self.file
    }
}

/// Copies the source to `copy` and puts all mutants in.
///
/// # Errors
/// It cannot be copied, or a mutant does not fit.
pub fn write(workspace: &Path, copy: &Path) -> Result<()> {
    if copy.exists() {
        std::fs::remove_dir_all(copy).context("removing an older copy")?;
    }
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(workspace)
        .output()
        .context("listing the source with git")?;
    ensure!(listed.status.success(), "git ls-files has failed");
    for name in listed.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        let (from, to) = (workspace.join(&name), copy.join(&name));
        if !from.is_file() || from.is_symlink() {
            continue;
        }
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        }
        std::fs::copy(&from, &to).with_context(|| format!("copying {name}"))?;
    }
    for mutant in MUTANTS {
        let path = copy.join(mutant.file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", mutant.file))?;
        std::fs::write(&path, mutant.edit(&text)?).with_context(|| format!("writing {}", mutant.file))?;
    }
    Ok(())
}
