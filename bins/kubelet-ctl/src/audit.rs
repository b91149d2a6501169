//! `audit`: what kubelet-volnetd was asked for and did, newest last.

use std::collections::HashMap;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd::audit_client::AuditClient;
use bulkhead_ipc::volnetd::{AuditRecord, ReadAuditRequest};
use bulkhead_types::Process;
use serde::Serialize;

use crate::connect::{ConnectError, DEADLINE, connect, within};
use crate::instance::Instance;
use crate::output::{Format, Printer};
use crate::table::Table;
use crate::{Exit, Failure, pods};

/// What is wanted of the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// A pod's name, `namespace/name` or uid.
    pub(crate) pod: Option<&'a str>,
    pub(crate) verb: Option<&'a str>,
    pub(crate) failed: bool,
    /// 0: all that are kept.
    pub(crate) newest: u32,
    pub(crate) follow: bool,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    sequence: u64,
    time: String,
    peer: String,
    verb: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pod_uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    object: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    target: String,
    code: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    seconds: f64,
    #[serde(skip_serializing_if = "String::is_empty")]
    request_id: String,
    dropped_before: u64,
}

const COLUMNS: [&str; 8] = ["TIME", "FROM", "VERB", "POD", "OBJECT", "RESULT", "TOOK", "TARGET"];

