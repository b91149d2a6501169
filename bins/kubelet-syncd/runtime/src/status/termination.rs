//! Termination messages: what a container left in its file, or its log, joined to the runtime's own words and cut to
//! the limits (upstream `kuberuntime_container.go`, `pkg/kubelet/container/runtime.go`).

use kubelet_model::pod::model::{ContainerStatus, RunState};

/// Bytes read from the end of the termination message file.
pub const FILE_BYTES_MAX: usize = 4096;
/// Bytes taken from the end of the log.
pub const LOG_BYTES_MAX: usize = 2048;
/// Lines taken from the end of the log.
pub const LOG_LINES_MAX: usize = 80;
/// Bytes of all messages of a pod; each container gets an equal share.
pub const POD_BYTES_MAX: usize = 12_288;

/// Whether the log's end is to be read: the pod asked for it, the container failed by itself, and its file is empty.
pub fn falls_back_to_log(status: &ContainerStatus, file: &str) -> bool {
    status.state == RunState::Exited
        && status.termination_message_policy == "FallbackToLogsOnError"
        && status.exit_code != 0
        && status.reason != "ContainerCannotRun"
        && file.is_empty()
}

/// A container's whole message. `file` and `log` are what was read, already at most as long as the limits here.
pub fn join(runtime: &str, file: &str, log: &str) -> String {
    let own = if file.is_empty() { log } else { file };
    match (runtime.is_empty(), own.is_empty()) {
        (false, false) => format!("{runtime}: {own}"),
        (false, true) => runtime.to_owned(),
        (true, _) => own.to_owned(),
    }
}

/// The last `max` bytes of the text, beginning at a character.
pub fn tail(text: &str, max: usize) -> &str {
    let from = text.len().saturating_sub(max);
    let from = (from..=text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(text.len());
    &text[from..]
}

/// The first `max` bytes of the text, ending at a character.
pub fn head(text: &str, max: usize) -> &str {
    let to = (0..=max.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    &text[..to]
}

/// The last lines of a log in CRI's format (`<time> <stream> <tag> <text>`), without time and stream.
pub fn log_tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES_MAX)..];
    let mut text = String::new();
    for line in last {
        let mut parts = line.splitn(4, ' ');
        let (Some(_), Some(_), Some(tag), Some(content)) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        text.push_str(content);
        // "P" is a part of a line whose rest follows.
        if !tag.split(':').any(|t| t == "P") {
            text.push('\n');
        }
    }
    tail(&text, LOG_BYTES_MAX).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_model::fixtures::container_status;

    #[test]
    fn joining_and_cutting() {
        assert_eq!(join("", "bye", "log"), "bye");
        assert_eq!(join("oci error", "bye", ""), "oci error: bye");
        assert_eq!(join("oci error", "", ""), "oci error");
        assert_eq!(join("", "", "last words"), "last words");
        assert_eq!((tail("abcü", 2), tail("abcü", 1), head("üab", 1), head("üab", 3)), ("ü", "", "", "üa"));
    }

    #[test]
    fn logs_stand_in_for_an_empty_file() {
        let mut status = container_status("c", RunState::Exited, 1);
        assert!(!falls_back_to_log(&status, ""));
        status.termination_message_policy = "FallbackToLogsOnError".to_owned();
        assert!(falls_back_to_log(&status, "") && !falls_back_to_log(&status, "x"));
        status.exit_code = 0;
        assert!(!falls_back_to_log(&status, ""));
        let log = "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P tw\n2026-01-01T00:00:00Z stderr F o\nbroken\n";
        assert_eq!(log_tail(log), "one\ntwo\n");
        let long = "t stdout F x\n".repeat(200);
        assert_eq!(log_tail(&long).lines().count(), LOG_LINES_MAX);
    }
}
