//! The audit log of a real API server, read as it grows: a line when a request comes, and one when it is answered.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use serde_json::Value;

use super::{Record, RequestLog};
use crate::resources::RESOURCES;

/// Verbs of requests for resources and the methods that they come by.
const VERBS: &[(&str, &str)] = &[
    ("get", "GET"),
    ("list", "GET"),
    ("watch", "GET"),
    ("create", "POST"),
    ("update", "PUT"),
    ("patch", "PATCH"),
    ("delete", "DELETE"),
    ("deletecollection", "DELETE"),
    ("post", "POST"),
    ("put", "PUT"),
    ("head", "HEAD"),
    ("options", "OPTIONS"),
];

/// See the module.
#[derive(Debug)]
pub(super) struct AuditLog {
    file: File,
    /// The beginning of a line whose end is still to come.
    rest: Vec<u8>,
    /// Requests without an answer: their numbers in the log.
    open: HashMap<String, u64>,
}

impl AuditLog {
    pub(super) fn open(path: &Path) -> Result<Self> {
        // To be cut off as well ([`AuditLog::begin_anew`]).
        let mut file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("opening the audit log {}", path.display()))?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self { file, rest: Vec::new(), open: HashMap::new() })
    }

    /// Cuts off what there is. The server appends, wherever the end is.
    pub(super) fn begin_anew(&mut self) {
        self.rest.clear();
        self.open.clear();
        let _ = self.file.set_len(0);
        let _ = self.file.seek(SeekFrom::Start(0));
    }

    pub(super) fn read_on(&mut self, log: &RequestLog) -> Result<()> {
        self.file.read_to_end(&mut self.rest).context("reading the audit log")?;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        for line in whole.split(|byte| *byte == b'\n') {
            if let Ok(event) = serde_json::from_slice::<Value>(line) {
                self.note(log, &event);
            }
        }
        Ok(())
    }

    fn note(&mut self, log: &RequestLog, event: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let id = text(&event["auditID"]);
        if event["stage"] == "RequestReceived" {
            // Clients may choose the id of a request, and repeat it.
            if let Some(record) = record(event) {
                self.open.insert(id, log.begin(record));
            }
            return;
        }
        if let Some(number) = self.open.get(&id) {
            let status = event["responseStatus"]["code"].as_u64().and_then(|code| u16::try_from(code).ok());
            let body = Some(event["requestObject"].clone()).filter(|body| !body.is_null());
            log.end(*number, status.unwrap_or(0), body);
        }
        if event["stage"] != "ResponseStarted" {
            self.open.remove(&id);
        }
    }
}

fn record(event: &Value) -> Option<Record> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (verb, method) = *VERBS.iter().find(|(verb, _)| event["verb"] == *verb)?;
    let object = &event["objectRef"];
    let resource = RESOURCES.iter().find(|known| object["resource"] == known.plural);
    Some(Record {
        number: 0,
        time: event["requestReceivedTimestamp"].as_str()?.parse::<Timestamp>().ok()?,
        user: text(&event["user"]["username"]),
        agent: text(&event["userAgent"]),
        method: method.to_owned(),
        verb,
        uri: text(&event["requestURI"]),
        resource: resource.map_or("", |known| known.plural),
        subresource: text(&object["subresource"]),
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        content_type: String::new(),
        status: 0,
        protocol: String::new(),
        body: None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::*;

    fn event(id: &str, stage: &str, agent: &str) -> Value {
        json!({"auditID": id, "stage": stage, "verb": "patch", "requestURI": "/api/v1/namespaces/n/pods/p/status?x=y",
            "user": {"username": "system:node:a"}, "userAgent": agent,
            "objectRef": {"resource": "pods", "namespace": "n", "name": "p", "subresource": "status"},
            "requestReceivedTimestamp": "2026-11-22T18:00:00.000001Z"})
    }

    #[test]
    fn requests_are_read_when_they_come_and_again_when_they_are_answered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        std::fs::write(&path, "before\n").unwrap();
        let log = RequestLog::of_audit_log(&path).unwrap();
        let mut file = File::options().append(true).open(&path).unwrap();
        writeln!(file, "{}", event("1", "RequestReceived", "kubelet/v1")).unwrap();
        writeln!(file, "{}", event("2", "RequestReceived", super::super::KIT_AGENT)).unwrap();
        let asked = log.after(0);
        assert_eq!(asked.len(), 1, "without the kit's own");
        assert_eq!((asked[0].what().as_str(), asked[0].status, log.mark()), ("patch pods/status", 0, 2));
        let mut answered = event("1", "ResponseComplete", "kubelet/v1");
        answered["responseStatus"] = json!({"code": 200});
        answered["requestObject"] = json!({"status": {}});
        let line = answered.to_string();
        write!(file, "{}", &line[..10]).unwrap();
        assert_eq!(log.after(0)[0].status, 0, "half a line says nothing");
        writeln!(file, "{}", &line[10..]).unwrap();
        let asked = log.after(0);
        assert_eq!((asked[0].status, asked[0].body.clone()), (200, Some(json!({"status": {}}))));
        log.forget();
        assert!(log.after(0).is_empty() && std::fs::metadata(&path).unwrap().len() == 0);
        writeln!(file, "{}", event("3", "RequestReceived", "kubelet/v1")).unwrap();
        assert_eq!(log.after(0).len(), 1);
    }
}