/// `audit`.
pub(crate) async fn show(instance: &Instance, wanted: Wanted<'_>, printer: &mut Printer<'_>) -> Result<Exit, Failure> {
    // Names of pods are kubelet-syncd's. Without it pods are shown, and asked for, by uid.
    let names = names(instance).await;
    let pod_uid = match wanted.pod {
        Some(pod) => uid_of(pod, &names)?,
        None => String::new(),
    };
    let connected = connect(instance, Process::Volnetd).await?;
    let mut client = AuditClient::new(connected.channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let trouble = |status: tonic::Status| ConnectError::of(Process::Volnetd, instance, &status);
    let ask = ReadAuditRequest {
        newest: wanted.newest,
        follow: wanted.follow,
        pod_uid,
        verb: wanted.verb.unwrap_or_default().to_owned(),
        failed: wanted.failed,
    };
    let context = CallContext::new();
    let request = if wanted.follow { context.streaming_request(ask) } else { context.request(ask, DEADLINE) };
    let mut stream = within(Process::Volnetd, instance, client.read(request)).await?.into_inner();
    let names: HashMap<&str, &str> = names.iter().map(|(uid, name)| (uid.as_str(), name.as_str())).collect();
    if wanted.follow {
        let mut head = true;
        while let Some(record) = stream.message().await.map_err(trouble)? {
            let record = Record::from(record);
            match printer.format {
                Format::Table => {
                    let mut table = Table::new(&COLUMNS);
                    add(&mut table, &record, &names);
                    printer.text(&table.drain(std::mem::take(&mut head)))?;
                }
                Format::Json | Format::Yaml => printer.stream(&record, String::new)?,
            }
        }
        return Err(
            ConnectError::NoAnswer { process: Process::Volnetd, socket: instance.socket(Process::Volnetd) }.into()
        );
    }
    let mut records = Vec::new();
    while let Some(record) = stream.message().await.map_err(trouble)? {
        records.push(Record::from(record));
    }
    if records.is_empty() && printer.format == Format::Table {
        printer.note("No such acts are on record.");
        return Ok(Exit::Success);
    }
    printer.print(&records, || {
        let mut table = Table::new(&COLUMNS);
        records.iter().for_each(|record| add(&mut table, record, &names));
        table.render(0)
    })?;
    Ok(Exit::Success)
}

/// uid and `namespace/name` of each pod; none without kubelet-syncd.
async fn names(instance: &Instance) -> Vec<(String, String)> {
    let pods = pods::all(instance, None).await.unwrap_or_default();
    pods.into_iter().map(|pod| (pod.uid, format!("{}/{}", pod.namespace, pod.name))).collect()
}

/// A pod that is gone has its uid alone.
fn uid_of(wanted: &str, names: &[(String, String)]) -> Result<String, Failure> {
    let parts: Vec<(&str, &str, &str)> = names
        .iter()
        .filter_map(|(uid, name)| name.split_once('/').map(|(namespace, name)| (namespace, name, uid.as_str())))
        .filter(|(namespace, ..)| wanted.split_once('/').is_none_or(|(wanted, _)| *namespace == wanted))
        .collect();
    let name = wanted.split_once('/').map_or(wanted, |(_, name)| name);
    match pods::find(&parts, name) {
        Ok(at) => Ok(parts.get(at).map(|(_, _, uid)| (*uid).to_owned()).unwrap_or_default()),
        Err(_)
            if bulkhead_types::PodUid::parse(wanted).is_ok() && parts.iter().all(|(_, n, _)| !n.starts_with(name)) =>
        {
            Ok(wanted.to_owned())
        }
        Err(error) => Err(Failure::NotFound(error)),
    }
}

impl From<AuditRecord> for Record {
    fn from(record: AuditRecord) -> Self {
        Record {
            sequence: record.sequence,
            time: record.time,
            peer: record.peer,
            verb: record.verb,
            pod_uid: record.pod_uid,
            object: record.object,
            target: record.target,
            code: record.code,
            message: record.message,
            seconds: record.seconds,
            request_id: record.request_id,
            dropped_before: record.dropped_before,
        }
    }
}

fn add(table: &mut Table, record: &Record, names: &HashMap<&str, &str>) {
    if record.dropped_before > 0 {
        let lost = format!("{} records before this one are lost", record.dropped_before);
        table.row(["", "", "", "", lost.as_str(), "", "", ""]);
    }
    // The time of day to the millisecond: dates are in the other formats.
    let time = record
        .time
        .parse::<jiff::Timestamp>()
        .map(|time| time.to_zoned(jiff::tz::TimeZone::UTC).strftime("%m-%dT%H:%M:%S%.3fZ").to_string());
    let result = match record.message.as_str() {
        "" => record.code.clone(),
        message => format!("{}: {message}", record.code),
    };
    let took = format!("{:.1} ms", record.seconds * 1000.0);
    let pod = names.get(record.pod_uid.as_str()).copied().unwrap_or(record.pod_uid.as_str());
    table.row([
        time.as_deref().unwrap_or(&record.time),
        &record.peer,
        &record.verb,
        pod,
        &record.object,
        &result,
        &took,
        &record.target,
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(pods: &[(&str, &str)]) -> Vec<(String, String)> {
        pods.iter().map(|(uid, name)| ((*uid).to_owned(), (*name).to_owned())).collect()
    }

    #[test]
    fn a_table_of_acts() {
        let record = Record::from(AuditRecord {
            sequence: 7,
            time: "2026-01-02T03:04:05.678912Z".into(),
            peer: "kubelet-syncd".into(),
            verb: "Volumes/SetUpEmptyDir".into(),
            pod_uid: "u".into(),
            object: "cache".into(),
            code: "OK".into(),
            seconds: 0.0123,
            dropped_before: 2,
            ..AuditRecord::default()
        });
        let mut table = Table::new(&COLUMNS);
        add(&mut table, &record, &[("u", "default/web")].into());
        assert_eq!(
            table.render(0),
            "\
TIME                  FROM            VERB                    POD           OBJECT                               RESULT   TOOK      TARGET
-                     -               -                       -             2 records before this one are lost   -        -         -
01-02T03:04:05.678Z   kubelet-syncd   Volumes/SetUpEmptyDir   default/web   cache                                OK       12.3 ms   -
"
        );
    }

    #[test]
    fn pods_are_meant_by_name_or_uid() {
        let names = names_of(&[("u-1", "default/web"), ("u-2", "kube-system/web"), ("u-3", "default/db")]);
        let uid = |wanted| uid_of(wanted, &names).map_err(|error| error.to_string());
        assert_eq!(uid("db").unwrap(), "u-3");
        assert_eq!(uid("kube-system/web").unwrap(), "u-2");
        assert_eq!(uid("u-1").unwrap(), "u-1");
        assert!(uid("web").unwrap_err().contains("several pods"));
        let gone = "11111111-2222-3333-4444-555555555555";
        assert_eq!(uid(gone).unwrap(), gone, "a pod that is gone");
    }
}
