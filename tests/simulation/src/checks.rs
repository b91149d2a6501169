//! What must hold, a named check each. The table in docs/simulation.md has a row for each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead_simulation_kernel as kernel;

use crate::schedule::{ContainerShape, ProbeKind, Shape};
use crate::world::{Container, State, Told, World, uid_of, version_of};

/// What goes wrong has its consequences within so long: a call's deadline, and a try after it.
pub(crate) const DISTURBED: Duration = Duration::from_secs(150);

/// Names of all checks, for the documentation and the mutants.
pub const NAMES: [&str; 94] = [
    "one-instance",
    "one-pod-a-name",
    "wanted-runs-on",
    "sandbox-is-ready",
    "init-order",
    "place-is-there",
    "runs-once",
    "restart-counts",
    "nothing-under-feet",
    "phase-stays",
    "told-counts",
    "no-circle",
    "stopped-in-time",
    "gone-is-gone",
    "as-desired",
    "silence",
    "ended-last",
    "terminal-stays",
    "status-forward",
    "written-counts",
    "own-uid",
    "others-stay",
    "deleted-last",
    "last-truth",
    "api-silence",
    "probe-order",
    "probe-acts",
    "ready-is-so",
    "volumes-first",
    "volume-in-use",
    "attached-first",
    "stage-first",
    "intent-first",
    "one-place",
    "unstage-last",
    "in-use-shown",
    "detach-last",
    "volumes-as-desired",
    "volumes-gone",
    "as-asked",
    "one-owner",
    "as-checkpoint",
    "keeps-own",
    "plugin-first",
    "healthy-only",
    "refused-rightly",
    "can-be-had",
    "held-by-the-living",
    "on-its-cpus",
    "evicted-rightly",
    "never-critical",
    "one-victim",
    "fresh-figures",
    "ranked-first",
    "short-grace",
    "stays-evicted",
    "images-first",
    "image-in-use",
    "condition-told",
    "condition-stays",
    "pressure-admits",
    "pressure-acts",
    "state-whole",
    "state-durable",
    "claims-first",
    "devices-as-given",
    "written-first",
    "reserved-first",
    "one-claim-a-name",
    "claim-in-use",
    "claims-as-desired",
    "claims-gone",
    "log-kept",
    "log-files",
    "log-size",
    "log-place",
    "log-ended",
    "log-compressed",
    "oom-told",
    "end-as-it-was",
    "back-off",
    "sized-as-given",
    "given-as-asked",
    "room-of-node",
    "room-in-cgroup",
    "restarts-for-it",
    "sized-as-asked",
    "pre-stop-first",
    "hook-once",
    "post-start-first",
    "failed-hook-ends",
    "heap-bound",
    "no-panic",
    "no-end",
];

/// Changes asked of the runtime in one virtual minute; more is a circle.
const CHANGES_MAX: u64 = 600;
/// Probes have found what is so within this time, milliseconds: the longest period, its threshold, and calls that are slow.
const PROBE_SLACK: u64 = 90_000;
/// A pod worker that brings its pod to life, as `kubelet.syncd.v1.WorkerState` counts it.
pub(crate) const SYNCING: i32 = 2;
/// At the end of the run the node says nothing for so long.
pub(crate) const SILENCE: Duration = Duration::from_secs(200);

impl World {
    /// A call that changes something, in the name of this pod.
    pub fn count_change(&mut self, uid: &str) {
        let now = kernel::now();
        self.last_change.insert(uid.to_owned(), now);
        let minute = now.as_secs() / 60;
        self.changes = if self.changes.0 == minute { (minute, self.changes.1 + 1) } else { (minute, 1) };
        if self.changes.1 == CHANGES_MAX {
            self.breaks("no-circle", format!("{CHANGES_MAX} changes of the runtime within a minute"));
        }
    }

