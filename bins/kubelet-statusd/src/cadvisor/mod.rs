//! `/metrics/cadvisor`: every cgroup that counts in the series that cAdvisor has of it, and the machine.
//!
//! kubelet-evictiond measures and names the groups; here they become text. When it does not answer, the machine's own
//! names and `container_scrape_error 1` are what is left. With the gate PodAndContainerStatsFromCRI the machine is all that is told.

mod groups;
mod text;
mod values;

use std::sync::Arc;

use bulkhead_config::{Feature, NodeConfig};
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::evictiond::{CgroupStats, Machine};
use bulkhead_types::Process;
use http::Request;
use hyper::body::Incoming;
use tokio::sync::OnceCell;

use crate::health::Presence;
use crate::node::facts::Facts;
use crate::peers::Peers;
use crate::scrape::exposition::Kind;
use crate::scrape::{self, Slots};
use crate::server::answer::Answer;
use groups::FAMILIES;
use text::{Extra, Labels, Number, Text, label};

/// Room for a group's series, bytes: what most need.
const GROUP_BYTES: usize = 20 * 1024;

/// Answers `/metrics/cadvisor`.
#[derive(Debug)]
pub struct Cadvisor {
    peers: Arc<Peers>,
    broker: BrokerClient,
    boot_id: String,
    slots: Arc<Slots>,
    /// Containers are the runtime's to tell of.
    machine_alone: bool,
    /// What the machine is called, once it is known.
    names: OnceCell<Facts>,
}

impl Cadvisor {
    /// `slots`: the turns that it shares with other scrapes.
    pub fn new(peers: Arc<Peers>, broker: BrokerClient, config: &NodeConfig, slots: Arc<Slots>) -> Self {
        let machine_alone = config.feature_gates().enabled(Feature::PodAndContainerStatsFromCRI);
        Cadvisor { peers, broker, boot_id: config.boot_id.clone(), slots, machine_alone, names: OnceCell::new() }
    }

    /// Answers one request.
    pub async fn serve(&self, request: Request<Incoming>) -> Answer {
        let Some(_slot) = self.slots.one().await else { return scrape::busy() };
        let (mut facts, groups) = tokio::join!(self.machine_names(), self.peers.cgroups());
        facts.read_again();
        let (machine, groups) = match groups {
            Ok((machine, groups)) => (Some(machine), groups),
            Err(status) => {
                tracing::warn!(code = ?status.code(), "failed to get statistics from kubelet-evictiond: {}", status.message());
                (None, Vec::new())
            }
        };
        if self.machine_alone {
            return scrape::answer_text(render_machine(&facts, machine.as_ref()), request.headers());
        }
        let now = jiff::Timestamp::now().as_millisecond();
        scrape::answer_text(render(&facts, machine.as_ref(), &groups, now), request.headers())
    }

    async fn machine_names(&self) -> Facts {
        let read = || Facts::read(&self.broker, &self.boot_id);
        // Without kubelet-volnetd the product's UUID is missing: good for this answer, not for all later ones.
        if self.peers.presence(Process::Volnetd) == Presence::Ready {
            return self.names.get_or_init(read).await.clone();
        }
        match self.names.get() {
            Some(facts) => facts.clone(),
            None => read().await,
        }
    }
}

