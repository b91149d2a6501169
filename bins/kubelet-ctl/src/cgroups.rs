//! `cgroups`: the pods' control groups as kubelet-volnetd finds them.

use std::collections::HashMap;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::volnetd::cgroups_client::CgroupsClient;
use bulkhead_ipc::volnetd::{ListCgroupsRequest, PodCgroup, Qos};
use bulkhead_types::Process;
use serde::Serialize;

use crate::connect::{connect, request, within};
use crate::instance::Instance;
use crate::output::{Format, Printer};
use crate::table::Table;
use crate::{Exit, Failure, pods};

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cgroup {
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pod: String,
    pod_uid: String,
    qos_class: &'static str,
    cgroup: String,
}

/// `cgroups`.
pub(crate) async fn list(
    instance: &Instance,
    namespace: Option<&str>,
    printer: &mut Printer<'_>,
) -> Result<Exit, Failure> {
    let connected = connect(instance, Process::Volnetd).await?;
    let mut client = CgroupsClient::new(connected.channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let call = async {
        let mut stream = client.list(request(ListCgroupsRequest {})).await?.into_inner();
        let mut found = Vec::new();
        while let Some(cgroup) = stream.message().await? {
            found.push(cgroup);
        }
        Ok(found)
    };
    let found = within(Process::Volnetd, instance, call).await?;
    let names = match pods::all(instance, None).await {
        Ok(pods) => pods.into_iter().map(|pod| (pod.uid, (pod.namespace, pod.name))).collect(),
        Err(failure) => {
            printer.note(&format!("kubelet-ctl: pods are shown by uid: {failure}"));
            HashMap::new()
        }
    };
    let mut cgroups = join(found, &names);
    cgroups.retain(|cgroup| namespace.is_none_or(|namespace| cgroup.namespace == namespace));
    if cgroups.is_empty() && printer.format == Format::Table {
        printer.note("No pod has a control group.");
        return Ok(Exit::Success);
    }
    printer.print(&cgroups, || table(&cgroups))?;
    Ok(Exit::Success)
}

fn join(found: Vec<PodCgroup>, names: &HashMap<String, (String, String)>) -> Vec<Cgroup> {
    let mut cgroups: Vec<Cgroup> = found
        .into_iter()
        .map(|found| {
            let qos_class = match found.qos() {
                Qos::Guaranteed => "Guaranteed",
                Qos::Burstable => "Burstable",
                Qos::BestEffort => "BestEffort",
                Qos::Unspecified => "",
            };
            let (namespace, pod) = names.get(&found.pod_uid).cloned().unwrap_or_default();
            Cgroup { namespace, pod, pod_uid: found.pod_uid, qos_class, cgroup: found.cgroup }
        })
        .collect();
    cgroups.sort_by(|a, b| (&a.namespace, &a.pod, &a.pod_uid).cmp(&(&b.namespace, &b.pod, &b.pod_uid)));
    cgroups
}

fn table(cgroups: &[Cgroup]) -> String {
    let mut table = Table::new(&["NAMESPACE", "POD", "QOS CLASS", "CGROUP"]);
    for cgroup in cgroups {
        let pod = if cgroup.pod.is_empty() { &cgroup.pod_uid } else { &cgroup.pod };
        let cells: [&str; 4] = [&cgroup.namespace, pod, cgroup.qos_class, &cgroup.cgroup];
        table.row(cells);
    }
    table.render(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_paths() {
        let found = |uid: &str, qos: Qos| PodCgroup {
            pod_uid: uid.into(),
            qos: qos.into(),
            cgroup: format!("/kubepods/besteffort/pod{uid}"),
        };
        let names = HashMap::from([("u1".to_owned(), ("default".to_owned(), "web".to_owned()))]);
        assert_eq!(
            table(&join(vec![found("u1", Qos::BestEffort), found("u9", Qos::Burstable)], &names)),
            "\
NAMESPACE   POD   QOS CLASS    CGROUP
-           u9    Burstable    /kubepods/besteffort/podu9
default     web   BestEffort   /kubepods/besteffort/podu1
"
        );
    }
}