    /// Before a container starts.
    pub fn check_start(&mut self, id: &str) {
        let Some(this) = self.containers.get(id).cloned() else { return };
        let (name, uid) = (this.name().to_owned(), this.uid().to_owned());
        let pod = self.short(&uid);
        let other = self.running(&uid).find(|c| c.name() == name && !c.is_ghost).map(|c| c.id.clone());
        if let Some(other) = other {
            self.breaks("one-instance", format!("{name} of {pod} starts while {other} of it runs"));
        }
        self.check_namesakes(&uid, &this.sandbox);
        let newest = self.newest_sandbox(&uid);
        if newest.is_none_or(|sandbox| sandbox.id != this.sandbox || !sandbox.ready) {
            self.breaks(
                "sandbox-is-ready",
                format!("{name} of {pod} starts in a sandbox that is not the pod's, or not ready"),
            );
        }
        if !self.root_dir.has_pod(&uid) || !self.cgroups.contains(&uid) || !self.logs.contains_key(&uid) {
            self.breaks("place-is-there", format!("{name} of {pod} starts without folder, cgroup or folder of logs"));
        }
        let past = self.past.entry(uid.clone()).or_default().clone();
        let Some(shape) = past.shape.clone() else { return };
        self.check_order(&shape, &uid, &name, &this.sandbox);
        self.check_volumes_first(&this, &shape);
        self.check_resources(&this);
        self.check_size(&this);
        self.check_claims_first(&this, &shape);
        self.check_back_off(&this);
        let is_regular = shape.containers.iter().any(|container| container.name == name);
        if is_regular && !past.unsure.contains(&name) {
            match (shape.restart_policy.as_str(), past.ended.get(&name)) {
                ("Never", Some(code)) => {
                    self.breaks(
                        "runs-once",
                        format!("{name} of {pod} ended with {code} and starts again, restartPolicy Never"),
                    );
                }
                ("OnFailure", Some(0)) => {
                    self.breaks(
                        "runs-once",
                        format!("{name} of {pod} has succeeded and starts again, restartPolicy OnFailure"),
                    );
                }
                _ => {}
            }
        }
        let count = this.restart_count();
        if let Some(before) = past.counts.get(&name)
            && *before >= count
            && !past.unsure.contains(&name)
        {
            self.breaks("restart-counts", format!("{name} of {pod} starts with restart count {count}, after {before}"));
        }
        self.past.entry(uid).or_default().counts.insert(name, count);
    }

    /// Of a static pod that was edited the one before ends first. (What a life of kubelet-syncd that is over has left may still run
    /// beside its successor, as with upstream.)
    fn check_namesakes(&mut self, uid: &str, sandbox: &str) {
        // A pod of the API server that was removed by force may still run beside its successor.
        if self.objects.contains_key(uid) {
            return;
        }
        let Some(this) = self.sandboxes.get(sandbox) else { return };
        let name = |sandbox: &crate::world::Sandbox| sandbox.config.metadata.as_ref().map(|m| m.name.clone());
        let others = self
            .sandboxes
            .values()
            .filter(|other| uid_of(other) != uid && name(other) == name(this) && other.life == this.life);
        let other = others.map(uid_of).find(|other| self.running(other).any(|c| !c.is_ghost)).map(str::to_owned);
        if let Some(other) = other {
            let text = format!("{} starts while {} runs", self.short(uid), self.short(&other));
            self.breaks("one-pod-a-name", text);
        }
    }

    fn check_order(&mut self, shape: &Shape, uid: &str, name: &str, sandbox: &str) {
        let Some(sandbox) = self.sandboxes.get(sandbox) else { return };
        let place = shape.init.iter().position(|container| container.name == name).unwrap_or(shape.init.len());
        let late = shape.init.iter().take(place).find(|before| {
            let passed = if before.sidecar { &sandbox.ran } else { &sandbox.done };
            let waits = before.sidecar && before.probe(ProbeKind::Startup).is_some();
            !passed.contains(&before.name) || (waits && !sandbox.passed.contains(&before.name))
        });
        if let Some(late) = late.map(|late| late.name.clone()) {
            let pod = self.short(uid);
            self.breaks("init-order", format!("{name} of {pod} starts before {late} has passed"));
        }
    }

