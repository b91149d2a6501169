//! What a driver's answer means (upstream `pkg/volume/flexvolume/driver-call.go`: Run and handleCmdResponse). Its answer is all that it
//! wrote to standard output and standard error: one JSON object.

use bulkhead_ipc::common::FlexCapabilities;
use serde_json::{Map, Value};

/// Characters of a driver's message that are told.
const MESSAGE_MAX: usize = 1024;
/// Bytes of a driver's word for a device, which it is told again as it is.
pub const DEVICE_MAX: usize = 4096;

/// What a driver did.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// `None`: ended by a signal.
    pub code: Option<i32>,
    pub output: Vec<u8>,
    /// It said more than is kept.
    pub cut: bool,
}

/// What it means.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Done(Answer),
    NotSupported,
    Failed(String),
}

/// What a driver has said beside that it has done it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    pub capabilities: FlexCapabilities,
    /// Its word for a device.
    pub device: String,
}

/// Pure. An answer that is none is not quoted: what a driver was told may stand in it.
pub fn verdict(command: &str, said: &Said) -> Verdict {
    let ended = said.code.map_or("ended by a signal".to_owned(), |code| format!("exit status {code}"));
    if said.cut {
        return Verdict::Failed(format!(
            "{command} command failed: the driver said more than an answer has room for, {ended}"
        ));
    }
    let Some((status, message, answer)) = answer(&said.output) else {
        let bytes = said.output.len();
        return Verdict::Failed(format!(
            "{command} command failed: what the driver said ({bytes} bytes) is no answer in JSON, {ended}"
        ));
    };
    match status.as_str() {
        "Success" if said.code == Some(0) => Verdict::Done(answer),
        // Upstream calls it a driver's bug.
        "Success" => Verdict::Failed(ended),
        "Not supported" => Verdict::NotSupported,
        _ => Verdict::Failed(format!("{command} command failed, status: {status}, reason: {message}")),
    }
}

/// Status, message and what else. Names of fields are found as Go finds them, whatever their case.
fn answer(output: &[u8]) -> Option<(String, String, Answer)> {
    let Value::Object(all) = serde_json::from_slice(output).ok()? else { return None };
    let can = match field(&all, "capabilities") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(can)) => can.clone(),
        Some(_) => return None,
    };
    let flag = |name, default| match field(&can, name) {
        None | Some(Value::Null) => Some(default),
        Some(Value::Bool(value)) => Some(*value),
        Some(_) => None,
    };
    let capabilities = FlexCapabilities {
        attach: flag("attach", true)?,
        selinux_relabel: flag("selinuxRelabel", true)?,
        supports_metrics: flag("supportsMetrics", false)?,
        fs_group: flag("fsGroup", true)?,
        requires_fs_resize: flag("requiresFSResize", true)?,
    };
    Some((text(&all, "status")?, text(&all, "message")?, Answer { capabilities, device: device(&all)? }))
}

/// Nothing where there is none; what would not be told as it was said is no answer.
fn device(all: &Map<String, Value>) -> Option<String> {
    match field(all, "device") {
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(text)) if text.len() <= DEVICE_MAX && !text.contains('\0') => Some(text.clone()),
        Some(_) => None,
    }
}

fn field<'a>(all: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    all.get(name).or_else(|| all.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value))
}

/// In one line of bounded length; nothing where there is no such field.
fn text(all: &Map<String, Value>, name: &str) -> Option<String> {
    match field(all, name) {
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(text)) => {
            Some(text.chars().take(MESSAGE_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect())
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(output: &str, code: i32) -> Verdict {
        verdict("mount", &Said { code: Some(code), output: output.as_bytes().to_vec(), cut: false })
    }

    const ALL: FlexCapabilities = FlexCapabilities {
        attach: true,
        selinux_relabel: true,
        supports_metrics: false,
        fs_group: true,
        requires_fs_resize: true,
    };

    #[test]
    fn answers_are_upstreams() {
        let done = |capabilities| Verdict::Done(Answer { capabilities, device: String::new() });
        assert_eq!(of(r#"{"status": "Success"}"#, 0), done(ALL));
        let device = Answer { capabilities: ALL, device: "/dev/sdb".into() };
        assert_eq!(of(r#"{"status": "Success", "device": "/dev/sdb"}"#, 0), Verdict::Done(device));
        assert_eq!(of("\n{\"Status\": \"Success\", \"unknown\": [1]}\n", 0), done(ALL));
        let without = r#"{"status":"Success","capabilities":{"attach":false,"fsGroup":false,"SELinuxRelabel":false}}"#;
        let can = FlexCapabilities { attach: false, fs_group: false, selinux_relabel: false, ..ALL };
        assert_eq!(of(without, 0), done(can));
        for code in [0, 1] {
            assert_eq!(of(r#"{"status":"Not supported"}"#, code), Verdict::NotSupported);
            let why = "mount command failed, status: Failure, reason: no such share";
            assert_eq!(of(r#"{"status":"Failure","message":"no such\nshare"}"#, code), Verdict::Failed(why.into()));
        }
        assert_eq!(of(r#"{"status":"Success"}"#, 3), Verdict::Failed("exit status 3".into()));
    }

    #[test]
    fn what_is_no_answer_is_not_quoted() {
        for lie in [
            "",
            "SECRET",
            "{\"status\": \"Success\"",
            "{\"status\": \"Success\"} SECRET",
            "[]",
            "\"SECRET\"",
            "{\"status\": 1}",
            "{\"status\": \"Success\", \"device\": [\"SECRET\"]}",
            "{\"status\": \"Success\", \"device\": \"SECRET\\u0000\"}",
            "{\"status\": \"Success\", \"capabilities\": \"SECRET\"}",
            "{\"status\": \"Success\", \"capabilities\": {\"attach\": \"SECRET\"}}",
            &"[".repeat(10_000),
        ] {
            let Verdict::Failed(why) = of(lie, 0) else { panic!("{lie}") };
            assert!(why.contains("is no answer in JSON, exit status 0") && !why.contains("SECRET"), "{why}");
        }
        let much = Said { code: None, output: b"{\"status\": \"Success\"}".to_vec(), cut: true };
        let Verdict::Failed(why) = verdict("init", &much) else { panic!() };
        assert!(why.contains("more than an answer has room for, ended by a signal"), "{why}");
        let long = format!("{{\"status\":\"Failure\",\"message\":\"{}\"}}", "x".repeat(100_000));
        let Verdict::Failed(why) = of(&long, 1) else { panic!() };
        assert!(why.len() < 1200);
    }
}
