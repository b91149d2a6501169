//! What an administrator does with kubeadm, in the order of a cluster's life, and what `kubectl` shows of it.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::systemd::Machine;
use bulkhead_testkit::{LONG, eventually};
use bulkhead_tests::checklist::Checklist;
use serde_json::Value;

use super::hosts::{Hosts, Seen, reset as kubeadm_reset};
use super::left::{State, nothing_runs};

const FIELD: &str = "kubernetes.io/config.hash";

/// A cluster of one node, then of two.
pub fn init_and_join(hosts: &Hosts, list: &mut Checklist) -> Result<()> {
    list.needs("`kubeadm init`: preflight has nothing to say of the kubelet, and every phase ends well", || {
        let said = hosts.init()?;
        let warned: Vec<_> = said.lines().filter(|line| line.contains("WARNING")).collect();
        let of_kubelet = ["Kubelet", "kubelet service", "Port-10250", "Service-"];
        ensure!(!warned.iter().any(|line| of_kubelet.iter().any(|word| line.contains(word))), "{warned:#?}");
        hosts.wait_nodes()?;
        hosts.wait_control_plane()
    })?;
    list.needs("`kubeadm join` with the command of `kubeadm token create`: both Nodes are Ready", || {
        hosts.join()?;
        eventually("there are two Nodes", LONG, || {
            let nodes = hosts.get(&["nodes"])?;
            let names: Vec<_> = nodes["items"].as_array().context("no items")?.iter().map(name).collect();
            ensure!(names == ["first", "second"], "{names:?}");
            Ok(())
        })?;
        hosts.wait_nodes()
    })
}

/// Pods on both, which are reached from each other's node and by the API server.
pub fn deployment(hosts: &Hosts, list: &mut Checklist) -> Result<()> {
    list.needs("a Deployment over both nodes: all pods Ready, none restarted; they reach each other", || {
        hosts.deploy()?;
        let pods = hosts.pods()?;
        ensure!(pods.len() == 4 && pods.iter().all(|pod| pod.ready && pod.restarts == 0), "{pods:#?}");
        let (here, there) = (hosts.pods_on(&hosts.first)?, hosts.pods_on(&hosts.second)?);
        ensure!(here.len() == 2 && there.len() == 2, "{pods:#?}");
        for (from, to) in [(&here[0], &there[0]), (&there[0], &here[0])] {
            let page = format!("http://{}:8080/", to.address);
            let said = hosts.kubectl(&["exec", &from.name, "--", "wget", "-q", "-O-", &page])?;
            ensure!(said.trim() == to.name, "{said} is not {}", to.name);
            let log = hosts.kubectl(&["logs", &to.name])?;
            ensure!(log.trim() == to.name, "{log} is not {}", to.name);
        }
        Ok(())
    })
}

/// A worker and a control plane node, each with the restart that kubeadm tells its user to do.
pub fn upgrade(hosts: &Hosts, list: &mut Checklist) {
    list.holds("`kubeadm upgrade node` on a worker, then daemon-reload and restart: its pods run on", || {
        let before = hosts.second.fingerprint()?;
        hosts.upgrade_node()?;
        hosts.restart_kubelet(&hosts.second)?;
        hosts.wait_nodes()?;
        ensure!(hosts.second.fingerprint()? == before);
        Ok(())
    });
    list.holds(
        "`kubeadm upgrade apply` with patches: one static pod is exchanged, and the kubelet's configuration",
        || {
            let (pods, containers) = (hosts.control_plane()?, hosts.first.fingerprint()?);
            hosts.upgrade_apply()?;
            let events = hosts.get(&["events", "--namespace=kube-system"])?;
            let of_job = |event: &Value| {
                let pod = event["involvedObject"]["name"].as_str().unwrap_or_default();
                pod.starts_with("upgrade-health-check") && event["reason"] == "Started"
            };
            ensure!(events["items"].as_array().context("no items")?.iter().any(of_job), "no Job ran");
            hosts.restart_kubelet(&hosts.first)?;
            hosts.wait_nodes()?;
            hosts.wait_control_plane()?;
            for (old, new) in pods.iter().zip(hosts.control_plane()?) {
                let exchanged = name(old) == "kube-scheduler-first";
                let hash = |pod: &Value| pod["metadata"]["annotations"][FIELD].clone();
                ensure!((hash(old) != hash(&new)) == exchanged, "{}: {} {}", name(old), hash(old), hash(&new));
                ensure!(exchanged == (new["metadata"]["annotations"]["example.com/upgraded"] == "yes"), "{new:#}");
            }
            let config = hosts.get_raw("/api/v1/nodes/first/proxy/configz")?;
            ensure!(config["kubeletconfig"]["containerLogMaxFiles"] == 7, "{config:#}");
            let kept = |all: &[Fingerprint]| -> Vec<Fingerprint> {
                let other = |one: &&Fingerprint| !one.pod.starts_with("kube-") && !one.pod.starts_with("upgrade-");
                all.iter().filter(other).cloned().collect()
            };
            ensure!(kept(&hosts.first.fingerprint()?) == kept(&containers), "another pod was restarted");
            Ok(())
        },
    );
}

