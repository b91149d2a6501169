//! Termination messages: what a container left in its file, or its log, joined to the runtime's own words and cut to
//! the limits (upstream `kuberuntime_container.go`, `pkg/kubelet/container/runtime.go`).

use kubelet_model::pod::model::{ContainerStatus, RunState};

/// Bytes read from the end of the termination message file.
pub const FILE_BYTES_MAX: usize = 4096;
/// Bytes taken from the end of the log.
pub const LOG_BYTES_MAX: usize = 2048;
/// Lines taken from the end of the log.
pub const LOG_LINES_MAX: usize = 80;
/// Bytes in front of a line's text in CRI's format: its time, stream and tags.
const LOG_PREFIX_MAX: usize = 64;
/// Bytes of text after which a runtime goes on in another line, as part of the same (containerd's `max_container_log_line_size`
/// as it is by default).
const LOG_PART_MAX: usize = 16 * 1024;
/// Bytes read from the end of a log, for [`log_tail`]: what may be taken of it with the prefixes, and all of the line in which
/// that begins.
pub const LOG_READ_MAX: usize = LOG_BYTES_MAX + (LOG_LINES_MAX + 1) * LOG_PREFIX_MAX + LOG_PART_MAX;
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

/// The last lines of a log in CRI's format (`<time> <stream> <tag> <text>`), without time and stream. `is_whole`: it begins where the
/// file does; otherwise it is the last [`LOG_READ_MAX`] bytes of it, which begin somewhere in a line.
pub fn log_tail(log: &str, is_whole: bool) -> String {
    let (cut, rest) = if is_whole { ("", log) } else { cut_line(log) };
    let lines: Vec<&str> = rest.split_inclusive('\n').collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES_MAX)..];
    let mut text = String::new();
    if lines.len() < LOG_LINES_MAX {
        text.push_str(cut);
    }
    for line in last {
        let mut parts = line.splitn(4, ' ');
        let (Some(_), Some(_), Some(tag), Some(content)) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        // "P" is a part of a line whose rest follows.
        let is_part = tag.split(':').any(|t| t == "P");
        text.push_str(content.strip_suffix('\n').filter(|_| is_part).unwrap_or(content));
    }
    tail(&text, LOG_BYTES_MAX).to_owned()
}

/// The text of a line that begins before the log does, without what may be of its prefix, and the lines after it. Where so much of the
/// text counts, the line is longer than any part of one, so that it is whole lines that the runtime writes.
fn cut_line(log: &str) -> (&str, &str) {
    let (line, rest) = log.split_at(log.find('\n').map_or(log.len(), |at| at + 1));
    (tail(line, line.len().saturating_sub(LOG_PREFIX_MAX)), rest)
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
        assert_eq!(log_tail(log, true), "one\ntwo\n");
        let long = "t stdout F x\n".repeat(200);
        assert_eq!(log_tail(&long, true).lines().count(), LOG_LINES_MAX);
        assert_eq!(log_tail("t stdout F cut off", true), "cut off");
    }

    /// What upstream's ring buffer of 2048 bytes holds after the last 80 lines.
    #[test]
    fn the_end_of_a_log_of_long_lines() {
        let line = |tag: &str, text: &str| format!("2026-01-01T00:00:00.123456789+00:00 stderr {tag} {text}\n");
        let read = |log: &str| {
            let end = tail(log, LOG_READ_MAX);
            log_tail(end, end.len() == log.len())
        };
        let filler = line("F", "filler").repeat(1000);
        let (part, huge) = ("p".repeat(LOG_PART_MAX), "h".repeat(10 * LOG_READ_MAX));
        let expected = |end: &str, with: char| format!("{}{end}", with.to_string().repeat(LOG_BYTES_MAX - end.len()));
        for before in ["", filler.as_str()] {
            // The runtime does not divide lines at all.
            assert_eq!(read(&format!("{before}{}", line("F", &huge))), expected("\n", 'h'));
            let some = line("F", "bye").repeat(3);
            assert_eq!(read(&format!("{before}{}{some}", line("F", &huge))), expected("\nbye\nbye\nbye\n", 'h'));
            // It does, and little is left for the last part.
            assert_eq!(read(&format!("{before}{}{}", line("P", &part), line("F", "rest"))), expected("rest\n", 'p'));
            let lines = line("F", "").repeat(LOG_LINES_MAX - 2);
            let (log, end) = (line("P", &part) + &line("F", "x") + &lines, "\n".repeat(LOG_LINES_MAX - 2));
            assert_eq!(read(&format!("{before}{log}")), expected(&format!("x\n{end}"), 'p'));
            // The last 80 lines end after it.
            let lines = line("F", "y").repeat(LOG_LINES_MAX);
            assert_eq!(read(&format!("{before}{}{lines}", line("F", &huge))), "y\n".repeat(LOG_LINES_MAX));
        }
    }
}
