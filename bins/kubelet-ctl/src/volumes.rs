//! `volumes`: what kubelet-syncd wants beside what kubelet-volnetd finds on disk and in mountinfo.

use std::collections::BTreeMap;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::syncd::PodState;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::{ListVolumesRequest, VolumeState};
use bulkhead_types::Process;
use serde::Serialize;

use crate::connect::{connect, request, within};
use crate::instance::Instance;
use crate::output::{Format, Printer};
use crate::table::Table;
use crate::{Exit, Failure, pods};

/// A volume of a pod.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Volume {
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    /// Empty when no pod of this uid is known: left over, or kubelet-syncd does not answer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pod: String,
    pod_uid: String,
    volume: String,
    kind: String,
    /// A pod wants it.
    wanted: bool,
    /// Set up on this node.
    present: bool,
    /// A mount of its own.
    mounted: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    fs_type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    host_path: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    problem: String,
}

/// `volumes`.
pub(crate) async fn list(
    instance: &Instance,
    namespace: Option<&str>,
    printer: &mut Printer<'_>,
) -> Result<Exit, Failure> {
    let connected = connect(instance, Process::Volnetd).await?;
    let mut client = VolumesClient::new(connected.channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let call = async {
        let mut stream =
            client.list_volumes(request(ListVolumesRequest { pod_uid: String::new() })).await?.into_inner();
        let mut found = Vec::new();
        while let Some(volume) = stream.message().await? {
            found.push(volume);
        }
        Ok(found)
    };
    let found = within(Process::Volnetd, instance, call).await?;
    let wanted = match pods::all(instance, None).await {
        Ok(pods) => Some(pods),
        Err(failure) => {
            printer.note(&format!("kubelet-ctl: pods are shown by uid: {failure}"));
            None
        }
    };
    let mut volumes = join(wanted.unwrap_or_default(), found);
    volumes.retain(|volume| namespace.is_none_or(|namespace| volume.namespace == namespace));
    if volumes.is_empty() && printer.format == Format::Table {
        printer.note("No volumes.");
        return Ok(Exit::Success);
    }
    printer.print(&volumes, || table(&volumes))?;
    Ok(Exit::Success)
}

fn join(pods: Vec<PodState>, found: Vec<VolumeState>) -> Vec<Volume> {
    let mut volumes: BTreeMap<(String, String), Volume> = BTreeMap::new();
    let mut names: BTreeMap<String, (String, String)> = BTreeMap::new();
    for pod in pods {
        names.insert(pod.uid.clone(), (pod.namespace.clone(), pod.name.clone()));
        for volume in pod.volumes {
            let problem = if volume.error.is_empty() && !volume.ready { "not ready".into() } else { volume.error };
            let row = Volume {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                pod_uid: pod.uid.clone(),
                volume: volume.name.clone(),
                kind: volume.kind,
                wanted: true,
                // A hostPath is the host's own: nothing of it is on kubelet-volnetd's list.
                present: volume.ready,
                mounted: false,
                fs_type: String::new(),
                host_path: volume.host_path,
                problem,
            };
            volumes.insert((pod.uid.clone(), volume.name), row);
        }
    }
    for state in found {
        let (namespace, pod) = names.get(&state.pod_uid).cloned().unwrap_or_default();
        let row = volumes.entry((state.pod_uid.clone(), state.volume.clone())).or_insert_with(|| Volume {
            namespace,
            pod,
            pod_uid: state.pod_uid,
            volume: state.volume,
            kind: state.plugin.trim_start_matches("kubernetes.io/").to_owned(),
            wanted: false,
            present: true,
            mounted: false,
            fs_type: String::new(),
            host_path: String::new(),
            problem: "no pod wants it".into(),
        });
        row.present = true;
        row.mounted = state.mounted;
        row.fs_type = state.fs_type;
        // Of a hostPath only its subPaths are listed.
        if !state.host_path.is_empty() {
            row.host_path = state.host_path;
        }
        if state.uncertain {
            row.problem = "set-up was broken off".into();
        }
    }
    let mut volumes: Vec<Volume> = volumes.into_values().collect();
    volumes.sort_by(|a, b| (&a.namespace, &a.pod, &a.volume).cmp(&(&b.namespace, &b.pod, &b.volume)));
    volumes
}

fn table(volumes: &[Volume]) -> String {
    let mut table = Table::new(&["NAMESPACE", "POD", "VOLUME", "KIND", "PRESENT", "MOUNT", "PATH", "PROBLEM"]);
    for volume in volumes {
        let pod = if volume.pod.is_empty() { &volume.pod_uid } else { &volume.pod };
        let mount = match (volume.mounted, volume.fs_type.as_str()) {
            (false, _) => "no",
            (true, "") => "yes",
            (true, fs_type) => fs_type,
        };
        let present = if volume.present { "yes" } else { "no" };
        let cells: [&str; 8] =
            [&volume.namespace, pod, &volume.volume, &volume.kind, present, mount, &volume.host_path, &volume.problem];
        table.row(cells);
    }
    table.render(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::syncd::PodVolume;

    #[test]
    fn wanted_and_found_are_one_row() {
        let pod = PodState {
            uid: "u1".into(),
            namespace: "default".into(),
            name: "web".into(),
            volumes: vec![
                PodVolume { name: "cache".into(), kind: "emptyDir".into(), ready: true, ..Default::default() },
                PodVolume {
                    name: "etc".into(),
                    kind: "hostPath".into(),
                    ready: true,
                    host_path: "/etc".into(),
                    ..Default::default()
                },
                PodVolume {
                    name: "slow".into(),
                    kind: "emptyDir".into(),
                    error: "disk full".into(),
                    ..Default::default()
                },
            ],
            ..Default::default()
        };
        let found = |uid: &str, volume: &str, fs: &str| VolumeState {
            pod_uid: uid.into(),
            volume: volume.into(),
            plugin: "kubernetes.io/empty-dir".into(),
            host_path: format!("/p/{uid}/{volume}"),
            mounted: !fs.is_empty(),
            fs_type: fs.into(),
            ..Default::default()
        };
        let volumes = join(vec![pod], vec![found("u1", "cache", "tmpfs"), found("u9", "old", "")]);
        assert_eq!(
            table(&volumes),
            "\
NAMESPACE   POD   VOLUME   KIND        PRESENT   MOUNT   PATH          PROBLEM
-           u9    old      empty-dir   yes       no      /p/u9/old     no pod wants it
default     web   cache    emptyDir    yes       tmpfs   /p/u1/cache   -
default     web   etc      hostPath    yes       no      /etc          -
default     web   slow     emptyDir    no        no      -             disk full
"
        );
    }
}