/// New certificates, and the way to them that kubeadm's documentation has: each manifest away until its pod has ended, and back.
pub fn certificates(hosts: &Hosts, list: &mut Checklist) -> Result<()> {
    list.needs(
        "`kubeadm certs renew all`, the manifests away and back: the control plane serves again, pods run on",
        || {
            let machine = &hosts.first;
            let (pods, before) = (hosts.pods()?, running(machine)?);
            hosts.renew_certificates()?;
            machine.shell("mkdir /etc/kubernetes/aside; mv /etc/kubernetes/manifests/*.yaml /etc/kubernetes/aside/")?;
            eventually("the control plane has ended", LONG, || {
                let left = running(machine)?;
                ensure!(left.is_empty(), "{left:?}");
                Ok(())
            })
            .map_err(|error| error.context(hosts.last_words()))?;
            machine.shell("mv /etc/kubernetes/aside/*.yaml /etc/kubernetes/manifests/; rmdir /etc/kubernetes/aside")?;
            hosts.restart_kubelet(machine)?;
            hosts.wait_control_plane()?;
            hosts.wait_nodes()?;
            let now = running(machine)?;
            ensure!(now.len() == 4 && !now.iter().any(|id| before.contains(id)), "{before:?} {now:?}");
            ensure!(hosts.pods()? == pods, "{pods:#?} became {:#?}", hosts.pods()?);
            Ok(())
        },
    )
}

/// Off and on again, in order.
pub fn reboots(hosts: &mut Hosts, list: &mut Checklist) -> Result<()> {
    let (here, there) = (hosts.pods_on(&hosts.first)?, hosts.pods_on(&hosts.second)?);
    hosts.second.reboot()?;
    list.needs("a worker is rebooted: its Node is Ready, its pods run again after one restart, others run on", || {
        wait_booted(hosts, &hosts.second)?;
        wait_restarted(hosts, &hosts.second, &there)?;
        wait_as_before(hosts, &here)
    })?;
    let there = hosts.pods_on(&hosts.second)?;
    hosts.first.reboot()?;
    list.needs("a control plane node is rebooted: the API answers, its Node is Ready, its pods run again", || {
        wait_booted(hosts, &hosts.first)?;
        hosts.wait_control_plane()?;
        wait_restarted(hosts, &hosts.first, &here)?;
        hosts.wait_nodes()?;
        wait_as_before(hosts, &there)
    })
}

/// The worker in order, the control plane as it is.
pub fn reset(hosts: &Hosts, before: &[State; 2], list: &mut Checklist) {
    list.holds("`kubectl drain`, `kubeadm reset` on a worker: nothing of a kubelet or a pod is left", || {
        hosts.kubectl(&["drain", "second", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s"])?;
        kubeadm_reset(&hosts.second)?;
        nothing_runs(&hosts.second)?;
        State::of(&hosts.second)?.holds_no_more_than(&before[1])
    });
    list.holds("`kubeadm reset` on a control plane node whose pods run: nothing of a kubelet or a pod is left", || {
        kubeadm_reset(&hosts.first)?;
        nothing_runs(&hosts.first)?;
        State::of(&hosts.first)?.holds_no_more_than(&before[0])
    });
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Containers of the control plane that run, in the order of names.
fn running(machine: &Machine) -> Result<Vec<String>> {
    let components = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
    let all = machine.fingerprint()?.into_iter();
    Ok(all.filter(|one| components.contains(&one.container.as_str())).map(|one| one.id).collect())
}

/// Its Node is told to be of this boot, and Ready.
fn wait_booted(hosts: &Hosts, machine: &Machine) -> Result<()> {
    let boot = machine.check(&["cat", "/proc/sys/kernel/random/boot_id"])?;
    eventually("the Node is Ready in this boot", LONG, || {
        let node = hosts.get(&["node", machine.hostname()])?;
        let told = &node["status"]["nodeInfo"]["bootID"];
        ensure!(told == boot.trim(), "boot {told}, not {boot}");
        ensure!(bulkhead_tests::joined::is_true(&node, "Ready"), "{:#}", node["status"]["conditions"]);
        Ok(())
    })
    .map_err(|error| error.context(hosts.last_words()))
}

/// The same pods are Ready, each container started once more than before.
fn wait_restarted(hosts: &Hosts, machine: &Machine, before: &[Seen]) -> Result<()> {
    eventually("the pods are Ready again", LONG, || {
        let now = hosts.pods_on(machine)?;
        ensure!(now.len() == before.len(), "{now:#?}");
        for (old, new) in before.iter().zip(&now) {
            ensure!(old.name == new.name && new.ready && new.restarts == old.restarts + 1, "{old:#?} became {new:#?}");
        }
        Ok(())
    })
    .map_err(|error| error.context(hosts.last_words()))
}

/// These pods are told to be as they were: Ready in the same containers. (While the API server is away somebody may have taken
/// a Node for dead.)
fn wait_as_before(hosts: &Hosts, before: &[Seen]) -> Result<()> {
    eventually("the pods have run on", LONG, || {
        let mut now = hosts.pods()?;
        now.retain(|pod| before.iter().any(|old| old.name == pod.name));
        ensure!(now == before, "{before:#?} became {now:#?}");
        Ok(())
    })
}