    /// Before a probe's command runs: the startup probe comes first.
    pub fn check_probe(&mut self, container: &Container, shape: &ContainerShape, kind: ProbeKind) {
        let passed = container.probed.get(&ProbeKind::Startup).is_some_and(|probed| probed.has_passed);
        if kind != ProbeKind::Startup && shape.probe(ProbeKind::Startup).is_some() && !passed {
            let text = format!("{} probe of {} before its startup probe has passed", kind.name(), shape.name);
            self.breaks("probe-order", text);
        }
    }

    /// Its liveness or startup probe may have failed often enough in a row.
    pub fn may_be_stopped_by_probe(&self, container: &Container) -> bool {
        let shape = self.past.get(container.uid()).and_then(|past| past.shape.as_ref());
        let all = shape.into_iter().flat_map(|shape| shape.init.iter().chain(&shape.containers));
        let mut own = all.filter(|shape| shape.name == container.name()).flat_map(|shape| &shape.probes);
        own.any(|probe| {
            let failures = container.probed.get(&probe.kind).map_or(0, |probed| probed.failures);
            probe.kind != ProbeKind::Readiness && failures >= probe.threshold
        })
    }

    /// At the end no container runs on whose probe has failed for long, and what is told of readiness is so.
    fn check_probes(&mut self, name: &str, uid: &str, shape: &Shape) {
        let now = self.end();
        let told = self.told.get(uid).cloned().unwrap_or_default();
        let mut wrong = Vec::new();
        for container in shape.init.iter().filter(|c| c.sidecar).chain(&shape.containers) {
            let Some(instance) = self.running(uid).find(|c| c.name() == container.name) else { continue };
            let since = u64::try_from(now.saturating_sub(instance.began).as_millis()).unwrap_or(u64::MAX);
            for probe in container.probes.iter().filter(|probe| probe.kind != ProbeKind::Readiness) {
                let fails_since = probe.fails_after.map_or(0, |after| since.saturating_sub(after));
                let at_most = probe.period * 1000 * (probe.threshold + 2) + PROBE_SLACK;
                if fails_since > at_most && (probe.kind == ProbeKind::Liveness && since > at_most + PROBE_SLACK) {
                    wrong.push((
                        "probe-acts",
                        format!("{} of {name} runs on, and its liveness probe fails", container.name),
                    ));
                }
            }
            // Short after a change the last probe may have found what was before.
            let settled = since > PROBE_SLACK;
            let Some(readiness) = container.probe(ProbeKind::Readiness).filter(|_| settled) else { continue };
            let is_near = [Some(readiness.passes_after), readiness.fails_after].into_iter().flatten();
            let near = is_near.into_iter().any(|at| since >= at && since - at < PROBE_SLACK);
            let started = container.probe(ProbeKind::Startup).is_none_or(|probe| probe.passes(since));
            if !near
                && started
                && !container.is_ended_by_probe()
                && told.ready.contains(&container.name) != readiness.passes(since)
            {
                wrong.push((
                    "ready-is-so",
                    format!("what is told of the readiness of {} of {name} is not so", container.name),
                ));
            }
        }
        for (check, text) in wrong {
            self.breaks(check, text);
        }
    }

    /// Before a container is stopped on request, or a sandbox with what runs in it.
    pub fn check_stop(&mut self, uid: &str, what: &str) {
        let newest_is_ready = self.newest_sandbox(uid).is_some_and(|sandbox| sandbox.ready);
        let Some((manifest, wanted)) = self.wanted_by(uid) else { return };
        if wanted.is_edited || self.pressure.is_off(uid) || self.is_kept_out(uid) {
            return;
        }
        let (manifest, shape) = (manifest.clone(), wanted.shape.clone());
        let running = self.running(uid).next().is_some();
        // Once nothing is to run any more, the kubelet takes down what is left.
        let ended = |name: &str| self.past.get(uid).is_some_and(|past| past.ended.contains_key(name));
        // One whose probe has failed is to end, and under Never it does not come back: its sidecars go with it.
        let ends = |name: &str| {
            let mut own = self.running(uid).filter(|container| container.name() == name);
            shape.restart_policy == "Never" && own.any(|container| self.may_be_stopped_by_probe(container))
        };
        let is_over = shape.restart_policy != "Always"
            && (shape.containers.iter().all(|c| ended(&c.name) || ends(&c.name))
                || shape.init.iter().any(|c| !c.sidecar && ended(&c.name)));
        if running && newest_is_ready && !is_over {
            let pod = self.short(uid);
            self.breaks("wanted-runs-on", format!("{what} of {pod} is stopped, and {manifest} wants it"));
        }
    }

