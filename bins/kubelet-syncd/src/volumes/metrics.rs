//! `volume_manager_total_volumes`: how many volumes pods want and how many are there, by upstream's names of the plugins.
//! Counted when somebody asks.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};

use crate::hub::PodHub;
use kubelet_volume_manager::VolumeManager;

/// To be registered once.
#[derive(Debug)]
pub struct VolumeCounts {
    hub: Arc<PodHub>,
    /// Of those that it mounts.
    manager: Option<Arc<VolumeManager>>,
    volumes: IntGaugeVec,
}

impl VolumeCounts {
    /// # Errors
    /// The family cannot be made.
    pub fn new(hub: Arc<PodHub>) -> Result<Self, prometheus::Error> {
        let volumes = IntGaugeVec::new(
            Opts::new("volume_manager_total_volumes", "[ALPHA] Number of volumes in Volume Manager"),
            &["plugin_name", "state"],
        )?;
        Ok(VolumeCounts { hub, manager: None, volumes })
    }

    /// The same with what the volume manager mounts.
    #[must_use]
    pub fn with_manager(self, manager: Arc<VolumeManager>) -> Self {
        VolumeCounts { manager: Some(manager), ..self }
    }
}

/// Upstream's plugin for a kind. Of an image's it is one that does nothing (`pkg/volume/image`).
fn plugin_of(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "emptyDir" => "kubernetes.io/empty-dir",
        "hostPath" => "kubernetes.io/host-path",
        "configMap" => "kubernetes.io/configmap",
        "secret" => "kubernetes.io/secret",
        "downwardAPI" => "kubernetes.io/downward-api",
        "projected" => "kubernetes.io/projected",
        "image" => "kubernetes.io/image",
        _ => return None,
    })
}

impl Collector for VolumeCounts {
    fn desc(&self) -> Vec<&Desc> {
        self.volumes.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.volumes.reset();
        for pod in self.hub.list() {
            for volume in &pod.volumes {
                let Some(plugin) = plugin_of(&volume.kind) else { continue };
                for (state, counts) in [("actual_state_of_world", volume.ready), ("desired_state_of_world", true)] {
                    self.volumes.with_label_values(&[plugin, state]).add(counts.into());
                }
            }
        }
        if let Some(manager) = &self.manager {
            let (desired, actual) = manager.counts();
            for (state, counts) in [("actual_state_of_world", actual), ("desired_state_of_world", desired)] {
                for (plugin, count) in counts {
                    let count = i64::try_from(count).unwrap_or(i64::MAX);
                    self.volumes.with_label_values(&[plugin.as_str(), state]).add(count);
                }
            }
        }
        self.volumes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::syncd::PodVolume;
    use bulkhead_types::PodUid;

    #[test]
    fn wanted_and_there() {
        let hub = Arc::new(PodHub::default());
        let counts = VolumeCounts::new(hub.clone()).unwrap();
        assert!(counts.collect().iter().all(|family| family.get_metric().is_empty()));
        let volume = |kind: &str, ready| PodVolume { kind: kind.to_owned(), ready, ..PodVolume::default() };
        let uid = PodUid::parse("u").unwrap();
        hub.modify(&uid, |state| {
            state.volumes = vec![volume("emptyDir", true), volume("emptyDir", false), volume("image", true)];
        });
        counts.collect();
        let count = |plugin: &str, state| counts.volumes.with_label_values(&[plugin, state]).get();
        let both = |plugin| (count(plugin, "actual_state_of_world"), count(plugin, "desired_state_of_world"));
        assert_eq!(both("kubernetes.io/empty-dir"), (1, 2));
        assert_eq!(both("kubernetes.io/image"), (1, 1));
        hub.remove(&uid);
        assert!(counts.collect().iter().all(|family| family.get_metric().is_empty()));
    }
}