/// The whole text. `machine: None`: nothing was measured. `now`: milliseconds since the epoch.
fn render(facts: &Facts, machine: Option<&Machine>, groups: &[CgroupStats], now: i64) -> String {
    let labels: Vec<Labels> = groups.iter().map(Labels::of).collect();
    let mut text = Text::with_room_for(groups.len().saturating_mul(GROUP_BYTES).saturating_add(GROUP_BYTES));
    version(&mut text, facts);
    let seen = |text: &mut Text| {
        text.family("container_last_seen", Kind::Gauge, "Last time a container was seen by the exporter");
        for labels in &labels {
            text.of_group(labels, &Extra::default(), Number::Signed(now / 1000), Some(now));
        }
    };
    let (mut seen_done, mut error_done) = (false, false);
    let error = |text: &mut Text| {
        let help = "1 if there was an error while getting container metrics, 0 otherwise";
        text.family("container_scrape_error", Kind::Gauge, help);
        text.with_labels("", Number::Whole(u64::from(machine.is_none_or(|machine| !machine.pods_known))));
    };
    for family in FAMILIES {
        if family.name > "container_last_seen" && !std::mem::replace(&mut seen_done, true) {
            seen(&mut text);
        }
        if family.name > "container_scrape_error" && !std::mem::replace(&mut error_done, true) {
            error(&mut text);
        }
        text.family(family.name, family.kind, family.help);
        for (group, labels) in groups.iter().zip(&labels) {
            let timestamp = family.stamped.then_some(group.time_ms);
            (family.series)(group, &mut |extra, value| text.of_group(labels, extra, value, timestamp));
        }
    }
    machine_series(&mut text, facts, machine);
    text.finish()
}

/// What upstream leaves beside the runtime's own series.
fn render_machine(facts: &Facts, machine: Option<&Machine>) -> String {
    let mut text = Text::with_room_for(GROUP_BYTES);
    machine_series(&mut text, facts, machine);
    text.finish()
}

fn version(text: &mut Text, facts: &Facts) {
    let help = "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor \
                version & cadvisor revision.";
    text.family("cadvisor_version_info", Kind::Gauge, help);
    let labels = format!(
        "cadvisorRevision=\"\",cadvisorVersion=\"\",dockerVersion=\"\",{},{}",
        label("kernelVersion", &facts.kernel_version),
        label("osVersion", &facts.os_image)
    );
    text.with_labels(&labels, Number::Whole(1));
}

fn machine_series(text: &mut Text, facts: &Facts, machine: Option<&Machine>) {
    let boot_id = label("boot_id", &facts.boot_id);
    let machine_id = label("machine_id", &facts.machine_id);
    let system_uuid = label("system_uuid", &facts.system_uuid);
    let names = format!("{boot_id},{machine_id},{system_uuid}");
    let mut one = |name, help, value: u64| {
        text.family(name, Kind::Gauge, help);
        text.with_labels(&names, Number::Whole(value));
    };
    if let Some(machine) = machine {
        // Books and drawers are of mainframes, what follows of non-volatile memory: none is looked for.
        one("machine_cpu_books", "Number of CPU books.", 0);
        one("machine_cpu_cores", "Number of logical CPU cores.", machine.cores.into());
        one("machine_cpu_drawers", "Number of CPU drawers.", 0);
        one("machine_cpu_physical_cores", "Number of physical CPU cores.", machine.physical_cores.into());
        one("machine_cpu_sockets", "Number of CPU sockets.", machine.sockets.into());
        one("machine_memory_bytes", "Amount of memory installed on the machine.", machine.memory_bytes);
        one("machine_nvm_avg_power_budget_watts", "NVM power budget.", 0);
        let help = "NVM capacity value labeled by NVM mode (memory mode or app direct mode).";
        text.family("machine_nvm_capacity", Kind::Gauge, help);
        for mode in ["app_direct_mode", "memory_mode"] {
            let labels = format!("{boot_id},{machine_id},mode=\"{mode}\",{system_uuid}");
            text.with_labels(&labels, Number::Whole(0));
        }
    }
    let help = "1 if there was an error while getting machine metrics, 0 otherwise.";
    text.family("machine_scrape_error", Kind::Gauge, help);
    text.with_labels("", Number::Whole(u64::from(machine.is_none())));
    if let Some(machine) = machine {
        text.family("machine_swap_bytes", Kind::Gauge, "Amount of swap memory available on the machine.");
        text.with_labels(&names, Number::Whole(machine.swap_bytes));
    }
}

#[cfg(test)]
mod tests;