    /// Before folders, logs or the cgroup of a pod are removed.
    pub fn check_removal(&mut self, uid: &str, what: &str) {
        let running = self.running(uid).next().map(|c| c.name().to_owned());
        if let Some(running) = running {
            let pod = self.short(uid);
            self.breaks("nothing-under-feet", format!("{what} of {pod} goes while {running} runs"));
        }
    }

    /// What is told of a pod follows what was told before.
    pub fn check_told(&mut self, uid: &str, name: &str, now: Told) {
        let before = self.told.get(uid).cloned().unwrap_or_default();
        self.coverage.transition(before.worker, now.worker);
        if before.phase != now.phase || before.worker != now.worker {
            let worker = crate::observer::worker_name(now.worker);
            self.tell("kubelet-syncd", format!("{name}: worker {worker}, phase {:?}", now.phase));
            self.coverage.phase(&now.phase);
        }
        let over = |phase: &str| matches!(phase, "Succeeded" | "Failed");
        // The Failed of a pod that is being ended is by how its containers end in the end (`kubelet_runtime::status::pod_status`).
        if over(&before.phase) && !before.may_run && before.phase != now.phase {
            self.breaks("phase-stays", format!("{name} was {} and is {:?}", before.phase, now.phase));
        }
        // A standalone node has the runtime alone to tell a new life of kubelet-syncd how often a container has started; of one whose
        // instances have gone with their sandbox nobody knows.
        let begins_without = |container: &str| {
            // What has come since may be younger than what is told.
            let is_there = self
                .containers
                .values()
                .any(|other| other.uid() == uid && other.name() == container && other.created < self.life_since);
            !self.has_api && !self.shown.contains(uid) && !is_there
        };
        let lost: Vec<String> = before.counts.keys().filter(|name| begins_without(name)).cloned().collect();
        for (container, count) in before.counts.iter().filter(|(name, _)| !lost.contains(name)) {
            if now.counts.get(container).is_some_and(|now| now < count) {
                let after = now.counts.get(container).copied().unwrap_or(0);
                self.breaks(
                    "told-counts",
                    format!("restart count of {container} of {name} fell from {count} to {after}"),
                );
            }
        }
        if before.phase != now.phase {
            self.check_refusal(uid, name, &now);
        }
        self.check_turned_away(uid, name, &now);
        if self.pressure.on && now.worker == SYNCING && before.worker != SYNCING {
            self.check_admission(uid);
        }
        self.check_starting_told(uid, &now);
        self.told.insert(uid.to_owned(), now);
        self.shown.insert(uid.to_owned());
    }

    /// Once each container that nobody wants has had its grace period.
    pub fn check_stopped(&mut self) {
        let late = self.containers.values().find(|c| {
            let is_wanted = self.wanted_by(c.uid()).is_some() && !self.pressure.is_off(c.uid());
            c.state == State::Running && !is_wanted
        });
        if let Some((name, uid)) = late.map(|c| (c.name().to_owned(), c.uid().to_owned())) {
            let pod = self.short(&uid);
            self.breaks("stopped-in-time", format!("{name} of {pod} still runs, and nobody wants it"));
        }
    }

    /// Once nothing has happened from outside for long.
    pub fn check_end(&mut self) {
        let end = self.end();
        let mut by_version: BTreeMap<u64, String> = BTreeMap::new();
        for sandbox in self.sandboxes.values() {
            if let Some(version) = version_of(sandbox) {
                by_version.insert(version, uid_of(sandbox).to_owned());
            }
        }
        // In other families no pod asks for anything that could be short, so a refusal excuses nothing.
        let may_be_refused = self.resources.on;
        let refused = self.told.values().filter(|told| may_be_refused && told.is_refused());
        let refused: BTreeSet<u64> = refused.filter_map(|told| told.version).collect();
        let wanted: Vec<(String, u64, Shape)> =
            self.wanted.iter().map(|(name, wanted)| (name.clone(), wanted.version, wanted.shape.clone())).collect();
        self.check_gone(&wanted, &by_version);
        let mut restless = Vec::new();
        let contested = self.contested();
        for (name, version, shape) in &wanted {
            if contested.contains(version) {
                restless.extend(by_version.get(version).cloned());
                continue;
            }
            let uid = by_version.get(version).cloned();
            if self.is_off(name) {
                continue;
            }
            if let Some(uid) = &uid {
                self.check_probes(name, uid, shape);
            }
            let crashes = shape.containers.iter().chain(&shape.init).any(|c| {
                let again = shape.restart_policy == "Always"
                    || (shape.restart_policy == "OnFailure" && c.behaviour.exit_code != 0);
                let is_init = shape.init.iter().any(|i| i.name == c.name && !i.sidecar);
                let again = if is_init { c.behaviour.exit_code != 0 && shape.restart_policy != "Never" } else { again };
                let by_probe = c.is_ended_by_probe() && (c.sidecar || shape.restart_policy != "Never");
                let by_hook = shape.fails_to_start(&c.name) && (c.sidecar || shape.restart_policy != "Never");
                again && c.behaviour.ends_after.is_some() || by_probe || by_hook
            });
            match uid {
                _ if refused.contains(version) => {
                    let runs = uid.is_some_and(|uid| self.running(&uid).next().is_some());
                    if runs {
                        self.breaks("as-desired", format!("{name} at the end: it is refused, and runs"));
                    }
                }
                None => self.breaks("as-desired", format!("{name} (version {version}) has no sandbox at the end")),
                Some(uid) if crashes => restless.push(uid),
                Some(uid) => self.check_desired(name, &uid, shape),
            }
        }
        let noisy = self.last_change.iter().find(|(uid, at)| **at + SILENCE > end && !restless.contains(uid));
        if let Some((uid, at)) = noisy {
            let text = format!("something of {} was changed at {:.3} s", self.short(uid), at.as_secs_f64());
            self.breaks("silence", text);
        }
        if self.has_api {
            self.check_api_end(&by_version, &restless);
            self.check_sizes_end(&restless);
        }
        self.check_hooks_end();
        if self.has_driver {
            self.check_volumes_end();
        }
        if self.resources.on {
            self.check_resources_end();
        }
        if self.claims.on {
            self.check_claims_end();
        }
        if self.memory.on {
            self.check_memory_end();
        }
        if self.pressure.on {
            self.check_pressure_end();
            self.check_logs_end();
        }
    }

    /// The pod is wanted, and the node has put it off.
    fn is_off(&self, name: &str) -> bool {
        let uid = self.wanted.get(name).and_then(|wanted| wanted.uid.as_deref());
        uid.is_some_and(|uid| self.pressure.is_off(uid))
    }

    /// Nothing is left of pods that nobody wants.
    fn check_gone(&mut self, wanted: &[(String, u64, Shape)], by_version: &BTreeMap<u64, String>) {
        let mut keep: Vec<String> =
            wanted.iter().filter_map(|(_, version, _)| by_version.get(version).cloned()).collect();
        // They may have no sandbox yet.
        let contested = self.contested();
        let waiting = self.wanted.values().filter(|wanted| contested.contains(&wanted.version));
        keep.extend(waiting.filter_map(|wanted| wanted.uid.clone()));
        // Nor have those that were refused.
        let is_wanted = |told: &Told| wanted.iter().any(|(_, version, _)| told.version == Some(*version));
        let refused = self.told.iter().filter(|(_, told)| told.is_refused() && is_wanted(told));
        keep.extend(refused.map(|(uid, _)| uid.clone()));
        // Of pods that were evicted what is left goes when it has to.
        let off = self.wanted.values().filter_map(|wanted| wanted.uid.clone()).filter(|uid| self.pressure.is_off(uid));
        keep.extend(off);
        let left = |uid: &str| !keep.iter().any(|kept| kept == uid);
        let mut found = Vec::new();
        found.extend(self.sandboxes.values().filter(|s| left(uid_of(s))).map(|s| format!("sandbox {}", s.id)));
        found.extend(
            self.containers.values().filter(|c| left(c.uid())).map(|c| format!("container {} ({})", c.name(), c.id)),
        );
        found.extend(self.root_dir.pods().iter().filter(|uid| left(uid)).map(|uid| format!("folder of {uid}")));
        found.extend(self.cgroups.iter().filter(|uid| left(uid)).map(|uid| format!("cgroup of {uid}")));
        found.extend(self.logs.keys().filter(|uid| left(uid)).map(|uid| format!("logs of {uid}")));
        found.extend(self.shown.iter().filter(|uid| left(uid)).map(|uid| format!("what is told of {uid}")));
        if let Some(first) = found.first() {
            let text = format!("{first} is left of a pod that nobody wants ({} things in all)", found.len());
            self.breaks("gone-is-gone", text);
        }
    }

    /// The pod is as its manifest has it. Of pods that crash for ever only [`World::check_gone`] and the rest is known.
    fn check_desired(&mut self, name: &str, uid: &str, shape: &Shape) {
        let past = self.past.get(uid).cloned().unwrap_or_default();
        let told = self.told.get(uid).cloned().unwrap_or_default();
        let runs = |container: &str| self.running(uid).any(|c| c.name() == container);
        let failed = |c: &ContainerShape| match past.ended.get(&c.name) {
            // In its sandbox's end, say.
            Some(code) if shape.restart_policy == "Never" => *code != 0 || c.behaviour.exit_code != 0,
            Some(_) => c.behaviour.exit_code != 0,
            None => false,
        };
        let blocked = shape.init.iter().any(|c| !c.sidecar && failed(c));
        let mut wrong = Vec::new();
        for container in &shape.containers {
            let should = container.behaviour.ends_after.is_none() && !blocked;
            let may_be_over = shape.restart_policy != "Always" && past.ended.contains_key(&container.name);
            let again = match (shape.restart_policy.as_str(), past.ended.get(&container.name)) {
                ("Never", Some(_)) | ("OnFailure", Some(0)) => false,
                _ => should,
            };
            if again && !runs(&container.name) && !(may_be_over && shape.restart_policy == "Never") {
                wrong.push(format!("{} does not run", container.name));
            }
            if runs(&container.name) != told.running.contains(&container.name) {
                wrong.push(format!("what is told of {} is not so", container.name));
            }
        }
        let over = self.running(uid).next().is_none();
        let phase = if over { matches!(told.phase.as_str(), "Succeeded" | "Failed") } else { told.phase == "Running" };
        if !phase {
            wrong.push(format!("its phase is {:?}", told.phase));
        }
        if let Some(first) = wrong.first() {
            self.breaks("as-desired", format!("{name} at the end: {first}"));
        }
    }

    /// What runs, for people.
    pub fn picture(&self) -> Vec<String> {
        let containers = self.containers.values().map(|c| {
            let state = match c.state {
                State::Created => "created",
                State::Running => "running",
                State::Exited => "exited",
            };
            format!("{} of {} in {}: {state} {} #{}", c.id, c.name(), c.sandbox, c.exit_code, c.restart_count())
        });
        let sandboxes =
            self.sandboxes.values().map(|s| format!("{} of {}: ready {}", s.id, self.short(uid_of(s)), s.ready));
        let told = self
            .told
            .iter()
            .map(|(uid, told)| format!("told of {}: {} {:?}", self.short(uid), told.phase, told.counts));
        sandboxes.chain(containers).chain(told).collect()
    }
}
